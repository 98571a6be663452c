"""Two models of data.csv, in PyMC. Edit them, add others, and name them in config.yaml.

A function gets the columns of the data by name and returns a model of all the data; pcv leaves out
the fields.
"""

import numpy as np
import pymc as pm


def common(data):
    """Every field has its own intercept; all respond to the dose alike."""
    names, field = np.unique(data["field"], return_inverse=True)
    with pm.Model(coords={"field": names}) as model:
        level = pm.Normal("level", 5, 2)
        sigma_level = pm.HalfNormal("sigma_level", 2)
        response = pm.Normal("response", 0, 1)
        sigma_y = pm.HalfNormal("sigma_y", 1)
        intercept = pm.Normal("intercept", level, sigma_level, dims="field")
        mean = intercept[field] + response * data["dose"]
        pm.Normal("yield_t", mean, sigma_y, observed=data["yield_t"])
    return model


def varying(data):
    """Every field has its own intercept and its own response to the dose."""
    names, field = np.unique(data["field"], return_inverse=True)
    with pm.Model(coords={"field": names}) as model:
        level = pm.Normal("level", 5, 2)
        sigma_level = pm.HalfNormal("sigma_level", 2)
        response = pm.Normal("response", 0, 1)
        sigma_response = pm.HalfNormal("sigma_response", 1)
        sigma_y = pm.HalfNormal("sigma_y", 1)
        intercept = pm.Normal("intercept", level, sigma_level, dims="field")
        slope = pm.Normal("slope", response, sigma_response, dims="field")
        mean = intercept[field] + slope[field] * data["dose"]
        pm.Normal("yield_t", mean, sigma_y, observed=data["yield_t"])
    return model
