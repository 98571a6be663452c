"""The warmup of folds: a short run from full-data draws, which also centres the scores."""

from collections.abc import Callable, Iterator

import numpy as np
from jaxtyping import Array, Float, Key

from pcv.analysis.samples import Block
from pcv.folds.base import Folds
from pcv.sampling.fit.full_data import Fit
from pcv.sampling.folds import moving
from pcv.sampling.folds.adapting import adapt, longer, needs_adapting
from pcv.sampling.folds.moving import Centers, Own, Starts
from pcv.sampling.kernel import Kernel
from pcv.sampling.scoring import Made
from pcv.sampling.tiles import Engine, chains_of, rows, score

FULL_DRAWS = 100
"""full-data draws at which scores are evaluated"""
MIN_DRAWS = 10
"""warmup draws per chain below which folds are not adapted"""
POSITIONS = 2**28
"""bytes of draws per block above which folds are adapted in groups"""


def warmup(
    engine: Engine,
    root: Callable[[str], Key[Array, ""]],
    fit: Fit,
    folds: Folds,
    position: Float[np.ndarray, "fold chain param"],
    num_draws: int,
    adapted: str,
    full_draws: Float[np.ndarray, "draw param"],
    after: Callable[[Block, str], None],
    say: Callable[[str], None],
) -> Starts:
    """A short run of all chains, discarded; folds unlike the full data are adapted.

    Args:
        engine: of the model.
        root: key of the seed and the model, by stage.
        fit: of the full data; its draws are not needed.
        folds: to warm up.
        position: starting points of the chains.
        num_draws: per chain.
        adapted: which folds to adapt: "auto" (by `needs_adapting`), "always" or "never".
        full_draws: full-data draws, for the reference variance of the score.
        after: called with every block and its purpose.
        say: prints a message.
    """
    own = moving.alike(fit, len(folds.id))
    made, end = _warmed(
        engine, root("warmup"), fit.kernel, folds, own, position, num_draws, 0, after, say
    )
    center = centers(made)
    which = np.full(len(folds.id), adapted == "always")
    if adapted == "auto" and num_draws >= MIN_DRAWS:
        thinned = full_draws[:: -(-len(full_draws) // FULL_DRAWS)]
        full = at_full_data(engine, folds, thinned, say)
        draws = np.concatenate([block.draws for block in made], axis=2)
        which = needs_adapting(draws, full)
        own = own._replace(num_steps=own.num_steps * longer(draws))
    draws = _later(made)
    if not which.any():
        return Starts(end, own, which, center, draws)
    number, taken = which.sum(), engine.buffer * end[which].size * 8
    groups = np.array_split(np.flatnonzero(which), min(-(-taken // POSITIONS), number))
    each = [
        adapt(engine, root("adapt"), fit, folds.some(group), end[group], after, say)
        for group in groups
    ]
    owns, places, lengths = zip(*each)
    its, where, first = Own(*map(np.concatenate, zip(*owns))), np.concatenate(places), lengths[0]
    at = folds.some(which), its, where, num_draws, first
    made, where = _warmed(engine, root("adapt"), fit.kernel, *at, after, say)
    for x, new in zip((end, *(own := Own(*map(np.array, own)))), (where, *its)):
        x[which] = new
    for kind, x in centers(made).items():
        center[kind][which] = x
    draws[which] = _later(made)
    return Starts(end, own, which, center, draws)


def _later(made: list[Block]) -> Float[np.ndarray, "fold chain draw"]:
    return np.concatenate([block.draws for block in made[len(made) // 2 :]], axis=2)


def _warmed(
    engine: Engine,
    root: Key[Array, ""],
    kernel: Kernel,
    folds: Folds,
    own: Own,
    position: np.ndarray,
    num_draws: int,
    first: int,
    after: Callable[[Block, str], None],
    say: Callable[[str], None],
) -> tuple[list[Block], np.ndarray]:
    made, what = [], "of adapted folds," if first else ""
    at = folds, own, moving.standing_at(position), moving.uncentered(folds), num_draws, first, say
    for block, end in moving.blocks(engine, root, kernel, *at):
        made.append(block)
        position = end.position
        after(block, what)
    return made, position


def centers(made: list[Block]) -> Centers:
    """Centring constants of the log score by kind, from the second half of warmup."""
    later = made[len(made) // 2 :]
    counts = [block.num_draws for block in later]

    def center(kind: str) -> np.ndarray:
        means = [block.sums[kind]["mean"].mean(1) for block in later]
        pooled = np.average(means, axis=0, weights=counts)
        return np.where(np.isfinite(pooled), pooled, 0.0)

    shift = np.full(len(later[0].draws), np.inf)
    return {"joint": center("joint"), "pointwise": center("pointwise"), "shift": shift}


def at_full_data(
    engine: Engine,
    folds: Folds,
    draws: Float[np.ndarray, "draw param"],
    say: Callable[[str], None],
) -> Float[np.ndarray, "fold draw"]:
    """Joint log predictive density of every fold's test set at full-data draws."""
    each = scored_blocks(engine, folds, moving.uncentered(folds), draws, say)
    return np.concatenate([made.joint for made in each], 1).astype(float)


def scored_blocks(
    engine: Engine,
    folds: Folds,
    center: Centers,
    draws: Float[np.ndarray, "draw param"],
    say: Callable[[str], None],
    size: int | None = None,
) -> Iterator[Made]:
    """Scores of every fold's test set at full-data draws, in blocks of `size`, as if these were the
    draws of one chain per fold."""
    number, size = len(folds.id), size or engine.buffer
    ids = [str(fold) for fold in folds.id]
    chains = chains_of(ids, 1, folds.test, folds.held_out, engine.num_params)
    even = len(draws) // size * size
    together = max(engine.tile * engine.stack // number, 1) * size  # fills a call
    for first in (*range(0, even, together), *range(even, len(draws), size)):
        last = min(first + together, even) if first < even else len(draws)
        some = draws[first:last].reshape(-1, min(size, last - first), draws.shape[1])
        made = moving.in_memory(engine, score, (chains, center, some), say)
        for block in range(len(some)):
            found = rows(made, block)
            yield found._replace(joint=found.joint[:, : some.shape[1]])
