"""Chains of folds in parts that share a kernel: begun, gone on with, thinned out and stored.

Chains of the full-data kernel, of variants of it, and of variants that make several transitions for
a draw are compiled apart, so that none pays for the others. Results are in the order of the folds.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.errors import JaxRuntimeError
from jaxtyping import Array, Bool, Float, Int, Key

from pcv import sampler
from pcv.devices import in_use, laid, out_of_memory
from pcv.errors import PcvError
from pcv.kernels import Variants
from pcv.sampler import Centers, Chains, Kernel, Sampler, State, filled, own_of, spread
from pcv.sums import Block


class Part(NamedTuple):
    """Folds that share the full-data kernel, or that have variants of it, and their chains."""

    fold: Int[np.ndarray, " fold"]
    """places among all folds"""
    kernel: Kernel
    state: State
    chains: Chains
    most: int
    """number of folds when it was begun"""


def start(
    variants: Variants,
    variant: Int[np.ndarray, " fold"],
    position: Float[np.ndarray, "fold chain param"],
    chains: Chains,
) -> list[Part]:
    """The chains of all folds, those of variant 0 apart from the others, and of several moves.

    Args:
        variants: of the kernel, the full-data one first.
        variant: of each fold.
        position: where the chains stand.
        chains: keys and folds of all chains, fold by fold; more may follow.
    """
    num_chains = position.shape[1]
    made = Kernel(**{name: jnp.asarray(x) for name, x in variants._asdict().items()})
    differing = own_of(made)
    own, several = variant > 0, variants.moves[variant] > 1
    parts = []
    for fold in map(np.flatnonzero, (~own, own & ~several, own & several)):
        if fold.size == 0:
            continue
        rows = _rows(fold, num_chains)
        places = jnp.asarray(position.reshape(-1, position.shape[-1])[rows])
        places, some = spread((places, Chains(*(x[rows] for x in chains))))
        kernel = Kernel(made.center, made.scale, made.step_size[0], made.num_steps[0])
        if variant[fold[0]]:
            of_chain = np.repeat(variant[fold], num_chains)
            each = spread({name: x[of_chain] for name, x in differing.items()})
            kernel = made._replace(moves=variants.moves[variant[fold[0]]], **each)
        parts.append(Part(fold, kernel, sampler.start(kernel, places), some, len(fold)))
    return parts


def _rows(folds: np.ndarray, num_chains: int) -> np.ndarray:
    """Places of the folds' chains among those of all folds."""
    return (folds[:, None] * num_chains + np.arange(num_chains)).reshape(-1)


