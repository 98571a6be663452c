"""Stages, their versions, and where their artifacts lie: what workflow and stages share."""

from pathlib import Path

VERSIONS = {
    "data": 1,
    "fit": 2,
    "folds": 1,
    "warmup": 4,
    "sample": 4,
    "diagnose": 4,
    "compare": 3,
    "report": 1,
    "plan": 1,
}
"""raised when a stage computes something else from the same inputs: its artifacts are remade"""

FILES = {
    "data": "{experiment}/data.zarr",
    "fit": "{experiment}/models/{model}/fit.zarr",
    "folds": "{experiment}/folds.zarr",
    "warmup": "{experiment}/models/{model}/warmup/{batch}.zarr",
    "sample": "{experiment}/models/{model}/sample/{batch}.zarr",
    "diagnose": "{experiment}/models/{model}/diagnostics.zarr",
    "compare": "{experiment}/comparison.zarr",
    "report": "{experiment}/report.html",
}
"""artifacts by stage, relative to the folder of the results"""

ROUND_FILES = {
    "plan": "{experiment}/plan/{round}.zarr",
    "sample": "{experiment}/models/{model}/sample/{round}/{batch}.zarr",
}
"""those of the rounds after the first, where a comparison decides which folds go on"""

FIGURES = (
    "difference",
    "uncertainty",
    "probability",
    "rhat",
    "benchmark",
    "fold_differences",
    "khat",
    "full_data",
)
"""names of the report's figures"""


def dataset(results: Path, name: str) -> Path:
    """Where the table of a registered data set lies.

    >>> str(dataset(Path("results"), "radon"))
    'results/datasets/radon.csv'
    """
    return results / "datasets" / f"{name}.csv"


def path(
    results: Path, stage: str, experiment: str, model: str = "", batch: str = "", round: int = 0
) -> Path:
    """Where a stage's artifact lies.

    >>> str(path(Path("results"), "fit", "rats", "slopes"))
    'results/rats/models/slopes/fit.zarr'
    """
    file = (ROUND_FILES if round and stage in ROUND_FILES else FILES)[stage]
    return results / file.format(experiment=experiment, model=model, batch=batch, round=round)


def batches(fold_batches: int) -> list[str]:
    """Names of the fold batches, as Snakemake's scatter-gather writes them.

    >>> batches(2)
    ['1-of-2', '2-of-2']
    """
    return [f"{i}-of-{fold_batches}" for i in range(1, fold_batches + 1)]
