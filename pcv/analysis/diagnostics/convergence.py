"""Have the chains of all folds mixed? R-hat, its maximum, and what that is when they have."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy.special import stdtr

from pcv.analysis.diagnostics.log_sums import LogSums, coarsen, merge, merge_moments, of_slots

BENCHMARK_LEVEL = 0.01
"""share of benchmark replicates at or above R-hat max that speaks against mixing"""
BLOCKS = 5
"""that a chain is cut into for the benchmark of R-hat max"""
EMULATED = 2**16
"""blocks that are drawn at one time"""
KEPT_APART = 1000
"""folds of which the benchmark may leave out some"""


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


def rhat_of_moments(count: np.ndarray, mean: np.ndarray, m2: np.ndarray) -> np.ndarray:
    """`rhat` of counts, means and M2 of each fold's chains, dims (fold, chain, ...)."""
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

    >>> from pcv.analysis.diagnostics import batch_sums
    >>> draws = np.random.default_rng(1).normal(size=(1, 4, 100))
    >>> draws[0, 2] += 5
    >>> rhat(batch_sums(draws, batch_size=20)).round(1)
    array([2.9])
    """
    count, mean, m2 = merge_moments(*sums[:3], axis=2)
    return rhat_of_moments(of_slots(count, mean), mean, m2)


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

    >>> from pcv.analysis.diagnostics import batch_sums
    >>> draws = np.random.default_rng(1).normal(size=(1, 64, 1))
    >>> nested_rhat(batch_sums(draws, batch_size=1), superchains=4).round(2)
    array([1.01])
    >>> draws[0, :16] += 3
    >>> nested_rhat(batch_sums(draws, batch_size=1), superchains=4).round(2)
    array([2.12])
    """
    count, mean, m2 = merge_moments(*sums[:3], axis=2)
    return _nested_rhat(of_slots(count, mean), mean, m2, superchains)


def nested_limit(
    sums: LogSums, superchains: int, tolerated: float
) -> Float[np.ndarray, " fold *slot"]:
    r"""Nested R-hat that the superchains of every fold may have.

    .. math:: \sqrt{1 + \frac{1}{M} \frac{\mathrm{mean}_j \mathrm{var}_m(\bar s_{kjm})}
              {\mathfrak{n}\hat W_k} + \tau}

    in the terms of `nested_rhat`. By the second one superchains of M chains differ that have
    forgotten their starts: 1/M with a single draw of each, but about
    :math:`1/(M\,\mathrm{ESS}_{(1)})` where a chain makes :math:`\mathrm{ESS}_{(1)}` effective
    draws. NRHAT corollaries 3.2 and 3.3, eq. 24.

    Args:
        sums, superchains: as there.
        tolerated: τ, variance between starts as a share of that within superchains.

    Returns:
        :math:`\sqrt{1 + \tau}` where nothing varies within superchains.

    >>> from pcv.analysis.diagnostics import batch_sums
    >>> draws = np.random.default_rng(1).normal(size=(1, 64, 400))
    >>> nested_limit(batch_sums(draws[..., :1], 1), 4, 0.02).round(2)
    array([1.04])
    >>> nested_limit(batch_sums(draws, 20), 4, 0.02).round(2)
    array([1.01])
    """
    count, mean, m2 = merge_moments(*sums[:3], axis=2)
    _, of_chains, within = _nested_variances(of_slots(count, mean), mean, m2, superchains)
    with np.errstate(invalid="ignore", divide="ignore"):
        kept = of_chains / within * superchains / mean.shape[1]
    return np.asarray(np.sqrt(1 + np.nan_to_num(kept) + tolerated))


def _nested_rhat(
    count: np.ndarray, mean: np.ndarray, m2: np.ndarray, superchains: int
) -> np.ndarray:
    between, _, within = _nested_variances(count, mean, m2, superchains)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(np.sqrt(1 + between / within))


