"""The figure of cumulative cross-validation: scores over the size of the training set."""

from collections.abc import Mapping

import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from pcv.analysis.evidence import curves, extent
from pcv.report.plots import shared

FAR = 5.0
"""margins below later scores at which the first ones are cut off"""


def cumulative(paths: Mapping[str, xr.Dataset], latest: float = 0.9) -> Figure:
    """S_CV(p), and S_CCV(P) n/P, ± 2 MCSE, over the number of units that train.

    Args:
        paths: ``evidence.zarr`` of each model.
        latest: share of units that train up to which to go; beyond, scores are of few.
    """
    height, styles = 2.7, shared.styles_of(paths)
    figure, axes = shared.stacked(2, height, sharex=True)
    for ax, name, title in zip(
        axes, ("s_cv", "s_ccv"), ("score of a unit more, S_CV", "cumulative score, S_CCV × n/P")
    ):
        labels, shown = [], []
        for model, path in paths.items():
            trained, (n, left_out) = path["trained"].values, extent(path)
            factor = 1.0 if name == "s_cv" else n / (n - trained)
            curve = curves(path)[name]
            some = trained <= max(latest * n, n - left_out)
            value, band = (x[some] for x in (curve.value * factor, 2 * curve.mcse * factor))
            trained = trained[some]
            style = styles[model]
            ax.fill_between(
                trained, value - band, value + band, color=style.colour, alpha=0.2, lw=0
            )
            ax.plot(trained, value, **shared.line_of(style, trained.size))
            labels.append(shared.Label(value[-1], style.label, style.colour))
            shown.append(value[trained >= n - left_out])
        low, high = (f(np.concatenate(shown)) for f in (np.min, np.max))
        margin = 0.07 * (high - low) or 1.0
        ax.set_ylim(low - FAR * margin, high + margin)
        first = next(iter(paths.values()))
        ax.axvline(first.attrs["prepared"], color=shared.GREY, ls=shared.DASHED, lw=1.0)
        shared.titled(ax, title)
        ax.set_ylabel("nats", fontsize=shared.NORMAL)
        shared.label_right(ax, labels, height)
    axes[-1].set_xlabel("units that train", fontsize=shared.NORMAL)
    return figure
