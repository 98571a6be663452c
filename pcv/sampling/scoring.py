"""Scores of a fold's test set, summed over a block of draws; and its replicates at some of them."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from pcv.base.keys import chain_key
from pcv.compile.programs import Inner
from pcv.models.model import Fold, Predictive, Target
from pcv.models.scores import Score
from pcv.sampling.accumulate import log_sums, weighted_means
from pcv.sampling.hmc import Chain, train_mask


class Made(NamedTuple):
    """Scores of a block of draws."""

    sums: dict[str, Any]
    """joint, pointwise and, where there are several slots, bridge (of
    `pcv.analysis.diagnostics.UnitSides`), and path where outcomes are simulated → carry of
    `pcv.sampling.accumulate.log_sums`"""
    means: dict[str, Any]
    """score → carry of `pcv.sampling.accumulate.weighted_means`"""
    y_rep: Float[Any, "draw slot"] | None
    joint: Float[Any, " draw"]
    """log score of the test set as a whole"""


def score_block(
    target: Target,
    log_predictive: Callable[..., Predictive],
    scores: tuple[Score, ...],
    num_units: int,
    root: Key[Array, ""],
    first: Int[Array, ""],
    num_draws: Int[Array, ""],
    positions: Float[Array, "block buffer param"],
    block: Int[Array, ""],
    chain: Chain,
    center: dict[str, Any],
) -> Made:
    """Sums of scores over draws, of the chain itself or of another posterior.

    Args:
        target: the model on flat parameters.
        log_predictive: its own, or that of groups in place of units.
        scores: scores besides the log score.
        num_units: number of units.
        root: key of the seed, the model and the stage.
        first: number of the chain's earlier draws.
        num_draws: draws of the block.
        positions: blocks of draws.
        block: index of the block to score.
        chain: its fold's test set is scored.
        center: kind → centring constant of the log score; shift → that of the joint score, or inf.
    """
    by_draw = [score for score in scores if score.per == "draw"]
    replicate = len(by_draw) < len(scores)
    fold = Fold(train_mask(chain.held_out, num_units), chain.test)
    own = chain_key(root, chain.fold, chain.number)
    buffer, dtype = positions.shape[1], positions.dtype
    zero = jnp.zeros((), dtype)

    def averaged(key: Key[Array, ""], position: Float[Array, " param"]) -> dict[str, Any]:
        """Log weight and values of every score at one draw."""
        at = (key, target, position, fold)
        return {
            score.key: (score.log_weight(*at) if score.log_weight else zero, score.statistic(*at))
            for score in by_draw
        }

    def add(i: Int[Array, ""], made: Made) -> Made:
        key, position = jax.random.fold_in(own, 2 * (first + i) + 1), positions[block, i]
        joint, pointwise = log_predictive(position, fold)
        terms = {"joint": joint, "pointwise": pointwise}
        if "bridge" in made.sums:
            terms["bridge"] = pointwise + jax.nn.log_sigmoid(center["shift"] - joint)
        if target.log_path is not None:
            terms["path"] = target.log_path(key, position, fold)
        values, y_rep = averaged(key, position), made.y_rep
        if y_rep is not None:
            assert target.predict is not None
            y_rep = y_rep.at[i].set(target.predict(key, position, fold))
        return Made(
            {kind: log_sums.update(x, terms[kind]) for kind, x in made.sums.items()},
            {name: weighted_means.update(x, values[name]) for name, x in made.means.items()},
            y_rep,
            made.joint.at[i].set(joint),
        )

    slots = fold.test.size
    of_kind = {name: center[name] for name in ("joint", "pointwise")}
    if slots > 1:
        of_kind["bridge"] = center["pointwise"]
    if target.log_path is not None:
        of_kind["path"] = center["pointwise"]
    example = jax.eval_shape(averaged, own, positions[0, 0])
    nothing = Made(
        {kind: log_sums.init(x) for kind, x in of_kind.items()},
        {
            name: weighted_means.init(jax.tree.map(lambda x: jnp.zeros(x.shape, dtype), x))
            for name, x in example.items()
        },
        jnp.zeros((buffer, slots), dtype) if replicate else None,
        jnp.zeros(buffer, dtype),
    )
    made: Made = jax.lax.fori_loop(0, num_draws, add, nothing)
    return made


class Replicate(NamedTuple):
    """A test set's outcomes at a draw, drawn anew."""

    y_rep: Float[Any, "slot ..."]
    below: Float[Any, "slot ..."] | None
    """probability of a smaller outcome than the observed one; None without a `cdf`"""
    up_to: Float[Any, "slot ..."] | None
    """probability of an outcome that is at most the observed one"""


