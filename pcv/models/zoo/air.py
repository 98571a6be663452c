r"""Passengers leaving Australia by air, month by month (PCV, example 4).

.. math::
    g_t = \beta_0 + \sum_{i=1}^p \rho_i g_{t-i} + \sum_j \beta_j d_{jt} + \sigma \varepsilon_t,\quad
    \sigma \sim N^+(0, 1),\quad \beta \sim N(0, 1),\quad (\rho_i + 1)/2 \sim \mathrm{Beta}(5, 5)

with the growth :math:`g_t = L_t / L_{t-s} - 1` of the number of passengers L: `monthly` growth
(s = 1, 12 lags, dummies of the months) or `yearly` growth (s = 12, 3 lags). Their densities are of
different variables; on the scale of passengers, :math:`\log p(L_t) = \log p(g_t) -
\log L_{t-s}`, they are comparable. Units are the months, in order; the first ones, without growth
or lags, have no term. Columns of the data: ``month`` (1 to 12), ``outbound``.
"""

from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jaxtyping import Array, Float, Key

from pcv.models.model import Data, Model, Outcome, Params, Scalar, support

Scale = Literal["passengers", "growth"]


def monthly(data: Data, scale: Scale = "passengers") -> Model:
    """Month-on-month growth: 12 lags, a constant and dummies of February to December (model A)."""
    dummies = np.asarray(data["month"])[:, None] == np.arange(2, 13)
    return _autoregression(data, 1, 12, dummies.astype(float), scale)


def yearly(data: Data, scale: Scale = "passengers") -> Model:
    """Year-on-year growth: 3 lags and a constant (model B)."""
    return _autoregression(data, 12, 3, np.empty((len(data["month"]), 0)), scale)


def _autoregression(data: Data, span: int, lags: int, dummies: np.ndarray, scale: Scale) -> Model:
    level = np.asarray(data["outbound"], float)
    before = np.roll(level, span)
    growth = level / before - 1
    design = np.column_stack(
        [np.ones(len(level)), dummies, *(np.roll(growth, i + 1) for i in range(lags))]
    )
    there = np.arange(len(level)) >= span + lags
    design = np.where(there[:, None], design, 0.0)
    jacobian = np.log(before) if scale == "passengers" else np.zeros(len(level))
    num_beta = 1 + dummies.shape[1]
    prior = {
        "beta": dist.Normal(0.0, 1.0).expand([num_beta]).to_event(1),
        "rho": dist.Beta(5.0, 5.0).expand([lags]).to_event(1),
        "sigma": dist.HalfNormal(1.0),
    }
    space = support(
        {"rho": dist.constraints.interval(-1.0, 1.0), "sigma": dist.constraints.positive}
    )

    def init(key: Key[Array, ""]) -> Params:
        keys = jax.random.split(key, len(prior))
        theta = {name: p.sample(k) for (name, p), k in zip(prior.items(), keys)}
        return space.unconstrain(theta | {"rho": 2 * theta["rho"] - 1})

    def log_prior(params: Params) -> Scalar:
        theta = space.constrain(params)
        theta = theta | {"rho": (theta["rho"] + 1) / 2}
        total = sum(p.log_prob(theta[name]) for name, p in prior.items())
        return total - lags * jnp.log(2.0) + space.log_jacobian(params)

    def log_lik(params: Params, data: Data) -> Float[Array, " unit"]:
        theta = space.constrain(params)
        mean = design @ jnp.concatenate([theta["beta"], theta["rho"]])
        terms = dist.Normal(mean, theta["sigma"]).log_prob(growth) - jacobian
        return jnp.where(there, terms, 0.0)

    def moments(params: Params, data: Data) -> tuple[Array, Array]:
        theta = space.constrain(params)
        mean = design @ jnp.concatenate([theta["beta"], theta["rho"]])
        return before * (1 + mean), jnp.square(before * theta["sigma"])

    def predict(key: Key[Array, ""], params: Params, data: Data) -> Float[Array, " unit"]:
        mean, variance = moments(params, data)
        return dist.Normal(mean, jnp.sqrt(variance)).sample(key)

    outcome = Outcome(
        "outbound", "identity" if scale == "passengers" else f"growth over {span}", discrete=False
    )
    functions = init, log_prior, log_lik, space.constrain, outcome
    return Model(*functions, predict=predict, moments=moments, unconstrain=space.unconstrain)
