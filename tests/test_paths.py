"""Paths of simulated outcomes against closed forms of autoregressions, 1 to 6 steps ahead."""

from functools import cache, partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from arviz_stats.base import array_stats
from scipy import stats
from scipy.special import logsumexp

import pcv
from pcv.analysis.results.steps import by_step
from pcv.base import devices
from pcv.core.check import simulates
from pcv.core.cross_validate import Result, cross_validate
from pcv.core.problem import pose
from pcv.core.settings import Settings
from pcv.folds.base import Folds, train_mask
from pcv.folds.exchangeable import leave_one_group_out
from pcv.folds.time import block, hv_block, leave_future_out
from pcv.models.checks.paths import check_paths
from pcv.models.effects.marginal import Scored
from pcv.models.model import Fold, Model, Observations, Outcome, target
from pcv.models.paths import along_paths
from pcv.models.scores import named
from pcv.sampling.folds import moving
from tests.bounds import z_limit
from tests.problems import LinearGaussian
from tests.problems import autoregression as with_lag_columns
from tests.slow import repeated

STEPS, NOISE, PRIOR_SD = 6, 0.5, 0.7
RHO = np.array([0.9, -0.5])
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


def series(num=30):
    rng = np.random.default_rng(11)
    y = np.zeros(num)
    for t in range(num):
        y[t] = RHO @ y[t - 2 : t][::-1] + rng.normal(0, NOISE) if t > 1 else rng.normal()
    return y


def before(y, lag, of=1):
    """The outcome `lag` units before in each of so many series that take turns, 0 at the start."""
    return jnp.concatenate([jnp.zeros(lag * of), jnp.asarray(y, float)[: -lag * of]])


def autoregression(of=1):
    """AR(2) of one or several series, ρ ~ N(0, 0.7), whose lags are those of the outcome."""
    prior = dist.Normal(0.0, PRIOR_SD)

    def outcome(params, data):
        lags = jnp.stack([before(data["y"], lag, of) for lag in (1, 2)], axis=1)
        return dist.Normal(lags @ params["rho"], NOISE)

    return Model(
        init=lambda key: {"rho": prior.sample(key, (2,))},
        log_prior=lambda params: prior.log_prob(params["rho"]).sum(),
        log_lik=lambda params, data: outcome(params, data).log_prob(data["y"]),
        constrain=lambda params: params,
        outcome=Outcome("y", discrete=False),
        predict=lambda key, params, data: outcome(params, data).sample(key),
        cdf=lambda params, data, y: outcome(params, data).cdf(y),
        moments=lambda params, data: (outcome(params, data).mean, jnp.full(len(data["y"]), 0.25)),
    )


def forecasts(rho, past, steps=STEPS):
    """Mean and sd of y 1 to 6 steps ahead of the past, for many ρ (…, 2); each (…, step).

    With ψ_0 = 1 and ψ_j = ρ_1 ψ_{j-1} + ρ_2 ψ_{j-2} the variance is σ² Σ ψ².
    """
    mean = [np.full(rho.shape[:-1], x) for x in past[-2:]]
    psi = [np.zeros(rho.shape[:-1]), np.ones(rho.shape[:-1])]
    for x in (mean, psi):
        for _ in range(steps):
            x.append(rho[..., 0] * x[-1] + rho[..., 1] * x[-2])
    sd = NOISE * np.sqrt(np.cumsum(np.square(psi[1:-1]), axis=0))
    return np.stack(mean[2:], -1), np.moveaxis(sd, 0, -1)


class Mixture(NamedTuple):
    """Normal distributions (node, step) mixed with weights (node): forecasts when ρ is unknown."""

    weight: np.ndarray
    loc: np.ndarray
    scale: np.ndarray

    def mean(self):
        return self.weight @ self.loc

    def sd(self):
        return np.sqrt(self.weight @ (self.scale**2 + (self.loc - self.mean()) ** 2))

    def cdf(self, y):
        return self.weight @ stats.norm.cdf(y, self.loc, self.scale)

    def logpdf(self, y):
        each = stats.norm.logpdf(y, self.loc, self.scale)
        return logsumexp(each, b=self.weight[:, None], axis=0)

    def quantile(self, p):
        low, high = self.loc.min(0) - 9, self.loc.max(0) + 9
        for _ in range(60):
            middle = (low + high) / 2
            below = self.cdf(middle) < p
            low, high = np.where(below, middle, low), np.where(below, high, middle)
        return middle

    def crps(self, y):
        """Negative; the closed form of a normal mixture (Grimit et al. 2006)."""

        def distance(mean, sd):
            return 2 * sd * stats.norm.pdf(mean / sd) + mean * (2 * stats.norm.cdf(mean / sd) - 1)

        apart = self.loc[:, None] - self.loc
        between = distance(apart, np.hypot(self.scale[:, None], self.scale))
        within = np.einsum("i,j,ijs->s", self.weight, self.weight, between)
        return within / 2 - self.weight @ distance(y - self.loc, self.scale)


