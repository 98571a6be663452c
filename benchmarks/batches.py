"""What cutting folds into batches costs: `python -m benchmarks.batches`, from the root.

The same 1,000 folds in more and more batches, one job after another on this machine: how long the
longest batch takes, warmup and sampling, is what as many nodes would take; the sum is what they
cost.
"""

import tempfile
import time
from pathlib import Path

from benchmarks.memory import peak, project
from pcv.base.names import batch_names


def main() -> None:
    print(
        "| batches | folds each | longest batch, s | sum, s | sum over that of one batch |",
        "|---" * 5 + "|",
        sep="\n",
    )
    alone = None
    with tempfile.TemporaryDirectory() as place:
        for number in (1, 4, 16):
            cv = {"draws": 2000, "batch_size": 50, "warmup": 50, "fold_batches": number}
            folds = {"scheme": "leave_one_out"}
            folder = project(Path(place) / str(number), 1_000, folds, cv | {"store": "sums"})
            for stage in ("data", "folds", "fit"):
                peak(folder, stage, "config.yaml")
            taken = []
            for batch in batch_names(number):
                started = time.monotonic()
                for stage in ("warmup", "sample"):
                    peak(folder, stage, "config.yaml", "--batch", batch)
                taken.append(time.monotonic() - started)
            alone = alone or sum(taken)
            cells = (number, 1_000 // number, f"{max(taken):.0f}", f"{sum(taken):.0f}")
            print("|", *(f"{cell} |" for cell in cells), f"{sum(taken) / alone:.2f} |", flush=True)


if __name__ == "__main__":
    main()
