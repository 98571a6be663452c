"""The warmup of a batch of folds, and kernels adapted to folds unlike the full data."""

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr
from jaxtyping import Float
from scipy.special import softmax

from pcv.base import process
from pcv.base.errors import PcvError
from pcv.base.names import name_bits
from pcv.folds import columns
from pcv.folds.base import Folds, evenly
from pcv.pipeline.job import Job, Say, starts_of
from pcv.pipeline.stages.common.chains import engine_of, in_chains, progress, resumed, says
from pcv.pipeline.stages.common.problem import batch_of, folds_of, sampled_folds, scored_alike
from pcv.pipeline.stages.inputs import conditions_on_tested, warn_of_leaks
from pcv.pipeline.storage.artifacts import begin, fitted, keep, opened, require, stamp_of
from pcv.pipeline.storage.checkpoints.checkpoint import Checkpoint

if TYPE_CHECKING:
    from pcv.analysis.samples import Block
    from pcv.sampling.folds.starting import Warm
    from pcv.sampling.folds.subspace import Subspace
    from pcv.sampling.kernel import Kernel
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


def warmup(job: Job) -> None:
    """Warmup of all chains of a fold batch: ``warmup/<batch>.zarr``.

    Draws are discarded. Final states are also kept beside the samples' checkpoints, so that folds
    can be regrouped or added.
    """
    from pcv.analysis.verdicts import ENOUGH_ESS
    from pcv.base import devices
    from pcv.base.keys import key
    from pcv.models.effects import second_look
    from pcv.pipeline.storage import idata
    from pcv.sampling.folds import starting, subspace

    making, cv = begin(job, "warmup"), job.settings.cv
    known = {"data": require(job, "data", {})}
    known["fit"] = require(job, "fit", known)
    all_folds, stamps = folds_of(job, known)
    known |= stamps
    sampled = sampled_folds(job, all_folds)
    folds = batch_of(job, sampled)
    if not len(folds.id):
        keep(job, xr.Dataset(coords={"fold": folds.id}), stamp_of(job, making, known))
        return
    tree = fitted(job)
    by_chain = tree["unconstrained/position"].transpose("chain", "draw", ...).values
    full_draws = by_chain.reshape(-1, by_chain.shape[-1])
    with devices.at_work(job.config.precision):
        arrays = columns.model_data(opened(job, "data"))
        fit = idata.fit(tree["kernel"].dataset)
        checks = tree["checks"]
        bad = bool(len(checks.attrs["problems"]) or checks["ess"].min() < ENOUGH_ESS)
        bad |= "log_weight" in tree["sample_stats"]  # not draws of the posterior
        chosen = scored_alike(job, arrays, all_folds)[job.model]
        model, predictive, integration, *_ = how = in_chains(job, chosen, arrays, all_folds, fit)
        decoupled = int(how.model is not chosen.model)
        engine = whole = engine_of(job, predictive, arrays, model)
        leaks, checked, terms, given = [], None, None, 0
        if predictive != "marginal" and "log_likelihood" in tree:
            by_unit = opened(job, "fit", "log_likelihood")[job.settings.data.outcome]
            terms = by_unit.transpose("chain", "draw", ...).values.reshape(len(full_draws), -1)
        if folds.id[0] == sampled.id[0]:
            given = conditions_on_tested(job, opened(job, "data"), all_folds)
            if not job.settings.folds.from_full_data:  # else checked with the surrogates
                leaks = warn_of_leaks(job, opened(job, "data"), all_folds)
            if predictive == "marginal" or "log_likelihood" not in tree:
                checked = _at_full_data(engine, sampled, by_chain, job.say)
        say, full = says(job, "warmup"), starting.FullData(full_draws, terms, bad)
        space, kernel = _space(job, tree, full_draws), fit.kernel
        if space is not None:
            engine = engine_of(job, predictive, arrays, model, space=space)
            kernel = subspace.kernel(space)
            share = f"{len(space.scale)} of {len(space.center)} dimensions"
            say(f"chains move in {share}, with {space.share:.1%} of the posterior's variance")
        root = partial(key, job.config.seed, job.model)
        look = partial(process.look, f"warmup {job.model}")
        num_draws = None if cv.warmup == "auto" else cv.warmup
        many = cv.chains, cv.num_superchains, num_draws
        two_sided = job.settings.estimator == "two_sided"
        of_starts = cv.adapt, cv.start_scale, two_sided
        plan = starting.Plan(job.config.seed, job.model, *many, *of_starts)

        diverged: Counter[str] = Counter()

        def after(block: "Block", what: str, done: int, in_all: int) -> None:
            so_far = progress(job, f"warmup {what}".strip(), [block], in_all)
            diverged[what] += so_far.divergences
            job.progress(so_far._replace(done=done, divergences=diverged[what]))
            look()

        def made(some: Folds) -> dict[str, Any]:
            at = some, full, plan, root, job.say, after, look, space
            warm = starting.warmed(how, engine, fit._replace(kernel=kernel), *at)
            looked_at = warm.starts.position[:, :CHECKED_CHAINS]
            looked_at = looked_at if space is None else subspace.lifted(space, looked_at)
            return _ends(warm, second_look.gaps(how, arrays, some, looked_at, say))

        def make(rows: np.ndarray, own: Checkpoint, number: int) -> None:
            own.save(0, made(folds.some(rows)), {})

        made_of = starts_of(job, known, folds, [predictive, integration, decoupled])
        with resumed(job, job.checkpoints.with_name("warmup"), made_of, make, "warmup") as before:
            if before.number:
                ends = before.block(0)
            else:
                ends = made(folds)
                before.save(0, ends, {})
        both_ways = {}
        if space is not None and folds.id[0] == sampled.id[0]:
            some = sampled.some(evenly(len(sampled.id), BOTH_WAYS))
            in_all = partial(root, "in all directions")
            told = lambda words: job.say(f"{words} (sampled both ways)")  # noqa: E731
            warm = starting.warmed(how, whole, fit, some, full, plan, in_all, told, after, look)
            at = some, warm, in_all("sample"), told
            both_ways = _in_all_directions(whole, fit.kernel, *at)
        on = devices.describe()
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
    names = tree["unconstrained"].dataset["param"].values.tolist()
    if space is not None:
        variables["subspace_center"] = "all_params", space.center
        variables["subspace_directions"] = ("all_params", "param"), space.directions
        variables["subspace_scale"] = "param", space.scale
        variables |= both_ways
        names = [f"xi[{i}]" for i in range(len(space.scale))]
    if checked is not None:
        variables["log_score_full"] = (("checked_fold", "full_chain", "full_draw"), checked)
    dataset = xr.Dataset(
        variables,
        {"fold": folds.id, "param": names},
        {
            **({} if space is None else {"subspace_share": space.share}),
            "predictive": predictive,
            "integration": integration,
            "decoupled": decoupled,
            "outcome": str(model.outcome),
            "superchains": cv.num_superchains,
            "given_tested": given,
            "full_draws": int(ends["full_draws"]),
        },
    )
    keep(job, dataset, stamp_of(job, making, known, leaks, on))