def exact_forecast(y, first):
    """The predictive 1 to 6 steps after the first units: ρ is normal, and nodes cover it."""
    design = np.column_stack([before(y, 1), before(y, 2)])
    form = LinearGaussian(y, design, NOISE, np.zeros(2), PRIOR_SD**2 * np.eye(2))
    mean, cov = form.given(np.arange(len(y)) < first)
    x, w = np.polynomial.hermite_e.hermegauss(16)
    nodes = np.stack(np.meshgrid(x, x), axis=-1).reshape(-1, 2)
    weight = np.outer(w, w).ravel() / w.sum() ** 2
    return Mixture(weight, *forecasts(mean + nodes @ np.linalg.cholesky(cov).T, y[:first]))


FOLDS = leave_future_out(30, 12, horizon=STEPS, step=STEPS)
TRUTH = [exact_forecast(series(), first) for first in (12, 18, 24)]
EXACT = [
    {"mean": x.mean(), "sd": x.sd(), **{f"quantile {p}": x.quantile(p) for p in QUANTILES}}
    for x in TRUTH
]
CRPS = [x.crps(series()[first : first + STEPS]) for x, first in zip(TRUTH, (12, 18, 24))]


def run(seed, predict, model):
    settings = Settings.model_validate(
        {
            "folds": {"scheme": "leave_future_out", "min_observations": 12, "forecast_horizon": 6},
            "cv": {"chains": 16, "draws": 400},
            "predictions": 6400,
            "predict": predict,
        }
    )
    scores = named(["crps", "rmse"])
    problem = pose("ar", model, {"y": series()}, FOLDS, "plain", scores, seed, predict)
    return cross_validate({"ar": problem}, settings)["ar"]


@pytest.fixture(scope="module")
def results():
    model = autoregression()
    return cache(lambda seed, predict: run(seed, predict, model))


def errors(found: Result, log_score="log_path_pointwise"):
    """Errors by statistic, step and fold, in units of their MCSE."""
    y, d, z = series(), found.diagnostics, {}
    y_rep = np.moveaxis(found.predictions["y_rep"].values, -1, 0).astype(float)
    draws = y_rep.reshape(len(FOLDS.id), STEPS, *y_rep.shape[1:])
    pit, pit_mcse = (found.predictions[x].values.reshape(-1, STEPS) for x in ("pit", "pit_mcse"))
    log_mcse = "pointwise_own_mcse" if "elpd" in log_score else f"{log_score}_slot_mcse"
    for k, (test, truth) in enumerate(zip(FOLDS.test, TRUTH, strict=True)):
        whole = draws[k].reshape(STEPS, -1)
        for name, value in EXACT[k].items():
            method, _, p = name.partition(" ")
            more = {"prob": float(p)} if p else {}
            mcse = [array_stats.mcse(x, method=method, **more) for x in draws[k]]
            estimate = {"mean": whole.mean(1), "sd": whole.std(1, ddof=1)}.get(name)
            estimate = np.quantile(whole, float(p), axis=1) if p else estimate
            z.setdefault(name, []).append((estimate - value) / mcse)
        by_slot = {
            "pit": (pit[k], truth.cdf(y[test]), pit_mcse[k]),
            "log": (d[log_score].values[k], truth.logpdf(y[test]), d[log_mcse].values[k]),
        }
        crps_mcse = d["crps_pointwise_slot_mcse"].values[k]
        by_slot["crps"] = d["crps_pointwise"].values[k], CRPS[k], crps_mcse
        for name, (estimate, value, mcse) in by_slot.items():
            z.setdefault(name, []).append((estimate - value) / mcse)
    return {name: np.array(x) for name, x in z.items()}


@pytest.mark.parametrize("seed", repeated([1, 2, 3]))
def test_forecasts_with_unknown_parameters(results, seed):
    z = errors(results(seed, "path"))
    size = sum(x.size for x in z.values())
    # CRPS errors are of 8 blocks of draws, others of 128 batches or more.
    assert np.abs(z.pop("crps")).max() < z_limit(size, df=7)
    assert max(np.abs(x).max() for x in z.values()) < z_limit(size, df=100)


