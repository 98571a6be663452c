"""Why the paper's Δ of radon is 59: plain predictives of left-out counties, over repeats.

    PCV_DATA=... python -m benchmarks.plain

The effect z of a county that is left out has nothing but its prior, N(0, 1). A chain of HMC that
was tuned to the full data takes its posterior's standard deviation s for its scale; a trajectory
of time T then turns z by the angle sT, so that z goes on as an AR(1) with coefficient cos(sT),
from where the full data had it. Beside such chains: independent draws of z, the best that a chain
can do. All else is drawn from the full-data posterior; exact are effects integrated out.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from scipy.signal import lfilter

import pcv
from benchmarks.data import data_file
from pcv.analysis import diagnostics as diag
from pcv.models.zoo.radon import varying_intercepts

REPEATS, CHAINS, BATCH_SIZE = 20, 4, 50
WARMUP = 2000


class Way(NamedTuple):
    time: float | None
    """of a trajectory, at best π / 2 for the full data; None: independent draws"""
    draws: int


WAYS = Way(None, 2000), Way(np.pi / 2, 2000), Way(np.pi / 2, 4000), Way(0.5, 2000), Way(0.5, 4000)


def repeated(floor: bool, table: pd.DataFrame) -> list[np.ndarray]:
    """For each way and repeat: elpd less the exact one, its stated MCSE, R-hat max."""
    data = {name: table[name].to_numpy() for name in ("log_radon", "floor_measure", "log_uppm")}
    counties, data["unit"] = np.unique(table["county_idx"], return_inverse=True)
    model = varying_intercepts(data, floor=floor)
    of_counties = {"log_radon": np.zeros(len(counties))}
    fitted = pcv.fit(model, data=of_counties, seed=1, draws=2000, progress=False)
    drawn = fitted["posterior"].to_dataset().stack(sample=("chain", "draw"))
    of_all = {"beta": np.empty((0, drawn.sizes["sample"]))}  # model B has none
    of_all |= {name: x.values for name, x in drawn.data_vars.items() if name != "alpha"}
    theta = {name: np.moveaxis(x, -1, 0) for name, x in of_all.items()}
    params = jax.vmap(model.unconstrain)(theta)
    test = jnp.arange(len(counties))
    marginal = jax.jit(jax.vmap(lambda x: model.marginal(x, {}, test)[1]))(params)
    exact = diag.elpd(sums_of(np.asarray(marginal)[None])).sum()
    plain = jax.jit(jax.vmap(lambda x: model.log_lik(x, {})))
    rng, found = np.random.default_rng([1, floor]), []
    for way in WAYS:
        of_repeats = []
        for _ in range(REPEATS):
            rows = rng.integers(len(theta["z"]), size=(CHAINS, way.draws))
            z = effects(way, theta["z"], rng)
            scores = []
            for row, its in zip(rows, z):
                some = {name: x[row] for name, x in params.items()}
                scores.append(np.asarray(plain(some | {"z": its})))
            sums = sums_of(np.stack(scores))
            error = np.sqrt((diag.mcse(sums) ** 2).sum())
            of_repeats.append((diag.elpd(sums).sum() - exact, error, diag.rhat(sums).max()))
        found.append(np.array(of_repeats))
    return found


def effects(way: Way, z: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Of all counties, (chain, draw, county)."""
    drawn = rng.normal(size=(z.shape[1], CHAINS, WARMUP + way.draws))
    if way.time is not None:
        angle = z.std(0) * way.time
        start = z[rng.integers(len(z), size=CHAINS)]
        for county, (a, b) in enumerate(zip(np.cos(angle), np.sin(angle))):
            before = a * start[:, county, None]
            drawn[county], _ = lfilter([b], [1, -a], drawn[county], zi=before)
    return np.moveaxis(drawn[..., WARMUP:], 0, -1)


def sums_of(scores: np.ndarray) -> diag.LogSums:
    """Of scores (chain, draw, county)."""
    return diag.batch_sums(np.moveaxis(scores, -1, 0), BATCH_SIZE)


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    table = pd.read_csv(data_file("radon_us.csv"))
    a, b = (repeated(floor, table) for floor in (True, False))
    print("time  draws  of      bias    sd  stated MCSE  R-hat max")
    for way, of_a, of_b in zip(WAYS, a, b):
        both = of_a[:, 0] - of_b[:, 0], np.hypot(of_a[:, 1], of_b[:, 1]), of_a[:, 2]
        for name, x in (("A", of_a), ("B", of_b), ("A - B", np.column_stack(both))):
            said = f"{x[:, 0].mean():6.2f}  {x[:, 0].std(ddof=1):4.2f}  {x[:, 1].mean():11.2f}"
            time = "" if way.time is None else f"{way.time:.2f}"
            print(f"{time:4s}  {way.draws:5d}  {name:5s} {said}  {x[:, 2].mean():9.3f}")
