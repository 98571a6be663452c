"""A stage at work: read and verify its inputs, call the core, write its artifact.

`Results` does the same for the steps of `pcv.core.cross_validate`, called from Python.
"""

import shutil
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from pcv.analysis import kept
from pcv.analysis.results import listed
from pcv.base.errors import BadFit, PcvError, allow_bad_fit
from pcv.core.store import Blocks, Make, Resume
from pcv.folds.base import Folds, stored
from pcv.folds.columns import most_rows
from pcv.pipeline.graph import STAGES, ancestors
from pcv.pipeline.job import Artifact, Job, evidence_recipe, sample_recipe, warmup_recipe
from pcv.pipeline.storage import growing, store
from pcv.pipeline.storage.artifacts import (
    Finished,
    batches,
    begin,
    belong,
    command,
    inputs_of,
    keep,
    known_to,
    opened,
    opened_tree,
    places,
    require,
    stamp_of,
)
from pcv.pipeline.storage.checkpoints import checkpoint, merging
from pcv.pipeline.storage.store import Stamp

if TYPE_CHECKING:
    from pcv.core.store import Step

TREES = ("fit", "surrogates", "diagnose")
"""stages whose artifact has groups"""


def write(
    job: Job, stage: str, finished: Iterable[Finished], make: Callable[[], Artifact]
) -> Artifact:
    """Make an artifact and write it.

    Args:
        job: what to make.
        stage: by which stage.
        finished: what it is made from, of `verified`.
        make: computes it; its attribute ``marks`` becomes part of the stamp.

    Returns:
        The artifact as it is made.

    Raises:
        BadFit: the fit cannot be trusted; its draws are kept beside its path.
    """
    making, inputs = begin(job, stage), inputs_of(job, stage, finished)
    with _on_devices(job, stage) as devices_in_use:
        try:
            artifact = make()
        except BadFit as bad:
            marks = bad.fit.attrs.pop("marks")
            store.write(failed_fit(job), bad.fit, stamp_of(making, inputs, marks, devices_in_use()))
            raise
        marks = artifact.attrs.pop("marks", [])
        stamp = stamp_of(making, inputs, marks, devices_in_use())
    keep(job, artifact, stamp)
    if stage == "fit":
        shutil.rmtree(failed_fit(job), ignore_errors=True)
    return artifact


def failed_fit(job: Job) -> Path:
    """The path of the draws of a fit that cannot be trusted."""
    return job.path("fit").with_name("fit_failed.zarr")


@contextmanager
def _on_devices(job: Job, stage: str) -> Iterator[Callable[[], str]]:
    """The context of a stage that computes with JAX; gives what names its devices."""
    if not STAGES[stage].on_devices:
        yield str
        return
    from pcv.base import devices

    with devices.at_work(job.config.precision):
        yield devices.describe


def make_up_to(job: Job, last: str) -> None:
    """Make the artifacts of a job's model up to a stage, where they are not up to date."""
    from pcv.pipeline import stages

    finished: list[Finished] = []
    for stage, part in places(job):
        if stage in (*ancestors(last), last) and belong(part, job):
            known = known_to(part, finished)
            try:
                stamp = require(part, stage, known)
            except PcvError:
                getattr(stages, stage)(part)
                stamp = require(part, stage, known)
            finished.append(Finished(stage, part, stamp))


def write_batches(
    job: Job, finished: Iterable[Finished], batches: Callable[[], Iterator[xr.Dataset]], number: int
) -> None:
    """Make samples and write them, batch by batch where they do not fit in memory.

    Args:
        job: what to make.
        finished: what they are made from, of `verified`.
        batches: draws them, as `pcv.core.sample.sample_batches` does.
        number: the largest number of batches.
    """
    from pcv.analysis.samples import whole
    from pcv.base import devices

    making, inputs = begin(job, "sample"), inputs_of(job, "sample", finished)

    def stamp() -> Stamp:
        return stamp_of(making, inputs, (), devices.describe())

    with _on_devices(job, "sample"), ExitStack() as opening:
        in_memory: list[xr.Dataset] = []
        folder = None
        for i, part in enumerate(batches()):
            is_end = "fold" in part.coords
            if i == 0 and not is_end and number * part.nbytes > store.IN_MEMORY:
                folder = opening.enter_context(store.new(job.path("sample"), stamp))
            if folder is None:
                in_memory.append(part)
            elif is_end:
                store.put(folder, part, mode="a")
            else:
                growing.put(folder, part, i, number)
        if folder is None:
            *drawn, end = in_memory
            keep(job, whole(drawn, end, number) if drawn else end, stamp())


def all_folds(job: Job) -> Folds:
    """All folds of the experiment."""
    return stored(opened(job, "folds"))


def mcmc_folds(job: Job) -> Folds:
    """The folds that the job's model samples: all that are scored, except where the full-data fit
    suffices."""
    from pcv.core.cross_validate import select_mcmc_folds

    chosen = opened(job, "subsample") if job.settings.makes("subsample") else None
    surrogates = opened_tree(job, "surrogates") if job.settings.makes("surrogates") else None
    return select_mcmc_folds(all_folds(job), surrogates, chosen)


def batch_of(job: Job, folds: Folds) -> Folds:
    """Those of the job's batch, of the folds that its model samples; perhaps none where the
    full-data fit suffices."""
    from pcv.core.batches import split

    names = [part.batch for part in batches(job)]
    if job.batch not in names:
        raise PcvError(f"fold batch '{job.batch}': not one of {', '.join(names)}")
    part = split(folds, len(names))[job.batch]
    if not len(part.id) and not job.settings.folds.from_full_data:
        advice = "use fewer"
        if job.settings.cv.fold_batches == "auto":
            advice = f"run `{command(job, 'cut')}` again"
        raise PcvError(f"cv.fold_batches: {len(names)} batches for {len(folds.id)} folds; {advice}")
    return part


