"""A comparison in words: which model predicts better, and whether to trust that."""

from collections.abc import Sequence

import numpy as np

from pcv.analysis.comparison import Comparison, noun, standard_error
from pcv.analysis.results.numbers import by_error, fixed, mcse_in_words, two_figures
from pcv.analysis.selection import Lead, lead_of_best

MIN_TERMS = 100
"""terms below which a probability is called rough, as in ArviZ"""

MIN_FOLDS = 5
"""folds below which any single one is decisive, so none is named"""

NUM_DECIDING = 5
"""terms that are named as those that decide a comparison"""


def in_words(comparison: Comparison) -> str:
    """The comparison in two sentences: which model predicts better, and whether to trust that.

    The best model is compared with the comparator or, if it is the comparator, with the next best.
    They are indistinguishable given the data if the difference plus two MCSEs is below its SE;
    otherwise, given the draws, if the difference is within two MCSEs or, where the MCSE exceeds
    half the SE, within twice the larger of both. Of a subsample, its SE counts with the MCSE, and
    the difference must exceed the root of both squared SEs. Of 12 models or more, the lead of the
    best must exceed what chance would give it (`pcv.analysis.selection`).

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
    mcse = np.hypot(mcse, c.subsampling_dse[row])
    se = "unknown" if np.isnan(dse) else two_figures(dse)
    size = f"(by {by_error(diff, mcse)}, SE {se}, {of_subsample}MCSE {error})"
    if c.mcse_diff_is_bound[row]:
        trust += " The MCSE is a lower bound: the predictive of some folds has a heavy tail."
    if not np.isfinite(diff):
        return f"{best} and {next_best} cannot be compared: an elpd is not finite. {trust}"
    if not c.elpd_diff_terms[row].any():
        return f"{best} and {next_best} have the same score in every {noun(c)}. {trust}"
    if not dse > 0:
        few = f"one {noun(c)} does" if c.num_terms == 1 else f"the {noun(c)}s at hand do"
        return (
            f"{best} predicts better than {next_best} {size}, but {few} not show how certain that "
            f"is. {trust}"
        )
    lead = lead_of_best(c)
    if lead is not None and lead.is_chance:
        return f"{_by_chance(c, lead)} {trust}"
    probability = c.p_better[0] if row == 0 else 1 - c.p_better[row]
    certain = "over 99%" if probability > 0.995 else f"{probability:.0%}"
    few = "" if c.num_terms >= MIN_TERMS else f", a rough figure from {c.num_terms} {noun(c)}s"
    if abs(diff) + 2 * mcse < dse:
        return (
            f"The data do not tell {best} and {next_best} apart: their difference is small compared"
            f" with its standard error {size}. {best} predicts left-out {noun(c)}s better with"
            f" probability {certain}{few}. {trust}"
        )
    least = 2 * (max(dse, mcse) if mcse > dse / 2 else mcse)
    if c.is_subsample:
        least = max(least, np.hypot(dse, c.subsampling_dse[row]))
    if abs(diff) < least:
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


def _by_chance(comparison: Comparison, lead: Lead) -> str:
    """That the best of many models may be so by chance."""
    c = comparison
    return (
        f"The best of {len(c.models)} models is no better than chance would make it: "
        f"{_quoted(c.models[:1])} leads the median model by {by_error(lead.lead, c.mcse[0])}, and "
        f"the best of as many equally good ones would by up to {two_figures(lead.by_chance)}. "
        "Average their predictions (weight) rather than choose one."
    )


def deciding(comparison: Comparison) -> list[str]:
    """A sentence that names the folds, or units, with the largest differences between the models
    of `in_words`; empty with fewer than twice as many."""
    c = comparison
    if len(c.models) == 1 or c.is_subsample:
        return []
    comparator = c.models.index(c.reference)
    other, row = (comparator, 0) if comparator else (1, 1)
    terms = c.elpd_diff_terms[row] * (1 if row == 0 else -1) / c.repeats
    names = list(dict.fromkeys(c.term))
    if c.overlap is not None and c.kind == "pointwise":
        terms = np.bincount(c.overlap.unit, terms)
    if len(terms) < 2 * NUM_DECIDING or not np.isfinite(terms).all() or not terms.any():
        return []
    largest = np.argsort(-np.abs(terms), kind="stable")[:NUM_DECIDING].tolist()
    error = c.mcse_diff[row] / np.sqrt(len(terms))
    listed = ", ".join(f"{names[i]} ({fixed(terms[i], error, 0, sign='+')})" for i in largest)
    rest = by_error(terms.sum() - terms[largest].sum(), c.mcse_diff[row])
    return [
        f"The {NUM_DECIDING} {noun(c)}s that decide most, '{c.models[0]}' minus "
        f"'{c.models[other]}': {listed}; without them the difference would be {rest}."
    ]


def _decided_by(comparison: Comparison, row: int) -> str:
    """Names the fold on which the conclusion depends, if any: it makes up more than half of the
    difference, and the difference over the other folds is within its SE."""
    c = comparison
    folds = c.elpd_diff_folds[row] * np.sign(c.elpd_diff[row])
    if len(folds) < MIN_FOLDS or c.is_subsample or c.repeats > 1:
        return ""
    largest = int(np.argmax(folds))
    others = np.delete(folds, largest)
    if others.sum() > min(folds[largest], standard_error(others[None])[0]):
        return ""
    left = by_error(others.sum(), c.mcse_diff[row])
    return f"One fold decides that: without '{c.fold[largest]}' the lead would be {left}. "
