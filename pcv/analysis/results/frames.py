"""Comparisons as rows of comparison.csv, scores.csv and cumulative.csv, unrounded."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from jaxtyping import Shaped

from pcv.analysis.alignment import order
from pcv.analysis.bootstrap import bootstrap, normal_interval, tail_khat
from pcv.analysis.comparison import Comparison, Scores, compare, standard_error
from pcv.analysis.results.scored import (
    cumulated,
    distinct_kinds,
    is_oriented,
    scores,
    shared_scores,
)
from pcv.analysis.results.wording import diag_diff
from pcv.analysis.standard_errors import over_repeats, overlap_of
from pcv.analysis.weights import stacking, stacking_se
from pcv.base.errors import PcvError

BOOTSTRAPPED = ("p_better_bb", "eti90_lb", "eti90_ub", "khat_diff")
"""by the Bayesian bootstrap: probability and 90% interval of a difference; and its k-hat"""
COLUMNS = (
    *("model", "kind", "rank", "elpd_diff", "dse", "mcse_diff", "mcse_diff_is_bound", "p_better"),
    *(*BOOTSTRAPPED, "weight", "weight_se"),
    *("diag_diff", "elpd", "se", "mcse", "mcse_is_bound", "n_folds", "predictive", "verdict"),
)
"""of comparison.csv"""
OF_REPEATS = ("repeats", "repeat_sd_diff", "repeat_sd")
"""further columns of comparison.csv, where folds are repeated"""
PAIR_COLUMNS = (
    *("elpd_diff", "dse", "mcse_diff", "mcse_diff_is_bound", "p_better", *BOOTSTRAPPED),
    "diag_diff",
)
"""of pairs.csv, after the names of both models"""
GROUP_COLUMNS = ("n_terms", "elpd", "elpd_diff", "dse", "mcse_diff", "p_better")
"""of `by_group`, after the group and the model"""
OF_SUBSAMPLES = ("subsampling_dse", "subsampling_se", "num_terms")
"""further columns of comparison.csv, where only some of the terms were scored"""
SCORE_COLUMNS = (
    *("score", "kind", "model", "rank", "score_diff", "dse", "mcse_diff", "mcse_diff_is_bound"),
    *("p_better", "estimate", "se", "mcse", "mcse_is_bound", "n_folds", "predictive", "predict"),
    "verdict",
)
"""of scores.csv"""
UNLIKELY = 1e-6
"""probability below which sizes of test sets are not uniform on 1, …, P"""


def frame(comparisons: Sequence[Comparison]) -> pd.DataFrame:
    """Comparisons by the log score, joint ones first.

    Returns:
        One row per model and kind, best first: the columns `COLUMNS`, `OF_SUBSAMPLES` and
        `OF_REPEATS`.
    """
    by_kind = sorted(comparisons, key=lambda c: c.kind)
    columns = COLUMNS + OF_SUBSAMPLES * any(c.is_subsample for c in comparisons)
    columns += OF_REPEATS * any(c.repeats > 1 for c in comparisons)
    columns += ("joint_by",) * any(c.joint_by for c in comparisons)
    return pd.concat([rows_of(c, columns) for c in by_kind], ignore_index=True)


def scores_frame(comparisons: Sequence[Comparison]) -> pd.DataFrame:
    """Comparisons by several scores.

    Args:
        comparisons: of `compare`, one per score and kind.

    Returns:
        One row per score, kind and model, best first: the columns `SCORE_COLUMNS`.
    """
    rows = pd.concat([rows_of(c, SCORE_COLUMNS) for c in comparisons], ignore_index=True)
    return rows.astype({"rank": "Int64"})  # some have none


def cumulative(
    diagnostics: Mapping[str, xr.Dataset], p: int, num_units: int, reference: str | None
) -> pd.DataFrame:
    r"""Cumulative scores S_CCV(P) from folds of up to P units, by `cumulated`.

    Args:
        diagnostics: contents of each model's diagnostics artifact, by model name.
        p: largest number of units that a fold may test, P.
        num_units: number of all units, n.
        reference: the comparator, or None for the best model by each score.

    Returns:
        A row per pointwise score that all models have and model, best first: ``score``, ``model``,
        ``s_ccv``, ``s_ccv_per_n``, which is S n/P, and its difference from the comparator.
        ``s_ccv_se`` and ``diff_se`` are over folds: more of them would shrink these. There is no
        sum of scores that are no sums or means over units (rmse, r2, balanced_accuracy), and of
        those that are not higher where a model is better (coverage, width).

    Raises:
        PcvError: folds do not test random numbers of units from 1 to P.
    """
    first = next(iter(diagnostics.values()))
    if "group_name" in first:
        raise PcvError("cumulative: joint_by has scored groups in place of units; leave it out")
    size = (first["unit_name"].values != "").sum(axis=1)
    within = (size.max() - size.min() + 1) / p  # as likely as this to the power of their number
    if size.max() > p or within ** len(size) < UNLIKELY:
        raise PcvError(
            f"cumulative: test sets have {size.min()} to {size.max()} units, not random numbers "
            f"from 1 to {p}; make folds by leave_p_out(n, {p}, up_to=True)"
        )
    names = ["log"]
    for name, kind in shared_scores(diagnostics):
        own = [d[f"{name}_{kind}"] for d in diagnostics.values() if f"{name}_{kind}" in d]
        totals = {x.attrs["total"] for x in own}
        sums = totals <= {"sum", "mean"}  # over units
        if kind == "pointwise" and sums and is_oriented(diagnostics, name, kind):
            names.append(name)
    found = []
    for name in names:
        c = compare([cumulated(d, p, name) for d in diagnostics.values()], reference)
        columns = {"score": name, "model": c.models, "s_ccv": c.elpd}
        columns |= {"s_ccv_per_n": c.elpd * num_units / p, "s_ccv_se": c.se, "s_ccv_mcse": c.mcse}
        columns |= {"s_ccv_diff": c.elpd_diff, "diff_se": c.dse, "diff_mcse": c.mcse_diff}
        found.append(pd.DataFrame(columns))
    return pd.concat(found, ignore_index=True)


def by_surrogate(diagnostics: xr.Dataset) -> pd.DataFrame:
    """Estimates from a subsample: with each surrogate that was asked for, the first of which is
    used, and with none."""
    of = {"elpd": "elpd", "se": "se", "subsampling_se": "elpd_subsampling_se"}
    names = pd.Index(diagnostics["by"].values, name="surrogate")
    return pd.DataFrame({name: diagnostics[f"{x}_by"].values for name, x in of.items()}, names)


def pairs(models: Sequence[Scores]) -> pd.DataFrame:
    """All pairs of models by one score: the difference of the first from the second, with both
    errors and its probabilities.

    Args:
        models: of all models, as for `compare`.

    Returns:
        One row per pair, better ones first: ``model``, ``other``, and `PAIR_COLUMNS`; of a
        subsample, ``subsampling_dse`` too.
    """
    ranked = compare(models).models
    columns = PAIR_COLUMNS + OF_SUBSAMPLES[:1] * compare(models).is_subsample
    found = []
    for place, other in enumerate(ranked):
        c = compare([s for s in models if s.model in ranked[: place + 1]], other)
        rows = rows_of(c, ("model", *columns))
        rows = rows[rows["model"] != other]
        rows.insert(1, "other", other)
        found.append(rows)
    rows = pd.concat(found, ignore_index=True)
    rank = {name: i for i, name in enumerate(ranked)}
    return rows.sort_values(["model", "other"], key=lambda x: x.map(rank), ignore_index=True)


def all_pairs(diagnostics: Mapping[str, xr.Dataset]) -> pd.DataFrame:
    """The rows of pairs.csv: `pairs` by the joint and the pointwise log score.

    Args:
        diagnostics: contents of each model's diagnostics artifact, by model name.
    """
    found = []
    for kind in distinct_kinds(diagnostics):
        rows = pairs([scores(d, kind, "", "") for d in diagnostics.values()])
        rows.insert(0, "kind", kind)
        found.append(rows)
    return pd.concat(found, ignore_index=True)


def by_group(
    models: Sequence[Scores],
    group: Shaped[np.ndarray, " term"],
    name: str,
    reference: str,
) -> pd.DataFrame:
    """Comparisons within groups of terms, whose differences add up to that of all.

    Args:
        models: of all models, as for `compare`; no subsamples.
        group: of every term of the first model.
        name: of the column that holds the groups.
        reference: the comparator.

    Returns:
        One row per group, in sorted order, and model, in the order of all: the group,
        ``model``, and `GROUP_COLUMNS`. SEs are NaN where a group has a single term. MCSEs are NaN
        where a fold's units are in several groups: they are known of whole folds.
    """
    overall = compare(models, reference)
    aligned = [_in_order(overall, s) for s in models]
    found = []
    for value in np.unique(group):
        c = compare([_some(s, group == value) for s in aligned], reference)
        rows = rows_of(c, ("model", *GROUP_COLUMNS[1:])).set_index("model").loc[overall.models]
        rows = rows.reset_index()
        rows.insert(0, name, value)
        rows.insert(2, GROUP_COLUMNS[0], int((group == value).sum()) // overall.repeats)
        found.append(rows)
    return pd.concat(found, ignore_index=True)


def _in_order(c: Comparison, scores: Scores) -> Scores:
    """Scores with terms in the order of a comparison."""
    first = scores._replace(
        model="", term=c.term, fold=c.fold, fold_of_term=c.fold_of_term, overlap=c.overlap
    )
    place = order(first, scores)
    mcse = np.array([scores.mcse[scores.fold.index(name)] for name in c.fold])
    elpd = np.asarray(scores.elpd)[place]
    return first._replace(model=scores.model, elpd=elpd, mcse=mcse, mcse_is_bound=False)


def _some(scores: Scores, some: np.ndarray) -> Scores:
    """Scores of some of the terms: sums over them are what these add to the sum of all."""
    fold = np.asarray(scores.fold_of_term)
    kept, fold_of_term = np.unique(fold[some], return_inverse=True)
    whole = np.array_equal(np.isin(fold, kept), some)
    overlap = scores.overlap
    if overlap is not None:
        joint = len(some) != overlap.unit.size
        tested = np.isin(overlap.fold, kept) if joint else some
        _, of_kept = np.unique(overlap.fold[tested], return_inverse=True)
        sub = overlap_of(overlap.unit[tested], of_kept)
        overlap = None if sub is None else sub._replace(repeats=overlap.repeats)
    return scores._replace(
        elpd=scores.elpd[some],
        term=[scores.term[i] for i in np.flatnonzero(some).tolist()],
        fold=[scores.fold[k] for k in kept.tolist()],
        fold_of_term=fold_of_term,
        mcse=scores.mcse[kept] if whole else np.full(kept.size, np.nan),
        shared=scores.shared * (some.sum() / some.size) ** 2,  # in proportion to numbers of terms
        overlap=overlap,
    )


def rows_of(c: Comparison, columns: Sequence[str]) -> pd.DataFrame:
    """A row per model, best first, of columns that a table of comparisons has."""
    own: dict[str, Any] = {
        "model": c.models,
        "diag_diff": diag_diff(c),
        "score_diff": c.elpd_diff,
        "estimate": c.elpd,
    }
    if "p_better_bb" in columns:
        own |= dict(zip(BOOTSTRAPPED, np.transpose([_bootstrapped(c, m) for m in _others(c)])))
    if "weight" in columns:
        unknown = np.full(len(c.models), np.nan)
        known = len(c.models) > 1 and not c.is_subsample
        own["weight"] = stacking(c.elpd_diff_terms) if known else unknown
        own["weight_se"] = _weight_se(c) if known else unknown
    return pd.DataFrame({name: own[name] if name in own else getattr(c, name) for name in columns})


def _weight_se(c: Comparison) -> np.ndarray:
    """SE of stacking weights; unknown for folds that share units."""
    if c.overlap is None:
        return stacking_se(c.elpd_diff_terms)
    if c.kind == "joint":
        return np.full(len(c.models), np.nan)
    return stacking_se(c.elpd_diff_terms, c.overlap.unit)


def _others(c: Comparison) -> list[int | None]:
    """Indices of the models, None for the comparator."""
    return [None if name == c.reference else m for m, name in enumerate(c.models)]


def _bootstrapped(c: Comparison, model: int | None) -> tuple[float, float, float, float]:
    """`BOOTSTRAPPED` of a difference. Of a subsample, the interval is by Student's t, from the SE
    and that of subsampling; the rest is unknown."""
    if model is None:
        return (np.nan,) * 4
    if c.is_subsample:
        error = float(np.hypot(c.dse[model], c.subsampling_dse[model]))
        return (np.nan, *normal_interval(float(c.elpd_diff[model]), error, c.df), np.nan)
    terms = over_repeats(c.elpd_diff_terms[[model]], c.overlap)[0]
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio = float(c.dse[model] / standard_error(terms[None])[0])
    return (*bootstrap(terms, c.df, ratio), tail_khat(terms))
