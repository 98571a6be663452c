"""Folds for the API: each scheme as a function of how many units there are, or of their groups.

>>> kfold(6, k=3, seed=1).test.shape
(3, 2)
>>> leave_one_group_out(["a", "a", "b"]).id.tolist()
['group a', 'group b']
"""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import pandas as pd
from jaxtyping import Shaped

from pcv import folds
from pcv.errors import PcvError
from pcv.folds import Folds
from pcv.folds.base import Units, names_of
from pcv.names import name_bits

Values = Sequence[Any] | Shaped[np.ndarray, " unit"]


def _rng(seed: int) -> np.random.Generator:
    return np.random.default_rng([seed, name_bits("folds")])


def _complete(values: Values, name: str) -> np.ndarray:
    """The group of each unit, as an array.

    Raises:
        PcvError: that of a unit is missing.
    """
    found = np.asarray(values)
    missing = pd.isna(found)
    if missing.any():
        raise PcvError(f"{name}: the value of unit {int(missing.argmax())} (from 0) is missing")
    return found


def _checked(made: Folds, units: Units, cover: bool = False, time: Values | None = None) -> Folds:
    folds.check(made, names_of(units), cover)
    if time is not None:
        folds.check_order(_complete(time, "time"), names_of(units), "time", made)
    return made


def leave_one_out(units: Units) -> Folds:
    """A fold for every unit.

    Args:
        units: how many there are, or their names.
    """
    return _checked(folds.leave_one_out(names_of(units)), units)


def leave_p_out(units: Units, p: int, splits: int | Literal["all"] = 100, seed: int = 0) -> Folds:
    """Sets of p units: some drawn at random, or all.

    Args:
        units: how many there are, or their names.
        p: units that a fold tests.
        splits: how many sets are drawn.
        seed: of the draw.
    """
    number = None if splits == "all" else splits
    return _checked(folds.leave_p_out(names_of(units), p, number, _rng(seed)), units)


def kfold(
    units: Units,
    k: int = 10,
    *,
    group_by: Values | None = None,
    stratify_by: Values | None = None,
    contiguous: bool = False,
    seed: int = 0,
) -> Folds:
    """Units in k folds: at random, or by what one of the other arguments asks for.

    Args:
        units: how many there are, or their names.
        k: number of folds.
        group_by: group of each unit; groups stay together.
        stratify_by: value of each unit; every fold has its share of each.
        contiguous: runs of the units' order.
        seed: of the draw.

    Raises:
        PcvError: two of these are asked for, or k is below 2 or above what there is to deal out.
    """
    names = names_of(units)
    asked = {"group_by": group_by, "stratify_by": stratify_by, "contiguous": contiguous or None}
    given = [name for name, x in asked.items() if x is not None]
    if len(given) > 1:
        raise PcvError(f"kfold: {' and '.join(given)} exclude each other; keep one of them")
    if group_by is not None:
        made = folds.k_fold_grouped(_complete(group_by, "group_by"), k, _rng(seed))
    elif stratify_by is not None:
        made = folds.k_fold_stratified(_complete(stratify_by, "stratify_by"), k, _rng(seed))
    elif contiguous:
        made = folds.k_fold_contiguous(names, k)
    else:
        made = folds.k_fold(names, k, _rng(seed))
    return _checked(made, units, cover=True)


def leave_one_group_out(group_by: Values, name: str = "group") -> Folds:
    """A fold for every group.

    Args:
        group_by: group of each unit.
        name: what the groups are, for the folds' names: "rat" gives "rat 9".
    """
    values = _complete(group_by, "group_by")
    return _checked(folds.leave_one_group_out(values, name), len(values), cover=True)


def block(units: Units, size: int, time: Values | None = None) -> Folds:
    """Runs of `size` consecutive units.

    Args:
        units: how many there are, or their names, in their order.
        size: units of a block.
        time: of each unit, numbers or dates that must increase; None: not checked.

    Raises:
        PcvError: a time that does not increase, naming the fold.
    """
    return _checked(folds.blocks(names_of(units), size), units, True, time)