def sizes(num_folds: int) -> list[int]:
    """Numbers of folds that are compiled for: all, and halves down to an eighth.

    >>> sizes(30)
    [30, 15, 8, 4]
    """
    return list(dict.fromkeys(-(-num_folds // 2**i) for i in range(4)))


def compacted(active: Sequence[int] | np.ndarray, num_folds: int) -> np.ndarray:
    """The folds to go on with, filled up by the last one to a size that is compiled for.

    >>> compacted([3, 17, 21], 30)
    array([ 3, 17, 21, 21])
    """
    size = min(size for size in sizes(num_folds) if size >= len(active))
    return np.asarray(active)[filled(len(active), size)]


def kept(parts: list[Part], going: Bool[np.ndarray, " fold"], num_chains: int) -> list[Part]:
    """The parts without the folds that have ended: numbered anew, compacted to a few sizes.

    Chains lie on the devices as before: elsewhere, they would be compiled for once more.
    """
    place, found = np.cumsum(going) - 1, []
    for part in parts:
        own = np.flatnonzero(going[part.fold])
        if own.size == 0:
            continue
        if own.size == part.fold.size:
            found.append(part._replace(fold=place[part.fold]))
            continue
        folds = compacted(own, part.most)
        rows = _rows(folds, num_chains)
        varying = own_of(part.kernel)
        some = jax.tree.map(partial(jnp.take, indices=rows, axis=0), (part.state, varying))
        state, varying, chains = spread((*some, Chains(*(x[rows] for x in part.chains))))
        kernel = part.kernel._replace(**varying)
        found.append(Part(place[part.fold[own]], kernel, laid(state), chains, part.most))
    return found


def blocks(
    engine: Sampler,
    parts: list[Part],
    center: Centers,
    steps_key: Key[Array, ""],
    num_chains: int,
    num_draws: int,
    first: int = 0,
) -> Iterator[tuple[Block, list[Part]]]:
    """`pcv.sampler.blocks` of all parts, in the order of the folds; and the parts to go on from."""
    streams = [
        sampler.blocks(
            engine,
            part.kernel,
            part.state,
            part.chains,
            jax.tree.map(lambda c: c[part.fold], center),  # noqa: B023
            steps_key,
            num_chains,
            num_draws,
            first,
        )
        for part in parts
    ]
    order = _order(parts)

    def in_order(*x: Any) -> Any:
        return np.concatenate(x)[order] if np.ndim(x[0]) else x[0]

    for made in zip(*streams):
        block = jax.tree.map(in_order, *(block for block, _ in made))
        yield block, [part._replace(state=state) for part, (_, state) in zip(parts, made)]


def in_memory(
    engine: Sampler,
    parts: list[Part],
    center: Centers,
    steps_key: Key[Array, ""],
    num_chains: int,
    num_draws: int,
    first: int,
    say: Callable[[str], None],
) -> Iterator[tuple[Block, list[Part], Sampler]]:
    """`blocks`; where they do not fit the device's memory, with half as many chains at a time.

    Yields:
        Each block, and the parts and the engine to go on with.

    Raises:
        PcvError: they do not fit with one chain at a time.
    """
    made = 0
    while made < num_draws:
        left = num_draws - made, first + made
        try:
            for block, after in blocks(engine, parts, center, steps_key, num_chains, *left):
                made, parts = made + block.num_draws, after
                yield block, parts, engine
        except JaxRuntimeError as error:
            if not out_of_memory(error):
                raise
            most = max(len(part.chains.test) for part in parts) // len(in_use())
            together = min(engine.at_once, most)
            if together <= 1:
                raise PcvError(
                    "out of memory with one chain of a device at a time; cut the folds into "
                    "batches that fit (cv.fold_batches: auto)"
                ) from error
            engine = engine.with_at_once(together // 2)
            say(
                f"warning: out of memory with {together} chains of a device at a time; tried again "
                f"with {engine.at_once} (to avoid it: cv.fold_batches: auto)"
            )


def states(parts: list[Part], num_chains: int) -> dict[str, np.ndarray]:
    """What the next draws of all folds need, by names; axes (fold, chain, ...)."""
    leaves = zip(*(jax.tree.leaves(part.state) for part in parts))
    return {str(i): _by_fold(parts, own, num_chains) for i, own in enumerate(leaves)}


def resumed(parts: list[Part], stored: Mapping[str, np.ndarray]) -> list[Part]:
    """The parts in the states that `states` gave, perhaps on another number of devices."""

    def fitted(x: np.ndarray, like: Array) -> np.ndarray:
        rows = x.reshape(-1, *x.shape[2:])
        return rows[filled(len(rows), len(like))]

    found = []
    for part in parts:
        leaves, structure = jax.tree.flatten(part.state)
        own = [fitted(stored[str(i)][part.fold], like) for i, like in enumerate(leaves)]
        found.append(part._replace(state=laid(jax.tree.unflatten(structure, own))))
    return found


def positions(parts: list[Part], num_chains: int) -> Float[np.ndarray, "fold chain param"]:
    """Where the chains of all folds stand."""
    ends = [sampler.positions(part.kernel, part.state) for part in parts]
    return _by_fold(parts, ends, num_chains)


def _order(parts: list[Part]) -> np.ndarray:
    """Places of the folds, in their order, among those of the parts in turn."""
    return np.argsort(np.concatenate([part.fold for part in parts]))


def _by_fold(parts: list[Part], values: Sequence[Any], num_chains: int) -> np.ndarray:
    """Values of the parts' chains, padded, as (fold, chain, ...) in the order of the folds."""
    order = _order(parts)
    own = [np.asarray(x)[: len(part.fold) * num_chains] for part, x in zip(parts, values)]
    rows = np.concatenate(own)
    return rows.reshape(len(order), num_chains, *rows.shape[1:])[order]