def _nested_variances(
    count: np.ndarray, mean: np.ndarray, m2: np.ndarray, superchains: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Between superchains; between the chains of one; within superchains."""

    def nested(x: np.ndarray) -> np.ndarray:
        return x.reshape(len(x), superchains, -1, *x.shape[2:])

    mean, per_chain = nested(mean), nested(np.broadcast_to(count, m2.shape))
    with np.errstate(invalid="ignore", divide="ignore"):
        over_draws = np.where(per_chain > 1, nested(m2) / (per_chain - 1), 0 * nested(m2))
        of_chains = mean.var(axis=2, ddof=int(mean.shape[2] > 1)).mean(axis=1)
        between = mean.mean(axis=2).var(axis=1, ddof=1)
    return between, of_chains, of_chains + over_draws.mean(axis=(1, 2))


def drift(sums: LogSums) -> Float[np.ndarray, " fold *slot"]:
    r"""Have chains arrived? The p-value of the means of s in their first and second halves.

    .. math:: t = \frac{\bar s_2 - \bar s_1}{\hat\sigma \sqrt{1/B_1 + 1/B_2}}

    is Student's t with :math:`B_1 + B_2 - 2` degrees of freedom, where :math:`\bar s_1` and
    :math:`\bar s_2` are the means of the fold's batches in the first and in the second halves of
    its chains, and :math:`\hat\sigma` their standard deviation within halves. What all chains of a
    fold do together R-hat does not see unless chains are split.

    Args:
        sums: dims (fold, chain, batch[, slot]).

    Returns:
        Two-sided; NaN with fewer than two batches of a chain, or where s is constant.

    >>> from pcv.analysis.diagnostics import batch_sums
    >>> draws = np.random.default_rng(1).normal(size=(2, 4, 400))
    >>> draws[1] += np.linspace(-1, 1, 400)
    >>> rhat(batch_sums(draws, 50)).round(2), drift(batch_sums(draws, 50)) < 1e-4
    (array([1., 1.]), array([False,  True]))
    """
    present = sums.count > 0
    rank, number = np.cumsum(present, axis=2) - 1, present.sum(axis=2, keepdims=True)
    late = 2 * rank >= number
    with np.errstate(invalid="ignore", divide="ignore"):
        halves = [
            merge_moments(
                of_slots((present & half).astype(float), sums.mean),
                sums.mean,
                np.zeros_like(sums.mean),
                (1, 2),
            )
            for half in (~late, late)
        ]
        (n1, mean1, m1), (n2, mean2, m2) = halves
        freedom = n1 + n2 - 2
        t = (mean2 - mean1) / np.sqrt((m1 + m2) / freedom * (1 / n1 + 1 / n2))
        return 2 * stdtr(freedom, -np.abs(t))


def mixing(sums: LogSums, superchains: int) -> Float[np.ndarray, " fold *slot"]:
    """`nested_rhat` where there are superchains, else `rhat`."""
    return nested_rhat(sums, superchains) if superchains else rhat(sums)


Tell = Callable[[str], None]
"""is told how far something is"""


def mixing_benchmark(
    rng: np.random.Generator, sums: LogSums, superchains: int, tell: Tell = lambda words: None
) -> Benchmark:
    """`nested_benchmark` where there are superchains, else `rhat_max_benchmark`."""
    if superchains:
        return nested_benchmark(rng, sums, superchains, tell=tell)
    return rhat_max_benchmark(rng, sums, tell=tell)


def nested_benchmark(
    rng: np.random.Generator,
    sums: LogSums,
    superchains: int,
    replicates: int = 500,
    tell: Tell = lambda words: None,
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
        tell: is told how many there are.

    Returns:
        As `rhat_max_benchmark`.

    >>> from pcv.analysis.diagnostics import batch_sums
    >>> rng = np.random.default_rng(1)
    >>> draws = rng.normal(size=(30, 64, 2))
    >>> nested_benchmark(rng, batch_sums(draws, 1), 4).share_above > 0.01
    True
    >>> draws[7, :16] += 2
    >>> nested_benchmark(rng, batch_sums(draws, 1), 4).share_above
    0.0
    """
    chain = merge(sums, axis=2)
    places = np.broadcast_to(np.arange(chain.mean.shape[1]), chain.mean.shape)

    def emulated() -> Iterator[np.ndarray]:
        for _ in range(replicates):
            dealt = rng.permuted(places, axis=1)
            count, mean, m2 = (np.take_along_axis(x, dealt, axis=1) for x in chain[:3])
            yield _nested_rhat(count, mean, m2, superchains)[None]

    return _of_largest(nested_rhat(sums, superchains), emulated(), tell)


def rhat_max_benchmark(
    rng: np.random.Generator,
    sums: LogSums,
    blocks: int = BLOCKS,
    replicates: int = 500,
    tell: Tell = lambda words: None,
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
        sums: joint sums, dims (fold, chain, batch), or of them `coarsen` of as many blocks.
        blocks: blocks that a chain is cut into (D); folds of fewer batches use what they have.
        replicates: number of replicates.
        tell: is told how many there are.

    Returns:
        The observed value, the replicates, and the share of them that reach it. The limit for a
        fold is the 99% quantile of replicates of those folds that stay below it, found by leaving
        out the others step by step: one fold with a large R-hat, whose emulated chains vary much,
        does not hide the rest. Folds with an undefined R-hat are left out; if all are, the result
        is NaN.

    >>> from pcv.analysis.diagnostics import batch_sums
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
    several = max(1, EMULATED // block.count.size)
    number = max(1, EMULATED // (chains * blocks))
    parts = [slice(None)]
    if several == 1:
        parts = [slice(k, k + number) for k in range(0, folds, number)]

    def emulated() -> Iterator[np.ndarray]:
        for done in range(0, replicates, several):
            at_once = min(several, replicates - done)
            rhats = [
                _emulated(rng, block.count[part], block.mean[part], block.m2[part], at_once)
                for part in parts
            ]
            yield np.concatenate(rhats, axis=1)

    return _of_largest(rhat(sums), emulated(), tell)


def _emulated(
    rng: np.random.Generator,
    count: Float[np.ndarray, "fold chain block"],
    mean: Float[np.ndarray, "fold chain block"],
    m2: Float[np.ndarray, "fold chain block"],
    replicates: int,
) -> Float[np.ndarray, "replicate fold"]:
    """R-hat of folds whose chains' blocks are drawn from all of the fold's."""
    folds, chains, blocks = count.shape
    filled = (count[:, :1] > 0).sum(axis=2, keepdims=True)  # (fold, 1, 1)
    drawn = (rng.random((replicates, folds, chains, blocks)) * chains * filled).astype(int)
    if (filled < blocks).any():
        source, position = np.divmod(drawn, np.maximum(filled, 1))
        drawn = source * blocks + position
    drawn += np.arange(folds)[:, None, None] * chains * blocks
    drawn = np.ascontiguousarray(np.moveaxis(drawn, 3, 0))  # sums over blocks add whole arrays
    count, mean, m2 = (x.ravel()[drawn] for x in (count, mean, m2))
    count = np.where(np.arange(blocks)[:, None, None, None] < filled[..., 0], count, 0)
    merged = (x.reshape(-1, chains) for x in merge_moments(count, mean, m2, axis=0))
    return rhat_of_moments(*merged).reshape(-1, folds)


def _of_largest(
    observed: Float[np.ndarray, " fold"],
    emulated: Iterable[Float[np.ndarray, "replicate fold"]],
    tell: Tell,
) -> Benchmark:
    """The benchmark of R-hats of folds, beside some replicates of all of them at a time.

    A thousand folds with the largest ones are kept apart, of which any may be left out for the
    limit; of the others the largest alone.
    """
    order = np.argsort(-observed)
    apart, others = order[:KEPT_APART], order[KEPT_APART:]

    def columns(x: np.ndarray) -> np.ndarray:
        rest = [np.fmax.reduce(x[:, others], axis=1)[:, None]] if others.size else []
        return np.concatenate([x[:, apart], *rest], axis=1)

    made = []
    for x in emulated:
        made.append(columns(x))
        tell(f"{sum(map(len, made))} replicates of R-hat max are made")
    replicates = np.concatenate(made)
    (known,) = columns(observed[None])
    return _benchmark(
        float(np.fmax.reduce(observed)),
        np.fmax.reduce(replicates, axis=1),
        _limit(known, replicates),
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
        count, mean, m2, diff_sq: sums of the energy per batch, of
        `pcv.sampling.accumulate.energy_sums`.

    Returns:
        NaN where the energy never varies.

    >>> x = np.random.default_rng(1).normal(size=(1, 4, 500, 1))
    >>> steps = np.diff(x, axis=2, prepend=x[:, :, :1])[..., 0] ** 2
    >>> efmi(np.ones((1, 4, 500)), x[..., 0], np.zeros((1, 4, 500)), steps).round()
    array([2.])
    """
    _, _, spread = merge_moments(count, mean, m2, axis=2)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.nansum(diff_sq, axis=(1, 2)) / spread.sum(axis=1)
