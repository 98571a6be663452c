"""Columns, parameters and outcomes of any name: none vanishes on its way through a store."""

import csv
import tempfile
from pathlib import Path

import arviz as az
import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
import pytest
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st
from numpyro import handlers
from scipy.stats import norm

import pcv
from pcv.base.errors import PcvError
from pcv.base.monitor import SILENT
from pcv.base.storable import ATTRIBUTE, storable, true_names
from pcv.folds.columns import model_data
from pcv.models.checks.shapes import check_shapes
from pcv.models.model import Observations
from pcv.models.observations import observations, rows
from pcv.pipeline import config, stages
from pcv.pipeline.data.tables import make_data, read_table, stacked
from pcv.pipeline.job import Job
from pcv.pipeline.problems import problem_of
from pcv.pipeline.stages.inputs import check
from pcv.pipeline.storage import store
from tests.bounds import z_limit

AWKWARD = [
    *("a/b", "/", "a/", "/a", "a//b", "a%2Fb", "a%2F/b", "a\\b", ".", "..", "a.b", ".zgroup", "c"),
    *("zarr.json", "__values__", "__x", ".snakemake_timestamp", "x_dim_0", "x_0", "row_", "%", "~"),
    *("größe", "gro\u0308ße", "größe/m", "gro\u0308ße/m", " ", "a b", "a\nb", "a\x00b", "*", "?"),
    *("1", "1.0", "nan", "True", "a" * 300, "a" * 299 + "b", "ä" * 200, "/" * 100, "index", "tree"),
]
names = st.sampled_from(AWKWARD) | st.text(
    st.characters(exclude_categories=["Cs"]) | st.sampled_from("/\\.%~"), max_size=8
)
several = st.lists(
    names.filter(lambda name: name not in ("y", "x", "row", "unit", "unit_of_row")),
    min_size=1,
    max_size=5,
    unique=True,
)
Y = np.arange(3.0)


def columns_of(names: list[str]) -> dict[str, np.ndarray]:
    return {name: Y + 10.5 * (i + 1) for i, name in enumerate(names)}


def through_stores(
    table: pd.DataFrame, constants: dict[str, xr.Variable], folder: Path
) -> dict[str, np.ndarray]:
    """What a model gets of a table."""
    made = make_data(table, constants, config.DataConfig(file="a.csv", outcome="y"), "a.csv")
    store.put(folder, made, mode="w")
    xr.testing.assert_identical(store.opened(folder).load(), made)
    return model_data(store.opened(folder))


def assert_all_there(arrays: dict[str, np.ndarray], columns: dict[str, np.ndarray]) -> None:
    assert {*arrays} - {"unit", "x"} == {"y", *columns}
    for name, x in columns.items():
        np.testing.assert_array_equal(arrays[name], x, err_msg=repr(name))


@settings(max_examples=60)
@given(several)
def test_columns_of_a_file_reach_the_model(names):
    # An empty header is called Unnamed by pandas; that of the first column may open with a BOM.
    columns = columns_of([name for name in names if name and not name.startswith("Unnamed: ")])
    with tempfile.TemporaryDirectory() as place:
        file = Path(place, "table.csv")
        with file.open("w", newline="", encoding="utf-8") as opened:
            writer = csv.writer(opened)
            writer.writerows([["y", *columns], *zip(Y, *columns.values())])
        arrays = through_stores(*read_table(file, "y"), Path(place, "data.zarr"))
    assert_all_there(arrays, columns)


@pytest.mark.slow
@settings(max_examples=60)
@given(several)
def test_columns_from_python_reach_the_model(names):
    columns = columns_of(names)
    given = Observations({"y": Y, "x": np.ones((2, 2)), **columns})
    with tempfile.TemporaryDirectory() as place:
        table = stacked(rows(given, "y"), "y", "data")
        arrays = through_stores(*table, Path(place, "data.zarr"))
    assert_all_there(arrays, columns)
    np.testing.assert_array_equal(arrays["x"], np.ones((2, 2)))


@settings(max_examples=30)
@given(several)
def test_posteriors_keep_variables_dimensions_and_elements(names):
    variables = {name: (("draw", f"of {name}"), Y[:, None] + i) for i, name in enumerate(names)}
    made = xr.Dataset(variables, {f"of {name}": ["only"] for name in names})
    with tempfile.TemporaryDirectory() as place:
        store.put(place, xr.DataTree.from_dict({"posterior": storable(made)}), mode="w")
        xr.testing.assert_identical(store.opened(Path(place), "posterior").load(), made)
        plain = xr.open_datatree(place, engine="zarr")["posterior"].to_dataset().load()
    xr.testing.assert_identical(true_names(plain), made)


def test_plain_names_are_stored_as_they_were(tmp_path):
    plain = ["weight_g", "a b", "größe", "a.b", "C(site)[T.2]", "1|subject", "__obs__", "%", "50%"]
    made = xr.Dataset(dict.fromkeys(plain, ("unit", Y)))
    store.put(tmp_path, made, mode="w")
    assert {path.name for path in tmp_path.iterdir()} == {*plain, "zarr.json"}
    assert xr.open_dataset(tmp_path, engine="zarr").load().identical(made)


