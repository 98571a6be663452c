"""Predictions of folds that PSIS scores, against closed forms."""

import arviz as az
import numpy as np
import numpyro.distributions as dist
import pytest
import xarray as xr
from scipy import stats

import pcv
from pcv.analysis.predictions import merged
from pcv.core import psis_predictions
from pcv.core.cross_validate import cross_validate
from pcv.core.problem import Problem, pose
from pcv.core.psis_predictions import resample
from pcv.core.settings import Settings
from pcv.folds.base import as_dataset
from pcv.folds.exchangeable import leave_one_group_out, leave_one_out
from pcv.models.model import Model, Outcome, support
from tests.bounds import z_limit
from tests.problems import GROUP_OF_UNIT, hierarchy
from tests.slow import repeated
from tests.test_predictions import Predictive, X, errors, linear_data, linear_regression, student_t

RAISED = np.sqrt(1 + 1600 / 3000)
"""error of 1,600 draws, resampled from 8,000 with effective sample sizes of 3,000 or more, over
that of independent ones"""


def predicted_by(problem, exact="psis"):
    """Predictions of 8,000 full-data draws, and of the chains of some folds."""
    settings = {
        "folds": {"scheme": "leave_one_out", "exact": exact},
        "fit": {"chains": 8, "draws": 1000},
        "cv": {"chains": 16, "draws": 200},
        "predictions": 1600,
    }
    every = cross_validate({"model": problem}, Settings.model_validate(settings))
    return every["model"]


def predictive_of(problem, exact="psis"):
    found = predicted_by(problem, exact).predictions
    return Predictive(*(found[name].values for name in Predictive._fields))


def near_data():
    """The last unit is far enough from the others for its weights to matter."""
    data = linear_data()
    return {**data, "y": data["y"] - np.where(np.arange(16) == 15, 1.5, 0)}


class TestLinearRegression:
    folds = leave_one_out(16)

    def problem(self, data):
        return pose("model", linear_regression(), data, self.folds, "auto")

    def test_predictives_are_student_t(self):
        data = near_data()
        found = predictive_of(self.problem(data))
        z = errors(found, student_t(data, self.folds))
        assert np.abs(z / RAISED).max() < z_limit(z.size)

    def test_beside_sampled_folds(self):
        data = linear_data()
        found = predicted_by(self.problem(data), "auto")
        assert found.diagnostics["source"].values[[0, -1]].tolist() == ["psis", "mcmc"]
        x = found.predictions
        assert dict(x["y_rep"].sizes) == {"chain": 16, "draw": 100, "unit": 16}
        np.testing.assert_array_equal(x["row"], np.arange(16))
        np.testing.assert_array_equal(x["of_fold"], found.diagnostics["fold"])
        predictive = Predictive(*(x[name].values for name in Predictive._fields))
        of_replicates = errors(predictive, student_t(data, self.folds))[:-1]
        assert np.abs(of_replicates / RAISED).max() < z_limit(of_replicates.size)

    def test_draws_with_equal_weights_fail(self, monkeypatch):
        """A broken twin, which predicts all units from the posterior of all."""

        def equal(weight, number, rng):
            return resample(np.ones_like(weight), number, rng)

        monkeypatch.setattr(psis_predictions, "resample", equal)
        data = near_data()
        z = errors(predictive_of(self.problem(data)), student_t(data, self.folds))
        assert np.abs(z / RAISED)[:, -1].max() > 2 * z_limit(8 * 16)


def full_data_fit(cv):
    """A fit as `az.loo_pit` takes it: with replicates at every draw of the full data."""
    groups = ("posterior", "sample_stats", "log_likelihood", "observed_data")
    fit = {name: cv.tree[name].to_dataset() for name in groups}
    posterior, log_lik = fit["posterior"], fit["log_likelihood"]["y"]
    mean, sd = posterior["beta"].values @ X.T, np.sqrt(posterior["sigma2"].values)[..., None]
    y_rep = log_lik.copy(data=np.random.default_rng(1).normal(mean, sd))
    return xr.DataTree.from_dict({**fit, "posterior_predictive": y_rep.to_dataset(name="y")})


def test_pits_are_those_that_arviz_has_of_a_fit():
    """It weights draws of the full data where ours are resampled."""
    data = near_data()
    more = {"brute_force": False, "predictions": 1600, "progress": False}
    cv = pcv.loo(linear_regression(), data=data, **more)
    tree = full_data_fit(cv)
    az.plot_loo_pit(tree, backend="none")
    exact = student_t(data, leave_one_out(16)).cdf(data["y"])
    error = np.sqrt(exact * (1 - exact) * (RAISED**2 / 1600 + 1 / 3000))
    z = (az.loo_pit(tree)["y"].values - cv.table()["pit"].values) / error
    assert np.abs(z).max() < z_limit(z.size)
    in_sample = (tree["posterior_predictive"]["y"] <= data["y"]).mean(("chain", "draw")).values
    assert np.abs((in_sample - cv.table()["pit"].values) / error).max() > 2 * z_limit(z.size)


