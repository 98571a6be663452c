r"""Standard errors of sums of terms, also where several test sets share units. No JAX.

Where each unit is tested once, terms are taken as independent. Where units are tested by several
folds, there are three cases:

- *repeats*: folds are R partitions of the units, one after the other, as of repeated k-fold.
  Scores are means over repeats. The SE of a pointwise score is over units, whose R terms are
  averaged first; that of a joint score allows for the correlation of folds that share units;
- *runs*: each fold tests successive units, in order, as of hv-block or of a horizon above the
  step. Terms are correlated because they share units, and because a series has a memory. The SE is
  the larger of one that knows the shared units and one from autocovariances;
- any other sets, such as random ones of p units: the correlation is that of the shared units.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int
from scipy import sparse

LEAST_SEPARATE = 2
"""separate test sets that a series must hold for an SE"""


class Overlap(NamedTuple):
    """Which units the folds test, where some are tested by several."""

    unit: Int[np.ndarray, " tested"]
    """index of every tested unit, in the order of folds"""
    fold: Int[np.ndarray, " tested"]
    """index of the fold that tests it"""
    repeats: int
    """R where folds are R partitions of the units, else 1"""
    of_terms: float
    """`overlap_inflation` of single units"""
    of_folds: float
    """`overlap_inflation` of folds"""
    reach: int | None
    """how many folds ahead a fold shares a unit, where folds are runs in order; None: they are
    not"""


def overlap_of(
    unit: Int[np.ndarray, " tested"], fold: Int[np.ndarray, " tested"]
) -> Overlap | None:
    """How test sets overlap; None where each unit is tested once.

    Args:
        unit, fold: indices of every tested unit and of the fold that tests it, by fold.

    >>> twice = overlap_of(np.array([0, 1, 2, 3, 0, 2, 1, 3]), np.repeat(np.arange(4), 2))
    >>> twice.repeats, twice.reach
    (2, None)
    >>> overlap_of(np.array([0, 1, 1, 2, 2, 3]), np.repeat(np.arange(3), 2)).reach
    1
    """
    _, first, unit = np.unique(unit, return_index=True, return_inverse=True)
    if first.size == unit.size:
        return None
    unit = np.argsort(np.argsort(first))[unit]  # numbered as they first occur
    of_terms = overlap_inflation(unit, np.arange(unit.size))
    reach = _reach(unit, fold)
    return Overlap(unit, fold, _repeats(unit, fold), of_terms, overlap_inflation(unit, fold), reach)


def _repeats(unit: Int[np.ndarray, " tested"], fold: Int[np.ndarray, " tested"]) -> int:
    """R where folds are R partitions of the units, one after the other, of two folds or more;
    else 1."""
    repeats, rest = divmod(unit.size, int(unit.max()) + 1)
    if rest:
        return 1
    by_repeat, folds = unit.reshape(repeats, -1), fold.reshape(repeats, -1)
    whole = (np.sort(by_repeat, axis=1) == np.arange(by_repeat.shape[1])).all()
    apart = (folds[1:, 0] != folds[:-1, -1]).all() and (folds[:, 0] != folds[:, -1]).all()
    return repeats if whole and apart else 1


def _reach(unit: Int[np.ndarray, " tested"], fold: Int[np.ndarray, " tested"]) -> int | None:
    """How many folds ahead a fold shares a unit; None unless every fold is a run of units, each
    starting after the last one's start."""
    starts = np.flatnonzero(np.diff(fold, prepend=-1))
    low, high = np.minimum.reduceat(unit, starts), np.maximum.reduceat(unit, starts)
    size = np.diff(starts, append=unit.size)
    if (high - low + 1 != size).any() or (np.diff(low) <= 0).any() or (np.diff(high) < 0).any():
        return None
    return int((np.searchsorted(low, high, side="right") - 1 - np.arange(low.size)).max())


def overlap_inflation(unit: Int[np.ndarray, " tested"], term: Int[np.ndarray, " tested"]) -> float:
    r"""Ratio of the variance of a sum of T terms, some of whose units are tested by several, to
    that of as many terms with units of their own.

    .. math:: \frac{1}{T} \sum_{j,k} \frac{|U_j \cap U_k|}{\sqrt{|U_j| |U_k|}}
              = \frac{1}{T} \sum_i \Big( \sum_{j: i \in U_j} |U_j|^{-1/2} \Big)^2

    with the units :math:`U_j` of term j: the correlation of terms whose units contribute
    independently. 1 where each unit is tested once; R where every unit is tested R times by sets
    of one size.

    Args:
        unit, term: indices of every tested unit, and of the term that tests it.

    >>> round(overlap_inflation(np.arange(4), np.array([0, 0, 1, 1])), 6)
    1.0
    >>> round(overlap_inflation(np.array([0, 1, 0, 1]), np.array([0, 0, 1, 1])), 6)
    2.0
    """
    if not unit.size:
        return 1.0
    size = np.bincount(term)
    with np.errstate(divide="ignore"):
        share = np.bincount(unit, weights=(1 / np.sqrt(size))[term])
    return float((share**2).sum() / np.count_nonzero(size))


