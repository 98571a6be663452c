"""The table of stages: what each reads, which config keys it depends on, and what it writes.

    data ─▶ fit ─▶ folds ─▶ warmup ─▶ sample ─▶ diagnose ─▶ compare ─▶ report

and, where the config asks for them, `surrogates` and `subsample` (leave-one-out from the full-data
fit), `evidence` (cumulative cross-validation), `cut` (of folds into batches) and `plan` (of a
further round of sampling). Artifacts' recipes, the order in which they are made, whether they are
up to date, and when Snakemake remakes them all follow from this table, and so do their paths.

>>> STAGES["warmup"].inputs, path(Path("results"), "warmup", "rats", "slopes", "1-of-1").name
(('folds', 'fit', 'surrogates', 'subsample', 'cut'), '1-of-1.zarr')
"""

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

Files = Literal["table", "folds", "model", "posterior", "scores"]
"""files named in a config: data, user-defined folds, code of models, draws used as a fit, and code
of user-defined scores"""


class Stage(NamedTuple):
    """One line of the table."""

    version: int
    """raised when the same inputs give another result, so that its artifacts are remade"""
    path: str
    """of its artifact, relative to the results folder"""
    module: str
    """of `pcv.pipeline.stages`, with a function of the stage's name"""
    says: str
    """help text of its command"""
    inputs: tuple[str, ...] = ()
    """the stages directly before it; it may read their artifacts and all earlier ones"""
    keys: Mapping[str, Any] = {}
    """the experiment's keys that its result depends on, beyond those of earlier stages"""
    common: frozenset[str] = frozenset()
    """top-level keys that it depends on"""
    files: Mapping[str, Files] = {}
    """the files that it reads, by their names in its recipe"""
    on_devices: bool = False
    """whether it computes with JAX"""
    follows: bool = False
    """whether its artifact follows from its recipe and inputs alone, so that the same one is not
    written again"""
    path_in_rounds: str = ""
    """of its artifact in rounds after the first, where a comparison decides which folds continue"""

    def has(self, field: str) -> bool:
        """Whether there is an artifact for each "model" or "batch"."""
        return f"{{{field}}}" in self.path

    def place(self, round: int) -> str:
        place = (round and self.path_in_rounds) or self.path
        if not place:  # an empty path would be the whole results folder
            raise ValueError("the first round has no such artifact")
        return place


