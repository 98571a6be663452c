"""The tables of scores of a report: comparisons by the log score, by other scores, by scheme."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
import xarray as xr

from pcv.analysis.results.numbers import percent, typeset
from pcv.analysis.results.wording import predictive_in_words, units_of
from pcv.report.plots.words import kind_name
from pcv.report.tables import Cells, Table, error, mcse


def score_table(
    comparison: xr.Dataset, frame: pd.DataFrame, kind: str, notes: Sequence[str]
) -> Table:
    rows = frame[frame["kind"] == kind].sort_values("rank")
    comparator = str(comparison.attrs[f"reference_{kind}"])
    single = len(rows) == 1
    predictive = predictive_in_words(rows["model"].tolist(), rows["predictive"].tolist())
    count = f"{rows['n_folds'].max()} folds"
    if "num_terms" in rows:
        count = f"{rows['n_folds'].max()} of {rows['num_terms'].max():,} folds, chosen at random"
    if kind == "pointwise":
        count = f"{units_of(comparison['unit'].values.tolist())} in {count}"
    if kind == "pointwise" and comparison.attrs.get("joint_by"):
        count = f"{comparison.sizes['unit']} groups in {rows['n_folds'].max()} folds"
    caption = f"{kind_name(comparison, kind, ' scores')}: {count}, {predictive} predictive"
    errors = comparison[["dse", "dse_folds"]].sel(kind=kind).to_dataframe()
    over = [
        f"{model} {error(over_folds)}"
        for model, over_units, over_folds in zip(
            errors.index, errors["dse"], errors["dse_folds"], strict=True
        )
        if np.isfinite(over_folds) and not np.isclose(over_units, over_folds)
    ]
    if over:
        notes = [f"SE of the difference over folds instead of units: {', '.join(over)}.", *notes]
    third: Cells = ("subsampling SE",) if "num_terms" in rows else ()
    elpd = [
        (
            typeset(row["elpd"], row["se"]),
            error(row["se"]),
            *(error(row["subsampling_se"]) for _ in third),
            mcse(row, "mcse"),
        )
        for _, row in rows.iterrows()
    ]
    if single:
        head: Cells = ("model", "elpd", "SE", *third, "MCSE", "verdict")
        differences: list[Cells] = [()]
    else:
        head = ("model", "difference", "SE", *third, "MCSE", f"Pr(beats {comparator})")
        head += ("by bootstrap", "90% interval", "weight")
        head += ("elpd", "SE of elpd", *(f"{name} of elpd" for name in third), "MCSE of elpd")
        head += ("verdict",)
        differences = [
            ("0", "–", *("–" for _ in third), *("–",) * 4, _weight(row))
            if row["model"] == comparator
            else (
                typeset(row["elpd_diff"], row["dse"]),
                error(row["dse"]),
                *(error(row["subsampling_dse"]) for _ in third),
                mcse(row, "mcse_diff"),
                percent(row["p_better"]),
                percent(row["p_better_bb"]).replace("n/a", "–"),
                _interval(row),
                _weight(row),
            )
            for _, row in rows.iterrows()
        ]
    flagged = [verdict != "ok" for verdict in rows["verdict"]]
    cells = [
        (model, *difference, *own, "see Computation" if flag else "ok")
        for model, difference, own, flag in zip(
            rows["model"], differences, elpd, flagged, strict=True
        )
    ]
    return Table(caption, head, cells, flagged, notes)


def _interval(row: pd.Series) -> str:
    low, high = (typeset(row[f"eti90_{end}"], row["dse"]) for end in ("lb", "ub"))
    return "–" if low == high == "–" else f"{low} to {high}"


def _weight(row: pd.Series) -> str:
    """A stacking weight with its SE."""
    weight, se = row["weight"], row["weight_se"]
    return "–" if np.isnan(weight) else f"{weight:.2f} ({se:.2f})"


def other_scores(rows: pd.DataFrame, single: bool, notes: Sequence[str]) -> Table:
    differences: Cells = () if single else ("difference", "SE", "MCSE", "Pr")
    head: Cells = ("score", "model", *differences, "score of model", "its SE", "its MCSE", "kind")
    cells = [
        (
            row["score"],
            row["model"],
            *(
                ()
                if single
                else ("–", "–", "–", "–")
                if pd.isna(row["rank"])
                else ("0", "–", "–", "–")
                if row["score_diff"] == 0 and row["dse"] == 0
                else (
                    typeset(row["score_diff"], row["dse"]),
                    error(row["dse"]),
                    mcse(row, "mcse_diff"),
                    percent(row["p_better"]),
                )
            ),
            typeset(row["estimate"], row["se"]),
            error(row["se"]),
            mcse(row, "mcse"),
            f"{row['kind']}{', path' * (row.get('predict') == 'path')}",
        )
        for _, row in rows.iterrows()
    ]
    caption = "Higher is better: errors and distances are negative"
    if not single:
        comparators = set(rows["model"][(rows["score_diff"] == 0) & (rows["dse"] == 0)])
        named = comparators.pop() if len(comparators) == 1 else "the model whose difference is 0"
        caption += f"; differences from {named}"
    return Table(caption, head, cells, [False] * len(cells), notes)


def scheme_table(name: str, rows: pd.DataFrame, single: bool) -> tuple[str, Table]:
    """Heading and table of what only some schemes have, by the name of its file."""
    if name == "steps":
        return "By steps ahead", _steps(rows, single)
    return "Cumulative score", _cumulative(rows, single)


def _cumulative(rows: pd.DataFrame, single: bool) -> Table:
    differences: Cells = () if single else ("difference", "its SE", "its MCSE")
    head: Cells = ("score", "model", *differences, "S_CCV", "× n/P", "SE", "MCSE")
    cells = [
        (
            row["score"],
            row["model"],
            *_apart(row["s_ccv_diff"], row["diff_se"], row["diff_mcse"], single),
            typeset(row["s_ccv"], row["s_ccv_se"]),
            typeset(row["s_ccv_per_n"], row["s_ccv_se"]),
            error(row["s_ccv_se"]),
            error(row["s_ccv_mcse"]),
        )
        for _, row in rows.iterrows()
    ]
    caption = (
        "Pointwise scores per unit, summed over the number of units left out; SEs are of the "
        "random choice of folds, and more folds shrink them"
    )
    return Table(caption, head, cells, [False] * len(cells))


def _apart(value: float, se: float, mcse: float, single: bool) -> Cells:
    """A difference with its errors; of the comparator there are none."""
    if single:
        return ()
    return ("0", "–", "–") if mcse == 0 else (typeset(value, se), error(se), error(mcse))


def _steps(rows: pd.DataFrame, single: bool) -> Table:
    differences: Cells = () if single else ("difference", "SE", "MCSE")
    head: Cells = ("step", "model", "steps ahead", "predict", *differences)
    head += ("elpd", "SE of elpd", "MCSE of elpd", "units")
    cells = [
        (
            str(row["step"]),
            row["model"],
            str(row["steps_ahead"]),
            row["predict"],
            *_apart(row["elpd_diff"], row["dse"], row["mcse_diff"], single),
            typeset(row["elpd"], row["se"]),
            error(row["se"]),
            error(row["mcse"]),
            f"{row['n_units']:,}",
        )
        for _, row in rows.iterrows()
    ]
    caption = (
        "Pointwise log scores of the units that are the first, second, ... after the training set. "
        "A model with lags is given the values just before each: as observed (predict: "
        "conditional), so that it is one step ahead, or simulated (path)"
    )
    return Table(caption, head, cells, [False] * len(cells))
