"""Figures of folds: their test, training and other units."""

from textwrap import fill

import numpy as np
from jaxtyping import Int
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from pcv.folds.base import Folds, train_mask
from pcv.folds.space import Places
from pcv.report.plots import COLOURS, INK, WIDTH, shorten

MAX_ROWS, MAX_COLUMNS = 400, 1000
"""folds and units shown individually in a grid; more folds are thinned, more units merged"""
TITLE_WIDTH = 56
"""characters per line of a title"""
MAX_COLOURED = 60
"""most folds for which a map shows units by fold"""
TRAIN, GAP, NOT_USED, TEST = "#e3e3e3", "#E69F00", "#ffffff", "#0072B2"
LEFT_OUT = {"gap": GAP, "not used": NOT_USED}
"""colours of units that are neither test nor training, by label"""
TRAINED_POINT = "#a8a8a8"
"""colour of training units as points, darker than as an area"""
FOLD_COLOURS = (*COLOURS, INK)


def grid(folds: Folds, num_units: int, title: str, left_out: str = "gap") -> Figure:
    """Folds × units, in the order of the data.

    Args:
        folds: the folds; of more than 400, an evenly spaced subset is shown.
        num_units: number of units; with more than 1,000, neighbours share a column, in which test
            takes precedence over gap, and gap over training.
        title: of the figure.
        left_out: label of units that are neither test nor training: gap, or not used.
    """
    rows = np.unique(np.linspace(0, len(folds.id) - 1, MAX_ROWS).round().astype(int))
    columns = min(num_units, MAX_COLUMNS)
    column_of_unit = np.arange(num_units) * columns // num_units
    starts = np.searchsorted(column_of_unit, np.arange(columns))
    image = np.stack(
        [np.maximum.reduceat(_roles(folds, int(row), num_units), starts) for row in rows]
    )
    figure = Figure(figsize=(WIDTH, 3.6), layout="constrained")
    ax = figure.subplots()
    colours = ListedColormap([TRAIN, LEFT_OUT[left_out], TEST])
    extent = (0.5, num_units + 0.5, len(folds.id) + 0.5, 0.5)
    ax.imshow(
        image,
        cmap=colours,
        vmin=0,
        vmax=2,
        aspect="auto",
        interpolation="nearest",
        extent=extent,
    )
    ax.set(xlabel="unit, in the order of the data", ylabel="fold")
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_locator(MaxNLocator("auto", integer=True, steps=[1, 2, 5, 10]))
    _finish(figure, ax, title, image, left_out)
    return figure


def on_map(folds: Folds, places: Places, title: str) -> Figure:
    """Maps of the units: coloured by fold, and by their role in the middle fold.

    Args:
        folds: in which every unit is in one test set.
        places: of the units.
        title: of the figure.
    """
    coloured = len(folds.id) <= MAX_COLOURED
    figure = Figure(figsize=(WIDTH, 8.0 if coloured else 4.2), layout="constrained")
    axes = np.atleast_1d(figure.subplots(1 + coloured, 1))
    size = float(np.clip(2000 / places.first.size, 2, 25))
    if coloured:
        once = len(folds.id) <= len(FOLD_COLOURS)
        names = shorten(folds.id, 20)
        for i, test in enumerate(folds.test):
            units = test[test >= 0]
            colour = FOLD_COLOURS[i % len(FOLD_COLOURS)]
            x, y = places.first[units], places.second[units]
            axes[0].scatter(x, y, size, color=colour, lw=0, label=names[i])
        repeated = "" if once else " (colours repeat)"
        axes[0].set_title(f"units by fold{repeated}", loc="left", fontsize=10)
        if once:
            beside = {"loc": "upper left", "bbox_to_anchor": (1, 1)}
            axes[0].legend(fontsize=8, frameon=False, markerscale=2, handletextpad=0.2, **beside)
    middle = len(folds.id) // 2
    roles = _roles(folds, middle, places.first.size)
    for role, colour in enumerate((TRAINED_POINT, GAP, TEST)):
        here = roles == role
        axes[-1].scatter(places.first[here], places.second[here], size, color=colour, lw=0)
    labels = ("longitude", "latitude") if places.on_earth else ("x", "y")
    axes[-1].set_xlabel(labels[0])
    for ax in axes:
        ax.set_ylabel(labels[1])
        stretched = 1 / np.cos(np.radians(places.second.mean())) if places.on_earth else 1.0
        ax.set_aspect(stretched, adjustable="datalim")
    _finish(figure, axes[-1], f"{title}: fold '{folds.id[middle]}'", roles)
    return figure


def _roles(folds: Folds, fold: int, num_units: int) -> Int[np.ndarray, " unit"]:
    """0 for training units, 2 for test units, 1 for the others."""
    roles = (~train_mask(folds, num_units, slice(fold, fold + 1))[0]).astype(int)
    roles[folds.test[fold][folds.test[fold] >= 0]] = 2
    return roles


def _finish(figure: Figure, ax: Axes, title: str, roles: np.ndarray, left_out: str = "gap") -> None:
    ax.set_title(fill(title, TITLE_WIDTH), loc="left", fontsize=10, parse_math=False)
    named = (("training", TRAIN), (left_out, LEFT_OUT[left_out]), ("test", TEST))
    handles = [
        Patch(facecolor=colour, edgecolor="#bbbbbb" if colour == NOT_USED else colour, label=name)
        for role, (name, colour) in enumerate(named)
        if (roles == role).any()
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    for axis in figure.axes:
        axis.spines[["top", "right"]].set_visible(False)
        axis.tick_params(labelsize=9)
