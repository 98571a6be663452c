"""The full-data fit by many short chains: a zoo of posteriors, starts, and the folds' kernel."""

import json
import os
from collections.abc import Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
import pytest
from jax.flatten_util import ravel_pytree
from numpyro.infer.util import initialize_model

from pcv.base.errors import PcvError
from pcv.base.keys import key
from pcv.models.model import Target, target
from pcv.models.parameters import flat_target
from pcv.models.zoo.grouped import regression
from pcv.pipeline.data.registry import grouped_gaussian
from pcv.sampling.fit import full_data
from pcv.sampling.fit.draws import mixing, tau
from pcv.sampling.fit.fit_checks import TARGETS, check, too_large
from pcv.sampling.fit.full_data import Fit
from pcv.sampling.kernel import covariance, from_z, learn, to_z, whitened
from tests.bounds import z_limit
from tests.chains import off, worst
from tests.posteriors import BADLY, MOMENTS, NEEDS_DATA, WELL, density_of, schools
from tests.problems import PROBLEMS, Problem, coin, narrow_effects
from tests.slow import repeated


def fitted(
    target: Target,
    num_units: int,
    seed: int,
    total: int = 4000,
    warmup: int = 1000,
    targets: Sequence[float] = TARGETS,
) -> Fit:
    engine = full_data.engine_of(target, num_units, total)
    for accept in targets:
        fit = full_data.sample(engine, key(seed, "model", "fit"), warmup, total, accept)
        if not too_large(fit.draws):
            break
    return fit


def fit_of(problem: Problem, seed: int) -> Fit:
    flat, _ = flat_target(target(problem.model, problem.data, "plain"))
    return fitted(flat, len(problem.data["y"]), seed)


@pytest.mark.parametrize("seed", repeated([1, 2]))
@pytest.mark.parametrize("name", ["hierarchy, plain", "variance", "coin"])
def test_draws_are_of_the_posterior(name, seed):
    problem = PROBLEMS[name]()
    fit = fit_of(problem, seed)
    names = ["x"] * fit.draws.position.shape[-1]
    assert worst(problem, fit.draws) < z_limit(2 * len(names))
    assert not check(fit.draws, names).problems


def test_a_missing_jacobian_is_noticed():
    problem = coin(jacobian=False)
    # False alarm < 1e-4: 10 or more, with an sd of 1.
    assert worst(problem, fit_of(problem, 1).draws) > z_limit(2)


