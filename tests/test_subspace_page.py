"""The page of chains on a subspace: its configs, its model, and the rows of its table."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
import yaml
from scipy.integrate import solve_ivp

from pcv.base.monitor import SILENT, Monitor
from pcv.base.names import name_bits
from pcv.pipeline.config import load
from pcv.pipeline.data.registry import SOURCES
from pcv.pipeline.job import Job
from subspace import files, models
from subspace.page import Row, discrepancy, page, table_1
from tests.project import run_all
from tests.workflow import ROOT, planned, snakemake

CONFIGS = {path.stem: path for path in (ROOT / "config/subspace").glob("*.yaml")}


def test_the_workflow_knows_the_page():
    assert "subspace" in planned(snakemake(ROOT, "subspace", "--dry-run", "--forceall"))


@pytest.mark.parametrize("name", CONFIGS)
def test_configs_have_what_the_page_looks_for(name):
    config = load(CONFIGS[name])
    assert set(config.experiments) <= set(files.EXPERIMENTS)
    for experiment, settings in config.experiments.items():
        asked = settings.kernel and settings.kernel.subspace
        if asked is None:
            assert experiment == files.BRUTE_FORCE
        else:
            share = asked.predictive_share
            assert experiment == (f"share{round(100 * share)}" if share else f"d{asked.number}")
    assert name == "quick" or set(config.experiments) == set(files.EXPERIMENTS)


def test_concentrations_solve_the_compartments():
    rates, share = np.array([2.0, 0.25]), 0.6
    volume, elimination = 30.0, 0.13
    dose = 100 * np.array([share, 1 - share])

    def flow(t, amounts):
        absorbed = rates * amounts[:2]
        return [*-absorbed, absorbed.sum() - elimination * amounts[2]]

    hours = np.array([0.25, 1.0, 6.0, 24.0])
    solved = solve_ivp(flow, (0, 24), [*dose, 0.0], t_eval=hours, rtol=1e-10, atol=1e-10)
    found = models.concentration(100 / volume, elimination, *rates, share, jnp.asarray(hours))
    np.testing.assert_allclose(found, solved.y[2] / volume, rtol=1e-6)
    equal = models.concentration(1.0, 0.25, 2.0, 0.25, share, jnp.asarray(hours))
    near = models.concentration(1.0, 0.25, 2.0, 0.25 + 1e-4, share, jnp.asarray(hours))
    np.testing.assert_allclose(equal, near, rtol=1e-3)


def test_the_model_has_the_papers_parameters():
    table = SOURCES["kinetics"].table([])
    data = {name: table[name].to_numpy() for name in table}
    made = models.kinetics(data)
    sizes = {name: x.size for name, x in made.init(jax.random.key(name_bits("pk"))).items()}
    assert sizes.pop("eta") == 36
    assert sum(sizes.values()) == 13
    assert len(table) == 12 * 11
    assert (table["conc"] > 0).all()


def test_discrepancy_of_samples():
    """Zero of the same, in any order; near its largest value of disjoint ones."""
    rng = np.random.default_rng(1)
    one = rng.normal(size=84)
    assert discrepancy(one, one[::-1]) < 1e-7
    near, far = discrepancy(one, one + 0.1), discrepancy(one, one + 20)
    assert 0 < near < 0.1
    assert far > 0.9


def test_rows_of_the_table():
    elpd = np.linspace(-3.0, 1.0, 21)
    mcse = np.full(21, 0.01)
    rows = [
        Row("all", elpd, mcse, 60.0, 20.0, 49, 1.0),
        Row("psis", elpd + 0.5, np.full(21, np.nan), 0.1, np.nan, 0, 0.9),
        Row("d5", elpd + 0.2, mcse, 6.0, 20.0, 5, 0.4),
        Row("share90", elpd + 0.1, mcse, 6.0, 20.0, 30, 0.3),
    ]
    brute, psis, few, by_share = table_1(rows).rows
    assert by_share[:2] == ("subspace, 30, 90% of the predictive's variance", "30.0%")
    assert brute[:4] == ("re-running, 49 parameters", "–", "\N{MINUS SIGN}21.00", "–")
    assert psis[0] == "PSIS (largest k-hat 0.90)"
    assert (psis[3], psis[4]) == ("10.50", "–")
    assert few[:5] == ("subspace, 5", "40.0%", "\N{MINUS SIGN}16.80", "4.20", "0.06")
    assert float(few[5]) == pytest.approx(0.2 / elpd.std(ddof=1), abs=0.01)
    assert few[7:11] == ("0.00178", "6.0", "12.47", "20.0")
    assert psis[10] == "–"


@pytest.mark.slow
def test_the_page_of_what_there_is(tmp_path, monkeypatch):
    """Re-running and five directions, with few draws."""
    monkeypatch.chdir(tmp_path)
    config = yaml.safe_load(CONFIGS["quick"].read_text())
    some = {name: config["experiments"][name] for name in ("all", "d5")}
    for experiment in some.values():
        experiment["models"]["kinetics"]["model"] = str(
            ROOT / "workflow/subspace/models.py:kinetics"
        )
        experiment |= {"fit": {"warmup": 300, "draws": 250}}
        experiment["cv"] = {"chains": 4, "draws": 40, "warmup": 10, "batch_size": 20}
    Path("c.yaml").write_text(yaml.safe_dump(config | {"experiments": some}))
    results = Path("results")
    for name in some:
        run_all(Job(load(Path("c.yaml")), name, results, monitor=SILENT))
        (folder := results / name / "benchmarks").mkdir()
        for stage in ("warmup", "sample"):
            (folder / f"{stage}-kinetics.tsv").write_text("s\n1.5\n")
    page(load(Path("c.yaml")), results, SILENT, "snakemake subspace")
    table = pd.read_csv(results / "subspace/tables/table_1.csv", index_col="method")
    assert table.index[0] == "re-running, 49 parameters"
    assert table.index[1].startswith("PSIS (largest k-hat ")
    assert table.index[2] == "subspace, 5"
    # False alarm < 1e-4: 35, with an MCSE of .8.
    assert float(table["bias"].iloc[2]) > 5 * float(table["MCSE"].iloc[2])
    assert table["seconds"].notna().all()
    assert (results / "subspace/figures/bias.svg").exists()


def test_a_page_of_nothing(tmp_path):
    said: list[str] = []
    page(load(CONFIGS["quick"]), tmp_path, Monitor(emit=said.append), "snakemake subspace")
    assert "`snakemake subspace` runs it" in " ".join(said)
    assert not list(tmp_path.glob("subspace/tables/*"))