def test_scores_by_step(results):
    d = results(1, "path").diagnostics
    rows = by_step({"ar": d}, None)
    assert rows["predict"].tolist() == ["path"] * STEPS
    assert rows["steps_ahead"].tolist() == [*range(1, STEPS + 1)]
    y = series()[FOLDS.test]
    exact_log = sum(truth.logpdf(y[k]) for k, truth in enumerate(TRUTH))
    exact_rmse = -np.sqrt(np.mean([(t.mean() - y[k]) ** 2 for k, t in enumerate(TRUTH)], axis=0))
    z = (rows["elpd"] - exact_log) / rows["mcse"], (rows["rmse"] - exact_rmse) / rows["rmse_mcse"]
    assert np.abs(z).max() < z_limit(12, df=100)
    terms = [truth.logpdf(y[k]) for k, truth in enumerate(TRUTH)]
    spread = np.sqrt(3) * np.std(terms, axis=0, ddof=1)
    np.testing.assert_allclose(rows["se"], spread, atol=5 * rows["mcse"].max())
    whole = results(1, "conditional").diagnostics  # of the forecast as a whole, either way
    assert d["joint_elpd"].equals(whole["joint_elpd"])
    assert d["pointwise_elpd"].equals(whole["pointwise_elpd"])
    conditional = by_step({"ar": whole}, None)
    assert set(conditional["predict"]) == {"conditional"}
    assert set(conditional["steps_ahead"]) == {1}


def test_conditional_replicates_and_scores_are_no_forecasts(results):
    """A broken twin."""
    z = errors(results(1, "conditional"), "pointwise_elpd")
    for name in ("mean", "sd", "quantile 0.05", "pit", "log", "crps"):
        first, later = z[name][:, 0], z[name][:, 1:]
        assert np.abs(first).max() < z_limit(3, df=7)
        assert np.abs(later).max() > 2 * z_limit(later.size, df=7)


def of_draws(model, data, fold, key, params, number=20_000):
    """Replicates of a test set along paths, cdf at the observed outcomes and log densities."""
    plain = target(model, data, "plain")
    along = along_paths(plain, Scored(model, "plain", ""), data)
    keys = jax.random.split(key, number)

    def one(of):
        return jax.jit(jax.vmap(of))(keys)

    y = plain.observed(fold)
    return (
        one(lambda key: along.predict(key, params, fold)),
        one(lambda key: along.cdf(key, params, fold, y)),
        one(lambda key: along.log_path(key, params, fold)),
    )


def z_of(found, mean, sd, y):
    """Errors of mean, variance, PIT and log density of normal forecasts, in units of their MCSE."""
    y_rep, cdf, log_density = map(np.asarray, found)
    root = np.sqrt(len(y_rep))
    density = np.exp(log_density)
    spread = (y_rep - mean) ** 2
    pairs = [
        (y_rep, mean),
        (spread, sd**2),
        (cdf, stats.norm.cdf(y, mean, sd)),
        (density, stats.norm.pdf(y, mean, sd)),
    ]
    with np.errstate(invalid="ignore"):
        z = [(x.mean(0) - exact) * root / x.std(0) for x, exact in pairs]
    # The first step's cdf and density are known exactly.
    return np.array(
        [
            np.where(x.std(0) < 1e-12, (x.mean(0) - e) * 1e6, u)
            for (x, e), u in zip(pairs, z, strict=True)
        ]
    )


def fold_of(train, test):
    return Fold(jnp.asarray(train), jnp.asarray(test))


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_forecasts_with_known_parameters(seed):
    with devices.precision("float64"):
        y, test = series(), np.arange(18, 24)
        fold = fold_of(np.arange(30) < 18, test)
        params = {"rho": jnp.asarray(RHO)}
        found = of_draws(autoregression(), {"y": y}, fold, jax.random.key(seed), params)
        mean, sd = forecasts(RHO, y[:18])
        assert np.abs(z_of(found, mean, sd, y[test])).max() < z_limit(24)
        if seed == 1:  # conditional replicates: a broken twin
            plain = target(autoregression(), {"y": y}, "plain")
            keys = jax.random.split(jax.random.key(1), 20_000)
            given = jax.vmap(lambda key: plain.predict(key, params, fold))(keys)
            z = z_of((given, *found[1:]), mean, sd, y[test])[:2]
            assert np.abs(z[:, 0]).max() < z_limit(2)
            assert (np.abs(z[:, 1:]).max(axis=0) > 2 * z_limit(10)).all()


