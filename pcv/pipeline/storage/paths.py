"""Paths of files that accompany artifacts, and the number of fold batches."""

import json
from pathlib import Path
from typing import Literal

from pcv.pipeline import graph
from pcv.pipeline.graph import STAGES

FIGURES = (
    "difference",
    "uncertainty",
    "probability",
    "rhat",
    "benchmark",
    "fold_differences",
    "ess",
    "khat",
    "overlap",
    "full_data",
)
"""names of the report's figures"""


def dataset(results: Path, name: str) -> Path:
    """The path of a registered data set's table.

    >>> str(dataset(Path("results"), "radon"))
    'results/datasets/radon.csv'
    """
    return results / "datasets" / f"{name}.csv"


def benchmark(
    results: Path, stage: str, experiment: str, model: str = "", batch: str = "", round: int = 0
) -> Path:
    """The path of Snakemake's benchmark of the job that makes an artifact.

    >>> str(benchmark(Path("results"), "sample", "rats", "slopes", "1-of-1", 2))
    'results/rats/benchmarks/sample-slopes-1-of-1-round-2.tsv'
    """
    fields = {"{model}": model, "{batch}": batch, "{round}": f"round-{round}"}
    of = [word for field, word in fields.items() if field in STAGES[stage].place(round)]
    return results / experiment / "benchmarks" / f"{'-'.join([stage, *of])}.tsv"


def checkpoints(results: Path, experiment: str, model: str) -> Path:
    """The folder of checkpoints of a model's jobs.

    >>> str(checkpoints(Path("results"), "rats", "slopes"))
    'results/.checkpoints/rats/slopes'
    """
    return results / ".checkpoints" / experiment / model


def num_batches(
    results: Path, experiment: str, model: str, fold_batches: int | Literal["auto"]
) -> int:
    """The number of batches of a model's folds; 0 where `pcv cut` has not measured it yet.

    >>> num_batches(Path("results"), "rats", "slopes", 3)
    3
    """
    if fold_batches != "auto":
        return fold_batches
    try:
        found = json.loads(
            (graph.path(results, "cut", experiment, model) / "zarr.json").read_text()
        )
        return int(found["attributes"]["fold_batches"])
    except (OSError, ValueError, LookupError, TypeError):
        return 0
