"""Any number of chains, some tiles of a fixed number at a time, laid over all devices.

One shape is compiled for, whatever the number of folds, and memory on the devices does not grow
with it. Everything around the program is NumPy.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key

from pcv import programs
from pcv.devices import BY_CHAIN, EVERYWHERE, in_use, laid_out
from pcv.keys import any_key
from pcv.model import Target
from pcv.names import name_bits
from pcv.programs import Shared
from pcv.sampling.hmc import Chain, Made, Pace, State, run_chain
from pcv.sampling.kernel import Kernel
from pcv.scores import Score

MOST_CPU, MOST_GPU = 16, 4096
"""chains of a device that advance side by side"""
CPU_ROOM, GPU_ROOM = 2**20, 2**31
"""bytes for their unit log likelihoods: what fits a core's cache, or a share of a GPU's memory"""
STACK, STACK_ROOM = 8, 2**25
"""tiles of a call on a CPU, one after the other, where starting it takes longer than a small one;
and bytes of a device for what they make"""


class Engine(NamedTuple):
    """The compiled program of a model, and what it was built for."""

    advance: Shared
    target: Target
    num_units: int
    num_params: int
    scores: tuple[Score, ...]
    buffer: int
    """the largest number of draws of a block"""
    tile: int
    """chains that advance side by side, on all devices together"""
    stack: int
    """the largest number of tiles of a call"""
    with_tile: Callable[[int], "Engine"]
    """the same with another number of them, one tile a call: for memory that they did not fit"""


def build(
    target: Target,
    scores: tuple[Score, ...],
    num_units: int,
    buffer: int,
    tile: int | None = None,
    stack: int | None = None,
) -> Engine:
    """The program of a model; nothing is compiled before it is called.

    Args:
        target: the model on flat parameters.
        scores: what to average besides the log score.
        num_units: number of units.
        buffer: the largest number of draws of one block.
        tile: chains that advance side by side; None: as many as the devices' caches hold.
        stack: the largest number of tiles of a call; None: several on CPUs, where there is room.
    """
    once = target._replace(
        log_density=programs.inner(target.log_density),
        log_predictive=programs.inner(target.log_predictive),
    )
    one_chain = partial(run_chain, once, scores, num_units, buffer)
    devices = len(in_use())
    on_cpu = in_use()[0].platform == "cpu"
    room, most = (CPU_ROOM, MOST_CPU) if on_cpu else (GPU_ROOM, MOST_GPU)
    each = max(min(room // (8 * num_units), most), 1) if tile is None else -(-tile // devices)
    num_params = programs.shapes(target.init, any_key()).size
    if stack is None:
        of_tile = 8 * each * buffer * (num_params + num_units)
        stack = max(min(STACK_ROOM // of_tile, STACK), 1) if on_cpu else 1

    def one_tile(same: Any, some: Any) -> tuple[State, Made]:
        return jax.vmap(partial(one_chain, *same))(*some)

    traced_once = programs.inner(one_tile)

    def share(tiles: Any, root: Any, kernel: Any, pace: Any, given: Any, *chains: Any) -> Any:
        """The first `tiles` of a device's, one after the other."""
        same = root, kernel, pace, given
        stacked = jax.tree.map(lambda x: x.reshape(stack, each, *x.shape[1:]), chains)
        shapes = jax.eval_shape(traced_once, same, rows(stacked, 0))
        empty = jax.tree.map(lambda x: jnp.zeros((stack, *x.shape), x.dtype), shapes)

        def add(i: Any, made: Any) -> Any:
            some = traced_once(same, rows(stacked, i))
            return jax.tree.map(lambda whole, x: whole.at[i].set(x), made, some)

        made = jax.lax.fori_loop(0, tiles, add, empty)
        return jax.tree.map(lambda x: x.reshape(stack * each, *x.shape[2:]), made)

    return Engine(
        programs.shared(laid_out(share, *(EVERYWHERE,) * 5, *(BY_CHAIN,) * 3)),
        target,
        num_units,
        num_params,
        scores,
        buffer,
        devices * each,
        stack,
        partial(build, target, scores, num_units, buffer, stack=1),
    )


