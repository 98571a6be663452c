"""Artifacts of a job: finding, checking, reading and keeping them."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

import xarray as xr

from pcv.base.errors import PcvError
from pcv.base.names import batch_names
from pcv.pipeline import graph
from pcv.pipeline.graph import STAGES, ancestors
from pcv.pipeline.job import Artifact, Job, recipe
from pcv.pipeline.storage import store
from pcv.pipeline.storage.store import Stamp


def require(job: Job, stage: str, known: Mapping[str, Stamp]) -> Stamp:
    """The stamp of an input, after checking that it belongs to this config and these inputs.

    Args:
        job: what is being made.
        stage: the stage whose artifact is needed.
        known: stamps of the artifacts read so far, which the input must have been made from.

    Raises:
        PcvError: it is missing, damaged, or made from something else; says what changed.
    """
    path = job.path(stage)
    stamp = store.read_stamp(path, stage, command(job, stage))
    if why := outdated(job, stage, stamp, known):
        raise PcvError(f"{path}: out of date: {why}; run `{command(job, stage)}` again")
    return stamp


def outdated(job: Job, stage: str, stamp: Stamp, known: Mapping[str, Stamp]) -> str:
    """Why an artifact does not belong to this config and these inputs; empty if it does."""
    if changed := store.difference(stamp.recipe, recipe(job, stage)):
        return changed
    for maker, inputs, what in (
        ("diagnose", "sample", "fold batches"),
        ("compare", "diagnose", "models"),
    ):
        wanted, used = (_of_stage(inputs, names) for names in (known, stamp.inputs))
        if stage == maker and wanted and wanted != used:
            return f"made from other {what} than the present ones"
    for name, present in known.items():
        if stamp.inputs.get(name, present.fingerprint) != present.fingerprint:
            return f"made from other results of stage '{name}' than the present ones"
    return ""


def _of_stage(stage: str, names: Iterable[str]) -> set[str]:
    return {name for name in names if name.startswith(f"{stage} ")}


def command(job: Job, stage: str) -> str:
    """The command that makes a stage's artifact, for messages."""
    in_rounds = job.round and STAGES[stage].path_in_rounds
    return f"pcv {stage}{job.given}" + f" --round {job.round}" * bool(in_rounds)


def batches(job: Job) -> list[Job]:
    """The job for each batch of a model's folds.

    Raises:
        PcvError: their number must be measured first, or again.
    """
    if job.settings.makes("cut"):
        require(job, "cut", {})
    return _known_batches(job)


def _known_batches(job: Job) -> list[Job]:
    """The same, or none while their number is not measured."""
    if not job.settings.makes("sample"):
        return []
    asked = job.settings.cv.fold_batches
    number = graph.num_batches(job.results, job.experiment, job.model, asked)
    return [job._replace(batch=name) for name in batch_names(number)]


def rounds(job: Job, before: int | None = None) -> list[Job]:
    """The job for each round of sampling, or for each round before a given one."""
    number = len(job.settings.cv.rounds) if before is None else before
    return [job._replace(round=r) for r in range(number)]


def places(job: Job) -> Iterator[tuple[str, Job]]:
    """Every stage and the job that makes its artifact, in the order in which they are made.

    Those of a model's batches are left out while their number is not known.
    """
    job = job._replace(model="", batch="", round=0)
    parts = [job._replace(model=name) for name in job.settings.models]
    for stage, line in STAGES.items():
        if stage == "sample":
            for each in rounds(job):
                if each.round:
                    yield "plan", each
                of_round = [part._replace(round=each.round) for part in parts]
                yield from (
                    ("sample", batch) for part in of_round for batch in _known_batches(part)
                )
        elif line.has("batch"):
            yield from ((stage, batch) for part in parts for batch in _known_batches(part))
        elif line.has("model") and job.settings.makes(stage):
            yield from ((stage, part) for part in parts)
        elif line.path and job.settings.makes(stage):
            yield stage, job


class Finished(NamedTuple):
    """An artifact that exists and is up to date."""

    stage: str
    job: Job
    stamp: Stamp

    @property
    def name(self) -> str:
        """Its name among the inputs of other artifacts."""
        if self.stage == "sample":
            return sample_name(self.job)
        of = {"plan": f" {self.job.round}"}
        of |= dict.fromkeys(("surrogates", "evidence", "diagnose"), f" {self.job.model}")
        return self.stage + of.get(self.stage, "")


