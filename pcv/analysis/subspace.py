"""How far scores of chains on a subspace are from those of chains in all directions. No JAX."""

from typing import NamedTuple

import numpy as np
import xarray as xr
from jaxtyping import Float
from scipy.stats import chi2

CHANCE = 0.01
"""p-value above which differences may be Monte Carlo error"""
FAR = 0.1
"""distance above which a subspace is too small"""


class Distance(NamedTuple):
    """Of the scores of a few folds, sampled both ways."""

    apart: float
    """root mean squared difference without its Monte Carlo error (nats)"""
    distance: float
    """the same in standard deviations of the scores over all folds"""
    p: float
    """of as large differences, if they were Monte Carlo error"""


def distance(
    difference: Float[np.ndarray, " fold"],
    mcse: Float[np.ndarray, " fold"],
    spread: float,
) -> Distance:
    r"""Scale-free distance of two estimates of the same folds' scores,

    .. math:: D = \frac{1}{s} \sqrt{\max\Big(0, \frac1m \sum_k (\delta_k^2 - \mathrm{MCSE}_k^2)
              \Big)}

    Args:
        difference: δ (nats).
        mcse: of these (nats).
        spread: s, standard deviation of the scores of all folds (nats).

    >>> round(distance(np.array([3.0, -5.0]), np.array([0.1, 0.1]), 10.0).distance, 2)
    0.41
    """
    apart = np.sqrt(max(0.0, np.mean(difference**2 - mcse**2)))
    p = chi2.sf(((difference / mcse) ** 2).sum(), len(difference))
    return Distance(float(apart), float(apart / spread), float(p))


def with_subspace(diagnostics: xr.Dataset, warm: xr.Dataset) -> xr.Dataset:
    """Add the distance of scores on a subspace to the diagnostics, in words, and to the verdict
    where they are too far.

    Args:
        diagnostics: of `diagnose`.
        warm: the first warmup artifact, with `both_ways`.
    """
    some = diagnostics.sel(fold=warm["both_ways"].values)
    mcse = np.hypot(some["joint_mcse"].values, warm["both_ways_mcse"].values)
    difference = some["joint_elpd"].values - warm["both_ways_elpd"].values
    spread = float(diagnostics["joint_elpd"].std(ddof=1))
    found = distance(difference, mcse, spread)
    of, all_ = warm.sizes["param"], warm.sizes["all_params"]
    plural = "s" * (of > 1)
    words = (
        f"Chains move in {of} of {all_} dimensions, with {warm.attrs['subspace_share']:.1%} of the "
        f"posterior's variance: the scores of {len(mcse)} folds sampled both ways differ by "
        f"{np.sqrt(np.mean(difference**2)):.2g} nats (MCSE {np.sqrt(np.mean(mcse**2)):.2g}), a "
        f"distance of {found.distance:.2g} standard deviations of the scores over folds."
    )
    attributes = {
        "subspace": words,
        "subspace_dim": of,
        "subspace_share": warm.attrs["subspace_share"],
        "subspace_distance": found.distance,
        "subspace_p": found.p,
    }
    if found.p < CHANCE and not found.distance < FAR:
        said = f"The subspace of {of} dimension{plural} is too small: take more (kernel.subspace)."
        for name in ("verdict", "pointwise_verdict"):
            known = str(diagnostics.attrs[name])
            attributes[name] = said if known == "ok" else f"{said} {known}"
    variables = {x: warm[x].variable for x in ("both_ways", "both_ways_elpd", "both_ways_mcse")}
    return diagnostics.assign(variables).assign_attrs(attributes)
