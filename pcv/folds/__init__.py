"""Folds: which units are tested, and which are left out of training for it.

A scheme is a function that returns `Folds`; so is any scikit-learn splitter by `from_splitter`.

>>> import numpy as np
>>> folds = leave_one_group_out(np.array([1, 1, 2, 2, 3]), "rat")
>>> folds.id.tolist()
['rat 1', 'rat 2', 'rat 3']
>>> folds.test.tolist()
[[0, 1], [2, 3], [4, -1]]
>>> train_mask(folds, 5)[0].tolist()
[False, False, True, True, True]
>>> describe(folds, 5)
'3 folds, test 1 to 2, training 3 to 4, no gap'
"""

import warnings
from typing import assert_never

import numpy as np
import xarray as xr

from pcv.config import FoldScheme
from pcv.datasets import unit_column
from pcv.folds.base import Folds, check, describe, from_sets, from_splitter, train_mask
from pcv.folds.exchangeable import k_fold, k_fold_contiguous, k_fold_stratified, leave_one_out
from pcv.folds.groups import from_column, k_fold_grouped, leave_one_group_out
from pcv.names import name_bits

__all__ = [
    "Folds",
    "check",
    "describe",
    "from_column",
    "from_sets",
    "from_splitter",
    "k_fold",
    "k_fold_contiguous",
    "k_fold_grouped",
    "k_fold_stratified",
    "leave_one_group_out",
    "leave_one_out",
    "make",
    "title",
    "train_mask",
]


def make(scheme: FoldScheme, data: xr.Dataset, seed: int) -> Folds:
    """The folds that a config asks for.

    Args:
        scheme: the folds section of an experiment.
        data: as `pcv.datasets.make_data` gives it.
        seed: the config's seed; random schemes draw from (seed, "folds") alone.

    Raises:
        PcvError: an unknown column, one that differs within a unit, more folds than units or
            groups, fewer than two groups, or folds that `check` refuses.

    Warns:
        UserWarning: some values of a stratified column are rarer than there are folds.
    """
    rng = np.random.default_rng([seed, name_bits("folds")])
    names = data["unit"].values.tolist()
    match scheme.scheme:
        case "leave_one_out":
            folds = leave_one_out(names)
        case "leave_one_group_out":
            folds = leave_one_group_out(
                unit_column(data, scheme.group, "folds.group"), scheme.group
            )
        case "column":
            folds = from_column(unit_column(data, scheme.column, "folds.column"), scheme.column)
        case "k_fold" if scheme.group_by:
            folds = k_fold_grouped(
                unit_column(data, scheme.group_by, "folds.group_by"), scheme.k, rng
            )
        case "k_fold" if scheme.stratify_by:
            values = unit_column(data, scheme.stratify_by, "folds.stratify_by")
            folds = k_fold_stratified(values, scheme.k, rng)
            _, times = np.unique(values, return_counts=True)
            rare = (times < scheme.k).sum()
            if rare:
                warnings.warn(
                    f"{rare} of {times.size} values of {scheme.stratify_by!r} are held by fewer"
                    f" than {scheme.k} units: not every fold tests one of them",
                    stacklevel=2,
                )
        case "k_fold" if scheme.contiguous:
            folds = k_fold_contiguous(names, scheme.k)
        case "k_fold":
            folds = k_fold(names, scheme.k, rng)
        case _:
            assert_never(scheme)
    check(folds, names, cover=True)
    return folds


def title(scheme: FoldScheme) -> str:
    """A scheme in words, to stand before what `describe` says of its folds.

    >>> from pcv.config import LeaveOneGroupOut
    >>> title(LeaveOneGroupOut(scheme="leave_one_group_out", group="rat"))
    'leave-one-group-out over rat'
    """
    match scheme.scheme:
        case "leave_one_group_out":
            return f"leave-one-group-out over {scheme.group}"
        case "column":
            return f"folds of column {scheme.column}"
        case "k_fold" if scheme.group_by:
            return f"{scheme.k}-fold over groups of {scheme.group_by}"
        case "k_fold" if scheme.stratify_by:
            return f"{scheme.k}-fold stratified by {scheme.stratify_by}"
        case "k_fold":
            return f"{scheme.k}-fold {'contiguous' if scheme.contiguous else 'at random'}"
        case "leave_one_out":
            return "leave-one-out"
        case _:
            assert_never(scheme)
