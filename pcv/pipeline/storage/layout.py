"""Where what belongs to artifacts lies, and how many batches of folds there are."""

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
    """Where the table of a registered data set lies.

    >>> str(dataset(Path("results"), "radon"))
    'results/datasets/radon.csv'
    """
    return results / "datasets" / f"{name}.csv"


def benchmark(
    results: Path, stage: str, experiment: str, model: str = "", batch: str = "", round: int = 0
) -> Path:
    """Where Snakemake notes what the job of an artifact took.

    >>> str(benchmark(Path("results"), "sample", "rats", "slopes", "1-of-1", 2))
    'results/rats/benchmarks/sample-slopes-1-of-1-round-2.tsv'
    """
    fields = {"{model}": model, "{batch}": batch, "{round}": f"round-{round}"}
    of = [word for field, word in fields.items() if field in STAGES[stage].place(round)]
    return results / experiment / "benchmarks" / f"{'-'.join([stage, *of])}.tsv"


def checkpoints(results: Path, experiment: str, model: str) -> Path:
    """Where a model's jobs keep what they have made so far.

    >>> str(checkpoints(Path("results"), "rats", "slopes"))
    'results/.checkpoints/rats/slopes'
    """
    return results / ".checkpoints" / experiment / model


WHOLE = "1-of-1"
"""the only batch of folds that are not cut"""


def num_batches(
    results: Path, experiment: str, model: str, fold_batches: int | Literal["auto"]
) -> int:
    """How many batches a model's folds are cut into; 0 where `pcv cut` has not measured it yet.

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


def batches(fold_batches: int) -> list[str]:
    """Names of the fold batches, as Snakemake's scatter-gather writes them.

    >>> batches(2)
    ['1-of-2', '2-of-2']
    """
    return [f"{i}-of-{fold_batches}" for i in range(1, fold_batches + 1)]
