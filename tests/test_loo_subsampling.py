"""The LOO-SS paper's page: its simulated posteriors, its estimates, and the whole from a config."""

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml

import pcv
from loo_subsampling import files, published, tables
from loo_subsampling.estimates import M, Run, Terms, difference, from_some, mean_se, sigma
from loo_subsampling.models import linear
from loo_subsampling.page import page
from loo_subsampling.simulate import posterior, simulated
from pcv.base.errors import PcvError
from pcv.base.monitor import SILENT, Monitor
from pcv.pipeline.config import load
from pcv.pipeline.job import Job
from tests.project import run_all
from tests.workflow import ROOT, planned, snakemake

CONFIGS = {
    name: ROOT / f"config/loo_subsampling/{name}.yaml" for name in ("loo_subsampling", "quick")
}


def terms(seed: int, n: int = 2_000, noise: float = 0.1) -> Terms:
    rng = np.random.default_rng(seed)
    exact = -1 - rng.gamma(2, 1, n)
    chosen = rng.permutation(n)
    every = {name: exact + noise * rng.normal(size=n) for name in published.SURROGATES}
    every |= {"tis_10": every["tis_100"], "tis_1000": every["tis_2000"]}
    return Terms(chosen, exact[chosen], np.zeros(n), every)


def runs() -> dict[str, Run]:
    of = {"radon": list(published.RADON), "wells": ["linear", "interactions", "smooth"]}
    of |= {name: ["d100"] for name in published.LINEAR}
    of["linear_r10"] += list(published.BY_SIZE)
    of |= {name: ["normal", "horseshoe"] for name in published.ROWS}
    return {
        name: Run({model: terms(seed) for seed, model in enumerate(models)}, 1000, 0.7, [])
        for name, models in of.items()
    }


def test_a_difference_is_that_of_the_first_terms_chosen():
    run = Run({"a": terms(1), "b": terms(2, noise=0.2)}, 1000, 0.7, [])
    a, b = run.models.values()
    whole = difference(run, "a", "b", "plpd", 2_000)
    assert whole.elpd == pytest.approx(a.exact.sum() - b.exact.sum())
    assert whole.elpd_subsampling_se == 0
    some = difference(run, "a", "b", "plpd", M)
    error = (a.exact - b.exact) - (a.surrogates["plpd"] - b.surrogates["plpd"])[a.chosen]
    expected = (a.surrogates["plpd"] - b.surrogates["plpd"]).sum() + 2_000 * error[:M].mean()
    assert some.elpd == pytest.approx(expected)


def test_mean_errors_are_those_of_repeated_subsamples():
    made = terms(1)
    rng = np.random.default_rng(2)
    found = [from_some(made, "plpd")(rng).elpd for _ in range(2_000)]
    # False alarm < 1e-4: the ratio has an sd of .018.
    assert np.std(found) == pytest.approx(mean_se(from_some(made, "plpd"), 3), rel=0.08)
    assert mean_se(from_some(made, None), 3) > 5 * mean_se(from_some(made, "plpd"), 3)
    in_order = made.exact[np.argsort(made.chosen)]
    assert sigma(made) == pytest.approx(np.sqrt(2_000) * in_order.std(ddof=1))


def test_all_tables_have_the_papers_numbers_in_brackets():
    found = tables.tables(runs(), 1)
    assert list(found) == list(files.TABLES)
    assert [len(found[n].rows) for n in found] == [9, 6, 6, 10, 2, 8]
    assert all(len(row) == len(table.head) for table in found.values() for row in table.rows)
    cells = " ".join(found[6].rows[0])
    assert all(f"({x})" in cells for x in ("−233", "69", "22"))
    for table in found.values():
        assert not re.search(r"(?<![\w])-\d|nan", str(table.rows))


@pytest.mark.slow
def test_simulated_posteriors_are_those_of_the_model():
    """`pcv` refuses draws whose identities fail; those given other data must."""
    made = simulated("sparse_300")
    data = {"x": made["x"].values[:, :5], "y": made["y"].values}
    small = made.isel(column=slice(5))
    model = linear(data, covariates=5, horseshoe=False)
    drawn = posterior(small, 5, False)
    quick = {"brute_force": False, "progress": False}
    found = pcv.loo(model, data=data, fit=drawn, **quick)
    # False alarm < 1e-4: the highest of 300 k-hats is .33.
    assert (found.folds["verdict"] == "ok").all()
    other = {**data, "y": data["y"] + 0.5 * data["x"][:, 1]}
    with pytest.raises(PcvError, match="not that of this model and these data"):
        pcv.loo(model, data=other, fit=drawn, **quick)


def test_the_workflow_knows_the_page():
    assert "loo_subsampling" in planned(
        snakemake(ROOT, "loo_subsampling", "--dry-run", "--forceall")
    )


@pytest.mark.parametrize("name", CONFIGS)
def test_configs_have_what_the_page_looks_for(name):
    config = load(CONFIGS[name])
    assert set(config.experiments) <= set(files.EXPERIMENTS)
    found = {n for n, names in files.TABLES.items() if set(names) & set(config.experiments)}
    assert found == set(files.TABLES)


@pytest.mark.slow
def test_the_page_of_what_there_is(tmp_path, monkeypatch):
    """Wells alone, from data at hand; the other experiments are named as missing."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(1)
    table = pd.DataFrame(rng.gamma(2, 1, (400, 3)), columns=["dist", "arsenic", "educ"])
    table["assoc"] = rng.integers(0, 2, 400)
    table["switch"] = rng.binomial(1, 1 / (1 + np.exp(table["dist"] - table["arsenic"])))
    table.to_csv("data.csv", index=False)
    model = str(ROOT / "workflow/loo_subsampling/models.py")
    experiment = {
        "data": {"file": "data.csv", "outcome": "switch"},
        "folds": {
            "scheme": "subsample",
            "m": 400,
            "surrogate": ["tis_100", "plpd"],
            "exact": "psis",
        },
        "models": {
            "linear": {"model": f"{model}:wells"},
            "interactions": {"model": f"{model}:wells", "args": {"terms": "interactions"}},
            "smooth": {"model": f"{model}:wells", "args": {"terms": "interactions"}},
        },
        "fit": {"approximation": "laplace", "draws": 250},
    }
    config = {"seed": 1, "experiments": {"wells": experiment}}
    Path("wells.yaml").write_text(yaml.safe_dump(config))
    results = Path("results")
    run_all(Job(load(Path("wells.yaml")), "wells", results, monitor=SILENT))
    page(load(Path("wells.yaml")), results, SILENT, "snakemake loo_subsampling")
    text = (results / "loo_subsampling/index.html").read_text()
    missing = [name for name in files.EXPERIMENTS if name != "wells"]
    assert f"{', '.join(missing)} were not run" in text
    found = pd.read_csv(results / "loo_subsampling/tables/table_7.csv", index_col="row")
    assert found["elpd difference, paper"].tolist() == [-21, -29]
    row = found.loc["splines against linear terms"]
    # False alarm < 1e-4: errors are skewed, and so 4 SE are too few.
    assert abs(row["elpd difference"] - row["all terms"]) < 5 * row["subsampling SE"]


def test_a_page_of_nothing(tmp_path):
    said: list[str] = []
    page(load(CONFIGS["quick"]), tmp_path, Monitor(emit=said.append), "snakemake loo_subsampling")
    assert "`snakemake loo_subsampling` runs it" in " ".join(said)
    assert not list(tmp_path.glob("loo_subsampling/tables/*"))
