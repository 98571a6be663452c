"""Chains of folds, advanced block by block."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import jax
import numpy as np
from jax.errors import JaxRuntimeError
from jaxtyping import Array, Bool, Float, Int, Key

from pcv.analysis import kept as keeping
from pcv.analysis.diagnostics import crossing
from pcv.analysis.kept import NONE, Keeps
from pcv.analysis.samples import Block
from pcv.base.devices import in_use, out_of_memory
from pcv.base.errors import PcvError, setting
from pcv.base.monitor import Monitor
from pcv.base.names import name_bits
from pcv.compile.programs import Shared
from pcv.folds.base import Folds
from pcv.sampling.accumulate import energy_sums, log_sums, weighted_means
from pcv.sampling.fit.full_data import Fit
from pcv.sampling.hmc import Chain, Moved, Pace, State
from pcv.sampling.kernel import Kernel
from pcv.sampling.scoring import Kept, Made
from pcv.sampling.tiles import Engine, Keep, Taken, advance, chains_of, taken

Centers = dict[str, np.ndarray]
"""kind → centring constants of the log score (fold[, slot]); shift → that of
`pcv.analysis.diagnostics.Sides`"""


class Own(NamedTuple):
    """Sampler settings of each fold, under the full-data kernel; leading axis: fold."""

    step_size: Float[np.ndarray, " fold"]
    num_steps: Float[np.ndarray, " fold"]
    thin: Int[np.ndarray, " fold"]
    """HMC transitions per draw"""
    scale_ratio: Float[np.ndarray, "fold param"]
    """scale of each whitened coordinate, relative to the full-data posterior"""


class Standing(NamedTuple):
    """State of all chains between blocks; leading axes: fold, chain."""

    position: Float[np.ndarray, "fold chain param"]
    energy: Float[np.ndarray, "fold chain"]
    """of the last draw, NaN before the first"""


def standing_at(position: Float[np.ndarray, "fold chain param"]) -> Standing:
    """Chains before their first draw."""
    return Standing(position, np.full(position.shape[:2], np.nan))


class Starts(NamedTuple):
    """Where chains start, how they move, and how scores are centred, after warmup."""

    position: Float[np.ndarray, "fold chain param"]
    own: Own
    adapted: Bool[np.ndarray, " fold"]
    center: Centers
    draws: Float[np.ndarray, "fold chain draw"]
    """of the joint score, late in warmup"""
    num_draws: Int[np.ndarray, " fold"]
    """per chain, of warmup and of adaptation"""
    forgot: Bool[np.ndarray, " fold"]
    """whether chains have forgotten their starts; True where that was not asked"""


def uncentered(folds: Folds) -> Centers:
    """The constants before warmup: zero, with no shift."""
    number = len(folds.id)
    zero = {"joint": np.zeros(number), "pointwise": np.zeros(folds.test.shape)}
    return {**zero, "shift": np.full(number, np.inf)}


def alike(fit: Fit, num_folds: int) -> Own:
    """The sampler settings of the full data, for every fold."""

    def each(x: Any) -> np.ndarray:
        return np.broadcast_to(x, (num_folds, *np.shape(x)))

    one = np.ones(len(fit.kernel.center))
    return Own(each(fit.step_size), each(fit.num_steps), each(1), each(one))


def chosen(tree: Any, folds: np.ndarray) -> Any:
    """The given folds of every array in a tree."""
    return jax.tree.map(lambda x: x[folds], tree)


def starting_draws(
    seed: int,
    model: str,
    folds: list[str],
    num_chains: int,
    num_available: int,
    superchains: int = 0,
) -> Int[np.ndarray, "fold chain"]:
    """Indices of the full-data draws that chains start from, distinct within a fold.

    Equally spaced from a random first one (repeated only if starts outnumber draws). The chains of
    a superchain start at the same draw.
    """
    starts = superchains or num_chains
    of_fold = ([seed, name_bits(model), name_bits("start"), name_bits(fold)] for fold in folds)
    first = np.array([np.random.default_rng(x).integers(num_available) for x in of_fold])
    stride = max(num_available // starts, 1)
    picks = (first[:, None] + stride * np.arange(starts)) % num_available
    return np.repeat(picks, num_chains // starts, axis=1)


def blocks(
    engine: Engine,
    root: Key[Array, ""],
    kernel: Kernel,
    folds: Folds,
    own: Own,
    standing: Standing,
    center: Centers,
    num_draws: int,
    first: int,
    monitor: Monitor,
    keeps: Keeps = NONE,
) -> Iterator[tuple[Block, Standing]]:
    """Draws of all chains, block by block, in constant device memory.

    Args:
        engine: of the model.
        root: key of the seed, the model and the stage.
        kernel: of the full data.
        folds: to sample.
        own: their sampler settings.
        standing: state of the chains.
        center: centring constants of the log score.
        num_draws: draws per chain to make.
        first: earlier draws per chain.
        monitor: warns when a tile exceeds the device's memory.
        keeps: how many draws each chain keeps.

    Yields:
        Each block's sums and draws, and the state of the chains.
    """
    num_chains = standing.position.shape[1]
    state, chains, center_of = of_chains(folds, own, standing, center)
    steps, thin = np.repeat(own.num_steps, num_chains), np.repeat(own.thin, num_chains)
    done = 0
    while done < num_draws:
        size = min(engine.buffer, num_draws - done)
        pace = Pace(first + done, size, steps, thin, 0.0, 0.0)
        keep, returned = keep_of_block(keeps, first + done, size, engine.buffer)
        before, at = state.energy, (root, kernel, pace, state, chains, center_of, keep)
        state, moved, made, kept = in_memory(engine, advance, at, monitor)
        assert made is not None
        done += size
        standing = Standing(*(by_fold(x, num_chains) for x in (state.position, state.energy)))
        block = block_of(moved, made, before, num_chains, size, center["shift"])
        if keep is not None and kept is not None:
            block = with_kept(block, kept, keep.number, returned, num_chains)
        yield block, standing


def keep_of_block(keeps: Keeps, first: int, size: int, buffer: int) -> tuple[Keep | None, int]:
    """Which draws of a block to keep, and how many of them are returned as they are."""
    if not any(keeps[:2]):
        return None, 0
    capacities, stride = keeps[:2], keeps.stride
    kept = [keeping.kept_draws(first, size, capacity, stride) - first for capacity in capacities]
    room = [keeping.most_kept(buffer, capacity, stride) for capacity in capacities]
    wide = [np.pad(x, (0, n - len(x))).astype(np.int32) for x, n in zip(kept, room)]
    return Keep(wide[0], len(kept[0]), wide[1]), len(kept[1])


def with_kept(block: Block, kept: Kept, replicated: int, returned: int, num_chains: int) -> Block:
    """A block with the draws that are kept of it."""
    draws = {"position": by_fold(kept.position[:, :returned], num_chains)}
    means = dict(block.means)
    if kept.y_rep is not None:
        draws["y_rep"] = by_fold(kept.y_rep[:, :replicated], num_chains)
    if kept.below is not None and kept.up_to is not None:
        shares = {"below": kept.below, "up_to": kept.up_to}
        weight = np.full(draws["position"].shape[:2], 0.0 if replicated else -np.inf)
        means["pit_pointwise"] = {"log_weight": weight}
        means["pit_pointwise"] |= {
            name: by_fold(np.asarray(x, float), num_chains) for name, x in shares.items()
        }
    return block._replace(kept=draws, means=means)


_smaller: WeakKeyDictionary[Shared, Engine] = WeakKeyDictionary()
"""smaller engine, by the program whose tile exceeded the device's memory"""


