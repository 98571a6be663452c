"""Scores other than the log score, and their Monte Carlo standard errors."""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import xarray as xr

from pcv.analysis.diagnostics.jackknife import (
    Parts,
    batch_bootstrap,
    batch_jackknife,
    pooled,
)
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
        (fold). Where the total is a function, also ``<score>_pointwise_linear`` (fold, slot): terms
        that sum to the model's score, and the MCSE is that of their sum over the fold's units.
    """
    found: dict[str, Any] = {}
    notes = dict.fromkeys((score.key for score in scores), "ok")
    for score in scores:
        own, lone = _estimated(score, samples, y, rng)
        if lone:
            terms = "units" if score.kind == "pointwise" else "folds"
            notes[score.key] = f"{lone} {terms} rest on one batch of draws: more draws."
        attributes: dict[str, str] = {"total": "function"}
        if isinstance(score.total, str):
            attributes["total"] = score.total
        if not score.oriented:
            attributes["oriented"] = "no"
        found[score.key] = (("fold", "slot")[: own.value.ndim], own.value, attributes)
        inflation = np.sqrt(diagnostics.attrs["batch_inflation"])
        found[f"{score.key}_mcse"] = ("fold", inflation * own.mcse)
        if own.linear is not None:
            found[f"{score.key}_linear"] = (("fold", "slot"), own.linear)
    of_all = {"scores": list(notes), "score_notes": list(notes.values())} if scores else {}
    return diagnostics.assign(found).assign_attrs(of_all)


class _Estimated(NamedTuple):
    """A score of all folds."""

    value: np.ndarray
    mcse: np.ndarray
    linear: np.ndarray | None
    """terms that sum to the model's score; None where the total is no function"""


def _estimated(
    score: "Score", samples: Sequence[xr.Dataset], y: np.ndarray, rng: np.random.Generator
) -> tuple[_Estimated, int]:
    """A score of all folds, and the number of folds or units that rest on one batch of draws."""
    present, by_unit = ~np.isnan(y), score.kind == "pointwise"
    weight, known, linear = np.ones(y.shape if by_unit else len(y)), None, None
    if not isinstance(score.total, str):
        each = [
            pooled(parts([part], score.key), partial(_estimate, score, y[rows], weight[rows]))
            for rows, part in groups(samples)
        ]
        known = np.concatenate(each)
        linear = np.full(y.shape, np.nan)
        weight[present], linear[present] = score.total(known[present], y[present])
    values, errors, lone = [], [], 0
    for rows, part in groups(samples):
        sums, there = parts([part], score.key), present[rows]
        shown = there if by_unit else None
        estimate = partial(_estimate, score, y[rows], weight[rows])
        if score.smooth:
            result = batch_jackknife(sums, estimate, shown)
        else:
            result = batch_bootstrap(sums, estimate, rng, shown)
        if score.log_weight is not None:
            lone += _num_dominated(sums, shown)
        value = result.value if known is None else known[rows]
        values.append(np.where(there, value, np.nan) if by_unit else value)
        errors.append(result.mcse)
    return _Estimated(np.concatenate(values), np.concatenate(errors), linear), lone


def _estimate(
    score: "Score", y: np.ndarray, weight: np.ndarray, means: dict[str, np.ndarray]
) -> np.ndarray:
    """The score times its weight in the model's score, where the total is a function."""
    return weight * score.estimate(means, y)


def _num_dominated(sums: Parts, present: np.ndarray | None) -> int:
    """Number of folds, or units, with more than half of their weight in one batch of draws."""
    with np.errstate(invalid="ignore"):
        weight = np.exp(sums.log_weight - np.nanmax(sums.log_weight, axis=1, keepdims=True))
        lone = 1 / np.nansum(weight, axis=1) > 0.5
    return int(lone.sum() if present is None else (lone & present).sum())
