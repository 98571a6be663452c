"""Models of NumPyro, PyMC and Bambi have the density of their twins written by hand in JAX."""

import sys
import tempfile
from collections.abc import Callable
from typing import NamedTuple

import bambi as bmb
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
import pymc as pm
import pytensor.tensor as pt
import pytest
from numpyro import handlers
from numpyro.distributions import constraints
from numpyro.infer.reparam import LocScaleReparam
from numpyro.infer.util import potential_energy
from pytensor.compile.ops import wrap_py
from scipy.stats import norm

import pcv
from pcv.base.errors import PcvError
from pcv.models.checks.shapes import check_shapes
from pcv.models.frontends import as_model
from pcv.models.frontends.bambi import from_bambi
from pcv.models.frontends.numpyro import from_numpyro
from pcv.models.frontends.pymc import from_pymc
from pcv.models.model import Model, numeric, support
from pcv.pipeline.config import DataConfig
from pcv.pipeline.data.tables import make_data
from pcv.pipeline.problems import _of_column
from tests.bounds import z_limit
from tests.slow import repeated

N, J = 12, 4
RNG = np.random.default_rng(8)
GROUP = np.repeat(np.arange(J), N // J)
X, OFFSET = RNG.normal(size=(N, 2)), RNG.normal(0, 0.3, N)
REAL, PAIRS = RNG.normal(1.0, 2.0, N), RNG.normal(size=(N, 2))
BINARY, COUNT, GRADE = RNG.integers(0, 2, N), RNG.poisson(4.0, N), RNG.integers(0, 4, N)
COV = np.array([[1.0, 0.4], [0.4, 2.0]])


class Twin(NamedTuple):
    """A model by hand, and as its users write it."""

    prior: dict[str, dist.Distribution]
    outcome: Callable[[dict], dist.Distribution]
    y: np.ndarray
    in_numpyro: Callable[..., None]
    in_pymc: Callable[[], pm.Model]


def regression(name, y, make, extra=(), kwargs=None):
    """Twins whose parameters are alpha, beta and those of `extra`."""
    prior = {"alpha": dist.Normal(0.0, 2.0), "beta": dist.Normal(0.0, 2.0).expand([2]).to_event(1)}
    prior |= dict(extra)

    def model(y, x, **more):
        theta = {key: numpyro.sample(key, p) for key, p in prior.items()}
        with numpyro.plate("case", len(y)):
            numpyro.sample("y", make(theta, theta["alpha"] + x @ theta["beta"], **more), obs=y)

    def outcome(theta):
        return make(theta, theta["alpha"] + X @ theta["beta"], **(kwargs or {}))

    return prior, outcome, y, lambda: from_numpyro(model, {"y": y, "x": X, **(kwargs or {})})


def in_pymc(make):
    def build():
        with pm.Model() as model:
            alpha, beta = pm.Normal("alpha", 0, 2), pm.Normal("beta", 0, 2, shape=2)
            make(alpha + X @ beta)
        return model

    return build


def hierarchical_prior(theta):
    return {
        "mu": dist.Normal(0.0, 5.0),
        "tau": dist.HalfNormal(2.0),
        "sigma": dist.HalfNormal(2.0),
        "theta": dist.Normal(theta["mu"], theta["tau"]).expand([J]),
    }


def hierarchical(y, group):
    mu, tau = numpyro.sample("mu", dist.Normal(0, 5)), numpyro.sample("tau", dist.HalfNormal(2))
    sigma = numpyro.sample("sigma", dist.HalfNormal(2))
    with numpyro.plate("group", J):
        theta = numpyro.sample("theta", dist.Normal(mu, tau))
    with numpyro.plate("case", len(y)):
        numpyro.sample("y", dist.Normal(theta[group], sigma), obs=y)


def hierarchical_pymc():
    with pm.Model(coords={"group": [10, 20, 30, 40]}) as model:
        mu, tau = pm.Normal("mu", 0, 5), pm.HalfNormal("tau", 2)
        sigma = pm.HalfNormal("sigma", 2)
        theta = pm.Normal("theta", mu, tau, dims="group")
        pm.Deterministic("best", theta.max())
        pm.Normal("y", theta[GROUP], sigma, observed=REAL)
    return model


def multivariate(y):
    mu = numpyro.sample("mu", dist.Normal(0, 1).expand([2]).to_event(1))
    tau = numpyro.sample("tau", dist.HalfNormal(1))
    with numpyro.plate("case", len(y)):
        numpyro.sample("y", dist.MultivariateNormal(mu, tau**2 * COV), obs=y)


def multivariate_pymc():
    with pm.Model() as model:
        mu, tau = pm.Normal("mu", 0, 1, shape=2), pm.HalfNormal("tau", 1)
        pm.MvNormal("y", mu, cov=tau**2 * COV, observed=PAIRS)
    return model


def autoregression(y):
    rho = numpyro.sample("rho", dist.Normal(0, 0.7).expand([2]).to_event(1))
    sigma = numpyro.sample("sigma", dist.HalfNormal(1))
    with numpyro.plate("month", len(y) - 2):
        numpyro.sample("later", dist.Normal(rho[0] * y[1:-1] + rho[1] * y[:-2], sigma), obs=y[2:])


def autoregression_pymc():
    with pm.Model() as model:
        rho, sigma = pm.Normal("rho", 0, 0.7, shape=2), pm.HalfNormal("sigma", 1)
        pm.Normal("later", rho[0] * REAL[1:-1] + rho[1] * REAL[:-2], sigma, observed=REAL[2:])
    return model


def ordinal(y, x):
    beta = numpyro.sample("beta", dist.Normal(0, 2).expand([2]).to_event(1))
    cut = numpyro.sample("cut", dist.ImproperUniform(constraints.ordered_vector, (), (3,)))
    with numpyro.plate("case", len(y)):
        numpyro.sample("y", dist.OrderedLogistic(x @ beta, cut), obs=y)


def ordinal_pymc():
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 2, shape=2)
        cut = pm.Flat(
            "cut", shape=3, transform=pm.distributions.transforms.ordered, initval=[-1, 0, 1]
        )
        pm.OrderedLogistic("y", X @ beta, cut, observed=GRADE, compute_p=False)
    return model


