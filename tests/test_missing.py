"""Missing outcomes are parameters, or left out of every training set; they are never scored."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
import pymc as pm
import pytest
from numpyro import handlers
from scipy.stats import norm

import pcv
from pcv.base.errors import PcvError
from pcv.models.model import numeric
from tests.bounds import z_limit
from tests.test_given import mean_of

N = 15
RNG = np.random.default_rng(9)
X, GROUP = RNG.normal(size=N), np.repeat(np.arange(5), 3)
Y = 1 + X + RNG.normal(size=N)
LOST = np.isin(np.arange(N), [1, 6, 7, 8, 12])  # all of group 2
NAN = np.where(LOST, np.nan, Y)
ANEW = np.array([0.1, -2.0, 3.0, 1.0, 0.4])
"""missing outcomes, where they are parameters"""
QUICK = {"chains": 4, "draws": 100, "progress": False}


def at(**more):
    """Values of the parameters, in double precision as the tests are."""
    return {name: jnp.array(x) for name, x in {"a": 0.7, "b": 1.2, **more}.items()}


def line(x, y, there=None, mask=True):
    a, b = numpyro.sample("a", dist.Normal(0, 2)), numpyro.sample("b", dist.Normal(0, 2))
    with numpyro.plate("case", len(y)), handlers.mask(mask=mask):
        numpyro.sample("y", dist.Normal(a + b * x, 1), obs=y, obs_mask=there)


def line_by_week(y):
    a, b = numpyro.sample("a", dist.Normal(0, 2)), numpyro.sample("b", dist.Normal(0, 2))
    with numpyro.plate("week", 5, dim=-2), numpyro.plate("day", 3):
        numpyro.sample("y", dist.Normal(a + b * X.reshape(5, 3), 1), obs=y)


def in_pymc(y):
    with pm.Model() as model:
        a, b = pm.Normal("a", 0, 2), pm.Normal("b", 0, 2)
        pm.Normal("y", a + b * X, 1, observed=y)
    return pcv.from_pymc(model, columns={"group": GROUP})


MODELS = {
    "NaN": lambda: pcv.from_numpyro(line, {"x": X, "y": NAN}, columns={"group": GROUP}),
    "enclosed": lambda: pcv.from_numpyro(lambda: line(X, NAN)),
    "masked array": lambda: pcv.from_numpyro(line, {"x": X, "y": np.ma.array(Y, mask=LOST)}),
    "mask": lambda: pcv.from_numpyro(line, {"x": X, "y": Y, "mask": ~LOST}),
    "obs_mask": lambda: pcv.from_numpyro(line, {"x": X, "y": Y, "there": ~LOST}),
    "PyMC": lambda: in_pymc(NAN),
    "PyMC, masked": lambda: in_pymc(np.ma.array(Y, mask=LOST)),
}


@pytest.mark.filterwarnings("ignore:Data in y contains missing values")
@pytest.mark.parametrize("name", MODELS)
def test_terms_are_those_of_the_rows_that_are_there(name):
    made = MODELS[name]()
    is_parameter = name.startswith(("obs_mask", "PyMC"))
    params = at(**{"y_unobserved": ANEW} if is_parameter else {})
    shapes = jax.tree.map(jnp.shape, made.init(jax.random.key(0)))
    assert shapes == jax.tree.map(jnp.shape, params)
    data, mean = numeric(made.data.columns), 0.7 + 1.2 * X
    np.testing.assert_array_equal(data["y"], Y[~LOST])
    of_prior = norm.logpdf([0.7, 1.2], 0, 2).sum()
    of_prior += norm.logpdf(ANEW, mean[LOST], 1).sum() if is_parameter else 0
    np.testing.assert_allclose(made.log_prior(params), of_prior, rtol=1e-9)
    for y in (Y[~LOST], Y[~LOST] + 1):
        terms = made.log_lik(params, {**data, "y": jnp.asarray(y)})
        np.testing.assert_allclose(terms, norm.logpdf(y, mean[~LOST], 1), rtol=1e-9)
    slopes = jax.grad(lambda p: made.log_lik(p, data).sum())(params)
    np.testing.assert_allclose(slopes["a"], (Y - mean)[~LOST].sum(), rtol=1e-9)
    assert made.predict(jax.random.key(1), params, data).shape == (10,)
    if made.cdf is not None:
        below = made.cdf(params, data, data["y"])
        np.testing.assert_allclose(below, norm.cdf(Y, mean, 1)[~LOST], rtol=1e-9)
        np.testing.assert_allclose(made.moments(params, data)[0], mean[~LOST], rtol=1e-9)
    assert str(made.data.missing) == "5 of 15 outcomes are missing and not scored"
    if is_parameter:
        shown = made.constrain(params)
        complete = np.where(LOST, np.nan, Y)
        complete[LOST] = ANEW
        np.testing.assert_allclose(shown["y"], complete)
        back = made.unconstrain(shown)
        np.testing.assert_allclose(back["y_unobserved"], ANEW)


def test_units_of_several_rows_have_those_that_are_there():
    made = pcv.from_numpyro(line_by_week, {"y": NAN.reshape(5, 3)}, units="week")
    terms = np.where(LOST, 0, norm.logpdf(Y, 0.7 + 1.2 * X, 1)).reshape(5, 3).sum(1)
    np.testing.assert_allclose(made.log_lik(at(), {}), terms[[0, 1, 3, 4]], rtol=1e-9)
    assert made.data.columns["week"].tolist() == GROUP[~LOST].tolist()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Data in y contains missing values")
def test_imputed_vectors():
    pairs = np.where(LOST[:12, None], np.nan, RNG.normal(size=(12, 2)))
    with pm.Model() as model:
        mean = pm.Normal("mean", 0, 1)
        pm.MvNormal("y", mean * np.ones(2), np.eye(2), observed=pairs)
    made = pcv.from_pymc(model)
    there = ~LOST[:12]
    params = {"mean": jnp.array(0.4), "y_unobserved": jnp.zeros((4, 2))}
    expected = norm.logpdf(pairs[there], 0.4, 1).sum(1)
    np.testing.assert_allclose(made.log_lik(params, {}), expected, rtol=1e-9)


def mean_with_replicates():
    def predict(key, params, data):
        return params["a"] + jax.random.normal(key, data["y"].shape)

    return mean_of(predict=predict)


def exact(y, folds):
    """Pointwise scores of `mean_of`."""
    scores = np.full(y.size, np.nan)
    for test in folds:
        train = np.delete(y, test)
        precision = 1 + train.size
        scores[test] = norm.logpdf(y[test], train.sum() / precision, np.sqrt(1 + 1 / precision))
    return scores


@pytest.fixture(scope="module")
def scored():
    """By group, folds of all units; no warm-up is needed for one normal mean."""
    folds = pcv.leave_one_group_out(GROUP, "group")
    with pytest.warns(UserWarning, match="folds whose outcomes are all missing, or count 0 times"):
        return pcv.cross_validate(
            mean_with_replicates(), folds, data={"y": NAN, "group": GROUP}, **QUICK
        )


def test_elpd_is_that_of_the_rows_that_are_there(scored):
    y, group = Y[~LOST], GROUP[~LOST]
    by_unit = exact(y, [np.flatnonzero(group == g) for g in np.unique(group)])
    d = scored.diagnostics
    tested = scored.diagnostics["unit_name"].values
    assert tested[tested != ""].tolist() == [str(row + 1) for row in np.flatnonzero(~LOST)]
    sums = np.bincount(np.searchsorted(np.unique(group), group), by_unit)
    z = (d["pointwise_elpd"].sum("slot").values - sums) / d["pointwise_mcse"].values
    assert np.abs(z).max() < z_limit(4, df=12)
    assert "5 of 15 outcomes are missing and not scored" in str(scored)
    assert len(scored.table()) == 10


def test_it_is_compared_with_a_model_of_these_rows(scored):
    left = {"y": Y[~LOST], "group": GROUP[~LOST]}
    other = pcv.cross_validate(
        mean_of(), pcv.leave_one_group_out(left["group"], "group"), data=left, **QUICK
    )
    assert abs(other.elpd - scored.elpd) < z_limit(df=12) * np.hypot(other.mcse, scored.mcse)
    assert "without" in str(pcv.compare({"missing": scored, "without": other}))


@pytest.mark.slow
def test_schemes_and_values_of_all_units(scored):
    """A column of the data; and a value for each of all units."""
    made, frame = mean_of(), pd.DataFrame({"y": NAN, "group": GROUP})
    by_column = {"scheme": "leave_one_group_out", "group": "group"}
    grouped = pcv.cross_validate(made, by_column, data=frame, **QUICK)
    assert grouped.elpd == pytest.approx(scored.elpd, abs=1e-9)
    jointly = pcv.loo(made, data=frame, group_by=GROUP, brute_force=False, progress=False)
    assert len(jointly.diagnostics["fold"]) == 4


def test_nothing_but_missing_outcomes():
    with pytest.raises(PcvError, match="all 15 values of the outcome 'y' are missing"):
        pcv.cross_validate(mean_of(), data={"y": np.full(N, np.nan)}, **QUICK)
