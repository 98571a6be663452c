"""The table of stages: what each reads, what of a config it depends on, and what it leaves.

    data ─▶ fit ─▶ folds ─▶ warmup ─▶ sample ─▶ diagnose ─▶ compare ─▶ report

Where artifacts lie, what they are made of, whether they are in date and when Snakemake makes them
again is read from here.

>>> STAGES["warmup"].inputs, path(Path("results"), "warmup", "rats", "slopes", "1-of-1").name
(('folds', 'fit', 'cut'), '1-of-1.zarr')
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

Files = Literal["table", "folds", "model", "posterior", "scores"]
"""files that a config names: the data, folds of one's own, those of a model's functions, draws that
are its fit, and those of one's own scores"""


class Stage(NamedTuple):
    """One line of the table."""

    version: int
    """raised when it computes something else from the same inputs: its artifacts are remade"""
    path: str
    """of its artifact, relative to the folder of the results"""
    module: str
    """of `pcv.pipeline.stages`: its function has the stage's name"""
    says: str
    """what its command says of it"""
    inputs: tuple[str, ...] = ()
    """stages right before: it is made from their artifacts, and those before these"""
    keys: Mapping[str, Any] = {}
    """of the experiment, that its result depends on beyond those of the stages before"""
    common: frozenset[str] = frozenset()
    """keys beside the experiments"""
    files: Mapping[str, Files] = {}
    """what its recipe calls the files that it reads"""
    path_in_rounds: str = ""
    """of its artifact in rounds after the first, where a comparison decides which folds go on"""

    def has(self, field: str) -> bool:
        """Is there an artifact for each "model" or "batch"?"""
        return f"{{{field}}}" in self.path

    def place(self, round: int) -> str:
        place = (round and self.path_in_rounds) or self.path
        if not place:  # or all results would lie there
            raise ValueError("the first round has no such artifact")
        return place


STAGES = {
    "data": Stage(
        version=2,
        path="{experiment}/data.zarr",
        module="inputs",
        says="Read the data, make units of its rows, check them: data.zarr.",
        keys={"data": True},
        files={"files": "table"},
    ),
    "folds": Stage(
        version=1,
        path="{experiment}/folds.zarr",
        module="inputs",
        says="Lay out the folds, once for all models: folds.zarr.",
        inputs=("data",),
        keys={"folds": True},
        common=frozenset({"seed"}),
        files={"files": "folds"},
    ),
    "fit": Stage(
        version=9,
        path="{experiment}/models/{model}/fit.zarr",
        module="full_data",
        says="Fit the models to the full data and tune the kernels of their folds: fit.zarr.",
        inputs=("data",),
        keys={"fit": {"chains", "warmup", "draws", "target_accept"}},
        common=frozenset({"seed", "precision"}),
        files={"files": "model", "posterior": "posterior"},
    ),
    "cut": Stage(
        version=4,
        path="{experiment}/models/{model}/batches.zarr",
        module="batching",
        says="Cut the folds into batches that fit the memory (cv.fold_batches: auto): "
        "batches.zarr.",
        inputs=("folds", "fit"),
        keys={
            "predictive": True,
            "scores": True,
            "cv": {"chains", "batch_size", "fold_batches", "memory_share"},
        },
    ),
    "warmup": Stage(
        version=26,
        path="{experiment}/models/{model}/warmup/{batch}.zarr",
        module="warming_up",
        says="Warm up all chains of all folds from full-data draws: warmup/<batch>.zarr.",
        inputs=("folds", "fit", "cut"),
        keys={
            "predictive": True,
            "cv": {"chains", "warmup", "batch_size", "superchains", "adapt", "start_scale"},
        },
        common=frozenset({"seed", "precision"}),
        files={"files": "model"},
    ),
    "sample": Stage(
        version=20,
        path="{experiment}/models/{model}/sample/{batch}.zarr",
        module="sampling",
        says="Sample all chains of all folds and keep the sums of their scores: "
        "sample/<batch>.zarr.",
        inputs=("warmup", "plan"),
        keys={"scores": True, "cv": {"draws", "until", "store"}},
        files={"files": "model", "score files": "scores"},
        path_in_rounds="{experiment}/models/{model}/sample/{round}/{batch}.zarr",
    ),
    "plan": Stage(
        version=5,
        path="",  # the first round has none
        module="answers",
        says="Name the folds whose draws the comparison still needs (cv.until): plan/<round>.zarr.",
        inputs=("cut", "sample"),
        keys={"cv": {"until"}, "compare": True},
        path_in_rounds="{experiment}/plan/{round}.zarr",
    ),
    "diagnose": Stage(
        version=16,
        path="{experiment}/models/{model}/diagnostics.zarr",
        module="answers",
        says="Estimates and diagnostics of every fold, from the stored sums: diagnostics.zarr.",
        inputs=("cut", "sample"),
        common=frozenset({"seed"}),
    ),
    "compare": Stage(
        version=9,
        path="{experiment}/comparison.zarr",
        module="answers",
        says="Compare the models and print the table: comparison.zarr, comparison.csv.",
        inputs=("diagnose",),
        keys={"compare": True},
    ),
    "report": Stage(
        version=6,
        path="{experiment}/report.html",
        module="answers",
        says="Write the report and its figures: report.html, figures/.",
        inputs=("compare",),
        keys={"report": True},
    ),
}
"""in the order in which they are run"""


def path(
    results: Path, stage: str, experiment: str, model: str = "", batch: str = "", round: int = 0
) -> Path:
    """Where a stage's artifact lies.

    >>> str(path(Path("results"), "fit", "rats", "slopes"))
    'results/rats/models/slopes/fit.zarr'
    """
    place = {"experiment": experiment, "model": model, "batch": batch, "round": round}
    return results / STAGES[stage].place(round).format(**place)