def h_block(units: Units, h: int, skip: int = 0, time: Values | None = None) -> Folds:
    """Every unit alone, with the h on each side of it left out: `hv_block` with v = 0."""
    return hv_block(units, 0, h, skip, time)


def hv_block(units: Units, v: int, h: int, skip: int = 0, time: Values | None = None) -> Folds:
    """Blocks of 2v + 1 units around every unit, with h more left out on each side.

    Args:
        units: how many there are, or their names, in the order of time.
        v: units on each side that are tested with the one in the middle.
        h: units on each side of these that are neither tested nor trained on. A model whose terms
            depend on p units before them needs h ≥ p.
        skip: first units that are not in the middle of a block.
        time: of each unit, numbers or dates that must increase; None: not checked.

    Raises:
        PcvError: a time that does not increase, naming the fold.
    """
    return _checked(folds.hv_block(names_of(units), v, h, skip), units, time=time)


def leave_future_out(
    units: Units,
    min_observations: int,
    forecast_horizon: int = 1,
    step: int = 1,
    window: int | None = None,
    time: Values | None = None,
) -> Folds:
    """Units predicted from those before them.

    Args:
        units: how many there are, or their names, in the order of time.
        min_observations: units before the first that is predicted.
        forecast_horizon: units that a fold predicts.
        step: units between the starts of test sets.
        window: latest units that a fold trains on; None: all before its test set.
        time: of each unit, numbers or dates that must increase; None: not checked.

    Raises:
        PcvError: a time that does not increase, naming the fold.
    """
    made = folds.leave_future_out(names_of(units), min_observations, forecast_horizon, step, window)
    return _checked(made, units, time=time)


def _places(x: Values, y: Values, degrees: bool) -> folds.Places:
    first, second = (_complete(values, name).astype(float) for values, name in ((x, "x"), (y, "y")))
    if first.shape != second.shape:
        raise PcvError(f"{len(first)} values of x, {len(second)} of y; give both of every unit")
    places = folds.Places(first, second, degrees)
    folds.check_places(places)
    return places


def spatial_block(
    x: Values, y: Values, size: float | int, buffer: float | int = 0, degrees: bool = False
) -> Folds:
    """Units in squares of a grid.

    Args:
        x, y: coordinates of each unit, in metres or any other unit of length; or longitudes and
            latitudes.
        size: side of a square (metres, for degrees).
        buffer: distance around a test set within which units are not trained on.
        degrees: whether x and y are longitudes and latitudes.

    Raises:
        PcvError: a coordinate that is missing or cannot be, naming the unit; a buffer that leaves
            nothing to train on, naming the fold.
    """
    places = _places(x, y, degrees)
    return _checked(
        folds.spatial_blocks(places, float(size), float(buffer)), len(places.first), cover=True
    )


def leave_one_location_out(
    x: Values, y: Values, buffer: float | int = 0, degrees: bool = False
) -> Folds:
    """A fold for every place, with the units nearby left out.

    Args:
        x, y, buffer, degrees: as for `spatial_block`.

    Raises:
        PcvError: as of `spatial_block`.
    """
    places = _places(x, y, degrees)
    return _checked(
        folds.leave_one_location_out(places, float(buffer)), len(places.first), cover=True
    )


def from_splitter(
    splitter: Any, units: Units, y: Values | None = None, group_by: Values | None = None
) -> Folds:
    """Folds of any object with scikit-learn's ``split(X, y, groups)``.

    Args:
        splitter: yields pairs of indices, training and test.
        units: how many there are, or their names.
        y, group_by: what it stratifies or groups by.
    """
    y, groups = (None if x is None else np.asarray(x) for x in (y, group_by))
    return _checked(folds.from_splitter(splitter, names_of(units), y, groups), units)
