r"""Functions of means over draws, and their Monte Carlo standard errors. No JAX.

The draws of a fold come in parts: the batches of its chains or, for scores that compare chains,
batches across all chains. Each part is stored as its mean and its total weight.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float

REPLICATES = 200
"""bootstrap replicates"""


class Parts(NamedTuple):
    """Means over the draws of each part."""

    reached: Bool[np.ndarray, "fold part"]
    """whether the fold has draws in this part"""
    log_weight: Float[np.ndarray, "fold part *slot"]
    """log of the total weight of a part's draws; of their number, if they are unweighted"""
    means: Mapping[str, Float[np.ndarray, "fold part *rest"]]


class Estimate(NamedTuple):
    """A score of every fold, or of every slot, and its error."""

    value: Float[np.ndarray, " fold *slot"]
    mcse: Float[np.ndarray, " fold"]
    """Monte Carlo standard error of the fold's score, summed over its units"""
    left_out: Float[np.ndarray, "part fold"] | None = None
    """jackknife contribution of each part to the error: the sum of squares is the fold's
    ``mcse**2`` and, for folds that share their draws, sums of products are covariances"""
    slot_mcse: Float[np.ndarray, "fold slot"] | None = None
    """of each slot's score; None: the score is of whole folds"""


def shared(apart: Float[np.ndarray, "part fold"]) -> float:
    r"""Covariance part of the variance of a sum over folds that share their draws:

    .. math:: \sum_{j \ne k} \mathrm{cov}(\hat\eta_j, \hat\eta_k)
    """
    return float((apart.sum(1) ** 2).sum() - (apart**2).sum())


class _Sums(NamedTuple):
    """Total weights and weighted sums."""

    weight: np.ndarray
    sums: dict[str, np.ndarray]


def _weighted_sums(parts: Parts) -> _Sums:
    """Sums of each part, relative to the largest weight of its fold; 0 where it has no draws."""
    there = np.where(like(parts.reached, parts.log_weight), parts.log_weight, -np.inf)
    with np.errstate(invalid="ignore"):
        relative = np.exp(there - there.max(axis=1, keepdims=True))
    weight = np.where(there == -np.inf, 0.0, relative)
    sums = {}
    for name, x in parts.means.items():
        w = like(weight, x)
        with np.errstate(invalid="ignore"):
            sums[name] = np.where(w == 0, 0.0, w * x)
    return _Sums(weight, sums)


def like(weight: Any, x: Any) -> Any:
    """`weight` with trailing axes added to match the dimensions of x."""
    return weight.reshape(weight.shape + (1,) * (x.ndim - weight.ndim))


def _evaluate(whole: _Sums, estimate: Callable[[dict[str, np.ndarray]], np.ndarray]) -> np.ndarray:
    with np.errstate(all="ignore"):
        return estimate({name: x / like(whole.weight, x) for name, x in whole.sums.items()})


def _total(parts: _Sums) -> _Sums:
    return _Sums(parts.weight.sum(1), {name: x.sum(1) for name, x in parts.sums.items()})


def _without_each(x: np.ndarray) -> Iterator[np.ndarray]:
    """Leave-one-out sums, without subtraction: next to a dominant part that would lose digits."""
    after = np.flip(np.cumsum(np.flip(x, axis=1), axis=1), axis=1)
    before = np.zeros_like(x[:, 0])
    for p in range(x.shape[1]):
        yield before + after[:, p + 1] if p + 1 < x.shape[1] else before
        before = before + x[:, p]


def pooled(
    parts: Parts, estimate: Callable[[dict[str, np.ndarray]], np.ndarray]
) -> Float[np.ndarray, " fold *slot"]:
    """A function of weighted means over all parts.

    >>> pooled(Parts(np.full((1, 2), True), np.zeros((1, 2)), {"x": np.array([[1.0, 3.0]])}),
    ...        lambda means: means["x"])
    array([2.])
    """
    return _evaluate(_total(_weighted_sums(parts)), estimate)


