"""The evidence of growing training sets, and log p(y) by other ways."""

from collections.abc import Mapping
from functools import partial
from signal import SIGTERM
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jax.flatten_util import ravel_pytree
from jaxtyping import Int

from pcv.analysis import evidence as estimates
from pcv.analysis.evidence import BRIDGE, LAPLACE, Estimate
from pcv.base import process
from pcv.base.devices import in_use
from pcv.base.errors import PcvError, key_path
from pcv.base.monitor import Monitor
from pcv.base.names import name_bits
from pcv.compile import programs
from pcv.core import groups
from pcv.core.fit import fit
from pcv.core.problem import Problem, by_unit
from pcv.core.settings import FitConfig
from pcv.core.store import Blocks, Resume, Step, Store, resume_nothing, run_step
from pcv.folds.sections.cumulative import Cumulative
from pcv.models.checks.prior import strayed
from pcv.models.model import full_data, target
from pcv.models.parameters import flat_target, param_names, unit_log_lik, unravel_of
from pcv.sampling import memory
from pcv.sampling.fit.approximate import laplace_evidence
from pcv.sampling.fit.bridge import bridge
from pcv.sampling.path import Densities, Path, from_normal, from_prior, paths, side_by_side

PER_DEVICE = 4
"""orders of a CPU between two looks at the progress"""
LAPLACE_DRAWS, PRIOR_DRAWS, PER_PARAM = 4000, 1000, 20
COPIES = 4
"""of the particles' log likelihoods that XLA holds at once"""


def check_priors(problems: Mapping[str, Problem]) -> None:
    """Refuse improper priors.

    Raises:
        PcvError: a prior is improper, so that there is no evidence.
    """
    for name, problem in problems.items():
        if by_unit(problem).log_joint is not None:
            raise PcvError(
                f"{name}: a program of Stan gives no draws from its prior, and its density up to a "
                "constant alone, so that there is no evidence; write the model in another language"
            )
        if stray := strayed(by_unit(problem)):
            raise PcvError(
                f"{name}: the prior of '{stray}' is improper, or `init` does not draw from it, so "
                "that there is no evidence; give it a proper prior, or use pcv.cumulative"
            )


def fit_once(
    name: str,
    problem: Problem,
    settings: FitConfig,
    monitor: Monitor,
    store: Store,
    draws: xr.DataTree | None,
) -> xr.DataTree:
    """The full-data fit of a model whose folds are not sampled."""
    step, of_fit = Step("fit", name), {"draws": draws, "tune": False}
    tree: xr.DataTree = run_step(store, monitor, step, fit, problem, settings, **of_fit)
    return tree


def follow(
    problems: Mapping[str, Problem],
    scheme: Cumulative,
    settings: FitConfig,
    monitor: Monitor,
    store: Store,
    draws: Mapping[str, xr.DataTree],
) -> dict[str, tuple[xr.DataTree, xr.Dataset]]:
    """The fit, and the evidence of growing training sets, of each model.

    Args:
        problems: by the models' names.
        scheme: random orders, and particles along each.
        settings: of the fits.
        monitor: takes messages and progress.
        store: keeps the results of finished steps.
        draws: existing draws of full-data posteriors, by model.
    """
    fits = {
        name: fit_once(name, problem, settings, monitor, store, draws.get(name))
        for name, problem in problems.items()
    }
    curves = {}
    for name, problem in problems.items():
        step = Step("evidence", name)
        of_model, saved = (problem, fits[name], scheme), store.resume(step)
        curve = run_step(store, monitor, step, follow_evidence, *of_model, resume=saved)
        curves[name] = fits[name], curve
    return curves


def follow_evidence(
    problem: Problem,
    fit: xr.DataTree,
    scheme: Cumulative,
    monitor: Monitor,
    resume: Resume = resume_nothing,
) -> xr.Dataset:
    """Evidence of growing training sets, in random orders of the units.

    Args:
        problem: whose folds have an order of the units each.
        fit: of the full data.
        scheme: particles, and the share of units that train first.
        monitor: takes messages.
        resume: opens what an interrupted step has left.

    Returns:
        Log evidence of 0 to n units by order and set of particles, scores of the units that are
        left, and log p(y) by other ways.

    Raises:
        PcvError: the model has no log likelihood by unit, or a path got stuck.
    """
    model, n = by_unit(problem), problem.num_units
    improper = strayed(model)
    width = groups.positions(fit).shape[-1]
    first = scheme.first(n) if improper else 0
    if improper and first < width:
        raise PcvError(
            f"model '{problem.name}': the prior of '{improper}' is improper, and {first} units "
            f"that prepare may not make a posterior of {width} parameters; raise "
            + key_path(("folds", "prepare"))
        )
    sizes = estimates.sizes(n, width, first, scheme.first(n))
    path = _path(problem, fit, scheme, sizes, first, monitor, resume)
    curve = _by_units(path, sizes, first, n)
    if not improper:
        ways = other_ways(problem, fit)
        curve = curve.merge(ways).assign_attrs(ways.attrs)
    curve = curve.assign_attrs(
        model=problem.name,
        num_params=width,
        particles=scheme.particles,
        prepared=scheme.first(n),
        outcome=str(model.outcome),
        improper=improper or "",
    )
    monitor.log(estimates.in_words(curve))
    return curve


