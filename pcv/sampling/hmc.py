"""One block of draws of one chain of one fold, by BlackJAX's HMC.

Whatever differs between chains, folds, blocks and stages is an argument, so one program serves them
all. Positions are whitened by the kernel, which makes the metric the identity.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import blackjax.mcmc.hmc as hmc
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key, UInt32

from pcv.base.keys import chain_key
from pcv.models.model import Fold
from pcv.sampling.kernel import Kernel, from_z, to_z

MAX_LOG_STEP, MIN_LOG_STEP = 0.4, -14.0
"""bounds of the adapted log step size, in standard deviations"""


class Chain(NamedTuple):
    """What distinguishes one chain from another."""

    fold: UInt32[Any, ""]
    """hash bits of the fold's name"""
    number: UInt32[Any, ""]
    """index among the chains of the fold"""
    test: Int[Any, " slot"]
    held_out: Int[Any, "run 2"]
    scale_ratio: Float[Any, " param"]
    """scale of each whitened coordinate, relative to the kernel's"""


class State(NamedTuple):
    """What the next block of a chain needs."""

    position: Float[Any, " param"]
    log_step_size: Float[Any, ""]
    energy: Float[Any, ""]
    """of the last draw, NaN before the first"""


class Pace(NamedTuple):
    """HMC settings of a block, shared by all chains of a tile."""

    first: Int[Any, ""]
    """number of earlier draws"""
    num_draws: Int[Any, ""]
    num_steps: Float[Any, ""]
    """mean integration time, in units of the step size; jittered uniformly by ± half of it"""
    thin: Int[Any, ""]
    """HMC transitions per draw"""
    rate: Float[Any, ""]
    """gain with which a chain's log step size tracks its acceptance rate; 0: fixed"""
    target_accept: Float[Any, ""]


class Moved(NamedTuple):
    """The draws of a block."""

    position: Float[Any, "draw param"]
    lp: Float[Any, " draw"]
    energy: Float[Any, " draw"]
    acceptance: Float[Any, " draw"]
    diverging: Bool[Any, " draw"]


def train_mask(held_out: Int[Array, "run 2"], num_units: int) -> Bool[Array, " unit"]:
    """Mask of training units, from the half-open ranges of held-out ones."""
    edges = jnp.zeros(num_units + 1, jnp.int32)
    edges = edges.at[held_out[:, 0]].add(1).at[held_out[:, 1]].add(-1)
    return jnp.cumsum(edges[:-1]) == 0


def jittered(
    num_steps: Float[Array, ""], key: Key[Array, ""]
) -> tuple[Int[Array, ""], Float[Array, ""]]:
    """Jittered integration time, shared by all chains, uniform within half of its mean: the number
    of leapfrog steps, and their size relative to the step size, at most 1.

    Jittering the number of steps alone would miss a quarter period of one or two steps.
    """
    time = num_steps * (0.5 + jax.random.uniform(key, dtype=num_steps.dtype))
    steps = jnp.maximum(jnp.ceil(time), 1).astype(jnp.int32)
    return steps, time / steps


def run_chain(
    log_density: Callable[[Float[Array, " param"], Fold], Float[Array, ""]],
    num_units: int,
    buffer: int,
    root: Key[Array, ""],
    kernel: Kernel,
    pace: Pace,
    state: State,
    chain: Chain,
) -> tuple[State, Moved]:
    """One block of draws of one chain.

    Args:
        log_density: of flat parameters and a fold.
        num_units: number of units.
        buffer: capacity for draws; static, unlike `pace.num_draws` ≤ buffer.
        root: key of the seed, the model and the stage.
        kernel: metric.
        pace: settings of the block.
        state: current state of the chain.
        chain: its identity and fold.

    Returns:
        The new state and the draws. With several transitions per draw, acceptance, divergence and
        energy are those of the last, as under thinning.
    """
    fold = Fold(train_mask(chain.held_out, num_units), chain.test)
    transition = hmc.build_kernel()
    own = chain_key(root, chain.fold, chain.number)
    jitter = jax.random.fold_in(root, 0)
    dtype = state.position.dtype
    unit_mass = jnp.ones_like(state.position)
    zero, no = jnp.zeros((), dtype), jnp.zeros((), bool)

    def position_of(z: Float[Array, " param"]) -> Float[Array, " param"]:
        return from_z(kernel, chain.scale_ratio * z)

    def whitened_density(z: Float[Array, " param"]) -> Float[Array, ""]:
        return log_density(position_of(z), fold)

    def room(example: Array) -> Array:
        return jnp.zeros((buffer, *example.shape), example.dtype)

    def move(t: Int[Array, ""], j: Int[Array, ""], last: tuple) -> tuple:
        """One transition. The first of a block (j = -1) stays in place and evaluates the density
        there, so that its gradient is compiled only once."""
        (before, log_step, _, accepted, _), here = last, j < 0
        number = t * pace.thin + j
        steps, finer = jittered(pace.num_steps, jax.random.fold_in(jitter, number))
        key = jax.random.fold_in(own, 2 * number)
        size = jnp.where(here, 0.0, jnp.exp(log_step) * finer)
        after, info = transition(
            key, before, whitened_density, size, unit_mass, jnp.where(here, 1, steps)
        )
        seen = hmc.HMCState(
            before.position, info.proposal.logdensity, info.proposal.logdensity_grad
        )
        after = jax.tree.map(partial(jnp.where, here), seen, after)
        accepted = jnp.nan_to_num(info.acceptance_rate)
        adapted = jnp.clip(
            log_step + pace.rate * (accepted - pace.target_accept), MIN_LOG_STEP, MAX_LOG_STEP
        )
        log_step = jnp.where(here | (pace.rate == 0), log_step, adapted)
        energy = 0.5 * jnp.sum(info.momentum**2) - before.logdensity
        return after, log_step, energy, accepted, info.is_divergent

    def draw(i: Int[Array, ""], carry: tuple) -> tuple:
        now, log_step, _, moved = carry
        last = (now, log_step, zero, zero, no)
        now, log_step, energy, accepted, diverging = jax.lax.fori_loop(
            jnp.where(i == 0, -1, 0), pace.thin, partial(move, pace.first + i), last
        )
        of_draw = (position_of(now.position), now.logdensity, energy, accepted, diverging)
        return now, log_step, energy, Moved(*(x.at[i].set(new) for x, new in zip(moved, of_draw)))

    z = to_z(kernel, state.position) / chain.scale_ratio
    unseen = hmc.HMCState(z, jnp.full((), -jnp.inf, dtype), jnp.zeros_like(z))
    moved = Moved(room(state.position), *(room(zero),) * 3, room(no))
    begun = (unseen, state.log_step_size, state.energy, moved)
    end, log_step, energy, moved = jax.lax.fori_loop(0, pace.num_draws, draw, begun)
    return State(position_of(end.position), log_step, energy), moved
