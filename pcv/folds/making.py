"""From the section of a config, or a file, to folds; and what these are called."""

import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, assert_never

import numpy as np
import xarray as xr

from pcv.base import reference
from pcv.base.errors import PcvError
from pcv.base.names import name_bits
from pcv.folds.base import Folds, check, from_splitter, stored
from pcv.folds.columns import unit_column
from pcv.folds.exchangeable import (
    k_fold,
    k_fold_contiguous,
    k_fold_stratified,
    leave_one_out,
    leave_p_out,
)
from pcv.folds.groups import from_column, k_fold_grouped, leave_one_group_out
from pcv.folds.sections import FoldScheme, LeaveOneLocationOut, SpatialBlocks
from pcv.folds.space import Places, check_places, leave_one_location_out, spatial_blocks
from pcv.folds.time import blocks, check_order, hv_block, leave_future_out

COVERING = {
    "leave_one_out",
    "k_fold",
    "leave_one_group_out",
    "column",
    "block",
    "spatial_block",
    "leave_one_location_out",
}
"""schemes that test every unit once"""


def make(scheme: FoldScheme, data: xr.Dataset, seed: int, given: Mapping[str, Any] = {}) -> Folds:
    """The folds that a config asks for.

    Args:
        scheme: the folds section of an experiment.
        data: as `pcv.pipeline.data.tables.make_data` gives it.
        seed: the config's seed; random schemes draw from (seed, "folds") alone.
        given: folds that a session has laid out, by what the scheme calls their file.

    Raises:
        PcvError: an unknown column, one that differs within a unit, more folds than units or
            groups, fewer than two groups, or folds that `check` refuses.

    Warns:
        UserWarning: some values of a stratified column are rarer than there are folds; sizes on the
            earth that may be meant in degrees; folds of a column that are single units; very many.

    >>> from pcv.pipeline.config import LeaveOneOut
    >>> data = xr.Dataset(coords={"unit": ["A", "B", "C"]})
    >>> make(LeaveOneOut(scheme="leave_one_out"), data, seed=1)
    3 folds of 3 units: test 1, training 2, no gap
    """
    rng = np.random.default_rng([seed, name_bits("folds")])
    names = data["unit"].values.tolist()
    match scheme.scheme:
        case "leave_one_out":
            folds = leave_one_out(names)
        case "leave_p_out":
            folds = leave_p_out(names, scheme.p, _number(scheme.splits), rng)
        case "leave_one_group_out":
            folds = leave_one_group_out(
                unit_column(data, scheme.group, "folds.group"), scheme.group
            )
        case "column":
            folds = from_column(unit_column(data, scheme.column, "folds.column"), scheme.column)
        case "k_fold" if scheme.group_by:
            folds = k_fold_grouped(
                unit_column(data, scheme.group_by, "folds.group_by"), scheme.k, rng
            )
        case "k_fold" if scheme.stratify_by:
            values = unit_column(data, scheme.stratify_by, "folds.stratify_by")
            folds = k_fold_stratified(values, scheme.k, rng)
            _, times = np.unique(values, return_counts=True)
            rare = (times < scheme.k).sum()
            if rare:
                warnings.warn(
                    f"{rare} of {times.size} values of {scheme.stratify_by!r} are held by fewer"
                    f" than {scheme.k} units: not every fold tests one of them",
                    stacklevel=2,
                )
        case "k_fold" if scheme.contiguous:
            folds = k_fold_contiguous(names, scheme.k)
        case "k_fold":
            folds = k_fold(names, scheme.k, rng)
        case "block":
            folds = blocks(names, scheme.size)
        case "h_block":
            folds = hv_block(names, 0, scheme.h, scheme.skip)
        case "hv_block":
            folds = hv_block(names, scheme.v, scheme.h, scheme.skip)
        case "leave_future_out":
            folds = leave_future_out(
                names,
                scheme.min_observations,
                scheme.forecast_horizon,
                scheme.step,
                scheme.window,
            )
        case "spatial_block":
            folds = spatial_blocks(places(data, scheme), scheme.size, scheme.buffer)
        case "leave_one_location_out":
            folds = leave_one_location_out(places(data, scheme), scheme.buffer)
        case "splitter":
            y, groups = (
                unit_column(data, column, f"folds.{key}") if column else None
                for key, column in (("y", scheme.y), ("groups", scheme.groups))
            )
            splitter = reference.call(scheme.splitter, scheme.args)
            with reference.naming(scheme.splitter, "split"):
                folds = from_splitter(splitter, names, y, groups)
        case "file":
            known = given.get(scheme.file)
            folds = from_file(Path(scheme.file)) if known is None else known
        case _:
            assert_never(scheme)
    check(folds, names, cover=scheme.scheme in COVERING)
    if time := getattr(scheme, "time", None):
        check_order(unit_column(data, time, "folds.time"), names, f"column {time!r}", folds)
    for said in _implausible(scheme, folds, len(names)):
        warnings.warn(said, stacklevel=2)
    return folds


def from_file(path: Path) -> Folds:
    """Folds that were laid out before: `fold`, `test` and `held_out` of a store like folds.zarr.

    Args:
        path: of the store.

    Raises:
        PcvError: it is not there, or holds something else.
    """
    if not path.exists():
        raise PcvError(f"{path}: no such file; folds.file is relative to the working directory")
    try:
        with xr.open_dataset(path) as file:
            return stored(file)
    except (OSError, ValueError, KeyError) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise PcvError(
            f"{path}: not a store of folds like folds.zarr, with fold, test, held_out: {reason}"
        ) from error