def verified(job: Job, stage: str) -> list[Finished]:
    """All that a stage's artifact is made from, after checking that it is up to date.

    Args:
        job: what is to be made.
        stage: by which stage.

    Raises:
        PcvError: as `require` does.
    """
    finished: list[Finished] = []
    for earlier, part in places(job):
        if (
            earlier in ancestors(stage)
            and belong(part, job)
            and _is_before(earlier, part, stage, job)
        ):
            stamp = require(part, earlier, known_to(part, finished))
            finished.append(Finished(earlier, part, stamp))
    return finished


def _is_before(earlier: str, part: Job, stage: str, job: Job) -> bool:
    """Whether an artifact belongs to an earlier round, where rounds are planned and sampled."""
    if stage not in ("plan", "sample") or earlier not in ("plan", "sample"):
        return True
    return part.round < job.round + (stage == "sample" and earlier == "plan")


def known_to(job: Job, finished: Iterable[Finished]) -> dict[str, Stamp]:
    """Stamps of the artifacts of a job's model and batch, and of those common to all."""
    return {x.name: x.stamp for x in finished if belong(x.job, job)}


def inputs_of(job: Job, stage: str, finished: Iterable[Finished]) -> dict[str, Stamp]:
    """Stamps of the artifacts that a stamp records: those of the stages directly before, of the
    round before, and data, folds and the model's fit."""
    direct = {"data", "folds", *STAGES[stage].inputs} - {"cut"}
    direct |= {"fit"} if STAGES[stage].has("model") else set()
    direct |= {"sample", "plan"} if job.round else set()
    return {x.name: x.stamp for x in finished if x.stage in direct and belong(x.job, job)}


def belong(one: Job, other: Job, same_round: bool = False) -> bool:
    """Whether two artifacts agree in model and batch, where both have one."""
    return (
        (not one.model or not other.model or one.model == other.model)
        and (not one.batch or not other.batch or one.batch == other.batch)
        and (not same_round or one.round in (0, other.round))
    )


def sample_name(job: Job) -> str:
    """A sample's name among the inputs of later stages."""
    return f"sample {job.model} {job.batch}" + f" round {job.round}" * bool(job.round)


def samples(job: Job, before: int | None = None) -> list[xr.Dataset]:
    """The samples of each fold batch, rounds joined; lazily read."""
    from pcv.analysis.samples import joined

    lengths = job.settings.cv.rounds
    return [
        joined([opened(each, "sample", cache=False) for each in rounds(part, before)], lengths)
        for part in batches(job)
    ]


def opened(job: Job, stage: str, group: str | None = None, cache: bool = True) -> xr.Dataset:
    """An artifact that is a dataset, or a group of one that is not; lazily read."""
    return store.opened(job.path(stage), group, cache)


def opened_tree(job: Job, stage: str) -> xr.DataTree:
    """An artifact that has groups, lazily read."""
    return xr.open_datatree(job.path(stage), engine="zarr", consolidated=True)


class Making(NamedTuple):
    """An artifact under construction."""

    stage: str
    started: datetime
    recipe: dict[str, Any]
    """as at the start: later changes do not count"""


def begin(job: Job, stage: str) -> Making:
    return Making(stage, datetime.now(UTC), recipe(job, stage))


def stamp_of(
    making: Making, inputs: Mapping[str, Stamp], marks: Sequence[str] = (), on: str = ""
) -> Stamp:
    """The stamp of a finished artifact."""
    provenance = store.provenance(making.started, on)
    return store.stamp(making.stage, making.recipe, inputs, list(marks), provenance)


def keep(job: Job, artifact: Artifact, stamp: Stamp) -> None:
    """Write an artifact; if it follows from its recipe, only where the same is not there yet."""
    if STAGES[stamp.stage].follows:
        assert isinstance(artifact, xr.Dataset)
        store.renew(job.path(stamp.stage), artifact, stamp)
    else:
        store.write(job.path(stamp.stage), artifact, stamp)
