"""A subsample as an experiment of the workflow: which folds are sampled, growth, what is kept."""

import re
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
import yaml

from pcv import PcvError
from pcv.pipeline.config import parse
from tests.workflow import CONFIG, MODEL, planned, snakemake

OUTLIER, NUM_UNITS = 7, 60


def outcomes():
    y = np.random.default_rng(1).normal(0.5, 1.0, NUM_UNITS)
    y[OUTLIER] = 25.0
    return y


def settings(names="ab", **folds):
    tiny = CONFIG["experiments"]["tiny"]
    models = {name: tiny["models"][name] for name in names}
    cv = {"chains": 4, "warmup": 20, "draws": 100, "batch_size": 20}
    scheme = {"scheme": "subsample", "m": 20, "surrogate": ["waic", "plpd"], **folds}
    own = {"folds": scheme, "models": models, "fit": {"draws": 500}, "cv": cv}
    return {"seed": 3, "experiments": {"tiny": {**tiny, **own}}}


def run(folder: Path, *arguments: str, **folds):
    (folder / "tiny.yaml").write_text(yaml.safe_dump(settings(**folds)))
    done = snakemake(folder, "--configfile", "tiny.yaml", *arguments)
    assert done.status == 0, done.err + done.out
    return done


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A normal mean of 60 units, one of them an outlier whose weights have a heavy tail."""
    folder = tmp_path_factory.mktemp("subsample")
    (folder / "data.csv").write_text("y\n" + "\n".join(map(str, outcomes())) + "\n")
    for name in "ab":
        (folder / f"{name}.py").write_text(MODEL)
    return folder, run(folder, m=60)


def exact(scale):
    """Closed form of all leave-one-out terms of a normal mean with prior N(0, scale²)."""
    y = outcomes()
    precision = NUM_UNITS - 1 + scale**-2
    mean, variance = (y.sum() - y) / precision, 1 / precision + 1
    return -0.5 * ((y - mean) ** 2 / variance + np.log(2 * np.pi * variance))


def diagnosed(folder, name):
    return xr.open_dataset(folder / f"results/tiny/models/{name}/diagnostics.zarr").load()


def test_only_folds_that_need_it_are_sampled(project):
    folder, done = project
    said = done.out + done.err
    assert "surrogates a: PSIS: k-hat above" in said
    found = diagnosed(folder, "a")
    sampled = found["fold"].values[found["source"].values == "mcmc"].tolist()
    assert sampled == [str(OUTLIER + 1)]
    off = found["joint_elpd"].values - exact(10.0)
    assert abs(off[OUTLIER]) < 4 * found["joint_mcse"].values[OUTLIER]
    assert np.abs(np.delete(off, OUTLIER)).max() < 0.05
    assert (found["verdict"].values == "ok").all()
    assert "PSIS" in (folder / "results/tiny/report.html").read_text()


def test_a_larger_subsample_keeps_what_was_sampled(project):
    """All folds by brute force: 20, then 40, of which 20 are new; nothing to do after that."""
    folder, _ = project
    first = run(folder, names="a", exact="folds")
    assert "sample a: 80 chains, 100 of 100 draws" in first.out + first.err
    few = diagnosed(folder, "a")
    more = run(folder, names="a", exact="folds", m=40)
    assert "sample a: 20 of 40 folds have saved blocks; the others are made" in more.out + more.err
    many = diagnosed(folder, "a")
    np.testing.assert_allclose(
        many["joint_elpd"].sel(fold=few["fold"].values), few["joint_elpd"], rtol=1e-6
    )
    assert planned(run(folder, "--dry-run", names="a", exact="folds", m=40)) <= {"all"}
    config = settings(names="a", exact="folds", m=40)
    config["experiments"]["tiny"]["compare"] = {"reference": "a"}
    (folder / "tiny.yaml").write_text(yaml.safe_dump(config))
    after = planned(snakemake(folder, "--dry-run", "--configfile", "tiny.yaml"))
    assert after <= {"compare", "report", "all"}
    table = (folder / "results/tiny/comparison.csv").read_text()
    assert table.splitlines()[0].endswith("subsampling_dse,subsampling_se,num_terms")
    assert many.attrs["terms"] == "units"
    z = (many["joint_elpd"] - exact(10.0)[many["chosen"].values]) / many["joint_mcse"]
    assert np.abs(z).max() < 4.5


def test_grows_for_all_models_together(project):
    folder, _ = project
    until = {"subsampling_se_over_se": 0.001, "max_m": 50}
    done = run(folder, exact="psis", until=until)
    sizes = re.findall(r"subsample of (\d+): not settled", done.out + done.err)
    assert sizes == ["20", "40", "50"]
    assert {diagnosed(folder, name).sizes["fold"] for name in "ab"} == {50}
    assert "folds.until: not settled (" in done.out
    page = (folder / "results/tiny/report.html").read_text()
    assert "Is the subsample large enough?" in page
    assert "Exact terms of 50 of 60 units" in page


def test_leave_one_out_from_the_full_data_fit(project):
    folder, _ = project
    config = settings(names="b")
    config["experiments"]["tiny"]["folds"] = {"scheme": "leave_one_out", "exact": "auto"}
    (folder / "tiny.yaml").write_text(yaml.safe_dump(config))
    assert snakemake(folder, "--configfile", "tiny.yaml").status == 0
    found = diagnosed(folder, "b")
    assert "chosen" not in found
    assert abs(found["joint_elpd"].sum() - exact(0.5).sum()) < 0.3
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
