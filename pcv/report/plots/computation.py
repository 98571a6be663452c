"""Figures of the computation: R-hat, benchmark, ESS, k-hat, overlap, full-data fits."""

from collections.abc import Mapping

import numpy as np
import xarray as xr
from jaxtyping import Float, Num
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from pcv.analysis.results.numbers import percent
from pcv.analysis.verdicts import MIN_CROSSINGS
from pcv.report.plots import shared
from pcv.report.plots.words import shorten

GOOD_RHAT = 1.01
GOOD_ESS = 400
NAMED_OVERLAP = 0.8
"""overlap below which the worst folds are named"""


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
    figure, axes = shared.stacked(len(diagnostics), height, sharey=True)
    styles = shared.styles_of(diagnostics)
    _rhat_axis(
        axes[0], np.concatenate([d["rhat_at"].to_numpy().ravel() for d in diagnostics.values()])
    )
    for ax, (name, folds) in zip(axes, diagnostics.items(), strict=True):
        draws, rhat_at = folds["point"].to_numpy(), folds["rhat_at"].to_numpy()
        excess_at = np.minimum(rhat_at - 1, ax.get_ylim()[1])
        worst_at = _max(excess_at)
        ax.axhline(GOOD_RHAT - 1, color=shared.INK, lw=0.9, ls=shared.DASHED)
        _fold_lines(ax, folds, excess_at, styles[name])
        ax.plot(draws, worst_at, color=shared.INK, marker="." if draws.size == 1 else "", lw=2.4)
        labels = [shared.Label(GOOD_RHAT - 1, f"{GOOD_RHAT:g}", shared.INK)]
        if np.isfinite(worst_at[-1]):
            worst = int(np.nanargmax(rhat_at[:, -1]))
            text = f"{rhat_at[worst, -1]:.3f}".replace("inf", "∞")
            labels.append(
                shared.Label(
                    worst_at[-1], f"max {text}, {shared.fold_labels(folds)[worst]}", shared.INK
                )
            )
        title = f"{styles[name].label}: {rhat_name(folds)} of {len(excess_at)} folds"
        if missing := int(np.isnan(rhat_at[:, -1]).sum()):
            title += f", {missing} missing"
        shared.draws_axis(ax, draws)
        shared.label_right(ax, labels, height)
        shared.titled(ax, title)
    axes[-1].set_xlabel("draws per chain", fontsize=shared.NORMAL)
    return figure


def rhat_name(run: xr.Dataset) -> str:
    """Name of the R-hat of a run: nested where chains have a single batch."""
    return "nested R-hat" if run.attrs.get("rhat_is_nested") else "R-hat"


def _fold_lines(
    ax: Axes, folds: xr.Dataset, values: Float[np.ndarray, "fold point"], style: shared.Style
) -> None:
    """One thin line per fold, up to its last draw."""
    draws = folds["point"].to_numpy()
    if "n_draws" in folds:
        reached = draws[:-1] < folds["n_draws"].to_numpy()[:, None]
        values = np.where(np.pad(reached, ((0, 0), (1, 0)), constant_values=True), values, np.nan)
    thin = len(values) > shared.MAX_NAMED_FOLDS
    ax.plot(
        np.tile(np.append(draws, np.nan), len(values)),
        np.pad(values, ((0, 0), (0, 1)), constant_values=np.nan).ravel(),
        color=style.colour,
        marker="." if draws.size == 1 else "",
        lw=0.4 if thin else 0.8,
        alpha=0.4 if thin else 0.6,
    )


