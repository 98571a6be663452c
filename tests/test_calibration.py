"""How often calibration is flagged, for predictives that are right and for wrong ones."""

import numpy as np
import pytest

import pcv
from benchmarks.calibration import DATA_SETS, DESIGNS, flags
from pcv.analysis.calibration import ALIKE, LEVEL, LEVELS, calibrate, sentence
from tests.bounds import count_limits
from tests.test_predictions import linear_data, linear_regression

MOST = 0.07
"""share of data sets from the right model that may be flagged"""


@pytest.mark.parametrize("design", list(DESIGNS))
def test_right_predictives_are_rarely_flagged(design):
    assert sum(map(bool, flags(design, ""))) <= MOST * DATA_SETS


@pytest.mark.parametrize("fault", ["too narrow", "too wide", "biased low", "biased high"])
@pytest.mark.parametrize("design", ["leave-one-out", "ten folds"])
def test_wrong_predictives_are_flagged_and_the_direction_is_right(design, fault):
    found = flags(design, fault)
    assert sum(x == fault for x in found) >= 0.95 * DATA_SETS


def test_a_few_folds_of_independent_units_are_tested():
    """Of five folds, units are rarely taken as dependent, for which there would be too few."""
    rng, fold = np.random.default_rng(4), np.repeat(np.arange(5), 30)
    untested = sum(np.isnan(calibrate(rng.random(150), fold).p) for _ in range(400))
    assert untested <= count_limits(400, ALIKE)[1]


def test_dependent_units_are_not_taken_as_independent():
    """As if they were, most data sets of 30 groups would be flagged."""
    rng = np.random.default_rng(1)
    pits = [DESIGNS["30 groups, share .9"](rng, 1.0, 0.0) for _ in range(DATA_SETS)]
    as_if = sum(bool(calibrate(pit, np.arange(len(pit))).direction) for pit, _ in pits)
    assert as_if > 0.4 * DATA_SETS
    assert sum(bool(calibrate(*x).direction) for x in pits) <= MOST * DATA_SETS


def test_coverage_and_its_error():
    """Over 400 data sets; of dependent units, errors are those over folds."""
    rng = np.random.default_rng(2)
    for design in ("leave-one-out", "30 groups, share .9"):
        found = [calibrate(*DESIGNS[design](rng, 1.0, 0.0)) for _ in range(400)]
        coverage = np.array([x.coverage for x in found])
        error = np.array([x.coverage_se for x in found])
        z = (coverage.mean(0) - LEVELS) / (coverage.std(0) / 20)
        assert np.abs(z).max() < 4.5
        np.testing.assert_allclose(error.mean(0), coverage.std(0), rtol=0.25)


def test_few_units_are_not_tested():
    found = calibrate(np.full(7, 0.999), np.arange(7))
    assert np.isnan(found.p)
    assert found.direction == ""


def test_pits_of_zero_and_one():
    found = calibrate(np.array([0.0, 1.0] * 20), np.arange(40))
    assert found.direction == "too narrow"
    assert (found.coverage == 0).all()
    assert sentence(found).startswith("Predictions are too narrow: 90% intervals cover 0% of 40")


def test_the_sentence_of_counts_is_of_pits():
    found = calibrate(np.array([0.0, 1.0] * 20), np.arange(40))
    assert "0% of 40 random PITs lie between 5% and 95%" in sentence(found, discrete=True)


def test_false_alarms_are_at_the_level():
    rng = np.random.default_rng(3)
    number = sum(bool(calibrate(rng.random(100), np.arange(100)).direction) for _ in range(2000))
    low, high = count_limits(2000, LEVEL)
    assert low < number < 2 * high


def test_a_result_says_how_it_fails():
    """A model whose error is known, but taken to be a third of what it is."""
    data = linear_data()
    data["y"][-1] -= 3  # no outlier
    model = linear_regression()

    def narrow(params, data):
        return model.constrain(params)["beta"]

    wrong = model._replace(
        predict=lambda key, params, data: (
            model.predict(key, params, data) * 0
            + data["x"] * narrow(params, data)[1]
            + narrow(params, data)[0]
        ),
        cdf=None,
    )
    cv = pcv.cross_validate(wrong, "loo", data=data, chains=4, draws=100, progress=False)
    assert "Predictions are too narrow: 90% intervals cover" in repr(cv)
    assert "Predictions are" not in repr(
        pcv.cross_validate(model, "loo", data=data, chains=4, draws=100, progress=False)
    )
    compared = pcv.compare({"wrong": cv.renamed("wrong"), "again": cv.renamed("again")})
    assert "'wrong': Predictions are too narrow" in repr(compared)