def test_same_key_same_draws():
    problem = PROBLEMS["coin"]()
    first, again, other = (fit_of(problem, seed).draws.position for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert (abs(first - other).max(axis=(1, 2)) > 0).all()
    assert len(np.unique(first[:, 0])) == len(first)


def test_no_start_with_a_finite_density():
    never = Target(
        lambda key: jax.random.normal(key, (2,)),
        lambda position, fold: jnp.where(position[0] > 1e3, 0.0, -jnp.inf),
        lambda position, fold: (position[0], position),
    )
    said = "chain 0: the log density or its gradient is not finite at any of 20 points within 2 of"
    with pytest.raises(PcvError, match=said):
        fitted(never, 5, 1)


@pytest.mark.parametrize("low", [0.0, 100.0], ids=["some", "none"])
def test_chains_start_where_the_density_is_finite(low):
    """Half of the points near 0 are impossible, or all: then prior draws are tried."""
    half = Target(
        lambda key: low + jax.random.normal(key, (1,)),
        lambda position, fold: jnp.where(
            position[0] > low,
            jnp.log(jnp.abs(position[0] - low)) - position[0],
            -jnp.inf,
        ),
        lambda position, fold: (position[0], position),
    )
    draws = fitted(half, 5, 1).draws
    assert np.isfinite(draws.lp).all()
    assert (draws.position > low).all()


def as_settled(monkeypatch):
    """A fit by the kernel that chains settle on, whose trajectories do not get longer meanwhile."""
    monkeypatch.setattr(full_data, "HELD", 10**9)
    monkeypatch.setattr(full_data.Search, "keep", lambda self, total: self.fit(self.kept(50)))


@pytest.mark.slow
@pytest.mark.parametrize("longer", [True, False])
def test_narrow_directions_are_learnt_by_longer_trajectories(longer, monkeypatch):
    """They hold chains, which must agree before such directions count. Else steps stay as narrow as
    the directions."""
    held = full_data.HELD
    as_settled(monkeypatch)
    if longer:
        monkeypatch.setattr(full_data, "HELD", held)
    for seed in (1, 2):
        # False alarm < 1e-4: .77 with an sd of .02, or .014 with one of .001.
        assert (fit_of(narrow_effects(), seed).step_size > 0.2) == longer


@pytest.mark.parametrize("seed", repeated([1, 2]))
def test_a_posterior_with_narrow_directions(seed):
    draws = fit_of(narrow_effects(), seed).draws
    assert worst(narrow_effects(), draws) < z_limit(2 * draws.position.shape[-1])


def test_a_kernel_that_was_learnt_apart_is_learnt_again_for_folds(monkeypatch):
    monkeypatch.setattr(full_data, "HELD", 10**9)
    fit = fit_of(narrow_effects(), 1)
    assert fit.step_size > 0.2  # false alarm < 1e-4: .7, with an sd of .06


def test_a_kernel_of_few_effective_draws_is_learnt_again_for_folds(monkeypatch):
    """Of a regression on groups, whose narrow directions ten draws of each chain do not show."""
    table = grouped_gaussian(14)
    data = {name: table[name].to_numpy() for name in table}
    flat, _ = flat_target(target(regression(data, 3), data, "plain"))
    as_it_is = full_data.Search.settle

    def settle(self, warmup):
        as_it_is(self, warmup)
        self.learn(self.block(0.0, 10).position, True)

    monkeypatch.setattr(full_data.Search, "settle", settle)
    at = flat, len(table), 1, 2000, 500
    assert fitted(*at).num_steps < 20  # false alarm < 1e-4: 2.6 to 6.3 at eight seeds
    monkeypatch.setattr(full_data.Search, "mixed", lambda self, draws: mixing(draws.position))
    monkeypatch.setattr(full_data, "teaches", lambda *_: False)
    assert fitted(*at).num_steps > 40  # 64 at 14 seeds


@pytest.mark.slow
def test_chains_that_are_lost_go_on_from_others(monkeypatch):
    x, y = jnp.linspace(0, 100, 30), jnp.round(jnp.exp(1 + jnp.linspace(0, 2, 30)))

    def log_density(position, fold):
        log_rate = position[0] + position[1] * x
        return (y * log_rate - jnp.exp(log_rate)).sum() - (position**2).sum() / 2e4

    vague = Target(
        lambda key: 100 * jax.random.normal(key, (2,)),
        log_density,
        lambda position, fold: (position[0], position),
    )
    draws = fitted(vague, 30, 1).draws
    # False alarm < 1e-4: R-hat is 1.01 with an sd of .003, and means have one of .002.
    assert not check(draws, ["a", "b"]).problems
    np.testing.assert_allclose(draws.position.mean((0, 1)), [1, 0.02], atol=0.3)
    monkeypatch.setattr(full_data, "LOST", np.inf)
    # False alarm < 1e-4: of 32 chains 11 or more are stuck.
    assert check(fitted(vague, 30, 1).draws, ["a", "b"]).problems


DIM = 6
UNITS_OF_MEASURE = 10.0 ** np.arange(-3, 3)
CORRELATED = np.linalg.cholesky(np.full((DIM, DIM), 0.98) + 0.02 * np.eye(DIM))
SCALES = {
    "unit": np.eye(DIM),
    "badly scaled": np.diag(UNITS_OF_MEASURE),
    "correlated": CORRELATED,
    "both": UNITS_OF_MEASURE[:, None] * CORRELATED,
}


def gaussian(scale: np.ndarray) -> Target:
    whiten = np.linalg.inv(scale)
    return Target(
        lambda key: jnp.zeros(len(scale)),
        lambda position, fold: -0.5 * ((whiten @ (position - 3.0)) ** 2).sum(),
        lambda position, fold: (position[0], position[:1]),
    )


@pytest.mark.parametrize("name", SCALES)
def test_the_kernel_whitens(name):
    """Whatever the scales and correlations; few steps then make a draw independent."""
    scale = SCALES[name]
    fit = fitted(gaussian(scale), 2, 1)
    z = np.linalg.inv(scale) @ covariance(fit.kernel) @ np.linalg.inv(scale).T
    # False alarm < 1e-4: errors of .09, with an sd of .025.
    np.testing.assert_allclose(z, np.eye(DIM), atol=0.35)
    # False alarm < 1e-4: 1.6 steps (sd .2) for an independent draw, or in a tenth of runs, with
    # trajectories half as long, 3.8 (sd .4); an acceptance of .81 or .87, with sds of .01.
    assert fit.num_steps * tau(fit.draws.position).max() < 8
    assert fit.num_steps <= 4
    assert 0.65 < fit.draws.acceptance_rate.mean() < 0.95


@pytest.mark.parametrize("stuck", [False, True])
@pytest.mark.parametrize("num_draws", [208, 480])
def test_too_few_draws_teach_no_directions(num_draws, stuck):
    """Of 400 independent parameters; rounding errors of what is 0 are no narrow directions."""
    rng = np.random.default_rng(1)
    draws = rng.normal(size=(num_draws, 400))
    if stuck:
        draws[::10] = draws[1::10]
    for precision in (np.float64, np.float32):
        kernel = learn(draws.astype(precision), float(num_draws))
        assert np.isfinite(kernel.directions).all()
        assert (kernel.ratios > 0.9).all()


@pytest.mark.parametrize("num_params", [3, 120])
def test_kernels_there_and_back(num_params):
    rng = np.random.default_rng(1)
    draws = rng.normal(size=(2000, num_params)) * np.linspace(1, 100, num_params)
    draws[:, 1] += draws[:, 0] * 30
    # As if draws were half as many, lest two eigenvalues of the others count by chance.
    kernel = learn(draws, 1000.0)
    z = jax.vmap(lambda x: to_z(kernel, x))(draws)
    np.testing.assert_allclose(z, whitened(kernel, draws), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(jax.vmap(lambda x: from_z(kernel, x))(z), draws, rtol=1e-9)
    np.testing.assert_allclose(z.std(0), 1, rtol=0.1)
    assert abs(np.corrcoef(z[:, 0], z[:, 1])[0, 1]) < 0.1
    assert (kernel.ratios != 1).sum() == 2  # the noise of the others is left alone


def skip_without_data(name: str) -> None:
    if name in NEEDS_DATA and "PCV_DATA" not in os.environ:
        pytest.skip("PCV_DATA names no folder of data")


@pytest.mark.parametrize("name", repeated(WELL))
def test_moments_are_those_of_nuts(name):
    skip_without_data(name)
    known = {kind: np.array(x) for kind, x in json.loads(MOMENTS.read_text())[name].items()}
    fit = fitted(density_of(WELL[name]()), 1, 1)
    draws = fit.draws.position
    assert not check(fit.draws, ["x"] * draws.shape[-1]).problems
    limit = z_limit(2 * draws.shape[-1])
    assert off(draws, known["mean"], known["mcse_mean"]) < limit
    squares = (draws - known["mean"]) ** 2
    assert off(squares, known["variance"], known["mcse_variance"]) < limit


def rats():
    """Lines of rats whose levels and slopes are centred."""
    table = pd.read_csv(Path(__file__).parents[1] / "resources/rats.csv")
    rat, age = table["rat"].to_numpy() - 1, table["day"].to_numpy() - 22.0
    level = numpyro.sample("level", dist.Normal(250, 50))
    slope = numpyro.sample("slope", dist.Normal(6, 5))
    sd_level = numpyro.sample("sd_level", dist.HalfNormal(25))
    sd_slope = numpyro.sample("sd_slope", dist.HalfNormal(2))
    sigma = numpyro.sample("sigma", dist.HalfNormal(10))
    with numpyro.plate("rats", 30):
        a = numpyro.sample("a", dist.Normal(level, sd_level))
        b = numpyro.sample("b", dist.Normal(slope, sd_slope))
    with numpyro.plate("weighings", len(table)):
        y = table["weight_g"].to_numpy(float)
        numpyro.sample("y", dist.Normal(a[rat] + b[rat] * age, sigma), obs=y)


def in_a_neck():
    """Where a chain of `rats` was seen to end up: levels are alike and their spread is near 0."""
    draw = np.random.default_rng(0)
    at = {"level": 5.3, "slope": 5.5, "sd_level": -2.06, "sd_slope": -0.5, "sigma": 5.0}
    at["a"] = 5.3 + 0.13 * draw.normal(size=30)
    at["b"] = 5.5 + 0.47 * draw.normal(size=30)
    return np.asarray(ravel_pytree(at)[0])


@pytest.mark.slow
def test_a_chain_in_a_neck_does_not_spoil_the_kernel_of_all(monkeypatch):
    """In one fit of nine a chain gets there early; here one is put there in each."""
    block = full_data.Search.block

    def after_one_got_lost(self, *args):
        if self.made == 125:
            self.state.position[0] = in_a_neck()
        return block(self, *args)

    target = density_of(rats)
    as_settled(monkeypatch)
    monkeypatch.setattr(full_data.Search, "block", after_one_got_lost)
    at = full_data.engine_of(target, 1, 4000), key(1, "model", "fit"), 1000, 4000, TARGETS[0]
    # False alarm < 1e-4: 2.8 with an sd of .1, and 42 or more where it is not lost.
    assert full_data.sample(*at).num_steps < 8
    monkeypatch.setattr(full_data, "LOST", 2000.0)
    assert full_data.sample(*at).num_steps > 16


@pytest.mark.parametrize(
    ("mixes", "draws"),
    [
        ([True], 125),
        ([False, True], 125 + 250),
        ([False, False, True], 250),  # the last ones alone
        ([False] * 5, 125 + 250 + 500),
    ],
)
def test_first_draws_count_beside_those_that_are_made_after_them(mixes, draws, monkeypatch):
    """Or the fit is of chains chosen for how well they agree."""

    def mixed(self, draws):
        return mixing(draws.position) if mixes.pop(0) else None

    monkeypatch.setattr(full_data.Search, "mixed", mixed)
    fit = fit_of(coin(), 1)
    assert (fit.draws.position.shape[1], mixes) == (draws, [])
    if fit.mixing is not None:
        np.testing.assert_array_equal(fit.mixing, mixing(fit.draws.position))


@pytest.mark.parametrize("name", repeated(BADLY))
@pytest.mark.parametrize("seed", repeated([1, 2]))
def test_what_is_not_mixed_is_flagged(name, seed):
    """By R-hat, or by the share of divergences or of refused proposals. Those of centred schools
    are about the limits at a target acceptance of .99, and far above them at .8."""
    skip_without_data(name)
    targets = TARGETS[:1] if name == "centred schools" else TARGETS
    fit = fitted(density_of(BADLY[name]()), 1, seed, targets=targets)
    # False alarm < 1e-4: 8% of schools' proposals are refused and 4% of the funnel's, give or take
    # a quarter (limit 1%). R-hat of two modes is 1.65, with an sd of .01.
    assert check(fit.draws, ["x"] * fit.draws.position.shape[-1]).problems


def of_garch(y):
    def model():
        mu = numpyro.sample("mu", dist.ImproperUniform(dist.constraints.real, (), ()))
        alpha0 = numpyro.sample("alpha0", dist.ImproperUniform(dist.constraints.positive, (), ()))
        alpha1 = numpyro.sample("alpha1", dist.Uniform(0, 1))
        share = numpyro.sample("share", dist.Uniform(0, 1))
        beta1 = numpyro.deterministic("beta1", share * (1 - alpha1))
        numpyro.factor("uniform on beta1", jnp.log(1 - alpha1))

        def step(variance, last):
            variance = alpha0 + alpha1 * (last - mu) ** 2 + beta1 * variance
            return variance, variance

        first = jnp.asarray(0.25)
        _, variance = jax.lax.scan(step, first, y[:-1])
        sd = jnp.sqrt(jnp.append(first, variance))
        numpyro.sample("y", dist.Normal(mu, sd), obs=y)

    return model


def of_ar(y):
    def model():
        alpha = numpyro.sample("alpha", dist.Normal(0, 10))
        beta = numpyro.sample("beta", dist.Normal(0, 10).expand([5]))
        sigma = numpyro.sample("sigma", dist.HalfCauchy(2.5))
        lags = jnp.stack([y[4 - k : len(y) - 1 - k] for k in range(5)], axis=1)
        numpyro.sample("y", dist.Normal(alpha + lags @ beta, sigma), obs=y[5:])

    return model


def of_schools(_):
    return schools(False)


REFERENCES = {
    "garch-garch11": ("posteriordb_garch.csv", of_garch),
    "arK-arK": ("posteriordb_arK.csv", of_ar),
    "eight_schools-eight_schools_noncentered": ("eight_schools.csv", of_schools),
}


@pytest.mark.slow
@pytest.mark.skipif("PCV_DATA" not in os.environ, reason="PCV_DATA names no folder of data")
@pytest.mark.parametrize("name", REFERENCES)
def test_means_are_those_of_posteriordb(name):
    file, make = REFERENCES[name]
    folder = Path(os.environ["PCV_DATA"])
    table = pd.read_csv(folder / file)
    model = make(jnp.asarray(table["y"].to_numpy(float)))
    reference = json.loads((folder / "ref" / f"{name}.json").read_text())["parameters"]
    info = initialize_model(jax.random.key(0), model, dynamic_args=False)
    _, unravel = ravel_pytree(info.param_info.z)
    draws = fitted(density_of(model), 1, 1).draws.position
    constrained = info.postprocess_fn
    named = jax.vmap(jax.vmap(lambda x: constrained(unravel(x))))(draws)
    compared = 0
    for label, known in reference.items():
        base, _, index = label.rstrip("]").partition("[")
        if base not in named:
            continue
        x = np.asarray(named[base])
        x = x[..., int(index) - 1] if index else x
        assert off(x, known["mean"], known["mcse_mean"]) < z_limit(len(reference)), label
        compared += 1
    assert compared >= 2