def test_a_gap_before_the_test_set_is_simulated_too():
    with devices.precision("float64"):
        y, fold = series(), hv_block(30, v=1, h=3).some(12)
        test, train = fold.test, train_mask(Folds(*(np.asarray(x)[None] for x in fold[:3])), 30)[0]
        params, key = {"rho": jnp.asarray(RHO)}, jax.random.key(4)
        found = of_draws(autoregression(), {"y": y}, fold_of(train, test), key, params)
        last = test[0] - 3
        mean, sd = (x[3:] for x in forecasts(RHO, y[:last]))
        assert np.abs(z_of(found, mean, sd, y[test])[:2]).max() < z_limit(6)


def test_each_series_of_a_fold_has_its_own_path():
    with devices.precision("float64"):
        both = series(60).reshape(2, 30)
        y = both.T.ravel()  # units of two series take turns
        train = np.arange(60) < 40
        test = np.array([*range(40, 52), -1])
        params, key = {"rho": jnp.asarray(RHO)}, jax.random.key(5)
        found = of_draws(autoregression(of=2), {"y": y}, fold_of(train, test), key, params, 5000)
        each = [forecasts(RHO, both[s, :20]) for s in (0, 1)]
        mean, sd = (np.stack([x[j] for x in each], axis=1).ravel() for j in (0, 1))
        z = z_of([x[:, :-1] for x in found], mean, sd, y[40:52])
        assert np.abs(z).max() < z_limit(z.size)


@pytest.mark.slow
def test_effects_of_a_left_out_group_are_drawn_for_its_path():
    """y_t = a + 0.6 y_{t-1} + noise of each group, a ~ N(0, 1): of a new group y is normal."""
    group, rho, steps = np.repeat(np.arange(4), 5), 0.6, np.arange(5)
    rng, y = np.random.default_rng(2), np.zeros(20)
    for t in range(20):
        last = y[t - 1] if t % 5 else 0.0
        y[t] = [1.0, -1.0, 0.5, 2.0][group[t]] + rho * last + rng.normal(0, NOISE)

    def outcome(params, data):
        last = jnp.where(np.arange(20) % 5 > 0, jnp.roll(data["y"], 1), 0.0)
        return dist.Normal(params["level"][group] + rho * last, NOISE)

    model = Model(
        lambda key: {"level": jax.random.normal(key, (4,))},
        lambda params: dist.Normal().log_prob(params["level"]).sum(),
        lambda params, data: outcome(params, data).log_prob(data["y"]),
        dict,
        Outcome("y", discrete=False),
        predict=lambda key, params, data: outcome(params, data).sample(key),
        cdf=lambda params, data, y: outcome(params, data).cdf(y),
    )
    settings = {
        "folds": {"scheme": "leave_one_group_out", "group": "group"},
        "cv": {"chains": 16, "draws": 400},
        "predictions": 6400,
        "predict": "path",
    }
    folds = leave_one_group_out(group, "group")
    problem = pose("groups", model, {"y": y}, folds, predict="path")
    found = cross_validate({"groups": problem}, Settings.model_validate(settings))["groups"]
    assert found.diagnostics.attrs["predictive"] == "marginal"
    sd = np.hypot(np.cumsum(rho**steps), NOISE * np.sqrt(np.cumsum(rho ** (2 * steps))))
    exact = stats.norm(0, np.tile(sd, 4))
    draws = np.moveaxis(found.predictions["y_rep"].values, -1, 0).astype(float)
    z = [
        draws.mean((1, 2)) / [array_stats.mcse(x, method="mean") for x in draws],
        (draws.std((1, 2), ddof=1) - exact.std())
        / [array_stats.mcse(x, method="sd") for x in draws],
        (found.predictions["pit"].values - exact.cdf(y)) / found.predictions["pit_mcse"].values,
    ]
    log_path, mcse = (
        found.diagnostics[f"log_path_pointwise{name}"].values.ravel() for name in ("", "_slot_mcse")
    )
    z.append((log_path - exact.logpdf(y)) / mcse)
    assert np.abs(z).max() < z_limit(80, df=100)