def _densities(problem: Problem, fit: xr.DataTree, first: int) -> Densities:
    """From the prior on; or to the posterior of the `first` units, and on from there, where it
    cannot be drawn from."""
    model = by_unit(problem)
    log_lik, unravel = unit_log_lik(model, problem.arrays), unravel_of(model.init)
    assert log_lik is not None
    log_prior = lambda x: model.log_prior(unravel(x))  # noqa: E731
    if not first:
        return from_prior(lambda key: ravel_pytree(model.init(key))[0], log_prior, log_lik)
    position = groups.positions(fit)
    draws = position.reshape(-1, position.shape[-1])
    wider = problem.num_units / first
    try:
        root = np.linalg.cholesky(wider * np.atleast_2d(np.cov(draws.T)))
    except np.linalg.LinAlgError:
        raise PcvError(
            f"model '{problem.name}': the draws of the full-data fit have a singular covariance, "
            "so that paths cannot start from it: a parameter stands still, or is a function of "
            "others"
        ) from None
    return from_normal(jnp.asarray(draws.mean(0)), jnp.asarray(root), log_prior, log_lik, first)


def _path(
    problem: Problem,
    fit: xr.DataTree,
    scheme: Cumulative,
    sizes: Int[np.ndarray, " size"],
    first: int,
    monitor: Monitor,
    resume: Resume,
) -> Path:
    """The paths of all orders, some at a time; those of an earlier run are taken from its store.

    Raises:
        PcvError: one got stuck.
    """
    orders, particles = problem.layout["order"].values, scheme.particles
    number, n = orders.shape
    _check_memory(particles, n, monitor.task)
    densities = _densities(problem, fit, first)
    per_device = side_by_side(particles, n) or PER_DEVICE
    together = min(per_device * len(in_use()), number)
    root, knots, throttled = problem.key("evidence"), sizes - max(first - 1, 0), monitor.throttled()

    def nothing_to_add(rows: np.ndarray, blocks: Blocks, number: int) -> None:
        pass

    with process.deferred(SIGTERM), resume({}, nothing_to_add) as saved:
        parts = [Path(**saved.block(i)) for i in range(saved.number)]
        if done := min(sum(len(part.steps) for part in parts), number):
            monitor.log(f"resuming after {done} of {number} orders")
        while (done := sum(len(part.steps) for part in parts)) < number:
            which = np.minimum(np.arange(done, done + together), number - 1)
            keys = jax.vmap(partial(jax.random.fold_in, root))(which)
            new = paths(densities, particles, knots, keys, orders[which])
            parts.append(Path(*(np.asarray(x)[: number - done] for x in new)))
            saved.save(len(parts) - 1, parts[-1]._asdict(), {})
            throttled.log(f"{min(done + together, number)} of {number} orders")
            monitor.raise_if_stopped("the same command goes on after these orders")
    path = Path(*(np.concatenate(x)[:number] for x in zip(*parts)))
    _check_path(problem, path, orders, first, monitor.task)
    return path


def _check_path(problem: Problem, path: Path, orders: np.ndarray, first: int, task: str) -> None:
    stuck = ~np.isfinite(path.log_evidence).all((1, 2))
    if stuck.any():
        order = int(stuck.argmax())
        passed = int(np.isfinite(path.log_evidence[order]).all(0).sum()) - 1 + max(first - 1, 0)
        unit = problem.units[orders[order][passed]]
        raise PcvError(
            f"{task}: {stuck.sum()} of {stuck.size} orders got stuck, order {order + 1} at unit "
            f"'{unit}': its likelihood given {passed} other units is 0, or not finite, almost "
            "everywhere, or particles could not move; look at this unit, and at priors that hardly "
            "allow it, or use more particles"
        )


def _check_memory(particles: int, num_units: int, task: str) -> None:
    """Refuse log likelihoods, of all particles and units, that do not fit."""
    number, machine = len(in_use()), memory.of_devices()
    needed = COPIES * 8 * 2 * particles * num_units
    if needed > min(machine.device, machine.host / number):
        raise PcvError(
            f"{task}: 2 x {particles} particles of {num_units} units take {needed / 2**30:.2g} GiB "
            "per device; use fewer particles, or fewer, larger units"
        )


