"""pcv beside loops over folds: `make bench`, or `python -m benchmarks.bench rats air --ways paper`.

Every measurement is a process of its own; imports are not counted. Twice, the second time in the
other order: cold with empty caches, and warm with those that were left. pcv is called once more in
the warm process, with another seed. Times of loops are of some folds, by proportion of all. Answers
stand beside times; all go to `benchmarks/results/`, by machine.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.problems import PROBLEMS, InPyMC, Problem, write

RESULTS = Path(__file__).parent / "results"
LIMIT = 3600
"""seconds of a process"""


def by_pcv(problem: Problem) -> list[dict[str, Any]]:
    """Of a first call and, unless these are long, a second one with another seed."""
    import pymc as pm

    from pcv import cross_validate, from_stan

    data = problem.table()
    answers = []
    for seed in (1,) if problem.long else (1, 2):
        begun, cpu = time.perf_counter(), time.process_time()
        models: dict[str, Any] = {}
        for name, model in problem.models.items():
            if problem.programs:
                models[name] = from_stan(problem.programs[name], data, "y")
                continue
            with pm.Model() as models[name]:
                write(InPyMC(), model, data)
        found = cross_validate(models, problem.folds(data), seed=seed, progress=False)
        seconds = time.perf_counter() - begun
        each = {
            name: {
                "elpd": found[name].elpd,
                "mcse": found[name].mcse,
                "by_fold": found[name].folds["elpd"].tolist(),
                "flagged": int((found[name].folds["verdict"] != "ok").sum()),
            }
            for name in models
        }
        spent = time.process_time() - cpu
        answers.append({"seconds": seconds, "cpu": spent, "models": each})
    return answers


def by_loop(kind: str) -> Callable[[Problem], list[dict[str, Any]]]:
    def run(problem: Problem) -> list[dict[str, Any]]:
        from benchmarks import loops

        _, folds, some = loops.sides_of(problem)
        if kind == "paper":
            some = np.arange(len(folds.id))
        each, seconds, measured, cpu = {}, 0.0, 0.0, time.process_time()
        for name, model in problem.models.items():
            found = getattr(loops, f"by_{kind}")(problem, model)
            elpd, mcse = loops.elpd(found.log_score)
            others = max(len(some) - 1, 1)
            seconds += found.first + found.rest * (len(folds.id) - 1) / others
            measured += found.first + found.rest
            share = len(folds.id) / len(some)
            each[name] = {
                "elpd": float(elpd.sum() * share) if len(some) == len(folds.id) else None,
                "mcse": float(np.sqrt((mcse**2).sum() * share)),
                "by_fold": dict(zip(some.tolist(), elpd.tolist())),
            }
        spent = time.process_time() - cpu
        return [{"seconds": seconds, "measured": measured, "cpu": spent, "models": each}]

    return run


WAYS: dict[str, Callable[[Problem], list[dict[str, Any]]]] = {
    "pcv": by_pcv,
    "nutpie": by_loop("nutpie"),
    "numpyro": by_loop("numpyro"),
    "paper": by_loop("paper"),
}


def alone(
    call: str, what: str, limit: float = LIMIT, env: Mapping[str, str] | None = None
) -> list[dict[str, Any]]:
    """What `module.function(...)` of the benchmarks answers, in a process of its own; nothing, and
    that is said, where it fails, takes longer than `limit` seconds or runs out of memory."""
    module = call.split(".")[0]
    code = f"import json; from benchmarks import {module}; print(json.dumps({call}, default=float))"
    command = [sys.executable, "-W", "ignore", "-c", code]
    try:
        run = subprocess.run(
            command, env=os.environ | (env or {}), capture_output=True, text=True, timeout=limit
        )
    except subprocess.TimeoutExpired:
        print(f"{what}: not done after {limit:.0f} s", flush=True)
        return []
    if run.returncode:
        last = (run.stderr.strip().splitlines() or [f"ended by {run.returncode}"])[-1]
        print(f"{what}: {last}", flush=True)
        return []
    found: list[dict[str, Any]] = json.loads(run.stdout.splitlines()[-1])
    return found


def of_way(way: str, name: str) -> list[dict[str, Any]]:
    """Answers of one way to one problem."""
    return WAYS[way](PROBLEMS[name])


def with_caches(caches: str) -> dict[str, str]:
    """The environment in which everything that is compiled is kept in that folder."""
    flags = {"JAX_COMPILATION_CACHE_DIR": caches, "NUMBA_CACHE_DIR": caches}
    flags |= {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    return flags | {"PYTENSOR_FLAGS": f"base_compiledir={caches}"}


def measured(name: str, ways: list[str]) -> list[dict[str, Any]]:
    """Some ways, cold and warm, in one order and then in the other."""
    rows = []
    ways = ["pcv"] if PROBLEMS[name].programs else ways
    known = ("cold",) if PROBLEMS[name].long else ("cold", "warm")
    with tempfile.TemporaryDirectory() as folder:
        for state, order in zip(known, (ways, ways[::-1])):
            for way in order:
                env = with_caches(os.path.join(folder, way))
                found = alone(f"bench.of_way({way!r}, {name!r})", f"{name}, {way}", env=env)
                states = (state, "second call") if state == "warm" else (state,)
                for which, answer in zip(states, found):
                    row = {"problem": name, "way": way, "state": which, **answer}
                    rows.append(row)
                    print(summary([row]).to_string(index=False, header=False), flush=True)
    return rows


def summary(rows: list[dict[str, Any]]) -> pd.DataFrame:
    """A line for each measurement."""
    lines = []
    for row in rows:
        first = next(iter(row["models"].values()))
        lines.append(
            {
                "problem": row["problem"],
                "way": row["way"],
                "state": row["state"],
                "seconds": f"{row['seconds']:.1f}",
                "cpu": f"{row['cpu']:.1f}",
                "elpd": "" if first["elpd"] is None else f"{first['elpd']:.2f}",
                "mcse": f"{first['mcse']:.3f}",
            }
        )
    return pd.DataFrame(lines)


def machine() -> dict[str, Any]:
    from pcv.base.process import all_cores

    info = Path("/proc/cpuinfo")
    names = [x for x in info.read_text().splitlines() if x.startswith("model name")]
    processor = names[0].split(":")[1].strip() if names else platform.processor()
    return {"processor": processor, "cores": all_cores(), "python": platform.python_version()}


def versions() -> dict[str, str]:
    from importlib import metadata

    names = ("pcv-bayes", "jax", "blackjax", "numpyro", "pymc", "nutpie", "stanli")
    have = {x.metadata["Name"].lower(): x.version for x in metadata.distributions()}
    return {name: have[name] for name in names if name in have}


def save(name: str, rows: list[dict[str, Any]]) -> Path:
    """Add to what is known of this machine; rows of the same problems and ways are replaced."""
    here = machine()
    label = "".join(c if c.isalnum() else "-" for c in f"{here['processor']} x{here['cores']}")
    path = RESULTS / f"{label.lower()}.json"
    known = json.loads(path.read_text()) if path.exists() else {}
    done = {(row["problem"], row.get("way")) for row in rows}
    kept = [row for row in known.get(name, []) if (row["problem"], row.get("way")) not in done]
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    at = {"date": datetime.now(UTC).date().isoformat(), "commit": commit.stdout.strip()}
    used = known.get("versions", {}) | versions()  # of ways that were measured before, too
    known |= {"machine": here, "versions": used, name: kept + [at | row for row in rows]}
    RESULTS.mkdir(exist_ok=True)
    path.write_text(json.dumps(known, indent=1) + "\n")
    return path


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench")
    parser.add_argument("problems", nargs="*", choices=[*PROBLEMS, []], metavar="PROBLEM")
    parser.add_argument("--ways", nargs="+", choices=list(WAYS), default=list(WAYS))
    asked = parser.parse_args()
    for name in asked.problems or PROBLEMS:
        path = save("folds", measured(name, asked.ways))
    print(path)


if __name__ == "__main__":
    main()
