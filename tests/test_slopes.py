"""Gradients that are no slopes are told, with their cause; of ordinary models none is."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from jax.scipy.stats import norm

from pcv.base.devices import precision
from pcv.base.errors import PcvError
from pcv.models.checks.slopes import check_slopes
from tests.slow import repeated

RNG = np.random.default_rng(1)
GROUP = np.repeat(np.arange(6), 5)
Y = RNG.normal(size=30)
DATA = {"y": Y, "hospital": GROUP + 1, "year": GROUP + 1990, "age": Y + 50}
SHAPES = {"mu": (), "tau": (), "z": (6,)}


def look(density, scale=1.0, data=DATA):
    """The check at points that are spread by `scale`, of which some are not finite."""
    rng = np.random.default_rng(2)
    at = {name: scale * rng.normal(size=(20, *shape)) for name, shape in SHAPES.items()}
    at["mu"][0] = np.nan
    dtype = jax.dtypes.canonicalize_dtype(float)
    at = {name: x.astype(dtype) for name, x in at.items()}
    found = jax.vmap(jax.value_and_grad(density))(at)
    check_slopes(density, at, *jax.tree.map(np.asarray, found), data, "y", "bad")


IN_BOTH = pytest.mark.parametrize("dtype", repeated(["float32", "float64"]))


def effects(p):
    return p["mu"] + jnp.exp(p["tau"]) * p["z"]


def prior(p):
    return -(p["mu"] ** 2 + p["tau"] ** 2 + (p["z"] ** 2).sum()) / 2


def likely(terms):
    """A density of terms of units by the hierarchy's effects."""
    return lambda p: prior(p) + terms(effects(p)[GROUP]).sum()


@jax.custom_jvp
def softplus(x):
    return jnp.logaddexp(x, 0.0)


softplus.defjvp(lambda x, t: (softplus(x[0]), jax.nn.sigmoid(x[0]) * t[0]))
MANY = RNG.normal(size=2000)
SOUND = {
    "normal": (likely(lambda m: norm.logpdf(Y, m)), 1.0),
    "laplace": (lambda p: prior(p) - jnp.abs(MANY - effects(p).sum()).sum(), 1.0),
    "hinge": (likely(lambda m: -jnp.maximum(0, 1 - Y * m)), 1.0),
    "censored": (likely(lambda m: jnp.where(Y > 1, norm.logcdf(m - 1), norm.logpdf(Y, m))), 1.0),
    "student": (likely(lambda m: dist.StudentT(1.5, m, 0.1).log_prob(Y)), 1.0),
    "poisson of large counts": (
        likely(lambda m: dist.Poisson(jnp.exp(10 + m)).log_prob(np.arange(30) * 10**4)),
        1.0,
    ),
    "far from the data": (likely(lambda m: norm.logpdf(Y, m, 1e-6)), 1.0),
    "units of a millionth": (likely(lambda m: norm.logpdf(Y, 1e6 * m, 1.0)), 1e-6),
    "parameters in millions": (likely(lambda m: norm.logpdf(Y, 1e-6 * m, 1.0)), 1e6),
    "steps": (likely(lambda m: norm.logpdf(Y, jnp.floor(5 * m) + m)), 1.0),
    "clipped": (likely(lambda m: norm.logpdf(Y, jnp.clip(m, -1, 1))), 1.0),
    "in turn": (likely(lambda m: norm.logpdf(np.sort(Y), jnp.sort(m))), 1.0),
    "interpolated": (likely(lambda m: jnp.interp(m, np.linspace(-3, 3, 50), MANY[:50])), 1.0),
    "waves": (likely(lambda m: 10 * jnp.sin(300 * m)), 1.0),
    "a walk": (lambda p: prior(p) + norm.logpdf(MANY[:6], jnp.cumsum(effects(p))).sum(), 1.0),
    "from the end": (lambda p: prior(p) + effects(p)[-jnp.asarray(GROUP) - 1].sum(), 1.0),
    "derivatives of one's own": (likely(lambda m: -softplus(-Y * m)), 1.0),
    "a parameter without effect": (lambda p: -(p["mu"] ** 2), 1.0),
    "no slope": (lambda p: 0.0 * p["mu"], 1.0),
}


@IN_BOTH
@pytest.mark.parametrize("name", SOUND)
def test_slopes_of_sound_models(name, dtype):
    with warnings.catch_warnings(), precision(dtype):
        warnings.simplefilter("error")
        look(*SOUND[name])


@IN_BOTH
@pytest.mark.parametrize(
    ("made", "parameters"),
    [(lambda p: p["z"], "'z'"), (effects, "a quantity computed from 'mu', 'tau', 'z'")],
    ids=["centred", "non-centred"],
)
def test_an_index_that_counts_from_one(made, parameters, dtype):
    """JAX reads the last effect for it, and leaves it out of the gradient."""

    def density(p):
        return prior(p) + norm.logpdf(Y, made(p)[jnp.asarray(GROUP) + 1]).sum()

    said = (
        f"^model 'bad': an index into {parameters} goes beyond its end, where JAX takes the last "
        "element: "
    )
    with precision(dtype):
        with pytest.raises(PcvError, match=f"{said}column 'hospital' counts from 1, subtract 1$"):
            look(density)
        with pytest.raises(PcvError, match=f"{said}does one count from 1\\?$"):
            look(density, data={"y": Y})


def test_a_model_that_insists_on_32_bit():
    """It cannot run in 64 bit, where slopes are looked at."""

    def density(p):
        added = jax.lax.scan(lambda s, x: (s + x, None), jnp.float32(0.0), effects(p))
        return prior(p) + added[0]

    with precision("float32"):
        look(density)
    with precision("float64"), pytest.raises(TypeError, match="carry"):
        look(density)


@jax.custom_vjp
def doubled(x):
    return x


doubled.defvjp(lambda x: (x, None), lambda _, t: (2 * t,))


@pytest.mark.parametrize("wrong", [jax.lax.stop_gradient, doubled], ids=["stopped", "custom"])
def test_other_gradients_that_are_no_slopes(wrong):
    with pytest.warns(UserWarning, match="'bad': its gradient in 'tau' is not the slope of its"):
        look(lambda p: likely(lambda m: norm.logpdf(Y, m))({**p, "tau": wrong(p["tau"])}))