def ess(diagnostics: Mapping[str, xr.Dataset], comparison: xr.Dataset | None = None) -> Figure:
    """Progressive ESS of the differences, then of every model's elpd and folds.

    Args:
        diagnostics: for each model `ess_at` (fold, point) and `joint_ess_total_at` (point);
            `point` in draws per chain.
        comparison: `ess_diff_at` (model, point), NaN for the comparator; None for a single model.

    >>> folds = xr.Dataset({"ess_at": (("fold", "point"), [[70.0, 160.0], [90.0, 150.0]]),
    ...                     "joint_ess_total_at": ("point", [80.0, 155.0])},
    ...                    coords={"fold": ["rat 1", "rat 2"], "point": [20, 40]})
    >>> [ax.get_title(loc="left") for ax in ess({"slopes": folds}).axes]
    ['slopes: ESS of 2 folds']
    """
    height, styles = 1.9, shared.styles_of(diagnostics)
    curves = {}
    if comparison is not None:
        every = comparison["ess_diff_at"].dropna("model", how="all")
        curves = {str(name): every.sel(model=name).to_numpy() for name in every["model"].values}
    figure, axes = shared.stacked(bool(curves) + len(diagnostics), height, sharex=True, sharey=True)
    draws = next(iter(diagnostics.values()))["point"].to_numpy()
    last = [x[-1:] for x in curves.values()]
    last += [d["ess_at"][:, -1].to_numpy() for d in diagnostics.values()]
    highest = np.nanmax(np.concatenate(last), initial=1.0)
    axes[0].set_ylim(0, 1.15 * highest)  # early estimates are wild
    shared.draws_axis(axes[0], draws)
    for ax in axes:
        ax.yaxis.set_major_formatter(FuncFormatter(lambda n, _: f"{n:,.0f}"))
    if curves:
        shared.titled(axes[0], "ESS of the difference" + "s" * (len(curves) > 1))
        ends = []
        for name, curve in curves.items():
            style = styles[name]
            axes[0].plot(draws, curve, **shared.line_of(style, draws.size))
            ends.append(shared.Label(curve[-1], f"{style.label}\n{curve[-1]:,.0f}", style.colour))
        shared.label_right(axes[0], ends, height)
    for ax, (name, folds) in zip(axes[bool(curves) :], diagnostics.items(), strict=True):
        total = folds["joint_ess_total_at"].to_numpy()
        _fold_lines(ax, folds, folds["ess_at"].to_numpy(), styles[name])
        ax.plot(draws, total, color=shared.INK, marker="." if draws.size == 1 else "", lw=2.4)
        shared.label_right(
            ax, [shared.Label(total[-1], f"elpd\n{total[-1]:,.0f}", shared.INK)], height
        )
        shared.titled(ax, f"{styles[name].label}: ESS of {folds.sizes['fold']} folds")
    axes[-1].set_xlabel("draws per chain", fontsize=shared.NORMAL)
    return figure


def benchmark(runs: Mapping[str, xr.Dataset], one_axis: bool = True) -> Figure:
    """R-hat max and the histogram of its benchmark replicates.

    Args:
        runs: by title, datasets with `rhat_max`, `benchmark` (replicate) and `benchmark_share`:
            the diagnostics of a model, or the comparison for all models together.
        one_axis: one axis for all runs; False if their lengths differ.

    >>> run = xr.Dataset({"rhat_max": 1.02, "benchmark": ("replicate", [1.01, 1.02, 1.03]),
    ...                   "benchmark_share": 0.67})
    >>> benchmark({"slopes": run}).axes[0].get_title(loc="left")
    'slopes: 67% of shuffled replicates at or above'
    """
    figure, axes = shared.stacked(len(runs), 1.7, sharex=one_axis)
    for ax, title, run in zip(axes, shorten(list(runs)), runs.values(), strict=True):
        benchmark_panel(ax, title, run)
    axes[-1].set_xlabel(f"{rhat_name(next(iter(runs.values())))} max", fontsize=shared.NORMAL)
    return figure


