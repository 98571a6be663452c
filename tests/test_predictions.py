"""Out-of-fold predictions against closed forms of the predictive of every unit."""

from typing import NamedTuple

import arviz as az
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
import pytest
import xarray as xr
from arviz_stats.base import array_stats
from scipy import stats

import pcv
from pcv.analysis import kept
from pcv.analysis.predictions import pit_of_replicates
from pcv.base import devices
from pcv.core.cross_validate import cross_validate
from pcv.core.problem import Problem, pose
from pcv.core.settings import Settings
from pcv.folds.base import Folds, as_dataset
from pcv.folds.exchangeable import kfold, leave_one_group_out, leave_one_out
from pcv.models.frontends.numpyro import from_numpyro
from pcv.models.model import Model, Outcome, support
from pcv.models.observations import observations, rows
from tests.bounds import RATE, z_limit
from tests.problems import GROUP_OF_UNIT, hierarchy
from tests.slow import repeated

LONG = {"cv": {"chains": 16, "draws": 400}, "predictions": 6400}
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


class Predictive(NamedTuple):
    """Out-of-fold predictive of every unit, in the order of the data."""

    y_rep: np.ndarray
    """(chain, draw, unit)"""
    y: np.ndarray
    pit: np.ndarray
    pit_mcse: np.ndarray


def predictive_of(model, data, folds, predictive="auto", **more):
    settings = Settings.model_validate({"folds": {"scheme": "leave_one_out"}, **LONG, **more})
    problem = pose("model", model, data, folds, predictive)
    found = cross_validate({"model": problem}, settings)["model"].predictions
    return Predictive(*(found[name].values for name in Predictive._fields))


def errors(found, exact):
    """Errors of mean, sd, quantiles and PIT of each unit, in units of their MCSE.

    Args:
        found: predictive, from draws.
        exact: frozen distribution of SciPy, over units.
    """
    draws = np.moveaxis(found.y_rep, -1, 0).astype(float)
    wanted = {"mean": (exact.mean(), {}), "sd": (exact.std(), {})}
    wanted |= {f"{p}": (exact.ppf(p), {"prob": p}) for p in QUANTILES}
    z = []
    for name, (value, more) in wanted.items():
        method = name if name in ("mean", "sd") else "quantile"
        mcse = [array_stats.mcse(x, method=method, **more) for x in draws]
        flat = draws.reshape(len(draws), -1)
        own = {"mean": flat.mean(1), "sd": flat.std(1, ddof=1)}
        estimate = own.get(name, np.quantile(flat, float(name) if name[0] == "0" else 0.5, axis=1))
        z.append((estimate - value) / mcse)
    z.append((found.pit - exact.cdf(found.y)) / found.pit_mcse)
    return np.array(z)


X = np.column_stack([np.ones(16), np.linspace(-1, 1, 16)])
SHAPE, RATE_OF, WIDE = 3.0, 2.0, 10.0


def linear_data():
    """One unit far from the others, whose predictive changes a lot without it."""
    rng = np.random.default_rng(4)
    y = X @ [1.0, 2.0] + rng.normal(0, 0.7, 16)
    y[-1] += 3
    return {"y": y, "x": X[:, 1]}


def linear_regression():
    """σ² ~ InvGamma(3, 2), β ~ N(0, 10 σ² I), y ~ N(X β, σ²): predictives are Student-t."""
    space = support({"sigma2": dist.constraints.positive})

    def init(key):
        of_sigma, of_beta = jax.random.split(key)
        sigma2 = dist.InverseGamma(SHAPE, RATE_OF).sample(of_sigma)
        beta = jnp.sqrt(WIDE * sigma2) * jax.random.normal(of_beta, (2,))
        return space.unconstrain({"sigma2": sigma2, "beta": beta})

    def log_prior(params):
        theta = space.constrain(params)
        of_sigma = dist.InverseGamma(SHAPE, RATE_OF).log_prob(theta["sigma2"])
        of_beta = dist.Normal(0, jnp.sqrt(WIDE * theta["sigma2"])).log_prob(theta["beta"]).sum()
        return of_sigma + of_beta + space.log_jacobian(params)

    def outcome(params):
        theta = space.constrain(params)
        return dist.Normal(X @ theta["beta"], jnp.sqrt(theta["sigma2"]))

    return Model(
        init,
        log_prior,
        lambda params, data: outcome(params).log_prob(data["y"]),
        space.constrain,
        Outcome("y", discrete=False),
        predict=lambda key, params, data: outcome(params).sample(key),
        cdf=lambda params, data, y: outcome(params).cdf(y),
    )


