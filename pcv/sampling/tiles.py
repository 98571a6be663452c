"""Any number of chains, in tiles of fixed size, sharded over all devices.

A single shape is compiled, so device memory does not grow with the number of folds. Everything
around the compiled program is NumPy.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key

from pcv.base.devices import BY_CHAIN, EVERYWHERE, by_chain, in_use, shard_mapped, sharded
from pcv.base.keys import any_key, key
from pcv.base.names import name_bits
from pcv.compile import programs
from pcv.compile.programs import Shared
from pcv.models.joint_groups import by_group
from pcv.models.model import Target, full_data
from pcv.models.scores import Score
from pcv.sampling.hmc import Chain, Moved, Pace, State, run_chain
from pcv.sampling.kernel import Kernel, plain
from pcv.sampling.packing import Packed, bytes_of_one, pack, unpack
from pcv.sampling.scoring import Kept, Made, keep_of_block, score_block

MOST_CPU, MOST_GPU = 16, 4096
"""largest number of chains per device that advance side by side"""
MOST_BACK = 32
"""the same where they call back into Python, which costs as much as some chains do"""
WIDE, LEAST_WIDE = 16, 4
"""values of data per unit above which it pays to read them once for as many chains, even if these
do not fit the cache"""
CPU_ROOM, GPU_ROOM = 2**20, 2**31
"""bytes for their unit log likelihoods: a core's cache, or a share of a GPU's memory"""
FASTER_TO_COMPILE = {"xla_backend_optimization_level": 1}
"""by 10%, with no loss of run time"""
STACK, STACK_ROOM = 8, 2**25
"""largest number of consecutive tiles per call on a CPU, to amortise the overhead of a call; and
bytes per device for their results"""


class Engine(NamedTuple):
    """The compiled programs of a model, and their sizes."""

    advance: Shared
    """makes draws"""
    score: Shared
    """sums scores over draws"""
    keep: Shared
    """returns some draws, with replicates"""
    target: Target
    num_units: int
    num_params: int
    scores: tuple[Score, ...]
    buffer: int
    """capacity of a block, in draws"""
    tile: int
    """chains that advance side by side, over all devices"""
    stack: int
    """largest number of tiles per call"""
    with_tile: Callable[[int], "Engine"]
    """the same engine with another tile size and one tile per call, for when memory runs out"""


def build(
    target: Target,
    scores: tuple[Score, ...],
    num_units: int,
    buffer: int,
    tile: int | None = None,
    stack: int | None = None,
    groups: tuple[Int[np.ndarray, " unit"], int] | None = None,
) -> Engine:
    """The programs of a model, compiled when they are first called.

    Args:
        target: the model on flat parameters.
        scores: scores besides the log score.
        num_units: number of units.
        buffer: largest number of draws per block.
        tile: chains that advance side by side; None: as many as fit the devices' caches.
        stack: largest number of tiles per call; None: several on CPUs, as memory allows.
        groups: the group of each unit, and the most groups in a fold, if groups are scored in place
            of units.
    """
    log_density = programs.Inner(target.log_density)
    once = target._replace(
        log_density=log_density, log_predictive=programs.Inner(target.log_predictive)
    )
    terms = once.log_predictive
    if groups is not None:
        terms = programs.Inner(by_group(target.log_predictive, *groups))
    devices = len(in_use())
    on_cpu = in_use()[0].platform == "cpu"
    room, most = (CPU_ROOM, MOST_CPU) if on_cpu else (GPU_ROOM, MOST_GPU)
    position = jax.eval_shape(target.init, any_key())
    each = max(min(room // (8 * num_units), most), 1) if tile is None else -(-tile // devices)
    if tile is None and target.calls_back:
        each = MOST_BACK
    few = tile is None and on_cpu and each < LEAST_WIDE
    if few and log_density.bytes_held(position, full_data(num_units)) > WIDE * 8 * num_units:
        each = LEAST_WIDE
    if stack is None:
        of_tile = 8 * each * buffer * (position.size + num_units)
        stack = max(min(STACK_ROOM // of_tile, STACK), 1) if on_cpu else 1

    def moved_tile(same: Any, chains: Packed) -> tuple[Packed, Array]:
        one_chain = partial(run_chain, log_density, num_units, buffer, *same)
        state, moved = jax.vmap(one_chain)(*unpack(chains))
        return pack((state, moved._replace(position=None)), jnp), moved.position

    def scored_tile(same: Any, chains: tuple[Array, Packed]) -> Packed:
        one_chain: Callable[..., Made] = partial(score_block, once, terms, scores, num_units, *same)
        block, packed = chains
        return pack(jax.vmap(one_chain)(block, *unpack(packed)), jnp)

    def kept_tile(same: Any, chains: tuple[Array, Packed]) -> Kept:
        block, packed = chains
        every: Callable[..., Kept] = partial(keep_of_block, once, num_units, *same)
        return every(block, *unpack(packed))

    def over_tiles(one_tile: Callable[..., Any]) -> Callable[..., Any]:
        traced_once = programs.Inner(one_tile)

        def share(tiles: Any, *args: Any) -> Any:
            """The first `tiles` tiles of a device, one after the other."""
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
        advance=_sharded(over_tiles(moved_tile), *(EVERYWHERE,) * 4, BY_CHAIN),
        score=_sharded(over_tiles(scored_tile), *(EVERYWHERE,) * 4, BY_CHAIN, BY_CHAIN),
        keep=_sharded(over_tiles(kept_tile), *(EVERYWHERE,) * 6, BY_CHAIN, BY_CHAIN),
        target=target,
        num_units=num_units,
        num_params=position.size,
        scores=scores,
        buffer=buffer,
        tile=devices * each,
        stack=stack,
        with_tile=partial(build, target, scores, num_units, buffer, stack=1, groups=groups),
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
    """All chains, fold by fold, with scale ratios of 1; leading axis: chain.

    Held-out ranges are padded with empty ones to a power of 2: random folds differ in their number.
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
    """Layout of a call: chains fill equally many tiles on each device, padding comes last."""

    chain: Int[np.ndarray, " place"]
    """index of the chain at each place, padding included"""
    place: Int[np.ndarray, " chain"]
    tiles: int


