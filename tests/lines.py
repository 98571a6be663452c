"""Lines through made-up data, by the front-ends."""

import numpy as np
import numpyro
import numpyro.distributions as dist

import pcv

N = 12
Y, X, GROUP = np.linspace(-1, 1, N), np.linspace(0, 1, N) ** 2, np.repeat(np.arange(4), 3)


def line(y, x):
    a, b = numpyro.sample("a", dist.Normal(0, 2)), numpyro.sample("b", dist.Normal(0, 1))
    with numpyro.plate("case", len(y)):
        numpyro.sample("y", dist.Normal(a + b * x, 1.0), obs=y)


def numpyro_line(y=Y, x=X):
    return pcv.from_numpyro(line, {"y": y, "x": x})
