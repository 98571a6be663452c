"""A store of sums of draws that grows batch by batch, in constant memory."""

from pathlib import Path

import numpy as np
import xarray as xr

from pcv.base.storable import storable
from pcv.pipeline.storage import store

MAX_CHUNKS = 32
"""chunks along the batches of a run: few, so that long runs do not leave thousands of files"""
CHUNK_BYTES = 2**24
"""size of a chunk above which there may be more: every batch rewrites its whole chunk"""


def put(folder: Path, batch: xr.Dataset, index: int, num_batches: int) -> None:
    """Write one batch, of all folds, at its place among `num_batches`."""
    if index == 0:
        create(folder, batch, num_batches)
    size = batch.sizes.get("draw", 0)
    region = {"batch": slice(index, index + 1)}
    if size:
        region["draw"] = slice(index * size, (index + 1) * size)
    storable(batch).to_zarr(folder, region=region)


def create(folder: Path, first: xr.Dataset, num_batches: int) -> None:
    """An empty store for `num_batches` like the first, in memory independent of their number."""
    grown = {"batch": num_batches, "draw": num_batches * first.sizes.get("draw", 0)}
    most = -(-num_batches // MAX_CHUNKS)
    variables: dict[str, tuple] = {}
    for name, x in first.data_vars.items():
        shape = [grown.get(str(d), n) for d, n in x.sizes.items()]
        per_chunk = max(min(most, CHUNK_BYTES // x.nbytes), 1)
        chunks = [n * per_chunk if d in grown else n for d, n in x.sizes.items()]
        encoding = {"chunks": [min(c, n) for c, n in zip(chunks, shape)]}
        variables[str(name)] = (x.dims, np.broadcast_to(np.nan, shape), {}, encoding)
    store.put(folder, xr.Dataset(variables), mode="w", write_empty_chunks=False)