ORDERED = dist.ImproperUniform(constraints.ordered_vector, (), (3,))
TWINS = {
    "hierarchical": Twin(
        hierarchical_prior,
        lambda t: dist.Normal(t["theta"][GROUP], t["sigma"]),
        REAL,
        lambda: from_numpyro(hierarchical, {"y": REAL, "group": GROUP}),
        hierarchical_pymc,
    ),
    "logistic": Twin(
        *regression("y", BINARY, lambda t, eta: dist.Bernoulli(logits=eta)),
        in_pymc(lambda eta: pm.Bernoulli("y", logit_p=eta, observed=BINARY)),
    ),
    "poisson with offset": Twin(
        *regression(
            "y",
            COUNT,
            lambda t, eta, offset: dist.Poisson(jnp.exp(eta + offset)),
            kwargs={"offset": OFFSET},
        ),
        in_pymc(lambda eta: pm.Poisson("y", pt.exp(eta + OFFSET), observed=COUNT)),
    ),
    "negative binomial": Twin(
        *regression(
            "y",
            COUNT,
            lambda t, eta: dist.NegativeBinomial2(jnp.exp(eta), t["phi"]),
            extra={"phi": dist.HalfNormal(5.0)},
        ),
        in_pymc(
            lambda eta: pm.NegativeBinomial(
                "y", mu=pt.exp(eta), alpha=pm.HalfNormal("phi", 5), observed=COUNT
            )
        ),
    ),
    "ordered logistic": Twin(
        {"beta": dist.Normal(0.0, 2.0).expand([2]).to_event(1), "cut": ORDERED},
        lambda t: dist.OrderedLogistic(X @ t["beta"], t["cut"]),
        GRADE,
        lambda: from_numpyro(ordinal, {"y": GRADE, "x": X}),
        ordinal_pymc,
    ),
    "multivariate normal": Twin(
        {"mu": dist.Normal(0.0, 1.0).expand([2]).to_event(1), "tau": dist.HalfNormal(1.0)},
        lambda t: dist.MultivariateNormal(t["mu"], t["tau"] ** 2 * COV),
        PAIRS,
        lambda: from_numpyro(multivariate, {"y": PAIRS}),
        multivariate_pymc,
    ),
    "autoregression": Twin(
        {"rho": dist.Normal(0.0, 0.7).expand([2]).to_event(1), "sigma": dist.HalfNormal(1.0)},
        lambda t: dist.Normal(t["rho"][0] * REAL[1:-1] + t["rho"][1] * REAL[:-2], t["sigma"]),
        REAL[2:],
        lambda: from_numpyro(autoregression, {"y": REAL}),
        autoregression_pymc,
    ),
}
FRONT_ENDS = {
    "NumPyro": lambda twin: twin.in_numpyro(),
    "PyMC": lambda twin: from_pymc(twin.in_pymc()),
}


def by_hand(twin: Twin) -> tuple[Callable, Callable]:
    """Log prior and unit log likelihoods of the twin, on the unconstrained scale."""
    ones = {name: jnp.ones(()) for name in ("mu", "tau")}
    priors = twin.prior(ones) if callable(twin.prior) else twin.prior
    space = support({name: p.support for name, p in priors.items()})

    def log_prior(params):
        theta = space.constrain(params)
        given = twin.prior(theta) if callable(twin.prior) else twin.prior
        terms = [jnp.sum(p.log_prob(theta[name])) for name, p in given.items()]
        return sum(terms) + space.log_jacobian(params)

    return log_prior, lambda params: twin.outcome(space.constrain(params)).log_prob(twin.y)


def own_name(name: str) -> str:
    """Of a PyMC value variable: sigma_log__ is sigma."""
    return name.rsplit("_", 3)[0] if name.endswith("__") else name


@pytest.mark.parametrize("front_end", FRONT_ENDS)
@pytest.mark.parametrize("name", repeated(TWINS, 3))
def test_same_density_and_gradient_as_by_hand(name, front_end):
    twin = TWINS[name]
    made = FRONT_ENDS[front_end](twin)
    log_prior, log_lik = by_hand(twin)
    weight = jnp.asarray(np.random.default_rng(1).normal(size=len(twin.y)))
    data = numeric(made.data.columns)
    for seed in range(5):
        start = made.init(jax.random.key(seed))
        params = {
            key: x + 0.5 * jax.random.normal(jax.random.key(seed), x.shape)
            for key, x in start.items()
        }
        theirs = {own_name(key): x for key, x in params.items()}
        np.testing.assert_allclose(made.log_prior(params), log_prior(theirs), rtol=1e-8)
        for given in ({}, data):
            np.testing.assert_allclose(made.log_lik(params, given), log_lik(theirs), rtol=1e-6)

        def both(params, prior, lik):
            return prior(params) + weight @ lik(params)

        grad = jax.grad(both)(params, made.log_prior, lambda p: made.log_lik(p, {}))
        expected = jax.grad(both)(theirs, log_prior, log_lik)
        for key, x in grad.items():
            np.testing.assert_allclose(x, expected[own_name(key)], rtol=1e-5, atol=1e-9)
    assert set(map(own_name, start)) <= set(made.constrain(start))


def test_a_configs_model_observes_its_data():
    made = from_numpyro(hierarchical, {"y": REAL, "group": GROUP})
    params, other = made.init(jax.random.key(1)), jnp.asarray(REAL[::-1])
    assert _of_column(made, "m.py:f", {"y": REAL}, "y") is made
    renamed = _of_column(made, "m.py:f", {"weight": REAL}, "weight")
    assert renamed.outcome.name == "weight"
    expected = made.log_lik(params, {"y": other})
    np.testing.assert_allclose(renamed.log_lik(params, {"weight": other}), expected, rtol=1e-12)
    for column in ("y", "weight"):
        words = f"'m.py:f': what it observes, 'y', is not column '{column}' of the data, row by row"
        with pytest.raises(PcvError, match=words):
            _of_column(made, "m.py:f", {column: REAL[::-1]}, column)


def test_another_outcome_goes_into_the_density():
    for name in ("hierarchical", "logistic"):
        for front_end in FRONT_ENDS.values():
            made = front_end(TWINS[name])
            params = made.init(jax.random.key(1))
            other = {**numeric(made.data.columns), "y": jnp.asarray(TWINS[name].y[::-1])}
            theta = {own_name(key): x for key, x in params.items()}
            prior = TWINS[name].prior
            given = prior({"mu": 0.0, "tau": 1.0}) if callable(prior) else prior
            space = support({key: p.support for key, p in given.items()})
            expected = TWINS[name].outcome(space.constrain(theta)).log_prob(TWINS[name].y[::-1])
            np.testing.assert_allclose(made.log_lik(params, other), expected, rtol=1e-8)


