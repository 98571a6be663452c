"""Folds from scikit-learn splitters."""

import warnings
from typing import Any

import numpy as np
from jaxtyping import Int

from pcv.base.errors import PcvError
from pcv.folds.base import Folds, from_sets
from pcv.folds.checks import Units, Values, checked, names_of, some


def from_splitter(
    splitter: Any,
    units: Units,
    y: Values | None = None,
    group_by: Values | None = None,
    time: Values | None = None,
) -> Folds:
    """Folds from any object with scikit-learn's ``split(X, y, groups)``.

    Test and training sets are those of the splits; units in neither are the gap.

    Args:
        splitter: its ``split`` yields pairs of integer indices from 0, training and test.
        units: their number, or their names.
        y, group_by: what it stratifies or groups by, one value per unit.
        time: of each unit, numbers or dates that must increase, for splitters that rely on the
            order of units; None: not checked.

    Returns:
        Folds "fold 1", "fold 2", ... in the order of the splits.

    Raises:
        PcvError: a split yields anything but indices of units, trains on units that it tests, or
            tests or trains on nothing; two splits that are the same; a single split; a time that
            does not increase, naming the fold.

    Warns:
        UserWarning: units are tested more than once, or never although units before them are.

    >>> from sklearn.model_selection import TimeSeriesSplit
    >>> folds = from_splitter(TimeSeriesSplit(2), ["A", "B", "C"])
    >>> folds.test.tolist(), folds.held_out.tolist()
    ([[1], [2]], [[[1, 3]], [[2, 3]]])
    """
    y, group_by = (None if x is None else np.asarray(x) for x in (y, group_by))
    names = names_of(units)
    ids: list[str] = []
    tests, gaps = [], []
    num_units = len(names)
    for split in splitter.split(np.zeros((num_units, 1)), y, group_by):
        ids.append(f"fold {len(ids) + 1}")
        train, test = (_indices(part, ids[-1]) for part in split)
        both = np.intersect1d(train, test)
        if both.size:
            leaked = [names[unit] for unit in both.tolist()]
            raise PcvError(
                f"{ids[-1]!r} of the splitter trains on units that it tests: {some(leaked)}"
            )
        tests.append(test)
        gaps.append(np.setdiff1d(np.arange(num_units), np.union1d(train, test)))
    folds = checked(from_sets(ids, tests, gaps, num_units), units, time=time)
    first: dict[bytes, str] = {}
    for fold, *sets in zip(ids, folds.test, folds.held_out):
        if (twin := first.setdefault(b"".join(x.tobytes() for x in sets), fold)) != fold:
            raise PcvError(
                f"{twin!r} and {fold!r} of the splitter are the same: they test, and train on, the "
                "same units; drop one"
            )
    times, of = np.bincount(np.concatenate(tests), minlength=num_units), type(splitter).__name__
    if times.max() > 1:
        often = [names[unit] for unit in np.flatnonzero(times > 1).tolist()]
        warnings.warn(
            f"{of} tests units up to {times.max()} times, {some(often)}: elpd counts their scores "
            "as often, and the SE allows for it",
            stacklevel=2,
        )
    left = np.flatnonzero(times == 0).tolist()
    if max(left, default=0) > (times > 0).argmax():  # more than the start of a series
        warnings.warn(
            f"{of} tests {len(left)} of {num_units} units never, "
            f"{some(names[unit] for unit in left)}: elpd is of the others alone",
            stacklevel=2,
        )
    return folds


def _indices(part: Any, name: str) -> Int[np.ndarray, " some"]:
    array = np.asarray(part)
    if array.size and array.dtype.kind not in "iu":
        raise PcvError(f"{name!r} of the splitter: integer indices needed, not {array.dtype}")
    return array.astype(np.int64)
