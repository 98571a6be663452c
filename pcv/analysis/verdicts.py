"""Verdicts: what the diagnostics of folds, units and runs mean, in words. No JAX."""

import re
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from pcv.analysis.diagnostics import (
    BENCHMARK_LEVEL,
    Benchmark,
    LogSums,
    TwoSided,
    constant,
    drift,
    elpd,
    ess,
    good_k,
    merge,
    mixing,
    nested_alone,
    nested_limit,
    nested_rhat,
)

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
NUM_NAMED = 3
"""flagged folds or units spelt out in the verdict of a run"""


class Faults(NamedTuple):
    """What is wrong with each fold, or unit, and what to do about it; empty where nothing is.

    Chains are numbered from 0, as in the artifacts.
    """

    chains: list[list[str]]
    """problems of the chains, which affect all scores"""
    score: list[list[str]]
    """problems of the estimated score"""

    def words(self) -> np.ndarray:
        """Per fold or unit: "ok", or the reasons joined by "; "."""
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
    """What is wrong with each fold, and what to do about it.

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
    chain, num_draws = merge(sums, axis=2), sums.count.sum(axis=(1, 2))
    estimate, effective = elpd(sums), ess(sums) / inflation
    alone = nested_alone(sums, superchains)
    rhat, word = mixing(sums, alone), "Nested R-hat" if alone else "R-hat"
    if both is not None:
        carry = both.carry
    heavy, effective_draws = heavy_tail(sums, khat, hidden, carry), effective_weights(sums)
    if carry is not None:
        effective_draws = np.where(np.isnan(carry), effective_draws, carry)
    good = np.asarray(good_k(num_draws))
    drifts = drift(sums)
    too_many = divergences > MAX_SHARE_DIVERGENT * num_draws
    among = among or len(khat)
    limit = np.full(len(khat), min(MAX_RHAT, benchmark.limit))
    nested, nested_most = np.full((2, len(khat)), np.nan)
    if superchains:
        nested_most = nested_limit(sums, superchains, MAX_RHAT**2 - 1)
    if alone:
        limit = np.minimum(nested_most, benchmark.limit)
    elif benchmark.nested:
        nested = nested_rhat(sums, superchains)
        nested_most = np.minimum(nested_most, benchmark.nested.limit)
    lighter_tail = {
        "plain": "smaller test sets or, where a test set has effects of its own, the marginal "
        "predictive",
        "marginal": "smaller test sets, or a model that predicts them better",
        "either": "smaller test sets, or a model that predicts them better",
    }[predictive]

    exact = constant(sums)

    def of_chains(k: int) -> list[str]:
        found, stuck = [], never_moved(k)[: 0 if exact[k] else None]
        if len(stuck):
            names = ", ".join(map(str, stuck))
            found.append(
                f"chain{'s' * (len(stuck) > 1)} {names} never moved:"
                " longer warmup, or a smaller step size (higher target_accept)"
            )
        elif rhat[k] > limit[k]:
            found.append(
                f"{word} {rhat[k]:.5g}, above {limit[k]:.5g}: chains disagree; longer warmup, then"
                " more draws"
            )
        elif not alone and rhat[k] > ROUGH_RHAT and effective[k] < ENOUGH_ESS:
            found.append(
                f"{word} {rhat[k]:.4g} with an ESS of {effective[k]:.0f}: too few effective draws"
                " to tell whether the chains have mixed; more draws"
            )
        if nested[k] > nested_most[k] and not rhat[k] > limit[k]:
            found.append(
                f"Nested R-hat {nested[k]:.5g}, above {nested_most[k]:.5g}: chains from different"
                " starts disagree; longer warmup, then more draws"
            )
        if forgot is not None and not forgot[k]:
            found.append(
                "superchains still differed by their starting points at the end of warmup: its"
                " posterior may have several modes; cv.adapt: auto, or reparameterise"
            )
        if drifts[k] < BENCHMARK_LEVEL / among:
            found.append(
                f"first and second halves of the chains differ (p = {drifts[k]:.0e}): they have not"
                " reached stationarity; longer warmup"
            )
        if too_many[k]:
            found.append(
                f"{divergences[k]:.0f} divergences ({divergences[k] / num_draws[k]:.1%} of draws):"
                " higher target_accept, or reparameterise"
            )
        if acceptance is not None and acceptance[k] < MIN_ACCEPTANCE:
            found.append(
                f"mean acceptance probability {acceptance[k]:.2f}: the kernel does not suit this"
                " fold; set cv.adapt to always, or more draws"
            )
        if efmi is not None and efmi[k] < MIN_EFMI:
            found.append(f"E-FMI {efmi[k]:.2f}: slow exploration of the tails; reparameterise")
        if integral_gap is not None and integral_gap[k] > 0:
            found.append(
                f"two integrals over its groups' effects differ by {integral_gap[k]:.2g} nats at"
                " one draw: compare with predictive: plain"
            )
        if both is not None and not heavy[k] and both.gap_p[k] < BENCHMARK_LEVEL / among:
            found.append(
                f"its draws and those of the full data differ by {abs(both.gap[k]):.2g} nats"
                f" (p = {both.gap_p[k]:.0e}): longer warmup or more draws of the fit; if that does"
                " not help, its posterior lacks more than the predictive, and own_elpd may be right"
            )
        return found

    def of_score(k: int) -> list[str]:
        found = []
        if np.isnan(rhat[k]) and not len(never_moved(k)):
            found.append(
                f"{word} undefined: the predictive density is 0 at some draws; check log_lik"
            )
        if effective[k] < MIN_ESS:
            found.append(f"ESS {effective[k]:.0f}: too low; more draws")
        if heavy[k] and not (carry is None or np.isnan(carry[k]) or np.isnan(khat[k])):
            found.append(
                f"{carry[k]:.0f} draws cross between the fold and the full data: too few, so the"
                f" MCSE is only a lower bound; more draws, {lighter_tail}"
            )
        elif heavy[k]:
            sign = f"k-hat {khat[k]:.2f}"
            if np.isnan(khat[k]):
                sign = (
                    "effective number of draws for the mean of exp(s) is"
                    f" {effective_draws[k]:.0f} of {num_draws[k]:.0f}"
                )
            elif hidden is not None and not khat[k] > good[k]:
                sign += (
                    ", but the variance of s implies a variance of exp(s)"
                    f" {hidden[k]:.1f} times the observed one"
                )
            more_draws = "" if khat[k] > 1 else "more draws, "
            found.append(
                f"{sign}: heavy-tailed predictive density, so the MCSE is only a lower bound;"
                f" {more_draws}{lighter_tail}"
            )
        return found

    def never_moved(k: int) -> np.ndarray:
        return np.flatnonzero((chain.m2[k] == 0) & (chain.count[k] >= MIN_DRAWS))

    def not_finite(k: int) -> list[str]:
        if not np.isfinite(estimate[k]):
            return [f"elpd is {estimate[k]}: non-finite score; check log_lik at this fold's units"]
        return []

    useless = [not_finite(k) for k in range(len(khat))]
    return Faults(
        [[] if words else of_chains(k) for k, words in enumerate(useless)],
        [words or ([] if exact[k] else of_score(k)) for k, words in enumerate(useless)],
    )


def heavy_tail(
    sums: LogSums,
    khat: Float[np.ndarray, " fold"],
    hidden: Float[np.ndarray, " fold"] | None = None,
    carry: Float[np.ndarray, " fold"] | None = None,
) -> Bool[np.ndarray, " fold"]:
    """Whether the MCSE is only a lower bound, because few draws dominate the mean of exp(s).

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
    heavy = khat > good_k(num_draws)
    if hidden is not None:
        heavy |= (khat > LIGHT_KHAT) & (hidden > MAX_HIDDEN)
    few = effective_weights(sums) < MIN_WEIGHTS * np.sqrt(num_draws)
    one_sided = np.where(np.isnan(khat), few, heavy)
    if carry is None:
        return one_sided
    least = np.where(np.isnan(khat), MIN_WEIGHTS * np.sqrt(num_draws), MIN_CROSSINGS)
    return np.where(np.isnan(carry), one_sided, carry < least)


