"""Two models of data.csv, in JAX. Edit them, add others, and name them in config.yaml.

A function gets the columns of the data by name and returns a model of all the data; pcv leaves out
the fields. `help(pcv.Model)` describes what else a model can have.
"""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

import pcv


def common(data):
    """Every field has its own intercept; all respond to the dose alike."""
    prior = {
        "level": dist.Normal(5, 2),
        "sigma_level": dist.HalfNormal(2),
        "response": dist.Normal(0, 1),
        "sigma_y": dist.HalfNormal(1),
    }
    names, field = np.unique(data["field"], return_inverse=True)
    dose = jnp.asarray(data["dose"])

    def effects(theta):
        return {"intercept": dist.Normal(theta["level"], theta["sigma_level"])}

    def mean(theta):
        return theta["intercept"][field] + theta["response"] * dose

    return hierarchical(prior, effects, mean, len(names))


def varying(data):
    """Every field has its own intercept and its own response to the dose."""
    prior = {
        "level": dist.Normal(5, 2),
        "sigma_level": dist.HalfNormal(2),
        "response": dist.Normal(0, 1),
        "sigma_response": dist.HalfNormal(1),
        "sigma_y": dist.HalfNormal(1),
    }
    names, field = np.unique(data["field"], return_inverse=True)
    dose = jnp.asarray(data["dose"])

    def effects(theta):
        return {
            "intercept": dist.Normal(theta["level"], theta["sigma_level"]),
            "slope": dist.Normal(theta["response"], theta["sigma_response"]),
        }

    def mean(theta):
        return theta["intercept"][field] + theta["slope"][field] * dose

    return hierarchical(prior, effects, mean, len(names))


def hierarchical(prior, effects, mean, n_fields):
    """Normal yields, from the prior, the distribution of each field's effects, and the mean.

    Sampling is unconstrained: `space` maps the parameters (`theta`) to the real line and back.
    """
    space = pcv.support({name: p.support for name, p in prior.items()})

    def init(key):
        key, *keys = jax.random.split(key, len(prior) + 1)
        theta = {name: p.sample(k) for (name, p), k in zip(prior.items(), keys)}
        for name, p in effects(theta).items():
            key, own = jax.random.split(key)
            theta[name] = p.sample(own, (n_fields,))
        return space.unconstrain(theta)

    def log_prior(params):
        theta = space.constrain(params)
        parts = {**prior, **effects(theta)}
        total = sum(p.log_prob(theta[name]).sum() for name, p in parts.items())
        return total + space.log_jacobian(params)

    def outcome(params):
        theta = space.constrain(params)
        return dist.Normal(mean(theta), theta["sigma_y"])

    return pcv.Model(
        init,
        log_prior,
        log_lik=lambda params, data: outcome(params).log_prob(data["yield_t"]),
        constrain=space.constrain,
        outcome=pcv.Outcome("yield_t", discrete=False),
        predict=lambda key, params, data: outcome(params).sample(key),
        cdf=lambda params, data, y: outcome(params).cdf(y),
    )
