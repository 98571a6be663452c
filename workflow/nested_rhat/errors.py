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

from pcv.analysis.diagnostics import tolerated

LEVEL = 0.05
LARGE = float(chdtri(1, LEVEL))
"""the 95% quantile of a chi-square with one degree of freedom"""


class Errors(NamedTuple):
    """Of all parameters, repeats and lengths of warmup."""

    squared: Float[np.ndarray, "repeat length param"]
    """scaled"""
    excess: Float[np.ndarray, "repeat length param"]
    """variance between starts over that within superchains, in units of the tolerated τ"""
    rhat: Float[np.ndarray, "repeat length param"]


def errors(run: xr.Dataset, sampler: str, superchains: int) -> Errors:
    """Of one sampler with a number of superchains."""
    one = run.sel(sampler=sampler, superchains=superchains).transpose("repeat", "length", "param")
    chains = run.attrs["chains"]
    scale = one["true_variance"] * (1 / chains + 1 / one["ess"])
    squared = (one["mean"] - one["true_mean"]) ** 2 / scale
    rhat = one["nested_rhat"].values
    excess = (rhat**2 - 1 - superchains / chains) / tolerated(chains)
    return Errors(squared.values, excess, rhat)


def limit(run: xr.Dataset, superchains: int) -> float:
    """The threshold of nested R-hat with one draw per chain, eq. 24."""
    chains = run.attrs["chains"]
    return float(np.sqrt(1 + superchains / chains + tolerated(chains)))


def accepted(found: Errors, times: float = 1.0) -> Bool[np.ndarray, "..."]:
    """Whose nested R-hat is at most the threshold, or that with a multiple of τ."""
    return (found.excess <= times) & np.isfinite(found.squared)


def share_large(found: Errors, times: float = 1.0) -> tuple[float, int]:
    """Share of accepted estimates with an error above the 95% quantile, and their number."""
    which = accepted(found, times)
    share = float((found.squared[which] > LARGE).mean()) if which.any() else np.nan
    return share, int(which.sum())
