"""Figures of a comparison and of its diagnostics: datasets in, figures out, nothing on disk.

Every figure is 4.8 inches wide with text of at least 9 points, so that it reads on a telephone, in
a column of print and on a slide. A model keeps its colour, marker and line style in all figures
(colours of Okabe and Ito, which survive colour blindness; markers and line styles survive black
and white) and is named where it is drawn. Two uncertainties are never drawn alike: Monte Carlo
error, which more draws shrink, is a band, a dashed line or a thin bar; epistemic error, which only
more data shrink, is a thick capped bar or a solid line.

A comparison on three folds, for example:

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

from collections.abc import Iterable, Mapping, Sequence
from io import BytesIO
from itertools import takewhile
from typing import Any, Literal, NamedTuple

import numpy as np
import xarray as xr
from jaxtyping import Bool, Float, Num, Shaped
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import XAxis, YAxis
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullLocator
from scipy.optimize import isotonic_regression

WIDTH = 4.8
MAX_NAMED_FOLDS = 40
GOOD_RHAT = 1.01
GOOD_ESS = 400

INK, GREY, FAINT = "#222222", "#767676", "#dddddd"
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
MARKERS = ("o", "s", "D", "^", "v", "P", "X")
DASHED = (0.0, (5.0, 2.0))
DASHES = ("-", DASHED, (0.0, (6.0, 1.5, 1.5, 1.5)), (0.0, (1.0, 1.2)), (0.0, (9.0, 3.0)))
SMALL, NORMAL = 9.0, 10.0

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

Dash = str | tuple[float, tuple[float, ...]]


class Style(NamedTuple):
    label: str
    colour: str
    marker: str
    dash: Dash


class Label(NamedTuple):
    y: float
    """where it points to, in the units of the axis"""
    text: str
    colour: str


class Shown(NamedTuple):
    """What one panel shows: the models beside their comparator, or the only model."""

    kind: str
    scores: xr.Dataset
    """value, se (model); value_at, se_at, mcse_at (model, point); fold_value, fold_mcse
    (model, fold), as far as they are there: differences to the comparator, or elpds"""
    styles: dict[str, Style]
    """of the models shown, by name"""
    comparator: str | None
    """its label"""

    @property
    def quantity(self) -> str:
        if self.comparator is None:
            return f"elpd of {next(iter(self.styles.values())).label}"
        return f"elpd difference to {self.comparator}"


def difference(comparison: xr.Dataset) -> Figure:
    """Progressive elpd differences ± 2 MCSE, and beside them the final ones ± SE.

    One panel each for joint and pointwise scores. With a single model: its elpd.

    Args:
        comparison: `diff_at`, `mcse_diff_at` (kind, model, point), `elpd_diff`, `dse`
            (kind, model), in nats; `point` in draws per chain; attributes `reference_<kind>`.
            With a single model `elpd_at`, `mcse_at`, `elpd`, `se` instead.
    """
    panels, height = _shown(comparison), 2.6
    figure, axes = stacked(len(panels), height)
    for ax, shown in zip(axes, panels, strict=True):
        _difference_panel(ax, shown, height)
    axes[-1].set_xlabel("draws per chain", fontsize=NORMAL)
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
        ax.plot(draws, value_at, **_line(style, draws.size))
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
            Label(value, f"{style.label}\n{number(value, se)} ± {number(se, se)}", style.colour)
        )
    if shown.comparator is not None:
        ax.axhline(0, color=INK, lw=0.9)
        labels.append(Label(0.0, shown.comparator, INK))
    _include(ax, "y", _difference_extent(shown))
    _draws_axis(ax, draws, float(lane[-1] + step))
    ax.axvline(draws[-1] + 0.5 * step, color=FAINT, lw=0.9)
    label_right(ax, labels, height)
    titled(ax, f"{shown.kind}: {shown.quantity}")


def _difference_legend(figure: Figure) -> None:
    _legend(
        figure,
        [
            Patch(color=GREY, alpha=0.45, lw=0),
            Line2D([], [], color=GREY, lw=0, marker="|", ms=13, mew=3.5),
        ],
        ["± 2 MCSE: shrinks with draws", "± SE: shrinks with data only"],
    )


def uncertainty(comparison: xr.Dataset) -> Figure:
    """Monte Carlo against epistemic standard errors over draws, on a log scale.

    Args:
        comparison: `dse_at`, `mcse_diff_at` (kind, model, point), in nats; with a single model
            `se_at`, `mcse_at`.
    """
    panels, height = _shown(comparison), 2.4
    figure, axes = stacked(len(panels), height)
    for ax, shown in zip(axes, panels, strict=True):
        _uncertainty_panel(ax, shown, height)
    axes[-1].set_xlabel("draws per chain", fontsize=NORMAL)
    _legend(
        figure,
        [
            Line2D([], [], color=GREY, marker="o", ms=4, lw=1.6),
            Line2D([], [], color=GREY, marker="o", ms=4, lw=1.6, ls=DASHED, mfc="white"),
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
        for error, dash, face in (("SE", "-", style.colour), ("MCSE", DASHED, "white")):
            error_at = _positive(model[f"{error.lower()}_at"].to_numpy())
            ax.plot(draws, error_at, **_line(style, draws.size) | {"ls": dash, "mfc": face})
            labels.append(Label(error_at[-1], f"{error} {style.label}", style.colour))
    _draws_axis(ax, draws)
    _log_ticks(ax.yaxis)
    label_right(ax, labels, height)
    what = shown.quantity.replace("elpd difference", "difference")
    titled(ax, f"{shown.kind}: errors of the {what}")


def probability(comparison: xr.Dataset) -> Figure:
    """Probability over draws that a model predicts better than the comparator.

    Args:
        comparison: `p_better_at` (kind, model, point), in 0..1, nan for the comparator. A single
            model has none, and the figure says so.
    """
    if comparison.sizes["model"] == 1:
        figure, axes = stacked(1, 0.7)
        axes[0].set_axis_off()
        _note(axes[0], "one model: nothing to compare it with")
        return figure
    panels, height = _shown(comparison), 2.1
    figure, axes = stacked(len(panels), height)
    for ax, shown in zip(axes, panels, strict=True):
        _probability_panel(ax, shown, height)
    axes[-1].set_xlabel("draws per chain", fontsize=NORMAL)
    return figure


def _probability_panel(ax: Axes, shown: Shown, height: float) -> None:
    draws = shown.scores["point"].to_numpy()
    ax.set_ylim(-0.03, 1.03)
    ax.set_yticks([0, 0.25, 0.5, 0.75, 1])
    ax.yaxis.set_major_formatter(FuncFormatter(lambda p, _: f"{100 * p:.0f}%"))
    ax.axhline(0.5, color=GREY, lw=0.8, ls=(0, (2, 2)))
    labels = []
    for name, style in shown.styles.items():
        p_at = shown.scores["p_better_at"].sel(model=name).to_numpy()
        ax.plot(draws, p_at, **_line(style, draws.size), clip_on=False)
        labels.append(Label(p_at[-1], f"{style.label} {percent(p_at[-1])}", style.colour))
    _draws_axis(ax, draws)
    label_right(ax, labels, height)
    titled(ax, f"{shown.kind}: probability of beating {shown.comparator}")


def answer(comparison: xr.Dataset) -> Figure:
    """`difference`, `uncertainty` and `probability` of the joint scores, one below the other.

    Args:
        comparison: of at least two models, as these functions take it.
    """
    (shown,) = _shown(comparison.sel(kind=["joint"]))
    height = 2.2
    figure, axes = stacked(3, height)
    for ax, panel in zip(
        axes, (_difference_panel, _uncertainty_panel, _probability_panel), strict=True
    ):
        panel(ax, shown, height)
    axes[-1].set_xlabel("draws per chain", fontsize=NORMAL)
    _difference_legend(figure)
    return figure


def rhat(diagnostics: Mapping[str, xr.Dataset]) -> Figure:
    """R-hat of every fold over draws, one panel per model, R-hat max in bold.

    Args:
        diagnostics: for each model `rhat_at` (fold, point); `point` in draws per chain.

    >>> folds = xr.Dataset({"rhat_at": (("fold", "point"), [[1.2, 1.05], [1.1, 1.005]])},
    ...                    coords={"fold": ["rat 1", "rat 2"], "point": [20, 40]})
    >>> rhat({"slopes": folds}).axes[0].get_title(loc="left")
    'slopes: R-hat of 2 folds'
    """
    height = 1.9
    figure, axes = stacked(len(diagnostics), height, sharey=True)
    styles = _styles(diagnostics)
    _rhat_axis(
        axes[0], np.concatenate([d["rhat_at"].to_numpy().ravel() for d in diagnostics.values()])
    )
    for ax, (name, folds) in zip(axes, diagnostics.items(), strict=True):
        draws, rhat_at = folds["point"].to_numpy(), folds["rhat_at"].to_numpy()
        excess_at = np.minimum(rhat_at - 1, ax.get_ylim()[1])
        worst_at = _max(excess_at)
        ax.axhline(GOOD_RHAT - 1, color=INK, lw=0.9, ls=DASHED)
        _fold_lines(ax, draws, excess_at, styles[name])
        ax.plot(draws, worst_at, color=INK, marker="." if draws.size == 1 else "", lw=2.4)
        labels = [Label(GOOD_RHAT - 1, f"{GOOD_RHAT:g}", INK)]
        if np.isfinite(worst_at[-1]):
            worst = int(np.nanargmax(rhat_at[:, -1]))
            text = f"{rhat_at[worst, -1]:.3f}".replace("inf", "∞")
            labels.append(Label(worst_at[-1], f"max {text}, {_fold_labels(folds)[worst]}", INK))
        title = f"{styles[name].label}: {rhat_name(folds)} of {len(excess_at)} folds"
        if missing := int(np.isnan(rhat_at[:, -1]).sum()):
            title += f", {missing} missing"
        _draws_axis(ax, draws)
        label_right(ax, labels, height)
        titled(ax, title)
    axes[-1].set_xlabel("draws per chain", fontsize=NORMAL)
    return figure


def rhat_name(run: xr.Dataset) -> str:
    """What R-hat of a run is: nested where chains start together."""
    return "nested R-hat" if run.attrs.get("superchains") else "R-hat"


def _fold_lines(
    ax: Axes,
    draws: Num[np.ndarray, " point"],
    values: Float[np.ndarray, "fold point"],
    style: Style,
) -> None:
    """One thin line per fold."""
    thin = len(values) > MAX_NAMED_FOLDS
    ax.plot(
        np.tile(np.append(draws, np.nan), len(values)),
        np.pad(values, ((0, 0), (0, 1)), constant_values=np.nan).ravel(),
        color=style.colour,
        marker="." if draws.size == 1 else "",
        lw=0.4 if thin else 0.8,
        alpha=0.4 if thin else 0.6,
    )


def ess(diagnostics: Mapping[str, xr.Dataset], comparison: xr.Dataset | None = None) -> Figure:
    """Effective draws of the differences over draws, then of every model's elpd and folds.

    Args:
        diagnostics: for each model `ess_at` (fold, point) and `joint_ess_total_at` (point);
            `point` in draws per chain.
        comparison: `ess_diff_at` (model, point), NaN of the comparator; None: of a single model.

    >>> folds = xr.Dataset({"ess_at": (("fold", "point"), [[70.0, 160.0], [90.0, 150.0]]),
    ...                     "joint_ess_total_at": ("point", [80.0, 155.0])},
    ...                    coords={"fold": ["rat 1", "rat 2"], "point": [20, 40]})
    >>> [ax.get_title(loc="left") for ax in ess({"slopes": folds}).axes]
    ['slopes: ESS of 2 folds']
    """
    height, styles = 1.9, _styles(diagnostics)
    curves = {}
    if comparison is not None:
        every = comparison["ess_diff_at"].dropna("model", how="all")
        curves = {str(name): every.sel(model=name).to_numpy() for name in every["model"].values}
    figure, axes = stacked(bool(curves) + len(diagnostics), height, sharex=True, sharey=True)
    draws = next(iter(diagnostics.values()))["point"].to_numpy()
    last = [x[-1:] for x in curves.values()]
    last += [d["ess_at"][:, -1].to_numpy() for d in diagnostics.values()]
    highest = np.nanmax(np.concatenate(last), initial=1.0)
    axes[0].set_ylim(0, 1.15 * highest)  # early estimates are wild
    _draws_axis(axes[0], draws)
    for ax in axes:
        ax.yaxis.set_major_formatter(FuncFormatter(lambda n, _: f"{n:,.0f}"))
    if curves:
        titled(axes[0], "ESS of the difference" + "s" * (len(curves) > 1))
        ends = []
        for name, curve in curves.items():
            style = styles[name]
            axes[0].plot(draws, curve, **_line(style, draws.size))
            ends.append(Label(curve[-1], f"{style.label}\n{curve[-1]:,.0f}", style.colour))
        label_right(axes[0], ends, height)
    for ax, (name, folds) in zip(axes[bool(curves) :], diagnostics.items(), strict=True):
        total = folds["joint_ess_total_at"].to_numpy()
        _fold_lines(ax, draws, folds["ess_at"].to_numpy(), styles[name])
        ax.plot(draws, total, color=INK, marker="." if draws.size == 1 else "", lw=2.4)
        label_right(ax, [Label(total[-1], f"elpd\n{total[-1]:,.0f}", INK)], height)
        titled(ax, f"{styles[name].label}: ESS of {folds.sizes['fold']} folds")
    axes[-1].set_xlabel("draws per chain", fontsize=NORMAL)
    return figure


def benchmark(runs: Mapping[str, xr.Dataset], one_axis: bool = True) -> Figure:
    """R-hat max against the histogram of its values when the chains' blocks are shuffled, or
    their superchains.

    Args:
        runs: by title, datasets with `rhat_max`, `benchmark` (replicate) and `benchmark_share`:
            the diagnostics of a model, or the comparison for all models at once.
        one_axis: one axis for all runs; False where they are of different lengths.

    >>> run = xr.Dataset({"rhat_max": 1.02, "benchmark": ("replicate", [1.01, 1.02, 1.03]),
    ...                   "benchmark_share": 0.67})
    >>> benchmark({"slopes": run}).axes[0].get_title(loc="left")
    'slopes: 67% of shuffled replicates at or above'
    """
    figure, axes = stacked(len(runs), 1.7, sharex=one_axis)
    for ax, title, run in zip(axes, shorten(list(runs)), runs.values(), strict=True):
        benchmark_panel(ax, title, run)
    axes[-1].set_xlabel(f"{rhat_name(next(iter(runs.values())))} max", fontsize=NORMAL)
    return figure


def benchmark_panel(ax: Axes, title: str, run: xr.Dataset) -> None:
    """One panel of `benchmark`."""
    observed, share = float(run["rhat_max"]), float(run["benchmark_share"])
    replicates = run["benchmark"].to_numpy()
    replicates = replicates[np.isfinite(replicates)]
    if replicates.size:
        ax.hist(replicates, bins=30, histtype="stepfilled", color="#8fb8d3")
    else:
        _note(ax, "no finite replicate")
    if np.isfinite(observed):
        ax.axvline(observed, color=COLOURS[1], lw=2.5, ymax=0.86)
        ax.annotate(
            f"observed {observed:.3f}",
            (observed, 0.87),
            xycoords=("data", "axes fraction"),
            ha="center",
            va="bottom",
            fontsize=SMALL,
            color=INK,
        )
        text = f"{percent(share)} of shuffled replicates at or above"
    else:
        text = "observed value not finite"
    ax.margins(x=0.12, y=0.25)
    ax.set_yticks([])
    ax.spines["left"].set_visible(False)
    ax.xaxis.set_major_locator(MaxNLocator(6))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda r, _: f"{r:.4g}"))
    titled(ax, f"{title}: {text}")


def fold_differences(comparison: xr.Dataset) -> Figure:
    """Differences of single folds ± 2 MCSE, sorted; by name up to 40 folds, else the extremes.

    With a single model: the elpds of its folds.

    Args:
        comparison: `fold_diff`, `fold_mcse_diff` (kind, model, fold), in nats; pointwise ones are
            sums over the units of a fold. With a single model `fold_elpd`, `fold_mcse`.
    """
    panels = _shown(comparison)
    named = comparison.sizes["fold"] <= MAX_NAMED_FOLDS
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
        _legend(figure, handles, [style.label for style in models.values()])
    return figure


def khat(diagnostics: Mapping[str, xr.Dataset]) -> Figure:
    """Pareto k-hat of the predictive draws of every fold, one panel per model.

    Above `good_k` the MCSE of a fold cannot be trusted; above 1 the draws have no finite mean.

    Args:
        diagnostics: for each model `khat` (fold) and the attribute `good_k`.

    >>> folds = xr.Dataset({"khat": ("fold", [0.1, 0.9])}, coords={"fold": ["rat 1", "rat 2"]},
    ...                    attrs={"good_k": 0.7})
    >>> khat({"slopes": folds}).axes[0].get_title(loc="left")
    'slopes: k-hat above 0.7 in 1 of 2 folds'
    """
    height = 1.9
    figure, axes = stacked(len(diagnostics), height, sharex=True, sharey=True)
    styles = _styles(diagnostics)
    values = np.concatenate([d["khat"].to_numpy() for d in diagnostics.values()])
    _include(axes[0], "y", [-0.1, 1.2, *values])
    for ax, (name, folds) in zip(axes, diagnostics.items(), strict=True):
        values, good_k = folds["khat"].to_numpy(), float(folds.attrs["good_k"])
        drawn = np.minimum(values, ax.get_ylim()[1])
        order, bad = np.arange(1, values.size + 1), values > good_k
        limits = {good_k: ":", 1.0: DASHED}
        for limit, dash in limits.items():
            ax.axhline(limit, color=INK, lw=0.9, ls=dash)
        _points(ax, order, drawn, bad, styles[name])
        worst = [k for k in np.argsort(-values) if bad[k]][:4]
        title = (
            f"{styles[name].label}: k-hat above {good_k:.2g} in {bad.sum()} of {values.size} folds"
        )
        if missing := int(np.isnan(values).sum()):
            title += f", {missing} missing"
        ax.set_xlim(0.2, values.size + 0.8)
        ax.xaxis.set_major_locator(MaxNLocator(8, integer=True))
        label_right(ax, [Label(limit, f"{limit:.2g}", INK) for limit in limits], height)
        _label_points(ax, order[worst], drawn[worst], _fold_labels(folds)[worst])
        titled(ax, title)
    axes[-1].set_xlabel("fold", fontsize=NORMAL)
    return figure


def full_data(diagnostics: Mapping[str, xr.Dataset]) -> Figure:
    """R-hat against effective sample size of each parameter of the full-data fits.

    Args:
        diagnostics: for each model `fit_rhat`, `fit_ess` (param), with names on `param`.

    >>> fit = xr.Dataset({"fit_rhat": ("param", [1.001, 1.02]), "fit_ess": ("param", [900, 310])},
    ...                  coords={"param": ["mu", "sigma"]})
    >>> full_data({"slopes": fit}).axes[0].get_title(loc="left")
    'slopes: 1 of 2 parameters beyond a limit'
    """
    figure, axes = stacked(len(diagnostics), 2.0, sharex=True, sharey=True)
    styles = _styles(diagnostics)
    axes[0].set_xscale("log")
    ess = np.concatenate([_positive(fit["fit_ess"].to_numpy()) for fit in diagnostics.values()])
    _include(axes[0], "x", [300.0, 3000.0, *ess])
    _log_ticks(axes[0].xaxis)
    _rhat_axis(
        axes[0], np.concatenate([fit["fit_rhat"].to_numpy() for fit in diagnostics.values()])
    )
    for ax, (name, fit) in zip(axes, diagnostics.items(), strict=True):
        excess = np.minimum(fit["fit_rhat"].to_numpy() - 1, ax.get_ylim()[1])
        ess = _positive(fit["fit_ess"].to_numpy())
        bad = ~((excess <= GOOD_RHAT - 1) & (ess >= GOOD_ESS))
        ax.axhline(GOOD_RHAT - 1, color=INK, lw=0.9, ls=DASHED)
        ax.axvline(GOOD_ESS, color=INK, lw=0.9, ls=DASHED)
        _points(ax, ess, excess, bad, styles[name])
        whole = np.flatnonzero(np.isfinite(excess) & np.isfinite(ess))
        if whole.size:
            worst = sorted({whole[np.argmax(excess[whole])], whole[np.argmin(ess[whole])]})
            names = np.array(shorten(fit["param"].to_numpy()))
            _label_points(ax, ess[worst], excess[worst], names[worst])
        ax.annotate(
            f"{GOOD_ESS}",
            (GOOD_ESS, 0.0),
            xytext=(-3, 3),
            xycoords=("data", "axes fraction"),
            textcoords="offset points",
            ha="right",
            fontsize=SMALL,
            color=INK,
        )
        ax.set_ylabel("R-hat", fontsize=NORMAL)
        titled(ax, f"{styles[name].label}: {bad.sum()} of {bad.size} parameters beyond a limit")
    axes[-1].set_xlabel("effective sample size", fontsize=NORMAL)
    return figure


def shorten(names: Iterable[str], width: int = 18) -> list[str]:
    """Names cut in the middle to at most `width` characters, and still all different.

    Where the cut would make two names alike, it first takes away what all of them begin and end
    with; where that does not help, they are numbered.

    >>> shorten(["slopes", "varying_intercepts_and_slopes"])
    ['slopes', 'varying_i…d_slopes']
    >>> shorten(["random_slopes_wide_centred", "random_slopes_narrow_centred"])
    ['…wide…', '…narrow…']
    """
    names = [str(name) for name in names]

    def cut(name: str) -> str:
        half = width // 2
        return name if len(name) <= width else f"{name[:half]}…{name[half + 1 - width :]}"

    def shared(texts: list[str]) -> int:
        return len(list(takewhile(lambda letters: len(set(letters)) == 1, zip(*texts))))

    short = [cut(name) for name in names]
    if len(set(short)) < len(names):
        head = shared(names)
        tail = shared([name[head:][::-1] for name in names])
        short = [cut(f"…{name[head : len(name) - tail]}…") for name in names]
    if len(set(short)) < len(names):
        short = [f"{i}: {cut(name)}" for i, name in enumerate(names, 1)]
    return short


def number(value: float, error: float = np.nan) -> str:
    """A number with as many decimals as give its error two figures, at least one, and one more
    where it would be rounded to 0.

    >>> number(-14.534, 7.03), number(0.3518, 0.3518), number(-0.04, 7.03), number(float("nan"))
    ('−14.5', '0.35', '−0.04', '–')
    """
    if not np.isfinite(value):
        return "–" if np.isnan(value) else "∞" if value > 0 else "−∞"
    known = np.isfinite(error) and error > 0
    decimals = int(np.clip(1 - np.floor(np.log10(error)), 1, 6)) if known else 1
    decimals += int(value != 0 and round(value, decimals) == 0)
    return f"{round(value, decimals) + 0.0:,.{decimals}f}".replace("-", "\N{MINUS SIGN}")


def percent(p: float) -> str:
    """A probability that never claims certainty.

    >>> percent(0.0), percent(0.372), percent(0.9994)
    ('<1%', '37%', '>99%')
    """
    if not np.isfinite(p):
        return "n/a"
    return "<1%" if p < 0.01 else ">99%" if p > 0.99 else f"{100 * p:.0f}%"


def _shown(comparison: xr.Dataset) -> list[Shown]:
    """What each panel shows, one per kind of score."""
    styles = _styles(comparison["model"].to_numpy())
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
        panels.append(Shown(str(kind).capitalize(), scores.rename(present), shown, label))
    return panels


def _fold_labels(folds: xr.Dataset | xr.DataArray) -> Shaped[np.ndarray, " fold"]:
    return np.array(shorten(folds["fold"].to_numpy(), 20))


def _styles(models: Iterable[str]) -> dict[str, Style]:
    names = [str(name) for name in models]
    return {
        name: Style(
            label, COLOURS[i % len(COLOURS)], MARKERS[i % len(MARKERS)], DASHES[i % len(DASHES)]
        )
        for i, (name, label) in enumerate(zip(names, shorten(names), strict=True))
    }


def _line(style: Style, points: int) -> dict[str, Any]:
    every = max(1, points // 12)
    return {
        "color": style.colour,
        "marker": style.marker,
        "ls": style.dash,
        "ms": 4.5,
        "lw": 1.6,
        "markevery": ((points - 1) % every, every),
    }


def _positive(values: Num[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
    return np.where(np.isfinite(values) & (values > 0), values, np.nan)


def _max(values: Float[np.ndarray, "fold point"]) -> Float[np.ndarray, " point"]:
    """The largest finite value over folds, nan where there is none."""
    largest = np.where(np.isnan(values), -np.inf, values).max(axis=0)
    return np.where(np.isinf(largest), np.nan, largest)


class Drawing(Figure):
    """A figure that notebooks show by themselves, also where pyplot was never imported."""

    def _repr_png_(self) -> bytes:
        image = BytesIO()
        self.savefig(image, format="png")
        return image.getvalue()


def stacked(
    rows: int, height: float, sharex: bool = False, sharey: bool = False
) -> tuple[Figure, list[Axes]]:
    figure = Drawing(figsize=(WIDTH, rows * height + 0.35), layout=_layout())
    axes = list(figure.subplots(rows, 1, squeeze=False, sharex=sharex, sharey=sharey).ravel())
    for ax in axes:
        _plain(ax)
    return figure, axes


def _layout() -> ConstrainedLayoutEngine:
    return ConstrainedLayoutEngine(w_pad=0.07, h_pad=0.07)


def _plain(ax: Axes) -> None:
    ax.spines[["top", "right"]].set_visible(False)
    ax.spines[["left", "bottom"]].set_color(GREY)
    ax.tick_params(labelsize=SMALL, labelcolor=INK, color=GREY)
    ax.grid(axis="y", color=FAINT, lw=0.6)
    ax.set_axisbelow(True)


def titled(ax: Axes, text: str) -> None:
    ax.set_title(text, loc="left", fontsize=NORMAL, color=INK, parse_math=False)


def _note(ax: Axes, text: str) -> None:
    ax.text(0.5, 0.6, text, transform=ax.transAxes, ha="center", fontsize=NORMAL, color=GREY)


def _legend(figure: Figure, handles: Sequence[Artist], texts: Sequence[str]) -> None:
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


def _include(ax: Axes, axis: Literal["x", "y"], values: Iterable[float]) -> None:
    """Axis limits that hold all finite values, with a margin."""
    scale = (ax.xaxis if axis == "x" else ax.yaxis).get_transform()
    places = scale.transform(np.array([value for value in values if np.isfinite(value)]))
    margin = 0.07 * np.ptp(places) if np.ptp(places) else 1.0
    limits = scale.inverted().transform([places.min() - margin, places.max() + margin])
    (ax.set_xlim if axis == "x" else ax.set_ylim)(*limits)


def _difference_extent(shown: Shown) -> Float[np.ndarray, " value"]:
    """What the axis has to hold: the final bars, and noisy early estimates within reason."""
    scores = shown.scores
    value, se = scores["value"].to_numpy(), scores["se"].to_numpy()
    final = np.concatenate([value - se, value + se, [0.0] if shown.comparator else []])
    final = final[np.isfinite(final)] if np.isfinite(final).any() else np.array([-1.0, 1.0])
    band = 2 * scores["mcse_at"]
    early = np.concatenate([scores["value_at"] - band, scores["value_at"] + band]).ravel()
    room = 0.5 * max(np.ptp(final), 1e-3)
    early = np.clip(early[np.isfinite(early)], final.min() - room, final.max() + room)
    return np.concatenate([final, early])


def _draws_axis(ax: Axes, draws: Num[np.ndarray, " point"], right: float | None = None) -> None:
    ax.set_xlim(0, 1.02 * draws[-1] if right is None else right)
    ticks = MaxNLocator(5, integer=True).tick_values(0, draws[-1])
    ax.xaxis.set_major_locator(FixedLocator(ticks[ticks <= draws[-1]]))


def _log_ticks(axis: XAxis | YAxis) -> None:
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axis.set_minor_locator(NullLocator())


def _rhat_axis(ax: Axes, rhat: Num[np.ndarray, " value"]) -> None:
    """An axis for R-hat - 1 that reads R-hat: linear near 1, logarithmic far above."""
    ax.set_yscale("asinh", linear_width=GOOD_RHAT - 1)
    _include(ax, "y", [0.0, 1.5 * (GOOD_RHAT - 1), *(rhat - 1)])
    ax.yaxis.set_major_locator(FixedLocator([-0.03, -0.01, 0, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30]))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda excess, _: f"{1 + excess:g}"))
    ax.yaxis.set_minor_locator(NullLocator())


def _spread(
    wanted: Float[np.ndarray, " label"], heights: Float[np.ndarray, " label"]
) -> Float[np.ndarray, " label"]:
    """Places in 0..1 of labels, moved from where they belong by as little as keeps them apart."""
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


def _fractions(
    ax: Axes, x: Num[np.ndarray, " label"], y: Num[np.ndarray, " label"]
) -> Float[np.ndarray, "label 2"]:
    """Points of the data in fractions of the axes."""
    points = np.column_stack([x, y]).astype(float)
    return ax.transAxes.inverted().transform(ax.transData.transform(points))


def label_right(ax: Axes, labels: Sequence[Label], height: float) -> None:
    """Names beside the right edge, tied by a short line to where they belong."""
    tall = np.array([(label.text.count("\n") + 1) * 0.165 / (height - 0.6) for label in labels])
    y = np.array([label.y for label in labels])
    wanted = _fractions(ax, np.full(y.size, ax.get_xlim()[1]), y)[:, 1]
    wanted = np.clip(np.where(np.isfinite(wanted), wanted, 0.5), 0, 1)
    for label, from_y, to_y in zip(labels, wanted, _spread(wanted, tall), strict=True):
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


def _label_points(
    ax: Axes,
    x: Num[np.ndarray, " label"],
    y: Num[np.ndarray, " label"],
    names: Shaped[np.ndarray, " label"],
) -> None:
    """Names beside points, on the side where there is more room."""
    at = _fractions(ax, x, y)
    height = 0.165 / (ax.bbox.height / ax.figure.dpi)
    for left, side in ((False, at[:, 0] <= 0.5), (True, at[:, 0] > 0.5)):
        places = _spread(at[side, 1], np.full(side.sum(), height))
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


def _points(
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


def _folds_by_name(panels: Sequence[Shown]) -> Figure:
    first = panels[0].scores["fold_value"]
    order = np.argsort(first.isel(model=0).to_numpy())
    rows = np.arange(order.size)
    figure = Drawing(figsize=(WIDTH, 0.17 * order.size + 1.3), layout=_layout())
    axes = figure.subplots(1, len(panels), squeeze=False, sharey=True).ravel()
    for ax, shown in zip(axes, panels, strict=True):
        _plain(ax)
        if shown.comparator is not None:
            ax.axvline(0, color=INK, lw=0.9)
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
            what = f"{next(iter(shown.styles.values())).label}\nminus {shown.comparator}"
        else:
            what = f"difference\nto {shown.comparator}"
        ax.set_xlabel(what, fontsize=SMALL, parse_math=False)
        titled(ax, shown.kind)
    axes[0].set_yticks(rows, _fold_labels(first)[order], parse_math=False)
    return figure


def _folds_by_order(panels: Sequence[Shown]) -> Figure:
    figure, axes = stacked(len(panels), 2.6, sharex=True)
    for ax, shown in zip(axes, panels, strict=True):
        scores = shown.scores.assign_coords(fold=_fold_labels(shown.scores))
        ends: dict[str, tuple[float, float, Style]] = {}
        if shown.comparator is not None:
            ax.axhline(0, color=INK, lw=0.9)
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
            _label_points(ax, at[:, 0], at[:, 1], np.array(extremes))
        title = f"{shown.kind}: {shown.quantity}"
        if shown.comparator is not None and len(shown.styles) == 1:
            title = f"{shown.kind}: {next(iter(shown.styles.values())).label}, {shown.quantity}"
        titled(ax, title)
    axes[-1].set_xlabel("folds, for each model in the order of its values", fontsize=NORMAL)
    return figure
