"""Factors of the prior, as `pm.Potential` and `numpyro.factor` are, which must not depend on the
outcome: it is changed, and they are computed again."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from pcv.base.errors import PcvError

CLOSE = 1e-12
"""how close to 1 the correlation with the outcome of a linear function of it is"""

Arrays = Mapping[str, np.ndarray]


def holds_outcome(x: Any, y: np.ndarray) -> bool:
    """Whether an array has the values of the outcome, a linear function of them, or some of them.

    >>> y = np.array([0.3, 1.2, 5.4])
    >>> [holds_outcome(x, y) for x in (2 - y, y[1:], np.array([0.3, 1.2, 5.0]))]
    [True, True, False]
    """
    x = np.asarray(x)
    if x.dtype.kind not in "biuf" or y.dtype.kind not in "biuf" or x.size < 2:
        return False
    if x.ndim > 1 and x.size != y.size and len(x) == y.size:
        return any(holds_outcome(column, y) for column in x.reshape(len(x), -1).T)
    x, y = (np.ravel(array).astype(float) for array in (x, y))
    there = y[np.isfinite(y)]
    if x.size == y.size:
        both = np.isfinite(x) & np.isfinite(y)
        a, b = x[both] - x[both].mean(), y[both] - y[both].mean()
        scale = np.sqrt((a @ a) * (b @ b))
        linear = scale > 0 and 1 - abs(a @ b) / scale < CLOSE
        return bool(linear or np.array_equal(x[both], y[both]))
    return bool((there % 1).any() and np.isin(x[np.isfinite(x)], there).all())


def changed(x: np.ndarray) -> Iterator[np.ndarray]:
    """Arrays of the same shape with other values of those in it, so that any statistic differs."""
    values, place = np.unique(x[np.isfinite(x)], return_inverse=True)
    if values.size < 2:
        yield ~x if x.dtype.kind == "b" else x + 1
        return
    whole = np.zeros(x.shape, int)
    whole[np.isfinite(x)] = place
    rng = np.random.default_rng(0)
    places = [(whole + 1) % values.size, 0 * whole, 0 * whole + values.size - 1]
    for other in [*places, rng.integers(values.size, size=x.shape)]:
        yield np.where(np.isfinite(x), values[other], x)


def check_factors(
    factors_of: Callable[[Arrays], Mapping[str, Any]], holding: Arrays, where: Callable[[str], str]
) -> None:
    """Refuse factors whose values change with the outcome.

    Args:
        factors_of: values of the factors, by name, given arrays in place of some that it holds.
        holding: arrays that hold the outcome.
        where: the model and a factor, for messages.

    Raises:
        PcvError: one depends on the outcome.
    """
    before = factors_of({})
    for arrays in zip(*(_repeated(x) for x in holding.values())):
        after = factors_of(dict(zip(holding, arrays)))
        for name, x in before.items():
            if not np.array_equal(x, after[name], equal_nan=True):
                raise PcvError(
                    f"{where(name)} depends on the outcome, but is no term of a unit that folds "
                    "could leave out: write what is of the likelihood as an observed variable with "
                    "a distribution"
                )


def _repeated(x: np.ndarray) -> Iterable[np.ndarray]:
    every = list(changed(x))
    return [every[i % len(every)] for i in range(4)]
