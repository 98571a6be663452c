"""Draws of the full-data posterior, and how well their chains have mixed."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from pcv.analysis.diagnostics.convergence import rhat_of_moments

REFUSED = 0.02
"""acceptance probability below which a proposal counts as refused"""
MAX_RHAT, MIN_ESS = 1.05, 400
"""limits for kept draws, beyond which more are made"""


class Draws(NamedTuple):
    """Draws from the full-data posterior, on the unconstrained scale."""

    position: Float[np.ndarray, "chain draw param"]
    lp: Float[np.ndarray, "chain draw"]
    energy: Float[np.ndarray, "chain draw"]
    acceptance_rate: Float[np.ndarray, "chain draw"]
    n_steps: Int[np.ndarray, "chain draw"]
    diverging: Bool[np.ndarray, "chain draw"]


class Mixing(NamedTuple):
    """Rank-normalised split R-hat and bulk ESS of each parameter."""

    rhat: Float[np.ndarray, " param"]
    ess: Float[np.ndarray, " param"]


def mixing(position: Float[np.ndarray, "chain draw param"]) -> Mixing:
    from arviz_stats.base import array_stats

    axes = {"chain_axis": 0, "draw_axis": 1}
    with np.errstate(invalid="ignore", divide="ignore"):
        rhat = np.asarray(array_stats.rhat(position, method="rank", **axes))
        ess = np.asarray(array_stats.ess(position, method="bulk", **axes))
    return Mixing(rhat, ess)


def plain_rhat(x: Float[np.ndarray, "chain draw param"]) -> Float[np.ndarray, " param"]:
    """R-hat of whole chains, not rank-normalised."""
    by_param = np.moveaxis(x, 2, 0)
    count = np.full(by_param.shape[:2], float(x.shape[1]))
    moments = count, by_param.mean(2), count * by_param.var(2)
    return np.nan_to_num(rhat_of_moments(*moments), nan=np.inf)


def tau(x: Float[np.ndarray, "chain draw param"]) -> Float[np.ndarray, " param"]:
    r"""Integrated autocorrelation time :math:`(1 + \rho) / (1 - \rho)`, at least 1, from the lag-1
    autocorrelation about the grand mean, so that chains that disagree count as slow."""
    rho = np.nan_to_num(autocorrelation(np.moveaxis(x, 2, 0)), nan=1.0)
    rho = np.clip(rho, 0.0, 1 - 1e-6)
    return (1 + rho) / (1 - rho)


def autocorrelation(x: Float[np.ndarray, "item chain draw"]) -> Float[np.ndarray, " item"]:
    """Lag-1 autocorrelation about the grand mean."""
    x = x - x.mean(axis=(1, 2), keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        return (x[:, :, 1:] * x[:, :, :-1]).mean(axis=(1, 2)) / (x**2).mean(axis=(1, 2))
