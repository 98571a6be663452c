"""The cumulative score from folds of random sizes, by any pointwise score."""

import itertools

import numpy as np
import numpyro.distributions as dist
import pandas as pd
import pytest
import xarray as xr
from scipy.stats import norm

import pcv
from pcv import PcvError
from pcv.analysis.results.scored import cumulated
from pcv.folds.base import train_mask
from tests.bounds import sd_limits, z_limit
from tests.problems import exact, regression
from tests.project import run, set_up

P = 3
MANY = 12


def diagnosed(problem, folds):
    """Diagnostics with exact pointwise scores."""
    names = np.where(folds.test >= 0, folds.test.astype(str), "")
    none = np.zeros(len(folds.id))
    return xr.Dataset(
        {
            "unit_name": (("fold", "slot"), names),
            "pointwise_elpd": (("fold", "slot"), exact(problem, folds).pointwise),
            "pointwise_mcse": ("fold", none),
            "pointwise_mcse_is_bound": ("fold", none > 0),
        },
        {"fold": folds.id},
        {
            **{"model": "m", "outcome": "y", "predictive": "plain", "bad_fit": False},
            **{"verdict": "ok", "pointwise_verdict": "ok", "given_tested": 0},
        },
    )


def truth(problem, n, p):
    """S_CCV(P): the evidence of all units less that of n - P, on average over all such sets."""
    units = np.arange(n)
    sets = [np.isin(units, x) for x in itertools.combinations(units, n - p)]
    return problem.evidence(units >= 0) - np.mean([problem.evidence(x) for x in sets])


def test_is_unbiased_with_an_honest_se():
    """And its twin, the mean over all units of all folds, is not: large sets count more in it."""
    problem = regression()
    n, splits, seeds = len(problem.data["y"]), 40, 60
    folds = pcv.leave_p_out(n, MANY, splits * seeds, seed=3, up_to=True)
    d, want = diagnosed(problem, folds), truth(problem, n, MANY)
    terms = cumulated(d, MANY).elpd.reshape(seeds, splits) * seeds
    found, error = terms.sum(1), np.sqrt(splits) * terms.std(1, ddof=1)
    limit = z_limit(df=seeds - 1) * found.std(ddof=1) / np.sqrt(seeds)
    assert abs(found.mean() - want) < limit < 0.05 * abs(want)
    low, high = sd_limits(seeds)
    assert low < found.std(ddof=1) / error.mean() < high
    twin = MANY * np.nanmean(d["pointwise_elpd"].values)
    assert abs(twin - want) > limit  # false alarm < 1e-4: 12 standard errors


@pytest.mark.slow
def test_of_sampled_folds():
    problem = regression()
    n = len(problem.data["y"])
    folds = pcv.leave_p_out(n, P, 20, seed=2, up_to=True)
    settings = {"data": problem.data, "chains": 8, "draws": 400, "progress": False}
    cv = pcv.cross_validate(problem.model, folds, **settings)
    wide = problem.model._replace(log_prior=lambda params: 0.0 * params["alpha"])
    both = {"proper": cv, "wide": pcv.cross_validate(wide, folds, **settings)}
    rows = pcv.compare(both, reference="proper").cumulative(P).set_index("model")
    own = rows.loc["proper"]
    want = cumulated(diagnosed(problem, folds), P)
    assert abs(own["s_ccv"] - want.elpd.sum()) < z_limit() * own["s_ccv_mcse"] < 0.1
    spread = np.sqrt(20) * want.elpd.std(ddof=1)
    assert own["s_ccv_se"] == pytest.approx(spread, rel=0.05)  # false alarm < 1e-4: sd .005
    assert own["s_ccv_per_n"] == pytest.approx(own["s_ccv"] * n / P)
    assert rows.loc["wide", "diff_se"] < own["s_ccv_se"]
    for p in (2, 12):
        words = f"test sets have 1 to 3 units, not random numbers from 1 to {p}; make folds by"
        with pytest.raises(PcvError, match=words):
            pcv.compare({"proper": cv}).cumulative(p)
    assert "s_ccv_mcse" in pcv.compare({"proper": cv}).cumulative(4)  # such luck is not unlikely


def test_of_another_score():
    """The CRPS of normal predictives, in closed form."""
    problem = regression()
    n = len(problem.data["y"])
    folds = pcv.leave_p_out(n, P, 20, seed=2, up_to=True)

    def predict(key, params, data):
        return dist.Normal(params["alpha"] + data["x"] @ params["beta"], 0.8).sample(key)

    model = problem.model._replace(predict=predict)
    settings = {"data": problem.data, "chains": 8, "draws": 800, "progress": False}
    cv = pcv.cross_validate(model, folds, scores=["log", "crps"], **settings)
    own = pcv.compare({"m": cv}).cumulative(P).set_index("score").loc["crps"]
    each = []
    for train, slots in zip(train_mask(folds, n), folds.test):
        test = slots[slots >= 0]
        mean, cov = problem.form.predictive(train, test)
        sd = np.sqrt(np.diag(cov))
        z = (problem.data["y"][test] - mean) / sd
        crps = sd * (z * (2 * norm.cdf(z) - 1) + 2 * norm.pdf(z) - 1 / np.sqrt(np.pi))
        each.append(-crps.mean())
    # Each of 20 folds has 16 blocks of draws.
    assert abs(own["s_ccv"] - P * np.mean(each)) < z_limit(df=100) * own["s_ccv_mcse"] < 0.1
    # False alarm < 1e-4: sd .01.
    assert own["s_ccv_se"] == pytest.approx(P * np.std(each, ddof=1) / np.sqrt(20), rel=0.1)


@pytest.mark.slow
def test_every_score_in_the_workflow(tmp_path, monkeypatch):
    project = set_up(tmp_path)
    monkeypatch.chdir(tmp_path)
    folds = {"scheme": "leave_p_out", "p": 6, "splits": 12, "up_to": True}
    job = project.job({"folds": folds, "scores": ["log", "crps", "rmse"]})
    run(job, "data", "folds", "fit", "warmup", "sample", "diagnose", "compare", "report")
    assert any("leave-up-to-6-out: 12 folds, test 1 to 6" in line for line in project.said)
    rows = pd.read_csv(project.path("cumulative.csv"))
    assert rows["score"].unique().tolist() == ["log", "crps"]
    assert (rows["s_ccv"] < 0).all()
    assert "Cumulative score" in project.path("report.html").read_text()
