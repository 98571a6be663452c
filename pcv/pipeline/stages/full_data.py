"""The stage of the full-data posterior: ``fit.zarr``; and its draws, for stages that score them."""

import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import xarray as xr

from pcv.base import process
from pcv.base.errors import BadFit, PcvError, in_one_line
from pcv.base.progress import Progress
from pcv.base.section import draws_of_surrogate
from pcv.pipeline.job import Job
from pcv.pipeline.stages.common.chains import says
from pcv.pipeline.stages.common.problem import build, model_of
from pcv.pipeline.storage import store
from pcv.pipeline.storage.artifacts import begin, fitted, keep, opened, require, stamp_of

if TYPE_CHECKING:
    from jaxtyping import Array, Float, Int

    from pcv.models.effects.marginal import Scored
    from pcv.models.model import Model, Target
    from pcv.sampling.fit.surrogates import Posterior

LOG_LIK_BYTES = 2**29
"""maximum size of stored log likelihoods: 16,777 units at 4,000 draws"""
MAX_DRAWS = 1000
"""full-data draws at which to evaluate a predictive that the fit does not store"""
INFLUENCE_DRAWS = 100
"""at which to evaluate all terms for their sum's Monte Carlo error, where surrogates need none"""
MAX_BYTES = 2**29
"""of log likelihoods at all draws, where terms cannot be evaluated in chunks"""


def fit(job: Job, allow_bad_fit: bool = False) -> None:
    """The full-data posterior of a model and the kernel for its folds: ``fit.zarr``.

    Raises:
        BadFit: the fit cannot be trusted (its draws are kept in ``fit_failed.zarr``).
    """
    from pcv.base import devices
    from pcv.base.keys import key
    from pcv.models.checks.prior import centred, check_prior
    from pcv.models.checks.shapes import check_shapes
    from pcv.models.checks.steps import stepwise
    from pcv.models.model import target
    from pcv.models.parameters import flat_target, param_names, unit_log_lik
    from pcv.pipeline.storage import idata
    from pcv.sampling.fit import fit_checks, given, posterior

    making = begin(job, "fit")
    config, settings = job.config, job.settings.fit
    known = {"data": require(job, "data", {})}
    with devices.at_work(config.precision):
        arrays, model = model_of(job)
        data_set = opened(job, "data")
        num_units = data_set.sizes["unit"]
        check_shapes(model, arrays, num_units, job.settings.data.outcome, job.model)
        check_prior(model, num_units, job.model)
        named = target(model, arrays, "plain")
        flat, _ = flat_target(named)
        names = param_names(named)
        log_lik = unit_log_lik(model, arrays)
        notes = [f"model '{job.model}': {x}" for x in getattr(model, "notes", ())]
        for note in notes:
            job.say(f"note: {note}")
        root = partial(key, config.seed, job.model)

        def after(done: Progress) -> None:
            job.progress(done._replace(label=f"fit {job.model} {done.label}".rstrip()))
            process.look(f"fit {job.model}")

        say, accept = says(job, "fit"), settings.target_accept
        with _naming(f"fit {job.model}"):
            if settings.approximation:
                from pcv.sampling.fit.approximate import approximate

                total = settings.chains * settings.draws
                how = settings.approximation
                found = approximate(flat, num_units, names, root("fit"), how, total)
            elif job.posterior is None:
                asked = settings.chains, settings.warmup, settings.draws, accept
                found = posterior.fit(flat, num_units, names, root, *asked, say, after)
            else:
                drawn, stats = _given(job, job.posterior)
                back, accept = _way_back(model), accept or fit_checks.TARGETS[0]
                of_model = drawn, stats, num_units, names, root, accept, say, after
                found = given.posterior(flat, back, *of_model, job.settings.folds.samples)
        fitted, checks = found
        draws = fitted.draws
        if checks.problems and not settings.approximation:
            causes = centred(model), stepwise(model, arrays, draws.position)
            checks = fit_checks.check(draws, names, fitted.target_accept, *causes)
            units = data_set["unit"].values.tolist()
            checks.problems[:0] = _cause(model, arrays, job.model, units)
        for warning in checks.warnings:
            job.say(f"warning: fit {job.model}: {warning}")
        allowed = allow_bad_fit or settings.allow_bad_fit
        bad = bool(checks.problems)
        for problem in checks.problems if allowed else []:
            job.say(f"warning: fit {job.model} is bad: {problem}")
        if not bad or allowed:
            job.say(
                f"fit {job.model}: R-hat at most {np.nanmax(checks.rhat):.3f}, ESS at least "
                f"{np.nanmin(checks.ess):.0f}, {checks.divergences} divergences; folds: "
                f"step size {fitted.step_size:.2g}, leapfrog steps {fitted.num_steps:.2g}"
            )
        size = draws.lp.nbytes * num_units
        if log_lik and size > LOG_LIK_BYTES:
            log_lik = None
            job.say(
                f"fit {job.model}: the log likelihoods of {num_units} units at {draws.lp.size} "
                f"draws, {size / 2**30:.1f} GiB, are not kept, so p and az.loo are not available; "
                "use fewer draws of the fit to keep them"
            )
        tree = idata.tree(flat, log_lik, data_set, names, fitted, checks)
        marks = notes + [f"full-data fit of '{job.model}' is bad: {p}" for p in checks.problems]
        stamp = stamp_of(job, making, known, marks, devices.describe())
    failed = job.path("fit").with_name("fit_failed.zarr")
    if bad and not allowed and job.posterior is not None:
        said = "\n".join(f"fit {job.model}: {problem}" for problem in checks.problems)
        raise PcvError(f"{said}\ngive other draws, or leave them out to have the model fitted")
    if bad and not allowed:
        if job.kept is None:
            store.write(failed, tree, stamp)
        raise BadFit([f"fit {job.model}: {problem}" for problem in checks.problems], failed)
    keep(job, tree, stamp)
    if job.kept is None:
        shutil.rmtree(failed, ignore_errors=True)


