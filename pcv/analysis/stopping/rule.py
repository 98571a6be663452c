r"""Fixed-width stopping rules with few looks. No JAX.

A fold ends at the first look at which its MCSE is below a tolerance ε and its chains agree. The
rule depends on the estimate only through its error (except for `decide`, which asks whether a
difference is clear, and so exaggerates those that are barely clear). As the error is estimated
from the same draws, stopping at the first small value by luck causes bias. Looks are therefore
few: after `min_draws`, then each time the draws have grown by half. (Glynn and Whitt 1992: as
ε → 0, intervals of such a rule have their stated coverage; for finite ε see docs/stopping.md and
tests/test_stopping.py.)
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float
from scipy.special import ndtri

from pcv.analysis.comparison import Comparison
from pcv.analysis.diagnostics import (
    LogSums,
    Sides,
    constant,
    elpd,
    ess,
    nested_limit,
    nested_rhat,
    rhat,
    two_sided,
    two_sided_mcse,
)
from pcv.analysis.verdicts import MIN_ESS, heavy_tail

SETTLED = "settled"
UNDECIDED = "the data at hand do not decide, whatever m"


class Rule(NamedTuple):
    """When a fold ends."""

    fold_mcse: Float[np.ndarray, " fold"]
    """largest acceptable MCSE of the fold's joint elpd (nats)"""
    rhat: float
    """largest acceptable R-hat"""
    superchains: int = 0
    """number of superchains, for nested R-hat; 0: none"""


def finished(
    sums: LogSums,
    rule: Rule,
    khat: Float[np.ndarray, " fold"] | None = None,
    hidden: Float[np.ndarray, " fold"] | None = None,
    inflation: float = 1.0,
    sides: Sides | None = None,
) -> Bool[np.ndarray, " fold"]:
    r"""Which folds may end: those with R-hat below its limit, an ESS of at least `MIN_ESS`, and

    .. math:: \mathrm{MCSE}_k \sqrt{\tfrac{B - 1}{B - 3}} \le \varepsilon_k

    where the factor, the standard deviation of Student's t, allows for estimating the MCSE from
    only B batches; the MCSE includes the inflation. With superchains, nested R-hat must also be
    below `nested_limit`, where τ is :math:`L^2 - 1` for the limit L of R-hat, and at most 1/50,
    the variance of a mean of `MIN_ESS` draws. A fold whose MCSE is only a lower bound
    (`heavy_tail`) never ends; one whose score does not depend on the parameters ends at once.

    Args:
        sums: joint sums of the draws so far, dims (fold, chain, batch).
        rule: of all these folds.
        khat, hidden: as for `heavy_tail`; None: unknown, so that only the sums are used.
        inflation: of `batch_inflation`, over all folds.
        sides: of the draws so far; None: the fold's own draws only.

    >>> from pcv.analysis.diagnostics import batch_sums
    >>> draws = np.random.default_rng(1).normal(0, [[[0.1]], [[3.0]]], (2, 4, 100))
    >>> finished(batch_sums(draws, 20), Rule(np.full(2, 0.05), 1.05))
    array([ True, False])
    """
    mixed = rhat(sums) <= rule.rhat
    if rule.superchains:
        limit = nested_limit(sums, rule.superchains, min(rule.rhat**2 - 1, 1 / MIN_ESS))
        mixed &= nested_rhat(sums, rule.superchains) <= limit
    batches = (sums.count > 0).sum(axis=(1, 2))
    unknown, estimate = np.full(len(mixed), np.nan), two_sided(sums, sides)
    heavy = heavy_tail(sums, unknown if khat is None else khat, hidden, estimate.carry)
    with np.errstate(invalid="ignore", divide="ignore"):
        error = two_sided_mcse(estimate, inflation) * np.sqrt((batches - 1) / (batches - 3))
        enough = ess(sums) >= inflation * MIN_ESS
        return constant(sums) | (error <= rule.fold_mcse) & mixed & enough & ~heavy


def tolerance(
    sums: LogSums, fold_mcse: float | None, share: float | None
) -> Float[np.ndarray, " fold"]:
    """The tolerance of each fold: `fold_mcse`, or `share_of_se` of a pilot.

    Args:
        sums: joint sums of all folds at the first look.
        fold_mcse: tolerance of all folds (nats), or None.
        share: of the SE, if `fold_mcse` is None.
    """
    if fold_mcse is not None:
        return np.full(len(sums.mean), fold_mcse)
    assert share is not None
    return share_of_se(sums, share)


