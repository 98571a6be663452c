r"""Errors of forecasts in units of a naive forecast's: the mean absolute scaled error (MASE).

A forecast that is off by 3, where the training data move by 2 from unit to unit:

>>> mase()[0].estimate({"error": np.array([[3.0]]), "scale": np.array([[2.0]])}, np.zeros((1, 1)))
array([[-1.5]])
"""

from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key, Shaped

from pcv.compile import programs
from pcv.folds.base import Folds, is_exchangeable, train_mask
from pcv.models.model import Fold, Target
from pcv.models.scores.moments import mean_error
from pcv.models.scores.score import Score

CHECKED_FOLDS = 20
"""folds, those that train on the fewest units, whose naive errors are checked"""


def mase(series: Shaped[np.ndarray, " unit"] | None = None) -> tuple[Score, ...]:
    r"""Mean absolute scaled error of the predictive mean, negative:

    .. math:: -\mathrm{mean}_i \frac{|y_i - \mu_i|}{q_i}, \qquad
              q_i = \mathrm{mean}_{t} |y_t - y_{t-1}|

    with the mean over those pairs of successive units of the series of unit i that its fold both
    trains on: the error of the naive forecast in the training data. Pointwise, without a unit: −1
    is as good as naive forecasts one step ahead were. Scales are of the training data of each
    fold, so that the score is a mean over units, with the SE of one. Hyndman and Koehler (2006,
    *International Journal of Forecasting* 22, 679–688).

    Args:
        series: of each unit; None: all are one.
    """
    if series is None:
        return _of_series(None)
    codes = np.unique(series, return_inverse=True)[1]
    return _of_series(tuple(codes.tolist()))


@cache
def _of_series(codes: tuple[int, ...] | None) -> tuple[Score, ...]:
    """The same score for the same series, so that programs are found again."""
    series = None if codes is None else np.array(codes)
    return (
        Score(
            "mase",
            "pointwise",
            partial(_scaled, series),
            lambda means, y: -np.abs(means["error"]) / means["scale"],
            total="mean",
            needs=(
                "moments or predict",
                *(("order of units",) if series is None else ()),
                "steps between units",
            ),
        ),
    )


def _scaled(
    series: np.ndarray | None, key: Key[Array, ""], target: Target, params: Any, fold: Fold
) -> dict[str, Array]:
    one = np.zeros(fold.train.size, int) if series is None else series
    return mean_error(key, target, params, fold) | {"scale": naive_error(target, fold, one)}


def naive_error(
    target: Target, fold: Fold, series: Int[np.ndarray, " unit"]
) -> Float[Array, " slot"]:
    """Mean absolute difference of successive training units, of the series of each tested unit.

    Args:
        target: with `observed`.
        fold: whose training units count; a pair counts if both of its units do.
        series: of each unit, from 0; units of one series are in its order.

    Returns:
        In the units of the outcome; NaN where there is no pair.

    >>> y = jnp.array([1.0, 2.0, 4.0, 9.0, 9.0, 8.0])
    >>> target = Target(None, None, None, observed=lambda fold: y[fold.test])
    >>> fold = Fold(jnp.array([True, True, True, False, True, True]), jnp.array([3]))
    >>> round(float(naive_error(target, fold, np.zeros(6, int))[0]), 3)  # (1 + 2 + 1) / 3
    1.333
    """
    assert target.observed is not None
    order = np.argsort(series, kind="stable")
    y = target.observed(Fold(fold.train, jnp.asarray(order)))
    train, of = fold.train[order], series[order]
    pair = train[1:] & train[:-1] & (of[1:] == of[:-1])
    number = int(series.max()) + 1
    step = jnp.where(pair, jnp.abs(jnp.diff(y)), 0.0)
    steps, pairs = (jax.ops.segment_sum(x, of[1:], number) for x in (step, pair.astype(float)))
    return (steps / pairs)[jnp.asarray(series)[fold.test]]


def no_order(folds: Folds) -> str:
    """Why units of folds are not those of one series, in its order, or ""."""
    # Contiguous k-fold is refused: its folds are those of groups that follow each other.
    test, n = folds.test, folds.num_units or int(folds.test.max()) + 1
    size, last = (test >= 0).sum(axis=1), test.max(axis=1) + 1
    first = last - size
    scheme = "leave_future_out, block, h_block or hv_block"
    if is_exchangeable(folds) or (np.where(test < 0, n, test).min(axis=1) != first).any():
        return f"it needs the units of a series, predicted in their order: use {scheme}"
    start, stop = folds.held_out[..., 0], folds.held_out[..., 1]
    around = (start <= first[:, None]) & (first[:, None] < stop)
    before = first - np.where(around, start, 0).max(axis=1)
    after = np.where(around, stop, 0).max(axis=1) - last
    if (last + after == n).all():
        return ""  # no fold trains on what follows its test set
    gap = max(before.max(), after.max())
    whole = (before == np.minimum(gap, first)).all() and (after == np.minimum(gap, n - last)).all()
    if whole and np.isin(np.arange(first.min(), last.max()), test).all():
        return ""  # blocks, with the same gap on both sides
    return (
        "folds train on units that follow those they test, as those of several series do: name the "
        "column that tells series apart, {'scheme': 'leave_future_out', 'by': ...}"
    )


def no_steps(score: Score, whole: Target, folds: Folds, num_units: int) -> str:
    """Why the naive forecast has no error by which to scale those of others, or ""."""
    number = num_units - np.diff(folds.held_out, axis=-1).sum(axis=(1, 2))
    few = np.argsort(number, kind="stable")[:CHECKED_FOLDS]
    some, params = folds.some(few), whole.init(jax.random.key(0))

    def scale(train: Array, test: Array) -> Array:
        fold = Fold(train, test)
        return score.statistic(jax.random.key(0), whole, params, fold)["scale"]

    train = jnp.asarray(train_mask(some, num_units))
    found = np.asarray(programs.once(jax.vmap(scale))(train, jnp.asarray(some.test)))
    bad = ~(found > 0) & (some.test >= 0)
    if not bad.any():
        return ""
    name = some.id[bad.any(axis=1)][0]
    return (
        f"fold '{name}' trains on no two successive units that differ, so that the naive forecast "
        "has no error to scale by; let it train on more"
    )
