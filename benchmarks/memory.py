"""Peak memory of sampling and diagnosing: `python -m benchmarks.memory`, from the root.

Over draws (500 to 50,000 a chain), and over folds (500 to 10,000) in batches of 500; every command
is a process of its own, whose largest resident set is what the kernel says.
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pandas as pd
import yaml

from tests.project import MODELS

PCV = Path(sys.executable).parent / "pcv"
MIB = 2**20


def peak(folder: Path, *words: str) -> tuple[float, float]:
    """MiB and seconds of a command."""
    started = time.monotonic()
    process = subprocess.Popen(
        [PCV, *words], cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    said = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    assert status == 0, (words, said)
    return usage.ru_maxrss * 1024 / MIB, time.monotonic() - started


def project(folder: Path, num_units: int, folds: dict, cv: dict) -> Path:
    folder.mkdir()
    (folder / "models.py").write_text(MODELS)
    rng = np.random.default_rng(1)
    rain = rng.normal(size=num_units)
    pd.DataFrame(
        {
            "plot": np.arange(num_units),
            "rain": rain,
            "yield_t": 2 + 0.8 * rain + rng.normal(size=num_units) / 2,
        }
    ).to_csv(folder / "data.csv", index=False)
    experiment = {
        "data": {"file": "data.csv", "outcome": "yield_t", "order": ["plot"]},
        "folds": folds,
        "models": {"flat": {"model": "models.py:flat"}},
        "fit": {"warmup": 200, "draws": 200},
        "cv": {"chains": 4, "warmup": 10, "adapt": "never"} | cv,
    }
    settings = {"seed": 1, "experiments": {"yields": experiment}}
    (folder / "config.yaml").write_text(yaml.safe_dump(settings))
    return folder


def stages(folder: Path) -> list[str]:
    """A row of the table: peaks of the stages, and the seconds of sampling."""
    for stage in ("data", "folds", "fit"):
        peak(folder, stage, "config.yaml")
    cells = []
    for stage in ("warmup", "sample", "diagnose"):
        size, seconds = peak(folder, stage, "config.yaml")
        cells.append(f"{size:.0f}")
        if stage == "sample":
            taken = f"{seconds:.0f}"
    return [*cells, taken]


def main() -> None:
    print(
        "| folds | batches | draws | stored | warmup | sample | diagnose | sample, s |",
        "|---" * 8 + "|",
        sep="\n",
    )
    with tempfile.TemporaryDirectory() as place:
        for num_folds, batches, draws, size, kept in (
            (100, 1, 500, 50, "draws"),
            (100, 1, 50_000, 50, "draws"),
            (100, 1, 500, 50, "sums"),
            (100, 1, 50_000, 50, "sums"),
            (500, 1, 50, 25, "sums"),
            (1_000, 2, 50, 25, "sums"),
            (10_000, 20, 50, 25, "sums"),
        ):
            cv = {"draws": draws, "batch_size": size, "fold_batches": batches, "store": kept}
            folds = {"scheme": "leave_p_out", "p": 2, "splits": num_folds}  # units stay the same
            folder = project(Path(place) / f"{num_folds}-{draws}-{kept}", 200, folds, cv)
            cells = [str(x) for x in (num_folds, batches, draws, kept)] + stages(folder)
            print("| " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
