"""Any number of chains, some tiles of a fixed number at a time, sharded over all devices.

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

from pcv.base import programs
from pcv.base.keys import any_key, key
from pcv.base.names import name_bits
from pcv.base.programs import Shared
from pcv.base.programs.devices import BY_CHAIN, EVERYWHERE, by_chain, in_use, shard_mapped, sharded
from pcv.base.programs.packing import Packed, bytes_of_one, pack, unpack
from pcv.models.model import Target
from pcv.models.scores import Score
from pcv.sampling.hmc import Chain, Moved, Pace, State, run_chain
from pcv.sampling.kernel import Kernel, plain
from pcv.sampling.scoring import Made, score_block

MOST_CPU, MOST_GPU = 16, 4096
"""chains of a device that advance side by side"""
CPU_ROOM, GPU_ROOM = 2**20, 2**31
"""bytes for their unit log likelihoods: what fits a core's cache, or a share of a GPU's memory"""
FASTER_TO_COMPILE = {"xla_backend_optimization_level": 1}
"""by a tenth, and as fast once it is"""
STACK, STACK_ROOM = 8, 2**25
"""tiles of a call on a CPU, one after the other, where starting it takes longer than a small one;
and bytes of a device for what they make"""


class Engine(NamedTuple):
    """The compiled programs of a model, and what they were built for."""

    advance: Shared
    """draws of chains"""
    score: Shared
    """sums of scores at draws"""
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
    """The programs of a model; nothing is compiled before they are called.

    Args:
        target: the model on flat parameters.
        scores: what to average besides the log score.
        num_units: number of units.
        buffer: the largest number of draws of one block.
        tile: chains that advance side by side; None: as many as the devices' caches hold.
        stack: the largest number of tiles of a call; None: several on CPUs, where there is room.
    """
    log_density = programs.Inner(target.log_density)
    once = target._replace(
        log_density=log_density, log_predictive=programs.Inner(target.log_predictive)
    )
    devices = len(in_use())
    on_cpu = in_use()[0].platform == "cpu"
    room, most = (CPU_ROOM, MOST_CPU) if on_cpu else (GPU_ROOM, MOST_GPU)
    each = max(min(room // (8 * num_units), most), 1) if tile is None else -(-tile // devices)
    position = programs.shapes(target.init, any_key())
    if stack is None:
        of_tile = 8 * each * buffer * (position.size + num_units)
        stack = max(min(STACK_ROOM // of_tile, STACK), 1) if on_cpu else 1

    def moved_tile(same: Any, chains: Packed) -> tuple[Packed, Array]:
        one_chain = partial(run_chain, log_density, num_units, buffer, *same)
        state, moved = jax.vmap(one_chain)(*unpack(chains))
        return pack((state, moved._replace(position=None)), jnp), moved.position

    def scored_tile(same: Any, chains: tuple[Array, Packed]) -> Packed:
        one_chain: Callable[..., Made] = partial(score_block, once, scores, num_units, *same)
        block, packed = chains
        return pack(jax.vmap(one_chain)(block, *unpack(packed)), jnp)

    def over_tiles(one_tile: Callable[..., Any]) -> Callable[..., Any]:
        traced_once = programs.Inner(one_tile)

        def share(tiles: Any, *args: Any) -> Any:
            """The first `tiles` of a device's, one after the other."""
            *same, chains = args
            if stack == 1:
                return traced_once(same, chains)
            stacked = jax.tree.map(lambda x: x.reshape(stack, each, *x.shape[1:]), chains)
            shapes = jax.eval_shape(traced_once, same, rows(stacked, 0))
            empty = jax.tree.map(lambda x: jnp.zeros((stack, *x.shape), x.dtype), shapes)

            def add(i: Any, made: Any) -> Any:
                some = traced_once(same, rows(stacked, i))
                return jax.tree.map(lambda whole, x: whole.at[i].set(x), made, some)

            made = jax.lax.fori_loop(0, tiles, add, empty)
            return jax.tree.map(lambda x: x.reshape(stack * each, *x.shape[2:]), made)

        return share

    return Engine(
        _sharded(over_tiles(moved_tile), *(EVERYWHERE,) * 4, BY_CHAIN),
        _sharded(over_tiles(scored_tile), *(EVERYWHERE,) * 4, BY_CHAIN, BY_CHAIN),
        target,
        num_units,
        position.size,
        scores,
        buffer,
        devices * each,
        stack,
        partial(build, target, scores, num_units, buffer, stack=1),
    )


