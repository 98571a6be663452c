"""Two models of data.csv, in NumPyro. Edit them, add others, and name them in config.yaml.

A function gets the columns of the data by name and returns a model of all the data; pcv leaves out
the fields.
"""

import numpy as np
import numpyro
import numpyro.distributions as dist

import pcv


def common(data):
    """Every field has its own intercept; all respond to the dose alike."""
    names, field = np.unique(data["field"], return_inverse=True)

    def model(dose, yield_t):
        level = numpyro.sample("level", dist.Normal(5, 2))
        sigma_level = numpyro.sample("sigma_level", dist.HalfNormal(2))
        response = numpyro.sample("response", dist.Normal(0, 1))
        sigma_y = numpyro.sample("sigma_y", dist.HalfNormal(1))
        with numpyro.plate("fields", len(names)):
            intercept = numpyro.sample("intercept", dist.Normal(level, sigma_level))
        with numpyro.plate("plots", len(yield_t)):
            mean = intercept[field] + response * dose
            numpyro.sample("yield_t", dist.Normal(mean, sigma_y), obs=yield_t)

    return pcv.from_numpyro(model, {"dose": data["dose"], "yield_t": data["yield_t"]})


def varying(data):
    """Every field has its own intercept and its own response to the dose."""
    names, field = np.unique(data["field"], return_inverse=True)

    def model(dose, yield_t):
        level = numpyro.sample("level", dist.Normal(5, 2))
        sigma_level = numpyro.sample("sigma_level", dist.HalfNormal(2))
        response = numpyro.sample("response", dist.Normal(0, 1))
        sigma_response = numpyro.sample("sigma_response", dist.HalfNormal(1))
        sigma_y = numpyro.sample("sigma_y", dist.HalfNormal(1))
        with numpyro.plate("fields", len(names)):
            intercept = numpyro.sample("intercept", dist.Normal(level, sigma_level))
            slope = numpyro.sample("slope", dist.Normal(response, sigma_response))
        with numpyro.plate("plots", len(yield_t)):
            mean = intercept[field] + slope[field] * dose
            numpyro.sample("yield_t", dist.Normal(mean, sigma_y), obs=yield_t)

    return pcv.from_numpyro(model, {"dose": data["dose"], "yield_t": data["yield_t"]})
