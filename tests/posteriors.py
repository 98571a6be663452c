"""Posteriors on which samplers are tried, and what long chains of NUTS say of some.

    PCV_DATA=... python -m tests.posteriors

writes their moments to `posteriors.json`, in some minutes.
"""

import json
import os
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
from arviz_stats.base import array_stats
from jax.flatten_util import ravel_pytree
from numpyro.infer.util import initialize_model, unconstrain_fn

from pcv.models.model import Target

MOMENTS = Path(__file__).with_suffix(".json")
DRAWS = 10_000
"""of each of four chains"""


def density_of(model) -> Target:
    info = initialize_model(jax.random.key(0), model, dynamic_args=False)
    flat, unravel = ravel_pytree(info.param_info.z)
    return Target(
        lambda key: jnp.zeros(flat.size),
        lambda position, fold: -info.potential_fn(unravel(position)),
        lambda position, fold: (position[0], position[:1]),
    )


def schools(centred: bool):
    y = jnp.array([28.0, 8, -3, 7, -1, 1, 18, 12])
    se = jnp.array([15.0, 10, 16, 11, 9, 11, 10, 18])

    def model():
        mu = numpyro.sample("mu", dist.Normal(0, 5))
        tau = numpyro.sample("tau", dist.HalfCauchy(5))
        if centred:
            theta = numpyro.sample("theta", dist.Normal(mu, tau).expand([8]))
        else:
            theta = mu + tau * numpyro.sample("z", dist.Normal(0, 1).expand([8]))
        numpyro.sample("y", dist.Normal(theta, se), obs=y)

    return model


def funnel():
    v = numpyro.sample("v", dist.Normal(0, 3))
    numpyro.sample("x", dist.Normal(0, jnp.exp(v / 2)).expand([9]))


def banana():
    x = numpyro.sample("x", dist.Normal(0, 1))
    numpyro.sample("y", dist.Normal(0.03 * (x * 10) ** 2 - 3, 1))


def two_modes():
    x = numpyro.sample("x", dist.Normal(0, 10))
    numpyro.factor("f", jnp.logaddexp(-0.5 * ((x - 5) / 0.5) ** 2, -0.5 * ((x + 5) / 0.5) ** 2))


def german():
    table = pd.read_csv(Path(os.environ["PCV_DATA"]) / "german_credit_numeric.csv").to_numpy(float)
    x = table[:, :-1]
    x, y = jnp.array((x - x.mean(0)) / x.std(0)), jnp.array(table[:, -1] == 2, float)

    def model():
        a = numpyro.sample("a", dist.Normal(0, 5))
        b = numpyro.sample("b", dist.Normal(0, 1).expand([24]))
        numpyro.sample("y", dist.Bernoulli(logits=a + x @ b), obs=y)

    return model


def poisson_groups():
    rng = np.random.default_rng(1)
    group = np.repeat(np.arange(400), 5)
    x, u = rng.normal(size=group.size), 0.7 * rng.normal(size=400)
    y = jnp.array(rng.poisson(np.exp(0.5 + 0.3 * x + u[group])))

    def model():
        mu = numpyro.sample("mu", dist.Normal(0, 2))
        b = numpyro.sample("b", dist.Normal(0, 1))
        tau = numpyro.sample("tau", dist.HalfNormal(1))
        z = numpyro.sample("z", dist.Normal(0, 1).expand([400]))
        numpyro.sample("y", dist.Poisson(jnp.exp(mu + b * x + tau * z[group])), obs=y)

    return model


def autoregression():
    rng = np.random.default_rng(2)
    y = np.zeros(120)
    for t in range(1, 120):
        y[t] = 0.3 + 0.8 * y[t - 1] + rng.normal()
    y = jnp.array(y)

    def model():
        alpha = numpyro.sample("alpha", dist.Normal(0, 2))
        beta = numpyro.sample("beta", dist.Uniform(-1, 1))
        sigma = numpyro.sample("sigma", dist.HalfNormal(2))
        numpyro.sample("y", dist.Normal(alpha + beta * y[:-1], sigma), obs=y[1:])

    return model


def gaussian_process():
    rng = np.random.default_rng(3)
    x = np.linspace(0, 1, 25)
    apart = (x[:, None] - x) ** 2
    y = jnp.array(rng.poisson(np.exp(1 + np.sin(6 * x))))

    def model():
        length = numpyro.sample("length", dist.InverseGamma(5, 2))
        size = numpyro.sample("size", dist.HalfNormal(1))
        cov = size**2 * jnp.exp(-0.5 * apart / length**2) + 1e-6 * jnp.eye(25)
        z = numpyro.sample("z", dist.Normal(0, 1).expand([25]))
        mu = numpyro.sample("mu", dist.Normal(0, 2))
        numpyro.sample("y", dist.Poisson(jnp.exp(mu + jnp.linalg.cholesky(cov) @ z)), obs=y)

    return model


WELL = {
    "banana": lambda: banana,
    "schools": lambda: schools(False),
    "autoregression": autoregression,
    "German credit": german,
    "Poisson groups": poisson_groups,
    "Gaussian process": gaussian_process,
}
"""posteriors on which NUTS is right"""
NEEDS_DATA = {"German credit"}
BADLY = {
    "centred schools": lambda: schools(True),
    "funnel": lambda: funnel,
    "two modes": lambda: two_modes,
}


def of_nuts(name: str) -> np.ndarray:
    """Chains of NumPyro's NUTS, on the unconstrained scale."""
    model = WELL[name]()
    kernel = numpyro.infer.NUTS(model, target_accept_prob=0.9)
    run = numpyro.infer.MCMC(
        kernel,
        num_warmup=500,
        num_samples=DRAWS,
        num_chains=4,
        chain_method="vectorized",
        progress_bar=False,
    )
    run.run(jax.random.key(1))
    made = run.get_samples(group_by_chain=True)
    names = initialize_model(jax.random.key(0), model, dynamic_args=False).param_info.z

    def flat(values: dict) -> jax.Array:
        return ravel_pytree(unconstrain_fn(model, (), {}, values))[0]

    return np.asarray(jax.vmap(jax.vmap(flat))({name: made[name] for name in names}))


def moments(draws: np.ndarray) -> dict[str, list[float]]:
    """Means and variances of parameters, and the Monte Carlo errors of both."""
    found = {}
    for name, x in (("mean", draws), ("variance", (draws - draws.mean((0, 1))) ** 2)):
        ess = np.asarray(array_stats.ess(x, method="mean", chain_axis=0, draw_axis=1))
        found |= {name: x.mean((0, 1)), f"mcse_{name}": np.sqrt(x.var((0, 1)) / ess)}
    return {name: [float(f"{v:.7g}") for v in x] for name, x in found.items()}


if __name__ == "__main__":
    with jax.enable_x64(True):
        known = {name: moments(of_nuts(name)) for name in WELL}
    lines = (f"{json.dumps(name)}: {json.dumps(x)}" for name, x in known.items())
    MOMENTS.write_text("{\n" + ",\n".join(lines) + "\n}\n")
