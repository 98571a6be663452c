"""Radon of single homes, with intercepts of their counties."""

import numpy as np
import numpyro
import numpyro.distributions as dist

import pcv


def radon(y, floor, county, num_counties):
    mean = numpyro.sample("mean", dist.Normal(0, 2))
    slope = numpyro.sample("slope", dist.Normal(0, 1))
    between = numpyro.sample("between", dist.HalfNormal(1))
    within = numpyro.sample("within", dist.HalfNormal(1))
    with numpyro.plate("counties", num_counties):
        level = numpyro.sample("level", dist.Normal(mean, between))
    with numpyro.plate("homes", len(y)):
        middle = level[county] + slope * floor
        numpyro.sample("log_radon", dist.Normal(middle, within), obs=y)


def homes(data):
    county = np.asarray(data["county_idx"], int)
    return pcv.from_numpyro(
        radon,
        {
            "y": np.asarray(data["log_radon"]),
            "floor": np.asarray(data["floor_measure"], float),
            "county": county - county.min(),
            "num_counties": int(np.ptp(county)) + 1,
        },
    )
