"""Microseconds per chain and leapfrog step: how many chains a device should take at one time.

    .venv/bin/python benchmarks/sampler.py

All cores as host devices, float64, 20 draws of 3 steps; the ratio is to all chains at once.
"""

import os

os.environ["JAX_NUM_CPU_DEVICES"] = str(os.cpu_count())

import time
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

from pcv import sampler
from pcv.keys import key
from pcv.model import Model, Outcome, flat_target, target

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


def seconds(num_units: int, room: int) -> float:
    sampler.CPU_ROOM = room
    model, data = logistic(num_units)
    flat, _ = flat_target(target(model, data, "plain"))
    engine = sampler.build(flat, (), num_units, DRAWS)
    units = np.arange(CHAINS) % num_units
    held_out = np.stack([units, units + 1], -1)[:, None]
    folds = [str(i) for i in range(CHAINS)]
    chains = sampler.chains_of(key(1, "bench"), folds, 1, units[:, None], held_out)
    scale = jnp.full(5, 1 / np.sqrt(num_units))
    kernel = sampler.Kernel(jnp.zeros(5), scale, jnp.asarray(0.5), jnp.asarray(STEPS))
    chains = sampler.spread(chains)
    state = sampler.start(kernel, sampler.spread(jnp.zeros((CHAINS, 5))))
    center = {"joint": np.zeros(CHAINS), "pointwise": np.zeros((CHAINS, 1))}
    run = partial(sampler.blocks, engine, kernel, state, chains, center, key(1, "steps"), 1)
    list(run(DRAWS))
    spent = []
    for _ in range(3):
        begun = time.perf_counter()
        list(run(DRAWS))
        spent.append(time.perf_counter() - begun)
    return min(spent)


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    print("units  room      µs/chain/step  ratio")
    for num_units in (150, 3020, 12573):
        all_at_once = None
        for room in (2**40, 2**22, 2**20, 2**18, 2**17, 2**16):
            spent = seconds(num_units, room)
            all_at_once = all_at_once or spent
            each = 1e6 * spent / (CHAINS * DRAWS * STEPS)
            row = f"{each:14.2f}  {spent / all_at_once:5.2f}"
            print(f"{num_units:5d}  2^{room.bit_length() - 1:<4d}  {row}")
