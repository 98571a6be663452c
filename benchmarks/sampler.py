"""Microseconds per chain and leapfrog step: how many chains a device should take at one time.

    .venv/bin/python benchmarks/sampler.py

All cores as host devices, float64, 240 chains of 20 draws of 3 steps.
"""

import os

os.environ["JAX_NUM_CPU_DEVICES"] = str(os.cpu_count())

import time

import jax
import numpy as np
import numpyro.distributions as dist

from pcv.base.keys import key
from pcv.base.monitor import TO_LOG
from pcv.folds.base import from_sets
from pcv.models.model import Model, Outcome, target
from pcv.models.parameters import flat_target
from pcv.sampling import tiles
from pcv.sampling.folds import moving
from pcv.sampling.kernel import plain

DRAWS, STEPS, CHAINS = 20, 3, 240


def logistic(num_units: int, num_params: int = 5) -> tuple[Model, dict]:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(num_units, num_params))
    data = {"x": x, "y": rng.integers(0, 2, num_units)}
    model = Model(
        init=lambda k: {"beta": jax.random.normal(k, (num_params,))},
        log_prior=lambda p: dist.Normal().log_prob(p["beta"]).sum(),
        log_lik=lambda p, d: dist.Bernoulli(logits=d["x"] @ p["beta"]).log_prob(d["y"]),
        constrain=lambda p: p,
        outcome=Outcome("y"),
    )
    return model, data


def seconds(num_units: int, tile: int) -> float:
    model, data = logistic(num_units)
    flat, _ = flat_target(target(model, data, "plain"))
    engine = tiles.build(flat, (), num_units, DRAWS, tile)
    units = np.arange(CHAINS) % num_units
    folds = from_sets(
        [str(i) for i in range(CHAINS)], [np.array([i]) for i in units], None, num_units
    )
    kernel = plain(5)._replace(scale=np.full(5, 1 / np.sqrt(num_units)))
    steps, ones = np.full(CHAINS, float(STEPS)), np.ones(CHAINS, int)
    own = moving.Own(np.full(CHAINS, 0.5), steps, ones, np.ones((CHAINS, 5)))
    begin = moving.standing_at(np.zeros((CHAINS, 1, 5)))
    center = moving.uncentered(folds)
    at = engine, key(1, "bench"), kernel, folds, own, begin, center, DRAWS, 0, TO_LOG
    list(moving.blocks(*at))
    spent = []
    for _ in range(3):
        begun = time.perf_counter()
        list(moving.blocks(*at))
        spent.append(time.perf_counter() - begun)
    return min(spent)


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    print("units  chains of a device  µs/chain/step")
    for num_units in (150, 3020, 12573):
        for each in (120, 64, 32, 16, 8, 4, 2):
            spent = 1e6 * seconds(num_units, each * jax.device_count()) / (CHAINS * DRAWS * STEPS)
            print(f"{num_units:5d}  {each:18d}  {spent:13.2f}")