STAGES = {
    "data": Stage(
        version=2,
        follows=True,
        path="{experiment}/data.zarr",
        module="inputs",
        says="Read and check the data, and lay them out by unit: data.zarr.",
        keys={"data": True},
        files={"files": "table"},
    ),
    "fit": Stage(
        version=13,
        on_devices=True,
        path="{experiment}/models/{model}/fit.zarr",
        module="posterior",
        says="Fit the models to the full data and adapt the folds' kernel: fit.zarr.",
        inputs=("data",),
        keys={"fit": {"chains", "warmup", "draws", "target_accept", "approximation"}},
        common=frozenset({"seed", "precision"}),
        files={"files": "model", "posterior": "posterior"},
    ),
    "folds": Stage(
        version=1,
        follows=True,
        path="{experiment}/folds.zarr",
        module="inputs",
        says="Lay out the folds, once for all models: folds.zarr.",
        inputs=("data",),
        keys={"folds": True, "joint_by": True},
        common=frozenset({"seed"}),
        files={"files": "folds"},
    ),
    "surrogates": Stage(
        version=6,
        on_devices=True,
        path="{experiment}/models/{model}/surrogates.zarr",
        module="psis",
        says="Approximate leave-one-out terms from the full-data fit (folds.exact, scheme: "
        "subsample): surrogates.zarr.",
        inputs=("folds", "fit"),
        keys={"folds": True, "predictive": True, "predictions": True, "cv": {"chains"}},
        common=frozenset({"precision"}),
        files={"files": "model"},
    ),
    "subsample": Stage(
        version=1,
        path="{experiment}/subsample.zarr",
        module="psis",
        says="Choose how many terms are computed exactly (scheme: subsample): subsample.zarr.",
        inputs=("folds", "surrogates"),
        keys={"folds": True, "compare": True},
    ),
    "evidence": Stage(
        version=4,
        on_devices=True,
        path="{experiment}/models/{model}/evidence.zarr",
        module="cumulative",
        says="Follow the evidence of growing training sets (scheme: cumulative): evidence.zarr.",
        inputs=("folds", "fit"),
        keys={"folds": True},
        common=frozenset({"seed", "precision"}),
        files={"files": "model"},
    ),
    "cut": Stage(
        version=6,
        on_devices=True,
        path="{experiment}/models/{model}/batches.zarr",
        module="batches",
        says="Cut the folds into batches that fit in memory (cv.fold_batches: auto): batches.zarr.",
        inputs=("folds", "fit", "surrogates", "subsample"),
        keys={
            "predictive": True,
            "scores": True,
            "predictions": True,
            "predict": True,
            "cv": {"chains", "batch_size", "fold_batches", "memory_share"},
        },
    ),
    "warmup": Stage(
        version=31,
        on_devices=True,
        path="{experiment}/models/{model}/warmup/{batch}.zarr",
        module="chains",
        says="Warm up all chains of all folds from full-data draws: warmup/<batch>.zarr.",
        inputs=("folds", "fit", "surrogates", "subsample", "cut"),
        keys={
            "predictive": True,
            "estimator": True,
            "joint_by": True,
            "kernel": True,
            "cv": {"chains", "warmup", "batch_size", "superchains", "adapt", "start_scale"},
        },
        common=frozenset({"seed", "precision"}),
        files={"files": "model"},
    ),
    "sample": Stage(
        version=24,
        on_devices=True,
        path="{experiment}/models/{model}/sample/{batch}.zarr",
        module="chains",
        says="Sample all chains of all folds and store sums of their scores: sample/<batch>.zarr.",
        inputs=("warmup", "plan"),
        keys={
            "scores": True,
            "predictions": True,
            "predict": True,
            "cv": {"draws", "until", "store"},
        },
        files={"files": "model", "score files": "scores"},
        path_in_rounds="{experiment}/models/{model}/sample/{round}/{batch}.zarr",
    ),
    "plan": Stage(
        version=5,
        path="",  # the first round has none
        module="estimates",
        says="Choose the folds that need more draws for the comparison (cv.until): "
        "plan/<round>.zarr.",
        inputs=("cut", "sample"),
        keys={"cv": {"until"}, "compare": True},
        path_in_rounds="{experiment}/plan/{round}.zarr",
    ),
    "diagnose": Stage(
        version=25,
        path="{experiment}/models/{model}/diagnostics.zarr",
        module="estimates",
        says="Compute estimates and diagnostics of every fold from the stored sums: "
        "diagnostics.zarr.",
        inputs=("surrogates", "subsample", "cut", "sample"),
        common=frozenset({"seed"}),
    ),
    "compare": Stage(
        version=14,
        follows=True,
        path="{experiment}/comparison.zarr",
        module="comparison",
        says="Compare the models and print the tables: comparison.zarr, comparison.csv.",
        inputs=("diagnose", "evidence"),
        keys={"compare": True},
    ),
    "report": Stage(
        version=9,
        path="{experiment}/report.html",
        module="page",
        says="Write the report and its figures: report.html, figures/.",
        inputs=("compare",),
        keys={"report": True},
    ),
}
"""in the order in which they run"""

FIGURES = (
    "difference",
    "uncertainty",
    "probability",
    "rhat",
    "benchmark",
    "fold_differences",
    "predictions",
    "pit",
    "calibration",
    "ess",
    "khat",
    "overlap",
    "full_data",
)
"""names of the report's figures"""


@cache
def ancestors(stage: str) -> frozenset[str]:
    """All stages that a stage's artifact is made from, directly or not: of `sample` and `plan`,
    those of earlier rounds too."""
    before = {*STAGES[stage].inputs}
    while (more := before.union(*(STAGES[name].inputs for name in before))) != before:
        before = more
    return frozenset(before)


def path(
    results: Path, stage: str, experiment: str, model: str = "", batch: str = "", round: int = 0
) -> Path:
    """The path of a stage's artifact.

    >>> str(path(Path("results"), "fit", "rats", "slopes"))
    'results/rats/models/slopes/fit.zarr'
    """
    place = {"experiment": experiment, "model": model, "batch": batch, "round": round}
    return results / STAGES[stage].place(round).format(**place)


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
        cut = json.loads((path(results, "cut", experiment, model) / "zarr.json").read_text())
        return int(cut["attributes"]["fold_batches"])
    except (OSError, ValueError, LookupError, TypeError):
        return 0