def _given(job: Job, file: Path) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """The variables of an existing posterior, and its sampler's statistics."""
    known = job.objects.get(str(file))
    tree, what = (_read(file), str(file)) if known is None else (known, "the draws in fit")
    groups = [tree[name].to_dataset() for name in ("posterior", "sample_stats") if name in tree]
    if not groups or not {"chain", "draw"} <= set(groups[0].dims):
        raise PcvError(f"{what}: no group 'posterior' with dimensions chain and draw, as in ArviZ")
    variables = [
        {
            str(name): x.transpose("chain", "draw", ...).values
            for name, x in group.data_vars.items()
            if {"chain", "draw"} <= set(x.dims)
        }
        for group in groups
    ]
    return variables[0], variables[1] if len(variables) > 1 else {}


def _read(file: Path) -> xr.DataTree:
    """ArviZ groups from a .nc file or a .zarr folder."""
    if not file.exists():
        raise PcvError(f"{file}: no such file; fit.file is relative to the working directory")
    try:
        return xr.open_datatree(file, engine="zarr" if file.is_dir() else None)
    except (OSError, ValueError) as error:
        raise PcvError(f"{file}: cannot be read: {in_one_line(error)}") from error


def _way_back(model: "Model | Target") -> "Callable[[Mapping[str, Array]], Array]":
    """The function from a posterior's variables to flat parameters."""
    import jax
    from jax.flatten_util import ravel_pytree

    from pcv.base.keys import any_key

    unconstrain = getattr(model, "unconstrain", None)
    if unconstrain is None:
        raise PcvError(
            "draws are given, but the model cannot map its variables back to its parameters; give "
            "pcv.Model(..., unconstrain=...), or leave the draws out"
        )
    params = jax.eval_shape(model.init, any_key())

    def back(variables: "Mapping[str, Array]") -> "Array":
        found = unconstrain(variables)
        return ravel_pytree({name: found[name] for name in params})[0]

    return back


def _cause(
    model: "Model | Target", arrays: dict[str, np.ndarray], name: str, units: list[str]
) -> list[str]:
    """What `pcv check` finds wrong with a model whose fit is bad."""
    from pcv.models.checks.values import check_values

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            check_values(model, arrays, name, units)
    except PcvError as error:
        return [str(error).removeprefix(f"model '{name}': ")]
    return []


@contextmanager
def _naming(what: str) -> Iterator[None]:
    """Prefixes errors with what was being done."""
    try:
        yield
    except PcvError as error:
        raise PcvError(f"{what}: {error}") from error


class Drawn(NamedTuple):
    """Draws of the full-data fit, all chains in one."""

    position: "Float[np.ndarray, 'draw param']"
    log_weight: "Float[np.ndarray, ' draw'] | None"
    """of an approximation's"""
    kept: "Int[np.ndarray, ' kept']"
    """places of those that surrogates evaluate terms at"""
    ess: float
    """of those that the exact terms are from, for log densities"""

    def posterior(self, job: Job, names: list[str], most: int | None = None) -> "Posterior":
        """Those to evaluate terms at, of which memory allows `most`."""
        from pcv.sampling.fit.surrogates import evenly, posterior

        kept = self.kept
        if most is not None and kept.size > most:
            kept = kept[evenly(kept.size, max(most, 2))]
            job.say(
                f"warning: surrogates {job.model}: from {kept.size} of {self.kept.size} draws, as "
                f"all terms at more do not fit in {MAX_BYTES // 2**20} MiB"
            )
        return posterior(self.position, names, self.log_weight, kept)


def drawn_for(
    job: Job, made: "Scored", arrays: dict[str, np.ndarray], surrogates: list[str]
) -> Drawn:
    """Those that the exact terms are from, or as many of them as surrogates need."""
    from pcv.sampling.fit.draws import mixing
    from pcv.sampling.fit.surrogates import evenly, needs_draws

    position, log_weight = draws_of(job)
    chains, draws, width = position.shape
    step = thinning(job, made, arrays)
    used = np.arange(chains * draws).reshape(chains, draws)[:, ::step].ravel()
    number = INFLUENCE_DRAWS
    if needs_draws(surrogates):
        number = max(draws_of_surrogate(name) or used.size for name in surrogates)
    ess = used.size
    if log_weight is None:
        lp = fitted(job)["sample_stats"].to_dataset()["lp"].values
        ess = np.fmin(mixing(lp[..., None]).ess[0], used.size)
    flat = None if log_weight is None else log_weight.ravel()
    return Drawn(position.reshape(-1, width), flat, used[evenly(used.size, number)], float(ess))


def thinning(job: Job, made: "Scored", arrays: dict[str, np.ndarray]) -> int:
    """Exact terms are from every so-manieth draw: all, where the fit stores their log
    likelihoods."""
    from pcv.models.model import Model

    plain = made.predictive != "marginal" and isinstance(build(job, arrays), Model)
    if plain and "log_likelihood" in fitted(job):
        return 1
    return -(-fitted(job)["sample_stats"].to_dataset()["lp"].size // MAX_DRAWS)


def draws_of(job: Job, step: int = 1) -> tuple[np.ndarray, np.ndarray | None]:
    """Every `step`-th of the full-data fit's draws: flat parameters (chain, draw, param), and log
    weights (chain, draw) of an approximation's."""
    tree = fitted(job)
    stats = tree["sample_stats"].to_dataset()
    weight = stats["log_weight"].values[:, ::step] if "log_weight" in stats else None
    return np.asarray(tree["unconstrained/position"].values)[:, ::step], weight