def test_xarray_finds_the_others_and_their_true_names(tmp_path):
    store.put(tmp_path, xr.Dataset({"dose mg/kg": ("unit", Y)}), mode="w")
    (found,) = xr.open_dataset(tmp_path, engine="zarr").data_vars.values()
    assert found.name == "dose mg%2Fkg"
    assert found.attrs == {ATTRIBUTE: "dose mg/kg"}


def test_a_variable_that_was_renamed_since_keeps_its_new_name():
    exported = storable(xr.Dataset({"dose mg/kg": ("unit", Y)})).rename({"dose mg%2Fkg": "dose"})
    assert list(true_names(exported)) == ["dose"]


def test_names_that_are_no_text_are_refused(tmp_path):
    given = Observations({"y": Y, "a\ud800": Y})
    with pytest.raises(PcvError, match=r"the name 'a\\ud800' is not valid Unicode; rename it"):
        through_stores(*stacked(rows(given, "y"), "y", "data"), tmp_path / "data.zarr")


def test_two_columns_of_one_name_are_refused():
    with pytest.raises(PcvError, match="data: two columns are named '1'; rename one"):
        observations({"m": normal()}, {"y": Y, 1: Y, "1": Y + 1})


def normal(name="mu", outcome="y"):
    prior = dist.Normal(0.0, 1.0)
    return pcv.Model(
        lambda key: {name: prior.sample(key)},
        lambda params: prior.log_prob(params[name]),
        lambda params, data: dist.Normal(params[name], 1.0).log_prob(data[outcome]),
        dict,
        pcv.Outcome(outcome),
    )


MODELS = """
import jax.numpy as jnp
import numpyro.distributions as dist

import pcv


def stacked(data):
    x = jnp.stack([data[name] for name in sorted(data) if name.startswith("x_")], 1)
    assert x.shape[1] == 4, x.shape
    prior = dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1)
    return pcv.Model(
        lambda key: {"beta": prior.sample(key)},
        lambda params: prior.log_prob(params["beta"]),
        lambda params, data: dist.Normal(x @ params["beta"], 1.0).log_prob(data["y"]),
        dict,
        pcv.Outcome("y"),
    )
"""
X = ["x_age", "x_dose mg/kg", "x_größe/m", "x_.."]


@pytest.fixture
def job(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models.py").write_text(MODELS)
    columns = columns_of(X)
    rows = [["y", *columns], *zip(Y, *columns.values())]
    with (tmp_path / "table.csv").open("w", encoding="utf-8") as file:
        csv.writer(file).writerows(rows)
    experiment = {
        "data": {"file": "table.csv", "outcome": "y"},
        "folds": {"scheme": "leave_one_out"},
        "models": {"m": {"model": "models.py:stacked"}},
    }
    made = config.parse({"seed": 1, "experiments": {"e": experiment}})
    return Job(made, "e", tmp_path / "results", "m", monitor=SILENT)


def test_a_model_that_stacks_columns_has_all_four_parameters(job):
    check(job)
    stages.data(job)
    problem = problem_of(job, layout=xr.Dataset())
    assert {*X} < {*problem.arrays}
    assert problem.model.init(jax.random.key(0))["beta"].shape == (4,)


def test_check_reads_what_the_stages_will_read(job, monkeypatch):
    monkeypatch.setattr(store, "storable", lambda data: data)  # names as paths, as Zarr takes them
    with pytest.raises(PcvError, match=r"\) fails \(line \d+\): AssertionError: \(3, 2\)"):
        check(job)


@pytest.mark.parametrize("name", ["chain", "draw"])
def test_dimensions_of_draws_are_no_names_of_variables(name):
    with pytest.raises(PcvError, match=f"variable '{name}' has the name of a dimension of the"):
        check_shapes(normal(name), {"y": Y}, 3, "y", "m")
    with pytest.raises(PcvError, match=f"outcome '{name}' has the name .*; rename the column"):
        check_shapes(normal(outcome=name), {name: Y}, 3, name, "m")


def test_a_scoped_model_from_fit_to_score():
    def scoped(y):
        with handlers.scope(prefix="left"):
            mu = numpyro.sample("mu", dist.Normal(0, 1))
            with numpyro.plate("case", len(y)):
                numpyro.sample("y", dist.Normal(mu, 1.0), obs=y)

    y = np.random.default_rng(1).normal(size=20)
    model, quick = pcv.from_numpyro(scoped, {"y": y}), {"warmup": 200, "draws": 200}
    cv = pcv.loo(model, fit=quick, brute_force=False, progress=False, cores=2)
    others, sd = y.sum() - y, np.sqrt(1 + 1 / y.size)
    assert abs(cv.elpd - norm.logpdf(y, others / y.size, sd).sum()) < z_limit() * cv.mcse
    assert cv.p > 0
    posterior = cv.tree["posterior"].to_dataset()
    assert list(posterior) == ["left%2Fmu"]
    assert list(true_names(posterior)) == ["left/mu"]
    assert az.summary(cv.tree).index.tolist() == ["left%2Fmu"]
