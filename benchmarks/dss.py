"""Bias of joint Dawid-Sebastiani scores whose moments are estimated: `python -m benchmarks.dss`.

The covariance of S independent draws of n normal numbers has a Wishart distribution: the mean of
its log determinant and that of its inverse are known.
"""

import numpy as np
from scipy.special import digamma

DRAWS = 1600


def bias(units: int, draws: int = DRAWS) -> float:
    """Mean of -log det S - (y - m)' inv(S) (y - m), less its value at the true moments.

    >>> round(bias(50), 2), round(bias(200), 1)
    (-0.87, -15.8)
    """
    freedom = draws - 1
    places = np.arange(units)
    log_det = digamma((freedom - places) / 2).sum() + units * np.log(2 / freedom)
    distance = units * (1 + 1 / draws) * freedom / (freedom - units - 1)
    return float(units - log_det - distance)


if __name__ == "__main__":
    for units in (2, 10, 50, 200):
        print(f"{units} units, {DRAWS} draws: {bias(units):.2f}")
