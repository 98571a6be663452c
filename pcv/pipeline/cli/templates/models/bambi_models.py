"""Two models of data.csv, in Bambi. Edit them, add others, and name them in config.yaml.

A function gets the columns of the data by name and returns a model of all the data; pcv leaves out
the fields.
"""

import bambi as bmb
import pandas as pd


def common(data):
    """Every field has its own intercept; all respond to the dose alike."""
    return bmb.Model("yield_t ~ dose + (1 | field)", pd.DataFrame(data))


def varying(data):
    """Every field has its own intercept and its own response to the dose."""
    return bmb.Model("yield_t ~ dose + (dose | field)", pd.DataFrame(data))
