"""Verdicts on folds and units: which checks their diagnostics fail, in words. No JAX."""

from collections.abc import Callable
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from pcv.analysis import diagnostics as diag
from pcv.analysis.diagnostics import Benchmark, LogSums, TwoSided

MAX_RHAT = 1.2
"""R-hat above which chains disagree, whatever the benchmark, which needs enough blocks"""
ROUGH_RHAT, ENOUGH_ESS = 1.05, 400
"""R-hat above which chains are flagged, whatever the benchmark, if the ESS is below this: chance
alone may explain such an R-hat, but no referee would believe it"""
MIN_DRAWS = 10
"""identical draws that make a chain stuck; fewer may be chance"""
MIN_ESS = 50
"""ESS below which a fold's estimates and diagnostics are uninformative"""
LIGHT_KHAT, MAX_HIDDEN, MIN_WEIGHTS = 0.3, 2.0, 2.5
"""k-hat above which hidden variance is considered, and the largest acceptable ratio; without k-hat,
smallest acceptable `effective_weights` over the root of the number of draws"""
MIN_CROSSINGS = 20
"""draws that must cross between the two sides of a fold"""
MAX_SHARE_DIVERGENT = 0.01
"""share of a fold's draws that may diverge"""
MIN_ACCEPTANCE, MIN_EFMI = 0.5, 0.2
"""smallest acceptable acceptance and E-FMI of a fold"""
FOLD_FLAGGED = "the chains of its fold are flagged"
"""verdict of a unit whose fold's own verdict gives the reasons"""


class Check(NamedTuple):
    """What may be wrong with a fold, or unit."""

    flags: Bool[np.ndarray, " fold"]
    """where it is wrong"""
    message: Callable[[int], str]
    """states it, with the values of the fold of this index"""
    remedy: str
    """what it means, and what to do about it"""


class Faults(NamedTuple):
    """Messages and remedies for each fold, or unit; empty where nothing is wrong.

    Chains are numbered from 0, as in the artifacts.
    """

    chains: list[list[str]]
    """problems of the chains, which affect all scores"""
    score: list[list[str]]
    """problems of the estimated score"""

    def words(self) -> np.ndarray:
        """Join the problems of each fold, or unit, by "; ", or say "ok"."""
        return np.array(["; ".join(x + y) or "ok" for x, y in zip(*self, strict=True)])


