"""`pm.Potential` and `numpyro.factor` are part of the prior, unless they depend on the outcome."""

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pymc as pm
import pytest
from scipy.stats import norm

import pcv
from pcv.base.errors import PcvError
from pcv.core.evidence import check_priors
from pcv.core.problem import pose
from pcv.models.checks.prior import strayed
from pcv.models.frontends.factors import changed, holds_outcome
from pcv.models.model import numeric

RNG = np.random.default_rng(4)
Y, X = RNG.normal(1, 2, 12), RNG.normal(size=12)
BINARY = np.arange(12) % 3 == 0
AT = np.array([-1.3, 0.2, 2.0])
"""values of mu"""


def in_numpyro(factor, y=Y, make=lambda mu: dist.Normal(mu, 1)):
    def model(y, x):
        mu = numpyro.sample("mu", dist.Normal(0, 1))
        with numpyro.plate("case", len(y)):
            numpyro.sample("y", make(mu), obs=y)
        numpyro.factor("extra", factor(mu, y, x))

    return pcv.from_numpyro(model, {"y": y, "x": X})


def in_pymc(factor, y=Y):
    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 1)
        observed = pm.Data("data", y)
        pm.Normal("y", mu, 1, observed=observed)
        pm.Potential("extra", factor(mu, y, observed))
    return pcv.from_pymc(model)


def densities(made):
    """Log prior, and log likelihood, at several values of mu."""
    data = numeric(made.data.columns)
    params = [{"mu": jnp.array(mu)} for mu in AT]
    return np.array([(made.log_prior(p), made.log_lik(p, data).sum()) for p in params]).T


@pytest.mark.parametrize(
    "made",
    [
        lambda: in_numpyro(lambda mu, y, x: -1.5 * mu**2),
        lambda: in_pymc(lambda mu, y, observed: -1.5 * mu**2),
        # Covariates, and the number of outcomes, are the same whatever they are.
        lambda: in_numpyro(lambda mu, y, x: -1.5 * mu**2 * jnp.sum(x**2) / (X @ X) * len(y) / 12),
        lambda: in_pymc(lambda mu, y, seen: -1.5 * mu**2 * (X * X / (X @ X)).sum()),
        lambda: in_pymc(lambda mu, y, seen: -1.5 * mu**2 * seen.shape[0] / 12),
    ],
    ids=["NumPyro", "PyMC", "NumPyro covariate", "PyMC covariate", "PyMC size"],
)
def test_a_factor_is_part_of_the_prior(made):
    """N(0, 1) times exp(-1.5 mu²) is N(0, 1 / 4), up to a constant."""
    made = made()
    of_prior, of_outcomes = densities(made)
    gaps = of_prior - norm.logpdf(AT, 0, 0.5)
    np.testing.assert_allclose(gaps, gaps[0], atol=1e-9)
    np.testing.assert_allclose(of_outcomes, [norm.logpdf(Y, mu, 1).sum() for mu in AT])
    assert tuple(made.factors) == ("extra",)
    assert strayed(made) == "extra"


DEPENDENT = {
    "one term": lambda: in_numpyro(lambda mu, y, x: -((y[3] - mu) ** 2)),
    "their mean": lambda: in_numpyro(lambda mu, y, x: -((jnp.mean(y) - mu) ** 2)),
    "the largest": lambda: in_numpyro(lambda mu, y, x: -((jnp.max(y) - mu) ** 2)),
    "a binary one": lambda: in_numpyro(
        lambda mu, y, x: mu * y[5], BINARY, lambda mu: dist.Bernoulli(logits=mu)
    ),
    "constants": lambda: in_pymc(lambda mu, y, seen: -((y - mu) ** 2).sum()),
    "some constants": lambda: in_pymc(lambda mu, y, seen: -((y[2:6] - mu) ** 2).sum()),
    "scaled ones": lambda: in_pymc(lambda mu, y, seen: -((3 - 2 * y - mu) ** 2).sum()),
    "shared data": lambda: in_pymc(lambda mu, y, seen: -((seen[1] - mu) ** 2)),
}


@pytest.mark.parametrize("name", DEPENDENT)
def test_part_of_the_likelihood_is_no_factor_of_the_prior(name):
    with pytest.raises(PcvError, match="'extra' depends on the outcome, but is no term of a unit"):
        DEPENDENT[name]()


def test_a_factor_beside_the_observed_variable_itself():
    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 1)
        y = pm.Normal("y", mu, 1, observed=Y)
        pm.Potential("extra", -((mu - y).sum() ** 2))
    with pytest.raises(PcvError, match=r"pm.Potential 'extra' depends on the outcome"):
        pcv.from_pymc(model)


def test_what_cannot_be_tried_is_refused():
    def model():
        mu = numpyro.sample("mu", dist.Normal(0, 1))
        numpyro.factor("extra", -((Y - mu) ** 2).sum())
        numpyro.sample("y", dist.Normal(mu, 1), obs=Y)

    with pytest.raises(PcvError, match=r"cannot be tried as 'y' is no argument; give it by data="):
        pcv.from_numpyro(model)


def test_there_is_no_evidence_with_a_factor():
    made = in_numpyro(lambda mu, y, x: -1.5 * mu**2)
    problem = pose("one", made, made.data.columns, pcv.kfold(12, 3))
    with pytest.raises(PcvError, match="the prior of 'extra' is improper, or `init` does not draw"):
        check_priors({"one": problem})


def test_every_value_is_changed():
    for y in (Y, BINARY, np.array([0, 2, 2, 5]), np.ones(3), np.array([1.0, np.nan, 2.0])):
        others = np.array(list(changed(y)))
        there = np.isfinite(y)
        assert (others != y)[:, there].any(0).all()
        assert np.isnan(others[:, ~there]).all()
    assert not holds_outcome(BINARY[:4], BINARY)  # as any zeros and ones are
