"""What is kept of a model or score is never taken for another's; of the same it is found again."""

import json
import os
import subprocess
import sys
from functools import partial
from types import ModuleType
from typing import NamedTuple

import bambi as bmb
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
import pymc as pm
import pytest
from jax.extend.core import Primitive

import pcv
from pcv.api import calls, inputs
from pcv.base.programs import digests
from tests.problems import LinearGaussian

N = 12
RNG = np.random.default_rng(5)
X = RNG.normal(size=N)
OTHER = X + 1e-9 * (np.arange(N) == 5)
"""differs in one number, from the tenth digit on"""
LONG, OTHER_LONG = np.tile(X, 200), np.concatenate([np.tile(X, 100), np.tile(OTHER, 100)])
"""longer than what is printed of an array"""
Y = 0.5 * X + RNG.normal(size=N)


def normal(mean, **more):
    """y ~ N(mean(b), 1), b ~ N(0, 1)."""
    return pcv.Model(
        lambda key: {"b": jax.random.normal(key)},
        lambda params: dist.Normal(0.0, 1.0).log_prob(params["b"]),
        lambda params, data: dist.Normal(mean(params["b"]), 1.0).log_prob(data["y"]),
        lambda params: params,
        pcv.Outcome("y"),
        **more,
    )


def closure(x):
    return normal(lambda b: b * x)


def closure_of_jax(x):
    in_jax = jnp.asarray(x)
    return normal(lambda b: b * in_jax)


def jitted(x):
    @jax.jit
    def mean(b):
        return b * x

    return normal(mean)


def jitted_twice(x):
    inner = jax.jit(lambda b: b * x)
    return normal(jax.jit(lambda b: inner(b) + 0.0))


def jitted_log_lik(x):
    made = normal(lambda b: b * x)
    return made._replace(log_lik=jax.jit(made.log_lik))


def long_array(x):
    long = LONG if x is X else OTHER_LONG
    return normal(jax.jit(lambda b: b * jnp.asarray(long)[::-200] * np.ones(N)))


class Line:
    def __init__(self, x):
        self.x = x

    @partial(jax.jit, static_argnums=0)
    def mean(self, b):
        return b * self.x


def method(x):
    return normal(Line(x).mean)


class Parts(NamedTuple):
    x: np.ndarray


def static_argument(x):
    parts = Parts(x)

    class Held:
        held = parts

    mean = jax.jit(lambda b, held: b * held.held.x, static_argnums=1)
    return normal(lambda b: mean(b, Held))


def scanned(x):
    def step(b, i):
        return b, b * jnp.asarray(x)[i]

    return normal(jax.jit(lambda b: jax.lax.scan(step, b, jnp.arange(N))[1]))


def looped(x):
    return normal(
        lambda b: jax.lax.fori_loop(0, 1, lambda i, at: at + b * jnp.asarray(x), jnp.zeros(N))
    )


def branched(x):
    return normal(lambda b: jax.lax.cond(b > 0, lambda b: b * x, lambda b: b * X, b))


def mapped(x):
    return normal(lambda b: jax.vmap(jax.jit(lambda i: b * jnp.asarray(x)[i]))(jnp.arange(N)))


def checkpointed(x):
    return normal(jax.checkpoint(lambda b: b * x))


def with_rule(value, slope):
    @jax.custom_jvp
    def mean(b):
        return b * value

    mean.defjvp(lambda b, t: (mean(*b), slope * t[0]))
    return normal(mean)


def custom_jvp(x):
    return with_rule(x, X)


def rule_of_custom_jvp(x):
    """The same values, another gradient: HMC goes elsewhere."""
    return with_rule(X, jnp.asarray(x))


def rule_of_a_rule(x):
    slope = jax.custom_jvp(lambda b: b * X)
    slope.defjvp(lambda b, t: (slope(*b), jax.jit(lambda t: x * t)(t[0])))
    mean = jax.custom_jvp(lambda b: b**2 * X / 2)
    mean.defjvp(lambda b, t: (mean(*b), slope(*b) * t[0]))
    return normal(mean)


