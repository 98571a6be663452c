"""Convergence diagnostics: R-hat, nested R-hat, drift and E-FMI."""

import numpy as np
from jaxtyping import Bool, Float
from scipy.special import stdtr

from pcv.analysis.diagnostics.log_sums import LogSums, merge_moments, of_slots


def rhat_of_moments(count: np.ndarray, mean: np.ndarray, m2: np.ndarray) -> np.ndarray:
    """`rhat` from counts, means and M2 of each fold's chains, dims (fold, chain, ...)."""
    num_chains = mean.shape[1]
    with np.errstate(invalid="ignore", divide="ignore"):
        n = count.mean(axis=1)
        within = (m2 / (count - 1)).mean(axis=1)
        between = ((mean - mean.mean(axis=1, keepdims=True)) ** 2).sum(axis=1)
        return np.sqrt((n - 1) / n + np.divide(between, num_chains - 1) / within)


def rhat(sums: LogSums) -> Float[np.ndarray, " fold *slot"]:
    r"""Potential scale reduction factor of s over the chains of every fold: 1 when they agree.

    .. math:: \hat R_k = \sqrt{\frac{\frac{N-1}{N} W_k + \frac{1}{N} B_k}{W_k}}, \qquad
              W_k = \frac{1}{L} \sum_l \mathrm{var}_t(s_{klt}), \qquad
              B_k = \frac{N}{L-1} \sum_l (\bar s_{kl} - \bar s_k)^2

    PCV eq. 16: chains are not split, draws not rank-normalised.

    Args:
        sums: dims (fold, chain, batch[, slot]).

    Returns:
        inf where chains are constant but differ; NaN where s is the same constant in all chains,
        with a single chain or draw, in padded slots and where a score is not finite.

    >>> from pcv.analysis.diagnostics import batch_sums
    >>> draws = np.random.default_rng(1).normal(size=(1, 4, 100))
    >>> draws[0, 2] += 5
    >>> rhat(batch_sums(draws, batch_size=20)).round(1)
    array([2.9])
    """
    count, mean, m2 = merge_moments(*sums[:3], axis=2)
    return rhat_of_moments(of_slots(count, mean), mean, m2)


def nested_rhat(sums: LogSums, superchains: int) -> Float[np.ndarray, " fold *slot"]:
    r"""Nested R-hat of s over superchains, each of M chains with the same starting point.

    .. math:: \mathfrak{n}\hat R_k = \sqrt{1 + \mathfrak{n}\hat B / \mathfrak{n}\hat W}, \qquad
              \mathfrak{n}\hat B = \mathrm{var}_j(\bar s_{kj}), \qquad
              \mathfrak{n}\hat W = \mathrm{mean}_j \left[ \mathrm{var}_m(\bar s_{kjm})
              + \mathrm{mean}_m \mathrm{var}_t(s_{kjmt}) \right]

    over superchains j, their chains m and draws t. Variances over a single chain or draw count as
    0, so that one draw per chain is enough, or one chain per superchain. After convergence it is
    near :math:`\sqrt{1 + 1/M}` with one draw per chain, and closer to 1 with more. NRHAT eq. 5-8.

    Args:
        sums: dims (fold, chain, batch[, slot]); the chains of a superchain are adjacent.
        superchains: number of superchains, a divisor of the number of chains.

    Returns:
        inf where superchains differ but nothing varies within them; NaN with single chains of
        single draws, where s is constant, in padded slots and where a score is not finite.

    >>> from pcv.analysis.diagnostics import batch_sums
    >>> draws = np.random.default_rng(1).normal(size=(1, 64, 1))
    >>> nested_rhat(batch_sums(draws, batch_size=1), superchains=4).round(2)
    array([1.01])
    >>> draws[0, :16] += 3
    >>> nested_rhat(batch_sums(draws, batch_size=1), superchains=4).round(2)
    array([2.12])
    """
    count, mean, m2 = merge_moments(*sums[:3], axis=2)
    return nested_rhat_of_moments(of_slots(count, mean), mean, m2, superchains)


