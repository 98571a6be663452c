"""Which artifact to make, from what: a `Job`, its recipe, and what its draws depend on."""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import xarray as xr

from pcv.base import reference
from pcv.base.errors import PcvError
from pcv.base.progress import Progress
from pcv.base.section import OF_REPLICATES
from pcv.folds.base import Folds
from pcv.pipeline import graph
from pcv.pipeline.config import OBJECT, Config, Experiment, ModelConfig, stage_config
from pcv.pipeline.graph import STAGES, Files
from pcv.pipeline.storage import layout, store
from pcv.pipeline.storage.store import Stamp

Say = Callable[[str], None]
Artifact = xr.Dataset | xr.DataTree
Made = dict[str, Any]
"""what something is made of, as JSON has it"""


class Job(NamedTuple):
    """Which artifact to make."""

    config: Config
    experiment: str
    results: Path
    model: str = ""
    batch: str = ""
    say: Say = print
    progress: Callable[[Progress], None] = lambda progress: None
    round: int = 0
    objects: Mapping[str, Any] = {}
    """models and scores of a Python session by their references, where the API makes the job"""
    given: str = ""
    """what follows `pcv <stage>` on the command line, for advice"""
    made: dict[Any, Any] | None = None
    """what later stages of this process can use again; None: nothing"""
    kept: dict[Path, tuple[Stamp, Artifact]] | None = None
    """artifacts by their paths, where they stay in memory; None: they are files"""

    def once(self, key: tuple, make: Callable[[], Any]) -> Any:
        """What `make` makes, or made when it was called for the same before.

        What is kept stays alive, so that the `id` of a part of it may be part of a key.
        """
        if self.made is None:
            return make()
        key = (self.experiment, self.model, *key)
        if key not in self.made:
            self.made[key] = make()
        return self.made[key]

    @property
    def settings(self) -> Experiment:
        return self.config.experiments[self.experiment]

    @property
    def scores(self) -> list[str]:
        return list(self.settings.scores)

    @property
    def model_config(self) -> ModelConfig:
        return self.settings.models[self.model]

    @property
    def table(self) -> Path:
        """The file of the data."""
        if self.settings.data.dataset is not None:
            return layout.dataset(self.results, self.settings.data.dataset)
        return Path(str(self.settings.data.file))

    @property
    def posterior(self) -> Path | None:
        """The file of draws that are the full-data fit; None: it is made."""
        given = self.settings.fit.file
        return None if given is None else Path(given.replace("{model}", self.model))

    @property
    def source(self) -> str:
        """What messages call the data: their file, or what a Python session calls them."""
        return "data" if self.objects else str(self.table)

    @property
    def checkpoints(self) -> Path:
        """Where samples of the model and the round are kept while they are made."""
        return layout.checkpoints(self.results, self.experiment, self.model) / str(self.round)

    def path(self, stage: str) -> Path:
        return graph.path(self.results, stage, self.experiment, self.model, self.batch, self.round)


def recipe(job: Job, stage: str) -> dict[str, Any]:
    """What a stage's artifact is made of, besides its input artifacts; nobody asks in memory."""
    if job.kept is not None:
        return {}
    of_config = stage_config(job.config, job.experiment, stage, job.model or None)
    if job.objects:  # what a session has written into `results`, which may be moved
        of_config.get("data", of_config.get("folds", {})).pop("file", None)
    line = STAGES[stage]
    made_of: dict[str, Any] = {"stage version": line.version, "config": of_config}
    for name, which in line.files.items():
        if (files := _files(job, which)) is not None:
            made_of[name] = _hashes(job, files)
    if line.has("batch"):
        made_of["batch"] = job.batch
    if job.round and line.path_in_rounds:
        made_of["round"] = job.round
    return made_of


def _files(job: Job, which: Files) -> list[Path] | None:
    """Those of a job; None where it has none of the kind."""
    match which:
        case "table":
            return [job.table]
        case "folds":
            scheme = job.settings.folds
            return [Path(scheme.file)] if scheme.scheme == "file" else None
        case "model":
            model = job.model_config.model
            return None if model.startswith(OBJECT) else reference.sources(model)
        case "posterior":
            return None if job.posterior is None else [job.posterior]
        case "scores":
            return score_files(job.settings)


