"""Checks of the arguments of schemes, and of the folds they return."""

from collections.abc import Iterable, Sequence
from typing import Any, cast

import numpy as np
import pandas as pd
from jaxtyping import Int, Shaped

from pcv.base.errors import PcvError
from pcv.base.names import name_bits
from pcv.folds.base import Folds
from pcv.folds.columns import label

Values = Sequence[Any] | pd.Series | Shaped[np.ndarray, " unit"]
"""one value per unit"""
Units = int | np.integer | Sequence[str] | pd.Series | Shaped[np.ndarray, " unit"]
"""number of units, or their names"""


def names_of(units: Units) -> Sequence[str]:
    """Names of units, counted from 0 if only their number is given, as a model's units are.

    Raises:
        PcvError: no units, or not a whole number of them.

    >>> names_of(2)
    ['0', '1']
    """
    if isinstance(units, int | np.integer) and not isinstance(units, bool) and units >= 0:
        names: Sequence[str] = [str(i) for i in range(units)]
    elif isinstance(units, str) or np.ndim(units) != 1:
        raise PcvError(f"units is {units!r}; give their number, or a list of their names")
    else:
        names = [label(value) for value in cast(Sequence[str], units)]  # a Series: not by its index
    if not len(names):
        raise PcvError("there are no units to make folds of")
    return names


def generator(scheme: str, seed: int) -> np.random.Generator:
    if seed < 0:
        raise PcvError(f"{scheme}: seed is {seed}; give 0 or more")
    return np.random.default_rng([seed, name_bits("folds")])


def complete(values: Values, name: str, units: Units | None = None) -> np.ndarray:
    """One value per unit, as an array.

    Raises:
        PcvError: a value is missing, or there are more or fewer values than units.
    """
    if isinstance(values, str):
        raise PcvError(
            f"{name} is {values!r}; give a value for each unit, or name columns of the data as in "
            "folds={'scheme': 'leave_one_group_out', 'group': 'rat'}"
        )
    found = np.asarray(values)
    if found.ndim != 1:
        raise PcvError(f"{name} has shape {found.shape}; give a flat array, a value for each unit")
    names = range(found.size) if units is None else names_of(units)
    number = len(names)
    if not found.size or found.size != number:
        raise PcvError(f"{name}: {found.size} values, of {number} units; give one for each unit")
    missing = pd.isna(found)
    if missing.any():
        unit = names[int(missing.argmax())]
        raise PcvError(
            f"{name}: the value of unit '{unit}' is missing; fill it in, or leave the unit out of "
            "the data"
        )
    return found


def whole(scheme: str, **numbers: Any) -> None:
    """Refuse numbers that are not whole."""
    for name, number in numbers.items():
        if not isinstance(number, int | np.integer) or isinstance(number, bool):
            raise PcvError(f"{scheme}: {name} is {number!r}; give a whole number")


def grouped(
    values: Shaped[np.ndarray, " unit"],
) -> tuple[list[str], Int[np.ndarray, " unit"]]:
    """Labels of the sorted distinct values, and each unit's index among them.

    Raises:
        PcvError: they are floats that do not tell whole numbers apart.
    """
    if values.dtype.kind == "f" and (np.abs(values) >= 2**53).any():
        raise PcvError(
            f"groups: {values[np.abs(values).argmax()]:.0f} is a float, which has digits for whole "
            "numbers up to 2^53 alone; give groups as integers or as text"
        )
    distinct, group = np.unique(values, return_inverse=True)
    return [label(value) for value in distinct], group


def series_of(by: Shaped[np.ndarray, " unit"]) -> dict[str, Int[np.ndarray, " unit_of_series"]]:
    """The indices of each series' units, series sorted.

    >>> series_of(np.array([10, 9, 10]))
    {'9': array([1]), '10': array([0, 2])}
    """
    labels, number = grouped(by)
    return {name: np.flatnonzero(number == j) for j, name in enumerate(labels)}


def checked(
    folds: Folds,
    units: Units,
    cover: bool = False,
    time: Values | None = None,
    by: Values | None = None,
) -> Folds:
    """The folds, once `check` and `check_order` have passed them."""
    check(folds, names_of(units), cover)
    if time is not None:
        series = None if by is None else complete(by, "by", units)
        check_order(complete(time, "time", units), names_of(units), "time", folds, series)
    return folds


