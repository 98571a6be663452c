"""Figures of out-of-fold predictions: how good they are, and whether they are calibrated.

`predicted` is the content of group ``predictions`` of diagnostics.zarr, with replicates.
"""

from collections.abc import Mapping
from typing import Any

import arviz_plots as az
import numpy as np
import pandas as pd
import xarray as xr
from arviz_stats.ecdf_utils import ecdf_pit
from jaxtyping import Float, Shaped
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pcv.analysis.calibration import LEVEL, MIN_UNITS
from pcv.analysis.results.predicted import calibration_of, of_each_row, quantiles, replicates
from pcv.report.plots import shared
from pcv.report.plots.words import shorten

MAX_CATEGORIES = 10
"""that have a panel each"""
MAX_NAMES = 20
"""values of a column of text that are written along an axis"""
MARKS = ("suspicious_points",)
"""points of an ECDF that deviate most"""
MAX_COLOURS = len(shared.COLOURS)
NAMED = 5
"""units, or folds, that are named"""
TALL = 2.3
"""height of a panel, in inches"""
SIMULATIONS, MAX_UNITS = 1000, 5000
"""of uniform PITs, for bands; and the most units that have any"""


def pit(predictions: Mapping[str, xr.Dataset]) -> Figure:
    """ECDF of the PITs less that of uniform ones, model by model, with the test of `arviz_stats`.

    Args:
        predictions: by model, with ``pit`` (unit).
    """
    figure = _ecdf(predictions, coverage=False)
    for ax, predicted in zip(figure.axes, predictions.values()):
        value = of_each_row(predicted)["pit"].values
        enough = MIN_UNITS <= value.size <= MAX_UNITS
        if enough and not calibration_of(predicted).dependent:
            at, _, low, high = ecdf_pit(value, 1 - LEVEL, SIMULATIONS, rng=np.random.default_rng(0))
            ax.fill_between(at, low - at, high - at, step="post", color=shared.FAINT, zorder=0)
    return figure


def _ecdf(predictions: Mapping[str, xr.Dataset], coverage: bool) -> Figure:
    """ECDFs of PITs, or of the coverage of intervals, model by model."""
    names = shorten(list(predictions))
    of_models = {
        name: ("unit", of_each_row(x)["pit"].values) for name, x in zip(names, predictions.values())
    }
    tree = xr.DataTree.from_dict({"pit": xr.Dataset(of_models)})
    height = TALL * len(names)
    # Points are marked as if PITs were independent.
    marked = any(c.direction and not c.dependent for c in map(calibration_of, predictions.values()))
    hidden = ("p_value_text", "title", "xlabel", "ylabel", *(() if marked else MARKS))
    drawn = az.plot_ecdf_pit(
        tree,
        group="pit",
        sample_dims=["unit"],
        method="pot_c",
        envelope_prob=1 - LEVEL,
        coverage=coverage,
        backend="matplotlib",
        col_wrap=1,
        figure_kwargs=_page(height),
        visuals=dict.fromkeys(hidden, False),
    )
    figure = _taken(drawn)
    for ax, name in zip(figure.axes, names):
        shared.plain(ax)
        what = "coverage" if coverage else "ECDF of PITs"
        shared.titled(ax, f"{name}: {what}, less that if calibrated")
    level = "level of the central interval" if coverage else "PIT"
    figure.axes[-1].set_xlabel(level, fontsize=shared.NORMAL)
    return figure


def _page(height: float) -> dict[str, Any]:
    """Arguments of a figure that `arviz_plots` draws."""
    size = shared.WIDTH, height
    return {"FigureClass": shared.Drawing, "figsize": size, "layout": "constrained"}


def _taken(drawn: az.PlotCollection) -> Figure:
    """The figure of a plot, which pyplot would keep."""
    figure: Figure = drawn.viz["figure"].item()
    pyplot.close(figure)
    return figure


