"""Comparisons as text tables, with notes under them."""

import textwrap
from collections.abc import Sequence

import numpy as np
import pandas as pd
import xarray as xr

from pcv.analysis.comparison import Comparison, Scores, noun
from pcv.analysis.results.notes import (
    GIVEN_TESTED,
    MAX_MCSE_SHARE,
    SIMULATED,
    error_notes,
    given_notes,
)
from pcv.analysis.results.numbers import NOISE, by_error, mcse_in_words, two_figures
from pcv.analysis.results.verdict import MIN_TERMS, deciding, in_words
from pcv.analysis.weights import stacking

__all__ = [
    "GIVEN_TESTED",
    "SIMULATED",
    "caveats",
    "deciding",
    "diag_diff",
    "estimator_in_words",
    "in_words",
    "predictive_in_words",
    "scores_notes",
    "scores_table",
    "table",
    "units_of",
    "wrapped",
]

WIDTH = 160
"""characters per line of prose"""


def wrapped(text: str) -> str:
    """Wrap prose at `WIDTH` characters, with a hanging indent.

    >>> max(len(line) for line in wrapped("a fold is flagged; " * 20).splitlines()) <= WIDTH
    True
    """
    return textwrap.fill(
        text, WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
    )


def scores_table(comparisons: Sequence[Comparison]) -> str:
    """Comparisons by scores other than the log score, as a text table by score and model.

    Args:
        comparisons: of `compare`, one per score and kind.
    """
    rows = [
        {
            "score": f"{c.score} ({c.kind}{', path' * ('path' in c.predict)})",
            "model": name,
            **_difference(c, m),
            "estimate": by_error(c.elpd[m], _error(c.mcse[m], c.se[m])),
            "se": two_figures(c.se[m]),
            "mcse": mcse_in_words(c.mcse[m], c.mcse_is_bound[m]),
        }
        for c in comparisons
        for m, name in enumerate(c.models)
    ]
    printed = pd.DataFrame(rows).set_index(["score", "model"])
    printed.index.names = [None, None]
    if all(len(c.models) == 1 for c in comparisons):
        printed = printed[["estimate", "se", "mcse"]]
    outcome = comparisons[0].outcome
    heading = f"Other scores of {outcome}, higher is better: errors and distances are negative"
    if "score_diff" in printed:
        several = len({c.reference for c in comparisons}) > 1
        comparator = "the model without p_better" if several else comparisons[0].reference
        heading += f"; differences from {comparator}"
    return "\n".join([heading, printed.to_string(), *scores_notes(comparisons)])


def _difference(c: Comparison, m: int) -> dict[str, str]:
    """Cells of a model's difference from the comparator; empty where no score is better."""
    if values_only(c):
        return dict.fromkeys(("score_diff", "dse", "mcse_diff", "p_better"), "")
    return {
        "score_diff": by_error(c.elpd_diff[m], _error(c.mcse_diff[m], c.dse[m])),
        "dse": two_figures(c.dse[m]),
        "mcse_diff": mcse_in_words(c.mcse_diff[m], c.mcse_diff_is_bound[m]),
        "p_better": "" if np.isnan(c.p_better[m]) else f"{c.p_better[m]:.2f}",
    }


def _error(mcse: float, se: float) -> float:
    """The error that digits are chosen by: a tenth of the SE where nothing is random, as of the
    share of outcomes that are right."""
    return mcse if mcse > NOISE else se / 10


def values_only(comparison: Comparison) -> bool:
    """Whether models are not ranked, as higher is not better: by coverage, say."""
    return bool(np.isnan(comparison.rank).all())


