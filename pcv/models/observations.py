"""The rows that several models share: one outcome, and the columns of each."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from jaxtyping import Int

from pcv.base.errors import PcvError, kind_of
from pcv.folds.columns import Missing, free, missing_column, refuse_twice
from pcv.models.model import Model, Observations, Target


def observations(models: Mapping[str, Model | Target], data: Any) -> Observations:
    """The rows shared by all models: one outcome, and the columns of each model."""
    outcomes = {name: x.outcome.name for name, x in models.items()}
    first, *others = models
    for name in others:
        if outcomes[name] != outcomes[first]:
            raise PcvError(
                f"models '{first}' and '{name}' are of different outcomes, '{outcomes[first]}' and "
                f"'{outcomes[name]}'; they cannot share folds"
            )
    outcome = outcomes[first]
    if not isinstance(data, Mapping | pd.DataFrame | xr.Dataset | None):
        raise PcvError(f"data is {kind_of(data)}; give arrays by name, or a table")
    table = {} if data is None else data
    refuse_twice([str(name) for name in table], "data")
    given = {str(name): _unmasked(table[name]) for name in table}
    own = {name: x.data for name, x in models.items() if isinstance(x, Model) and x.data}
    times = next((x.times for x in own.values() if x.times is not None), None)
    given, of_data, kept = _without_missing(given, outcome, times)
    missing = next((x.missing for x in own.values() if x.missing), of_data)
    times = kept if times is None else times
    parts = {name: own.get(name) or Observations(given) for name in models}
    for name, part in parts.items():
        if outcome not in part.columns:
            there = ", ".join(part.columns) or "none"
            raise PcvError(
                f"model '{name}': its outcome '{outcome}' is not in the data ({there}); give them "
                "by data=..."
            )
        if np.ndim(part.columns[outcome]) != 1:
            shape = np.shape(part.columns[outcome])
            raise PcvError(
                f"data: the outcome '{outcome}' has shape {shape}; give a flat array, a value for "
                "each row"
            )
        if (
            name in own
            and outcome in given
            and not np.array_equal(np.ravel(given[outcome]), part.columns[outcome])
        ):
            sizes = len(part.columns[outcome]), np.size(given[outcome])
            raise PcvError(
                f"model '{name}' was made with {sizes[0]} values of '{outcome}', and data=... has "
                f"{'others' if sizes[0] == sizes[1] else sizes[1]}; make the model of these data"
            )
        if name == first:
            continue
        same = np.array_equal(part.columns[outcome], parts[first].columns[outcome])
        if not same or part.units != parts[first].units:
            raise PcvError(
                f"models '{first}' and '{name}' were made with different values, or units, of "
                f"'{outcome}'; they cannot share folds"
            )
    return _agreed(models, parts, given)._replace(missing=missing, times=times)


def _unmasked(x: Any) -> np.ndarray:
    """An array, NaN where it was masked."""
    return np.asarray(np.ma.filled(x.astype(float), np.nan) if np.ma.is_masked(x) else x)


def _without_missing(
    given: Mapping[str, np.ndarray], outcome: str, times: Int[np.ndarray, " unit"] | None
) -> tuple[dict[str, np.ndarray], Missing | None, Int[np.ndarray, " unit"] | None]:
    """The rows whose outcome is observed, what is missing, and how often each of all rows counts.

    Args:
        given: arrays by name; those as long as the outcome are columns.
        outcome: name of the column that is predicted.
        times: from a front-end's model of these rows; None: all are there but those of NaN.
    """
    y = given.get(outcome)
    if y is None or y.ndim != 1:
        return dict(given), None, None
    lost = pd.isna(y)
    if lost.all():
        raise PcvError(f"data: all {y.size} values of the outcome '{outcome}' are missing")
    if times is None or times.size != y.size:
        times = (~lost).astype(int)
    if (times == 1).all():
        return dict(given), None, None
    columns = {name for name, x in given.items() if x.ndim and len(x) == y.size}
    kept = {name: np.repeat(x, times, 0) if name in columns else x for name, x in given.items()}
    return kept, Missing(int(lost.sum()), y.size), times


def _agreed(
    models: Mapping[str, Model | Target],
    parts: Mapping[str, Observations],
    given: Mapping[str, np.ndarray],
) -> Observations:
    """The first model's rows, with the columns on which all models agree.

    Front-end models hold their own values, and keep them for columns that are left out here.
    """
    first, *_ = parts.values()
    columns: dict[str, np.ndarray] = {}
    owner: dict[str, str] = {}
    differ = set()
    for name, part in parts.items():
        for column, x in part.columns.items():
            there = columns.setdefault(column, x)
            other = owner.setdefault(column, name)
            if there is x or np.array_equal(there, x):
                continue
            differ.add(column)
            if column in given and any(
                isinstance(m, Model) and not m.data for m in models.values()
            ):
                raise PcvError(
                    f"models '{other}' and '{name}' have different values of column '{column}', "
                    "and one of them reads it from data=...; rename it there"
                )
    agreed = {name: x for name, x in {**given, **columns}.items() if name not in differ}
    of_rows = (*first.order, *first.units, *first.labels.values())
    renamed = {name: f"{name}_of_unit" if name in differ else name for name in of_rows}
    return Observations(
        agreed | {new: first.columns[name] for name, new in renamed.items()},
        tuple(renamed[name] for name in first.order),
        tuple(renamed[name] for name in first.units),
        {renamed[name]: renamed[label] for name, label in first.labels.items()},
    )


def append_rows(
    given: Mapping[str, Any], new_data: Any, count: int, outcome: str
) -> dict[str, Any]:
    """Data with further rows at their end.

    Args:
        given: the data, by name. Arrays of `count` rows are columns.
        new_data: a table, or arrays by name, with a value of every column in each new row. Other
            names in both replace what is given; further ones are left out.
        count: number of rows.
        outcome: name of the column that is predicted.

    Raises:
        PcvError: a column is missing, has values missing, or is of another shape or kind.

    >>> append_rows({"y": np.array([1, 2]), "sd": 3.0}, {"y": [4]}, 2, "y")
    {'y': array([1, 2, 4]), 'sd': 3.0}
    """
    if not isinstance(new_data, Mapping | pd.DataFrame | xr.Dataset):
        raise PcvError(f"new_data is {kind_of(new_data)}; give arrays by name, or a table")
    refuse_twice([str(name) for name in new_data], "new_data")
    new = {str(name): np.asarray(new_data[name]) for name in new_data}
    columns = [name for name, x in given.items() if np.ndim(x) and len(x) == count]
    if outcome in columns and outcome not in new:
        raise PcvError(f"new_data: no outcome {outcome!r}; scores need its observed values")
    for name in columns:
        if name not in new:
            raise PcvError(missing_column(name, new, "new_data"))
    sizes = {name: len(np.atleast_1d(new[name])) for name in columns}
    if len({*sizes.values()}) > 1 or 0 in sizes.values():
        listed = ", ".join(f"{name!r} {size}" for name, size in sizes.items())
        raise PcvError(f"new_data: numbers of rows must be the same, and above 0: {listed}")
    whole = {name: new.get(name, x) for name, x in given.items()}
    return whole | {name: _extended(name, np.asarray(given[name]), new[name]) for name in columns}


def _extended(name: str, x: np.ndarray, new: np.ndarray) -> np.ndarray:
    """A column with new values at its end, of its type where that loses nothing."""
    numbers = [array.dtype.kind in "biuf" for array in (x, new)]
    if new.shape[1:] != x.shape[1:] or new.ndim != x.ndim:
        raise PcvError(f"new_data: {name!r} has shape {new.shape}, in the data {x.shape}")
    if numbers[0] != numbers[1]:
        kinds = ["numbers" if number else "no numbers" for number in numbers]
        raise PcvError(f"new_data: {name!r} holds {kinds[1]}, in the data {kinds[0]}")
    missing = np.argwhere(pd.isna(new))
    if missing.size:
        raise PcvError(
            f"new_data: {name!r} is missing in row {missing[0][0] + 1}; fill it in, or drop the row"
        )
    if all(numbers) and np.array_equal(new.astype(x.dtype), new):
        new = new.astype(x.dtype)
    return np.concatenate([x, new])


def rows(observed: Observations, outcome: str) -> xr.Dataset:
    """Arrays of the outcome's length as columns, all others as constants, sorted by name."""
    columns = dict(sorted(observed.columns.items()))

    def dims(name: str, x: Any) -> list[str]:
        if np.shape(x) == np.shape(columns[outcome]):
            return [free("row", columns)]
        return [free(f"{name}_{axis}", columns) for axis in range(np.ndim(x))]

    return xr.Dataset({name: (dims(name, x), np.asarray(x)) for name, x in columns.items()})


def of_units(values: Any, observed: Observations) -> Any:
    """A value for each unit that is scored, from one for each of all units."""
    if observed.times is None or len(values) != observed.times.size:
        return values
    return np.repeat(np.asarray(values), observed.times)


def unit_of_row(observed: Observations, outcome: str) -> np.ndarray:
    """The index of each row's unit, as in `model_data` up to the order of units."""
    if not observed.units:
        return np.arange(len(observed.columns[outcome]))
    units = pd.DataFrame({name: observed.columns[name] for name in observed.units})
    return np.asarray(units.groupby(list(observed.units), sort=False).ngroup())


def num_units(observed: Observations, outcome: str) -> int:
    return int(unit_of_row(observed, outcome).max(initial=-1)) + 1
