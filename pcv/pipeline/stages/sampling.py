"""The sampling of a batch of folds, block by block, from where a run before ended."""

import signal
from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING

import numpy as np
import xarray as xr

from pcv.base import process
from pcv.folds import columns
from pcv.folds.base import Folds
from pcv.pipeline.config import CvConfig
from pcv.pipeline.job import Job, draws_of
from pcv.pipeline.stages.chains import engine_of, in_chains, progress, resumed, says
from pcv.pipeline.stages.problem import active_folds, batch_of, folds_of, observed, scored
from pcv.pipeline.storage import growing, store
from pcv.pipeline.storage.artifacts import begin, keep, opened, require, sample_name, stamp_of
from pcv.pipeline.storage.checkpoints.checkpoint import Checkpoint
from pcv.pipeline.storage.store import Stamp

if TYPE_CHECKING:
    from pcv.analysis.sums import Block
    from pcv.sampling.fit.full_data import Fit
    from pcv.sampling.folds.drawing import Begun, Drawn, Saved, Until
    from pcv.sampling.tiles import Engine


INHERITED = ("predictive", "integration", "outcome", "superchains", "full_draws")
"""attributes of a warmup that its samples have as well"""


def sample(job: Job) -> None:
    """Draws of all chains of a fold batch, as sums per batch of draws: ``sample/<batch>.zarr``.

    Rounds after the first go on with the folds that their plan names. Blocks of draws that a run
    before this one made, and that still hold, are taken from the job's checkpoint.
    """
    from pcv.analysis import sums
    from pcv.analysis.diagnostics import largest, tail_size
    from pcv.base.programs import devices
    from pcv.models import scores as scoring
    from pcv.pipeline.storage import idata
    from pcv.sampling.folds.drawing import sampled

    making, config, cv = begin(job, "sample"), job.config, job.settings.cv
    known = {"data": require(job, "data", {})}
    all_folds, known["folds"] = folds_of(job, known)
    folds = batch_of(job, all_folds)
    fit = {"fit": require(job, "fit", known)}
    known["warmup"] = require(job, "warmup", known | fit)
    warm = opened(job, "warmup")
    state, frame, made = warm["state"], None, 0
    these = np.arange(len(folds.id))
    if job.round:
        before = job._replace(round=job.round - 1)
        known[sample_name(before)] = require(before, "sample", known)
        known[f"plan {job.round}"] = require(job, "plan", known)
        these = active_folds(job, folds)
        if these.size:
            earlier = opened(before, "sample").sel(fold=folds.id[these])
            state, made = earlier["state"], cv.rounds[job.round - 1]
            if "y_rep_location" in earlier:
                frame = earlier["y_rep_location"].values, earlier["y_rep_scale"].values
        folds = folds.some(these)
    row = np.cumsum(warm["adapted"].values) - 1
    warm, tail = warm.assign(adapted_row=("fold", row)).isel(fold=these), None
    if cv.store == "sums":
        room = tail_size(cv.chains * cv.most_draws) + 1
        tail = np.full((len(folds.id), room), -np.inf)
    made_of = draws_of(job, known | fit, folds, warm)

    def stamp() -> Stamp:
        return stamp_of(job, making, known, on=devices.describe())

    if not len(folds.id):
        keep(job, xr.Dataset(coords={"fold": folds.id}), stamp())
        return
    lengths = [cv.rounds[job.round]] if cv.until and cv.until.of_comparison else cv.lengths
    num_draws, divergences, there = np.zeros(len(folds.id), int), 0, 0
    with devices.at_work(config.precision), process.deferred(signal.SIGTERM):
        arrays = columns.model_data(opened(job, "data"))
        fitted = idata.fit(opened(job, "fit", "kernel"))
        how = scored(job, arrays, all_folds)
        decoupled = bool(warm.attrs["decoupled"])
        model, predictive, *_ = in_chains(job, how, arrays, all_folds, fitted, decoupled)
        scores = scoring.named(job.scores, job.objects)
        num_units = columns.num_units(arrays)
        scoring.check(scores, model, job.model, arrays, num_units, predictive, folds.test.shape[1])
        engine = engine_of(job, predictive, arrays, model, scores)
        y, num_starts = observed(job, arrays, folds), cv.num_superchains or cv.chains

        def drawn(
            rows: np.ndarray, made: int, lengths: list[int], own: Checkpoint
        ) -> "Iterator[Drawn]":
            begun = _begun(job, engine, fitted, folds.some(rows), warm, rows, state.values[rows])
            return sampled(begun, made, lengths, _until(cv), job.say, _saved(own))

        def after(number: int, block: "Block", draws: int, most: int) -> None:
            """Tell how far it is, and end here if that was asked for."""
            done = progress(job, "sample", [block], most)
            job.progress(done._replace(done=draws, divergences=divergences))
            process.look(
                f"sample {job.model}",
                f"the blocks of draws made so far, {max(number, there)}, are kept, and the same "
                "command resumes from them",
            )

        def catch_up(rows: np.ndarray, own: Checkpoint, number: int) -> None:
            """Draws of folds that are new beside others that were sampled before."""
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
                across: dict[str, dict[str, np.ndarray]] = {}
                if block.y_rep is not None:
                    frame = frame or scoring.frame(block.y_rep)
                    own = (x[active] for x in frame)
                    replicates = scoring.Replicates(block.y_rep, y[active], num_starts, *own)
                    across = scoring.across(scores, replicates)
                batch = sums.batch_of(block, across, cv.store == "draws")
                batch = sums.among_all(batch, active, len(folds.id))
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
            last: dict[str, tuple] = {}
            for name in sums.OF_FOLDS:
                if name in warm:
                    last[name] = warm[name].dims, warm[name].values
            if frame:
                for name, x in zip(("location", "scale"), frame):
                    last[f"y_rep_{name}"] = (("fold", "slot"), x)
            if job.round + 1 < len(cv.rounds):
                last["state"] = (("fold", "chain", "param"), standing.position)
            attributes = {key: warm.attrs[key] for key in INHERITED}
            end = sums.end(folds.id, num_draws, tail, last, attributes)
            if folder is None:
                keep(job, sums.whole(batches, end, number), stamp())
            else:
                store.put(folder, end, mode="a")
    if len(cv.lengths) > 1 and len(cv.rounds) == 1:
        job.say(
            f"sample {job.model}: folds ended after {num_draws.min()} to {num_draws.max()} draws, "
            f"{num_draws.mean():.0f} on average; {int((num_draws == cv.most_draws).sum())} of "
            f"{len(num_draws)} by max_draws"
        )


