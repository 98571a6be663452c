"""Scores of a model that are no sums of their terms: R² and balanced accuracy, with both errors."""

import numpy as np
import pytest
import xarray as xr

from pcv.analysis import comparison as comparing
from pcv.analysis import results
from pcv.analysis.comparison import standard_error, total, total_mcse
from pcv.analysis.results import compared
from pcv.analysis.results.frames import scores_frame
from pcv.analysis.results.wording import scores_table
from pcv.models.scores import SCORES, Score, Total
from pcv.models.scores.moments import mean_error
from pcv.report.score_tables import other_scores
from tests.bounds import sd_limits, z_limit

(R2,), (ACCURACY,), (BALANCED,) = (SCORES[x] for x in ("r2", "accuracy", "balanced_accuracy"))


def r2_of_loo(y: np.ndarray, mean: np.ndarray) -> tuple[float, float]:
    """R² and its SE by the formulas of `measure_r2` in R's loo."""
    error, spread, n = (y - mean) ** 2, (y - y.mean()) ** 2, len(y)
    ratio = error.mean() / spread.mean()
    of_error, of_spread = error.var(ddof=1) / n, spread.var(ddof=1) / n
    both = np.cov(error, spread)[0, 1] / n
    return 1 - ratio, np.sqrt(of_error - 2 * ratio * both + ratio**2 * of_spread) / spread.mean()


def bacc_of_loo(y: np.ndarray, hit: np.ndarray) -> tuple[float, float]:
    """Balanced accuracy and its SE by the formulas of `measure_bacc` in R's loo."""
    of = [hit[y == c] for c in np.unique(y)]
    variance = sum(x.mean() * (1 - x.mean()) / len(x) for x in of)
    return float(np.mean([x.mean() for x in of])), np.sqrt(variance) / len(of)


def sum_and_se(terms: np.ndarray) -> tuple[float, float]:
    return terms.sum(), standard_error(terms[None])[0]


def test_r2_is_that_of_loo():
    y, mean = np.random.default_rng(1).normal(size=(2, 50))
    found = sum_and_se(R2.total(-((y - mean) ** 2), y).terms)
    np.testing.assert_allclose(found, r2_of_loo(y, mean), rtol=1e-10)
    known_spread = -((y - mean) ** 2) / ((y - y.mean()) ** 2).sum()  # as if y did not vary
    assert abs(sum_and_se(known_spread)[1] / found[1] - 1) > 0.05


def test_balanced_accuracy_is_that_of_loo():
    rng = np.random.default_rng(1)
    y = rng.choice(4, 60, p=[0.1, 0.2, 0.3, 0.4])
    hit = (rng.uniform(size=60) < 0.2 + 0.2 * y).astype(float)
    estimate, se = sum_and_se(BALANCED.total(hit, y).terms)
    of_loo = bacc_of_loo(y, hit)
    np.testing.assert_allclose([estimate, se * np.sqrt(59 / 60)], of_loo, rtol=1e-10)
    assert abs(hit.mean() - estimate) > 0.01
    assert abs(sum_and_se(BALANCED.total(hit, y).slope * hit)[1] / se - 1) > 0.05


@pytest.mark.parametrize("score", [R2, BALANCED], ids=lambda score: score.name)
def test_slopes_are_derivatives_and_terms_sum_to_the_score(score):
    rng = np.random.default_rng(1)
    y = rng.choice(3, 30).astype(float)
    terms = -rng.exponential(size=30)
    one = score.total(terms, y)
    for i in (0, 7):
        moved = score.total(terms + 1e-4 * (np.arange(30) == i), y)
        assert (moved.terms.sum() - one.terms.sum()) / 1e-4 == pytest.approx(one.slope[i], rel=1e-6)


@pytest.mark.parametrize("name", ["r2", "balanced_accuracy"])
def test_the_se_is_the_spread_over_data_sets_also_of_paired_differences(name):
    """Of 400 data sets of 500 units, two models each."""
    rng, z = np.random.default_rng(1), []
    for _ in range(400):
        if name == "r2":
            y = rng.normal(size=500)
            mean = np.stack([0.8 * y, 0.5 * y]) + 0.4 * rng.normal(size=(2, 500))
            terms, score = -((y - mean) ** 2), R2
            truth = 1 - (np.array([0.04, 0.25]) + 0.16)
        else:
            y = rng.choice(2, 500, p=[0.2, 0.8]).astype(float)
            at = rng.uniform(size=(2, 500))
            at[1, ::2] = at[0, ::2]  # half of the units are alike
            terms = (at < np.array([[0.6], [0.5]]) + 0.3 * y).astype(float)
            truth, score = np.array([0.75, 0.65]), BALANCED
        a, b = (score.total(x, y).terms for x in terms)
        each = [sum_and_se(x) for x in (a, b, a - b)]
        z.append([(s - t) / se for (s, se), t in zip(each, [*truth, truth[0] - truth[1]])])
    low, high = sd_limits(400, among=3)
    spread = np.std(z, axis=0)
    # The delta method is right to some 2% with 500 units.
    assert (low < spread).all()
    assert (spread < 1.02 * high).all()


