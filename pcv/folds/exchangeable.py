"""Schemes for exchangeable units, or groups of them."""

import difflib
import hashlib
import itertools
import math
import warnings
from collections.abc import Iterator
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Float, Int, Shaped

from pcv.base.errors import PcvError, nearest
from pcv.folds import checks
from pcv.folds.base import Folds, from_labels, from_sets
from pcv.folds.columns import label

MAX_SPLITS = 100_000
"""most sets that `leave_p_out` lists"""


def leave_one_out(units: checks.Units) -> Folds:
    r"""A fold for every unit.

    .. math:: \mathrm{test}_i = \{i\}, \qquad \mathrm{train}_i = \{j : j \ne i\}

    PCV §2.2.

    Args:
        units: their number (n), or their names.

    Returns:
        n folds, named after their units.

    Raises:
        PcvError: a single unit, or duplicate names.

    >>> leave_one_out(["A", "B", "C"]).test.tolist()
    [[0], [1], [2]]
    """
    names = checks.names_of(units)
    return checks.checked(from_labels(np.arange(len(names)), names), units)


def leave_p_out(
    units: checks.Units,
    p: int,
    splits: int | Literal["all"] = 100,
    seed: int = 0,
    up_to: bool = False,
) -> Folds:
    r"""Sets of p units: all of them, or a random sample. Or random sets of 1, 2, …, p units.

    .. math:: |\mathrm{test}_k| = p, \qquad \mathrm{train}_k = \{j : j \notin \mathrm{test}_k\}

    Sets are drawn without replacement, but overlap for p > 1: their scores are correlated, which
    standard errors allow for. (Shao 1993, *Journal of
    the American Statistical Association* 88, 486–494, on all sets and on random ones.)

    With `up_to`, the size of each set is uniform on 1, …, p, for the cumulative score S_CCV(p) of
    `pcv.api.comparisons.Comparisons.cumulative` (Fong and Holmes 2020, appendix A.5); sets may
    recur.

    Args:
        units: their number (n), or their names.
        p: units per test set.
        splits: number of sets to draw, at least 2; "all": all :math:`\binom{n}{p}`.
        seed: of the random draw.
        up_to: whether sizes vary, up to p.

    Returns:
        Folds "split 1", "split 2", ...

    Raises:
        PcvError: p is not whole, or leaves no unit to train on; a single split, or more splits than
            sets; for "all", more than 100,000 sets, or `up_to`; a seed that is not whole, or
            negative.

    >>> leave_p_out(3, p=2, splits="all").test.tolist()
    [[0, 1], [0, 2], [1, 2]]
    """
    checks.whole("leave-p-out", p=p, splits=0 if splits == "all" else splits, seed=seed)
    rng, n = checks.generator("leave-p-out", seed), len(checks.names_of(units))
    if not 1 <= p < n:
        raise PcvError(f"leave-p-out: p is {p}, must be from 1 to {n - 1} with {n} units")
    if up_to:
        if splits == "all" or splits < 2:
            raise PcvError(
                "leave-p-out: sets of up to p units are drawn; give a number of splits, 2 or more"
            )
        sizes = rng.integers(1, p + 1, splits)
        return _splits([rng.choice(n, size, replace=False) for size in sizes], units)
    there_are = math.comb(n, p)
    if splits == "all":
        if there_are > MAX_SPLITS:
            raise PcvError(
                f"leave-p-out: {there_are:.3g} sets of {p} among {n} units are too many; draw some "
                "of them with `splits`"
            )
        chosen = list(itertools.combinations(range(n), p))
    elif splits > there_are:
        raise PcvError(
            f"leave-p-out: {splits} splits, but only {there_are} sets of {p} among {n} units"
        )
    elif splits > there_are // 2:
        every = list(itertools.combinations(range(n), p))
        chosen = [every[i] for i in rng.permutation(there_are)[:splits]]
    else:
        found: dict[tuple[int, ...], None] = {}
        while len(found) < splits:
            found[tuple(np.sort(rng.choice(n, p, replace=False)).tolist())] = None
        chosen = list(found)
    return _splits([np.array(tested) for tested in chosen], units)


def _splits(tested: list[Int[np.ndarray, " _"]], units: checks.Units) -> Folds:
    ids = [f"split {i + 1}" for i in range(len(tested))]
    return checks.checked(
        from_sets(ids, [np.sort(x) for x in tested], None, len(checks.names_of(units))), units
    )


