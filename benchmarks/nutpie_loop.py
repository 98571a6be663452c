"""All folds at once against a loop of nutpie over them: one PyMC model, its elpd, seconds of each.

    PCV_DATA=... .venv/bin/python -m benchmarks.nutpie_loop

nutpie (`pip install nutpie`; not in the locks) compiles the model once, and gets every fold's
training data by `with_data`: a loop that compiles for every fold takes seconds more for each.
Its settings are its own but for 4 chains of 400 draws, as many as pcv's default 8 of 200. Each call
is in a process of its own that compiles everything; imports are not counted.
"""

import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import NamedTuple

import arviz_stats
import numpy as np
import pandas as pd
import pymc as pm
from scipy import stats
from scipy.special import logsumexp

from pcv.cores import all_cores

CHAINS, DRAWS = 4, 400
Columns = Mapping[str, np.ndarray]


class Example(NamedTuple):
    """A model, its data, and which rows a fold leaves out."""

    model: Callable[[Columns], None]
    """made in a `pm.Model`, of columns that may be `pm.Data`"""
    log_lik: Callable[[Columns, Columns], np.ndarray]
    """of draws (first axis) and rows that were left out"""
    table: Callable[[], pd.DataFrame]
    group: str | None = None
    """the column whose values are left out one by one; None: each row"""


class Answer(NamedTuple):
    folds: int
    elpd: float
    mcse: float
    seconds: float


def read(name: str) -> pd.DataFrame:
    return pd.read_csv(Path(os.environ["PCV_DATA"]) / name)


def rats() -> pd.DataFrame:
    table = pd.read_csv("resources/rats.csv")
    return pd.DataFrame({"y": table["weight_g"], "x": table["day"] - 22.0, "g": table["rat"] - 1})


def rats_model(d: Columns) -> None:
    a = pm.Normal("a", pm.Normal("mu_a", 250, 50), pm.HalfNormal("sd_a", 25), shape=30)
    b = pm.Normal("b", pm.Normal("mu_b", 6, 5), pm.HalfNormal("sd_b", 2), shape=30)
    pm.Normal("y", a[d["g"]] + b[d["g"]] * d["x"], pm.HalfNormal("sigma", 10), observed=d["y"])


def radon() -> pd.DataFrame:
    table = read("radon_mn.csv")
    county = pd.factorize(table["county_idx"])[0]
    return pd.DataFrame({"y": table["log_radon"], "x": table["floor_measure"], "g": county})


def radon_model(d: Columns) -> None:
    a = pm.Normal("a", pm.Normal("mu", 0, 5), pm.HalfNormal("tau", 1), shape=85)
    b = pm.Normal("b", 0, 2)
    pm.Normal("y", a[d["g"]] + b * d["x"], pm.HalfNormal("sigma", 2), observed=d["y"])


def normal(theta: Columns, d: Columns) -> np.ndarray:
    slope = theta["b"][:, d["g"]] if theta["b"].ndim > 1 else theta["b"][:, None]
    mean = theta["a"][:, d["g"]] + slope * d["x"]
    return stats.norm.logpdf(d["y"], mean, theta["sigma"][:, None])


def wells() -> pd.DataFrame:
    table = read("wells.csv").iloc[::5]
    return pd.DataFrame({"y": table["switch"], "x": table["dist"] / 100, "z": table["arsenic"]})


def wells_model(d: Columns) -> None:
    a, b, c = (pm.Normal(name, 0, 1) for name in "abc")
    pm.Bernoulli("y", logit_p=a + b * d["x"] + c * d["z"], observed=d["y"])


def bernoulli(theta: Columns, d: Columns) -> np.ndarray:
    a, b, c = (theta[name][:, None] for name in "abc")
    return stats.bernoulli.logpmf(d["y"], 1 / (1 + np.exp(-(a + b * d["x"] + c * d["z"]))))


EXAMPLES = {
    "rats, by rat": Example(rats_model, normal, rats, "g"),
    "radon of Minnesota, by county": Example(radon_model, normal, radon, "g"),
    "wells, every fifth, one by one": Example(wells_model, bernoulli, wells),
}


def by_nutpie(name: str) -> Answer:
    """Scores of left-out groups by their effects as the chains draw them."""
    import nutpie

    example = EXAMPLES[name]
    table = example.table()
    columns = {name: column.to_numpy() for name, column in table.items()}
    fold_of = columns[example.group] if example.group else np.arange(len(table))
    folds = np.unique(fold_of)
    begun = time.perf_counter()
    with pm.Model() as model:
        example.model({name: pm.Data(name + "_", x) for name, x in columns.items()})
    compiled = nutpie.compile_pymc_model(model)
    elpd, errors = [], []
    for fold in folds:
        kept = fold_of != fold
        data = {name + "_": x[kept] for name, x in columns.items()}
        found = nutpie.sample(
            compiled.with_data(**data),
            chains=CHAINS,
            draws=DRAWS,
            cores=all_cores(),
            seed=int(fold),
            progress_bar=False,
        ).posterior
        theta = {k: x.to_numpy().reshape(CHAINS * DRAWS, *x.shape[2:]) for k, x in found.items()}
        log_score = example.log_lik(theta, {k: x[~kept] for k, x in columns.items()}).sum(1)
        elpd.append(logsumexp(log_score) - np.log(len(log_score)))
        weights = np.exp(log_score - log_score.max())
        ess = arviz_stats.ess(weights.reshape(CHAINS, DRAWS), method="mean")
        errors.append(weights.std() / weights.mean() / np.sqrt(ess))
    seconds = time.perf_counter() - begun
    return Answer(len(folds), sum(elpd), float(np.hypot.reduce(errors)), seconds)


def by_pcv(name: str) -> Answer:
    from pcv import cross_validate, leave_one_group_out

    example = EXAMPLES[name]
    table = example.table().reset_index(drop=True)
    begun = time.perf_counter()
    with pm.Model() as model:
        example.model({name: column.to_numpy() for name, column in table.items()})
    folds = leave_one_group_out(table[example.group]) if example.group else "loo"
    found = cross_validate(model, folds, seed=1, progress=False)
    seconds = time.perf_counter() - begun
    return Answer(len(found.folds), found.elpd, found.mcse, seconds)


def alone(call: Callable[[str], Answer], name: str) -> Answer:
    """In a process of its own, with no compiled code at hand."""
    spawn = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder, ProcessPoolExecutor(1, mp_context=spawn) as pool:
        os.environ["JAX_COMPILATION_CACHE_DIR"] = folder
        os.environ["PYTENSOR_FLAGS"] = f"base_compiledir={folder}"
        return pool.submit(call, name).result()


def main() -> None:
    lines = []
    for name in EXAMPLES:
        a, b = alone(by_nutpie, name), alone(by_pcv, name)
        lines.append(
            {
                "example": name,
                "folds": b.folds,
                "nutpie": f"{a.elpd:.1f} ({a.mcse:.2f})",
                "pcv": f"{b.elpd:.1f} ({b.mcse:.2f})",
                "seconds": f"{a.seconds:.0f}, {b.seconds:.0f}",
                "factor": f"{a.seconds / b.seconds:.2f}",
            }
        )
        print(lines[-1], flush=True)
    print(pd.DataFrame(lines).to_string(index=False))


if __name__ == "__main__":
    main()
