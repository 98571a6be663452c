"""Bounds that a correct program violates less than once in 10,000 runs.

A test with fixed keys does not fail by chance until somebody changes a key, a compiler or a
processor. Then its bound decides how often a correct program is called wrong. ``RATE`` is that
rate for one assertion; each function returns the bound that keeps it.
"""

import numpy as np
from scipy.stats import binom, chi2, t

RATE = 1e-4
"""false-alarm rate of one assertion"""


def z_limit(num: int = 1, df: float = np.inf) -> float:
    """Return the bound of the largest of `num` absolute errors in units of their standard errors.

    Bonferroni's bound, valid whether or not the errors are correlated. `df` is the degrees of
    freedom of the standard errors where these are estimated: t errors need a wider bound.

    >>> [round(z_limit(n), 2) for n in (1, 10, 1000)], round(z_limit(10, df=30), 2)
    ([3.89, 4.42, 5.33], 5.3)
    """
    return float(t.isf(RATE / 2 / num, df))


def sd_limits(num: int, kurtosis: float = 3.0, among: int = 1) -> tuple[float, float]:
    """Return bounds of the sample standard deviation of `num` independent errors whose true
    standard deviation is 1.

    Chi-squared bounds, with the degrees of freedom that give the variance of a sample variance
    of this kurtosis: 3 for normal errors, 3 + 6 / (df − 4) for t errors. Of `among` such standard
    deviations none is beyond them.

    >>> [round(x, 2) for x in sd_limits(200)], [round(x, 2) for x in sd_limits(200, kurtosis=6.0)]
    ([0.81, 1.2], [0.71, 1.32])
    """
    df = 2 * (num - 1) / (kurtosis - 1)
    low, high = chi2.ppf([RATE / 2 / among, 1 - RATE / 2 / among], df)
    return float(np.sqrt(low / df)), float(np.sqrt(high / df))


def count_limits(num: int, probability: float) -> tuple[int, int]:
    """Return bounds of how many of `num` independent events of this probability occur.

    >>> count_limits(300, 0.0455)
    (2, 30)
    """
    low, high = binom.ppf([RATE / 2, 1 - RATE / 2], num, probability)
    return int(low), int(high)
