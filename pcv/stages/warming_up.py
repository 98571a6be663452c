"""The warmup of a batch of folds, and kernels of those that are unlike the full data."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr
from jaxtyping import Float

from pcv import checkpoint, datasets, stops, store
from pcv.checkpoint import Checkpoint
from pcv.folds import Folds
from pcv.folds.base import evenly
from pcv.job import (
    Job,
    batch_of,
    folds_of,
    opened,
    recipe,
    require,
    scored_alike,
    starts_of,
)
from pcv.stages.chains import Run, engine_of, in_chains, progress, run_of, says
from pcv.stages.inputs import warn_of_leaks

if TYPE_CHECKING:
    from pcv.kernels import Variants
    from pcv.marginal import Scored
    from pcv.sampler import Sampler
    from pcv.sums import Block
    from pcv.tuning import Tuned


EVALUATED_FOLDS, EVALUATED_DRAWS = 3, 1000
"""folds, and draws of a chain of the full-data fit, whose scores check the size of the batches"""
CHECKED_CHAINS = 2
"""of each fold, at whose ends integrals over own effects are looked at a second time"""
OF_VARIANT = ("step_size", "num_steps", "stretch", "moves")
"""fields of `pcv.kernels.Variants` that kernels of folds' own have"""


def warmup(job: Job) -> None:
    """Short warmup of all chains of a fold batch, thrown away: ``warmup/<batch>.zarr``.

    Where it ended is kept beside the checkpoints of samples, for folds in other company.
    """
    from pcv import devices, idata, kernels, second_look, tuning

    started = datetime.now(UTC)
    cv = job.settings.cv
    known = {"data": require(job, "data", {})}
    known["fit"] = require(job, "fit", known)
    all_folds, known["folds"] = folds_of(job, known)
    folds = batch_of(job, all_folds)
    fitted = xr.open_datatree(job.path("fit"), engine="zarr", consolidated=True)
    by_chain = fitted["unconstrained/position"].transpose("chain", "draw", ...).values
    full_draws = by_chain.reshape(-1, by_chain.shape[-1])
    with devices.at_work(job.config.precision):
        arrays = datasets.model_data(opened(job, "data"))
        fitted_kernel = fitted["kernel"].dataset
        chosen = scored_alike(job, arrays, all_folds)[job.model]
        model, predictive, integration, *_ = how = in_chains(job, chosen, fitted_kernel)
        detached = int(how.model is not chosen.model)
        engine = engine_of(job, predictive, arrays, model)
        leaks, checked = [], None
        if folds.id[0] == all_folds.id[0]:
            leaks = warn_of_leaks(job, opened(job, "data"), all_folds)
            if predictive == "marginal" or "log_likelihood" not in fitted:
                checked = _at_full_data(engine, all_folds, by_chain)
        tuned = tuning.Tuned(idata.kernel(fitted_kernel), **fitted_kernel.attrs)

        say = says(job, "warmup")

        def make(rows: np.ndarray, own: Checkpoint, number: int) -> None:
            some = folds.some(rows)
            run = run_of(job, "warmup", some, engine)
            ends = _ends(job, how, run, some, tuned, full_draws)
            looked_at = ends["state"][:, :CHECKED_CHAINS]
            gaps = second_look.gaps(how, arrays, some, looked_at, say)
            own.save(0, ends if gaps is None else {**ends, "integral_gap": gaps}, {})

        made_of = starts_of(job, known, folds, [predictive, integration, detached])
        pool = job.checkpoints.with_name("warmup")
        made_on = devices.made_on()
        with checkpoint.held(pool, made_of, made_on, job.say) as saved:
            if not checkpoint.completed(saved, made_of, made_on, make, say).number:
                make(np.arange(len(folds.id)), saved, 1)
            ends = saved.block(0)
        provenance = store.provenance(started, devices.describe())
    own = ends["own_kernel"]
    first = kernels.shared(tuned.kernel)
    per_variant = {
        name: np.concatenate([getattr(first, name), ends[name][own]]) for name in OF_VARIANT
    }
    variables = {
        "state": (("fold", "chain", "param"), ends["state"]),
        "variant": ("fold", np.where(own, np.cumsum(own), 0)),
        **{
            f"center_log_{kind}": (("fold", "slot")[: x.ndim], x)
            for kind, x in ends["center"].items()
        },
        **{
            f"kernel_{name}": (("param", "column")[: x.ndim], x)
            for name, x in (("center", first.center), ("scale", first.scale))
        },
        **{
            f"kernel_{name}": (("variant", "param")[: x.ndim], x) for name, x in per_variant.items()
        },
    }
    if "integral_gap" in ends:
        variables["integral_gap"] = "fold", ends["integral_gap"]
    if checked is not None:
        variables["log_score_full"] = (("checked_fold", "full_chain", "full_draw"), checked)
    dataset = xr.Dataset(
        variables,
        {"fold": folds.id, "param": fitted["unconstrained/param"].values},
        {
            "predictive": predictive,
            "integration": integration,
            "detached": detached,
            "outcome": str(model.outcome),
            "superchains": cv.num_superchains,
        },
    )
    stamp = store.stamp("warmup", recipe(job, "warmup"), known, leaks, provenance)
    store.write(job.path("warmup"), dataset, stamp)


