r"""Radon in homes, by county (PCV, example 3).

.. math::
    y_i \sim N(\alpha_{j[i]} + x_i^\top \beta, \sigma_y),\quad
    \alpha_j = \mu + \sigma_\alpha z_j,\quad z_j \sim N(0, 1),\quad \mu \sim N(0, 4),\quad
    \beta \sim N(0, 1)

Units are the counties (``data: {units: [county_idx]}``): a county's Gaussian likelihood needs only
the sums of its homes, so that a gradient costs 386 terms, not 12,573. The paper has
:math:`\sigma_\alpha^2 \sim` Gamma(6, 9) and :math:`\sigma_y^2 \sim` Gamma(10, 10); the authors'
code has these on the standard deviations, and ``log_uppm`` as a second covariate in both models.
``county_idx`` numbers county names, 73 of which stand for counties of several states; ``units:
[county_idx, log_uppm]`` tells these apart by their uranium. Columns of the data: ``log_radon``,
``floor_measure``, ``log_uppm``.
"""

from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jaxtyping import Array, Float, Int, Key

from pcv.models.model import Data, Model, Outcome, Params, Predictive, Scalar, support

UNKNOWN = 9
"""code of an unknown floor"""


def varying_intercepts(
    data: Data,
    floor: bool = True,
    priors: Literal["paper", "authors"] = "paper",
    cleaned: bool = False,
) -> Model:
    """Varying intercepts by county; model A knows the floor of the measurement, B does not.

    Args:
        data: one row per home.
        floor: whether the floor is a covariate.
        priors: the paper's, or those of the authors' code, with its second covariate.
        cleaned: drop homes of unknown floor, and count all floors above the first as the first;
            the paper treats the codes 2, 3 and 9 as numbers.
    """
    gamma = {"alpha": dist.Gamma(6.0, 9.0), "y": dist.Gamma(10.0, 10.0)}
    power = 2 if priors == "paper" else 1
    space = support({f"sigma_{name}": dist.constraints.positive for name in gamma})
    num_counties = int(data["unit"].max()) + 1
    code = np.asarray(data["floor_measure"], float)
    columns = [np.minimum(code, 1.0) if cleaned else code] if floor else []
    columns += [np.asarray(data["log_uppm"], float)] if priors == "authors" else []
    x = np.column_stack([*columns, np.empty((len(code), 0))])
    known = (code != UNKNOWN) if cleaned else np.ones(len(code), bool)
    county = np.asarray(data["unit"])[known]

    def summed(values: np.ndarray) -> np.ndarray:
        total = np.zeros((num_counties, *values.shape[1:]))
        np.add.at(total, county, values)
        return total

    y, x = np.asarray(data["log_radon"], float)[known], x[known]
    homes = summed(np.ones(len(y)))
    at_least_one = np.maximum(homes, 1)
    y_mean, x_mean = summed(y) / at_least_one, summed(x) / at_least_one[:, None]
    y_off, x_off = y - y_mean[county], x - x_mean[county]
    yy, xy = summed(y_off**2), summed(x_off * y_off[:, None])
    xx = summed(x_off[:, :, None] * x_off[:, None, :])

    def init(key: Key[Array, ""]) -> Params:
        keys = jax.random.split(key, 5)
        return space.unconstrain(
            {
                "mu": dist.Normal(0.0, 4.0).sample(keys[0]),
                "beta": dist.Normal(0.0, 1.0).sample(keys[1], (x.shape[1],)),
                "z": dist.Normal(0.0, 1.0).sample(keys[2], (num_counties,)),
                "sigma_alpha": gamma["alpha"].sample(keys[3]) ** (1 / power),
                "sigma_y": gamma["y"].sample(keys[4]) ** (1 / power),
            }
        )

    def log_prior(params: Params) -> Scalar:
        theta = space.constrain(params)
        scales = jnp.zeros(())
        for name, p in gamma.items():
            sigma = theta[f"sigma_{name}"]
            # d(σ²)/dσ = 2σ
            scales += p.log_prob(sigma**power) + (power - 1) * jnp.log(2 * sigma)
        return (
            scales
            + dist.Normal(0.0, 4.0).log_prob(theta["mu"])
            + dist.Normal(0.0, 1.0).log_prob(theta["beta"]).sum()
            + dist.Normal(0.0, 1.0).log_prob(theta["z"]).sum()
            + space.log_jacobian(params)
        )

    def within(theta: Params) -> Float[Array, " county"]:
        """Sum of squared residuals about a county's own mean."""
        beta = theta["beta"]
        return yy - 2 * xy @ beta + jnp.einsum("jkl,k,l->j", xx, beta, beta)

    def log_lik(params: Params, data: Data) -> Float[Array, " unit"]:
        theta = space.constrain(params)
        alpha = theta["mu"] + theta["sigma_alpha"] * theta["z"]
        off = y_mean - alpha - x_mean @ theta["beta"]
        squares = within(theta) + homes * off**2
        variance = theta["sigma_y"] ** 2
        return -0.5 * (homes * jnp.log(2 * jnp.pi * variance) + squares / variance)

    def marginal(params: Params, data: Data, test: Int[Array, " slot"]) -> Predictive:
        theta = space.constrain(params)
        variance = theta["sigma_y"] ** 2
        of_mean = variance + homes * theta["sigma_alpha"] ** 2
        off = y_mean - theta["mu"] - x_mean @ theta["beta"]
        scores = -0.5 * (
            homes * jnp.log(2 * jnp.pi)
            + (homes - 1) * jnp.log(variance)
            + jnp.log(of_mean)
            + within(theta) / variance
            + homes * off**2 / of_mean
        )
        pointwise = jnp.where(test >= 0, jnp.where(homes > 0, scores, 0.0)[test], 0.0)
        return pointwise.sum(), pointwise

    def constrain(params: Params) -> Params:
        theta = space.constrain(params)
        return theta | {"alpha": theta["mu"] + theta["sigma_alpha"] * theta["z"]}

    county_of_unit = np.arange(num_counties)
    functions = init, log_prior, log_lik, constrain, Outcome("log_radon"), marginal
    return Model(*functions, county_of_unit, unconstrain=space.unconstrain)
