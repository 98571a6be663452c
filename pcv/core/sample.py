"""Draws of all chains of some folds, as sums of their scores per batch of draws."""

from collections.abc import Iterator
from signal import SIGTERM
from typing import NamedTuple

import numpy as np
import xarray as xr
from jaxtyping import Float

from pcv.analysis import kept as keeping
from pcv.analysis import samples
from pcv.analysis.diagnostics import largest, tail_size
from pcv.analysis.samples import Block
from pcv.base import process
from pcv.base.monitor import TO_LOG, Monitor
from pcv.core import groups
from pcv.core.check import simulates
from pcv.core.problem import Problem, chain_model, check_scores, engine_of
from pcv.core.settings import CvConfig, Settings
from pcv.core.store import Blocks, Resume, resume_nothing
from pcv.core.warmup import OF_OWN, stored_subspace
from pcv.folds.base import Folds
from pcv.models import scores
from pcv.sampling.fit.full_data import Fit
from pcv.sampling.folds import drawing, moving, subspace
from pcv.sampling.folds.drawing import Begun, Drawn, Saved, Until
from pcv.sampling.folds.moving import Own, Standing, standing_at
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


class Round(NamedTuple):
    """Where a further round of sampling begins: where the folds were left by the one before."""

    number: int
    """of this round, from 1"""
    before: xr.Dataset
    """samples of the round before, of the folds that continue"""


def next_round(number: int, model: str, before: xr.Dataset, planned: xr.Dataset) -> Round:
    """The round of the folds that a plan continues.

    Args:
        number: of the round, from 1.
        model: whose folds.
        before: samples of the round before.
        planned: of `pcv.core.diagnose.plan`.
    """
    more = planned["more"].sel(model=model, fold=before["fold"].values)
    return Round(number, before.isel(fold=np.flatnonzero(more.values)))


class _Start(NamedTuple):
    """Folds, their warmup, and where their chains stand."""

    folds: Folds
    warmup: xr.Dataset
    adapted_row: np.ndarray
    """place of each fold among those adapted"""
    state: Float[np.ndarray, "fold chain param"]
    num_draws: int
    """per chain, of the rounds before"""
    frame: tuple[np.ndarray, np.ndarray] | None
    """location and scale of replicates, if a round before has some"""


def sample(
    problem: Problem,
    fit: xr.DataTree,
    warmup: xr.Dataset,
    settings: Settings,
    monitor: Monitor,
    round: Round | None = None,
    resume: Resume = resume_nothing,
) -> xr.Dataset:
    """Draws of all chains of the folds that were warmed up.

    Args:
        problem: with all folds.
        fit: of the full data.
        warmup: of the folds.
        settings: of the folds' chains.
        monitor: takes messages and progress.
        round: where a further round begins, where the comparison decides which folds continue;
            None: the first.
        resume: opens what an interrupted step has left.

    Returns:
        Sums of scores, as `pcv.analysis.samples` describes them.
    """
    parts = sample_batches(problem, fit, warmup, settings, monitor, round, resume)
    *batches, end = parts
    number = round.number if round else 0
    return samples.whole(batches, end, num_batches(settings.cv, number)) if batches else end


def num_batches(cv: CvConfig, round: int = 0) -> int:
    """The largest number of batches of a round."""
    before = cv.rounds[round - 1] if round else 0
    return (_lengths(cv, round)[-1] - before) // cv.batch_size


def _lengths(cv: CvConfig, round: int) -> list[int]:
    """Draws per chain at which folds may stop."""
    return [cv.rounds[round]] if cv.until and cv.until.of_comparison else cv.lengths