def test_paths_read_no_held_out_outcome():
    """Bit for bit, whatever the outcomes held out; replicates given the tested ones do."""
    y, fold = series(), fold_of(np.arange(30) < 18, np.arange(18, 24))
    other = np.where(np.arange(30) < 18, y, -3.0)
    params, key, model = {"rho": jnp.asarray(RHO)}, jax.random.key(6), autoregression()
    paths, given = [], []
    for outcomes in (y, other):
        data = {"y": outcomes}
        plain = target(model, data, "plain")
        along = along_paths(plain, Scored(model, "plain", ""), data)
        paths.append(np.asarray(along.predict(key, params, fold)))
        given.append(np.asarray(plain.predict(key, params, fold)))
    np.testing.assert_array_equal(*paths)
    assert (given[0] != given[1])[1:].all()
    assert paths[0][0] == given[0][0]


def numpyro_ar(y):
    rho = numpyro.sample("rho", dist.Uniform(-1, 1))
    with numpyro.plate("time", len(y)):
        numpyro.sample("y", dist.Normal(rho * before(y, 1), 1), obs=y)


def test_lags_of_an_argument_that_begins_before_the_outcome():
    y, folds = series(), leave_future_out(29, 20, horizon=3)

    def sliced(y):
        rho = numpyro.sample("rho", dist.Uniform(-1, 1))
        with numpyro.plate("time", len(y) - 1):
            numpyro.sample("y", dist.Normal(rho * y[:-1], 1), obs=y[1:])

    def padded(z):
        rho = numpyro.sample("rho", dist.Uniform(-1, 1))
        with numpyro.plate("time", len(z)):
            earlier = jnp.concatenate([y[:1], jnp.asarray(z)[:-1]])
            numpyro.sample("y", dist.Normal(rho * earlier, 1), obs=z)

    models = pcv.from_numpyro(sliced, {"y": y}), pcv.from_numpyro(padded, {"z": y[1:]})
    other = {"y": y[1:] + np.arange(29.0)}
    terms = [model.log_lik({"rho": jnp.array(0.3)}, other) for model in models]
    np.testing.assert_allclose(*terms)
    assert all(checked(model, folds, {"y": y[1:]}) for model in models)
    with pytest.raises(pcv.PcvError, match="and nothing before it"):
        models[0].append({"y": y})


def checked(model, folds, data=None, make=None):
    data = {"y": series()} if data is None else data
    units = [str(i) for i in range(len(data["y"]))]
    arrays = {**data, "unit": np.arange(len(data["y"]))}
    return check_paths(make or (lambda data: model), arrays, "y", folds, units, "ar")


def test_what_cannot_be_simulated():
    model, y, futures = autoregression(), series(), leave_future_out(30, 20, horizon=3)
    assert checked(model, futures)
    assert not checked(model, leave_future_out(30, 20, horizon=1))  # paths of a single unit
    assert checked(model, hv_block(30, v=0, h=2))
    flat = model._replace(
        log_lik=lambda params, data: dist.Normal(params["rho"][0], 1.0).log_prob(data["y"]),
        predict=lambda key, params, data: params["rho"][0] + jax.random.normal(key, (30,)),
    )
    assert not checked(flat, futures)
    refused = {
        r"fold '0 to 4' trains on units whose terms depend": (model, block(30, 5)),
        r"do not come directly before \(later ones, a gap elsewhere, or a window": (
            model,
            leave_future_out(30, 20, horizon=3, window=1),
        ),
        "needs pcv.Model": (model._replace(predict=None), futures),
        "predict does not; compute lags from data": (
            model._replace(predict=flat.predict),
            futures,
        ),
        "log_lik does not; compute": (model._replace(log_lik=flat.log_lik), futures),
    }
    for message, (one, folds) in refused.items():
        made_anew = partial(lambda x, data: x, one)
        if one.predict is None:
            made_anew = lambda data: closed(data)._replace(predict=None)  # noqa: E731
        with pytest.raises(pcv.PcvError, match=message) as caught:
            checked(one, folds, make=made_anew)
        assert "\n" not in str(caught.value)
    with pytest.raises(pcv.PcvError, match="lags that are computed when the model is made"):
        checked(None, futures, {"y": y}, closed)
    past = {"y": y, "past": np.asarray(before(y, 1))}
    held = Observations(past, fixed=True)  # as a model of PyMC has its columns
    with pytest.raises(pcv.PcvError, match="column 'past' holds as lags"):
        checked(flat._replace(data=held), futures, past)
    assert not checked(flat, futures, past)
    problem = with_lag_columns()
    with pytest.raises(pcv.PcvError, match=r"column 'lags' holds as lags; compute lags from data"):
        checked(problem.model, problem.schemes["three steps ahead"], problem.data)


