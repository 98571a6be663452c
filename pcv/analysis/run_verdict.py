"""The verdict of a run: which folds or units are flagged, and whether chains have mixed. No JAX."""

import re
from collections.abc import Sequence

import numpy as np

from pcv.analysis.diagnostics import BENCHMARK_LEVEL, Benchmark

NUM_NAMED = 3
"""flagged folds or units spelt out"""


def run_verdict(
    name: Sequence[str] | np.ndarray,
    verdict: Sequence[str] | np.ndarray,
    benchmark: Benchmark | None,
    superchains: int = 0,
    of_fold: Sequence[str] | np.ndarray | None = None,
) -> str:
    """Say whether a run can be trusted, in one or two sentences.

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
    flags = [i for i, reasons in enumerate(verdict) if reasons != "ok"]
    sentences = []
    if flags:
        sentences.append(
            f"{len(flags)} of {len(name)} {'folds' if of_fold is None else 'units'}"
            f" {'is' if len(flags) == 1 else 'are'} flagged:"
            f" {', '.join(_list_reasons(flags, name, verdict, of_fold))}."
        )
    benchmarks = {} if benchmark is None else {"R-hat max": benchmark}
    if benchmark is not None and superchains:
        nested = "Nested R-hat max"
        benchmarks = (
            benchmarks | {nested: benchmark.nested} if benchmark.nested else {nested: benchmark}
        )
    for statistic, each in benchmarks.items():
        all_exact = np.isnan(each.observed) and not flags
        if each.share_above > BENCHMARK_LEVEL or all_exact:
            continue
        statistic += " of units" * (of_fold is not None)
        sentences.append(
            f"{statistic} is undefined: a single chain, or none that moved."
            if np.isnan(each.observed)
            else f"{statistic} {each.observed:.4g} is reached by {each.share_above:.1%} of its"
            " benchmark: the chains have not mixed; longer warmup, then more draws."
        )
    return " ".join(sentences) or "ok"


def _list_reasons(
    flags: list[int],
    name: Sequence[str] | np.ndarray,
    verdict: Sequence[str] | np.ndarray,
    of_fold: Sequence[str] | np.ndarray | None,
) -> list[str]:
    """List the first flagged folds, or folds of flagged units, with reasons; count the others."""
    groups: dict[str, list[int]] = {}
    for i in flags:
        groups.setdefault(str(i if of_fold is None else of_fold[i]), []).append(i)
    remedies: set[str] = set()
    items = [
        f"{name[i] if not others else f'{len(others) + 1} units of {fold}'}"
        f" ({_omit_repeats(verdict[i], remedies)})"
        for fold, (i, *others) in list(groups.items())[:NUM_NAMED]
    ]
    rest = sum(map(len, list(groups.values())[NUM_NAMED:]))
    return items + [f"and {rest} more"] * (rest > 0)


def _omit_repeats(verdict: str, remedies: set[str]) -> str:
    """Omit from a verdict the remedies that are in a set; add its others to the set.

    >>> remedies = {"too low; more draws"}
    >>> _omit_repeats("ESS 9: too low; more draws; 40 divergences: higher target_accept", remedies)
    'ESS 9; 40 divergences: higher target_accept'
    """
    reasons = []
    for reason in re.split("; (?=[^;]*: )", verdict):
        message, _, remedy = reason.partition(": ")
        reasons.append(message if remedy in remedies else reason)
        remedies.add(remedy)
    return "; ".join(reasons)


def mixed(benchmark: Benchmark) -> bool:
    """Tell whether R-hat max, also nested, is consistent with mixing; False if undefined."""
    nested = benchmark.nested is None or mixed(benchmark.nested)
    return benchmark.share_above > BENCHMARK_LEVEL and nested