def calibration(predictions: Mapping[str, xr.Dataset]) -> Figure:
    """Calibration: of binary outcomes and ordered categories, observed frequencies against
    predicted probabilities, by isotonic regression (PAVA); of others, coverage of intervals.

    Args:
        predictions: by model.
    """
    predicted = next(iter(predictions.values()))
    kind = _kind(predicted)
    if kind == "other":
        return _ecdf(predictions, coverage=True)
    (label, *_), y, y_rep = shorten(list(predictions)), predicted["y"], predicted["y_rep"]
    first, last = int(min(y.min(), y_rep.min())), int(max(y.max(), y_rep.max()))
    tree = xr.DataTree.from_dict(
        {
            "posterior_predictive": xr.Dataset({"y": (y_rep.astype(int) - first).variable}),
            "observed_data": xr.Dataset({"y": (y.astype(int) - first).variable}),
        }
    )
    events = {
        "binary": [f"outcome {last}"],
        "ordinal": [f"outcome at most {k}" for k in range(first, last)],
        "categorical": [f"outcome {k}" for k in range(first, last + 1)],
    }[kind]
    drawn = az.plot_ppc_pava(
        tree,
        data_type=kind,
        backend="matplotlib",
        col_wrap=1,
        figure_kwargs=_page(TALL * len(events)),
        visuals={"title": False, "xlabel": False, "ylabel": False},
    )
    figure = _taken(drawn)
    for event, ax in zip(events, figure.axes):
        shared.plain(ax)
        shared.titled(ax, f"{label}: frequency of {event}")
    figure.axes[-1].set_xlabel("predicted probability", fontsize=shared.NORMAL)
    return figure


def _kind(predicted: xr.Dataset) -> str:
    """What an outcome is to PAVA: "binary", "ordinal" or "categorical"; "other" if nothing."""
    values = np.unique([*np.unique(predicted["y"]), *np.unique(predicted["y_rep"])])
    if len(values) < 2 or (values != np.round(values)).any():
        return "other"
    if values.tolist() == [0, 1]:
        return "binary"
    few = np.ptp(values) < MAX_CATEGORIES
    return predicted.attrs.get("categories", "other") if few else "other"


def observed(predicted: xr.Dataset, model: str) -> Figure:
    """Outcomes against the median of their predictives, with 90% intervals; binary ones and
    categories against the probability that they were given.

    Args:
        predicted: of the model.
        model: its name.
    """
    if _kind(predicted) != "other":
        return _probabilities(predicted, model)
    low, _, middle, _, high = quantiles(predicted)
    y = predicted["y"].values
    figure, (ax,) = shared.stacked(1, 3.6)
    within = (y >= low) & (y <= high)
    for some, colour in ((within, shared.COLOURS[0]), (~within, shared.COLOURS[1])):
        ax.vlines(middle[some], low[some], high[some], color=colour, lw=0.8, alpha=0.35)
        ax.plot(middle[some], y[some], "o", color=colour, ms=3)
    ends = np.array([min(low.min(), y.min()), max(high.max(), y.max())])
    ax.axline((ends[0], ends[0]), slope=1, color=shared.GREY, lw=0.9)
    ax.set_xlim(middle.min() - 0.03 * np.ptp(middle), middle.max() + 0.03 * np.ptp(middle) + 1e-9)
    ax.set_xlabel("median of the predictive", fontsize=shared.NORMAL)
    (label,) = shorten([model])
    shared.titled(ax, f"{label}: outcomes, and 90% intervals")
    return figure


def _probabilities(predicted: xr.Dataset, model: str) -> Figure:
    """Outcomes of few values against the predicted probability of each."""
    y = predicted["y"].values
    probability = (replicates(predicted) == y).mean(0)
    figure, (ax,) = shared.stacked(1, 3.6)
    scatter = np.random.default_rng(0).uniform(-0.25, 0.25, len(y))
    ax.plot(probability, y + scatter, "o", color=shared.COLOURS[0], ms=3)
    ax.set_yticks(np.unique(y))
    ax.set_xlim(-0.02, 1.02)
    ax.set_xlabel("predicted probability of the outcome", fontsize=shared.NORMAL)
    (label,) = shorten([model])
    shared.titled(ax, f"{label}: outcomes, and how probable they were")
    return figure


def along(
    predicted: xr.Dataset,
    model: str,
    outcome: str,
    x: tuple[str, Shaped[np.ndarray, " unit"]],
    colour: tuple[str, Shaped[np.ndarray, " unit"]] | None,
) -> Figure:
    """Outcomes and their predictives along a column of the data.

    Args:
        predicted: of a model.
        model: its name.
        outcome: name of the outcome.
        x: name and values of the column.
        colour: name and values of a column that colours units; None: none does.
    """
    of_unit = quantiles(predicted)
    figure, (ax,) = shared.stacked(1, 3.6)
    places, groups = _places(x[1]), _groups(colour, predicted.sizes["unit"])
    apart = _room(places) / len(groups)
    for i, (label, some) in enumerate(groups):
        hue = shared.COLOURS[i % MAX_COLOURS]
        at = places[some] + apart * (i - (len(groups) - 1) / 2)
        low, lower, middle, upper, high = of_unit[:, some]
        ax.vlines(at, low, high, color=hue, lw=0.8, alpha=0.4)
        ax.vlines(at, lower, upper, color=hue, lw=2.4, alpha=0.4)
        ax.plot(at, middle, "_", color=hue, ms=5)
        ax.plot(at, predicted["y"].values[some], "o", color=hue, ms=3, label=label)
    if colour is not None and len(groups) <= MAX_COLOURS:
        shared.add_legend(figure, *ax.get_legend_handles_labels())
    _label(ax, x)
    (label,) = shorten([model])
    shared.titled(ax, f"{label}: {outcome}, and 50% and 90% intervals")
    return figure


