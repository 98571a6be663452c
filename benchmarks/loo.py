"""PSIS first, brute force where it fails, against brute force for all: the answer and its cost.

    PCV_DATA=... .venv/bin/python -m benchmarks.loo [ROWS]

Each call in a process of its own, with no compiled code at hand. ROWS of the wells, evenly spaced
(default 604 of 3,020); 200 observations of a regression, 6 of them gross outliers; rats, one rat
left out at a time.
"""

import multiprocessing
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import NamedTuple

import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd

import pcv
from benchmarks.data import data_file
from pcv.api.result import CV
from pcv.base import devices
from pcv.base.process import all_cores

CHAINS = 8


class Answer(NamedTuple):
    """What a call said, and what it took."""

    elpd: float
    mcse: float
    folds: pd.DataFrame
    sampled: int
    """folds that chains were run for"""
    wall: float
    cpu: float


def switching(y, dist100, arsenic):
    a, b = numpyro.sample("a", dist.Normal(0, 1)), numpyro.sample("b", dist.Normal(0, 1))
    c = numpyro.sample("c", dist.Normal(0, 1))
    with numpyro.plate("household", len(y)):
        numpyro.sample("y", dist.Bernoulli(logits=a + b * dist100 + c * arsenic), obs=y)


def line(y, x):
    a, b = numpyro.sample("a", dist.Normal(0, 5)), numpyro.sample("b", dist.Normal(0, 5))
    sigma = numpyro.sample("sigma", dist.HalfNormal(5))
    with numpyro.plate("case", len(y)):
        numpyro.sample("y", dist.Normal(a + b * x, sigma), obs=y)


def wells(rows: int) -> pcv.Model:
    table = pd.read_csv(data_file("wells.csv"))
    table = table.iloc[np.linspace(0, len(table) - 1, rows).round().astype(int)]
    columns = {"dist100": table["dist"].to_numpy() / 100, "arsenic": table["arsenic"].to_numpy()}
    return pcv.from_numpyro(switching, {"y": table["switch"].to_numpy(), **columns})


def outliers(_: int) -> pcv.Model:
    rng = np.random.default_rng(1)
    x = rng.normal(size=200)
    y = 1 + 2 * x + rng.normal(size=200)
    y[:6] += [12, -12, 15, -15, 18, 25]
    return pcv.from_numpyro(line, {"y": y, "x": x})


def rats() -> tuple[pcv.Model, pd.DataFrame]:
    devices.setup(all_cores())
    from pcv.models.zoo.rats import random_slopes

    table = pd.read_csv("resources/rats.csv")
    return random_slopes({name: table[name].to_numpy() for name in table}), table


def first(make: Callable[[int], pcv.Model], rows: int, seed: int) -> CV:
    return pcv.loo(make(rows), seed=seed, chains=CHAINS, progress=False)


def brute(make: Callable[[int], pcv.Model], rows: int, seed: int) -> CV:
    return pcv.cross_validate(make(rows), "loo", seed=seed, chains=CHAINS, progress=False)


def rats_first(_: None, rows: int, seed: int) -> CV:
    model, table = rats()
    return pcv.loo(model, group_by="rat", data=table, seed=seed, chains=CHAINS, progress=False)


def rats_brute(_: None, rows: int, seed: int) -> CV:
    model, table = rats()
    folds = {"scheme": "leave_one_group_out", "group": "rat"}
    return pcv.cross_validate(model, folds, data=table, seed=seed, chains=CHAINS, progress=False)


def answer(call: Callable[..., CV], *args: object) -> Answer:
    with tempfile.TemporaryDirectory() as folder:
        tempfile.tempdir = folder
        wall, cpu = time.perf_counter(), time.process_time()
        cv = call(*args)
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    folds = cv.folds
    sampled = int((folds["source"] == "mcmc").sum()) if "source" in folds else len(folds)
    return Answer(cv.elpd, cv.mcse, folds[["elpd", "mcse"]], sampled, wall, cpu)


def alone(*args: object) -> Answer:
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawn) as pool:
        return pool.submit(answer, *args).result()


def main(rows: int) -> None:
    lines = []
    for name, psis_first, all_sampled, make in (
        (f"wells, {rows} rows", first, brute, wells),
        ("outliers", first, brute, outliers),
        ("rats, by rat", rats_first, rats_brute, None),
    ):
        for seed in (1, 2):
            a, b = alone(psis_first, make, rows, seed), alone(all_sampled, make, rows, seed + 10)
            each = (a.folds["elpd"] - b.folds["elpd"]) / np.hypot(a.folds["mcse"], b.folds["mcse"])
            lines.append(
                {
                    "model": name,
                    "seed": seed,
                    "PSIS first": f"{a.elpd:.2f} ({a.mcse:.3f})",
                    "brute force": f"{b.elpd:.2f} ({b.mcse:.3f})",
                    "z": f"{(a.elpd - b.elpd) / np.hypot(a.mcse, b.mcse):.1f}",
                    "largest |z| of a fold": f"{np.abs(each).max():.1f}",
                    "folds sampled": f"{a.sampled} of {b.sampled}",
                    "chains": f"{a.sampled * CHAINS}, {b.sampled * CHAINS}",
                    "wall s": f"{a.wall:.0f}, {b.wall:.0f}",
                    "CPU s": f"{a.cpu:.0f}, {b.cpu:.0f}",
                    "factor": f"{b.wall / a.wall:.1f}, {b.cpu / a.cpu:.1f}",
                }
            )
            print(lines[-1], flush=True)
    print(pd.DataFrame(lines).to_string(index=False))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 604)
