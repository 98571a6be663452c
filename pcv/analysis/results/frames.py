"""Comparisons as rows of comparison.csv and scores.csv, in full precision."""

from collections.abc import Sequence

import pandas as pd
import xarray as xr

from pcv.analysis.comparison import Comparison
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