def _sharded(share: Callable[..., Any], *places: Any) -> Shared:
    return programs.shared(shard_mapped(share, *places), **FASTER_TO_COMPILE)


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
    scale_ratio = np.broadcast_to(np.ones(num_params), (len(numbers), num_params))
    each = (np.repeat(x, num_chains, axis=0) for x in (bits, test, held_out))
    of_fold, tested, ranges = each
    return Chain(of_fold, numbers, tested, ranges, scale_ratio)


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
    center: dict[str, Float[np.ndarray, "chain ..."]] | None,
    with_positions: bool = False,
) -> tuple[State, Moved, Any]:
    """A block of draws of all chains.

    Args:
        engine: from `build`.
        root: key of the seed, the model and the stage.
        kernel: of all chains.
        pace: of the block; `num_steps` and `thin` of all chains, or of each.
        state, chains: of each chain.
        center: kind → centring constants of the log score, of each chain; None: nothing is scored.
        with_positions: are the draws themselves to be brought to the host?

    Returns:
        The new states, the draws and their scores (`Made`), in the order of the chains.
    """
    number = len(chains.fold)
    paces = np.stack([np.broadcast_to(x, number) for x in (pace.num_steps, pace.thin)])
    order = np.lexsort(paces)
    edges = np.flatnonzero((np.diff(paces[:, order]) != 0).any(0)) + 1
    most = engine.tile * engine.stack
    block = np.arange(most, dtype=np.int32) % (most // len(in_use()))
    kernel, moving = typed(kernel), _moving(engine, state, chains)
    scoring = None if center is None else pack((chains, center))
    parts: list[Any] = []
    waiting: list[Any] = []

    def fetch() -> None:
        made, place = waiting.pop()
        parts.append(rows(jax.tree.map(np.asarray, made), place))

    for same in np.split(order, edges):
        steps, thin = paces[:, same[0]]
        now = typed(pace._replace(num_steps=steps, thin=int(thin)))
        for begin in range(0, len(same), most):
            own = same[begin : begin + most]
            at = places(len(own), engine)
            some, tiles = own[at.chain], np.int32(at.tiles)
            moved, positions = engine.advance(tiles, root, kernel, now, rows(moving, some))
            scored = None
            if scoring is not None:
                told = block, rows(scoring, some)
                scored = engine.score(tiles, root, now.first, now.num_draws, positions, told)
            if waiting:
                fetch()
            waiting.append(((moved, positions if with_positions else None, scored), at.place))
    fetch()
    moved, positions, scored = rows(_one_after_the_other(parts), np.argsort(order))
    after, draws = unpack(moved)
    return after, draws._replace(position=positions), scored and unpack(scored)


def score(
    engine: Engine,
    chains: Chain,
    center: dict[str, Float[np.ndarray, "chain ..."]],
    draws: Float[np.ndarray, "block draw param"],
) -> Made:
    """Scores of all chains at blocks of draws, the same for all; leading axis: block, chain."""
    devices, most = len(in_use()), engine.tile * engine.stack
    each, number = most // devices, len(chains.fold)
    scoring, root, parts = pack((chains, center)), key(0), []
    extent = np.int32(0), np.int32(draws.shape[1])
    of: Any = np if in_use()[0].platform == "cpu" else jnp  # zeros need not be sent to a GPU
    for first in range(0, len(draws), each):
        some = typed(draws[first : first + each])
        beyond = (0, each - len(some)), (0, engine.buffer - some.shape[1]), (0, 0)
        positions = sharded(of.tile(of.pad(some, beyond), (devices, 1, 1)))
        for begin in range(0, len(some) * number, most):
            at = places(min(most, len(some) * number - begin), engine)
            block, chain = np.divmod(begin + at.chain, number)
            told = block.astype(np.int32), rows(scoring, chain)
            scored = engine.score(np.int32(at.tiles), root, *extent, positions, told)
            parts.append(rows(jax.tree.map(np.asarray, scored), at.place))
    made = unpack(_one_after_the_other(parts))
    whole: Made = jax.tree.map(lambda x: x.reshape(len(draws), number, *x.shape[1:]), made)
    return whole


def _one_after_the_other(parts: list[Any]) -> Any:
    return jax.tree.map(lambda *x: np.concatenate(x), *parts)


def _moving(engine: Engine, state: State, chains: Chain) -> Packed:
    """What `engine.advance` takes of chains."""
    if not engine.target.reads_test:
        chains = chains._replace(test=chains.test[:, :0])
    return pack((state, chains))


class Taken(NamedTuple):
    """Bytes that a block of draws takes."""

    device: int
    """on each device: arguments, results and what lies between them"""
    chain: int
    """of each chain, as it comes to the host"""


def taken(
    engine: Engine, state: State, chains: Chain, center: dict[str, np.ndarray]
) -> Taken | None:
    """As XLA says of the programs for such chains, which are compiled; None where it does not."""
    some, pace = places(1, engine).chain, typed(Pace(0, 1, 1.0, 1, 0.0, 0.0))
    kernel, moving = typed(plain(engine.num_params)), rows(_moving(engine, state, chains), some)
    one, root = np.int32(1), key(0)
    shape = len(some), engine.buffer, engine.num_params
    real = jax.dtypes.canonicalize_dtype(float)
    positions = jax.ShapeDtypeStruct(shape, real, sharding=by_chain())
    scoring = np.zeros(len(some), np.int32), rows(pack((chains, center)), some)
    found: list[Any] = []
    of_chain = 0
    for program, args in (
        (engine.advance, (one, root, kernel, pace, moving)),
        (engine.score, (one, root, one, one, positions, scoring)),
    ):
        found.append(program.compiled(*args)[0].memory_analysis())
        made = programs.shapes(program.function, *args)
        packed: Packed = made[0] if program is engine.advance else made
        of_chain += bytes_of_one(packed)
    if None in found:
        return None
    moved, scored = found
    held = moved.argument_size_in_bytes + moved.output_size_in_bytes
    held += scored.argument_size_in_bytes + scored.output_size_in_bytes
    held -= real.itemsize * int(np.prod(shape)) // len(in_use())  # positions, of both
    between = max(moved.temp_size_in_bytes, scored.temp_size_in_bytes)
    return Taken(held + between, of_chain)
