"""Figures 1 to 16 of the paper, from our runs: arrays in, figures out, nothing on disk."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import xarray as xr
from jaxtyping import Float
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import FuncFormatter, MaxNLocator
from scipy.signal import periodogram

from pcv.analysis import diagnostics as diag
from pcv.analysis.diagnostics import batch_sums
from pcv.base.names import name_bits
from pcv.pipeline.config import Experiment
from pcv.report import plots

BLOCKS = 5
SHIFT = 5.0
"""shift of the planted chain (nats)"""


class Example(NamedTuple):
    """An experiment's results: models A and B in the order of its config."""

    name: str
    settings: Experiment
    comparison: xr.Dataset
    """joint scores only: `kind` has one entry"""
    diagnostics: Mapping[str, xr.Dataset]
    draws: Mapping[str, Float[np.ndarray, "fold chain draw"]]
    """joint log scores"""
    data: xr.Dataset
    test: np.ndarray
    """units of each fold"""
    means: Mapping[str, xr.Dataset]
    """full-data posterior of each model: mean, sd, mcse by variable"""
    seconds: Mapping[str, Mapping[str, float]]
    """run time by model and stage (fit, warmup, sample)"""
    own_kernels: int
    """number of adapted folds, both models"""
    device: str
    marks: Sequence[str]
    """warnings stored in the artifacts"""


class Pathology(NamedTuple):
    draws: Float[np.ndarray, "fold chain draw"]
    fold: int
    chain: int


def stuck_chain(rng: np.random.Generator, draws: Float[np.ndarray, "fold chain draw"]) -> Pathology:
    """One chain of a random fold stays at its first draw.

    It is the chain whose first draw is farthest from the fold's mean, since R-hat, which compares
    means, cannot detect one stuck at the mean. (`pcv.analysis.verdicts` names every stuck chain.)

    >>> draws = np.random.default_rng(2).normal(size=(9, 4, 50))
    >>> made = stuck_chain(np.random.default_rng(1), draws)
    >>> np.ptp(made.draws, axis=2).min()
    np.float64(0.0)
    """
    fold = int(rng.integers(len(draws)))
    chain = int(np.abs(draws[fold, :, 0] - draws[fold].mean()).argmax())
    changed = draws.copy()
    changed[fold, chain] = draws[fold, chain, 0]
    return Pathology(changed, fold, chain)


def shifted_chain(
    rng: np.random.Generator, draws: Float[np.ndarray, "fold chain draw"]
) -> Pathology:
    """All draws of one random chain of a random fold are shifted up by `SHIFT`.

    >>> made = shifted_chain(np.random.default_rng(1), np.zeros((9, 4, 50)))
    >>> made.draws[made.fold].mean(axis=1).max(), made.draws.sum()
    (np.float64(5.0), np.float64(250.0))
    """
    fold, chain = int(rng.integers(len(draws))), int(rng.integers(draws.shape[1]))
    changed = draws.copy()
    changed[fold, chain] += SHIFT
    return Pathology(changed, fold, chain)


