"""A subsample as an experiment of the workflow: which folds are sampled, growth, what is kept."""

import re
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from pcv import PcvError
from pcv.base.monitor import Monitor
from pcv.pipeline import stages
from pcv.pipeline.config import parse
from pcv.pipeline.job import Job
from pcv.pipeline.status import artifacts
from tests.bounds import z_limit
from tests.project import run_all
from tests.workflow import MODEL, NUM_UNITS, OUTLIER, SUBSAMPLE, kept, outcomes, run_module


def settings(names="ab", **folds):
    models = {name: SUBSAMPLE["models"][name] for name in names}
    scheme = {**SUBSAMPLE["folds"], **folds}
    return {"seed": 3, "experiments": {"tiny": {**SUBSAMPLE, "folds": scheme, "models": models}}}


def run(config, said):
    """Every stage of a config in the present folder, but the report."""
    Path("outlier.csv").write_text("\n".join(["y", *map(str, outcomes())]) + "\n")
    for name in "ab":
        Path(f"{name}.py").write_text(MODEL)
    job = Job(parse(config), "tiny", Path("results"), monitor=Monitor(emit=said.append))
    run_all(job)
    stages.compare(job)
    return job


def exact(scale):
    """Closed form of all leave-one-out terms of a normal mean with prior N(0, scale²)."""
    y = outcomes()
    precision = NUM_UNITS - 1 + scale**-2
    mean, variance = (y.sum() - y) / precision, 1 / precision + 1
    return -0.5 * ((y - mean) ** 2 / variance + np.log(2 * np.pi * variance))


def diagnosed(folder, name):
    return xr.open_dataset(folder / f"models/{name}/diagnostics.zarr").load()


@pytest.fixture
def grown(shelf):
    """The experiment of a workflow whose subsample grew, and what the run printed."""
    folder, done = kept(shelf("module", run_module))
    return folder / "results/subsample", done


def test_only_folds_that_need_it_are_sampled(grown):
    folder, done = grown
    assert "surrogates a: PSIS is not trusted in" in done.out + done.err
    found = diagnosed(folder, "a")
    sampled = found["fold"].values[found["source"].values == "mcmc"].tolist()
    assert sampled == [str(OUTLIER + 1)]
    assert (found["verdict"].drop_sel(fold=sampled) == "ok").all()
    assert not found["joint_mcse_is_bound"].any()
    off = found["joint_elpd"] - exact(10.0)[found["chosen"].values]
    limit = z_limit(df=19)  # 20 batches
    assert abs(off.sel(fold=sampled[0])) < limit * found["joint_mcse"].sel(fold=sampled[0])
    assert abs(off.drop_sel(fold=sampled)).max() < 0.05
    assert "PSIS" in (folder / "report.html").read_text()


def test_grows_for_all_models_together(grown):
    folder, done = grown
    sizes = re.findall(r"subsample of (\d+): not settled", done.out + done.err)
    assert sizes == ["20", "40", "50"]
    assert {diagnosed(folder, name).sizes["fold"] for name in "ab"} == {50}
    assert "folds.until: not settled (" in done.out
    page = (folder / "report.html").read_text()
    assert "Is the subsample large enough?" in page
    assert "Exact terms of 50 of 60 units" in page


@pytest.mark.slow
def test_a_larger_subsample_keeps_what_was_sampled(tmp_path, monkeypatch):
    """All folds by brute force: 20, then 40, of which 20 are new; nothing to do after that."""
    monkeypatch.chdir(tmp_path)
    said, folder = [], Path("results/tiny")
    run(settings(names="a", exact="folds"), said)
    few = diagnosed(folder, "a")
    assert few["source"].values.tolist() == ["mcmc"] * 20
    job = run(settings(names="a", exact="folds", m=40), said)
    kept = "sample a: 20 of 40 folds have saved blocks; the others are made"
    assert any(kept in line for line in said)
    many = diagnosed(folder, "a")
    np.testing.assert_allclose(
        many["joint_elpd"].sel(fold=few["fold"].values), few["joint_elpd"], rtol=1e-6
    )
    assert {a.stage for a in artifacts(job) if a.state != "done"} == {"report"}
    config = settings(names="a", exact="folds", m=40)
    config["experiments"]["tiny"]["compare"] = {"reference": "a"}
    other = job._replace(config=parse(config))
    assert {a.stage for a in artifacts(other) if a.state != "done"} <= {"compare", "report"}
    table = (folder / "comparison.csv").read_text()
    assert table.splitlines()[0].endswith("subsampling_dse,subsampling_se,num_terms")
    assert many.attrs["terms"] == "units"
    z = (many["joint_elpd"] - exact(10.0)[many["chosen"].values]) / many["joint_mcse"]
    assert np.abs(z).max() < z_limit(z.size, df=19)


@pytest.mark.slow
def test_leave_one_out_from_the_full_data_fit(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = settings(names="b")
    folds = {"scheme": "leave_one_out", "exact": "auto"}
    # False alarm < 1e-4: k-hat of the outlier is 1.0, with an sd of .15, and of others .35 at most.
    config["experiments"]["tiny"]["folds"] = folds | {"good_k": 0.42}
    run(config, [])
    found = diagnosed(Path("results/tiny"), "b")
    assert "chosen" not in found
    error = np.sqrt((found["joint_mcse"] ** 2).sum())  # nearly all of it the outlier's
    assert abs(found["joint_elpd"].sum() - exact(0.5).sum()) < z_limit(df=19) * error
    assert (found["source"].values == "mcmc").sum() == 1


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"scores": ["crps"]}, "scores: only the log score is available without sampling every"),
        (
            {"cv": {"until": {"mcse_over_se": 0.1, "max_draws": 400}}},
            "cv.until: not every fold is sampled, so the rule must be fold_mcse",
        ),
        ({"folds": {"scheme": "subsample"}}, "folds.m: missing; add it"),
        (
            {"folds": {"scheme": "subsample", "m": 9, "until": {"max_m": 20}}},
            "folds.until: name a rule: subsampling_se_over_se and/or decide",
        ),
        (
            {"folds": {"scheme": "subsample", "m": 9, "surrogate": ["waic", "psiss"]}},
            "folds.surrogate[1]: unknown surrogate 'psiss'; did you mean 'psis'?",
        ),
    ],
)
def test_settings_that_cannot_be(changes, words):
    config = settings()
    config["experiments"]["tiny"] |= changes
    with pytest.raises(PcvError) as refused:
        parse(config)
    assert words in str(refused.value)
