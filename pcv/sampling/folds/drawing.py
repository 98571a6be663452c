"""Sampling of folds, block by block, until each meets its stopping rule."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Array, Float, Int, Key

from pcv.analysis.diagnostics import LogSums, Sides, autocorrelation, batch_inflation
from pcv.analysis.kept import NONE, Keeps
from pcv.analysis.samples import Block
from pcv.analysis.stopping import rule
from pcv.base.monitor import Monitor
from pcv.folds.base import Folds
from pcv.sampling.folds import moving
from pcv.sampling.folds.moving import Centers, Own, Standing, chosen
from pcv.sampling.kernel import Kernel
from pcv.sampling.tiles import Engine


class Begun(NamedTuple):
    """Chains of folds, as left by warmup or by the previous round."""

    engine: Engine
    root: Key[Array, ""]
    kernel: Kernel
    folds: Folds
    own: Own
    standing: Standing
    center: Centers
    full_crossing: Float[np.ndarray, "fold full_batch offset"]
    """crossing of full-data draws"""
    full_draws: int
    keeps: Keeps = NONE


class Until(NamedTuple):
    """When a fold may stop."""

    fold_mcse: float | None
    fold_mcse_over_se: float | None
    rhat: float
    num_superchains: int


class Drawn(NamedTuple):
    """A block of draws, its folds, and the state of their chains."""

    block: Block
    active: Int[np.ndarray, " fold"]
    standing: Standing


class Saved(NamedTuple):
    """Saved blocks, and a function that saves more."""

    number: int
    block: Callable[[int], Block]
    standing: Callable[[], Standing]
    """after the last saved block"""
    save: Callable[[int, Block, Standing], None]


def _nothing(*_: Any) -> Any:
    return None


UNSAVED = Saved(0, _nothing, _nothing, _nothing)


def sampled(
    begun: Begun,
    made: int,
    lengths: Sequence[int],
    until: Until | None,
    monitor: Monitor,
    saved: Saved = UNSAVED,
) -> Iterator[Drawn]:
    """Blocks of draws of all folds, then, after each of the lengths, of unfinished folds only.

    Args:
        begun: state of the chains.
        made: earlier draws per chain.
        lengths: draws per chain at which folds are checked; all stop at the last.
        until: when a fold stops earlier; None: never.
        monitor: warns when a tile exceeds the device's memory.
        saved: blocks to replay before new ones are made.
    """
    engine, root, kernel, folds, own, standing, center, full_crossing, full_draws, keeps = begun
    shift = center["shift"]
    active, tolerance, so_far = np.arange(len(folds.id)), None, []
    index, inflation = 0, 1.0
    for length in lengths:
        while index < saved.number and made < length:
            block = saved.block(index)
            index, made = index + 1, made + block.num_draws
            if index == saved.number:
                standing = saved.standing()
            if until:
                so_far.append(block.sums["joint"] | {"crossing": block.crossing})
            yield Drawn(block, active, standing)
        some = folds.some(active), chosen(own, active), standing, chosen(center, active)
        drawn = moving.blocks(
            engine,
            root,
            kernel,
            *some,
            num_draws=length - made,
            first=made,
            monitor=monitor,
            keeps=keeps,
        )
        for block, standing in drawn:
            saved.save(index, block, standing)
            index += 1
            if until:
                so_far.append(block.sums["joint"] | {"crossing": block.crossing})
            yield Drawn(block, active, standing)
        made = length
        if not until or length == lengths[-1]:
            return
        found = {f: np.stack([x[f] for x in so_far], axis=2) for f in so_far[0]}
        sums = LogSums(*(found[f] for f in LogSums._fields))
        both = Sides(shift[active], found["crossing"], full_crossing[active], full_draws)
        if tolerance is None:
            tolerance = rule.tolerance(sums, until.fold_mcse, until.fold_mcse_over_se)
        now = rule.Rule(tolerance[active], until.rhat, until.num_superchains)
        inflation = max(inflation, batch_inflation(autocorrelation(sums)))
        unfinished = ~rule.finished(sums, now, inflation=inflation, sides=both)
        if not unfinished.any():
            return
        if not unfinished.all():
            standing = chosen(standing, unfinished)
            so_far = [{name: x[unfinished] for name, x in fields.items()} for fields in so_far]
            active = active[unfinished]
