"""All folds × chains at once: warmup and sampling, block by block.

`run_chain` knows one chain of one fold for one block of draws. `vmap` makes it all chains,
`shard_map` lays the chain axis over the devices. The HMC transition is BlackJAX's, on parameters
whitened by the kernel's centre and scale, so that its metric is the identity.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import blackjax.mcmc.hmc as hmc
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key

from pcv.accumulate import energy_sums, log_sums, total, weighted_means
from pcv.devices import BY_CHAIN, EVERYWHERE, in_use, jit_once, laid, laid_out
from pcv.keys import chain_keys, key
from pcv.model import Fold, Target
from pcv.scores import Score
from pcv.sums import Block

CPU_ROOM, GPU_ROOM = 2**20, 2**31
"""bytes for the unit log likelihoods of all chains that a device takes at one time: what fits a
core's cache (benchmarks/sampler.py), or a share of a GPU's memory"""

Centers = Mapping[str, Any]
"""kind → centring constants of the log score"""


class Kernel(NamedTuple):
    r"""An HMC kernel: positions are :math:`\theta = c + L (d \circ z)` with unit mass on z.

    One for all chains, or a variant for each: `step_size`, `num_steps` and `stretch` then have a
    leading axis, while the others stay shared.
    """

    center: Float[Array, " param"]
    scale: Float[Array, "param ..."]
    """L: the lower Cholesky factor of the inverse mass matrix, or its diagonal alone"""
    step_size: Float[Array, ""]
    num_steps: Int[Array, ""]
    """mean number of leapfrog steps; each draw takes a uniform number within half of it"""
    stretch: Float[Array, " param"] | None = None
    """d: how much wider than the full-data posterior; None: 1, the full-data kernel"""
    moves: Int[Array, ""] | None = None
    """HMC transitions that make a draw; None: 1"""


class Chains(NamedTuple):
    """What tells one chain from another; leading axis: chain, fold by fold."""

    key: Key[Array, " chain"]
    test: Int[Array, "chain slot"]
    held_out: Int[Array, "chain run 2"]


class State(NamedTuple):
    """What the next block of a chain needs."""

    z: Float[Array, " param"]
    """where it stands, whitened by the kernel"""
    energy: Float[Array, ""]
    """of the last draw, NaN before the first"""


def to_z(kernel: Kernel, position: Float[Array, " param"]) -> Float[Array, " param"]:
    """Whitened coordinates z of a position θ."""
    shifted = position - kernel.center
    if kernel.scale.ndim == 1:
        z = shifted / kernel.scale
    else:
        z = jax.scipy.linalg.solve_triangular(kernel.scale, shifted, lower=True)
    return z if kernel.stretch is None else z / kernel.stretch


def from_z(kernel: Kernel, z: Float[Array, " param"]) -> Float[Array, " param"]:
    """The position θ of whitened coordinates z."""
    z = z if kernel.stretch is None else kernel.stretch * z
    return kernel.center + (kernel.scale * z if kernel.scale.ndim == 1 else kernel.scale @ z)


def unseen(z: Float[Array, " param"]) -> hmc.HMCState:
    """A position at which the density is not known yet: a first transition that goes nowhere finds
    it (`nowhere`, `found`), so that no second copy of its gradient is compiled."""
    return hmc.HMCState(z, jnp.full((), -jnp.inf, z.dtype), jnp.zeros_like(z))


def nowhere(
    here: Bool[Array, ""], step_size: Float[Array, ""], num_steps: Int[Array, ""]
) -> tuple[Float[Array, ""], Int[Array, ""]]:
    """Step size and leapfrog steps of a transition, which stays where it is if `here`."""
    return jnp.where(here, 0.0, step_size), jnp.where(here, 1, num_steps)


def found(
    here: Bool[Array, ""], before: hmc.HMCState, after: hmc.HMCState, info: hmc.HMCInfo
) -> hmc.HMCState:
    """The state after a transition; if it stayed `here`, with what it saw, accepted or not."""
    seen = hmc.HMCState(before.position, info.proposal.logdensity, info.proposal.logdensity_grad)
    return jax.tree.map(partial(jnp.where, here), seen, after)


def own_of(kernel: Kernel) -> dict[str, Any]:
    """What differs between chains of variants, by name; of the full-data kernel nothing does."""
    if kernel.stretch is None:
        return {}
    return {name: getattr(kernel, name) for name in ("step_size", "num_steps", "stretch")}


def of_variants(kernel: Kernel, common: Any, varying: Any) -> Any:
    """`varying` where a kernel has a leading axis, `common` elsewhere: axes, or places."""
    if kernel.stretch is None:
        return common
    every = Kernel(*(common for _ in Kernel._fields))
    return every._replace(**dict.fromkeys(own_of(kernel), varying))


def train_mask(held_out: Int[Array, "run 2"], num_units: int) -> Bool[Array, " unit"]:
    """Which units are in training, from the half-open ranges of those that are not."""
    edges = jnp.zeros(num_units + 1, jnp.int32)
    edges = edges.at[held_out[:, 0]].add(1).at[held_out[:, 1]].add(-1)
    return jnp.cumsum(edges[:-1]) == 0


def jittered_steps(kernel: Kernel, key: Key[Array, ""]) -> Int[Array, ""]:
    """A uniform number of leapfrog steps within half of the kernel's, shared by all chains."""
    half = kernel.num_steps // 2
    many = jnp.floor(jax.random.uniform(key) * (2 * half + 1)).astype(half.dtype)
    return kernel.num_steps - half + many