def closed(data):
    """A model that computes its lags when it is made."""
    past = before(data["y"], 1)
    return autoregression()._replace(
        log_lik=lambda params, data: dist.Normal(params["rho"][0] * past, NOISE).log_prob(
            data["y"]
        ),
        predict=lambda key, params, data: dist.Normal(params["rho"][0] * past, NOISE).sample(key),
    )


def constant(y):
    a = numpyro.sample("a", dist.Normal(0, 3))
    with numpyro.plate("time", len(y)):
        numpyro.sample("y", dist.Normal(a, 2), obs=y)


@pytest.mark.slow
def test_beside_a_model_without_lags():
    """Which it changes nothing of."""
    y = np.round(10 * series()).astype(int)  # whole numbers that are measurements
    models = {f.__name__: pcv.from_numpyro(f, {"y": y}) for f in (numpyro_ar, constant)}
    short = {"chains": 4, "scores": ["crps", "rmse"], "seed": 2, "progress": False}
    folds = leave_future_out(30, 20, horizon=3)
    found = pcv.cross_validate(models, folds, predict="path", draws=100, **short)
    compared = pcv.compare(found)
    rows = compared.by_step.set_index(["step", "model"])
    assert rows["predict"].unstack().iloc[0].to_dict() == {
        "constant": "either",
        "numpyro_ar": "path",
    }
    assert np.isfinite(rows[["elpd_diff", "crps_diff", "rmse_diff"]]).all().all()
    assert rows["steps_ahead"].loc[3].tolist() == [3, 3]
    said = repr(compared)
    assert "crps (pointwise, path)" in said
    assert "log_path (pointwise, path)" in said
    sums = rows["elpd"].groupby("model").sum()
    paths = found["numpyro_ar"].score("log_path")
    assert sums["numpyro_ar"] == pytest.approx(paths["estimate"])
    assert sums["constant"] == pytest.approx(found["constant"].pointwise.sum().item())
    table = found["numpyro_ar"].table()
    assert set(table["predict"]) == {"path"}
    assert table["log_path"].sum() == pytest.approx(paths["estimate"])
    assert "predict" not in found["constant"].table()
    assert "predict" not in pcv.mixture(found, [0.5, 0.5]).table()
    conditional = pcv.cross_validate({"ar": models["numpyro_ar"]}, folds, draws=20, **short)["ar"]
    assert set(conditional.table()["predict"]) == {"conditional"}
    drawn = found["numpyro_ar"].predictions()["posterior_predictive"]["y"].values
    assert (drawn != drawn.round()).any()

    alone = {"constant": models["constant"]}
    plain = pcv.cross_validate(alone, folds, draws=100, **short)["constant"]
    assert found["constant"].diagnostics.equals(plain.diagnostics)
    assert found["constant"].predictions().equals(plain.predictions())


@pytest.mark.slow
def test_more_draws_continue_paths(tmp_path, monkeypatch):
    model = pcv.from_numpyro(numpyro_ar, {"y": series()})
    short = {"chains": 4, "scores": ["crps"], "seed": 2, "progress": False, "predictions": 100}
    folds = leave_future_out(30, 20, horizon=3)
    asked = partial(pcv.cross_validate, model, folds, **short)
    whole = asked(predict="path", draws=200)
    begins = []

    def keep_of_block(keeps, first, *rest):
        begins.append(first)
        return unpatched(keeps, first, *rest)

    unpatched = moving.keep_of_block
    monkeypatch.setattr(moving, "keep_of_block", keep_of_block)
    for draws in (100, 200):
        begins.clear()
        kept = asked(predict="path", draws=draws, results=tmp_path)
    assert min(begins) == 100
    assert kept.diagnostics.drop_attrs().equals(whole.diagnostics.drop_attrs())
    assert kept.predictions().equals(whole.predictions())
    other = asked(draws=200, results=tmp_path)
    assert not other.diagnostics.attrs["simulated"]
    assert not other.predictions().equals(whole.predictions())


def test_a_target_has_its_own_predictive():
    model = autoregression()
    of_target = target(model, {"y": series()}, "plain")
    problem = pose("t", of_target, {"y": series()}, FOLDS, predict="path")
    assert not simulates(problem)
    asked = {"folds": {"scheme": "leave_one_out", "exact": "auto"}, "predict": "path"}
    with pytest.raises(ValueError, match="paths need folds that are all sampled"):
        Settings.model_validate(asked)
