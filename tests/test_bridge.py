"""Evidence from draws of the posterior, and from Laplace's approximation, against closed forms."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.scipy.stats import norm as normal
from scipy.special import betaln
from scipy.stats import beta, norm

from pcv.base.errors import PcvError
from pcv.models.model import Target
from pcv.sampling.fit.approximate import laplace_evidence
from pcv.sampling.fit.bridge import bridge
from tests.bounds import sd_limits, z_limit
from tests.slow import repeated
from tests.test_path import HEADS, SD, UNITS, X, Y, evidence_of

COVARIANCE = np.linalg.inv(np.diag(1 / SD**2) + X.T @ X)


def regression(b):
    return normal.logpdf(b, 0, SD).sum() + normal.logpdf(Y, X @ b).sum()


def of_regression(rng, size):
    return rng.multivariate_normal(COVARIANCE @ X.T @ Y, COVARIANCE, size)


def coins(u):
    both = jax.nn.log_sigmoid(u[0]), jax.nn.log_sigmoid(-u[0])
    return (2 + HEADS) * both[0] + (3 + UNITS - HEADS) * both[1] - betaln(2, 3)


def of_coins(rng, size):
    p = rng.beta(2 + HEADS, 3 + UNITS - HEADS, size)
    return (np.log(p) - np.log1p(-p))[..., None]


CASES = {
    "regression": (regression, of_regression, evidence_of(np.arange(UNITS))),
    "coins": (coins, of_coins, betaln(2 + HEADS, 3 + UNITS - HEADS) - betaln(2, 3)),
}


@pytest.mark.parametrize("name", repeated(CASES))
def test_bridge_is_exact_within_honest_errors(name):
    """Over 200 samples of four chains."""
    log_density, draw, exact = CASES[name]
    rngs = map(np.random.default_rng, range(200))
    found = [bridge(log_density, draw(rng, (4, 1000)), rng) for rng in rngs]
    errors = np.array([x.value - exact for x in found])
    assert abs(errors.mean()) < z_limit(df=199) * errors.std(ddof=1) / np.sqrt(200)
    low, high = sd_limits(200, kurtosis=3.5)
    assert low < (errors / [x.mcse for x in found]).std(ddof=1) < high
    assert max(x.mcse for x in found) < 0.01  # false alarm < 1e-4: mostly below .001


def test_where_a_density_is_not_a_number_it_is_none():
    """As for chains, which do not go there: half of the proposals do."""
    rng = np.random.default_rng(1)
    draws = norm.ppf(rng.uniform(0, norm.cdf(0.5), (4, 1000)))[..., None]

    def cut(x):
        return jnp.where(x[0] < 0.5, normal.logpdf(x[0]), jnp.nan)

    found = bridge(cut, draws, rng)
    assert abs(found.value - norm.logcdf(0.5)) < z_limit(df=100) * found.mcse < 0.2


def test_correlated_chains_have_larger_errors():
    """As large as the spread over samples: autoregressions with ρ = .9 on the posterior."""
    log_density, draw, exact = CASES["coins"]

    def chains(rng):
        z = rng.normal(size=(4, 400))
        for t in range(1, 400):
            z[:, t] = 0.9 * z[:, t - 1] + np.sqrt(1 - 0.81) * z[:, t]
        known = np.sort(draw(rng, 20000).ravel())
        share = np.searchsorted(np.sort(rng.normal(size=20000)), z) / 20001
        return np.quantile(known, share)[..., None]

    found = [bridge(log_density, chains(rng), rng) for rng in map(np.random.default_rng, range(60))]
    errors = np.array([x.value - exact for x in found])
    low, high = sd_limits(60, kurtosis=4.0)
    # The errors of so few effective draws are a tenth too small.
    assert low < (errors / [x.mcse for x in found]).std(ddof=1) / 1.1 < high
    rng = np.random.default_rng(0)
    alone = [bridge(log_density, draw(rng, (4, 400)), rng).mcse for _ in range(5)]
    # False alarm < 1e-4: the spread is four times as large, within a sixth.
    assert np.mean(alone) < 0.8 * errors.std(ddof=1)


@pytest.mark.slow
def test_many_parameters():
    """30 coins, of which each has a skew posterior of its own, from autocorrelated draws: honest
    errors, over 60 samples."""
    heads = np.random.default_rng(3).integers(0, 9, 30)
    exact = (betaln(2 + heads, 3 + 8 - heads) - betaln(2, 3)).sum()

    def log_density(u):
        up, down = jax.nn.log_sigmoid(u), jax.nn.log_sigmoid(-u)
        return ((2 + heads) * up + (11 - heads) * down).sum() - 30 * betaln(2, 3)

    def draws(rng):
        z = rng.normal(size=(4, 500, 30))
        for t in range(1, 500):
            z[:, t] = 0.6 * z[:, t - 1] + 0.8 * z[:, t]
        p = beta.ppf(norm.cdf(z), 2 + heads, 11 - heads)
        return np.log(p) - np.log1p(-p)

    found = [bridge(log_density, draws(rng), rng) for rng in map(np.random.default_rng, range(60))]
    errors = np.array([x.value - exact for x in found])
    assert abs(errors.mean()) < z_limit(df=59) * errors.std(ddof=1) / np.sqrt(60)
    low, high = sd_limits(60, kurtosis=3.5)
    assert low < (errors / [x.mcse for x in found]).std(ddof=1) < high
    assert max(x.mcse for x in found) < 0.1  # false alarm < 1e-4: .029, with sd .002


def test_draws_that_stand_still_say_nothing():
    rng = np.random.default_rng(1)
    draws = rng.normal(size=(4, 100, 3))
    for still in (draws * [1, 0, 1], draws[..., [0, 1, 1]]):
        assert np.isnan(bridge(lambda x: -0.5 * (x**2).sum(), still, rng).value)


def test_few_draws_for_many_parameters_say_nothing():
    rng = np.random.default_rng(1)
    draws = rng.normal(size=(4, 100, 60))
    assert np.isnan(bridge(lambda x: -0.5 * (x**2).sum(), draws, rng).value)


def test_laplace_where_much_of_it_is_ruled_out():
    """Of a normal, all above .2."""
    target = Target(
        lambda key: jnp.zeros(1),
        lambda x, fold: jnp.where(x[0] < 0.2, normal.logpdf(x[0]), -jnp.inf),
        lambda x, fold: x,
    )
    found, _ = laplace_evidence(target, 3, ["x"], jax.random.key(1), 4000)
    assert abs(found.value - norm.logcdf(0.2)) < z_limit() * found.mcse < 0.1


def test_laplace_of_a_density_that_is_hardly_ever_finite():
    """At the mode, where its curvature is known, and not around it."""
    target = Target(
        lambda key: jnp.zeros(2),
        lambda x, fold: jnp.where(abs(x).max() < 1e-9, -0.5 * (x**2).sum(), -jnp.inf),
        lambda x, fold: x,
    )
    with pytest.raises(
        PcvError, match=r"^laplace: the density is not finite at 4000 of 4000 draws"
    ):
        laplace_evidence(target, UNITS, ["x"] * 2, jax.random.key(1), 4000)


@pytest.mark.parametrize("name", CASES)
def test_laplace(name):
    log_density, _, exact = CASES[name]
    width = 3 if name == "regression" else 1
    target = Target(lambda key: jnp.zeros(width), lambda x, fold: log_density(x), lambda x, fold: x)
    found, khat = laplace_evidence(target, UNITS, ["x"] * width, jax.random.key(1), 4000)
    assert abs(found.value - exact) < z_limit(df=20) * found.mcse + 1e-6  # skewed weights
    assert found.mcse < 0.01
    assert not khat > 0.9  # false alarm < 1e-4: .4 with sd .1, or NaN where weights are alike