def scores_notes(comparisons: Sequence[Comparison]) -> list[str]:
    """Notes on scores other than the log score: too few draws, undefined values."""
    unsettled = [
        f"{c.score} ({c.kind})"
        for c in comparisons
        if ((c.mcse_diff > MAX_MCSE_SHARE * c.dse) & (c.dse > 0)).any()
    ]
    notes = [f"MCSE above {MAX_MCSE_SHARE:.0%} of the SE: {', '.join(unsettled)}; more draws"]
    undefined = [
        f"{c.score} ({c.kind}) of {name}: {words}"
        for c in comparisons
        for name, value, words in zip(c.models, c.elpd, c.verdict)
        if not np.isfinite(value)
    ]
    lines = dict.fromkeys(line for c in comparisons for line in given_notes(c))
    unranked = [c.score for c in comparisons if values_only(c)]
    several = any(len(c.models) > 1 for c in comparisons)
    no_better = f"{', '.join(unranked)}: higher is not better" + "; no differences" * several
    notes = notes * bool(unsettled) + [no_better] * bool(unranked)
    return [*notes, *undefined, *map(wrapped, lines)]


def kind_in_words(scores: Comparison | Scores) -> str:
    """Which log score, or other score, this is: joint, pointwise, or joint by group."""
    if scores.joint_by:
        return f"Joint {scores.score} score by {scores.joint_by}"
    return f"{scores.kind.capitalize()} {scores.score} score"


def units_of(terms: Sequence[str]) -> str:
    """Number of units of pointwise terms, in words.

    >>> units_of(["a", "b", "c"]), units_of(["a", "b", "a"])
    ('3 units', '3 terms of 2 units')
    """
    units = f"{len(set(terms))} units"
    return units if len(set(terms)) == len(terms) else f"{len(terms)} terms of {units}"


def table(comparison: Comparison, verdict: Sequence[str] | None = None) -> str:
    """The comparison as a text table, in the layout of `az.compare`.

    `elpd` and `elpd_diff` have one decimal, or as many as their MCSE allows; errors have two
    significant figures. `weight` is that of stacking. `diag_diff` is ArviZ's caution about
    `p_better`: with fewer than 100 terms, or a difference below 4, the normal approximation is
    rough.

    Args:
        comparison: of `compare`.
        verdict: per model, to print under the table; None: the comparison's own.

    Returns:
        A heading, the table, and a line for each model that needs more draws or is flagged.

    >>> from pcv.analysis.comparison import Scores, compare
    >>> def scores(model, *elpd):
    ...     return Scores(model, "joint", "log", "weight", "plain", "d", "f", ["a", "b", "c"],
    ...                   np.array(elpd), np.full(3, 0.1), np.arange(3), ["a", "b", "c"], "ok")
    >>> print(table(compare([scores("common", -1, -2, -3), scores("slopes", -1, -1, -2.5)])))
    Joint log score of weight, plain predictive: 3 folds; differences from slopes
            rank elpd_diff   dse mcse_diff p_better weight diag_diff  elpd   se  mcse
    slopes     0       0.0   0.0       0.0            1.00            -4.5  1.5  0.17
    common     1      -1.5  0.87      0.24     0.04   0.00   N < 100  -6.0  1.7  0.17
    common: the MCSE of its difference is 28% of the SE: more draws would shrink it
    """
    c = comparison
    of_subsample = {
        name: [two_figures(x) for x in getattr(c, name)] if c.is_subsample else None
        for name in ("subsampling_dse", "subsampling_se")
    }
    errors = {
        "se": [two_figures(x) for x in c.se],
        "subsampling_se": of_subsample["subsampling_se"],
        "mcse": [mcse_in_words(x, bound) for x, bound in zip(c.mcse, c.mcse_is_bound)],
    }
    of_diff, of_elpd = _computed(c)
    printed = pd.DataFrame(
        {
            "rank": c.rank,
            "elpd_diff": [by_error(x, e) for x, e in zip(c.elpd_diff, of_diff)],
            "dse": [two_figures(x) for x in c.dse],
            "subsampling_dse": of_subsample["subsampling_dse"],
            "mcse_diff": [
                mcse_in_words(x, bound) for x, bound in zip(c.mcse_diff, c.mcse_diff_is_bound)
            ],
            "p_better": ["" if np.isnan(p) else f"{p:.2f}" for p in c.p_better],
            "weight": None if c.is_subsample else [f"{w:.2f}" for w in stacking(c.elpd_diff_terms)],
            "diag_diff": diag_diff(c),
            "elpd": [by_error(x, e) for x, e in zip(c.elpd, of_elpd)],
            **errors,
        },
        index=c.models,
    )
    printed = printed.drop(columns=["weight"] if c.is_subsample else list(of_subsample))
    folds = f"{c.n_folds} fold{'s' * (c.n_folds > 1)}"
    size = folds if c.kind == "joint" else f"{units_of(c.term)} in {folds}"
    if c.joint_by:
        size = f"{len(c.term)} groups in {folds}"
    if c.is_subsample:
        size = f"{c.n_folds} of {c.num_terms:,} folds, chosen at random"
    heading = (
        f"{kind_in_words(c)} of {c.outcome},"
        f" {predictive_in_words(c.models, c.predictive)} predictive: {size}"
    )
    if len(c.models) == 1:
        printed = printed[[name for name in ("elpd", *errors) if name in printed]]
    else:
        heading += f"; differences from {c.reference}"
    said = c.verdict if verdict is None else verdict
    flagged = [f"{m}: {words}" for m, words in zip(c.models, said) if words != "ok"]
    notes = [wrapped(line) for line in (*error_notes(c), *flagged)]
    return "\n".join([heading, printed.to_string(), *notes])