def benchmark_panel(ax: Axes, title: str, run: xr.Dataset) -> None:
    """One panel of `benchmark`."""
    observed, share = float(run["rhat_max"]), float(run["benchmark_share"])
    replicates = run["benchmark"].to_numpy()
    replicates = replicates[np.isfinite(replicates)]
    if replicates.size:
        ax.hist(replicates, bins=30, histtype="stepfilled", color="#8fb8d3")
    else:
        shared.add_note(ax, "no finite replicate")
    if np.isfinite(observed):
        ax.axvline(observed, color=shared.COLOURS[1], lw=2.5, ymax=0.86)
        ax.annotate(
            f"observed {observed:.3f}",
            (observed, 0.87),
            xycoords=("data", "axes fraction"),
            ha="center",
            va="bottom",
            fontsize=shared.SMALL,
            color=shared.INK,
        )
        text = f"{percent(share)} of shuffled replicates at or above"
    else:
        text = "observed value not finite"
    ax.margins(x=0.12, y=0.25)
    ax.set_yticks([])
    ax.spines["left"].set_visible(False)
    ax.xaxis.set_major_locator(MaxNLocator(6))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda r, _: f"{r:.4g}"))
    shared.titled(ax, f"{title}: {text}")


def khat(diagnostics: Mapping[str, xr.Dataset]) -> Figure:
    """Pareto k-hat of the predictive draws of every fold, one panel per model.

    Above `good_k` the MCSE of a fold cannot be trusted; above 1 the mean is infinite.

    Args:
        diagnostics: for each model `khat` (fold) and the attribute `good_k`.

    >>> folds = xr.Dataset({"khat": ("fold", [0.1, 0.9])}, coords={"fold": ["rat 1", "rat 2"]},
    ...                    attrs={"good_k": 0.7})
    >>> khat({"slopes": folds}).axes[0].get_title(loc="left")
    'slopes: k-hat above 0.7 in 1 of 2 folds'
    """
    height = 1.9
    figure, axes = shared.stacked(len(diagnostics), height, sharex=True, sharey=True)
    styles = shared.styles_of(diagnostics)
    values = np.concatenate([d["khat"].to_numpy() for d in diagnostics.values()])
    shared.include(axes[0], "y", [-0.1, 1.2, *values])
    for ax, (name, folds) in zip(axes, diagnostics.items(), strict=True):
        values, good_k = folds["khat"].to_numpy(), float(folds.attrs["good_k"])
        drawn = np.minimum(values, ax.get_ylim()[1])
        order, bad = np.arange(1, values.size + 1), values > good_k
        limits = {good_k: ":", 1.0: shared.DASHED}
        for limit, dash in limits.items():
            ax.axhline(limit, color=shared.INK, lw=0.9, ls=dash)
        shared.mark_points(ax, order, drawn, bad, styles[name])
        worst = [k for k in np.argsort(-values) if bad[k]][:4]
        title = (
            f"{styles[name].label}: k-hat above {good_k:.2g} in {bad.sum()} of {values.size} folds"
        )
        if missing := int(np.isnan(values).sum()):
            title += f", {missing} missing"
        ax.set_xlim(0.2, values.size + 0.8)
        ax.xaxis.set_major_locator(MaxNLocator(8, integer=True))
        shared.label_right(
            ax, [shared.Label(limit, f"{limit:.2g}", shared.INK) for limit in limits], height
        )
        shared.label_points(ax, order[worst], drawn[worst], shared.fold_labels(folds)[worst])
        shared.titled(ax, title)
    axes[-1].set_xlabel("fold", fontsize=shared.NORMAL)
    return figure


