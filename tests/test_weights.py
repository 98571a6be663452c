"""Frequency weights: a row that stands for several alike is each of them."""

import bambi as bmb
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
import pymc as pm
import pytest
from scipy.stats import norm

import pcv
from pcv.base.errors import PcvError
from pcv.models.model import numeric
from pcv.pipeline.config import DataConfig
from pcv.pipeline.data.tables import make_data

N = 10
RNG = np.random.default_rng(3)
X = RNG.normal(size=N)
Y = 1 + X + RNG.normal(size=N)
W = np.array([1, 2, 0, 3, 1, 1, 2, 1, 1, 2])
ROW = np.repeat(np.arange(N), W)
MEAN = 0.7 + 1.2 * X
QUICK = {"chains": 4, "draws": 40, "joint": False, "predictions": 8, "progress": False}


def line(x, y, w=None):
    a, b = numpyro.sample("a", dist.Normal(0, 2)), numpyro.sample("b", dist.Normal(0, 2))
    with numpyro.plate("case", len(y)):
        numpyro.sample("y", dist.Normal(a + b * x, 1), obs=y)


def in_pymc():
    with pm.Model() as model:
        a, b = pm.Normal("a", 0, 2), pm.Normal("b", 0, 2)
        pm.Normal("y", a + b * X, 1, observed=Y)
    return pcv.from_pymc(model, columns={"w": W}, weights="w")


MODELS = {
    "NumPyro": lambda: pcv.from_numpyro(line, {"x": X, "y": Y, "w": W}, weights="w"),
    "enclosed": lambda: pcv.from_numpyro(lambda: line(X, Y), weights=W.astype(float)),
    "PyMC": in_pymc,
}


@pytest.mark.parametrize("name", MODELS)
def test_units_are_those_of_the_rows_repeated(name):
    made = MODELS[name]()
    params, data = {"a": jnp.array(0.7), "b": jnp.array(1.2)}, numeric(made.data.columns)
    np.testing.assert_array_equal(data["y"], Y[ROW])
    expected = norm.logpdf(Y, MEAN, 1)[ROW]
    np.testing.assert_allclose(made.log_lik(params, data), expected, rtol=1e-9)
    np.testing.assert_allclose(made.log_lik(params, {}), expected, rtol=1e-9)
    other = Y[ROW] + np.arange(ROW.size)  # each copy has an outcome of its own
    terms = made.log_lik(params, {**data, "y": jnp.asarray(other)})
    np.testing.assert_allclose(terms, norm.logpdf(other, MEAN[ROW], 1), rtol=1e-9)
    slope = jax.grad(lambda p: made.log_lik(p, data).sum())(params)["a"]
    np.testing.assert_allclose(slope, (Y - MEAN)[ROW].sum(), rtol=1e-9)
    drawn = np.asarray(made.predict(jax.random.key(0), params, data))
    assert np.unique(drawn).size == ROW.size  # copies are drawn apart
    if made.cdf is not None:
        below = made.cdf(params, data, jnp.asarray(other))
        np.testing.assert_allclose(below, norm.cdf(other, MEAN[ROW], 1), rtol=1e-9)
        np.testing.assert_allclose(made.moments(params, data)[0], MEAN[ROW], rtol=1e-9)
    assert made.notes[-1].endswith(": 10 rows count as 14 units (frequencies)")


@pytest.fixture(scope="module")
def weighted():
    return pcv.cross_validate(MODELS["NumPyro"](), pcv.kfold(ROW.size, 4), **QUICK)


def test_frequency_2_is_the_row_twice(weighted):
    twice = pcv.from_numpyro(line, {"x": X[ROW], "y": Y[ROW]})
    other = pcv.cross_validate(twice, pcv.kfold(ROW.size, 4), **QUICK)
    for name in ("elpd", "se", "mcse"):
        np.testing.assert_allclose(getattr(weighted, name), getattr(other, name), rtol=1e-9)
    pd.testing.assert_frame_equal(weighted.table(), other.table())
    assert "twice" in str(pcv.compare({"weighted": weighted, "twice": other}))
    assert "10 rows count as 14 units" in str(weighted)


@pytest.mark.slow
def test_the_row_once_is_another_answer(weighted):
    once = pcv.from_numpyro(line, {"x": X, "y": Y})
    unweighted = pcv.cross_validate(once, pcv.kfold(N, 4), **QUICK)
    assert abs(unweighted.elpd - weighted.elpd) > 1
    with pytest.raises(PcvError, match="was scored on other data than"):
        pcv.compare({"weighted": weighted, "once": unweighted})


