r"""Scores from replicates of all chains of a fold: CRPS, SCRPS, energy, interval and pinball score;
coverage and width of intervals.

Computed on the host, block by block; storage does not grow with the number of draws.

One unit, observed at the centre of its predictive N(0, 1): the CRPS is
:math:`1/\sqrt\pi - \sqrt{2/\pi} = -0.234`, for one unit also the energy score; the 90% interval
is 3.29 wide, and the 10% quantile is 1.28 below y.

>>> y_rep, y = np.random.default_rng(1).normal(size=(1, 4, 25_000, 1)), np.array([[0.0]])
>>> block = Replicates(y_rep, y, 4, *frame(y_rep))
>>> scores = *crps, *scrps, *energy, *interval(), *pinball(0.1), *coverage(0.9), *width(0.9)
>>> for score in scores:
...     print(score.key, score.estimate(score.statistic(block), y).round(2))
crps_pointwise [[-0.23]]
scrps_pointwise [[-0.77]]
energy_joint [-0.23]
interval_pointwise [[-3.27]]
pinball_10_pointwise [[-0.13]]
coverage_90_pointwise [[1.]]
width_90_pointwise [[3.27]]
"""

from collections.abc import Callable, Iterator, Sequence
from functools import cache

import numpy as np
from jaxtyping import Float, Shaped

from pcv.base.errors import PcvError
from pcv.models.scores.score import Means, Need, Replicates, Score

MAX_OFFSETS = 8
"""most other starts that each chain's replicates are paired with"""
BINS = 256
PROBABILITY = 0.9