def overlap(diagnostics: Mapping[str, xr.Dataset]) -> Figure:
    """Overlap of every fold's posterior with the full-data one, one panel per model.

    Filled marks are folds with fewer than 20 crossings between sides.

    Args:
        diagnostics: for each model `overlap` and `crossings` (fold), NaN for one-sided folds.

    >>> folds = xr.Dataset({"overlap": ("fold", [0.9, 0.4]), "crossings": ("fold", [700.0, 300.0])},
    ...                    coords={"fold": ["rat 1", "rat 2"]})
    >>> overlap({"slopes": folds}).axes[0].get_title(loc="left")
    'slopes: overlap at least 0.4'
    """
    figure, axes = shared.stacked(len(diagnostics), 1.9, sharex=True, sharey=True)
    styles = shared.styles_of(diagnostics)
    shared.include(axes[0], "y", [0.0, 1.0])
    for ax, (name, folds) in zip(axes, diagnostics.items(), strict=True):
        values, bad = folds["overlap"].to_numpy(), folds["crossings"].to_numpy() < MIN_CROSSINGS
        order, known = np.arange(1, values.size + 1), np.isfinite(values)
        shared.mark_points(ax, order, values, bad, styles[name])
        ascending = [k for k in np.argsort(values) if known[k]]
        worst = [k for k in ascending if values[k] < NAMED_OVERLAP][:4] or ascending[:1]
        title = f"{styles[name].label}: "
        title += f"overlap at least {values[known].min():.2g}" if known.any() else "one side alone"
        if 0 < known.sum() < values.size:
            title += f", {values.size - known.sum()} folds with one side"
        ax.set_xlim(0.2, values.size + 0.8)
        ax.xaxis.set_major_locator(MaxNLocator(8, integer=True))
        shared.label_points(ax, order[worst], values[worst], shared.fold_labels(folds)[worst])
        shared.titled(ax, title)
    axes[-1].set_xlabel("fold", fontsize=shared.NORMAL)
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
    figure, axes = shared.stacked(len(diagnostics), 2.0, sharex=True, sharey=True)
    styles = shared.styles_of(diagnostics)
    axes[0].set_xscale("log")
    ess = np.concatenate(
        [shared.positive(fit["fit_ess"].to_numpy()) for fit in diagnostics.values()]
    )
    shared.include(axes[0], "x", [300.0, 3000.0, *ess])
    shared.log_ticks(axes[0].xaxis)
    _rhat_axis(
        axes[0], np.concatenate([fit["fit_rhat"].to_numpy() for fit in diagnostics.values()])
    )
    for ax, (name, fit) in zip(axes, diagnostics.items(), strict=True):
        excess = np.minimum(fit["fit_rhat"].to_numpy() - 1, ax.get_ylim()[1])
        ess = shared.positive(fit["fit_ess"].to_numpy())
        bad = ~((excess <= GOOD_RHAT - 1) & (ess >= GOOD_ESS))
        ax.axhline(GOOD_RHAT - 1, color=shared.INK, lw=0.9, ls=shared.DASHED)
        ax.axvline(GOOD_ESS, color=shared.INK, lw=0.9, ls=shared.DASHED)
        shared.mark_points(ax, ess, excess, bad, styles[name])
        whole = np.flatnonzero(np.isfinite(excess) & np.isfinite(ess))
        if whole.size:
            worst = sorted({whole[np.argmax(excess[whole])], whole[np.argmin(ess[whole])]})
            names = np.array(shorten(fit["param"].to_numpy()))
            shared.label_points(ax, ess[worst], excess[worst], names[worst])
        ax.annotate(
            f"{GOOD_ESS}",
            (GOOD_ESS, 0.0),
            xytext=(-3, 3),
            xycoords=("data", "axes fraction"),
            textcoords="offset points",
            ha="right",
            fontsize=shared.SMALL,
            color=shared.INK,
        )
        ax.set_ylabel("R-hat", fontsize=shared.NORMAL)
        shared.titled(
            ax, f"{styles[name].label}: {bad.sum()} of {bad.size} parameters beyond a limit"
        )
    axes[-1].set_xlabel("effective sample size", fontsize=shared.NORMAL)
    return figure


def _max(values: Float[np.ndarray, "fold point"]) -> Float[np.ndarray, " point"]:
    """The largest finite value over folds, nan where there is none."""
    largest = np.where(np.isnan(values), -np.inf, values).max(axis=0)
    return np.where(np.isinf(largest), np.nan, largest)


def _rhat_axis(ax: Axes, rhat: Num[np.ndarray, " value"]) -> None:
    """An axis for R-hat - 1 labelled with R-hat: linear near 1, logarithmic far above."""
    ax.set_yscale("asinh", linear_width=GOOD_RHAT - 1)
    shared.include(ax, "y", [0.0, 1.5 * (GOOD_RHAT - 1), *(rhat - 1)])
    ax.yaxis.set_major_locator(FixedLocator([-0.03, -0.01, 0, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30]))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda excess, _: f"{1 + excess:g}"))
    ax.yaxis.set_minor_locator(NullLocator())