def check(folds: Folds, unit_names: Sequence[str], cover: bool) -> None:
    """Refuse invalid folds.

    Args:
        folds: the folds.
        unit_names: names of the n units.
        cover: every unit must be tested by exactly one fold.

    Raises:
        PcvError: no folds; folds of another number of units; duplicate names; a fold
            that tests nothing, trains on nothing, trains on a unit it tests, or has an index out of
            range; with ``cover``, units tested by no fold or by several.

    >>> from pcv.folds.base import from_labels
    >>> check(from_labels(np.array([0, 0, 1]), ["a", "b"]), ["A", "B", "C"], cover=True)
    """
    num_units = len(unit_names)
    if not len(folds.id):
        raise PcvError("no folds: give at least one test set")
    if folds.num_units not in (None, num_units):
        dropped = " (rows that dropna removes do not count)" * (folds.num_units > num_units)
        raise PcvError(
            f"folds of {folds.num_units} units, but the data have {num_units}{dropped}; make them "
            f"of these {num_units}, in the order of the data"
        )
    ids, times = np.unique(folds.id, return_counts=True)
    if (times > 1).any():
        raise PcvError(f"fold names must be distinct; repeated: {some(ids[times > 1])}")
    tested = folds.test >= 0
    empty = ~tested.any(axis=1)
    if empty.any():
        raise PcvError(f"empty folds, which test no unit: {some(folds.id[empty])}")
    if folds.test.max() >= num_units:
        raise PcvError(
            f"folds test unit {folds.test.max()}, counted from 0, but the data have {num_units} "
            "units"
        )
    untrained = np.diff(folds.held_out, axis=-1).sum(axis=(1, 2)) >= num_units
    if untrained.any():
        raise PcvError(f"folds that leave no unit to train on: {some(folds.id[untrained])}")
    for name, test, ranges in zip(folds.id, folds.test, folds.held_out, strict=True):
        units = test[test >= 0]
        starts, stops = ranges[ranges[:, 1] > 0].T
        run = np.searchsorted(starts, units, side="right") - 1
        trained = units >= np.append(stops, 0)[run]
        if trained.any():
            leaked = [unit_names[unit] for unit in units[trained].tolist()]
            raise PcvError(f"fold {str(name)!r} trains on units that it tests: {some(leaked)}")
    if cover:
        times = np.bincount(folds.test[tested], minlength=num_units)
        for wrong, what in [(times == 0, "in no fold"), (times > 1, "tested more than once")]:
            if wrong.any():
                units = [unit_names[unit] for unit in np.flatnonzero(wrong).tolist()]
                raise PcvError(f"{len(units)} of {num_units} units are {what}: {some(units)}")


def check_order(
    times: Shaped[np.ndarray, " unit"],
    unit_names: Sequence[str],
    name: str,
    folds: Folds,
    by: Shaped[np.ndarray, " unit"] | None = None,
) -> None:
    """Refuse folds of units whose times do not increase.

    Args:
        times: of the units: numbers, dates or text.
        unit_names: their names.
        name: of the times in messages: a column, or an argument.
        folds: of the units.
        by: series of each unit, in each of which times must increase; None: all are one.

    Raises:
        PcvError: text that is not a date; two units at the same time, or a unit earlier than its
            predecessor; names the first fold that tests it, else the first that trains on it.

    >>> from pcv.folds.base import from_labels
    >>> folds = from_labels(np.array([0, 0, 1]), ["a", "b"])
    >>> check_order(np.array([1, 2, 4]), ["A", "B", "C"], "column 'year'", folds)
    """
    if len(times) != len(unit_names):
        raise PcvError(f"{name}: {len(times)} times of {len(unit_names)} units")
    if isinstance(times[0], str):
        times = _dates(times, name)
    for units in [np.arange(len(times))] if by is None else series_of(by).values():
        _check_order_of(units, times, unit_names, name, folds)


def _check_order_of(
    units: Int[np.ndarray, " some"],
    times: Shaped[np.ndarray, " unit"],
    unit_names: Sequence[str],
    name: str,
    folds: Folds,
) -> None:
    """Refuse units of one series whose times do not increase."""
    own = times[units]
    distinct, count = np.unique(own, return_counts=True)
    if (count > 1).any():
        twice = distinct[count > 1][0]
        places = units[np.flatnonzero(own == twice)[:2]].tolist()
        names = [unit_names[i] for i in places]
        raise PcvError(
            f"{_with(places[1], folds)}{name}: {names[0]!r} and {names[1]!r} have the same time, "
            f"{label(twice)}; where order matters, times must be distinct (for series side by "
            "side: leave_future_out with `by`; data.units merges rows into one unit)"
        )
    if (np.diff(np.argsort(own, kind="stable")) < 0).any():
        i, j = units[np.flatnonzero(own[1:] < own[:-1])[0] + np.arange(2)].tolist()
        raise PcvError(
            f"{_with(j, folds)}{name} is not in order: {label(times[j])} "
            f"({unit_names[j]!r}) comes after {label(times[i])} ({unit_names[i]!r}); sort the "
            "data by it (in a config: data.order)"
        )


def _dates(texts: Shaped[np.ndarray, " unit"], name: str) -> Shaped[np.ndarray, " unit"]:
    """Text parsed as dates, as alphabetical order need not be chronological."""
    try:
        dates = pd.to_datetime(texts, format="ISO8601", utc=True)
    except ValueError as error:
        raise PcvError(
            f"{name}: text such as {label(texts[0])!r} has no order in time unless it is a date "
            "like 2024-03-31; give dates or numbers"
        ) from error
    return dates.tz_localize(None).to_numpy()


def _with(unit: int, folds: Folds) -> str:
    """Prefix of a message: the first fold that tests a unit, else the first that trains on it."""
    tests_it = (folds.test == unit).any(axis=1)
    start, stop = np.moveaxis(folds.held_out, -1, 0)
    trains_on_it = ~((start <= unit) & (unit < stop)).any(axis=1)
    concerned = tests_it if tests_it.any() else trains_on_it
    return f"fold {str(folds.id[concerned.argmax()])!r}: " if concerned.any() else ""


def some(names: Iterable[object]) -> str:
    """The first three names and the number of others: "'a', 'b', 'c' and 4 more"."""
    quoted = [repr(str(name)) for name in names]
    more = f" and {len(quoted) - 3} more" if len(quoted) > 3 else ""
    return ", ".join(quoted[:3]) + more
