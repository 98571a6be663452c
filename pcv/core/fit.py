"""The full-data posterior of a model, and the kernel for its folds."""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import jax
import numpy as np
import xarray as xr
from jax.flatten_util import ravel_pytree
from jaxtyping import Array

from pcv.analysis.results.scored import listed
from pcv.base.errors import BadFit, PcvError
from pcv.base.keys import any_key
from pcv.base.monitor import Monitor
from pcv.core import groups
from pcv.core.problem import Problem, checked, kept
from pcv.core.settings import FitConfig
from pcv.models.checks.prior import centred, check_prior
from pcv.models.checks.shapes import check_shapes
from pcv.models.checks.steps import stepwise
from pcv.models.checks.values import check_values
from pcv.models.model import Model, Target, target
from pcv.models.parameters import flat_target, param_names, unit_log_lik
from pcv.sampling.fit import fit_checks, full_data, given, posterior
from pcv.sampling.fit.posterior import Posterior
from pcv.sampling.tiles import Engine

LOG_LIK_BYTES = 2**29
"""maximum size of stored log likelihoods: 16,777 units at 4,000 draws"""


def fit(
    problem: Problem,
    settings: FitConfig,
    monitor: Monitor,
    draws: xr.DataTree | None = None,
    tune: bool = True,
) -> xr.DataTree:
    """The full-data posterior, and the kernel with which folds are sampled.

    Args:
        problem: the model and its data.
        settings: of the fit.
        monitor: takes messages and progress.
        draws: existing draws of the posterior, in ArviZ's groups, which are checked; None: the
            model is fitted.
        tune: whether folds will be sampled: then existing draws get a kernel.

    Returns:
        ArviZ's groups and ours, of `pcv.core.groups.tree`. The attribute ``marks`` lists caveats.

    Raises:
        BadFit: the fit cannot be trusted.
        PcvError: what is wrong with the model, or with the draws.
    """
    model, name, num_units = problem.model, problem.name, problem.num_units
    checked(problem, check_shapes, model, problem.arrays, num_units, problem.outcome, name)
    checked(problem, check_prior, model, num_units, name)
    flat, names = _flat_target(problem)
    notes = [f"model '{name}': {note}" for note in getattr(model, "notes", ())]
    notes += listed(problem.data.attrs.get("counts", []))
    for note in notes:
        monitor.of("").log(f"note: {note}")
    with _task_in_errors(monitor.task):
        fitted, checks = _posterior(problem, settings, monitor, draws, tune, flat, names)
    if checks.problems and not settings.approximation:
        causes = centred(model), stepwise(model, problem.arrays, fitted.draws.position)
        checks = fit_checks.check(fitted.draws, names, fitted.target_accept, *causes)
        checks.problems[:0] = _cause(problem)
    for warning in checks.warnings:
        monitor.warn(warning)
    problems = [f"{monitor.task}: {problem}" for problem in checks.problems]
    is_refused = bool(problems) and not settings.allow_bad_fit
    if is_refused and draws is not None:
        advice = "give other draws, or leave them out to have the model fitted"
        raise PcvError("\n".join([*problems, advice]))
    if not is_refused:
        for fault in checks.problems:
            monitor.of("").warn(f"{monitor.task} is bad: {fault}")
        rhat, ess = np.nanmax(checks.rhat), np.nanmin(checks.ess)
        monitor.log(
            f"R-hat at most {rhat:.3f}, ESS at least {ess:.0f}, {checks.divergences} divergences; "
            f"folds: step size {fitted.step_size:.2g}, leapfrog steps {fitted.num_steps:.2g}"
        )
    size = fitted.draws.lp.nbytes * num_units
    has_terms = isinstance(model, Model) and size <= LOG_LIK_BYTES
    if isinstance(model, Model) and not has_terms:
        monitor.log(
            f"the log likelihoods of {num_units} units at {fitted.draws.lp.size} draws, "
            f"{size / 2**30:.1f} GiB, are not kept, so p and az.loo are not available; use fewer "
            "draws of the fit to keep them"
        )
    shown = kept(problem, ("shown", has_terms), partial(_shown, problem, has_terms))
    tree = groups.tree(flat, shown, problem.data, names, fitted, checks)
    tree.attrs["marks"] = notes + [
        f"full-data fit of '{name}' is bad: {x}" for x in checks.problems
    ]
    if is_refused:
        raise BadFit(problems, tree)
    return tree


