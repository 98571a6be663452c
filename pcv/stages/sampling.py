"""The sampling of a batch of folds, block by block, from where a run before ended."""

import signal
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import xarray as xr

from pcv import datasets, stops, store
from pcv.checkpoint import Checkpoint
from pcv.config import CvConfig
from pcv.folds import Folds
from pcv.job import (
    Job,
    Say,
    batch_of,
    begin,
    draws_of,
    folds_of,
    going,
    keep,
    new,
    observed,
    opened,
    require,
    sample_name,
    scored,
    stamp_of,
)
from pcv.stages.chains import engine_of, in_chains, progress, resumed, says
from pcv.store import Stamp

if TYPE_CHECKING:
    from pcv.sampling.folds import Own, Standing
    from pcv.sampling.full_data import Fit
    from pcv.sampling.kernel import Kernel
    from pcv.sampling.tiles import Engine
    from pcv.sums import Block


INHERITED = ("predictive", "integration", "outcome", "superchains", "full_draws")
"""attributes of a warmup that its samples have as well"""


def sample(job: Job) -> None:
    """Draws of all chains of a fold batch, as sums per batch of draws: ``sample/<batch>.zarr``.

    Rounds after the first go on with the folds that their plan names. Blocks of draws that a run
    before this one made, and that still hold, are taken from the job's checkpoint.
    """
    from pcv import devices, idata, sums
    from pcv import scores as scoring
    from pcv.diagnostics import largest, tail_size

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
        these = going(job, folds)
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
    with devices.at_work(config.precision), stops.deferred(signal.SIGTERM):
        arrays = datasets.model_data(opened(job, "data"))
        fitted = idata.fit(opened(job, "fit", "kernel"))
        model, predictive, *_ = in_chains(job, scored(job, arrays, all_folds), fitted)
        scores = scoring.named(job.scores, job.objects)
        num_units = datasets.num_units(arrays)
        scoring.check(scores, model, job.model, arrays, num_units, predictive, folds.test.shape[1])
        engine = engine_of(job, predictive, arrays, model, scores)
        y, num_starts = observed(job, arrays, folds), cv.num_superchains or cv.chains

        def begun(rows: np.ndarray) -> Begun:
            return _begun(job, engine, fitted, folds.some(rows), warm, rows, state.values[rows])

        def after(number: int, block: "Block", draws: int, most: int) -> None:
            """Tell how far it is, and end here if that was asked for."""
            done = progress(job, "sample", [block], most)
            job.progress(done._replace(draws=draws, divergences=divergences))
            stops.look(
                f"sample {job.model}",
                f"the blocks of draws made so far, {max(number, there)}, are kept, and the same "
                "command goes on from them",
            )

        def catch_up(rows: np.ndarray, own: Checkpoint, number: int) -> None:
            """Draws of folds that are new beside others that were sampled before."""
            length = number * cv.batch_size
            drawn = _until_done(cv, begun(rows), 0, [length], own, job.say)
            for i, (block, _, _) in enumerate(drawn, 1):
                after(i, block, i * cv.batch_size, length)

        with (
            resumed(job, job.checkpoints, made_of, catch_up, "sample") as saved,
            new(job, "sample", stamp) as folder,
        ):
            there, batches = saved.number, []
            if there:
                plural = "s" * (there > 1)
                says(job, "sample")(f"goes on from {there} block{plural} of draws that are there")
            drawn = _until_done(cv, begun(np.arange(len(folds.id))), made, lengths, saved, job.say)
            for i, (block, active, standing) in enumerate(drawn):  # noqa: B007
                across: dict[str, dict[str, np.ndarray]] = {}
                if block.y_rep is not None:
                    frame = frame or scoring.frame(block.y_rep)
                    own = (x[active] for x in frame)
                    replicates = scoring.Replicates(block.y_rep, y[active], num_starts, *own)
                    across = scoring.across(scores, replicates)
                batch = sums.batch_of(block, across, cv.store == "draws")
                batch = sums.among_all(batch, active, len(folds.id))
                if folder is None:
                    batches.append(batch)
                else:
                    sums.put(folder, batch, i, (lengths[-1] - made) // cv.batch_size)
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
                keep(job, sums.whole(batches, end), stamp())
            else:
                store.put(folder, end, mode="a")
    if len(cv.lengths) > 1 and len(cv.rounds) == 1:
        job.say(
            f"sample {job.model}: folds ended after {num_draws.min()} to {num_draws.max()} draws, "
            f"{num_draws.mean():.0f} on average; {int((num_draws == cv.most_draws).sum())} of "
            f"{len(num_draws)} by max_draws"
        )


class Begun(NamedTuple):
    """Chains of folds, where their warmup or the round before left them."""

    engine: "Engine"
    root: Any
    kernel: "Kernel"
    folds: Folds
    own: "Own"
    standing: "Standing"
    center: dict[str, np.ndarray]
    """centring constants of the log score, joint and pointwise, and shift of its sides"""
    full_crossing: np.ndarray
    """of full-data draws, (fold, full_batch, offset)"""
    full_draws: int


def _begun(
    job: Job,
    engine: "Engine",
    fit: "Fit",
    folds: Folds,
    warm: xr.Dataset,
    rows: np.ndarray,
    state: np.ndarray,
) -> Begun:
    from pcv.keys import key
    from pcv.sampling.folds import Own, alike, standing_at

    adapted = warm["adapted"].values[rows]
    own = Own(*map(np.array, alike(fit, len(rows))))
    which = warm["adapted_row"].values[rows][adapted]
    for name, x in own._asdict().items():
        x[adapted] = warm[f"adapted_{name}"].values[which]
    center = {kind: warm[f"center_log_{kind}"].values[rows] for kind in ("joint", "pointwise")}
    center["shift"] = warm["shift"].values[rows]
    root = key(job.config.seed, job.model, "sample")
    full = warm["full_crossing"].values[rows], int(warm.attrs["full_draws"])
    return Begun(engine, root, fit.kernel, folds, own, standing_at(state), center, *full)


def _until_done(
    cv: CvConfig,
    begun: Begun,
    made: int,
    lengths: list[int],
    saved: Checkpoint,
    say: Say,
) -> Iterator[tuple["Block", np.ndarray, "Standing"]]:
    """Blocks of draws, the folds that they are of, and where their chains stand.

    All folds at first; from each of the lengths on, those whose answer is not in. Blocks that were
    saved before come first, new ones are saved.
    """
    from pcv import stopping
    from pcv.diagnostics import LogSums, Sides, autocorrelation, batch_inflation
    from pcv.sampling.folds import Standing, blocks, chosen
    from pcv.sums import block_of

    engine, root, kernel, folds, own, standing, center, full_crossing, full_draws = begun
    shift = center["shift"]
    active, tolerance, so_far = np.arange(len(folds.id)), None, []
    index, inflation = 0, 1.0
    by_fold = bool(cv.until and not cv.until.of_comparison)
    for length in lengths:
        while index < saved.number and made < length:
            block = block_of(saved.block(index))
            index, made = index + 1, made + block.num_draws
            if index == saved.number:
                standing = Standing(**saved.state())
            if by_fold:
                so_far.append(block.sums["joint"] | {"crossing": block.crossing})
            yield block, active, standing
        some = folds.some(active), chosen(own, active), standing, chosen(center, active)
        drawn = blocks(engine, root, kernel, *some, num_draws=length - made, first=made, say=say)
        for block, standing in drawn:
            saved.save(index, block._asdict(), standing._asdict())
            index += 1
            if by_fold:
                so_far.append(block.sums["joint"] | {"crossing": block.crossing})
            yield block, active, standing
        made = length
        if not by_fold or length == lengths[-1]:
            return
        assert cv.until is not None
        found = {f: np.stack([x[f] for x in so_far], axis=2) for f in so_far[0]}
        sums = LogSums(*(found[f] for f in LogSums._fields))
        both = Sides(shift[active], found["crossing"], full_crossing[active], full_draws)
        if tolerance is None:
            tolerance = stopping.tolerance(sums, cv.until.fold_mcse, cv.until.fold_mcse_over_se)
        rule = stopping.Rule(tolerance[active], cv.until.rhat, cv.num_superchains)
        inflation = max(inflation, batch_inflation(autocorrelation(sums)))
        going = ~stopping.finished(sums, rule, inflation=inflation, sides=both)
        if not going.any():
            return
        if not going.all():
            standing = chosen(standing, going)
            so_far = [{name: x[going] for name, x in fields.items()} for fields in so_far]
            active = active[going]
