"""Coverage and width of intervals: of calibrated predictives, and of counts."""

import numpy as np
import pytest

from pcv.base.errors import PcvError
from pcv.models.scores import Replicates, Score, frame, named
from pcv.models.scores.replicates import coverage, interval, pinball, quantile, width
from tests.bounds import count_limits

DRAWS = 2000


def block(y_rep: np.ndarray, y: np.ndarray) -> Replicates:
    """Of one fold, of replicates (draw, slot)."""
    y_rep = y_rep.reshape(1, 4, -1, y.size)
    return Replicates(y_rep, y[None], 4, *frame(y_rep))


def of(name: str, replicates: Replicates) -> np.ndarray:
    (score,) = named([name])
    return score.estimate(score.statistic(replicates), replicates.y)[0]


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("percent", [50, 90])
def test_calibrated_intervals_cover_as_often_as_they_say(seed, percent):
    rng = np.random.default_rng(seed)
    center, y = rng.normal(size=(2, 500))
    right = block(center + rng.normal(size=(DRAWS, 500)), center + y)
    low, high = count_limits(500, percent / 100)
    assert low <= of(f"coverage_{percent}", right).sum() <= high
    narrow = block(center + 0.5 * rng.normal(size=(DRAWS, 500)), center + y)
    assert of(f"coverage_{percent}", narrow).sum() < low


def inside(y_rep: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Between the 5% and the 95% quantile of the replicates, ends included."""
    low, high = np.quantile(y_rep, [0.05, 0.95], axis=0, method="inverted_cdf")
    return (low <= y) & (y <= high)


def test_coverage_of_counts_is_that_of_quantiles_that_are_counts():
    rng = np.random.default_rng(1)
    rate = rng.gamma(2, 2, 400)
    y_rep, y = rng.poisson(rate, (DRAWS, 400)).astype(float), rng.poisson(rate).astype(float)
    made = block(y_rep, y)
    np.testing.assert_array_equal(of("coverage_90", made), inside(y_rep, y))
    (by_bins,) = named(["width_90"])  # its quantiles lie within a bin around a count
    means = by_bins.statistic(made)
    low, high = (quantile(means, p)[0] for p in (0.05, 0.95))
    assert ((low <= y) & (y <= high)).mean() < inside(y_rep, y).mean() - 0.01


def test_unknown_replicates_have_no_coverage():
    y_rep = np.random.default_rng(1).normal(size=(40, 2))
    y_rep[3, 1] = np.nan
    assert np.isnan(of("coverage_90", block(y_rep, np.zeros(2)))).tolist() == [False, True]


def test_the_interval_score_is_width_and_pinball_losses_of_its_ends():
    rng = np.random.default_rng(1)
    made = block(rng.normal(size=(DRAWS, 50)), 2 * rng.normal(size=50))
    whole = (of("pinball_10", made) + of("pinball_90", made)) * 2 / 0.2
    np.testing.assert_allclose(of("interval_80", made), whole, rtol=1e-10)
    ends = quantile(named(["width_80"])[0].statistic(made), 0.9) - quantile(
        named(["width_80"])[0].statistic(made), 0.1
    )
    np.testing.assert_allclose(of("width_80", made), ends[0], rtol=1e-12)


@pytest.mark.parametrize("make", [interval, pinball, coverage, width])
@pytest.mark.parametrize("probability", [0.0, 1.0, 1.5, -0.1])
def test_probabilities_outside_0_to_1_are_refused(make, probability):
    with pytest.raises(PcvError, match=f"probability {probability} is not between 0 and 1"):
        make(probability)


def test_a_name_is_the_same_score_each_time():
    """So that programs are found again."""
    first, again = (named(["coverage_90", "pinball_2_5", "interval_50"]) for _ in range(2))
    assert all(a is b for a, b in zip(first, again, strict=True))
    assert [x.key for x in first] == [
        "coverage_90_pointwise",
        "pinball_2_5_pointwise",
        "interval_50_pointwise",
    ]
    assert isinstance(first[0], Score)
    assert not first[0].oriented
