"""The warmup of folds: a run from full-data draws, which also centres the scores."""

from collections.abc import Callable, Iterator

import numpy as np
from jaxtyping import Array, Float, Key

from pcv.base.monitor import Monitor
from pcv.folds.base import Folds
from pcv.sampling.fit.full_data import Fit
from pcv.sampling.folds import moving
from pcv.sampling.folds.adapting import ADAPTED, adapt, longer, needs_adapting
from pcv.sampling.folds.lasting import Length, run
from pcv.sampling.folds.moving import Centers, Own, Starts
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
    length: Length,
    adapted: str,
    full_draws: Float[np.ndarray, "draw param"],
    monitor: Monitor,
) -> Starts:
    """A run of all chains, discarded; folds unlike the full data are adapted.

    Args:
        engine: of the model.
        root: key of the seed and the model, by stage.
        fit: of the full data; its draws are not needed.
        folds: to warm up.
        position: starting points of the chains.
        length: how long.
        adapted: which folds to adapt: "auto" (by `needs_adapting`, and those that do not forget
            their starts), "always" or "never".
        full_draws: full-data draws, for the reference variance of the score.
        monitor: takes messages, and the progress after every block.
    """
    own = moving.alike(fit, len(folds.id))
    at = engine, root("warmup"), fit.kernel, folds, own, position, length, 0
    end, center, early, accepted, late, num_draws, forgot = run(*at, monitor)
    which = np.full(len(folds.id), adapted == "always")
    if adapted == "auto" and early.shape[2] >= MIN_DRAWS:
        thinned = full_draws[:: -(-len(full_draws) // FULL_DRAWS)]
        full = at_full_data(engine, folds, thinned, monitor)
        which = needs_adapting(early, full, accepted, fit.target_accept) | ~forgot
        own = own._replace(num_steps=own.num_steps * longer(early))
    if not which.any():
        return Starts(end, own, which, center, late, num_draws, forgot)
    number, taken = which.sum(), engine.buffer * end[which].size * 8
    groups = np.array_split(np.flatnonzero(which), min(-(-taken // POSITIONS), number))
    each = [
        adapt(engine, root("adapt"), fit, folds.some(group), end[group], monitor)
        for group in groups
    ]
    owns, places, lengths = zip(*each)
    its, where, first = Own(*map(np.concatenate, zip(*owns))), np.concatenate(places), lengths[0]
    at = engine, root("adapt"), fit.kernel, folds.some(which), its, where, length, first
    again = run(*at, monitor, ADAPTED)
    for x, new in zip((end, *(own := Own(*map(np.array, own)))), (again.position, *its)):
        x[which] = new
    for kind, x in again.center.items():
        center[kind][which] = x
    late[which], forgot[which] = again.late, again.forgot
    num_draws[which] += first + again.num_draws
    return Starts(end, own, which, center, late, num_draws, forgot)


def at_full_data(
    engine: Engine,
    folds: Folds,
    draws: Float[np.ndarray, "draw param"],
    monitor: Monitor,
) -> Float[np.ndarray, "fold draw"]:
    """Joint log predictive density of every fold's test set at full-data draws."""
    each = scored_blocks(engine, folds, moving.uncentered(folds), draws, monitor)
    return np.concatenate([made.joint for made in each], 1).astype(float)


def scored_blocks(
    engine: Engine,
    folds: Folds,
    center: Centers,
    draws: Float[np.ndarray, "draw param"],
    monitor: Monitor,
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
        made = moving.in_memory(engine, score, (chains, center, some), monitor)
        for block in range(len(some)):
            found = rows(made, block)
            yield found._replace(joint=found.joint[:, : some.shape[1]])
