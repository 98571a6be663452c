"""Exact cross-validation: the method, from problems to diagnostics."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import xarray as xr

from pcv.analysis.samples import joined
from pcv.base.monitor import TO_LOG, Monitor
from pcv.base.names import batch_names
from pcv.core.batches import cut
from pcv.core.diagnose import diagnose, plan
from pcv.core.fit import fit
from pcv.core.problem import Problem
from pcv.core.psis import approximate
from pcv.core.sample import Round, sample
from pcv.core.settings import CvConfig, Settings
from pcv.core.store import InMemory, Step, Store, run_step
from pcv.core.subsample import choose_terms
from pcv.core.warmup import warm_up
from pcv.folds.base import Folds
from pcv.folds.sections.subsampling import Subsampling


class Result(NamedTuple):
    """Cross-validation of one model."""

    fit: xr.DataTree
    """of the full data, in ArviZ's groups"""
    diagnostics: xr.Dataset
    """estimates and diagnostics of all folds, see `pcv.analysis.results.diagnose`"""
    approximated: xr.DataTree | None
    """what is scored from the full-data fit"""


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
        settings: of the fits and of the folds' chains.
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

    # Folds that the full-data fit suffices for, where the scheme asks for that.
    approximated = {
        name: run(Step("surrogates", name), approximate, problem, fits[name], scheme)
        for name, problem in each
        if scheme.from_full_data
    }
    chosen = None
    if isinstance(scheme, Subsampling):
        layout, reference = next(iter(problems.values())).layout, settings.compare.reference
        chosen = run(Step("subsample"), choose_terms, layout, approximated, scheme, reference)

    # All chains of all other folds: from full-data draws to starting points, then to samples.
    warmups: dict[str, dict[str, xr.Dataset]] = {}
    for name, problem in each if scheme.samples else ():
        sampled = sampled_folds(problem.folds, approximated.get(name), chosen)
        batches = split(sampled, num_batches(problem, fits[name], sampled, settings.cv, run))
        warmups[name] = {}
        for batch, folds in batches.items():
            step = Step("warmup", name, batch)
            of_batch = {"sampled": sampled, "folds": folds, "resume": store.resume(step)}
            warmups[name][batch] = run(step, warm_up, problem, fits[name], settings, **of_batch)
    samples = sample_rounds(problems, fits, warmups, settings, store, run)

    # Estimates and diagnostics, from sums of the samples' scores.
    results = {}
    for name, problem in each:
        warmup = next(iter(warmups[name].values())) if name in warmups else None
        drawn = fits[name], warmup, samples.get(name, ()), settings
        of_scheme = {"approximated": approximated.get(name), "chosen": chosen}
        diagnosed = run(Step("diagnose", name), diagnose, problem, *drawn, **of_scheme)
        results[name] = Result(fits[name], diagnosed, approximated.get(name))
    return results


def sampled_folds(
    folds: Folds, approximated: xr.DataTree | None, chosen: xr.Dataset | None
) -> Folds:
    """The folds that a model samples: all that are scored, but for those that the full-data fit
    suffices for.

    Args:
        folds: all folds.
        approximated: "folds" of `pcv.core.psis.estimate_by_psis`; None: all are sampled.
        chosen: folds that are scored; None: all.
    """
    scored = folds if chosen is None else folds.some(np.isin(folds.id, chosen["fold"].values))
    if approximated is None:
        return scored
    again = approximated["folds"]["again"]
    return scored.some(again.sel(fold=scored.id).values)


def num_batches(
    problem: Problem, fit: xr.DataTree, sampled: Folds, cv: CvConfig, run: Callable[..., Any]
) -> int:
    """The number of batches of folds, measured where the settings leave it open."""
    if cv.fold_batches != "auto":
        return cv.fold_batches
    measured = run(Step("cut", problem.name), cut, problem, fit, sampled, cv)
    return int(measured.attrs["fold_batches"])


def split(folds: Folds, number: int) -> dict[str, Folds]:
    """Batches of folds, by their names."""
    places = np.array_split(np.arange(len(folds.id)), number)
    return {name: folds.some(some) for name, some in zip(batch_names(number), places)}


def sample_rounds(
    problems: Mapping[str, Problem],
    fits: Mapping[str, xr.DataTree],
    warmups: Mapping[str, Mapping[str, xr.Dataset]],
    settings: Settings,
    store: Store,
    run: Callable[..., Any],
) -> dict[str, list[xr.Dataset]]:
    """The samples of each model's batches of folds.

    One round, unless the comparison decides which folds continue: then each round is as long as all
    before it, and `plan` chooses its folds.
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
                start = continued(number, name, drawn[-1], planned) if number else None
                of_batch = problems[name], fits[name], warmup, settings
                more = {"round": start, "resume": store.resume(step)}
                drawn.append(run(step, sample, *of_batch, **more))
    return {name: _joined(of_model, rounds) for name, of_model in samples.items()}


def continued(number: int, model: str, before: xr.Dataset, planned: xr.Dataset | None) -> Round:
    """The round that continues the folds that a plan chooses, of those of the round before."""
    assert planned is not None
    more = planned["more"].sel(model=model, fold=before["fold"].values)
    return Round(number, before.isel(fold=np.flatnonzero(more.values)))


def _joined(samples: Mapping[str, list[xr.Dataset]], rounds: list[int]) -> list[xr.Dataset]:
    return [joined(of_batch, rounds) for of_batch in samples.values()]