def rule_of_custom_vjp(x):
    mean = jax.custom_vjp(lambda b: b * X)
    mean.defvjp(lambda b: (mean(b), None), lambda _, t: (jnp.sum(t * x),))
    return normal(mean)


def sums_per_unit(x):
    def log_lik(params, data):
        terms = dist.Normal(params["b"] * x, 1.0).log_prob(data["y"])
        return jnp.zeros(N).at[data["unit"]].add(terms)

    return normal(lambda b: b * x)._replace(log_lik=log_lik)


def target(x):
    made = normal(lambda b: b * X)
    mean = jax.jit(lambda b: b * x)

    def terms(params):
        return dist.Normal(mean(params["b"]), 1.0).log_prob(Y)

    def log_density(params, fold):
        return made.log_prior(params) + jnp.sum(jnp.where(fold.train, terms(params), 0.0))

    def log_predictive(params, fold):
        each = jnp.where(fold.test >= 0, terms(params)[fold.test], 0.0)
        return each.sum(), each

    return pcv.Target(made.init, log_density, log_predictive, pcv.Outcome("y"))


def several_slots(x):
    """The constants count only where a test set has several units."""
    made = target(X)

    def log_predictive(params, fold):
        joint, each = made.log_predictive(params, fold)
        return joint + (jnp.sum(params["b"] * x) if len(fold.test) > 1 else 0.0), each

    return made._replace(log_predictive=log_predictive)


def marginal(x):
    def predictive(params, data, test):
        each = jnp.where(test >= 0, jnp.asarray(x)[test] * params["b"], 0.0)
        return each.sum(), each

    return normal(lambda b: b * X, marginal=predictive)


def fold_prior(x):
    prior = jax.jit(lambda params, test: -jnp.sum((params["b"] - x) ** 2))
    return marginal(X)._replace(fold_prior=prior)


def group(x):
    return normal(lambda b: b * X, group=np.arange(N) + (x is not X))


def replicates(x):
    draw = jax.jit(lambda key, params, data: x * params["b"] + jax.random.normal(key, (N,)))
    return normal(lambda b: b * X, predict=draw)


def in_numpyro(x):
    mean = jax.jit(lambda b: b * x)

    def line(y):
        b = numpyro.sample("b", dist.Normal(0, 1))
        with numpyro.plate("case", N):
            numpyro.sample("y", dist.Normal(mean(b), 1), obs=y)

    return pcv.from_numpyro(line, {"y": Y})


def correlated(x):
    """Traced, it has steps that JAX calls objects of its own."""

    def slopes(y):
        factor = numpyro.sample("factor", dist.LKJCholesky(2))
        with numpyro.plate("case", N):
            numpyro.sample("y", dist.Normal(factor[1, 0] * x, 1), obs=y)

    return pcv.from_numpyro(slopes, {"y": Y})


def in_pymc(x):
    with pm.Model() as model:
        b = pm.Normal("b", 0, 1)
        pm.Normal("y", b * x, 1, observed=Y)
    return model


def in_pymc_as_data(x):
    with pm.Model() as model:
        b = pm.Normal("b", 0, 1)
        pm.Normal("y", b * pm.Data("x", x), 1, observed=Y)
    return model


def in_bambi(x):
    return bmb.Model("y ~ x", pd.DataFrame({"y": Y, "x": x}))


MODELS = [
    *(closure, closure_of_jax, jitted, jitted_twice, jitted_log_lik, long_array, method),
    *(static_argument, scanned, looped, branched, mapped, checkpointed, custom_jvp),
    *(rule_of_custom_jvp, rule_of_a_rule, rule_of_custom_vjp, target, several_slots, marginal),
    sums_per_unit,
    *(fold_prior, group, replicates, in_numpyro, correlated, in_pymc, in_pymc_as_data, in_bambi),
]


def references(models, results, scores=("log",)):
    """What the artifacts of a call name its models, or its own scores."""
    sections = {"scores": scores}
    common = ({"y": Y}, sections, 0, "float64", results, 2, False)
    with calls.prepared(models, "loo", *common) as job:
        if scores != ("log",):
            return list(job.settings.scores)
        return [x.model for x in job.settings.models.values()]


