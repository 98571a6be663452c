"""Comparisons as rows of comparison.csv, scores.csv and steps.csv, in full precision."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
import xarray as xr

from pcv.analysis.comparison import Comparison, compare
from pcv.analysis.results.scored import scores
from pcv.analysis.results.wording import diag_diff

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
STEP_COLUMNS = ("model", "elpd_diff", "dse", "mcse_diff", "p_better", "elpd", "se", "mcse")
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
    return pd.concat([_rows(c, SCORE_COLUMNS) for c in comparisons], ignore_index=True)


def by_step(diagnostics: Mapping[str, xr.Dataset], reference: str | None) -> pd.DataFrame:
    """Pointwise log scores by a unit's place in its test set: in leave-future-out, by steps ahead.

    Args:
        diagnostics: contents of each model's diagnostics artifact, by model name.
        reference: the comparator, or None for the best model at each step.

    Returns:
        For each step, from 1, a row per model, best first: ``step``, ``n_units``, which is the
        number of units at that place, and `STEP_COLUMNS`. MCSEs are of a fold's own draws.
    """
    first = next(iter(diagnostics.values()))
    fold, slot = np.nonzero(first["unit_name"].values != "")
    each = [(d, scores(d, "pointwise", "", "")) for d in diagnostics.values()]
    found = []
    for step in np.unique(slot):
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
            )
            for d, own in each
        ]
        rows = _rows(compare(some, reference), STEP_COLUMNS)
        rows.insert(0, "step", step + 1)
        rows.insert(1, "n_units", at.sum())
        found.append(rows)
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