def run_chain(
    target: Target,
    scores: tuple[Score, ...],
    num_units: int,
    buffer: int,
    kernel: Kernel,
    steps_key: Key[Array, ""],
    first: Int[Array, ""],
    num_draws: Int[Array, ""],
    state: State,
    chain: Chains,
    center: Centers,
) -> tuple[State, dict[str, Any]]:
    """One block of draws of one chain.

    Args:
        target: the model on flat parameters.
        scores: what is averaged besides the log score.
        num_units: number of units of the data.
        buffer: room for the block's draws; static, while `num_draws` ≤ buffer is not, so that
            blocks of all lengths share one compiled function.
        kernel: of this chain.
        steps_key: key of the trajectories' jitter, shared by all chains.
        first: number of draws made before this block.
        num_draws: draws to make.
        state: where the chain stands.
        chain: its key and its fold.
        center: kind → centring constant of the log score.

    Returns:
        The new state and the block's sums and draws. Of a draw of several transitions, the last
        one's acceptance, divergence and energy count, as when draws are thinned.
    """
    by_draw = [score for score in scores if score.per == "draw"]
    replicate = len(by_draw) < len(scores)
    fold = Fold(train_mask(chain.held_out, num_units), chain.test)
    transition = hmc.build_kernel()
    moves = 1 if kernel.moves is None else kernel.moves

    def log_density(z: Float[Array, " param"]) -> Float[Array, ""]:
        return target.log_density(from_z(kernel, z), fold)

    def averaged(key: Key[Array, ""], position: Float[Array, " param"]) -> dict[str, Any]:
        """Log weight and values of every score at one draw."""
        at = (key, target, position, fold)
        return {
            score.key: (score.log_weight(*at) if score.log_weight else zero, score.statistic(*at))
            for score in by_draw
        }

    dtype = state.energy.dtype
    zero = jnp.zeros((), dtype)
    example = jax.eval_shape(averaged, chain.key, state.z)
    carries = {
        "log": {kind: log_sums.init(x) for kind, x in center.items()},
        "draws": jnp.full(buffer, jnp.nan, dtype),
        "means": {
            name: weighted_means.init(jax.tree.map(lambda x: jnp.zeros(x.shape, dtype), x))
            for name, x in example.items()
        },
        "y_rep": jnp.zeros((buffer, fold.test.size), dtype) if replicate else None,
        "stats": {
            "acceptance": total.init(zero),
            "divergences": total.init(zero),
            "energy": energy_sums.init(state.energy),
        },
    }

    def move(t: Int[Array, ""], j: Int[Array, ""], last: tuple) -> tuple:
        before, number = last[0], t * moves + j
        move_key = jax.random.fold_in(chain.key, 2 * number)
        steps = jittered_steps(kernel, jax.random.fold_in(steps_key, number))
        size, steps = nowhere(j < 0, kernel.step_size, steps)
        unit_mass = jnp.ones_like(before.position)
        after, info = transition(move_key, before, log_density, size, unit_mass, steps)
        energy = 0.5 * jnp.sum(info.momentum**2) - before.logdensity
        return found(j < 0, before, after, info), energy, info.acceptance_rate, info.is_divergent

    def draw(i: Int[Array, ""], carry: tuple[hmc.HMCState, Array, Any]) -> tuple:
        state, energy, sums = carry
        t = first + i
        score_key = jax.random.fold_in(chain.key, 2 * t + 1)
        last = (state, energy, zero, jnp.zeros((), bool))
        begin = jnp.where(i == 0, -1, 0)
        moved, energy, accepted, diverged = jax.lax.fori_loop(begin, moves, partial(move, t), last)
        position = from_z(kernel, moved.position)
        joint, pointwise = target.log_predictive(position, fold)
        now = averaged(score_key, position)
        y_rep = sums["y_rep"]
        if replicate:
            assert target.predict is not None
            y_rep = y_rep.at[i].set(target.predict(score_key, position, fold))
        sums = {
            "log": {
                "joint": log_sums.update(sums["log"]["joint"], joint),
                "pointwise": log_sums.update(sums["log"]["pointwise"], pointwise),
            },
            "draws": sums["draws"].at[i].set(joint),
            "means": {
                name: weighted_means.update(x, now[name]) for name, x in sums["means"].items()
            },
            "y_rep": y_rep,
            "stats": {
                "acceptance": total.update(sums["stats"]["acceptance"], accepted),
                "divergences": total.update(sums["stats"]["divergences"], diverged.astype(dtype)),
                "energy": energy_sums.update(sums["stats"]["energy"], energy),
            },
        }
        return moved, energy, sums

    begun = (unseen(state.z), state.energy, carries)
    end, energy, sums = jax.lax.fori_loop(0, num_draws, draw, begun)
    return State(end.position, energy), sums


