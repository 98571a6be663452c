r"""Can the numbers be trusted? Estimates and diagnostics from the stored sums of a log score.

A fold's draws :math:`s_{lt}` (chain l, draw t) are cut into batches of consecutive draws, and
only sums per batch are stored. Everything follows from them, for any regrouping:

- of whole folds, `merge(sums, axis=(1, 2))`: the estimate, `elpd(sums)`;
- of batches: its Monte Carlo standard error, `mcse(sums)`, and `ess(sums)`;
- of chains, `merge(sums, axis=2)`: `rhat(sums)`, and of blocks of batches, `coarsen(sums, 5)`: the
  benchmark for the largest R-hat of all folds, `rhat_max_benchmark(rng, sums)`.

Heavy tails need the draws themselves, or the largest of them: `pareto_khat`. Folds may end at
different lengths; every formula takes the fold's own number of draws.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import xarray as xr
from jaxtyping import Bool, Float, Int

BENCHMARK_LEVEL = 0.01
"""share of benchmark replicates at or above R-hat max that speaks against mixing"""


class LogSums(NamedTuple):
    """Sums of a log score s (nats) over batches of draws, joint or for every slot.

    A batch that a fold no longer reached has count 0, and its other values are ignored. A slot
    that pads a fold's test set is NaN in every batch. The slots of a fold share their draws, so
    `count` may leave out the slot axis.

    >>> sums = batch_sums(np.log([[[1.0, 3.0, 2.0, 2.0]]]), batch_size=2)
    >>> np.exp(sums.log_sum)
    array([[[4., 4.]]])
    """

    count: Float[np.ndarray, "fold chain batch *slot"]  # type: ignore[assignment]
    """number of draws"""
    mean: Float[np.ndarray, "fold chain batch *slot"]
    """mean of s"""
    m2: Float[np.ndarray, "fold chain batch *slot"]
    """sum of squared deviations of s from `mean`"""
    log_sum: Float[np.ndarray, "fold chain batch *slot"]
    """log Σ exp(s)"""
    log_sum_sq: Float[np.ndarray, "fold chain batch *slot"]
    """log Σ exp(2 s)"""


class Benchmark(NamedTuple):
    """R-hat max, and what it is when chains have mixed."""

    observed: float
    """the largest R-hat of all folds"""
    replicates: Float[np.ndarray, " replicate"]
    """the largest R-hat of all folds, of emulated chains that have mixed"""
    share_above: float
    """share of the replicates that reach the observed value"""
    limit: float
    """the R-hat above which a fold stands out"""


class Progressive(NamedTuple):
    """Estimates and diagnostics after each of a few numbers of batches."""

    elpd: Float[np.ndarray, "fold point"]
    mcse: Float[np.ndarray, "fold point"]
    rhat: Float[np.ndarray, "fold point"]
    ess: Float[np.ndarray, "fold point"]


def batch_sums(draws: Float[np.ndarray, "fold chain draw *slot"], batch_size: int) -> LogSums:
    """Sum stored draws batch by batch: what the sampler stores while it runs.

    Args:
        draws: log scores s (nats).
        batch_size: number of consecutive draws in a batch (b), a divisor of the number of draws.

    Returns:
        Sums of dims (fold, chain, batch[, slot]).

    >>> batch_sums(np.zeros((1, 2, 60)), batch_size=20).mean.shape
    (1, 2, 3)
    """
    folds, chains, num_draws, *slots = draws.shape
    s = draws.reshape(folds, chains, num_draws // batch_size, batch_size, *slots)
    return merge(LogSums(np.ones(s.shape[:4]), s, np.zeros_like(s), s, 2 * s), axis=3)


def _like(count: np.ndarray, x: np.ndarray) -> np.ndarray:
    return count[..., None] if count.ndim < x.ndim else count


def _merge_moments(
    count: np.ndarray, mean: np.ndarray, m2: np.ndarray, axis: int | tuple[int, ...]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    n = _like(count, mean)
    present = n > 0
    with np.errstate(invalid="ignore", divide="ignore"):
        # About one of the means: those of a chain that never moved merge without rounding.
        center = np.where(present, mean, -np.inf).max(axis=axis, keepdims=True)
        offset = np.where(present, n * (mean - center), 0).sum(axis=axis, keepdims=True)
        merged = center + offset / n.sum(axis=axis, keepdims=True)
        spread = np.where(present, m2 + n * (mean - merged) ** 2, 0).sum(axis=axis)
    return count.sum(axis=axis), merged.squeeze(axis), spread


def merge(sums: LogSums, axis: int | tuple[int, ...]) -> LogSums:
    r"""Merge sums along axes, as if the draws had been summed in one go.

    .. math:: \bar s = \sum_h n_h \bar s_h / n, \qquad
              M_2 = \sum_h M_{2,h} + \sum_h n_h (\bar s_h - \bar s)^2, \qquad n = \sum_h n_h

    and log sums add. (Chan, Golub, LeVeque 1983, for any number of parts.)

    Args:
        sums: dims (fold, chain, batch[, slot]).
        axis: 1 (chains), 2 (batches) or (1, 2).

    Returns:
        Sums without these axes; NaN where there was no draw.

    >>> sums = batch_sums(np.log([[[1.0, 3.0, 2.0, 2.0]]]), batch_size=2)
    >>> merge(sums, axis=(1, 2)).count
    array([4.])
    """
    count, mean, m2 = _merge_moments(sums.count, sums.mean, sums.m2, axis)
    present = _like(sums.count, sums.mean) > 0
    with np.errstate(invalid="ignore"):
        log_sum, log_sum_sq = (
            np.logaddexp.reduce(np.where(present, x, -np.inf), axis=axis)
            for x in (sums.log_sum, sums.log_sum_sq)
        )
    return LogSums(count, mean, m2, log_sum, log_sum_sq)


def coarsen(sums: LogSums, blocks: int) -> LogSums:
    """Merge each fold's batches into blocks of consecutive ones, as equal as they can be.

    Args:
        sums: dims (fold, chain, batch[, slot]).
        blocks: number of blocks (D). A fold of fewer batches keeps them, then has empty blocks.

    Returns:
        Sums of dims (fold, chain, block[, slot]).

    >>> coarsen(batch_sums(np.zeros((1, 2, 60)), batch_size=5), blocks=5).count[0, 0]
    array([15., 10., 15., 10., 10.])
    """
    present = sums.count > 0
    num_batches = present.sum(axis=2, keepdims=True)
    rank = np.cumsum(present, axis=2) - 1
    block = rank * np.minimum(blocks, num_batches) // np.maximum(num_batches, 1)
    parts = [
        merge(sums._replace(count=np.where(block == d, sums.count, 0)), axis=2)
        for d in range(blocks)
    ]
    return LogSums(*(np.stack(x, axis=2) for x in zip(*parts, strict=True)))


def elpd(sums: LogSums) -> Float[np.ndarray, " fold *slot"]:
    r"""Expected log predictive density of every fold, or of every unit left out (nats).

    .. math:: \hat\eta_k = \log \hat f_k, \qquad
              \hat f_k = \frac{1}{LN} \sum_{l,t} \exp(s_{klt})

    PCV eq. 8 and 11.

    Args:
        sums: dims (fold, chain, batch[, slot]).

    Returns:
        −inf where the predictive density is 0 at every draw; NaN in padded slots, in folds
        without draws and where a score is NaN.

    >>> elpd(batch_sums(np.log([[[1.0, 3.0, 2.0, 2.0]]]), batch_size=2)).round(3)    # log 2
    array([0.693])
    """
    whole = merge(sums, axis=(1, 2))
    with np.errstate(invalid="ignore", divide="ignore"):
        return whole.log_sum - np.log(_like(whole.count, whole.log_sum))


def _padded(sums: LogSums) -> Bool[np.ndarray, "fold slot"]:
    absent = ~(_like(sums.count, sums.log_sum) > 0)
    return (absent | np.isnan(sums.log_sum)).all(axis=(1, 2))


def elpd_pointwise(sums: LogSums) -> Float[np.ndarray, " fold"]:
    r"""Sum of the pointwise elpd of the units that a fold leaves out (nats).

    .. math:: \sum_{i \in \mathrm{test}_k} \hat\eta_i

    Args:
        sums: pointwise sums, dims (fold, chain, batch, slot).

    >>> draws = np.log([[[[1.0, 5.0], [3.0, 5.0]]]])              # two draws, two units
    >>> elpd_pointwise(batch_sums(draws, batch_size=1)) == np.log(2) + np.log(5)
    array([ True])
    """
    return np.where(_padded(sums), 0.0, elpd(sums)).sum(axis=1)


def _deviations(sums: LogSums) -> tuple[np.ndarray, np.ndarray]:
    r"""Batches' contributions to the relative error of f, and the factor to their squared sum.

    The deviations :math:`\frac{n_h}{LN} (\bar g_h / \hat f - 1)`, dims (fold, chain, batch
    [, slot]), and B/(B − 1) with B batches per fold, dims (fold[, 1]).
    """
    whole = merge(sums, axis=(1, 2))
    count = _like(sums.count, sums.log_sum)
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
    eq. 13–15; the deviations are from the fold's mean, not from each chain's (PCV eq. 35–36, which
    hides that chains disagree). The batches count as independent: chains that have not mixed, see
    `rhat`, have a larger error than this, and so do draws whose k-hat is large, see
    `pareto_khat`. Batches of different lengths are weighted by their length.

    Args:
        sums: dims (fold, chain, batch[, slot]).

    Returns:
        NaN with fewer than two batches, in padded slots and where elpd is not finite. The error
        of a sum over folds is the root of the sum of squares; over the units of one fold it is
        not, see `mcse_pointwise`.

    >>> mcse(batch_sums(np.log([[[1.0, 3.0, 2.0, 2.0]]]), batch_size=1)).round(3)
    array([0.204])
    """
    deviation, factor = _deviations(sums)
    return np.sqrt(factor * (deviation**2).sum(axis=(1, 2)))


