"""One model in NumPyro, PyMC, Bambi and JAX is one density."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import bambi as bmb
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
import pymc as pm
import pytest
from numpyro.infer.reparam import LocScaleReparam

import pcv
from pcv.folds.base import Folds
from pcv.models.effects.marginal import choose
from pcv.models.model import Model, Outcome, numeric, support

pytestmark = [
    pytest.mark.filterwarnings("ignore:For backward compatibility:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::pandas.errors.Pandas4Warning"),
]
Prior = Mapping[str, dist.Distribution]


class Example(NamedTuple):
    """A model in all front-ends, and another one that must not agree with it."""

    table: Callable[[], pd.DataFrame]
    folds: Callable[[pd.DataFrame], Folds]
    models: Callable[[pd.DataFrame], dict[str, Any]]
    wrong: Callable[[pd.DataFrame], Model]
    names: dict[str, str]
    """front-end → its names of the parameters, those of NumPyro first, in one order"""


def table_of(name: str, outcome: str) -> pd.DataFrame:
    file = Path(os.environ.get("PCV_DATA", "")) / name
    if not file.is_file():
        pytest.skip(f"PCV_DATA names no folder with {name}")
    return pd.read_csv(file).rename(columns={outcome: "y"})


def columns(table: pd.DataFrame, *names: str) -> dict[str, np.ndarray]:
    return {name: table[name].to_numpy() for name in ("y", *names)}


def by_hand(
    prior: Prior,
    outcome: Callable[[dict, Any], dist.Distribution],
    effects: Callable[[dict], dist.Distribution] | None = None,
) -> Model:
    """A model in JAX; its effects `u`, if it has any, depend on the other parameters."""
    space = support({name: p.support for name, p in prior.items()})

    def init(key: jax.Array) -> dict[str, jax.Array]:
        of_u, *keys = jax.random.split(key, len(prior) + 1)
        theta = {name: p.sample(k) for (name, p), k in zip(prior.items(), keys)}
        drawn = {"u": effects(theta).sample(of_u)} if effects else {}
        return space.unconstrain(theta | drawn)

    def log_prior(params: dict[str, jax.Array]) -> jax.Array:
        theta = space.constrain(params)
        terms = [p.log_prob(theta[name]) for name, p in prior.items()]
        of_u = effects(theta).log_prob(theta["u"]).sum() if effects else 0.0
        return sum(terms) + of_u + space.log_jacobian(params)

    def log_lik(params: dict[str, jax.Array], data: Any) -> jax.Array:
        return outcome(space.constrain(params), data).log_prob(data["y"])

    return Model(init, log_prior, log_lik, space.constrain, Outcome("y"))


# Eight schools


def schools(y, sigma, scale=5.0):
    mu, tau = numpyro.sample("mu", dist.Normal(0, 5)), numpyro.sample("tau", dist.HalfCauchy(scale))
    with numpyro.plate("place", len(y)):
        with numpyro.handlers.reparam(config={"theta": LocScaleReparam(0.0)}):
            theta = numpyro.sample("theta", dist.Normal(mu, tau))
        numpyro.sample("y", dist.Normal(theta, sigma), obs=y)


def schools_in(table: pd.DataFrame) -> dict[str, Any]:
    y, sigma = table["y"].to_numpy(), table["sigma"].to_numpy()
    with pm.Model() as in_pymc:
        z = pm.Normal("z", 0, 1, shape=8)
        theta = pm.Normal("mu", 0, 5) + pm.HalfCauchy("tau", 5) * z
        pm.Normal("y", theta, sigma, observed=y)
    prior = {"mu": dist.Normal(0.0, 5.0), "tau": dist.HalfCauchy(5.0)}
    effect = bmb.Prior("Normal", mu=0, sigma=bmb.Prior("HalfCauchy", beta=5))
    return {
        "NumPyro": pcv.from_numpyro(schools, {"y": y, "sigma": sigma}),
        "PyMC": in_pymc,
        "Bambi": bmb.Model(
            bmb.Formula("y ~ 1 + (1|school)", "sigma ~ 0 + offset(log(se))"),
            table.assign(se=sigma).drop(columns="sigma"),
            priors={"Intercept": bmb.Prior("Normal", mu=0, sigma=5), "1|school": effect},
            center_predictors=False,
            extra_namespace={"log": np.log},
        ),
        "JAX": by_hand(
            prior,
            lambda t, d: dist.Normal(t["mu"] + t["tau"] * t["u"], jnp.asarray(sigma)),
            lambda t: dist.Normal(0.0, 1.0).expand([8]),
        ),
    }


# kidiq: a child's test score by its mother's


def scores(y, hs, iq, outcome=dist.Normal):
    a, b = numpyro.sample("a", dist.Normal(85, 20)), numpyro.sample("b", dist.Normal(0, 10))
    c, sigma = numpyro.sample("c", dist.Normal(0, 2)), numpyro.sample("sigma", dist.HalfNormal(30))
    with numpyro.plate("child", len(y)):
        numpyro.sample("y", outcome(a + b * hs + c * iq, sigma), obs=y)


def kidiq() -> pd.DataFrame:
    table = table_of("posteriordb_kidiq.csv", "kid_score")
    return table.assign(hs=table["mom_hs"], iq=table["mom_iq"] - 100)[["y", "hs", "iq"]]


def kidiq_in(table: pd.DataFrame) -> dict[str, Any]:
    y, hs, iq = (table[name].to_numpy() for name in ("y", "hs", "iq"))
    with pm.Model() as in_pymc:
        a, b, c = pm.Normal("a", 85, 20), pm.Normal("b", 0, 10), pm.Normal("c", 0, 2)
        pm.Normal("y", a + b * hs + c * iq, pm.HalfNormal("sigma", 30), observed=y)
    prior = {
        "a": dist.Normal(85.0, 20.0),
        "b": dist.Normal(0.0, 10.0),
        "c": dist.Normal(0.0, 2.0),
        "sigma": dist.HalfNormal(30.0),
    }
    normal = {
        "Intercept": bmb.Prior("Normal", mu=85, sigma=20),
        "hs": bmb.Prior("Normal", mu=0, sigma=10),
        "iq": bmb.Prior("Normal", mu=0, sigma=2),
        "sigma": bmb.Prior("HalfNormal", sigma=30),
    }
    return {
        "NumPyro": pcv.from_numpyro(scores, columns(table, "hs", "iq")),
        "PyMC": in_pymc,
        "Bambi": bmb.Model("y ~ hs + iq", table, priors=normal, center_predictors=False),
        "JAX": by_hand(
            prior,
            lambda t, d: dist.Normal(t["a"] + t["b"] * d["hs"] + t["c"] * d["iq"], t["sigma"]),
        ),
    }


# wells: who switches to a safe well


def switching(y, dist100, arsenic, scale=1.0):
    a, b = numpyro.sample("a", dist.Normal(0, 1)), numpyro.sample("b", dist.Normal(0, scale))
    c = numpyro.sample("c", dist.Normal(0, scale))
    with numpyro.plate("household", len(y)):
        numpyro.sample("y", dist.Bernoulli(logits=a + b * dist100 + c * arsenic), obs=y)


def wells() -> pd.DataFrame:
    """Every tenth household."""
    table = table_of("wells.csv", "switch").iloc[::10].reset_index(drop=True)
    return table.assign(dist100=table["dist"] / 100)[["y", "dist100", "arsenic"]]


def wells_in(table: pd.DataFrame) -> dict[str, Any]:
    y, dist100, arsenic = (table[name].to_numpy() for name in ("y", "dist100", "arsenic"))
    with pm.Model() as in_pymc:
        a, b, c = (pm.Normal(name, 0, 1) for name in "abc")
        pm.Bernoulli("y", logit_p=a + b * dist100 + c * arsenic, observed=y)
    normal = bmb.Prior("Normal", mu=0, sigma=1)
    return {
        "NumPyro": pcv.from_numpyro(switching, columns(table, "dist100", "arsenic")),
        "PyMC": in_pymc,
        "Bambi": bmb.Model(
            "y ~ dist100 + arsenic",
            table,
            family="bernoulli",
            priors=dict.fromkeys(("Intercept", "dist100", "arsenic"), normal),
            center_predictors=False,
        ),
        "JAX": by_hand(
            {name: dist.Normal(0.0, 1.0) for name in "abc"},
            lambda t, d: dist.Bernoulli(
                logits=t["a"] + t["b"] * d["dist100"] + t["c"] * d["arsenic"]
            ),
        ),
    }


EXAMPLES = {
    "eight schools": Example(
        lambda: table_of("eight_schools.csv", "y"),
        lambda table: pcv.leave_one_out(table["school"].tolist()),
        schools_in,
        lambda table: pcv.from_numpyro(schools, columns(table, "sigma") | {"scale": 50.0}),
        {
            "NumPyro": "mu tau theta_decentered",
            "PyMC": "mu tau_log__ z",
            "Bambi": "Intercept 1|school_sigma_log__ 1|school_offset",
            "JAX": "mu tau u",
        },
    ),
    "kidiq": Example(
        kidiq,
        lambda table: pcv.kfold(len(table), 5, seed=1),
        kidiq_in,
        lambda table: pcv.from_numpyro(
            scores, columns(table, "hs", "iq") | {"outcome": dist.Laplace}
        ),
        {
            "NumPyro": "a b c sigma",
            "PyMC": "a b c sigma_log__",
            "Bambi": "Intercept hs iq sigma_log__",
            "JAX": "a b c sigma",
        },
    ),
    "wells": Example(
        wells,
        lambda table: pcv.kfold(len(table), 5, seed=1),
        wells_in,
        lambda table: pcv.from_numpyro(
            switching, columns(table, "dist100", "arsenic") | {"scale": 0.1}
        ),
        {
            "NumPyro": "a b c",
            "PyMC": "a b c",
            "Bambi": "Intercept dist100 arsenic",
            "JAX": "a b c",
        },
    ),
}


IN = {"PyMC": pcv.from_pymc, "Bambi": pcv.from_bambi}


@pytest.mark.slow
@pytest.mark.parametrize("name", EXAMPLES)
def test_front_ends_have_one_density_and_one_predictive(name):
    """Log prior, its gradient, the terms of all units and theirs, at points far apart."""
    example = EXAMPLES[name]
    table, folds = example.table(), example.folds(example.table())
    data = columns(table, *table.select_dtypes("number").columns.drop("y"))
    data["unit"] = np.arange(len(table))
    models = {
        front_end: IN.get(front_end, lambda made: made)(made)
        for front_end, made in example.models(table).items()
    }
    wrong = example.wrong(table)
    points = [models["NumPyro"].init(key) for key in jax.random.split(jax.random.key(1), 5)]

    def at_points(model: Model, front_end: str) -> list[np.ndarray]:
        theirs, ours = (example.names[x].split() for x in (front_end, "NumPyro"))
        named = [{a: point[b] for a, b in zip(theirs, ours)} for point in points]
        found = []
        for part in (
            lambda params: model.log_prior(params)[None],
            lambda params: model.log_lik(params, numeric(data)),
        ):
            found.append(np.stack([part(x) for x in named]))
            slopes = [jax.jacrev(part)(x) for x in named]
            found.append(np.stack([np.column_stack([x[a] for a in theirs]) for x in slopes]))
        return found

    right = at_points(models["NumPyro"], "NumPyro")
    how = choose("auto", models["NumPyro"], name, data, folds)[1:3]
    for front_end, model in models.items():
        for ours, theirs in zip(right, at_points(model, front_end)):
            np.testing.assert_allclose(theirs, ours, rtol=1e-6, atol=1e-6)
        assert choose("auto", model, name, data, folds)[1:3] == how
    off = [np.abs(a - b).max() for a, b in zip(right, at_points(wrong, "NumPyro"))]
    assert max(off) > 0.01
