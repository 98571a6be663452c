"""Large data: surrogates of a million units, and how many chains should read the data at once.

python -m benchmarks.large
"""

import resource
import time

from pcv.base.programs import devices

devices.setup(2)

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
import numpyro.distributions as dist  # noqa: E402

from pcv.sampling.fit.surrogates import in_chunks, posterior  # noqa: E402

UNITS, WIDTH, DRAWS = 1_000_000, 100, 100
NAMES = ("plpd", "waic", "tis", "psis", "d1waic_m", "d1waic")
CHAINS = 16


def log_lik(position, data):
    mean = data["x"] @ position[:-1]
    return dist.Normal(mean, jnp.exp(position[-1])).log_prob(data["y"])


def simulated(units, width):
    rng = np.random.default_rng(1)
    x = rng.normal(size=(units, width))
    beta = 0.1 * rng.normal(size=width)
    return {"x": x, "y": x @ beta + rng.normal(size=units)}, beta


def of_surrogates():
    data, beta = simulated(UNITS, WIDTH)
    noise = np.random.default_rng(2).normal(size=(1000, WIDTH + 1)) / np.sqrt(UNITS)
    draws = np.append(beta, 0.0) + noise
    print(f"{UNITS:,} units, {WIDTH} columns, {DRAWS} draws: seconds, compiling apart")
    for names in (*((name,) for name in NAMES), NAMES):
        given = posterior(draws, DRAWS, names)
        for units in (100_000, UNITS):  # the first call compiles
            rows = {name: x[:units] for name, x in data.items()}
            before = time.perf_counter()
            in_chunks(log_lik, rows, units, given, names)
        print(f"{', '.join(names):45}{time.perf_counter() - before:8.1f}")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"peak memory, data included: {peak:.1f} GiB")


def of_chains():
    print("ms per gradient of a chain, by the number of chains that read the data at once")
    for units, width in ((20_000, 1), (20_000, 100), (200_000, 1), (200_000, 20), (100_000, 100)):
        data, _ = simulated(units, width)
        gradient = jax.grad(lambda x, data=data: log_lik(x, data).sum())
        positions = 0.01 * np.random.default_rng(3).normal(size=(CHAINS, width + 1))
        times = []
        for together in (1, 2, 4, 8, 16):
            run = jax.jit(lambda x: jax.lax.map(jax.vmap(gradient), x))  # noqa: B023
            tiles = positions.reshape(-1, together, width + 1)
            run(tiles).block_until_ready()
            before = time.perf_counter()
            for _ in range(3):
                run(tiles).block_until_ready()
            times.append((time.perf_counter() - before) / 3 / CHAINS * 1e3)
        print(f"{units:9,} units, {width:3} columns:", *(f"{x:7.2f}" for x in times))


if __name__ == "__main__":
    with jax.enable_x64(True):
        of_surrogates()
        of_chains()
