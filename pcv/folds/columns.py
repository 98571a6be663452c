"""Columns of a data set by unit, and labels of its values."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import xarray as xr
from jaxtyping import Int, Shaped

from pcv.base.errors import PcvError, is_python, nearest

RESERVED = ("row", "unit", "unit_of_row")


class Missing(NamedTuple):
    """Outcomes that are missing from the data, and are not scored."""

    number: int
    """of missing outcomes"""
    total: int
    """number of outcomes, missing or not"""

    def __str__(self) -> str:
        are = "is" if self.number == 1 else "are"
        return f"{self.number} of {self.total} outcomes {are} missing and not scored"


def refuse_twice(names: list[str], where: str) -> None:
    """Refuse duplicate column names: one column would hide the other."""
    for place, name in enumerate(names):
        if name in names[:place]:
            raise PcvError(f"{where}: two columns are named {name!r}; rename one")


def unit_column(data: xr.Dataset, column: str, key: str = "") -> Shaped[np.ndarray, " unit"]:
    """A column's value for each unit.

    Args:
        data: as `make_data` returns it.
        column: name of a column that is constant within each unit.
        key: config key that names it, for messages.

    Raises:
        PcvError: no such column; or it varies within a unit, which is named.
    """
    along = [
        str(name)
        for name, variable in data.data_vars.items()
        if variable.dims in (("unit",), ("row",)) and name != "unit_of_row"
    ]
    if column not in along:
        raise PcvError(missing_column(column, along, "the data", key))
    values = data[column].values
    if data[column].dims == ("unit",):
        return values
    unit_of_row = data["unit_of_row"].values
    per_unit = values[np.unique(unit_of_row, return_index=True)[1]]
    differs = values != per_unit[unit_of_row]
    if differs.any():
        row = differs.argmax()
        unit = unit_of_row[row]
        raise PcvError(
            f"column {column!r} differs within unit {str(data['unit'].values[unit])!r}:"
            f" {label(per_unit[unit])} and {label(values[row])}; it must be one value per unit"
        )
    return per_unit


def model_data(data: xr.Dataset) -> dict[str, np.ndarray]:
    """Arguments of a model: columns (one value per row), constants, and ``unit``.

    ``unit`` is the index of each row's unit, 0 to n - 1.
    """
    arrays = {
        str(name): variable.values
        for name, variable in data.data_vars.items()
        if name != "unit_of_row"
    }
    if "unit_of_row" in data:
        return arrays | {"unit": data["unit_of_row"].values}
    return arrays | {"unit": np.arange(data.sizes["unit"])}


def num_units(arrays: Mapping[str, Any]) -> int:
    """Number of units in the result of `model_data`."""
    return int(np.asarray(arrays["unit"]).max()) + 1


def most_rows(data: xr.Dataset) -> int:
    """Number of rows of the largest unit of a data set, as `make_data` returns it."""
    return int(np.bincount(data["unit_of_row"].values).max()) if "unit_of_row" in data else 1


def rows_by_unit(unit: Int[np.ndarray, " row"]) -> Int[np.ndarray, "unit most"]:
    """The rows of each unit, padded with -1.

    Args:
        unit: index of each row's unit, from 0.

    >>> rows_by_unit(np.array([0, 1, 0])).tolist()
    [[0, 2], [1, -1]]
    """
    count = np.bincount(unit)
    order = np.argsort(unit, kind="stable")
    place = np.arange(len(unit)) - np.repeat(np.cumsum(count) - count, count)
    rows = np.full((len(count), count.max()), -1)
    rows[unit[order], place] = order
    return rows


def check_frequencies(
    weights: Shaped[np.ndarray, " row"], names: Sequence[str], where: str
) -> Int[np.ndarray, " row"]:
    """Weights as whole numbers.

    Args:
        weights: of the rows.
        names: of the rows, for messages.
        where: the weights, for messages.

    Raises:
        PcvError: they are not, or are negative, or all are 0.
    """
    wrong = np.ones(weights.shape, bool)
    if weights.dtype.kind in "biuf":
        whole = np.isfinite(weights) & (np.floor(weights) == weights)
        wrong = ~whole | (weights < 0)
    if wrong.any():
        row = int(wrong.argmax())
        raise PcvError(
            f"{where}: {weights[row]} of '{names[row]}' is no frequency, a whole number from 0, of "
            "how many alike a row stands for; other weights belong in the model's density"
        )
    if not weights.any():
        raise PcvError(f"{where}: all frequencies are 0")
    return weights.astype(int)


def copies(times: Int[np.ndarray, " row"]) -> tuple[np.ndarray, np.ndarray]:
    """The row of each copy, and its number among those of its row, from 0.

    >>> copies(np.array([2, 0, 1]))
    (array([0, 0, 2]), array([0, 1, 0]))
    """
    row = np.repeat(np.arange(times.size), times)
    return row, np.arange(row.size) - np.repeat(np.cumsum(times) - times, times)


def free(dim: str, names: Collection[str]) -> str:
    """A dimension's name that no variable has, as xarray would take one for its coordinate.

    >>> free("x_dim_0", ["x", "y"]), free("x_dim_0", ["x", "x_dim_0"])
    ('x_dim_0', 'x_dim_0_')
    """
    while dim in names:
        dim += "_"
    return dim


def label(value: object) -> str:
    """A value as part of a name: 9.0 as "9", midnight as the date alone.

    >>> label(np.float64(9)), label(np.datetime64("2020-01-31", "ns")), label("Bo")
    ('9', '2020-01-31', 'Bo')
    """
    if isinstance(value, np.datetime64 | pd.Timestamp):
        return str(pd.Timestamp(value)).removesuffix(" 00:00:00")
    if isinstance(value, float | np.floating) and float(value).is_integer():
        return str(int(value))
    return str(value)


def missing_column(name: str, known: Iterable[str], where: str, key: str = "") -> str:
    """The message for a missing column, with the closest match.

    >>> missing_column("wieght_g", ["rat", "day", "weight_g"], "rats.csv", "data.outcome")
    "rats.csv: no column 'wieght_g' (data.outcome); did you mean 'weight_g'?"
    """
    known = list(known)
    hint = nearest(name, known, f"there are {listed(known)}")
    return f"{where}: no column {name!r}{f' ({key})' if key and not is_python() else ''}; {hint}"


def listed(names: Iterable[object]) -> str:
    return ", ".join(repr(str(name)) for name in names)
