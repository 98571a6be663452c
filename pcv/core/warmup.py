"""The warmup of folds: where chains start, how they move, and the other side of each fold."""

from functools import partial
from typing import Any, NamedTuple

import numpy as np
import xarray as xr
from jaxtyping import Float
from scipy.special import softmax

from pcv.analysis.diagnostics import LogSums, Sides, two_sided, two_sided_mcse
from pcv.base.errors import PcvError
from pcv.base.monitor import Monitor
from pcv.base.names import name_bits
from pcv.core import groups
from pcv.core.problem import (
    Problem,
    chain_model,
    engine_of,
    given_tested,
    predictive_model,
    warn_of_leaks,
)
from pcv.core.settings import Settings
from pcv.core.store import Blocks, Resume, resume_nothing
from pcv.folds.base import Folds, evenly
from pcv.models.effects import second_look
from pcv.models.effects.marginal import Scored
from pcv.sampling.fit.full_data import Fit
from pcv.sampling.folds import drawing, starting, subspace
from pcv.sampling.folds.moving import standing_at
from pcv.sampling.folds.starting import FullData, Plan, Warm
from pcv.sampling.folds.subspace import Subspace
from pcv.sampling.folds.warming import at_full_data
from pcv.sampling.tiles import Engine

EVALUATED_FOLDS, EVALUATED_DRAWS = 32, 500
"""numbers of folds and of full-data draws whose scores are used to check the batch size"""
CHECKED_CHAINS = 2
"""chains of each fold at whose final states integrals over own effects are checked"""
BOTH_WAYS, BOTH_WAYS_DRAWS = 4, 400
"""folds that are sampled in all directions too, where chains move on a subspace, and their draws
per chain"""
OF_OWN = ("step_size", "num_steps", "thin")
"""fields of `pcv.sampling.folds.moving.Own`, except the scale ratio, which is 1 for most folds"""


class _Chains(NamedTuple):
    """What all runs of a warmup share."""

    how: Scored
    fit: Fit
    """with the kernel of the full data"""
    full: FullData
    plan: Plan


def warm_up(
    problem: Problem,
    fit: xr.DataTree,
    settings: Settings,
    monitor: Monitor,
    mcmc_folds: Folds | None = None,
    folds: Folds | None = None,
    resume: Resume = resume_nothing,
) -> xr.Dataset:
    """The warmup of all chains of some folds; its draws are discarded.

    Args:
        problem: with all folds.
        fit: of the full data.
        settings: of the folds' chains.
        monitor: takes messages and progress.
        mcmc_folds: all folds that need MCMC; None: those of the problem.
        folds: those to warm up; None: all of these.
        resume: opens what an interrupted warmup has left.

    Returns:
        Starting points, sampler settings and centring constants of each fold, and the other side
        of folds without a gap. The attribute ``marks`` lists caveats.

    Raises:
        PcvError: the subspace has more dimensions than the posterior.
    """
    mcmc_folds = problem.folds if mcmc_folds is None else mcmc_folds
    folds = mcmc_folds if folds is None else folds
    if not len(folds.id):
        return xr.Dataset(coords={"fold": folds.id})
    is_first = folds.id[0] == mcmc_folds.id[0]
    tuned = groups.tuned_fit(fit)
    predictive = predictive_model(problem)
    how = chain_model(problem, tuned, monitor, None)
    chains = _Chains(how, tuned, _full_data(problem, how, fit), _plan(problem, settings))
    whole = engine = engine_of(problem, how, buffer=settings.cv.batch_size)
    space = find_subspace(problem, fit, settings)
    if space is not None:
        engine = engine_of(problem, how, (), space, settings.cv.batch_size)
        share = f"{len(space.scale)} of {len(space.center)} dimensions"
        monitor.log(f"chains move in {share}, with {space.share:.1%} of the posterior's variance")

    def ends_of(some: Folds) -> dict[str, Any]:
        warm = _run(chains, engine, some, problem.key, monitor, space)
        position = warm.starts.position[:, :CHECKED_CHAINS]
        position = position if space is None else subspace.lifted(space, position)
        return _ends(warm, second_look.gaps(how, problem.arrays, some, position, monitor))

    def make(rows: np.ndarray, blocks: Blocks, number: int) -> None:
        blocks.save(0, ends_of(folds.some(rows)), {})

    decoupled = int(how.model is not predictive.model)
    with resume({"how": [how.predictive, how.integration, decoupled]}, make) as saved:
        if saved.number:
            ends = saved.block(0)
        else:
            ends = ends_of(folds)
            saved.save(0, ends, {})
    warmup = _dataset(ends, folds).assign_attrs(
        predictive=how.predictive,
        integration=how.integration,
        decoupled=decoupled,
        outcome=str(problem.model.outcome),
        superchains=settings.cv.num_superchains,
        given_tested=given_tested(problem) if is_first else 0,
        full_draws=int(ends["full_draws"]),
        marks=[],
    )
    if space is None:
        warmup = warmup.assign_coords(param=fit["unconstrained"]["param"].values)
    else:
        warmup = warmup.merge(_of_subspace(space)).assign_attrs(subspace_share=space.share)
        if is_first:
            probe = mcmc_folds.some(evenly(len(mcmc_folds.id), BOTH_WAYS))
            warmup = warmup.merge(_in_all_directions(problem, chains, whole, probe, monitor))
    if is_first and (how.predictive == "marginal" or "log_likelihood" not in fit):
        scores = _at_full_data(whole, mcmc_folds, groups.positions(fit), monitor)
        warmup["log_score_full"] = ("checked_fold", "full_chain", "full_draw"), scores
    if is_first and not settings.folds.from_full_data:  # else found with the surrogates
        warmup.attrs["marks"] = warn_of_leaks(problem)
    return warmup


