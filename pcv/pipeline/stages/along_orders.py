"""The stage of evidence and cumulative cross-validation: ``evidence.zarr``."""

import signal
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import xarray as xr

from pcv.base import process
from pcv.base.errors import PcvError
from pcv.base.names import name_bits
from pcv.base.progress import now_and_then
from pcv.folds.schemes import Cumulative
from pcv.pipeline.job import Job, paths_of, recipe
from pcv.pipeline.stages.common.chains import says
from pcv.pipeline.stages.common.pages import origin, write_figures
from pcv.pipeline.stages.common.problem import by_unit, model_of
from pcv.pipeline.stages.full_data import draws_of
from pcv.pipeline.storage import store
from pcv.pipeline.storage.artifacts import begin, keep, opened, require, stamp_of
from pcv.pipeline.storage.checkpoints import checkpoint
from pcv.pipeline.storage.checkpoints.checkpoint import Checkpoint
from pcv.pipeline.storage.store import Stamp

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pcv.analysis.evidence import Estimate
    from pcv.models.model import Model
    from pcv.sampling.path import Densities, Path

PER_DEVICE = 4
"""orders of a CPU between two looks at the progress"""
LAPLACE_DRAWS, PRIOR_DRAWS, PER_PARAM = 4000, 1000, 20
COPIES = 4
"""of the particles' log likelihoods that XLA holds at once"""


def evidence(job: Job) -> None:
    """Evidence of growing training sets, in random orders of the units: ``evidence.zarr``.

    Raises:
        PcvError: the model has no log likelihood by unit, or a path got stuck.
    """
    from pcv.analysis import evidence as estimates
    from pcv.base import devices
    from pcv.models.checks.prior import strayed

    scheme = job.settings.folds
    if not isinstance(scheme, Cumulative):
        job.say(f"evidence {job.model}: nothing to do, folds.scheme is not cumulative")
        return
    making = begin(job, "evidence")
    known = {"data": require(job, "data", {})}
    known |= {stage: require(job, stage, known) for stage in ("folds", "fit")}
    with devices.at_work(job.config.precision):
        arrays, built = model_of(job)
        model = by_unit(built, job.model)
        improper = strayed(model)
        orders = opened(job, "folds")["order"].values
        n, width = orders.shape[1], draws_of(job)[0].shape[-1]
        first = scheme.first(n) if improper else 0
        if improper and first < width:
            raise PcvError(
                f"model '{job.model}': the prior of '{improper}' is improper, and {first} units "
                f"that prepare may not make a posterior of {width} parameters; raise folds.prepare"
            )
        sizes = estimates.sizes(n, width, first, scheme.first(n))
        densities = _densities(job, model, arrays, first)
        with _kept(job, known) as before:
            found = _followed(job, densities, scheme.particles, orders, sizes, first, before)
        dataset = _by_units(found, sizes, first, n)
        if not improper:
            ways = other_ways(job, model, arrays)
            dataset = dataset.merge(ways).assign_attrs(ways.attrs)
        on = devices.describe()
    dataset = dataset.assign_attrs(
        model=job.model,
        num_params=width,
        particles=scheme.particles,
        prepared=scheme.first(n),
        outcome=str(model.outcome),
        improper=improper or "",
    )
    keep(job, dataset, stamp_of(job, making, known, on=on))
    job.say(f"evidence {job.model}: {estimates.in_words(dataset)}")


