"""The tables of a report of cumulative cross-validation."""

from collections.abc import Mapping

import numpy as np
import xarray as xr

from pcv.analysis import evidence
from pcv.analysis.results.numbers import typeset
from pcv.report.tables import Table, error

MIN_ERROR = 0.01
"""nats, below which no more figures are shown"""


def cumulative_table(paths: Mapping[str, xr.Dataset], reference: str) -> Table:
    """Models by cumulative score, best first."""
    rows = evidence.table(paths, reference)
    n, left_out = evidence.extent(paths[reference])
    head = (
        *("model", "difference", "SE", "MCSE", "S_CCV", "× n/P"),
        *("log BF", "MCSE of log BF", "log p(y)", "MCSE of log p(y)", ""),
    )
    cells = [
        (
            str(name),
            *(
                ("0", "–", "–")
                if name == reference
                else (
                    typeset(row["s_ccv_diff"], np.hypot(row["diff_se"], row["diff_mcse"])),
                    error(row["diff_se"]),
                    error(row["diff_mcse"]),
                )
            ),
            typeset(row["s_ccv"], MIN_ERROR),
            typeset(row["s_ccv_per_n"], MIN_ERROR),
            *(("0", "–") if name == reference else _shown(row["log_bf"], row["log_bf_mcse"])),
            *_shown(row["log_evidence"], row["mcse"]),
            "",
        )
        for name, row in rows.iterrows()
    ]
    caption = f"Cumulative scores of {left_out} units after {n - left_out} that prepare"
    return Table(caption, head, cells, [False] * len(cells))


def ways_table(paths: Mapping[str, xr.Dataset]) -> Table:
    """log p(y) by each way."""
    head = ("model", "way", "log p(y)", "MCSE", "k-hat", "")
    cells, flagged = [], []
    for name, path in paths.items():
        said, (answer, _) = " ".join(evidence.doubts(path)), evidence.answer(path)
        steps = f"{path['steps'].values.mean():.0f} steps per order"
        for way, (estimate, khat) in evidence.every_way(path).items():
            tail = "–" if np.isnan(khat) else f"{khat:.2f}"
            wrong = f"log p(y) by {way} differs" in said
            first, is_answer = way == evidence.PATH, way == answer and not np.isnan(estimate.value)
            notes = ["differs"] * wrong + [steps] * first + ["the answer"] * bool(is_answer)
            cells.append((name * first, way, *_shown(*estimate), tail, ", ".join(notes)))
            flagged.append(wrong)
    return Table("log p(y) by three ways", head, cells, flagged)


def size_table(name: str, path: xr.Dataset) -> Table:
    """Scores by the number of units left out."""
    frame = evidence.frame(path).iloc[::-1]
    columns = {
        "s_cv": "S_CV(P)",
        "s_ccv": "S_CCV(P)",
        "s_ccv_se": "SE",
        "s_ccv_mcse": "MCSE",
        "s_ccv_per_n": "× n/P",
        "s_ccv_median": "median",
        "s_ccv_median_se": "SE of it",
        "s_ccv_trimmed": "trimmed mean",
        "s_ccv_trimmed_se": "SE of that",
        "s_pcv": "S_PCV(P)",
    }
    there = {key: words for key, words in columns.items() if key in frame}
    cells = [
        (str(left_out), *(f"{row[key]:.3f}" for key in there), "")
        for left_out, row in frame.iterrows()
    ]
    return Table(
        f"{name}: by the number P of units left out",
        ("P", *there.values(), ""),
        cells,
        [False] * len(cells),
    )


def _shown(value: float, mcse: float) -> tuple[str, str]:
    if np.isnan(value):
        return "–", "–"
    return typeset(value, max(mcse, MIN_ERROR)), f"{mcse:.1g}" if mcse < 1e-3 else error(mcse)
