"""Figure 1 of the paper: estimates of σ_loo from many subsamples."""

import numpy as np
from matplotlib.figure import Figure

from loo_subsampling.estimates import M, Terms, from_some, hansen_hurwitz_from, sigma
from pcv.report import plots

REPEATS, BINS = 1000, 60
CAPTION = (
    f"Figure 1: {REPEATS:,} estimates of σ_loo of radon's model 6, each from m = {M} terms. Above, "
    "the difference estimator with TIS from all draws of the fit; in the middle, Hansen–Hurwitz "
    "with terms drawn in proportion to these surrogates; below, plain expansion. Dotted: from all "
    "terms (the paper: 96). Estimates beyond the axis are counted in the outermost bars."
)


def figure_1(terms: Terms, seed: int) -> Figure:
    ways = {
        "Difference estimator": from_some(terms, "tis_2000"),
        "Hansen–Hurwitz": hansen_hurwitz_from(terms, "tis_2000"),
        "Plain expansion": from_some(terms, None),
    }
    truth = sigma(terms)
    figure, axes = plots.stacked(len(ways), 1.5, sharex=True)
    edges = np.linspace(0, 2 * truth, BINS + 1)
    for ax, (name, estimate), colour in zip(axes, ways.items(), plots.COLOURS, strict=False):
        rng = np.random.default_rng(seed)
        found = np.array([estimate(rng).se for _ in range(REPEATS)])
        real = found[np.isfinite(found)]
        ax.hist(np.clip(real, *edges[[0, -1]]), edges.tolist(), color=colour, alpha=0.6, lw=0)
        ax.axvline(truth, color=plots.INK, ls=":", lw=1.2)
        negative = f", {found.size - real.size} negative variances" * (real.size < found.size)
        plots.titled(ax, f"{name}: mean {real.mean():.1f}, SD {real.std():.1f}{negative}")
    axes[-1].set_xlim(*edges[[0, -1]])
    axes[-1].set_xlabel("estimate of σ_loo (nats)", fontsize=plots.NORMAL)
    return figure
