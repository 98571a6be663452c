r"""Calibration of out-of-fold predictions, from PITs.

The PIT of a unit is the probability, under its out-of-fold predictive, of an outcome below the
observed one. Over units, PITs are uniform if predictives are right. They are not independent: units
of a group that is left out as a whole share what the model does not know of it.
"""

from typing import NamedTuple

import numpy as np
from arviz_stats.base import array_stats
from jaxtyping import Float, Int
from scipy.stats import f as f_distribution
from scipy.stats import norm

LEVEL = 0.02
"""of the test of calibration (`benchmarks/calibration.py` has its error rates)"""
ALIKE = 0.02
"""p-value of the test of dependence within folds below which PITs are taken as dependent; with a
larger one, the test loses power where they are not"""
MIN_UNITS = 8
"""units, or folds with dependent ones, below which nothing is said of calibration"""
LEVELS = (0.5, 0.8, 0.9, 0.95)
"""of central intervals whose coverage is shown"""


class Calibration(NamedTuple):
    """Whether predictives are calibrated, and how they are not."""

    p: float
    """p-value of uniform PITs; NaN with too few units"""
    direction: str
    """"too narrow", "too wide", "biased low", "biased high" or "of the wrong shape"; empty if p is
    above `LEVEL`"""
    dependent: bool
    """whether PITs are dependent within folds"""
    level: Float[np.ndarray, " level"]
    coverage: Float[np.ndarray, " level"]
    """share of units within the central interval of each level"""
    coverage_se: Float[np.ndarray, " level"]
    """its standard error"""
    above_median: float
    """share of units above the predictive median"""
    num_units: int


def calibrate(pit: Float[np.ndarray, " unit"], fold: Int[np.ndarray, " unit"]) -> Calibration:
    r"""Test whether PITs are uniform, and compute the coverage of central intervals.

    The test is POT-C of `arviz_stats`, which allows for the weak dependence of leave-one-out PITs
    (Tesso and Vehtari, 2026). Where PITs are correlated within folds, it is applied to sets with
    one unit of each fold, and the p-values are combined by Cauchy's method (Liu and Xie, 2020),
    weighted by the sizes of the sets:

    .. math:: p = \tfrac12 - \tfrac1\pi \arctan \sum_j w_j \tan\{(\tfrac12 - p_j) \pi\}

    Args:
        pit: of every tested unit; those that are not finite are left out.
        fold: index of its fold.

    Returns:
        The test, its direction, and coverage with binomial standard errors, over folds where PITs
        are dependent within them.

    >>> even = (np.arange(100) + 0.5) / 100
    >>> calibrate(even, np.arange(100)).direction
    ''
    >>> narrow = norm.cdf(2 * norm.ppf(even))  # predictives with half the standard deviation
    >>> found = calibrate(narrow, np.arange(100))
    >>> found.direction, found.coverage.round(2)
    ('too narrow', array([0.26, 0.48, 0.58, 0.68]))
    """
    finite = np.isfinite(pit)
    pit, fold = pit[finite], fold[finite]
    sets, dependent = _sets(pit, fold)
    size = np.array([len(x) for x in sets])
    enough = size.max(initial=0) >= MIN_UNITS
    p = _combined([_uniformity(pit[x]) for x in sets], size) if enough else np.nan
    level = np.array(LEVELS)
    inside = np.abs(pit[:, None] - 0.5) <= level / 2
    coverage = inside.mean(0)
    cluster = fold if dependent else np.arange(len(pit))
    deviation = np.array([np.bincount(cluster, x) for x in (inside - coverage).T])
    return Calibration(
        p,
        _direction(pit) if p < LEVEL else "",
        dependent,
        level,
        coverage,
        np.sqrt((deviation**2).sum(1)) / len(pit),
        float((pit > 0.5).mean()),
        len(pit),
    )


def _sets(
    pit: Float[np.ndarray, " unit"], fold: Int[np.ndarray, " unit"]
) -> tuple[list[Int[np.ndarray, " some"]], bool]:
    """Sets of units whose PITs are taken as independent: all, or one of each fold."""
    every = [np.arange(len(pit))]
    _, fold = np.unique(fold, return_inverse=True)
    size = np.bincount(fold)
    within = len(pit) - len(size)
    if not within or len(size) < 2:
        return every, False
    z = norm.ppf(np.clip(pit, 1e-9, 1 - 1e-9))
    mean = np.bincount(fold, z) / size
    between_ms = (size * (mean - z.mean()) ** 2).sum() / (len(size) - 1)
    within_ms = ((z - mean[fold]) ** 2).sum() / within
    with np.errstate(divide="ignore", invalid="ignore"):  # 0 within: as dependent as can be
        ratio = between_ms / within_ms
    if f_distribution.sf(ratio, len(size) - 1, within) >= ALIKE:
        return every, False
    order = np.argsort(fold, kind="stable")
    place = np.arange(len(pit)) - np.repeat(np.cumsum(size) - size, size)
    sets = [order[place == j] for j in range(size.max())]
    return [x for x in sets if len(x) >= min(MIN_UNITS, len(sets[0]))], True


def _uniformity(pit: Float[np.ndarray, " unit"]) -> float:
    p, *_ = array_stats.uniformity_test(pit, method="pot_c")
    return float(p)


def _combined(p: list[float], weight: Int[np.ndarray, " test"]) -> float:
    """Cauchy's combination of p-values."""
    if len(p) == 1:
        return p[0]
    angle = (0.5 - np.clip(p, 1e-15, 1 - 1e-15)) * np.pi
    return float(0.5 - np.arctan(np.average(np.tan(angle), weights=weight)) / np.pi)


def _direction(pit: Float[np.ndarray, " unit"]) -> str:
    """How PITs that are not uniform differ most: in their mean, or in their spread."""
    number, off = len(pit), pit - 0.5
    of_mean = off.mean() * np.sqrt(12 * number)
    of_spread = ((off**2).mean() - 1 / 12) * np.sqrt(180 * number)
    if max(abs(of_mean), abs(of_spread)) < 2:
        return "of the wrong shape"
    if abs(of_mean) > abs(of_spread):
        return "biased low" if of_mean > 0 else "biased high"
    return "too narrow" if of_spread > 0 else "too wide"


def sentence(calibration: Calibration, discrete: bool = False) -> str:
    """How predictions are not calibrated, in words; empty if they are.

    Args:
        calibration: of `calibrate`.
        discrete: whether outcomes are: then PITs are random, and are what is counted.

    >>> pit = norm.cdf(2 * norm.ppf((np.arange(100) + 0.5) / 100))
    >>> print(sentence(calibrate(pit, np.arange(100))))
    Predictions are too narrow: 90% intervals cover 58% of 100 units (p < 0.001).
    """
    if not calibration.direction:
        return ""
    covered = calibration.coverage[LEVELS.index(0.9)]
    facts = f"90% intervals cover {covered:.0%} of {calibration.num_units} units"
    if discrete:
        facts = f"{covered:.0%} of {calibration.num_units} random PITs lie between 5% and 95%"
    if calibration.direction.startswith("biased"):
        above = calibration.above_median
        facts = f"{above:.0%} of {calibration.num_units} units are above their median"
    p = "p < 0.001" if calibration.p < 0.001 else f"p = {calibration.p:.3f}"
    return f"Predictions are {calibration.direction}: {facts} ({p})."
