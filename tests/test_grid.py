"""Means over priors of one effect, of any shape and from any start, against dense quadrature."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from jax.nn import logsumexp
from scipy import stats

from pcv.models.effects import grid, second_look
from pcv.models.effects.laplace import laplace
from tests.bounds import z_limit
from tests.slow import repeated

Y = np.array([1.2, 0.3, 2.5, -0.4])


def two_modes(x, apart, sd):
    each = (dist.Normal(mode, sd).log_prob(x) for mode in (-apart, apart))
    return jnp.logaddexp(*each) - jnp.log(2.0)


def normal_terms(scale, shift=0.0):
    return lambda x: dist.Normal(x, scale).log_prob(scale * Y + shift)


def counts(y):
    """Their rate overflows far from the prior."""
    return lambda x: dist.Poisson(jnp.exp(x)).log_prob(np.array(y))


CASES = {
    "t, near": (dist.StudentT(3.0, 0.0, 1.0).log_prob, normal_terms(1.0)),
    "t, far": (dist.StudentT(3.0, 0.0, 0.1).log_prob, normal_terms(0.5, 5.0)),
    "t, narrow terms": (dist.StudentT(4.0, 0.0, 1.0).log_prob, normal_terms(1e-3, 4.0)),
    "Cauchy": (dist.Cauchy(0.0, 0.1).log_prob, normal_terms(0.05, 5.0)),
    "Gumbel": (dist.Gumbel(0.0, 1.0).log_prob, normal_terms(1.0, -2.0)),
    "Laplace": (dist.Laplace(0.0, 1.0).log_prob, normal_terms(1.0)),
    "logistic terms": (
        dist.StudentT(3.0, 0.0, 1.0).log_prob,
        lambda x: dist.BernoulliLogits(x).log_prob(np.array([1.0, 1.0, 0.0, 1.0])),
    ),
    "t, counts": (dist.StudentT(3.0, 0.2, 0.6).log_prob, counts([2, 3, 1])),
    "t, counts of 0": (dist.StudentT(3.0, 0.2, 0.6).log_prob, counts([0, 0, 1])),
    "narrow t, counts": (dist.StudentT(4.0, 0.2, 0.1).log_prob, counts([2, 3, 1])),
    "two modes": (lambda x: two_modes(x, 2.0, 0.3), normal_terms(1.0)),
    "two modes, far": (lambda x: two_modes(x, 6.0, 0.1), normal_terms(0.5, -5.0)),
}
STARTS = np.array([-2.1, 0.4, np.sqrt(3.0), 20.1])
IN_A_MODE = np.array([-6.1, 5.9, 6.0, 6.1])


def dense(log_prior, terms):
    """By a million nodes, evenly spaced in arcsinh(1000 x)."""
    s = np.linspace(-20, 20, 1_000_001)
    x, log_weight = jnp.asarray(1e-3 * np.sinh(s)), np.log(4e-8 * np.cosh(s))
    log_p, each = jax.vmap(log_prior)(x) + log_weight, jax.vmap(terms)(x)
    each = jnp.where(jnp.isnan(each), jnp.where(x[:, None] > 0, -jnp.inf, each), each)
    total = logsumexp(log_p)
    joint = logsumexp(log_p + each.sum(1)) - total
    return float(joint), np.asarray(logsumexp(log_p[:, None] + each, axis=0) - total)


@pytest.mark.parametrize("name", repeated(CASES, 4))
def test_priors_of_any_shape(name):
    log_prior, terms = CASES[name]
    joint, pointwise = dense(log_prior, terms)
    starts = IN_A_MODE if name == "two modes, far" else STARTS

    def found(start, width):
        by_key = jax.vmap(lambda key: grid.log_mean(key, log_prior, terms, start, width))
        return by_key(jax.random.split(jax.random.key(0), 20))

    mine = jax.jit(jax.vmap(jax.vmap(found, (None, 0)), (0, None)))(starts, np.array([0.1, 30.0]))
    np.testing.assert_allclose(mine[0], np.full(mine[0].shape, joint), atol=2e-3)
    np.testing.assert_allclose(mine[1], np.broadcast_to(pointwise, mine[1].shape), atol=1e-2)


SPREAD = {  # sds of the noise, and where 50 units lie
    "over 30 sds": (0.01, 0.7 + np.linspace(-0.15, 0.15, 50)),
    "two outliers": (0.05, 0.7 + np.r_[1.0, -0.6, 0.05 * np.sin(np.arange(48))]),
}


@pytest.mark.parametrize("name", SPREAD)
def test_many_units_with_little_noise(name):
    """Of which each has a peak of its own; among slots of other groups, which hold zeros."""
    (sd, y), log_prior = SPREAD[name], dist.StudentT(3.0, 0.0, 1.0).log_prob

    def terms(x):
        return jnp.pad(dist.Normal(x, sd).log_prob(y), (0, 150))

    z = np.linspace(-12.0, 12.0, 4001)[:, None]
    peaks = stats.t(3).logpdf(y + sd * z) + stats.norm.logpdf(z) + np.log(z[1] - z[0])
    exact = np.logaddexp.reduce(peaks, axis=0)

    @jax.jit
    @jax.vmap
    def found(key):
        return grid.log_mean(key, log_prior, terms, jnp.array(-2.1), jnp.array(10.0))

    _, pointwise = found(jax.random.split(jax.random.key(0), 10))
    error = np.abs(pointwise[:, :50] - exact)
    assert error.max() < 2e-3
    np.testing.assert_allclose(pointwise[:, 50:], 0.0, atol=1e-10)


@pytest.mark.parametrize("name", [name for name in CASES if name.endswith("counts")])
def test_a_second_look_knows_its_error_where_rates_overflow(name):
    log_prior, terms = CASES[name]
    joint, _ = dense(log_prior, terms)

    @jax.jit
    @jax.vmap
    def found(key):
        of_vectors = (lambda x: log_prior(x[0]), lambda x: terms(x[0]))
        return second_look.importance_sampling(key, jnp.array(0), *of_vectors, jnp.array([0.3]))

    value, variance = found(jax.random.split(jax.random.key(0), 20))
    z = (value - joint) / np.sqrt(variance[:, 0])
    assert np.abs(z).max() < z_limit(z.size)
    assert np.sqrt(variance).max() < 0.03


@pytest.mark.slow
def test_a_mean_is_at_most_the_largest_term():
    """Even where a second mode is too far away and too narrow to be found; but not where prior and
    integrand are integrated by nodes of their own, few and at random."""

    def log_prior(x):
        return two_modes(x, 1e4, 1e-4)

    def terms(x):
        return jnp.array([-1.0 - (x - 1e4) ** 2, -2.0])

    start, keys = jnp.array(1e4 + 1e-4), jax.random.split(jax.random.key(1), 200)

    @jax.jit
    @jax.vmap
    def found(key):
        return grid.log_mean(key, log_prior, terms, start, jnp.array(1.0))

    @jax.vmap
    def apart(key):
        around = dist.StudentT(5.0, start, 1e-4)
        x = around.sample(key, (2, 32))
        weighted = jax.vmap(jax.vmap(log_prior))(x) - around.log_prob(x)
        each = jax.vmap(lambda x: terms(x).sum())(x[1])
        return logsumexp(weighted[1] + each) - logsumexp(weighted[0])

    assert found(keys)[0].max() <= -3.0 + 1e-12
    assert apart(keys).max() > -2.9  # false alarm < 1e-4: one key of three


def test_newton_finds_the_mode_from_beside_an_inflection_point():
    """Of a t density, at which steps are nearly boundless."""
    log_density = dist.StudentT(3.0, 0.0, 1.0).log_prob
    starts = jnp.concatenate(
        [jnp.linspace(-60, 60, 1001), np.sqrt(3.0) + jnp.linspace(-0.1, 0.1, 201)]
    )
    found = jax.jit(jax.vmap(lambda x: laplace(lambda x: log_density(x).sum(), x[None])))(starts)
    np.testing.assert_allclose(found.mean, 0.0, atol=0.1)
    np.testing.assert_allclose(found.log_integral, np.median(found.log_integral), atol=0.01)


def test_terms_that_overflow_where_the_prior_is_negligible():
    """As densities of PyMC's Weibull do where y / scale underflows."""
    smooth = normal_terms(1.0)

    def of(terms):
        def found(key):
            prior = lambda x: x - jnp.exp(x)  # noqa: E731
            return grid.log_mean(key, prior, terms, jnp.array(0.0), jnp.array(1.0))

        return jax.jit(jax.vmap(found))(jax.random.split(jax.random.key(0), 200))

    for wrong in (jnp.inf, jnp.nan):
        found = of(lambda x, wrong=wrong: jnp.where(x < -300.0, wrong, smooth(x)))
        for one, other in zip(found, of(smooth)):
            np.testing.assert_allclose(one, other, atol=2e-3)
