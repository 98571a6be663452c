"""Data files, read as a table of rows, checked, and laid out by unit.

A *unit* is what one term of a model's log likelihood describes. By default every row is a unit,
named by the columns that order the rows ("rat 1, day 8"); with ``units: [county]`` all rows of a
county form one.

>>> from pathlib import Path
>>> from pcv.pipeline.config import DataConfig
>>> config = DataConfig(file="resources/rats.csv", outcome="weight_g", order=["rat", "day"])
>>> table, arrays = read_table(Path(config.file), config.outcome)
>>> data = make_data(table, arrays, config, config.file)
>>> data.sizes["unit"], str(data["unit"].values[0])
(150, 'rat 1, day 8')
"""

import csv
import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import xarray as xr
from jaxtyping import Bool, Shaped

from pcv.base.errors import PcvError, is_python
from pcv.base.storable import check_names, true_names
from pcv.folds.columns import (
    RESERVED,
    free,
    label,
    missing_column,
    refuse_twice,
)
from pcv.pipeline.config import DataConfig
from pcv.pipeline.data import counts

SUFFIXES = (".csv", ".parquet", ".nc", ".zarr")
DAY_FIRST = re.compile(r"\d{1,2}[./-]\d{1,2}[./-]\d{2,4}( .*)?")
"""dates that start with the day or month"""
DATE = re.compile(
    r"(\d{1,4}|[A-Za-z]{3,9})[./ -]+(\d{1,4}|[A-Za-z]{3,9})([./, -]+\d{1,4})?([ T].*)?"
)
"""dates, and parts of dates such as 2024-1 or Feb 2024"""
CODE = re.compile(r"\s*0\d+\s*$")
"""a code with a leading zero"""
MAX_COLUMNS = 10_000
"""columns that are kept unless the config names them"""
MAX_COPIES = 0.3
"""share of duplicate rows from which on the data are taken to be coarse"""


