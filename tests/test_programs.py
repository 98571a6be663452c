"""Programs are shared by all that compute the same, whatever arrays they hold, and by no others."""

from functools import cache, partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pandas as pd
import pymc as pm
import pytest
from jax.experimental import sparse
from scipy.stats import norm

import pcv
from pcv.compile import programs
from pcv.models.frontends import as_model
from tests.programs import counted, grouped

X, OTHER = np.linspace(0.0, 1.0, 7), np.linspace(2.0, 3.0, 7)


def jitted(x):
    return jax.jit(lambda b: b * x)


def nested(x):
    inner = jax.jit(lambda b: b * x)
    return jax.jit(lambda b: inner(b) + jnp.asarray(x))


def scanned(x):
    return lambda b: jax.lax.scan(lambda c, row: (c + row * b, c), 0.0, jnp.asarray(x))[1]


def in_a_loop(x):
    held = programs.Inner(jax.jit(lambda b: b * x))
    return lambda b: jax.lax.fori_loop(0, 3, lambda _, c: c + held(b).sum(), 0.0)


def derived(x):
    return jax.grad(lambda b: jnp.sum(jnp.sin(b * x)))


def drawn(x):
    key = jax.random.key(int(x[0]))
    return lambda b: b * jax.random.normal(key, x.shape)


FUNCTIONS = [jitted, nested, scanned, in_a_loop, derived, drawn]


def kinds(function, *args):
    return id(programs.shared(function).compiled(*args)[0])


@pytest.mark.parametrize("make", FUNCTIONS, ids=lambda make: make.__name__)
def test_held_arrays_are_arguments(make):
    for x in (X, OTHER):
        np.testing.assert_allclose(programs.shared(make(x))(2.0), make(x)(2.0), rtol=1e-12)
    assert kinds(make(X), 2.0) == kinds(make(OTHER), 2.0)
    assert kinds(make(X), 2.0) != kinds(make(X[:5]), 2.0)


def test_others_are_not_shared():
    found = [
        lambda b: b * X,
        lambda b: b + X,
        lambda b: b * X * 2,
        lambda b: b * X * 3,
        lambda b: (b * X).sum(),
        lambda b: {"x": b * X},
    ]
    assert len({kinds(function, 2.0) for function in found}) == len(found)
    assert kinds(found[0], 2.0) != kinds(found[0], 2)
    assert kinds(found[0], 2.0) != id(programs.once(found[0]).compiled(2.0)[0])


def test_functions_of_different_arguments_are_not_shared():
    """Whose texts are the same but for which of their arguments they use."""
    at = {"a": 1.0, "b": 10.0}
    for name in at:
        assert programs.shared(lambda p, name=name: 2 * p[name])(at) == 2 * at[name]
        assert programs.shared(lambda p, q, name=name: (p, q)[name == "b"] * 2)(1.0, 10.0) == (
            2 * at[name]
        )
    one, other = (programs.digest(lambda p, n=n: 2 * p[n], at) for n in at)
    assert one != other


def test_what_cannot_be_read_is_compiled_alone():
    def called_back(x):
        shape = jax.ShapeDtypeStruct(x.shape, float)
        return lambda b: jax.pure_callback(lambda b: b * x, shape, b)

    kept = [programs.shared(called_back(x)) for x in (X, OTHER)]
    for function, x in zip(kept, (X, OTHER)):
        np.testing.assert_allclose(function(2.0), 2 * x)
    assert kept[0].compiled(2.0)[0] is not kept[1].compiled(2.0)[0]


SCALE = 2.0


def module_scale(b):
    return b * SCALE


def held(x):
    return lambda b: b * x


def held_by_default(x):
    return lambda b, x=x: b * x


def held_by_a_partial(x):
    return partial(lambda x, b: b * x, x)


def held_by_another(x):
    inner = held(x)
    return lambda b: inner(b) + 1


def held_by_a_distribution(x):
    normal = dist.Normal(0.0, x + 1)
    return lambda b: normal.log_prob(b)


def held_by_a_transform(x):
    to = dist.transforms.AffineTransform(0.0, x)
    return lambda b: to(b)


def held_by_a_sparse_matrix(x):
    matrix = sparse.BCOO.fromdense(jnp.diag(x + 1))
    return lambda b: b * (matrix @ jnp.ones(len(x)))


HOLDING = [held_by_a_sparse_matrix, held, held_by_default, held_by_a_partial, held_by_another]
HOLDING += [held_by_a_distribution, held_by_a_transform]


@pytest.mark.parametrize("make", HOLDING, ids=lambda make: make.__name__)
def test_arrays_that_change_in_place(make):
    changed = X.copy()
    for place in range(len(X)):
        changed[place] += 1
        np.testing.assert_allclose(programs.shared(make(changed))(2.0), make(changed)(2.0))
    with counted() as events:
        programs.shared(make(changed.copy()))(2.0)
    assert "backend_compile" not in events


