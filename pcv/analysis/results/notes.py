"""Notes under a table of comparisons: what to know of the errors, and what would shrink them."""

import numpy as np

from pcv.analysis.bootstrap import tail_khat
from pcv.analysis.comparison import Comparison
from pcv.analysis.results.numbers import by_error, two_figures
from pcv.analysis.standard_errors import LEAST_SEPARATE, Overlap, over_repeats, se_ratio
from pcv.analysis.subsampling import Sum

MAX_MCSE_SHARE = 0.1
"""MCSE of a difference, as a share of its SE, above which the table asks for more draws"""

MAX_KHAT = 0.7
"""k-hat of differences above which single terms decide the SE"""

MIN_CHOSEN = 30
"""chosen terms below which rare terms with a poor surrogate are easily missed"""


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

SIMULATED = (
    "replicates of tested units are simulated paths (predict: path), and so are the scores made of "
    "them and log_path; the pointwise log score is given tested outcomes"
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


def single_note(count: int, kind: str) -> list[str]:
    """That a single term has no SE.

    Args:
        count: number of terms.
        kind: joint or pointwise.

    >>> single_note(1, "joint")
    ['No SE: one fold shows no spread of its joint score; the pointwise score has an SE over units']
    """
    if count > 1:
        return []
    if kind == "pointwise":
        return ["No SE: one unit shows no spread of its score"]
    why = "one fold shows no spread of its joint score"
    return [f"No SE: {why}; the pointwise score has an SE over units"]


def overlap_note(overlap: Overlap | None, count: int) -> list[str]:
    """What SEs of so many terms allow for where test sets share units; empty where they do not.

    >>> from pcv.analysis.standard_errors import overlap_of
    >>> windows = np.arange(157)[:, None] + np.arange(4)
    >>> overlap_note(overlap_of(windows.ravel(), np.repeat(np.arange(157), 4)), 157)
    ['Test sets overlap: each SE is at least 2.0 times that of separate ones']
    """
    if overlap is None:
        return []
    joint = count != overlap.unit.size
    ratio = se_ratio(overlap.of_folds if joint else overlap.of_terms, count)
    if np.isnan(ratio):
        return ["All test sets are the same: they say nothing of an SE"]
    if overlap.repeats > 1:
        over = "over folds that share units" if joint else "over units"
        return [f"Scores are means over {overlap.repeats} repeats of the folds, each SE is {over}"]
    if overlap.reach is None:
        return [f"Test sets overlap: each SE is {ratio:.1f} times that of separate ones"]
    if int(overlap.fold[-1]) + 1 < LEAST_SEPARATE * (overlap.reach + 1):
        return [
            f"No SE: each test set shares units with the {overlap.reach} after it, so that fewer "
            f"than {LEAST_SEPARATE} are separate; use smaller test sets or more data"
        ]
    return [f"Test sets overlap: each SE is at least {ratio:.1f} times that of separate ones"]


def repeat_notes(comparison: Comparison) -> list[str]:
    """How far elpd, or differences, of one repeat of the folds are apart."""
    c = comparison
    if c.repeats == 1:
        return []
    if len(c.models) == 1:
        return [f"Standard deviation of elpd over repeats: {two_figures(c.repeat_sd[0])}"]
    spreads = [
        f"{name} {two_figures(sd)}"
        for name, sd in zip(c.models, c.repeat_sd_diff)
        if name != c.reference
    ]
    return [f"Standard deviation of a difference over repeats: {', '.join(spreads)}"]


def khat_notes(comparison: Comparison) -> list[str]:
    """A line for each model whose differences have a heavy tail."""
    c = comparison
    terms = over_repeats(c.elpd_diff_terms, c.overlap)
    khats = [np.nan if c.is_subsample else tail_khat(x) for x in terms]
    return [
        f"{name}: k-hat of its differences is {khat:.2f}, above {MAX_KHAT}: few of them decide, "
        "so that dse and p_better may be too optimistic"
        for name, khat in zip(c.models, khats)
        if khat > MAX_KHAT
    ]


def error_notes(comparison: Comparison) -> list[str]:
    """That test sets overlap, that single terms decide, and `mcse_notes`; of a subsample, which of
    the three errors dominates, and what to do."""
    c = comparison
    if not c.is_subsample:
        single = single_note(len(c.term), c.kind)
        overlap = [*single, *overlap_note(c.overlap, len(c.term))]
        return [*given_notes(c), *overlap, *repeat_notes(c), *khat_notes(c), *mcse_notes(c)]
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
