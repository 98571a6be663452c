r"""The models of Fong and Holmes: polynomials, and probit regressions with a g-prior."""

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.scipy.special import log_ndtr
from jaxtyping import Array, Float

import pcv
from pcv.models.model import Data

INTERCEPT = 100.0
"""prior standard deviation of a polynomial's intercept"""


def polynomial(data: Data, degree: int, variance: float) -> pcv.Model:
    r"""Noise of variance 1 about :math:`\theta_0 + \theta_1 x + \dots`, with priors
    :math:`\theta_0 \sim N(0, 100^2)` and :math:`N(0, s^2)` of the others."""
    powers, sd = design(np.asarray(data["x"]), degree), prior_sd(degree, variance)

    def model(y: Float[Array, " unit"]) -> None:
        theta = numpyro.sample("theta", dist.Normal(0.0, sd).to_event(1))
        with numpyro.plate("unit", len(y)):
            numpyro.sample("y", dist.Normal(powers @ theta, 1.0), obs=y)

    return pcv.from_numpyro(model, {"y": data["y"]})


def design(x: Float[np.ndarray, " unit"], degree: int) -> Float[np.ndarray, "unit param"]:
    return np.stack([x**k for k in range(degree + 1)], axis=1)


def prior_sd(degree: int, variance: float) -> Float[np.ndarray, " param"]:
    return np.array([INTERCEPT] + [np.sqrt(variance)] * degree)


def probit(data: Data, covariates: list[str], g_per_unit: float) -> pcv.Model:
    r"""Diabetes by standardised covariates and an intercept, X, with the prior
    :math:`N(0, g (X^\top X)^{-1})`, where g is so many times n."""
    columns = [np.asarray(data[name], float) for name in covariates]
    number = len(columns[0])
    x = np.stack([np.ones(number), *((c - c.mean()) / c.std(ddof=1) for c in columns)], axis=1)
    covariance = g_per_unit * number * np.linalg.inv(x.T @ x)
    names = ["intercept", *covariates]
    prior = dist.MultivariateNormal(jnp.zeros(len(names)), jnp.asarray(covariance))

    def log_lik(params: dict[str, Array], data: Data) -> Float[Array, " unit"]:
        sign = jnp.where(data["diabetic"] == 1, 1.0, -1.0)
        return log_ndtr(sign * (x @ params["theta"]))

    return pcv.Model(
        init=lambda key: {"theta": prior.sample(key)},
        log_prior=lambda params: prior.log_prob(params["theta"]),
        log_lik=log_lik,
        constrain=lambda params: params,
        outcome=pcv.Outcome("diabetic"),
        dims={"theta": ["covariate"]},
        coords={"covariate": names},
    )