def _space(
    job: Job, tree: xr.DataTree, draws: Float[np.ndarray, "draw param"]
) -> "Subspace | None":
    """The subspace that the config asks for.

    Raises:
        PcvError: the posterior has fewer dimensions, or its log likelihoods are not known.
    """
    if job.settings.kernel is None:
        return None
    from pcv.sampling.folds.subspace import NO_TERMS, beyond, by_terms, enough, leading, principal

    asked, terms = job.settings.kernel.subspace, None
    if asked.predictive_share:
        if "log_likelihood" not in tree:
            raise PcvError(f"model '{job.model}': {NO_TERMS}")
        by_unit = tree["log_likelihood"][job.settings.data.outcome]
        terms = by_unit.transpose("chain", "draw", ...).values.reshape(len(draws), -1)
    if "log_weight" in (stats := tree["sample_stats"].dataset):  # of an approximation
        weight = softmax(stats["log_weight"].values.ravel())
        rng = np.random.default_rng([job.config.seed, name_bits("subspace")])
        some = rng.choice(len(draws), len(draws), p=weight)
        draws, terms = draws[some], None if terms is None else terms[some]
    space = principal(draws)
    number, of_each = asked.number, space.scale**2
    if terms is not None:
        space, of_each = by_terms(space, draws, terms)
    if share := asked.share or asked.predictive_share:
        number = enough(of_each, share)
    assert number is not None
    if wrong := beyond(number, draws.shape[1], len(space.scale)):
        raise PcvError(f"model '{job.model}': {wrong}")
    return leading(space, number)


def _in_all_directions(
    engine: "Engine",
    kernel: "Kernel",
    folds: Folds,
    warm: "Warm",
    root: Any,
    say: Say,
) -> dict[str, tuple]:
    """elpd of a few folds whose chains move in all directions, beside those of the subspace."""
    from pcv.analysis.diagnostics import LogSums, Sides, two_sided, two_sided_mcse
    from pcv.sampling.folds import drawing
    from pcv.sampling.folds.moving import standing_at

    starts, facing = warm
    center = starts.center | {"shift": facing.shift}
    at = starts.own, standing_at(starts.position), center, facing.crossing, facing.num_draws
    chains = drawing.Begun(engine, root, kernel, folds, *at)
    blocks = [x.block for x in drawing.sampled(chains, 0, [BOTH_WAYS_DRAWS], None, say)]
    fields = ([b.sums["joint"][name] for b in blocks] for name in LogSums._fields)
    sums = LogSums(*(np.stack(x, axis=2) for x in fields))
    crossing = np.stack([b.crossing for b in blocks], axis=2)
    found = two_sided(sums, Sides(facing.shift, crossing, facing.crossing, facing.num_draws))
    return {
        "both_ways": ("both_ways_fold", folds.id.astype(str)),
        "both_ways_elpd": ("both_ways_fold", found.elpd),
        "both_ways_mcse": ("both_ways_fold", two_sided_mcse(found)),
    }


def _at_full_data(
    engine: "Engine",
    folds: Folds,
    draws: Float[np.ndarray, "chain draw param"],
    say: Any,
) -> Float[np.ndarray, "checked_fold first_chain first_draw"]:
    """Joint log predictive of some folds' test sets at draws of the full-data fit."""
    from pcv.sampling.folds.warming import at_full_data

    some = folds.some(evenly(len(folds.id), EVALUATED_FOLDS))
    first = draws[: max(EVALUATED_DRAWS // draws.shape[1], 1), :EVALUATED_DRAWS]
    found = at_full_data(engine, some, first.reshape(-1, draws.shape[-1]), say)
    return found.reshape(len(some.id), *first.shape[:2])


def _ends(warm: "Warm", gaps: np.ndarray | None) -> dict[str, Any]:
    """What is stored of a warmup, by name."""
    starts, facing = warm
    looked_at = {} if gaps is None else {"integral_gap": gaps}
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
        **looked_at,
    }