def nested_limit(sums: LogSums, superchains: int, tau: float) -> Float[np.ndarray, " fold *slot"]:
    r"""Largest acceptable nested R-hat of every fold.

    .. math:: \sqrt{1 + \frac{1}{M} \frac{\mathrm{mean}_j \mathrm{var}_m(\bar s_{kjm})}
              {\mathfrak{n}\hat W_k} + \tau}

    in the notation of `nested_rhat`. The second term is what superchains of M chains still differ
    by after forgetting their starting points: 1/M with a single draw per chain, but about
    :math:`1/(M\,\mathrm{ESS}_{(1)})` with :math:`\mathrm{ESS}_{(1)}` effective draws per chain.
    NRHAT corollaries 3.2 and 3.3, eq. 24.

    Args:
        sums, superchains: as in `nested_rhat`.
        tau: τ, variance between starting points as a share of that within superchains, such as
            `tolerated` of an ESS.

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
    return np.asarray(np.sqrt(1 + np.nan_to_num(kept) + tau))


def tolerated(ess: int | float) -> float:
    """τ of `nested_limit`: a fifth of the squared Monte Carlo error of independent draws, so
    that squared bias, which decays as the variance between starts does, is small beside it.
    NRHAT section 4.2: 1/10,000 for an ESS of 2,000.

    >>> tolerated(2000)
    0.0001
    """
    return 1 / (5 * ess)


def nested_rhat_of_moments(
    count: np.ndarray, mean: np.ndarray, m2: np.ndarray, superchains: int
) -> np.ndarray:
    """`nested_rhat` from counts, means and M2 of each fold's chains, dims (fold, chain, ...)."""
    between, _, within = _nested_variances(count, mean, m2, superchains)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(np.sqrt(1 + between / within))


def _nested_variances(
    count: np.ndarray, mean: np.ndarray, m2: np.ndarray, superchains: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Variance between superchains, between chains of a superchain, and within superchains."""

    def nested(x: np.ndarray) -> np.ndarray:
        return x.reshape(len(x), superchains, -1, *x.shape[2:])

    mean, per_chain = nested(mean), nested(np.broadcast_to(count, m2.shape))
    with np.errstate(invalid="ignore", divide="ignore"):
        over_draws = np.where(per_chain > 1, nested(m2) / (per_chain - 1), 0 * nested(m2))
        of_chains = mean.var(axis=2, ddof=int(mean.shape[2] > 1)).mean(axis=1)
        between = mean.mean(axis=2).var(axis=1, ddof=1)
    return between, of_chains, of_chains + over_draws.mean(axis=(1, 2))


def constant(sums: LogSums) -> Bool[np.ndarray, " fold *slot"]:
    """Whether s is the same at all draws of all chains, which are several: it does not depend on
    the parameters, and its mean is exact.

    >>> from pcv.analysis.diagnostics import batch_sums
    >>> constant(batch_sums(np.array([[[1.0, 1.0]] * 2, [[1.0, 1.0], [2.0, 2.0]]]), 1))
    array([ True, False])
    """
    there = of_slots(sums.count, sums.mean) > 0
    low = np.where(there, sums.mean, np.inf).min(axis=(1, 2))
    high = np.where(there, sums.mean, -np.inf).max(axis=(1, 2))
    still = np.where(there, sums.m2, 0.0) == 0
    return (low == high) & np.isfinite(high) & still.all(axis=(1, 2)) & (sums.mean.shape[1] > 1)


def drift(sums: LogSums) -> Float[np.ndarray, " fold *slot"]:
    r"""p-value for a difference between the means of s in the first and second halves of chains.

    .. math:: t = \frac{\bar s_2 - \bar s_1}{\hat\sigma \sqrt{1/B_1 + 1/B_2}}

    is Student's t with :math:`B_1 + B_2 - 2` degrees of freedom, where :math:`\bar s_1` and
    :math:`\bar s_2` are the means of the fold's batches in the first and in the second halves of
    its chains, and :math:`\hat\sigma` their standard deviation within halves. R-hat of unsplit
    chains cannot detect a trend that all chains share.

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
    """`nested_rhat` with superchains, else `rhat`."""
    return nested_rhat(sums, superchains) if superchains else rhat(sums)


def efmi(
    count: Float[np.ndarray, "fold chain batch"],
    mean: Float[np.ndarray, "fold chain batch"],
    m2: Float[np.ndarray, "fold chain batch"],
    diff_sq: Float[np.ndarray, "fold chain batch"],
) -> Float[np.ndarray, " fold"]:
    r"""Energy fraction of missing information of every fold, pooled over its chains.

    .. math:: \frac{\sum_{l,t} (E_{lt} - E_{l,t-1})^2}{\sum_{l,t} (E_{lt} - \bar E_l)^2}

    Near 1 or above where momentum resampling reaches all energies; small where it does not, so
    that heavy tails are explored slowly (Betancourt 2016).

    Args:
        count, mean, m2, diff_sq: sums of the energy per batch, from
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
