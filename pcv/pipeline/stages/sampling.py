"""Sampling a batch of folds, block by block, resuming from saved blocks."""

import signal
from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import xarray as xr
from jaxtyping import Float

from pcv.base import process
from pcv.folds import columns
from pcv.folds.base import Folds
from pcv.pipeline.config import CvConfig
from pcv.pipeline.job import Job, draws_of
from pcv.pipeline.stages.common.chains import (
    engine_of,
    in_chains,
    progress,
    resumed,
    says,
    space_of,
)
from pcv.pipeline.stages.common.problem import (
    active_folds,
    batch_of,
    folds_of,
    observed,
    sampled_folds,
    scored,
)
from pcv.pipeline.storage import growing, store
from pcv.pipeline.storage.artifacts import begin, keep, opened, require, sample_name, stamp_of
from pcv.pipeline.storage.checkpoints.checkpoint import Checkpoint
from pcv.pipeline.storage.store import Stamp

if TYPE_CHECKING:
    from pcv.analysis.samples import Block
    from pcv.sampling.fit.full_data import Fit
    from pcv.sampling.folds.drawing import Begun, Drawn, Saved, Until
    from pcv.sampling.folds.moving import Standing
    from pcv.sampling.tiles import Engine


INHERITED = (
    "predictive",
    "integration",
    "outcome",
    "superchains",
    "full_draws",
    "given_tested",
)
"""attributes that samples take over from their warmup"""


class Task(NamedTuple):
    """What a job samples, and from where."""

    all_folds: Folds
    folds: Folds
    """of the batch, those that go on"""
    warm: xr.Dataset
    """their warmup"""
    state: Float[np.ndarray, "fold chain param"]
    """where their chains stand"""
    frame: tuple[np.ndarray, np.ndarray] | None
    """location and scale of their replicates, if a round before has some"""
    made: int
    """draws per chain of the rounds before"""
    known: dict[str, Stamp]
    """of what the sample is made from"""
    fit: Stamp