@pytest.mark.parametrize("make", MODELS, ids=lambda make: make.__name__)
def test_models_that_differ_in_an_array(make, tmp_path):
    (one,), (again,), (other,) = (
        references(make(x), tmp_path / str(i)) for i, x in enumerate((X, X, OTHER))
    )
    assert one == again
    assert one != other


def test_primitives_of_modules_that_are_loaded_late(monkeypatch):
    """The hash does not hang on what else a session has done before."""
    digests.of_function(jnp.sin, 1.0)
    primitive = Primitive("late")
    primitive.def_abstract_eval(lambda x: x)
    with pytest.raises(digests.Uncertain, match="'late', which is not JAX's"):
        digests.of_function(primitive.bind, 1.0)
    module = ModuleType("jax.late")
    module.late_p = primitive
    monkeypatch.setitem(sys.modules, module.__name__, module)
    assert digests.of_function(primitive.bind, 1.0)


def test_programs_that_differ_in_which_value_they_use():
    def program(place):
        def chosen(*values):
            for _ in range(5):
                values = (*values, values[-1] + values[-2])
            return values[place] * values[-1]

        return digests.of_function(chosen, 1.0, 2.0, 3.0)

    found = [program(place) for place in range(8)]
    assert len(set(found)) == 8
    assert found == [program(place) for place in range(8)]


def called_back(x):
    def mean(b):
        return jax.pure_callback(lambda b: b * x, jax.ShapeDtypeStruct((N,), float), b)

    return normal(mean)


def foreign_primitive(x):
    primitive = Primitive("times_x")
    primitive.def_abstract_eval(lambda b: jax.core.ShapedArray((N,), b.dtype))
    primitive.def_impl(lambda b: b * x)
    return normal(primitive.bind)


def cannot_be_traced(x):
    return normal(lambda b: b * x if b > 0 else b * X)


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (called_back, "an object of jax._src.callback._FlatCallback"),
        (foreign_primitive, "the primitive 'times_x', which is not JAX's"),
        (cannot_be_traced, "TracerBoolConversionError: "),
    ],
)
def test_models_of_which_nothing_is_reused(make, why, tmp_path):
    seen = set()
    for _ in range(2):
        with pytest.warns(UserWarning, match="cannot be hashed reliably") as caught:
            seen |= set(references(make(X), tmp_path))
        (said,) = [str(x.message) for x in caught]
        assert said.startswith(f"model 'model': cannot be hashed reliably ({why}")
        assert said.endswith(f"so nothing made from it before is reused from {tmp_path}")
    assert len(seen) == 2
    references(make(X), None)  # nothing is kept, and nothing said


def test_models_of_one_call_have_their_own_references(tmp_path, monkeypatch):
    """Even if two that differ were of one hash."""
    monkeypatch.setattr(inputs, "fingerprint", lambda model, observed: "0" * 16)
    made = {"x1": jitted(X), "x2": jitted(OTHER)}
    with calls.prepared(made, "loo", {"y": Y}, {}, 0, "float64", tmp_path, 2, False) as job:
        found = {name: job.objects[x.model] for name, x in job.settings.models.items()}
    assert found["x1"] is made["x1"]
    assert found["x2"] is made["x2"]


def test_models_that_differ_in_an_array_of_a_jitted_function_are_told_apart():
    """By exact answers: `compare` found one model beside itself."""
    columns = {"x1": 3 * X, "x2": 3 * X[::-1]}
    models = {name: jitted(x) for name, x in columns.items()}
    quick = {"progress": False, "fit": {"warmup": 200, "draws": 200}, "predictive": "plain"}
    found = pcv.cross_validate(
        models, "loo", data={"y": Y}, seed=1, cores=2, draws=100, cv={"adapt": "never"}, **quick
    )
    every = np.full(N, True)
    for name, x in columns.items():
        form = LinearGaussian(Y, x[:, None], 1.0, np.zeros(1), np.eye(1))
        exact = sum(form.evidence(every) - form.evidence(np.arange(N) != i) for i in range(N))
        assert abs(found[name].elpd - exact) < 4 * found[name].mcse
        assert found[name].mcse < 0.1


