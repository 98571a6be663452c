"""Estimates and diagnostics of all folds of a model, from stored sums. Uses no JAX."""

from collections.abc import Mapping, Sequence

import numpy as np
import xarray as xr

from pcv.analysis import comparison, results
from pcv.analysis.calibration import sentence
from pcv.analysis.diagnostics import SHORT_BATCHES
from pcv.analysis.predictions import merged as merged_predictions
from pcv.analysis.predictions import predictions
from pcv.analysis.results.by_psis import merged
from pcv.analysis.results.predicted import calibration_of
from pcv.analysis.results.predicted import note as note_on_predictions
from pcv.analysis.subspace import with_subspace
from pcv.base.monitor import Monitor
from pcv.base.names import name_bits
from pcv.base.storable import true_names
from pcv.core.problem import Problem
from pcv.core.settings import Settings
from pcv.core.subsample import merge_subsample
from pcv.folds.base import evenly

CHECKED_FOLDS = 100
"""number of folds used to check the batch size on full-data draws"""


def diagnose(
    problem: Problem,
    fit: xr.DataTree,
    warmup: xr.Dataset | None,
    samples: Sequence[xr.Dataset],
    settings: Settings,
    monitor: Monitor,
    surrogates: xr.DataTree | None = None,
    chosen: xr.Dataset | None = None,
) -> xr.DataTree:
    """Estimates and diagnostics of all folds of a model, and predictions of their units.

    Args:
        problem: with all folds.
        fit: of the full data.
        warmup: of the first batch of folds; None: none is sampled.
        samples: of each batch of folds, of all rounds.
        settings: of the folds' chains.
        monitor: takes messages.
        surrogates: of `compute_surrogates`, of schemes that are scored from the full data.
        chosen: the terms that are scored, of `choose_terms`; None: all.

    Returns:
        What `pcv.analysis.results.diagnose` returns, and as the group "predictions" what
        `pcv.analysis.predictions.predictions` does.
    """
    diagnosed, num_sampled = None, sum(sample.sizes["fold"] for sample in samples)
    if num_sampled:
        assert warmup is not None
        diagnosed = _sampled(problem, fit, warmup, samples, settings, monitor)
    if surrogates is not None and chosen is not None:
        diagnosed = merge_subsample(surrogates, diagnosed, chosen)
    elif surrogates is not None:
        diagnosed = merged(surrogates["folds"].to_dataset().load(), diagnosed)
    assert diagnosed is not None
    if settings.kernel is not None and warmup is not None and num_sampled:
        diagnosed = with_subspace(diagnosed, warmup, num_sampled)
    flagged = int((diagnosed["verdict"].values != "ok").sum())
    elpd = comparison.total(results.scores(diagnosed, "joint", "", "")).elpd
    monitor.log(
        f"elpd {elpd:.1f} (joint), {results.rhat_max_in_words(diagnosed)}, {flagged} of "
        f"{diagnosed.sizes['fold']} folds flagged"
    )
    groups = {"/": diagnosed}
    if settings.predictions:
        predicted = _predictions_of_sampled(problem, samples, settings)
        if surrogates is not None and "predictions" in surrogates:
            of_psis = surrogates["predictions"].to_dataset()
            predicted = merged_predictions(of_psis, predicted, diagnosed["fold"].values)
        predicted = xr.Dataset() if predicted is None else predicted
        notes = _notes_on(predicted, problem, settings)
        for note in notes.values():
            monitor.log(note)
        diagnosed.attrs |= notes
        outcome = problem.model.outcome
        if outcome.categories is not None and outcome.categories > 2:
            kind = "ordinal" if outcome.ordered else "categorical"
            predicted = predicted.assign_attrs(categories=kind)
        groups["predictions"] = predicted
    return xr.DataTree.from_dict(groups)


def _notes_on(predicted: xr.Dataset, problem: Problem, settings: Settings) -> dict[str, str]:
    """What is missing in predictions, and whether these are calibrated, in words by attribute."""
    room = problem.keeps(settings, 1).replicated * settings.cv.chains
    wanted = settings.predictions if room < settings.predictions else 0
    notes = {"predictions": note_on_predictions(predicted, wanted)}
    if "y_rep" in predicted:
        discrete = bool(problem.model.outcome.discrete)
        notes["calibration"] = sentence(calibration_of(predicted), discrete)
    return {name: note for name, note in notes.items() if note}


def _sampled(
    problem: Problem,
    fit: xr.DataTree,
    warmup: xr.Dataset,
    samples: Sequence[xr.Dataset],
    settings: Settings,
    monitor: Monitor,
) -> xr.Dataset:
    """Estimates and diagnostics of the folds that are sampled."""
    drawn = [sample for sample in samples if sample.sizes["fold"]]
    names = np.concatenate([sample["fold"].values for sample in drawn]).astype(str)
    layout = problem.layout.sel(fold=names)
    seeds = [problem.seed, name_bits("diagnose"), name_bits(problem.name)]
    rng, throttled = np.random.default_rng(seeds), monitor.throttled()
    checks, units = fit["checks"].to_dataset(), problem.data["unit"].values
    diagnosed = results.diagnose(drawn, layout, units, checks, rng, problem.name, throttled)
    y = np.empty(0)
    if problem.scores:
        y = problem.observed(problem.named(names))
    diagnosed = results.with_scores(diagnosed, drawn, problem.scores, y, rng)
    if "log_weight" in fit["sample_stats"]:  # independent draws: nothing to learn of chains
        return diagnosed
    full = _scores_at_full_data(problem, fit, warmup, layout["test"].values)
    if full is not None:
        diagnosed = results.with_batch_check(diagnosed, full)
    _warn_of_short_batches(diagnosed, monitor)
    return diagnosed


