"""What is kept with a model for the next call, and when it is not used."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import pcv
from pcv.core import kept
from tests.bounds import z_limit
from tests.problems import LinearGaussian
from tests.programs import counted, grouped

RNG = np.random.default_rng(3)
N = 30
X, Y = RNG.normal(size=N), RNG.normal(size=N)
FOLDS = pcv.kfold(N, 5, seed=1)
SHORT = {"chains": 4, "draws": 100, "warmup": 20, "progress": False}


def call(model, y=Y, seed=1, **more):
    fit = {"warmup": 300, "draws": 200}
    data = {"y": y, "group": np.repeat(np.arange(6), 5)}
    return pcv.cross_validate(model, FOLDS, data=data, seed=seed, fit=fit, **SHORT | more)


class Line:
    """A line through the origin, as methods of an object with a state."""

    def __init__(self, x):
        self.x = x

    def init(self, key):
        return {"b": jax.random.normal(key)}

    def log_prior(self, params):
        return dist.Normal(0.0, 1.0).log_prob(params["b"])

    def log_lik(self, params, data):
        return dist.Normal(params["b"] * self.x, 1.0).log_prob(data["y"])

    def model(self):
        return pcv.Model(self.init, self.log_prior, self.log_lik, dict, pcv.Outcome("y"))


def off(cv, x, y=Y):
    """Error of elpd, in standard errors."""
    form = LinearGaussian(y, np.asarray(x)[:, None], 1.0, np.zeros(1), np.eye(1))
    exact = 0.0
    for test in FOLDS.test:
        train = ~np.isin(np.arange(N), test)
        exact += form.evidence(np.full(N, True)) - form.evidence(train)
    return abs(cv.elpd - exact) / cv.mcse


@pytest.mark.parametrize("seed", [1, 2])
def test_a_second_call_of_a_model_traces_nothing(seed):
    """Of other settings and another seed, too."""
    model = grouped({})
    call(model)
    with counted() as events:
        call(model, seed=seed, estimator="own" if seed == 2 else "two_sided")
    assert events == []


def test_an_array_that_changes_in_place_is_seen():
    x = X.copy()
    model = Line(x).model()
    assert off(call(model), X) < z_limit()
    x[:] = X[::-1] + 1
    again = call(model)
    assert off(again, x) < z_limit()
    assert off(again, X) > 2 * z_limit()  # as it would be with what was kept


def test_other_data_are_seen():
    model, y = Line(X).model(), Y[::-1] + X
    call(model)
    again = call(model, y)
    assert off(again, X, y) < z_limit()
    assert off(again, X) > 2 * z_limit()


def test_models_of_a_state_each_are_told_apart():
    """They are equal as tuples where their methods are: of one object, whose state changes."""
    line = Line(jnp.asarray(X))
    call(line.model())
    line.x = jnp.asarray(X[::-1] + 1)
    assert off(call(line.model()), line.x) < z_limit()


def test_few_are_kept(monkeypatch):
    monkeypatch.setattr(kept, "_entries", type(kept._entries)())
    monkeypatch.setattr(kept, "MOST", 2)
    model, made = object(), []
    for name in ("a", "b", "a", "c", "b"):
        kept.kept(model, "data", name, lambda name=name: made.append(name) or name)
    assert made == ["a", "b", "c", "b"]
    assert len(kept._entries) == 2