def _densities(
    job: Job, model: "Model", arrays: "Mapping[str, np.ndarray]", first: int
) -> "Densities":
    """From the prior on; or to the posterior of the `first` units, and on from there, where it
    cannot be drawn from."""
    import jax.numpy as jnp
    from jax.flatten_util import ravel_pytree

    from pcv.models.parameters import unit_log_lik, unravel_of
    from pcv.sampling.path import from_normal, from_prior

    log_lik, unravel = unit_log_lik(model, arrays), unravel_of(model.init)
    assert log_lik is not None
    log_prior = lambda x: model.log_prior(unravel(x))  # noqa: E731
    if not first:
        return from_prior(lambda key: ravel_pytree(model.init(key))[0], log_prior, log_lik)
    position, _ = draws_of(job)
    draws = position.reshape(-1, position.shape[-1])
    wider = opened(job, "data").sizes["unit"] / first
    try:
        root = np.linalg.cholesky(wider * np.atleast_2d(np.cov(draws.T)))
    except np.linalg.LinAlgError:
        raise PcvError(
            f"model '{job.model}': the draws of the full-data fit have a singular covariance, so "
            "that paths cannot start from it: a parameter stands still, or is a function of others"
        ) from None
    return from_normal(jnp.asarray(draws.mean(0)), jnp.asarray(root), log_prior, log_lik, first)


def _followed(
    job: Job,
    densities: "Densities",
    particles: int,
    orders: np.ndarray,
    sizes: np.ndarray,
    first: int,
    before: Checkpoint,
) -> "Path":
    """The paths of all orders, some at a time; those of an earlier run are taken from its
    checkpoint.

    Raises:
        PcvError: one got stuck.
    """
    import jax

    from pcv.base import devices
    from pcv.base.keys import key
    from pcv.sampling.path import Path, paths, side_by_side

    _check_memory(job, particles, orders.shape[1])
    tell = now_and_then(says(job, "evidence"))
    per_device = side_by_side(particles, orders.shape[1]) or PER_DEVICE
    at_once = min(per_device * len(devices.in_use()), len(orders))
    root = key(job.config.seed, job.model, "evidence")
    knots = sizes - max(first - 1, 0)
    parts = [Path(**before.block(i)) for i in range(before.number)]
    if there := min(sum(len(part.steps) for part in parts), len(orders)):
        job.say(f"evidence {job.model}: resuming after {there} of {len(orders)} orders")
    while (done := sum(len(part.steps) for part in parts)) < len(orders):
        which = np.minimum(np.arange(done, done + at_once), len(orders) - 1)
        keys = jax.vmap(partial(jax.random.fold_in, root))(which)
        new = paths(densities, particles, knots, keys, orders[which])
        parts.append(Path(*(np.asarray(x)[: len(orders) - done] for x in new)))
        before.save(len(parts) - 1, parts[-1]._asdict(), {})
        tell(f"{min(done + at_once, len(orders))} of {len(orders)} orders")
        process.look(f"evidence {job.model}", "the same command goes on after these orders")
    found = Path(*(np.concatenate(x)[: len(orders)] for x in zip(*parts)))
    stuck = ~np.isfinite(found.log_evidence).all((1, 2))
    if stuck.any():
        order = int(stuck.argmax())
        passed = int(np.isfinite(found.log_evidence[order]).all(0).sum()) - 1 + max(first - 1, 0)
        unit = opened(job, "data")["unit"].values[orders[order][passed]]
        raise PcvError(
            f"evidence {job.model}: {stuck.sum()} of {stuck.size} orders got stuck, order "
            f"{order + 1} at unit '{unit}': its likelihood given {passed} other units is 0, or not "
            "finite, almost everywhere, or particles could not move; look at this unit, and at "
            "priors that hardly allow it, or use more particles"
        )
    return found


@contextmanager
def _kept(job: Job, known: "Mapping[str, Stamp]") -> "Iterator[Checkpoint]":
    """The checkpoint of orders that were followed before, be it for fewer of them."""
    from pcv.base import devices

    if job.kept is not None:
        yield checkpoint.NOWHERE
        return
    pool, made_of = job.checkpoints.with_name("evidence"), paths_of(job, known)
    with (
        process.deferred(signal.SIGTERM),
        checkpoint.held(pool, made_of, devices.made_on(), job.say) as before,
    ):
        yield before