def starts_of(job: Job, known: Mapping[str, Stamp], folds: Folds, how: Sequence[Any]) -> Made:
    """What the end of a job's warmup depends on; other folds are no part of it.

    Args:
        job: of a warmup.
        known: stamps of its inputs.
        folds: of the job.
        how: the model is scored.
    """
    inputs = {name: known[name].fingerprint for name in ("data", "fit")}
    made_of = _of_any_batch(job, "warmup")
    return {**made_of, **_named(job, "warmup"), "inputs": inputs, "how": how, **_of_folds(folds)}


def draws_of(job: Job, known: Mapping[str, Stamp], folds: Folds, warmup: xr.Dataset) -> Made:
    """What a job's draws depend on: all that its samples do, but not how many there are, nor other
    folds; unless folds end where their own answer is in. Those of a round go on from the round
    before, whatever the reason.

    Args:
        job: of a sample.
        known: stamps of its inputs.
        folds: of the job.
        warmup: its warmup, of these folds.
    """
    cv, made_of = job.settings.cv, _of_any_batch(job, "sample")
    scores = dict.fromkeys("replicates" if s in OF_REPLICATES else s for s in job.scores)
    made_of["config"] = {"scores": sorted(scores), "until": None}
    made_of["warmup"] = _of_any_batch(job, "warmup")
    inputs = {name: known[name].fingerprint for name in ("data", "fit")}
    if cv.until and cv.until.of_comparison:  # how long it is where max_draws leaves it whole
        made_of["config"]["round"] = cv.until.min_draws * 2**job.round
    elif cv.until:
        made_of["config"]["until"] = cv.until.model_dump(exclude={"max_draws"})
        inputs = {name: stamp.fingerprint for name, stamp in known.items()}
    how = [warmup.attrs[name] for name in ("predictive", "integration", "decoupled")]
    of_folds = _of_folds(folds)
    of_folds["folds"] = [f"{x} {c:.4f}" for x, c in zip(of_folds["folds"], warmup["shift"].values)]
    return {**made_of, **_named(job, "sample"), "inputs": inputs, "how": how, **of_folds}


def _named(job: Job, stage: str) -> Made:
    """What random numbers depend on beside the folds, and where blocks lie: those of a job that is
    made of the same under another name are not its."""
    of_job = {"experiment": job.experiment, "model": job.model, "round": job.round}
    return {"job": {"stage": stage, "seed": job.config.seed, **of_job}}


def _of_any_batch(job: Job, stage: str) -> Made:
    return {name: x for name, x in recipe(job, stage).items() if name != "batch"}


def _of_folds(folds: Folds) -> Made:
    """Blocks of test sets with more room than these have another shape."""
    return {"folds": fold_fingerprints(folds), "slots": folds.test.shape[1]}


def fold_fingerprints(folds: Folds) -> list[str]:
    """A hash of each fold: of its name, what it tests and what it leaves out."""
    return [
        store.fingerprint(str(name), test[test >= 0].tolist(), runs[runs[:, 1] > 0].tolist())
        for name, test, runs in zip(folds.id, folds.test, folds.held_out)
    ]


def score_files(settings: Experiment) -> list[Path]:
    """The files of a user's own scores."""
    own = [name for name in settings.scores if ":" in name]
    return [path for name in own for path in reference.sources(name)]


def _hashes(job: Job, paths: list[Path]) -> dict[str, str]:
    """Of files as they were when the job first looked: what changes later is no part of it."""
    for path in paths:
        if not path.exists():
            raise PcvError(f"{path}: no such file (paths are relative to {Path.cwd()})")
    folder = paths[0].parent if paths else Path()

    def of(path: Path) -> str:
        found: str = job.once(("hash", path), lambda: store.file_hash(path))
        return found

    return {os.path.relpath(path, folder): of(path) for path in paths}