def mcse_pointwise(sums: LogSums) -> Float[np.ndarray, " fold"]:
    r"""Monte Carlo standard error of `elpd_pointwise` (nats).

    The units of a fold share their draws, so their errors are correlated: the batch means are
    those of :math:`\sum_{i \in \mathrm{test}_k} g_i / \hat f_i`.

    .. math:: \mathrm{MCSE}_k^2 = \frac{1}{La (La - 1)} \sum_{l,h}
              \Big( \sum_{i \in \mathrm{test}_k} \frac{\bar g_{ilh}}{\hat f_i} - 1 \Big)^2

    After PCV eq. 13–15.

    Args:
        sums: pointwise sums, dims (fold, chain, batch, slot).

    >>> draws = np.log([[[[1.0, 1.0], [3.0, 3.0], [2.0, 2.0], [2.0, 2.0]]]])     # equal units
    >>> mcse_pointwise(batch_sums(draws, 1)) == 2 * mcse(batch_sums(draws, 1))[:, 0]
    array([ True])
    """
    deviation, factor = _deviations(sums)
    summed = np.where(_padded(sums)[:, None, None], 0.0, deviation).sum(axis=3)
    return np.sqrt(_like(factor, summed[:, 0])[:, 0] * (summed**2).sum(axis=(1, 2)))


