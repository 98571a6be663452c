"""log p(y) by pcv beside IBIS and bridgesampling, and its cost: `python -m benchmarks.evidence`.

Wells of Bangladesh (wells.csv in `PCV_DATA`): all households, and every tenth; weights of 30 rats,
with a level for each. IBIS is that of the package `particles` (waste-free, random-walk moves), for
`RUNS` seeds, units in the order of the data; R's `bridgesampling` has the draws of our full-data
fit. Both are left out where they are not installed; `pip install --no-deps particles`. Their
answers are kept in tests/evidence.json.
"""

import json
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
from scipy.stats import norm

import pcv
from benchmarks.data import data_file

ROOT = Path(__file__).parents[1]
FACTS = ROOT / "tests/evidence.json"
RUNS, SPLITS = 20, 8
HALF = np.log(2.0)
"""a half-normal's log density above that of a normal"""


class Problem(NamedTuple):
    """A model for pcv, for NumPy on the real line, and for R."""

    model: pcv.Model
    dim: int
    draw: Callable[[np.random.Generator, int], np.ndarray]
    """from the prior (draw, param)"""
    log_prior: Callable[[np.ndarray], np.ndarray]
    log_lik: Callable[[np.ndarray, slice | int], np.ndarray]
    """of some units, summed (draw)"""
    num_units: int
    in_r: str
    """log_posterior(draw, data)"""
    for_r: Mapping[str, np.ndarray]
    positive: tuple[str, ...]
    """parameters above 0"""


def switching(y: np.ndarray, dist100: np.ndarray, arsenic: np.ndarray) -> None:
    """Three coefficients, standard normal."""
    a, b, c = (numpyro.sample(name, dist.Normal(0, 1)) for name in "abc")
    with numpyro.plate("household", len(y)):
        numpyro.sample("y", dist.Bernoulli(logits=a + b * dist100 + c * arsenic), obs=y)


def wells(every: int) -> Problem:
    table = pd.read_csv(data_file("wells.csv"))[::every]
    y, far, arsenic = (table[x].to_numpy(float) for x in ("switch", "dist", "arsenic"))
    data = {"y": y.astype(int), "dist100": far / 100, "arsenic": arsenic}
    x = (2 * y - 1)[:, None] * np.stack([np.ones(len(y)), far / 100, arsenic], axis=1)
    return Problem(
        pcv.from_numpyro(switching, data),
        3,
        lambda rng, size: rng.normal(size=(size, 3)),
        lambda theta: norm.logpdf(theta).sum(1),
        lambda theta, some: -np.logaddexp(0, -theta @ np.atleast_2d(x[some]).T).sum(1),
        len(y),
        """p <- draw["a"] + draw["b"] * data$dist100 + draw["c"] * data$arsenic
        sum(dbinom(data$y, 1, plogis(p), log = TRUE)) + sum(dnorm(draw, log = TRUE))""",
        data,
        (),
    )


def growth(rat: np.ndarray, age: np.ndarray, weight: np.ndarray) -> None:
    """Lines with a common slope, and a level for each rat."""
    level = numpyro.sample("level", dist.Normal(250, 20))
    slope = numpyro.sample("slope", dist.Normal(6, 2))
    sd_level = numpyro.sample("sd_level", dist.HalfNormal(20))
    sigma = numpyro.sample("sigma", dist.HalfNormal(10))
    with numpyro.plate("rats", 30):
        z = numpyro.sample("z", dist.Normal(0, 1))
    mean = level + sd_level * z[rat] + slope * age
    with numpyro.plate("unit", len(rat)):
        numpyro.sample("weight", dist.Normal(mean, sigma), obs=weight)


def rats() -> Problem:
    table = pd.read_csv(ROOT / "resources/rats.csv")
    rat, age = table["rat"].to_numpy() - 1, table["day"].to_numpy() - 22.0
    weight = table["weight_g"].to_numpy(float)
    data = {"rat": rat, "age": age, "weight": weight}

    def draw(rng: np.random.Generator, size: int) -> np.ndarray:
        sds = np.log(abs(rng.normal(size=(size, 2)) * [20, 10]))
        rest = rng.normal(size=(size, 32)) * [20, 2, *[1] * 30] + [250, 6, *[0] * 30]
        return np.concatenate([rest[:, :2], sds, rest[:, 2:]], axis=1)

    def log_prior(theta: np.ndarray) -> np.ndarray:
        sds = norm.logpdf(np.exp(theta[:, 2:4]), 0, [20, 10]) + HALF + theta[:, 2:4]
        rest = norm.logpdf(theta[:, :2], [250, 6], [20, 2])
        return sds.sum(1) + rest.sum(1) + norm.logpdf(theta[:, 4:]).sum(1)

    def log_lik(theta: np.ndarray, some: slice | int) -> np.ndarray:
        which, days, y = (np.atleast_1d(x[some]) for x in (rat, age, weight))
        mean = theta[:, :1] + np.exp(theta[:, 2:3]) * theta[:, 4 + which] + theta[:, 1:2] * days
        return norm.logpdf(y, mean, np.exp(theta[:, 3:4])).sum(1)

    return Problem(
        pcv.from_numpyro(growth, data),
        34,
        draw,
        log_prior,
        log_lik,
        len(weight),
        """z <- draw[grepl("z", names(draw))]
        mean <- draw["level"] + draw["sd_level"] * z[data$rat + 1] + draw["slope"] * data$age
        sum(dnorm(data$weight, mean, draw["sigma"], log = TRUE)) + sum(dnorm(z, log = TRUE)) +
            dnorm(draw["level"], 250, 20, log = TRUE) + dnorm(draw["slope"], 6, 2, log = TRUE) +
            dnorm(draw["sd_level"], 0, 20, log = TRUE) + dnorm(draw["sigma"], 0, 10, log = TRUE) +
            2 * log(2)""",
        data,
        ("sd_level", "sigma"),
    )