def faults(
    sums: LogSums,
    khat: Float[np.ndarray, " fold"],
    divergences: Float[np.ndarray, " fold"] | Int[np.ndarray, " fold"],
    benchmark: Benchmark,
    predictive: Literal["plain", "marginal", "either"],
    superchains: int = 0,
    acceptance: Float[np.ndarray, " fold"] | None = None,
    efmi: Float[np.ndarray, " fold"] | None = None,
    hidden: Float[np.ndarray, " fold"] | None = None,
    integral_gap: Float[np.ndarray, " fold"] | None = None,
    forgot: Bool[np.ndarray, " fold"] | None = None,
    among: int | None = None,
    inflation: float = 1.0,
    both: TwoSided | None = None,
    carry: Float[np.ndarray, " fold"] | None = None,
) -> Faults:
    """State what is wrong with each fold, and what to do about it.

    Chains are flagged where one never moved; where R-hat exceeds the benchmark's limit (which a
    long run may put well below 1.01: `mcse` is too small as soon as chains disagree by more than
    their own error), capped at 1.2, or exceeds 1.05 with an ESS below 400; where nested R-hat
    exceeds the limit of its own benchmark, capped at `nested_limit` with τ = :math:`1.2^2 - 1`
    (superchains; alone where chains have a single batch); where their halves differ (`drift`,
    p-value below .01 over the number of folds); where more than 1% of draws diverged, mean
    acceptance probability is below .5, or E-FMI below .2; where two methods of integrating over the
    group's own effects differ; where chains had not forgotten their starts when warmup ended; and
    where the two sides of the fold differ (p-value below .01 over the number of folds).

    The score is flagged where elpd is not finite, R-hat is undefined, ESS is below 50, or
    `heavy_tail`. It is exact where it does not depend on the parameters (`constant`).

    Args:
        sums: joint sums, dims (fold, chain, batch), or those of single units.
        khat: of `pareto_khat`, or NaN.
        divergences: number of divergent draws of each fold.
        benchmark: of `mixing_benchmark`, for these sums.
        predictive: which one was scored; remedies for a heavy tail depend on it.
        superchains: number of superchains, for nested R-hat; 0: none.
        acceptance, efmi: mean acceptance probability and E-FMI of each fold; None: not checked.
        hidden: of `hidden_variance`; None: unknown.
        integral_gap: nats by which two integrals over a fold's own effects differ beyond their
            errors, at any of a few draws; None or NaN: not checked.
        forgot: whether chains had forgotten their starts; None: not checked.
        among: number of folds of the whole run, if these are only some of them.
        inflation: of `batch_inflation`.
        both: of `two_sided`; None: one side only, or these are units.
        carry: of `two_sided_units`, for units.

    >>> from pcv.analysis.diagnostics import batch_sums, rhat_max_benchmark
    >>> draws = np.random.default_rng(1).normal(size=(2, 4, 100))
    >>> draws[1, 2] = 0.3
    >>> sums = batch_sums(draws, 20)
    >>> benchmark = rhat_max_benchmark(np.random.default_rng(2), sums)
    >>> for words in faults(sums, np.zeros(2), np.zeros(2), benchmark, "marginal").words():
    ...     print(words)
    ok
    chain 2 never moved: longer warmup, or a smaller step size (higher target_accept)
    """
    # What is None becomes NaN, which exceeds no limit.
    nan, carry = np.full(len(khat), np.nan), carry if both is None else both.carry
    acceptance, efmi, hidden, integral_gap, carry = (
        nan if x is None else x for x in (acceptance, efmi, hidden, integral_gap, carry)
    )
    elpd, ess = diag.elpd(sums), diag.ess(sums) / inflation
    finite, exact = np.isfinite(elpd), diag.constant(sums)
    heavy = heavy_tail(sums, khat, hidden, carry)
    level = diag.BENCHMARK_LEVEL / (among or len(khat) or 1)
    rhat_checks, undefined = _rhat_checks(sums, ess, benchmark, superchains)
    chain_checks = [
        *rhat_checks,
        *_stationarity_checks(forgot, diag.drift(sums), level),
        *_sampler_checks(sums, divergences, acceptance, efmi, integral_gap),
        *_sides_checks(both, heavy, level),
    ]
    score_checks = [
        undefined,
        Check(ess < MIN_ESS, lambda k: f"ESS {ess[k]:.0f}", "too low; more draws"),
        *_tail_checks(sums, heavy, khat, hidden, carry, predictive),
    ]
    not_finite = Check(
        ~finite,
        lambda k: f"elpd is {elpd[k]}",
        "non-finite score; check log_lik at this fold's units",
    )
    of_score = [x._replace(flags=x.flags & finite & ~exact) for x in score_checks]
    return Faults(_reasons(chain_checks), _reasons([not_finite, *of_score]))


def _reasons(checks: list[Check]) -> list[list[str]]:
    """Put each fold's flags into words."""
    reasons: list[list[str]] = [[] for _ in checks[0].flags]
    for check in checks:
        for k in np.flatnonzero(check.flags).tolist():
            reasons[k].append(f"{check.message(k)}: {check.remedy}")
    return reasons


def _rhat_checks(
    sums: LogSums, ess: np.ndarray, benchmark: Benchmark, superchains: int
) -> tuple[list[Check], Check]:
    """Check that chains move and agree, and, as a check of the score, that R-hat is defined."""
    chain, alone = diag.merge(sums, axis=2), diag.nested_alone(benchmark, superchains)
    stuck = (chain.m2 == 0) & (chain.count >= MIN_DRAWS) & ~diag.constant(sums)[:, None]
    rhat, name = diag.mixing(sums, alone), "Nested R-hat" if alone else "R-hat"
    limit = np.full(len(rhat), np.fmin(MAX_RHAT, benchmark.limit))
    nested, nested_limit = np.full((2, len(rhat)), np.nan)
    if superchains:
        nested_limit = diag.nested_limit(sums, superchains, MAX_RHAT**2 - 1)
    if alone:
        limit = np.fmin(nested_limit, benchmark.limit)
    elif benchmark.nested:
        nested = diag.nested_rhat(sums, superchains)
        nested_limit = np.fmin(nested_limit, benchmark.nested.limit)
    too_large, has_stuck = rhat > limit, stuck.any(axis=1)
    of_chains = [
        Check(
            has_stuck,
            lambda k: f"{_name_chains(stuck[k])} never moved",
            "longer warmup, or a smaller step size (higher target_accept)",
        ),
        Check(
            too_large & ~has_stuck,
            lambda k: f"{name} {rhat[k]:.5g}, above {limit[k]:.5g}",
            "chains disagree; longer warmup, then more draws",
        ),
        Check(
            (rhat > ROUGH_RHAT) & (ess < ENOUGH_ESS) & ~too_large & ~has_stuck & (not alone),
            lambda k: f"{name} {rhat[k]:.4g} with an ESS of {ess[k]:.0f}",
            "too few effective draws to tell whether the chains have mixed; more draws",
        ),
        Check(
            (nested > nested_limit) & ~too_large,
            lambda k: f"Nested R-hat {nested[k]:.5g}, above {nested_limit[k]:.5g}",
            "chains from different starts disagree; longer warmup, then more draws",
        ),
    ]
    return of_chains, Check(
        np.isnan(rhat) & ~has_stuck,
        lambda k: f"{name} undefined",
        "the predictive density is 0 at some draws; check log_lik (a single chain has no R-hat)",
    )


