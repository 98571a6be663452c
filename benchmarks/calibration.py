"""How often is calibration flagged? `python -m benchmarks.calibration`, half a minute on one core.

Data sets whose out-of-fold predictives are known in closed form, from the right model and from
models that are wrong in one way. The share of data sets that are flagged, and of those that are,
the share with the right direction.
"""

from collections.abc import Callable, Iterator

import numpy as np
import pandas as pd
from scipy.stats import binom, norm, poisson

from pcv.analysis.calibration import calibrate

DATA_SETS = 200
UNITS, FACTOR, SHIFT = 150, 1.5, 0.5
"""units; by how much a wrong standard deviation is off; and a bias, in standard deviations"""
Pits = tuple[np.ndarray, np.ndarray]
"""PIT and fold of every unit"""
FAULTS: dict[str, tuple[float, float]] = {
    "": (1.0, 0.0),
    "too narrow": (1 / FACTOR, 0.0),
    "too wide": (FACTOR, 0.0),
    "biased low": (1.0, -SHIFT),
    "biased high": (1.0, SHIFT),
}
"""direction → factor of the predictive's standard deviation, and shift of its mean"""


def leave_one_out(rng: np.random.Generator, factor: float, shift: float) -> Pits:
    """Linear regression with 5 coefficients and a known error."""
    x = rng.normal(size=(UNITS, 5))
    y = x @ rng.normal(size=5) + rng.normal(size=UNITS)
    precision = np.eye(5) + x.T @ x
    leverage = np.einsum("ij,ij->i", x, np.linalg.solve(precision, x.T).T)
    mean = x @ np.linalg.solve(precision, x.T @ y)
    out_of_fold = (mean - leverage * y) / (1 - leverage)
    sd = np.sqrt(1 + leverage / (1 - leverage))
    return norm.cdf((y - out_of_fold - shift * sd) / (factor * sd)), np.arange(UNITS)


def ten_folds(rng: np.random.Generator, factor: float, shift: float) -> Pits:
    """The same, by ten random folds."""
    x = rng.normal(size=(UNITS, 5))
    y = x @ rng.normal(size=5) + rng.normal(size=UNITS)
    fold, pit = np.repeat(np.arange(10), UNITS // 10), np.empty(UNITS)
    for k in range(10):
        test, train = fold == k, fold != k
        cov = np.linalg.inv(np.eye(5) + x[train].T @ x[train])
        mean = x[test] @ cov @ x[train].T @ y[train]
        sd = np.sqrt(1 + np.einsum("ij,jk,ik->i", x[test], cov, x[test]))
        pit[test] = norm.cdf((y[test] - mean - shift * sd) / (factor * sd))
    return pit, fold


def groups(share: float) -> Callable[[np.random.Generator, float, float], Pits]:
    """30 groups of 5 units, left out as a whole, with this share of the variance between them."""

    def draw(rng: np.random.Generator, factor: float, shift: float) -> Pits:
        group = np.repeat(np.arange(30), UNITS // 30)
        between = np.sqrt(share) * rng.normal(size=30)[group]
        y = between + np.sqrt(1 - share) * rng.normal(size=UNITS)
        return norm.cdf((y - shift) / factor), group

    return draw


def counts(rng: np.random.Generator, factor: float, shift: float) -> Pits:
    """Poisson counts of known mean: the wrong predictive has the factor's variance, or another
    mean."""
    mean = rng.gamma(2.0, 2.0, UNITS)
    y = rng.poisson(mean)
    if factor > 1:  # between the counts of two thirds and four thirds of the mean
        parts = [poisson(mean * (1 + s)) for s in (-0.6, 0.6)]
        low, high = (np.mean([p.cdf(y - k) for p in parts], axis=0) for k in (1, 0))
    elif factor < 1:
        number = np.ceil(2 * mean)
        narrow = binom(number, mean / number)
        low, high = narrow.cdf(y - 1), narrow.cdf(y)
    else:
        wrong = poisson(mean + shift * np.sqrt(mean))
        low, high = wrong.cdf(y - 1), wrong.cdf(y)
    return low + rng.random(UNITS) * (high - low), np.arange(UNITS)


DESIGNS: dict[str, Callable[[np.random.Generator, float, float], Pits]] = {
    "leave-one-out": leave_one_out,
    "ten folds": ten_folds,
    "30 groups, independent": groups(0.0),
    "30 groups, share .2": groups(0.2),
    "30 groups, share .9": groups(0.9),
    "counts": counts,
}


def flags(design: str, fault: str, data_sets: int = DATA_SETS) -> list[str]:
    """The direction that is flagged in each data set; empty where none is."""
    rng = np.random.default_rng([list(DESIGNS).index(design), list(FAULTS).index(fault)])
    pits = (DESIGNS[design](rng, *FAULTS[fault]) for _ in range(data_sets))
    return [calibrate(*x).direction for x in pits]


def rows() -> Iterator[dict[str, object]]:
    for design in DESIGNS:
        shares: dict[str, object] = {"design": design}
        for fault in FAULTS:
            flagged = [x for x in flags(design, fault) if x]
            share = f"{len(flagged) / DATA_SETS:.1%}"
            if fault and flagged:
                share += f" ({sum(x == fault for x in flagged) / len(flagged):.0%})"
            shares[fault or "right"] = share
        yield shares


if __name__ == "__main__":
    print(f"{DATA_SETS} data sets of {UNITS} units: flagged (of these, in the right direction)")
    print(pd.DataFrame(rows()).to_string(index=False))
