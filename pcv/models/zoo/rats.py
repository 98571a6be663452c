r"""Rats: 30 young rats weighed five times (Gelfand et al. 1990; PCV, example 2).

.. math::
    y_{jt} \sim N(\alpha_j + \beta_j (t - 22), \sigma_y),\quad
    \alpha_j \sim N(\mu_\alpha, \sigma_\alpha),\quad \beta_j \sim N(\mu_\beta, \sigma_\beta)

with one slope for all rats in `common_slope`. Units are the weighings. Scales are standard
deviations, Gamma(shape, rate). Columns of the data: ``rat``, ``day``, ``weight_g``.
"""

from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jaxtyping import Array, Bool, Float, Int, Key, Real

from pcv.models.model import Data, Model, Outcome, Params, Predictive, Scalar, support

Priors = Literal["paper", "authors"]
Moments = tuple[Float[Array, " slot"], Float[Array, "slot slot"]]

MID_DAY = 22.0

_LOCATIONS = {"mu_alpha": dist.Normal(250.0, 20.0), "mu_beta": dist.Normal(6.0, 2.0)}
_RANDOM_SLOPES = {
    "paper": {
        "sigma_alpha": dist.Gamma(25.0, 2.0),
        "sigma_beta": dist.Gamma(5.0, 10.0),
        "sigma_y": dist.Gamma(1.0, 2.0),
    },
    "authors": {
        "sigma_alpha": dist.Gamma(25.0, 2.0),
        "sigma_beta": dist.Gamma(5.0, 5.0),
        "sigma_y": dist.Gamma(18.0, 3.0),
    },
}
_COMMON_SLOPE = {
    "paper": {"sigma_alpha": dist.Gamma(25.0, 2.0), "sigma_y": dist.Gamma(1.0, 2.0)},
    "authors": {"sigma_alpha": dist.Gamma(25.0, 2.0), "sigma_y": dist.Gamma(2.0, 2.0)},
}


def random_slopes(data: Data, priors: Priors = "paper") -> Model:
    """Every rat has its own intercept and its own slope (PCV eq. 18–19)."""
    prior = _LOCATIONS | _RANDOM_SLOPES[priors]
    space = support({name: p.support for name, p in prior.items()})
    names, rat = np.unique(data["rat"], return_inverse=True)

    def init(key: Key[Array, ""]) -> Params:
        keys = dict(zip([*prior, "alpha", "beta"], jax.random.split(key, len(prior) + 2)))
        theta = {name: p.sample(keys[name]) for name, p in prior.items()}
        for effect in ("alpha", "beta"):
            effects = dist.Normal(theta[f"mu_{effect}"], theta[f"sigma_{effect}"])
            theta[effect] = effects.sample(keys[effect], (names.size,))
        return space.unconstrain(theta)

    def log_prior(params: Params) -> Scalar:
        theta = space.constrain(params)
        hyper = sum(p.log_prob(theta[name]) for name, p in prior.items())
        alpha = dist.Normal(theta["mu_alpha"], theta["sigma_alpha"]).log_prob(theta["alpha"])
        beta = dist.Normal(theta["mu_beta"], theta["sigma_beta"]).log_prob(theta["beta"])
        return hyper + alpha.sum() + beta.sum() + space.log_jacobian(params)

    def outcome(params: Params, data: Data) -> dist.Distribution:
        theta = space.constrain(params)
        mean = theta["alpha"][rat] + theta["beta"][rat] * (data["day"] - MID_DAY)
        return dist.Normal(mean, theta["sigma_y"])

    def marginal_moments(
        params: Params, data: Data, test: Int[Array, " slot"]
    ) -> tuple[Array, Array]:
        theta = space.constrain(params)
        age = data["day"][test] - MID_DAY
        of_rat = jnp.asarray(rat)[test]
        between = theta["sigma_alpha"] ** 2 + theta["sigma_beta"] ** 2 * jnp.outer(age, age)
        cov = (of_rat[:, None] == of_rat) * between + theta["sigma_y"] ** 2 * jnp.eye(test.size)
        return theta["mu_alpha"] + theta["mu_beta"] * age, cov

    return Model(
        init,
        log_prior,
        constrain=space.constrain,
        unconstrain=space.unconstrain,
        outcome=Outcome("weight_g", discrete=False),
        group=rat,
        **gaussian("weight_g", outcome, marginal_moments),
    )


