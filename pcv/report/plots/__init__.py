"""Figures of a comparison and of its diagnostics: datasets in, figures out, nothing on disk.

Every figure is 4.8 inches wide with text of at least 9 points, legible on a phone, in a printed
column and on a slide. A model keeps its colour (Okabe and Ito's colour-blind safe palette), marker
and line style (for black and white) in all figures, and is labelled directly. The two kinds of
uncertainty never look alike: Monte Carlo error, which more draws shrink, is a band, a dashed line
or a thin bar; epistemic error, which only more data shrink, is a thick capped bar or a solid line.

For example, a comparison on three folds:

>>> import xarray as xr
>>> dims = ("kind", "model", "fold")
>>> comparison = xr.Dataset(
...     {"fold_diff": (dims, [[[0, 0, 0], [-3.1, 0.4, -9.0]]]),
...      "fold_mcse_diff": (dims, [[[0, 0, 0], [0.1, 0.1, 0.3]]])},
...     coords={"kind": ["joint"], "model": ["slopes", "common"], "fold": ["a", "b", "c"]},
...     attrs={"reference_joint": "slopes"})
>>> [label.get_text() for label in fold_differences(comparison).axes[0].get_yticklabels()]
['c', 'a', 'b']
"""

from pcv.report.plots.comparison import (
    answer,
    difference,
    fold_differences,
    none,
    probability,
    uncertainty,
)
from pcv.report.plots.computation import (
    GOOD_ESS,
    GOOD_RHAT,
    benchmark,
    benchmark_panel,
    ess,
    full_data,
    khat,
    overlap,
    rhat,
    rhat_name,
)
from pcv.report.plots.cumulative import cumulative
from pcv.report.plots.predictions import (
    along,
    calibration,
    observed,
    parameters,
    pit,
    unit_differences,
)
from pcv.report.plots.shared import (
    COLOURS,
    FAINT,
    INK,
    MAX_NAMED_FOLDS,
    NORMAL,
    SMALL,
    WIDTH,
    Label,
    label_right,
    stacked,
    titled,
)
from pcv.report.plots.words import shorten

__all__ = [
    "COLOURS",
    "FAINT",
    "GOOD_ESS",
    "GOOD_RHAT",
    "INK",
    "MAX_NAMED_FOLDS",
    "NORMAL",
    "SMALL",
    "WIDTH",
    "Label",
    "along",
    "answer",
    "benchmark",
    "benchmark_panel",
    "calibration",
    "cumulative",
    "difference",
    "ess",
    "fold_differences",
    "full_data",
    "khat",
    "label_right",
    "none",
    "observed",
    "overlap",
    "parameters",
    "pit",
    "probability",
    "rhat",
    "rhat_name",
    "shorten",
    "stacked",
    "titled",
    "uncertainty",
    "unit_differences",
]