def _plan(problem: Problem, settings: Settings) -> Plan:
    cv = settings.cv
    return Plan(
        problem.seed,
        problem.name,
        cv.chains,
        cv.num_superchains,
        None if cv.warmup == "auto" else cv.warmup,
        cv.adapt,
        cv.start_scale,
        settings.estimator == "two_sided",
    )


def _full_data(problem: Problem, how: Scored, fit: xr.DataTree) -> FullData:
    """Draws of the full-data fit, and their log likelihoods where scores are sums of these."""
    position = groups.positions(fit)
    draws = position.reshape(-1, position.shape[-1])
    bad = groups.has_few_draws(fit) or groups.log_weights(fit) is not None  # of no posterior
    by_unit = how.predictive != "marginal" and problem.joint_groups is None
    terms = groups.log_likelihoods(fit, problem.outcome) if by_unit else None
    by_draw = None if terms is None else terms.values.reshape(len(draws), -1)
    return FullData(draws, by_draw, bad)


def _run(
    chains: _Chains,
    engine: Engine,
    folds: Folds,
    root: Any,
    monitor: Monitor,
    space: Subspace | None = None,
) -> Warm:
    fit = chains.fit if space is None else chains.fit._replace(kernel=subspace.kernel(space))
    of_folds = folds, chains.full, chains.plan, root, monitor, space
    return starting.warmed(chains.how, engine, fit, *of_folds)


def find_subspace(problem: Problem, fit: xr.DataTree, settings: Settings) -> Subspace | None:
    """The subspace that the settings ask for.

    Raises:
        PcvError: the posterior has fewer dimensions, or its log likelihoods are not known.
    """
    if settings.kernel is None:
        return None
    asked, terms = settings.kernel.subspace, None
    position, weight = groups.positions(fit), groups.log_weights(fit)
    draws = position.reshape(-1, position.shape[-1])
    if asked.predictive_share:
        of_units = groups.log_likelihoods(fit, problem.outcome)
        if of_units is None:
            raise PcvError(f"model '{problem.name}': {subspace.NO_TERMS}")
        terms = of_units.values.reshape(len(draws), -1)
    if weight is not None:  # of an approximation
        rng = np.random.default_rng([problem.seed, name_bits("subspace")])
        some = rng.choice(len(draws), len(draws), p=softmax(weight.ravel()))
        draws, terms = draws[some], None if terms is None else terms[some]
    space = subspace.principal(draws)
    number, variance = asked.number, space.scale**2
    if terms is not None:
        space, variance = subspace.by_terms(space, draws, terms)
    if share := asked.share or asked.predictive_share:
        number = subspace.enough(variance, share)
    assert number is not None
    if wrong := subspace.beyond(number, draws.shape[1], len(space.scale)):
        raise PcvError(f"model '{problem.name}': {wrong}")
    return subspace.leading(space, number)


def stored_subspace(warmup: xr.Dataset) -> Subspace | None:
    """The subspace on which chains were warmed up; None: they move in all directions."""
    if "subspace_share" not in warmup.attrs:
        return None
    center, directions, scale = (
        warmup[f"subspace_{name}"].values for name in ("center", "directions", "scale")
    )
    return Subspace(center, directions, scale, warmup.attrs["subspace_share"])