def _check_memory(job: Job, particles: int, num_units: int) -> None:
    """Refuse log likelihoods, of all particles and units, that do not fit."""
    from pcv.base import devices
    from pcv.sampling import memory

    number, there = len(devices.in_use()), memory.of_devices()
    needed = COPIES * 8 * 2 * particles * num_units
    if needed > min(there.device, there.host / number):
        raise PcvError(
            f"evidence {job.model}: 2 x {particles} particles of {num_units} units take "
            f"{needed / 2**30:.2g} GiB per device; use fewer particles, or fewer, larger units"
        )


def _by_units(found: "Path", sizes: np.ndarray, first: int, num_units: int) -> xr.Dataset:
    """Paths as a dataset, with the evidence of 0 to n units; NaN before the `first`."""
    whole = np.full((*found.log_evidence.shape[:2], num_units + 1), np.nan)
    whole[:, :, first:] = found.log_evidence[:, :, bool(first) :]
    return xr.Dataset(
        {
            "log_evidence": (("order", "set", "trained_units"), whole),
            "score": (("order", "set", "size"), found.score),
            "trained": ("size", sizes),
            "steps": ("order", found.steps),
            "acceptance": ("order", found.acceptance),
        }
    )


def other_ways(job: Job, model: "Model", arrays: "Mapping[str, np.ndarray]") -> xr.Dataset:
    """log p(y) from the draws of the full-data fit, and from Laplace's approximation; and whether
    the prior integrates to 1."""
    from pcv.analysis.evidence import BRIDGE, LAPLACE, Estimate

    by_laplace, khat, without = Estimate(np.nan, np.nan), np.nan, ""
    try:
        by_laplace, khat = by_approximation(job, model, arrays)
    except PcvError as error:
        without = str(error)
    ways, prior = (by_bridge(job, model, arrays), by_laplace), integral_of_prior(job, model)
    return xr.Dataset(
        {
            "log_evidence_by": ("way", [x.value for x in ways]),
            "mcse_by": ("way", [x.mcse for x in ways]),
            "khat": ("way", [np.nan, khat]),
        },
        {"way": [BRIDGE, LAPLACE]},
        {
            "no_laplace": without,
            "log_prior_integral": prior.value,
            "log_prior_integral_mcse": prior.mcse,
        },
    )


def integral_of_prior(job: Job, model: "Model") -> "Estimate":
    """Log of the integral of the prior's density, by bridge sampling from draws of `init`."""
    import jax
    from jax.flatten_util import ravel_pytree

    from pcv.base.keys import key
    from pcv.compile import programs
    from pcv.models.parameters import unravel_of
    from pcv.sampling.fit.bridge import bridge

    unravel, root = unravel_of(model.init), key(job.config.seed, job.model, "prior")
    flat = lambda key: ravel_pytree(model.init(key))[0]  # noqa: E731
    (width,) = jax.eval_shape(flat, root).shape
    keys = jax.random.split(root, max(PRIOR_DRAWS, PER_PARAM * width))
    draws = np.asarray(programs.once(lambda keys: jax.lax.map(flat, keys))(keys))
    _, first = np.unique(draws, axis=0, return_index=True)  # PyMC's repeat a few hundred
    of_prior = draws[np.sort(first)][None]
    rng = np.random.default_rng([job.config.seed, name_bits("prior"), name_bits(job.model)])
    return bridge(lambda x: model.log_prior(unravel(x)), of_prior, rng)


def by_bridge(job: Job, model: "Model", arrays: "Mapping[str, np.ndarray]") -> "Estimate":
    """log p(y) by bridge sampling from the draws of the full-data fit; NaN if these have weights,
    or are too few."""
    from pcv.analysis.evidence import Estimate
    from pcv.models.model import full_data, target
    from pcv.models.parameters import flat_target
    from pcv.sampling.fit.bridge import bridge

    flat, _ = flat_target(target(model, arrays, "plain"))
    everything = full_data(opened(job, "data").sizes["unit"])
    draws, log_weight = draws_of(job)
    if log_weight is not None:
        return Estimate(np.nan, np.nan)
    rng = np.random.default_rng([job.config.seed, name_bits("bridge"), name_bits(job.model)])
    return bridge(lambda x: flat.log_density(x, everything), draws, rng)