def effective_weights(sums: LogSums) -> Float[np.ndarray, " fold"]:
    r"""Effective number of draws for the mean of exp(s): :math:`(\sum e^s)^2 / \sum e^{2s}`."""
    whole = merge(sums, axis=(1, 2))
    with np.errstate(invalid="ignore", over="ignore"):
        return np.exp(2 * whole.log_sum - whole.log_sum_sq)


def of_units(
    units: Faults, folds: Faults, fold_of_unit: Int[np.ndarray, " unit"]
) -> tuple[list[str], list[str]]:
    """The verdict on each unit, and the part of it that is not due to its fold.

    Units share the draws of their fold: if the fold's chains are flagged, so are all its units,
    and their own chain diagnostics are dropped.

    Args:
        units, folds: of `faults`.
        fold_of_unit: index of the fold of every unit.
    """
    verdict, own = [], []
    for k, chains, score in zip(fold_of_unit, *units, strict=True):
        shared = [FOLD_FLAGGED] if folds.chains[k] else []
        mine = score if shared else chains + score
        own.append("; ".join(mine) or "ok")
        verdict.append("; ".join(shared + mine) or "ok")
    return verdict, own


def run_verdict(
    name: Sequence[str] | np.ndarray,
    verdict: Sequence[str] | np.ndarray,
    benchmark: Benchmark | None,
    superchains: int = 0,
    of_fold: Sequence[str] | np.ndarray | None = None,
) -> str:
    """Whether a run can be trusted, in one or two sentences.

    Args:
        name: of the folds, or of the units.
        verdict: on each, from `Faults.words`.
        benchmark: of `mixing_benchmark`; None: reported elsewhere.
        superchains: number of superchains, for nested R-hat; 0: none.
        of_fold: the fold of each unit, for units: flagged units of a fold are listed together,
            with the first one's reasons.

    Returns:
        "ok" if no fold is flagged and more than 1% of the benchmark's replicates reach R-hat
        max (and nested R-hat max); otherwise what is wrong, naming the first flagged folds.

    >>> fine = Benchmark(1.02, np.array([1.01, 1.03]), 0.5, 1.03)
    >>> run_verdict(["rat 1", "rat 2"], ["ok", "ESS 23: too low; more draws"], fine)
    '1 of 2 folds is flagged: rat 2 (ESS 23: too low; more draws).'
    >>> run_verdict(["a", "b", "c"], ["ok", "ESS 23", "ESS 9"], fine, of_fold=["1", "2", "2"])
    '2 of 3 units are flagged: 2 units of 2 (ESS 23).'
    """
    flagged = [i for i, words in enumerate(verdict) if words != "ok"]
    groups: dict[str, list[int]] = {}
    for i in flagged:
        groups.setdefault(str(i if of_fold is None else of_fold[i]), []).append(i)
    sentences = []
    if flagged:
        shown, left = list(groups.items())[:NUM_NAMED], list(groups.values())[NUM_NAMED:]
        said: set[str] = set()
        named = [
            f"{name[i] if not more else f'{len(more) + 1} units of {fold}'}"
            f" ({_remedies_once(verdict[i], said)})"
            for fold, (i, *more) in shown
        ]
        named += [f"and {sum(map(len, left))} more"] if left else []
        sentences.append(
            f"{len(flagged)} of {len(name)} {'folds' if of_fold is None else 'units'}"
            f" {'is' if len(flagged) == 1 else 'are'} flagged: {', '.join(named)}."
        )
    judged = {} if benchmark is None else {"R-hat max": benchmark}
    if benchmark is not None and superchains:
        nested = "Nested R-hat max"
        judged = judged | {nested: benchmark.nested} if benchmark.nested else {nested: benchmark}
    for word, each in judged.items():
        all_exact = np.isnan(each.observed) and not flagged
        if each.share_above > BENCHMARK_LEVEL or all_exact:
            continue
        word += " of units" * (of_fold is not None)
        sentences.append(
            f"{word} is undefined: a single chain, or none that moved."
            if np.isnan(each.observed)
            else f"{word} {each.observed:.4g} is reached by {each.share_above:.1%} of its"
            " benchmark: the chains have not mixed; longer warmup, then more draws."
        )
    return " ".join(sentences) or "ok"


def _remedies_once(words: str, said: set[str]) -> str:
    """The reasons in `words`, without remedies already in `said`; adds new remedies to it.

    >>> said = {"too low; more draws"}
    >>> _remedies_once("ESS 9: too low; more draws; 40 divergences: higher target_accept", said)
    'ESS 9; 40 divergences: higher target_accept'
    """
    found = []
    for reason in re.split("; (?=[^;]*: )", words):
        what, _, remedy = reason.partition(": ")
        found.append(what if remedy in said else reason)
        said.add(remedy)
    return "; ".join(found)


def mixed(benchmark: Benchmark) -> bool:
    """Whether R-hat max, also nested, is consistent with mixing; False where it is undefined."""
    nested = benchmark.nested is None or mixed(benchmark.nested)
    return benchmark.share_above > BENCHMARK_LEVEL and nested
