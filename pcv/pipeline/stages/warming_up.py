"""The warmup of a batch of folds, and kernels adapted to folds unlike the full data."""

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr
from jaxtyping import Float

from pcv.base import process
from pcv.folds import columns
from pcv.folds.base import Folds, evenly
from pcv.pipeline.job import Job, starts_of
from pcv.pipeline.stages.common.chains import engine_of, in_chains, progress, resumed, says
from pcv.pipeline.stages.common.problem import batch_of, folds_of, sampled_folds, scored_alike
from pcv.pipeline.stages.inputs import warn_of_leaks
from pcv.pipeline.storage.artifacts import begin, fitted, keep, opened, require, stamp_of
from pcv.pipeline.storage.checkpoints.checkpoint import Checkpoint

if TYPE_CHECKING:
    from pcv.analysis.samples import Block
    from pcv.sampling.folds.starting import Warm
    from pcv.sampling.tiles import Engine


EVALUATED_FOLDS, EVALUATED_DRAWS = 32, 500
"""numbers of folds and of full-data draws whose scores are used to check the batch size"""
CHECKED_CHAINS = 2
"""chains of each fold at whose final states integrals over own effects are checked"""
OF_OWN = ("step_size", "num_steps", "thin")
"""fields of `pcv.sampling.folds.moving.Own`, except the scale ratio, which is 1 for most folds"""


def warmup(job: Job) -> None:
    """Short warmup of all chains of a fold batch: ``warmup/<batch>.zarr``.

    Draws are discarded. Final states are also kept beside the samples' checkpoints, so that folds
    can be regrouped or added.
    """
    from pcv.analysis.verdicts import ENOUGH_ESS
    from pcv.base.keys import key
    from pcv.base.programs import devices
    from pcv.models.effects import second_look
    from pcv.pipeline.storage import idata
    from pcv.sampling.folds import starting

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
        engine = engine_of(job, predictive, arrays, model)
        leaks, checked, terms = [], None, None
        if predictive != "marginal" and "log_likelihood" in tree:
            by_unit = opened(job, "fit", "log_likelihood")[job.settings.data.outcome]
            terms = by_unit.transpose("chain", "draw", ...).values.reshape(len(full_draws), -1)
        if folds.id[0] == sampled.id[0]:
            if not job.settings.folds.from_full_data:  # else checked with the surrogates
                leaks = warn_of_leaks(job, opened(job, "data"), all_folds)
            if predictive == "marginal" or "log_likelihood" not in tree:
                checked = _at_full_data(engine, sampled, by_chain, job.say)
        say, full = says(job, "warmup"), starting.FullData(full_draws, terms, bad)
        root = partial(key, job.config.seed, job.model)
        look = partial(process.look, f"warmup {job.model}")
        many = cv.chains, cv.num_superchains, cv.warmup
        plan = starting.Plan(job.config.seed, job.model, *many, cv.adapt, cv.start_scale)

        def after(so_far: "list[Block]", what: str) -> None:
            done = progress(job, f"warmup {what}".strip(), so_far, cv.warmup)
            job.progress(done._replace(draws=max(done.done, cv.warmup)))
            look()

        def made(some: Folds) -> dict[str, Any]:
            warm = starting.warmed(how, engine, fit, some, full, plan, root, job.say, after, look)
            looked_at = warm.starts.position[:, :CHECKED_CHAINS]
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
        on = devices.describe()
    adapted = ends["adapted"]
    variables = {
        "state": (("fold", "chain", "param"), ends["state"]),
        "adapted": ("fold", adapted),
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
    if checked is not None:
        variables["log_score_full"] = (("checked_fold", "full_chain", "full_draw"), checked)
    dataset = xr.Dataset(
        variables,
        {"fold": folds.id, "param": tree["unconstrained/param"].values},
        {
            "predictive": predictive,
            "integration": integration,
            "decoupled": decoupled,
            "outcome": str(model.outcome),
            "superchains": cv.num_superchains,
            "full_draws": int(ends["full_draws"]),
        },
    )
    keep(job, dataset, stamp_of(job, making, known, leaks, on))


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
        "center": starts.center | {"shift": facing.shift},
        "crossing": facing.crossing,
        "bridge": facing.bridge,
        "bridge_sq": facing.bridge_sq,
        "full_draws": facing.num_draws,
        **{name: np.array(x) for name, x in starts.own._asdict().items()},
        **looked_at,
    }
