"""Scores other than the log score, and their Monte Carlo standard errors."""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from pcv.analysis.diagnostics.jackknife import Parts, batch_bootstrap, batch_jackknife
from pcv.analysis.results.reading import groups
from pcv.analysis.samples import parts

if TYPE_CHECKING:
    from pcv.models.scores import Score


def with_scores(
    diagnostics: xr.Dataset,
    samples: Sequence[xr.Dataset],
    scores: "Sequence[Score]",
    y: np.ndarray,
    rng: np.random.Generator,
) -> xr.Dataset:
    """Add estimates of scores other than the log score, and their MCSEs.

    Args:
        diagnostics: of `diagnose`.
        samples: the sample artifacts of all fold batches, in order.
        scores: the scores to estimate.
        y: outcome of the test sets (fold, slot), NaN in padded slots.
        rng: random generator for the bootstrap of discontinuous scores.

    Returns:
        `diagnostics` with ``<score>_<kind>`` (fold) or (fold, slot), and ``<score>_<kind>_mcse``
        (fold).
    """
    found: dict[str, Any] = {}
    notes = dict.fromkeys((score.key for score in scores), "ok")
    present = ~np.isnan(y)
    for score in scores:
        by_unit = score.kind == "pointwise"
        values, errors, lone = [], [], 0
        for rows, part in groups(samples):
            sums, there = parts([part], score.key), present[rows]
            shown = there if by_unit else None
            estimate = partial(_estimate, score, y[rows])
            if score.smooth:
                result = batch_jackknife(sums, estimate, shown)
            else:
                result = batch_bootstrap(sums, estimate, rng, shown)
            if score.log_weight is not None:
                lone += _num_dominated(sums, shown)
            values.append(np.where(there, result.value, np.nan) if by_unit else result.value)
            errors.append(np.sqrt(diagnostics.attrs["batch_inflation"]) * result.mcse)
        if lone:
            terms = "units" if by_unit else "folds"
            notes[score.key] = f"{lone} {terms} rest on one batch of draws: more draws."
        value = np.concatenate(values)
        found[score.key] = (("fold", "slot")[: value.ndim], value, {"total": score.total})
        found[f"{score.key}_mcse"] = ("fold", np.concatenate(errors))
    attributes = {"scores": list(notes), "score_notes": list(notes.values())} if scores else {}
    return diagnostics.assign(found).assign_attrs(attributes)


def _estimate(score: "Score", y: np.ndarray, means: dict[str, np.ndarray]) -> np.ndarray:
    return score.estimate(means, y)


def _num_dominated(sums: Parts, present: np.ndarray | None) -> int:
    """Number of folds, or units, with more than half of their weight in one batch of draws."""
    with np.errstate(invalid="ignore"):
        weight = np.exp(sums.log_weight - np.nanmax(sums.log_weight, axis=1, keepdims=True))
        lone = 1 / np.nansum(weight, axis=1) > 0.5
    return int(lone.sum() if present is None else (lone & present).sum())
