"""Approximations of the full-data posterior: weighted draws against exact moments, and refusals."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy.special import expit, log_expit, logsumexp

import pcv
from pcv import PcvError
from pcv.models.model import target
from pcv.models.parameters import flat_target, param_names
from pcv.pipeline.config import parse
from pcv.sampling.fit.approximate import approximate
from pcv.sampling.fit.surrogates import posterior, surrogates
from tests.bounds import z_limit
from tests.slow import repeated
from tests.test_subsample import DATA, EXACT, MODEL, QUICK, near

KINDS = ("laplace", "normal", "pathfinder", "multipathfinder")
RNG = np.random.default_rng(4)
N = 200
X = RNG.normal(size=N)
Y = (RNG.uniform(size=N) < expit(0.5 + X)).astype(float)
GRID = np.linspace(-1.5, 3.5, 301)


def logistic(params, data):
    logits = params["a"] + params["b"] * data["x"]
    return data["y"] * jax.nn.log_sigmoid(logits) + (1 - data["y"]) * jax.nn.log_sigmoid(-logits)


def model_of(log_lik, sd=2.0, names=("a", "b")):
    prior = dist.Normal(0.0, sd)
    return pcv.Model(
        lambda key: dict.fromkeys(names, prior.sample(key)),
        lambda params: sum(prior.log_prob(params[name]) for name in names),
        log_lik,
        lambda params: params,
        pcv.Outcome("y"),
    )


LOGISTIC = model_of(logistic)


def on_grid():
    """Log likelihoods and log posterior weights of the logistic regression on a grid of both
    coefficients."""
    a, b = (x.ravel() for x in np.meshgrid(GRID, GRID))
    logits = a[:, None] + b[:, None] * X
    ll = Y * log_expit(logits) + (1 - Y) * log_expit(-logits)
    log_p = ll.sum(1) - (a**2 + b**2) / 8
    return np.stack([a, b], 1), ll, log_p - logsumexp(log_p)


def made(model, data, how, seed=1, total=4000):
    named = target(model, data, "plain")
    flat, _ = flat_target(named)
    root = jax.random.key(seed)
    return approximate(flat, len(data["y"]), param_names(named), root, how, total)


@pytest.mark.parametrize("how", repeated(KINDS))
def test_weighted_draws_have_the_posterior_moments(how):
    points, _, log_w = on_grid()
    share = np.exp(log_w)
    mean = share @ points
    truth = np.concatenate([mean, share @ (points - mean) ** 2])
    found = made(LOGISTIC, {"x": X, "y": Y}, how, 1, total=8000)
    assert not found.checks.problems
    draws = found.fit.draws.position.reshape(-1, 2)
    weight = np.exp(found.fit.log_weight.ravel())
    both = np.concatenate([draws, (draws - mean) ** 2], 1)

    def z(weight):
        w = weight / weight.sum()
        estimate = w @ both
        return (estimate - truth) / np.sqrt((w**2) @ (both - estimate) ** 2)

    assert np.abs(z(weight)).max() < z_limit(4)
    if how == "laplace":  # false alarm < 1e-4: 10, with an sd of 1
        assert np.abs(z(np.ones_like(weight))).max() > z_limit(4)


@pytest.mark.slow
@pytest.mark.parametrize("how", repeated(["laplace", "multipathfinder"]))
def test_leave_one_out_from_an_approximation(how):
    _, ll, log_w = on_grid()
    truth = -logsumexp(log_w[:, None] - ll, axis=0)
    settings = QUICK | {"data": {"x": X, "y": Y}, "fit": {"approximation": how}}
    found = pcv.subsample(LOGISTIC, N, surrogate="waic", exact="psis", **settings)
    z = (found.folds["elpd"] - truth) / found.folds["mcse"]
    assert np.abs(z).max() < z_limit(z.size)
    lpd = logsumexp(log_w[:, None] + ll, axis=0)
    mean = np.exp(log_w) @ ll
    waic = lpd - np.exp(log_w) @ (ll - mean) ** 2
    # False alarm < 1e-4: sd .007.
    np.testing.assert_allclose(found.surrogates["waic"], waic, atol=0.05)


def test_laplace_is_exact_where_all_is_normal():
    found = made(MODEL, DATA, "laplace")
    assert np.ptp(found.fit.log_weight) < 1e-6
    assert not found.checks.problems + found.checks.warnings
    both = pcv.subsample(MODEL, 80, data=DATA, fit={"approximation": "laplace"}, **QUICK)
    assert near(both, EXACT)


@pytest.mark.slow
def test_folds_are_sampled_by_their_own_draws():
    """Full-data draws are not of the posterior, so that no estimate may use them as such."""
    fit = {"approximation": "pathfinder"}
    found = pcv.subsample(MODEL, 20, exact="folds", data=DATA, fit=fit, **QUICK)
    truth = EXACT[found.diagnostics["chosen"].values]
    z = (found.folds["elpd"] - truth) / found.folds["mcse"]
    assert np.abs(z).max() < z_limit(z.size, df=31)  # of 32 batches
    assert found.folds["overlap"].isna().all()


def test_weights_count_as_repetitions():
    rng = np.random.default_rng(5)
    draws = rng.normal(size=(60, 2))
    times = rng.integers(1, 4, 60)

    def terms(x):
        return jnp.array([x[0] - 0.5 * x[1] ** 2, -jnp.abs(x).sum()])

    names = ["waic", "tis", "plpd", "plpd_d1waic"]
    weighted = surrogates(terms, posterior(draws, names, np.log(times)), names)
    repeated = surrogates(terms, posterior(np.repeat(draws, times, 0), names), names)
    for name in ("lpd", "plpd"):
        np.testing.assert_allclose(weighted[name], repeated[name])
    np.testing.assert_allclose(weighted["waic"], repeated["waic"], rtol=0.05)
    np.testing.assert_allclose(weighted["plpd_d1waic"], repeated["plpd_d1waic"], rtol=0.05)


def hardly(params, data):
    return dist.Normal(sum(params.values()), 100.0).log_prob(data["y"])


CAUCHY = model_of(hardly, names=[f"x{i}" for i in range(60)])._replace(
    log_prior=lambda params: dist.Cauchy().log_prob(jnp.stack(list(params.values()))).sum()
)


@pytest.mark.parametrize("seed", repeated(range(1, 7), 2))
def test_heavy_tails_have_a_bad_khat(seed):
    """False alarm < 1e-4: k-hat is 1.5, with an sd of .2."""
    (problem,) = made(CAUCHY, {"y": np.array([-1.0, 1.0])}, "laplace", seed).checks.problems
    assert problem.startswith("k-hat of the approximation (laplace) is ")


@pytest.mark.slow
def test_a_posterior_unlike_a_normal_is_refused():
    data, fit = {"y": np.array([-1.0, 1.0])}, {"approximation": "laplace"}
    with pytest.raises(PcvError, match=r"k-hat of the approximation \(laplace\) is .*: it is too"):
        pcv.subsample(CAUCHY, 2, data=data, fit=fit, **QUICK)


def flat_in_b(params, data):
    return dist.Normal(params["a"], 1.0).log_prob(data["y"])


def test_a_posterior_without_a_mode_is_refused():
    model = model_of(flat_in_b)._replace(log_prior=lambda params: -(params["a"] ** 2))
    fit = {"approximation": "laplace"}
    with pytest.raises(PcvError, match=r"no normal approximation at its mode: .* rising in 'b'"):
        pcv.subsample(model, 2, data={"y": np.arange(5.0)}, fit=fit, **QUICK)


@pytest.mark.parametrize("sd", [1e-3, 1.0])
def test_a_posterior_with_two_modes_is_refused(sd):
    """Of any scale, and with a saddle where the first climb begins."""

    def squared(params, data):
        return dist.Normal((params["a"] / sd) ** 2 + 0 * params["b"], 1.0).log_prob(data["y"])

    model = model_of(squared, sd=4 * sd)
    fit = {"approximation": "laplace"}
    with pytest.raises(PcvError, match=r"has no single mode: it is about as high at 'a' = "):
        pcv.subsample(model, 2, data={"y": np.full(20, 4.0)}, fit=fit, **QUICK)


def identity(params, data):
    return dist.Poisson(params["a"] + params["b"] * data["x"]).log_prob(data["y"])


def test_draws_without_a_density_have_no_weight():
    """A mean near 0, below which the likelihood is not defined."""
    x = np.linspace(0, 1, 60)
    data = {"x": x, "y": np.random.default_rng(3).poisson(0.5 + 3 * x).astype(float)}
    model = model_of(identity, sd=3.0)._replace(
        init=lambda key: {"a": jnp.array(1.0), "b": jnp.array(1.0)}
    )
    found = made(model, data, "laplace")
    weight = np.exp(found.fit.log_weight - found.fit.log_weight.max())
    lost = weight < 1e-30
    assert 0 < lost.sum() < 400  # false alarm < 1e-4: 84, with an sd of 9
    draws = found.fit.draws.position.reshape(-1, 2)
    terms = jax.vmap(lambda p: identity({"a": p[0], "b": p[1]}, data))(jnp.asarray(draws))
    assert np.isfinite(terms).all()


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_columns_of_any_scale(scale):
    rng = np.random.default_rng(1)
    x = scale * rng.normal(size=200)
    data = {"x": x, "y": 0.5 + x / scale + rng.normal(size=200)}

    def log_lik(params, data):
        return dist.Normal(params["a"] + params["b"] * data["x"], 1.0).log_prob(data["y"])

    found = made(model_of(log_lik, sd=10 / scale), data, "laplace")
    assert not found.checks.problems
    slope = found.fit.draws.position[..., 1]
    # False alarm < 1e-4: sd .001, and relative sd .01.
    np.testing.assert_allclose(slope.mean() * scale, 1.0, atol=0.4)
    np.testing.assert_allclose(slope.std() * scale, 1 / np.sqrt(200), rtol=0.2)


def test_draws_and_an_approximation_exclude_each_other():
    config = {
        "seed": 1,
        "experiments": {
            "e": {
                "data": {"file": "a.csv", "outcome": "y"},
                "folds": {"scheme": "leave_one_out"},
                "models": {"m": {"model": "a.py:f"}},
                "fit": {"file": "a.nc", "approximation": "laplace"},
            }
        },
    }
    with pytest.raises(PcvError, match=r"fit.file: existing draws and approximation exclude"):
        parse(config)