@pytest.mark.slow
def test_folds_of_rows_test_all_copies(weighted):
    made, folds = MODELS["enclosed"](), pcv.leave_one_out(N)
    with pytest.warns(UserWarning, match="or count 0 times, are left out: '2'"):
        cv = pcv.cross_validate(made, folds, **QUICK | {"joint": True})
    assert len(cv.folds) == N - 1  # nothing counts of one row
    sizes = (cv.tree["folds"]["test"].values >= 0).sum(1)
    assert sizes.tolist() == W[W > 0].tolist()


def test_an_argument_that_is_no_column_is_not_repeated():
    """As long as there are rows, such as knots."""

    def spline(x, y, knots):
        a, b = numpyro.sample("a", dist.Normal(0, 2)), numpyro.sample("b", dist.Normal(0, 2))
        bend = jnp.abs(x[:, None] - knots).mean(1)
        numpyro.sample("y", dist.Normal(a + b * bend, 1), obs=y)

    knots = np.linspace(-2, 2, N)
    made = pcv.from_numpyro(spline, {"x": X, "y": Y, "knots": knots}, weights=W)
    params = {"a": jnp.array(0.7), "b": jnp.array(1.2)}
    mean = 0.7 + 1.2 * np.abs(X[:, None] - knots).mean(1)
    expected = norm.logpdf(Y, mean, 1)[ROW]
    np.testing.assert_allclose(made.log_lik(params, {}), expected, rtol=1e-9)


def test_missing_outcomes_count_not_at_all():
    y = np.where(np.arange(N) == 3, np.nan, Y)
    made = pcv.from_numpyro(line, {"x": X, "y": y}, weights=W)
    left = np.where(np.arange(N) == 3, 0, W)
    assert made.data.times.tolist() == left.tolist()
    params = {"a": jnp.array(0.7), "b": jnp.array(1.2)}
    expected = np.repeat(norm.logpdf(Y, MEAN, 1), left)
    np.testing.assert_allclose(made.log_lik(params, {}), expected, rtol=1e-9)
    assert str(made.data.missing) == "1 of 10 outcomes is missing and not scored"


@pytest.mark.parametrize(
    ("weights", "said"),
    [
        ("v", "no column 'v' (weights)"),
        (W / 2, "weights: 0.5 of 'row 1' is no frequency, a whole number from 0"),
        (-W, "weights: -1 of 'row 1' is no frequency"),
        (0 * W, "weights: all frequencies are 0"),
        (W[:3], "weights has shape (3,); give one for each row, 10"),
    ],
)
def test_other_weights_are_refused(weights, said):
    with pytest.raises(PcvError) as error:
        pcv.from_numpyro(line, {"x": X, "y": Y}, weights=weights)
    assert said in str(error.value)


def test_units_of_several_rows_are_refused():
    def weeks(y):
        mu = numpyro.sample("mu", dist.Normal(0, 1))
        with numpyro.plate("week", 5, dim=-2), numpyro.plate("day", 2):
            numpyro.sample("y", dist.Normal(mu, 1), obs=y)

    with pytest.raises(PcvError, match="weighs rows, but units have several"):
        pcv.from_numpyro(weeks, {"y": Y.reshape(5, 2)}, units="week", weights=W)


def test_a_column_of_a_config():
    table = pd.DataFrame({"y": Y, "x": X, "w": W, "day": np.arange(N)})
    config = DataConfig(file="data.csv", outcome="y", weights="w")
    data = make_data(table, {}, config, "data.csv")
    np.testing.assert_array_equal(data["y"], Y[ROW])
    assert data["unit"].values[:4].tolist() == ["1", "2, copy 1", "2, copy 2", "4, copy 1"]
    assert data.attrs["counts"] == ["'w': 10 rows count as 14 units (frequencies)"]
    in_order = config.model_copy(update={"order": ["day"]})
    assert make_data(table, {}, in_order, "data.csv")["unit"].values[1] == "day 1, copy 1"
    with pytest.raises(PcvError, match=r"data.weights: column 'x': .* of '1' is no frequency"):
        make_data(table, {}, config.model_copy(update={"weights": "x"}), "data.csv")
    with pytest.raises(PcvError, match="weighs rows, but units have several"):
        make_data(table, {}, config.model_copy(update={"units": ["day"]}), "data.csv")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pandas.errors.Pandas4Warning")
def test_a_column_of_bambi():
    frame = pd.DataFrame({"y": Y, "x": X, "w": W})
    made = pcv.from_bambi(bmb.Model("y ~ x", frame), weights="w")
    assert made.log_lik(made.init(jax.random.key(0)), {}).shape == ROW.shape
    assert made.data.columns["w"].tolist() == W[ROW].tolist()
