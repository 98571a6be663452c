"""Scores by a unit's place in its test set, as rows of steps.csv: by steps ahead."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
import xarray as xr

from pcv.analysis.comparison import compare
from pcv.analysis.results.frames import rows_of
from pcv.analysis.results.scored import is_oriented, linearised, scores, shared_scores
from pcv.analysis.scores import Scores
from pcv.analysis.standard_errors import Overlap, overlap_of
from pcv.base.errors import PcvError

COLUMNS = ("model", "elpd_diff", "dse", "mcse_diff", "p_better", "diag_diff", "elpd", "se", "mcse")
"""of steps.csv, after the step, its number of units, the steps ahead and `predict`"""
OF_SCORE = {
    "estimate": "",
    "se": "_se",
    "mcse": "_mcse",
    "score_diff": "_diff",
    "dse": "_dse",
    "mcse_diff": "_mcse_diff",
}
"""columns of every further score → what follows its name"""


def by_step(diagnostics: Mapping[str, xr.Dataset], reference: str | None) -> pd.DataFrame:
    """Pointwise scores by a unit's place in its test set: in leave-future-out, by steps ahead.

    Args:
        diagnostics: contents of each model's diagnostics artifact, by model name.
        reference: the comparator, or None for the best model at each step.

    Returns:
        For each step, from 1, a row per model, best first: ``step``, ``n_units``, which is the
        number of units at that place, ``steps_ahead``, ``predict``, `COLUMNS`, and of each
        further pointwise score that all models have those of `OF_SCORE`. ``predict`` says what a
        unit is given of those that its fold tests before it: "path", simulated outcomes, and elpd
        is ``log_path``; "conditional", the observed ones, so that steps ahead are at most the
        model's shortest lag; "either", none. Differences of models whose steps ahead are not the
        same are NaN. MCSEs are of a fold's own draws.
    """
    first = next(iter(diagnostics.values()))
    if "group_name" in first:
        raise PcvError("by_step: joint_by has scored groups in place of units; leave it out")
    slots = np.nonzero(first["unit_name"].values != "")[1]
    further = [
        name
        for name, kind in shared_scores(diagnostics)
        if kind == "pointwise" and name != "log_path" and _adds_up(diagnostics, name)
    ]
    found = []
    for step in np.unique(slots).tolist():
        of_log = {x.model: x for x in (_at_step(d, "log", step) for d in diagnostics.values())}
        rows = rows_of(compare([*of_log.values()], reference), COLUMNS)
        each = [diagnostics[name] for name in rows["model"]]
        rows.insert(0, "step", step + 1)
        rows.insert(1, "n_units", int((slots == step).sum()))
        rows.insert(2, "steps_ahead", [min(step + 1, _ahead(d) or step + 1) for d in each])
        rows.insert(3, "predict", [of_log[name].predict for name in rows["model"]])
        for name in further:
            c = compare([_at_step(d, name, step) for d in diagnostics.values()], reference)
            more = rows_of(c, ("model", *OF_SCORE)).set_index("model")
            more.columns = [f"{name}{ending}" for ending in OF_SCORE.values()]
            if not is_oriented(diagnostics, name, "pointwise"):
                more = more.iloc[:, :3]  # the value and its errors
            rows = rows.join(more, on="model")
        found.append(rows)
    return pd.concat(found, ignore_index=True)


def _adds_up(diagnostics: Mapping[str, xr.Dataset], name: str) -> bool:
    """Whether a score of some units follows from their terms, whose errors are known."""
    key = f"{name}_pointwise"
    return all(
        d[key].attrs["total"] != "function" and f"{key}_slot_mcse" in d
        for d in diagnostics.values()
    )


def _ahead(diagnostics: xr.Dataset) -> int:
    """Most steps that a model's log scores look ahead; 0: as many as there are."""
    simulated = diagnostics.attrs.get("simulated", 0)
    return 0 if simulated else int(diagnostics.attrs["given_tested"])


def _at_step(diagnostics: xr.Dataset, score: str, step: int) -> Scores:
    """A model's scores of the units at one place of their test sets."""
    d, simulated = diagnostics, diagnostics.attrs.get("simulated", 0)
    is_path = bool(score == "log" and simulated)
    own = scores(d, "pointwise", "", "", "log_path" if is_path else score)
    fold, slot = np.nonzero(d["unit_name"].values != "")
    some = slot == step
    overlap = _repeated(own.term, some)
    plain = score == "log" and not is_path
    key = "pointwise_elpd" if plain else "log_path_pointwise" if is_path else f"{score}_pointwise"
    error = "pointwise_own_mcse" if plain else f"{key}_slot_mcse"
    terms, total = d[key].values[fold[some], step], str(d[key].attrs.get("total", "sum"))
    slope, constant = linearised(terms, total, overlap.repeats if overlap else 1)
    lag = int(d.attrs["given_tested"])
    return own._replace(
        score=score,
        elpd=constant + slope * terms,
        mcse=slope * d[error].values[fold[some], step],
        term=[own.term[i] for i in np.flatnonzero(some).tolist()],
        fold=[own.fold[i] for i in fold[some].tolist()],
        fold_of_term=np.arange(some.sum()),
        mcse_is_bound=d["pointwise_mcse_is_bound"].values[fold[some]] if plain else False,
        shared=0.0,
        overlap=overlap,
        given_tested=own.predict == "conditional" and step + 1 > lag,
    )


def _repeated(terms: Sequence[str], some: np.ndarray) -> Overlap | None:
    """How some of the units overlap, each a fold's only one."""
    _, unit = np.unique(np.array(terms)[some], return_inverse=True)
    return overlap_of(unit, np.arange(unit.size))
