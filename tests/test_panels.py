"""Futures of one series and of many: scores by steps ahead, from Python and in the workflow."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
import pytest

import pcv
from pcv import PcvError
from pcv.folds.base import train_mask
from tests.bounds import z_limit
from tests.problems import autoregression, autoregressions, exact
from tests.project import run, set_up
from tests.slow import repeated


def test_no_term_that_trains_is_given_a_held_out_value():
    """Of all series, by enumeration: the value before a training unit trains, or comes first."""
    problem = autoregressions()
    patient = problem.data["patient"]
    for folds in problem.schemes.values():
        for train in train_mask(folds, len(patient)):
            for who in range(3):
                own = train[patient == who]
                assert own[: own.sum()].all()  # the past, or all


@pytest.mark.slow
def test_scores_by_steps_ahead_are_exact():
    problem = autoregressions()
    folds = problem.schemes["two visits ahead"]
    settings = {"data": problem.data, "chains": 8, "draws": 400, "progress": False}
    cv = pcv.cross_validate(problem.model, folds, **settings)
    wide = problem.model._replace(log_prior=lambda params: 0.0 * params["rho"])
    both = {"ar": cv, "wide": pcv.cross_validate(wide, folds, **settings)}
    compared = pcv.compare(both, reference="ar")
    rows = compared.by_step.set_index(["step", "model"])
    truth = exact(problem, folds).pointwise
    for step in (1, 2):
        own = rows.loc[step, "ar"]
        limit = z_limit(2, df=63)  # of 64 batches
        assert abs(own["elpd"] - truth[:, step - 1].sum()) < limit * own["mcse"] < 1
        spread = np.sqrt(len(truth)) * truth[:, step - 1].std(ddof=1)
        assert own["se"] == pytest.approx(spread, rel=0.1)  # false alarm < 1e-4: sd .01
        assert own["n_units"] == len(folds.id)
        assert own["elpd_diff"] == 0
    pointwise = pcv.compare(both, reference="ar", joint=False).frame
    by_model = rows.groupby("model")[["elpd", "elpd_diff"]].sum()
    np.testing.assert_allclose(by_model, pointwise.loc[by_model.index, ["elpd", "elpd_diff"]])


def lagged(y):
    rho = numpyro.sample("rho", dist.Uniform(-1, 1))
    past = jnp.concatenate([jnp.zeros(1), jnp.asarray(y)[:-1]])
    with numpyro.plate("time", len(y)):
        numpyro.sample("y", dist.Normal(rho * past, 1), obs=y)


def constant(y):
    a = numpyro.sample("a", dist.Normal(0, 3))
    with numpyro.plate("time", len(y)):
        numpyro.sample("y", dist.Normal(a, 2), obs=y)


@pytest.mark.parametrize("horizon", repeated([1, 3]))
def test_a_model_with_lags_is_one_step_ahead(horizon):
    """Its units are given those that the same fold tests, which a horizon of 1 leaves none of."""
    y = np.random.default_rng(3).normal(size=30).cumsum() * 0.7
    models = {f.__name__: pcv.from_numpyro(f, {"y": y}) for f in (lagged, constant)}
    folds = pcv.leave_future_out(30, min_observations=20, horizon=horizon)
    short = {"chains": 4, "draws": 100, "scores": ["crps"], "progress": False}
    found = pcv.cross_validate(models, folds, **short)
    given = [int(found[name].diagnostics.attrs["given_tested"]) for name in models]
    assert given == [int(horizon > 1), 0]
    compared = pcv.compare(found, joint=True)
    by_step = compared.by_step.set_index(["step", "model"])
    assert np.isfinite(by_step.loc[1, "elpd_diff"]).all()
    if horizon == 1:
        assert np.isfinite(pcv.compare(found, joint=False).frame["elpd_diff"]).all()
        assert "forecasts of the whole" not in repr(compared)
        return
    assert by_step["steps_ahead"].unstack().to_dict("list") == {
        "constant": [1, 2, 3],
        "lagged": [1, 1, 1],
    }
    assert np.isnan(by_step.loc[2:, "elpd_diff"].unstack()).sum().sum() == 2
    assert np.isfinite(compared.frame["elpd_diff"]).all()
    (crps,) = compared.compared.others
    assert np.isnan(crps.elpd_diff).sum() == 1
    assert " ".join(repr(compared).split()).count("no difference from other models") == 1
    with pytest.raises(PcvError, match=r"'lagged' are given outcomes.* up to 3;"):
        pcv.compare(found, joint=False)
    shown = replace(found["lagged"], joint=False)
    assert "Pointwise scores are given other outcomes" in repr(shown)
    both = {"one": found["lagged"], "other": found["lagged"]}
    assert "pointwise scores are given other outcomes" in repr(pcv.compare(both, joint=False))


def test_scores_of_the_full_data_fit_have_no_steps():
    problem = autoregression()
    cv = pcv.loo(problem.model, data=problem.data, brute_force=False, progress=False)
    with pytest.raises(PcvError, match="by_step: only of folds that are sampled"):
        _ = pcv.compare({"ar": cv}).by_step


@pytest.mark.slow
def test_futures_of_each_field_in_the_workflow(tmp_path, monkeypatch):
    project = set_up(tmp_path)
    monkeypatch.chdir(tmp_path)
    folds = {"scheme": "leave_future_out", "by": "field", "min_observations": 1, "horizon": 2}
    job = project.job({"folds": folds, "data.order": ["field", "plot"]})
    run(job, "data", "folds", "fit", "warmup", "sample", "diagnose", "compare", "report")
    said = "leave-future-out of each field, 2 ahead, expanding window: 4 folds, test 2, training 10"
    assert any(said in line for line in project.said)
    steps = pd.read_csv(project.path("steps.csv"))
    assert steps[["step", "n_units"]].values.tolist() == [[1, 4], [1, 4], [2, 4], [2, 4]]
    rows = pd.read_csv(project.path("comparison.csv")).query("kind == 'pointwise'")
    summed = steps.groupby("model")["elpd"].sum()
    np.testing.assert_allclose(summed, rows.set_index("model")["elpd"][summed.index])
    assert "By steps ahead" in project.path("report.html").read_text()
    short = folds | {"min_observations": 2}
    with pytest.raises(PcvError, match=r"series 'a' has 3 unit\(s\), too few for a test"):
        run(project.job({"folds": short, "data.order": ["field", "plot"]}), "folds")
