"""Draws that there are already, as the full-data fit: of all front-ends, and of other models."""

import json
from functools import partial
from hashlib import sha256

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pymc as pm
import pytest
import xarray as xr
from numpyro.infer import MCMC, NUTS
from scipy.stats import norm

import pcv
from pcv.base.errors import PcvError
from pcv.models.model import Target
from pcv.pipeline import config
from pcv.pipeline.storage import recipes
from pcv.sampling.fit import given
from tests.bounds import z_limit

RNG = np.random.default_rng(3)
GROUP = np.repeat(np.arange(5), 4)
X = RNG.normal(size=20)
Y = 1 + RNG.normal(size=5)[GROUP] + 0.5 * X + RNG.normal(size=20)
SHORT = {"chains": 2, "draws": 100, "warmup": 20, "progress": False}
QUIET = {"progress_bar": False, "chain_method": "vectorized"}
call = partial(pcv.cross_validate, folds=pcv.kfold(20, 4), **SHORT)
LIMIT = z_limit(df=12)
"""of a difference of two: 4 folds of 4 batches each, so half of 24 degrees of freedom"""


def clinics(y, x, group, wide=2.0):
    mu, b = numpyro.sample("mu", dist.Normal(0, wide)), numpyro.sample("b", dist.Normal(0, 1))
    tau, sigma = (numpyro.sample(name, dist.HalfNormal(2)) for name in ("tau", "sigma"))
    with numpyro.plate("groups", 5):
        z = numpyro.sample("z", dist.Normal(0, 1))
    a = numpyro.deterministic("a", mu + tau * z)
    numpyro.sample("y", dist.Normal(a[group] + b * x, sigma), obs=y)


DATA = {"y": Y, "x": X, "group": GROUP}


@pytest.fixture(scope="module")
def drawn():
    """By NumPyro's NUTS, as ArviZ lays it out."""
    sampler = MCMC(NUTS(clinics), num_warmup=500, num_samples=500, num_chains=4, **QUIET)
    with jax.enable_x64(True):
        sampler.run(jax.random.key(1), **DATA)
        samples = sampler.get_samples(group_by_chain=True)
    variables = {
        name: (("chain", "draw", *["group"] * (x.ndim - 2)), np.asarray(x))
        for name, x in samples.items()
    }
    stats = {"diverging": (("chain", "draw"), np.zeros((4, 500), bool))}
    return xr.DataTree.from_dict(
        {"posterior": xr.Dataset(variables), "sample_stats": xr.Dataset(stats)}
    )


@pytest.mark.slow
def test_folds_start_from_draws_of_another_sampler(drawn, monkeypatch):
    model = pcv.from_numpyro(clinics, DATA)
    own = call(model)
    monkeypatch.setattr("pcv.sampling.fit.full_data.sample", lambda *_: pytest.fail("a fit"))
    given = call(model, fit=drawn)
    assert abs(given.elpd - own.elpd) < LIMIT * np.hypot(given.mcse, own.mcse)
    kept = given.tree["posterior"]
    for name in drawn["posterior"].data_vars:
        np.testing.assert_allclose(
            kept[name].values, drawn["posterior"][name].values, rtol=1e-6, atol=1e-8
        )
    assert given.tree["log_likelihood"]["y"].shape == (4, 500, 20)


@pytest.mark.slow
def test_of_pymc():
    with pm.Model() as model:
        mu, b = pm.Normal("mu", 0, 2), pm.Normal("b", 0, 1)
        limit = pm.Uniform("limit", -1, 1)
        sigma = pm.HalfNormal("sigma", pm.math.exp(limit))
        pm.Normal("y", mu + b * X, sigma, observed=Y)
        trace = pm.sample(
            500,
            tune=500,
            chains=4,
            cores=1,
            random_seed=1,
            progressbar=False,
            compute_convergence_checks=False,
        )
    given, own = call(model, fit=trace), call(model)
    assert abs(given.elpd - own.elpd) < LIMIT * np.hypot(given.mcse, own.mcse)