def filled(number: int, size: int) -> Int[np.ndarray, " place"]:
    """Places of `number` things, filled up to `size` by the last one.

    >>> filled(3, 5)
    array([0, 1, 2, 2, 2])
    """
    return np.minimum(np.arange(size), number - 1)


def chains_at_once(num_units: int) -> int:
    """How many chains of a device advance side by side: as many as the cache holds."""
    room = CPU_ROOM if jax.default_backend() == "cpu" else GPU_ROOM
    return max(room // (8 * num_units), 1)


def in_groups(function: Callable[..., Any], chains: Any, at_once: int) -> Any:
    """`function` of every chain, vectorised over so many at a time.

    The chains of a device are cut into equal groups, the last one filled up.
    """
    number = jax.tree.leaves(chains)[0].shape[0]
    groups = -(-number // at_once)
    size = -(-number // groups)
    places = filled(number, groups * size).reshape(groups, size)
    results = jax.lax.map(
        lambda group: jax.vmap(function)(*group), jax.tree.map(lambda x: x[places], chains)
    )
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:])[:number], results)


class Sampler(NamedTuple):
    """What is compiled of a model: how chains go on, and what draws predict."""

    advance: jax.stages.Wrapped
    predict: jax.stages.Wrapped
    """joint log predictive of test sets, at some of many draws"""
    target: Target
    num_units: int
    scores: tuple[Score, ...]
    buffer: int
    at_once: int
    """chains of a device that advance side by side"""
    with_at_once: Callable[[int], "Sampler"]
    """the same with another number of them: for a device whose memory they did not fit"""


def build(
    target: Target,
    scores: tuple[Score, ...],
    num_units: int,
    buffer: int,
    at_once: int | None = None,
) -> Sampler:
    """Compile-once functions over all chains, the chain axis laid over all devices.

    Args:
        target: the model on flat parameters.
        scores: what to average besides the log score.
        num_units: number of units.
        buffer: the largest number of draws of one block.
        at_once: chains of a device that advance side by side; None: `chains_at_once`.
    """
    together = at_once or chains_at_once(num_units)

    one_chain = partial(run_chain, target, scores, num_units, buffer)

    def advance(
        kernel: Kernel, steps_key: Any, first: Array, num_draws: Array, *chains: Any
    ) -> tuple[State, dict[str, Any]]:
        def share(kernel: Kernel, common: tuple, *chains: Any) -> Any:
            return in_groups(
                lambda own, *chain: one_chain(kernel._replace(**own), *common, *chain),
                (own_of(kernel), *chains),
                together,
            )

        places = of_variants(kernel, EVERYWHERE, BY_CHAIN)
        run = laid_out(share, places, EVERYWHERE, *(BY_CHAIN for _ in chains))
        return run(kernel, (steps_key, first, num_draws), *chains)

    def predict(
        draws: Float[Array, "draw param"],
        picks: Int[Array, "item place"],
        test: Int[Array, "item slot"],
        held_out: Int[Array, "item run 2"],
    ) -> Float[Array, "item place"]:
        def of_item(draws: Array, picks: Array, test: Array, held_out: Array) -> Array:
            fold = Fold(train_mask(held_out, num_units), test)
            return jax.vmap(lambda x: target.log_predictive(x, fold)[0])(draws[picks])

        def share(draws: Array, *items: Array) -> Array:
            at_once = chains_at_once(num_units * picks.shape[1])
            return in_groups(partial(of_item, draws), items, at_once)

        return laid_out(share, EVERYWHERE, *(BY_CHAIN,) * 3)(draws, picks, test, held_out)

    return Sampler(
        jax.jit(advance),
        jit_once(predict),
        target,
        num_units,
        scores,
        buffer,
        together,
        partial(build, target, scores, num_units, buffer),
    )


