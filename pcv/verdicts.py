"""What the diagnostics mean, in words: of every fold or unit, and of a run. No JAX."""

from collections.abc import Sequence
from typing import Literal

import numpy as np
from jaxtyping import Float, Int

from pcv.diagnostics import BENCHMARK_LEVEL, Benchmark, LogSums, elpd, ess, good_k, merge, mixing

MAX_RHAT = 1.2
"""R-hat above which chains disagree, whatever the benchmark: few blocks cannot tell"""
MIN_DRAWS = 10
"""draws of one value that make a chain stuck; fewer may be chance"""
MIN_ESS = 50
"""effective draws below which a fold's estimates and diagnostics say little"""
MAX_SHARE_DIVERGENT = 0.01
"""share of a fold's draws that may diverge"""
MIN_ACCEPTANCE, MIN_EFMI = 0.5, 0.2
"""acceptance and E-FMI of a fold below which its sampler does badly"""
NUM_NAMED = 3
"""flagged folds or units that the verdict of a run spells out"""


def fold_verdict(
    sums: LogSums,
    khat: Float[np.ndarray, " fold"],
    divergences: Float[np.ndarray, " fold"] | Int[np.ndarray, " fold"],
    benchmark: Benchmark,
    predictive: Literal["plain", "marginal", "either"],
    superchains: int = 0,
    acceptance: Float[np.ndarray, " fold"] | None = None,
    efmi: Float[np.ndarray, " fold"] | None = None,
) -> np.ndarray:
    """What is wrong with each fold, and what to do about it.

    A fold is flagged when its elpd is not finite; when a chain never moved; when its R-hat is
    undefined or above the benchmark's limit (which a long run may put well below 1.01: `mcse` is
    too small as soon as chains disagree by more than their own error), at most 1.2 (with
    superchains of M chains :math:`\\sqrt{1.2^2 + 1/M}`); when its ESS is below 50;
    when its k-hat exceeds `good_k`; when more than 1% of its draws diverged, fewer than half of its
    proposals were accepted, or its E-FMI is below 0.2.

    Args:
        sums: joint sums, dims (fold, chain, batch), or those of single units.
        khat: of `pareto_khat`; NaN is not flagged.
        divergences: number of divergent draws of each fold.
        benchmark: of `rhat_max_benchmark`, for these sums.
        predictive: which one was scored: a heavy tail asks for different remedies.
        superchains: number of superchains, whose nested R-hat is judged; 0: there are none.
        acceptance, efmi: mean acceptance probability and E-FMI of each fold; None: not judged.

    Returns:
        For each fold "ok", or its reasons joined by "; ". Chains are counted from 0, as in the
        artifacts.

    >>> from pcv.diagnostics import batch_sums, rhat_max_benchmark
    >>> draws = np.random.default_rng(1).normal(size=(2, 4, 100))
    >>> draws[1, 2] = 0.3
    >>> sums = batch_sums(draws, 20)
    >>> benchmark = rhat_max_benchmark(np.random.default_rng(2), sums)
    >>> for words in fold_verdict(sums, np.zeros(2), np.zeros(2), benchmark, "marginal"):
    ...     print(words)
    ok
    chain 2 never moved: longer warmup, or a smaller step size (higher target_accept)
    """
    chain, num_draws = merge(sums, axis=2), sums.count.sum(axis=(1, 2))
    estimate, effective = elpd(sums), ess(sums)
    mixed, word = mixing(sums, superchains), "Nested R-hat" if superchains else "R-hat"
    heavy = khat > good_k(num_draws)
    too_many = divergences > MAX_SHARE_DIVERGENT * num_draws
    each = chain.mean.shape[1] // superchains if superchains else np.inf
    limit = min(benchmark.limit, np.sqrt(MAX_RHAT**2 + 1 / each))
    lighter_tail = {
        "plain": "more draws or, where whole groups are left out, the marginal predictive",
        "marginal": "more draws, or a model less surprised by this fold",
        "either": "more draws, or a model less surprised by this fold",
    }[predictive]

    def reasons(k: int) -> list[str]:
        if not np.isfinite(estimate[k]):
            return [f"elpd is {estimate[k]}: non-finite score; check log_lik at this fold's units"]
        stuck = np.flatnonzero((chain.m2[k] == 0) & (chain.count[k] >= MIN_DRAWS))
        if np.isnan(mixed[k]) and len(stuck) == chain.mean.shape[1]:
            constant = f"score is {chain.mean[k, 0]:.6g} at every draw"
            return [f"{constant}: no chain moved, or the predictive ignores the parameters"]
        found = []
        if len(stuck):
            names = ", ".join(map(str, stuck))
            found.append(
                f"chain{'s' * (len(stuck) > 1)} {names} never moved:"
                " longer warmup, or a smaller step size (higher target_accept)"
            )
        elif np.isnan(mixed[k]):
            found.append(f"{word} undefined: predictive density 0 at some draws; check log_lik")
        elif mixed[k] > limit:
            found.append(f"{word} {mixed[k]:.4g}: chains disagree; longer warmup, then more draws")
        if effective[k] < MIN_ESS:
            found.append(f"ESS {effective[k]:.0f}: too few; more draws")
        if heavy[k]:
            found.append(
                f"k-hat {khat[k]:.2f}: heavy-tailed predictive, its MCSE cannot be trusted;"
                f" {lighter_tail}"
            )
        if too_many[k]:
            found.append(
                f"{divergences[k]:.0f} divergences ({divergences[k] / num_draws[k]:.1%} of draws):"
                " higher target_accept, or reparameterise"
            )
        if acceptance is not None and acceptance[k] < MIN_ACCEPTANCE:
            found.append(
                f"acceptance {acceptance[k]:.2f}: the kernel does not fit this fold;"
                " cv.adapt: always, or more draws"
            )
        if efmi is not None and efmi[k] < MIN_EFMI:
            found.append(f"E-FMI {efmi[k]:.2f}: heavy tails are explored slowly; reparameterise")
        return found

    return np.array(["; ".join(reasons(k)) or "ok" for k in range(len(khat))])