def chains_of(
    folds: list[str],
    num_chains: int,
    test: Int[np.ndarray, "fold slot"],
    held_out: Int[np.ndarray, "fold run 2"],
    num_params: int,
) -> Chain:
    """All chains of the folds, fold by fold, none stretched; leading axis: chain.

    Ranges are filled up, by empty ones, to a power of 2: random folds have more or fewer of them.
    """
    runs = held_out.shape[1]
    room = 1 << (runs - 1).bit_length()
    held_out = np.pad(held_out, ((0, 0), (0, room - runs), (0, 0)))
    bits = np.array([name_bits(fold) for fold in folds], np.uint32)
    numbers = np.tile(np.arange(num_chains, dtype=np.uint32), len(folds))
    stretch = np.broadcast_to(np.ones(num_params), (len(numbers), num_params))
    each = (np.repeat(x, num_chains, axis=0) for x in (bits, test, held_out))
    of_fold, tested, ranges = each
    return Chain(of_fold, numbers, tested, ranges, stretch)


class Places(NamedTuple):
    """Where the chains of a call lie: in as many tiles of each device, before its empty ones."""

    chain: Int[np.ndarray, " place"]
    """of each place, also of those that are empty"""
    place: Int[np.ndarray, " chain"]
    tiles: int


def places(number: int, engine: Engine) -> Places:
    """Of so many chains, at most what a call takes."""
    devices = len(in_use())
    each = engine.tile // devices
    tiles = -(-number // engine.tile)
    used = np.arange(devices * tiles * each).reshape(devices, -1)
    place = np.arange(devices)[:, None] * (engine.stack * each) + used[0]
    chain = np.zeros(engine.stack * engine.tile, int)
    chain[place] = np.minimum(used, number - 1)
    return Places(chain, place.reshape(-1)[:number], tiles)


def rows(tree: Any, places: Any) -> Any:
    """Some of the chains."""
    return jax.tree.map(lambda x: x[places], tree)


def typed(tree: Any) -> Any:
    """Arrays and numbers as the program takes them, in the precision there is."""

    def one(x: Any) -> np.ndarray:
        array = np.asarray(x)
        if array.dtype.kind == "f":
            return np.asarray(array, jax.dtypes.canonicalize_dtype(float))
        return np.asarray(array, np.int32) if isinstance(x, int | np.integer) else array

    return jax.tree.map(one, tree)


def advance(
    engine: Engine,
    root: Key[Array, ""],
    kernel: Kernel,
    pace: Pace,
    state: State,
    chains: Chain,
    center: dict[str, Float[np.ndarray, "chain ..."]],
    wanted: tuple[str, ...] = Made._fields,
    given: Float[np.ndarray, "draw param"] | None = None,
) -> tuple[State, Made]:
    """A block of draws of all chains.

    Args:
        engine: from `build`.
        root: key of the seed, the model and the stage.
        kernel: of all chains.
        pace: of the block; `num_steps` and `thin` of all chains, or of each.
        state, chains: of each chain.
        center: kind → centring constants of the log score, of each chain.
        wanted: what is to be brought to the host of what is made.
        given: draws of all chains, where `pace.thin` is 0.

    Returns:
        The new states and what was made, in the order of the chains; None for what is not wanted.
    """
    number = len(chains.fold)
    paces = np.stack([np.broadcast_to(x, number) for x in (pace.num_steps, pace.thin)])
    order = np.lexsort(paces)
    edges = np.flatnonzero((np.diff(paces[:, order]) != 0).any(0)) + 1
    parts = []
    waiting: list[tuple[Any, np.ndarray]] = []

    def fetch() -> None:
        found, place = waiting.pop()
        parts.append(jax.tree.map(lambda x: np.asarray(x)[place], found))

    positions = np.zeros((engine.buffer, engine.num_params))
    if given is not None:
        positions[: len(given)] = given
    kernel, positions = typed((kernel, positions))
    for same in np.split(order, edges):
        steps, thin = paces[:, same[0]]
        now = typed(pace._replace(num_steps=int(steps), thin=int(thin)))
        most = engine.tile * engine.stack
        for begin in range(0, len(same), most):
            own = same[begin : begin + most]
            at = places(len(own), engine)
            some = typed(rows((state, chains, center), own[at.chain]))
            after, made = engine.advance(np.int32(at.tiles), root, kernel, now, positions, *some)
            made = made._replace(**dict.fromkeys(set(Made._fields) - set(wanted)))
            if waiting:
                fetch()
            waiting.append(((after, made), at.place))
    fetch()
    back = np.argsort(order)
    whole: tuple[State, Made] = jax.tree.map(lambda *x: np.concatenate(x)[back], *parts)
    return whole
