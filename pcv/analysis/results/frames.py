"""Comparisons as rows of comparison.csv, scores.csv, steps.csv and cumulative.csv, unrounded."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
import xarray as xr

from pcv.analysis.comparison import Comparison, compare, overlap_inflation
from pcv.analysis.results.scored import cumulated, is_oriented, scores, shared_scores
from pcv.analysis.results.wording import diag_diff
from pcv.base.errors import PcvError

COLUMNS = (
    *("model", "kind", "rank", "elpd_diff", "dse", "mcse_diff", "mcse_diff_is_bound", "p_better"),
    *("diag_diff", "elpd", "se", "mcse", "mcse_is_bound", "n_folds", "predictive", "verdict"),
)
"""of comparison.csv"""
OF_SUBSAMPLES = ("subsampling_dse", "subsampling_se", "num_terms")
"""further columns of comparison.csv, where only some of the terms were scored"""
SCORE_COLUMNS = (
    *("score", "kind", "model", "rank", "score_diff", "dse", "mcse_diff", "mcse_diff_is_bound"),
    *("p_better", "estimate", "se", "mcse", "mcse_is_bound", "n_folds", "predictive", "verdict"),
)
"""of scores.csv"""
UNLIKELY = 1e-6
"""probability below which sizes of test sets are not uniform on 1, …, P"""
STEP_COLUMNS = (
    "model",
    "elpd_diff",
    "dse",
    "mcse_diff",
    "p_better",
    "diag_diff",
    "elpd",
    "se",
    "mcse",
)
"""of steps.csv, after the step and its number of units"""


def frame(comparisons: Sequence[Comparison]) -> pd.DataFrame:
    """Comparisons by the log score, joint ones first.

    Returns:
        One row per model and kind, best first: the columns `COLUMNS`, and `OF_SUBSAMPLES`.
    """
    by_kind = sorted(comparisons, key=lambda c: c.kind)
    columns = COLUMNS + OF_SUBSAMPLES * any(c.is_subsample for c in comparisons)
    return pd.concat([_rows(c, columns) for c in by_kind], ignore_index=True)


def scores_frame(comparisons: Sequence[Comparison]) -> pd.DataFrame:
    """Comparisons by several scores.

    Args:
        comparisons: of `compare`, one per score and kind.

    Returns:
        One row per score, kind and model, best first: the columns `SCORE_COLUMNS`.
    """
    rows = pd.concat([_rows(c, SCORE_COLUMNS) for c in comparisons], ignore_index=True)
    return rows.astype({"rank": "Int64"})  # some have none


def by_step(diagnostics: Mapping[str, xr.Dataset], reference: str | None) -> pd.DataFrame:
    """Pointwise log scores by a unit's place in its test set: in leave-future-out, by steps ahead.

    Args:
        diagnostics: contents of each model's diagnostics artifact, by model name.
        reference: the comparator, or None for the best model at each step.

    Returns:
        For each step, from 1, a row per model, best first: ``step``, ``n_units``, which is the
        number of units at that place, ``steps_ahead``, at most the shortest lag of a model that
        is given tested units before, and `STEP_COLUMNS`. Differences of models whose steps ahead
        are not the same are NaN. MCSEs are of a fold's own draws.
    """
    first = next(iter(diagnostics.values()))
    fold, slot = np.nonzero(first["unit_name"].values != "")
    each = [(d, scores(d, "pointwise", "", "")) for d in diagnostics.values()]
    lags = {own.model: int(d.attrs["given_tested"]) for d, own in each}
    ahead = {name: lag or 1 + int(slot.max()) for name, lag in lags.items()}
    found = []
    for step in np.unique(slot).tolist():
        at = slot == step
        some = [
            own._replace(
                elpd=own.elpd[at],
                mcse=d["pointwise_own_mcse"].values[fold[at], step],
                term=[own.term[i] for i in np.flatnonzero(at).tolist()],
                fold=[own.fold[i] for i in fold[at].tolist()],
                fold_of_term=np.arange(at.sum()),
                mcse_is_bound=d["pointwise_mcse_is_bound"].values[fold[at]],
                shared=0.0,
                inflation=_repeated(own.term, at),
                given_tested=step + 1 > ahead[own.model],
            )
            for d, own in each
        ]
        rows = _rows(compare(some, reference), STEP_COLUMNS)
        rows.insert(0, "step", step + 1)
        rows.insert(1, "n_units", at.sum())
        rows.insert(2, "steps_ahead", [min(step + 1, ahead[name]) for name in rows["model"]])
        found.append(rows)
    return pd.concat(found, ignore_index=True)


def _repeated(terms: Sequence[str], some: np.ndarray) -> tuple[float, float]:
    """Of `overlap_inflation`, of some of the units, each a fold's only one."""
    _, unit = np.unique(np.array(terms)[some], return_inverse=True)
    return (overlap_inflation(unit, np.arange(unit.size)),) * 2


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
    size = (next(iter(diagnostics.values()))["unit_name"].values != "").sum(axis=1)
    within = (size.max() - size.min() + 1) / p  # as likely as this to the power of their number
    if size.max() > p or within ** len(size) < UNLIKELY:
        raise PcvError(
            f"cumulative: test sets have {size.min()} to {size.max()} units, not random numbers "
            f"from 1 to {p}; make folds by leave_p_out(n, {p}, up_to=True)"
        )
    names = ["log"]
    for name, kind in shared_scores(diagnostics):
        totals = {d[f"{name}_{kind}"].attrs["total"] for d in diagnostics.values()}
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


def _rows(c: Comparison, columns: Sequence[str]) -> pd.DataFrame:
    own = {
        "model": c.models,
        "diag_diff": diag_diff(c),
        "score_diff": c.elpd_diff,
        "estimate": c.elpd,
    }
    return pd.DataFrame({name: own[name] if name in own else getattr(c, name) for name in columns})