def test_replicates_of_one_distribution_for_all():
    def coin(y):
        numpyro.sample("y", dist.Bernoulli(numpyro.sample("p", dist.Beta(2, 2))), obs=y)

    made = from_numpyro(coin, {"y": BINARY})
    params = {"p": jnp.zeros(())}
    drawn = jax.vmap(lambda key: made.predict(key, params, {}))(
        jax.random.split(jax.random.key(1), 400)
    )
    assert drawn.shape == (400, len(BINARY))
    assert abs(drawn.mean() - 0.5) < z_limit() * 0.5 / np.sqrt(drawn.size)
    assert 0.3 < drawn.std(1).mean() < 0.6  # each observation has a draw of its own


def test_a_density_of_ones_own_needs_no_replicates():
    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 1)
        pm.CustomDist(
            "y",
            mu,
            logp=lambda value, mu: pm.logp(pm.Normal.dist(mu, 2.0), value),
            random=lambda mu, rng=None, size=None: rng.normal(mu, 2.0, size),
            observed=REAL,
        )
    made = from_pymc(model)
    assert made.predict is None
    (note,) = made.notes
    assert note.startswith("scores of 'y' are of the log density that a CustomDist gives, as it is")
    params = {"mu": jnp.asarray(0.3)}
    expected = dist.Normal(0.3, 2.0).log_prob(REAL)
    np.testing.assert_allclose(made.log_lik(params, {}), expected, rtol=1e-6)


def logged(y):
    mu = numpyro.sample("mu", dist.Normal(0, 1))
    with numpyro.plate("case", len(y)):
        numpyro.sample("y", dist.Normal(mu, 0.5 + 1 / y), obs=jnp.log(y))


def lagged(y):
    rho = numpyro.sample("rho", dist.Normal(0, 0.7))
    with numpyro.plate("case", len(y) - 2):
        numpyro.sample("y", dist.Normal(rho * y[1:-1], 1.0), obs=y[2:])


@pytest.mark.parametrize("model", [logged, lagged])
def test_a_site_of_an_arguments_name_observes_a_function_of_it(model):
    made = from_numpyro(model, {"y": 1.0 + np.abs(REAL)})
    params = made.init(jax.random.key(1))
    expected = made.log_lik(params, {})
    found = made.log_lik(params, numeric(made.data.columns))
    np.testing.assert_allclose(found, expected, rtol=1e-12)


@pytest.mark.parametrize("front_end", FRONT_ENDS)
def test_replicates_are_of_the_outcomes_distribution(front_end):
    twin = TWINS["poisson with offset"]
    made = FRONT_ENDS[front_end](twin)
    params = made.init(jax.random.key(3))
    params = {key: 0.3 * x for key, x in params.items()}
    keys = jax.random.split(jax.random.key(4), 4000)
    drawn = jax.vmap(lambda key: made.predict(key, params, {}))(keys)
    fn = twin.outcome(params)
    error = np.sqrt(np.asarray(fn.variance) / len(keys))
    assert np.abs((drawn.mean(0) - fn.mean) / error).max() < z_limit(error.size)
    if made.moments:
        np.testing.assert_allclose(made.moments(params, {})[0], fn.mean, rtol=1e-8)