def by_approximation(
    job: Job, model: "Model", arrays: "Mapping[str, np.ndarray]"
) -> "tuple[Estimate, float]":
    """log p(y) by importance sampling from Laplace's approximation, and k-hat.

    Raises:
        PcvError: there is no mode, or it is not like a normal.
    """
    from pcv.base.keys import key
    from pcv.models.model import target
    from pcv.models.parameters import flat_target, param_names
    from pcv.sampling.fit.approximate import laplace_evidence

    named, n = target(model, arrays, "plain"), opened(job, "data").sizes["unit"]
    root, names = key(job.config.seed, job.model, "laplace"), param_names(named)
    try:
        return laplace_evidence(flat_target(named)[0], n, names, root, LAPLACE_DRAWS)
    except PcvError as error:
        why, _, _ = str(error).partition(";")  # whose remedy is that of a fit
        raise PcvError(why) from None


def followed(job: Job) -> tuple[dict[str, xr.Dataset], dict[str, Stamp]]:
    """``evidence.zarr`` of all models of an experiment, and the stamps of their inputs."""
    known = {"data": require(job, "data", {})}
    known["folds"] = require(job, "folds", known)
    paths, stamps = {}, dict(known)
    for name in job.settings.models:
        part = job._replace(model=name)
        inputs = known | {"fit": require(part, "fit", known)}
        stamps[f"evidence {name}"] = require(part, "evidence", inputs)
        paths[name] = opened(part, "evidence").load()
    return paths, stamps


def reference_of(job: Job, paths: "Mapping[str, xr.Dataset]") -> str:
    from pcv.analysis import evidence as estimates

    return job.settings.compare.reference or estimates.best(paths)


def compare(job: Job) -> str:
    """Compare the models: ``comparison.zarr``, ``comparison.csv`` and ``cumulative.csv``, scores by
    the number of units left out; returns the table."""
    import pandas as pd

    from pcv.analysis import evidence as estimates

    making = begin(job, "compare")
    paths, known = followed(job)
    reference = reference_of(job, paths)
    frame = estimates.table(paths, reference)
    words = estimates.verdict(paths, reference)
    dataset = xr.Dataset.from_dataframe(frame).assign_attrs(
        reference=reference, outcome=job.settings.data.outcome, verdict=" ".join(words)
    )
    stamp = stamp_of(job, making, known)
    keep(job, dataset, stamp, follows=True)
    store.write_text(job.path("compare").with_suffix(".csv"), frame.to_csv())
    every = pd.concat(
        {name: estimates.frame(path) for name, path in paths.items()}, names=["model"]
    )
    store.write_text(job.path("compare").with_name("cumulative.csv"), every.to_csv())
    return in_words(paths, reference, stamp)


def in_words(paths: "Mapping[str, xr.Dataset]", reference: str, stamp: Stamp) -> str:
    from pcv.analysis import evidence as estimates
    from pcv.analysis.results.wording import wrapped

    marks = [wrapped(f"Warning: {mark}") for mark in stamp.marks]
    return "\n\n".join([estimates.in_table(paths, reference), *marks])


def report(job: Job, started: datetime) -> None:
    """The figure, and the page that shows it: ``figures/``, ``report.html``."""
    from pcv import report as reporting
    from pcv.report import plots

    paths, known = followed(job)
    marks = require(job, "compare", known).marks
    pictures = reporting.drawn({"cumulative": plots.cumulative(paths)})
    write_figures(pictures, job.path("report").parent / "figures")
    page = reporting.cumulative_html(
        paths,
        reference_of(job, paths),
        origin(job, started),
        pictures["cumulative"],
        job.settings.report.title or f"Cumulative cross-validation of {job.experiment}",
        marks,
        recipe(job, "report"),
    )
    store.write_text(job.path("report"), page)
    job.say(f"report: {job.path('report')}")
