"""The tables of a report."""

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np
import pandas as pd
import xarray as xr

from pcv.analysis.diagnostics import BENCHMARK_LEVEL, SHORT_BATCHES
from pcv.analysis.results import by_surrogate, names_of_terms
from pcv.analysis.results.numbers import percent, typeset
from pcv.analysis.results.wording import estimator_in_words
from pcv.analysis.verdicts import FOLD_FLAGGED
from pcv.report import plots

MAX_ROWS = 100
"""most flagged folds, or units, that the report lists"""

Cells = tuple[str, ...]


class Table(NamedTuple):
    """A table as printed: the first column names the row, the last is text."""

    caption: str
    head: Cells
    rows: Sequence[Cells]
    flagged: Sequence[bool]
    """rows to highlight"""
    notes: Sequence[str] = ()


def chain_table(models: Sequence[xr.Dataset], names: Sequence[str]) -> Table:
    rhat = plots.rhat_name(models[0])
    both = any("nested_rhat_max" in folds for folds in models)
    head: Cells = ("model", "chains × draws", f"{rhat} max", "benchmark share")
    head += ("nested R-hat max", "its benchmark share") * both
    head += ("min ESS", "total ESS", "max k-hat", "min overlap", "divergences", "folds flagged")
    rows = [
        (
            name,
            f"{folds.attrs['num_chains']} × {_range(folds['n_draws'])}",
            _at(folds["rhat"], "max", ".3f"),
            percent(_only(folds, "benchmark_share")),
            *(_nested(folds) if both else ()),
            _at(folds["joint_ess"], "min", ",.0f"),
            f"{_only(folds, 'joint_ess_total'):,.0f}".replace("nan", "–"),
            _at(folds["khat"], "max", ".2f"),
            _at(folds["overlap"], "min", ".2f"),
            _fixed(float(folds["divergences"].sum(min_count=1)), ",.0f"),
            f"{int((folds['verdict'] != 'ok').sum())} of {folds.sizes['fold']}",
        )
        for name, folds in zip(names, models, strict=True)
    ]
    flagged = [
        bool((folds["verdict"] != "ok").any())
        or any(
            _only(folds, name) <= BENCHMARK_LEVEL
            for name in ("benchmark_share", "nested_benchmark_share")
        )
        for folds in models
    ]
    note = (
        f"Benchmark share: share of shuffled replicates of {rhat} max at or above the observed "
        f"value; {BENCHMARK_LEVEL:.0%} or less means that the chains have not mixed."
    )
    spaces = [
        f"{name}: {folds.attrs['subspace']}"
        for name, folds in zip(names, models, strict=True)
        if "subspace" in folds.attrs
    ]
    estimators = {
        name: words
        for name, folds in zip(names, models, strict=True)
        if (words := estimator_in_words(folds))
    }
    said = list(dict.fromkeys(estimators.values()))
    if len(said) > 1:
        said = [f"{name}: {words}" for name, words in estimators.items()]
    return Table("Chains of all folds", head, rows, flagged, [note, *said, *spaces])


def subsample_table(diagnostics: Mapping[str, xr.Dataset]) -> Table | None:
    """Estimates by surrogate; None if every term was scored."""
    if not all("chosen" in d for d in diagnostics.values()):
        return None
    rows = [
        (
            name,
            str(surrogate),
            typeset(row["elpd"], row["se"]),
            error(row["se"]),
            error(row["subsampling_se"]),
            "used" * (surrogate == d.attrs["surrogate"]),
        )
        for name, d in diagnostics.items()
        for surrogate, row in by_surrogate(d).iterrows()
    ]
    first = next(iter(diagnostics.values()))
    size = f"{first.sizes['fold']:,} of {first.sizes['any_term']:,} {first.attrs['terms']}"
    note = (
        "None: plain expansion of the exact terms, as if nothing were known of the others. The SE "
        "of subsampling is that of the elpd over subsamples of this size."
    )
    head = ("model", "surrogate", "elpd", "SE", "subsampling SE", "")
    return Table(f"Exact terms of {size}", head, rows, [False] * len(rows), [note])


def batch_table(diagnostics: Mapping[str, xr.Dataset]) -> Table | None:
    """Whether batches are long enough; None if there were too few full-data draws to check."""
    checked = {name: d for name, d in diagnostics.items() if "batch_check" in d}
    if not checked:
        return None
    sizes = next(iter(checked.values()))["size"].to_numpy()
    rows, flagged = [], []
    for name, folds in checked.items():
        used = int(folds.attrs["batch_size"])
        share = float(folds["batch_check"].sel(size=used))
        ratios = [f"{x:.2f}".replace("nan", "–") for x in folds["batch_check"].values]
        length = "too short" if share < SHORT_BATCHES else "long enough"
        if np.isnan(share):
            length = "not known to be long enough"
        flagged.append(length != "long enough")
        rows.append((name, *ratios, f"batches of {used} are {length}"))
    note = (
        "Ratio of the MCSE by batches of each size to that by a windowed ESS, for the reported "
        "score at full-data draws; median over some folds. Near 1, batches are long enough; "
        f"below {SHORT_BATCHES:g}, autocorrelation outlasts a batch: set cv.batch_size."
    )
    return Table("Length of batches", ("model", *map(str, sizes), "verdict"), rows, flagged, [note])