def in_memory[T](
    engine: Engine, call: Callable[..., T], args: tuple[Any, ...], monitor: Monitor
) -> T:
    """Call with an engine, halving its tile, for later calls too, while device memory runs out.

    Raises:
        PcvError: out of memory even with one chain at a time.
    """
    while True:
        while engine.advance in _smaller:
            engine = _smaller[engine.advance]
        try:
            return call(engine, *args)
        except JaxRuntimeError as error:
            if not out_of_memory(error):
                raise
            together = engine.tile // len(in_use())
            if together <= 1:
                raise PcvError(
                    "out of memory with one chain per device; use "
                    f"{setting('precision', value='float32')}, or a smaller cv.batch_size"
                ) from error
            _smaller[engine.advance] = engine = engine.with_tile(engine.tile // 2)
            monitor.warn(
                f"out of memory with {together} chains at a time per device; retrying "
                f"with {engine.tile // len(in_use())}"
            )


def report(monitor: Monitor, block: Block, done: int, draws: int, part: str = "") -> None:
    """Show the progress of chains after a block of draws."""
    accepted, divergences = (block.stats[x]["total"] for x in ("acceptance", "divergences"))
    rate = float(accepted.mean() / block.num_draws)
    monitor.progress(accepted.size, done, draws, rate, int(divergences.sum()), part)


def measured(engine: Engine, fold: Folds, keeps: Keeps = NONE) -> Taken | None:
    """Memory of a block of draws, the first one; None where JAX does not report it."""
    ones = np.ones(1, int)
    one = Own(np.ones(1), np.ones(1), ones, np.ones((1, engine.num_params)))
    at = standing_at(np.zeros((1, 1, engine.num_params)))
    keep, _ = keep_of_block(keeps, 0, engine.buffer, engine.buffer)
    return taken(engine, *of_chains(fold, one, at, uncentered(fold)), keep)


def of_chains(
    folds: Folds, own: Own, standing: Standing, center: Centers
) -> tuple[State, Chain, Centers]:
    """State, identity and centring constants of each chain, from those of its fold."""
    num_chains, num_params = standing.position.shape[1:]
    ids = [str(fold) for fold in folds.id]
    chains = chains_of(ids, num_chains, folds.test, folds.held_out, num_params)
    if (own.scale_ratio != 1).any():
        chains = chains._replace(scale_ratio=np.repeat(own.scale_ratio, num_chains, axis=0))
    with np.errstate(divide="ignore"):
        log_step = np.log(np.repeat(own.step_size, num_chains))
    state = State(standing.position.reshape(-1, num_params), log_step, standing.energy.reshape(-1))
    return state, chains, {kind: np.repeat(x, num_chains, axis=0) for kind, x in center.items()}


def block_of(
    moved: Moved,
    made: Made,
    before: np.ndarray,
    num_chains: int,
    size: int,
    shift: Float[np.ndarray, " fold"],
) -> Block:
    """The results of a block by fold and chain, in double precision."""

    def stored(fields: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {name: by_fold(x, num_chains) for name, x in fields.items()}

    def drawn(x: np.ndarray) -> np.ndarray:
        return by_fold(np.asarray(x[:, :size], float), num_chains)

    joint = drawn(made.joint)
    sums = {kind: stored(log_sums.finalize(x)) for kind, x in made.sums.items()}
    if "bridge" in sums:
        sums["bridge"] = {name: sums["bridge"][name] for name in ("log_sum", "log_sum_sq")}
    return Block(
        sums,
        joint,
        crossing(joint, shift, own=True),
        {name: stored(weighted_means.finalize(x)) for name, x in made.means.items()},
        None if made.y_rep is None else drawn(made.y_rep),
        {
            "acceptance": {"total": drawn(moved.acceptance).sum(2)},
            "divergences": {"total": drawn(moved.diverging).sum(2)},
            "energy": energy_sums(drawn(moved.energy), by_fold(before, num_chains)),
        },
        size,
    )


def by_fold(x: np.ndarray, num_chains: int) -> np.ndarray:
    """Reshape from chains to fold and chain."""
    return x.reshape(len(x) // num_chains, num_chains, *x.shape[1:])
