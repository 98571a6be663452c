"""Schemes for units in no particular relation to each other."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int, Shaped

from pcv.errors import PcvError
from pcv.folds.base import Folds, from_labels


def leave_one_out(unit_names: Sequence[str]) -> Folds:
    """One fold per unit, of its name.

    >>> leave_one_out(["A", "B", "C"]).test.tolist()
    [[0], [1], [2]]
    """
    return from_labels(np.arange(len(unit_names)), unit_names)


def k_fold(unit_names: Sequence[str], k: int, rng: np.random.Generator) -> Folds:
    """Units at random in k folds, whose sizes differ by at most one.

    Raises:
        PcvError: k is below 2 or above the number of units.

    >>> k_fold(["A", "B", "C", "D"], 2, np.random.default_rng(1)).test.shape
    (2, 2)
    """
    return _numbered(rng.permutation(_dealt(len(unit_names), k)), k)


def k_fold_stratified(
    values: Shaped[np.ndarray, " unit"], k: int, rng: np.random.Generator
) -> Folds:
    """Units at random in k folds that hold every value about equally often.

    Units are shuffled, sorted by value and dealt out in turn: numbers of units of one value, and
    sizes of folds, differ by at most one.

    Raises:
        PcvError: k is below 2 or above the number of units.

    >>> kinds = np.array(["x", "x", "y", "y"])
    >>> folds = k_fold_stratified(kinds, 2, np.random.default_rng(1))
    >>> [kinds[test].tolist() for test in folds.test]
    [['x', 'y'], ['x', 'y']]
    """
    shuffled = rng.permutation(values.size)
    by_value = shuffled[np.argsort(values[shuffled], kind="stable")]
    fold_of_unit = np.empty(values.size, np.int64)
    fold_of_unit[by_value] = _dealt(values.size, k)
    return _numbered(fold_of_unit, k)


def k_fold_contiguous(unit_names: Sequence[str], k: int) -> Folds:
    """Units in k runs of their order, whose sizes differ by at most one.

    Raises:
        PcvError: k is below 2 or above the number of units.

    >>> k_fold_contiguous(["A", "B", "C"], 2).test.tolist()
    [[0, 1], [2, -1]]
    """
    return _numbered(np.sort(_dealt(len(unit_names), k)), k)


def _dealt(num_units: int, k: int) -> Int[np.ndarray, " unit"]:
    """Folds 0 to k - 1 dealt out to the units in turn."""
    if not 2 <= k <= num_units:
        raise PcvError(f"{k} folds of {num_units} units: k must be from 2 to {num_units}")
    return np.arange(num_units) % k


def _numbered(fold_of_unit: Int[np.ndarray, " unit"], k: int) -> Folds:
    return from_labels(fold_of_unit, [f"fold {fold + 1}" for fold in range(k)])
