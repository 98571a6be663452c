"""NUTS: its draws against exact posteriors, and the checks of a full-data fit."""

import re
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

from pcv.base.keys import key
from pcv.base.monitor import Monitor
from pcv.models.checks.prior import centred
from pcv.models.model import Model, Outcome, Target, target
from pcv.models.parameters import flat_target
from pcv.sampling.fit import fit_checks, nuts
from pcv.sampling.fit import posterior as fitting
from pcv.sampling.fit.draws import Draws
from pcv.sampling.fit.fit_checks import check
from tests.bounds import z_limit
from tests.chains import worst
from tests.problems import PROBLEMS, Problem, coin
from tests.programs import counted
from tests.slow import repeated

CHAINS, NUM_DRAWS = 4, 1000


def posterior(*settings: Any) -> Draws:
    """The draws of `pcv.sampling.fit.nuts.posteriors` for one acceptance rate, the last of the
    settings."""
    return next(nuts.posteriors(*settings[:-1], settings[-1:]))


def starts(target: Target, seed: int = 1) -> np.ndarray:
    """Draws from the prior."""
    return np.asarray(jax.vmap(target.init)(jax.random.split(key(seed), CHAINS)))


def fitted(problem: Problem, seed: int) -> Draws:
    flat, _ = flat_target(target(problem.model, problem.data, "plain"))
    n = len(problem.data["y"])
    own = key(seed, "model", "fit")
    return posterior(flat, n, own, starts(flat, seed), 400, NUM_DRAWS, 0.9)


@pytest.mark.parametrize("seed", repeated([1, 2]))
@pytest.mark.parametrize("name", ["hierarchy, plain", "variance", "coin"])
def test_draws_are_of_the_posterior(name, seed):
    problem = PROBLEMS[name]()
    draws = fitted(problem, seed)
    assert worst(problem, draws) < z_limit(2 * draws.position.shape[-1])
    assert not check(draws, ["x"] * draws.position.shape[-1]).problems


def test_a_missing_jacobian_is_noticed():
    problem = coin(jacobian=False)
    # False alarm < 1e-4: 10, with an sd of 1.
    assert worst(problem, fitted(problem, 1)) > z_limit(2)


