"""Draws that are kept of each chain, evenly spaced however many there will be.

Of the first draws all are kept, then every second, then every fourth, and so on; a run that is
known to be long begins with every second or fourth. Whatever the
length of a run, c of its kept draws or more are evenly spaced. A shorter run keeps the same draws
as the beginning of a longer one, so that runs can go on.

In the sample artifact: ``kept_y_rep`` (fold, chain, kept, slot), replicates of the test set, and
``kept_position`` (fold, chain, returned, param), the draws themselves, in single precision;
``kept_draw`` (fold, kept) and ``returned_draw`` (fold, returned), their numbers, counted
from 0, NaN where a fold did not come so far.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import xarray as xr
from jaxtyping import Int, Real

from pcv.analysis.samples import Block

ALONG = {"kept_y_rep": "kept", "kept_position": "returned"}
"""variable → dimension of its draws"""


class Keeps(NamedTuple):
    """Evenly spaced draws that each chain keeps at least; 0: none."""

    replicated: int
    """with replicates of the test set"""
    returned: int
    """the draws themselves, no more than the others"""
    stride: int = 1
    """least distance between kept draws, a power of 2"""


NONE = Keeps(0, 0)
MOST_STRIDE = 4
"""draws that a run skips from its beginning on, if it is long enough"""
MOST_BYTES, MOST_RETURNED = 2**28, 2**26
"""of the replicates of all tested units, and of the draws that are kept with them; while chains
run, several times as many are held"""


def keeps_of(
    asked: int, chains: int, draws: int, slots: tuple[int, int, int], num_params: int
) -> Keeps:
    """How many draws each chain keeps: as many as replicates are asked for, within limits.

    Args:
        asked: number of replicates of each tested unit, over all chains.
        chains: of each fold.
        draws: of each chain, or more.
        slots: numbers of all folds, of units in the largest test set, and of rows in the largest
            unit: replicates are stored for so many.
        num_params: of the model.

    >>> keeps_of(400, 8, 100, slots=(30, 5, 1), num_params=65)
    Keeps(replicated=50, returned=50, stride=2)
    >>> keeps_of(400, 8, 1000, slots=(3000, 1, 1), num_params=400)
    Keeps(replicated=50, returned=1, stride=4)
    """

    def of_chain(number: int) -> int:
        """Draws per chain, where there is room for a number of draws."""
        return -(-asked // chains) if number >= asked else max(number // chains, 1)

    if not asked:
        return NONE
    replicated = of_chain(MOST_BYTES // (4 * slots[0] * slots[1] * slots[2]))
    returned = min(replicated, of_chain(MOST_RETURNED // (4 * slots[0] * num_params)))
    long_enough = min(max(draws // replicated, 1), MOST_STRIDE)
    return Keeps(replicated, returned, 1 << long_enough.bit_length() - 1)


def spacing(number: Int[np.ndarray, " draw"], capacity: int) -> Int[np.ndarray, " draw"]:
    """Distance between kept draws, near a draw.

    Args:
        number: of the draw, from 1.
        capacity: evenly spaced draws that a chain keeps at least, if it makes as many.

    >>> spacing(np.array([1, 99, 100, 200]), 50)
    array([1, 1, 2, 4])
    """
    octave = np.log2(np.maximum(number, capacity) / capacity)
    return 1 << np.floor(octave + 1e-12).astype(int)


def kept_draws(
    first: int, num_draws: int, capacity: int, stride: int = 1
) -> Int[np.ndarray, " kept"]:
    """Indices of the kept draws of a block, from 0.

    Args:
        first: number of earlier draws.
        num_draws: of the block.
        capacity: as for `spacing`; 0: none is kept.
        stride: least distance between kept draws, a power of 2.

    >>> kept_draws(0, 4, 2), kept_draws(4, 8, 2)
    (array([0, 1, 2, 3]), array([ 5,  7, 11]))
    """
    number = np.arange(first, first + num_draws) + 1
    if not capacity:
        return number[:0]
    return number[number % np.maximum(spacing(number, capacity), stride) == 0] - 1


def most_kept(num_draws: int, capacity: int, stride: int = 1) -> int:
    """The largest number of kept draws of any block of a size.

    >>> most_kept(4, 2)
    4
    """
    if not capacity:
        return 0
    later = max(int(spacing(np.array([num_draws + 1]), capacity)[0]), stride)
    return max(len(kept_draws(0, num_draws, capacity, stride)), -(-num_draws // later))


def even_draws(
    kept: Real[np.ndarray, " kept"], num_draws: int | np.integer, capacity: int
) -> Int[np.ndarray, " even"]:
    """Places, among the kept draws of a chain, of up to `capacity` evenly spaced ones.

    Args:
        kept: indices of the kept draws, of `kept_draws`; NaN: none.
        num_draws: of the chain.
        capacity: most draws to return.

    >>> kept = np.concatenate([kept_draws(0, 4, 2), kept_draws(4, 8, 2)])
    >>> kept[even_draws(kept, 12, 2)]
    array([ 3, 11])
    """
    distance = spacing(np.array([max(num_draws, 1)]), max(capacity, 1))[0]
    even = np.flatnonzero(((kept + 1) % distance == 0) & (kept < num_draws))
    number = min(capacity, len(even))
    return even[((np.arange(number) + 1) * len(even)) // max(number, 1) - 1]


def of_block(block: Block, first: int, keeps: Keeps) -> xr.Dataset:
    """What a block keeps.

    Args:
        block: of all chains.
        first: number of earlier draws.
        keeps: with which it was made.
    """
    assert block.kept is not None
    variables: dict[str, tuple] = {}
    for (name, dim), capacity in zip(ALONG.items(), keeps[:2]):
        values = block.kept.get(name.removeprefix("kept_"))
        if values is not None:
            draw = kept_draws(first, block.num_draws, capacity, keeps.stride)
            last = ("slot", "row")[: values.ndim - 3] if dim == "kept" else ("param",)
            variables[name] = (("fold", "chain", dim, *last), values)
            variables[f"{dim}_draw"] = (("fold", dim), np.tile(draw, (len(values), 1)) * 1.0)
    return xr.Dataset(variables)


def joined(parts: Sequence[xr.Dataset]) -> xr.Dataset:
    """The kept draws of consecutive blocks of the same folds."""
    variables: dict[str, tuple] = {}
    for name, x in parts[0].data_vars.items():
        axis = next(i for i, dim in enumerate(x.dims) if dim in ALONG.values())
        variables[str(name)] = x.dims, np.concatenate([part[name].values for part in parts], axis)
    return xr.Dataset(variables)


def thinned(kept: xr.Dataset, num_draws: Int[np.ndarray, " fold"], keeps: Keeps) -> xr.Dataset:
    """Evenly spaced ones of the kept draws, as many of each fold.

    Args:
        kept: of `joined`.
        num_draws: per chain of each fold.
        keeps: most of them per chain.
    """
    variables: dict[str, tuple] = {}
    for (name, dim), capacity in zip(ALONG.items(), keeps[:2]):
        if name not in kept:
            continue
        draw = kept[f"{dim}_draw"].values
        even = [even_draws(x, n, capacity) for x, n in zip(draw, num_draws)]
        number = min(map(len, even))
        place = np.array([x[len(x) - number :] for x in even])
        values = [x[:, some] for x, some in zip(kept[name].values, place)]
        variables[name] = kept[name].dims, np.stack(values)
        variables[f"{dim}_draw"] = (("fold", dim), np.take_along_axis(draw, place, 1))
    return xr.Dataset(variables)