def common_slope(data: Data, priors: Priors = "paper") -> Model:
    """Every rat has its own intercept; all grow at one rate (PCV eq. 20)."""
    prior = {
        "mu_alpha": _LOCATIONS["mu_alpha"],
        "beta": _LOCATIONS["mu_beta"],
        **_COMMON_SLOPE[priors],
    }
    space = support({name: p.support for name, p in prior.items()})
    names, rat = np.unique(data["rat"], return_inverse=True)

    def init(key: Key[Array, ""]) -> Params:
        keys = dict(zip([*prior, "alpha"], jax.random.split(key, len(prior) + 1)))
        theta = {name: p.sample(keys[name]) for name, p in prior.items()}
        effects = dist.Normal(theta["mu_alpha"], theta["sigma_alpha"])
        theta["alpha"] = effects.sample(keys["alpha"], (names.size,))
        return space.unconstrain(theta)

    def log_prior(params: Params) -> Scalar:
        theta = space.constrain(params)
        hyper = sum(p.log_prob(theta[name]) for name, p in prior.items())
        alpha = dist.Normal(theta["mu_alpha"], theta["sigma_alpha"]).log_prob(theta["alpha"])
        return hyper + alpha.sum() + space.log_jacobian(params)

    def outcome(params: Params, data: Data) -> dist.Distribution:
        theta = space.constrain(params)
        mean = theta["alpha"][rat] + theta["beta"] * (data["day"] - MID_DAY)
        return dist.Normal(mean, theta["sigma_y"])

    def marginal_moments(
        params: Params, data: Data, test: Int[Array, " slot"]
    ) -> tuple[Array, Array]:
        theta = space.constrain(params)
        of_rat = jnp.asarray(rat)[test]
        between = (of_rat[:, None] == of_rat) * theta["sigma_alpha"] ** 2
        cov = between + theta["sigma_y"] ** 2 * jnp.eye(test.size)
        return theta["mu_alpha"] + theta["beta"] * (data["day"][test] - MID_DAY), cov

    return Model(
        init,
        log_prior,
        constrain=space.constrain,
        unconstrain=space.unconstrain,
        outcome=Outcome("weight_g", discrete=False),
        group=rat,
        **gaussian("weight_g", outcome, marginal_moments),
    )


def gaussian(
    name: str,
    outcome: Callable[[Params, Data], dist.Distribution],
    marginal_moments: Callable[[Params, Data, Int[Array, " slot"]], Moments],
) -> dict[str, Any]:
    """Arguments of `Model` derived from the normal distribution of its outcome.

    Args:
        name: of the outcome in the data.
        outcome: distribution of every unit given all parameters.
        marginal_moments: mean and covariance with the groups' effects integrated out.
    """

    def moments(params: Params, data: Data) -> tuple[Array, Array]:
        of_unit = outcome(params, data)
        return of_unit.mean, of_unit.variance

    def marginal(params: Params, data: Data, test: Int[Array, " slot"]) -> Predictive:
        mean, cov = marginal_moments(params, data, test)
        return gaussian_predictive(data[name][test], mean, cov, test >= 0)

    def marginal_cdf(
        key: Key[Array, ""], params: Params, data: Data, test: Int[Array, " slot"], y: Array
    ) -> Array:
        mean, cov = marginal_moments(params, data, test)
        return dist.Normal(mean, jnp.sqrt(jnp.diag(cov))).cdf(y)

    return {
        "log_lik": lambda params, data: outcome(params, data).log_prob(data[name]),
        "predict": lambda key, params, data: outcome(params, data).sample(key),
        "cdf": lambda params, data, y: outcome(params, data).cdf(y),
        "moments": moments,
        "marginal": marginal,
        "marginal_cdf": marginal_cdf,
        "marginal_predict": lambda key, *at: _normal(*marginal_moments(*at)).sample(key),
        "marginal_moments": marginal_moments,
    }


def _normal(mean: Array | float, cov: Float[Array, "slot slot"]) -> dist.MultivariateNormal:
    """Unvalidated: outside `jit`, checking the covariance would compile sixty modules."""
    return dist.MultivariateNormal(mean, cov, validate_args=False)


def gaussian_predictive(
    y: Real[Array, " slot"],
    mean: Float[Array, " slot"],
    cov: Float[Array, "slot slot"],
    present: Bool[Array, " slot"],
) -> Predictive:
    """Log density of `y` under N(mean, cov), and of each of its margins; padded slots count 0."""
    residual = jnp.where(present, y - mean, 0.0)
    cov = jnp.where(jnp.outer(present, present), cov, jnp.eye(y.size))
    padding = jnp.sum(~present) * 0.5 * jnp.log(2 * jnp.pi)
    joint = _normal(0.0, cov).log_prob(residual) + padding
    margins = dist.Normal(0.0, jnp.sqrt(jnp.diag(cov))).log_prob(residual)
    return joint, jnp.where(present, margins, 0.0)
