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
    "data": Stage(2, "{experiment}/data.zarr", (), {"data": True}, files={"files": "table"}),
    "fit": Stage(
        9,
        "{experiment}/models/{model}/fit.zarr",
        ("data",),
        {"fit": {"chains", "warmup", "draws", "target_accept"}},
        frozenset({"seed", "precision"}),
        {"files": "model", "posterior": "posterior"},
    ),
    "folds": Stage(
        1,
        "{experiment}/folds.zarr",
        ("data",),
        {"folds": True},
        frozenset({"seed"}),
        {"files": "folds"},
    ),
    "cut": Stage(
        4,
        "{experiment}/models/{model}/batches.zarr",
        ("folds", "fit"),
        {"predictive": True, "scores": True}
        | {"cv": {"chains", "batch_size", "fold_batches", "memory_share"}},
    ),
    "warmup": Stage(
        26,
        "{experiment}/models/{model}/warmup/{batch}.zarr",
        ("folds", "fit", "cut"),
        {"predictive": True}
        | {"cv": {"chains", "warmup", "batch_size", "superchains", "adapt", "start_scale"}},
        frozenset({"seed", "precision"}),
        {"files": "model"},
    ),
    "sample": Stage(
        20,
        "{experiment}/models/{model}/sample/{batch}.zarr",
        ("warmup", "plan"),
        {"scores": True, "cv": {"draws", "until", "store"}},
        files={"files": "model", "score files": "scores"},
        path_in_rounds="{experiment}/models/{model}/sample/{round}/{batch}.zarr",
    ),
    "plan": Stage(
        5,
        "",  # the first round has none
        ("cut", "sample"),
        {"cv": {"until"}, "compare": True},
        path_in_rounds="{experiment}/plan/{round}.zarr",
    ),
    "diagnose": Stage(
        16,
        "{experiment}/models/{model}/diagnostics.zarr",
        ("cut", "sample"),
        common=frozenset({"seed"}),
    ),
    "compare": Stage(9, "{experiment}/comparison.zarr", ("diagnose",), {"compare": True}),
    "report": Stage(6, "{experiment}/report.html", ("compare",), {"report": True}),
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
