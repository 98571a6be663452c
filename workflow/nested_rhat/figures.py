"""The paper's figures 1 and 3 to 9, from the runs."""

from collections.abc import Mapping

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from scipy.optimize import brentq
from scipy.special import chdtr, chdtri

from nested_rhat.errors import LEVEL, Errors, accepted, errors, limit, share_large
from pcv.report import plots
from pcv.report.plots.shared import GREY, Drawing, add_legend, constrained, plain

SAMPLERS = {"program": "the folds' program", "chees": "ChEES-HMC"}
MOST_POINTS = 1500
"""shown of a sampler and target in figure 5"""
FEWEST = 50
"""accepted estimates for a share to be shown"""
TIMES = np.geomspace(0.1, 1e5, 60)
"""τ in figures 6 and 7, in units of the threshold's"""
ByTitle = Mapping[str, xr.Dataset]
"""runs by title of the target"""


def figure_1(run: xr.Dataset) -> Figure:
    """Squared errors and R-hats of a long and of many short chains."""
    made, axes = plots.stacked(2, 2.4, sharex=True)
    at, names = run["point"], ("4 chains", "512 chains", "4 x 128 chains")
    for name, colour in zip(("error_few", "error_many"), plots.COLOURS):
        axes[0].loglog(at, run[name], color=colour, lw=1.6)
    axes[0].axhline(0.01, color=plots.INK, lw=0.8, ls="--")
    axes[0].set_ylabel("squared error / variance", fontsize=plots.NORMAL)
    for name, colour in zip(("rhat_few", "rhat_many", "nested_rhat"), plots.COLOURS):
        axes[1].loglog(at, run[name] - 1, color=colour, lw=1.6)
    axes[1].axhline(0.01, color=plots.INK, lw=0.8, ls="--")
    axes[1].set_ylabel("R-hat - 1", fontsize=plots.NORMAL)
    axes[1].set_xlabel("draws per chain", fontsize=plots.NORMAL)
    lines = axes[1].get_lines()[:3]
    add_legend(made, lines, [f"{names[0]}, R-hat", f"{names[1]}, R-hat", f"{names[2]}, nested"])
    return made


def figure_3(run: xr.Dataset) -> Figure:
    """Variance of means of a chain, of independent chains and of a superchain."""
    made, axes = plots.stacked(2, 2.2, sharex=True)
    for ax, name in zip(axes, run["distribution"].values):
        for line, colour in zip(run["variance"].sel(distribution=name).values, plots.COLOURS):
            ax.semilogy(run["time"], line, color=colour, lw=1.6)
        plots.titled(ax, name)
        ax.set_ylabel("variance", fontsize=plots.NORMAL)
    axes[1].set_xlabel("time of warmup", fontsize=plots.NORMAL)
    words = ["one chain", "independent chains", "superchain"]
    add_legend(made, axes[0].get_lines(), words)
    return made


def figure_4(run: xr.Dataset) -> Figure:
    """Variance of nB/nW in warmup and after it."""
    made, axes = plots.stacked(2, 2.4)
    after = run["stationary_ratio_variance"]
    number = np.arange(1, after.sizes["draws"] + 1)
    for at, values, ax in ((run["time"], run["ratio_variance"], axes[0]), (number, after, axes[1])):
        for line, colour in zip(values.values, plots.COLOURS):
            ax.semilogy(at, line, color=colour, lw=1.6)
        ax.set_ylabel("variance of nB/nW", fontsize=plots.NORMAL)
    axes[0].set_xlabel("time of warmup", fontsize=plots.NORMAL)
    axes[1].set_xlabel("draws per stationary chain", fontsize=plots.NORMAL)
    add_legend(made, axes[0].get_lines(), [f"K = {k}" for k in run["split"].values])
    return made


def _grid(columns: int, rows: int, height: float, shared: bool = True) -> tuple[Figure, np.ndarray]:
    made = Drawing(figsize=(plots.WIDTH, rows * height + 0.35), layout=constrained())
    axes = made.subplots(rows, columns, sharex=shared, sharey=shared, squeeze=False)
    for ax in axes.ravel():
        plain(ax)
    return made, axes