def _until(cv: CvConfig) -> "Until | None":
    """When folds end by themselves."""
    from pcv.sampling.folds.drawing import Until

    if cv.until is None or cv.until.of_comparison:
        return None
    rule = cv.until.fold_mcse, cv.until.fold_mcse_over_se, cv.until.rhat
    return Until(*rule, cv.num_superchains)


def _begun(
    job: Job,
    engine: "Engine",
    fit: "Fit",
    folds: Folds,
    warm: xr.Dataset,
    rows: np.ndarray,
    state: np.ndarray,
) -> "Begun":
    from pcv.base.keys import key
    from pcv.pipeline.stages.warming_up import OF_OWN
    from pcv.sampling.folds.drawing import Begun
    from pcv.sampling.folds.moving import Own, standing_at

    adapted = warm["adapted"].values[rows]
    scale_ratio = np.ones((len(rows), len(fit.kernel.center)))
    which = warm["adapted_row"].values[rows][adapted]
    scale_ratio[adapted] = warm["adapted_scale_ratio"].values[which]
    own = Own(scale_ratio=scale_ratio, **{name: warm[name].values[rows] for name in OF_OWN})
    center = {kind: warm[f"center_log_{kind}"].values[rows] for kind in ("joint", "pointwise")}
    center["shift"] = warm["shift"].values[rows]
    root = key(job.config.seed, job.model, "sample")
    full = warm["full_crossing"].values[rows], int(warm.attrs["full_draws"])
    return Begun(engine, root, fit.kernel, folds, own, standing_at(state), center, *full)


def _saved(own: Checkpoint) -> "Saved":
    """A checkpoint's blocks, as sampling has them."""
    from pcv.analysis.sums import block_of
    from pcv.sampling.folds.drawing import Saved
    from pcv.sampling.folds.moving import Standing

    return Saved(
        own.number,
        lambda index: block_of(own.block(index)),
        lambda: Standing(**own.state()),
        lambda index, block, standing: own.save(index, block._asdict(), standing._asdict()),
    )
