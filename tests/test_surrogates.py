"""Surrogates against loops, finite differences, and a regression whose exact terms are known."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from arviz_stats.base import array_stats
from scipy.special import logsumexp
from scipy.stats import norm

from pcv.base.section import OF_DRAWS, SURROGATES
from pcv.sampling.fit.surrogates import Posterior, evenly, posterior, smoothed, surrogates

UNITS, WIDTH, S = 40, 3, 4000
RNG = np.random.default_rng(1)
X = RNG.normal(size=(UNITS, WIDTH))
Y = X @ [0.5, -1.0, 0.2] + RNG.normal(size=UNITS)
Y[0] += 3.0


def conjugate(rows, prior=1.0):
    """Mean and covariance of the coefficients, with prior N(0, 1) and noise N(0, 1)."""
    precision = np.eye(WIDTH) / prior + X[rows].T @ X[rows]
    covariance = np.linalg.inv(precision)
    return covariance @ X[rows].T @ Y[rows], covariance


def terms(beta):
    return -0.5 * (Y - X @ beta) ** 2 - 0.5 * np.log(2 * np.pi)


def exact_terms():
    found = []
    for i in range(UNITS):
        mean, covariance = conjugate(np.delete(np.arange(UNITS), i))
        found.append(norm.logpdf(Y[i], X[i] @ mean, np.sqrt(1 + X[i] @ covariance @ X[i])))
    return np.array(found)


MEAN, COVARIANCE = conjugate(np.arange(UNITS))
DRAWS = np.random.default_rng(2).multivariate_normal(MEAN, COVARIANCE, S)
LL = np.array([terms(beta) for beta in DRAWS])
LPD = logsumexp(LL, axis=0) - np.log(S)


@pytest.fixture
def found():
    """Of all draws, by their names without the number."""
    names = [f"{name}_{S}" if name in OF_DRAWS else name for name in SURROGATES]
    of_all = surrogates(terms, posterior(DRAWS), names)
    return {name.removesuffix(f"_{S}"): np.asarray(x) for name, x in of_all.items()}


def test_of_draws_by_loops(found):
    np.testing.assert_allclose(found["plpd"], terms(DRAWS.mean(0)))
    np.testing.assert_allclose(found["lpd"], LPD)
    np.testing.assert_allclose(found["waic"], LPD - LL.var(axis=0, ddof=1))
    for i in range(UNITS):
        ratio = np.exp(-LL[:, i])
        weight = np.minimum(ratio, ratio.mean() * np.sqrt(S))
        np.testing.assert_allclose(
            found["tis"][i], np.log(weight @ np.exp(LL[:, i]) / weight.sum())
        )
    weight, khat = array_stats.psislw(LL.T)
    np.testing.assert_allclose(found["psis"], logsumexp(weight + LL.T, axis=1))
    np.testing.assert_allclose(found["khat"], khat)


def test_a_number_in_the_name_is_of_draws():
    some = surrogates(terms, posterior(DRAWS), ["waic_100", "tis_100", "tis"])
    for number, name in ((100, "tis_100"), (S, "tis")):
        of_few = surrogates(terms, posterior(DRAWS[evenly(S, number)]), ["tis"])
        np.testing.assert_allclose(some[name], of_few["tis"])
    ll = LL[evenly(S, 100)]
    waic = logsumexp(ll, axis=0) - np.log(100) - ll.var(axis=0, ddof=1)
    np.testing.assert_allclose(some["waic_100"], waic)


def test_by_the_delta_method_from_finite_differences(found):
    center, covariance = DRAWS.mean(0), np.cov(DRAWS.T)
    step = 1e-4 * np.eye(WIDTH)
    slope = np.array([(terms(center + e) - terms(center - e)) / 2e-4 for e in step])
    curvature = np.array(
        [
            [
                (
                    terms(center + e + f)
                    - terms(center + e - f)
                    - terms(center - e + f)
                    + terms(center - e - f)
                )
                / 4e-8
                for e in step
            ]
            for f in step
        ]
    )
    first = np.einsum("ji,jk,ki->i", slope, covariance, slope)
    marginal = (slope**2 * np.diag(covariance)[:, None]).sum(0)
    twice = np.einsum("jki,kl->jli", curvature, covariance)
    second = first + np.einsum("jki,kji->i", twice, twice) / 2
    for name, p_eff in [("d1waic_m", marginal), ("d1waic", first), ("d2waic", second)]:
        np.testing.assert_allclose(found[name], LPD - p_eff, rtol=1e-5)
        np.testing.assert_allclose(found[f"plpd_{name}"], found["plpd"] - p_eff, rtol=1e-5)


def test_the_second_order_is_exact_where_terms_are_quadratic():
    root = np.linalg.cholesky(COVARIANCE)
    sd = np.sqrt(np.diag(COVARIANCE))
    given = Posterior(*map(jnp.asarray, (DRAWS[:2], np.zeros(2), MEAN, root, sd)))
    found = surrogates(terms, given, ["plpd_d2waic"])
    slope, size = Y - X @ MEAN, np.einsum("ij,jk,ik->i", X, COVARIANCE, X)
    variance = slope**2 * size + size**2 / 2
    np.testing.assert_allclose(found["plpd"] - found["plpd_d2waic"], variance)
    error = LL.var(axis=0, ddof=1) - variance
    assert (abs(error) < 0.325 * variance).all()  # false alarm < 1e-4: beyond .19 in 1 of 100
    assert list(found) == ["influence", "plpd", "plpd_d2waic"]


def test_the_influence_of_draws_is_the_error_of_the_sum():
    """Of importance sampling: its spread over replicates, which an expansion of ten terms, without
    the others that offset them, exaggerates."""
    rng, run = np.random.default_rng(6), jax.jit(partial(surrogates, terms, names=["tis"]))
    found = [run(posterior(rng.multivariate_normal(MEAN, COVARIANCE, 500))) for _ in range(400)]
    tis = np.array([x["tis"] for x in found])
    mcse = [np.sqrt(np.sum(np.asarray(x["influence"]) ** 2)) for x in found]
    # False alarm < 1e-4: it is 1.02 with an sd of .036, and of ten terms 2.25 with one of .08.
    assert 0.85 < tis.sum(1).std() / np.mean(mcse) < 1.17
    assert (UNITS / 10 * tis[:, :10].sum(1)).std() > 1.5 * np.mean(mcse)


def test_near_the_exact_terms_in_the_order_of_their_cost(found):
    exact = exact_terms()
    off = {name: np.sqrt(np.mean((found[name] - exact) ** 2)) for name in SURROGATES}
    # False alarm < 1e-4: .005 (sd .002), but .014 (.001) of d1waic and .1 (.001) of plpd.
    assert off["psis"] < 0.02
    assert max(off["psis"], off["tis"], off["waic"]) < off["plpd"] / 2
    assert off["d2waic"] <= off["d1waic"] < off["plpd"] / 2


def test_draws_of_an_approximation_are_corrected(found):
    wide = np.random.default_rng(3).multivariate_normal(MEAN, 1.5 * COVARIANCE, S)

    def log_density(mean, covariance):
        centered = wide - mean
        return -0.5 * np.einsum("sj,jk,sk->s", centered, np.linalg.inv(covariance), centered)

    log_weight = log_density(MEAN, COVARIANCE) - log_density(MEAN, 1.5 * COVARIANCE)
    given = posterior(wide)._replace(log_weight=jnp.asarray(log_weight))
    again = surrogates(terms, given, ["psis", "tis", "waic"])
    exact = exact_terms()
    # False alarm < 1e-4: the sd is .015 at most, of psis .0013, and of psis without weights .0033.
    np.testing.assert_allclose(again["lpd"], found["lpd"], atol=0.08)
    np.testing.assert_allclose(again["waic"], found["waic"], atol=0.1)
    for name in ("psis", "tis"):
        assert np.sqrt(np.mean((again[name] - exact) ** 2)) < 0.03
    plain = surrogates(terms, posterior(wide), ["psis"])
    assert np.sqrt(np.mean((plain["psis"] - exact) ** 2)) > 0.04  # it is .059


@pytest.mark.parametrize("draws", [20, 25, 100, 400])
def test_tails_too_short_or_constant_are_left_as_they_are(draws):
    ratio = np.random.default_rng(4).standard_t(2, (draws, 5))
    ratio[:, 1] = 0.0
    ratio[-draws // 3 :, 2] = 9.0
    weight, khat = map(np.asarray, smoothed(jnp.asarray(ratio)))
    assert np.isnan(khat[[1, 2]]).all()
    np.testing.assert_allclose(weight[:, [1, 2]], (ratio - ratio.max(0))[:, [1, 2]])
    if draws < 25:
        assert np.isnan(khat).all()
        return
    expected, known = array_stats.psislw(-ratio[:, [0, 3, 4]].T)
    np.testing.assert_allclose(khat[[0, 3, 4]], known)
    found = weight[:, [0, 3, 4]].T
    np.testing.assert_allclose(found - logsumexp(found, axis=1)[:, None], expected)


def test_draws_are_thinned_and_moments_are_of_all():
    given = posterior(DRAWS, kept=evenly(S, 100))
    assert given.draws.shape == (100, WIDTH)
    np.testing.assert_array_equal(np.asarray(given.draws), DRAWS[:: S // 100])
    np.testing.assert_allclose(given.root @ given.root.T, np.cov(DRAWS.T), atol=1e-12)
    np.testing.assert_allclose(given.sd, DRAWS.std(0, ddof=1))
