"""The sample artifact: written block by block as draws are made, read as diagnostics take it.

Variables: ``<score>_<kind>_<field>``, the fields of the score's accumulator, dims (fold, chain,
batch[, slot]); ``<score>_joint_draws`` (fold, chain, draw), or ``<score>_joint_tail`` (fold,
tail), the largest draws of each fold, where draws are not kept; ``acceptance``, ``divergences``,
``energy_<field>`` with the fields of `pcv.accumulate.energy_sums`, dims (fold, chain, batch);
``n_draws`` (fold), per chain.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import xarray as xr
from jaxtyping import Float

from pcv import store
from pcv.diagnostics import LogSums

MAX_CHUNKS = 32
"""chunks along the batches of a run, so that long runs do not leave thousands of files"""


class Block(NamedTuple):
    """One block of draws of all chains, on the host; leading axes (fold, chain)."""

    sums: dict[str, dict[str, dict[str, np.ndarray]]]
    """score → kind → sums (fold, chain[, slot])"""
    draws: dict[str, Float[np.ndarray, "fold chain draw"]]
    """score → the joint score's draws"""
    stats: dict[str, dict[str, np.ndarray]]
    """acceptance, divergences, energy → sums (fold, chain)"""
    num_draws: int


def batch_of(block: Block, keep_draws: bool) -> xr.Dataset:
    """A block as one batch (fold, chain, batch=1[, slot]) with its draws, if they are kept."""
    dims = ("fold", "chain", "batch", "slot")
    variables: dict[str, tuple] = {}
    for score, kinds in block.sums.items():
        for kind, fields in kinds.items():
            for field, values in fields.items():
                values = np.expand_dims(values, 2)
                variables[f"{score}_{kind}_{field}"] = (dims[: values.ndim], values)
        if keep_draws:
            variables[f"{score}_joint_draws"] = (("fold", "chain", "draw"), block.draws[score])
    stats = {
        "acceptance": block.stats["acceptance"]["total"] / block.num_draws,
        "divergences": block.stats["divergences"]["total"],
        **{f"energy_{field}": x for field, x in block.stats["energy"].items()},
    }
    variables |= {name: (dims[:3], x[:, :, None]) for name, x in stats.items()}
    return xr.Dataset(variables)


def create(folder: Path, first: xr.Dataset, num_batches: int) -> None:
    """An empty store for `num_batches` like the first; its memory does not grow with them."""
    grown = {"batch": num_batches, "draw": num_batches * first.sizes.get("draw", 0)}
    per_chunk = -(-num_batches // MAX_CHUNKS)
    variables, encoding = {}, {}
    for name, x in first.data_vars.items():
        shape = [grown.get(str(d), n) for d, n in x.sizes.items()]
        chunks = [n * per_chunk if d in grown else n for d, n in x.sizes.items()]
        variables[name] = (x.dims, np.broadcast_to(np.nan, shape))
        encoding[name] = {"chunks": [min(c, n) for c, n in zip(chunks, shape)]}
    store.put(folder, xr.Dataset(variables), mode="w", encoding=encoding, write_empty_chunks=False)


def put(folder: Path, batch: xr.Dataset, index: int) -> None:
    """Write one batch at its place."""
    size = batch.sizes.get("draw", 0)
    region = {"batch": slice(index, index + 1)}
    if size:
        region["draw"] = slice(index * size, (index + 1) * size)
    batch.to_zarr(folder, region=region)


def largest(
    top: Float[np.ndarray, "fold tail"], draws: Float[np.ndarray, "fold chain draw"]
) -> Float[np.ndarray, "fold tail"]:
    """The largest values of each fold so far, in no order, as many as `top` has room for."""
    seen = np.concatenate([top, draws.reshape(len(draws), -1)], axis=1)
    return np.partition(seen, -top.shape[1], axis=1)[:, -top.shape[1] :]


def finish(
    folder: Path,
    folds: np.ndarray,
    num_draws: int,
    tails: Mapping[str, Float[np.ndarray, "fold tail"]],
    attributes: Mapping[str, str | int],
) -> None:
    """Add what is known at the end: names and lengths of the folds, and the largest draws."""
    last: dict[str, tuple] = {"n_draws": ("fold", np.full(len(folds), num_draws))}
    for score, values in tails.items():
        last[f"{score}_joint_tail"] = (("fold", "tail"), np.sort(values))
    store.put(folder, xr.Dataset(last, {"fold": folds}, attributes), mode="a")


def log_sums(samples: Sequence[xr.Dataset], score: str, kind: str) -> LogSums:
    """The stored sums of all fold batches as one."""
    return LogSums(
        *(
            np.concatenate([s[f"{score}_{kind}_{field}"].values for s in samples])
            for field in LogSums._fields
        )
    )
