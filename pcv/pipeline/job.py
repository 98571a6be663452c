"""A `Job`: which artifact to make, its recipe, and what its draws depend on."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import xarray as xr

from pcv.base.errors import PcvError
from pcv.base.progress import Progress
from pcv.base.section import OF_REPLICATES
from pcv.folds.base import Folds
from pcv.pipeline import graph
from pcv.pipeline.config import Config, Experiment, ModelConfig, stage_config
from pcv.pipeline.graph import STAGES
from pcv.pipeline.input_files import file_hash, hashes, input_files
from pcv.pipeline.storage import paths, store
from pcv.pipeline.storage.store import Stamp

Say = Callable[[str], None]
Artifact = xr.Dataset | xr.DataTree
Made = dict[str, Any]
"""what something is made of, in JSON types"""


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
    """models and scores of a Python session by their references, in calls from Python"""
    programs: Mapping[str, Callable[[int], str]] = {}
    """hashes of what the session's models compute for test sets of a size, by name"""
    given: str = ""
    """arguments of `pcv <stage>` on the command line, for messages"""
    made: dict[Any, Any] | None = None
    """a cache shared by the stages of this process; None: no caching"""
    kept: dict[Path, tuple[Stamp, Artifact]] | None = None
    """artifacts held in memory, by path; None: they are files"""

    def once(self, key: tuple, make: Callable[[], Any]) -> Any:
        """The result of `make()`, cached by key.

        Cached objects stay alive, so that a key may contain the `id` of a part of one.
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
        """The data file."""
        (file,) = input_files(self.settings, "table", self.results) or []
        return file

    @property
    def posterior(self) -> Path | None:
        """The file of draws used as the full-data fit; None: the model is fitted."""
        files = input_files(self.settings, "posterior", self.results, self.model)
        return files[0] if files else None

    @property
    def source(self) -> str:
        """The data's name in messages: their file, or "data" in calls from Python."""
        return "data" if self.objects else str(self.table)

    @property
    def checkpoints(self) -> Path:
        """The folder of checkpoints for the model and round."""
        return paths.checkpoints(self.results, self.experiment, self.model) / str(self.round)

    def path(self, stage: str) -> Path:
        return graph.path(self.results, stage, self.experiment, self.model, self.batch, self.round)


def recipe(job: Job, stage: str) -> dict[str, Any]:
    """What a stage's artifact is made of, besides its input artifacts; empty in memory."""
    if job.kept is not None:
        return {}
    of_config = stage_config(job.config, job.experiment, stage, job.model or None)
    if job.objects:  # files that the call wrote into `results`, a folder that may be moved
        of_config.get("data", of_config.get("folds", {})).pop("file", None)
    line = STAGES[stage]
    made_of: dict[str, Any] = {"stage version": line.version, "config": of_config}
    for name, which in line.files.items():
        files = input_files(job.settings, which, job.results, job.model)
        if files is not None:
            made_of[name] = _hashes(job, files)
    if job.programs and "model" in line.files.values() and "folds" in line.inputs:
        slots = store.opened(job.path("folds")).sizes["slot"]
        of_folds = partial(job.programs[job.model], slots)
        made_of["program"] = job.once(("program", slots), of_folds)
    if line.has("batch"):
        made_of["batch"] = job.batch
    if job.round and line.path_in_rounds:
        made_of["round"] = job.round
    return made_of


def starts_of(job: Job, known: Mapping[str, Stamp], folds: Folds, how: Sequence[Any]) -> Made:
    """What the final states of a job's warmup depend on, which is no fold outside the job.

    Args:
        job: of a warmup.
        known: stamps of its inputs.
        folds: of the job.
        how: the model is scored: predictive, integration, whether decoupled.
    """
    inputs = {name: known[name].fingerprint for name in ("data", "fit")}
    made_of = _of_any_batch(job, "warmup")
    return {**made_of, **_named(job, "warmup"), "inputs": inputs, "how": how, **_of_folds(folds)}


def draws_of(job: Job, known: Mapping[str, Stamp], folds: Folds, warmup: xr.Dataset) -> Made:
    """What a job's draws depend on: what its samples do, except the number of draws and folds
    outside the job, unless each fold stops by itself. A round continues the draws of the round
    before, whatever decided so.

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
    if cv.until and cv.until.of_comparison:  # the round's length, unless max_draws cuts it short
        made_of["config"]["round"] = cv.until.min_draws * 2**job.round
    elif cv.until:
        made_of["config"]["until"] = cv.until.model_dump(exclude={"max_draws"})
        which = ("surrogates", "subsample")  # of folds, which are named below
        inputs = {k: x.fingerprint for k, x in known.items() if not k.startswith(which)}
    how = [warmup.attrs[name] for name in ("predictive", "integration", "decoupled")]
    of_folds = _of_folds(folds)
    of_folds["folds"] = [f"{x} {c:.4f}" for x, c in zip(of_folds["folds"], warmup["shift"].values)]
    return {**made_of, **_named(job, "sample"), "inputs": inputs, "how": how, **of_folds}


def paths_of(job: Job, known: Mapping[str, Stamp]) -> Made:
    """What paths along random orders depend on, which is not how many orders there are.

    Args:
        job: of an evidence.
        known: stamps of its inputs.
    """
    inputs = {name: known[name].fingerprint for name in ("data", "fit")}
    made_of = recipe(job, "evidence")
    made_of["config"]["folds"] = {**made_of["config"]["folds"], "splits": None}
    return {**made_of, **_named(job, "evidence"), "inputs": inputs, "folds": ["random orders"]}


def _named(job: Job, stage: str) -> Made:
    """What random numbers and checkpoint paths depend on besides the folds: a job made of the same
    under another name has other draws."""
    of_job = {"experiment": job.experiment, "model": job.model, "round": job.round}
    return {"job": {"stage": stage, "seed": job.config.seed, **of_job}}


def _of_any_batch(job: Job, stage: str) -> Made:
    return {name: x for name, x in recipe(job, stage).items() if name != "batch"}


def _of_folds(folds: Folds) -> Made:
    """The number of slots counts, as it is part of the blocks' shape."""
    return {"folds": fold_fingerprints(folds), "slots": folds.test.shape[1]}


def fold_fingerprints(folds: Folds) -> list[str]:
    """A hash of each fold's name, test units and held-out units."""
    return [
        store.fingerprint(str(name), test[test >= 0].tolist(), runs[runs[:, 1] > 0].tolist())
        for name, test, runs in zip(folds.id, folds.test, folds.held_out)
    ]


def _hashes(job: Job, files: list[Path]) -> dict[str, str]:
    """Hashes of files, as they were when the job first read them."""
    for path in files:
        if not path.exists():
            raise PcvError(f"{path}: no such file (paths are relative to {Path.cwd()})")

    def of(path: Path) -> str:
        found: str = job.once(("hash", path), lambda: file_hash(path))
        return found

    return hashes(files, of)
