"""Large data: surrogates of a million units, a whole `pcv.subsample`, the stages of a workflow that
reads a file, one beside ArviZ's, and the number of chains that should read the data at once. Each
part in a process of its own.

python -m benchmarks.large [surrogates] [whole] [files] [arviz] [chains]
"""

import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from pcv.base import devices

devices.setup(2)

import arviz_base as az  # noqa: E402
import arviz_stats  # noqa: E402
import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
import numpyro.distributions as dist  # noqa: E402
import pandas as pd  # noqa: E402
import xarray as xr  # noqa: E402
import yaml  # noqa: E402

import pcv  # noqa: E402
from benchmarks.memory import peak  # noqa: E402
from pcv.pipeline.storage import store  # noqa: E402
from pcv.sampling.fit.surrogates import evenly, in_chunks, posterior  # noqa: E402

UNITS, WIDTH, DRAWS = 1_000_000, 100, 100
NAMES = ("plpd", "waic", "tis", "psis", "d1waic_m", "d1waic")
CHAINS = 16
M, FEWER, MANY_DRAWS = 400, 100_000, 1_000


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
        given = posterior(draws, names, kept=evenly(len(draws), DRAWS))
        for units in (100_000, UNITS):  # the first call compiles
            rows = {name: x[:units] for name, x in data.items()}
            before = time.perf_counter()
            in_chunks(log_lik, rows, units, given, names)
        print(f"{', '.join(names):45}{time.perf_counter() - before:8.1f}")
    say_peak()


def say_peak():
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"peak memory, data included: {peak:.1f} GiB")


def regression(width):
    normal = dist.Normal(0.0, 1.0)
    return pcv.Model(
        init=lambda key: {"theta": normal.sample(key, (width + 1,))},
        log_prior=lambda params: normal.log_prob(params["theta"]).sum(),
        log_lik=lambda params, data: log_lik(params["theta"], data),
        constrain=lambda params: params,
        unconstrain=lambda variables: variables,
        outcome=pcv.Outcome("y"),
    )


def of_whole():
    print(f"pcv.subsample of {UNITS:,} units, m = {M}, Laplace, PSIS")
    data, _ = simulated(UNITS, WIDTH)
    before = time.perf_counter()
    found = pcv.subsample(
        regression(WIDTH),
        M,
        ["plpd", "waic_100", "tis_100"],
        "psis",
        data=data,
        fit={"approximation": "laplace", "draws": 250},
        progress=False,
    )
    print(f"{time.perf_counter() - before:.1f} s")
    say_peak()
    print(found, found.by_surrogate, sep="\n")


def built(data):
    return regression(np.shape(data["x"])[1])


def of_files():
    print(f"stages of a subsample of {UNITS:,} units, read from a file: seconds, peak MiB")
    data, _ = simulated(UNITS, WIDTH)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        pd.DataFrame(data["x"]).assign(y=data["y"]).rename(columns=str).to_parquet(
            folder / "data.parquet"
        )
        matrix = xr.Dataset({"x": (("row", "column"), data["x"]), "y": ("row", data["y"])})
        store.put(folder / "data.zarr", matrix)
        del data, matrix
        of_matrix = ("data", "folds", "fit", "surrogates", "subsample", "diagnose", "compare")
        for file, stages in (("data.parquet", ("data",)), ("data.zarr", of_matrix)):
            experiment = {
                "data": {"file": file, "outcome": "y"},
                "folds": {
                    "scheme": "subsample",
                    "m": M,
                    "surrogate": ["plpd", "waic_100", "tis_100"],
                    "exact": "psis",
                },
                "models": {"regression": {"model": "benchmarks.large:built"}},
                "fit": {"approximation": "laplace", "draws": 250},
            }
            settings = {"seed": 1, "experiments": {"large": experiment}}
            (folder / "config.yaml").write_text(yaml.safe_dump(settings))
            for stage in stages:
                size, seconds = peak(folder, stage, "config.yaml")
                print(f"{file:13} {stage:11}{seconds:8.1f}{size:8.0f}")


def posterior_draws(data):
    """Of `regression`, normal to a good approximation."""
    precision = np.eye(WIDTH) + data["x"].T @ data["x"]
    mean = np.linalg.solve(precision, data["x"].T @ data["y"])
    sigma = np.linalg.norm(data["y"] - data["x"] @ mean) / np.sqrt(FEWER - WIDTH)
    noise = np.random.default_rng(2).normal(size=(4, MANY_DRAWS // 4, WIDTH + 1))
    root = sigma * np.linalg.inv(np.linalg.cholesky(precision))
    beta = mean + noise[..., :-1] @ root
    log_sigma = np.log(sigma) + noise[..., -1:] / np.sqrt(2 * FEWER)
    return np.concatenate([beta, log_sigma], -1)


def of_arviz():
    print(f"{FEWER:,} units at {MANY_DRAWS} draws, m = {M}: whole calls")
    data, _ = simulated(FEWER, WIDTH)
    theta = posterior_draws(data)
    before = time.perf_counter()
    flat = theta.reshape(-1, WIDTH + 1)
    ll = np.stack([np.asarray(log_lik(x, data)) for x in flat]).reshape(*theta.shape[:2], FEWER)
    tree = az.from_dict({"posterior": {"theta": theta}, "log_likelihood": {"y": ll}})
    evaluated = time.perf_counter() - before
    found = arviz_stats.loo_subsample(tree, M, method="lpd")
    theirs = time.perf_counter() - before
    print(f"ArviZ {theirs:.1f} s, of which {evaluated:.1f} s are log likelihoods")
    print(f"{found.elpd:.1f}, SE {found.se:.1f}, subsampling SE {found.subsampling_se:.2f}")
    say_peak()
    del ll, tree, found
    before = time.perf_counter()
    given = az.from_dict({"posterior": {"theta": theta}})
    quick = {"fit": given, "progress": False}
    with np.errstate(all="ignore"):
        mine = pcv.subsample(regression(WIDTH), M, "waic", "psis", data=data, **quick)
    ours = time.perf_counter() - before
    print(f"pcv {ours:.1f} s, {theirs / ours:.2f} times as fast")
    print(f"{mine.elpd:.1f}, SE {mine.se:.1f}, subsampling SE {mine.subsampling_se:.2f}")


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


PARTS = {
    "surrogates": of_surrogates,
    "whole": of_whole,
    "files": of_files,
    "arviz": of_arviz,
    "chains": of_chains,
}

if __name__ == "__main__":
    asked = sys.argv[1:] or list(PARTS)
    if len(asked) == 1:
        with jax.enable_x64(True):
            PARTS[asked[0]]()
    else:
        for part in asked:
            subprocess.run([sys.executable, "-m", "benchmarks.large", part], check=True)
