"""Faults at random changes of files: `python -m benchmarks.faults [POINTS]`, from the root.

Each point starts from the same full-data fit, in a folder of its own: a process runs the other
stages and meets its fault; another one goes on. What must hold is that artifacts are whole after
the fault, but for a power cut's, and that the result is bit-identical to an undisturbed one.
"""

import contextlib
import os
import re
import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
import yaml

from tests import faults
from tests.faults import Fault
from tests.test_faults import SETTINGS
from tests.test_stages import set_up

SEED = 1


def kind(where: str) -> str:
    """Which artifact the fault was met at."""
    if ".checkpoints" in where:
        return "checkpoint"
    found = re.search(r"(warmup|sample|diagnostics)", where)
    return found[1] if found else "other"


def main(points: int) -> None:
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", tempfile.mkdtemp())
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    with tempfile.TemporaryDirectory() as place:
        base = set_up(Path(place) / "base").folder
        config = base / "config.yaml"
        config.write_text(yaml.safe_dump(SETTINGS))
        job = faults.job_of(config, print)
        whole = shutil.copytree(base, base.with_name("whole"))
        assert faults.run(whole / "config.yaml", Fault("kill", 10**9)).code == 0
        fitted = "results/yields/models/flat/fit.zarr"
        for made in ("results/yields/data.zarr", "results/yields/folds.zarr", fitted):
            shutil.copytree(whole / made, base / made)
        again = shutil.copytree(base, base.with_name("again")) / "config.yaml"
        changes = faults.run(again, Fault("kill", 10**9)).changes
        with contextlib.chdir(whole):
            expected = faults.made(job)
        rng, table = np.random.default_rng(SEED), Counter[tuple[str, str]]()
        wrong, went_on = [], 0
        for i, at in enumerate(rng.integers(changes, size=points).tolist()):
            fault = Fault(list(faults.HOW)[i % len(faults.HOW)], at)
            folder = shutil.copytree(base, base.with_name(str(i)))
            ended = faults.run(folder / "config.yaml", fault)
            with contextlib.chdir(folder):
                torn = faults.broken(job)
            rest = faults.run(folder / "config.yaml", Fault("kill", 10**9))
            with contextlib.chdir(folder):
                same = all(a.identical(b) for a, b in zip(faults.made(job), expected, strict=True))
                left = faults.leftovers(job)
            met = ended.code in faults.ANSWERS[fault.how]
            if not (met and same and not left and len(torn) <= (fault.how == "power_cut")):
                wrong.append((fault, ended, torn, same, left))
            table[fault.how, kind(ended.where)] += 1
            went_on += "goes on from" in rest.said
            shutil.rmtree(folder)
            print(
                f"{i + 1} of {points}: {fault.how} at {ended.where}, {len(wrong)} wrong", flush=True
            )
    columns = ("warmup", "checkpoint", "sample", "diagnostics", "other")
    print(
        "", "| fault | " + " | ".join(columns) + " |", "|---" * (1 + len(columns)) + "|", sep="\n"
    )
    for how in faults.HOW:
        print(f"| {how} | " + " | ".join(str(table[how, c]) for c in columns) + " |")
    print(f"\n{points} faults among {changes} changes of files; {went_on} reruns went on from a")
    print(f"checkpoint; {points - len(wrong)} results bit-identical to the undisturbed one.")
    for each in wrong:
        print(each)
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 200)