def active_folds(job: Job, folds: Folds) -> np.ndarray:
    """Places of the batch's folds that the job samples: in rounds after the first, those of its
    plan."""
    if not job.round:
        return np.arange(len(folds.id))
    more = opened(job, "plan")["more"].sel(model=job.model, fold=folds.id)
    return np.flatnonzero(more.values)


def resume_warmup(job: Job, known: Mapping[str, Stamp], folds: Folds) -> Resume:
    """What opens the checkpoint of a warmup: its blocks, and those of its folds in other jobs'.

    Args:
        job: of a warmup.
        known: stamps of what it is made from.
        folds: of the job.
    """
    pool = job.checkpoints.with_name("warmup")

    def opening(how: Mapping[str, Any], make: Make) -> Any:
        return _held(job, "warmup", pool, warmup_recipe(job, known, folds, **how), make)

    return opening


def resume_sample(job: Job, known: Mapping[str, Stamp]) -> Resume:
    """What opens the checkpoint of a sample, as `resume_warmup` does."""
    made_of = sampled_recipe(job, known)
    return lambda how, make: _held(job, "sample", job.checkpoints, made_of, make)


def resume_evidence(job: Job, known: Mapping[str, Stamp]) -> Resume:
    """What opens the checkpoint of an evidence."""
    pool, made_of = job.checkpoints.with_name("evidence"), evidence_recipe(job, known)
    return lambda how, make: _held(job, "evidence", pool, made_of)


def sampled_recipe(job: Job, known: Mapping[str, Stamp]) -> dict[str, Any]:
    """What the draws of a sample's folds depend on."""
    warmup = opened(job, "warmup")
    folds = stored(opened(job, "folds").sel(fold=warmup["fold"].values))
    which = active_folds(job, folds)
    if not which.size:
        return {"folds": []}
    layout = opened(job, "folds").sizes
    slots = layout["fold"], layout["slot"], most_rows(opened(job, "data"))
    cv = job.settings.cv
    asked = job.settings.predictions, cv.chains, cv.least_draws
    keeps = kept.keeps_of(*asked, slots, warmup.sizes["param"])
    return sample_recipe(job, known, folds.some(which), warmup.isel(fold=which), keeps)


@contextmanager
def _held(
    job: Job, stage: str, pool: Path, made_of: Mapping[str, Any], make: Make | None = None
) -> Iterator[Blocks]:
    """The job's checkpoint. With `make`, blocks of its folds in other jobs' checkpoints are merged
    in, and folds that have none are caught up."""
    from pcv.base.devices import made_on

    monitor, here = job.monitor_of(stage), made_on()
    with checkpoint.held(pool, made_of, here, monitor.emit) as blocks:
        yield merging.completed(blocks, made_of, here, make, monitor.log) if make else blocks


def _kept_in(path: Path) -> str:
    return f"the draws are kept in {path}; {allow_bad_fit()}"


def _refuse_bad_fit(job: Job) -> None:
    """Refuse a fit that another call allowed to be bad."""
    if problems := listed(opened(job, "fit", "checks").attrs["problems"]):
        lines = [f"{job.monitor_of('fit').task}: {x}" for x in problems]
        raise BadFit(lines, opened_tree(job, "fit"), _kept_in(job.path("fit")))


class Results:
    """Artifacts in a folder: what finished steps made is read, the rest is made and written."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.finished: list[Finished] = []

    def keep(self, step: "Step", make: Callable[..., Any], *args: Any, **more: Any) -> Artifact:
        """Return what a step has made, or make and write it."""
        stage, job = step.stage, self._job(step)
        known = known_to(job, self.finished)
        inherited = {
            mark for x in inputs_of(job, stage, self.finished).values() for mark in x.marks
        }
        leaks = stage in ("surrogates", "warmup")
        try:
            stamp = require(job, stage, known)
        except PcvError:
            self._make(stage, job, partial(make, *args, **more))
            stamp, leaks = require(job, stage, known), False  # it has warned
        marks = [mark for mark in stamp.marks if mark not in inherited]
        for mark in marks if leaks else ():
            warnings.warn(mark, stacklevel=2)
        self.finished.append(Finished(stage, job, stamp))
        artifact = opened_tree(job, stage) if stage in TREES else opened(job, stage)
        if stage in (*TREES, "warmup"):
            artifact.attrs["marks"] = marks
        if stage == "fit" and not job.settings.fit.allow_bad_fit:
            _refuse_bad_fit(job)
        return artifact

    def _make(self, stage: str, job: Job, make: "partial[Any]") -> None:
        if stage == "sample":
            from pcv.core.sample import num_batches, sample_batches

            number = num_batches(job.settings.cv, job.round)
            batches = partial(sample_batches, *make.args, **make.keywords)
            write_batches(job, self.finished, batches, number)
            return
        try:
            write(job, stage, self.finished, make)
        except BadFit as bad:
            raise BadFit(bad.problems, bad.fit, _kept_in(failed_fit(job))) from None

    def resume(self, step: "Step") -> Resume:
        """Open the checkpoint of a step."""
        job = self._job(step)
        known = known_to(job, self.finished)

        def opening(how: Mapping[str, Any], make: Make) -> Any:
            match step.stage:
                case "warmup":
                    saved = resume_warmup(job, known, batch_of(job, mcmc_folds(job)))
                case "sample":
                    saved = resume_sample(job, known)
                case _:
                    saved = resume_evidence(job, known)
            return saved(how, make)

        return opening

    def _job(self, step: "Step") -> Job:
        return self.job._replace(model=step.model, batch=step.batch, round=step.round)
