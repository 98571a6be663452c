"""elpd of folds and units, its Monte Carlo standard error and effective sample size."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float

from pcv.analysis.diagnostics.log_sums import LogSums, batch_sums, merge, of_slots


def elpd(sums: LogSums) -> Float[np.ndarray, " fold *slot"]:
    r"""Expected log predictive density of every fold, or of every left-out unit (nats).

    .. math:: \hat\eta_k = \log \hat f_k, \qquad
              \hat f_k = \frac{1}{LN} \sum_{l,t} \exp(s_{klt})

    PCV eq. 8 and 11.

    Args:
        sums: dims (fold, chain, batch[, slot]).

    Returns:
        −inf where the predictive density is 0 at every draw; NaN in padded slots, in folds
        without draws and where a score is NaN.

    >>> from pcv.analysis.diagnostics import batch_sums
    >>> elpd(batch_sums(np.log([[[1.0, 3.0, 2.0, 2.0]]]), batch_size=2)).round(3)    # log 2
    array([0.693])
    """
    whole = merge(sums, axis=(1, 2))
    with np.errstate(invalid="ignore", divide="ignore"):
        return whole.log_sum - np.log(of_slots(whole.count, whole.log_sum))


def padded(sums: LogSums) -> Bool[np.ndarray, "fold slot"]:
    absent = ~(of_slots(sums.count, sums.log_sum) > 0)
    return (absent | np.isnan(sums.log_sum)).all(axis=(1, 2))


def elpd_pointwise(sums: LogSums) -> Float[np.ndarray, " fold"]:
    r"""Sum of the pointwise elpd of a fold's test units (nats).

    .. math:: \sum_{i \in \mathrm{test}_k} \hat\eta_i

    Args:
        sums: pointwise sums, dims (fold, chain, batch, slot).

    >>> from pcv.analysis.diagnostics import batch_sums
    >>> draws = np.log([[[[1.0, 5.0], [3.0, 5.0]]]])              # two draws, two units
    >>> elpd_pointwise(batch_sums(draws, batch_size=1)) == np.log(2) + np.log(5)
    array([ True])
    """
    return np.where(padded(sums), 0.0, elpd(sums)).sum(axis=1)


def deviations(sums: LogSums) -> tuple[np.ndarray, np.ndarray]:
    r"""Contributions of batches to the relative error of f, and the factor of their squared sum:

    :math:`\frac{n_h}{LN} (\bar g_h / \hat f - 1)`, dims (fold, chain, batch[, slot]), and
    B/(B − 1) with B batches per fold, dims (fold[, 1]).
    """
    whole = merge(sums, axis=(1, 2))
    count = of_slots(sums.count, sums.log_sum)
    present = count > 0
    total = count.sum(axis=(1, 2), keepdims=True)
    num_batches = present.sum(axis=(1, 2))
    with np.errstate(invalid="ignore", divide="ignore"):
        share = np.exp(sums.log_sum - whole.log_sum[:, None, None])
        deviation = np.where(present, share - count / total, 0.0)
        factor = np.where(num_batches > 1, num_batches / (num_batches - 1), np.nan)
    return deviation, factor


def mcse(sums: LogSums) -> Float[np.ndarray, " fold *slot"]:
    r"""Monte Carlo standard error of `elpd`, by batch means (nats).

    .. math:: \mathrm{MCSE}_k^2 = \frac{\hat\sigma_{f_k}^2}{LN \hat f_k^2}, \qquad
              \hat\sigma_{f_k}^2 = \frac{b}{La - 1} \sum_{l,h} (\bar g_{klh} - \hat f_k)^2

    with the means :math:`\bar g_{klh}` of exp(s) over each of the La batches of b draws. PCV
    eq. 13–15; deviations are from the fold's mean, not each chain's (PCV eq. 35–36, which hides
    disagreement between chains). Batches are taken to be independent (see `batch_inflation`); the
    true error is larger if chains have not mixed (`rhat`) or k-hat is large (`pareto_khat`).
    Batches of different lengths are weighted by their length.

    Args:
        sums: dims (fold, chain, batch[, slot]).

    Returns:
        NaN with fewer than two batches, in padded slots and where elpd is not finite. Errors of
        folds add in quadrature; those of the units of one fold do not, see `mcse_pointwise`.

    >>> from pcv.analysis.diagnostics import batch_sums
    >>> mcse(batch_sums(np.log([[[1.0, 3.0, 2.0, 2.0]]]), batch_size=1)).round(3)
    array([0.204])
    """
    deviation, factor = deviations(sums)
    return np.sqrt(factor * (deviation**2).sum(axis=(1, 2)))


MOST_LAGS = 10
"""in batches: chains with longer autocorrelation have not mixed"""


def autocorrelation(sums: LogSums) -> Float[np.ndarray, "2 lag"]:
    """Autocorrelation of batches' contributions to the error, at lags 0 to 10: the sum over all
    pairs of batches, chains and folds, and the number of pairs. Input of `batch_inflation`;
    results for groups of folds add up.

    Args:
        sums: joint sums, dims (fold, chain, batch).
    """
    deviation, _ = deviations(sums)
    present = sums.count > 0
    number = present.sum(axis=(1, 2))
    variance = (deviation**2).sum(axis=(1, 2)) / np.maximum(number - 1, 1)
    usable = np.isfinite(variance) & (variance > 0)
    found = [(number[usable].sum(), number[usable].sum())]
    for lag in range(1, MOST_LAGS + 1):
        pairs = (present[:, :, lag:] & present[:, :, :-lag]).sum(axis=(1, 2))[usable]
        products = (deviation[:, :, lag:] * deviation[:, :, :-lag]).sum(axis=(1, 2))[usable]
        # Estimating the mean from the same batches biases each product by -variance / number.
        each = products / variance[usable] + pairs / number[usable]
        found.append((each.sum(), pairs.sum()))
    return np.array(found, float).T


def batch_inflation(autocorrelation: Float[np.ndarray, "2 lag"]) -> float:
    r"""Factor by which correlation between batches increases the variance of elpd.

    .. math:: 1 + 2 \sum_j \frac{n_j}{n_0} \rho_j

    over the first lags j at which the autocorrelation :math:`\rho_j` of batches, averaged over all
    :math:`n_j` pairs of all folds, exceeds twice its standard error, :math:`2 / \sqrt{n_j}`.

    Args:
        autocorrelation: of all folds, from `autocorrelation`.

    >>> from pcv.analysis.diagnostics import batch_sums
    >>> steps = np.random.default_rng(1).normal(size=(50, 4, 400))
    >>> steps[:, :, 0] *= 3
    >>> walk = steps.copy()
    >>> for t in range(1, 400):
    ...     walk[:, :, t] = 0.95 * walk[:, :, t - 1] + steps[:, :, t]
    >>> [round(batch_inflation(autocorrelation(batch_sums(x / 4, 50))), 1) for x in (steps, walk)]
    [1.0, 1.4]
    """
    (total, *sums), (_, *pairs) = autocorrelation
    with np.errstate(invalid="ignore", divide="ignore"):
        significant = np.logical_and.accumulate(np.divide(sums, pairs) > 2 / np.sqrt(pairs))
        return float(1 + 2 * np.sum(sums, where=significant) / max(total, 1))


def mcse_pointwise(sums: LogSums) -> Float[np.ndarray, " fold"]:
    r"""Monte Carlo standard error of `elpd_pointwise` (nats).

    The units of a fold share their draws, so their errors are correlated: the batch means are
    those of :math:`\sum_{i \in \mathrm{test}_k} g_i / \hat f_i`.

    .. math:: \mathrm{MCSE}_k^2 = \frac{1}{La (La - 1)} \sum_{l,h}
              \Big( \sum_{i \in \mathrm{test}_k} \frac{\bar g_{ilh}}{\hat f_i} - 1 \Big)^2

    After PCV eq. 13–15.

    Args:
        sums: pointwise sums, dims (fold, chain, batch, slot).

    >>> from pcv.analysis.diagnostics import batch_sums
    >>> draws = np.log([[[[1.0, 1.0], [3.0, 3.0], [2.0, 2.0], [2.0, 2.0]]]])     # equal units
    >>> mcse_pointwise(batch_sums(draws, 1)) == 2 * mcse(batch_sums(draws, 1))[:, 0]
    array([ True])
    """
    deviation, factor = deviations(sums)
    summed = np.where(padded(sums)[:, None, None], 0.0, deviation).sum(axis=3)
    return np.sqrt(of_slots(factor, summed[:, 0])[:, 0] * (summed**2).sum(axis=(1, 2)))


def ess(sums: LogSums) -> Float[np.ndarray, " fold *slot"]:
    r"""Effective sample size of exp(s) per fold: independent draws with the same `mcse`.

    .. math:: \mathrm{ESS}_k = LN \frac{s_{f_k}^2}{\hat\sigma_{f_k}^2}

    with the sample variance :math:`s_{f_k}^2` of exp(s) and the batch-means variance of `mcse`.
    PCV §4.1.

    Args:
        sums: dims (fold, chain, batch[, slot]).

    Returns:
        Number of draws; its relative standard deviation is about :math:`\sqrt{2/(La - 1)}` with
        La batches. May exceed LN. NaN where `mcse` is, and where the score is constant.

    >>> from pcv.analysis.diagnostics import batch_sums
    >>> draws = np.random.default_rng(1).normal(0, 0.5, (1, 8, 2000))
    >>> 0.8 < ess(batch_sums(draws, batch_size=20))[0] / 16000 < 1.2
    np.True_
    """
    with np.errstate(invalid="ignore", divide="ignore"):
        return _relative_variance(sums) / mcse(sums) ** 2


def _relative_variance(sums: LogSums) -> np.ndarray:
    """Sample variance of exp(s) over its squared mean, per fold; NaN if s is constant."""
    whole = merge(sums, axis=(1, 2))
    n = of_slots(whole.count, whole.mean)
    with np.errstate(invalid="ignore", divide="ignore"):
        variance = (np.exp(whole.log_sum_sq - 2 * elpd(sums)) - n) / (n - 1)
    return np.where(whole.m2 == 0, np.nan, variance)


def ess_total(
    ess: Float[np.ndarray, " fold *point"], mcse: Float[np.ndarray, " fold *point"]
) -> Float[np.ndarray, " *point"]:
    r"""Effective sample size per fold of the total elpd, or of a difference of two totals.

    .. math:: \mathrm{ESS} = LN \, \frac{s_\eta^2}{\sigma_\eta^2}
              = \frac{\sum_k \mathrm{MCSE}_k^2 \, \mathrm{ESS}_k}{\sum_k \mathrm{MCSE}_k^2},
              \qquad
              s_\eta^2 = \sum_k s_{f_k}^2 / \hat f_k^2, \qquad
              \sigma_\eta^2 = \sum_k \hat\sigma_{f_k}^2 / \hat f_k^2

    PCV §4.1: folds are weighted by their contribution to the variance of the sum. For a
    difference, k runs over the folds of both models.

    Args:
        ess: of `ess`, of every fold.
        mcse: of `mcse`, of every fold (nats).

    Returns:
        Number of draws of a fold over all chains. Folds with an undefined `ess` are ignored; NaN
        if all are.

    >>> float(ess_total(np.array([100.0, 400.0]), np.array([0.2, 0.1])))
    160.0
    """
    weight = np.where(np.isfinite(ess) & np.isfinite(mcse), mcse, 0.0) ** 2
    with np.errstate(invalid="ignore"):
        return np.asarray((weight * np.nan_to_num(ess)).sum(axis=0) / weight.sum(axis=0))


BATCH_SIZES = (5, 10, 20, 25, 50, 100, 200)


SHORT_BATCHES = 0.8
"""ratio to the windowed MCSE below which batches are too short"""


def batch_size_check(
    draws: Float[np.ndarray, "fold chain draw"], batch_sizes: Sequence[int] = BATCH_SIZES
) -> Float[np.ndarray, " size"]:
    r"""Ratio of the batch-means MCSE of elpd, for several batch sizes, to that by a windowed ESS:
    near 1 where batches are long enough, smaller where autocorrelation outlasts a batch.

    .. math:: \mathrm{median}_k \; \mathrm{MCSE}_k(b) \Big/
              \frac{\mathrm{sd}(e^{s_k})}{\bar{e^{s_k}} \sqrt{\mathrm{ESS}_k}}

    PCV §5 checks batches of 50 in this way on the full-data models. The ESS is that of the mean,
    by Geyer's initial sequences (arviz_stats).

    Args:
        draws: log scores s of folds (nats), equally many per fold.
        batch_sizes: b; NaN with fewer than two batches.

    >>> walk = np.random.default_rng(1).normal(size=(20, 4, 1000))
    >>> for t in range(1, 1000):
    ...     walk[:, :, t] = 0.9 * walk[:, :, t - 1] + 0.4 * walk[:, :, t]
    >>> found = batch_size_check(walk, [5, 100])
    >>> found[0] < 0.6, 0.9 < found[1] < 1.1
    (np.True_, np.True_)
    """
    from arviz_stats.base import array_stats

    density = np.exp(draws - draws.max(axis=(1, 2), keepdims=True))
    with np.errstate(invalid="ignore", divide="ignore"):
        effective = array_stats.ess(density, method="mean", chain_axis=1, draw_axis=2)
        windowed = density.std(axis=(1, 2)) / density.mean(axis=(1, 2)) / np.sqrt(effective)
        ratios = []
        for size in batch_sizes:
            whole = draws.shape[2] // size * size
            if whole < 2 * size:
                ratios.append(np.nan)
                continue
            scale = np.sqrt(whole / draws.shape[2])
            ratios.append(
                np.nanmedian(mcse(batch_sums(draws[..., :whole], size)) * scale / windowed)
            )
    return np.array(ratios)