def figure_5(runs: ByTitle) -> Figure:
    """Squared error against nested R-hat, by target."""
    made, axes = _grid(2, -(-len(runs) // 2), 1.9)
    rng = np.random.default_rng(1)
    for ax, (title, run) in zip(axes.ravel(), runs.items()):
        for sampler, colour in zip(SAMPLERS, plots.COLOURS):
            found = errors(run, sampler, int(run["superchains"][0]))
            x, y = np.maximum(found.rhat.ravel() - 1, 1e-4), np.maximum(found.squared.ravel(), 1e-3)
            some = rng.permutation(x.size)[:MOST_POINTS]
            ax.loglog(x[some], y[some], ".", ms=2, color=colour, alpha=0.5, rasterized=True)
        ax.axvline(limit(run, int(run["superchains"][0])) - 1, color=plots.INK, lw=0.9)
        for level, dash in ((0.95, "--"), (0.5, "-"), (0.05, "--")):
            ax.axhline(float(chdtri(1, level)), color=plots.INK, lw=0.7, ls=dash)
        plots.titled(ax, title)
    for ax in axes[-1]:
        ax.set_xlabel("nested R-hat - 1", fontsize=plots.NORMAL)
    for ax in axes[:, 0]:
        ax.set_ylabel("E²", fontsize=plots.NORMAL)
    dots = [Line2D([], [], color=c, marker="o", ms=4, ls="") for c in plots.COLOURS[:2]]
    add_legend(made, dots, list(SAMPLERS.values()))
    return made


def _shares(ax: Axes, found: Errors, colour: str) -> Line2D:
    """Share of large errors among the accepted, over what is tolerated."""
    each = [share_large(found, times) for times in TIMES]
    shown = [share if number >= FEWEST else np.nan for share, number in each]
    return ax.semilogx(TIMES, shown, color=colour, lw=1.5)[0]


def figure_6(runs: ByTitle) -> Figure:
    """Share of large errors over the tolerance, and the distribution of accepted errors."""
    made, axes = _grid(2, 2, 2.3, shared=False)
    levels = np.geomspace(1e-2, 20, 100)
    lines: list[Line2D] = []
    for (left, right), sampler in zip(axes, SAMPLERS):
        for run, colour in zip(runs.values(), plots.COLOURS):
            found = errors(run, sampler, int(run["superchains"][0]))
            lines.append(_shares(left, found, colour))
            kept = np.sort(found.squared[accepted(found)])
            if len(kept) >= FEWEST:
                share = np.searchsorted(kept, levels) / len(kept)
                right.semilogx(levels, share, color=colour, lw=1.5)
        right.semilogx(levels, chdtr(1, levels), color=plots.INK, lw=0.9, ls="--")
        left.axvline(1, color=plots.INK, lw=0.8)
        left.axhline(LEVEL, color=plots.INK, lw=0.8, ls=":")
        left.set_ylim(-0.02, 1.02)
        plots.titled(left, SAMPLERS[sampler])
        left.set_ylabel("share of large errors", fontsize=plots.NORMAL)
        right.set_ylabel("CDF of E²", fontsize=plots.NORMAL)
    axes[1, 0].set_xlabel("tolerated τ × 5 KM", fontsize=plots.NORMAL)
    axes[1, 1].set_xlabel("E² of the accepted", fontsize=plots.NORMAL)
    add_legend(made, lines[: len(runs)], list(runs))
    return made


def figure_7(runs: ByTitle) -> Figure:
    """Share of large errors by the number of superchains, over targets that vary it."""
    varied = [run for run in runs.values() if run.sizes["superchains"] > 1]
    made, axes = plots.stacked(len(SAMPLERS), 2.3, sharex=True)
    numbers = sorted({int(k) for run in varied for k in run["superchains"].values})
    lines: list[Line2D] = []
    for ax, sampler in zip(axes, SAMPLERS):
        for number, colour in zip(numbers, plots.COLOURS):
            parts = [
                errors(run, sampler, number)
                for run in varied
                if number in run["superchains"].values
            ]
            pooled = Errors(*(np.concatenate([x.ravel() for x in of]) for of in zip(*parts)))
            lines.append(_shares(ax, pooled, colour))
        ax.axvline(1, color=plots.INK, lw=0.8)
        ax.axhline(LEVEL, color=plots.INK, lw=0.8, ls=":")
        ax.set_ylim(-0.02, 1.02)
        plots.titled(ax, SAMPLERS[sampler])
        ax.set_ylabel("share of large errors", fontsize=plots.NORMAL)
    axes[-1].set_xlabel("tolerated τ × 5 KM", fontsize=plots.NORMAL)
    add_legend(made, lines[: len(numbers)], [f"K = {number}" for number in numbers])
    return made


def figure_8(run: xr.Dataset) -> Figure:
    """Where nested R-hat is reliable, by the bias and the variance of starts."""
    made, axes = plots.stacked(2, 2.5, sharex=True)
    bias, spread = run["bias"].values, run["spread"].values
    for ax, name in zip(axes, run["distribution"].values):
        shown = run["reliable"].sel(distribution=name).transpose("spread", "bias").values
        ax.pcolormesh(bias, spread, shown.astype(float), cmap="Blues", vmin=-0.3, vmax=1.6)
        ax.set_yscale("log")
        ax.grid(False)
        plots.titled(ax, name)
        ax.set_ylabel("variance of starts", fontsize=plots.NORMAL)
        fine = np.linspace(bias[0], bias[-1], 400)
        a = run.attrs
        bound = (a["tolerated"] - 1 / a["per_superchain"]) * (fine**2 / a["reliable"] - 1)
        ax.plot(fine, np.where(bound > spread[0], bound, np.nan), color=plots.COLOURS[1], lw=1.6)
        ax.set_ylim(spread[0], spread[-1])
    axes[1].set_xlabel("bias of starts", fontsize=plots.NORMAL)
    return made


def figure_9() -> Figure:
    r"""The largest δ for which theorem B.3 holds, over δ'.

    Assumption A2 is :math:`1 + \delta > \frac{\delta}{2} T \coth(T/2)` at the time at which the
    scaled squared bias of the mean over (0, T) is δ'.
    """
    made, axes = plots.stacked(1, 2.8)
    levels, ax = np.geomspace(1e-3, 0.99, 60), axes[0]

    def off(time: float, bias: float, level: float) -> float:
        return float((bias * np.expm1(-time) / time) ** 2 - level)

    labels = []
    for bias, colour in zip((1, 2, 3, 4, 5), plots.COLOURS):
        half = np.array([brentq(off, 1e-9, 1e6, (bias, level)) for level in levels]) / 2
        bound = 1 / (half / np.tanh(half) - 1)
        ax.loglog(levels, bound, color=colour, lw=1.6)
        labels.append(plots.Label(float(bound[-1]), f"bias {bias}", colour))
    ax.loglog(levels, levels, color=GREY, lw=0.9, ls="--")
    ax.set_xlabel("δ'", fontsize=plots.NORMAL)
    ax.set_ylabel("most δ", fontsize=plots.NORMAL)
    plots.label_right(ax, labels, 2.8)
    return made


OF_ILLUSTRATED = {1: figure_1, 3: figure_3, 4: figure_4, 8: figure_8}