def _at_full_data(
    engine: "Sampler", folds: Folds, draws: Float[np.ndarray, "chain draw param"]
) -> Float[np.ndarray, "checked_fold chain draw"]:
    """Joint log predictive of some folds' test sets at draws of the full-data fit."""
    from pcv import kernels

    some = evenly(len(folds.id), EVALUATED_FOLDS)
    chains, length, dim = draws.shape
    number = min(length, EVALUATED_DRAWS)
    picks = (length * np.arange(chains)[:, None] + np.arange(number)).reshape(-1)
    tested = folds.test[some], folds.held_out[some]
    found = kernels.at_full_data(engine, draws.reshape(-1, dim), picks, *tested)
    return found.reshape(len(some), chains, number)


def _ends(
    job: Job,
    how: "Scored",
    run: Run,
    folds: Folds,
    tuned: "Tuned",
    full_draws: np.ndarray,
) -> dict[str, Any]:
    """Where the warmup of some folds ends: their chains, centring constants, and kernels."""
    from pcv import all_chains, kernels, sampler
    from pcv.marginal import started_anew

    cv, ids = job.settings.cv, [str(fold) for fold in folds.id]
    picks = sampler.starting_draws(
        job.config.seed, job.model, ids, cv.chains, len(full_draws), cv.num_superchains
    )
    variants = kernels.shared(tuned.kernel)
    begin = started_anew(how, folds, full_draws[picks])
    start = all_chains.start(variants, np.zeros(len(ids), int), begin, run.chains)
    shapes = {"joint": (len(ids),), "pointwise": folds.test.shape}
    zero = {kind: np.zeros(shape) for kind, shape in shapes.items()}
    made, draws = [], []
    lengths = cv.chains, cv.warmup, 0
    drawn = all_chains.in_memory(run.engine, start, zero, run.jitter, *lengths, job.say)
    for block, parts, _ in drawn:
        draws.append(block.draws)
        made.append(block._replace(draws=block.draws[..., :0]))
        end = parts
        job.progress(progress(job, "warmup", made, cv.warmup))
        stops.look(f"warmup {job.model}")
    position = all_chains.positions(end, cv.chains)
    center = _centers(made)
    unlike = np.full(len(ids), cv.adapt == "always")
    if cv.adapt == "auto":
        thinned = np.arange(0, len(full_draws), -(-len(full_draws) // kernels.FULL_DRAWS))
        full = kernels.at_full_data(run.engine, full_draws, thinned, folds.test, folds.held_out)
        unlike = kernels.unlike(np.concatenate(draws, axis=2), full, tuned.slowest)
    variant = np.zeros(len(ids), int)
    if unlike.any():
        variant = np.where(unlike, np.cumsum(unlike), 0)
        some = folds.some(unlike)
        variants, position[unlike], made = _adapt(job, run, some, tuned, position[unlike])
        for name, constants in _centers(made).items():
            center[name][unlike] = constants
        why = ", those whose scores in warmup are unlike the full data"
        several = int((variants.moves > 1).sum())
        job.say(
            f"warmup {job.model}: kernels of their own for {unlike.sum()} of {len(ids)} folds"
            + why * (cv.adapt == "auto")
            + f"; {several} of them make {kernels.MOVES} transitions for a draw" * bool(several)
        )
    own = {name: getattr(variants, name)[variant] for name in OF_VARIANT}
    return {"state": position, "own_kernel": unlike, "center": center, **own}


def _adapt(
    job: Job, run: Run, folds: Folds, tuned: "Tuned", position: np.ndarray
) -> tuple["Variants", np.ndarray, list["Block"]]:
    """Kernels of some folds' own, where a warmup with them ends, and its blocks."""
    import jax

    from pcv import all_chains, kernels, sampler
    from pcv.keys import key

    seed, cv = job.config.seed, job.settings.cv
    parent, jitter = key(seed, job.model, "adapt"), key(seed, job.model, "adapt", "jitter")
    ids = [str(fold) for fold in folds.id]
    chains = sampler.chains_of(parent, ids, cv.chains, folds.test, folds.held_out)
    by_fold = jax.tree.map(lambda x: x.reshape(len(ids), cv.chains, *x.shape[1:]), chains)
    variants, position, first = kernels.adapt(
        run.engine,
        tuned.kernel,
        position,
        by_fold,
        jitter,
        tuned.target_accept,
    )
    variant = np.arange(1, len(ids) + 1)
    start = all_chains.start(variants, variant, position, chains)
    zero = {"joint": np.zeros(len(ids)), "pointwise": np.zeros(folds.test.shape)}
    made = []
    warmup = all_chains.in_memory(
        run.engine, start, zero, jitter, cv.chains, cv.warmup, first, job.say
    )
    for block, after, _ in warmup:
        made.append(block._replace(draws=block.draws[..., :0]))
        end = after
        job.progress(progress(job, "warmup of own kernels,", made, cv.warmup))
        stops.look(f"warmup {job.model}")
    return variants, all_chains.positions(end, cv.chains), made


def _centers(blocks: list["Block"]) -> dict[str, np.ndarray]:
    """Centring constants of the log score by kind, from the later half of a warmup."""
    later = blocks[len(blocks) // 2 :]
    return {kind: _center(later, kind) for kind in ("joint", "pointwise")}


def _center(blocks: list["Block"], kind: str) -> np.ndarray:
    counts = [block.num_draws for block in blocks]
    means = [block.sums[kind]["mean"].mean(1) for block in blocks]
    pooled = np.average(means, axis=0, weights=counts)
    return np.where(np.isfinite(pooled), pooled, 0.0)
