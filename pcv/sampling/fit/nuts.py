"""The full-data posterior by NUTS with window adaptation."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
from blackjax.mcmc.hmc import HMCState
from jaxtyping import Array, Float, Int, Key

from pcv.base.devices import BY_CHAIN, EVERYWHERE, in_use, shard_mapped, sharded
from pcv.compile import programs
from pcv.models.model import Target, full_data
from pcv.sampling.fit.draws import Draws

BLOCK = 25
"""draws per chain between progress reports"""

type LogDensity = Callable[[Float[Array, " param"]], Float[Array, ""]]


def posteriors(
    target: Target,
    num_units: int,
    key: Key[Array, ""],
    starts: Float[np.ndarray, "chain param"],
    warmup: int,
    draws: int,
    targets: Sequence[float],
    after: Callable[[float, int, Draws], None] = lambda target_accept, number, block: None,
) -> Iterator[Draws]:
    """Full-data posterior draws by BlackJAX's NUTS; each chain adapts on its own.

    Args:
        target: the model on flat parameters.
        num_units: number of units, all of them in training.
        key: of this fit.
        starts: of each chain, with finite density.
        warmup, draws: numbers per chain.
        targets: target acceptance rates to run in turn, from the same starts and by the same
            programs.
        after: called after every block of draws that follow warmup, with its target acceptance
            rate, the draws per chain so far, and the block.

    Yields:
        The draws for each target.
    """
    chains, everything = len(starts), full_data(num_units)

    def log_density(position: Float[Array, " param"]) -> Float[Array, ""]:
        return target.log_density(position, everything)

    warmups = jax.vmap(partial(_warm_up, log_density, warmup), (None, 0, 0))
    blocks = jax.vmap(partial(_advance, log_density), (None, 0, 0, 0))
    warm_up = programs.shared(shard_mapped(warmups, EVERYWHERE, *(BY_CHAIN,) * 2))
    advance = programs.shared(shard_mapped(blocks, EVERYWHERE, *(BY_CHAIN,) * 3))
    keys = [jax.random.split(jax.random.fold_in(key, part), chains) for part in (1, 2)]
    warmup_keys, draw_keys, positions = map(padded, (*keys, jnp.asarray(starts)))
    for target_accept in targets:
        state, settings = warm_up(jnp.asarray(target_accept), warmup_keys, positions)
        parts = []
        for first in range(0, draws, BLOCK):
            state, block = advance(jnp.int32(first), draw_keys, state, settings)
            parts.append(Draws(*(np.asarray(x)[:chains, : draws - first] for x in block)))
            after(target_accept, min(first + BLOCK, draws), parts[-1])
        yield jax.tree.map(lambda *x: np.concatenate(x, axis=1), *parts)


def padded(x: Array) -> Array:
    """An array over chains, on all devices, with the last chain repeated to fill them."""
    devices = len(in_use())
    rows = np.arange(-(-len(x) // devices) * devices)
    return sharded(x[np.minimum(rows, len(x) - 1)])


def _warm_up(
    log_density: LogDensity,
    num_draws: int,
    target_accept: Float[Array, ""],
    key: Key[Array, ""],
    start: Float[Array, " param"],
) -> tuple[HMCState, dict[str, Array]]:
    """Adapt step size and metric of one chain as Stan does; with its state after that."""
    adaptation = blackjax.window_adaptation(
        blackjax.nuts,
        log_density,
        target_acceptance_rate=target_accept,
        adaptation_info_fn=lambda *info: None,
    )
    (state, settings), _ = adaptation.run(key, start, num_draws)
    return state, settings


def _advance(
    log_density: LogDensity,
    first: Int[Array, ""],
    key: Key[Array, ""],
    state: HMCState,
    settings: dict[str, Array],
) -> tuple[HMCState, Draws]:
    """Draw a block of one chain, from its draw number `first` on; with its state after that."""
    transition = blackjax.nuts(log_density, **settings).step

    def draw(state: HMCState, number: Int[Array, ""]) -> tuple[HMCState, Draws]:
        state, info = transition(jax.random.fold_in(key, number), state)
        return state, Draws(
            state.position,
            state.logdensity,
            info.energy,
            info.acceptance_rate,
            info.num_integration_steps,
            info.is_divergent,
        )

    return jax.lax.scan(draw, state, first + jnp.arange(BLOCK))
