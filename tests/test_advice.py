"""What chains that disagree are advised, by what is seen in them."""

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy.signal import lfilter

import pcv
from pcv.models.checks.steps import stepwise
from pcv.sampling.fit.draws import Draws
from pcv.sampling.fit.fit_checks import check
from tests.bounds import count_limits

NAMES = ["mu[0]", "mu[1]", "sigma"]


def draws_of(position):
    energy = np.random.default_rng(2).normal(size=position.shape[:2])
    steps, never = np.full(energy.shape, 3), np.zeros(energy.shape, bool)
    return Draws(position, energy, energy, np.ones(energy.shape), steps, never)


def components(apart):
    """Chains of two means and a scale; in the last chain the means change places."""
    position = np.random.default_rng(1).normal(size=(4, 500, 3))
    position[..., 1] += apart
    position[3] = position[3][:, [1, 0, 2]]
    return position


def test_labels_that_change_places():
    """False alarm < 1e-4: of sorted draws R-hat is below 1.01, of unsorted ones above 2."""
    (said,) = check(draws_of(components(6.0)), NAMES).problems
    assert "the elements of 'mu' change places between chains" in said
    assert said.endswith("order them")


def test_chains_in_different_places_are_not_labels():
    position = components(6.0)
    position[3, :, :2] += 3.0
    longer = "more warmup and draws of the fit, or another parameterisation"
    (said,) = check(draws_of(position), NAMES).problems
    assert said.endswith(longer)
    (close,) = check(draws_of(components(1.5)), NAMES).problems
    assert close.endswith(longer)  # elements that overlap, as those of a funnel: no label is stuck
    (said,) = check(draws_of(position), NAMES, centred=["mu"]).problems
    assert said.endswith("a non-centred 'mu', or more warmup and draws of the fit")
    (said,) = check(draws_of(position), NAMES, stepwise=["sigma"]).problems
    assert "steps in 'sigma' and no slope: smooth the switch" in said


WEEK = np.arange(12.0)


def level(when):
    """Two levels, with a change that is hard or smooth."""

    def model(week, y):
        change = numpyro.sample("change", dist.Uniform(0, 12))
        level = numpyro.sample("level", dist.Normal(0, 2).expand((2,)))
        share = when(week - change)
        with numpyro.plate("case", len(y)):
            mean = level[0] * (1 - share) + level[1] * share
            numpyro.sample("y", dist.Normal(mean, 1), obs=y)

    data = {"week": WEEK, "y": 3.0 * (WEEK > 5)}
    return pcv.from_numpyro(model, data), data


@pytest.mark.parametrize(
    ("when", "names"),
    [(lambda t: 1.0 * (t > 0), ["change"]), (lambda t: 1 / (1 + jnp.exp(-t)), [])],
    ids=["hard", "smooth"],
)
def test_hard_change_points(when, names):
    position = np.random.default_rng(1).normal(size=(2, 50, 3))
    assert stepwise(*level(when), position) == names


def test_a_parameter_without_influence_has_no_steps():
    def model(y):
        mean = numpyro.sample("mean", dist.Normal(0, 1))
        numpyro.sample("idle", dist.Normal(0, 1))
        with numpyro.plate("case", len(y)):
            numpyro.sample("y", dist.Normal(mean, 1), obs=y)

    data = {"y": WEEK}
    made = pcv.from_numpyro(model, data)
    assert stepwise(made, data, np.random.default_rng(1).normal(size=(2, 50, 2))) == []


def test_mixed_chains_seldom_warn():
    """Though successive draws of HMC lie on opposite sides, and squares of them are fewer."""
    phi, rng, warned = -0.7, np.random.default_rng(1), 0
    for _ in range(60):
        steps = rng.normal(size=(16, 20, 250))
        steps[..., 1:] *= np.sqrt(1 - phi**2)
        position = np.moveaxis(lfilter([1], [1, -phi], steps), 1, 2)
        warned += bool(check(draws_of(position), [f"x{i}" for i in range(20)]).warnings)
    assert warned <= count_limits(60, 0.02)[1]  # the level is .01