def _name_chains(flags: Bool[np.ndarray, " chain"]) -> str:
    numbers = np.flatnonzero(flags).tolist()
    return f"chain{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))}"


def _stationarity_checks(forgot: np.ndarray | None, drift: np.ndarray, level: float) -> list[Check]:
    """Check that chains forgot their starts and have stopped drifting."""
    return [
        Check(
            np.full(len(drift), False) if forgot is None else ~forgot,
            lambda k: "superchains still differed by their starting points at the end of warmup",
            "its posterior may have several modes; set cv.adapt to auto, or reparameterise",
        ),
        Check(
            drift < level,
            lambda k: f"first and second halves of the chains differ (p = {drift[k]:.0e})",
            "they have not reached stationarity; longer warmup",
        ),
    ]


def _sampler_checks(
    sums: LogSums,
    divergences: np.ndarray,
    acceptance: np.ndarray,
    efmi: np.ndarray,
    integral_gap: np.ndarray,
) -> list[Check]:
    """Check trajectories, and the integrals over a group's effects."""
    num_draws = sums.count.sum(axis=(1, 2))
    return [
        Check(
            divergences > MAX_SHARE_DIVERGENT * num_draws,
            lambda k: (
                f"{divergences[k]:.0f} divergences ({divergences[k] / num_draws[k]:.1%} of draws)"
            ),
            "higher target_accept, or reparameterise",
        ),
        Check(
            acceptance < MIN_ACCEPTANCE,
            lambda k: f"mean acceptance probability {acceptance[k]:.2f}",
            "the kernel does not suit this fold; set cv.adapt to always, or more draws",
        ),
        Check(
            efmi < MIN_EFMI,
            lambda k: f"E-FMI {efmi[k]:.2f}",
            "slow exploration of the tails; reparameterise",
        ),
        Check(
            integral_gap > 0,
            lambda k: (
                "two integrals over its groups' effects differ by"
                f" {integral_gap[k]:.2g} nats at one draw"
            ),
            "compare with predictive: plain",
        ),
    ]


def _sides_checks(both: TwoSided | None, heavy: np.ndarray, level: float) -> list[Check]:
    """Check that both sides imply the same elpd, where enough draws cross to tell."""
    if both is None:
        return []
    return [
        Check(
            (both.gap_p < level) & ~heavy,
            lambda k: (
                f"its draws and those of the full data differ by {abs(both.gap[k]):.2g} nats"
                f" (p = {both.gap_p[k]:.0e})"
            ),
            "longer warmup or more draws of the fit; if that does not help, its posterior lacks"
            " more than the predictive, and own_elpd may be right",
        )
    ]