def _predictions_of_sampled(
    problem: Problem, samples: Sequence[xr.Dataset], settings: Settings
) -> xr.Dataset | None:
    """Replicates of the sampled folds' units, PITs, and draws of the parameters."""
    drawn = [sample for sample in samples if sample.sizes["fold"]]
    if not drawn:
        return None
    folds = problem.named(np.concatenate([sample["fold"].values for sample in drawn]))
    outcome = np.asarray(problem.arrays[problem.outcome], float)
    num_params = drawn[0].sizes.get("param", 1)
    keeps = problem.keeps(settings, num_params)
    of_rows = problem.rows(folds), outcome, problem.unit_of_row
    return predictions(drawn, *of_rows, keeps, problem.uniform_of_row)


def _scores_at_full_data(
    problem: Problem, fit: xr.DataTree, warmup: xr.Dataset, test: np.ndarray
) -> np.ndarray | None:
    """Scores of some folds' test sets at full-data draws (fold, chain, draw), from the warmup or
    from the fit's log likelihood; None: there are no such draws."""
    if "log_score_full" in warmup:
        return warmup["log_score_full"].values
    if "log_likelihood" not in fit:
        return None
    some = test[evenly(len(test), CHECKED_FOLDS)]
    units, place = np.unique(some[some >= 0], return_inverse=True)
    log_lik = true_names(fit["log_likelihood"].to_dataset())[problem.outcome]
    by_unit = log_lik.transpose("chain", "draw", ...).isel(unit=units)
    by_slot = np.zeros((by_unit.sizes["draw"], *some.shape))
    scores = []
    for chain in range(by_unit.sizes["chain"]):  # one at a time, to save memory
        by_slot[..., some >= 0] = by_unit.isel(chain=chain).values[..., place]
        scores.append(by_slot.sum(-1).T)
    return np.stack(scores, axis=1)


def _warn_of_short_batches(diagnosed: xr.Dataset, monitor: Monitor) -> None:
    """Warn of correlated batches; single batches of independent chains are never correlated."""
    size, advice = diagnosed.attrs["batch_size"], "use longer batches (cv.batch_size)"
    more = f"{advice} and more draws"
    if diagnosed.attrs["log_lik_alone"]:
        advice = more = "make more draws, and thin them"
    share = float(diagnosed["batch_check"].sel(size=size)) if "batch_check" in diagnosed else 1.0
    several = bool((diagnosed["n_draws"] > size).any())
    if several and np.isnan(share):
        monitor.warn(
            f"chains of the full-data fit are too short to tell whether batches of {size} draws "
            "are long enough; use more draws of the fit"
        )
    if share < SHORT_BATCHES and several:
        monitor.warn(
            f"on full-data draws, batches of {size} give {share:.0%} of the MCSE from a windowed "
            f"ESS; {advice}"
        )
    raised = np.sqrt(diagnosed.attrs["batch_inflation"])
    if raised > 1 / SHORT_BATCHES:
        monitor.warn(
            f"MCSEs are raised by {raised - 1:.0%}, as successive batches of {size} draws are "
            f"correlated; {more}"
        )


def plan(
    problems: Mapping[str, Problem],
    samples: Mapping[str, Sequence[xr.Dataset]],
    settings: Settings,
    round: int,
    before: xr.Dataset | None,
    monitor: Monitor,
) -> xr.Dataset:
    """Choose the folds that need more draws for the comparison to be settled.

    A fold that is not sampled in one round is not sampled in later ones.

    Args:
        problems: by the models' names.
        samples: of each model's batches, of all rounds so far.
        settings: of the folds' chains.
        round: the round that is planned, from 1.
        before: the plan of the round before; None: there is none.
        monitor: takes messages.

    Returns:
        ``more`` (model, fold), whether a fold is sampled further.
    """
    until, cv = settings.cv.until, settings.cv
    assert until is not None
    layout = next(iter(problems.values())).layout
    active = None if before is None else before["more"].values
    rule = until, settings.compare.reference, cv.num_superchains, active
    planned = results.plan(dict(samples), layout, *rule)
    more = planned["more"].stack(both=("model", "fold"))
    names = [f"{fold} of {model}" for model, fold in more["both"].values[more.values]]
    listed = ", ".join(names[:3]) + f" and {len(names) - 3} more" * (len(names) > 3)
    monitor.of("").log(
        f"round {round}: {planned.attrs['words']}; {len(names)} of {more.size} folds continue"
        + f": {listed}" * bool(names)
    )
    return planned