def standard_error(
    terms: Float[np.ndarray, "model term"], inflation: float = 1.0
) -> Float[np.ndarray, " model"]:
    r"""Standard error of each model's sum of T terms.

    .. math:: \mathrm{SE} = \sqrt{T \, \mathrm{var}_{T-1}(x) \,
              \frac{\varphi}{1 - (\varphi - 1) / (T - 1)}}

    with φ = 1 where terms are independent: PCV eq. 10, as in R's loo and `az.loo`. (ArviZ's
    `compare`, k-fold and leave-future-out use the variance with divisor T: smaller by
    :math:`\sqrt{(T - 1) / T}`.)

    Args:
        terms: the summands.
        inflation: φ, of `overlap_inflation`. (The denominator is what correlated terms lack in
            their own variance.)

    Returns:
        In the units of the terms; NaN with a single term, or where all terms have the same units.

    >>> standard_error(np.array([[1.0, 2.0, 3.0]])).round(3)
    array([1.732])
    """
    count = terms.shape[1]
    if count < 2:
        return np.full(len(terms), np.nan)
    with np.errstate(invalid="ignore"):
        return se_ratio(inflation, count) * np.sqrt(count * terms.var(axis=1, ddof=1))


def se_ratio(inflation: float, count: int) -> float:
    """Ratio of `standard_error` to that of as many independent terms; NaN where all terms have the
    same units."""
    variance_share = 1 - (inflation - 1) / max(count - 1, 1)
    return float(np.sqrt(inflation / variance_share)) if variance_share > 1e-9 else np.nan


def bandwidth(num_folds: int, reach: int) -> int:
    r"""Largest lag L of the autocovariances in `long_run_error`.

    .. math:: L = \mathrm{reach} + \lceil 1.3 \sqrt T \rceil

    The second part is for the memory of the series: the rule of Lazarus, Lewis, Stock and Watson
    (2018, *Journal of Business & Economic Statistics* 36, 541–559).
    """
    return min(reach + int(np.ceil(1.3 * np.sqrt(num_folds))), num_folds - 1)


def long_run_error(
    sums: Float[np.ndarray, "model fold"], overlap: Overlap
) -> Float[np.ndarray, " model"]:
    r"""Standard error of the sum over T folds in temporal order, from their autocovariances.

    .. math:: \mathrm{SE}^2 = c \, T \Big( \hat\gamma_0 + 2 \sum_{h=1}^{L}
              \big(1 - \tfrac{h}{L + 1}\big) \hat\gamma_h \Big), \qquad
              c = \frac{1^\top R \, 1}{\mathrm{tr}(W M R M)}

    with the autocovariance :math:`\hat\gamma_h` of lag h (Newey and West 1987), L of `bandwidth`,
    the weights :math:`W_{jk} = (1 - |j-k|/(L+1))^+`, the centring matrix M, and the correlation R
    of folds whose units contribute independently. Without c the estimate is too small: weights
    fall with the lag, and the mean is estimated. With c it is right for independent units.

    Args:
        sums: of the terms of each fold.
        overlap: of folds that are runs in order.

    Returns:
        NaN where the series holds fewer than `LEAST_SEPARATE` separate test sets.
    """
    count = sums.shape[1]
    assert overlap.reach is not None
    if count < LEAST_SEPARATE * (overlap.reach + 1):
        return np.full(len(sums), np.nan)
    lags = np.arange(bandwidth(count, overlap.reach) + 1)
    weight = 1 - lags / lags.size
    with np.errstate(invalid="ignore"):
        centred = sums - sums.mean(axis=1, keepdims=True)
        products = [(centred[:, h:] * centred[:, : count - h]).sum(axis=1) for h in lags.tolist()]
        variance = weight[0] * products[0] + 2 * np.tensordot(weight[1:], products[1:], axes=1)
        return np.sqrt(np.maximum(variance, 0) * _correction(count, weight, overlap))