def test_names_of_a_module_are_looked_up_again(monkeypatch):
    assert programs.shared(module_scale)(2.0) == 4
    monkeypatch.setattr("tests.test_programs.SCALE", 3.0)
    assert programs.shared(module_scale)(2.0) == 6


class Scale:
    def __init__(self, x):
        self.x = x

    def __call__(self, b):
        return b * self.x


def test_arrays_with_more_than_their_values():
    """A mask, names of fields."""
    masks = [np.ma.masked_array([1.0, 2.0], [True, False]), np.ma.masked_array([1.0, 2.0])]
    fields = [np.array([(1.0, 2.0)], [(x, float), (y, float)]) for x, y in ("ab", "ba")]
    for array in masks:
        assert programs.shared(lambda b, x=array: b * float(x.sum()))(2.0) == 2 * array.sum()
    for array in fields:
        assert programs.shared(lambda b, x=array: b * float(x["a"][0]))(2.0) == 2 * array["a"][0]


def test_pymc_models_that_differ_inside_of_a_constant():
    """Whose generated functions look alike."""
    group, y = np.repeat(np.arange(6), 10), np.random.default_rng(1).normal(size=60)

    def model(group):
        with pm.Model() as made:
            theta = pm.Normal("theta", 0, 1, shape=6)
            pm.Normal("y", theta[group], 1, observed=y)
        return as_model(made)

    other, at = group.copy(), {"theta": jnp.arange(6.0)}
    other[30] = 0
    for of in (group, other):
        log_lik = model(of).log_lik
        found = programs.shared(lambda p: log_lik(p, {}))(at)  # noqa: B023
        np.testing.assert_allclose(found, norm.logpdf(y, np.arange(6.0)[of]))


class Pair(NamedTuple):
    x: float

    def times(self):
        return self.x


@cache
def cached():
    return SCALE


def test_functions_that_differ_in_an_order_or_an_attribute():
    def stacked(given):
        return lambda b: b * jnp.stack(list(given.values()))

    for given in ({"a": 1.0, "b": 2.0}, {"b": 2.0, "a": 1.0}):
        assert programs.shared(stacked(given))(2.0).tolist() == [2 * x for x in given.values()]

    def scaled(b):
        return b * scaled.by

    for by in (2.0, 3.0):
        scaled.by = by
        assert programs.shared(scaled)(2.0) == 2 * by


def test_what_may_change_outside_is_traced_again(tmp_path, monkeypatch):
    """Objects of the user's classes, files, and what other libraries do."""
    file, pair = tmp_path / "x.npy", Pair(2.0)

    def of_a_class(b):
        return b * pair.times()

    def of_a_cache(b):
        return b * cached()

    def from_a_file(b):
        return b * np.load(file)

    def as_pandas_has_it(b):
        return b * np.asarray(pd.options.display.max_rows)

    own = Scale(2.0)
    for change, function, expected in (
        (lambda: np.save(file, 2.0), from_a_file, 4.0),
        (lambda: np.save(file, 3.0), from_a_file, 6.0),
        (lambda: None, own, 4.0),
        (lambda: setattr(own, "x", 3.0), own, 6.0),
        (lambda: None, of_a_class, 4.0),
        (lambda: monkeypatch.setattr(Pair, "times", lambda self: 5.0), of_a_class, 10.0),
        (lambda: None, of_a_cache, 4.0),
        (lambda: monkeypatch.setitem(globals(), "cached", lambda: 5.0), of_a_cache, 10.0),
        (lambda: setattr(pd.options.display, "max_rows", 10), as_pandas_has_it, 20.0),
        (lambda: setattr(pd.options.display, "max_rows", 11), as_pandas_has_it, 22.0),
    ):
        change()
        assert programs.shared(function)(2.0) == expected
    pd.reset_option("display.max_rows")


def test_few_are_kept(monkeypatch):
    monkeypatch.setattr(programs, "_compiled", {})
    monkeypatch.setattr(programs, "MOST", 2)
    functions = [lambda b, n=n: b**n for n in (3, 4, 5)]
    for function in (*functions[:2], functions[0], functions[2]):
        programs.shared(function)(2.0)
    kept = {id(found) for found in programs._compiled.values()}
    assert len(kept) == 2
    assert [kinds(f, 2.0) in kept for f in (functions[0], functions[2])] == [True, True]


def test_a_second_call_compiles_nothing():
    """Of another seed, other data of the same shape, and other folds of the same shape."""
    rng = np.random.default_rng(1)
    group = np.repeat(np.arange(6), 5)
    data = [
        {"y": rng.normal(size=6)[group] + rng.normal(size=30), "group": group} for _ in range(2)
    ]
    folds = [pcv.kfold(30, 5, seed=seed) for seed in (1, 2)]
    short = {"chains": 2, "draws": 20, "warmup": 20, "progress": False}
    call = partial(pcv.cross_validate, fit={"warmup": 200, "draws": 100}, **short)
    with jax.enable_x64(True):
        call(grouped(data[0]), folds[0], data=data[0], seed=1)
        with counted() as events:
            call(grouped(data[1]), folds[1], data=data[1], seed=2)
        assert "backend_compile" not in events
