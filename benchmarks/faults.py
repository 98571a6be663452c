"""Faults at random changes of files: `python -m benchmarks.faults [POINTS]`, from the root.

Each point starts from the same full-data fit, in a folder of its own: a process runs the other
stages and meets its fault; another one goes on. Half of the points are drawn among the changes of
files of checkpoints, the others among all. What must hold after the fault is that every artifact
that the next stage takes as complete has the values of an undisturbed run, and that none is there
that it refuses but one that a power cut tore; and in the end, that all artifacts have those values.
"""

import contextlib
import os
import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
import yaml

from tests import faults
from tests.faults import NONE, Fault
from tests.project import ONE_MODEL, set_up

SEED = 1


def main(points: int) -> None:
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", tempfile.mkdtemp())
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    with tempfile.TemporaryDirectory() as place:
        base = set_up(Path(place) / "base").folder
        config = base / "config.yaml"
        config.write_text(yaml.safe_dump(ONE_MODEL))
        job = faults.job_of(config, print)
        whole = shutil.copytree(base, base.with_name("whole"))
        assert faults.run(whole / "config.yaml", NONE).code == 0
        fitted = "results/yields/models/flat/fit.zarr"
        for made in ("results/yields/data.zarr", "results/yields/folds.zarr", fitted):
            shutil.copytree(whole / made, base / made)
        again = shutil.copytree(base, base.with_name("again")) / "config.yaml"
        changes = faults.run(again, NONE).changes
        with contextlib.chdir(whole):
            expected, _ = faults.found(job)
        rng, table = np.random.default_rng(SEED), Counter[tuple[str, str, str]]()
        bad, went_on = [], 0
        for i in range(points):
            turn, kind = divmod(i, len(faults.HOW))
            among = list(faults.AMONG)[turn % 2]
            fault = Fault(list(faults.HOW)[kind], int(rng.integers(changes[among])), among)
            folder = shutil.copytree(base, base.with_name(str(i)))
            ended = faults.run(folder / "config.yaml", fault)
            with contextlib.chdir(folder):
                taken, refused = faults.found(job)
            rest = faults.run(folder / "config.yaml", NONE)
            with contextlib.chdir(folder):
                made, damaged = faults.found(job)
                left = faults.leftovers(job)
            held = (
                ended.code in faults.ANSWERS[fault.how]
                and not faults.wrong(taken, expected)
                and len(refused) <= (fault.how == "power_cut")
                and made.keys() == expected.keys()
                and not faults.wrong(made, expected)
                and not damaged
                and not left
            )
            if not held:
                bad.append((fault, ended, refused, rest, damaged, left))
            table[fault.how, among, ended.met] += 1
            went_on += "resuming from" in rest.said
            shutil.rmtree(folder)
            print(
                f"{i + 1} of {points}: {fault.how} at {ended.where}, {len(bad)} wrong", flush=True
            )
    print("", f"| fault | drawn among | {' | '.join(faults.MET)} |", sep="\n")
    print("|---" * (2 + len(faults.MET)) + "|")
    for how in faults.HOW:
        for among in faults.AMONG:
            counts = " | ".join(str(table[how, among, met]) for met in faults.MET)
            print(f"| {how} | {among} | {counts} |")
    print(f"\n{points} faults among {changes['all files']} changes of files, of which")
    print(f"{changes['checkpoints']} in checkpoints; {went_on} reruns went on from a checkpoint;")
    print(f"{points - len(bad)} results bit-identical to the undisturbed one.")
    for each in bad:
        print(each)
    sys.exit(bool(bad))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 200)