MANY_FOLDS = 10_000
"""folds of `leave_p_out` that are said to take long"""
LEAST_METRES = 100
"""on the earth, a side or buffer below it may have been meant in degrees"""


def _implausible(scheme: FoldScheme, folds: Folds, num_units: int) -> Iterator[str]:
    """What the config hardly means, in words."""
    match scheme.scheme:
        case "spatial_block" | "leave_one_location_out" if scheme.coordinates.longitude:
            for name in ("size", "buffer"):
                if 0 < getattr(scheme, name, 0) < LEAST_METRES:
                    yield (
                        f"folds.{name}: {getattr(scheme, name):g} is in metres where coordinates"
                        " are longitude and latitude; a degree of latitude is 111,000 of them"
                    )
        case "column" if num_units >= 20 and len(folds.id) > 0.9 * num_units:
            yield (
                f"column {scheme.column!r} makes {len(folds.id)} folds of {num_units} units:"
                " does it hold folds, or measurements?"
            )
        case "leave_p_out" if len(folds.id) > MANY_FOLDS:
            yield (
                f"leave-p-out: {len(folds.id)} folds, each with chains of its own, take long;"
                " draw some of them with folds.splits"
            )


def left_out(scheme: FoldScheme) -> str:
    """What a scheme's units are that are neither tested nor trained on.

    Those of leave-future-out come after its test set, or before its window.

    >>> from pcv.pipeline.config import HBlock
    >>> left_out(HBlock(scheme="h_block", h=2))
    'gap'
    """
    return "not used" if scheme.scheme == "leave_future_out" else "gap"


def _number(splits: int | Literal["all"]) -> int | None:
    return None if splits == "all" else splits


def places(data: xr.Dataset, scheme: SpatialBlocks | LeaveOneLocationOut) -> Places:
    """The places of the units that a spatial scheme speaks of.

    Args:
        data: as `pcv.pipeline.data.tables.make_data` gives it.
        scheme: the folds section of an experiment.

    Raises:
        PcvError: no such column, one that differs within a unit, or no longitudes and latitudes.

    >>> data = xr.Dataset({"lon": ("unit", [13.4, 2.35]), "lat": ("unit", [52.5, 48.9])})
    >>> where = {"longitude": "lon", "latitude": "lat"}
    >>> places(data, LeaveOneLocationOut(scheme="leave_one_location_out", coordinates=where))[2]
    True
    """
    columns = {key: column for key, column in scheme.coordinates if column}
    first, second = (
        _numbers(unit_column(data, column, f"folds.coordinates.{key}"), key, column)
        for key, column in columns.items()
    )
    found = Places(first, second, "longitude" in columns)
    check_places(found)
    return found


def _numbers(values: np.ndarray, key: str, column: str) -> np.ndarray:
    if values.dtype.kind not in "biuf":
        raise PcvError(
            f"folds.coordinates.{key}: column '{column}' holds {values[0]!s}, which is no number"
        )
    return values.astype(float)


def title(scheme: FoldScheme) -> str:
    """A scheme in words, to stand before what `describe` says of its folds.

    >>> from pcv.pipeline.config import LeaveOneGroupOut
    >>> title(LeaveOneGroupOut(scheme="leave_one_group_out", group="rat"))
    'leave-one-group-out over rat'
    """
    match scheme.scheme:
        case "leave_one_group_out":
            return f"leave-one-group-out over {scheme.group}"
        case "column":
            return f"folds of column {scheme.column}"
        case "k_fold" if scheme.group_by:
            return f"{scheme.k}-fold over groups of {scheme.group_by}"
        case "k_fold" if scheme.stratify_by:
            return f"{scheme.k}-fold stratified by {scheme.stratify_by}"
        case "k_fold":
            return f"{scheme.k}-fold {'contiguous' if scheme.contiguous else 'at random'}"
        case "leave_one_out":
            return "leave-one-out"
        case "leave_p_out":
            return f"leave-{scheme.p}-out"
        case "block":
            return f"blocks of {scheme.size}"
        case "h_block":
            return f"h-block, h = {scheme.h}"
        case "hv_block":
            return f"hv-block, v = {scheme.v}, h = {scheme.h}"
        case "leave_future_out":
            window = f"window of {scheme.window}" if scheme.window else "expanding window"
            return f"leave-future-out, {scheme.forecast_horizon} ahead, {window}"
        case "spatial_block":
            return f"spatial blocks of {_distance(scheme, scheme.size)}{_buffer(scheme)}"
        case "leave_one_location_out":
            return f"leave-one-location-out{_buffer(scheme)}"
        case "file":
            return f"folds of {scheme.file}"
        case "splitter":
            return f"folds of {scheme.splitter.rpartition(':')[2]}"
        case _:
            assert_never(scheme)


def headline(scheme: FoldScheme, described: str) -> str:
    """A scheme in words and what `describe` says of its folds; of those in a file, which a session
    has for folds of its own, that alone."""
    return described if scheme.scheme == "file" else f"{title(scheme)}: {described}"


def _buffer(scheme: SpatialBlocks | LeaveOneLocationOut) -> str:
    return f", buffer {_distance(scheme, scheme.buffer)}" if scheme.buffer else ""


def _distance(scheme: SpatialBlocks | LeaveOneLocationOut, distance: float) -> str:
    if not scheme.coordinates.longitude:
        return f"{distance:g}"
    return f"{distance / 1000:g} km" if distance >= 1000 else f"{distance:g} m"
