"""Which artifact to make, from what: a `Job`, its recipe, and what it needs of earlier stages."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import xarray as xr
from jaxtyping import Int

from pcv import datasets, layout, reference, store
from pcv.config import OBJECT, Config, Experiment, ModelConfig, stage_config
from pcv.errors import PcvError
from pcv.folds import Folds, stored
from pcv.progress import Progress
from pcv.storable import true_names
from pcv.store import Stamp

if TYPE_CHECKING:
    from pcv.marginal import Scored
    from pcv.model import Model, Target

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
        return layout.path(self.results, stage, self.experiment, self.model, self.batch, self.round)


def recipe(job: Job, stage: str) -> dict[str, Any]:
    """What a stage's artifact is made of, besides its input artifacts; nobody asks in memory."""
    if job.kept is not None:
        return {}
    of_config = stage_config(job.config, job.experiment, stage, job.model or None)
    if job.objects:  # what a session has written into `results`, which may be moved
        of_config.get("data", of_config.get("folds", {})).pop("file", None)
    made_of: dict[str, Any] = {"stage version": layout.VERSIONS[stage], "config": of_config}
    if stage == "data":
        made_of["files"] = _hashes(job, [job.table])
    if stage == "folds" and job.settings.folds.scheme == "file":
        made_of["files"] = _hashes(job, [Path(job.settings.folds.file)])
    if stage in ("fit", "warmup", "sample") and not job.model_config.model.startswith(OBJECT):
        made_of["files"] = _hashes(job, reference.sources(job.model_config.model))
    if stage == "fit" and job.posterior is not None:
        made_of["posterior"] = _hashes(job, [job.posterior])
    if stage == "sample":
        made_of["score files"] = _hashes(job, score_files(job.settings))
    if stage in ("warmup", "sample"):
        made_of["batch"] = job.batch
    if job.round and stage in layout.ROUND_FILES:
        made_of["round"] = job.round
    return made_of


OF_REPLICATES = ("crps", "energy", "interval")
"""scores that are computed from stored replicates, so that one more takes no new draws"""


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
    how = [warmup.attrs[name] for name in ("predictive", "integration", "detached")]
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
    return {"folds": prints(folds), "slots": folds.test.shape[1]}


def prints(folds: Folds) -> list[str]:
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
    if job.kept is not None:
        if path not in job.kept:
            raise PcvError(f"stage '{stage}' has made nothing yet")
        return job.kept[path][0]
    stamp = store.read_stamp(path, stage, _command(job, stage))
    if why := outdated(job, stage, stamp, known):
        raise PcvError(f"{path}: out of date: {why}; run `{_command(job, stage)}` again")
    return stamp


def outdated(job: Job, stage: str, stamp: Stamp, known: Mapping[str, Stamp]) -> str:
    """Why an artifact does not belong to this config and these inputs; empty where it does."""
    if changed := store.difference(stamp.recipe, recipe(job, stage)):
        return changed
    if stage == "diagnose" and _samples(known) and _samples(known) != _samples(stamp.inputs):
        return "made from other batches of folds than the present ones"
    for name, present in known.items():
        if stamp.inputs.get(name, present.fingerprint) != present.fingerprint:
            return f"made from other results of stage '{name}' than the present ones"
    return ""


def _samples(names: Iterable[str]) -> set[str]:
    return {name for name in names if name.startswith("sample ")}


def _command(job: Job, stage: str) -> str:
    in_rounds = job.round and stage in layout.ROUND_FILES
    return f"pcv {stage}{job.given}" + f" --round {job.round}" * bool(in_rounds)


def batches(job: Job) -> list[Job]:
    """The job for each batch of a model's folds.

    Raises:
        PcvError: how many there are is to be measured first, or again.
    """
    if job.settings.cv.fold_batches == "auto":
        require(job, "cut", {})
    return _known_batches(job)


def _known_batches(job: Job) -> list[Job]:
    """The same, and none where they are to be measured first."""
    number: Any = job.settings.cv.fold_batches
    if number != "auto" or job.kept is None:
        number = layout.num_batches(job.results, job.experiment, job.model, number)
    else:
        number = opened(job, "cut").attrs["fold_batches"]
    return [job._replace(batch=name) for name in layout.batches(number)]


def rounds(job: Job, before: int | None = None) -> list[Job]:
    """The job for each round of sampling, or for those before one of them."""
    number = len(job.settings.cv.rounds) if before is None else before
    return [job._replace(round=r) for r in range(number)]


