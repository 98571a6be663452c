"""Read stored sums of a few folds, or a few units of a fold, at a time, to bound memory."""

from collections.abc import Iterator, Sequence

import numpy as np
import xarray as xr
from jaxtyping import Bool

from pcv.analysis.diagnostics import LogSums, UnitSides
from pcv.analysis.samples import log_sums

GROUP_BYTES = 2**23
"""of sums in memory at a time"""
SLOTS = 256
"""slots processed together; fixed, so that rounding does not depend on how many are read at once"""
BRIDGE = ("log_bridge_log_sum", "log_bridge_full", "log_bridge_log_sum_sq", "log_bridge_full_sq")
"""the fields of `pcv.analysis.diagnostics.UnitSides`"""


def groups(samples: Sequence[xr.Dataset]) -> Iterator[tuple[slice, xr.Dataset]]:
    """A few folds at a time, not loaded, with their positions among all folds."""
    start = 0
    for sample in samples:
        number = sample.sizes["fold"]
        size = sum(x.nbytes for x in sample.data_vars.values() if "batch" in x.dims)
        step = max(number * GROUP_BYTES // max(size, 1), 1)
        for first in range(0, number, step):
            stop = min(first + step, number)
            yield slice(start + first, start + stop), sample.isel(fold=slice(first, stop))
        start += number


def slots(sample: xr.Dataset) -> Iterator[tuple[slice, LogSums, UnitSides | None]]:
    """Pointwise sums of a few slots at a time."""
    of_sides = [name for name in BRIDGE if name in sample]
    sums = sample[[f"log_pointwise_{field}" for field in LogSums._fields] + of_sides]
    number = sample.sizes["slot"]
    step = max(number * GROUP_BYTES // sums.nbytes // SLOTS, 1) * SLOTS
    for start in range(0, number, step):
        several = sums.isel(slot=slice(start, start + step))
        read = log_sums([several], "pointwise")
        both = [several[name].values for name in of_sides]
        for first in range(0, read.mean.shape[3], SLOTS):
            some = slice(first, first + SLOTS)
            found = LogSums(read.count, *(x[..., some] for x in read[1:]))
            of_units = UnitSides(*(x[..., some] for x in both)) if both else None
            yield slice(start + first, start + first + SLOTS), found, of_units


def units(sums: LogSums, present: Bool[np.ndarray, "fold slot"]) -> LogSums:
    """Sums of the units in present slots, as if each were a fold."""
    count = np.broadcast_to(sums.count[..., None], sums.mean.shape)
    return LogSums(*(np.moveaxis(x, 3, 1)[present] for x in (count, *sums[1:])))