class TestNumPyro:
    def test_handlers_and_supports(self):
        def model(y, group):
            shares = numpyro.sample("shares", dist.Dirichlet(jnp.ones(3)))
            chol = numpyro.sample("chol", dist.LKJCholesky(2, 2.0))
            low = numpyro.sample("low", dist.Normal(0, 1))
            high = numpyro.sample("high", dist.TruncatedNormal(0, 1, low=low))
            flat = numpyro.sample("flat", dist.ImproperUniform(constraints.positive, (), ()))
            with numpyro.plate("group", J):
                theta = numpyro.sample("theta", dist.Normal(low, flat))
            numpyro.deterministic("sum", theta.sum())
            mean = theta[group] + shares[0] + chol[1, 0] + high
            with numpyro.plate("case", len(y)), handlers.scale(scale=0.5):
                numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)

        reparam = handlers.reparam(model, config={"theta": LocScaleReparam(0.0)})
        made = from_numpyro(reparam, {"y": REAL, "group": GROUP})
        for seed in range(3):
            params = made.init(jax.random.key(seed))
            assert "theta_decentered" in params
            total = made.log_prior(params) + made.log_lik(params, {}).sum()
            kwargs = {"y": jnp.asarray(REAL), "group": jnp.asarray(GROUP)}
            expected = -potential_energy(reparam, (), kwargs, params)
            np.testing.assert_allclose(total, expected, rtol=1e-10)
        shown = made.constrain(params)
        assert {"theta", "sum", "shares", "chol", "high"} <= set(shown)
        assert shown["shares"].sum() == pytest.approx(1)
        full = from_numpyro(handlers.scale(reparam, 1.0), kwargs)
        assert full.data.order == ("case",)

    @pytest.mark.parametrize(
        "outcome",
        [
            lambda end: dist.Uniform(0, end),
            lambda end: dist.Pareto(end / 5, 1.5),
            lambda end: dist.TruncatedNormal(1.0, 1.0, low=-end),
            lambda end: dist.Uniform(-end, 9.0),
        ],
        ids=["uniform", "Pareto", "truncated", "below"],
    )
    def test_support_that_depends_on_parameters(self, outcome):
        """The density is 0 where an observation is beyond it, in a trace as without one."""

        def model(y):
            end = numpyro.sample("end", dist.LogNormal(0, 1))
            with numpyro.plate("case", len(y)):
                numpyro.sample("y", outcome(end), obs=y)

        y = np.array([0.4, 0.9, 2.0])
        made = from_numpyro(model, {"y": y})
        for end in (0.5, 3.0, 12.0):
            params = {"end": jnp.log(end)}
            expected = jax.jit(lambda end: outcome(end).log_prob(jnp.asarray(y)))(end)
            for data in ({}, {"y": y}, {"y": jnp.asarray(y)}):
                found = jax.jit(made.log_lik)(params, data)
                np.testing.assert_allclose(found, expected)
            expected = dist.LogNormal(0, 1).log_prob(end) + jnp.log(end)
            assert jax.jit(made.log_prior)(params) == pytest.approx(float(expected))

    @pytest.mark.parametrize(
        "size",
        [
            lambda group, number: len(np.unique(group)),
            lambda group, number: int(group.max()) + 1,
            lambda group, number: number,
        ],
        ids=["unique", "largest", "given"],
    )
    def test_sizes_are_computed_from_the_data(self, size):
        def model(y, group, number):
            with numpyro.plate("group", size(group, number)):
                theta = numpyro.sample("theta", dist.Normal(0, 1))
            with numpyro.plate("case", len(y)):
                numpyro.sample("y", dist.Normal(theta[group], 1), obs=y)

        made = from_numpyro(model, {"y": REAL, "group": GROUP, "number": np.int64(J)})
        params = {"theta": jnp.arange(J) / J}
        expected = dist.Normal(params["theta"][GROUP], 1).log_prob(REAL)
        # data that stay as they are are constants, and outcomes may be others
        given = {name: jnp.asarray(made.data.columns[name]) for name in ("y", "group")}
        found = jax.jit(lambda p: made.log_lik(p, given))(params)
        np.testing.assert_allclose(found, expected, rtol=1e-8)
        other = jax.jit(lambda p, y: made.log_lik(p, given | {"y": y}))(params, REAL + 1)
        shifted = dist.Normal(params["theta"][GROUP], 1).log_prob(REAL + 1)
        np.testing.assert_allclose(other, shifted, rtol=1e-8)

    def test_data_are_indexed_by_what_is_drawn(self):
        def model(y, dose):
            share = numpyro.sample("share", dist.Beta(2, 2))
            level = jnp.floor(share * len(dose)).astype(int)
            with numpyro.plate("case", len(y)):
                numpyro.sample("y", dist.Normal(dose[level], 1), obs=y)

        made = from_numpyro(model, {"y": REAL, "dose": X[:, 0]})
        found = jax.jit(lambda p: made.log_lik(p, {}))({"share": jnp.array(0.0)})
        expected = dist.Normal(X[N // 2, 0], 1).log_prob(REAL)
        np.testing.assert_allclose(found, expected, rtol=1e-8)

    def test_a_model_that_cannot_be_compiled_is_refused(self):
        def model(y):
            mu = numpyro.sample("mu", dist.Normal(0, 1))
            with numpyro.plate("case", len(y)):
                numpyro.sample("y", dist.Normal(mu if mu > 0 else 0.0, 1), obs=y)

        with pytest.raises(PcvError, match=r"'model': fails when called with y: .*boolean"):
            from_numpyro(model, {"y": REAL})

    def test_plates_are_dimensions_of_the_posterior(self):
        def model(y, group):
            with numpyro.plate("site", J):
                theta = numpyro.sample("theta", dist.Normal(0, 1))
                pair = numpyro.sample("pair", dist.Normal(jnp.zeros(2), 1).to_event(1))
            numpyro.deterministic("twice", 2 * theta)
            with numpyro.plate("case", len(y)):
                numpyro.sample("y", dist.Normal(theta[group] + pair[group, 0], 1), obs=y)

        named = {"coords": {"site": list("abcd")}, "dims": {"twice": ["site"]}}
        made = from_numpyro(model, {"y": REAL, "group": GROUP}, **named)
        assert made.dims == {
            "theta": ["site"],
            "pair": ["site", "pair_dim_1"],
            "twice": ["site"],
        }
        assert made.coords == {"site": list("abcd")}

    def test_units_are_elements_of_a_plate(self):
        def model(y):
            mu = numpyro.sample("mu", dist.Normal(0, 1))
            with numpyro.plate("site", 3, dim=-2), numpyro.plate("week", 4, dim=-1):
                numpyro.sample("y", dist.Normal(mu, 1), obs=y)

        y = REAL.reshape(3, 4)
        params = {"mu": jnp.array(0.3)}
        terms = dist.Normal(0.3, 1).log_prob(y)
        for units, expected in [
            (None, terms.ravel()),
            ("site", terms.sum(1)),
            ("week", terms.sum(0)),
            (["week", "site"], terms.T.ravel()),
        ]:
            made = from_numpyro(model, {"y": y}, units=units)
            np.testing.assert_allclose(made.log_lik(params, {}), expected, rtol=1e-8)
        assert from_numpyro(model, {"y": y}, units="site").data.units == ("site",)

    def test_several_observed_sites_share_units(self):
        def model(y, z):
            mu = numpyro.sample("mu", dist.Normal(0, 1))
            with numpyro.plate("case", len(y)):
                numpyro.sample("y", dist.Normal(mu, 1), obs=y)
                numpyro.sample("z", dist.Poisson(jnp.exp(mu)), obs=z)

        made = from_numpyro(model, {"y": REAL, "z": COUNT})
        terms = dist.Normal(0.3, 1).log_prob(REAL) + dist.Poisson(jnp.exp(0.3)).log_prob(COUNT)
        np.testing.assert_allclose(made.log_lik({"mu": jnp.array(0.3)}, {}), terms, rtol=1e-6)
        assert made.outcome.name == "y_z"
        assert made.data.units == ("case",)


def numpyro_model(body):
    def model(y):
        mu = numpyro.sample("mu", dist.Normal(0, 1))
        body(mu, y)

    return model


def in_plate(mu, y, **kwargs):
    with numpyro.plate("case", len(y), **kwargs):
        numpyro.sample("y", dist.Normal(mu, 1), obs=y[: kwargs.get("subsample_size")])


def missing_in_plate(mu, y, there, fn):
    with numpyro.plate("case", len(y)):
        numpyro.sample("y", fn, obs=y, obs_mask=there)


def masked_in_plate(mu, y, mask):
    with numpyro.plate("case", len(y)), handlers.mask(mask=mask):
        numpyro.sample("y", dist.Normal(mu, 1), obs=y)


REFUSED = {
    "discrete": (
        lambda mu, y: in_plate(mu + numpyro.sample("k", dist.Poisson(2.0)), y),
        "latent site 'k' is discrete, which HMC cannot sample; marginalise it out",
    ),
    "param": (
        lambda mu, y: in_plate(mu + numpyro.param("shift", 0.0), y),
        "'shift' is a numpyro.param, which has no prior",
    ),
    "subsampling": (
        lambda mu, y: in_plate(mu, y, subsample_size=3),
        "plate 'case' subsamples 3 of 12 elements",
    ),
    "missing counts": (
        lambda mu, y: missing_in_plate(mu, y, y < 3, dist.Poisson(2.0)),
        "'y' is discrete, so that its missing values (obs_mask) cannot be sampled; leave them out",
    ),
    "masked altogether": (
        lambda mu, y: masked_in_plate(mu, y, False),
        "all of its 12 outcomes are missing",
    ),
    "parts of a vector": (
        lambda mu, y: numpyro.sample(
            "y",
            dist.Normal(mu, 1).expand([6, 2]).to_event(1),
            obs=np.where(y == y[3], np.nan, y).reshape(6, 2),
        ),
        "parts of y[1] are missing (NaN), and its density does not split",
    ),
    "nothing observed": (lambda mu, y: None, "no site is observed"),
    "factor alone": (
        lambda mu, y: numpyro.factor("extra", -(mu**2)),
        "no site is observed; give one obs=...",
    ),
    "one event": (
        lambda mu, y: numpyro.sample("y", dist.Normal(mu, 1).expand([N]).to_event(1), obs=y),
        "observed site 'y' has shape (12,) but is a single event; declare its observations with a "
        "plate, or drop to_event; for jointly normal outcomes, as in a Gaussian process, use "
        "pcv.normal_target",
    ),
    "fails": (lambda mu, y: y.nothing(), "fails when called with y: AttributeError"),
}


@pytest.mark.parametrize(("body", "words"), REFUSED.values(), ids=REFUSED)
def test_numpyro_models_that_are_refused(body, words):
    with pytest.raises(PcvError, match="NumPyro model 'model': ") as error:
        from_numpyro(numpyro_model(body), {"y": REAL})
    assert words in str(error.value)


def test_what_is_masked_of_a_unit_is_not_scored():
    there = np.arange(12).reshape(4, 3) % 5 > 0

    def weeks(mu, y):
        with numpyro.plate("week", 4, dim=-2), numpyro.plate("day", 3), handlers.mask(mask=there):
            numpyro.sample("y", dist.Normal(mu, 1), obs=y)

    y = REAL.reshape(4, 3)
    made = from_numpyro(numpyro_model(weeks), {"y": y}, units="week")
    terms = np.where(there, dist.Normal(0.3, 1).log_prob(y), 0.0).sum(1)
    assert len(made.data.columns["y"]) == there.sum()
    np.testing.assert_allclose(made.log_lik({"mu": jnp.array(0.3)}, {}), terms, rtol=1e-6)


class WithoutSample(dist.Normal):
    def sample(self, key, sample_shape=()):
        raise NotImplementedError


def test_distributions_without_sample():
    """Latent ones begin near 0 on the unconstrained scale, observed ones have no replicates."""

    def model(y):
        mu = numpyro.sample("mu", WithoutSample(1000.0, 1e-3))
        with numpyro.plate("case", len(y)):
            numpyro.sample("y", WithoutSample(mu, 2.0), obs=y)

    made = from_numpyro(model, {"y": REAL})
    assert made.predict is None
    check_shapes(made, dict(made.data.columns), N, "y", "model")
    starts = jax.vmap(made.init)(jax.random.split(jax.random.key(1), 50))["mu"]
    assert np.abs(starts).max() < 2
    assert np.ptp(starts) > 1
    terms = dist.Normal(0.3, 2.0).log_prob(REAL)
    np.testing.assert_allclose(made.log_lik({"mu": jnp.array(0.3)}, {}), terms, rtol=1e-6)


def scaled(mu, y, by):
    with numpyro.plate("case", len(y)), handlers.scale(scale=by):
        numpyro.sample("y", dist.Normal(mu, 1), obs=y)


NOTES = {
    "as they are": (in_plate, []),
    "by one": (lambda mu, y: scaled(mu, y, 1.0), []),
    "scaled": (
        lambda mu, y: scaled(mu, y, 0.5),
        ["scores of 'y' are of its log density times 0.5 (handlers.scale)"],
    ),
    "scaled each": (
        lambda mu, y: scaled(mu, y, np.arange(1.0, N + 1)),
        ["scores of 'y' are of its log density times varying factors (handlers.scale)"],
    ),
    "improper": (
        lambda mu, y: in_plate(
            mu + numpyro.sample("b", dist.ImproperUniform(constraints.real, (), ())), y
        ),
        ["the prior of 'b' is improper (ImproperUniform): a fold's posterior may be improper"],
    ),
}


@pytest.mark.parametrize(("body", "notes"), NOTES.values(), ids=NOTES)
def test_what_readers_of_scores_must_know(body, notes):
    made = from_numpyro(numpyro_model(body), {"y": REAL})
    assert len(made.notes) == len(notes)
    assert all(map(str.startswith, made.notes, notes))


def test_shapes_that_do_not_fit_are_refused():
    def beside(y):
        mu = numpyro.sample("mu", dist.Normal(0, 1))
        numpyro.sample("y", dist.Normal(mu + np.zeros(N), 1), obs=y)

    def wrong_plate(y):
        mu = numpyro.sample("mu", dist.Normal(0, 1))
        with numpyro.plate("n", 7):
            numpyro.sample("y", dist.Normal(mu, 1), obs=y)

    for model, y, shape in ((beside, REAL[:, None], "12, 12"), (wrong_plate, REAL, "7,")):
        with pytest.raises(PcvError, match="its distribution and plates have shape") as error:
            from_numpyro(model, {"y": y})
        assert f"values of shape {y.shape}, " in str(error.value)
        assert shape.split(",")[0] in str(error.value)


def test_a_table_is_data():
    frame = pd.DataFrame({"y": REAL})
    made = from_numpyro(numpyro_model(in_plate), frame)
    np.testing.assert_array_equal(made.data.columns["y"], REAL)


def test_vectors_and_covariates_of_their_shape():
    def model(y, x):
        mu = numpyro.sample("mu", dist.Normal(0, 1).expand([3]).to_event(1))
        with numpyro.plate("n", 4):
            numpyro.sample("y", dist.MultivariateNormal(mu + x, np.eye(3)), obs=y)

    y, x = REAL.reshape(4, 3), X[:, 0].reshape(4, 3)
    made = from_numpyro(model, {"y": y, "x": x})
    assert made.predict is not None
    columns = {name: jnp.asarray(values) for name, values in made.data.columns.items()}
    params = made.init(jax.random.key(1))
    np.testing.assert_allclose(made.log_lik(params, columns), made.log_lik(params, {}))
    assert made.log_lik(params, columns).shape == (4,)


def test_numpyro_models_without_anything_to_draw_are_refused():
    def known(y):
        in_plate(0.0, y)

    with pytest.raises(PcvError, match="'known': no latent site; there is nothing to sample"):
        from_numpyro(known, {"y": REAL})


def test_sites_without_a_common_plate_are_refused():
    def two(mu, y):
        in_plate(mu, y)
        with numpyro.plate("visit", 3):
            numpyro.sample("z", dist.Normal(mu, 1), obs=y[:3])

    words = r"'y' \(case\) and 'z' \(visit\) share no dimension; give them the same one"
    with pytest.raises(PcvError, match=words):
        from_numpyro(numpyro_model(two), {"y": REAL})
    with pytest.raises(PcvError, match=r"units 'case' is not a dimension of 'z'; there are visit"):
        from_numpyro(numpyro_model(two), {"y": REAL}, units="case")


def test_units_that_are_no_plate_are_refused():
    with pytest.raises(PcvError, match=r"units 'week' is not a dimension of 'y'; there are case"):
        from_numpyro(numpyro_model(in_plate), {"y": REAL}, units="week")
    with pytest.raises(PcvError, match=r"units 'cases' is not a dimension .* did you mean 'case'"):
        from_numpyro(numpyro_model(in_plate), {"y": REAL}, units="cases")
    with pytest.raises(PcvError, match=r"column 'site' must have a value for each of the 12"):
        from_numpyro(numpyro_model(in_plate), {"y": REAL}, columns={"site": [1, 2]})


def pymc_model(body):
    with pm.Model() as model:
        body(pm.Normal("mu", 0, 1))
    return model


def with_missing_counts(mu):
    with pytest.warns(UserWarning, match="missing"):
        pm.Poisson("y", pm.math.exp(mu), observed=np.ma.array(COUNT, mask=COUNT > 5))


def with_parts_missing(mu):
    pairs = PAIRS.copy()
    pairs[2, 1] = np.nan
    with pytest.warns(UserWarning, match="missing"):
        pm.MvNormal("y", mu * np.ones(2), COV, observed=pairs)


def with_a_minibatch(mu):
    with pytest.warns(UserWarning, match="total_size"):
        pm.Normal("y", mu, 1, observed=pm.Minibatch(REAL, batch_size=3))


@wrap_py(itypes=[pt.dscalar], otypes=[pt.dscalar])
def without_jax(x):
    return 2 * x


PYMC_REFUSED = {
    "missing counts": (
        with_missing_counts,
        "'y' is discrete, so that its missing values cannot be sampled; drop these observations",
    ),
    "parts of a vector": (with_parts_missing, "parts of an outcome of 'y' are missing"),
    "minibatch": (
        lambda mu: pm.Normal("y", mu, 1, observed=pm.Minibatch(REAL, batch_size=3), total_size=N),
        "'y' is a minibatch",
    ),
    "minibatch without total_size": (
        with_a_minibatch,
        "'y' is a minibatch",
    ),
    "a column for a vector": (
        lambda mu: pm.Normal("y", mu + np.zeros(N), 1, observed=REAL[:, None]),
        "do the observed values ('y' (12, 1)) have the shape of their distribution? (",
    ),
    "discrete": (
        lambda mu: pm.Normal("y", mu + pm.Poisson("k", 2), 1, observed=REAL),
        "free variable 'k' is discrete, which HMC cannot sample",
    ),
    "nothing observed": (lambda mu: None, "nothing is observed; give a variable observed=..."),
    "no JAX": (
        lambda mu: pm.Normal("y", without_jax(mu), 1, observed=REAL),
        "JAX does not implement part of it: ",
    ),
    "one observation": (
        lambda mu: pm.MvNormal("y", mu + np.zeros(N), cov=np.eye(N), observed=REAL),
        "'y' is a single observation, of shape (12,)",
    ),
}


@pytest.mark.parametrize(("body", "words"), PYMC_REFUSED.values(), ids=PYMC_REFUSED)
def test_pymc_models_that_are_refused(body, words):
    with pytest.raises(PcvError, match="PyMC model") as error:
        from_pymc(pymc_model(body))
    assert words in str(error.value)


def test_pymc_models_without_anything_to_draw_are_refused():
    with pm.Model(name="known") as model:
        pm.Normal("y", 0, 1, observed=REAL)
    with pytest.raises(PcvError, match="PyMC model 'known': it has no free variables; there is"):
        from_pymc(model)


def test_columns_that_a_model_has_changed_stay_its_own():
    """A covariate standardised under its own name, in the workflow's data."""
    raw = np.linspace(40.0, 60.0, len(REAL))

    def line(y, x):
        slope = numpyro.sample("slope", dist.Normal(0, 5))
        with numpyro.plate("unit", len(y)):
            numpyro.sample("y", dist.Normal(slope * x, 1.0), obs=y)

    own = from_numpyro(line, {"y": REAL, "x": (raw - 50) / 10})
    made = _of_column(own, "m.py:f", {"y": REAL, "x": raw}, "y")
    params = {"slope": jnp.array(2.0)}
    want = norm.logpdf(REAL, 2 * (raw - 50) / 10)
    for data in ({"y": REAL, "x": raw}, {"y": REAL, "x": raw, "other": raw}):
        np.testing.assert_allclose(made.log_lik(params, data), want)
        np.testing.assert_allclose(made.moments(params, data)[0], 2 * (raw - 50) / 10)
    np.testing.assert_allclose(
        made.log_lik(params, {"y": REAL + 1, "x": raw}), norm.logpdf(REAL + 1, 2 * (raw - 50) / 10)
    )
    same = _of_column(
        from_numpyro(line, {"y": REAL, "x": raw}), "m.py:f", {"y": REAL, "x": raw}, "y"
    )
    few = {"y": REAL[:2], "x": raw[:2]}
    np.testing.assert_allclose(same.log_lik(params, few), norm.logpdf(REAL[:2], 2 * raw[:2]))


def test_units_and_columns_that_pymc_models_do_not_have_are_refused():
    model = pymc_model(lambda mu: pm.Normal("y", mu, 1, observed=REAL))
    with pytest.raises(PcvError, match="units 'week' is not a dimension of 'y'; there are y_dim_0"):
        from_pymc(model, units="week")
    with pytest.raises(PcvError, match="column 'site' must have a value for each of the 12 obs"):
        from_pymc(model, columns={"site": [1, 2]})


def test_what_is_no_model_of_the_front_end_is_refused():
    model = pymc_model(lambda mu: pm.Normal("y", mu, 1, observed=REAL))
    with pytest.raises(PcvError, match="from_pymc: function is not a PyMC model; give a pm"):
        from_pymc(hierarchical_pymc)
    with pytest.raises(PcvError, match="from_bambi: Model is not a Bambi model; give a bmb"):
        from_bambi(model)
    assert as_model(hierarchical_pymc) is None


@pytest.mark.parametrize("name", ["from_pymc", "from_bambi"])
def test_pymc_that_is_not_installed(monkeypatch, name):
    monkeypatch.setitem(sys.modules, "pymc", None)
    for front_end in ("pymc", "bambi"):
        monkeypatch.delitem(sys.modules, f"pcv.models.frontends.{front_end}")
    words = "^models of PyMC and Bambi need these installed: install pcv with its extra, "
    with pytest.raises(PcvError, match=words + r"pcv-bayes\[pymc\]$"):
        getattr(pcv, name)


def test_other_models_need_no_pymc(monkeypatch):
    for package in ("pymc", "bambi"):
        monkeypatch.setitem(sys.modules, package, None)
    made = from_numpyro(numpyro_model(in_plate), {"y": REAL})
    assert as_model(made) is made
    assert as_model("a model") is None


def test_dims_and_deterministics_of_pymc():
    made = from_pymc(hierarchical_pymc())
    assert made.dims == {"theta": ["group"]}
    assert set(made.constrain(made.init(jax.random.key(1)))) == {
        *("mu", "tau", "sigma", "theta", "best")
    }
    with pm.Model(coords={"week": ["a", "b", "c", "d"], "day": [1, 2, 3]}) as model:
        mu = pm.Normal("mu", 0, 1)
        scale = pm.HalfNormal("scale", 1, dims="day")
        pm.Deterministic("all", pt.outer(pt.ones(4), scale), dims=("week", "day"))
        pm.Normal("y", mu, 1, observed=REAL.reshape(4, 3), dims=("week", "day"))
    made = from_pymc(model, units="week")
    assert made.dims == {"scale": ["day"], "all": ["week", "day"]}
    assert {name: list(x) for name, x in made.coords.items()} == {
        "week": ["a", "b", "c", "d"],
        "day": [1, 2, 3],
    }
    assert made.data.units == ("week",)
    assert made.data.columns["week"].tolist() == np.repeat(list("abcd"), 3).tolist()
    terms = dist.Normal(0.3, 1).log_prob(REAL.reshape(4, 3)).sum(1)
    params = {"mu": jnp.array(0.3), "scale_log__": jnp.zeros(3)}
    np.testing.assert_allclose(made.log_lik(params, {}), terms, rtol=1e-8)


COORDS = {
    "unsorted": (list("dbac"), list("dbac"), {"site_index": "site"}),
    "sorted": (list("abcd"), list("abcd"), {}),
    "unsorted numbers": ([4, 2, 9, 1], ["4", "2", "9", "1"], {"site_index": "site"}),
    "dates": (
        pd.to_datetime(["2020-03-01", "2020-01-01", "2020-02-01", "2020-04-01"]),
        ["2020-03-01", "2020-01-01", "2020-02-01", "2020-04-01"],
        {"site_index": "site"},
    ),
    "sorted dates": (
        pd.date_range("2020-01-01", periods=4),
        [f"2020-01-0{i}" for i in range(1, 5)],
        {},
    ),
    "pairs": (
        [("a", 2), ("a", 1), ("b", 1), ("b", 2)],
        ["('a', 2)", "('a', 1)", "('b', 1)", "('b', 2)"],
        {"site_index": "site"},
    ),
    "not told apart": (list("aabb"), list("0123"), {}),
    "with a missing one": (["b", None, "a", "c"], ["b", "nan", "a", "c"], {"site_index": "site"}),
}


@pytest.mark.parametrize(("coords", "names", "labels"), COORDS.values(), ids=COORDS)
def test_units_have_the_names_of_their_coords(coords, names, labels):
    """In the order of the model's terms, sorted or not, as rows and as units of several."""
    for dims, shape, units in ((("site",), 4, None), (("site", "day"), (4, 3), "site")):
        with pm.Model(coords={"site": coords, "day": [3, 1, 2]}) as model:
            pm.Normal(
                "y",
                pm.Normal("mu", 0, 1),
                1,
                observed=REAL[:4] if units is None else REAL.reshape(shape),
                dims=dims,
            )
        rows = from_pymc(model, units=units).data
        assert dict(rows.labels).items() >= labels.items()
        config = DataConfig(
            file="-",
            outcome="y",
            order=list(rows.order),
            units=list(rows.units),
            labels=dict(rows.labels),
        )
        data = make_data(pd.DataFrame(rows.columns), {}, config, "-")
        assert [x.split(maxsplit=1)[1] for x in data["unit"].values] == names
        np.testing.assert_array_equal(data["y"], REAL[: data["y"].size])


@pytest.mark.filterwarnings("ignore:For backward compatibility:DeprecationWarning")
@pytest.mark.filterwarnings("ignore::pandas.errors.Pandas4Warning")
def test_weights_of_bambi_are_said():
    frame = pd.DataFrame(
        {"y": REAL, "x": np.arange(len(REAL)), "w": 1.0 + np.arange(len(REAL)) % 2}
    )
    made = from_bambi(bmb.Model("weighted(y, w) ~ x", frame))
    assert len(made.notes) == 1
    assert made.notes[0].endswith("are of its log density times its weights (weighted)")
    assert not from_bambi(bmb.Model("y ~ x", frame)).notes


@pytest.mark.filterwarnings("ignore::pandas.errors.Pandas4Warning")
def test_bambi_is_its_pymc_model_with_columns():
    frame = pd.DataFrame({"y": REAL, "x": X[:, 0], "site": np.array(list("abcd"))[GROUP]})
    unused = {"remark": [None] * N, "spare": np.full(N, np.nan), "unit": np.arange(N)}
    model = bmb.Model("y ~ x + (1 | site)", frame.assign(**unused))
    made = as_model(model)
    assert isinstance(made, Model)
    assert {"y", "x", "site"} <= set(made.data.columns)
    assert not set(unused) & set(made.data.columns)
    assert made.data.order == ("obs",)  # their dimension __obs__, as units are named: "obs 3"
    twin = from_pymc(model.backend.model)
    params = made.init(jax.random.key(1))
    assert made.log_lik(params, {}).shape == (N,)
    np.testing.assert_allclose(made.log_lik(params, {}), twin.log_lik(params, {}), rtol=1e-10)
    assert {"Intercept", "x", "1|site"} <= set(made.constrain(params))
    assert from_bambi(model).outcome.name == "y"


def test_ordered_variables_begin_in_order():
    with pm.Model() as model:
        cut = pm.Normal("cut", 0, 2, shape=3, transform=pm.distributions.transforms.ordered)
        pm.OrderedLogistic("y", X[:, 0], cut, observed=GRADE, compute_p=False)
    made = from_pymc(model)
    assert made.outcome.ordered is None  # PyMC makes it a Categorical
    starts = jax.vmap(made.init)(jax.random.split(jax.random.key(0), 4000))
    cuts = np.asarray(jax.vmap(made.constrain)(starts)["cut"])
    assert np.all(np.diff(cuts) > 0)
    # Of three normal draws: order statistics. 200 different ones are behind the 4,000.
    error = 2 * 0.75 * (1 / 200 + 1 / 4000) ** 0.5
    np.testing.assert_allclose(cuts.mean(0), [-1.693, 0, 1.693], atol=z_limit(3) * error)


def test_variables_that_are_hardly_ever_in_order_begin_apart_all_the_same():
    with pm.Model() as model:
        cut = pm.Normal("cut", 0, 2, shape=10, transform=pm.distributions.transforms.ordered)
        pm.OrderedLogistic("y", X[:, 0], cut, observed=GRADE, compute_p=False)
    starts = jax.vmap(from_pymc(model).init)(jax.random.split(jax.random.key(0), 50))
    (cuts,) = starts.values()
    assert np.isfinite(cuts).all()
    assert len(np.unique(cuts, axis=0)) > 20


@pytest.mark.filterwarnings("ignore:The intercept is omitted in ordinal families:UserWarning")
def test_bambi_cumulative_and_its_twin_by_hand():
    frame = pd.DataFrame({"y": pd.Categorical(GRADE, ordered=True), "x": X[:, 0]})
    priors = {"x": bmb.Prior("Normal", mu=0, sigma=1)}
    made = from_bambi(bmb.Model("y ~ x", frame, family="cumulative", priors=priors))
    check_shapes(made, {"y": GRADE}, N, "y", "cumulative")
    assert made.dims == {"threshold": ["threshold_dim"], "p": ["__obs__", "p_dim_1"]}
    assert made.outcome.ordered

    def by_hand(params):
        cut = dist.biject_to(constraints.ordered_vector)(params["threshold_ordered__"])
        return dist.OrderedLogistic(params["x"] * X[:, 0], cut).log_prob(GRADE)

    for seed in range(3):
        params = made.init(jax.random.key(seed))
        np.testing.assert_allclose(made.log_lik(params, {}), by_hand(params), rtol=1e-9)
        of_made, of_hand = (
            jax.grad(lambda p: f(p).sum())(params)  # noqa: B023
            for f in (lambda p: made.log_lik(p, {}), by_hand)
        )
        for name, grad in of_hand.items():
            np.testing.assert_allclose(of_made[name], grad, rtol=1e-7)


@pytest.mark.filterwarnings("ignore:For backward compatibility:DeprecationWarning")
@pytest.mark.filterwarnings("ignore::pandas.errors.Pandas4Warning")
def test_bambi_drops_rows_where_a_column_of_its_formula_has_no_value():
    site = np.array(list("abcd"))[GROUP]
    frame = pd.DataFrame({"y": REAL, "x": X[:, 0], "site": site, "spare": np.nan})
    frame.loc[2, "x"], frame.loc[5, "y"] = np.nan, np.nan
    made = from_bambi(bmb.Model("y ~ scale(x)", frame, dropna=True))
    kept = np.delete(np.arange(N), [2, 5])
    np.testing.assert_array_equal(made.data.columns["y"], REAL[kept])
    np.testing.assert_array_equal(made.data.columns["x"], X[kept, 0])
    assert made.data.columns["site"].tolist() == site[kept].tolist()
    assert "spare" not in made.data.columns


def test_no_sources_stay_in_the_temporary_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    made = from_pymc(hierarchical_pymc())
    made.log_prior(made.init(jax.random.key(1)))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", ["Censored", "Truncated", "OrderedProbit"])
def test_pymc_distributions_have_second_derivatives(kind):
    """erfcx of JAX 0.12 has one for single numbers alone."""
    y = np.array([0.1, 0.5, 0.9, 0.3])
    with pm.Model() as model:
        mean = pm.Normal("mean", 0.4, 0.2, shape=4)
        if kind == "OrderedProbit":
            pm.OrderedProbit("y", mean, [0.0, 0.7], observed=[0, 1, 2, 1])
        else:
            getattr(pm, kind)("y", pm.Normal.dist(mean, 0.3), lower=0, upper=1, observed=y)
    made = from_pymc(model)

    def total(mean):
        return made.log_lik({"mean": mean}, {}).sum()

    at, step = jnp.array([0.2, 0.5, 1.4, -0.3]), 1e-5
    slope, curved = jax.grad(total), jax.hessian(total)(at)
    numerical = [(slope(at + step * e) - slope(at - step * e)) / (2 * step) for e in np.eye(4)]
    np.testing.assert_allclose(curved, np.stack(numerical), atol=1e-6)


def test_arrays_of_a_numpyro_model_that_are_changed_later():
    """Arguments are copied; of what the model's function encloses, the outcome is watched."""
    x, y = np.arange(5.0), np.arange(5.0) ** 2

    def line(x, y):
        b = numpyro.sample("b", dist.Normal(0, 1))
        numpyro.sample("y", dist.Normal(b * x, 1.0), obs=y)

    params = {"b": jnp.array(0.3)}
    of_arguments = from_numpyro(line, {"x": x, "y": y})
    of_a_table = from_numpyro(line, table := pd.DataFrame({"x": x, "y": y}))
    enclosing = from_numpyro(lambda: line(x, y))
    before = [
        model.log_lik(params, numeric(model.data.columns))
        for model in (of_arguments, of_a_table, enclosing)
    ]
    x[:], y[:] = x[::-1].copy(), y[::-1].copy()
    table.loc[:, ["x", "y"]] = table.to_numpy()[::-1]
    for model, terms in zip((of_arguments, of_a_table), before):
        now = model.log_lik(params, numeric(model.data.columns))
        np.testing.assert_array_equal(now, terms)
    with pytest.raises(PcvError, match=r"observed at 'y' has changed since pcv\.from_numpyro"):
        enclosing.log_lik(params, numeric(enclosing.data.columns))
