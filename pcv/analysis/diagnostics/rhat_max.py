"""R-hat max, the largest R-hat of all folds, and its distribution if all chains had mixed."""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from pcv.analysis.diagnostics.convergence import (
    nested_rhat,
    nested_rhat_of_moments,
    rhat,
    rhat_of_moments,
)
from pcv.analysis.diagnostics.log_sums import LogSums, coarsen, merge, merge_moments
from pcv.base.monitor import SILENT, Monitor

BENCHMARK_LEVEL = 0.01
"""share of benchmark replicates at or above R-hat max below which chains have not mixed"""
BLOCKS = 5
"""blocks per chain in the benchmark of R-hat max"""
FEW_CHAINS, ALLOWED = 32, 0.25
"""chains beyond which the benchmark of R-hat max allows for more variance between chains, in the
end by this share: their means tell even a correlation of .1 between blocks from independence"""
EMULATED = 2**16
"""blocks drawn at a time, to bound memory"""
KEPT_APART = 1000
"""number of folds with the largest R-hat, any of which the limit may exclude"""


class Benchmark(NamedTuple):
    """R-hat max and its distribution if all chains had mixed."""

    observed: float
    """the largest R-hat of all folds"""
    replicates: Float[np.ndarray, " replicate"]
    """the largest R-hat of all folds, for emulated chains that have mixed"""
    share_above: float
    """share of the replicates at or above the observed value"""
    limit: float
    """the R-hat above which a fold stands out"""
    nested: "Benchmark | None" = None
    """that of nested R-hat max, where superchains are judged as well"""


def mixing_benchmark(
    rng: np.random.Generator, sums: LogSums, superchains: int, monitor: Monitor = SILENT
) -> Benchmark:
    """`rhat_max_benchmark`, with superchains beside `nested_benchmark`.

    `nested_benchmark` alone where chains have a single batch. R-hat sees faults that do not follow
    starting points, such as one bad chain, but its benchmark needs blocks.
    """
    nested = nested_benchmark(rng, sums, superchains, monitor=monitor) if superchains else None
    if nested and (sums.count > 0).sum(axis=2).max() <= 1:
        return nested
    return rhat_max_benchmark(rng, sums, monitor=monitor)._replace(nested=nested)


def nested_alone(benchmark: Benchmark, superchains: int) -> int:
    """The number of superchains if `nested_rhat` alone judges the chains of a run, else 0.

    Args:
        benchmark: of `mixing_benchmark`, with these superchains.
        superchains: their number; 0: none.
    """
    return 0 if benchmark.nested else superchains


def nested_benchmark(
    rng: np.random.Generator,
    sums: LogSums,
    superchains: int,
    replicates: int = 500,
    monitor: Monitor = SILENT,
) -> Benchmark:
    """The largest nested R-hat of all folds, and its distribution if all chains had mixed.

    If they have, starting points do not matter: for each replicate, the chains of every fold are
    randomly reassigned to its superchains. This permutation test is exact for any number of draws
    if chains from one starting point are independent of each other.

    Args:
        rng: random generator for the replicates.
        sums: joint sums, dims (fold, chain, batch).
        superchains: number of superchains.
        replicates: number of replicates.
        monitor: takes messages.

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
            yield nested_rhat_of_moments(count, mean, m2, superchains)[None]

    return _from_replicates(nested_rhat(sums, superchains), emulated(), monitor)


def rhat_max_benchmark(
    rng: np.random.Generator,
    sums: LogSums,
    blocks: int = BLOCKS,
    replicates: int = 500,
    monitor: Monitor = SILENT,
) -> Benchmark:
    r"""The largest R-hat of all folds, and its distribution if all chains had mixed.

    Each chain is split into D contiguous blocks. For each replicate, every fold's chains are
    emulated by D blocks each, drawn with replacement from all L·D blocks of that fold, and the
    largest R-hat is taken. PCV §4.2, except that PCV's algorithm 2 keeps a block's position and
    redraws only its chain, which makes B too small by (L − 1)/L and flags healthy chains too
    often.

    Autocorrelation beyond the length of a block is not emulated; with more than 32 chains the
    emulated variance between chains is raised, in the end by a quarter, to allow for some.

    Args:
        rng: random generator for the replicates.
        sums: joint sums, dims (fold, chain, batch), or their `coarsen` into as many blocks.
        blocks: blocks per chain (D); folds with fewer batches use one block per batch.
        replicates: number of replicates.
        monitor: takes messages.

    Returns:
        The observed value, the replicates, and the share at or above it. The limit for a fold is
        the 99% quantile of the replicates of those folds that stay below it, found by excluding
        the others iteratively, so that one fold with a large R-hat, whose emulated chains vary a
        lot, does not mask the rest. Folds with an undefined R-hat are ignored; if all are, the
        result is NaN.

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

    return _from_replicates(rhat(sums), emulated(), monitor)


def _emulated(
    rng: np.random.Generator,
    count: Float[np.ndarray, "fold chain block"],
    mean: Float[np.ndarray, "fold chain block"],
    m2: Float[np.ndarray, "fold chain block"],
    replicates: int,
) -> Float[np.ndarray, "replicate fold"]:
    """R-hat of folds whose chains consist of blocks resampled from the whole fold."""
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
    count, mean, m2 = (x.reshape(-1, chains) for x in merge_moments(count, mean, m2, axis=0))
    if chains > FEW_CHAINS:
        allowed = 1 + ALLOWED * (1 - FEW_CHAINS / chains)
        mean = np.sqrt(allowed) * (mean - mean.mean(axis=1, keepdims=True))
    return rhat_of_moments(count, mean, m2).reshape(-1, folds)


def _from_replicates(
    observed: Float[np.ndarray, " fold"],
    emulated: Iterable[Float[np.ndarray, "replicate fold"]],
    monitor: Monitor,
) -> Benchmark:
    """The benchmark, from the R-hats of all folds and an iterator over chunks of replicates.

    To bound memory, only the folds with the `KEPT_APART` largest R-hats are kept individually, as
    candidates for exclusion from the limit; the others contribute their maximum.
    """
    order = np.argsort(-observed)
    apart, others = order[:KEPT_APART], order[KEPT_APART:]

    def columns(x: np.ndarray) -> np.ndarray:
        rest = [np.fmax.reduce(x[:, others], axis=1)[:, None]] if others.size else []
        return np.concatenate([x[:, apart], *rest], axis=1)

    made = []
    for x in emulated:
        made.append(columns(x))
        monitor.log(f"R-hat max benchmark: {sum(map(len, made))} replicates")
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
    kept = ~np.isnan(observed)
    if not kept.any():
        return float("nan")
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
        Maxima over models, and the share of replicates at or above the observed one.

    >>> a = Benchmark(1.2, np.array([1.1, 1.2]), 0.5, 1.2)
    >>> b = Benchmark(1.1, np.array([1.3, 1.0]), 0.5, 1.3)
    >>> benchmark_of_models([a, b])[:4]
    (1.2, array([1.3, 1.2]), 1.0, 1.3)
    """
    return _benchmark(
        float(np.fmax.reduce([x.observed for x in benchmarks])),
        np.fmax.reduce([x.replicates for x in benchmarks]),
        float(np.fmax.reduce([x.limit for x in benchmarks])),
    )