def pairs(y_rep: Shaped[np.ndarray, "fold chain *rest"], starts: int) -> Iterator[np.ndarray]:
    """Differences between replicates of one iteration from chains with different starts.

    Args:
        y_rep: replicates; chains that share a start are adjacent.
        starts: number of starting points, which divides the number of chains.

    Yields:
        Differences to the chains of another start, for each of at most 8 ways to pair the starts.

    >>> [x.ravel().tolist() for x in pairs(np.array([[1.0, 5.0]]), starts=2)]
    [[-4.0, 4.0]]
    """
    apart = y_rep.shape[1] // starts
    for offset in range(1, min(starts // 2, MAX_OFFSETS) + 1):
        yield y_rep - np.roll(y_rep, offset * apart, axis=1)


def _distances(norm: Callable[[np.ndarray], np.ndarray]) -> Callable[[Replicates], Means]:
    def statistic(block: Replicates) -> Means:
        absent = np.isnan(block.y)[:, None, None]

        def distance(difference: np.ndarray) -> np.ndarray:
            return norm(np.where(absent, 0.0, difference)).mean(axis=(1, 2))

        between = [distance(x) for x in pairs(block.y_rep, block.starts)]
        return {
            "to_observed": distance(block.y_rep - block.y[:, None, None]),
            "between": np.mean(between, axis=0),
        }

    return statistic


def _estimate(means: Means, y: np.ndarray) -> np.ndarray:
    return means["between"] / 2 - means["to_observed"]


NEEDS: tuple[Need, ...] = ("predict",)
_absolute = _distances(np.abs)

crps = (Score("crps", "pointwise", _absolute, _estimate, per="block", total="mean", needs=NEEDS),)
r"""Continuous ranked probability score, negative:

.. math:: -\left( E|X - y| - \tfrac12 E|X - X'| \right)

with X and X' from different chains at the same iteration: an unbiased running mean.
In the units of the outcome. Gneiting and Raftery (2007), eq. 21.
"""

scrps = (
    Score(
        "scrps",
        "pointwise",
        _absolute,
        lambda means, y: -means["to_observed"] / means["between"] - np.log(means["between"]) / 2,
        per="block",
        total="mean",
        needs=NEEDS,
    ),
)
r"""Scaled CRPS:

.. math:: -\frac{E|X - y|}{E|X - X'|} - \tfrac12 \log E|X - X'|

from the means of `crps`. A change of scale shifts it, as it does the log score: units of unlike
spread count alike, where in the CRPS those of large spread dominate. NaN where all replicates are
equal. Bolin and Wallin (2023, *Statistical Science* 38, 140–159).
"""

energy = (
    Score(
        "energy",
        "joint",
        _distances(lambda x: np.sqrt((x**2).sum(-1))),
        _estimate,
        per="block",
        total="mean",
        needs=NEEDS,
    ),
)
r"""Energy score, negative: `crps` of the test set as a whole, with norms for absolute values.

.. math:: -\left( E\|X - y\| - \tfrac12 E\|X - X'\| \right)

In the units of the outcome; the score of a model is the mean over folds. Gneiting and Raftery
(2007), eq. 22 with exponent 1.
"""


def _squeezed(x: np.ndarray) -> np.ndarray:
    """Map the line onto (0, 1): equal bins there are fine in the centre and cover the tails."""
    with np.errstate(invalid="ignore"):
        inside = x / (1 + np.abs(x))
    return (1 + np.where(np.isinf(x), np.sign(x), inside)) / 2


def _stretched(u: np.ndarray) -> np.ndarray:
    x = 2 * u - 1
    with np.errstate(divide="ignore"):
        return x / (1 - np.abs(x))


def _cdf(block: Replicates) -> Means:
    folds, _, _, slots = block.y_rep.shape
    center, scale = (x[:, None, None] for x in (block.location, block.scale))
    place_in = _squeezed((block.y_rep - center) / scale) * BINS
    known = ~np.isnan(place_in)
    bins = np.clip(np.where(known, place_in, 0), 0, BINS - 1).astype(int)
    place = np.arange(folds * slots).reshape(folds, 1, 1, slots) * BINS + bins
    counts = np.bincount(place.ravel(), minlength=folds * slots * BINS)
    share = counts.reshape(folds, slots, BINS) / (block.y_rep[0, ..., 0].size)
    cdf = np.where(known.all(axis=(1, 2))[..., None], share.cumsum(-1), np.nan)
    return {"cdf": cdf, "location": block.location, "scale": block.scale}


def quantile(means: Means, probability: float) -> Float[np.ndarray, "*part slot"]:
    """Predictive quantile of each slot, interpolated within the bin where the cdf reaches it.

    Args:
        means: "cdf" of dims (..., slot, bin), "location" and "scale" of dims (..., slot).
        probability: of the quantile.

    Returns:
        In the units of the outcome; NaN if any replicate is.

    >>> y_rep = np.random.default_rng(1).normal(size=(1, 4, 25_000, 1))
    >>> block = Replicates(y_rep, np.zeros((1, 1)), 4, *frame(y_rep))
    >>> quantile(_cdf(block), 0.975).round(1)
    array([[2.]])
    """
    cdf = means["cdf"]
    right = np.minimum((cdf < probability).sum(-1), BINS - 1)
    unknown = np.isnan(cdf).any(-1)
    above = np.take_along_axis(cdf, right[..., None], -1)[..., 0]
    below = np.take_along_axis(cdf, np.maximum(right - 1, 0)[..., None], -1)[..., 0]
    below = np.where(right == 0, 0.0, below)
    with np.errstate(invalid="ignore", divide="ignore"):
        within = np.where(above > below, (probability - below) / (above - below), 0.5)
    found = means["location"] + means["scale"] * _stretched((right + within) / BINS)
    return np.where(unknown, np.nan, found)


@cache
def interval(probability: float = PROBABILITY) -> tuple[Score, ...]:
    r"""Interval score of the central predictive interval (l, u) of probability 1 − α, negative:

    .. math:: -\left( (u - l) + \tfrac2\alpha (l - y)_+ + \tfrac2\alpha (y - u)_+ \right)

    The quantiles come from counts in 256 bins, centred and scaled by median and quartiles of the
    first block of draws: for a normal predictive a bin is 1% of its standard deviation wide at the
    centre, 5% at the ends of a 90% interval. In the units of the outcome.
    Gneiting and Raftery (2007), eq. 43.

    Args:
        probability: of the interval.

    Returns:
        A pointwise score, "interval" for 0.9, "interval_50" for 0.5.

    Raises:
        PcvError: the probability is not between 0 and 1.

    >>> interval(0.5)[0].name
    'interval_50'
    """
    name = _name("interval", probability)
    alpha = 1 - probability

    def estimate(means: Means, y: np.ndarray) -> np.ndarray:
        low, high = quantile(means, alpha / 2), quantile(means, 1 - alpha / 2)
        outside = np.maximum(low - y, 0.0) + np.maximum(y - high, 0.0)
        return -(high - low + 2 / alpha * outside)

    return _of_units("interval" if probability == PROBABILITY else name, _cdf, estimate)


@cache
def pinball(probability: float) -> tuple[Score, ...]:
    r"""Pinball (quantile) loss of the predictive quantile q of probability τ, negative:

    .. math:: -\left( \tau (y - q)_+ + (1 - \tau) (q - y)_+ \right)

    The quantile is that of `interval`. In the units of the outcome; of the median it is half of the
    absolute error. Gneiting and Raftery (2007), section 6.

    Args:
        probability: of the quantile.

    Returns:
        A pointwise score, "pinball_10" for 0.1.

    Raises:
        PcvError: the probability is not between 0 and 1.
    """

    def estimate(means: Means, y: np.ndarray) -> np.ndarray:
        above = y - quantile(means, probability)
        return -np.maximum(probability * above, (probability - 1) * above)

    return _of_units(_name("pinball", probability), _cdf, estimate)


def _ranks(block: Replicates) -> Means:
    """Shares of replicates below the observed value, and at most as large."""
    y = block.y[:, None, None]
    shares = {"below": block.y_rep < y, "at_most": block.y_rep <= y}
    known = ~np.isnan(block.y_rep).any(axis=(1, 2))
    return {name: np.where(known, x.mean(axis=(1, 2)), np.nan) for name, x in shares.items()}


@cache
def coverage(probability: float) -> tuple[Score, ...]:
    r"""Share of units that their central predictive interval of probability 1 − α contains:

    .. math:: \mathrm{mean}_i \, 1\left[ P(X \le y) \ge \tfrac\alpha2, \;
              P(X < y) < 1 - \tfrac\alpha2 \right]

    for the interval between the quantiles :math:`\inf\{x : P(X \le x) \ge p\}` of
    :math:`p = \alpha/2` and :math:`1 - \alpha/2`, ends included: of counts, too. It should be near
    1 − α (for discrete outcomes at least): higher is not better, so that tables show no differences
    between models. It jumps where a quantile crosses y: its MCSE comes from resampled batches.

    Args:
        probability: of the interval.

    Returns:
        A pointwise score, "coverage_90" for 0.9.

    Raises:
        PcvError: the probability is not between 0 and 1.
    """
    tail = (1 - probability) / 2

    def estimate(means: Means, y: np.ndarray) -> np.ndarray:
        inside = (means["at_most"] >= tail) & (means["below"] < 1 - tail)
        return np.where(np.isnan(means["below"]), np.nan, inside)

    (score,) = _of_units(_name("coverage", probability), _ranks, estimate)
    return (score._replace(smooth=False, oriented=False),)


@cache
def width(probability: float) -> tuple[Score, ...]:
    """Mean width of the central predictive interval of a probability, in the units of the outcome.

    The quantiles are those of `interval`. Narrower is better only where `coverage` is right, so
    that tables show no differences between models.

    Args:
        probability: of the interval.

    Returns:
        A pointwise score, "width_90" for 0.9.

    Raises:
        PcvError: the probability is not between 0 and 1.
    """
    tail = (1 - probability) / 2

    def estimate(means: Means, y: np.ndarray) -> np.ndarray:
        return quantile(means, 1 - tail) - quantile(means, tail)

    (score,) = _of_units(_name("width", probability), _cdf, estimate)
    return (score._replace(oriented=False),)


def _name(base: str, probability: float) -> str:
    """The name of a score at a probability, which has its percentage."""
    if not 0 < probability < 1:
        raise PcvError(f"{base} score: probability {probability} is not between 0 and 1")
    return f"{base}_{100 * probability:g}".replace(".", "_")


def _of_units(
    name: str, statistic: Callable[[Replicates], Means], estimate: Callable[..., np.ndarray]
) -> tuple[Score, ...]:
    """A mean over units, from replicates."""
    return (Score(name, "pointwise", statistic, estimate, per="block", total="mean", needs=NEEDS),)


def frame(
    y_rep: Float[np.ndarray, "fold chain draw slot"],
) -> tuple[Float[np.ndarray, "fold slot"], Float[np.ndarray, "fold slot"]]:
    r"""Rough centre and scale of each slot's replicates in the first block, whatever their tails.

    .. math:: q_{.5}, \qquad (q_{.75} - q_{.25}) / 1.349

    Args:
        y_rep: replicates of the outcome, in its units.

    Returns:
        Both, in the same units; 0 where the centre is not finite, 1 where the scale is not or is 0.

    >>> frame(np.array([-1.349, 0.0, 0.0, 1.349]).reshape(1, 2, 2, 1) + 5)
    (array([[5.]]), array([[0.5]]))
    """
    low, location, high = np.nanquantile(y_rep, (0.25, 0.5, 0.75), axis=(1, 2))
    with np.errstate(invalid="ignore"):
        scale = (high - low) / 1.349
    usable = np.isfinite(location) & np.isfinite(scale) & (scale > 0)
    return np.where(np.isfinite(location), location, 0.0), np.where(usable, scale, 1.0)


def across(scores: Sequence[Score], block: Replicates) -> dict[str, dict[str, np.ndarray]]:
    """Block means of the scores that need all chains of a fold at once, by score key.

    Args:
        scores: of any kind.
        block: the replicates of a block.

    Returns:
        For every score with `per` "block": its `statistic`, and the log number of draws as
        "log_weight" (fold).

    >>> y_rep = np.random.default_rng(1).normal(size=(1, 4, 25, 1))
    >>> found = across(crps, Replicates(y_rep, np.zeros((1, 1)), 4, *frame(y_rep)))
    >>> list(found), list(found["crps_pointwise"])
    (['crps_pointwise'], ['log_weight', 'to_observed', 'between'])
    """
    number = np.log(np.full(len(block.y), block.y_rep[0, ..., 0].size, float))
    of_blocks = [score for score in scores if score.per == "block"]
    means = {statistic: statistic(block) for statistic in {x.statistic: None for x in of_blocks}}
    return {x.key: {"log_weight": number, **means[x.statistic]} for x in of_blocks}
