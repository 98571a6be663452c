"""Random keys that depend on names, never on positions.

A key is derived along a path such as ``(seed, model, fold, chain, draw)``: adding a model, dropping
a fold or changing the fold batches affects no other key.
"""

from functools import cache
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Key, UInt32

from pcv.base.names import name_bits


def key(seed: int, *path: str | int) -> Key[Array, ""]:
    """The key at the end of ``path``; names enter by their hash bits, integers as they are."""
    parts = [name_bits(part) if isinstance(part, str) else part for part in path]
    derive = _compiled(len(parts), bool(jax.config.jax_enable_x64))
    derived: Key[Array, ""] = derive(np.uint32(seed), np.array(parts, np.uint32))
    return derived


@cache
def _compiled(length: int, x64: bool) -> Any:
    """The derivation along paths of a length: `jax.jit` would forget it where caches are
    cleared."""
    seed, path = jax.ShapeDtypeStruct((), np.uint32), jax.ShapeDtypeStruct((length,), np.uint32)
    unoptimised = {"xla_backend_optimization_level": 0}
    return jax.jit(_path, compiler_options=unoptimised).lower(seed, path).compile()


def _path(seed: UInt32[Array, ""], path: UInt32[Array, " part"]) -> Key[Array, ""]:
    result = jax.random.key(seed)
    for part in path:
        result = jax.random.fold_in(result, part)
    return result


@cache
def any_key() -> Any:
    """The shape and dtype of a key, for abstract evaluation."""
    return jax.eval_shape(jax.random.key, 0)


def chain_key(
    parent: Key[Array, ""], fold: UInt32[Array, ""], chain: UInt32[Array, ""]
) -> Key[Array, ""]:
    """The key of a chain of a fold, below ``parent`` (the key of seed, model, stage).

    Args:
        parent: shared by all chains.
        fold: hash bits of its name.
        chain: index within the fold.
    """
    return jax.random.fold_in(jax.random.fold_in(parent, fold), chain)
