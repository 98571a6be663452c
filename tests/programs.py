"""How often functions are traced and compiled, and a model on which it is counted."""

from contextlib import contextmanager

import jax
import jax.numpy as jnp
import numpyro.distributions as dist

import pcv


@contextmanager
def counted():
    """How often functions are traced, lowered and compiled (or fetched)."""
    found = []

    def listen(event, *_, **__):
        if event.startswith("/jax/core/compile/"):
            found.append(event.removeprefix("/jax/core/compile/").removesuffix("_duration"))

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield found
    jax.monitoring.unregister_event_duration_listener(listen)


def grouped(data):
    """Groups of normal outcomes, whose effects are integrated out by themselves."""

    def log_prior(params):
        return (
            dist.Normal(0.0, 2.0).log_prob(params["mu"])
            + dist.Normal(params["mu"], jnp.exp(params["log_tau"])).log_prob(params["theta"]).sum()
            + dist.Normal(0.0, 1.0).log_prob(params["log_tau"])
        )

    def init(key):
        z = jax.random.normal(key, (8,))
        mu, log_tau = 2 * z[0], z[1]
        return {"mu": mu, "log_tau": log_tau, "theta": mu + jnp.exp(log_tau) * z[2:]}

    return pcv.Model(
        init=init,
        log_prior=log_prior,
        log_lik=lambda params, data: dist.Normal(params["theta"][data["group"]], 1.0).log_prob(
            data["y"]
        ),
        constrain=dict,
        outcome=pcv.Outcome("y"),
    )
