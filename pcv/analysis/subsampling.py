r"""Sums over all terms from the exact values of a few: the difference estimator. No JAX.

Of n terms π (units, or groups of units left out together), every one has a cheap *surrogate* π̃,
and the m of a random subsample are known exactly (Magnusson, Andersen, Jonasson, Vehtari 2020). The
surrogates' sum is corrected by what the subsample tells of their errors, so that the estimate is
unbiased however poor the surrogate; a good one only makes it precise. Differences between models
are estimated in the same way, from differences of terms and of surrogates.

Three errors of such an estimate are kept apart: its SE over terms (limited data), the SE of
subsampling (limited m), and the MCSE (limited draws). Where all terms are from the same draws, the
estimate is, given these, unbiased for the sum of all terms by them: the MCSE is that of this sum,
and what the draws add to the spread of errors between terms is part of the SE of subsampling. The
draws of brute-force folds are their own: their MCSEs are expanded like the terms.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int


class Subsample(NamedTuple):
    """The terms that are computed exactly."""

    term: Int[np.ndarray, " chosen"]
    """their indices"""
    stratum: Int[np.ndarray, " chosen"]
    """the stratum of each; 0 where there is one"""
    sizes: Int[np.ndarray, " stratum"]
    """number of terms of each stratum, chosen or not"""

    @property
    def weight(self) -> Float[np.ndarray, " chosen"]:
        """The number of terms that each chosen one stands for."""
        return (self.sizes / np.bincount(self.stratum, minlength=self.sizes.size))[self.stratum]


class Sum(NamedTuple):
    """The sum of all terms, and its variability, each with the SE of subsampling."""

    elpd: float
    """sum of the terms (nats)"""
    elpd_subsampling_se: float
    se: float
    """SE over terms (nats), as `pcv.analysis.standard_errors.standard_error`; NaN where the
    estimate of its square is negative: the surrogate is too poor, or m too small"""
    se_subsampling_se: float


def strata_of(
    surrogate: Float[np.ndarray, " term"], number: int
) -> tuple[Int[np.ndarray, " term"], Float[np.ndarray, " stratum"]]:
    """Strata between quantiles of the surrogate, and the standard deviation within each.

    >>> strata, spread = strata_of(np.array([-9.0, -1.0, -5.0, -1.1]), 2)
    >>> strata, spread.round(2)
    (array([0, 1, 0, 1]), array([2.  , 0.05]))
    """
    rank = np.empty(surrogate.size, int)
    rank[np.argsort(surrogate, kind="stable")] = np.arange(surrogate.size)
    strata = rank * number // surrogate.size
    return strata, np.array([surrogate[strata == h].std() for h in range(number)])


def difference_estimator(
    chosen: Subsample,
    exact: Float[np.ndarray, " chosen"],
    surrogate: Float[np.ndarray, " term"] | None = None,
) -> Sum:
    r"""The sum of all terms and its SE, by the difference estimator.

    .. math::
        \widehat{\mathrm{elpd}} &= \sum_i \tilde\pi_i + \sum_h \frac{n_h}{m_h}
            \sum_{j \in h} e_j, \qquad e_j = \pi_j - \tilde\pi_j \\
        V(\widehat{\mathrm{elpd}}) &= \sum_h n_h^2 \Bigl(1 - \frac{m_h}{n_h}\Bigr)
            \frac{s_{e,h}^2}{m_h} \\
        \hat\sigma^2 &= \sum_i \tilde\pi_i^2 + \sum_h \frac{n_h}{m_h} \sum_{j \in h}
            (\pi_j^2 - \tilde\pi_j^2) - \frac1n \bigl(\widehat{\mathrm{elpd}}^2 -
            V(\widehat{\mathrm{elpd}})\bigr), \qquad
        \mathrm{SE} = \sqrt{\tfrac{n}{n-1} \hat\sigma^2}

    over strata h; a simple random sample has one. Equations 7 to 9 of the paper, whose equation 9
    has the sign of 1/n wrong; its brackets add up to the ones here. The SE of the SE is that of
    :math:`\hat\sigma^2` linearised in the two sums. Noise of the exact terms inflates the SE of
    subsampling, which is conservative.

    Args:
        chosen: the subsample.
        exact: the exact terms of the subsample (nats).
        surrogate: of all terms (nats); None: 0 everywhere, plain expansion of the subsample.

    Returns:
        The estimates. The SE of subsampling is NaN if a stratum has a single chosen term and
        others.

    >>> terms = np.random.default_rng(1).normal(-3, 1, 1000)
    >>> near = terms + 0.01 * np.random.default_rng(2).normal(size=1000)
    >>> one = np.zeros(1000, int)
    >>> first = np.random.default_rng(3).permutation(1000)[:50]
    >>> some = Subsample(first, one[first], np.array([1000]))
    >>> found = difference_estimator(some, terms[some.term], near)
    >>> abs(found.elpd - terms.sum()) < 3 * found.elpd_subsampling_se < 6
    True
    >>> abs(found.se - np.sqrt(1000) * terms.std(ddof=1)) < 3 * found.se_subsampling_se < 0.3
    True
    """
    n = int(chosen.sizes.sum())
    center = float(np.mean(exact, dtype=float))  # changes no estimate; squares lose no digits
    term = exact.astype(float) - center
    base = (np.zeros(n) if surrogate is None else surrogate.astype(float)) - center
    there = base[chosen.term]
    error, of_squares = term - there, term**2 - there**2
    off = base.sum() + chosen.weight @ error
    elpd = n * center + off
    variance = _variance(chosen, error)
    squared = (base @ base) + chosen.weight @ of_squares - (off**2 - variance) / n
    spread = np.sqrt(squared * n / (n - 1)) if squared >= 0 and n > 1 else np.nan
    linear = _variance(chosen, of_squares - 2 * off / n * error)
    with np.errstate(divide="ignore", invalid="ignore"):
        of_spread = np.sqrt(linear) * n / (n - 1) / (2 * spread) if n > 1 else np.nan
    return Sum(float(elpd), float(np.sqrt(variance)), float(spread), float(of_spread))


def _variance(chosen: Subsample, x: Float[np.ndarray, " chosen"]) -> float:
    """Variance over subsamples of the expansion of x to all terms."""
    number = np.bincount(chosen.stratum, minlength=chosen.sizes.size)
    with np.errstate(divide="ignore", invalid="ignore"):
        mean = np.bincount(chosen.stratum, x, chosen.sizes.size) / number
        apart = np.bincount(chosen.stratum, (x - mean[chosen.stratum]) ** 2, chosen.sizes.size)
        each = chosen.sizes * (chosen.sizes - number) * apart / (number - 1) / number
    return float(np.where(chosen.sizes == number, 0.0, each).sum())


def hansen_hurwitz(
    exact: Float[np.ndarray, " drawn"], probability: Float[np.ndarray, " drawn"], num_terms: int
) -> Sum:
    r"""The same from terms drawn with replacement, in proportion to their surrogates.

    .. math:: \widehat{\mathrm{elpd}} = \frac1m \sum_j \frac{\pi_j}{p_j}, \qquad
              V = \frac{1}{m(m-1)} \sum_j \Bigl(\frac{\pi_j}{p_j} -
              \widehat{\mathrm{elpd}}\Bigr)^2

    The estimator of Magnusson et al. (2019), for comparison: every model, every difference and
    every SE would need a subsample of its own.

    Args:
        exact: the terms drawn (nats), repetitions included.
        probability: of drawing each of them.
        num_terms: number of all terms.
    """
    m, n = exact.size, num_terms
    each, squares = exact / probability, exact**2 / probability
    elpd, variance = each.mean(), each.var(ddof=1) / m
    squared = squares.mean() - (elpd**2 - variance) / n
    spread = np.sqrt(squared * n / (n - 1)) if squared >= 0 else np.nan
    linear = (squares - 2 * elpd / n * each).var(ddof=1) / m
    of_spread = np.sqrt(linear) * n / (n - 1) / (2 * spread)
    return Sum(float(elpd), float(np.sqrt(variance)), float(spread), float(of_spread))
