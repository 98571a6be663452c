"""A `Job`: which artifact to make, its recipe, and what its draws depend on."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import xarray as xr

from pcv.analysis.kept import Keeps
from pcv.base.errors import PcvError
from pcv.base.monitor import TO_LOG, Monitor
from pcv.base.section import from_replicates
from pcv.folds.base import Folds
from pcv.pipeline import graph
from pcv.pipeline.config import Config, Experiment, ModelConfig, stage_config
from pcv.pipeline.graph import STAGES
from pcv.pipeline.input_files import hashes, input_files
from pcv.pipeline.storage import store
from pcv.pipeline.storage.store import Stamp

Artifact = xr.Dataset | xr.DataTree
Recipe = dict[str, Any]
"""what something is made of, in JSON types"""


class Session(NamedTuple):
    """Hashes of what a call from Python works on, where a config names files."""

    inputs: Mapping[str, str]
    """of data, of folds and of draws used as fits, by the kind of file that they stand for"""
    programs: Mapping[str, Callable[[int], str]]
    """of what models compute for test sets of a size, by model"""


class Job(NamedTuple):
    """Which artifact to make."""

    config: Config
    experiment: str
    results: Path
    model: str = ""
    batch: str = ""
    monitor: Monitor = TO_LOG
    round: int = 0
    session: Session | None = None
    """of a call from Python; None: all is in files"""
    given: str = ""
    """arguments of `pcv <stage>` on the command line, for messages"""

    @property
    def settings(self) -> Experiment:
        return self.config.experiments[self.experiment]

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
    def checkpoints(self) -> Path:
        """The folder of checkpoints for the model and round."""
        return graph.checkpoints(self.results, self.experiment, self.model) / str(self.round)

    def path(self, stage: str) -> Path:
        return graph.path(self.results, stage, self.experiment, self.model, self.batch, self.round)

    def monitor_of(self, stage: str) -> Monitor:
        """The monitor of a stage of the job's model."""
        return self.monitor.of(f"{stage} {self.model}".rstrip(), self.batch)


def recipe(job: Job, stage: str) -> Recipe:
    """What a stage's artifact is made of, besides its input artifacts."""
    line = STAGES[stage]
    of_config = stage_config(job.config, job.experiment, stage, job.model or None)
    made_of: Recipe = {"stage version": line.version, "config": of_config}
    for name, which in line.files.items():
        if job.session and (known := job.session.inputs.get(f"{which} {job.model}".rstrip())):
            made_of[name] = known
        elif (files := input_files(job.settings, which, job.results, job.model)) is not None:
            made_of[name] = _hashes(files)
    if job.session and "model" in line.files.values() and "folds" in line.inputs:
        slots = store.opened(job.path("folds")).sizes["slot"]
        made_of["program"] = job.session.programs[job.model](slots)
    if line.has("batch"):
        made_of["batch"] = job.batch
    if job.round and line.path_in_rounds:
        made_of["round"] = job.round
    return made_of


def warmup_recipe(job: Job, known: Mapping[str, Stamp], folds: Folds, how: Sequence[Any]) -> Recipe:
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


def sample_recipe(
    job: Job, known: Mapping[str, Stamp], folds: Folds, warmup: xr.Dataset, keeps: Keeps
) -> Recipe:
    """What a job's draws depend on: what its samples do, except the number of draws and folds
    outside the job, unless each fold stops by itself. A round continues the draws of the round
    before, whatever decided so.

    Args:
        job: of a sample.
        known: stamps of its inputs.
        folds: of the job.
        warmup: its warmup, of these folds.
        keeps: how many draws each chain keeps.
    """
    cv, made_of = job.settings.cv, _of_any_batch(job, "sample")
    scores = dict.fromkeys("replicates" if from_replicates(s) else s for s in job.settings.scores)
    kept = dict(zip(("replicates per chain", "draws per chain", "stride"), keeps))
    of_draws = {"predictions": kept, "predict": job.settings.predict}
    made_of["config"] = {"scores": sorted(scores), "until": None, **of_draws}
    made_of["warmup"] = _of_any_batch(job, "warmup")
    inputs = ["data", "fit"]
    if cv.until and cv.until.of_comparison:  # the round's length, unless max_draws cuts it short
        made_of["config"]["round"] = cv.until.min_draws * 2**job.round
    elif cv.until:
        made_of["config"]["until"] = cv.until.model_dump(exclude={"max_draws"})
        inputs += ["folds", "warmup"]
    of_inputs = {name: known[name].fingerprint for name in inputs}
    how = [warmup.attrs[name] for name in ("predictive", "integration", "decoupled")]
    of_folds = _of_folds(folds)
    of_folds["folds"] = [f"{x} {c:.4f}" for x, c in zip(of_folds["folds"], warmup["shift"].values)]
    return {**made_of, **_named(job, "sample"), "inputs": of_inputs, "how": how, **of_folds}


def evidence_recipe(job: Job, known: Mapping[str, Stamp]) -> Recipe:
    """What paths along random orders depend on, which is not how many orders there are.

    Args:
        job: of an evidence.
        known: stamps of its inputs.
    """
    inputs = {name: known[name].fingerprint for name in ("data", "fit")}
    made_of = recipe(job, "evidence")
    made_of["config"]["folds"] = {**made_of["config"]["folds"], "splits": None}
    return {**made_of, **_named(job, "evidence"), "inputs": inputs, "folds": ["random orders"]}


def _named(job: Job, stage: str) -> Recipe:
    """What random numbers and checkpoint paths depend on besides the folds: a job made of the same
    under another name has other draws."""
    of_job = {"experiment": job.experiment, "model": job.model, "round": job.round}
    return {"job": {"stage": stage, "seed": job.config.seed, **of_job}}


def _of_any_batch(job: Job, stage: str) -> Recipe:
    return {name: x for name, x in recipe(job, stage).items() if name != "batch"}


def _of_folds(folds: Folds) -> Recipe:
    """The number of slots counts, as it is part of the blocks' shape."""
    return {"folds": fold_fingerprints(folds), "slots": folds.test.shape[1]}


def fold_fingerprints(folds: Folds) -> list[str]:
    """A hash of each fold's name, test units and held-out units."""
    return [
        store.fingerprint(str(name), test[test >= 0].tolist(), runs[runs[:, 1] > 0].tolist())
        for name, test, runs in zip(folds.id, folds.test, folds.held_out)
    ]


def _hashes(files: list[Path]) -> dict[str, str]:
    for path in files:
        if not path.exists():
            raise PcvError(f"{path}: no such file (paths are relative to {Path.cwd()})")
    return hashes(files)
