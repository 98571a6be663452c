"""The stages of the folds' chains: warmup and sampling, a batch of folds at a time."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import xarray as xr

from pcv import checkpoint, datasets, store
from pcv.checkpoint import Checkpoint
from pcv.config import CvConfig
from pcv.errors import PcvError
from pcv.folds import Folds
from pcv.job import (
    Job,
    Say,
    batch_of,
    draws_of,
    folds_of,
    observed,
    opened,
    recipe,
    require,
    sample_name,
    scored,
    scored_alike,
)
from pcv.progress import Progress
from pcv.store import Stamp

if TYPE_CHECKING:
    from pcv.kernels import Part, Variants
    from pcv.marginal import Scored
    from pcv.model import Model, Target
    from pcv.sampler import Chains, Kernel, Sampler
    from pcv.scores import Score
    from pcv.sums import Block


INHERITED = ("predictive", "integration", "outcome", "superchains")
"""attributes of a warmup that its samples have as well"""


class Run(NamedTuple):
    """What warmup and sampling of a fold batch share."""

    target: "Target"
    num_units: int
    engine: "Sampler"
    chains: "Chains"
    jitter: Any
    outcome: str


def _run(
    job: Job,
    stage: str,
    folds: Folds,
    predictive: str,
    arrays: Any,
    model: "Model | Target",
    scores: "tuple[Score, ...]" = (),
) -> Run:
    import jax

    from pcv import sampler
    from pcv.keys import key
    from pcv.model import flat_target, target

    seed, cv = job.config.seed, job.settings.cv
    flat, _ = flat_target(target(model, arrays, predictive))
    # Traced once, however many functions of the sampler call them.
    flat = flat._replace(
        log_density=jax.jit(flat.log_density), log_predictive=jax.jit(flat.log_predictive)
    )
    ids = [str(fold) for fold in folds.id]
    chains = sampler.chains_of(
        key(seed, job.model, stage), ids, cv.chains, folds.test, folds.held_out
    )
    num_units = datasets.num_units(arrays)
    return Run(
        flat,
        num_units,
        sampler.build(flat, scores, num_units, cv.batch_size),
        sampler.spread(chains),
        key(seed, job.model, stage, "jitter"),
        str(model.outcome),
    )


def _in_chains(how: "Scored", kernel: xr.Dataset) -> "Scored":
    """A model as chains sample it, whose kernel is that of the full-data fit."""
    from pcv.marginal import detached

    center, scale = kernel["center"].values, kernel["scale"].values
    return detached(how, center, np.diag(scale**2) if scale.ndim == 1 else scale @ scale.T)


def warmup(job: Job) -> None:
    """Short warmup of all chains of a fold batch, thrown away: ``warmup/<batch>.zarr``."""
    import jax.numpy as jnp

    from pcv import devices, idata, kernels, sampler

    started = datetime.now(UTC)
    config, cv = job.config, job.settings.cv
    known = {"data": require(job, "data", {})}
    known["fit"] = require(job, "fit", known)
    all_folds, known["folds"] = folds_of(job, known)
    folds = batch_of(job, all_folds)
    fitted = xr.open_datatree(job.path("fit"), engine="zarr", consolidated=True)
    full_draws = fitted["unconstrained/position"].stack(s=("chain", "draw")).values.T
    ids = [str(fold) for fold in folds.id]
    with devices.precision(config.precision):
        arrays = datasets.model_data(opened(job, "data"))
        fitted_kernel = fitted["kernel"].dataset
        alike = scored_alike(job, arrays, all_folds)
        model, predictive, integration, _ = _in_chains(alike[job.model], fitted_kernel)
        run = _run(job, "warmup", folds, predictive, arrays, model)
        kernel = idata.kernel(fitted_kernel)
        picks = sampler.starting_draws(
            config.seed, job.model, ids, cv.chains, len(full_draws), cv.num_superchains
        )
        starts = sampler.spread(jnp.asarray(full_draws[picks.reshape(-1)]))
        start = run.engine.start(kernel, starts, run.chains)
        shapes = {"joint": (len(ids),), "pointwise": folds.test.shape}
        zero = {kind: np.zeros(shape) for kind, shape in shapes.items()}
        made, draws = [], []
        drawn = sampler.blocks(
            run.engine, kernel, start, run.chains, zero, run.jitter, cv.chains, cv.warmup
        )
        for block, state in drawn:
            draws.append(block.draws)
            made.append(block._replace(draws=block.draws[..., :0]))
            end = state
            job.progress(_progress(job, "warmup", made, cv.warmup))
        position = np.array(sampler.positions(kernel, end)[: len(ids) * cv.chains])
        position = position.reshape(len(ids), cv.chains, -1)
        center = _centers(made)
        unlike = np.full(len(ids), cv.adapt == "always")
        if cv.adapt == "auto":
            full = kernels.at_full_data(
                run.target, run.num_units, full_draws, folds.test, folds.held_out
            )
            unlike = kernels.unlike(np.concatenate(draws, axis=2), full)
        variants = kernels.shared(kernel)
        if unlike.any():
            some = Folds(*(x[unlike] for x in folds))
            variants, position[unlike], made = _adapt(job, run, some, kernel, position[unlike])
            for name, constants in _centers(made).items():
                center[name][unlike] = constants
            why = ": by their scores in warmup, they are unlike the full data"
            job.say(
                f"warmup {job.model}: {unlike.sum()} of {len(ids)} folds have a kernel of their own"
                + why * (cv.adapt == "auto")
            )
        made_on = store.provenance(started, devices.describe())
    variables = {
        "state": (("fold", "chain", "param"), position),
        "variant": ("fold", np.where(unlike, np.cumsum(unlike), 0)),
        **{f"center_log_{name}": (("fold", "slot")[: x.ndim], x) for name, x in center.items()},
        **{
            f"kernel_{name}": (("param", "column")[: x.ndim], x)
            for name, x in (("center", variants.center), ("scale", variants.scale))
        },
        **{
            f"kernel_{name}": (("variant", "param")[: x.ndim], x)
            for name, x in list(variants._asdict().items())[2:]
        },
    }
    dataset = xr.Dataset(
        variables,
        {"fold": folds.id, "param": fitted["unconstrained/param"].values},
        {
            "predictive": predictive,
            "integration": integration,
            "outcome": run.outcome,
            "superchains": cv.num_superchains,
        },
    )
    stamp = store.stamp("warmup", recipe(job, "warmup"), known, None, made_on)
    store.write(job.path("warmup"), dataset, stamp)


def _adapt(
    job: Job, run: Run, folds: Folds, kernel: "Kernel", position: np.ndarray
) -> tuple["Variants", np.ndarray, list["Block"]]:
    """Kernels of some folds' own, where a warmup with them ends, and its blocks."""
    import jax

    from pcv import kernels, sampler
    from pcv.keys import key

    seed, cv = job.config.seed, job.settings.cv
    parent, jitter = key(seed, job.model, "adapt"), key(seed, job.model, "adapt", "jitter")
    ids = [str(fold) for fold in folds.id]
    chains = sampler.chains_of(parent, ids, cv.chains, folds.test, folds.held_out)
    by_fold = jax.tree.map(lambda x: x.reshape(len(ids), cv.chains, *x.shape[1:]), chains)
    variants, position, first = kernels.adapt(
        run.target, run.num_units, kernel, position, by_fold, jitter
    )
    variant = np.arange(1, len(ids) + 1)
    start = kernels.start(run.engine, variants, variant, position, chains)
    zero = {"joint": np.zeros(len(ids)), "pointwise": np.zeros(folds.test.shape)}
    made = []
    warmup = kernels.blocks(run.engine, start, zero, jitter, cv.chains, cv.warmup, first)
    for block, after in warmup:
        made.append(block._replace(draws=block.draws[..., :0]))
        end = after
        job.progress(_progress(job, "warmup of own kernels,", made, cv.warmup))
    return variants, kernels.positions(end, cv.chains), made