def unit_differences(
    difference: Float[np.ndarray, " unit"],
    names: Shaped[np.ndarray, " unit"],
    models: tuple[str, str],
    x: tuple[str, Shaped[np.ndarray, " unit"]],
    colour: tuple[str, Shaped[np.ndarray, " unit"]] | None,
) -> Figure:
    """Differences in elpd unit by unit, along a column of the data; the largest are named.

    Args:
        difference: of each unit (nats).
        names: of the units.
        models: the first predicts a unit better where the difference is positive.
        x, colour: as for `along`.
    """
    figure, (ax,) = shared.stacked(1, 3.2)
    places, groups = _places(x[1]), _groups(colour, len(difference))
    ax.axhline(0, color=shared.INK, lw=0.9)
    for i, (label, some) in enumerate(groups):
        hue = shared.COLOURS[i % MAX_COLOURS]
        ax.plot(places[some], difference[some], "o", color=hue, ms=3.5, label=label)
    if colour is not None and len(groups) <= MAX_COLOURS:
        shared.add_legend(figure, *ax.get_legend_handles_labels())
    largest = np.argsort(-np.abs(difference))[:NAMED]
    ax.set(xlim=ax.get_xlim(), ylim=ax.get_ylim())  # labels are placed relative to them
    shared.label_points(ax, places[largest], difference[largest], names[largest])
    _label(ax, x)
    shared.titled(ax, f"elpd of units: {models[0]} minus {models[1]} (nats)")
    return figure


def parameters(summary: pd.DataFrame, full: Mapping[str, tuple[float, float]]) -> Figure:
    """Parameters in the folds that move them most, and given the full data.

    Args:
        summary: of `pcv.analysis.results.predicted.fold_summary`.
        full: mean and standard deviation given the full data, by parameter.
    """
    names = list(summary.index.get_level_values("parameter").unique())
    figure, axes = shared.stacked(len(names), 1.5)
    for ax, name in zip(axes, names):
        rows = summary.loc[name].iloc[:NAMED]
        height = np.arange(len(rows))
        mean, sd = full[name]
        ax.axvspan(mean - sd, mean + sd, color=shared.FAINT)
        ax.axvline(mean, color=shared.GREY, lw=0.9)
        ax.hlines(height, rows["5%"], rows["95%"], color=shared.COLOURS[0], lw=0.9)
        ax.hlines(height, rows["25%"], rows["75%"], color=shared.COLOURS[0], lw=2.6)
        ax.plot(rows["mean"], height, "o", color=shared.COLOURS[0], ms=4)
        ax.set_yticks(height, list(map(str, rows.index)), parse_math=False)
        ax.set_ylim(len(rows) - 0.5, -0.5)
        ax.grid(visible=False)
        shared.titled(ax, f"{name}: folds that move it most; grey: full data ± sd")
    return figure


def _places(x: Shaped[np.ndarray, " unit"]) -> Float[np.ndarray, " unit"]:
    """Values of a column as places on an axis; text and dates by their order."""
    return x.astype(float) if x.dtype.kind in "biuf" else pd.Categorical(x).codes.astype(float)


def _label(ax: Axes, x: tuple[str, Shaped[np.ndarray, " unit"]]) -> None:
    """Name the column, and its values if these are few and text."""
    ax.set_xlabel(x[0], fontsize=shared.NORMAL, parse_math=False)
    if x[1].dtype.kind in "biuf":
        return
    names = pd.Categorical(x[1]).categories
    if len(names) <= MAX_NAMES:
        ax.set_xticks(range(len(names)), list(map(str, names)), rotation=45, parse_math=False)


def _room(places: Float[np.ndarray, " unit"]) -> float:
    """Width in which units at one place can lie side by side; 0 where all lie apart."""
    different = np.unique(places)
    if len(different) == len(places):
        return 0.0
    return 0.7 * float(np.diff(different).min()) if len(different) > 1 else 0.7


def _groups(
    colour: tuple[str, np.ndarray] | None, number: int
) -> list[tuple[str, Shaped[np.ndarray, " unit"]]]:
    """Labels and units of each colour."""
    if colour is None:
        return [("", np.ones(number, bool))]
    name, values = colour
    return [(f"{name} {value}", values == value) for value in np.unique(values)]
