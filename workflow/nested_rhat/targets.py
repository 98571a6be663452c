r"""The paper's six targets (appendix C), and their moments where these are known.

Equation 1 of the paper has :math:`\theta_1 \sim N(0, 1)`: with the 100 that it subtracts, and the
autocorrelation that it describes, a standard deviation of 10 is meant, as in the Inference Gym.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
from jax.scipy.special import logsumexp
from jaxtyping import Array, Float

import pcv
from pcv.models.model import Model, Target, target
from pcv.models.parameters import flat_target, param_names
from pcv.pipeline import graph
from pcv.pipeline.data import registry

SEED = 2022
"""of simulated data"""


class Example(NamedTuple):
    """A target, ready to run."""

    target: Target
    """of one flat vector"""
    num_units: int
    names: list[str]
    """of the entries of the vector"""
    mean: Float[np.ndarray, " param"] | None = None
    variance: Float[np.ndarray, " param"] | None = None
    """None: not known"""


def rosenbrock(results: Path) -> Example:
    """A parabola: θ₁ ~ N(0, 10), θ₂ ~ N(0.03 (θ₁² - 100), 1)."""

    def log_density(x: Float[Array, " param"]) -> Any:
        bent = 0.03 * (x[0] ** 2 - 100)
        return dist.Normal(0, 10).log_prob(x[0]) + dist.Normal(bent, 1).log_prob(x[1])

    return known(log_density, np.zeros(2), np.array([100.0, 1 + 0.03**2 * 2 * 100**2]))


def bimodal(results: Path) -> Example:
    """0.3 N(-5, I) + 0.7 N(5, I) in 100 dimensions."""

    def log_density(x: Float[Array, " param"]) -> Any:
        modes = [dist.Normal(at, 1).log_prob(x).sum() for at in (-5.0, 5.0)]
        return logsumexp(jnp.stack(modes), b=jnp.array([0.3, 0.7]))

    mean = 5 * (0.7 - 0.3)
    return known(log_density, np.full(100, mean), np.full(100, 26 - mean**2))


def schools(results: Path) -> Example:
    """Eight schools, not centred."""
    y = np.array([28.0, 8, -3, 7, -1, 1, 18, 12])
    sd = np.array([15.0, 10, 16, 11, 9, 11, 10, 18])

    def model(y: Any, sd: Any) -> None:
        mu = numpyro.sample("mu", dist.Normal(5, 3))
        sigma = numpyro.sample("sigma", dist.HalfNormal(10))
        with numpyro.plate("school", 8):
            eta = numpyro.sample("eta", dist.Normal(0, 1))
            numpyro.sample("y", dist.Normal(mu + sigma * eta, sd), obs=y)

    return of_model(pcv.from_numpyro(model, {"y": y, "sd": sd}), y)


def german_credit(results: Path) -> Example:
    """Logistic regression on 24 standardised attributes of 1,000 applicants."""
    file = graph.dataset(results, "german_credit")
    if not file.exists():
        registry.fetch("german_credit", file)
    table = pd.read_csv(file)
    y = (table.pop("outcome") == 2).to_numpy(int)
    x = ((table - table.mean()) / table.std(ddof=0)).to_numpy()

    def model(y: Any, x: Any) -> None:
        beta = numpyro.sample("beta", dist.Normal(0, 1).expand([25]).to_event(1))
        with numpyro.plate("applicant", len(y)):
            numpyro.sample("y", dist.Bernoulli(logits=x @ beta), obs=y)

    design = np.column_stack([np.ones(len(y)), x])
    return of_model(pcv.from_numpyro(model, {"y": y, "x": design}), y)


HOURS = np.array([0.083, 0.167, 0.25, 0.5, 0.75, 1, 1.5, 2, 3, 4, 6, 8])
PATIENTS, DOSES, EVERY, DOSE = 20, 3, 12.0, 1000.0
"""and hours between doses"""


def in_blood(rates: Any, hours: Any) -> Any:
    """Mass in the central compartment, the sum of what is left of each dose so far."""
    absorption, elimination = rates
    since = hours - EVERY * np.arange(DOSES)[:, None]
    of_dose = jnp.exp(-elimination * jnp.maximum(since, 0)) - jnp.exp(
        -absorption * jnp.maximum(since, 0)
    )
    return DOSE * absorption / (absorption - elimination) * of_dose.sum(0)


def pharmacokinetics(results: Path) -> Example:
    """One compartment with first-order absorption, three doses, 20 simulated patients."""
    hours = np.concatenate([HOURS + EVERY * dose for dose in range(DOSES)])
    patient, hour = (x.ravel() for x in np.meshgrid(np.arange(PATIENTS), hours, indexing="ij"))

    def masses(rates: Any) -> Any:
        return in_blood((rates[0][patient], rates[1][patient]), hour)

    def model(y: Any) -> None:
        typical, spread = (
            [
                numpyro.sample(name.format(i), dist.LogNormal(np.log(at), 0.1))
                for i, at in enumerate(x, 1)
            ]
            for name, x in (("k_{}", (1.0, 0.3)), ("sigma_{}", (0.15, 0.35)))
        )
        noise = numpyro.sample("sigma", dist.LogNormal(-1, 1))
        with numpyro.plate("patient", PATIENTS):
            eta = [numpyro.sample(f"eta_{i}", dist.Normal(0, 1)) for i in (1, 2)]
        rates = [k * jnp.exp(sd * x) for k, sd, x in zip(typical, spread, eta)]
        with numpyro.plate("measurement", len(y)):
            numpyro.sample("y", dist.LogNormal(jnp.log(masses(rates)), noise), obs=y)

    rng = np.random.default_rng([SEED, 1])
    own = np.array([1.0, 0.3])[:, None] * np.exp([[0.15], [0.35]] * rng.normal(size=(2, PATIENTS)))
    y = np.asarray(masses(own)) * np.exp(0.2 * rng.normal(size=len(hour)))
    return of_model(pcv.from_numpyro(model, {"y": y}), y)


STUDENTS, QUESTIONS = 400, 100


def item_response(results: Path) -> Example:
    """Abilities of 400 simulated students and difficulties of 100 questions."""
    rng = np.random.default_rng([SEED, 2])
    ability, difficulty = rng.normal(size=STUDENTS), rng.normal(size=QUESTIONS)
    logit = 0.75 + ability[:, None] - difficulty
    y = (rng.uniform(size=logit.shape) < 1 / (1 + np.exp(-logit))).astype(int)

    def model(y: Any) -> None:
        delta = numpyro.sample("delta", dist.Normal(0.75, 1))
        with numpyro.plate("student", STUDENTS):
            alpha = numpyro.sample("alpha", dist.Normal(0, 1))
        with numpyro.plate("question", QUESTIONS):
            beta = numpyro.sample("beta", dist.Normal(0, 1))
        logit = (delta + alpha[:, None] - beta).ravel()
        with numpyro.plate("answer", STUDENTS * QUESTIONS):
            numpyro.sample("y", dist.Bernoulli(logits=logit), obs=y)

    return of_model(pcv.from_numpyro(model, {"y": y.ravel()}), y.ravel())


def of_model(model: Model, y: np.ndarray) -> Example:
    """The posterior of a model of all the data."""
    whole = target(model, {"y": y}, "plain")
    return Example(flat_target(whole)[0], len(y), param_names(whole))


def known(
    log_density: Callable[[Float[Array, " param"]], Any], mean: np.ndarray, variance: np.ndarray
) -> Example:
    """A density without data, with known moments."""
    whole = Target(
        init=lambda key: {"theta": jnp.asarray(mean)},
        log_density=lambda params, fold: log_density(params["theta"]),
        log_predictive=lambda params, fold: (jnp.zeros(()), jnp.zeros(fold.test.shape)),
    )
    return Example(flat_target(whole)[0], 1, param_names(whole), mean, variance)


TARGETS: dict[str, Callable[[Path], Example]] = {
    "rosenbrock": rosenbrock,
    "schools": schools,
    "german_credit": german_credit,
    "pharmacokinetics": pharmacokinetics,
    "bimodal": bimodal,
    "item_response": item_response,
}
"""makers, by name"""
