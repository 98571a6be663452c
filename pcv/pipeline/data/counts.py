"""Rows that do not count, as their outcome is missing, and rows that count several times."""

from collections.abc import Mapping

import pandas as pd
import xarray as xr

from pcv.base.errors import PcvError
from pcv.folds.columns import Missing, check_frequencies, copies


def with_outcomes(
    table: pd.DataFrame, arrays: Mapping[str, xr.Variable], outcome: str, source: str
) -> tuple[pd.DataFrame, Mapping[str, xr.Variable], list[str]]:
    """The rows whose outcome is observed, and how many others there are, in words."""
    lost = table[outcome].isna().to_numpy()
    if not lost.any():
        return table, arrays, []
    if lost.all():
        raise PcvError(f"{source}: all {lost.size} values of the outcome '{outcome}' are missing")
    along = {name: x[~lost] for name, x in arrays.items() if x.dims[:1] == ("row",)}
    return table[~lost], {**arrays, **along}, [str(Missing(int(lost.sum()), lost.size))]


def repeated(data: xr.Dataset, weights: str, source: str) -> xr.Dataset:
    """The data with each unit repeated, as often as it stands for one."""
    if "unit_of_row" in data:
        raise PcvError(
            f"{source}: data.weights weighs rows, but units have several; leave out data.units"
        )
    names = data["unit"].values.tolist()
    where = f"{source}: data.weights: column '{weights}'"
    times = check_frequencies(data[weights].values, names, where)
    row, copy = copies(times)
    of_copies = [
        f"{names[i]}, copy {k + 1}" if times[i] > 1 else names[i] for i, k in zip(row, copy)
    ]
    note = f"'{weights}': {times.size} rows count as {row.size} units (frequencies)"
    repeated = data.isel(unit=row).assign_coords(unit=of_copies)
    return repeated.assign_attrs(counts=[*data.attrs.get("counts", []), note])
