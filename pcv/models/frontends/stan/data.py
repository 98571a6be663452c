"""Data of a Stan program, from its JSON file, arrays by name, or the columns of a table."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from pcv.base.errors import PcvError, kind_of, nearest
from pcv.folds.columns import refuse_twice
from pcv.models.frontends.stan.program import Declared

BOUND = "upper="


def as_named(data: Any, where: str) -> dict[str, np.ndarray]:
    """The user's data by name, as arrays."""
    if isinstance(data, str | Path):
        try:
            if isinstance(data, Path) or not data.lstrip().startswith("{"):
                data = Path(data).read_text(encoding="utf-8")
            data = json.loads(data)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or f"it is not JSON ({error})"
            raise PcvError(f"{where}: data '{data}': cannot be read: {reason}") from error
    if not isinstance(data, Mapping | pd.DataFrame):
        raise PcvError(
            f"{where}: data is {kind_of(data)}; give arrays by name, a table, or a JSON file"
        )
    refuse_twice([str(name) for name in data], f"{where}: data")
    return {str(name): _as_array(data[name], f"{where}: data: '{name}'") for name in data}


def _as_array(x: Any, what: str) -> np.ndarray:
    """A column as numbers where all of its values are, the places of ordered categories from 1, and
    text as it is."""
    if isinstance(getattr(x, "dtype", None), pd.CategoricalDtype):
        column = pd.Series(x)
        if column.cat.ordered:
            codes = np.asarray(column.cat.codes, float)
            return np.where(codes < 0, np.nan, codes + 1)
        x = column.astype(column.cat.categories.dtype)
    try:
        array = np.array(x)
    except ValueError as error:
        raise PcvError(f"{what} has rows of different lengths; Stan's arrays are whole") from error
    if array.dtype.kind not in "OSU" or not array.size:
        return array
    try:
        flat = pd.to_numeric(pd.Series(array.ravel().tolist()).infer_objects())
    except (ValueError, TypeError):
        return array
    return np.asarray(flat).reshape(array.shape)


def of_program(
    known: Mapping[str, np.ndarray], declared: Mapping[str, Declared], outcome: str, where: str
) -> dict[str, np.ndarray]:
    """The variables that a program declares, as it declares them.

    Whole numbers that the data lack are the size of a variable that they dimension, or the largest
    value of one that they bound: ``N``, ``J`` of ``array[N] int<upper=J> rat``. Text becomes its
    place among the sorted values, from 1.

    Args:
        known: the user's data.
        declared: of the data block.
        outcome: which of them is predicted: it is not numbered, and bounds nothing.
        where: the program, for messages.

    Raises:
        PcvError: a variable is not in the data, or is no number.
    """
    there = {
        name: _as_declared(known[name], one, name == outcome, f"{where}: data: '{name}'")
        for name, one in declared.items()
        if name in known
    }
    for name, x in there.items():
        if x.dtype.kind == "f" and np.isnan(x).any():
            place = np.argwhere(np.isnan(x))[0].tolist()
            raise PcvError(
                f"{where}: data: '{name}' is missing at {place}, {np.isnan(x).sum()} in all; Stan "
                "has no missing values: drop these rows, or make them parameters of the program"
            )
    lacking = [name for name in declared if name not in there]
    sizes = {name: _size(name, declared, there, outcome) for name in lacking}
    for name in lacking:
        if sizes[name] is None:
            hint = nearest(name, known, f"they have {', '.join(known) or 'none'}")
            raise PcvError(f"{where}: the program declares '{name}', which the data lack; {hint}")
    return there | {name: np.array(size) for name, size in sizes.items()}


def without_sizes(
    known: Mapping[str, np.ndarray], declared: Mapping[str, Declared], outcome: str
) -> dict[str, np.ndarray]:
    """The data without whole numbers that follow from the others: further rows change them."""
    there = {name: x for name, x in known.items() if name in declared}
    return {
        name: x
        for name, x in known.items()
        if name not in declared or x.ndim or _size(name, declared, there, outcome) != x
    }


def _size(
    name: str, declared: Mapping[str, Declared], there: Mapping[str, np.ndarray], outcome: str
) -> int | None:
    """The value of a whole number that sizes, or bounds, variables that are there."""
    one = declared[name]
    if one.type != "int" or one.arrays:
        return None
    for other, x in there.items():
        sizes = *declared[other].arrays, *declared[other].sizes
        if name in sizes and len(sizes) == x.ndim:
            return int(x.shape[sizes.index(name)])
    bounded = [
        x.max()
        for other, x in there.items()
        if x.size
        and any(bound.replace(" ", "") == BOUND + name for bound in declared[other].bounds)
    ]
    return int(max(bounded)) if bounded else None


def _as_declared(x: np.ndarray, one: Declared, is_outcome: bool, what: str) -> np.ndarray:
    if x.dtype.kind in "OSU" and one.type == "int" and not is_outcome:
        if pd.isna(x).any():
            raise PcvError(f"{what} has missing values; fill them in, or drop their rows")
        return np.unique(x.astype(str), return_inverse=True)[1].reshape(x.shape) + 1
    if x.dtype.kind in "OSU":
        text = next((str(value) for value in x.ravel() if isinstance(value, str)), str(x.flat[0]))
        raise PcvError(f"{what} holds {text!r}, which is not a number; recode it")
    if x.dtype.kind not in "biuf":
        raise PcvError(f"{what} holds {x.dtype}, not numbers")
    if one.type != "int":
        return x.astype(np.float64)
    if x.dtype.kind == "f" and not (x == np.round(x))[~np.isnan(x)].all():
        place = np.argwhere((x != np.round(x)) & ~np.isnan(x))[0].tolist()
        raise PcvError(f"{what} is declared as int, and has {x[tuple(place)]} at {place}")
    return x if x.dtype.kind == "f" and np.isnan(x).any() else x.astype(np.int64)
