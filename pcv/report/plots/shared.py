"""Shared by all figures: size, colours, axes, legends and non-overlapping labels."""

from collections.abc import Iterable, Sequence
from io import BytesIO
from typing import Any, Literal, NamedTuple

import numpy as np
import xarray as xr
from jaxtyping import Bool, Float, Num, Shaped
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import XAxis, YAxis
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullLocator
from scipy.optimize import isotonic_regression

from pcv.report.plots.words import shorten, span

WIDTH = 4.8
MAX_NAMED_FOLDS = 40
INK, GREY, FAINT = "#222222", "#767676", "#dddddd"
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
MARKERS = ("o", "s", "D", "^", "v", "P", "X")
DASHED = (0.0, (5.0, 2.0))
DASHES = ("-", DASHED, (0.0, (6.0, 1.5, 1.5, 1.5)), (0.0, (1.0, 1.2)), (0.0, (9.0, 3.0)))
SMALL, NORMAL = 9.0, 10.0
Dash = str | tuple[float, tuple[float, ...]]


class Style(NamedTuple):
    label: str
    colour: str
    marker: str
    dash: Dash


class Label(NamedTuple):
    y: float
    """position of what it labels, in data units"""
    text: str
    colour: str


class Drawing(Figure):
    """A figure that notebooks display even if pyplot was never imported."""

    def _repr_png_(self) -> bytes:
        image = BytesIO()
        self.savefig(image, format="png")
        return image.getvalue()


def styles_of(models: Iterable[str]) -> dict[str, Style]:
    names = [str(name) for name in models]
    return {
        name: Style(
            label, COLOURS[i % len(COLOURS)], MARKERS[i % len(MARKERS)], DASHES[i % len(DASHES)]
        )
        for i, (name, label) in enumerate(zip(names, shorten(names), strict=True))
    }


