"""The full-data posterior by NUTS with window adaptation."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import blackjax
import blackjax.mcmc.hmc as hmc
import jax
import jax.numpy as jnp
import numpy as np
from blackjax.adaptation.mass_matrix import MassMatrixAdaptationState, mass_matrix_adaptation
from blackjax.adaptation.step_size import (
    DualAveragingAdaptationState,
    dual_averaging_adaptation,
)
from blackjax.adaptation.window_adaptation import build_schedule
from jaxtyping import Array, Float, Int, Key

from pcv.base.devices import BY_CHAIN, EVERYWHERE, in_use, shard_mapped, sharded
from pcv.compile import programs
from pcv.models.model import Target, full_data
from pcv.sampling.fit.draws import Draws

BLOCK = 25
"""draws per chain, warmup included, between progress reports"""


def posteriors(
    target: Target,
    num_units: int,
    key: Key[Array, ""],
    starts: Float[np.ndarray, "chain param"],
    warmup: int,
    draws: int,
    targets: Sequence[float],
    after: Callable[[float, int, Draws], None] = lambda target_accept, made, block: None,
) -> Iterator[Draws]:
    """Full-data posterior draws by BlackJAX's NUTS; each chain adapts on its own.

    Args:
        target: the model on flat parameters.
        num_units: number of units, all of them in training.
        key: of this fit.
        starts: of each chain, with finite density.
        warmup, draws: numbers per chain.
        targets: target acceptance rates to run in turn, from the same starts and by one program.
        after: called after every block, warmup included, with its target acceptance rate, the draws
            per chain so far, and the block.

    Yields:
        The draws for each target.
    """
    chains, everything = len(starts), full_data(num_units)

    def log_density(position: Float[Array, " param"]) -> Float[Array, ""]:
        return target.log_density(position, everything)

    transition = blackjax.mcmc.nuts.build_kernel()

    def one_chain(
        target_accept: Float[Array, ""],
        first: Int[Array, ""],
        last: Int[Array, ""],
        key: Key[Array, ""],
        state: hmc.HMCState,
        tuning: Tuning,
    ) -> tuple[hmc.HMCState, Tuning, Draws]:
        """Warmup and sampling in one loop, so that its body is compiled once."""
        _, adapted = _adaptation(warmup, target_accept)

        def step(i: Int[Array, ""], carry: tuple) -> tuple[hmc.HMCState, Tuning, Draws]:
            state, tuning, made = carry
            metric = tuning.metric.inverse_mass_matrix
            state, info = transition(
                jax.random.fold_in(key, i), state, log_density, tuning.step_size, metric
            )
            tuning = adapted(i, tuning, state.position, info.acceptance_rate)
            drawn = Draws(
                state.position,
                state.logdensity,
                info.energy,
                info.acceptance_rate,
                info.num_integration_steps,
                info.is_divergent,
            )
            place = i - first
            return state, tuning, jax.tree.map(lambda x, now: x.at[place].set(now), made, drawn)

        number = jnp.zeros(BLOCK, state.logdensity.dtype)
        place = jnp.zeros((BLOCK, *state.position.shape), number.dtype)
        room = Draws._make([place, *(number,) * 3, number.astype(int), number.astype(bool)])
        return jax.lax.fori_loop(first, last, step, (state, tuning, room))

    begin_at = programs.once(jax.vmap(lambda x: hmc.init(x, log_density)))
    found = jax.tree.map(np.asarray, begin_at(jnp.asarray(starts)))
    keys = jax.random.split(jax.random.fold_in(key, 1), chains)
    keys, states = sharded(padded((keys, found)))
    begin, _ = _adaptation(warmup, targets[0])
    begun = sharded(jax.tree.map(np.asarray, jax.vmap(begin)(states.position)))
    every_chain = jax.vmap(one_chain, (None, None, None, 0, 0, 0))
    run = programs.shared(shard_mapped(every_chain, *(EVERYWHERE,) * 3, *(BY_CHAIN,) * 3))
    for target_accept in targets:
        state, tuning, kept = states, begun, []
        for first in range(0, warmup + draws, BLOCK):
            last = min(first + BLOCK, warmup + draws)
            place = jnp.int32(first), jnp.int32(last)
            state, tuning, made = run(jnp.asarray(target_accept), *place, keys, state, tuning)
            block = jax.tree.map(partial(_made, chains, last - first), made)
            kept.append(jax.tree.map(lambda x: x[:, max(warmup - first, 0) :], block))  # noqa: B023
            after(target_accept, last, block)
        yield jax.tree.map(lambda *x: np.concatenate(x, axis=1), *kept)


def padded(tree: Any) -> Any:
    """Arrays over chains, padded with the last chain to fill the devices."""
    devices = len(in_use())

    def pad(x: Any) -> Any:
        size = -(-x.shape[0] // devices) * devices
        return x if size == x.shape[0] else x[np.minimum(np.arange(size), x.shape[0] - 1)]

    return jax.tree.map(pad, tree)


def _made(chains: int, draws: int, x: Array) -> np.ndarray:
    """Without the padding of chains and draws."""
    return np.asarray(x)[:chains, :draws]


class Tuning(NamedTuple):
    """Adaptation state of one chain."""

    step_size: Float[Array, ""]
    search: DualAveragingAdaptationState
    metric: MassMatrixAdaptationState


def _adaptation(warmup: int, target_accept: float | Float[Array, ""]) -> tuple[Callable, Callable]:
    """Stan's window adaptation from BlackJAX's parts: initial state, and update after draw i.

    The step size adapts throughout; the metric is estimated in each slow window, after which
    step-size adaptation restarts.
    """
    begin_search, search, found = dual_averaging_adaptation(target_accept)
    begin_metric, observe, finish = mass_matrix_adaptation(is_diagonal_matrix=True)
    with jax.ensure_compile_time_eval():
        in_slow, is_last = np.asarray(build_schedule(warmup)).T
    stages = np.append(in_slow + is_last, 4)
    stages[warmup - 1] = 3

    def begin(position: Float[Array, " param"]) -> Tuning:
        return Tuning(jnp.ones((), position.dtype), begin_search(1.0), begin_metric(position.size))

    def fast(tuning: Tuning, position: Array, acceptance: Array) -> Tuning:
        state = search(tuning.search, acceptance)
        return tuning._replace(step_size=jnp.exp(state.log_step_size), search=state)

    def in_window(tuning: Tuning, position: Array, acceptance: Array) -> Tuning:
        return fast(tuning, position, acceptance)._replace(metric=observe(tuning.metric, position))

    def end_window(*now: Any) -> Tuning:
        tuning = in_window(*now)
        state = begin_search(found(tuning.search))
        return Tuning(jnp.exp(state.log_step_size), state, finish(tuning.metric))

    def end(*now: Any) -> Tuning:
        tuning = fast(*now)
        return tuning._replace(step_size=found(tuning.search))

    def after(tuning: Tuning, *_: Any) -> Tuning:
        return tuning

    def adapted(i: Int[Array, ""], *now: Any) -> Tuning:
        return jax.lax.switch(
            jnp.asarray(stages)[jnp.minimum(i, warmup)],
            (fast, in_window, end_window, end, after),
            *now,
        )

    return begin, adapted
