r"""Pharmacokinetics with two depots and a central compartment, for the paper's test case.

A dose D splits into a share F, absorbed at rate :math:`k_1`, and a rest, absorbed at the slower
:math:`k_2`; elimination is linear, at :math:`k = \mathrm{CL} / V`. The concentration is

.. math:: C(t) = \frac{D}{V} \sum_{j=1}^2 F_j \frac{k_j}{k_j - k} (e^{-k t} - e^{-k_j t})

Fixed effects: five typical values, three effects of weight and age, three standard deviations
between subjects, two of the noise. Random effects of each subject: CL, V and F.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.scipy.special import expit

import pcv
from pcv.models.model import Data


def kinetics(data: Data) -> pcv.Model:
    """Concentrations of 12 subjects."""
    subjects, subject = np.unique(data["subject"], return_inverse=True)
    first = np.searchsorted(subject, np.arange(len(subjects)))
    columns = {name: np.asarray(data[name], float) for name in ("hours", "weight", "age", "dose")}
    weight, age = np.log(columns["weight"][first] / 70), (columns["age"][first] - 40) / 10

    def model(conc: Any, subject: Any, hours: Any, dose: Any) -> None:
        def typical(name: str, value: float, sd: float = 0.5) -> Any:
            return numpyro.sample(name, dist.Normal(np.log(value), sd))

        def effect(name: str, mean: float, sd: float) -> Any:
            return numpyro.sample(name, dist.Normal(mean, sd))

        log_cl = typical("log_cl", 4.0) + effect("weight_cl", 0.75, 0.3) * weight
        log_cl = log_cl + effect("age_cl", 0.0, 0.3) * age
        log_v = typical("log_v", 30.0) + effect("weight_v", 1.0, 0.3) * weight
        log_fast, log_ratio = typical("log_fast", 2.0), typical("log_ratio", 8.0)
        logit_share = effect("logit_share", 0.0, 1.0)
        omega = numpyro.sample("omega", dist.LogNormal(np.log(0.3), 0.4).expand([3]).to_event(1))
        with numpyro.plate("subjects", len(subjects)):
            eta = numpyro.sample("eta", dist.Normal(0, omega).to_event(1))
        cl, v, share = eta.T
        rate, volume = jnp.exp(log_cl + cl - log_v - v), jnp.exp(log_v + v)
        rates = rate[subject], jnp.exp(log_fast), jnp.exp(log_fast - log_ratio)
        first_share = expit(logit_share + share)[subject]
        mean = concentration(dose / volume[subject], *rates, first_share, hours)
        noise, relative = (
            numpyro.sample(name, dist.HalfNormal(sd)) for name, sd in (("noise", 0.2), ("cv", 0.2))
        )
        with numpyro.plate("unit", len(conc)):
            sd = jnp.sqrt(noise**2 + (relative * mean) ** 2)
            numpyro.sample("conc", dist.Normal(mean, sd), obs=conc)

    rows = {"conc": data["conc"], "subject": subject}
    return pcv.from_numpyro(model, rows | {name: columns[name] for name in ("hours", "dose")})


def concentration(per_volume: Any, rate: Any, fast: Any, slow: Any, share: Any, hours: Any) -> Any:
    """Of a dose per volume, `hours` after it."""

    def of_depot(absorption: Any) -> Any:
        apart = jnp.abs(absorption - rate) * hours
        small = apart < 1e-6  # the limit of equal rates
        share_left = jnp.where(small, 1.0, -jnp.expm1(-apart) / jnp.where(small, 1.0, apart))
        return absorption * hours * jnp.exp(-jnp.minimum(absorption, rate) * hours) * share_left

    return per_volume * (share * of_depot(fast) + (1 - share) * of_depot(slow))