def line_of(style: Style, points: int) -> dict[str, Any]:
    every = max(1, points // 12)
    return {
        "color": style.colour,
        "marker": style.marker,
        "ls": style.dash,
        "ms": 4.5,
        "lw": 1.6,
        "markevery": ((points - 1) % every, every),
    }


def stacked(
    rows: int, height: float, sharex: bool = False, sharey: bool = False
) -> tuple[Figure, list[Axes]]:
    figure = Drawing(figsize=(WIDTH, rows * height + 0.35), layout=constrained())
    axes = list(figure.subplots(rows, 1, squeeze=False, sharex=sharex, sharey=sharey).ravel())
    for ax in axes:
        plain(ax)
    return figure, axes


def constrained() -> ConstrainedLayoutEngine:
    return ConstrainedLayoutEngine(w_pad=0.07, h_pad=0.07)


def plain(ax: Axes) -> None:
    ax.spines[["top", "right"]].set_visible(False)
    ax.spines[["left", "bottom"]].set_color(GREY)
    ax.tick_params(labelsize=SMALL, labelcolor=INK, color=GREY)
    ax.grid(axis="y", color=FAINT, lw=0.6)
    ax.set_axisbelow(True)


def titled(ax: Axes, text: str) -> None:
    ax.set_title(text, loc="left", fontsize=NORMAL, color=INK, parse_math=False)


def add_note(ax: Axes, text: str) -> None:
    ax.text(0.5, 0.6, text, transform=ax.transAxes, ha="center", fontsize=NORMAL, color=GREY)


def add_legend(figure: Figure, handles: Sequence[Artist], texts: Sequence[str]) -> None:
    legend = figure.legend(
        handles,
        texts,
        loc="outside upper left",
        ncols=2,
        fontsize=SMALL,
        frameon=False,
        borderpad=0.1,
        columnspacing=1.2,
        handlelength=2.4,
        labelcolor=INK,
    )
    for text in legend.get_texts():
        text.set_parse_math(False)


def include(ax: Axes, axis: Literal["x", "y"], values: Iterable[float]) -> None:
    """Set axis limits to include all finite values, with a margin."""
    scale = (ax.xaxis if axis == "x" else ax.yaxis).get_transform()
    places = scale.transform(np.array([value for value in values if np.isfinite(value)]))
    margin = 0.07 * np.ptp(places) if np.ptp(places) else 1.0
    limits = scale.inverted().transform([places.min() - margin, places.max() + margin])
    (ax.set_xlim if axis == "x" else ax.set_ylim)(*limits)


def draws_axis(ax: Axes, draws: Num[np.ndarray, " point"], right: float | None = None) -> None:
    ax.set_xlim(0, 1.02 * draws[-1] if right is None else right)
    spaced = MaxNLocator(5, integer=True).tick_values(0, draws[-1])
    ticks = [0, *draws] if len(draws) <= 5 else [tick for tick in spaced if tick <= draws[-1]]
    ax.xaxis.set_major_locator(FixedLocator(ticks))


def log_ticks(axis: XAxis | YAxis) -> None:
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axis.set_minor_locator(NullLocator())


def fractions(
    ax: Axes, x: Num[np.ndarray, " label"], y: Num[np.ndarray, " label"]
) -> Float[np.ndarray, "label 2"]:
    """Convert data coordinates to axes fractions."""
    points = np.column_stack([x, y]).astype(float)
    return ax.transAxes.inverted().transform(ax.transData.transform(points))


def spread(
    wanted: Float[np.ndarray, " label"], heights: Float[np.ndarray, " label"]
) -> Float[np.ndarray, " label"]:
    """Positions of labels in 0..1, moved as little as possible so that they do not overlap."""
    if wanted.size == 0:
        return wanted
    order = np.argsort(wanted, kind="stable")
    sizes = heights[order]
    offsets = np.concatenate([[0.0], np.cumsum((sizes[1:] + sizes[:-1]) / 2)])
    places = np.empty_like(wanted)
    free = isotonic_regression(wanted[order] - offsets).x
    low, high = sizes[0] / 2, 1 - offsets[-1] - sizes[-1] / 2
    places[order] = np.clip(free, min(low, high), high) + offsets
    return places


def label_right(ax: Axes, labels: Sequence[Label], height: float) -> None:
    """Labels beside the right edge, each connected by a short line to its y value."""
    tall = np.array([(label.text.count("\n") + 1) * 0.165 / (height - 0.6) for label in labels])
    y = np.array([label.y for label in labels])
    wanted = fractions(ax, np.full(y.size, ax.get_xlim()[1]), y)[:, 1]
    wanted = np.clip(np.where(np.isfinite(wanted), wanted, 0.5), 0, 1)
    for label, from_y, to_y in zip(labels, wanted, spread(wanted, tall), strict=True):
        tie = {"arrowstyle": "-", "color": label.colour, "lw": 1.2, "relpos": (0, 0.5)}
        ax.annotate(
            label.text,
            (1.005, from_y),
            xytext=(1.06, to_y),
            xycoords="axes fraction",
            textcoords="axes fraction",
            va="center",
            fontsize=SMALL,
            color=INK,
            annotation_clip=False,
            parse_math=False,
            arrowprops=(tie | {"shrinkA": 0, "shrinkB": 0}) if np.isfinite(label.y) else None,
        )


def fold_labels(folds: xr.Dataset | xr.DataArray) -> Shaped[np.ndarray, " fold"]:
    return np.array(shorten(map(span, folds["fold"].to_numpy()), 20))


def positive(values: Num[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
    return np.where(np.isfinite(values) & (values > 0), values, np.nan)


def mark_points(
    ax: Axes,
    x: Num[np.ndarray, " point"],
    y: Num[np.ndarray, " point"],
    bad: Bool[np.ndarray, " point"],
    style: Style,
) -> None:
    """Open points, the bad ones filled and larger."""
    size = 5.0 if bad.size <= MAX_NAMED_FOLDS else 3.5
    face: dict[str, Any] = {"color": style.colour, "marker": style.marker, "ls": ""}
    ax.plot(x[~bad], y[~bad], ms=size, mfc="white", **face)
    ax.plot(x[bad], y[bad], ms=size + 2, **face)


def label_points(
    ax: Axes,
    x: Num[np.ndarray, " label"],
    y: Num[np.ndarray, " label"],
    names: Shaped[np.ndarray, " label"],
) -> None:
    """Names beside points, on the side with more room."""
    at = fractions(ax, x, y)
    height = 0.165 / (ax.bbox.height / ax.figure.dpi)
    for left, side in ((False, at[:, 0] <= 0.5), (True, at[:, 0] > 0.5)):
        places = spread(at[side, 1], np.full(side.sum(), height))
        for (point_x, point_y), place, name in zip(at[side], places, names[side], strict=True):
            ax.annotate(
                str(name),
                (point_x, point_y),
                xytext=(point_x + (-0.04 if left else 0.04), place),
                xycoords="axes fraction",
                textcoords="axes fraction",
                ha="right" if left else "left",
                va="center",
                fontsize=SMALL,
                color=INK,
                parse_math=False,
                arrowprops={
                    "arrowstyle": "-",
                    "color": GREY,
                    "lw": 0.7,
                    "shrinkA": 0,
                    "shrinkB": 3,
                },
                bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.75, "pad": 0.5},
            )
