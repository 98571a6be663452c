"""Scores of a fold's test set, summed over a block of draws."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from pcv.base.keys import chain_key
from pcv.models.model import Fold, Target
from pcv.models.scores import Score
from pcv.sampling.accumulate import log_sums, weighted_means
from pcv.sampling.hmc import Chain, train_mask


class Made(NamedTuple):
    """Scores of a block of draws."""

    sums: dict[str, Any]
    """joint, pointwise and, where there are several slots, bridge (of
    `pcv.analysis.diagnostics.UnitSides`) → carry of `pcv.sampling.accumulate.log_sums`"""
    means: dict[str, Any]
    """score → carry of `pcv.sampling.accumulate.weighted_means`"""
    y_rep: Float[Any, "draw slot"] | None
    joint: Float[Any, " draw"]
    """log score of the test set as a whole"""


def score_block(
    target: Target,
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
        joint, pointwise = target.log_predictive(position, fold)
        terms = {"joint": joint, "pointwise": pointwise}
        if "bridge" in made.sums:
            terms["bridge"] = pointwise + jax.nn.log_sigmoid(center["shift"] - joint)
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
