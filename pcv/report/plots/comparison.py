"""Figures of a comparison: differences over draws, their errors, and fold by fold."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import xarray as xr
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MaxNLocator

from pcv.analysis.results.numbers import percent, typeset
from pcv.report.plots import shared
from pcv.report.plots.words import kind_name

_OF_DIFFERENCES = {
    "elpd_diff": "value",
    "dse": "se",
    "diff_at": "value_at",
    "dse_at": "se_at",
    "mcse_diff_at": "mcse_at",
    "fold_diff": "fold_value",
    "fold_mcse_diff": "fold_mcse",
}
_OF_ONE_MODEL = {"elpd": "value", "elpd_at": "value_at", "fold_elpd": "fold_value"}


class Shown(NamedTuple):
    """Contents of one panel: the models other than the comparator, or the only model."""

    kind: str
    scores: xr.Dataset
    """value, se (model); value_at, se_at, mcse_at (model, point); fold_value, fold_mcse
    (model, fold), those available: differences from the comparator, or elpds"""
    styles: dict[str, shared.Style]
    """of the models shown, by name"""
    comparator: str | None
    """its label"""

    @property
    def quantity(self) -> str:
        if self.comparator is None:
            return f"elpd of {next(iter(self.styles.values())).label}"
        return f"elpd difference from {self.comparator}"


def difference(comparison: xr.Dataset) -> Figure:
    """Progressive elpd differences ± 2 MCSE, with the final ones ± SE beside them.

    One panel each for joint and pointwise scores. With a single model: its elpd.

    Args:
        comparison: `diff_at`, `mcse_diff_at` (kind, model, point), `elpd_diff`, `dse`
            (kind, model), in nats; `point` in draws per chain; attributes `reference_<kind>`.
            With a single model `elpd_at`, `mcse_at`, `elpd`, `se` instead.
    """
    panels, height = _shown(comparison), 2.6
    figure, axes = shared.stacked(len(panels), height)
    for ax, shown in zip(axes, panels, strict=True):
        _difference_panel(ax, shown, height)
    axes[-1].set_xlabel("draws per chain", fontsize=shared.NORMAL)
    _difference_legend(figure)
    return figure


def _difference_panel(ax: Axes, shown: Shown, height: float) -> None:
    draws = shown.scores["point"].to_numpy()
    step = 0.07 * draws[-1]
    lane = draws[-1] + step * (1.2 + np.arange(len(shown.styles)))
    labels = []
    for x, (name, style) in zip(lane, shown.styles.items(), strict=True):
        model = shown.scores.sel(model=name)
        value_at, band = model["value_at"].to_numpy(), 2 * model["mcse_at"].to_numpy()
        value, se = float(model["value"]), float(model["se"])
        ax.fill_between(
            draws, value_at - band, value_at + band, color=style.colour, alpha=0.3, lw=0
        )
        ax.plot(draws, value_at, **shared.line_of(style, draws.size))
        ax.errorbar(
            x,
            value,
            se,
            color=style.colour,
            marker=style.marker,
            ms=7,
            mec="white",
            elinewidth=3.5,
            capsize=5,
            capthick=2.0,
        )
        labels.append(
            shared.Label(
                value, f"{style.label}\n{typeset(value, se)} ± {typeset(se, se)}", style.colour
            )
        )
    if shown.comparator is not None:
        ax.axhline(0, color=shared.INK, lw=0.9)
        labels.append(shared.Label(0.0, shown.comparator, shared.INK))
    shared.include(ax, "y", _difference_extent(shown))
    shared.draws_axis(ax, draws, float(lane[-1] + step))
    ax.axvline(draws[-1] + 0.5 * step, color=shared.FAINT, lw=0.9)
    shared.label_right(ax, labels, height)
    shared.titled(ax, f"{shown.kind}: {shown.quantity}")


def _difference_legend(figure: Figure) -> None:
    shared.add_legend(
        figure,
        [
            Patch(color=shared.GREY, alpha=0.45, lw=0),
            Line2D([], [], color=shared.GREY, lw=0, marker="|", ms=13, mew=3.5),
        ],
        ["± 2 MCSE: shrinks with draws", "± SE: shrinks with data only"],
    )


def uncertainty(comparison: xr.Dataset) -> Figure:
    """Monte Carlo and epistemic standard errors over draws, on a log scale.

    Args:
        comparison: `dse_at`, `mcse_diff_at` (kind, model, point), in nats; with a single model
            `se_at`, `mcse_at`.
    """
    panels, height = _shown(comparison), 2.4
    figure, axes = shared.stacked(len(panels), height)
    for ax, shown in zip(axes, panels, strict=True):
        _uncertainty_panel(ax, shown, height)
    axes[-1].set_xlabel("draws per chain", fontsize=shared.NORMAL)
    shared.add_legend(
        figure,
        [
            Line2D([], [], color=shared.GREY, marker="o", ms=4, lw=1.6),
            Line2D(
                [], [], color=shared.GREY, marker="o", ms=4, lw=1.6, ls=shared.DASHED, mfc="white"
            ),
        ],
        ["SE: epistemic", "MCSE: Monte Carlo"],
    )
    return figure


def _uncertainty_panel(ax: Axes, shown: Shown, height: float) -> None:
    draws = shown.scores["point"].to_numpy()
    labels = []
    ax.set_yscale("log")
    for name, style in shown.styles.items():
        model = shown.scores.sel(model=name)
        for error, dash, face in (("SE", "-", style.colour), ("MCSE", shared.DASHED, "white")):
            error_at = shared.positive(model[f"{error.lower()}_at"].to_numpy())
            ax.plot(
                draws, error_at, **shared.line_of(style, draws.size) | {"ls": dash, "mfc": face}
            )
            labels.append(shared.Label(error_at[-1], f"{error} {style.label}", style.colour))
    shared.draws_axis(ax, draws)
    shared.log_ticks(ax.yaxis)
    shared.label_right(ax, labels, height)
    what = shown.quantity.replace("elpd difference", "difference")
    shared.titled(ax, f"{shown.kind}: errors of the {what}")


def none(why: str) -> Figure:
    """A figure that says why there is nothing to show."""
    figure, axes = shared.stacked(1, 0.7)
    axes[0].set_axis_off()
    shared.add_note(axes[0], why)
    return figure


def probability(comparison: xr.Dataset) -> Figure:
    """Progressive probability that a model predicts better than the comparator.

    Args:
        comparison: `p_better_at` (kind, model, point), in 0..1, nan for the comparator. With a
            single model, the figure says that there is none.
    """
    if comparison.sizes["model"] == 1:
        return none("one model: nothing to compare it with")
    panels, height = _shown(comparison), 2.1
    figure, axes = shared.stacked(len(panels), height)
    for ax, shown in zip(axes, panels, strict=True):
        _probability_panel(ax, shown, height)
    axes[-1].set_xlabel("draws per chain", fontsize=shared.NORMAL)
    return figure


def _probability_panel(ax: Axes, shown: Shown, height: float) -> None:
    draws = shown.scores["point"].to_numpy()
    ax.set_ylim(-0.03, 1.03)
    ax.set_yticks([0, 0.25, 0.5, 0.75, 1])
    ax.yaxis.set_major_formatter(FuncFormatter(lambda p, _: f"{100 * p:.0f}%"))
    ax.axhline(0.5, color=shared.GREY, lw=0.8, ls=(0, (2, 2)))
    labels = []
    for name, style in shown.styles.items():
        p_at = shown.scores["p_better_at"].sel(model=name).to_numpy()
        ax.plot(draws, p_at, **shared.line_of(style, draws.size), clip_on=False)
        labels.append(shared.Label(p_at[-1], f"{style.label} {percent(p_at[-1])}", style.colour))
    shared.draws_axis(ax, draws)
    shared.label_right(ax, labels, height)
    shared.titled(ax, f"{shown.kind}: probability of beating {shown.comparator}")


def answer(comparison: xr.Dataset) -> Figure:
    """`difference`, `uncertainty` and `probability` of the joint scores, stacked.

    Args:
        comparison: of at least two models, as these functions take it.
    """
    (shown,) = _shown(comparison.sel(kind=["joint"]))
    height = 2.2
    figure, axes = shared.stacked(3, height)
    for ax, panel in zip(
        axes, (_difference_panel, _uncertainty_panel, _probability_panel), strict=True
    ):
        panel(ax, shown, height)
    axes[-1].set_xlabel("draws per chain", fontsize=shared.NORMAL)
    _difference_legend(figure)
    return figure


def fold_differences(comparison: xr.Dataset) -> Figure:
    """Differences of folds ± 2 MCSE, sorted; all named up to 40 folds, else only the extremes.

    With a single model: the elpds of its folds.

    Args:
        comparison: `fold_diff`, `fold_mcse_diff` (kind, model, fold), in nats; pointwise ones are
            sums over the units of a fold. With a single model `fold_elpd`, `fold_mcse`.
    """
    panels = _shown(comparison)
    named = comparison.sizes["fold"] <= shared.MAX_NAMED_FOLDS
    figure = _folds_by_name(panels) if named else _folds_by_order(panels)
    models = {name: style for shown in panels for name, style in shown.styles.items()}
    if len(models) > 1:
        handles = [
            Line2D([], [], color=style.colour, marker=style.marker, ls=style.dash, ms=5, lw=1.6)
            for style in models.values()
        ]
        if named:
            for handle in handles:
                handle.set_linestyle("")
        shared.add_legend(figure, handles, [style.label for style in models.values()])
    return figure


def _shown(comparison: xr.Dataset) -> list[Shown]:
    """Contents of the panels, one per kind of score."""
    styles = shared.styles_of(comparison["model"].to_numpy())
    single = len(styles) == 1
    names = _OF_ONE_MODEL if single else _OF_DIFFERENCES
    panels = []
    for kind in comparison["kind"].to_numpy():
        scores = comparison.sel(kind=kind)
        comparator = "" if single else str(comparison.attrs[f"reference_{kind}"])
        if not single:
            scores = scores.drop_vars(names.values(), errors="ignore")
            scores = scores.sel(model=scores["model"] != comparator)
        present = {old: new for old, new in names.items() if old in scores}
        shown = {name: style for name, style in styles.items() if name != comparator}
        label = styles[comparator].label if comparator else None
        name = kind_name(comparison, str(kind))
        panels.append(Shown(name, scores.rename(present), shown, label))
    return panels


def _difference_extent(shown: Shown) -> Float[np.ndarray, " value"]:
    """Values to include in the axis: the final bars, and early estimates clipped around them."""
    scores = shown.scores
    value, se = scores["value"].to_numpy(), scores["se"].to_numpy()
    final = np.concatenate([value - se, value + se, [0.0] if shown.comparator else []])
    final = final[np.isfinite(final)] if np.isfinite(final).any() else np.array([-1.0, 1.0])
    band = 2 * scores["mcse_at"]
    early = np.concatenate([scores["value_at"] - band, scores["value_at"] + band]).ravel()
    room = 0.5 * max(np.ptp(final), 1e-3)
    early = np.clip(early[np.isfinite(early)], final.min() - room, final.max() + room)
    return np.concatenate([final, early])


def _folds_by_name(panels: Sequence[Shown]) -> Figure:
    first = panels[0].scores["fold_value"]
    order = np.argsort(first.isel(model=0).to_numpy())
    rows = np.arange(order.size)
    figure = shared.Drawing(
        figsize=(shared.WIDTH, 0.17 * order.size + 1.3), layout=shared.constrained()
    )
    axes = figure.subplots(1, len(panels), squeeze=False, sharey=True).ravel()
    for ax, shown in zip(axes, panels, strict=True):
        shared.plain(ax)
        if shown.comparator is not None:
            ax.axvline(0, color=shared.INK, lw=0.9)
        for i, (name, style) in enumerate(shown.styles.items()):
            model = shown.scores.sel(model=name)
            ax.errorbar(
                model["fold_value"].to_numpy()[order],
                rows + 0.16 * (i - (len(shown.styles) - 1) / 2),
                xerr=2 * model["fold_mcse"].to_numpy()[order],
                color=style.colour,
                marker=style.marker,
                ls="",
                ms=4.5,
                elinewidth=1.2,
            )
        ax.set_ylim(order.size - 0.4, -0.6)
        ax.xaxis.set_major_locator(MaxNLocator(4))
        ax.tick_params(axis="y", length=0)
        if shown.comparator is None:
            what = shown.quantity
        elif len(shown.styles) == 1:
            of = next(iter(shown.styles.values())).label
            what = f"{of}:\ndifference from {shown.comparator}"
        else:
            what = f"difference\nfrom {shown.comparator}"
        ax.set_xlabel(what, fontsize=shared.SMALL, parse_math=False)
        shared.titled(ax, shown.kind)
    axes[0].set_yticks(rows, shared.fold_labels(first)[order], parse_math=False)
    return figure


def _folds_by_order(panels: Sequence[Shown]) -> Figure:
    figure, axes = shared.stacked(len(panels), 2.6, sharex=True)
    for ax, shown in zip(axes, panels, strict=True):
        scores = shown.scores.assign_coords(fold=shared.fold_labels(shown.scores))
        ends: dict[str, tuple[float, float, shared.Style]] = {}
        if shown.comparator is not None:
            ax.axhline(0, color=shared.INK, lw=0.9)
        for name, style in shown.styles.items():
            model = scores.sel(model=name).sortby("fold_value")
            x, y = np.arange(1, model.sizes["fold"] + 1), model["fold_value"].to_numpy()
            band = 2 * model["fold_mcse"].to_numpy()
            ax.fill_between(x, y - band, y + band, color=style.colour, alpha=0.3, lw=0)
            ax.plot(x, y, color=style.colour, ls=style.dash, lw=1.6)
            finite = np.flatnonzero(np.isfinite(y))
            for k in {*finite[:3], *finite[-3:]}:
                fold = str(model["fold"].to_numpy()[k])
                if fold not in ends or abs(y[k]) > abs(ends[fold][1]):
                    ends[fold] = (x[k], y[k], style)
        by_value = sorted(ends, key=lambda fold: ends[fold][1])
        extremes = list(dict.fromkeys([*by_value[:3], *by_value[-3:]]))
        for x_end, y_end, style in (ends[fold] for fold in extremes):
            ax.plot(x_end, y_end, color=style.colour, marker=style.marker, ms=4.5)
        ax.set_xlim(1 - 0.02 * scores.sizes["fold"], 1.02 * scores.sizes["fold"])
        if extremes:
            at = np.array([ends[fold][:2] for fold in extremes])
            shared.label_points(ax, at[:, 0], at[:, 1], np.array(extremes))
        title = f"{shown.kind}: {shown.quantity}"
        if shown.comparator is not None and len(shown.styles) == 1:
            title = f"{shown.kind}: {next(iter(shown.styles.values())).label}, {shown.quantity}"
        shared.titled(ax, title)
    axes[-1].set_xlabel("folds, for each model in the order of its values", fontsize=shared.NORMAL)
    return figure