def changed(tree, change):
    """With other variables in its posterior."""
    other = change(tree["posterior"].to_dataset())
    return xr.DataTree.from_dict({"posterior": other})


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda x: x.drop_vars("tau"), "has no variable 'tau', only 'a', 'b'"),
        (lambda x: x.isel(group=slice(4)), "has 'a' with shape (4,), the model with shape (5,)"),
        (lambda x: x.assign(sigma=-x["sigma"]), "2000 of 2000 draws of the given posterior"),
        (lambda x: x.assign(mu=x["mu"] + 0.5), "is not that of this model and these data: the"),
        (lambda x: x.rename(chain="walker"), "no group 'posterior' with dimensions chain and draw"),
        pytest.param(
            lambda x: x.isel(draw=slice(20), chain=slice(2)), "R-hat of", marks=pytest.mark.slow
        ),
    ],
)  # fmt: skip
def test_what_is_not_the_models_is_refused(drawn, change, said):
    with pytest.raises(PcvError) as error:
        call(pcv.from_numpyro(clinics, DATA), fit=changed(drawn, change))
    assert said in str(error.value)
    assert "\n" not in str(error.value) or "R-hat" in said


@pytest.mark.parametrize(
    "data",
    [DATA | {"y": Y + 0.3}, DATA | {"x": -X}, DATA | {"wide": 0.05}],
    ids=["outcome", "covariate", "prior"],
)
def test_draws_of_other_data_or_priors_are_refused(drawn, data):
    with pytest.raises(PcvError, match="is not that of this model and these data"):
        call(pcv.from_numpyro(clinics, data), fit=drawn)


def mean_of(**more):
    """A normal mean; its posterior is N(Σy / (n + 1), 1 / (n + 1))."""
    return pcv.Model(
        init=lambda key: {"a": jax.random.normal(key)},
        log_prior=lambda p: dist.Normal(0, 1).log_prob(p["a"]),
        log_lik=lambda p, data: dist.Normal(p["a"], 1).log_prob(data["y"]),
        constrain=dict,
        outcome=pcv.Outcome("y"),
        **more,
    )


def check_elpd(cv, y):
    """Of the folds of `call` by `mean_of`, each unit by its closed form."""
    exact = []
    for test in pcv.kfold(20, 4).test:
        precision = 21 - len(test)
        mean = (y.sum() - y[test].sum()) / precision
        exact.append(norm.logpdf(y[test], mean, np.sqrt(1 + 1 / precision)).sum())
    mine = cv.diagnostics[["pointwise_elpd", "pointwise_mcse"]]
    z = (mine["pointwise_elpd"].sum("slot") - exact) / mine["pointwise_mcse"]
    assert np.abs(z).max() < z_limit(4, df=19)


def of_mean(mean, sd):
    draws = np.random.default_rng(4).normal(mean, sd, size=(4, 500))
    return xr.DataTree.from_dict({"posterior": xr.Dataset({"a": (("chain", "draw"), draws)})})


def test_models_have_draws_of_their_own(tmp_path):
    model = mean_of(unconstrain=lambda variables: {"a": variables["a"]})
    models, right = {"one": model, "other": model}, of_mean(Y.sum() / 21, 1 / np.sqrt(21))
    with pytest.raises(PcvError, match="give those of each model by its name: 'one', 'other'"):
        call(models, data={"y": Y}, fit=right)
    settings = {"data": {"y": Y}, "fit": {"one": right, "other": right}, "results": tmp_path}
    assert set(call(models, **settings)) == {"one", "other"}
    first = tmp_path / "cv/models/one/sample/1-of-1.zarr/zarr.json"
    before = first.stat().st_mtime_ns
    call(models, **settings)
    assert first.stat().st_mtime_ns == before


def test_a_model_of_ones_own_says_the_way_back():
    right = of_mean(Y.sum() / 21, 1 / np.sqrt(21))
    with pytest.raises(PcvError, match=r"pcv.Model\(..., unconstrain=...\)"):
        call(mean_of(), data={"y": Y}, fit=right)
    model = mean_of(unconstrain=lambda variables: {"a": variables["a"]})
    check_elpd(call(model, data={"y": Y}, fit=right), Y)
    for wrong in (of_mean(0.5, 1.0), of_mean(Y.sum() / 21 + 0.1, 1 / np.sqrt(21))):
        with pytest.raises(PcvError, match="the mean gradient of the log density in 'a' is"):
            call(model, data={"y": Y}, fit=wrong)


def test_draws_of_half_as_many_data_are_refused():
    """The mode is the same, the posterior narrower."""
    y, model = Y - Y.mean(), mean_of(unconstrain=lambda variables: {"a": variables["a"]})
    check_elpd(call(model, data={"y": y}, fit=of_mean(0, 1 / np.sqrt(21))), y)
    for times in (2, 0.5):
        with pytest.raises(PcvError, match="of the log density by its parameter in 'a' is"):
            call(model, data={"y": y}, fit=of_mean(0, times / np.sqrt(21)))


