"""Futures of one series and of many: scores by steps ahead, from Python and in the workflow."""

import numpy as np
import pandas as pd
import pytest

import pcv
from pcv import PcvError
from pcv.folds.base import train_mask
from tests.bounds import z_limit
from tests.problems import autoregression, autoregressions, exact
from tests.project import run, set_up


def test_no_term_that_trains_is_given_a_held_out_value():
    """Of all series, by enumeration: the value before a training unit trains, or comes first."""
    problem = autoregressions()
    patient = problem.data["patient"]
    for folds in problem.schemes.values():
        for train in train_mask(folds, len(patient)):
            for who in range(3):
                own = train[patient == who]
                assert own[: own.sum()].all()  # the past, or all


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