def _flat_target(problem: Problem) -> tuple[Target, list[str]]:
    """The model on a flat vector of parameters, and their names."""

    def make() -> tuple[Target, list[str]]:
        named = target(problem.model, problem.arrays, "plain")
        return flat_target(named)[0], param_names(named)

    flat: tuple[Target, list[str]] = kept(problem, "flat target", make)
    return flat


def _shown(problem: Problem, has_terms: bool) -> groups.Shown:
    """The programs of what is stored of each draw."""
    log_lik = unit_log_lik(problem.model, problem.arrays) if has_terms else None
    return groups.shown(_flat_target(problem)[0], log_lik)


def _posterior(
    problem: Problem,
    settings: FitConfig,
    monitor: Monitor,
    draws: xr.DataTree | None,
    tune: bool,
    flat: Target,
    names: list[str],
) -> Posterior:
    """The posterior by an approximation, by sampling, or from existing draws."""
    num_units, accept = problem.num_units, settings.target_accept

    def engine_of(total: int) -> Engine:
        make = partial(full_data.engine_of, flat, num_units, total)
        engine: Engine = kept(problem, ("fit", total), make)
        return engine

    if settings.approximation:
        from pcv.sampling.fit.approximate import approximate

        total = settings.chains * settings.draws
        how = settings.approximation
        return approximate(flat, num_units, names, problem.key("fit"), how, total)
    if draws is None:
        engine = engine_of(settings.chains * settings.draws)
        asked = settings.chains, settings.warmup, settings.draws, accept
        return posterior.fit(engine, names, problem.key, *asked, monitor)
    variables, stats = _variables(draws, flat.dims)
    back, accept = _way_back(problem.model), accept or fit_checks.TARGETS[0]
    of_model = variables, stats, num_units, names, problem.key, accept, monitor
    return given.posterior(flat, back, *of_model, engine_of if tune else None)


def _variables(
    draws: xr.DataTree, dims: Mapping[str, Sequence[str]]
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """The variables of an existing posterior, in the order of the model's dimensions where it has
    these, and its sampler's statistics."""

    def axes(name: str, x: xr.DataArray) -> list[Any]:
        known = list(dims.get(name, ()))
        return known if {"chain", "draw", *known} == set(x.dims) else [...]

    known = [draws[name].to_dataset() for name in ("posterior", "sample_stats") if name in draws]
    if not known or not {"chain", "draw"} <= set(known[0].dims):
        source = draws.attrs.get("source", "the draws in fit")
        raise PcvError(
            f"{source}: no group 'posterior' with dimensions chain and draw, as in ArviZ"
        )
    variables = [
        {
            str(name): x.transpose("chain", "draw", *axes(str(name), x)).values
            for name, x in group.data_vars.items()
            if {"chain", "draw"} <= set(x.dims)
        }
        for group in known
    ]
    return variables[0], variables[1] if len(variables) > 1 else {}


def _way_back(model: Model | Target) -> Callable[[Mapping[str, Array]], Array]:
    """The function from a posterior's variables to flat parameters."""
    unconstrain: Any = getattr(model, "unconstrain", None)
    if unconstrain is None:
        raise PcvError(
            "draws are given, but the model cannot map its variables back to its parameters; give "
            "pcv.Model(..., unconstrain=...), or leave the draws out"
        )
    params = jax.eval_shape(model.init, any_key())

    def back(variables: Mapping[str, Array]) -> Array:
        flat = unconstrain(variables)
        return ravel_pytree({name: flat[name] for name in params})[0]

    return back


def _cause(problem: Problem) -> list[str]:
    """What `pcv check` finds wrong with a model whose fit is bad."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            check_values(problem.model, problem.arrays, problem.name, problem.units)
    except PcvError as error:
        return [str(error).removeprefix(f"model '{problem.name}': ")]
    return []


@contextmanager
def _task_in_errors(task: str) -> Iterator[None]:
    """Prefixes errors with the task."""
    try:
        yield
    except PcvError as error:
        raise PcvError(f"{task}: {error}") from error
