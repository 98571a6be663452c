r"""Scaled squared errors of means of short chains, and which of them nested R-hat accepts.

.. math:: E^2 = \frac{(\bar f - \mathrm{E} f)^2}{\mathrm{Var} f \, (1/KM + 1/S)} \sim \chi^2_1

once chains are stationary (eq. 25), where S is the ESS of the run that gives the mean and the
variance, if these are not known.
"""

from typing import NamedTuple

import numpy as np
import xarray as xr
from jaxtyping import Bool, Float
from scipy.special import chdtri

from pcv.sampling.folds.lasting import SHARE

LEVEL = 0.05
LARGE = float(chdtri(1, LEVEL))
"""the 95% quantile of a chi-square with one degree of freedom"""


class Errors(NamedTuple):
    """Of all parameters, repeats and lengths of warmup."""

    squared: Float[np.ndarray, "repeat length param"]
    """scaled"""
    excess: Float[np.ndarray, "repeat length param"]
    """variance between starts over that within superchains: squared nested R-hat - 1 - 1/M"""
    rhat: Float[np.ndarray, "repeat length param"]


def errors(run: xr.Dataset, sampler: str, superchains: int) -> Errors:
    """Of one sampler with a number of superchains."""
    one = run.sel(sampler=sampler, superchains=superchains).transpose("repeat", "length", "param")
    per = run.attrs["chains"] / superchains
    scale = one["true_variance"] * (1 / run.attrs["chains"] + 1 / one["ess"])
    squared = (one["mean"] - one["true_mean"]) ** 2 / scale
    rhat = one["nested_rhat"].values
    return Errors(squared.values, rhat**2 - 1 - 1 / per, rhat)


def tolerated(run: xr.Dataset) -> float:
    """τ: a fifth of the squared Monte Carlo error of one draw of each chain."""
    return 1 / (SHARE * float(run.attrs["chains"]))


def limit(run: xr.Dataset, superchains: int) -> float:
    """The threshold, eq. 24."""
    return float(np.sqrt(1 + superchains / run.attrs["chains"] + tolerated(run)))


def accepted(found: Errors, tau: float) -> Bool[np.ndarray, "repeat length param"]:
    """Whose nested R-hat is at most the threshold."""
    return found.excess <= tau


def share_large(found: Errors, tau: float) -> tuple[float, int]:
    """Share of accepted estimates with an error above the 95% quantile, and their number."""
    which = accepted(found, tau) & np.isfinite(found.squared)
    return (float((found.squared[which] > LARGE).mean()) if which.any() else np.nan), int(
        which.sum()
    )