def kfold(
    units: checks.Units,
    k: int = 10,
    *,
    group_by: checks.Values | None = None,
    stratify_by: checks.Values | None = None,
    contiguous: bool = False,
    time: checks.Values | None = None,
    repeats: int = 1,
    seed: int = 0,
) -> Folds:
    r"""Units in k folds: random, grouped, stratified or contiguous.

    .. math:: \mathrm{test}_1 \cup … \cup \mathrm{test}_k = \{0, …, n - 1\}, \qquad
              |\mathrm{test}_j| \in \{\lfloor n / k \rfloor, \lceil n / k \rceil\}

    Test sets are disjoint, and a fold trains on all units that it does not test. With `group_by`,
    folds differ by at most one in their number of groups, not of units. PCV §2.2.

    With `repeats`, units are dealt out R times. Scores are means over repeats; the standard error
    of a pointwise score is over units. What shrinks is the variance due to the random choice of
    folds, whose standard deviation over repeats is ``repeat_sd`` in a comparison.

    Args:
        units: their number (n), or their names.
        k: number of folds.
        group_by: group of each unit; groups stay together.
        stratify_by: value of each unit; every fold gets its share of each value.
        contiguous: folds of consecutive units.
        time: with `contiguous`, the time of each unit, as numbers or dates that must increase;
            None: not checked.
        repeats: how often the units are dealt out, R.
        seed: of the random draw.

    Returns:
        Folds "fold 1" to "fold k"; with repeats "repeat 1, fold 1" to "repeat R, fold k".

    Raises:
        PcvError: two of these are given; repeats of contiguous folds, which are all the same, or
            fewer than one; k is not whole, below 2 or above the number of units or
            groups; a seed that is not whole, or negative; a group, value or time is missing, or
            there are more or fewer of them than units; a time that does not increase, naming the
            fold, or without `contiguous`.

    Warns:
        UserWarning: some values of `stratify_by` occur too rarely to be in every fold.

    >>> kfold(5, k=2, contiguous=True).test.tolist()
    [[0, 1, 2], [3, 4, -1]]
    >>> kfold(4, k=2, group_by=["a", "b", "b", "a"], seed=1).test.tolist()
    [[0, 3], [1, 2]]
    >>> kfold(4, k=2, repeats=2).id.tolist()
    ['repeat 1, fold 1', 'repeat 1, fold 2', 'repeat 2, fold 1', 'repeat 2, fold 2']
    """
    checks.whole("kfold", k=k, seed=seed, repeats=repeats)
    asked = {"group_by": group_by, "stratify_by": stratify_by, "contiguous": contiguous or None}
    given = [name for name, x in asked.items() if x is not None]
    if len(given) > 1:
        raise PcvError(f"kfold: {' and '.join(given)} exclude each other; keep one of them")
    if time is not None and not contiguous:
        raise PcvError("kfold: time is for contiguous folds; add contiguous=True, or omit it")
    if repeats < 1 or (repeats > 1 and contiguous):
        why = "all of them would be the same" if contiguous else "it must be at least 1"
        raise PcvError(f"kfold: repeats is {repeats}, but {why}")
    rng = checks.generator("kfold", seed)
    labels = [
        _fold_of_unit(rng, units, k, group_by, stratify_by, contiguous) for _ in range(repeats)
    ]
    if stratify_by is not None:
        _warn_of_rare(checks.complete(stratify_by, "stratify_by", units), k)
    ids = [f"fold {fold + 1}" for fold in range(k)]
    if repeats == 1:
        return checks.checked(from_labels(labels[0], ids), units, cover=True, time=time)
    names = [f"repeat {r + 1}, {fold}" for r in range(repeats) for fold in ids]
    tests = [np.flatnonzero(label == fold) for label in labels for fold in range(k)]
    return checks.checked(from_sets(names, tests, None, labels[0].size), units)