def _by_units(path: Path, sizes: np.ndarray, first: int, num_units: int) -> xr.Dataset:
    """Paths as a dataset, with the evidence of 0 to n units; NaN before the `first`."""
    whole = np.full((*path.log_evidence.shape[:2], num_units + 1), np.nan)
    whole[:, :, first:] = path.log_evidence[:, :, bool(first) :]
    return xr.Dataset(
        {
            "log_evidence": (("order", "set", "trained_units"), whole),
            "score": (("order", "set", "size"), path.score),
            "trained": ("size", sizes),
            "steps": ("order", path.steps),
            "acceptance": ("order", path.acceptance),
        }
    )


class Answer(NamedTuple):
    """log p(y) by one way (nats)."""

    method: str
    """"bridge" or "laplace\""""
    value: float
    mcse: float
    khat: float
    """of Laplace's approximation; NaN where it was not made"""
    beside: str
    """what Laplace's approximation gives beside bridge sampling, in words"""


def answer(
    problem: Problem, fit: xr.DataTree | None, must_be_confirmed: bool, monitor: Monitor
) -> Answer | None:
    """log p(y) by bridge sampling from the full-data fit, or from Laplace's approximation alone.

    Args:
        problem: the model and its data.
        fit: of the full data; None: Laplace's approximation alone.
        must_be_confirmed: whether Laplace's approximation has to agree, of a fit without caveats.
        monitor: takes messages.

    Returns:
        The answer; None where it has to be confirmed and is not.

    Raises:
        PcvError: bridge sampling has no answer.
    """
    if fit is None:
        estimate, khat = by_approximation(problem)
        return Answer("laplace", *estimate, khat, "")
    khat, words = np.nan, ""
    if must_be_confirmed:
        ways = other_ways(problem, fit)
        by_way = estimates.of_ways(ways)
        (estimate, _), (by_laplace, khat) = by_way[BRIDGE], by_way[LAPLACE]
        prior = estimates.of_prior(ways)
        if fit.attrs["marks"] or not estimates.confirmed(estimate, by_laplace, khat, prior):
            monitor.log("bridge sampling is not confirmed; following growing training sets")
            return None
        words = estimates.beside(LAPLACE, by_laplace, khat)
    else:
        estimate = by_bridge(problem, fit)
    if np.isnan(estimate.value):
        raise PcvError(
            f"model '{problem.name}': bridge sampling has no answer; it needs draws without "
            "weights, more than 8 per parameter, that vary in all directions: take more draws of "
            "the fit, or leave out `method`"
        )
    return Answer("bridge", *estimate, khat, words)


def other_ways(problem: Problem, fit: xr.DataTree) -> xr.Dataset:
    """log p(y) from the draws of the full-data fit, and from Laplace's approximation; and whether
    the prior integrates to 1."""
    by_laplace, khat, without = Estimate(np.nan, np.nan), np.nan, ""
    try:
        by_laplace, khat = by_approximation(problem)
    except PcvError as error:
        without = str(error)
    ways, prior = (by_bridge(problem, fit), by_laplace), integral_of_prior(problem)
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


def integral_of_prior(problem: Problem) -> Estimate:
    """Log of the integral of the prior's density, by bridge sampling from draws of `init`."""
    model = by_unit(problem)
    unravel, root = unravel_of(model.init), problem.key("prior")
    flat = lambda key: ravel_pytree(model.init(key))[0]  # noqa: E731
    (width,) = jax.eval_shape(flat, root).shape
    keys = jax.random.split(root, max(PRIOR_DRAWS, PER_PARAM * width))
    draws = np.asarray(programs.once(lambda keys: jax.lax.map(flat, keys))(keys))
    _, first = np.unique(draws, axis=0, return_index=True)  # PyMC's repeat a few hundred
    of_prior = draws[np.sort(first)][None]
    return bridge(lambda x: model.log_prior(unravel(x)), of_prior, _generator(problem, "prior"))


def by_bridge(problem: Problem, fit: xr.DataTree) -> Estimate:
    """log p(y) by bridge sampling from the draws of the full-data fit; NaN if these have weights,
    or are too few."""
    flat, _ = flat_target(target(problem.model, problem.arrays, "plain"))
    everything = full_data(problem.num_units)
    if groups.log_weights(fit) is not None:
        return Estimate(np.nan, np.nan)
    rng = _generator(problem, "bridge")
    return bridge(lambda x: flat.log_density(x, everything), groups.positions(fit), rng)


def by_approximation(problem: Problem) -> tuple[Estimate, float]:
    """log p(y) by importance sampling from Laplace's approximation, and k-hat.

    Raises:
        PcvError: there is no mode, or it is not like a normal.
    """
    named = target(problem.model, problem.arrays, "plain")
    flat, names = flat_target(named)[0], param_names(named)
    root = problem.key("laplace")
    try:
        return laplace_evidence(flat, problem.num_units, names, root, LAPLACE_DRAWS)
    except PcvError as error:
        why, _, _ = str(error).partition(";")  # whose remedy is that of a fit
        raise PcvError(why) from None


def _generator(problem: Problem, purpose: str) -> np.random.Generator:
    return np.random.default_rng([problem.seed, name_bits(purpose), name_bits(problem.name)])