def _of_subspace(space: Subspace) -> xr.Dataset:
    return xr.Dataset(
        {
            "subspace_center": ("all_params", space.center),
            "subspace_directions": (("all_params", "param"), space.directions),
            "subspace_scale": ("param", space.scale),
        },
        {"param": [f"xi[{i}]" for i in range(len(space.scale))]},
    )


def _in_all_directions(
    problem: Problem, chains: _Chains, engine: Engine, folds: Folds, monitor: Monitor
) -> xr.Dataset:
    """elpd of a few folds whose chains move in all directions, beside those of the subspace."""
    root = partial(problem.key, "in all directions")
    told = monitor._replace(emit=lambda message: monitor.emit(f"{message} (sampled both ways)"))
    starts, facing = _run(chains, engine, folds, root, told)
    center = starts.center | {"shift": facing.shift}
    at = starts.own, standing_at(starts.position), center, facing.crossing, facing.num_draws
    begun = drawing.Begun(engine, root("sample"), chains.fit.kernel, folds, *at)
    blocks = [x.block for x in drawing.sampled(begun, 0, [BOTH_WAYS_DRAWS], None, told)]
    fields = ([b.sums["joint"][name] for b in blocks] for name in LogSums._fields)
    sums = LogSums(*(np.stack(x, axis=2) for x in fields))
    crossing = np.stack([b.crossing for b in blocks], axis=2)
    sides = Sides(facing.shift, crossing, facing.crossing, facing.num_draws)
    estimate = two_sided(sums, sides)
    return xr.Dataset(
        {
            "both_ways": ("both_ways_fold", folds.id.astype(str)),
            "both_ways_elpd": ("both_ways_fold", estimate.elpd),
            "both_ways_mcse": ("both_ways_fold", two_sided_mcse(estimate)),
        }
    )


def _at_full_data(
    engine: Engine, folds: Folds, draws: Float[np.ndarray, "chain draw param"], monitor: Monitor
) -> Float[np.ndarray, "checked_fold first_chain first_draw"]:
    """Joint log predictive of some folds' test sets at draws of the full-data fit."""
    some = folds.some(evenly(len(folds.id), EVALUATED_FOLDS))
    first = draws[: max(EVALUATED_DRAWS // draws.shape[1], 1), :EVALUATED_DRAWS]
    scores = at_full_data(engine, some, first.reshape(-1, draws.shape[-1]), monitor)
    return scores.reshape(len(some.id), *first.shape[:2])


def _ends(warm: Warm, gaps: np.ndarray | None) -> dict[str, Any]:
    """What is stored of a warmup, by name; the fold is the first axis."""
    starts, facing = warm
    checked = {} if gaps is None else {"integral_gap": gaps}
    return {
        "state": starts.position,
        "adapted": starts.adapted,
        "num_draws": starts.num_draws,
        "forgot": starts.forgot,
        "center": starts.center | {"shift": facing.shift},
        "crossing": facing.crossing,
        "bridge": facing.bridge,
        "bridge_sq": facing.bridge_sq,
        "full_draws": facing.num_draws,
        **{name: np.array(x) for name, x in starts.own._asdict().items()},
        **checked,
    }


def _dataset(ends: dict[str, Any], folds: Folds) -> xr.Dataset:
    """What `_ends` returns, with dimensions."""
    adapted = ends["adapted"]
    variables = {
        "state": (("fold", "chain", "param"), ends["state"]),
        "adapted": ("fold", adapted),
        "n_warmup": ("fold", ends["num_draws"]),
        "forgot": ("fold", ends["forgot"]),
        **{
            f"center_log_{kind}" if kind != "shift" else kind: (("fold", "slot")[: x.ndim], x)
            for kind, x in ends["center"].items()
        },
        "full_crossing": (("fold", "full_batch", "offset"), ends["crossing"]),
        **{name: ("fold", ends[name]) for name in OF_OWN},
        "adapted_scale_ratio": (("adapted_fold", "param"), ends["scale_ratio"][adapted]),
    }
    if folds.test.shape[1] > 1:
        dims = "fold", "full_batch", "slot"
        variables["log_bridge_full"] = dims, ends["bridge"]
        variables["log_bridge_full_sq"] = dims, ends["bridge_sq"]
    if "integral_gap" in ends:
        variables["integral_gap"] = "fold", ends["integral_gap"]
    return xr.Dataset(variables, {"fold": folds.id})