def _fold_of_unit(
    rng: np.random.Generator,
    units: checks.Units,
    k: int,
    group_by: checks.Values | None,
    stratify_by: checks.Values | None,
    contiguous: bool,
) -> Int[np.ndarray, " unit"]:
    """Index of the fold that tests each unit, in one deal."""
    n = len(checks.names_of(units))
    if group_by is not None:
        labels, group = checks.grouped(checks.complete(group_by, "group_by", units))
        dealt: np.ndarray = rng.permutation(_dealt(len(labels), k, "groups"))[group]
        return dealt
    if stratify_by is not None:
        values = checks.complete(stratify_by, "stratify_by", units)
        shuffled = rng.permutation(n)
        by_value = shuffled[np.argsort(values[shuffled], kind="stable")]
        fold_of_unit = np.empty(n, np.int64)
        fold_of_unit[by_value] = _dealt(n, k)
        return fold_of_unit
    return np.sort(_dealt(n, k)) if contiguous else rng.permutation(_dealt(n, k))


def leave_one_group_out(group_by: checks.Values, name: str = "group") -> Folds:
    r"""A fold for every group.

    .. math:: \mathrm{test}_g = \{i : \mathrm{group}_i = g\}, \qquad
              \mathrm{train}_g = \{j : \mathrm{group}_j \ne g\}

    PCV §2.2.

    Args:
        group_by: group of each unit.
        name: prefix of the folds' names: "rat" gives "rat 9".

    Returns:
        Folds in the order of the sorted groups.

    Raises:
        PcvError: all units are in one group, or a unit's group is missing.

    >>> folds = leave_one_group_out([10, 9, 10], "rat")
    >>> folds.id.tolist(), folds.test.tolist()
    (['rat 9', 'rat 10'], [[1, -1], [0, 2]])
    """
    labels, group = checks.grouped(checks.complete(group_by, "group_by"))
    if len(labels) < 2:
        raise PcvError(
            f"{name!r} has one value for all units, {labels[0]!r}: folds need at least 2 groups"
        )
    made = from_labels(group, [f"{name} {value}" for value in labels])
    return checks.checked(made, group.size, cover=True)


def from_column(
    values: Shaped[np.ndarray, " unit"], name: str, test: str | bool | int | float | None = None
) -> Folds:
    r"""Predefined folds: one for each value of a column, in sorted order; or one in all.

    .. math:: \mathrm{test}_v = \{i : \mathrm{value}_i = v\}, \qquad
              \mathrm{train}_v = \{j : \mathrm{value}_j \ne v\}

    Args:
        values: the fold of each unit, numbers or text.
        name: of the column, and prefix of the folds' names: "part" gives "part north".
        test: the only value whose units are a test set, as of a train/test split; None: each is.

    Raises:
        PcvError: one value for all units; no unit has the value `test`; names that differ only in
            case or spaces.

    Warns:
        UserWarning: a small fold is spelt almost like a large one.

    >>> from_column(np.array(["south", "north", "south"]), "part").id.tolist()
    ['part north', 'part south']
    >>> from_column(np.array([2023, 2024, 2024]), "season", test=2024)
    1 fold of 3 units: test 2, training 1, no gap
    """
    labels, group = checks.grouped(values)
    spelt: dict[str, str] = {}
    for value in labels:
        other = spelt.setdefault("".join(value.casefold().split()), value)
        if other != value:
            raise PcvError(
                f"column {name!r}: folds {other!r} and {value!r} differ only in case or spaces;"
                " make them identical or clearly distinct"
            )
    for rare, common in _almost_alike(labels, np.bincount(group)):
        warnings.warn(
            f"column {name!r}: fold {rare!r} is spelt almost like {common!r} and much smaller: "
            "is it a typo?",
            stacklevel=2,
        )
    every = leave_one_group_out(values, name)
    if test is None:
        return every
    wanted = label(test)
    if wanted not in labels:
        hint = nearest(wanted, labels, f"there are {checks.some(labels)}")
        raise PcvError(f"column {name!r}: no unit has the value {wanted!r} (test); {hint}")
    tested = np.flatnonzero(group == labels.index(wanted))
    return from_sets([f"{name} {wanted}"], [tested], None, group.size)


def _dealt(number: int, k: int, of: str = "units") -> Int[np.ndarray, " unit"]:
    """Folds 0 to k - 1 in turn."""
    if not 2 <= k <= number:
        raise PcvError(f"k is {k}: it must be from 2 to {number}, the number of {of}")
    return np.arange(number) % k


