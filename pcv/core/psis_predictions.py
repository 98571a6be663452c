r"""Predictions of units that PSIS scores: full-data draws, resampled by the weights of each fold.

.. math:: \tilde y_{is} \sim p(y_i \mid \theta_{j(s)}), \qquad P(j(s) = j) = w_{kj}

with the smoothed weights w of fold k, which sum to 1.
"""

from collections.abc import Iterator

import jax
import numpy as np
import xarray as xr
from jaxtyping import Array, Float, Int

from pcv.analysis.predictions import of_units, pit_of_parts
from pcv.base.names import name_bits
from pcv.compile import programs
from pcv.core.problem import Problem
from pcv.folds.base import Folds
from pcv.models.effects.marginal import Scored
from pcv.models.model import Fold, Model, Target, target
from pcv.models.parameters import flat_target
from pcv.sampling.hmc import train_mask
from pcv.sampling.scoring import Replicate, replicate
from pcv.sampling.tiles import typed

MOST_BYTES = 2**25
"""of the draws that a program takes, or of the replicates that it returns"""
AT_ONCE = 50
"""draws evaluated in parallel"""


def predictions_by_psis(
    problem: Problem,
    how: Scored,
    position: Float[np.ndarray, "chain draw param"],
    log_weight: Float[np.ndarray, "fold used"],
    ess: float,
    arranged: tuple[int, int],
) -> xr.Dataset | None:
    """Replicates and PITs of the tested units of all folds.

    Args:
        problem: with all folds.
        how: the model is scored.
        position: draws of the full-data posterior.
        log_weight: smoothed log weights of each fold, up to a constant, at all draws but the last
            few of each chain.
        ess: effective sample size of the full-data draws over their number.
        arranged: number of chains, and of draws in each, into which replicates are put.

    Returns:
        What `pcv.analysis.predictions.predictions` does, without draws of the parameters and
        without the folds whose weights are not finite; None if the model has no `predict`.
    """
    flat, _ = flat_target(target(how.model, problem.arrays, how.predictive))
    if flat.predict is None:
        return None
    used = log_weight.shape[1] // len(position)
    x = position[:, :used].reshape(-1, position.shape[2])
    known = np.isfinite(log_weight.max(1))
    folds, number = problem.folds.some(known), arranged[0] * arranged[1]
    rng = np.random.default_rng([problem.seed, name_bits("psis"), name_bits(problem.name)])
    weight = np.exp(log_weight[known] - log_weight[known].max(1, keepdims=True))
    draw = resample(weight, number, rng)
    rows, uniform = problem.rows(folds), problem.uniform_of_row
    y_rep = np.zeros((*rows.shape, number), np.float32)
    share, has_cdf = np.zeros_like(y_rep), False
    is_local = how.predictive == "marginal" or not isinstance(how.model, Model)
    replicates = _fold_by_fold if is_local else _all_units
    for fold, place, made in replicates(problem, flat, folds, x, draw):
        y_rep[fold, :, :, place] = made.y_rep.reshape(-1, *rows.shape[1:])
        if made.below is not None and made.up_to is not None:
            below, up_to = (p.reshape(-1, *rows.shape[1:]) for p in (made.below, made.up_to))
            value = below + uniform[rows[fold]] * (up_to - below)
            share[fold, :, :, place] = value
            has_cdf = True
    pit = None
    if has_cdf:
        by_chain = share.reshape(*rows.shape, *arranged).mean(-1, dtype=float)
        value, mcse = pit_of_parts(by_chain, np.ones(1, bool))
        independent = np.fmin(ess * weight.sum(1) ** 2 / (weight**2).sum(1), number)
        pit = value, mcse * np.sqrt(number / independent)[:, None, None]
    outcome = np.asarray(problem.arrays[problem.outcome], float)
    of_rows = outcome, problem.unit_of_row, uniform
    by_slot = y_rep.reshape(*rows.shape, *arranged)
    return of_units(by_slot, pit, rows, folds.id.astype(str), *of_rows)


def resample(
    weight: Float[np.ndarray, "fold draw"], number: int, rng: np.random.Generator
) -> Int[np.ndarray, "fold number"]:
    """Draws in proportion to their weights, by systematic resampling, in random order.

    Args:
        weight: of all draws, up to a constant of each fold.
        number: of draws to return.
        rng: source of random numbers.

    >>> np.bincount(resample(np.array([[1.0, 2, 1]]), 8, np.random.default_rng(1))[0])
    array([2, 4, 2])
    """
    share = np.cumsum(weight, axis=1)
    grid = (np.arange(number) + rng.random((len(weight), 1))) / number
    last = weight.shape[1] - 1
    each = [np.searchsorted(s / s[-1], u, side="right") for s, u in zip(share, grid)]
    return rng.permuted(np.minimum(np.array(each, int).reshape(-1, number), last), axis=1)


