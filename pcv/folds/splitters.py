"""Folds from scikit-learn splitters, and from their pairs of training and test indices."""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int

from pcv.base.errors import PcvError, in_one_line
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
            tests or trains on nothing; two splits that are the same; a time that does not
            increase, naming the fold.

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


def from_object(folds: Any, num_units: int, y: Values | None) -> Folds:
    """Folds of a Python session: `Folds`, a splitter, or its pairs.

    Args:
        folds: one of these.
        num_units: number of units.
        y: what a splitter stratifies by, one value per unit.

    Raises:
        PcvError: it is something else, or as `from_splitter`.

    Warns:
        UserWarning: folds seem to be made for fewer units.
    """
    if not isinstance(folds, Folds):
        if isinstance(folds, Sequence):
            _check_pairs(folds)
            folds = _Pairs(folds)
        if not hasattr(folds, "split"):
            raise PcvError(
                f"folds is {type(folds).__name__}; give 'loo', Folds such as pcv.kfold(...), a "
                "scikit-learn splitter or its pairs, or a scheme of a config"
            )
        if isinstance(folds, _Pairs):
            _check_reach(folds, num_units)
        try:
            folds = from_splitter(folds, num_units, y)
        except PcvError:
            raise
        except Exception as error:
            raise PcvError(
                f"folds: {type(folds).__name__}.split fails: {in_one_line(error)}; one that takes "
                "groups can give its pairs: folds=list(splitter.split(X, y, groups))"
            ) from error
    if folds.num_units is None:
        _warn_of_a_rest(folds, num_units)
    return folds


class _Pairs(NamedTuple):
    """Pairs of training and test indices, posing as a splitter."""

    pairs: Sequence[Any]

    def split(self, x: Any, y: Any = None, groups: Any = None) -> Iterator[Any]:
        return iter(self.pairs)


def _check_pairs(folds: Sequence[Any]) -> None:
    """Refuse a list of test sets alone."""
    for i, pair in enumerate(folds):
        if not np.iterable(pair) or [np.ndim(part) for part in pair] != [1, 1]:
            raise PcvError(
                f"folds[{i}] is not a pair of training and test indices; give "
                "folds=[(train, test), ...], or each unit's fold as a column: "
                "folds={'scheme': 'column', 'column': ...}"
            )


def _check_reach(folds: _Pairs, num_units: int) -> None:
    """Refuse pairs made for fewer units: the last units would be neither trained on nor tested."""
    reach = 0
    with suppress(ValueError, TypeError):  # `from_splitter` reports malformed pairs
        reach = max(int(np.max(units, initial=-1)) for pair in folds.pairs for units in pair) + 1
    if 0 < reach < num_units:
        raise PcvError(
            f"folds: the pairs cover {reach} units, but the data have {num_units}; make them for "
            f"these {num_units}, in the order of the data"
        )


def _warn_of_a_rest(folds: Folds, num_units: int) -> None:
    """Warn of folds without `num_units` that seem to be made for fewer units."""
    used = max(int(folds.test.max()) + 1, int(folds.held_out.max()))
    if used < num_units:
        warnings.warn(
            f"folds test none of the last {num_units - used} of {num_units} units, and always "
            "train on them: were they made for fewer units?",
            stacklevel=2,
        )