def sample(job: Job) -> None:
    """Draws of all chains of a fold batch, as sums per batch of draws: ``sample/<batch>.zarr``.

    Rounds after the first continue the folds that their plan chooses. Valid blocks of draws from an
    earlier run are taken from the job's checkpoint.
    """
    from pcv.analysis import samples
    from pcv.analysis.diagnostics import largest, tail_size
    from pcv.base import devices
    from pcv.pipeline.storage import idata
    from pcv.sampling.folds import subspace
    from pcv.sampling.folds.drawing import sampled

    making, cv = begin(job, "sample"), job.settings.cv
    task = _task(job)
    folds, warm, frame, made = task.folds, task.warm, task.frame, task.made

    def stamp() -> Stamp:
        return stamp_of(job, making, task.known, on=devices.describe())

    if not len(folds.id):
        keep(job, xr.Dataset(coords={"fold": folds.id}), stamp())
        return
    made_of = draws_of(job, {**task.known, "fit": task.fit}, folds, warm)
    tail = None
    if cv.store == "sums":
        tail = np.full((len(folds.id), tail_size(cv.chains * cv.most_draws) + 1), -np.inf)
    lengths = [cv.rounds[job.round]] if cv.until and cv.until.of_comparison else cv.lengths
    num_draws, divergences, there = np.zeros(len(folds.id), int), 0, 0
    with devices.at_work(job.config.precision), process.deferred(signal.SIGTERM):
        arrays = columns.model_data(opened(job, "data"))
        fitted = idata.fit(opened(job, "fit", "kernel"))
        engine = _engine(job, task, arrays, fitted)
        if (space := space_of(warm)) is not None:
            fitted = fitted._replace(kernel=subspace.kernel(space))
        y = observed(job, arrays, folds)

        def drawn(
            rows: np.ndarray, made: int, lengths: list[int], own: Checkpoint
        ) -> "Iterator[Drawn]":
            begun = _begun(job, engine, fitted, task, rows)
            return sampled(begun, made, lengths, _until(cv), job.say, _saved(own))

        def after(number: int, block: "Block", draws: int, most: int) -> None:
            """Report progress, and stop here if a signal asked for it."""
            done = progress(job, "sample", [block], most)
            job.progress(done._replace(done=draws, divergences=divergences))
            process.look(
                f"sample {job.model}",
                f"the blocks of draws made so far, {max(number, there)}, are kept, and the same "
                "command resumes from them",
            )

        def catch_up(rows: np.ndarray, own: Checkpoint, number: int) -> None:
            """Sample new folds up to the length of those that have saved blocks."""
            length = number * cv.batch_size
            for i, (block, _, _) in enumerate(drawn(rows, 0, [length], own), 1):
                after(i, block, i * cv.batch_size, length)

        with (
            resumed(job, job.checkpoints, made_of, catch_up, "sample") as saved,
            ExitStack() as opening,
        ):
            there, batches, folder = saved.number, [], None
            number = (lengths[-1] - made) // cv.batch_size
            if there:
                plural = "s" * (there > 1)
                says(job, "sample")(f"resuming from {there} saved block{plural}")
            every = drawn(np.arange(len(folds.id)), made, lengths, saved)
            for i, (block, active, standing) in enumerate(every):  # noqa: B007
                across, frame = _across(engine, block, y[active], active, frame, cv)
                batch = samples.batch_of(block, across, cv.store == "draws")
                batch = samples.among_all(batch, active, len(folds.id))
                if i == 0 and job.kept is None and number * batch.nbytes > store.IN_MEMORY:
                    folder = opening.enter_context(store.new(job.path("sample"), stamp))
                if folder is None:
                    batches.append(batch)
                else:
                    growing.put(folder, batch, i, number)
                if tail is not None:
                    tail[active] = largest(tail[active], block.draws)
                num_draws[active] += block.num_draws
                divergences += int(block.stats["divergences"]["total"].sum())
                after(i + 1, block, made + int(num_draws.max()), lengths[-1])
            last = _last(job, warm, frame, standing)
            attributes = {key: warm.attrs[key] for key in INHERITED}
            end = samples.end(folds.id, num_draws, tail, last, attributes)
            if folder is None:
                keep(job, samples.whole(batches, end, number), stamp())
            else:
                store.put(folder, end, mode="a")
    if len(cv.lengths) > 1 and len(cv.rounds) == 1:
        job.say(
            f"sample {job.model}: folds stopped after {num_draws.min()} to {num_draws.max()} draws "
            f"({num_draws.mean():.0f} on average), {int((num_draws == cv.most_draws).sum())} of "
            f"{len(num_draws)} at max_draws"
        )


def _task(job: Job) -> Task:
    """What is there to sample, after a look at all that it is made from."""
    known = {"data": require(job, "data", {})}
    all_folds, stamps = folds_of(job, known)
    known |= stamps
    folds = batch_of(job, sampled_folds(job, all_folds))
    fit = require(job, "fit", known)
    known["warmup"] = require(job, "warmup", {**known, "fit": fit})
    warm = opened(job, "warmup")
    if not len(folds.id):
        return Task(all_folds, folds, warm, np.empty((0, 0, 0)), None, 0, known, fit)
    state, frame, made, these = warm["state"].values, None, 0, np.arange(len(folds.id))
    if job.round:
        before = job._replace(round=job.round - 1)
        known[sample_name(before)] = require(before, "sample", known)
        known[f"plan {job.round}"] = require(job, "plan", known)
        these = active_folds(job, folds)
        if these.size:
            earlier = opened(before, "sample").sel(fold=folds.id[these])
            state, made = earlier["state"].values, job.settings.cv.rounds[job.round - 1]
            if "y_rep_location" in earlier:
                frame = earlier["y_rep_location"].values, earlier["y_rep_scale"].values
    row = np.cumsum(warm["adapted"].values) - 1
    warm = warm.assign(adapted_row=("fold", row)).isel(fold=these)
    return Task(all_folds, folds.some(these), warm, state, frame, made, known, fit)


