r"""When is a fold's answer in? Fixed-width stopping, looked at seldom. No JAX.

A fold ends at the first look at which its Monte Carlo error is below a tolerance ε and its chains
agree. Of the estimate only its error is looked at (but for `decide`, which asks whether a
difference is clear, and so exaggerates those that are just clear enough); the error is estimated
from the same draws, and a fold that stops at the first lucky small value is biased. So looks are
few: after `min_draws`, then each time the draws have grown by half. (Glynn and Whitt 1992: as
ε → 0, intervals of such a rule have their stated coverage; docs/stopping.md and
tests/test_stopping.py have the finite case.)
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float
from scipy.special import ndtri

from pcv.analysis.comparison import Comparison
from pcv.analysis.diagnostics import (
    LogSums,
    Sides,
    elpd,
    ess,
    mcse_of,
    mixing,
    nested_limit,
    two_sided,
)
from pcv.analysis.verdicts import MIN_ESS, heavy_tail

SETTLED = "settled"


class Rule(NamedTuple):
    """What ends a fold."""

    fold_mcse: Float[np.ndarray, " fold"]
    """largest MCSE of the fold's joint elpd (nats)"""
    rhat: float
    """largest R-hat of its chains"""
    superchains: int = 0
    """number of superchains, whose nested R-hat is taken; 0: there are none"""


def finished(
    sums: LogSums,
    rule: Rule,
    khat: Float[np.ndarray, " fold"] | None = None,
    hidden: Float[np.ndarray, " fold"] | None = None,
    inflation: float = 1.0,
    sides: Sides | None = None,
) -> Bool[np.ndarray, " fold"]:
    r"""Which folds may end: R-hat below its limit, the ESS that the diagnostics need, and

    .. math:: \mathrm{MCSE}_k \sqrt{\tfrac{B - 1}{B - 3}} \le \varepsilon_k

    where the factor, the standard deviation of Student's t, allows for an MCSE estimated from B
    batches alone; it is raised by the inflation. Of superchains, it is nested R-hat whose limit
    counts, `nested_limit`: with the limit L of R-hat, the variance between starts may be
    :math:`L^2 - 1`, and at most 1/50, that of a mean of as many draws as the ESS must be. An MCSE
    that is only a lower bound (`heavy_tail`) fulfils nothing.

    Args:
        sums: joint sums of the draws so far, dims (fold, chain, batch).
        rule: of all these folds.
        khat, hidden: as for `heavy_tail`; None: unknown, so that the sums alone tell.
        inflation: of `batch_inflation`, of all folds.
        sides: of their draws so far; None: a fold's own draws are all there is.

    >>> from pcv.analysis.diagnostics import batch_sums
    >>> draws = np.random.default_rng(1).normal(0, [[[0.1]], [[3.0]]], (2, 4, 100))
    >>> finished(batch_sums(draws, 20), Rule(np.full(2, 0.05), 1.05))
    array([ True, False])
    """
    rhat, limit = mixing(sums, rule.superchains), np.full(len(sums.mean), rule.rhat)
    if rule.superchains:
        limit = nested_limit(sums, rule.superchains, min(rule.rhat**2 - 1, 1 / MIN_ESS))
    batches = (sums.count > 0).sum(axis=(1, 2))
    unknown, estimate = np.full(len(rhat), np.nan), two_sided(sums, sides)
    heavy = heavy_tail(sums, unknown if khat is None else khat, hidden, estimate.carry)
    with np.errstate(invalid="ignore", divide="ignore"):
        error = mcse_of(estimate, inflation) * np.sqrt((batches - 1) / (batches - 3))
        enough = ess(sums) >= inflation * MIN_ESS
        return (error <= rule.fold_mcse) & (rhat <= limit) & enough & ~heavy


def tolerance(
    sums: LogSums, fold_mcse: float | None, share: float | None
) -> Float[np.ndarray, " fold"]:
    """The tolerance of each fold: one number for all, or `share_of_se` of a pilot.

    Args:
        sums: joint sums of the first look, of all folds.
        fold_mcse: the number (nats), or None.
        share: of the SE, where there is no number.
    """
    if fold_mcse is not None:
        return np.full(len(sums.mean), fold_mcse)
    assert share is not None
    return share_of_se(sums, share)


def share_of_se(sums: LogSums, share: float) -> Float[np.ndarray, " fold"]:
    r"""The tolerance of each of K folds with which the MCSE of their sum is a share of its SE:

    .. math:: \varepsilon = \mathrm{share} \cdot \mathrm{sd}_k(\hat\eta_k), \qquad
              \sqrt{K} \varepsilon = \mathrm{share} \cdot \mathrm{SE}

    Args:
        sums: joint sums of a pilot: the first look's draws.
        share: of the SE.
    """
    each = elpd(sums)
    return np.full(len(each), share * each[np.isfinite(each)].std(ddof=1))


class Needs(NamedTuple):
    """What a comparison still needs."""

    tolerance: Float[np.ndarray, " model"]
    """largest MCSE (nats) of each fold of a model; inf: no more draws are needed"""
    words: str


def needs(comparison: Comparison, mcse_over_se: float | None, probability: float | None) -> Needs:
    r"""How small must each fold's Monte Carlo error be for the comparison to be settled?

    The difference :math:`\Delta` of a model to the comparator is settled when its MCSE is at most

    .. math:: T = \max\left(r \cdot \mathrm{SE}, \;
              (|\Delta| - z_p \mathrm{SE}) / 2 \right)

    with the share r (`mcse_over_se`), or as soon as it is decided with probability p whatever two
    MCSEs do (`decide`). Where it is not, a fold of K needs an MCSE of at most
    :math:`T / \sqrt{2K}`, its equal share. A model without another one is held to its own SE.
    What is only a lower bound of the MCSE settles nothing.

    Args:
        comparison: of the joint scores of the draws so far.
        mcse_over_se: r, or None.
        probability: p, or None.

    Returns:
        Tolerances in the order of the comparison's models.
    """
    alone = len(comparison.models) == 1
    c = comparison
    diff, se, mcse_, bound = (
        (c.elpd, c.se, c.mcse, c.mcse_is_bound)
        if alone
        else (c.elpd_diff, c.dse, c.mcse_diff, c.mcse_diff_is_bound)
    )
    allowed = np.zeros(len(se))
    if mcse_over_se is not None:
        allowed = mcse_over_se * se
    if probability is not None and not alone:
        allowed = np.fmax(allowed, (np.abs(diff) - ndtri(probability) * se) / 2)
    comparator = c.models.index(c.reference)
    wide = ~(mcse_ <= allowed)
    wide[comparator] &= alone
    each = np.where(wide, allowed / np.sqrt((1 if alone else 2) * c.n_folds), np.inf)
    each[comparator] = each.min()

    def lacking(i: int) -> str:
        if not wide[i]:
            return "only a lower bound"
        return f"wanted {allowed[i]:.2g}" if allowed[i] > 0 else "the data at hand do not decide"

    listed = ", ".join(
        f"{name}: MCSE {'> ' * bool(bound[i])}{mcse_[i]:.2g}, {lacking(i)}"
        for i, name in enumerate(c.models)
        if wide[i] or bound[i]
    )
    return Needs(each, f"not settled ({listed})" if listed else SETTLED)