def batch_jackknife(
    parts: Parts,
    estimate: Callable[[dict[str, np.ndarray]], np.ndarray],
    present: Bool[np.ndarray, "fold slot"] | None = None,
) -> Estimate:
    r"""A function g of weighted means, and its MCSE by the jackknife over parts.

    .. math:: \hat S = g(\bar h), \qquad
              \mathrm{MCSE}^2 = \frac{P - 1}{P} \sum_p (\hat S_{(p)} - \bar S_{(\cdot)})^2

    with :math:`\hat S_{(p)}` from all but part p of P.

    Args:
        parts: means over the draws of each part.
        estimate: g, from means of dims (fold, …) to (fold) or (fold, slot).
        present: the slots of each fold's test set, for scores by slot.

    Returns:
        The estimate, and the MCSE of each fold's score: its sum over present slots, which share
        their draws; by slot, of each alone. The MCSE is NaN with fewer than two parts.

    >>> x = np.random.default_rng(1).normal(2, 1, (1, 100))
    >>> parts = Parts(np.full((1, 100), True), np.zeros((1, 100)), {"x": x})
    >>> result = batch_jackknife(parts, lambda means: np.log(means["x"]))
    >>> np.isclose(result.mcse, x.std() / 10 / x.mean(), rtol=0.02)
    array([ True])
    """
    there, each = parts.reached, _weighted_sums(parts)
    value = _evaluate(_total(each), estimate)
    left_out = np.empty((there.shape[1], *value.shape))
    rest = [_without_each(x) for x in each.sums.values()]
    for p, weight in enumerate(_without_each(each.weight)):
        sums = {name: next(own) for name, own in zip(each.sums, rest)}
        left_out[p] = _evaluate(_Sums(weight, sums), estimate)
    contributions, mcse = _contributions(_over_units(left_out, present), there)
    of_slots = None
    if present is not None:
        of_slots = np.where(present, _contributions(left_out, there)[1], np.nan)
    return Estimate(value, mcse, contributions, of_slots)


def _contributions(
    left_out: Float[np.ndarray, "part fold *slot"], there: Bool[np.ndarray, "fold part"]
) -> tuple[Float[np.ndarray, "part fold *slot"], Float[np.ndarray, " fold *slot"]]:
    """What leaving out each part adds to the error, and the error."""
    reached, size = like(there.T, left_out), like(there.sum(1), left_out[0])
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = np.where(reached, left_out, 0.0).sum(0) / size
        deviation = np.sqrt((size - 1) / size) * np.where(reached, left_out - mean, 0.0)
    return deviation, np.where(size > 1, np.sqrt((deviation**2).sum(0)), np.nan)


def batch_bootstrap(
    parts: Parts,
    estimate: Callable[[dict[str, np.ndarray]], np.ndarray],
    rng: np.random.Generator,
    present: Bool[np.ndarray, "fold slot"] | None = None,
) -> Estimate:
    r"""`batch_jackknife` for a discontinuous g: the standard deviation of the fold's score over
    `REPLICATES` bootstrap samples of its parts.

    Bias is not included: near a jump of g it makes the mean squared error :math:`\sqrt 2` times
    the variance, averaged over the position of the jump.

    Args:
        rng: random generator of the bootstrap.

    >>> x = np.random.default_rng(1).normal(0, 1, (1, 100))
    >>> parts = Parts(np.full((1, 100), True), np.zeros((1, 100)), {"x": x})
    >>> result = batch_bootstrap(parts, lambda means: means["x"] > 0, np.random.default_rng(2))
    >>> bool(result.value[0]), 0 < result.mcse[0] < 0.51
    (False, np.True_)
    """
    there, each = parts.reached, _weighted_sums(parts)
    shares = there / np.maximum(there.sum(1, keepdims=True), 1)
    again = []
    for _ in range(REPLICATES):
        times = rng.multinomial(there.sum(1), shares)
        drawn = {name: x * like(times, x) for name, x in each.sums.items()}
        weight = each.weight * like(times, each.weight)
        again.append(_evaluate(_total(_Sums(weight, drawn)), estimate))

    def spread(values: np.ndarray) -> np.ndarray:
        jumps = values - values[0]  # exactly 0 where no value jumps
        several = like(there.sum(1) > 1, jumps[0])
        return np.where(several, np.std(jumps, axis=0, ddof=1), np.nan)

    each_time = np.array(again, float)
    of_slots = None if present is None else np.where(present, spread(each_time), np.nan)
    mcse = spread(_over_units(each_time, present))
    return Estimate(_evaluate(_total(each), estimate), mcse, None, of_slots)


def _over_units(values: np.ndarray, present: np.ndarray | None) -> np.ndarray:
    return values if present is None else np.where(present, values, 0.0).sum(-1)
