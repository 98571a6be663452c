"""What is kept of a model is never taken for another's; of the same it is found again."""

import json
import os
import subprocess
import sys
import warnings
from functools import partial
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
from pcv.pipeline.job import recipe
from tests.bounds import z_limit
from tests.problems import LinearGaussian
from tests.slow import repeated

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
        return joint + (jnp.sum(params["b"] * x) if len(fold.test) > 2 else 0.0), each

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
    *(jitted_twice, long_array, method, static_argument, scanned, branched, checkpointed),
    *(rule_of_a_rule, rule_of_custom_vjp, several_slots, marginal, fold_prior, group, replicates),
    *(in_numpyro, in_pymc, closure, closure_of_jax, jitted, jitted_log_lik, looped, mapped),
    *(custom_jvp, rule_of_custom_jvp, target, sums_per_unit, correlated, in_pymc_as_data, in_bambi),
]


TESTS = [0, 1, 2], [3, 4, 5], [6], [7, 8, 9, 10, 11]
SOME = [(np.setdiff1d(np.arange(N), test), np.array(test)) for test in TESTS]


def made_of(model, results):
    """What a call's fit and warmup are made of: the name of its model, with a hash, and a hash for
    its test sets."""
    common = ({"y": Y}, {}, 0, "float64", results, 2, False)
    with calls.prepared(model, SOME, *common) as call:
        job = call.store.job._replace(model=next(iter(call.problems)))
        return job.model_config.model, recipe(job, "warmup")["program"]


@pytest.mark.parametrize("make", repeated(MODELS, 16), ids=lambda make: make.__name__)
def test_models_that_differ_in_an_array(make, tmp_path):
    one, again, other = (made_of(make(x), tmp_path / str(i)) for i, x in enumerate((X, X, OTHER)))
    assert one == again
    assert one != other
    assert (one[0] == other[0]) == (make is several_slots)  # whose full-data fit is the same


def test_a_parameter_of_another_name(tmp_path):
    one = normal(lambda b: b * X)
    other = one._replace(constrain=lambda params: {"slope": params["b"]})
    assert made_of(one, tmp_path) != made_of(other, tmp_path)


def test_what_is_read_while_a_model_is_traced(tmp_path, monkeypatch):
    """By whatever name: of files, of the environment."""
    file, load = tmp_path / "x.txt", partial(np.loadtxt, tmp_path / "x.txt")
    model = normal(lambda b: b * load() * float(os.environ.get("SCALE", 1)))
    np.savetxt(file, X)
    one = made_of(model, tmp_path / "results")
    assert made_of(model, tmp_path / "results") == one
    np.savetxt(file, OTHER, fmt="%.18e")
    assert made_of(model, tmp_path / "results") != one
    np.savetxt(file, X)
    monkeypatch.setenv("SCALE", "2")
    assert made_of(model, tmp_path / "results") != one


def called_back(x):
    def mean(b):
        return jax.pure_callback(lambda b: b * x, jax.ShapeDtypeStruct((N,), float), b)

    return normal(mean)


def printed(x):
    return normal(lambda b: (jax.debug.print("{}", b), b * x)[1])


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
        (called_back, "it calls back into Python"),
        (printed, "it calls back into Python"),
        (foreign_primitive, "NotImplementedError: "),
        (cannot_be_traced, "TracerBoolConversionError: "),
    ],
)
def test_models_of_which_nothing_is_reused(make, why, tmp_path):
    seen = set()
    for _ in range(2):
        with pytest.warns(UserWarning, match="cannot be hashed reliably") as caught:
            seen |= {*made_of(make(X), tmp_path)}
        (said,) = [str(x.message) for x in caught]
        assert said.startswith(f"model 'model': cannot be hashed reliably ({why}")
        assert said.endswith(f"so nothing made from it before is reused from {tmp_path}")
    assert len(seen) == 4


def test_models_of_one_call_have_their_own_references(tmp_path, monkeypatch):
    """Even if two that differ were of one hash."""
    monkeypatch.setattr(
        "pcv.models.fingerprint.fingerprint", lambda model, observed, slots: "0" * 16
    )
    made = {"x1": jitted(X), "x2": jitted(OTHER)}
    with calls.prepared(made, "loo", {"y": Y}, {}, 0, "float64", tmp_path, 2, False) as call:
        found = {name: problem.model for name, problem in call.problems.items()}
    assert found["x1"] is made["x1"]
    assert found["x2"] is made["x2"]


@pytest.mark.slow
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
        assert abs(found[name].elpd - exact) < z_limit(df=15) * found[name].mcse
        assert found[name].mcse < 0.1


def mean_of(key, target, params, fold):
    return {"mean": target.moments(params, fold)[0]}


def error(means, y):
    return -((means["mean"] - y) ** 2)


def scored_by(estimate, **changes):
    return pcv.Score("own", "pointwise", mean_of, estimate)._replace(**changes)


def bound(x):
    return scored_by(lambda means, y: -np.abs(means["mean"] - y + x.sum()))


def test_of_scores_in_python_nothing_is_reused(tmp_path):
    """They may read a file, or the index of a table."""
    seen = set()
    for _ in range(2):
        with pytest.warns(UserWarning, match="score 'own': .* name a file: scores="):
            names, own = inputs.scores_of(["log", bound(X)], tmp_path)
        assert names == ["log"]
        seen |= {*own}
    assert len(seen) == 2
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        inputs.scores_of(bound(X))  # nothing is kept


def test_two_scores_of_one_name_are_refused():
    with pytest.raises(pcv.PcvError, match="there are two pointwise scores 'own'; rename one"):
        inputs.scores_of([bound(X), bound(OTHER)])


def hashes(folder):
    some = static_argument, closure, rule_of_a_rule, in_numpyro, correlated, in_pymc
    return {make.__name__: made_of(make(X), folder) for make in some}


@pytest.mark.slow
def test_another_process_finds_what_was_kept(tmp_path):
    """Whatever the order of its sets, and where its objects lie."""
    code = "import json; from pathlib import Path\n"
    code += "from tests import conftest, test_fingerprints as t\n"
    code += "import jax; jax.config.update('jax_enable_x64', True)\n"
    code += "import sys; print(json.dumps(t.hashes(Path(sys.argv[1]))))"
    one, other = (
        subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path / seed)],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        )
        for seed in "78"
    )
    with one, other:
        assert json.loads(one.communicate()[0]) == json.loads(other.communicate()[0])