def _correction(count: int, weight: Float[np.ndarray, " lag"], overlap: Overlap) -> float:
    """c of `long_run_error`."""
    size = np.bincount(overlap.fold, minlength=count)
    member = sparse.csr_array(
        (1 / np.sqrt(size[overlap.fold]), (overlap.fold, overlap.unit)),
        shape=(count, int(overlap.unit.max()) + 1),
    )
    shared = sparse.coo_array(member @ member.T)
    apart = np.abs(shared.row - shared.col)
    inside = apart < weight.size
    weighted = (shared.data[inside] * weight[apart[inside]]).sum()
    of_fold = np.bincount(shared.row, shared.data, count)  # row sums of R
    # Row sums of W: those of a full band, less what ends of the series lack.
    band = np.concatenate([[0.0], np.cumsum(weight[1:])])
    places = np.arange(count)
    near = [np.minimum(x, weight.size - 1) for x in (places, count - 1 - places)]
    of_weight = weight[0] + band[near[0]] + band[near[1]]
    total = of_fold.sum()
    trace = weighted - 2 / count * of_weight @ of_fold + total / count**2 * of_weight.sum()
    return float(total / trace)


def error_of_sum(
    terms: Float[np.ndarray, "model term"],
    fold_of_term: Int[np.ndarray, " term"],
    overlap: Overlap | None,
) -> Float[np.ndarray, " model"]:
    """Standard error of each model's sum of terms, or of its mean over repeats.

    Args:
        terms: of folds (joint scores), or of units in the order of `overlap` (pointwise).
        fold_of_term: index of the fold of every term.
        overlap: of the test sets; None: each unit is tested once.

    Returns:
        In the units of the terms. Where test sets overlap, never less than `standard_error` with
        the inflation. NaN with a single term, where all test sets are the same, and where a series
        holds too few separate ones.

    >>> windows = np.arange(60)[:, None] + np.arange(4)
    >>> runs = overlap_of(windows.ravel(), np.repeat(np.arange(60), 4))
    >>> trend = np.linspace(-1, 1, 60)[None]
    >>> float((error_of_sum(trend, np.arange(60), runs) / standard_error(trend, 4.0)).round(1)[0])
    2.0
    """
    if overlap is None:
        return standard_error(terms)
    joint = terms.shape[1] != overlap.unit.size
    if overlap.repeats > 1:
        if joint:
            return standard_error(terms, overlap.of_folds) / overlap.repeats
        return standard_error(over_repeats(terms, overlap))
    known = standard_error(terms, overlap.of_folds if joint else overlap.of_terms)
    if overlap.reach is None:
        return known
    num_folds = int(overlap.fold[-1]) + 1
    sums = np.array([np.bincount(fold_of_term, x, minlength=num_folds) for x in terms])
    return np.maximum(known, long_run_error(sums, overlap))  # NaN if either is


def over_repeats(
    terms: Float[np.ndarray, "model any_term"], overlap: Overlap | None
) -> Float[np.ndarray, "model term"]:
    """Terms that add up to the mean over repeats: each unit's mean or, of folds, their R-th part.
    Without repeats, the terms themselves."""
    if overlap is None or overlap.repeats == 1:
        return terms
    if terms.shape[1] == overlap.unit.size:
        terms = np.array([np.bincount(overlap.unit, x) for x in terms])
    return terms / overlap.repeats


def repeat_of_fold(overlap: Overlap) -> Int[np.ndarray, " fold"]:
    """Index of the repeat that each fold belongs to."""
    starts = np.flatnonzero(np.diff(overlap.fold, prepend=-1))
    return starts * overlap.repeats // overlap.unit.size


def degrees_of_freedom(count: int, overlap: Overlap | None) -> float:
    r"""Degrees of freedom of `error_of_sum`, by which its intervals are widened.

    T − 1 for T terms; with repeats those of one; for runs in order at most :math:`1.5 T / (L + 1)`,
    those of Newey and West's estimate, and else what separate test sets would have.

    Args:
        count: number of terms.
        overlap: of the test sets.
    """
    if overlap is None:
        return count - 1.0
    joint = count != overlap.unit.size
    inflation = overlap.of_folds if joint else overlap.of_terms
    separate = count / (overlap.repeats if overlap.repeats > 1 else inflation) - 1
    if overlap.reach is not None:
        folds = int(overlap.fold[-1]) + 1
        separate = min(separate, 1.5 * folds / (bandwidth(folds, overlap.reach) + 1))
    return float(max(separate, 1.0))