def _tail_checks(
    sums: LogSums,
    heavy: np.ndarray,
    khat: np.ndarray,
    hidden: np.ndarray,
    carry: np.ndarray,
    predictive: Literal["plain", "marginal", "either"],
) -> list[Check]:
    """Check by which of five signs a tail is heavy; the signs exclude each other."""
    num_draws = sums.count.sum(axis=(1, 2))
    weights = np.where(np.isnan(carry), effective_weights(sums), carry)
    no_khat, large_khat = np.isnan(khat), khat > diag.good_k(num_draws)
    two_sided, one_sided = heavy & ~np.isnan(carry) & ~no_khat, heavy & np.isnan(carry) & ~no_khat
    lighter_tail = "smaller test sets, or a model that predicts them better"
    if predictive == "plain":
        lighter_tail = (
            "smaller test sets or, where a test set has effects of its own, the marginal predictive"
        )
    bound = "so the MCSE is only a lower bound;"
    remedy = f"heavy-tailed predictive density, {bound} more draws, {lighter_tail}"
    return [
        Check(
            two_sided,
            lambda k: f"{carry[k]:.0f} draws cross between the fold and the full data",
            f"too few, {bound} more draws, {lighter_tail}",
        ),
        Check(
            one_sided & (khat > 1),  # the mean may be infinite, however many draws
            lambda k: f"k-hat {khat[k]:.2f}",
            f"heavy-tailed predictive density, {bound} {lighter_tail}",
        ),
        Check(one_sided & large_khat & (khat <= 1), lambda k: f"k-hat {khat[k]:.2f}", remedy),
        Check(
            one_sided & ~large_khat,
            lambda k: (
                f"k-hat {khat[k]:.2f}, but the variance of s implies a variance of exp(s)"
                f" {hidden[k]:.1f} times the observed one"
            ),
            remedy,
        ),
        Check(
            heavy & no_khat,
            lambda k: (
                "effective number of draws for the mean of exp(s) is"
                f" {weights[k]:.0f} of {num_draws[k]:.0f}"
            ),
            remedy,
        ),
    ]


def heavy_tail(
    sums: LogSums,
    khat: Float[np.ndarray, " fold"],
    hidden: Float[np.ndarray, " fold"] | None = None,
    carry: Float[np.ndarray, " fold"] | None = None,
) -> Bool[np.ndarray, " fold"]:
    """Tell whether the MCSE is only a lower bound, because few draws dominate the mean of exp(s).

    With two sides: if fewer than 20 draws cross or, for a unit in a fold with others, if `carry` is
    below 2.5 times the root of the number of draws. With one side: if k-hat exceeds `good_k`, or
    exceeds .3 while `hidden_variance` exceeds 2; without k-hat, if `effective_weights` is below 2.5
    times the root of the number of draws. (For error rates see docs/mixing.md.)

    Args:
        sums: joint sums, or those of single units.
        khat: of `pareto_khat`, or NaN.
        hidden: of `hidden_variance`; None: unknown.
        carry: of `two_sided` or `two_sided_units`, NaN with one side; None: one side throughout.
    """
    num_draws = sums.count.sum(axis=(1, 2))
    heavy = khat > diag.good_k(num_draws)
    if hidden is not None:
        heavy |= (khat > LIGHT_KHAT) & (hidden > MAX_HIDDEN)
    few = effective_weights(sums) < MIN_WEIGHTS * np.sqrt(num_draws)
    one_sided = np.where(np.isnan(khat), few, heavy)
    if carry is None:
        return one_sided
    least = np.where(np.isnan(khat), MIN_WEIGHTS * np.sqrt(num_draws), MIN_CROSSINGS)
    return np.where(np.isnan(carry), one_sided, carry < least)


def effective_weights(sums: LogSums) -> Float[np.ndarray, " fold"]:
    r"""Count effective draws for the mean of exp(s): :math:`(\sum e^s)^2 / \sum e^{2s}`."""
    total = diag.merge(sums, axis=(1, 2))
    with np.errstate(invalid="ignore", over="ignore"):
        return np.exp(2 * total.log_sum - total.log_sum_sq)


def of_units(
    units: Faults, folds: Faults, fold_of_unit: Int[np.ndarray, " unit"]
) -> tuple[list[str], list[str]]:
    """Give the verdict on each unit, and the part of it that is not due to its fold.

    Units share the draws of their fold: if the fold's chains are flagged, so are all its units,
    and their own chain diagnostics are dropped.

    Args:
        units, folds: of `faults`.
        fold_of_unit: index of the fold of every unit.
    """
    verdicts, parts = [], []
    for k, chains, score in zip(fold_of_unit, *units, strict=True):
        fold = [FOLD_FLAGGED] if folds.chains[k] else []
        unit = score if fold else chains + score
        parts.append("; ".join(unit) or "ok")
        verdicts.append("; ".join(fold + unit) or "ok")
    return verdicts, parts
