"""Tail diagnostics for the mean of exp(s): Pareto k-hat and hidden variance."""

from collections.abc import Iterator

import numpy as np
import xarray as xr
from jaxtyping import Float, Int

from pcv.analysis.diagnostics.log_sums import LogSums, merge


def tail_size(num_draws: int) -> int:
    r"""Number M of draws in the tail to which k-hat is fitted.

    .. math:: M = \lfloor \min(S / 5, \; 3 \sqrt S) \rfloor

    `pareto_khat_from_tail` needs the M + 1 largest draws. (Vehtari et al. 2024, appendix H,
    rounded down as ArviZ does.)

    Args:
        num_draws: draws of a fold over all chains (S).

    >>> tail_size(1600)
    120
    """
    return int(min(num_draws / 5, 3 * num_draws**0.5))


PART = 2**19
"""draws over all folds held in memory at a time"""


def largest(
    top: Float[np.ndarray, "fold tail"], draws: Float[np.ndarray, "fold chain draw"]
) -> Float[np.ndarray, "fold tail"]:
    """`top` updated with further draws: each fold's largest values so far, unordered."""
    seen = np.concatenate([top, draws.reshape(len(draws), -1)], axis=1)
    return np.partition(seen, -top.shape[1], axis=1)[:, -top.shape[1] :]


def pareto_khat(
    draws: Float[np.ndarray, "fold chain draw"] | Float[xr.DataArray, "fold chain draw"],
    num_draws: Int[np.ndarray, " fold"] | None = None,
) -> Float[np.ndarray, " fold"]:
    r"""Pareto k-hat: shape of the right tail of exp(s), and so how reliable its mean is.

    A generalised Pareto distribution is fitted to the `tail_size` largest values of exp(s): its
    shape k is the inverse of the number of finite moments. Above `good_k`, few draws dominate the
    mean: `elpd` is biased downwards and `mcse` too small, whatever R-hat and ESS say.
    (Vehtari, Simpson, Gelman, Yao, Gabry 2024, *Pareto smoothed importance sampling*.)

    Args:
        draws: log scores s (nats), NaN after the end of a fold; read in chunks from a store.
        num_draws: draws of each fold over all chains, where folds stopped early.

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
    for part in _parts(draws):
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
        num_draws: total number of draws (S), of each fold or the same for all.

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
        # The fit depends only on the tail and the number of draws, so the others may be -inf.
        scores = np.concatenate([np.full(size - len(tail), -np.inf), tail])
        with np.errstate(all="ignore"):
            khat[k] = array_stats.psislw(-scores)[1]
    return khat


def hidden_variance(
    sums: LogSums, m3: Float[np.ndarray, "fold chain batch"]
) -> Float[np.ndarray, " fold"]:
    r"""Variance of exp(s) implied by the bulk of s, over the sample variance.

    .. math:: \frac{\exp(v + \gamma v^{3/2}) - 1}
              {LN \sum_{l,t} e^{2 s_{lt}} / (\sum_{l,t} e^{s_{lt}})^2 - 1}

    with the variance v and the skewness γ of s: the first terms of
    :math:`\log \mathrm{E} e^{2s} - 2 \log \mathrm{E} e^{s}` in cumulants. If the draws happen to
    miss the largest densities, `elpd`, `mcse` and k-hat are all too small, but the variance of s
    hardly changes: the ratio is then far above 1.

    Args:
        sums: joint sums, dims (fold, chain, batch).
        m3: of `third_moments`, for the same batches.

    Returns:
        Near 1 where s is normal with variance below 1; near 0 with a long left tail.

    >>> from pcv.analysis.diagnostics import batch_sums, third_moments
    >>> draws = np.random.default_rng(1).normal(0, 0.5, (1, 4, 1000))
    >>> hidden_variance(batch_sums(draws, 50), third_moments(draws, 50)).round(1)
    array([1.])
    """
    whole = merge(sums, axis=(1, 2))
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        apart = sums.mean - whole.mean[:, None, None]
        cubes = m3 + 3 * apart * sums.m2 + sums.count * apart**3
        skew = np.where(sums.count > 0, cubes, 0).sum(axis=(1, 2)) / whole.count
        expected = np.expm1(whole.m2 / whole.count + skew)
        seen = whole.count * np.exp(whole.log_sum_sq - 2 * whole.log_sum) - 1
        return np.maximum(expected, 0) / seen


def _parts(draws: np.ndarray | xr.DataArray) -> Iterator[np.ndarray]:
    """Chunks of draws of all chains, loaded into memory."""
    folds, chains, longest = draws.shape
    step = max(PART // (folds * chains), 1)
    for start in range(0, longest, step):
        yield np.asarray(draws[:, :, start : start + step])


def good_k(num_draws: int | np.ndarray) -> float | np.ndarray:
    r"""Largest k-hat for which the mean of S draws and its error are reliable.

    .. math:: \min(1 - 1 / \log_{10} S, \; 0.7)

    Vehtari et al. (2024), eq. 13.

    Args:
        num_draws: draws of a fold over all chains (S).

    >>> good_k(1600).round(3)
    np.float64(0.688)
    """
    with np.errstate(divide="ignore"):
        return np.minimum(1 - 1 / np.log10(num_draws), 0.7)
