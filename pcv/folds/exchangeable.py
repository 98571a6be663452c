"""Schemes for units in no particular relation to each other."""

import itertools
import math
from collections.abc import Sequence

import numpy as np
from jaxtyping import Int, Shaped

from pcv.base.errors import PcvError
from pcv.folds.base import Folds, from_labels, from_sets


def leave_one_out(unit_names: Sequence[str]) -> Folds:
    r"""One fold per unit, of its name.

    .. math:: \mathrm{test}_i = \{i\}, \qquad \mathrm{train}_i = \{j : j \ne i\}

    PCV §2.2.

    Args:
        unit_names: of the n units.

    >>> leave_one_out(["A", "B", "C"]).test.tolist()
    [[0], [1], [2]]
    """
    return from_labels(np.arange(len(unit_names)), unit_names)


MAX_SPLITS = 100_000
"""splits that `leave_p_out` lists at most"""


def leave_p_out(
    unit_names: Sequence[str], p: int, splits: int | None, rng: np.random.Generator
) -> Folds:
    r"""Every set of p units, or some of them drawn at random without repetition.

    .. math:: |\mathrm{test}_k| = p, \qquad \mathrm{train}_k = \{j : j \notin \mathrm{test}_k\}

    (Shao 1993.)

    Args:
        unit_names: of the n units.
        p: units that a fold tests.
        splits: number of folds drawn; None: all sets of p units.
        rng: source of the draws.

    Raises:
        PcvError: p leaves no unit to train on, or there are fewer sets than splits; or, for all of
            them, more than 100,000.

    >>> leave_p_out(["A", "B", "C"], 2, None, np.random.default_rng(1)).test.tolist()
    [[0, 1], [0, 2], [1, 2]]
    """
    n = len(unit_names)
    if not 1 <= p < n:
        raise PcvError(f"leave-p-out: p is {p}, must be from 1 to {n - 1} with {n} units")
    there_are = math.comb(n, p)
    if splits is None:
        if there_are > MAX_SPLITS:
            raise PcvError(
                f"leave-p-out: {there_are:.3g} sets of {p} among {n} units are too many; draw some "
                "of them with `splits`"
            )
        chosen = list(itertools.combinations(range(n), p))
    else:
        if splits > there_are:
            raise PcvError(
                f"leave-p-out: {splits} splits, but only {there_are} sets of {p} among {n} units"
            )
        if splits > there_are // 2:
            every = list(itertools.combinations(range(n), p))
            chosen = [every[i] for i in rng.permutation(there_are)[:splits]]
        else:
            found: dict[tuple[int, ...], None] = {}
            while len(found) < splits:
                found[tuple(np.sort(rng.choice(n, p, replace=False)).tolist())] = None
            chosen = list(found)
    ids = [f"split {i + 1}" for i in range(len(chosen))]
    return from_sets(ids, [np.array(units) for units in chosen], None, n)


def k_fold(unit_names: Sequence[str], k: int, rng: np.random.Generator) -> Folds:
    r"""Units at random in k folds, whose sizes differ by at most one.

    .. math:: \mathrm{test}_j = \{i : \pi(i) \bmod k = j\}, \qquad j = 0, …, k - 1

    with a random order π of the n units, counted from 0; a fold trains on all others. PCV §2.2.

    Args:
        unit_names: of the n units.
        k: number of folds.
        rng: source of the order.

    Raises:
        PcvError: k is below 2 or above the number of units.

    >>> k_fold(["A", "B", "C", "D"], 2, np.random.default_rng(1)).test.shape
    (2, 2)
    """
    return _numbered(rng.permutation(_dealt(len(unit_names), k)), k)


def k_fold_stratified(
    values: Shaped[np.ndarray, " unit"], k: int, rng: np.random.Generator
) -> Folds:
    r"""Units at random in k folds that hold every value about equally often.

    Units are shuffled, sorted by value and dealt out in turn: numbers of units of one value, and
    sizes of folds, differ by at most one.

    .. math:: \mathrm{test}_j = \{i : \pi(i) \bmod k = j\}, \qquad j = 0, …, k - 1

    with that order π of the units, counted from 0.

    Args:
        values: the value of each unit, numbers or text.
        k: number of folds.
        rng: source of the shuffling.

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
    r"""Units in k runs of their order, whose sizes differ by at most one.

    .. math:: \max(\mathrm{test}_j) < \min(\mathrm{test}_{j+1}), \qquad
              |\mathrm{test}_j| \in \{\lfloor n / k \rfloor, \lceil n / k \rceil\}

    The longer runs come first.

    Args:
        unit_names: of the n units, in their order.
        k: number of folds.

    Raises:
        PcvError: k is below 2 or above the number of units.

    >>> k_fold_contiguous(["A", "B", "C"], 2).test.tolist()
    [[0, 1], [2, -1]]
    """
    return _numbered(np.sort(_dealt(len(unit_names), k)), k)


def _dealt(num_units: int, k: int) -> Int[np.ndarray, " unit"]:
    """Folds 0 to k - 1 dealt out to the units in turn."""
    if not 2 <= k <= num_units:
        raise PcvError(f"k is {k}: it must be from 2 to {num_units}, the number of units")
    return np.arange(num_units) % k


def _numbered(fold_of_unit: Int[np.ndarray, " unit"], k: int) -> Folds:
    return from_labels(fold_of_unit, [f"fold {fold + 1}" for fold in range(k)])