def _engine(job: Job, task: Task, arrays: dict[str, np.ndarray], fit: "Fit") -> "Engine":
    """The program of the job's folds, whose model has what its scores need."""
    from pcv.models import scores as scoring

    how = scored(job, arrays, task.all_folds)
    decoupled = bool(task.warm.attrs["decoupled"])
    model, predictive, *_ = in_chains(job, how, arrays, task.all_folds, fit, decoupled)
    scores = scoring.named(job.scores, job.objects)
    num_units, num_slots = columns.num_units(arrays), task.folds.test.shape[1]
    scoring.check(scores, model, job.model, arrays, num_units, predictive, num_slots)
    return engine_of(job, predictive, arrays, model, scores, space_of(task.warm))


def _across(
    engine: "Engine",
    block: "Block",
    y: np.ndarray,
    active: np.ndarray,
    frame: tuple[np.ndarray, np.ndarray] | None,
    cv: CvConfig,
) -> tuple[dict[str, dict[str, np.ndarray]], tuple[np.ndarray, np.ndarray] | None]:
    """Scores that compare chains, and the frame of the first block's replicates."""
    from pcv.models import scores as scoring

    if block.y_rep is None:
        return {}, frame
    frame = frame or scoring.frame(block.y_rep)
    own = (x[active] for x in frame)
    replicates = scoring.Replicates(block.y_rep, y, cv.num_superchains or cv.chains, *own)
    return scoring.across(engine.scores, replicates), frame


def _last(
    job: Job,
    warm: xr.Dataset,
    frame: tuple[np.ndarray, np.ndarray] | None,
    standing: "Standing",
) -> dict[str, tuple]:
    from pcv.analysis import samples

    last: dict[str, tuple] = {
        name: (warm[name].dims, warm[name].values) for name in samples.OF_FOLDS if name in warm
    }
    for name, x in zip(("location", "scale"), frame or ()):
        last[f"y_rep_{name}"] = (("fold", "slot"), x)
    if job.round + 1 < len(job.settings.cv.rounds):
        last["state"] = (("fold", "chain", "param"), standing.position)
    return last


def _until(cv: CvConfig) -> "Until | None":
    """The rule by which folds stop by themselves."""
    from pcv.sampling.folds.drawing import Until

    if cv.until is None or cv.until.of_comparison:
        return None
    rule = cv.until.fold_mcse, cv.until.fold_mcse_over_se, cv.until.rhat
    return Until(*rule, cv.num_superchains)


def _begun(job: Job, engine: "Engine", fit: "Fit", task: Task, rows: np.ndarray) -> "Begun":
    """Some of the task's folds."""
    from pcv.base.keys import key
    from pcv.pipeline.stages.warming_up import OF_OWN
    from pcv.sampling.folds.drawing import Begun
    from pcv.sampling.folds.moving import Own, standing_at

    warm = task.warm
    adapted = warm["adapted"].values[rows]
    scale_ratio = np.ones((len(rows), len(fit.kernel.center)))
    which = warm["adapted_row"].values[rows][adapted]
    scale_ratio[adapted] = warm["adapted_scale_ratio"].values[which]
    own = Own(scale_ratio=scale_ratio, **{name: warm[name].values[rows] for name in OF_OWN})
    center = {kind: warm[f"center_log_{kind}"].values[rows] for kind in ("joint", "pointwise")}
    center["shift"] = warm["shift"].values[rows]
    root = key(job.config.seed, job.model, "sample")
    full = warm["full_crossing"].values[rows], int(warm.attrs["full_draws"])
    folds, standing = task.folds.some(rows), standing_at(task.state[rows])
    return Begun(engine, root, fit.kernel, folds, own, standing, center, *full)


def _saved(own: Checkpoint) -> "Saved":
    """A checkpoint's blocks in the types of `pcv.sampling`."""
    from pcv.analysis.samples import block_of
    from pcv.sampling.folds.drawing import Saved
    from pcv.sampling.folds.moving import Standing

    return Saved(
        own.number,
        lambda index: block_of(own.block(index)),
        lambda: Standing(**own.state()),
        lambda index, block, standing: own.save(index, block._asdict(), standing._asdict()),
    )
