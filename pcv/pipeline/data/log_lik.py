"""Log likelihoods that were made elsewhere: arrays, objects of xarray and ArviZ, and files.

A table (Parquet, CSV) has a row for each log likelihood: columns ``fold``, ``chain``, ``draw``,
``unit``, ``log_lik``. Units are numbers of rows of the data, from 1, or their names. Rows without a
fold are of the full data. NetCDF has arrays: ``log_lik`` (fold, chain, draw, slot), the units
``unit`` (fold, slot), 0 or "" in slots that a fold lacks, and perhaps ``full`` (full_chain,
full_draw, full_unit).

>>> rows = [(fold, c, d, unit, 0.0) for fold, unit in ((1, 1), (1, 3), (2, 2))
...         for c in (1, 2) for d in range(10)]
>>> table = pd.DataFrame(rows, columns=COLUMNS)
>>> raw = from_table(table, "results.csv")
>>> raw.names, raw.units, [x.shape for x in raw.folds]
(['1', '2'], [['1', '3'], ['2']], [(2, 10, 2), (2, 10, 1)])
"""

from collections.abc import Callable, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import xarray as xr
from jaxtyping import Float

from pcv.base.errors import PcvError, in_one_line, kind_of
from pcv.folds.columns import label, missing_column

COLUMNS = ("fold", "chain", "draw", "unit", "log_lik")
FULL = ("full_chain", "full_draw", "full_unit")
"""dimensions of the full-data log likelihoods in NetCDF"""


class RawLogLik(NamedTuple):
    """Log likelihoods as they are collect (nats)."""

    source: str
    """for messages"""
    folds: list[np.ndarray]
    """(chain, draw, slot)"""
    names: list[str]
    """of the folds; none: they are in order"""
    units: list[list[str]]
    """of each fold; none: in the order of its test set"""
    full: np.ndarray | None
    """(chain, draw, unit)"""
    full_units: list[str]
    """none: in the order of the data"""
    padded: bool = False
    """whether folds have as many slots as the largest"""


def collect(fold_log_lik: Any, full: Any = None, outcome: str = "") -> RawLogLik:
    """Collect log likelihoods of folds in any form.

    Args:
        fold_log_lik: arrays, an object of xarray, or a path, as for `pcv.from_log_lik`.
        full: the same of the full data; None: perhaps among those of the folds.
        outcome: the variable in groups of several.

    Raises:
        PcvError: it is something else, or a file is missing, damaged or incomplete.
    """
    if isinstance(fold_log_lik, str | PathLike):
        raw = read(Path(fold_log_lik))
    elif isinstance(fold_log_lik, xr.DataArray | xr.Dataset):
        raw = from_dataset(fold_log_lik, "fold_log_lik")
    else:
        if not isinstance(fold_log_lik, np.ndarray | Sequence):
            wanted = "an array (fold, chain, draw, slot), a list of arrays, or a path"
            raise PcvError(f"fold_log_lik is {kind_of(fold_log_lik)}; give {wanted}")
        one_array = isinstance(fold_log_lik, np.ndarray)
        if one_array and np.ndim(fold_log_lik) != 4:
            shape = np.shape(fold_log_lik)
            raise PcvError(f"fold_log_lik has shape {shape}; it is (fold, chain, draw, slot)")
        each = [_read_array(x, f"fold_log_lik[{k}]", outcome) for k, x in enumerate(fold_log_lik)]
        raw = RawLogLik("fold_log_lik", each, [], [], None, [], one_array)
    if full is None:
        return raw
    if isinstance(full, str | PathLike):
        of_full = read(Path(full), is_full=True)
        return raw._replace(full=of_full.full, full_units=of_full.full_units)
    return raw._replace(full=_read_array(full, "full", outcome), full_units=[])


