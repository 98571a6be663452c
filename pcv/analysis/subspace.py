"""How far scores of chains on a subspace are from those of chains in all directions. No JAX."""

from typing import NamedTuple

import numpy as np
import xarray as xr
from jaxtyping import Float
from scipy.stats import chi2

CHANCE = 0.01
"""p-value above which differences may be Monte Carlo error"""
FAR, BIASED = 0.1, 0.5
"""distance, and bias of elpd in standard errors, from which on a subspace is too small"""


class Distance(NamedTuple):
    """Of the scores of a few folds, sampled both ways."""

    distance: float
    """root mean squared difference, without its Monte Carlo error, in standard deviations of the
    scores over folds"""
    bias: float
    """of elpd, if all sampled folds differ as these do on average, in its standard errors"""
    p: float
    """p-value of differences this large if they were Monte Carlo error alone"""


def distance(
    difference: Float[np.ndarray, " fold"],
    mcse: Float[np.ndarray, " fold"],
    spread: float,
    num_folds: int,
    num_sampled: int,
) -> Distance:
    r"""Scale-free distance of two estimates of the same folds' scores, and the bias it implies,

    .. math:: D = \frac{1}{s} \sqrt{\max\Big(0, \frac1m \sum_k (\delta_k^2 - \mathrm{MCSE}_k^2)
              \Big)}, \qquad B = \frac{K^* \, \bar\delta}{\sqrt K \, s}

    Args:
        difference: δ (nats), of m folds.
        mcse: of these (nats).
        spread: s, standard deviation of the scores of all folds (nats).
        num_folds: K.
        num_sampled: K*, those whose chains move on the subspace.

    >>> found = distance(np.array([3.0, -5.0]), np.array([0.1, 0.1]), 10.0, 25, 25)
    >>> round(found.distance, 2), round(found.bias, 2)
    (0.41, -0.5)
    """
    apart = np.sqrt(max(0.0, np.mean(difference**2 - mcse**2)))
    p = chi2.sf(((difference / mcse) ** 2).sum(), len(difference))
    bias = num_sampled * difference.mean() / np.sqrt(num_folds) / spread
    return Distance(float(apart / spread), float(bias), float(p))


def with_subspace(diagnostics: xr.Dataset, warm: xr.Dataset, num_sampled: int) -> xr.Dataset:
    """Add the distance of scores on a subspace to the diagnostics, in words, and to the verdict
    where they are too far.

    Args:
        diagnostics: of all folds.
        warm: the first warmup artifact, with `both_ways`.
        num_sampled: number of folds that are not scored from the full-data fit.
    """
    known = warm[["both_ways", "both_ways_elpd", "both_ways_mcse"]].load()
    some = diagnostics.sel(fold=known["both_ways"].values)
    mcse = np.hypot(some["joint_mcse"].values, known["both_ways_mcse"].values)
    difference = some["joint_elpd"].values - known["both_ways_elpd"].values
    number = diagnostics.sizes["fold"]
    spread = float(diagnostics["joint_elpd"].std(ddof=1))
    found = distance(difference, mcse, spread, number, num_sampled)
    of, all_ = warm.sizes["param"], warm.sizes["all_params"]
    words = (
        f"Chains move in {of} of {all_} dimensions, with {warm.attrs['subspace_share']:.1%} of the "
        f"posterior's variance: the scores of {_plural(len(mcse), 'fold')} sampled both ways "
        f"differ by {np.sqrt(np.mean(difference**2)):.2g} nats "
        f"(MCSE {np.sqrt(np.mean(mcse**2)):.2g}), a distance of {found.distance:.2g} standard "
        "deviations of the scores over folds; at that rate, elpd is off by "
        f"{found.bias:.2g} standard errors."
    )
    attributes = {
        "subspace": words,
        "subspace_dim": of,
        "subspace_share": warm.attrs["subspace_share"],
        "subspace_distance": found.distance,
        "subspace_bias": found.bias,
        "subspace_p": found.p,
    }
    if found.p < CHANCE and (found.distance >= FAR or abs(found.bias) >= BIASED):
        said = (
            f"The subspace of {_plural(of, 'dimension')} is too small: take more (kernel.subspace)."
        )
        for name in ("verdict", "pointwise_verdict"):
            before = str(diagnostics.attrs[name])
            attributes[name] = said if before == "ok" else f"{said} {before}"
    variables = {str(name): x.variable for name, x in known.items()}
    return diagnostics.assign(variables).assign_attrs(attributes)


def _plural(number: int, what: str) -> str:
    return f"{number} {what}" + "s" * (number > 1)
