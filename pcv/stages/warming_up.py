"""The warmup of a batch of folds, and kernels of those that are unlike the full data."""

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr
from jaxtyping import Float

from pcv import datasets, stops
from pcv.checkpoint import Checkpoint
from pcv.folds import Folds
from pcv.folds.base import evenly
from pcv.job import (
    Job,
    batch_of,
    begin,
    fitted,
    folds_of,
    keep,
    opened,
    require,
    scored_alike,
    stamp_of,
    starts_of,
)
from pcv.stages.chains import engine_of, in_chains, progress, resumed, says
from pcv.stages.inputs import warn_of_leaks

if TYPE_CHECKING:
    from pcv.marginal import Scored
    from pcv.sampling.full_data import Fit
    from pcv.sampling.tiles import Engine
    from pcv.sums import Block


EVALUATED_FOLDS, EVALUATED_DRAWS = 32, 500
"""folds, and draws of the full-data fit, whose scores check the size of the batches"""
CHECKED_CHAINS = 2
"""of each fold, at whose ends integrals over own effects are looked at a second time"""
OF_OWN = ("step_size", "num_steps", "thin", "stretch")
"""fields of `pcv.sampling.folds.Own`"""


def warmup(job: Job) -> None:
    """Short warmup of all chains of a fold batch, thrown away: ``warmup/<batch>.zarr``.

    Where it ended is kept beside the checkpoints of samples, for folds in other company.
    """
    from pcv import devices, idata, second_look
    from pcv.verdicts import ENOUGH_ESS

    making, cv = begin(job, "warmup"), job.settings.cv
    known = {"data": require(job, "data", {})}
    known["fit"] = require(job, "fit", known)
    all_folds, known["folds"] = folds_of(job, known)
    folds = batch_of(job, all_folds)
    tree = fitted(job)
    by_chain = tree["unconstrained/position"].transpose("chain", "draw", ...).values
    full_draws = by_chain.reshape(-1, by_chain.shape[-1])
    with devices.at_work(job.config.precision):
        arrays = datasets.model_data(opened(job, "data"))
        fit = idata.fit(tree["kernel"].dataset)
        checks = tree["checks"]
        bad = bool(len(checks.attrs["problems"]) or checks["ess"].min() < ENOUGH_ESS)
        chosen = scored_alike(job, arrays, all_folds)[job.model]
        model, predictive, integration, *_ = how = in_chains(job, chosen, fit)
        detached = int(how.model is not chosen.model)
        engine = engine_of(job, predictive, arrays, model)
        leaks, checked, terms = [], None, None
        if predictive != "marginal" and "log_likelihood" in tree:
            by_unit = opened(job, "fit", "log_likelihood")[job.settings.data.outcome]
            terms = by_unit.transpose("chain", "draw", ...).values.reshape(len(full_draws), -1)
        if folds.id[0] == all_folds.id[0]:
            leaks = warn_of_leaks(job, opened(job, "data"), all_folds)
            if predictive == "marginal" or "log_likelihood" not in tree:
                checked = _at_full_data(engine, fit, all_folds, by_chain, job.say)
        say = says(job, "warmup")

        def made(some: Folds) -> dict[str, Any]:
            ends = _ends(job, how, engine, some, fit, full_draws, terms, bad)
            looked_at = ends["state"][:, :CHECKED_CHAINS]
            gaps = second_look.gaps(how, arrays, some, looked_at, say)
            return ends if gaps is None else {**ends, "integral_gap": gaps}

        def make(rows: np.ndarray, own: Checkpoint, number: int) -> None:
            own.save(0, made(folds.some(rows)), {})

        made_of = starts_of(job, known, folds, [predictive, integration, detached])
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
        **{
            f"adapted_{name}": (("adapted_fold", "param")[: ends[name].ndim], ends[name][adapted])
            for name in OF_OWN
        },
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
            "detached": detached,
            "outcome": str(model.outcome),
            "superchains": cv.num_superchains,
            "full_draws": int(ends["full_draws"]),
        },
    )
    keep(job, dataset, stamp_of(job, making, known, leaks, on))


def _at_full_data(
    engine: "Engine",
    fit: "Fit",
    folds: Folds,
    draws: Float[np.ndarray, "chain draw param"],
    say: Any,
) -> Float[np.ndarray, "checked_fold first_chain first_draw"]:
    """Joint log predictive of some folds' test sets at draws of the full-data fit."""
    from pcv.sampling.folds import at_full_data

    some = folds.some(evenly(len(folds.id), EVALUATED_FOLDS))
    first = draws[: max(EVALUATED_DRAWS // draws.shape[1], 1), :EVALUATED_DRAWS]
    found = at_full_data(engine, fit, some, first.reshape(-1, draws.shape[-1]), say)
    return found.reshape(len(some.id), *first.shape[:2])


def _ends(
    job: Job,
    how: "Scored",
    engine: "Engine",
    folds: Folds,
    fit: "Fit",
    full_draws: np.ndarray,
    terms: np.ndarray | None,
    bad: bool,
) -> dict[str, Any]:
    """Where the warmup of some folds ends: their chains, centring constants, and kernels; and what
    draws of the full data say of them, unless these are bad or few."""
    from pcv.keys import key
    from pcv.marginal import started_anew
    from pcv.model import Target
    from pcv.sampling import folds as sampling
    from pcv.sampling import sides

    cv, ids = job.settings.cv, [str(fold) for fold in folds.id]
    picks = sampling.starting_draws(
        job.config.seed, job.model, ids, cv.chains, len(full_draws), cv.num_superchains
    )
    center = full_draws.mean(0)
    begin = center + cv.start_scale * (full_draws[picks] - center)
    made: dict[str, list[Block]] = {}

    def after(block: "Block", what: str) -> None:
        so_far = made.setdefault(what, [])
        so_far.append(block._replace(draws=block.draws[..., :0]))
        done = progress(job, f"warmup {what}".strip(), so_far, cv.warmup)
        job.progress(done._replace(draws=max(done.done, cv.warmup)))
        stops.look(f"warmup {job.model}")

    starts = sampling.warmup(
        engine,
        partial(key, job.config.seed, job.model),
        fit,
        folds,
        started_anew(how, folds, begin),
        cv.warmup,
        cv.adapt,
        full_draws,
        after,
        job.say,
    )
    if starts.adapted.any():
        why = ", those whose scores in warmup are unlike the full data"
        several = int((starts.own.thin > 1).sum())
        job.say(
            f"warmup {job.model}: kernels of their own for {starts.adapted.sum()} of {len(ids)} "
            "folds"
            + why * (cv.adapt == "auto")
            + f"; {several} of them make {sampling.MOVES} transitions for a draw" * bool(several)
        )
    which = sides.without_gap(folds) & (not bad and how.exact)
    if isinstance(how.model, Target) and which.any():
        which &= sides.factors(engine, fit, folds, full_draws, job.say)
    look = partial(stops.look, f"warmup {job.model}")
    numerical = how.local is not None and not how.local.exact
    most = sides.FEW_DRAWS if numerical else sides.MOST_DRAWS
    at = engine, fit, folds, which, starts, full_draws, terms, most
    facing = sides.facing(*at, job.say, look)
    own = {name: np.array(x) for name, x in starts.own._asdict().items()}
    return {
        "state": starts.position,
        "adapted": starts.adapted,
        "center": starts.center | {"shift": facing.shift},
        "crossing": facing.crossing,
        "bridge": facing.bridge,
        "bridge_sq": facing.bridge_sq,
        "full_draws": facing.num_draws,
        **own,
    }