def test_a_left_out_group_has_new_effects():
    problem = hierarchy("marginal")
    model = problem.model._replace(
        predict=lambda key, params, data: dist.Normal(params["theta"][data["group"]], 1.0).sample(
            key
        ),
        cdf=lambda params, data, y: dist.Normal(params["theta"][data["group"]], 1.0).cdf(y),
        marginal=None,
        marginal_moments=None,
        marginal_predict=None,
    )
    folds = leave_one_group_out(GROUP_OF_UNIT, "group")
    found = predictive_of(pose("model", model, problem.data, folds, "auto"))
    moments = [
        problem.form.predictive(GROUP_OF_UNIT[i] != GROUP_OF_UNIT, np.array([i])) for i in range(14)
    ]
    mean, variance = (np.array([float(np.squeeze(x[j])) for x in moments]) for j in (0, 1))
    z = errors(found, stats.norm(mean, np.sqrt(variance)))
    assert np.abs(z / RAISED).max() < z_limit(z.size)


def test_a_heavy_draw_has_as_many_replicates_as_it_is_taken():
    problem = pose("model", linear_regression(), linear_data(), leave_one_out(16), "auto")
    position = np.random.default_rng(1).normal(size=(2, 50, 3))
    log_weight = np.zeros((16, 100))
    log_weight[:, 7] = np.log(200)
    how = psis_predictions.Scored(problem.model, "plain", "none")
    found = psis_predictions.predictions_by_psis(problem, how, position, log_weight, 1.0, (4, 50))
    assert found is not None
    for unit in found["y_rep"].values.reshape(200, 16).T:
        assert np.unique(unit).size == 200


def test_folds_without_finite_weights_have_no_predictions():
    problem = pose("model", linear_regression(), linear_data(), leave_one_out(16), "auto")
    log_weight = np.zeros((16, 100))
    log_weight[3] = np.nan
    position = np.random.default_rng(1).normal(size=(2, 50, 3))
    how = psis_predictions.Scored(problem.model, "plain", "none")
    found = psis_predictions.predictions_by_psis(problem, how, position, log_weight, 1.0, (4, 50))
    assert found is not None
    assert found["row"].values.tolist() == [i for i in range(16) if i != 3]


def test_units_of_several_rows():
    """Replicates in the order of the rows."""
    y = np.arange(12.0).reshape(4, 3) - np.array([20.0, 0.0, -20.0])
    space = support({})
    model = Model(
        init=lambda key: {"level": dist.Normal(0, 1).sample(key)},
        log_prior=lambda params: dist.Normal(0, 1).log_prob(params["level"]),
        log_lik=lambda params, data: (
            dist.Normal(params["level"], 30.0).log_prob(data["y"]).reshape(4, 3).sum(1)
        ),
        constrain=space.constrain,
        outcome=Outcome("y", discrete=False),
        predict=lambda key, params, data: data["y"] + 1e-3 * dist.Normal(0, 1).sample(key, (12,)),
    )
    units = xr.Dataset(
        {"y": ("row", y.ravel()), "unit_of_row": ("row", np.repeat(np.arange(4), 3))},
        {"unit": [str(i + 1) for i in range(4)]},
    )
    problem = Problem("model", lambda data: model, units, "y", as_dataset(leave_one_out(4)))
    found = predicted_by(problem).predictions
    np.testing.assert_array_equal(found["row"], np.arange(12))
    np.testing.assert_allclose(found["y_rep"].mean(("chain", "draw")), y.ravel(), atol=1e-3)


def some_predictions(folds, draws, number=2):
    unit = [fold.replace("fold", "unit") for fold in folds]
    place = [int(fold[-1]) for fold in folds]
    y_rep = np.full((number, draws, len(folds)), np.array(place, float))
    return xr.Dataset(
        {"y_rep": (("chain", "draw", "unit"), y_rep), "pit": ("unit", np.array(place) / 10)},
        {"unit": unit, "row": ("unit", place), "of_fold": ("unit", folds), "sampled_fold": folds},
    )


def test_sampled_folds_replace_those_of_psis():
    of_psis = some_predictions(["fold 0", "fold 1", "fold 2", "fold 3"], 5)
    sampled = some_predictions(["fold 1"], 4)
    sampled["y_rep"] += 0.5
    scored = np.array(["fold 0", "fold 1", "fold 3"])
    both = merged(of_psis.drop_vars("sampled_fold"), sampled, scored)
    assert both["of_fold"].values.tolist() == scored.tolist()
    assert both["y_rep"].values[1, 3].tolist() == [0, 1.5, 3]
    assert dict(both["y_rep"].sizes) == {"chain": 2, "draw": 4, "unit": 3}
    assert both["sampled_fold"].values.tolist() == ["fold 1"]


@pytest.mark.parametrize("call", repeated([pcv.subsample, pcv.loo]))
def test_calls_have_tables(call):
    model, data = linear_regression(), linear_data()
    more = {"m": 10} if call is pcv.subsample else {}
    cv = call(model, data=data, predictions=80, progress=False, **more)
    table = cv.table()
    assert list(table["fold"]) == list(cv.folds.index)
    assert cv.predictions()["posterior_predictive"].sizes["draw"] == 10
    np.testing.assert_allclose(table["elpd"], cv.folds["elpd"])


@pytest.mark.parametrize("groups", repeated([2, 8]))
def test_units_of_groups_have_no_error_of_their_own(groups):
    """Also where a group has more units than there are folds."""
    more = {"group_by": np.repeat(np.arange(groups), 16 // groups), "brute_force": False}
    cv = pcv.loo(linear_regression(), data=linear_data(), progress=False, **more)
    assert cv.table()["elpd"].notna().all()
    assert cv.table()["mcse"].isna().all()
