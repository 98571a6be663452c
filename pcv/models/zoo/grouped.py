r"""Grouped Gaussian regression on simulated data (PCV, example 1).

.. math::
    y_{ij} \sim N(\alpha_j + x_j^\top \beta, \sigma_y),\quad
    \alpha_j \sim N(\mu, \sigma_\alpha),\quad \mu \sim N(0, 1),\quad \beta \sim N(0, I),\quad
    \sigma_\alpha, \sigma_y \sim N^+(0, s)

with :math:`s = \sqrt{10}` in the paper and 10 in the authors' code. Units are the members of
groups. Columns of the data: ``group``, ``x1`` … ``x4`` (constant within a group), ``y``.
"""

from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jaxtyping import Array, Int, Key

from pcv.models.model import Data, Model, Outcome, Params, Scalar, support
from pcv.models.zoo.rats import gaussian

SCALES = {"paper": 10**0.5, "authors": 10.0}


def regression(
    data: Data, covariates: int = 4, priors: Literal["paper", "authors"] = "paper"
) -> Model:
    """Regression on the first `covariates` of x1 to x4: four in model A, three in model B."""
    prior = {
        "mu": dist.Normal(0.0, 1.0),
        "beta": dist.Normal(0.0, 1.0).expand([covariates]).to_event(1),
        "sigma_alpha": dist.HalfNormal(SCALES[priors]),
        "sigma_y": dist.HalfNormal(SCALES[priors]),
    }
    space = support({name: p.support for name, p in prior.items()})
    names, group = np.unique(data["group"], return_inverse=True)
    x = jnp.column_stack([data[f"x{k + 1}"] for k in range(covariates)])

    def init(key: Key[Array, ""]) -> Params:
        keys = dict(zip([*prior, "alpha"], jax.random.split(key, len(prior) + 1)))
        theta = {name: p.sample(keys[name]) for name, p in prior.items()}
        effects = dist.Normal(theta["mu"], theta["sigma_alpha"])
        return space.unconstrain(theta | {"alpha": effects.sample(keys["alpha"], (names.size,))})

    def log_prior(params: Params) -> Scalar:
        theta = space.constrain(params)
        hyper = sum(p.log_prob(theta[name]) for name, p in prior.items())
        alpha = dist.Normal(theta["mu"], theta["sigma_alpha"]).log_prob(theta["alpha"])
        return hyper + alpha.sum() + space.log_jacobian(params)

    def outcome(params: Params, data: Data) -> dist.Distribution:
        theta = space.constrain(params)
        mean = theta["alpha"][group] + x @ theta["beta"]
        return dist.Normal(mean, theta["sigma_y"])

    def marginal_moments(
        params: Params, data: Data, test: Int[Array, " slot"]
    ) -> tuple[Array, Array]:
        theta = space.constrain(params)
        of_group = jnp.asarray(group)[test]
        between = (of_group[:, None] == of_group) * theta["sigma_alpha"] ** 2
        cov = between + theta["sigma_y"] ** 2 * jnp.eye(test.size)
        return theta["mu"] + x[test] @ theta["beta"], cov

    return Model(
        init,
        log_prior,
        constrain=space.constrain,
        unconstrain=space.unconstrain,
        outcome=Outcome("y", discrete=False),
        group=group,
        **gaussian("y", outcome, marginal_moments),
    )