def ess(sums: LogSums) -> Float[np.ndarray, " fold *slot"]:
    r"""Effective number of draws of exp(s) per fold: independent ones with the same `mcse`.

    .. math:: \mathrm{ESS}_k = LN \frac{s_{f_k}^2}{\hat\sigma_{f_k}^2}

    with the sample variance :math:`s_{f_k}^2` of exp(s) and the batch-means variance of `mcse`.
    PCV §4.1.

    Args:
        sums: dims (fold, chain, batch[, slot]).

    Returns:
        Number of draws; its relative standard deviation is about :math:`\sqrt{2/(La - 1)}` with
        La batches. It may exceed LN. NaN where `mcse` is, and for a score that never varies.

    >>> draws = np.random.default_rng(1).normal(0, 0.5, (1, 8, 2000))
    >>> 0.8 < ess(batch_sums(draws, batch_size=20))[0] / 16000 < 1.2
    np.True_
    """
    with np.errstate(invalid="ignore", divide="ignore"):
        return _relative_variance(sums) / mcse(sums) ** 2


def _relative_variance(sums: LogSums) -> np.ndarray:
    """Sample variance of exp(s) over its squared mean, per fold; NaN if s never varies."""
    whole = merge(sums, axis=(1, 2))
    n = _like(whole.count, whole.mean)
    with np.errstate(invalid="ignore", divide="ignore"):
        variance = (np.exp(whole.log_sum_sq - 2 * elpd(sums)) - n) / (n - 1)
    return np.where(whole.m2 == 0, np.nan, variance)