Made = Iterator[tuple[Int[np.ndarray, " some"], Int[np.ndarray, " some"], Replicate]]
"""folds, places among their draws, and the replicates there (some, slot, …)"""


def _all_units(
    problem: Problem,
    flat: Target,
    folds: Folds,
    position: Float[np.ndarray, "draw param"],
    draw: Int[np.ndarray, "fold number"],
) -> Made:
    """Replicates of predictives that are the same in all folds: of all tested units at once.

    A draw that a fold takes several times has as many replicates, which other folds share.

    Args:
        problem: with all folds.
        flat: on flat parameters.
        folds: that are predicted.
        position: all draws.
        draw: those of each fold.
    """
    tested = np.unique(folds.test[folds.test >= 0])
    slot = np.searchsorted(tested, np.maximum(folds.test, tested[0]))
    several, copy = _copies(draw)
    code, which = np.unique(draw * several + copy, return_inverse=True)
    which = which.reshape(draw.shape)
    program, root = _program(flat, problem.num_units), problem.key("psis")[None]
    width = max(problem.rows_by_unit[tested].size, position.shape[1])
    size = min(max(MOST_BYTES // (4 * width), 1), len(code))
    for start in range(0, len(code), size):
        some = code[np.minimum(np.arange(start, start + size), len(code) - 1)]
        of_whole = some[None], position[None, some // several], tested[None], folds.held_out[:1, :0]
        made = jax.device_get(program(root, *typed(of_whole)))
        fold, place = np.nonzero((which >= start) & (which < start + size))
        chosen = (which[fold, place] - start)[:, None], slot[fold]
        yield fold, place, jax.tree.map(lambda x, chosen=chosen: x[0][chosen], made)


def _copies(draw: Int[np.ndarray, "fold number"]) -> tuple[int, Int[np.ndarray, "fold number"]]:
    """How often a fold takes the same draw at most, and the number of each among its likes."""
    order = np.argsort(draw, axis=1, kind="stable")
    in_order = np.take_along_axis(draw, order, 1)
    place = np.broadcast_to(np.arange(draw.shape[1]), draw.shape)
    begins = np.ones(draw.shape, bool)
    begins[:, 1:] = in_order[:, 1:] != in_order[:, :-1]
    number = place - np.maximum.accumulate(np.where(begins, place, 0), axis=1)
    copy = np.empty_like(draw)
    np.put_along_axis(copy, order, number, 1)
    return int(copy.max(initial=0)) + 1, copy


def _fold_by_fold(
    problem: Problem,
    flat: Target,
    folds: Folds,
    position: Float[np.ndarray, "draw param"],
    draw: Int[np.ndarray, "fold number"],
) -> Made:
    """Replicates of predictives that are each fold's, as with left-out effects.

    Args:
        problem, flat, folds, position, draw: as for `_all_units`.
    """
    program, number = _program(flat, problem.num_units), np.arange(draw.shape[1])
    of_fold = np.array([name_bits(str(name)) for name in folds.id], np.uint32)
    roots = jax.vmap(jax.random.fold_in, (None, 0))(problem.key("psis"), of_fold)
    size = min(max(MOST_BYTES // (8 * number.size * position.shape[1]), 1), len(draw))
    for start in range(0, len(draw), size):
        real = np.arange(start, min(start + size, len(draw)))
        some = np.minimum(np.arange(start, start + size), len(draw) - 1)
        code = np.broadcast_to(number, (size, number.size))
        each = code, position[draw[some]], folds.test[some], folds.held_out[some]
        made = jax.device_get(program(roots[some], *typed(each)))
        fold, place = np.repeat(real, number.size), np.tile(number, real.size)
        of_real = real.size
        flattened = jax.tree.map(lambda x, n=of_real: x[:n].reshape(-1, *x.shape[2:]), made)
        yield fold, place, flattened


def _program(flat: Target, num_units: int) -> programs.Shared:
    """Replicates (fold, draw, slot, …) of the test sets of some folds, each at its draws."""

    def of_fold(each: tuple[Array, ...]) -> Replicate:
        root, code, position, test, held_out = each
        fold = Fold(train_mask(held_out, num_units), test)

        def of_draw(one: tuple[Array, Array]) -> Replicate:
            return replicate(flat, jax.random.fold_in(root, one[0]), one[1], fold)

        made: Replicate = jax.lax.map(of_draw, (code, position), batch_size=AT_ONCE)
        return made

    return programs.shared(lambda *folds: jax.lax.map(of_fold, folds))
