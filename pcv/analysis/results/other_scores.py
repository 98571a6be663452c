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
from pcv.analysis.results.reading import groups, units
from pcv.analysis.samples import log_sums, parts
from pcv.analysis.verdicts import heavy_tail

if TYPE_CHECKING:
    from pcv.models.scores import Score

LOG_PATH = "log_path_pointwise"
"""log score of units along simulated paths"""
OF_PREDICT = {"predict", "moments or predict"}
"""needs of scores that replicates meet"""


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
        `diagnostics` with ``<score>_<kind>`` (fold) or (fold, slot), ``<score>_<kind>_mcse`` (fold)
        and, of units, ``<score>_pointwise_slot_mcse`` (fold, slot). Where the total is a function,
        also ``<score>_pointwise_linear`` (fold, slot): terms that sum to the model's score, and
        MCSEs are those of terms and their sums. The attribute ``predict`` of a score from
        replicates is what these are given. With simulated paths, ``log_path_pointwise`` is their
        log score.
    """
    found: dict[str, Any] = {}
    notes = dict.fromkeys((score.key for score in scores), "ok")
    simulated = bool(diagnostics.attrs.get("simulated", 0))
    inflation = float(np.sqrt(diagnostics.attrs["batch_inflation"]))
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
        if simulated and OF_PREDICT.intersection(score.needs):
            attributes["predict"] = "path"
        found |= _variables(score.key, own, attributes, inflation)
        if own.linear is not None:
            found[f"{score.key}_linear"] = (("fold", "slot"), own.linear)
    if simulated:
        own, lone = _log_path(samples, diagnostics["unit_name"].values != "")
        notes[LOG_PATH] = f"{lone} units rest on few draws: more draws." if lone else "ok"
        found |= _variables(LOG_PATH, own, {"total": "sum", "predict": "path"}, inflation)
    of_all = {"scores": list(notes), "score_notes": list(notes.values())} if notes else {}
    return diagnostics.assign(found).assign_attrs(of_all)


class _Estimated(NamedTuple):
    """A score of all folds."""

    value: np.ndarray
    mcse: np.ndarray
    slot_mcse: np.ndarray | None
    """None: the score is of whole folds"""
    linear: np.ndarray | None = None
    """terms that sum to the model's score; None where the total is no function"""


def _variables(
    key: str, own: _Estimated, attributes: dict[str, str], inflation: float
) -> dict[str, Any]:
    variables: dict[str, Any] = {
        key: (("fold", "slot")[: own.value.ndim], own.value, attributes),
        f"{key}_mcse": ("fold", inflation * own.mcse),
    }
    if own.slot_mcse is not None:
        variables[f"{key}_slot_mcse"] = (("fold", "slot"), inflation * own.slot_mcse)
    return variables


def _log_path(samples: Sequence[xr.Dataset], present: np.ndarray) -> tuple[_Estimated, int]:
    r"""Log score along simulated paths of all units, and how many rest on few draws.

    .. math:: \log \frac1S \sum_{l,t} p(y_j \mid \theta_{lt}, y_\mathrm{train},
              \tilde y_{lt,1}, \dots, \tilde y_{lt,j-1})
    """
    each, heavy = [], 0
    for rows, part in groups(samples):
        sums, there = log_sums([part], "path"), present[rows]
        of_parts = [x.reshape(len(x), -1, *x.shape[3:]) for x in (sums.count, sums.log_sum)]
        count, log_sum = of_parts
        reached = count > 0
        with np.errstate(divide="ignore", invalid="ignore"):
            largest = np.where(reached[..., None], log_sum, -np.inf).max(axis=1)
            shift = np.where(np.isfinite(largest), largest, 0.0)
            density = np.exp(log_sum - shift[:, None]) / count[..., None]
            of_all = Parts(reached, np.log(count), {"density": density})
        estimate = partial(_log_mean, shift)
        result = batch_jackknife(of_all, estimate, there)
        value = np.where(there, result.value, np.nan)
        each.append((value, result.mcse, result.slot_mcse))
        alone = units(sums, there)
        heavy += int(heavy_tail(alone, np.full(len(alone.count), np.nan)).sum())
    return _Estimated(*(np.concatenate(x) for x in zip(*each))), heavy


def _log_mean(shift: np.ndarray, means: dict[str, np.ndarray]) -> np.ndarray:
    with np.errstate(divide="ignore"):
        return np.log(means["density"]) + shift


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
    values, errors, of_slots, lone = [], [], [], 0
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
        if result.slot_mcse is not None:
            of_slots.append(result.slot_mcse)
    slots = np.concatenate(of_slots) if of_slots else None
    return _Estimated(np.concatenate(values), np.concatenate(errors), slots, linear), lone


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