BATCH_SIZES = (5, 10, 20, 25, 50, 100, 200)
SHORT_BATCHES = 0.8
"""share of the windowed MCSE below which batches are said to be short"""


def batch_size_check(
    draws: Float[np.ndarray, "fold chain draw"], batch_sizes: Sequence[int] = BATCH_SIZES
) -> Float[np.ndarray, " size"]:
    r"""MCSE of elpd by batches of several sizes, over that of a windowed ESS: near 1 where batches
    are long enough, smaller where draws stay correlated for longer than a batch.

    .. math:: \mathrm{median}_k \; \mathrm{MCSE}_k(b) \Big/
              \frac{\mathrm{sd}(e^{s_k})}{\bar{e^{s_k}} \sqrt{\mathrm{ESS}_k}}

    PCV §5: batches of 50 are checked so on the full-data models. The ESS is that of the mean, by
    Geyer's initial sequences (arviz_stats).

    Args:
        draws: log scores s of folds (nats), of one length.
        batch_sizes: b; those of which there are fewer than two batches give NaN.

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


def ess_total(
    ess: Float[np.ndarray, " fold *point"], mcse: Float[np.ndarray, " fold *point"]
) -> Float[np.ndarray, " *point"]:
    r"""Effective number of draws per fold of a sum of folds' elpd, or of a difference of two.

    .. math:: \mathrm{ESS} = LN \, \frac{s_\eta^2}{\sigma_\eta^2}
              = \frac{\sum_k \mathrm{MCSE}_k^2 \, \mathrm{ESS}_k}{\sum_k \mathrm{MCSE}_k^2},
              \qquad
              s_\eta^2 = \sum_k s_{f_k}^2 / \hat f_k^2, \qquad
              \sigma_\eta^2 = \sum_k \hat\sigma_{f_k}^2 / \hat f_k^2

    PCV §4.1: the folds that contribute most to the error of the sum weigh most. For a difference,
    k runs over the folds of both models, whose errors add up.

    Args:
        ess: of `ess`, of every fold.
        mcse: of `mcse`, of every fold (nats).

    Returns:
        Number of draws of a fold over all chains; NaN without a fold whose `ess` is defined, the
        others are left out.

    >>> float(ess_total(np.array([100.0, 400.0]), np.array([0.2, 0.1])))
    160.0
    """
    weight = np.where(np.isfinite(ess) & np.isfinite(mcse), mcse, 0.0) ** 2
    with np.errstate(invalid="ignore"):
        return np.asarray((weight * np.nan_to_num(ess)).sum(axis=0) / weight.sum(axis=0))


def _rhat(count: np.ndarray, mean: np.ndarray, m2: np.ndarray) -> np.ndarray:
    num_chains = mean.shape[1]
    with np.errstate(invalid="ignore", divide="ignore"):
        n = count.mean(axis=1)
        within = (m2 / (count - 1)).mean(axis=1)
        between = ((mean - mean.mean(axis=1, keepdims=True)) ** 2).sum(axis=1)
        return np.sqrt((n - 1) / n + np.divide(between, num_chains - 1) / within)


def rhat(sums: LogSums) -> Float[np.ndarray, " fold *slot"]:
    r"""Potential scale reduction of s over the chains of every fold: 1 when they agree.

    .. math:: \hat R_k = \sqrt{\frac{\frac{N-1}{N} W_k + \frac{1}{N} B_k}{W_k}}, \qquad
              W_k = \frac{1}{L} \sum_l \mathrm{var}_t(s_{klt}), \qquad
              B_k = \frac{N}{L-1} \sum_l (\bar s_{kl} - \bar s_k)^2

    PCV eq. 16: chains are not split, draws not ranked.

    Args:
        sums: dims (fold, chain, batch[, slot]).

    Returns:
        inf where no chain moved and they differ; NaN where s is one and the same constant in
        all chains, with a single chain or draw, in padded slots and where a score is not finite.

    >>> draws = np.random.default_rng(1).normal(size=(1, 4, 100))
    >>> draws[0, 2] += 5
    >>> rhat(batch_sums(draws, batch_size=20)).round(1)
    array([2.9])
    """
    chain = merge(sums, axis=2)
    return _rhat(_like(chain.count, chain.mean), chain.mean, chain.m2)


def nested_rhat(sums: LogSums, superchains: int) -> Float[np.ndarray, " fold *slot"]:
    r"""Nested R-hat of s: do superchains, each of M chains that started at one point, agree?

    .. math:: \mathfrak{n}\hat R_k = \sqrt{1 + \mathfrak{n}\hat B / \mathfrak{n}\hat W}, \qquad
              \mathfrak{n}\hat B = \mathrm{var}_j(\bar s_{kj}), \qquad
              \mathfrak{n}\hat W = \mathrm{mean}_j \left[ \mathrm{var}_m(\bar s_{kjm})
              + \mathrm{mean}_m \mathrm{var}_t(s_{kjmt}) \right]

    over superchains j, their chains m and draws t. Variances over a single chain or draw count as
    0, so that one draw per chain is enough, or one chain per superchain. Where all is well it is
    near :math:`\sqrt{1 + 1/M}` with one draw per chain, and nearer to 1 with more. NRHAT eq. 5-8.

    Args:
        sums: dims (fold, chain, batch[, slot]); the chains of a superchain stand together.
        superchains: number of superchains, a divisor of the number of chains.

    Returns:
        inf where nothing varies within superchains that differ; NaN with single chains of single
        draws, where s is one constant, in padded slots and where a score is not finite.

    >>> draws = np.random.default_rng(1).normal(size=(1, 64, 1))
    >>> nested_rhat(batch_sums(draws, batch_size=1), superchains=4).round(2)
    array([1.01])
    >>> draws[0, :16] += 3
    >>> nested_rhat(batch_sums(draws, batch_size=1), superchains=4).round(2)
    array([2.12])
    """
    chain = merge(sums, axis=2)
    return _nested_rhat(_like(chain.count, chain.mean), chain.mean, chain.m2, superchains)


def _nested_rhat(
    count: np.ndarray, mean: np.ndarray, m2: np.ndarray, superchains: int
) -> np.ndarray:
    def nested(x: np.ndarray) -> np.ndarray:
        return x.reshape(len(x), superchains, -1, *x.shape[2:])

    mean, per_chain = nested(mean), nested(np.broadcast_to(count, m2.shape))
    with np.errstate(invalid="ignore", divide="ignore"):
        over_draws = np.where(per_chain > 1, nested(m2) / (per_chain - 1), 0 * nested(m2))
        over_chains = mean.var(axis=2, ddof=1) if mean.shape[2] > 1 else 0.0
        within = (over_chains + over_draws.mean(axis=2)).mean(axis=1)
        between = mean.mean(axis=2).var(axis=1, ddof=1)
        return np.sqrt(1 + between / within)


def mixing(sums: LogSums, superchains: int) -> Float[np.ndarray, " fold *slot"]:
    """`nested_rhat` where there are superchains, else `rhat`."""
    return nested_rhat(sums, superchains) if superchains else rhat(sums)


def mixing_benchmark(rng: np.random.Generator, sums: LogSums, superchains: int) -> Benchmark:
    """`nested_benchmark` where there are superchains, else `rhat_max_benchmark`."""
    return (
        nested_benchmark(rng, sums, superchains) if superchains else rhat_max_benchmark(rng, sums)
    )


def nested_benchmark(
    rng: np.random.Generator, sums: LogSums, superchains: int, replicates: int = 500
) -> Benchmark:
    """The largest nested R-hat of all folds, beside its distribution if all chains had mixed.

    Then it does not matter where a chain started: for each replicate, the chains of every fold are
    dealt out anew to its superchains. This is a permutation test, exact for any number of draws
    where chains from one start are independent of each other.

    Args:
        rng: source of the replicates.
        sums: joint sums, dims (fold, chain, batch).
        superchains: number of superchains.
        replicates: number of replicates.

    Returns:
        As `rhat_max_benchmark`.

    >>> rng = np.random.default_rng(1)
    >>> draws = rng.normal(size=(30, 64, 2))
    >>> nested_benchmark(rng, batch_sums(draws, 1), 4).share_above > 0.01
    True
    >>> draws[7, :16] += 2
    >>> nested_benchmark(rng, batch_sums(draws, 1), 4).share_above
    0.0
    """
    chain = merge(sums, axis=2)
    observed = nested_rhat(sums, superchains)
    emulated = []
    for _ in range(replicates):
        dealt = rng.permuted(
            np.broadcast_to(np.arange(chain.mean.shape[1]), chain.mean.shape), axis=1
        )
        count, mean, m2 = (np.take_along_axis(x, dealt, axis=1) for x in chain[:3])
        emulated.append(_nested_rhat(count, mean, m2, superchains))
    return _benchmark(
        float(np.fmax.reduce(observed)),
        np.fmax.reduce(np.stack(emulated), axis=1),
        _limit(observed, np.stack(emulated)),
    )


def rhat_max_benchmark(
    rng: np.random.Generator, sums: LogSums, blocks: int = 5, replicates: int = 500
) -> Benchmark:
    r"""The largest R-hat of all folds, beside its distribution if all chains had mixed.

    Each chain is cut into D contiguous blocks. For each replicate, every fold's chains are
    emulated by D blocks each, drawn with replacement from all L·D blocks of that fold, and the
    largest R-hat is taken. PCV §4.2, with this difference: PCV's algorithm 2 keeps a block's
    position and redraws its chain alone, which makes B too small by (L − 1)/L and flags healthy
    chains too often.

    Autocorrelation beyond the length of a block is not emulated.

    Args:
        rng: source of the replicates.
        sums: joint sums, dims (fold, chain, batch).
        blocks: blocks that a chain is cut into (D); folds of fewer batches use what they have.
        replicates: number of replicates.

    Returns:
        The observed value, the replicates, and the share of them that reach it. The limit for a
        fold is the 99% quantile of replicates of those folds that stay below it, found by leaving
        out the others step by step: one fold with a large R-hat, whose emulated chains vary much,
        does not hide the rest. Folds with an undefined R-hat are left out; if all are, the result
        is NaN.

    >>> rng = np.random.default_rng(1)
    >>> draws = rng.normal(size=(30, 4, 100))
    >>> rhat_max_benchmark(rng, batch_sums(draws, 20)).share_above > 0.01
    True
    >>> draws[7, 2] += 5
    >>> rhat_max_benchmark(rng, batch_sums(draws, 20)).share_above
    0.0
    """
    block = coarsen(sums, blocks)
    folds, chains, _ = block.count.shape
    filled = (block.count[:, :1] > 0).sum(axis=2, keepdims=True)  # (fold, 1, 1)
    fold = np.arange(folds)[:, None, None]
    chunk = max(1, 2**20 // block.count.size)
    emulated = []
    for done in range(0, replicates, chunk):
        shape = (min(chunk, replicates - done), folds, chains, blocks)
        drawn = (rng.random(shape) * chains * filled).astype(int)
        source, position = np.divmod(drawn, np.maximum(filled, 1))
        count, mean, m2 = (x[fold, source, position] for x in block[:3])
        count = np.where(np.arange(blocks) < filled, count, 0)
        merged = (x.reshape(-1, chains) for x in _merge_moments(count, mean, m2, axis=3))
        emulated.append(_rhat(*merged).reshape(-1, folds))
    observed, replicate = rhat(sums), np.concatenate(emulated)
    return _benchmark(
        float(np.fmax.reduce(observed)),
        np.fmax.reduce(replicate, axis=1),
        _limit(observed, replicate),
    )


def _benchmark(
    observed: float, replicates: Float[np.ndarray, " replicate"], limit: float
) -> Benchmark:
    share = float("nan") if np.isnan(observed) else float(np.mean(replicates >= observed))
    return Benchmark(observed, replicates, share, limit)


def _limit(
    observed: Float[np.ndarray, " fold"], replicates: Float[np.ndarray, "replicate fold"]
) -> float:
    kept = np.full(len(observed), True)
    while True:
        largest = np.fmax.reduce(replicates[:, kept], axis=1)
        limit = np.quantile(largest, 1 - BENCHMARK_LEVEL, method="higher")
        if not (outside := kept & (observed > limit)).any() or (outside == kept).all():
            return float(limit)
        kept &= ~outside


def benchmark_of_models(benchmarks: Sequence[Benchmark]) -> Benchmark:
    r"""The benchmark of all models together: :math:`\hat R_{\max}` over models and folds.

    PCV eq. 17.

    Args:
        benchmarks: one per model, with the same number of replicates, drawn independently.

    Returns:
        Largest values of all, with the share of replicates that reach the observed one.

    >>> a = Benchmark(1.2, np.array([1.1, 1.2]), 0.5, 1.2)
    >>> b = Benchmark(1.1, np.array([1.3, 1.0]), 0.5, 1.3)
    >>> benchmark_of_models([a, b])
    Benchmark(observed=1.2, replicates=array([1.3, 1.2]), share_above=1.0, limit=1.3)
    """
    return _benchmark(
        float(np.fmax.reduce([x.observed for x in benchmarks])),
        np.fmax.reduce([x.replicates for x in benchmarks]),
        float(np.fmax.reduce([x.limit for x in benchmarks])),
    )


def efmi(
    count: Float[np.ndarray, "fold chain batch"],
    mean: Float[np.ndarray, "fold chain batch"],
    m2: Float[np.ndarray, "fold chain batch"],
    diff_sq: Float[np.ndarray, "fold chain batch"],
) -> Float[np.ndarray, " fold"]:
    r"""Energy fraction of missing information of every fold's chains together.

    .. math:: \frac{\sum_{l,t} (E_{lt} - E_{l,t-1})^2}{\sum_{l,t} (E_{lt} - \bar E_l)^2}

    Near 1 or above where draws of the momentum reach all energies; small where they do not, and
    heavy tails are explored slowly (Betancourt 2016).

    Args:
        count, mean, m2, diff_sq: sums of the energy per batch, of `pcv.accumulate.energy_sums`.

    Returns:
        NaN where the energy never varies.

    >>> x = np.random.default_rng(1).normal(size=(1, 4, 500, 1))
    >>> steps = np.diff(x, axis=2, prepend=x[:, :, :1])[..., 0] ** 2
    >>> efmi(np.ones((1, 4, 500)), x[..., 0], np.zeros((1, 4, 500)), steps).round()
    array([2.])
    """
    _, _, spread = _merge_moments(count, mean, m2, axis=2)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.nansum(diff_sq, axis=(1, 2)) / spread.sum(axis=1)


def tail_size(num_draws: int) -> int:
    r"""Number M of draws in the tail that k-hat is fitted to.

    .. math:: M = \lfloor \min(S / 5, \; 3 \sqrt S) \rfloor

    Args:
        num_draws: draws of a fold over all chains (S).

    `pareto_khat_from_tail` needs the M + 1 largest draws. (Vehtari et al. 2024, appendix H,
    rounded down as ArviZ does.)

    >>> tail_size(1600)
    120
    """
    return int(min(num_draws / 5, 3 * num_draws**0.5))


PART = 2**21
"""draws of all folds that are in memory at one time"""


def largest(
    top: Float[np.ndarray, "fold tail"], draws: Float[np.ndarray, "fold chain draw"]
) -> Float[np.ndarray, "fold tail"]:
    """The largest values of each fold so far, in no order, as many as `top` has room for."""
    seen = np.concatenate([top, draws.reshape(len(draws), -1)], axis=1)
    return np.partition(seen, -top.shape[1], axis=1)[:, -top.shape[1] :]


def pareto_khat(
    draws: Float[np.ndarray, "fold chain draw"] | Float[xr.DataArray, "fold chain draw"],
    num_draws: Int[np.ndarray, " fold"] | None = None,
) -> Float[np.ndarray, " fold"]:
    r"""Shape of the right tail of exp(s): how far the mean of exp(s) can be trusted.

    A generalised Pareto distribution is fitted to the `tail_size` largest values of exp(s): its
    shape k is the inverse of the number of finite moments. Above `good_k` the average hangs on
    few draws: `elpd` is biased downwards and `mcse` too small, whatever R-hat and ESS say.
    (Vehtari, Simpson, Gelman, Yao, Gabry 2024, *Pareto smoothed importance sampling*.)

    Args:
        draws: log scores s (nats); those in a store are read part by part.
        num_draws: draws of each fold over all chains, where folds stopped early: NaN past them.

    Returns:
        NaN with fewer than 25 draws, where the largest values are equal, or a score is NaN.

    >>> rng = np.random.default_rng(1)
    >>> pareto_khat(rng.exponential(0.9, (1, 4, 1000))) > good_k(4000)     # exp(s): Pareto, k = .9
    array([ True])
    """
    folds, chains, longest = draws.shape
    made = np.full(folds, chains * longest) if num_draws is None else num_draws
    top = np.full((folds, tail_size(int(made.max())) + 1), -np.inf)
    known = np.zeros(folds, int)
    step = max(PART // (folds * chains), 1)
    for start in range(0, longest, step):
        part = np.asarray(draws[:, :, start : start + step])
        unknown = np.isnan(part)
        known += (~unknown).sum(axis=(1, 2))
        top = largest(top, np.where(unknown, -np.inf, part))
    return np.where(known < made, np.nan, pareto_khat_from_tail(top, made))


def pareto_khat_from_tail(
    top: Float[np.ndarray, "fold tail"], num_draws: int | Int[np.ndarray, " fold"]
) -> Float[np.ndarray, " fold"]:
    r"""`pareto_khat` from the largest draws of every fold alone.

    Args:
        top: the largest log scores s of every fold (nats), in any order, at least
            `tail_size` + 1 of them.
        num_draws: number of draws that they are the largest of (S), of each fold or of all.

    Returns:
        The same as `pareto_khat` of all draws.

    >>> draws = np.random.default_rng(1).normal(size=(1, 4, 100))
    >>> top = np.sort(draws.ravel())[None, -61:]
    >>> pareto_khat_from_tail(top, 400) == pareto_khat(draws)
    array([ True])
    """
    from arviz_stats.base import array_stats

    khat = np.full(len(top), np.nan)
    for k, size in enumerate(np.broadcast_to(num_draws, len(top)).tolist()):
        tail = np.sort(top[k])[-tail_size(size) - 1 :]
        if tail_size(size) < 5 or np.isnan(tail).any() or tail[1] == tail[-1]:
            continue
        # The fit sees the tail and the number of draws alone: draws below it weigh nothing.
        scores = np.concatenate([np.full(size - len(tail), -np.inf), tail])
        with np.errstate(all="ignore"):
            khat[k] = array_stats.psislw(-scores)[1]
    return khat


def good_k(num_draws: int | np.ndarray) -> float | np.ndarray:
    r"""Largest k-hat at which S draws give a mean with a sound error.

    .. math:: \min(1 - 1 / \log_{10} S, \; 0.7)

    Vehtari et al. (2024), eq. 13.

    Args:
        num_draws: draws of a fold over all chains (S).

    >>> good_k(1600).round(3)
    np.float64(0.688)
    """
    with np.errstate(divide="ignore"):
        return np.minimum(1 - 1 / np.log10(num_draws), 0.7)


def first_batches(sums: LogSums, number: int) -> LogSums:
    """The sums of the first batches of every chain."""
    return LogSums(*(x[:, :, :number] for x in sums))


def progressive(
    sums: LogSums, points: Sequence[int] | Int[np.ndarray, " point"], superchains: int = 0
) -> Progressive:
    """Estimates and diagnostics from the first batches of all chains, at several lengths.

    Args:
        sums: joint or pointwise sums, dims (fold, chain, batch[, slot]).
        points: numbers of batches per chain.
        superchains: number of superchains, whose nested R-hat is taken; 0: there are none.

    Returns:
        `elpd`, `mcse`, `rhat` and `ess` of dims (fold, point). For pointwise sums: `elpd_pointwise`
        and `mcse_pointwise`, with the largest R-hat and the smallest ESS of a fold's units. A
        fold that ended earlier keeps its last values.

    >>> sums = batch_sums(np.random.default_rng(1).normal(size=(3, 4, 100)), batch_size=10)
    >>> progressive(sums, points=[2, 5, 10]).mcse.shape
    (3, 3)
    """

    def at(point: int) -> tuple[np.ndarray, ...]:
        first = first_batches(sums, point)
        if sums.mean.ndim == 3:
            return elpd(first), mcse(first), mixing(first, superchains), ess(first)
        return (
            elpd_pointwise(first),
            mcse_pointwise(first),
            np.fmax.reduce(mixing(first, superchains), axis=1),
            np.fmin.reduce(ess(first), axis=1),
        )

    return Progressive(
        *(np.stack(x, axis=1) for x in zip(*(at(int(point)) for point in points), strict=True))
    )