def replicate(
    target: Target, key: Key[Array, ""], position: Float[Array, " param"], fold: Fold
) -> Replicate:
    """Draw a test set's outcomes given the parameters.

    Args:
        target: the model on flat parameters, with `predict`.
        key: of the draw.
        position: the draw.
        fold: whose test set is drawn.
    """
    assert target.predict is not None
    y_rep, discrete = target.predict(key, position, fold), target.outcome.discrete
    if target.cdf is None or target.observed is None or discrete is None:
        return Replicate(y_rep, None, None)  # may outcomes be equal? Only replicates tell
    y = target.observed(fold).astype(position.dtype)
    up_to = target.cdf(key, position, fold, y)
    below = target.cdf(key, position, fold, y - 1) if discrete else up_to
    return Replicate(y_rep, below, up_to)


class Kept(NamedTuple):
    """Some draws of a block, and replicates of the fold's test set at them, in single precision."""

    position: Float[Any, "chain kept_position param"]
    y_rep: Float[Any, "chain kept slot ..."] | None
    """None where the model has no `predict`"""
    below: Float[Any, "chain slot ..."] | None
    """mean probability of a smaller outcome than the observed one; None without a `cdf`"""
    up_to: Float[Any, "chain slot ..."] | None
    """mean probability of an outcome that is at most the observed one"""


def keep_of_block(
    target: Target,
    num_units: int,
    root: Key[Array, ""],
    first: Int[Array, ""],
    kept: Int[Array, " kept"],
    number: Int[Array, ""],
    kept_positions: Int[Array, " kept_position"],
    positions: Float[Array, "block buffer param"],
    block: Int[Array, " chain"],
    chains: Chain,
) -> Kept:
    """Draws of a block of each chain, and replicates made with the random numbers that
    `score_block` uses.

    Args:
        target: the model on flat parameters.
        num_units: number of units.
        root: key of the seed, the model and the stage.
        first: number of the chain's earlier draws.
        kept: places in the block of the draws to replicate at.
        number: how many of these count; the rest is padding.
        kept_positions: places in the block of the draws to return.
        positions: blocks of draws.
        block: index of the block of each chain.
        chains: the test sets of their folds are replicated.
    """
    single = positions[block[:, None], kept_positions].astype(jnp.float32)
    if target.predict is None:
        return Kept(single, None, None, None)

    def of_chain(draw: Int[Array, ""], position: Float[Array, " param"], chain: Chain) -> Replicate:
        fold = Fold(train_mask(chain.held_out, num_units), chain.test)
        key = jax.random.fold_in(chain_key(root, chain.fold, chain.number), 2 * draw + 1)
        return replicate(target, key, position, fold)

    of_chains = Inner(jax.vmap(of_chain, (None, 0, 0)))

    def of_draw(place: Int[Array, ""]) -> Replicate:
        made: Replicate = of_chains(first + place, positions[block, place], chains)
        return made

    def add(j: Int[Array, ""], so_far: Replicate) -> Replicate:
        made = of_draw(kept[j])
        y_rep = so_far.y_rep.at[:, j].set(made.y_rep.astype(jnp.float32))
        shares = jax.tree.map(lambda x, of_draw: x + of_draw / number, so_far[1:], made[1:])
        return Replicate(y_rep, *shares)

    one = jax.eval_shape(of_draw, kept[0])
    nothing = jax.tree.map(lambda x: jnp.zeros(x.shape, positions.dtype), one)
    count, *shape = one.y_rep.shape
    of_draws = jnp.zeros((count, kept.size, *shape), jnp.float32)
    made = jax.lax.fori_loop(0, number, add, nothing._replace(y_rep=of_draws))
    return Kept(single, *made)
