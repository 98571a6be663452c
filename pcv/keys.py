"""Random keys that depend on names, never on positions.

A key is reached by a path such as ``(seed, model, fold, chain, draw)``: adding a model, leaving
out a fold or cutting the folds into other batches changes no other key.
"""

import jax
import numpy as np
from jaxtyping import Array, Key, UInt32

from pcv.names import name_bits


def key(seed: int, *path: str | int) -> Key[Array, ""]:
    """The key at the end of ``path``: names enter by their bits, integers as they are."""
    result = jax.random.key(seed)
    for part in path:
        bits = name_bits(part) if isinstance(part, str) else part
        result = jax.random.fold_in(result, np.uint32(bits))
    return result


def chain_keys(
    parent: Key[Array, ""], folds: list[str], num_chains: int
) -> Key[Array, "fold chain"]:
    """Keys of all chains of all folds, below ``parent`` (the key of seed, model, stage)."""
    bits: UInt32[np.ndarray, " fold"] = np.array([name_bits(f) for f in folds], np.uint32)
    chains = np.arange(num_chains, dtype=np.uint32)
    fold_keys = jax.vmap(jax.random.fold_in, (None, 0))(parent, bits)
    return jax.vmap(jax.vmap(jax.random.fold_in, (None, 0)), (0, None))(fold_keys, chains)
