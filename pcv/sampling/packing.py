"""A tree of arrays over chains packed into two matrices.

Every further input or output of a program costs as much to dispatch, and to compile, as a small
computation.
"""

from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import jax
import numpy as np


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Packed:
    """Arrays with a leading chain axis, side by side."""

    reals: Any
    """(chain, column); booleans included"""
    integers: Any
    layout: tuple[Any, tuple[tuple[tuple[int, ...], Any], ...]] = field(metadata={"static": True})
    """tree structure; shape of each leaf for one chain, and its dtype"""


def pack(tree: Any, of: ModuleType = np) -> Packed:
    """Pack in the current precision, with NumPy or `jax.numpy`."""
    leaves, structure = jax.tree.flatten(tree)
    number = len(leaves[0])

    def together(kinds: str, dtype: Any) -> Any:
        some = [x for x in leaves if np.dtype(x.dtype).kind in kinds]
        columns = [x.reshape(number, int(np.prod(x.shape[1:]))).astype(dtype) for x in some]
        return of.concatenate(columns, axis=1) if columns else None

    types = (np.dtype(jax.dtypes.canonicalize_dtype(x.dtype)) for x in leaves)
    layout = structure, tuple((x.shape[1:], dtype) for x, dtype in zip(leaves, types))
    real = jax.dtypes.canonicalize_dtype(float)
    return Packed(together("fb", real), together("iu", np.int32), layout)


def unpack(packed: Packed) -> Any:
    """The original tree; NumPy views where the dtype is unchanged."""
    structure, kinds = packed.layout
    taken, leaves = {"reals": 0, "integers": 0}, []
    for shape, dtype in kinds:
        name = "integers" if dtype.kind in "iu" else "reals"
        begin, taken[name] = taken[name], taken[name] + int(np.prod(shape))
        columns = getattr(packed, name)[:, begin : taken[name]]
        leaves.append(columns.reshape(len(columns), *shape).astype(dtype, copy=False))
    return jax.tree.unflatten(structure, leaves)


def bytes_of_one(packed: Packed) -> int:
    """Size of the tree's arrays, for one chain."""
    return sum(int(np.prod(shape)) * dtype.itemsize for shape, dtype in packed.layout[1])