def _centers(blocks: list["Block"]) -> dict[str, np.ndarray]:
    """Centring constants of the log score by kind, from the later half of a warmup."""
    later = blocks[len(blocks) // 2 :]
    return {kind: _center(later, kind) for kind in ("joint", "pointwise")}


def _center(blocks: list["Block"], kind: str) -> np.ndarray:
    counts = [block.num_draws for block in blocks]
    means = [block.sums[kind]["mean"].mean(1) for block in blocks]
    pooled = np.average(means, axis=0, weights=counts)
    return np.where(np.isfinite(pooled), pooled, 0.0)


def _progress(job: Job, label: str, blocks: list["Block"], draws: int) -> Progress:
    last = blocks[-1]
    accepted = last.stats["acceptance"]["total"]
    part = f" {job.batch}" if job.settings.cv.fold_batches > 1 else ""
    return Progress(
        f"{label} {job.model}{part}",
        accepted.size,
        sum(block.num_draws for block in blocks),
        draws,
        float(accepted.mean() / last.num_draws),
        int(sum(block.stats["divergences"]["total"].sum() for block in blocks)),
    )


def sample(job: Job) -> None:
    """Draws of all chains of a fold batch, as sums per batch of draws: ``sample/<batch>.zarr``.

    Rounds after the first go on with the folds that their plan names. Blocks of draws that a run
    before this one made, and that still hold, are taken from the job's checkpoint.
    """
    from pcv import devices, kernels, sums
    from pcv import scores as scoring
    from pcv.diagnostics import tail_size

    started = datetime.now(UTC)
    config, cv = job.config, job.settings.cv
    known = {"data": require(job, "data", {})}
    all_folds, known["folds"] = folds_of(job, known)
    folds = batch_of(job, all_folds)
    known["warmup"] = require(job, "warmup", known | {"fit": require(job, "fit", known)})
    warm = opened(job, "warmup")
    state, frame, made = warm["state"], None, 0
    keep = np.arange(len(folds.id))
    if job.round:
        before = job._replace(round=job.round - 1)
        known[sample_name(before)] = require(before, "sample", known)
        known[f"plan {job.round}"] = require(job, "plan", known)
        more = opened(job, "plan")["more"].sel(model=job.model, fold=folds.id).values
        keep = np.flatnonzero(more)
        if keep.size:
            earlier = opened(before, "sample").sel(fold=folds.id[keep])
            state, made = earlier["state"], cv.rounds[job.round - 1]
            if "y_rep_location" in earlier:
                frame = earlier["y_rep_location"].values, earlier["y_rep_scale"].values
        folds = Folds(*(x[keep] for x in folds))
    tail = None
    if cv.store == "sums":
        room = tail_size(cv.chains * cv.most_draws) + 1
        tail = np.full((len(folds.id), room), -np.inf)

    def stamp() -> Stamp:
        made_on = store.provenance(started, devices.describe())
        return store.stamp("sample", recipe(job, "sample"), known, None, made_on)

    if not len(folds.id):
        store.write(job.path("sample"), xr.Dataset(coords={"fold": folds.id}), stamp())
        return
    lengths = [cv.rounds[job.round]] if cv.until and cv.until.of_comparison else cv.lengths
    num_draws, divergences = np.zeros(len(folds.id), int), 0
    with (
        devices.precision(config.precision),
        checkpoint.held(job.checkpoint, draws_of(job, known), job.say) as saved,
        checkpoint.told_to_stop() as told,
        store.new(job.path("sample"), stamp) as folder,
    ):
        arrays = datasets.model_data(opened(job, "data"))
        kernel = xr.open_dataset(job.path("fit"), group="kernel", engine="zarr", consolidated=True)
        model, predictive, _, _ = _in_chains(scored(job, arrays, all_folds), kernel)
        scores = scoring.named(job.scores, job.objects)
        num_units = datasets.num_units(arrays)
        scoring.check(scores, model, job.model, arrays, num_units, predictive, folds.test.shape[1])
        run = _run(job, "sample", folds, predictive, arrays, model, scores)
        y, num_starts = observed(job, arrays, folds), cv.num_superchains or cv.chains
        parts = kernels.start(
            run.engine,
            kernels.Variants(*(warm[f"kernel_{name}"].values for name in kernels.Variants._fields)),
            warm["variant"].values[keep],
            state.values,
            run.chains,
        )
        center = {kind: warm[f"center_log_{kind}"].values[keep] for kind in ("joint", "pointwise")}
        if saved.number:
            job.say(
                f"sample {job.model}: goes on from {saved.number} blocks of draws that are there"
            )
        drawn = _until_done(cv, run, parts, center, made, lengths, saved, job.say)
        for i, (block, active, parts) in enumerate(drawn):  # noqa: B007
            across: dict[str, dict[str, np.ndarray]] = {}
            if block.y_rep is not None:
                frame = frame or scoring.frame(block.y_rep)
                own = (x[active] for x in frame)
                replicates = scoring.Replicates(block.y_rep, y[active], num_starts, *own)
                across = scoring.across(scores, replicates)
            batch = sums.batch_of(block, across, cv.store == "draws")
            if i == 0:
                sums.create(folder, batch, (lengths[-1] - made) // cv.batch_size)
            sums.put(folder, sums.among_all(batch, active, len(folds.id)), i)
            if tail is not None:
                tail[active] = sums.largest(tail[active], block.draws)
            num_draws[active] += block.num_draws
            divergences += int(block.stats["divergences"]["total"].sum())
            done = _progress(job, "sample", [block], lengths[-1])
            done = done._replace(done=made + int(num_draws.max()), divergences=divergences)
            job.progress(done)
            if told():
                raise PcvError(
                    f"sample {job.model}: stopped by SIGTERM; {i + 1} blocks of draws are kept, "
                    "and the same command goes on from them"
                )
        last: dict[str, tuple] = {}
        if frame:
            for name, x in zip(("location", "scale"), frame):
                last[f"y_rep_{name}"] = (("fold", "slot"), x)
        if len(cv.rounds) > 1:
            end = kernels.positions(parts, cv.chains)
            last["state"] = (("fold", "chain", "param"), end)
        attributes = {key: warm.attrs[key] for key in INHERITED}
        sums.finish(folder, folds.id, num_draws, tail, last, attributes)
    if len(cv.lengths) > 1 and len(cv.rounds) == 1:
        job.say(
            f"sample {job.model}: folds ended after {num_draws.min()} to {num_draws.max()} draws, "
            f"{num_draws.mean():.0f} on average; {int((num_draws == cv.most_draws).sum())} of "
            f"{len(num_draws)} by max_draws"
        )


def _in_memory(
    run: Run,
    parts: "list[Part]",
    center: dict[str, np.ndarray],
    num_chains: int,
    num_draws: int,
    first: int,
    say: Say,
) -> Iterator[tuple["Block", "list[Part]"]]:
    """`kernels.blocks`; where they do not fit the device, with half as many chains at a time."""
    from jax.errors import JaxRuntimeError

    from pcv import kernels

    engine, made = run.engine, 0
    while made < num_draws:
        left = num_draws - made, first + made
        try:
            drawn = kernels.blocks(engine, parts, center, run.jitter, num_chains, *left)
            for block, parts in drawn:
                made += block.num_draws
                yield block, parts
        except JaxRuntimeError as error:
            if "RESOURCE_EXHAUSTED" not in str(error) or engine.at_once == 1:
                raise
            engine = engine.halved()
            say(
                f"warning: out of memory with {2 * engine.at_once} chains of a device at a time; "
                f"tried again with {engine.at_once} (fewer at a time from the start: more "
                "cv.fold_batches)"
            )


def _until_done(
    cv: CvConfig,
    run: Run,
    parts: "list[Part]",
    center: dict[str, np.ndarray],
    made: int,
    lengths: list[int],
    saved: Checkpoint,
    say: Say,
) -> Iterator[tuple["Block", np.ndarray, "list[Part]"]]:
    """Blocks of draws, the folds that they are of, and the chains to go on from.

    All folds at first; from each of the lengths on, those whose answer is not in. Blocks that were
    saved before come first, new ones are saved.
    """
    from pcv import kernels, stopping
    from pcv.diagnostics import LogSums
    from pcv.sums import block_of

    active, tolerance, so_far = np.arange(len(center["joint"])), None, []
    index = 0
    for length in lengths:
        while index < saved.number and made < length:
            block = block_of(saved.block(index))
            index, made = index + 1, made + block.num_draws
            if index == saved.number:
                parts = kernels.resumed(parts, saved.state())
            so_far.append(block.sums["joint"])
            yield block, active, parts
        some = {kind: x[active] for kind, x in center.items()}
        drawn = _in_memory(run, parts, some, cv.chains, length - made, made, say)
        for block, parts in drawn:
            saved.save(index, block._asdict(), kernels.states(parts))
            index += 1
            so_far.append(block.sums["joint"])
            yield block, active, parts
        made = length
        if cv.until is None or length == lengths[-1]:
            return
        sums = LogSums(*(np.stack([x[f] for x in so_far], axis=2) for f in LogSums._fields))
        if tolerance is None:
            tolerance = stopping.tolerance(sums, cv.until.fold_mcse, cv.until.fold_mcse_over_se)
        rule = stopping.Rule(tolerance[active], cv.until.rhat, cv.num_superchains)
        going = ~stopping.finished(sums, rule)
        if not going.any():
            return
        if not going.all():
            parts = kernels.kept(parts, going, cv.chains)
            so_far = [{name: x[going] for name, x in fields.items()} for fields in so_far]
            active = active[going]