def mean_of(key, target, params, fold):
    return {"mean": target.moments(params, fold)[0]}


def error(means, y):
    return -((means["mean"] - y) ** 2)


def scored_by(estimate, **changes):
    return pcv.Score("own", "pointwise", mean_of, estimate)._replace(**changes)


def bound(x):
    return scored_by(lambda means, y: -np.abs(means["mean"] - y + x.sum()))


def default(x):
    return scored_by(lambda means, y, x=x: -np.abs(means["mean"] - y + x.sum()))


def inside(x):
    def estimate(means, y):
        def away(at):
            return at - x.sum()

        return -np.abs(away(means["mean"]) - y)

    return scored_by(estimate)


def helped(x):
    def away(at):
        return at - x.sum()

    return scored_by(lambda means, y: -np.abs(away(means["mean"]) - y))


def long_bound(x):
    long = LONG if x is X else OTHER_LONG
    return scored_by(lambda means, y: -np.abs(means["mean"] - y + long.sum()))


def partly(x):
    return scored_by(partial(lambda means, y, x: -np.abs(means["mean"] - y + x.sum()), x=x))


def jitted_statistic(x):
    mean = jax.jit(lambda params: params["b"] * x)
    return scored_by(error, statistic=lambda key, target, params, fold: {"mean": mean(params)})


def weighted(x):
    return scored_by(error, log_weight=lambda key, target, params, fold: x.sum() * params["b"])


SHIFT = 1.0


def of_a_global(x):
    estimate = lambda means, y: -np.abs(means["mean"] - y + SHIFT)  # noqa: E731
    there = {**globals(), "SHIFT": float(x.sum())}
    return scored_by(type(estimate)(estimate.__code__, there))


def not_smooth(x):
    return scored_by(error, smooth=x is X)


SCORES = [bound, default, inside, helped, long_bound, partly, jitted_statistic, weighted]
SCORES += [of_a_global, not_smooth]


@pytest.mark.parametrize("make", SCORES, ids=lambda make: make.__name__)
def test_scores_that_differ_in_what_they_hold(make, tmp_path):
    (one,), (again,), (other,) = (references(jitted(X), tmp_path, make(x)) for x in (X, X, OTHER))
    assert one == again
    assert one != other


class Errors:
    def __init__(self, x):
        self.x = x

    def __call__(self, means, y):
        return -np.abs(means["mean"] - y + self.x.sum())


def test_scores_of_which_nothing_is_reused(tmp_path):
    made, words = (
        scored_by(Errors(X)),
        r"score 'own': .* \(an object of tests\.test_digests\.Errors",
    )
    with pytest.warns(UserWarning, match=words):
        once = references(jitted(X), tmp_path, made)
    with pytest.warns(UserWarning, match=words):
        assert references(jitted(X), tmp_path, made) != once


def test_two_scores_of_one_name_are_refused():
    with pytest.raises(pcv.PcvError, match="there are two pointwise scores 'own'; rename one"):
        references(jitted(X), None, [bound(X), bound(OTHER)])


def every_reference(folder):
    models = {make.__name__: references(make(X), folder) for make in MODELS}
    return models | {make.__name__: references(jitted(X), folder, make(X)) for make in SCORES}


@pytest.mark.slow
def test_another_process_finds_what_was_kept(tmp_path):
    """Whatever the order of its sets, and where its objects lie."""
    code = "import json; from tests import conftest, test_digests as t; from pathlib import Path\n"
    code += "import jax; jax.config.update('jax_enable_x64', True)\n"
    code += f"print(json.dumps(t.every_reference(Path({str(tmp_path)!r}))))"
    one, other = (
        subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
            check=True,
        ).stdout
        for seed in ("7", "8")
    )
    assert json.loads(one) == json.loads(other)