def _read_array(x: Any, where: str, outcome: str) -> np.ndarray:
    """Read log likelihoods (chain, draw, unit) from an array or a group of ArviZ."""
    group = getattr(x, "log_likelihood", None)
    if isinstance(x, xr.DataTree):
        group = x["log_likelihood"].to_dataset() if "log_likelihood" in x else None
        if group is None:
            raise PcvError(f"{where}: no group 'log_likelihood', as ArviZ has")
    x = x if group is None else group
    if isinstance(x, xr.Dataset):
        known = [str(name) for name in x.data_vars]
        if outcome not in known and len(known) != 1:
            hint = f"there are {', '.join(known)}" if known else "there is none"
            raise PcvError(f"{where}: which variable is the outcome? {hint}; name it, outcome=...")
        x = x[outcome if outcome in known else known[0]]
    if isinstance(x, xr.DataArray):
        if not {"chain", "draw"} <= set(x.dims):
            raise PcvError(f"{where} has dimensions {x.dims}; it needs chain and draw")
        x = x.transpose("chain", "draw", ...)
    try:
        values = np.asarray(x, float)
    except (TypeError, ValueError):
        raise PcvError(f"{where} is {kind_of(x)}; give an array (chain, draw, unit)") from None
    if values.ndim < 3:
        raise PcvError(f"{where} has shape {values.shape}; it is (chain, draw, unit)")
    return values.reshape(*values.shape[:2], -1)


def read(path: Path, is_full: bool = False) -> RawLogLik:
    """Read log likelihoods from a file.

    Args:
        path: of a .parquet, .csv or .nc file.
        is_full: whether all are of the full data.

    Raises:
        PcvError: it is missing, damaged, of another kind, or incomplete.
    """
    readers: dict[str, Callable[[Path], Any]] = {
        ".parquet": lambda path: pd.read_parquet(path, engine="pyarrow"),
        ".csv": pd.read_csv,
        ".nc": xr.load_dataset,
    }
    reader = readers.get(path.suffix.lower())
    if reader is None:
        raise PcvError(f"{path}: log likelihoods are in {', '.join(readers)}, not in such a file")
    if not path.exists():
        raise PcvError(f"{path}: no such file (paths are relative to {Path.cwd()})")
    try:
        content = reader(path)
    except Exception as error:  # readers of damaged files raise many kinds
        raise PcvError(f"{path}: cannot be read: {in_one_line(error)}") from error
    if isinstance(content, xr.Dataset):
        return from_dataset(content, str(path), is_full)
    return from_table(content, str(path), is_full)


def from_dataset(
    content: xr.Dataset | xr.DataArray, source: str, is_full: bool = False
) -> RawLogLik:
    """Read log likelihoods from arrays with named dimensions.

    Args:
        content: ``log_lik`` (fold, chain, draw, slot), ``unit`` (fold, slot), ``full``.
        source: for messages.
        is_full: whether there need be no folds.

    Raises:
        PcvError: a variable is missing, or has other dimensions.
    """
    if isinstance(content, xr.DataArray):
        content = content.rename("log_lik").to_dataset()
    full, full_units = None, list[str]()
    if "full" in content:
        full = _transpose(content, "full", FULL, source)
        if "full_unit" in content.coords:
            full_units = [_label(x) for x in content["full_unit"].values]
    if is_full:
        if full is None:
            raise PcvError(missing_column("full", map(str, content.data_vars), source))
        return RawLogLik(source, [], [], [], full, full_units)
    if "log_lik" not in content:
        raise PcvError(missing_column("log_lik", map(str, content.data_vars), source))
    values = _transpose(content, "log_lik", ("fold", "chain", "draw", "slot"), source)
    names = [_label(x) for x in content["fold"].values] if "fold" in content.coords else []
    if "unit" not in content:
        counted = [[str(k + first) for k in range(len(names))] for first in (0, 1)]
        return RawLogLik(
            source, list(values), [] if names in counted else names, [], full, full_units, True
        )
    labels = [
        [_label(x) for x in row] for row in _transpose(content, "unit", ("fold", "slot"), source)
    ]
    names = names or [str(k + 1) for k in range(len(values))]
    there = [[x not in ("", "0", "nan", "-1") for x in row] for row in labels]
    each = [x[..., kept] for x, kept in zip(values, there)]
    units = [[x for x, kept in zip(row, of_row) if kept] for row, of_row in zip(labels, there)]
    return RawLogLik(source, each, names, units, full, full_units)