def student_t(data, folds):
    """The exact predictive of every unit, in the order of the data."""
    scale, loc, df = np.empty(16), np.empty(16), np.empty(16)
    for test in folds.test:
        test = test[test >= 0]
        train = np.setdiff1d(np.arange(16), test)
        x, y = X[train], data["y"][train]
        precision = np.eye(2) / WIDE + x.T @ x
        mean = np.linalg.solve(precision, x.T @ y)
        shape = SHAPE + len(train) / 2
        rate = RATE_OF + (y @ y - mean @ precision @ mean) / 2
        spread = 1 + np.einsum("ij,ij->i", X[test], np.linalg.solve(precision, X[test].T).T)
        loc[test], scale[test], df[test] = X[test] @ mean, np.sqrt(rate / shape * spread), 2 * shape
    return stats.t(df, loc, scale)


@pytest.mark.parametrize("folds", [leave_one_out(16), kfold(16, 10, seed=1)], ids=["loo", "10"])
def test_linear_regression(folds):
    data = linear_data()
    z = errors(predictive_of(linear_regression(), data, folds), student_t(data, folds))
    assert np.abs(z).max() < z_limit(z.size)


def test_replicates_from_the_full_data_fail():
    """A broken twin, whose chains hold nothing out."""
    data, folds = linear_data(), leave_one_out(16)
    nothing = Folds(folds.id, folds.test, np.zeros_like(folds.held_out))
    with pytest.warns(UserWarning, match="its score is too good"):
        found = predictive_of(linear_regression(), data, nothing, estimator="own")
    assert np.abs(errors(found, student_t(data, folds))[:, -1]).max() > 2 * z_limit(8 * 16)


@pytest.mark.parametrize("effects", repeated(["found", "analytically"]))
def test_a_left_out_group_has_new_effects(effects):
    """Its predictive is that of a new group, far wider than that given its own mean."""
    problem = hierarchy("marginal")
    model = problem.model._replace(
        predict=lambda key, params, data: dist.Normal(params["theta"][data["group"]], 1.0).sample(
            key
        ),
        cdf=lambda params, data, y: dist.Normal(params["theta"][data["group"]], 1.0).cdf(y),
    )
    if effects == "found":
        model = model._replace(marginal=None, marginal_moments=None, marginal_predict=None)
    folds = leave_one_group_out(GROUP_OF_UNIT, "group")
    found = predictive_of(model, problem.data, folds)
    moments = [
        problem.form.predictive(GROUP_OF_UNIT[i] != GROUP_OF_UNIT, np.array([i])) for i in range(14)
    ]
    mean, variance = (np.array([float(np.squeeze(x[j])) for x in moments]) for j in (0, 1))
    z = errors(found, stats.norm(mean, np.sqrt(variance)))
    assert np.abs(z).max() < z_limit(z.size)


def counts(group, y=None):
    """λ_g ~ Gamma(3, 1), y_i ~ Poisson(λ_g): a new group's counts are negative binomial."""
    with numpyro.plate("groups", 6):
        rate = numpyro.sample("rate", dist.Gamma(3.0, 1.0))
    with numpyro.plate("units", len(group)):
        numpyro.sample("y", dist.Poisson(rate[group]), obs=y)