def test_same_key_same_draws():
    problem = PROBLEMS["coin"]()
    first, again, other = (fitted(problem, seed).position for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert (abs(first - other).max(axis=(1, 2)) > 0).all()
    assert len(np.unique(first[:, 0])) == CHAINS


def test_blocks_are_reported_as_they_are_drawn():
    """Without what fills the last one, and the devices: of three chains, two run on each."""
    problem, reports = coin(), []
    flat, _ = flat_target(target(problem.model, problem.data, "plain"))
    settings = flat, len(problem.data["y"]), key(1, "model", "fit"), starts(flat)[:3], 100, 30
    for draws in nuts.posteriors(*settings, [0.8, 0.9], lambda *report: reports.append(report)):
        *_, (_, _, full), (_, _, rest) = reports
        np.testing.assert_array_equal(draws.lp, np.concatenate([full.lp, rest.lp], axis=1))
        assert full.lp.shape == (3, 25)
        assert rest.position.shape == (3, 5, 1)
    assert [report[:2] for report in reports] == [(0.8, 25), (0.8, 30), (0.9, 25), (0.9, 30)]


def level(x: np.ndarray) -> np.ndarray:
    """Chains (chain, draw, ...) whose halves have the same mean: R-hat is not left to chance."""
    halves = x.reshape(CHAINS, 2, NUM_DRAWS // 2, -1)
    return (halves - halves.mean(2, keepdims=True)).reshape(x.shape)


def healthy() -> Draws:
    rng = np.random.default_rng(1)
    draws = (CHAINS, NUM_DRAWS)
    energy = rng.normal(size=draws)
    steps = np.full(draws, 3)
    position = level(rng.normal(size=(*draws, 2)))
    return Draws(position, energy, energy, np.ones(draws), steps, np.zeros(draws, bool))


def spoilt(chain: int = 2, shift: float = 0.0, diverging: int = 0, stuck: bool = False) -> Draws:
    draws = healthy()
    draws.position[chain, :, 1] += shift
    draws.diverging[chain, :diverging] = True
    if stuck:
        draws.position[chain] = draws.position[chain, 0]
        draws.lp[chain] = draws.lp[chain, 0]
    return draws


def correlated() -> Draws:
    """Chains that drift within their own range, all alike."""
    draws = healthy()
    phi = 0.9
    x = draws.position[..., 0]
    for t in range(1, NUM_DRAWS):
        x[:, t] = phi * x[:, t - 1] + np.sqrt(1 - phi**2) * x[:, t]
    x[:] = level(x)
    return draws


SHIFTED = (
    r"R-hat of 'b' is \d\.\d\d, above 1.05 \(chain 2 is furthest from the others\): more warmup "
)


@pytest.mark.parametrize(
    ("draws", "said"),
    [
        (spoilt(shift=5), SHIFTED),
        (spoilt(stuck=True), r"chain 2 is stuck \(1 distinct draws of 1000\): other priors or an"),
        (
            spoilt(diverging=41),
            r"41 of 4000 draws diverged at target_accept 0\.8 \(limit 1%\): try a higher one, "
            "tighter priors or another parameterisation$",
        ),
        (spoilt(shift=np.nan), r"R-hat of 'b' is nan, above 1.05"),
    ],
    ids=["shifted", "stuck", "divergent", "nan"],
)
def test_fits_that_cannot_be_trusted(draws, said):
    problems = check(draws, ["a", "b"]).problems
    assert any(re.match(said, problem) for problem in problems), problems


@pytest.mark.parametrize(
    ("draws", "said"),
    [
        # False alarm < 1e-4: 1.0120, with an sd of .0003.
        (spoilt(shift=0.35), r"R-hat of 'b' is 1\.0\d{3}, above 1\.\d+: more draws of the fit to"),
        (
            spoilt(diverging=40),
            "40 divergences: a higher target_accept of the fit, tighter priors or ",
        ),
        (
            spoilt(diverging=1),
            "1 divergence: a higher target_accept of the fit, tighter priors or ",
        ),
        # False alarm < 1e-4: 246, with an sd of 31.
        (correlated(), r"ESS of 'a' is \d\d\d, below 400: more draws of the fit"),
    ],
    ids=["shifted a little", "few divergent", "one divergent", "correlated"],
)
def test_fits_that_warn(draws, said):
    checks = check(draws, ["a", "b"])
    assert not checks.problems
    assert any(re.match(said, warning) for warning in checks.warnings)


def funnelled() -> Draws:
    """Divergences where 'b' is low."""
    draws = spoilt(diverging=100)
    draws.position[2, :100, 1] -= 2
    return draws


def test_advice_fits_the_model():
    """No higher target than the highest, and non-centred is said of what is centred alone."""
    (problem,) = check(funnelled(), ["a", "b"], 0.99).problems
    assert problem == (
        "100 of 4000 draws diverged at target_accept 0.99 (limit 1%), mostly where 'b' is low: "
        "try tighter priors or another parameterisation"
    )
    (problem,) = check(funnelled(), ["a", "b"], 0.95, ["theta", "nu"]).problems
    assert problem.endswith(": try a higher one, tighter priors or a non-centred 'theta' and 'nu'")
    (stuck, *_) = check(spoilt(stuck=True), ["a", "b"]).problems
    assert "non-centred" not in stuck


def hierarchical(centred: bool) -> Model:
    """Four effects, their scale, and two coefficients that hang on nothing."""

    def log_prior(params):
        scale = jnp.exp(params["log_tau"]) if centred else 1.0
        effects = dist.Normal(params["mu"] * centred, scale).log_prob(params["effect"]).sum()
        rest = dist.Normal(0, 1).log_prob(params["mu"]) + dist.Normal(0, 1).log_prob(
            params["log_tau"]
        )
        return effects + rest + dist.Normal(0, 5).log_prob(params["beta"]).sum()

    def init(key):
        shapes = {"mu": (), "log_tau": (), "effect": (4,), "beta": (2,)}
        keys = jax.random.split(key, len(shapes))
        return {name: jax.random.normal(k, x) for k, (name, x) in zip(keys, shapes.items())}

    return Model(init, log_prior, lambda params, data: params["effect"], dict, Outcome("y"))


def test_what_is_centred():
    assert centred(hierarchical(centred=True)) == ["effect"]
    assert centred(hierarchical(centred=False)) == []


def attempts(*divergent: int) -> Iterator[tuple[Draws, Draws]]:
    for number in divergent:
        yield (draws := spoilt(diverging=number)), draws


@pytest.mark.parametrize(
    ("divergent", "target_accept", "said_of"),
    [
        ((40,), 0.8, []),
        ((41, 40), 0.95, [41]),
        ((80, 60, 0), 0.99, [80, 60]),
        ((80, 60, 50), 0.99, [80, 60]),
    ],
)
def test_the_target_is_raised_while_draws_diverge(divergent, target_accept, said_of):
    said = []
    each = attempts(*divergent)
    found, draws = fitting._with_small_steps(each, fit_checks.TARGETS, Monitor(emit=said.append))
    assert found == target_accept
    assert draws.diverging.sum() == divergent[-1]
    assert said == [
        f"target_accept {low:g}: {number} of 4000 draws diverged; retrying at {high:g}"
        for low, high, number in zip(fit_checks.TARGETS, fit_checks.TARGETS[1:], said_of)
    ]


@pytest.mark.parametrize(("number", "found"), [(40, 0.8), (41, 0.95)])
def test_the_target_is_raised_while_proposals_are_refused(number, found):
    refused, said = spoilt(), []
    refused.acceptance_rate[2, :number] = 0.01
    each = iter([(refused, refused), (spoilt(), None)])
    accept, _ = fitting._with_small_steps(each, fit_checks.TARGETS, Monitor(emit=said.append))
    assert accept == found
    told = f"{number} of 4000 proposals were refused"
    assert said == [f"target_accept 0.8: {told}; retrying at 0.95"] * (found > 0.8)
    problems = fit_checks.check(refused, ["a", "b"]).problems
    assert any(problem.startswith(told) for problem in problems) == (found > 0.8)


def test_a_target_that_was_asked_for_is_kept():
    found, _ = fitting._with_small_steps(attempts(41), [0.8], Monitor(emit=print))
    assert found == 0.8


def test_a_healthy_fit_is_told_so():
    checks = check(healthy(), ["a", "b"])
    assert not checks.problems
    assert not checks.warnings
    assert (checks.ess > 2000).all()  # false alarm < 1e-4: 3900, with an sd of 200
    assert (abs(checks.efmi - 2) < z_limit(CHAINS) * 2 / np.sqrt(NUM_DRAWS)).all()


DIM = 6
CORRELATED = np.linalg.cholesky(np.full((DIM, DIM), 0.98) + 0.02 * np.eye(DIM))


@pytest.mark.slow
def test_a_higher_target_compiles_nothing():
    """And gives the draws that it gives alone, as the first one does."""
    whiten = np.linalg.inv(10.0 ** np.arange(-3, 3)[:, None] * CORRELATED)
    it = Target(
        lambda key: jnp.zeros(DIM),
        lambda position, fold: -0.5 * ((whiten @ position) ** 2).sum(),
        lambda position, fold: (position[0], position[:1]),
    )
    begin = np.random.default_rng(1).normal(size=(CHAINS, DIM))
    settings = it, 2, key(1, "model", "fit"), begin, 100, 100
    made = nuts.posteriors(*settings, [0.8, 0.99])
    with counted() as events:
        first = next(made)
    assert "backend_compile" in events
    with counted() as events:
        second = next(made)
    assert "backend_compile" not in events
    assert second.acceptance_rate.mean() > first.acceptance_rate.mean()
    for draws, target_accept in ((first, 0.8), (second, 0.99)):
        alone = posterior(*settings, target_accept)
        np.testing.assert_array_equal(draws.position, alone.position)