def mixing(
    rng: np.random.Generator,
    draws: Mapping[str, Float[np.ndarray, "fold chain draw"]],
    length: int,
    replicates: int = 500,
) -> xr.Dataset:
    """R-hat max over all models and folds after `length` draws, and its benchmark in 5 blocks.

    Args:
        rng: source of the replicates.
        draws: joint log scores, by model.
        length: number of draws per chain to use, at least 10.
        replicates: number of replicates.

    Returns:
        Input of `pcv.report.plots.benchmark`.

    >>> draws = {"A": np.random.default_rng(1).normal(size=(9, 4, 50))}
    >>> sorted(mixing(np.random.default_rng(2), draws, 50).data_vars)
    ['benchmark', 'benchmark_share', 'rhat_max']
    """
    whole = length - length % BLOCKS
    found = diag.benchmark_of_models(
        [
            diag.rhat_max_benchmark(
                rng, batch_sums(x[:, :, :whole], whole // BLOCKS), BLOCKS, replicates
            )
            for x in draws.values()
        ]
    )
    return xr.Dataset(
        {
            "rhat_max": found.observed,
            "benchmark": ("replicate", found.replicates),
            "benchmark_share": found.share_above,
        }
    )


def pathologies(example: Example, seed: int) -> dict[str, xr.Dataset]:
    """Figure 5: the original run, and one with each pathology planted in model A; by title."""
    model, draws = next(iter(example.draws.items()))
    rng = np.random.default_rng([seed, name_bits("figure 5")])
    stuck, shifted = stuck_chain(rng, draws), shifted_chain(rng, draws)
    runs = {
        "chains as drawn": draws,
        "a stuck chain": stuck.draws,
        "a shifted chain": shifted.draws,
    }
    others = {name: x for name, x in example.draws.items() if name != model}
    return {
        title: mixing(rng, {model: x} | others, x.shape[2], replicates=100)
        for title, x in runs.items()
    }


def lengths(example: Example, wanted: Sequence[int]) -> list[int]:
    """The paper's lengths and the whole run; of a short run, half and a quarter instead."""
    longest = next(iter(example.draws.values())).shape[2]
    chosen = {n for n in wanted if n < longest} | {longest}
    for n in (longest // 2, longest // 4):
        chosen |= {n} if len(chosen) <= len(wanted) else set()
    return sorted(chosen)


def mixing_after(example: Example, seed: int, length: int) -> xr.Dataset:
    """R-hat max of both models and its benchmark after `length` draws of a run."""
    rng = np.random.default_rng([seed, name_bits(f"{example.name} {length}")])
    return mixing(rng, example.draws, length)


def at_lengths(example: Example, seed: int, number: int) -> dict[str, xr.Dataset]:
    """R-hat max and its benchmark at several lengths, by title: figures 4, 10, 12 and 16."""
    return {
        f"{n:,} draws": mixing_after(example, seed, n) for n in lengths(example, LENGTHS[number])
    }


def shuffling(runs: Mapping[str, xr.Dataset], seed: int) -> Figure:
    """Figure 4: how blocks are shuffled, then R-hat max and its benchmark at each length."""
    figure, (scheme, *axes) = plots.stacked(1 + len(runs), 1.7)
    rng = np.random.default_rng([seed, name_bits("blocks")])
    chains = 4
    source, block = np.divmod(rng.integers(chains * BLOCKS, size=(chains, BLOCKS)), BLOCKS)
    for left, owners, numbers in (
        (0.0, np.repeat(np.arange(chains), BLOCKS), np.tile(np.arange(BLOCKS), chains)),
        (BLOCKS + 2.0, source.ravel(), block.ravel()),
    ):
        for place, (owner, number) in enumerate(zip(owners, numbers, strict=True)):
            row, column = divmod(place, BLOCKS)
            corner = left + column, chains - 1 - row + 0.08
            scheme.add_patch(
                Rectangle(corner, 0.96, 0.84, color=plots.COLOURS[owner], alpha=0.75, lw=0)
            )
            scheme.text(
                corner[0] + 0.48,
                corner[1] + 0.40,
                f"{'ABCD'[owner]}{number + 1}",
                ha="center",
                va="center",
                fontsize=plots.SMALL,
                color="white",
            )
    scheme.annotate(
        "",
        (BLOCKS + 1.75, chains / 2),
        (BLOCKS + 0.2, chains / 2),
        arrowprops={"arrowstyle": "->", "color": plots.INK, "lw": 1.5},
    )
    scheme.set_xlim(-0.1, 2 * BLOCKS + 2.1)
    scheme.set_ylim(0, chains)
    scheme.set_axis_off()
    plots.titled(scheme, "Blocks of a fold's chains, resampled with replacement")
    for ax, (title, run) in zip(axes, runs.items(), strict=True):
        plots.benchmark_panel(ax, title, run)
    axes[-1].set_xlabel("R-hat max", fontsize=plots.NORMAL)
    return figure


def _dates(data: xr.Dataset) -> Float[np.ndarray, " month"]:
    return data["year"].to_numpy() + (data["month"].to_numpy() - 1) / 12


def series(example: Example) -> Figure:
    """Figure 13: departures by month, and their centred 12-month mean."""
    figure, (ax,) = plots.stacked(1, 2.8)
    level, when = example.data["outbound"].to_numpy() / 1e6, _dates(example.data)
    window = np.r_[0.5, np.ones(11), 0.5] / 12
    ax.plot(when, level, color=plots.COLOURS[0], lw=0.9)
    ax.plot(when[6:-6], np.convolve(level, window, "valid"), color=plots.INK, lw=2.2)
    ax.set_ylim(bottom=0)
    ax.set_xlim(when[0], when[-1])
    ends = [
        plots.Label(float(level[-1]), "monthly", plots.COLOURS[0]),
        plots.Label(float(level[-13:].mean()), "mean of a year", plots.INK),
    ]
    plots.label_right(ax, ends, 2.8)
    ax.set_xlabel("year", fontsize=plots.NORMAL)
    plots.titled(ax, "Departures by air from Australia, millions a month")
    return figure


def spectra(example: Example) -> Figure:
    """Figure 14: power spectra of month-on-month and year-on-year growth."""
    height = 2.0
    figure, axes = plots.stacked(2, height, sharex=True)
    level = example.data["outbound"].to_numpy().astype(float)
    for ax, span, name, colour in zip(
        axes, (1, 12), ("month on month", "year on year"), plots.COLOURS, strict=False
    ):
        growth = level[span:] / level[:-span] - 1
        frequency, power = periodogram(growth, fs=12, window="hann", detrend="constant")
        share = power / power.sum()
        for harmonic in range(1, 7):
            ax.axvline(harmonic, color=plots.FAINT, lw=0.9, zorder=0)
        ax.fill_between(frequency, share, color=colour, alpha=0.3, lw=0)
        ax.plot(frequency, share, color=colour, lw=1.4)
        ax.set_ylim(bottom=0)
        ax.yaxis.set_major_locator(MaxNLocator(4))
        ax.yaxis.set_major_formatter(FuncFormatter(lambda p, _: f"{100 * p:g}%"))
        plots.titled(ax, f"Growth {name}: share of its variance")
    axes[-1].set_xlim(0, 6.05)
    axes[-1].set_xlabel("cycles a year", fontsize=plots.NORMAL)
    return figure


LENGTHS = {4: (50, 100), 10: (50, 500), 12: (100, 1_000), 16: (100, 500)}
"""draws per chain, by number of the figures that show R-hat max at several lengths"""

Draw = Callable[[Example, int], Figure]


class Drawn(NamedTuple):
    """A figure of the paper."""

    experiment: str
    draw: Draw
    title: str
    caption: str


def _answer(example: Example, seed: int) -> Figure:
    return plots.answer(example.comparison)


def _rhat(example: Example, seed: int) -> Figure:
    return plots.rhat(example.diagnostics)


def _lengths(number: int) -> Draw:
    def draw(example: Example, seed: int) -> Figure:
        return plots.benchmark(at_lengths(example, seed, number), one_axis=False)

    return draw


_READ = (
    "Top: the difference as draws accumulate, positive where A predicts better; the band is ± 2 "
    "Monte Carlo standard errors, the bar ± 1 standard error from limited data. Middle: the two "
    "errors. Bottom: the probability that A predicts better."
)
_RHAT = "Thin: R-hat of the log score of each fold. Bold: the largest. Dashed: 1.01."

FIGURES = {
    1: Drawn("example1", _answer, "Example 1: the difference over draws", _READ),
    2: Drawn(
        "example1",
        lambda example, seed: plots.ess(example.diagnostics, example.comparison),
        "Example 1: effective sample size over draws",
        "Top: ESS of the difference, over all chains of a fold. Below, thin: of each fold; bold: "
        "of the model's elpd, the sum over its folds.",
    ),
    3: Drawn("example1", _rhat, "Example 1: R-hat over draws", _RHAT),
    4: Drawn(
        "example1",
        lambda example, seed: shuffling(at_lengths(example, seed, 4), seed),
        "Example 1: R-hat max and its benchmark",
        "Line: R-hat max of both models. Histogram: the same with blocks of draws shuffled between "
        "a fold's chains. In the paper chains have not mixed after 50 draws, and have after 100.",
    ),
    5: Drawn(
        "example1",
        lambda example, seed: plots.benchmark(pathologies(example, seed), one_axis=False),
        "Example 1: two planted pathologies",
        "Stuck: the chain of a fold whose first draw is farthest from the fold's mean stays there. "
        "Shifted: one chain is shifted by 5. Fold and shifted chain are random, with a fixed key. "
        "The benchmark has 100 replicates, as in the paper.",
    ),
    6: Drawn("example2", _answer, "Example 2: the difference over draws", _READ),
    7: Drawn("example3", _answer, "Example 3: the difference over draws", _READ),
    8: Drawn("example4", _answer, "Example 4: the difference over draws", _READ),
    9: Drawn(
        "example2",
        _rhat,
        "Example 2: R-hat over draws",
        f"{_RHAT} In the paper the largest stays above it for at least 1,750 draws.",
    ),
    10: Drawn(
        "example2",
        _lengths(10),
        "Example 2: R-hat max at several lengths",
        "In the paper chains have not mixed after 50 draws, and have after 500.",
    ),
    11: Drawn(
        "example3",
        _rhat,
        "Example 3: R-hat over draws",
        f"{_RHAT} In the paper the largest stays above it for all 4,000 iterations.",
    ),
    12: Drawn(
        "example3",
        _lengths(12),
        "Example 3: R-hat max at several lengths",
        "In the paper chains have mixed by 4,000 iterations, at an R-hat max well above 1.01.",
    ),
    13: Drawn(
        "example4",
        lambda example, seed: series(example),
        "Example 4: the series",
        "Seasonal swings grow with the level, so both models are for growth.",
    ),
    14: Drawn(
        "example4",
        lambda example, seed: spectra(example),
        "Example 4: spectra of growth",
        "Month-on-month growth has its variance at whole numbers of cycles a year, the seasons; "
        "year-on-year growth does not. Periodograms with a Hann window.",
    ),
    15: Drawn(
        "example4",
        _rhat,
        "Example 4: R-hat over draws",
        f"{_RHAT} In the paper the largest stays well above it for all 2,000 iterations.",
    ),
    16: Drawn(
        "example4",
        _lengths(16),
        "Example 4: R-hat max at several lengths",
        "In the paper chains have mixed by 2,000 iterations.",
    ),
}
"""the paper's figures by its numbers"""