def data_of(model):
    """The columns of a front-end's model."""
    columns = rows(observations({"model": model}, None), model.outcome.name)
    return {str(name): x.values for name, x in columns.items()}


@pytest.fixture(scope="module")
@devices.precision("float64")
def poisson():
    """Predictive of groups that are left out."""
    group = np.repeat(np.arange(6), 4)
    rng = np.random.default_rng(5)
    model = from_numpyro(counts, {"group": group, "y": rng.poisson(rng.gamma(3, 1, 6)[group])})
    folds = leave_one_group_out(group, "group")
    short = {"cv": {"chains": 8, "draws": 100}, "predictions": 800}
    return predictive_of(model, data_of(model), folds, **short)


@pytest.mark.slow
class TestPoissonGroups:
    exact = stats.nbinom(3, 1 / 2)

    def test_replicates(self, poisson):
        draws = poisson.y_rep.reshape(-1, 24)
        for value in range(9):
            share, p = (draws <= value).mean(0), self.exact.cdf(value)
            sd = np.sqrt(p * (1 - p) / (len(draws) / 2))  # effects are independent
            assert np.abs((share - p) / sd).max() < z_limit(9 * 24)

    def test_pits_are_random_between_the_steps(self, poisson):
        low, high = self.exact.cdf(poisson.y - 1), self.exact.cdf(poisson.y)
        error = z_limit(48, df=15) * poisson.pit_mcse
        assert (poisson.pit > low - error).all()
        assert (poisson.pit < high + error).all()
        share = (poisson.pit - low) / (high - low)
        assert stats.kstest(share, "uniform").pvalue > RATE
        assert np.unique(share.round(3)).size > 20


def outcome_of(kind, x, y=None):
    """Outcomes of several kinds that depend on one covariate."""
    slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
    eta = slope * x
    kinds = {
        "binary": dist.Bernoulli(logits=eta),
        "ordinal": dist.OrderedLogistic(eta, jnp.array([-1.0, 1.0])),
        "categorical": dist.Categorical(logits=jnp.stack([0 * eta, eta, -eta], -1)),
        "vector": dist.Normal(eta[:, None] + jnp.zeros(2), 1.0).to_event(1),
    }
    with numpyro.plate("units", len(x)):
        numpyro.sample("y", kinds[kind], obs=y)


@pytest.mark.parametrize("kind", repeated(["ordinal", "vector", "binary", "categorical"]))
def test_outcomes_of_every_kind(kind):
    """Replicates have the outcome's values, and frequencies that a calibrated model gives."""
    rng = np.random.default_rng(7)
    x = rng.normal(size=40)
    y = {
        "binary": rng.random(40) < 1 / (1 + np.exp(-x)),
        "ordinal": np.digitize(x + rng.logistic(size=40), [-1.0, 1.0]),
        "categorical": rng.integers(0, 3, 40),
        "vector": x[:, None] + rng.normal(size=(40, 2)),
    }[kind]
    model = from_numpyro(outcome_of, {"kind": kind, "x": x, "y": y if kind == "vector" else y * 1})
    cv = pcv.cross_validate(
        model, kfold(40, 4, seed=1), chains=4, draws=50, predictions=200, progress=False
    )
    tree, number = cv.predictions(), y.size
    assert dict(tree["posterior_predictive"].sizes) == {"chain": 4, "draw": 50, "unit": number}
    np.testing.assert_array_equal(tree["observed_data"]["y"], np.ravel(y))
    draws = tree["posterior_predictive"]["y"].values
    if kind != "vector":
        assert set(np.unique(draws)) <= set(np.unique(y).tolist())
    for value in np.unique(y)[:-1][:3]:
        expected = (draws <= value).mean((0, 1))
        z = ((np.ravel(y) <= value) - expected).sum() / np.sqrt((expected * (1 - expected)).sum())
        assert abs(z) < z_limit(12)
    assert len(cv.table()) == number
    assert stats.kstest(cv.table()["pit"], "uniform").pvalue > RATE
    plot = "plot_ppc_pava" if kind == "binary" else "plot_ppc_pit"
    getattr(az, plot)(tree, backend="none")


