"""Seconds over the number of folds, of chains and of parameters: `python -m benchmarks.scaling`.

A regression of 200 units, random pairs left out. Each setting is a process of its own, and two
calls: the second one, with another seed, compiles nothing. Slopes are of log seconds of that call
over the log of the upper half of a range.
"""

import time
from typing import Any

import numpy as np

from benchmarks.bench import alone, save
from benchmarks.problems import InNumPyro, Problem, Written, write

UNITS = 200
AXES = {
    "folds": (10, 100, 1_000, 10_000),
    "chains": (2, 8, 32, 128, 256),
    "parameters": (2, 10, 100, 1_000),
}
BASE = {"folds": 20, "chains": 4, "parameters": 10}


def regression(folds: int, parameters: int) -> Problem:
    import pcv

    def table() -> dict[str, np.ndarray]:
        rng = np.random.default_rng(1)
        x = rng.normal(size=(UNITS, parameters))
        y = x @ rng.normal(size=parameters) / np.sqrt(parameters) + rng.normal(size=UNITS)
        return {"x": x, "y": y}

    def prior(say: Any, d: Any) -> dict[str, Any]:
        sd = float(1 / np.sqrt(parameters))
        return {"b": say.normal("b", 0, sd, parameters), "sigma": say.half_normal("sigma", 2)}

    def pairs(d: Any) -> pcv.Folds:
        return pcv.leave_p_out(UNITS, 2, splits=folds, seed=1)

    model = Written(prior, "normal", lambda theta, d: (theta["b"] @ d["x"].T, theta["sigma"]))
    return Problem(table, {"regression": model}, pairs, folds)


def measured(folds: int, chains: int, parameters: int, **options: Any) -> list[dict[str, Any]]:
    """Two calls of `cross_validate`."""
    import pcv

    problem = regression(folds, parameters)
    data = problem.table()
    (model,) = problem.models.values()

    def numpyro_model(**d: Any) -> None:
        write(InNumPyro(), model, d)

    answers = []
    for seed in (1, 2):
        begun, cpu = time.perf_counter(), time.process_time()
        made = pcv.from_numpyro(numpyro_model, data)
        found = pcv.cross_validate(
            made, problem.folds(data), seed=seed, chains=chains, progress=False, **options
        )
        answers.append(
            {
                "seconds": time.perf_counter() - begun,
                "cpu": time.process_time() - cpu,
                "elpd": found.elpd,
                "mcse": found.mcse,
                "flagged": int((found.folds["verdict"] != "ok").sum()),
            }
        )
    return answers


def slope(rows: list[dict[str, Any]], axis: str) -> float:
    """Of the upper half of the range, in logs."""
    x, y = np.log([[row[axis], row["seconds"]] for row in rows if row["state"] == "second call"]).T
    upper = x >= (x.min() + x.max()) / 2
    return float(np.polyfit(x[upper], y[upper], 1)[0])


def main() -> None:
    rows: list[dict[str, Any]] = []
    for axis, values in AXES.items():
        for value in values:
            at = BASE | {axis: value}
            given = ", ".join(f"{name}={x}" for name, x in at.items())
            found = alone(f"scaling.measured({given})", given)
            for state, answer in zip(("cold", "second call"), found):
                rows.append({"problem": axis, "state": state, **at, **answer})
            print(at, found[-1:], flush=True)
        of_axis = [row for row in rows if row["problem"] == axis]
        print(f"{axis}: slope {slope(of_axis, axis):.2f}", flush=True)
    print(save("scaling", rows))


if __name__ == "__main__":
    main()
