"""What out-of-fold predictions cost: `PCV_DATA=… python -m benchmarks.predictions [rats radon_mn
wells]`, half an hour.

CPU seconds of a cross-validation with `predictions` of 400 over those with 0: of the first call of
a process with an empty cache, of its second call with another seed, and of a process with a full
cache. Every process runs alone, with and without in turn, `REPEATS` times; medians.
"""

import json
import os
import subprocess
import sys
import tempfile
import time

import numpy as np
import pandas as pd

from benchmarks.bench import with_caches
from benchmarks.problems import PROBLEMS, InNumPyro, InPyMC, write

REPEATS = 3
CALLS = ("first call, empty cache", "second call", "first call, full cache")


def call(name: str, frontend: str, predictions: int) -> None:
    """Print CPU seconds of two calls of a process."""
    from pcv import cross_validate, from_numpyro

    problem = PROBLEMS[name]
    data = problem.table()
    spent = []
    for seed in (1, 2):
        begun = time.process_time()
        models = {}
        for label, model in problem.models.items():
            if frontend == "pymc":
                import pymc as pm

                with pm.Model() as models[label]:
                    write(InPyMC(), model, data)
            else:
                models[label] = from_numpyro(lambda model=model: write(InNumPyro(), model, data))
        more = {"seed": seed, "predictions": predictions, "progress": False}
        cross_validate(models, problem.folds(data), **more)
        spent.append(time.process_time() - begun)
    print(json.dumps(spent))


def measure(name: str, frontend: str) -> dict[str, object]:
    """Ratios of a problem."""
    seconds: dict[tuple[int, str], list[float]] = {}
    for _ in range(REPEATS):
        for predictions in (0, 400):
            with tempfile.TemporaryDirectory() as cache:
                for full in (False, True):
                    args = f"{name!r}, {frontend!r}, {predictions}"
                    code = f"from benchmarks.predictions import call; call({args})"
                    environment = os.environ | with_caches(cache)
                    done = subprocess.run(
                        [sys.executable, "-c", code],
                        env=environment,
                        check=True,
                        stdout=subprocess.PIPE,
                        stderr=subprocess.DEVNULL,
                    )
                    first, second = json.loads(done.stdout.splitlines()[-1])
                    seconds.setdefault((predictions, CALLS[2 * full]), []).append(first)
                    seconds.setdefault((predictions, CALLS[1]), []).append(second)
    row: dict[str, object] = {"problem": f"{name} ({frontend})"}
    for of_call in CALLS:
        without, with_them = (np.median(seconds[n, of_call]) for n in (0, 400))
        row[of_call] = f"{without:.1f} s, {with_them / without - 1:+.0%}"
    return row


if __name__ == "__main__":
    names = sys.argv[1:] or ["rats", "radon_mn", "wells"]
    rows = [measure(name, frontend) for name in names for frontend in ("numpyro", "pymc")]
    print(pd.DataFrame(rows).to_string(index=False))