def sample_batches(
    problem: Problem,
    fit: xr.DataTree,
    warmup: xr.Dataset,
    settings: Settings,
    monitor: Monitor,
    round: Round | None = None,
    resume: Resume = resume_nothing,
) -> Iterator[xr.Dataset]:
    """The batches of `sample` one by one, then what `pcv.analysis.samples.end` returns.

    Args:
        problem, fit, warmup, settings, monitor, round, resume: as for `sample`.
    """
    cv, number = settings.cv, round.number if round else 0
    start = _start(problem, warmup, cv, round)
    folds, lengths, frame = start.folds, _lengths(cv, number), start.frame
    if not len(folds.id):
        yield xr.Dataset(coords={"fold": folds.id})
        return
    tail = None
    if cv.store == "sums":
        tail = np.full((len(folds.id), tail_size(cv.chains * cv.most_draws) + 1), -np.inf)
    num_draws = np.zeros(len(folds.id), int)
    kept: list[xr.Dataset] = []
    tuned = groups.tuned_fit(fit)
    engine = _engine(problem, tuned, warmup, cv)
    if (space := stored_subspace(warmup)) is not None:
        tuned = tuned._replace(kernel=subspace.kernel(space))
    y = problem.observed(folds)
    keeps = problem.keeps(settings, engine.num_params)

    def draw(rows: np.ndarray, before: int, lengths: list[int], blocks: Blocks) -> Iterator[Drawn]:
        begun = _begun(problem, engine, tuned, start, rows)._replace(keeps=keeps)
        return drawing.sampled(begun, before, lengths, _until(cv), monitor, _saved(blocks))

    def report(block: Block, number: int, draws: int, most: int) -> None:
        """Show progress, and stop here if a signal asks for it."""
        monitor.raise_if_stopped(
            f"the blocks of draws made so far, {number}, are kept, and the same command resumes "
            "from them"
        )
        moving.report(monitor, block, draws, most)

    def catch_up(rows: np.ndarray, blocks: Blocks, number: int) -> None:
        """Sample new folds up to the length of those that have saved blocks."""
        length = number * cv.batch_size
        for i, (block, _, _) in enumerate(draw(rows, 0, [length], blocks), 1):
            report(block, i, i * cv.batch_size, length)

    with process.deferred(SIGTERM), resume({}, catch_up) as saved:
        if saved.number:
            plural = "s" * (saved.number > 1)
            monitor.log(f"resuming from {saved.number} saved block{plural}")
        every = draw(np.arange(len(folds.id)), start.num_draws, lengths, saved)
        for i, (block, active, standing) in enumerate(every, 1):  # noqa: B007
            across, frame = _across(engine, block, y[active], active, frame, cv)
            batch = samples.batch_of(block, across, cv.store == "draws")
            yield samples.among_all(batch, active, len(folds.id))
            if block.kept is not None:
                before = start.num_draws + int(num_draws.max())
                part = keeping.of_block(block, before, keeps)
                kept.append(samples.among_all(part, active, len(folds.id)))
            if tail is not None:
                tail[active] = largest(tail[active], block.draws)
            num_draws[active] += block.num_draws
            done = start.num_draws + int(num_draws.max())
            report(block, max(i, saved.number), done, lengths[-1])
        last = _last(start.warmup, frame)
        if kept:
            whole = keeping.joined(kept)
            if len(cv.rounds) == 1:
                whole = keeping.thinned(whole, num_draws, keeps)
            last |= {str(name): (x.dims, x.values) for name, x in whole.data_vars.items()}
        if number + 1 < len(cv.rounds):
            last["state"] = (("fold", "chain", "param"), standing.position)
        attributes = {key: warmup.attrs[key] for key in INHERITED}
        attributes["simulated"] = int(simulates(problem))
        yield samples.end(folds.id, num_draws, tail, last, attributes)
    if len(cv.lengths) > 1 and len(cv.rounds) == 1:
        monitor.log(
            f"folds stopped after {num_draws.min()} to {num_draws.max()} draws "
            f"({num_draws.mean():.0f} on average), {int((num_draws == cv.most_draws).sum())} of "
            f"{len(num_draws)} at max_draws"
        )