def _computed(c: Comparison) -> tuple[np.ndarray, np.ndarray]:
    """By model, the size of errors from computing less than everything, of differences and elpds:
    what digits they allow."""
    return np.hypot(c.mcse_diff, c.subsampling_dse), np.hypot(c.mcse, c.subsampling_se)


def estimator_in_words(diagnostics: xr.Dataset) -> str:
    """How elpd of the sampled folds is estimated, and what is of their own draws all the same;
    empty if none is sampled.

    >>> nan = float("nan")
    >>> folds = {"rhat": ("fold", [1.0, 1.0, nan]), "overlap": ("fold", [0.9, 0.8, nan])}
    >>> print(estimator_in_words(xr.Dataset(folds)))
    Two-sided estimates of elpd; ESS, R-hat and k-hat are of the folds' own draws.
    """
    sampled = np.isfinite(diagnostics["rhat"].values)
    number, of = int(np.isfinite(diagnostics["overlap"].values[sampled]).sum()), int(sampled.sum())
    if not number:
        return "Estimates of elpd from the folds' own draws alone." if of else ""
    some = "" if number == of else f" in {number} of {of} folds"
    return f"Two-sided estimates of elpd{some}; ESS, R-hat and k-hat are of the folds' own draws."


def predictive_in_words(models: Sequence[str], predictive: Sequence[str]) -> str:
    """Which predictive was scored, by model where they differ.

    >>> predictive_in_words(["a", "b"], ["plain", "plain"])
    'plain'
    >>> predictive_in_words(["a", "b", "c"], ["marginal", "plain", "marginal"])
    'marginal (a, c) and plain (b)'
    """
    of: dict[str, list[str]] = {}
    for model, own in zip(models, predictive, strict=True):
        of.setdefault(own, []).append(model)
    if len(of) == 1:
        return next(iter(of))
    return " and ".join(f"{own} ({', '.join(of[own])})" for own in sorted(of))


def diag_diff(comparison: Comparison) -> list[str]:
    """Per model, why its `p_better` is rough; empty where it is not."""
    c = comparison
    few = c.num_terms < MIN_TERMS
    why = f"N < {MIN_TERMS}" if few else "|elpd_diff| < 4"
    rough = few | (np.abs(c.elpd_diff) < 4)
    return [why if x and not np.isnan(p) else "" for x, p in zip(rough, c.p_better)]


def caveats(comparison: Comparison) -> list[str]:
    """A line for each reason why `p_better` is rough, and on errors that more computing would
    shrink."""
    rough = {
        f"N < {MIN_TERMS}": f"from fewer than {MIN_TERMS} {noun(comparison)}s",
        "|elpd_diff| < 4": "of a difference below 4",
    }
    of_why: dict[str, list[str]] = {}
    for name, why in zip(comparison.models, diag_diff(comparison)):
        if why:
            of_why.setdefault(why, []).append(name)
    found = [
        f"{', '.join(names)}: Pr is a rough figure, {rough[why]}." for why, names in of_why.items()
    ]
    lines = [f"{line.removesuffix('.')}." for line in error_notes(comparison)]
    return [*found, *deciding(comparison), *lines]