PROBLEMS = {"every tenth well": lambda: wells(10), "wells": lambda: wells(1), "rats": rats}


def by_ibis(problem: Problem, particles: int, length: int) -> list[float]:
    """Estimates of log p(y), of independent runs."""
    from particles import SMC, distributions, smc_samplers

    class Prior(distributions.ProbDist):
        dim, dtype = problem.dim, float

        def rvs(self, size: int) -> np.ndarray:
            found = np.empty(size, [("x", float, (problem.dim,))])
            found["x"] = problem.draw(rng, size)
            return found

        def logpdf(self, theta: np.ndarray) -> np.ndarray:
            return problem.log_prior(theta["x"])

    class Static(smc_samplers.StaticModel):
        def logpyt(self, theta: np.ndarray, t: int) -> np.ndarray:
            return problem.log_lik(theta["x"], t)

        def loglik(self, theta: np.ndarray, t: int | None = None) -> np.ndarray:
            return problem.log_lik(theta["x"], slice(0, problem.num_units if t is None else t + 1))

    found = []
    for seed in range(RUNS):
        rng = np.random.default_rng(seed)
        np.random.seed(seed)  # noqa: NPY002 (that of particles)
        sampler = SMC(
            fk=smc_samplers.IBIS(
                model=Static(data=np.arange(problem.num_units), prior=Prior()), len_chain=length
            ),
            N=particles,
        )
        sampler.run()
        found.append(float(sampler.logLt))
    return found


def by_bridgesampling(problem: Problem, draws: Mapping[str, np.ndarray]) -> float:
    """log p(y) from draws of the posterior, by R's package."""
    flat = {
        name if x.ndim == 2 else f"{name}{i}": x.reshape(*x.shape[:2], -1)[..., i].ravel()
        for name, x in draws.items()
        for i in range(int(np.prod(x.shape[2:])))
    }
    with tempfile.TemporaryDirectory() as folder:
        pd.DataFrame(flat).to_csv(f"{folder}/draws.csv", index=False)
        pd.DataFrame(problem.for_r).to_csv(f"{folder}/data.csv", index=False)
        low = ", ".join(f"{x} = {0 if x in problem.positive else '-Inf'}" for x in flat)
        high = ", ".join(f"{x} = Inf" for x in flat)
        program = f"""
        draws <- as.matrix(read.csv("{folder}/draws.csv"))
        data <- read.csv("{folder}/data.csv")
        log_posterior <- function(draw, data) {{ {problem.in_r} }}
        found <- bridgesampling::bridge_sampler(
            draws, log_posterior, data = data, lb = c({low}), ub = c({high}), method = "warp3",
            silent = TRUE, repetitions = 1)
        cat(found$logml)"""
        Path(f"{folder}/run.R").write_text(program)
        done = subprocess.run(
            ["Rscript", f"{folder}/run.R"], capture_output=True, text=True, check=True
        )
    return float(done.stdout.split()[-1])


def timed[T](call: Callable[..., T], *args: Any, **settings: Any) -> tuple[T, float]:
    begun = time.perf_counter()
    return call(*args, **settings), time.perf_counter() - begun


if __name__ == "__main__":
    facts: dict[str, dict[str, Any]] = json.loads(FACTS.read_text()) if FACTS.exists() else {}
    for name, made in PROBLEMS.items():
        problem = made()
        fit, fit_seconds = timed(pcv.fit, problem.model, seed=1, progress=False)
        settings = {"seed": 1, "fit": fit, "method": "path", "progress": False}
        found, seconds = timed(pcv.evidence, problem.model, SPLITS, **settings)
        print(f"\n{name}: full-data fit {fit_seconds:.1f} s, evidence {seconds:.1f} s")
        print(found.ways.to_string())
        known = facts.setdefault(name, {})
        if shutil.which("Rscript"):
            posterior = fit["posterior"].to_dataset()
            known["bridgesampling"] = by_bridgesampling(
                problem, {str(x): posterior[x].values for x in posterior.data_vars}
            )
        try:
            runs, seconds = timed(by_ibis, problem, 50, 100 if problem.dim < 10 else 400)
        except ModuleNotFoundError:
            pass
        else:
            sd = np.std(runs, ddof=1)
            known["ibis"] = [float(np.mean(runs) + sd**2 / 2), float(sd / np.sqrt(RUNS))]
            print(f"IBIS {seconds / RUNS:.1f} s a run, sd {sd:.3f}")
        print(known)
    FACTS.write_text(json.dumps(facts, indent=2) + "\n")