def run_verdict(
    name: Sequence[str] | np.ndarray,
    verdict: Sequence[str] | np.ndarray,
    benchmark: Benchmark,
    noun: Literal["fold", "unit"] = "fold",
    superchains: int = 0,
) -> str:
    """Whether a run can be trusted, in one or two sentences.

    Args:
        name: of the folds, or of the units.
        verdict: of `fold_verdict`.
        benchmark: of `rhat_max_benchmark`.
        noun: what they are.
        superchains: number of superchains, whose nested R-hat it is; 0: there are none.

    Returns:
        "ok" when no fold is flagged and more than 1% of the benchmark's replicates reach R-hat
        max; otherwise what is wrong, with the first flagged folds by name.

    >>> fine = Benchmark(1.02, np.array([1.01, 1.03]), 0.5, 1.03)
    >>> run_verdict(["rat 1", "rat 2"], ["ok", "ESS 23: too few; more draws"], fine)
    '1 of 2 folds is flagged: rat 2 (ESS 23: too few; more draws).'
    """
    flagged = [(each, words) for each, words in zip(name, verdict, strict=True) if words != "ok"]
    sentences = []
    if flagged:
        named = [f"{each} ({words})" for each, words in flagged[:NUM_NAMED]]
        if len(flagged) > NUM_NAMED:
            named.append(f"and {len(flagged) - NUM_NAMED} more")
        verb = "is" if len(flagged) == 1 else "are"
        sentences.append(
            f"{len(flagged)} of {len(name)} {noun}s {verb} flagged: {', '.join(named)}."
        )
    word = "Nested R-hat" if superchains else "R-hat"
    if np.isnan(benchmark.observed):
        sentences.append(f"{word} max is undefined: one chain alone, or none moved.")
    elif not benchmark.share_above > BENCHMARK_LEVEL:
        sentences.append(
            f"{word} max {benchmark.observed:.4g} is reached by {benchmark.share_above:.1%} of its"
            " benchmark: the chains have not mixed; longer warmup, then more draws."
        )
    return " ".join(sentences) or "ok"