def _warn_of_rare(values: np.ndarray, k: int) -> None:
    _, times = np.unique(values, return_counts=True)
    if rare := (times < k).sum():
        warnings.warn(
            f"stratify_by: {rare} of {times.size} values occur in fewer than {k} units, so that"
            " not every fold tests one",
            stacklevel=3,
        )


def _almost_alike(labels: list[str], sizes: Int[np.ndarray, " label"]) -> Iterator[tuple[str, str]]:
    """Similar words (not numbers), the first with at most a fifth of the other's units."""
    words = {name: size for name, size in zip(labels, sizes.tolist()) if name.isalpha()}
    for name, size in words.items():
        larger = [other for other, its_size in words.items() if its_size >= 5 * size]
        if near := difflib.get_close_matches(name, larger, n=1, cutoff=0.8):
            yield name, near[0]


class Terms(NamedTuple):
    """What a leave-one-out score sums over: units, or groups of them."""

    name: Shaped[np.ndarray, " term"]
    of_unit: Int[np.ndarray, " unit"]
    """index of the term of each unit"""

    @property
    def noun(self) -> str:
        return "units" if np.array_equal(self.of_unit, np.arange(len(self.name))) else "groups"

    @property
    def fingerprint(self) -> str:
        """A hash of which units each term consists of."""
        return hashlib.sha256(self.of_unit.astype(np.int64).tobytes()).hexdigest()[:16]

    def folds(self, which: Int[np.ndarray, " chosen"]) -> Folds:
        """Folds that leave out these terms, in the order of the data; with slots for the largest
        of all, so that draws stay valid among more folds."""
        chosen = np.sort(which)
        place = np.full(len(self.name), -1)
        place[chosen] = np.arange(chosen.size)
        units = np.flatnonzero(place[self.of_unit] >= 0)
        by_fold = units[np.argsort(place[self.of_unit[units]], kind="stable")]
        sizes = np.bincount(place[self.of_unit[units]], minlength=chosen.size)
        tests = np.split(by_fold, np.cumsum(sizes)[:-1])
        made = from_sets([str(self.name[j]) for j in chosen], tests, None, self.of_unit.size)
        lacking = int(np.bincount(self.of_unit).max()) - made.test.shape[1]
        return made._replace(test=np.pad(made.test, ((0, 0), (0, lacking)), constant_values=-1))


def terms_of(
    units: Shaped[np.ndarray, " unit"], group: Shaped[np.ndarray, " unit"] | None, name: str = ""
) -> Terms:
    """The terms of data: their units or, if each has a group, the groups.

    Args:
        units: their names.
        group: of each unit; None: units are left out alone.
        name: of the groups' column.

    Raises:
        PcvError: there are fewer than two groups, or every one is a single unit.
    """
    if group is None:
        return Terms(units, np.arange(len(units)))
    folds = leave_one_group_out(group, name)
    if folds.test.shape[1] == 1:
        raise PcvError(
            f"every {name!r} is a single unit", ("folds", "group"), "leave units out, without it"
        )
    of_unit = np.empty(len(units), int)
    for j, of_group in enumerate(folds.test):
        of_unit[of_group[of_group >= 0]] = j
    return Terms(folds.id, of_unit)


def in_order(
    seed: int,
    strata: Int[np.ndarray, " term"],
    spread: Float[np.ndarray, " stratum"] | None = None,
) -> Int[np.ndarray, " term"]:
    """All terms in the order in which they are chosen: the first m are a subsample of size m, so a
    larger one contains the smaller.

    Within a stratum the order is random. Strata take turns in proportion to their size times their
    spread (Neyman's allocation, by Webster's method), after two terms of each.

    Args:
        seed: of the order.
        strata: stratum of each term, numbered from 0; all 0 for simple random sampling.
        spread: expected standard deviation within each stratum; None: all alike.
    """
    shuffled = np.random.default_rng(seed).permutation(strata.size)
    sizes = np.bincount(strata)
    share = sizes * (np.ones(sizes.size) if spread is None else spread)
    share = np.maximum(share, share.max() * 1e-6 if share.max() > 0 else 1.0)
    by_stratum = shuffled[np.argsort(strata[shuffled], kind="stable")]
    place = np.arange(strata.size) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    turn = np.where(place < 2, place - 2.0, (place + 0.5) / np.repeat(share, sizes))
    return by_stratum[np.argsort(turn, kind="stable")]