def places(job: Job) -> list[tuple[str, Job]]:
    """Every stage and the job that makes its artifact, in the order in which they are made.

    Those of a model's batches are left out as long as it is not known how many there are.
    """
    parts = [job._replace(model=name) for name in job.settings.models]
    measured = parts if job.settings.cv.fold_batches == "auto" else []
    in_batches = [batch for part in parts for batch in _known_batches(part)]
    sampling = [
        place
        for each in rounds(job)
        for place in (
            *([("plan", each)] if each.round else []),
            *(("sample", batch._replace(round=each.round)) for batch in in_batches),
        )
    ]
    return [
        ("data", job),
        ("folds", job),
        *(("fit", part) for part in parts),
        *(("cut", part) for part in measured),
        *(("warmup", batch) for batch in in_batches),
        *sampling,
        *(("diagnose", part) for part in parts),
        ("compare", job),
        ("report", job),
    ]


def sampled(job: Job, known: Mapping[str, Stamp], before: int | None = None) -> dict[str, Stamp]:
    """The stamps of a model's samples, as later stages call them, after `require` of each.

    Args:
        job: of the model.
        known: stamps of data, folds and the model's fit.
        before: only the rounds before this one; None: all.
    """
    stamps: dict[str, Stamp] = {}
    warm = {part.batch: require(part, "warmup", known) for part in batches(job)}
    for each in rounds(job, before):
        plan = {}
        if each.round:
            plan = {f"plan {each.round}": require(each, "plan", {**known, **stamps})}
        for part in batches(each):
            inputs = {**known, "warmup": warm[part.batch], **plan}
            stamps[sample_name(part)] = require(part, "sample", inputs)
    return stamps


def sample_name(job: Job) -> str:
    """What later stages call a sample among their inputs."""
    return f"sample {job.model} {job.batch}" + f" round {job.round}" * bool(job.round)


def samples(job: Job, before: int | None = None) -> list[xr.Dataset]:
    """What was sampled of all batches of folds, rounds put together; read where it is looked at."""
    from pcv.sums import joined

    lengths = job.settings.cv.rounds
    return [
        joined([opened(each, "sample", cache=False) for each in rounds(part, before)], lengths)
        for part in batches(job)
    ]


def opened(job: Job, stage: str, group: str | None = None, cache: bool = True) -> xr.Dataset:
    """An artifact that is a dataset, or a group of the fit."""
    if job.kept is None:
        return store.opened(job.path(stage), group, cache)
    found = job.kept[job.path(stage)][1]
    return found if isinstance(found, xr.Dataset) else true_names(found[str(group)].to_dataset())


def fitted(job: Job) -> xr.DataTree:
    """The artifact of the full-data fit."""
    if job.kept is None:
        return xr.open_datatree(job.path("fit"), engine="zarr", consolidated=True)
    found = job.kept[job.path("fit")][1]
    assert isinstance(found, xr.DataTree)
    return found


class Making(NamedTuple):
    """An artifact that is being made."""

    stage: str
    started: datetime
    recipe: dict[str, Any]
    """of its beginning: what changes later is no part of it"""


def begin(job: Job, stage: str) -> Making:
    return Making(stage, datetime.now(UTC), recipe(job, stage))


def stamp_of(
    job: Job, making: Making, inputs: Mapping[str, Stamp], marks: Sequence[str] = (), on: str = ""
) -> Stamp:
    """The stamp of an artifact that is finished, on a device."""
    made = {} if job.kept is not None else store.provenance(making.started, on)
    return store.stamp(making.stage, making.recipe, inputs, list(marks), made)


@contextmanager
def new(job: Job, stage: str, stamp: Callable[[], Stamp]) -> Iterator[Path | None]:
    """A folder to write a large artifact in, block by block; None where it stays in memory."""
    if job.kept is not None:
        yield None
        return
    with store.new(job.path(stage), stamp) as folder:
        yield folder


def keep(job: Job, artifact: Artifact, stamp: Stamp, follows: bool = False) -> None:
    """Write an artifact; one that `follows` from its stamp only where it is not there."""
    if job.kept is not None:
        job.kept[job.path(stamp.stage)] = stamp, artifact
    elif follows:
        assert isinstance(artifact, xr.Dataset)
        store.renew(job.path(stamp.stage), artifact, stamp)
    else:
        store.write(job.path(stamp.stage), artifact, stamp)


def model_of(job: Job) -> tuple[dict[str, np.ndarray], "Model | Target"]:
    """The data's arrays, and the model built on them."""
    arrays = datasets.model_data(opened(job, "data"))
    return arrays, build(job, arrays)