def places(number: int, engine: Engine) -> Places:
    """The layout of `number` chains, at most those of one call."""
    devices = len(in_use())
    each = engine.tile // devices
    tiles = -(-number // engine.tile)
    used = np.arange(devices * tiles * each).reshape(devices, -1)
    place = np.arange(devices)[:, None] * (engine.stack * each) + used[0]
    chain = np.zeros(engine.stack * engine.tile, int)
    chain[place] = np.minimum(used, number - 1)
    return Places(chain, place.reshape(-1)[:number], tiles)


def rows(tree: Any, places: Any) -> Any:
    """Rows of every array in a tree."""
    return jax.tree.map(lambda x: x[places], tree)


def typed(tree: Any) -> Any:
    """Arrays and numbers in the dtypes that the program expects."""

    def one(x: Any) -> np.ndarray:
        array = np.asarray(x)
        if array.dtype.kind == "f":
            return np.asarray(array, jax.dtypes.canonicalize_dtype(float))
        return np.asarray(array, np.int32) if isinstance(x, int | np.integer) else array

    return jax.tree.map(one, tree)


class Keep(NamedTuple):
    """Which draws of a block to keep, by their places in it; padded to the size of other blocks."""

    replicated: Int[np.ndarray, " kept"]
    """with replicates of the test set"""
    number: int
    """how many of these count"""
    returned: Int[np.ndarray, " kept_position"]
    """the draws themselves"""


class Advanced(NamedTuple):
    """A block of draws of all chains, in their order."""

    state: State
    """after the block"""
    moved: Moved
    made: Made | None
    """scores; None: nothing is scored"""
    kept: Kept | None


def advance(
    engine: Engine,
    root: Key[Array, ""],
    kernel: Kernel,
    pace: Pace,
    state: State,
    chains: Chain,
    center: dict[str, Float[np.ndarray, "chain ..."]] | None,
    keep: Keep | None = None,
    with_positions: bool = False,
) -> Advanced:
    """A block of draws of all chains.

    Args:
        engine: from `build`.
        root: key of the seed, the model and the stage.
        kernel: metric shared by all chains.
        pace: settings of the block; `num_steps` and `thin` shared or per chain.
        state, chains: of each chain.
        center: kind → centring constant of the log score per chain; None: nothing is scored.
        keep: which draws to keep; None: none.
        with_positions: whether to copy all draws themselves to the host.
    """
    number = len(chains.fold)
    paces = np.stack([np.broadcast_to(x, number) for x in (pace.num_steps, pace.thin)])
    order = np.lexsort(paces)
    edges = np.flatnonzero((np.diff(paces[:, order]) != 0).any(0)) + 1
    most = engine.tile * engine.stack
    block = np.arange(most, dtype=np.int32) % (most // len(in_use()))
    kernel, moving = typed(kernel), _moving(engine, state, chains)
    scoring = None if center is None else pack((chains, center))
    keeping = None if keep is None else (pack((chains,)), *typed(keep))
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
                scored_at = block, rows(scoring, some)
                scored = engine.score(tiles, root, now.first, now.num_draws, positions, scored_at)
            kept = None
            if keeping is not None:
                packed, *which = keeping
                kept_at = block, rows(packed, some)
                kept = engine.keep(tiles, root, now.first, *which, positions, kept_at)
            shown = positions if with_positions else None
            if waiting:
                fetch()
            waiting.append(((moved, shown, scored, kept), at.place))
    fetch()
    moved, positions, scored, kept = rows(_concatenated(parts), np.argsort(order))
    after, draws = unpack(moved)
    draws = draws._replace(position=positions)
    return Advanced(after, draws, scored and unpack(scored), kept)


def score(
    engine: Engine,
    chains: Chain,
    center: dict[str, Float[np.ndarray, "chain ..."]],
    draws: Float[np.ndarray, "block draw param"],
) -> Made:
    """Scores of all chains at the same blocks of draws; leading axes: block, chain."""
    devices, most = len(in_use()), engine.tile * engine.stack
    each, number = most // devices, len(chains.fold)
    scoring, root, parts = pack((chains, center)), key(0), []
    extent = np.int32(0), np.int32(draws.shape[1])
    of: Any = np if in_use()[0].platform == "cpu" else jnp  # no need to copy zeros to a GPU
    for first in range(0, len(draws), each):
        some = typed(draws[first : first + each])
        beyond = (0, each - len(some)), (0, engine.buffer - some.shape[1]), (0, 0)
        positions = sharded(of.tile(of.pad(some, beyond), (devices, 1, 1)))
        for begin in range(0, len(some) * number, most):
            at = places(min(most, len(some) * number - begin), engine)
            block, chain = np.divmod(begin + at.chain, number)
            scored_at = block.astype(np.int32), rows(scoring, chain)
            scored = engine.score(np.int32(at.tiles), root, *extent, positions, scored_at)
            parts.append(rows(jax.tree.map(np.asarray, scored), at.place))
    made = unpack(_concatenated(parts))
    whole: Made = jax.tree.map(lambda x: x.reshape(len(draws), number, *x.shape[1:]), made)
    return whole


def _concatenated(parts: list[Any]) -> Any:
    return jax.tree.map(lambda *x: np.concatenate(x), *parts)


def _moving(engine: Engine, state: State, chains: Chain) -> Packed:
    """The chains as input of `engine.advance`."""
    if not engine.target.reads_test:
        chains = chains._replace(test=chains.test[:, :0])
    return pack((state, chains))


class Taken(NamedTuple):
    """Memory of a block of draws in bytes."""

    device: int
    """per device: arguments, results and temporaries"""
    chain: int
    """per chain, of results on the host"""


def taken(
    engine: Engine,
    state: State,
    chains: Chain,
    center: dict[str, np.ndarray],
    keep: Keep | None = None,
) -> Taken | None:
    """XLA's memory analysis of the programs, which are compiled for it; None where it has none.
    Of what is kept, only the results count: they are smaller than the draws of a block."""
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
        made = jax.eval_shape(program.function, *args)
        packed: Packed = made[0] if program is engine.advance else made
        of_chain += bytes_of_one(packed)
    if keep is not None:
        kept_at = scoring[0], rows(pack((chains,)), some)
        at = one, root, one, *typed(keep), positions, kept_at
        kept = jax.tree.leaves(jax.eval_shape(engine.keep.function, *at))
        of_chain += sum(x.size * x.dtype.itemsize for x in kept) // len(some)
    if None in found:
        return None
    moved, scored = found
    held = moved.argument_size_in_bytes + moved.output_size_in_bytes
    held += scored.argument_size_in_bytes + scored.output_size_in_bytes
    held -= real.itemsize * int(np.prod(shape)) // len(in_use())  # positions, counted in both
    between = max(moved.temp_size_in_bytes, scored.temp_size_in_bytes)
    return Taken(held + between, of_chain)
