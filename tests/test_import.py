"""A file of log likelihoods in a project: from a config to the report, beside sampled models."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import xarray as xr

import pcv
from pcv.base.errors import PcvError
from pcv.pipeline import status
from pcv.pipeline.work import make_up_to
from tests.folds import refusal
from tests.project import Project, log_lik_table, run, set_up, table
from tests.test_stages import copied, run_all

THEIRS = {"models.theirs": {"model": "theirs.parquet"}}


@pytest.fixture
def project(shelf, tmp_path, monkeypatch):
    """A copy of one in which two models have been sampled, with the log likelihoods of a third."""
    copy = copied(Project(shelf("stages", run_all), []), tmp_path)
    monkeypatch.chdir(copy.folder)
    log_lik_table().to_parquet("theirs.parquet")
    return copy


@pytest.fixture
def fresh(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    log_lik_table().to_parquet("theirs.parquet")
    return set_up(tmp_path)


def states(job):
    return {f"{a.stage} {a.job.model}".strip(): a.state for a in status.artifacts(job)}


def test_from_a_file_to_the_report(project):
    """Rows of the table become its units, which the config sorts; sampled models stay."""
    job = project.job(THEIRS)
    before = states(job)
    assert before["sample flat"] == "done"
    assert before["fit theirs"] == before["sample theirs"] == "to do"
    make_up_to(job._replace(model="theirs"), "diagnose")
    run(job, "compare", "report")
    assert set(states(job).values()) == {"done"}
    found = xr.open_dataset(project.path("models/theirs/diagnostics.zarr"))
    plot = found["unit_name"].str.slice(5).astype(int)  # 12 to 1, in the rows 1 to 12
    assert np.allclose(found["pointwise_elpd"], -1 - (13 - plot) / 10, atol=0.1)
    assert np.isfinite(found["overlap"]).all()
    names = [f"field {x}" for x in "abcd"]
    folds = pcv.folds.base.from_labels(np.searchsorted(list("abcd"), table()["field"]), names)
    same = pcv.from_log_lik("theirs.parquet", folds, seed=1).diagnostics.sel(fold=found["fold"])
    for name in ("joint_elpd", "joint_mcse", "rhat", "khat"):
        np.testing.assert_allclose(found[name], same[name], rtol=1e-10)
    assert (found["verdict"] == same["verdict"]).all()
    models = pd.read_csv(project.path("comparison.csv")).query("kind == 'joint'")["model"]
    assert set(models) == {"linear", "flat", "theirs"}
    assert "theirs" in project.path("report.html").read_text()
    log_lik_table(full=False).to_parquet("theirs.parquet")
    after = states(job)
    assert after["fit theirs"] == "again: theirs.parquet has changed"
    assert after["sample flat"] == "done"


def test_a_project_of_files_alone(fresh):
    """Without full-data log likelihoods, in two batches of folds; the report says what is known."""
    log_lik_table(full=False).to_csv("theirs.csv", index=False)
    settings = {
        "models": {"theirs": {"model": "theirs.csv"}},
        "cv.fold_batches": 2,
        "scores": ["log", "crps"],
    }
    job = fresh.job(settings)
    run(job, "check")
    assert any("log likelihoods of 4 chains x 100 draws" in x for x in fresh.said)
    make_up_to(job._replace(model="theirs"), "diagnose")
    run(job, "compare", "report")
    assert set(states(job).values()) == {"done"}
    assert "no log likelihoods of the full data are given" in fresh.path("report.html").read_text()
    of_full = log_lik_table().query("fold.isna()").drop(columns="fold")
    of_full.to_csv("full.csv", index=False)
    auto = settings | {"models.theirs.args": {"full": "full.csv"}, "cv.fold_batches": "auto"}
    job = fresh.job(auto)
    assert states(job)["fit theirs"].startswith("again: ")
    make_up_to(job._replace(model="theirs"), "diagnose")
    assert np.isfinite(
        xr.open_dataset(fresh.path("models/theirs/diagnostics.zarr"))["overlap"]
    ).all()


def test_a_file_of_other_folds_is_told_before_anything_is_made(fresh):
    def check(change):
        change(log_lik_table(full=False)).to_parquet("theirs.parquet")
        return refusal(run, fresh.job({"models": {"theirs": THEIRS["models.theirs"]}}), "check")

    assert check(lambda t: t.query("fold != 'b'")) == (
        "model 'theirs': theirs.parquet: no fold tests what 'field b' does, units 'plot 7', "
        "'plot 8', 'plot 9'; give log likelihoods of the same folds"
    )
    assert (
        "no unit '13'; units are numbers of rows of the data, 1 to 12, or their names, such as"
        in (check(lambda t: t.assign(unit=t["unit"] + 1)))
    )
    Path("theirs.parquet").unlink()
    assert "theirs.parquet: no such file" in refusal(
        run, fresh.job({"models": {"theirs": THEIRS["models.theirs"]}}), "check"
    )


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"cv.until": {"fold_mcse": 0.1, "min_draws": 24, "max_draws": 48}},
            "which cv.until needs",
        ),
        ({"folds.exact": "auto"}, "which folds.exact needs"),
        ({"folds": {"scheme": "cumulative"}}, "which folds.scheme needs"),
        ({"joint_by": "field"}, "which joint_by needs"),
    ],
)
def test_settings_that_need_a_model_are_refused(fresh, changes, said):
    found = refusal(fresh.job, THEIRS | changes)
    assert "models.theirs.model: log likelihoods alone are no model" in found
    assert said in found


def test_a_file_takes_no_other_arguments(fresh):
    with pytest.raises(PcvError, match="a file of log likelihoods takes full alone"):
        fresh.job({"models.theirs": {"model": "theirs.parquet", "args": {"scale": 2}}})