def _start(problem: Problem, warmup: xr.Dataset, cv: CvConfig, round: Round | None) -> _Start:
    folds = problem.named(warmup["fold"].values)
    if not len(folds.id):
        return _Start(folds, warmup, np.empty(0, int), np.empty((0, 0, 0)), 0, None)
    row = np.cumsum(warmup["adapted"].values) - 1
    if round is None:
        return _Start(folds, warmup, row, warmup["state"].values, 0, None)
    before = round.before
    some = np.isin(folds.id, before["fold"].values)
    num_draws, frame = cv.rounds[round.number - 1], None
    if "y_rep_location" in before:
        frame = before["y_rep_location"].values, before["y_rep_scale"].values
    state = before["state"].values if some.any() else np.empty((0, 0, 0))
    some_warmup = warmup.isel(fold=np.flatnonzero(some))
    return _Start(folds.some(some), some_warmup, row[some], state, num_draws, frame)


def _engine(problem: Problem, fit: Fit, warmup: xr.Dataset, cv: CvConfig) -> Engine:
    """The program of the folds, whose model has what its scores need."""
    how = chain_model(problem, fit, TO_LOG, bool(warmup.attrs["decoupled"]))
    check_scores(problem, how, problem.folds.test.shape[1])
    space, buffer = stored_subspace(warmup), cv.batch_size
    return engine_of(problem, how, problem.scores, space, buffer, simulates(problem))


def _across(
    engine: Engine,
    block: Block,
    y: np.ndarray,
    active: np.ndarray,
    frame: tuple[np.ndarray, np.ndarray] | None,
    cv: CvConfig,
) -> tuple[dict[str, dict[str, np.ndarray]], tuple[np.ndarray, np.ndarray] | None]:
    """Scores that compare chains, and the frame of the first block's replicates."""
    if block.y_rep is None:
        return {}, frame
    frame = frame or scores.frame(block.y_rep)
    of_active = (x[active] for x in frame)
    starts = cv.num_superchains or cv.chains
    replicates = scores.Replicates(block.y_rep, y, starts, *of_active)
    return scores.across(engine.scores, replicates), frame


def _last(warmup: xr.Dataset, frame: tuple[np.ndarray, np.ndarray] | None) -> dict[str, tuple]:
    """What the samples have of each fold besides its draws."""
    last: dict[str, tuple] = {
        name: (warmup[name].dims, warmup[name].values)
        for name in samples.OF_FOLDS
        if name in warmup
    }
    for name, x in zip(("location", "scale"), frame or ()):
        last[f"y_rep_{name}"] = (("fold", "slot"), x)
    return last


def _until(cv: CvConfig) -> Until | None:
    """The rule by which folds stop by themselves."""
    if cv.until is None or cv.until.of_comparison:
        return None
    rule = cv.until.fold_mcse, cv.until.fold_mcse_over_se, cv.until.rhat
    return Until(*rule, cv.num_superchains)


def _begun(problem: Problem, engine: Engine, fit: Fit, start: _Start, rows: np.ndarray) -> Begun:
    """Chains of some of the folds."""
    warmup = start.warmup
    adapted = warmup["adapted"].values[rows]
    scale_ratio = np.ones((len(rows), len(fit.kernel.center)))
    which = start.adapted_row[rows][adapted]
    scale_ratio[adapted] = warmup["adapted_scale_ratio"].values[which]
    own = Own(scale_ratio=scale_ratio, **{name: warmup[name].values[rows] for name in OF_OWN})
    center = {kind: warmup[f"center_log_{kind}"].values[rows] for kind in ("joint", "pointwise")}
    center["shift"] = warmup["shift"].values[rows]
    full = warmup["full_crossing"].values[rows], int(warmup.attrs["full_draws"])
    folds, standing = start.folds.some(rows), standing_at(start.state[rows])
    return Begun(engine, problem.key("sample"), fit.kernel, folds, own, standing, center, *full)


def _saved(blocks: Blocks) -> Saved:
    """Saved blocks in the types of `pcv.sampling`."""
    return Saved(
        blocks.number,
        lambda index: samples.block_of(blocks.block(index)),
        lambda: Standing(**blocks.state()),
        lambda index, block, standing: blocks.save(index, block._asdict(), standing._asdict()),
    )
