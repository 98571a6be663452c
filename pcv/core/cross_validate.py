"""Exact cross-validation: the method, from problems to diagnostics."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import xarray as xr

from pcv.analysis.results.predicted import predictions_of
from pcv.analysis.samples import joined
from pcv.base.monitor import TO_LOG, Monitor
from pcv.core.batches import num_fold_batches, split
from pcv.core.diagnose import diagnose, plan
from pcv.core.fit import fit
from pcv.core.problem import Problem
from pcv.core.psis import compute_surrogates
from pcv.core.sample import next_round, sample
from pcv.core.settings import Settings
from pcv.core.store import InMemory, Step, Store, run_step
from pcv.core.subsample import choose_terms
from pcv.core.warmup import warm_up
from pcv.folds.base import Folds
from pcv.folds.sections.subsampling import Subsampling


class Result(NamedTuple):
    """Cross-validation of one model."""

    fit: xr.DataTree
    """the full-data fit, in ArviZ's groups"""
    diagnostics: xr.Dataset
    """estimates and diagnostics of all folds, see `pcv.analysis.results.diagnose`"""
    predictions: xr.Dataset
    """of the units of sampled folds, see `pcv.analysis.predictions.predictions`; perhaps none"""
    surrogates: xr.DataTree | None
    """PSIS estimates of all folds; for a subsample, surrogates of all terms as well"""
    marks: list[str]
    """caveats of the fit, and of training terms that depend on what is tested"""


def cross_validate(
    problems: Mapping[str, Problem],
    settings: Settings,
    monitor: Monitor = TO_LOG,
    store: Store | None = None,
    draws: Mapping[str, xr.DataTree] | None = None,
) -> dict[str, Result]:
    """Cross-validate models over the same folds, all folds and chains of a model at once.

    Args:
        problems: by the models' names.
        settings: the scheme, and the settings of fits and chains. A cumulative scheme is for
            `pcv.core.evidence`.
        monitor: takes messages and progress.
        store: keeps the results of finished steps; by default in memory, for this run.
        draws: existing draws of full-data posteriors, by model.

    Returns:
        The fit, estimates and diagnostics of each model. `pcv.analysis.results.compare` compares
        them.
    """
    store, scheme, draws = store or InMemory(), settings.folds, draws or {}
    run, each = partial(run_step, store, monitor), problems.items()

    # The full-data posterior of each model, and the kernel for its folds.
    fits = {}
    for name, problem in each:
        of_model = {"draws": draws.get(name), "tune": scheme.samples}
        fits[name] = run(Step("fit", name), fit, problem, settings.fit, **of_model)

    # PSIS estimates of all folds, from the full-data draws. Only some schemes use PSIS.
    surrogates = {
        name: run(Step("surrogates", name), compute_surrogates, problem, fits[name], settings)
        for name, problem in each
        if scheme.from_full_data
    }

    # The terms that a subsample computes exactly, the same for all models.
    chosen = None
    if isinstance(scheme, Subsampling):
        layout, reference = next(iter(problems.values())).layout, settings.compare.reference
        chosen = run(Step("subsample"), choose_terms, layout, surrogates, scheme, reference)

    # MCMC for the other folds, all chains at once. Warmup starts from full-data draws.
    warmups: dict[str, dict[str, xr.Dataset]] = {}
    for name, problem in each if scheme.samples else ():
        mcmc_folds = select_mcmc_folds(problem.folds, surrogates.get(name), chosen)
        number = num_fold_batches(name, problem, fits[name], mcmc_folds, settings, run)
        warmups[name] = {}
        for batch, folds in split(mcmc_folds, number).items():
            step = Step("warmup", name, batch)
            of_batch = {"mcmc_folds": mcmc_folds, "folds": folds, "resume": store.resume(step)}
            warmups[name][batch] = run(step, warm_up, problem, fits[name], settings, **of_batch)
    samples = sample_rounds(problems, fits, warmups, settings, store, run)

    # Estimates and diagnostics, from each fold's own draws and, where it has both sides, full-data
    # draws.
    results = {}
    for name, problem in each:
        # The first batch's warmup holds what folds share: scores at full-data draws, and checks.
        first = next(iter(warmups[name].values())) if name in warmups else None
        drawn = fits[name], first, samples.get(name, ()), settings
        of_scheme = {"surrogates": surrogates.get(name), "chosen": chosen}
        diagnosed = run(Step("diagnose", name), diagnose, problem, *drawn, **of_scheme)
        marks = [
            mark
            for x in (fits[name], surrogates.get(name), first)
            if x is not None
            for mark in x.attrs.get("marks", [])
        ]
        of_folds = diagnosed.to_dataset(), predictions_of(diagnosed)
        results[name] = Result(fits[name], *of_folds, surrogates.get(name), marks)
    return results


def select_mcmc_folds(
    folds: Folds, surrogates: xr.DataTree | None, chosen: xr.Dataset | None
) -> Folds:
    """The folds that need MCMC: all that are scored, except where PSIS suffices.

    Args:
        folds: all folds.
        surrogates: "folds" of `pcv.core.psis.estimate_by_psis`; None: all need MCMC.
        chosen: folds that are scored; None: all.
    """
    scored = folds if chosen is None else folds.some(np.isin(folds.id, chosen["fold"].values))
    if surrogates is None:
        return scored
    return scored.some(surrogates["folds"]["needs_mcmc"].sel(fold=scored.id).values)


def sample_rounds(
    problems: Mapping[str, Problem],
    fits: Mapping[str, xr.DataTree],
    warmups: Mapping[str, Mapping[str, xr.Dataset]],
    settings: Settings,
    store: Store,
    run: Callable[..., Any],
) -> dict[str, list[xr.Dataset]]:
    """The samples of each model's batches of folds.

    There is one round, unless draws go on until the comparison is settled. Then each round doubles
    the draws, up to a maximum, and `plan` chooses the folds that continue.
    """
    rounds = settings.cv.rounds
    samples: dict[str, dict[str, list[xr.Dataset]]] = {
        name: {batch: [] for batch in batches} for name, batches in warmups.items()
    }
    planned = None
    for number in range(len(rounds) if warmups else 0):
        if number:
            so_far = {name: _joined(of_model, rounds) for name, of_model in samples.items()}
            rest = so_far, settings, number, planned
            planned = run(Step("plan", round=number), plan, problems, *rest)
        for name, batches in warmups.items():
            for batch, warmup in batches.items():
                step, drawn = Step("sample", name, batch, number), samples[name][batch]
                start = None if planned is None else next_round(number, name, drawn[-1], planned)
                of_batch = problems[name], fits[name], warmup, settings
                more = {"round": start, "resume": store.resume(step)}
                drawn.append(run(step, sample, *of_batch, **more))
    return {name: _joined(of_model, rounds) for name, of_model in samples.items()}


def _joined(samples: Mapping[str, list[xr.Dataset]], rounds: list[int]) -> list[xr.Dataset]:
    return [joined(of_batch, rounds) for of_batch in samples.values()]