def _transpose(content: xr.Dataset, name: str, dims: tuple[str, ...], source: str) -> np.ndarray:
    x = content[name]
    if set(x.dims) != set(dims):
        raise PcvError(f"{source}: {name} has dimensions {x.dims}; they are {dims}")
    return np.asarray(x.transpose(*dims).values)


def _label(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else label(value).strip()


def from_table(table: pd.DataFrame, source: str, is_full: bool = False) -> RawLogLik:
    """Read log likelihoods from rows.

    Args:
        table: with `COLUMNS`.
        source: for messages.
        is_full: whether all are of the full data, so that there need be no folds.

    Raises:
        PcvError: a column or a value is missing, a row is there twice, chains or draws are
            incomplete.
    """
    for name in COLUMNS[1:] if is_full else COLUMNS:
        if name not in table.columns:
            raise PcvError(missing_column(name, map(str, table.columns), source))
    if not pd.api.types.is_numeric_dtype(table["log_lik"]):
        raise PcvError(f"{source}: column 'log_lik' is not numbers ({table['log_lik'].dtype})")
    for name in COLUMNS[1:]:
        if (missing := table[name].isna()).any():
            row = int(missing.to_numpy().argmax()) + 1
            raise PcvError(f"{source}: column {name!r} has no value in row {row}; fill it in")
    of_full = np.full(len(table), True) if is_full else table["fold"].isna().to_numpy()
    full, full_units = None, list[str]()
    if of_full.any():
        full, full_units = _fill_array(table[of_full], f"{source}: the full data")
    if is_full:
        return RawLogLik(source, [], [], [], full, full_units)
    names, folds, units = list[str](), [], []
    for fold, part in table[~of_full].groupby("fold", sort=False):
        names.append(_label(fold))
        values, of_fold = _fill_array(part, f"{source}: fold '{names[-1]}'")
        folds.append(values)
        units.append(of_fold)
    if not folds:
        raise PcvError(f"{source}: no row has a fold")
    return RawLogLik(source, folds, names, units, full, full_units)


def _fill_array(
    part: pd.DataFrame, where: str
) -> tuple[Float[np.ndarray, "chain draw unit"], list[str]]:
    """Fill an array from the rows of a fold; with its units in the order in which they come. Draws
    may be numbered within chains, or through all of them."""
    chain, chains = pd.factorize(part["chain"], sort=True)
    draw, draws = pd.factorize(part["draw"], sort=True)
    unit, units = pd.factorize(part["unit"])
    pairs, pair = np.unique(chain * len(draws) + draw, return_inverse=True)
    lengths = np.bincount(pairs // len(draws))
    if np.ptp(lengths):
        other = int((lengths != lengths[0]).argmax())
        raise PcvError(
            f"{where}: chain {_label(chains[0])} has {lengths[0]} draws, chain "
            f"{_label(chains[other])} has {lengths[other]}; give as many of each"
        )
    place = pair * len(units) + unit
    times = np.bincount(place, minlength=pairs.size * len(units))
    if (times != 1).any():
        wrong = int((times != 1).argmax())
        of_chain, of_draw = divmod(int(pairs[wrong // len(units)]), len(draws))
        cell = f"chain {_label(chains[of_chain])}, draw {_label(draws[of_draw])}"
        cell += f", unit '{_label(units[wrong % len(units)])}'"
        what = f"is there {times[wrong]} times" if times[wrong] else "is missing"
        raise PcvError(f"{where}: {cell} {what}; give one row for each")
    values = np.empty(place.size)
    values[place] = part["log_lik"].to_numpy(float)
    return values.reshape(len(chains), -1, len(units)), [_label(x) for x in units]
