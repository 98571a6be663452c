"""Sums of a log score over batches of draws, and merging them."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float


class LogSums(NamedTuple):
    """Sums of a log score s (nats) over batches of draws, joint or for every slot.

    Batches beyond the end of a fold have count 0, and their other values are ignored. Padded
    slots are NaN in every batch. The slots of a fold share their draws, so `count` may omit the
    slot axis.

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


def batch_sums(draws: Float[np.ndarray, "fold chain draw *slot"], batch_size: int) -> LogSums:
    """Sum stored draws by batch, as the sampler does while it runs.

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


def third_moments(
    draws: Float[np.ndarray, "fold chain draw"], batch_size: int
) -> Float[np.ndarray, "fold chain batch"]:
    """Sums of cubed deviations of s from its batch mean, to go with `batch_sums`.

    >>> third_moments(np.array([[[0.0, 0.0, 3.0]]]), batch_size=3)
    array([[[6.]]])
    """
    s = draws.astype(float).reshape(*draws.shape[:2], -1, batch_size)
    with np.errstate(invalid="ignore"):
        return ((s - s.mean(axis=3, keepdims=True)) ** 3).sum(axis=3)


def of_slots(count: np.ndarray, x: np.ndarray) -> np.ndarray:
    """`count` with a trailing slot axis if x has one: slots share their draws."""
    return count[..., None] if count.ndim < x.ndim else count


def merge_moments(
    count: np.ndarray, mean: np.ndarray, m2: np.ndarray, axis: int | tuple[int, ...]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    n = of_slots(count, mean)
    present = n > 0
    with np.errstate(invalid="ignore", divide="ignore"):
        # Centred on one of the means, so that equal means (of a stuck chain) merge exactly.
        center = np.where(present, mean, -np.inf).max(axis=axis, keepdims=True)
        offset = np.where(present, n * (mean - center), 0).sum(axis=axis, keepdims=True)
        merged = center + offset / n.sum(axis=axis, keepdims=True)
        spread = np.where(present, m2 + n * (mean - merged) ** 2, 0).sum(axis=axis)
    return count.sum(axis=axis), merged.squeeze(axis), spread


def merge(sums: LogSums, axis: int | tuple[int, ...]) -> LogSums:
    r"""Merge sums along axes.

    .. math:: \bar s = \sum_h n_h \bar s_h / n, \qquad
              M_2 = \sum_h M_{2,h} + \sum_h n_h (\bar s_h - \bar s)^2, \qquad n = \sum_h n_h

    and log sums by log-sum-exp. (Chan, Golub, LeVeque 1983, for any number of parts.)

    Args:
        sums: dims (fold, chain, batch[, slot]).
        axis: 1 (chains), 2 (batches) or (1, 2).

    Returns:
        Sums without these axes; NaN where there are no draws.

    >>> sums = batch_sums(np.log([[[1.0, 3.0, 2.0, 2.0]]]), batch_size=2)
    >>> merge(sums, axis=(1, 2)).count
    array([4.])
    """
    count, mean, m2 = merge_moments(sums.count, sums.mean, sums.m2, axis)
    present = of_slots(sums.count, sums.mean) > 0
    log_sum, log_sum_sq = (
        log_sum_exp(np.where(present, x, -np.inf), axis) for x in (sums.log_sum, sums.log_sum_sq)
    )
    return LogSums(count, mean, m2, log_sum, log_sum_sq)


def log_sum_exp(x: np.ndarray, axis: int | tuple[int, ...]) -> np.ndarray:
    """log Σ exp(x), at least twice as fast as `np.logaddexp.reduce` and SciPy's `logsumexp`."""
    largest = x.max(axis=axis, keepdims=True)
    largest[~np.isfinite(largest)] = 0
    with np.errstate(divide="ignore", over="ignore"):
        return np.log(np.exp(x - largest).sum(axis=axis)) + largest.squeeze(axis)


def coarsen(sums: LogSums, blocks: int) -> LogSums:
    """Merge each fold's batches into contiguous blocks, as equal in length as possible.

    Args:
        sums: dims (fold, chain, batch[, slot]).
        blocks: number of blocks (D). A fold with fewer batches keeps them; the rest are empty.

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


def first_batches(sums: LogSums, number: int) -> LogSums:
    """Sums of the first `number` batches of every chain."""
    return LogSums(*(x[:, :, :number] for x in sums))
