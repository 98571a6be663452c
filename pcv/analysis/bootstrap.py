r"""The Bayesian bootstrap of a sum over terms: probabilities and intervals. No JAX.

The sum of K terms d is taken as K times a weighted mean with random weights,
:math:`\Delta^* = K \sum_j w_j d_j` with :math:`w \sim \mathrm{Dirichlet}(1, …, 1)` (Rubin 1981,
*Annals of Statistics* 9, 130–134). It follows the shape of the terms, where a normal approximation
takes their variance alone. Its distribution is computed, not drawn, so that it has no Monte Carlo
error. Its spread is too small with few terms, and is widened.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy.optimize import brentq
from scipy.special import ndtri, stdtrit

LEVEL = 0.9
"""probability of the interval"""
STEP = 1 / 16
"""of the integral in `weighted_mean_cdf`"""
FAR = 12.0
"""standard deviations from the mean beyond which a weighted mean of terms never is"""
MIN_TERMS = 50
"""terms below which k-hat is not estimated: fewer than ten are in a tail"""


class Bootstrapped(NamedTuple):
    """A sum by the Bayesian bootstrap."""

    p_positive: float
    """probability that it is above 0"""
    low: float
    high: float
    """ends of the interval of probability `LEVEL`"""


UNKNOWN = Bootstrapped(np.nan, np.nan, np.nan)


def weighted_mean_cdf(terms: Float[np.ndarray, " term"], x: float) -> float:
    r"""Probability that a Dirichlet(1, …, 1) mean of K terms is at most x.

    .. math:: \Pr\Big(\sum_j w_j d_j \le x\Big) = \frac12 - \frac1\pi \int_0^\infty
              \frac{\sin \sum_j \arctan(u c_j)}{u \prod_j (1 + u^2 c_j^2)^{1/2}} \, du, \qquad
              c_j = d_j - x

    as the weights are independent exponential numbers over their sum: the sign of
    :math:`\sum_j E_j c_j` decides. (Imhof 1961, *Biometrika* 48, 419–426.) The integral is a
    trapezoidal sum over v, :math:`u = e^{v - e^{-v}}`, whose error is below 1e-8.

    >>> round(weighted_mean_cdf(np.array([0.0, 1.0]), 0.3), 6)  # uniform between two terms
    0.3
    """
    if x <= terms.min() or x >= terms.max():
        return float(x >= terms.max())
    deviation = terms - x
    deviation = deviation / np.sqrt(deviation @ deviation)
    total = 0.0
    for start in np.arange(-4.0, 40.0, 1.0):
        v = np.arange(start, start + 1.0, STEP)
        u = np.exp(v - np.exp(-v))
        product = u[:, None] * deviation
        decay = np.exp(-0.5 * np.log1p(product**2).sum(axis=1))
        slope = 1 + np.exp(-v)  # du / dv over u
        total += STEP * float(np.sin(np.arctan(product).sum(axis=1)) @ (slope * decay))
        if decay[-1] < 1e-12:
            break
    return float(np.clip(0.5 - total / np.pi, 0.0, 1.0))


def bootstrap(terms: Float[np.ndarray, " term"], df: float, ratio: float = 1.0) -> Bootstrapped:
    r"""Probability that a sum of K terms is above 0, and its 90% interval.

    .. math:: \Delta_\alpha = \Delta + \rho \sqrt{\frac{K + 1}{K - 1}} \,
              \frac{t_{\nu, \alpha}}{z_\alpha} \, (\Delta^*_\alpha - \Delta)

    with the quantiles :math:`\Delta^*_\alpha` of the Bayesian bootstrap. The root gives it the
    standard error of a mean (its variance has K + 1 in place of K − 1), and the ratio of quantiles
    of Student's t and the normal distribution allows for estimating that error, as the expanded
    percentile interval does (Hesterberg 2015, *The American Statistician* 69, 371–386). The
    probability is that of the α for which :math:`\Delta_\alpha` is 0. docs/limits.md has what both
    cover.

    Args:
        terms: the summands.
        df: ν, degrees of freedom of the standard error.
        ratio: ρ, of the standard error to that of independent terms.

    Returns:
        NaN where terms are fewer than two, not finite, or all the same.

    >>> found = bootstrap(np.random.default_rng(1).normal(0.5, 1.0, 30), 29.0)
    >>> [round(x, 2) for x in found]
    [0.99, 4.7, 20.26]
    """
    count = terms.size
    if count < 2 or not np.isfinite(terms).all() or not np.isfinite(ratio) or np.ptp(terms) == 0:
        return UNKNOWN
    mean, stretch = terms.mean(), ratio * np.sqrt((count + 1) / (count - 1))
    spread = terms.std() / np.sqrt(count + 1)
    low, high = np.clip(mean + FAR * spread * np.array([-1, 1]), terms.min(), terms.max()).tolist()
    near = 1e-9 * (high - low)

    def widened(x: float, alpha: float) -> float:
        """Δ_α / K, from the weighted mean x of probability alpha."""
        alpha = np.clip(alpha, 1e-12, 1 - 1e-12)
        alpha = alpha if abs(alpha - 0.5) > 1e-6 else 0.5 + 1e-6
        return mean + stretch * stdtrit(df, alpha) / ndtri(alpha) * (x - mean)

    def end(alpha: float) -> float:
        x = brentq(lambda x: weighted_mean_cdf(terms, x) - alpha, low, high, xtol=near)
        return float(count * widened(x, alpha))

    def zero(x: float) -> float:
        return widened(x, weighted_mean_cdf(terms, x))

    if zero(low) >= 0:
        p_positive = 1.0
    elif zero(high) <= 0:
        p_positive = 0.0
    else:
        p_positive = 1 - weighted_mean_cdf(terms, brentq(zero, low, high, xtol=near))
    return Bootstrapped(p_positive, end((1 - LEVEL) / 2), end((1 + LEVEL) / 2))


def normal_interval(value: float, error: float, df: float) -> tuple[float, float]:
    """Ends of the interval by Student's t."""
    half = float(stdtrit(df, (1 + LEVEL) / 2)) * error
    return value - half, value + half


def tail_khat(terms: Float[np.ndarray, " term"]) -> float:
    """Pareto k-hat of the heavier tail of the terms; NaN with fewer than `MIN_TERMS`, or where all
    of a tail are the same.

    From .5 on the variance of the terms may be infinite, and above .7 single ones decide their sum,
    so that standard error and probability cannot be trusted. (Vehtari et al. 2024, *Journal of
    Machine Learning Research* 25, 72.)

    >>> tail_khat(np.random.default_rng(1).normal(size=200)) < 0.5
    True
    """
    if terms.size < MIN_TERMS or not np.isfinite(terms).all() or np.ptp(terms) == 0:
        return np.nan
    from arviz_stats.base import array_stats

    try:
        with np.errstate(all="ignore"):
            khat = array_stats.pareto_khat(terms[None], chain_axis=0, draw_axis=1, r_eff=1.0)
    except ValueError:  # all of a tail are the same
        return np.nan
    return float(np.asarray(khat))
