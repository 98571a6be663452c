"""The other side of each fold: full-data draws, scored on its test set.

For `pcv.analysis.diagnostics.two_sided`. A fold has two sides if its posterior differs from the
full-data one only by the density of its test set.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int, Shaped
from scipy.special import log_expit, logsumexp

from pcv.analysis.diagnostics import OFFSETS, balanced_shift, crossing
from pcv.base.keys import key
from pcv.base.monitor import Monitor
from pcv.folds.base import Folds
from pcv.sampling.accumulate import log_sums
from pcv.sampling.fit.full_data import Fit
from pcv.sampling.folds import moving
from pcv.sampling.folds.moving import Centers, Starts
from pcv.sampling.folds.warming import FULL_DRAWS, scored_blocks
from pcv.sampling.hmc import Pace
from pcv.sampling.kernel import precisions
from pcv.sampling.tiles import Engine, advance

MOST_DRAWS, FEW_DRAWS = 4000, 1000
"""full-data draws at which test sets are scored; and the same where each score is a numerical
integral"""
FEWEST_BATCHES = 32
"""of these draws: fewer give a noisy standard error, and many short ones, where draws are
autocorrelated, too small a one"""
LOOKED_AT, SMALL = 4, 0.05
"""draws at which densities are compared, and the relative discrepancy allowed as rounding"""
FREED, FLAT = 6.0, 0.05
"""ratio of widths above which the full-data kernel is too narrow; and the second difference below
which nothing is concluded (a normal has .25 at half a standard deviation)"""
AT_ONCE = 500
"""parameters examined together"""


class Facing(NamedTuple):
    """The full-data part of `pcv.analysis.diagnostics.Sides` and `UnitSides`."""

    shift: Float[np.ndarray, " fold"]
    crossing: Float[np.ndarray, "fold full_batch offset"]
    bridge: Float[np.ndarray, "fold full_batch slot"]
    """log means; -inf for folds with a single slot or one side"""
    bridge_sq: Float[np.ndarray, "fold full_batch slot"]
    """log means of squares"""
    num_draws: int


def without_gap(folds: Folds) -> Bool[np.ndarray, " fold"]:
    """Which folds hold out their test set and nothing else."""
    held_out = np.diff(folds.held_out, axis=2).sum((1, 2))
    return held_out == (folds.test >= 0).sum(1)


def factors(
    engine: Engine,
    fit: Fit,
    folds: Folds,
    draws: Float[np.ndarray, "draw param"],
    monitor: Monitor,
) -> Bool[np.ndarray, " fold"]:
    r"""Which folds' density times predictive is the full-data density, up to a constant.

    .. math:: \log p(\theta, y) - \log p(\theta, y_\mathrm{train}) -
              \log p(y_\mathrm{test} \mid \theta) = \text{constant}

    checked at four full-data draws, by chains that do not move.
    """
    some = draws[np.linspace(0, len(draws) - 1, LOOKED_AT).astype(int)]
    at = np.broadcast_to(some, (len(folds.id), *some.shape))
    lp, joint = _densities(engine, fit, folds, at, monitor)
    full, _ = _densities(engine, fit, _of_all(folds), at, monitor)
    with np.errstate(invalid="ignore"):
        apart = np.ptp(full - lp - joint, axis=1)
        rounding = 1000 * np.finfo(lp.dtype).eps * np.abs([full, lp, joint]).max((0, 2))
    return apart <= np.minimum(rounding, SMALL * np.ptp(joint, axis=1))


def frees_effects(
    engine: Engine,
    fit: Fit,
    folds: Folds,
    group: Shaped[np.ndarray, " unit"],
    monitor: Monitor,
) -> bool:
    """Whether leaving out a group makes any parameter, given the others, much wider.

    By second differences of log densities at the mean, as a left-out group's own effects are left
    with their prior alone. Checked in the fold that tests the largest group.
    """
    _, number, sizes = np.unique(group, return_inverse=True, return_counts=True)
    largest = np.where(folds.test >= 0, sizes[number][folds.test], 0).max(1).argmax()
    fold, center = folds.some(np.array([largest])), fit.kernel.center
    step = 0.5 / np.sqrt(precisions(fit.kernel))

    def at(position: Float[np.ndarray, "place param"], which: Folds) -> np.ndarray:
        return _densities(engine, fit, which, position[None], monitor, False)[0][0]

    for some in np.array_split(np.arange(len(center)), -(-len(center) // AT_ONCE)):
        moves = np.zeros((len(some), len(center)))
        moves[np.arange(len(some)), some] = step[some]
        places = center + np.concatenate([np.zeros((1, len(center))), moves, -moves])
        full, of_fold = (at(places, which) for which in (_of_all(fold), fold))
        rounding = 1000 * np.finfo(full.dtype).eps * np.abs(full).max()
        curved, flat = (
            2 * x[0] - x[1 : len(some) + 1] - x[len(some) + 1 :] for x in (full, of_fold)
        )
        known = np.isfinite(curved) & np.isfinite(flat) & (curved > max(FLAT, rounding))
        if (known & (flat < curved / FREED**2)).any():
            return True
    return False


def _of_all(folds: Folds) -> Folds:
    """The same folds with nothing held out."""
    return folds._replace(held_out=np.zeros_like(folds.held_out))


def _densities(
    engine: Engine,
    fit: Fit,
    folds: Folds,
    position: Float[np.ndarray, "fold place param"],
    monitor: Monitor,
    scored: bool = True,
) -> tuple[Float[np.ndarray, "fold place"], Float[np.ndarray, "fold place"]]:
    """Log densities of folds and, if `scored`, joint scores, by chains that do not move."""
    at, pace = moving.standing_at(position), Pace(0, 1, 1.0, 1, 0.0, 0.0)
    state, chains, center = moving.of_chains(
        folds, moving.alike(fit, len(folds.id)), at, moving.uncentered(folds)
    )
    state = state._replace(log_step_size=np.full(len(state.energy), -np.inf))
    together = key(0), fit.kernel, pace, state, chains, center if scored else None
    _, moved, made, _ = moving.in_memory(engine, advance, together, monitor)
    lp, joint = moved.lp, made.joint if made else moved.lp
    return lp[:, 0].reshape(position.shape[:2]), joint[:, 0].reshape(position.shape[:2])


def facing(
    engine: Engine,
    folds: Folds,
    which: Bool[np.ndarray, " fold"],
    starts: Starts,
    full_draws: Float[np.ndarray, "draw param"],
    terms: Float[np.ndarray, "draw unit"] | None,
    most: int,
    monitor: Monitor,
) -> Facing:
    """The other side of folds, from evenly spaced full-data draws.

    Args:
        engine: of the model.
        folds: all of the job.
        which: folds with two sides.
        starts: from warmup, whose second half is the pilot run for the shift.
        full_draws: full-data draws, chain by chain.
        terms: log likelihoods of all units at these draws, if scores are sums of them; None: scores
            are evaluated.
        most: largest number of draws.
        monitor: is asked after every block whether to stop.
    """
    if terms is not None:
        return facing_terms(folds, which, starts.draws, terms, engine.buffer, most, monitor)

    def scored(at: Int[np.ndarray, " place"], shift: np.ndarray, size: int) -> Iterator[Scores]:
        center = {kind: x[which] for kind, x in starts.center.items()} | {"shift": shift}
        return _of_program(engine, folds.some(which), center, full_draws[at], size, monitor)

    pilot, sizes = starts.draws, (len(full_draws), engine.buffer, most)
    return _facing(folds, which, pilot, sizes, scored, monitor)


def facing_terms(
    folds: Folds,
    which: Bool[np.ndarray, " fold"],
    pilot: Float[np.ndarray, "fold chain draw"],
    terms: Float[np.ndarray, "full_draw unit"],
    buffer: int,
    most: int,
    monitor: Monitor,
) -> Facing:
    """The other side of folds whose scores are sums of log likelihoods of units.

    Args:
        folds, which, most, monitor: as for `facing`.
        pilot: joint scores of each fold at some of its own draws, for the shift.
        terms: log likelihoods of all units at full-data draws, chain by chain.
        buffer: largest number of draws of a block.
    """

    def scored(at: Int[np.ndarray, " place"], shift: np.ndarray, size: int) -> Iterator[Scores]:
        return _of_terms(terms[at], folds.test[which], shift, size)

    return _facing(folds, which, pilot, (len(terms), buffer, most), scored, monitor)


def _facing(
    folds: Folds,
    which: Bool[np.ndarray, " fold"],
    pilot: Float[np.ndarray, "fold chain draw"],
    sizes: tuple[int, int, int],
    scored: "Callable[[np.ndarray, np.ndarray, int], Iterator[Scores]]",
    monitor: Monitor,
) -> Facing:
    """The other side of folds; `sizes`: number of full-data draws, and the largest numbers in a
    block and in all; `scored`: test sets at draws, given their places, shifts and a block's size.
    """
    available, buffer, most = sizes
    total = min(most, available)
    size = max(min(buffer, total // FEWEST_BATCHES), 1)
    per_batch = max(total // (FEWEST_BATCHES * size), 1)
    batches = total // (per_batch * size)
    nothing = np.full((len(folds.id), batches, folds.test.shape[1]), -np.inf)
    found = Facing(
        np.full(len(folds.id), np.inf),
        np.zeros((len(folds.id), batches, len(OFFSETS))),
        nothing,
        nothing.copy(),
        batches * per_batch * size,
    )
    if not which.any():
        return found

    def spaced(number: int) -> Int[np.ndarray, " place"]:
        return np.linspace(0, available - 1, number).round().astype(int)

    first = scored(spaced(min(FULL_DRAWS, total)), np.full(which.sum(), np.inf), size)
    full = np.concatenate([joint for joint, _ in first], axis=1)
    shift = balanced_shift(pilot[which].reshape(len(full), -1), full)
    for i, (joint, sums) in enumerate(scored(spaced(found.num_draws), shift, size)):
        batch = i // per_batch
        found.crossing[which, batch] += crossing(joint, shift, own=False) / per_batch
        for into, log_sum in zip((found.bridge, found.bridge_sq), sums):
            mean = log_sum - np.log(size * per_batch)
            into[which, batch] = np.logaddexp(into[which, batch], mean)
        monitor.raise_if_stopped()
    found.shift[which] = shift
    return found


Scores = tuple[Float[np.ndarray, "fold draw"], tuple[np.ndarray, ...]]
"""joint scores of a block of draws; and, where folds have several slots, the log sums for
`pcv.analysis.diagnostics.UnitSides`, of values and of squares"""


def _of_program(
    engine: Engine,
    folds: Folds,
    center: Centers,
    draws: Float[np.ndarray, "draw param"],
    size: int,
    monitor: Monitor,
) -> Iterator[Scores]:
    for made in scored_blocks(engine, folds, center, draws, monitor, size):
        found = log_sums.finalize(made.sums["bridge"]) if "bridge" in made.sums else {}
        yield made.joint.astype(float), tuple(found[x] for x in found if x.startswith("log_sum"))


def _of_terms(
    terms: Float[np.ndarray, "draw unit"],
    test: Int[np.ndarray, "fold slot"],
    shift: Float[np.ndarray, " fold"],
    size: int,
) -> Iterator[Scores]:
    for first in range(0, len(terms), size):
        of_slot = np.moveaxis(terms[first : first + size][:, test], 0, 1)
        pointwise = np.where(test[:, None] >= 0, of_slot, 0.0)
        joint = pointwise.sum(axis=2)
        if test.shape[1] == 1:
            yield joint, ()
            continue
        weighted = weigh_by_side(pointwise, joint, shift[:, None])
        yield joint, tuple(logsumexp(power * weighted, axis=1) for power in (1, 2))


def weigh_by_side(
    pointwise: Float[np.ndarray, "fold *chain draw slot"],
    joint: Float[np.ndarray, "fold *chain draw"],
    shift: Float[np.ndarray, "fold ..."],
) -> Float[np.ndarray, "fold *chain draw slot"]:
    """Log summands of `pcv.analysis.diagnostics.UnitSides`: pointwise scores, weighted by the
    probability that the draw belongs to the fold's side."""
    return np.asarray(pointwise + log_expit(shift - joint)[..., None])