def scored(score: Score, means: np.ndarray, y: np.ndarray, seed: int = 1) -> xr.Dataset:
    """A model's diagnostics, with a score from batch means (fold, chain, batch, slot)."""
    field = "error" if score.statistic is mean_error else "p"
    weights = np.zeros(means.shape[:3])
    made = xr.Dataset(
        {
            f"{score.key}_{field}": (("fold", "chain", "batch", "slot"), means),
            f"{score.key}_log_weight": (("fold", "chain", "batch"), weights),
            "log_joint_count": (("fold", "chain", "batch"), weights + 1),
        }
    )
    fold, unit = np.arange(len(y)).astype(str), np.arange(y.size).reshape(y.shape).astype(str)
    attrs = {"model": "m", "outcome": "y", "predictive": "plain", "given_tested": 0, "bad_fit": 0}
    attrs |= {"pointwise_verdict": "ok", "batch_inflation": 1.0}
    base = xr.Dataset({"unit_name": (("fold", "slot"), unit)}, {"fold": fold}, attrs)
    return results.with_scores(base, [made], [score], y, np.random.default_rng(seed))


def value_and_mcse(diagnosed: xr.Dataset, name: str) -> tuple[float, float]:
    scores = results.scores(diagnosed, "pointwise", "", "", name)
    return total(scores).elpd, total_mcse(scores)


def unweighted(diagnosed: xr.Dataset) -> float:
    """The MCSE of the sum of terms, as if it were that of their mean."""
    mcse = np.sqrt((diagnosed["unweighted_pointwise_mcse"] ** 2).sum())
    return float(mcse) / diagnosed["unweighted_pointwise"].size


def test_the_mcse_of_r2_is_its_spread_over_draws():
    """About its expectation: squares of errors are too large by their variance."""
    rng = np.random.default_rng(1)
    y, mean = 3 * rng.normal(size=(2, 20, 5))
    mean = 0.8 * y + 0.2 * mean
    bias = 0.3**2 / 40 / y.var()
    expected = r2_of_loo(y.ravel(), mean.ravel())[0] - bias
    as_mean = R2._replace(name="unweighted", total="mean")
    z, wrong = [], []
    for _ in range(200):
        means = (mean - y)[:, None, None] + 0.3 * rng.normal(size=(20, 4, 10, 5))
        value, mcse = value_and_mcse(scored(R2, means, y), "r2")
        z.append((value - expected) / mcse)
        wrong.append((value - expected) / unweighted(scored(as_mean, means, y)))
    low, high = sd_limits(200, among=2)
    assert np.abs(z).max() < z_limit(200, 20 * 39)
    assert low < np.std(z) < high
    assert np.std(wrong) < low  # .11, as y has a variance of 9


def test_the_mcse_of_balanced_accuracy_weighs_units():
    """Of folds with one category each, it is that of the accuracy, weighed."""
    y = np.repeat([0.0, 1.0, 1.0, 1.0], 5).reshape(4, 5)
    p = 0.5 + 0.1 * np.random.default_rng(1).normal(size=(4, 2, 10, 5))
    of_units, of_categories = scored(ACCURACY, p, y), scored(BALANCED, p, y)
    weight = 1 / (2 * np.array([5, 15, 15, 15]))
    weighed = weight * of_units["accuracy_pointwise_mcse"]
    assert weighed.min() > 0
    np.testing.assert_allclose(of_categories["balanced_accuracy_pointwise_mcse"], weighed, 1e-12)
    hit = of_units["accuracy_pointwise"].values
    value, _ = value_and_mcse(of_categories, "balanced_accuracy")
    assert value == pytest.approx((hit[0].mean() + hit[1:].mean()) / 2, rel=1e-12)


def test_a_total_of_ones_own():
    """The root mean square, as a function and by name."""

    def root(terms, y):
        value = np.sqrt(-terms.mean())
        slope = np.full(len(terms), 1 / (2 * value * len(terms)))
        return Total(slope, -value / len(terms) + slope * (terms - terms.mean()))

    rng = np.random.default_rng(1)
    y = rng.normal(size=(4, 5))
    means = y[:, None, None] + rng.normal(size=(4, 2, 10, 5))
    own = R2._replace(name="rmse", total=root)
    found = [value_and_mcse(scored(x, means, y), "rmse") for x in (own, SCORES["rmse"][0])]
    np.testing.assert_allclose(*found, rtol=1e-10)


def test_scores_that_do_not_rank_have_no_differences():
    """Neither in the CSV, nor in the text, nor in the page."""
    found = comparing.compare([make("a", 0.9), make("b", 0.8)])._replace(score="coverage_90")
    plain, ranked = compared.without_differences(found), found._replace(score="accuracy")
    rows = scores_frame([ranked, plain])
    empty = ["rank", "score_diff", "dse", "mcse_diff", "p_better"]
    assert rows.query("score == 'coverage_90'")[empty].isna().all(axis=None)
    assert rows.query("score == 'accuracy'")["rank"].tolist() == [0, 1]
    assert rows["estimate"].tolist() == [*found.elpd, *found.elpd]
    text = scores_table([ranked, plain]).splitlines()
    assert text[-1] == "coverage_90: higher is not better; no differences"
    assert sum("nan" in line for line in text) == 0
    (page,) = [x for x in other_scores(rows, False, []).rows if x[:2] == ("coverage_90", "a")]
    assert page[2:6] == ("–",) * 4


def make(model: str, share: float) -> comparing.Scores:
    hit = (np.arange(10) < 10 * share) / 10
    names = [str(i) for i in range(10)]
    of = (model, "pointwise", "accuracy", "y", "plain", "d", "f", names, hit, hit / 100)
    return comparing.Scores(*of, np.arange(10), names, "ok")
