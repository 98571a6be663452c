r"""The models of the LOO-SS paper: linear regressions, radon in homes, and wells.

The paper's supplement, with priors and splines, is not at hand. Radon's six models are those of
posteriordb that fit its description, with their priors; the others are ours.
"""

from collections.abc import Mapping
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
from jaxtyping import Array, Float, Key
from scipy.interpolate import BSpline

import pcv
from pcv.models.model import Data, Params, Scalar, support

COVARIATES = ("dist", "arsenic", "educ")
"""of a well, that interact, or have a smooth each"""
KNOTS = 10
"""of a smooth, as many as its degrees of freedom in mgcv"""
DEGREE = 3
NOISE = dist.HalfNormal(10.0)
LOCAL = dist.HalfCauchy(1.0)
SLAB = dist.InverseGamma(2.0, 8.0)
"""of the horseshoe: a Student t slab with 4 degrees of freedom and scale 2"""


def linear(data: Data, covariates: int = 100, horseshoe: bool = False) -> pcv.Model:
    r"""Linear regression on the first covariates, :math:`y_i \sim N(x_i^\top \beta, \sigma)`.

    :math:`\beta_j \sim N(0, 1)`, or the regularised horseshoe of Piironen and Vehtari (2017) for
    one relevant covariate: :math:`\beta_j \sim N(0, \tau \tilde\lambda_j)`,
    :math:`\tilde\lambda_j^2 = c^2 \lambda_j^2 / (c^2 + \tau^2 \lambda_j^2)`, with half-Cauchy
    :math:`\lambda_j` and :math:`\tau` (of scale :math:`\sigma / ((P - 1) \sqrt n)`) and
    :math:`c^2 \sim` Inv-Gamma(2, 8). :math:`\sigma \sim` half-normal(0, 10).
    """
    num_units = len(data["y"])
    positive = ("sigma", "tau", "local", "slab") if horseshoe else ("sigma",)
    space = support(dict.fromkeys(positive, dist.constraints.positive))

    def global_scale(sigma: Scalar) -> dist.Distribution:
        return dist.HalfCauchy(sigma / ((covariates - 1) * np.sqrt(num_units)))

    def init(key: Key[Array, ""]) -> Params:
        keys = jax.random.split(key, 5)
        theta = {"sigma": NOISE.sample(keys[0])}
        scale = jnp.ones(covariates)
        if horseshoe:
            theta["tau"] = global_scale(theta["sigma"]).sample(keys[1])
            theta["local"] = LOCAL.sample(keys[2], (covariates,))
            theta["slab"] = SLAB.sample(keys[3])
            scale = horseshoe_scale(theta)
        theta["beta"] = dist.Normal(0.0, scale).sample(keys[4])
        return space.unconstrain(theta)

    def log_prior(params: Params) -> Scalar:
        theta = space.constrain(params)
        found = NOISE.log_prob(theta["sigma"]) + space.log_jacobian(params)
        scale = jnp.ones(covariates)
        if horseshoe:
            found += global_scale(theta["sigma"]).log_prob(theta["tau"])
            found += LOCAL.log_prob(theta["local"]).sum() + SLAB.log_prob(theta["slab"])
            scale = horseshoe_scale(theta)
        return found + dist.Normal(0.0, scale).log_prob(theta["beta"]).sum()

    def log_lik(params: Params, data: Data) -> Float[Array, " unit"]:
        theta = space.constrain(params)
        mean = data["x"][:, :covariates] @ theta["beta"]
        return dist.Normal(mean, theta["sigma"]).log_prob(data["y"])

    made = init, log_prior, log_lik, space.constrain, pcv.Outcome("y")
    return pcv.Model(*made, unconstrain=space.unconstrain)


def horseshoe_scale(theta: Mapping[str, Any]) -> Any:
    """Scale of each coefficient, given the others' names in `linear`."""
    wide = (theta["tau"] * theta["local"]) ** 2
    return jnp.sqrt(theta["slab"] * wide / (theta["slab"] + wide))


def radon(
    data: Data,
    intercept: Literal["common", "separate", "varying"] = "varying",
    slope: Literal["none", "common", "varying"] = "common",
) -> pcv.Model:
    """Log radon of a home, by the floor of the measurement and by county."""
    given = {name: data[name] for name in ("log_radon", "floor_measure", "county_idx")}

    def model(log_radon: Any, floor_measure: Any, county_idx: Any) -> None:
        names, county = np.unique(county_idx, return_inverse=True)

        def of_county(name: str, kind: str) -> Any:
            if kind in ("common", "separate"):
                prior = dist.Normal(0.0, 10.0)
                shape = (names.size,) if kind == "separate" else ()
                return jnp.broadcast_to(numpyro.sample(name, prior.expand(shape)), names.size)
            center = numpyro.sample(f"mu_{name}", dist.Normal(0.0, 10.0))
            scale = numpyro.sample(f"sigma_{name}", dist.HalfNormal(1.0))
            z = numpyro.sample(f"z_{name}", dist.Normal(0.0, 1.0).expand((names.size,)))
            return center + scale * z

        mean = of_county("alpha", intercept)[county]
        if slope != "none":
            mean = mean + of_county("beta", slope)[county] * floor_measure
        sigma = numpyro.sample("sigma_y", dist.HalfNormal(1.0))
        with numpyro.plate("home", len(log_radon)):
            numpyro.sample("log_radon", dist.Normal(mean, sigma), obs=log_radon)

    return pcv.from_numpyro(model, given)


def wells(data: Data, terms: Literal["linear", "interactions", "smooth"] = "linear") -> pcv.Model:
    """Whether a household switched to another well, by distance, arsenic, education and
    association; with interactions of the first three, or with a penalised spline of each."""
    table = pd.DataFrame({name: np.asarray(data[name], float) for name in (*COVARIATES, "assoc")})
    x = ((table - table.mean()) / table.std()).to_numpy()
    columns = [x]
    if terms == "interactions":
        columns += [(x[:, i] * x[:, j])[:, None] for i in range(3) for j in range(i)]
    bases = [_penalised(x[:, i]) for i in range(3)] if terms == "smooth" else []

    def model(switch: Any) -> None:
        design = np.column_stack(columns)
        alpha = numpyro.sample("alpha", dist.Normal(0.0, 2.5))
        beta = numpyro.sample("beta", dist.Normal(0.0, 2.5).expand((design.shape[1],)))
        logit = alpha + design @ beta
        for name, basis in zip(COVARIATES, bases):
            scale = numpyro.sample(f"sigma_{name}", dist.HalfNormal(1.0))
            z = numpyro.sample(f"z_{name}", dist.Normal(0.0, 1.0).expand((basis.shape[1],)))
            logit = logit + basis @ (scale * z)
        with numpyro.plate("household", len(switch)):
            numpyro.sample("switch", dist.Bernoulli(logits=logit), obs=switch)

    return pcv.from_numpyro(model, {"switch": data["switch"]})


def _penalised(x: Float[np.ndarray, " unit"]) -> Float[np.ndarray, "unit column"]:
    """A basis of the wiggly part of a P-spline (Eilers and Marx 1996), with independent standard
    normal coefficients: differences of second order are penalised, lines are not in it."""
    inner = np.unique(np.quantile(x, np.linspace(0, 1, KNOTS - DEGREE + 1)))
    knots = np.r_[[inner[0]] * DEGREE, inner, [inner[-1]] * DEGREE]
    splines = BSpline.design_matrix(x, knots, DEGREE).toarray()
    differences = np.diff(np.eye(splines.shape[1]), 2, axis=0)
    basis = splines @ np.linalg.pinv(differences)
    return basis / basis.std()
