"""The page of Fong and Holmes: its configs, a page of what there is, and the models' evidence."""

from pathlib import Path

import jax
import numpy as np
import pandas as pd
import pytest
import yaml

import pcv
from cumulative import files, models, published
from cumulative.page import page
from pcv.base.monitor import Monitor
from pcv.models.checks.prior import strayed
from pcv.pipeline.config import load
from tests.bounds import z_limit
from tests.data import DATA, needs_data
from tests.workflow import ROOT, make_project, planned, snakemake

CONFIGS = {path.stem: path for path in (ROOT / "config/cumulative").glob("*.yaml")}


def test_the_workflow_knows_the_page():
    assert "cumulative" in planned(snakemake(ROOT, "cumulative", "--dry-run", "--forceall"))


@pytest.mark.parametrize("name", CONFIGS)
def test_configs_have_what_the_page_looks_for(name):
    config = load(CONFIGS[name])
    assert set(config.experiments) == set(files.EXPERIMENTS)
    known = {(e, m) for e, settings in config.experiments.items() for m in settings.models}
    assert known == {*published.POLYNOMIALS, *published.PROBITS}


def page_of(name, tmp_path, **folds):
    """The workflow of one experiment of the quick config."""
    project = make_project(tmp_path)
    config = yaml.safe_load(CONFIGS["quick"].read_text())
    experiment = config["experiments"][name]
    experiment["folds"] |= folds
    for model in experiment["models"].values():
        model["model"] = str(ROOT / model["model"])
    config["experiments"] = {name: experiment}
    (project / "c.yaml").write_text(yaml.safe_dump(config))
    run = snakemake(project, "cumulative", "--configfile", "c.yaml")
    assert run.status == 0, run.err
    return run, project / "results/cumulative"


@pytest.mark.slow
def test_the_page_of_what_there_is(tmp_path):
    """Polynomials with one prior, beside their closed forms; the rest is named as missing."""
    run, folder = page_of("poly_1", tmp_path, splits=8, particles=128)
    assert "Page: results/cumulative/index.html" in run.out
    text = (folder / "index.html").read_text()
    missing = [name for name in files.EXPERIMENTS if name != "poly_1"]
    assert f"{', '.join(missing)} were not run" in text
    table = pd.read_csv(folder / "tables/table_1.csv", index_col="model")
    columns = {"log p(y)": "", "S_CCV n/P, P = 0.9 n": ".1", "S_CCV n/P, P = 0.5 n": ".2"}
    for name, end in columns.items():
        ours, mcse, exact = (
            table[x].astype(str).str.replace("\N{MINUS SIGN}", "-").astype(float)
            for x in (name, f"MCSE{end}", f"exact{end}")
        )
        # False alarm < 1e-4: sd .1 at most, of 16 estimates.
        assert (abs(ours - exact) < 0.6).all()
        assert (mcse < 0.3).all()
    assert exact["r1"] > exact["r0"]


def test_a_page_of_nothing(tmp_path):
    said: list[str] = []
    page(load(CONFIGS["quick"]), tmp_path, Monitor(emit=said.append), "snakemake cumulative")
    assert "`snakemake cumulative` runs it" in " ".join(said)
    assert not list(tmp_path.glob("cumulative/tables/*"))


@needs_data
@pytest.mark.slow
def test_evidence_of_pima_by_quadrature():
    """Within .01 of the paper's, on a grid about the mode."""
    table = pd.read_csv(Path(DATA) / "pima_te.csv")
    data = {x: table[x].to_numpy() for x in ("glu", "bp", "ped")}
    data["diabetic"] = (table["type"] == "Yes").to_numpy().astype(int)
    covariates = published.COVARIATES["without_ped"].split(", ")
    model = models.probit(data, covariates, 10.0)
    assert strayed(model) is None

    def log_joint(theta):
        params = {"theta": theta}
        return model.log_prior(params) + model.log_lik(params, data).sum()

    width = 1 + len(covariates)
    mode = jax.numpy.zeros(width)
    for _ in range(20):
        hessian = jax.hessian(log_joint)(mode)
        mode = mode - jax.numpy.linalg.solve(hessian, jax.grad(log_joint)(mode))
    root = np.linalg.cholesky(np.linalg.inv(-np.asarray(hessian)))
    nodes, weights = np.polynomial.hermite_e.hermegauss(9)
    z = np.stack(np.meshgrid(*[nodes] * width), -1).reshape(-1, width)
    share = np.prod(np.stack(np.meshgrid(*[weights] * width), -1).reshape(-1, width), axis=1)
    values = np.asarray(jax.lax.map(log_joint, np.asarray(mode) + z @ root.T, batch_size=100))
    highest = values.max()
    whole = (share * np.exp(values - highest + (z**2).sum(1) / 2)).sum()
    log_evidence = np.log(whole) + highest + np.linalg.slogdet(root)[1]
    assert abs(log_evidence - published.PROBITS["pima_10n", "without_ped"][0]) < 0.015
    found = pcv.evidence(
        model, data=data, splits=8, particles=128, method="path", seed=1, progress=False
    )
    # Of bridge sampling, with an MCSE of .001, unless it did not agree with 32 other estimates.
    limit = z_limit(3, df=8)
    assert abs(found.log_evidence - log_evidence) < max(limit * found.mcse, 0.01)
    apart = found.ways["log_evidence"] - log_evidence
    assert (abs(apart) < limit * found.ways["mcse"] + 1e-3).all()