def read_table(path: Path, outcome: str) -> tuple[pd.DataFrame, dict[str, xr.Variable]]:
    """Read a data file as rows, one per value of the outcome.

    Variables of a NetCDF file or Zarr store become columns if their dimensions are among the
    outcome's (several dimensions are stacked into rows, the last varying fastest; a variable with
    only some of them is repeated), arrays along the rows if they have others besides, and constants
    if they share none with it. CSV: UTF-8, separated by commas, one header line.

    Args:
        path: a .csv, .parquet or .nc file or a .zarr directory.
        outcome: name of the outcome, which defines the rows of NetCDF and Zarr.

    Returns:
        The rows in the file's order, for CSV indexed by "row" and "line"; and arrays by name, whose
        first dimension is "row" where they are along the rows.

    Raises:
        PcvError: the file is missing, of another kind, damaged, or without the outcome; a CSV line
            has too few or too many fields; a variable has a dimension twice.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise PcvError(f"{path}: not a kind of file that pcv reads ({', '.join(SUFFIXES)})")
    if not path.exists():
        raise PcvError(f"{path}: no such file; data.file is relative to the working directory")
    try:
        if path.suffix.lower() == ".csv":
            return _read_csv(path), {}
        if path.suffix.lower() == ".parquet":
            return _read_parquet(path), {}
        with xr.open_dataset(path, decode_timedelta=False) as stored:
            dataset = true_names(stored.load())
    except PcvError:
        raise
    except Exception as error:  # readers of damaged files raise many kinds
        reason = (str(error) or type(error).__name__).splitlines()[0]
        if isinstance(error, UnicodeDecodeError):
            reason = "it is not UTF-8 text; save it as that"
        raise PcvError(f"{path}: cannot be read: {reason}") from error
    return stacked(dataset, outcome, str(path))


def _read_csv(path: Path) -> pd.DataFrame:
    with path.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.reader(file)
        records = (
            (reader.line_num, fields)
            for fields in reader
            if len(fields) > 1 or "".join(fields).strip()
        )
        _, header = next(records, (0, []))
        for mark in ";\t|" if len(header) == 1 else "":
            if mark in header[0]:
                raise PcvError(
                    f"{path}: columns are separated by {mark!r}; separate them by commas, and "
                    "write numbers with a decimal point"
                )
        lines: list[int] = []
        coded: set[int] = set()
        for line, fields in records:
            if len(fields) != len(header):
                raise PcvError(
                    f"{path}: line {line} has {len(fields)} field(s), the header has {len(header)}"
                )
            lines.append(line)
            coded.update(i for i, field in enumerate(fields) if field and CODE.match(field))
    names = [name or f"Unnamed: {place}" for place, name in enumerate(header)]  # as pandas does
    refuse_twice(names, str(path))
    table = pd.read_csv(path, low_memory=False, header=0, names=names)
    for name in (names[i] for i in sorted(coded)):
        if pd.api.types.is_numeric_dtype(table[name]):
            _check_codes(path, name, names)
    places = pd.MultiIndex.from_arrays([range(len(lines)), lines], names=["row", "line"])
    return table.set_axis(places, axis=0)


def _check_codes(path: Path, name: str, names: list[str]) -> None:
    """Refuse codes that differ in leading zeros alone, as all of them would be one number."""
    codes = pd.read_csv(path, header=0, names=names, usecols=[name], dtype=str)[name]
    each = codes.dropna().str.strip().drop_duplicates()
    number = each.str.lstrip("0").replace("", "0")
    if number.duplicated().any():
        alike = each[number == number[number.duplicated()].iloc[0]].tolist()
        raise PcvError(
            f"{path}: column {name!r} has {' and '.join(map(repr, alike[:2]))}, which are the same "
            "number; write a code in one way, or codes with a letter, as in 'site 001'"
        )


def _read_parquet(path: Path) -> pd.DataFrame:
    by_column = {"split_blocks": True, "self_destruct": True}  # never all of them twice in memory
    table = pd.read_parquet(path, engine="pyarrow", to_pandas_kwargs=by_column)
    if any(name is not None for name in table.index.names):
        table = table.reset_index()
    return table.reset_index(drop=True).rename(columns=str)


def stacked(
    dataset: xr.Dataset, outcome: str, source: str
) -> tuple[pd.DataFrame, dict[str, xr.Variable]]:
    """The rows and arrays of a dataset, as for `read_table`."""
    check_names(dataset.variables)
    variables = {str(name): variable for name, variable in dataset.variables.items()}
    if outcome not in variables:
        raise PcvError(missing_column(outcome, variables, source, "data.outcome"))
    dims = variables[outcome].dims
    if not dims:
        raise PcvError(f"{source}: the outcome {outcome!r} is a single number")
    if len(dims) > 1:
        places = {dim: xr.Variable(dim, range(dataset.sizes[dim])) for dim in dims}
        variables = {str(dim): x for dim, x in places.items()} | variables
    columns, arrays = {}, {}
    for name, variable in variables.items():
        if not set(variable.dims) & set(dims):
            arrays[name] = xr.Variable(_own_dims(name, variable.ndim), variable.values)
            continue
        for dim in {dim for dim in variable.dims if variable.dims.count(dim) > 1}:
            raise PcvError(f"{source}: variable {name!r} has dimension {dim!r} twice; rename one")
        own = [dim for dim in variable.dims if dim not in dims]
        sizes = {dim: dataset.sizes[dim] for dim in (*dims, *own)}
        of_rows = variable.set_dims(sizes).transpose(*sizes).values
        of_rows = of_rows.reshape(-1, *of_rows.shape[len(dims) :])
        if own:
            arrays[name] = xr.Variable(["row", *_own_dims(name, len(own))], of_rows)
        else:
            columns[name] = of_rows
    return pd.DataFrame(columns, copy=False), arrays


def _own_dims(name: str, number: int) -> list[str]:
    return [f"{name}_dim_{axis}" for axis in range(number)]


def make_data(
    table: pd.DataFrame, arrays: Mapping[str, xr.Variable], config: DataConfig, source: str
) -> xr.Dataset:
    """Check a table and lay it out by unit.

    Rows are sorted by ``config.order``; units of several rows are sorted by their columns
    ``config.units``. Numbers become float64, int64 or bool, dates datetime64; text stays text.

    Args:
        table: rows from `read_table`.
        arrays: of more dimensions than the rows, or constants.
        config: the data section of an experiment.
        source: the file's name, for messages.

    Returns:
        The columns along ``unit`` if each row is a unit, otherwise along ``row`` with the index
        ``unit_of_row (row)``; arrays along it and dimensions of their own; a coordinate ``unit`` of
        readable names; attributes ``outcome``, ``order``, ``unit_columns``, and ``counts``, notes
        on rows whose outcome is missing, which are left out, and on repeated ones.

    Raises:
        PcvError: a missing column, missing or infinite values, text among numbers, a non-numeric
            outcome, an order by text dates that do not sort by time, rows with the same ``order``
            columns, units with the same ``labels``.

    Warns:
        UserWarning: duplicate rows, without ``order``.
    """
    if table.empty:
        raise PcvError(f"{source}: no rows")
    kept = _kept(table, arrays, config, source)
    table, arrays, notes = counts.with_outcomes(table, arrays, config.outcome, source)
    for name in RESERVED:
        if name in kept:
            raise PcvError(
                f"{source}: pcv needs the name {name!r} for itself; rename the column, or leave it"
                " out by listing the others in data.columns"
            )
    columns = {
        name: _values(table[name], f"{source}: column {name!r}", name == config.outcome)
        for name in table.columns
        if name in kept
    }
    outcome = columns[config.outcome]
    if outcome.dtype.kind not in "bif":
        written = label(outcome[0])
        comma = re.fullmatch(r"[-+]?\d+,\d+", written)
        what = "with a decimal point" if comma else "for example as 0 and 1"
        raise PcvError(
            f"{source}: the outcome {config.outcome!r} must be numbers, not"
            f" {written!r} as in the first row; {'write' if comma else 'recode'} it, {what}"
        )
    for name in config.order:
        texts = columns[name]
        if texts.dtype.kind == "U" and _are_dates_out_of_order(texts):
            raise PcvError(
                f"{source}: data.order: column {name!r} holds dates as text ({str(texts[0])!r}),"
                " which do not sort by time; write them as in 2024-03-31, and labels that are no"
                " dates unlike dates"
            )
    others, rows = {}, dict(columns)
    for name, x in arrays.items():
        if name in kept:
            along = x.dims[:1] == ("row",)
            index = table.index if along else pd.RangeIndex(x.shape[0] if x.shape else 1)
            where = f"{source}: {'array' if along else 'constant'} {name!r}"
            values = _values(pd.Series(x.values.ravel(), copy=False), where, index=index)
            others[name] = values.reshape(x.shape)
            if along:
                rows[name] = others[name]
    repeated = _copies(rows)
    if not config.order and 0 < repeated.mean() < MAX_COPIES and _has_fractions(rows):
        warnings.warn(
            f"{source}: copies of other rows: {_rows(table.index, repeated)}; remove them if "
            "they are not observations of their own",
            stacklevel=2,
        )
    if config.order:
        keys = pd.DataFrame({name: columns[name] for name in config.order})
        group = keys.groupby(config.order).ngroup().to_numpy()
        shared = np.bincount(group)[group] > 1
        if shared.any():
            first = shared.argmax()
            raise PcvError(
                f"{source}: data.order does not tell all rows apart: {_names(keys)[first]!r}"
                f" stands in {_rows(table.index, group == group[first])}"
            )
        sorting = np.lexsort([columns[name] for name in reversed(config.order)])
        if (np.diff(sorting) != 1).any():
            rows = {name: values[sorting] for name, values in rows.items()}
            columns = {name: rows[name] for name in columns}

    dim = "row" if config.units else "unit"
    variables: dict[str, tuple[Sequence[str], np.ndarray]] = {
        name: ([dim], values) for name, values in columns.items()
    }
    for name, values in others.items():
        dims = [dim if x == "row" else free(str(x), kept) for x in arrays[name].dims]
        variables[name] = (dims, rows.get(name, values))
    if config.units:
        keys = pd.DataFrame({name: columns[name] for name in config.units})
        unit_of_row = keys.groupby(config.units).ngroup().to_numpy(np.int64)
        variables["unit_of_row"] = ([dim], unit_of_row)
        one_row = np.unique(unit_of_row, return_index=True)[1]
        units = _named(columns, config.units, config.labels, one_row, source)
    elif config.order:
        units = _named(columns, config.order, config.labels, slice(None), source)
    else:
        units = [str(row + 1) for row in table.index.get_level_values(0)]
    data = xr.Dataset(
        variables,
        coords={"unit": ("unit", np.array(units))},
        attrs={
            "outcome": config.outcome,
            "order": list(config.order),
            "unit_columns": list(config.units),
            **({"counts": notes} if notes else {}),
        },
    )
    return data if config.weights is None else counts.repeated(data, config.weights, source)


def _kept(
    table: pd.DataFrame, arrays: Mapping[str, xr.Variable], config: DataConfig, source: str
) -> set[str]:
    for key, names in [
        ("outcome", [config.outcome]),
        ("order", config.order),
        ("units", config.units),
        ("labels", list(config.labels.values())),
        ("weights", [config.weights] if config.weights else []),
        ("columns", [name for name in config.columns or [] if name not in arrays]),
    ]:
        for name in names:
            if name not in table.columns:
                raise PcvError(missing_column(name, table.columns, source, f"data.{key}"))
    if config.columns is None:
        if table.shape[1] > MAX_COLUMNS:
            raise PcvError(
                f"{source}: {table.shape[1]:,} columns; name those that the models read"
                + " (data.columns)" * (not is_python())
            )
        return {*table.columns, *arrays}
    named = {config.outcome, *config.order, *config.units, *config.labels.values()}
    return {*named, *config.columns} | ({config.weights} if config.weights else set())


def _copies(columns: Mapping[str, np.ndarray]) -> Bool[np.ndarray, " row"]:
    """Whether each row is a copy of one before it, looking at further columns only where all so far
    are alike."""
    number = len(next(iter(columns.values())))
    rows, group = np.arange(number), np.zeros(number, int)
    parts = (part for x in columns.values() for part in x.reshape(number, -1).T)
    for x in parts:
        keys = pd.DataFrame({"x": x[rows], "group": group})
        group = keys.groupby(["x", "group"], sort=False).ngroup().to_numpy()
        shared = np.bincount(group)[group] > 1
        rows, group = rows[shared], group[shared]
        if not rows.size:
            break
    found = np.full(number, False)
    found[rows[pd.Series(group).duplicated()]] = True
    return found


def _has_fractions(columns: Mapping[str, np.ndarray]) -> bool:
    """Whether some values are measured finely enough that duplicate rows are no coincidence."""
    return any((x % 1 != 0).any() for x in columns.values() if x.dtype.kind == "f")


def _are_dates_out_of_order(texts: Shaped[np.ndarray, " row"]) -> bool:
    """Whether all are dates, which sort as text otherwise than by time."""
    each = np.unique(texts)
    if all(map(DAY_FIRST.fullmatch, each.tolist())):
        return True
    if not all(map(DATE.fullmatch, each.tolist())):
        return False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        times = pd.to_datetime(pd.Series(each), format="mixed", errors="coerce", utc=True)
    return bool(times.notna().all() and not times.is_monotonic_increasing)


def _rows(index: pd.Index, wrong: Bool[np.ndarray, " value"]) -> str:
    """The rows that hold a wrong value, for messages: "rows 2 (line 3), 5 (line 6)"."""
    rows = np.flatnonzero(wrong.reshape(len(index), -1).any(1))
    named = [
        f"{index[row][0] + 1} (line {index[row][1]})" if index.nlevels > 1 else str(index[row] + 1)
        for row in rows[:3].tolist()
    ]
    more = f" and {rows.size - 3} more" if rows.size > 3 else ""
    return f"row{'s' if rows.size > 1 else ''} {', '.join(named)}{more}"


def _named(
    columns: Mapping[str, np.ndarray],
    keys: Iterable[str],
    labels: Mapping[str, str],
    rows: slice | Shaped[np.ndarray, " unit"],
    source: str,
) -> list[str]:
    """Names of units, given one row of each: the values of `keys` or of their labels."""
    shown = [labels.get(name, name) for name in keys]
    units = _names(pd.DataFrame({name: columns[name][rows] for name in shown}))
    twice = pd.Index(units).duplicated()
    if labels and twice.any():
        raise PcvError(
            f"{source}: data.labels: two units are named {units[twice.argmax()]!r}; give each a "
            "label of its own"
        )
    return units


def _names(keys: pd.DataFrame) -> list[str]:
    """Names of the rows of ``keys``: "rat 1, day 8"."""
    parts = [[f"{name} {label(value)}" for value in keys[name].array] for name in keys]
    return [", ".join(words) for words in zip(*parts, strict=True)]


def _values(
    series: pd.Series, where: str, is_outcome: bool = False, index: pd.Index | None = None
) -> Shaped[np.ndarray, " value"]:
    """Values as float64, int64, bool, datetime64 or text; errors start with `where`, and name rows
    of `index`, each of which has equally many."""
    index = series.index if index is None else index
    missing = series.isna().to_numpy()
    if missing.any():
        rows = _rows(index, missing)
        leave = (
            ""
            if is_outcome
            else ", or leave the column out" + " (data.columns)" * (not is_python())
        )
        raise PcvError(f"{where}: missing value in {rows}; fill or drop it{leave}")
    if isinstance(series.dtype, pd.CategoricalDtype):
        series = series.astype(series.cat.categories.dtype)
    match pd.api.types.infer_dtype(series, skipna=False):
        case "boolean":
            return series.to_numpy(bool)
        case "integer" if series.min() >= -(2**63) and series.max() < 2**63:
            return series.to_numpy(np.int64)
        case "floating" | "mixed-integer-float" | "decimal":
            numbers = series.to_numpy(np.float64)
            infinite = np.isinf(numbers)
            if infinite.any():
                raise PcvError(f"{where}: infinite value in {_rows(index, infinite)}")
            return numbers
        case "datetime64" | "datetime" | "date":
            return pd.to_datetime(series).to_numpy("datetime64[ns]")
        case "string":
            text = series.to_numpy(str)
            wrong = pd.to_numeric(series, errors="coerce").isna().to_numpy()
            if index.nlevels > 1 and 0 < wrong.mean() < 0.5:  # CSV knows no types
                raise PcvError(
                    f"{where}: text among numbers: {str(text[wrong.argmax()])!r} in"
                    f" {_rows(index, wrong)}; correct it, or write all values as text"
                )
            return text
        case kind:
            raise PcvError(
                f"{where}: values of kind {kind!r} ({series.dtype}) cannot be used;"
                " make them numbers of at most 64 bits, dates or text"
            )