def test_pits_from_replicates_agree_with_those_of_the_cdf():
    data, folds = linear_data(), leave_one_out(16)
    model = linear_regression()
    exact = student_t(data, folds).cdf(data["y"])
    found = predictive_of(model._replace(cdf=None), data, folds)
    assert np.abs((found.pit - exact) / np.sqrt(exact * (1 - exact) / 3200)).max() < z_limit(16)


def test_pits_of_outcomes_at_a_bound():
    """Replicates in single precision equal a bound at which outcomes are censored."""
    rng, bound = np.random.default_rng(8), 0.3
    y_rep = np.minimum(rng.normal(size=(200, 4, 100)), bound).astype(np.float32)
    pit, _ = pit_of_replicates(y_rep, np.full(200, bound), rng.random(200))
    below = stats.norm.cdf(bound)
    assert stats.kstest((pit - below) / (1 - below), "uniform").pvalue > RATE


def curves(curve, y=None):
    """Curves of three correlated values, one unit each."""
    with numpyro.plate("curves", curve):
        level = numpyro.sample("level", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
        numpyro.sample("y", dist.Normal(level, 1.0).to_event(1), obs=y)


class TestSeveralRows:
    """Units with several values of the outcome."""

    def test_replicates_are_in_the_order_of_the_rows(self):
        y = np.arange(12.0).reshape(4, 3) - np.array([20.0, 0.0, -20.0])
        space = support({})
        model = Model(
            init=lambda key: {"level": jax.random.normal(key, (12,))},
            log_prior=lambda params: dist.Normal(0, 1).log_prob(params["level"]).sum(),
            log_lik=lambda params, data: (
                dist.Normal(params["level"], 1.0).log_prob(data["y"]).reshape(4, 3).sum(1)
            ),
            constrain=space.constrain,
            outcome=Outcome("y", discrete=False),
            predict=lambda key, params, data: data["y"] + 1e-3 * jax.random.normal(key, (12,)),
        )
        found = predicted_of_units(model, y)
        np.testing.assert_array_equal(found["row"], np.arange(12))
        assert found["unit"].values.tolist() == [str(i) for i in range(1, 5) for _ in range(3)]
        np.testing.assert_allclose(found["y_rep"].mean(("chain", "draw")), y.ravel(), atol=1e-3)
        assert ((found["pit"] > 0) & (found["pit"] < 1)).all()

    def test_a_multivariate_site(self):
        rng = np.random.default_rng(6)
        y = rng.normal(0, 1.4, (4, 3))
        model = from_numpyro(curves, {"curve": 4, "y": y})
        assert model.predict is not None
        replicate = model.predict(jax.random.key(0), model.init(jax.random.key(1)), {})
        assert replicate.shape == (12,)


def predicted_of_units(model, y):
    units = xr.Dataset(
        {"y": ("row", y.ravel()), "unit_of_row": ("row", np.repeat(np.arange(len(y)), y.shape[1]))},
        {"unit": [str(i + 1) for i in range(len(y))]},
    )
    layout = as_dataset(leave_one_out(len(y)))
    problem = Problem("model", lambda data: model, units, "y", layout)
    settings = Settings.model_validate(
        {"folds": {"scheme": "leave_one_out"}, "cv": {"chains": 4, "draws": 100}}
    )
    return cross_validate({"model": problem}, settings)["model"].predictions


def test_a_model_that_cannot_predict_keeps_its_scores():
    data, folds = linear_data(), leave_one_out(16)
    model = linear_regression()
    settings = Settings.model_validate({"folds": {"scheme": "leave_one_out"}})
    both = [
        cross_validate({"m": pose("m", x, data, folds)}, settings)["m"]
        for x in (model, model._replace(predict=None, cdf=None))
    ]
    assert both[0].diagnostics["joint_elpd"].equals(both[1].diagnostics["joint_elpd"])
    assert "y_rep" not in both[1].predictions
    assert "position" in both[1].predictions
    for call in (pcv.cross_validate, pcv.loo):
        more = {"folds": "loo", "chains": 4, "draws": 50} if call is pcv.cross_validate else {}
        cv = call(model._replace(predict=None), data=data, progress=False, **more)
        assert "No predictions: the model cannot draw its outcome" in repr(cv)
        with pytest.raises(pcv.PcvError, match=r"draw its outcome; give it one, pcv.Model\(..., p"):
            cv.table()


@pytest.fixture(scope="module")
def cv():
    data = linear_data()
    short = {"chains": 4, "draws": 100, "progress": False}
    return pcv.cross_validate(linear_regression(), kfold(16, 4, seed=1), data=data, **short)


class TestResult:
    """Predictions of a cross-validation from Python."""

    def test_groups_are_those_of_arviz(self, cv):
        tree, y = cv.predictions(), linear_data()["y"]
        assert dict(tree["posterior_predictive"].sizes) == {"chain": 4, "draw": 100, "unit": 16}
        np.testing.assert_array_equal(tree["observed_data"]["y"], y)
        np.testing.assert_array_equal(tree["constant_data"]["x"], X[:, 1])
        fold = tree["observed_data"]["fold"].values
        for k, test in enumerate(cv.tree["folds"]["test"].values):
            assert (fold[test[test >= 0]] == cv.tree["folds"]["fold"].values[k]).all()
        rmse = az.metrics(tree, kind="rmse", round_to="none").mean
        assert rmse == pytest.approx(np.sqrt(((cv.table()["mean"] - y) ** 2).mean()), rel=1e-6)
        for plot in (az.plot_ppc_pit, az.plot_ppc_interval, az.plot_ppc_dist, az.plot_ppc_tstat):
            plot(tree, backend="none")

    def test_table(self, cv):
        table = cv.table()
        columns = ["fold", "y", "mean", "sd", "5%", "25%", "50%", "75%", "95%", "pit"]
        assert list(table) == [*columns, "elpd", "mcse"]
        np.testing.assert_array_equal(table["elpd"], cv.pointwise)
        assert (table["5%"] < table["50%"]).all()

    def test_figures(self, cv):
        other = cv.renamed("other")
        figures = {
            "x": (cv.plot_predictions("x"), cv.plot_units(other, x="x")),
            "median of the predictive": (cv.plot_predictions(),),
            "PIT": (cv.plot_pit(),),
            "level of the central interval": (cv.plot_calibration(),),
        }
        for label, drawn in figures.items():
            assert [figure.axes[-1].get_xlabel() for figure in drawn] == [label] * len(drawn)
        forest = cv.plot_fold_summary(["beta"])
        titles = [ax.get_title(loc="left").split(":")[0] for ax in forest.axes]
        assert titles == ["beta[0]", "beta[1]"]

    def test_fewer_replicates_than_asked_for(self, monkeypatch):
        """Where those of all units would take too much memory."""
        monkeypatch.setattr(kept, "MOST_BYTES", 4 * 16 * 100)
        more = {"chains": 4, "draws": 100, "progress": False}
        few = pcv.cross_validate(linear_regression(), kfold(16, 4), data=linear_data(), **more)
        assert few.predictions()["posterior_predictive"]["y"].size == 16 * 100
        said = "100 replicates of each unit are kept: 400 would take over 256 MiB."
        assert said in " ".join(repr(few).split())

    def test_saved(self, cv, tmp_path):
        cv.save(tmp_path / "cv.zarr")
        again = pcv.load(tmp_path / "cv.zarr")
        pd.testing.assert_frame_equal(again.table(), cv.table())
        assert again.predictions().identical(cv.predictions())
        with pytest.raises(pcv.PcvError, match="call fold_summary before it is saved"):
            again.fold_summary("beta")

    def test_fold_summary_is_of_each_folds_posterior(self, cv):
        summary, data = cv.fold_summary(["beta"]), linear_data()
        assert list(summary.index.get_level_values("parameter").unique()) == ["beta[0]", "beta[1]"]
        for k, test in enumerate(cv.tree["folds"]["test"].values):
            train = np.setdiff1d(np.arange(16), test)
            precision = np.eye(2) / WIDE + X[train].T @ X[train]
            mean = np.linalg.solve(precision, X[train].T @ data["y"][train])
            for j in range(2):
                row = summary.loc[f"beta[{j}]", cv.tree["folds"]["fold"].values[k]]
                assert abs(row["mean"] - mean[j]) < z_limit(8) * row["sd"] / np.sqrt(200)
        assert summary.loc["beta[1]", "shift"].abs().is_monotonic_decreasing

    def test_of_what_is_not_there(self, cv):
        with pytest.raises(pcv.PcvError, match="no variable 'bta'; did you mean 'beta'"):
            cv.fold_summary("bta")
        none = pcv.cross_validate(
            linear_regression(),
            kfold(16, 4, seed=1),
            data=linear_data(),
            predictions=0,
            chains=4,
            draws=100,
            progress=False,
        )
        np.testing.assert_array_equal(none.pointwise, cv.pointwise)
        with pytest.raises(pcv.PcvError, match="cross-validate with predictions=400"):
            none.table()
        with pytest.raises(pcv.PcvError, match="no draws of parameters were kept"):
            none.fold_summary("beta")


def levels(group, y):
    with numpyro.plate("groups", 4):
        level = numpyro.sample("level", dist.Normal(0, 1))
    with numpyro.plate("units", len(group)):
        numpyro.sample("y", dist.Normal(level[group], 1), obs=y)


def test_a_left_out_level_has_its_prior_in_the_summary():
    """Outside a context of double precision, as a user calls it."""
    group = np.repeat(np.arange(4), 3)
    model = from_numpyro(levels, {"group": group, "y": 3.0 + group})
    folds = leave_one_group_out(group, "group")
    cv = pcv.cross_validate(model, folds, chains=4, draws=100, progress=False)
    summary = cv.fold_summary("level")
    own = np.array([summary.loc[f"level[{g}]", f"group {g}"][["mean", "sd"]] for g in range(4)])
    assert np.abs(own[:, 0]).max() < z_limit(4) / np.sqrt(400)
    assert np.abs(own[:, 1] - 1).max() < z_limit(4) / np.sqrt(800)
    assert (summary.loc["level[3]", "group 0"]["mean"]) > 2


@pytest.mark.parametrize("capacity", [1, 3, 50])
@pytest.mark.parametrize("length", [10, 100, 333])
@pytest.mark.parametrize("at_least", [0, 1])
def test_kept_draws_do_not_depend_on_blocks_or_on_the_length(capacity, length, at_least):
    draws = length * at_least
    keeps = kept.keeps_of(capacity, 1, draws, slots=(1, 1, 1), num_params=1)
    assert keeps[:2] == (capacity, capacity)
    distance = keeps.stride
    whole = kept.kept_draws(0, length, capacity, distance)
    blocks = [kept.kept_draws(first, 7, capacity, distance) for first in range(0, 1000, 7)]
    some = np.concatenate(blocks)
    np.testing.assert_array_equal(some[some < length], whole)
    assert max(map(len, blocks)) <= kept.most_kept(7, capacity, distance)
    even = whole[kept.even_draws(whole, length, capacity)]
    assert len(even) == min(capacity, length)
    apart = np.diff(even)
    assert not len(apart) or apart.max() <= 2 * apart.min()
    np.testing.assert_array_equal(some[kept.even_draws(some, length, capacity)], even)