@pytest.mark.slow
def test_statistics_of_other_draws_are_left_out(drawn):
    stats = xr.Dataset({"diverging": (("chain", "draw"), np.ones((4, 9), bool))})
    tree = xr.DataTree.from_dict(
        {"posterior": drawn["posterior"].to_dataset(), "sample_stats": stats}
    )
    given = call(pcv.from_numpyro(clinics, DATA), fit=tree)
    assert not given.tree["sample_stats"]["diverging"].values.any()


def test_one_chain_cannot_tell(drawn):
    with pytest.raises(PcvError, match="has one chain"):
        call(pcv.from_numpyro(clinics, DATA), fit=changed(drawn, lambda x: x.isel(chain=slice(1))))


def line(x, y):
    a, b = (numpyro.sample(name, dist.Normal(0, 2)) for name in "ab")
    s = numpyro.sample("s", dist.HalfNormal(2))
    numpyro.sample("y", dist.Normal(a + b * x, s), obs=y)


def test_draws_whose_gradients_have_heavy_tails_are_refused():
    """Means of gradients know nothing of draws near s = 0, where HMC leaves at once."""
    rng = np.random.default_rng(5)
    a, b, s = rng.normal(size=(3, 4, 500))
    dims = ("chain", "draw")
    prior = xr.Dataset({"a": (dims, a), "b": (dims, b), "s": (dims, np.abs(s))})
    drawn = xr.DataTree.from_dict({"posterior": prior})
    x = np.random.default_rng(0).normal(size=40)
    y = 1 + x + np.random.default_rng(1).normal(size=40)
    model = pcv.from_numpyro(line, {"x": x, "y": y})
    with pytest.raises(PcvError, match=r"Hamiltonian Monte Carlo raises the log density in .*%"):
        pcv.loo(model, fit=drawn, brute_force=False, progress=False)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_moves_from_the_posterior_go_up_and_down(seed):
    """The largest of four z-scores exceeds 6 in less than 1e-7 of runs; of draws that are an sd off
    it is 10 or more."""
    scale = np.array([0.1, 1.0, 10.0])
    target = Target(
        init=lambda key: jax.random.normal(key, (3,)),
        log_density=lambda x, fold: -jnp.sum((x / scale) ** 2) / 2,
        log_predictive=lambda x, fold: (x.sum(), x[fold.test]),
    )
    draws = np.random.default_rng(seed).normal(size=(4, 500, 3)) * scale
    arguments = 1, ["a", "b", "c"], jax.random.key(seed)
    given._check_moves(target, draws, *arguments)
    with pytest.raises(PcvError, match=r"Hamiltonian Monte Carlo raises .* in \d+% of cases"):
        given._check_moves(target, draws + [0, 1.0, 0], *arguments)


@pytest.mark.parametrize(
    ("made_of", "file", "expected"),
    [
        (None, None, False),
        ({"a.nc": sha256(b"one").hexdigest()}, "{model}.nc", False),
        ({"a.nc": sha256(b"other").hexdigest()}, "{model}.nc", True),
        ({"b.nc": sha256(b"one").hexdigest()}, "{model}.nc", True),
        (None, "{model}.nc", True),
        ({"a.nc": sha256(b"one").hexdigest()}, None, True),
    ],
)
def test_snakemake_makes_a_fit_of_other_draws_anew(made_of, file, expected, tmp_path, monkeypatch):
    """Also where their file is older than the fit."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.nc").write_bytes(b"one")
    (tmp_path / "fit.zarr").mkdir()
    recipe = {"stage version": 1, "config": {}}
    recipe |= {} if made_of is None else {"posterior": made_of}
    meta = {"attributes": {"pcv": {"recipe": recipe}}}
    (tmp_path / "fit.zarr/zarr.json").write_text(json.dumps(meta))
    experiment = {
        "data": {"file": "data.csv", "outcome": "y"},
        "folds": {"scheme": "leave_one_out"},
        "models": {"a": {"model": "models.py:a"}},
        "fit": {"file": file},
    }
    parsed = config.parse({"seed": 1, "experiments": {"e": experiment}})
    files = recipes._files(tmp_path, parsed, "e", "fit", "a")
    assert (recipes._made_of(tmp_path / "fit.zarr", files) is None) is expected