def share_of_se(sums: LogSums, share: float) -> Float[np.ndarray, " fold"]:
    r"""The tolerance of each of K folds for which the MCSE of their sum is a share of its SE:

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
    """largest acceptable MCSE (nats) of each fold of a model; inf: no more draws needed"""
    words: str


def needs(comparison: Comparison, mcse_over_se: float | None, probability: float | None) -> Needs:
    r"""The MCSE that each fold may have for the comparison to be settled.

    The difference :math:`\Delta` of a model from the comparator is settled when its MCSE is at most

    .. math:: T = \max\left(r \cdot \mathrm{SE}, \;
              (|\Delta| - z_p \mathrm{SE}) / 2 \right)

    with the share r (`mcse_over_se`): its MCSE is small against its SE, or its sign is decided with
    probability p, give or take two MCSEs (`decide`). Otherwise each of K folds needs an MCSE of at
    most :math:`T / \sqrt{2K}`, an equal share; of R repeats, R times as much. A single model is
    held to its own SE. A difference whose MCSE is only a lower bound is never settled.

    Args:
        comparison: of joint scores, from the draws so far.
        mcse_over_se: r, or None.
        probability: p, or None.

    Returns:
        Tolerances in the order of the comparison's models.
    """
    alone = len(comparison.models) == 1
    c = comparison
    mcse_, bound = (c.mcse, c.mcse_is_bound) if alone else (c.mcse_diff, c.mcse_diff_is_bound)
    allowed = _allowed(c, mcse_over_se, probability)
    comparator = c.models.index(c.reference)
    wide = ~(mcse_ <= allowed)
    wide[comparator] &= alone
    share = c.repeats / np.sqrt((1 if alone else 2) * c.n_folds)
    each = np.where(wide, np.fmax(allowed, 0.0) * share, np.inf)
    each[comparator] = each.min()

    def lacking(i: int) -> str:
        return _wanted(allowed[i]) if wide[i] else "only a lower bound"

    listed = ", ".join(
        f"{name}: MCSE {'> ' * bool(bound[i])}{mcse_[i]:.2g}, {lacking(i)}"
        for i, name in enumerate(c.models)
        if wide[i] or bound[i]
    )
    return Needs(each, f"not settled ({listed})" if listed else SETTLED)


def _wanted(allowed: float) -> str:
    if np.isnan(allowed):
        return "its SE is unknown"
    return f"wanted {allowed:.2g}" if allowed > 0 else "the data at hand do not decide"


def _allowed(
    c: Comparison, share: float | None, probability: float | None
) -> Float[np.ndarray, " model"]:
    """The largest error, besides the SE, with which each model's difference (a single model's
    elpd) is settled."""
    alone = len(c.models) == 1
    diff, se = (c.elpd, c.se) if alone else (c.elpd_diff, c.dse)
    allowed = np.zeros(len(se)) if share is None else share * se
    if probability is not None and not alone:
        room = (np.abs(diff) - ndtri(probability) * se) / 2
        allowed = np.fmax(allowed, room) if share is not None else room
    return allowed


def needs_terms(c: Comparison, share: float | None, probability: float | None) -> str:
    """`SETTLED`, `UNDECIDED` however large m, or whose SE of subsampling is too large by the rule
    of `needs`, with that SE in place of the MCSE; and the m that would do."""
    alone, m, n = len(c.models) == 1, len(c.term), c.num_terms
    error = c.subsampling_se if alone else c.subsampling_dse
    allowed = _allowed(c, share, probability)
    listed = ", ".join(
        f"{name}: subsampling SE {error[i]:.2g}, {_wanted(allowed[i])}"
        for i, name in enumerate(c.models)
        if (alone or name != c.reference) and not error[i] <= allowed[i]
    )
    if not listed:
        return SETTLED
    others = np.array([alone or name != c.reference for name in c.models])
    short = others & ~(error <= allowed)
    if share is None and probability is not None:
        most = np.abs(c.elpd_diff[short]) + 2 * error[short]
        least = c.dse[short] - 2 * c.dse_subsampling_se[short]
        if (most < ndtri(probability) * least).all():
            return UNDECIDED
    if not (allowed[short] > 0).all():
        return f"not settled ({listed})"
    wanted = np.ceil(1 / ((allowed[short] / error[short]) ** 2 * (1 / m - 1 / n) + 1 / n).min())
    return f"not settled ({listed}; m = {wanted:.0f} would do)"