def build(job: Job, arrays: dict[str, np.ndarray]) -> "Model | Target":
    """The job's model."""
    from pcv.frontends import as_model
    from pcv.model import Model, Target

    settings = job.model_config
    if settings.model in job.objects:
        known: Model | Target = job.objects[settings.model]
        return known
    if settings.model.startswith(OBJECT):
        raise PcvError(f"model '{settings.model}': an object of a Python session that has ended")
    made = reference.build(settings.model, arrays, settings.args)
    model = as_model(made)
    if model is None:
        raise PcvError(
            f"model '{settings.model}': it must return a pcv.Model, a pcv.Target, or a model of "
            f"PyMC or Bambi, not {type(made).__name__}"
        )
    if isinstance(model, Target):
        return model
    return _of_column(model, settings.model, arrays, job.settings.data.outcome)


def _of_column(model: "Model", name: str, arrays: dict[str, np.ndarray], column: str) -> "Model":
    """A front-end's model, whose observed variable must be a column, perhaps of another name."""
    if model.data is None:
        return model
    own = model.outcome.name
    observed = np.asarray(model.data.columns[own])
    if observed.shape != arrays[column].shape or not np.allclose(observed, arrays[column]):
        raise PcvError(
            f"model '{name}': what it observes, '{own}', is not column '{column}' of the data, row "
            "by row; make it of the `data` that the function gets"
        )
    if own == column:
        return model
    log_lik = model.log_lik

    def renamed(params: Any, data: Mapping[str, Any]) -> Any:
        return log_lik(params, {**data, own: data[column]} if column in data else data)

    return model._replace(log_lik=renamed, outcome=model.outcome._replace(name=column))


def folds_of(job: Job, known: Mapping[str, Stamp]) -> tuple[Folds, Stamp]:
    """All folds of the experiment, and the stamp of their artifact."""
    stamp = require(job, "folds", known)
    return stored_folds(job), stamp


def stored_folds(job: Job) -> Folds:
    """All folds of the experiment, whose stamp was required before."""
    return stored(opened(job, "folds"))


def batch_of(job: Job, folds: Folds) -> Folds:
    """The folds of the job's batch."""
    names = [part.batch for part in batches(job)]
    if job.batch not in names:
        raise PcvError(f"fold batch '{job.batch}': not one of {', '.join(names)}")
    places = np.array_split(np.arange(len(folds.id)), len(names))[names.index(job.batch)]
    if places.size == 0:
        advice = "use fewer"
        if job.settings.cv.fold_batches == "auto":
            advice = f"run `{_command(job, 'cut')}` again"
        raise PcvError(f"cv.fold_batches: {len(names)} batches for {len(folds.id)} folds; {advice}")
    return folds.some(places)


def going(job: Job, folds: Folds) -> Int[np.ndarray, " place"]:
    """Which of the batch's folds the job samples: in rounds after the first, those of its plan."""
    if not job.round:
        return np.arange(len(folds.id))
    more = opened(job, "plan")["more"].sel(model=job.model, fold=folds.id)
    return np.flatnonzero(more.values)


def observed(job: Job, arrays: Mapping[str, np.ndarray], folds: Folds) -> np.ndarray:
    """The outcome of each fold's test set, NaN in padded slots and for units of several rows."""
    y = np.asarray(arrays[job.settings.data.outcome], float)
    if len(y) != datasets.num_units(arrays):
        return np.full(folds.test.shape, np.nan)
    return np.where(folds.test >= 0, y[folds.test], np.nan)


def scored(job: Job, arrays: dict[str, np.ndarray], folds: Folds) -> "Scored":
    """The job's model as its folds score it."""
    from pcv.marginal import choose

    setting = job.settings.predictive

    def make() -> "Scored":
        return choose(setting, build(job, arrays), job.model, arrays, folds)

    of_folds = ((x.shape, x.tobytes()) for x in (folds.test, folds.held_out))
    found: Scored = job.once(("scored", setting, *of_folds), make)
    return found


def scored_alike(job: Job, arrays: dict[str, np.ndarray], folds: Folds) -> dict[str, "Scored"]:
    """All models of an experiment as their folds score them.

    Raises:
        PcvError: by different predictives, so that they could not be compared.
    """
    each = {name: scored(job._replace(model=name), arrays, folds) for name in job.settings.models}
    if len({x.predictive for x in each.values()} - {"either"}) > 1:
        listed = ", ".join(f"{name}: {x.predictive}" for name, x in each.items())
        raise PcvError(
            f"experiment '{job.experiment}': its models would be scored by different predictives "
            f"({listed}) and could not be compared; set predictive: plain, or give each model a "
            "`marginal`"
        )
    return each
