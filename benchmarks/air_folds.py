"""Do all one-step-ahead folds of the air passengers mix? By seeds, models and numbers of draws.

``python -m benchmarks.air_folds 200 1 2 3`` (draws of 4 chains a fold, seeds) prints a table of
R-hat max, the share of its benchmark that reaches it and flagged folds, with kernels of their own.
"""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pandas as pd

import pcv
from benchmarks.data import data_file
from pcv.models.zoo import air


def main(draws: int, seeds: list[int]) -> None:
    file = data_file("air_passengers_au.csv")
    table = pd.read_csv(file).sort_values(["year", "month"])
    data = {name: table[name].to_numpy() for name in ("month", "outbound")}
    print("| model | seed | R-hat max | share of its benchmark | flagged folds, counted from 0 |")
    print("|---|---|---|---|---|")
    for build in (air.monthly, air.yearly):
        for seed in seeds:
            with TemporaryDirectory() as results:
                found = pcv.cross_validate(
                    build(data),
                    folds=pcv.leave_future_out(len(table), 26),
                    data=data,
                    seed=seed,
                    chains=4,
                    draws=draws,
                    fit={"warmup": 300, "draws": 500},
                    results=Path(results),
                    progress=False,
                ).diagnostics.load()
            flagged = np.flatnonzero(found["verdict"].values != "ok").tolist()
            numbers = f"{float(found['rhat_max']):.3f} | {float(found['benchmark_share']):.1%}"
            print(f"| {build.__name__} | {seed} | {numbers} | {flagged} |", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), [int(seed) for seed in sys.argv[2:]])
