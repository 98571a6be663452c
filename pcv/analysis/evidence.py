r"""Evidence and cumulative cross-validation, by estimates along random orders of units. No JAX.

With units taken up in a random order, :math:`\log p(y_1, \dots, y_n)` is a sum of log predictive
densities of each unit given those before it. Its mean over orders separates (Fong and Holmes 2020,
propositions 2 and 3)

.. math::
    \log p(y) &= S_\mathrm{PCV}(P) + S_\mathrm{CCV}(P), \qquad
    S_\mathrm{CCV}(P) = \sum_{p=1}^P S_\mathrm{CV}(p) \\
    S_\mathrm{CV}(p) &= \mathrm E \, \frac1p \sum_{j \in \mathrm{test}}
        \log p(y_j \mid y_\mathrm{train}), \qquad
    S_\mathrm{CCV}(P) = \mathrm E \log p(y_\mathrm{test} \mid y_\mathrm{train}), \qquad
    S_\mathrm{PCV}(P) = \mathrm E \log p(y_\mathrm{train})

where p and P units are left out: the evidence is leave-p-out cross-validation cumulated over all p,
of which small training sets are the part that the prior decides.

Every order is followed twice, by independent sets of particles, so that their differences are Monte
Carlo error, and what remains of the spread over orders is that of the orders. As estimates of p(y)
are unbiased, those of log p(y) are too low, by half their variance; this is made up for.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int


class Evidence(NamedTuple):
    """An estimate of log p(y) (nats)."""

    value: float
    mcse: float


class Curve(NamedTuple):
    """Means over orders (nats), at several sizes of the training set."""

    value: Float[np.ndarray, " size"]
    se: Float[np.ndarray, " size"]
    """from the choice of orders, which more of them would shrink"""
    mcse: Float[np.ndarray, " size"]
    each: Float[np.ndarray, "order size"]
    """of which it is the mean"""


def evidence(log_evidence: Float[np.ndarray, "*estimate"]) -> Evidence:
    """Log of the mean of unbiased estimates of p(y), with its MCSE by the delta method.

    >>> rng = np.random.default_rng(1)
    >>> found = evidence(rng.normal(-100 - 0.3**2 / 2, 0.3, (64, 2)))
    >>> abs(found.value + 100) < 3 * found.mcse < 0.1
    True
    """
    highest = log_evidence.max()
    share = np.exp(log_evidence - highest).ravel()
    mean, sd = share.mean(), share.std(ddof=1)
    return Evidence(float(np.log(mean) + highest), float(sd / mean / np.sqrt(share.size)))


def gained(
    log_evidence: Float[np.ndarray, "order set knot"],
    first: Int[np.ndarray, " size"],
    last: Int[np.ndarray, " size"],
) -> Curve:
    r"""Means of :math:`\log p(y_{a+1}, \dots, y_b \mid y_1, \dots, y_a)` over orders.

    Args:
        log_evidence: of the first 0, 1, …, n units of each order, by each of two sets.
        first, last: a and b; a = n - P and b = n for S_CCV(P), a = 0 and b = n - P for S_PCV(P).
    """
    begin, end = log_evidence[:, :, first], log_evidence[:, :, last]
    return over_orders(end - begin, (end.var(1, ddof=1) - begin.var(1, ddof=1)) / 2)


def over_orders(
    values: Float[np.ndarray, "order set size"],
    too_low: Float[np.ndarray, "order size"] | float = 0.0,
) -> Curve:
    """The mean over orders of what two sets estimate.

    Args:
        values: the estimates (nats).
        too_low: by how much they are too low on average, as each order tells.
    """
    shift = np.broadcast_to(too_low, values[:, 0].shape)
    noise = values.var(1, ddof=1).mean(0) / values.shape[1] + shift.var(0, ddof=1)
    return _curve(values.mean(1) + shift.mean(0), noise / len(values))


def minus(one: Curve, other: Curve) -> Curve:
    """The difference of two models, over the same orders."""
    return _curve(one.each - other.each, one.mcse**2 + other.mcse**2)


def _curve(each: Float[np.ndarray, "order size"], noise: Float[np.ndarray, " size"]) -> Curve:
    """With the variance of the mean over orders that is not Monte Carlo noise."""
    rest = np.maximum(each.var(0, ddof=1) / len(each) - noise, 0.0)
    return Curve(each.mean(0), np.sqrt(rest), np.sqrt(noise), each)
