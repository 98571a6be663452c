"""The tables of predictions in a report: calibration, and units that are predicted worst."""

from collections.abc import Mapping

import numpy as np
import xarray as xr

from pcv.analysis.calibration import LEVELS, MIN_UNITS
from pcv.analysis.results.numbers import percent, typeset
from pcv.analysis.results.predicted import calibration_of, table
from pcv.report.tables import Cells, Table

WORST = 10
"""units that are named"""


def calibration_table(predictions: Mapping[str, xr.Dataset]) -> Table:
    """Coverage of central intervals, and the test of calibration, model by model."""
    head: Cells = ("model", *(f"{100 * level:g}%" for level in LEVELS), "p", "predictions are")
    rows, flagged = [], []
    for name, predicted in predictions.items():
        c = calibration_of(predicted)
        covered = [
            f"{x:.0%}\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}{se:.0%}"
            for x, se in zip(c.coverage, c.coverage_se)
        ]
        p = "–" if np.isnan(c.p) else "< 0.001" if c.p < 0.001 else f"{c.p:.3f}"
        independent = "folds, within which units are alike" if c.dependent else "units"
        untested = f"untested: fewer than {MIN_UNITS} {independent}"
        unknown = untested if np.isnan(c.p) else "calibrated"
        rows.append((name, *covered, p, c.direction or unknown))
        flagged.append(bool(c.direction))
    notes = [
        "Share of outcomes inside central intervals of these levels, ± its standard error over "
        "units, or over folds where PITs depend on each other within folds; and p-value of uniform "
        "PITs (POT-C)."
    ]
    return Table("Calibration of out-of-fold predictions", head, rows, flagged, notes)


def worst_table(model: str, predicted: xr.Dataset, diagnostics: xr.Dataset) -> Table:
    """The units with the lowest log score or, where units have several rows, the smallest tail
    probability."""
    units = table(predicted, diagnostics)
    tail = np.minimum(units["pit"], 1 - units["pit"])
    order = np.argsort(tail if units["elpd"].isna().any() else units["elpd"], kind="stable")
    head: Cells = ("unit", "fold", "outcome", "90% interval", "PIT", "elpd")
    rows = [
        (
            str(unit),
            str(row["fold"]),
            f"{row['y']:.4g}",
            f"{row['5%']:.4g} to {row['95%']:.4g}".replace(" ", "\N{NO-BREAK SPACE}"),
            percent(row["pit"]),
            typeset(row["elpd"], 0.1),
        )
        for unit, row in units.iloc[order[:WORST]].iterrows()
    ]
    return Table(f"{model}: the units that it predicts worst", head, rows, [False] * len(rows))
