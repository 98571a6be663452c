"""Comparisons, and sums from a subsample, as tables and in words."""

import textwrap
from collections.abc import Sequence

import numpy as np
import pandas as pd
import xarray as xr

from pcv.analysis.comparison import Comparison, noun, se_ratio, standard_error
from pcv.analysis.results.numbers import by_error, mcse_in_words, two_figures
from pcv.analysis.subsampling import Sum

MAX_MCSE_SHARE = 0.1
"""MCSE of a difference, as a share of its SE, above which the table asks for more draws"""

MIN_TERMS = 100
"""terms below which a probability is called rough, as in ArviZ"""

MIN_FOLDS = 5
"""folds below which any single one is decisive, so none is named"""

MIN_CHOSEN = 30
"""chosen terms below which rare terms with a poor surrogate are easily missed"""

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
            "score": f"{c.score} ({c.kind})",
            "model": name,
            **_difference(c, m),
            "estimate": by_error(c.elpd[m], c.mcse[m]),
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
        "score_diff": by_error(c.elpd_diff[m], c.mcse_diff[m]),
        "dse": two_figures(c.dse[m]),
        "mcse_diff": mcse_in_words(c.mcse_diff[m], c.mcse_diff_is_bound[m]),
        "p_better": "" if np.isnan(c.p_better[m]) else f"{c.p_better[m]:.2f}",
    }


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
    significant figures. `diag_diff` is ArviZ's caution about `p_better`: with fewer than 100
    terms, or a difference below 4, the normal approximation is rough.

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
            rank elpd_diff   dse mcse_diff p_better diag_diff  elpd   se  mcse
    slopes     0       0.0   0.0       0.0                     -4.5  1.5  0.17
    common     1      -1.5  0.87      0.24     0.04   N < 100  -6.0  1.7  0.17
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
            "diag_diff": diag_diff(c),
            "elpd": [by_error(x, e) for x, e in zip(c.elpd, of_elpd)],
            **errors,
        },
        index=c.models,
    )
    printed = printed.drop(columns=[] if c.is_subsample else list(of_subsample))
    folds = f"{c.n_folds} fold{'s' * (c.n_folds > 1)}"
    size = folds if c.kind == "joint" else f"{units_of(c.term)} in {folds}"
    if c.is_subsample:
        size = f"{c.n_folds} of {c.num_terms:,} folds, chosen at random"
    heading = (
        f"{c.kind.capitalize()} {c.score} score of {c.outcome},"
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


def mcse_notes(comparison: Comparison) -> list[str]:
    """A line for each model whose difference needs more draws."""
    c = comparison
    return [
        f"{m}: the MCSE of its difference is "
        + (
            f"at least {mcse / dse:.0%} of the SE: the predictive of some folds has a heavy tail"
            if bound
            else f"{mcse / dse:.0%} of the SE: more draws would shrink it"
        )
        for m, dse, mcse, bound in zip(c.models, c.dse, c.mcse_diff, c.mcse_diff_is_bound)
        if mcse > MAX_MCSE_SHARE * dse > 0
    ]


GIVEN_TESTED = (
    "pointwise scores are given other outcomes that the same fold tests (through lags, say), so "
    "that they are not forecasts of the whole horizon; the joint score is"
)


def given_notes(comparison: Comparison) -> list[str]:
    """Which models' units are scored given others that their folds test, and with which models
    these cannot be compared."""
    c = comparison
    names = [name for name, conditional in zip(c.models, c.given_tested) if conditional]
    if not names:
        return []
    rest = "; no difference from other models is given" * (len(names) < len(c.models))
    return [f"{', '.join(names)}: {GIVEN_TESTED}{rest}"]


def overlap_note(inflation: float, count: int) -> list[str]:
    """What SEs of so many terms allow for where test sets share units; empty where they do not.

    >>> overlap_note(4.0, 157)
    ['Test sets overlap: each SE is 2.0 times that of separate ones']
    """
    if inflation <= 1 + 1e-9:
        return []
    if np.isnan(ratio := se_ratio(inflation, count)):
        return ["All test sets are the same: they say nothing of an SE"]
    return [f"Test sets overlap: each SE is {ratio:.1f} times that of separate ones"]


def error_notes(comparison: Comparison) -> list[str]:
    """That test sets overlap, and `mcse_notes`; of a subsample, which of the three errors
    dominates, and what to do."""
    c = comparison
    if not c.is_subsample:
        return [*given_notes(c), *overlap_note(c.inflation, len(c.term)), *mcse_notes(c)]
    if len(c.models) == 1:
        found = Sum(c.elpd[0], c.subsampling_se[0], c.se[0], np.nan)
        return advice(found, c.mcse[0], len(c.term), c.num_terms, bool(c.mcse_is_bound[0]))
    errors = zip(c.elpd_diff, c.subsampling_dse, c.dse)
    return [
        f"{name} against {c.reference}: {line[0].lower()}{line[1:]}"
        for name, of_diff, mcse, bound in zip(c.models, errors, c.mcse_diff, c.mcse_diff_is_bound)
        for line in advice(Sum(*of_diff, np.nan), mcse, len(c.term), c.num_terms, bool(bound))
        if name != c.reference
    ]


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
    return [*found, *(f"{line.removesuffix('.')}." for line in error_notes(comparison))]


def in_words(comparison: Comparison) -> str:
    """The comparison in two sentences: which model predicts better, and whether to trust that.

    The best model is compared with the comparator or, if it is the comparator, with the next best.
    They are indistinguishable given the data if the difference plus two MCSEs is below its SE;
    otherwise, given the draws, if the difference is within two MCSEs or, where the MCSE exceeds
    half the SE, within twice the larger of both. Of a subsample, its SE counts with the MCSE.

    Args:
        comparison: of `compare`.

    >>> from pcv.analysis.comparison import Scores, compare
    >>> def scores(model, *elpd):
    ...     return Scores(model, "joint", "log", "weight", "plain", "d", "f", ["a", "b", "c"],
    ...                   np.array(elpd), np.full(3, 0.1), np.arange(3), ["a", "b", "c"], "ok")
    >>> in_words(compare([scores("b", -1, -2, -3), scores("a", -1, -1, -2.5)])).split(" (")[0]
    "'a' predicts left-out folds better than 'b', with probability 96%, a rough figure from 3 folds"
    """
    c = comparison
    flagged = [m for m, words in zip(c.models, c.verdict) if words != "ok"]
    trust = "No fold is flagged."
    if flagged:
        trust = f"Caution: the estimates of {_quoted(flagged)} are flagged, see the table."
    if len(c.models) == 1:
        return f"There is no model to compare {_quoted(c.models)} with. {trust}"
    comparator = c.models.index(c.reference)
    other, row = (comparator, 0) if comparator else (1, 1)
    diff, dse, mcse = c.elpd_diff[0] - c.elpd_diff[other], c.dse[row], c.mcse_diff[row]
    best, next_best = _quoted([c.models[0]]), _quoted([c.models[other]])
    error = mcse_in_words(mcse, c.mcse_diff_is_bound[row])
    of_subsample = f"subsampling SE {two_figures(c.subsampling_dse[row])}, " * c.is_subsample
    lacking = ("so few draws", "Monte Carlo")
    if c.subsampling_dse[row] > mcse:
        lacking = ("so small a subsample", "subsampling")
    mcse = _computed(c)[0][row]
    size = f"(by {by_error(diff, mcse)}, SE {two_figures(dse)}, {of_subsample}MCSE {error})"
    if c.mcse_diff_is_bound[row]:
        trust += " The MCSE is a lower bound: the predictive of some folds has a heavy tail."
    if not np.isfinite(diff):
        return f"{best} and {next_best} cannot be compared: an elpd is not finite. {trust}"
    if not c.elpd_diff_terms[row].any():
        return f"{best} and {next_best} have the same score in every {noun(c)}. {trust}"
    if not dse > 0:
        return (
            f"{best} predicts better than {next_best} {size}, but the {noun(c)}s at hand do not"
            f" show how certain that is. {trust}"
        )
    probability = c.p_better[0] if row == 0 else 1 - c.p_better[row]
    certain = "over 99%" if probability > 0.995 else f"{probability:.0%}"
    few = "" if c.num_terms >= MIN_TERMS else f", a rough figure from {c.num_terms} {noun(c)}s"
    if abs(diff) + 2 * mcse < dse:
        return (
            f"The data do not tell {best} and {next_best} apart: their difference is small compared"
            f" with its standard error {size}. {best} predicts left-out {noun(c)}s better with"
            f" probability {certain}{few}. {trust}"
        )
    if abs(diff) < 2 * (max(dse, mcse) if mcse > dse / 2 else mcse):
        return (
            f"{best} and {next_best} cannot be told apart with {lacking[0]} {size}: the"
            f" {lacking[1]} error is too large to distinguish their difference from 0. {trust}"
        )
    return (
        f"{best} predicts left-out {noun(c)}s better than {next_best}, with probability"
        f" {certain}{few} {size}. {_decided_by(c, row)}{trust}"
    )


def _quoted(names: Sequence[str]) -> str:
    return " and ".join(f"'{name}'" for name in names)


def _decided_by(comparison: Comparison, row: int) -> str:
    """Names the fold on which the conclusion depends, if any: it makes up more than half of the
    difference, and the difference over the other folds is within its SE."""
    c = comparison
    folds = c.elpd_diff_folds[row] * np.sign(c.elpd_diff[row])
    if len(folds) < MIN_FOLDS or c.is_subsample:
        return ""
    largest = int(np.argmax(folds))
    others = np.delete(folds, largest)
    if others.sum() > min(folds[largest], standard_error(others[None])[0]):
        return ""
    left = by_error(others.sum(), c.mcse_diff[row])
    return f"One fold decides that: without '{c.fold[largest]}' the lead would be {left}. "


def errors_apart(found: Sum, mcse: str) -> str:
    """An elpd with its three errors apart."""
    return (
        f"{'':12}{'Estimate':>12}{'SE':>8}{'Subsampling SE':>16}{'MCSE':>8}\n"
        f"{'elpd':12}{by_error(found.elpd, found.elpd_subsampling_se):>12}"
        f" {two_figures(found.se):>7} {two_figures(found.elpd_subsampling_se):>15} {mcse:>7}"
    )


def advice(found: Sum, mcse: float, chosen: int, num_terms: int, bound: bool = False) -> list[str]:
    """Which of the three errors dominates, and what to do about it.

    Args:
        found: an estimate.
        mcse: its Monte Carlo standard error; if `bound`, only a lower bound.
        chosen, num_terms: number of exact terms, and of all.

    >>> advice(Sum(-120.0, 0.4, 9.0, 0.2), 0.1, 400, 10_000)
    ['The SE dominates: only more data would shrink the error.']
    >>> advice(Sum(-120.0, 4.0, 9.0, 0.2), 0.1, 400, 10_000)[0]
    'The subsampling SE is 44% of the SE: a larger m or a better surrogate would shrink it.'
    """
    said = []
    largest = np.nanmax([found.se, found.elpd_subsampling_se, mcse, 0.0])
    if np.isnan(found.se):
        said.append(
            "The SE is unknown: the estimate of its square is negative; use a larger m or a better "
            "surrogate."
        )
    for error, name, remedy in (
        (found.elpd_subsampling_se, "subsampling SE", "a larger m or a better surrogate"),
        (mcse, "MCSE", "more draws"),
    ):
        if np.isnan(error):
            said.append(f"The {name} is unknown.")
        elif error > MAX_MCSE_SHARE * found.se:
            share = f"is {error / found.se:.0%} of the SE" if found.se > 0 else "exceeds the SE, 0"
            dominates = " and dominates" * bool(error == largest)
            said.append(f"The {name} {share}{dominates}: {remedy} would shrink it.")
    if bound:
        said.append("The MCSE is only a lower bound: the weights of some terms have a heavy tail.")
    if not said:
        said = ["The SE dominates: only more data would shrink the error."]
    elif found.se == largest:
        said.append("The SE dominates all the same.")
    if chosen < min(MIN_CHOSEN, num_terms):
        said.append(
            f"m is {chosen}: rare terms with a poor surrogate are easily missed; use {MIN_CHOSEN} "
            "or more."
        )
    return said