def fit_table(models: Sequence[xr.Dataset], names: Sequence[str]) -> Table:
    head: Cells = ("model", "parameters", "max R-hat", "min ESS", "divergences")
    head += ("min E-FMI", "verdict")
    rows = [
        (
            name,
            str(fit.sizes["param"]),
            _at(fit["fit_rhat"], "max", ".3f"),
            _at(fit["fit_ess"], "min", ",.0f"),
            _fixed(float(fit.attrs["fit_divergences"]), ".0f"),
            _fixed(float(np.min(fit.attrs["fit_efmi"])), ".2f"),
            str(fit.attrs["fit_verdict"]),
        )
        for name, fit in zip(names, models, strict=True)
    ]
    return Table("Fits to all data", head, rows, [bool(fit.attrs["bad_fit"]) for fit in models])


def fold_table(name: str, folds: xr.Dataset) -> Table:
    differ = len(np.unique(folds["n_draws"])) > 1
    by = {"psis": "PSIS", "mcmc": "sampled"}
    head: Cells = ("fold", *("by",) * ("source" in folds), *("draws",) * differ)
    head += ("joint elpd", "MCSE", "ESS")
    head += (plots.rhat_name(folds), "k-hat", "overlap", "divergences", "acceptance", "E-FMI")
    terms = "elpd of groups" if "group_name" in folds else "pointwise elpd"
    head += (f"{terms}, summed", "its MCSE", "verdict")
    summed = folds["pointwise_elpd"].sum("slot", min_count=1).to_numpy()
    columns = folds[
        ["joint_elpd", "joint_mcse", "joint_ess", "rhat", "khat", "divergences", "acceptance"]
        + ["efmi", "n_draws", "pointwise_mcse", "verdict", "overlap"]
        + ["joint_mcse_is_bound", "pointwise_mcse_is_bound"]
        + ["source"] * ("source" in folds)
    ].to_dataframe()
    rows = [
        (
            str(fold),
            *(by[x] for x in [row.get("source")] if x),
            *(f"{row['n_draws']:,}",) * differ,
            typeset(row["joint_elpd"], row["joint_mcse"]),
            mcse(row, "joint_mcse"),
            _fixed(row["joint_ess"], ",.0f"),
            _fixed(row["rhat"], ".3f"),
            _fixed(row["khat"], ".2f"),
            _fixed(row["overlap"], ".2f"),
            _fixed(float(row["divergences"]), ",.0f"),
            _fixed(row["acceptance"], ".2f"),
            _fixed(row["efmi"], ".2f"),
            typeset(pointwise, row["pointwise_mcse"]),
            mcse(row, "pointwise_mcse"),
            "ok" if row["verdict"] == "ok" else "flagged",
        )
        for (fold, row), pointwise in zip(columns.iterrows(), summed, strict=True)
    ]
    return Table(f"Folds of {name}", head, rows, [row[-1] != "ok" for row in rows])


def flagged_table(diagnostics: Mapping[str, xr.Dataset], names: Sequence[str]) -> Table:
    rows = [
        (str(fold), f"{name}: {words}")
        for name in names
        for fold, words in diagnostics[name]["verdict"].to_series().items()
        if words != "ok"
    ]
    return _flagged("fold", rows, "verdict in diagnostics.zarr")


def flagged_units(diagnostics: Mapping[str, xr.Dataset], names: Sequence[str]) -> Table:
    """Units flagged in their own right, in folds of several units."""
    rows = [
        (str(unit), f"{name}: {words}")
        for name in names
        if diagnostics[name].sizes["slot"] > 1
        for unit, words in zip(
            names_of_terms(diagnostics[name]).ravel(),
            diagnostics[name]["pointwise_verdict"].to_numpy().ravel(),
            strict=True,
        )
        if words not in ("", "ok", FOLD_FLAGGED)
    ]
    return _flagged("unit", rows, "pointwise_verdict in diagnostics.zarr")


def _flagged(what: str, rows: Sequence[Cells], elsewhere: str) -> Table:
    notes = [f"And {len(rows) - MAX_ROWS} more: {elsewhere}."] if len(rows) > MAX_ROWS else []
    rows = rows[:MAX_ROWS]
    return Table(
        f"{what.capitalize()}s to look at", (what, "verdict"), rows, [True] * len(rows), notes
    )


def error(error: float) -> str:
    return typeset(error, error)


def mcse(row: pd.Series, name: str) -> str:
    """With ">" if it is only a lower bound."""
    return "> " * bool(row[f"{name}_is_bound"]) + error(row[name])


def _nested(folds: xr.Dataset) -> Cells:
    """Nested R-hat max and its benchmark share, of folds that are judged by R-hat too."""
    rhat = f"{_only(folds, 'nested_rhat_max'):.3f}".replace("nan", "–")
    return rhat, percent(_only(folds, "nested_benchmark_share"))


def _only(folds: xr.Dataset, name: str) -> float:
    """A number on all sampled folds, NaN if there are none."""
    return float(folds.get(name, np.nan))


def _range(values: xr.DataArray) -> str:
    low, high = int(values.min()), int(values.max())
    return f"{low}" if low == high else f"{low} to {high}"


def _at(values: xr.DataArray, which: Literal["max", "min"], form: str) -> str:
    """The largest or smallest value and its name, ignoring NaN but not inf."""
    known = values.to_series().dropna()
    if known.empty:
        return "–"
    row = int(known.argmax() if which == "max" else known.argmin())
    return f"{_fixed(known.iloc[row], form)} ({known.index[row]})"


def _fixed(value: float, form: str) -> str:
    return format(value, form).replace("-", "\N{MINUS SIGN}").replace("nan", "–")