def chains_of(
    parent: Key[Array, ""],
    folds: list[str],
    num_chains: int,
    test: Int[np.ndarray, "fold slot"],
    held_out: Int[np.ndarray, "fold run 2"],
) -> Chains:
    """All chains of the folds, fold by fold; keys below `parent`: (seed, model, stage)."""
    keys = chain_keys(parent, folds, num_chains).reshape(-1)
    return Chains(keys, *(jnp.asarray(np.repeat(x, num_chains, 0)) for x in (test, held_out)))


def starting_draws(
    seed: int,
    model: str,
    folds: list[str],
    num_chains: int,
    num_available: int,
    superchains: int = 0,
) -> Int[np.ndarray, "fold chain"]:
    """Which full-data draws the chains start from: random, and distinct within a fold.

    A random first one and equal strides from there (with repeats only where a fold has more
    starts than there are draws). With superchains, the chains of each start at one draw.
    """
    keys = chain_keys(key(seed, model, "start"), folds, 1)[:, 0]
    pick = jax.vmap(lambda k: jax.random.randint(k, (), 0, num_available))
    first = jit_once(pick)(keys)
    starts = superchains or num_chains
    stride = max(num_available // starts, 1)
    picks = (np.asarray(first)[:, None] + stride * np.arange(starts)) % num_available
    return np.repeat(picks, num_chains // starts, axis=1)


def spread(tree: Any) -> Any:
    """Arrays over chains, their first axis padded (by the last chain) to fit the devices."""
    devices = len(in_use())

    def pad(x: Any) -> Any:
        size = -(-x.shape[0] // devices) * devices
        return x if size == x.shape[0] else x[filled(x.shape[0], size)]

    return jax.tree.map(pad, tree)


def blocks(
    sampler: Sampler,
    kernel: Kernel,
    state: State,
    chains: Chains,
    center: Centers,
    steps_key: Key[Array, ""],
    num_chains: int,
    num_draws: int,
    first: int = 0,
) -> Iterator[tuple[Block, State]]:
    """Draws of all chains, one block after another; memory on the device does not grow with them.

    Args:
        sampler: from `build`.
        kernel: shared by all chains, or a variant for each; `spread`.
        state: of all chains, from `start` or from an earlier block; `spread`.
        chains: keys and folds of all chains; `spread`.
        center: kind → centring constants of the log score (fold[, slot]).
        steps_key: key of the trajectories' jitter.
        num_chains: chains per fold.
        num_draws: draws per chain to make.
        first: draws per chain made before.

    Yields:
        Each block's sums and draws, and the state to go on from.
    """
    num_folds = jax.tree.leaves(center)[0].shape[0]
    dtype = state.energy.dtype
    of_chain = np.repeat(np.arange(num_folds), num_chains)
    rows = of_chain[filled(of_chain.size, len(state.energy))]
    center = jax.tree.map(lambda c: jnp.asarray(np.asarray(c)[rows], dtype), center)

    def to_folds(x: np.ndarray) -> np.ndarray:
        rows = x[: num_folds * num_chains]
        return rows.reshape(num_folds, num_chains, *x.shape[1:])

    for done in range(0, num_draws, sampler.buffer):
        size = min(sampler.buffer, num_draws - done)
        state, out = sampler.advance(
            kernel, steps_key, jnp.int32(first + done), jnp.int32(size), state, chains, center
        )
        out = jax.tree.map(to_folds, jax.device_get(out))
        sums = {kind: log_sums.finalize(carry) for kind, carry in out["log"].items()}
        means = {name: weighted_means.finalize(carry) for name, carry in out["means"].items()}
        stats = {
            "acceptance": total.finalize(out["stats"]["acceptance"]),
            "divergences": total.finalize(out["stats"]["divergences"]),
            "energy": energy_sums.finalize(out["stats"]["energy"]),
        }
        draws, y_rep = jax.tree.map(
            lambda x: x[:, :, :size].astype(np.float64),  # noqa: B023
            (out["draws"], out["y_rep"]),
        )
        yield Block(sums, draws, means, y_rep, stats, size), state


def start(kernel: Kernel, position: Float[Array, "chain param"]) -> State:
    """Chains that begin where they are put; `spread`."""
    z = jax.jit(jax.vmap(to_z, (of_variants(kernel, None, 0), 0)))(kernel, position)
    return laid(State(z, jnp.full(len(z), jnp.nan, z.dtype)))


def positions(kernel: Kernel, state: State) -> Float[Array, "chain param"]:
    """Where the chains stand, on the unconstrained scale of the model."""
    return jax.vmap(from_z, (of_variants(kernel, None, 0), 0))(kernel, state.z)
