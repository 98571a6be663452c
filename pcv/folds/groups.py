"""Schemes that keep groups of units together."""

import difflib
import warnings
from collections.abc import Iterator

import numpy as np
from jaxtyping import Int, Shaped

from pcv.base.errors import PcvError
from pcv.folds.base import Folds, from_labels
from pcv.folds.columns import label


def leave_one_group_out(values: Shaped[np.ndarray, " unit"], name: str) -> Folds:
    r"""One fold per group of units, in the order of the groups' sorted values.

    .. math:: \mathrm{test}_g = \{i : \mathrm{group}_i = g\}, \qquad
              \mathrm{train}_g = \{j : \mathrm{group}_j \ne g\}

    PCV §2.2.

    Args:
        values: the group of each unit, numbers or text.
        name: what the groups are, for the folds' names: "rat" gives "rat 9".

    Raises:
        PcvError: fewer than two groups.

    >>> leave_one_group_out(np.array([10, 9, 10]), "rat").id.tolist()
    ['rat 9', 'rat 10']
    """
    labels, group = _grouped(values)
    if len(labels) < 2:
        raise PcvError(
            f"{name!r} has one value for all units, {labels[0]!r}: folds need at least 2 groups"
        )
    return from_labels(group, [f"{name} {value}" for value in labels])


def k_fold_grouped(values: Shaped[np.ndarray, " unit"], k: int, rng: np.random.Generator) -> Folds:
    r"""Groups of units at random in k folds, whose numbers of groups differ by at most one.

    .. math:: \mathrm{test}_j = \{i : \pi(\mathrm{group}_i) \bmod k = j\}, \qquad
              j = 0, …, k - 1

    with a random order π of the groups, counted from 0.

    Args:
        values: the group of each unit, numbers or text.
        k: number of folds.
        rng: source of the random allocation.

    Raises:
        PcvError: k is below 2 or above the number of groups.

    >>> k_fold_grouped(np.array([1, 1, 2, 2]), 2, np.random.default_rng(1)).test.tolist()
    [[0, 1], [2, 3]]
    """
    labels, group = _grouped(values)
    if not 2 <= k <= len(labels):
        raise PcvError(f"k is {k}: it must be from 2 to {len(labels)}, the number of groups")
    fold_of_group = rng.permutation(np.arange(len(labels)) % k)
    return from_labels(fold_of_group[group], [f"fold {fold + 1}" for fold in range(k)])


def from_column(values: Shaped[np.ndarray, " unit"], name: str) -> Folds:
    r"""The user's own folds: units of one value make a fold, in the order of sorted values.

    .. math:: \mathrm{test}_v = \{i : \mathrm{value}_i = v\}, \qquad
              \mathrm{train}_v = \{j : \mathrm{value}_j \ne v\}

    Args:
        values: the fold of each unit, numbers or text.
        name: the column's name, for the folds' names: "part" gives "part north".

    Raises:
        PcvError: one fold alone; two names that differ in case or spaces only.

    Warns:
        UserWarning: a small fold is spelt almost like a large one.

    >>> from_column(np.array(["south", "north", "south"]), "part").id.tolist()
    ['part north', 'part south']
    """
    labels, group = _grouped(values)
    spelt: dict[str, str] = {}
    for value in labels:
        other = spelt.setdefault("".join(value.casefold().split()), value)
        if other != value:
            raise PcvError(
                f"column {name!r}: folds {other!r} and {value!r} differ in case or spaces only;"
                " write them alike, or as unlike names"
            )
    for rare, common in _almost_alike(labels, np.bincount(group)):
        warnings.warn(
            f"column {name!r}: fold {rare!r} is spelt almost like {common!r} and much smaller: "
            "is it a typo?",
            stacklevel=2,
        )
    return leave_one_group_out(values, name)


def _almost_alike(labels: list[str], sizes: Int[np.ndarray, " label"]) -> Iterator[tuple[str, str]]:
    """Pairs of words, not numbers, of which the first has at most a fifth of the other's units."""
    words = {name: size for name, size in zip(labels, sizes.tolist()) if name.isalpha()}
    for name, size in words.items():
        larger = [other for other, its_size in words.items() if its_size >= 5 * size]
        if near := difflib.get_close_matches(name, larger, n=1, cutoff=0.8):
            yield name, near[0]


def _grouped(
    values: Shaped[np.ndarray, " unit"],
) -> tuple[list[str], Int[np.ndarray, " unit"]]:
    """Labels of the distinct values, sorted, and each unit's place among them."""
    distinct, group = np.unique(values, return_inverse=True)
    return [label(value) for value in distinct], group
