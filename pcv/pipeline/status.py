"""The state of an experiment's artifacts, and what a rerun would make. Loads no JAX."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tqdm import tqdm

from pcv.analysis.results.numbers import in_bytes
from pcv.base.errors import PcvError
from pcv.base.names import WHOLE
from pcv.pipeline import graph
from pcv.pipeline.graph import STAGES
from pcv.pipeline.job import Job, evidence_recipe
from pcv.pipeline.storage import store
from pcv.pipeline.storage.artifacts import Finished, belong, known_to, opened, outdated, places
from pcv.pipeline.storage.checkpoints import checkpoint
from pcv.pipeline.storage.store import Stamp
from pcv.pipeline.work import failed_fit, sampled_recipe

DAMAGED = "again: damaged, or not of this stage"


class Artifact(NamedTuple):
    """One artifact of an experiment."""

    stage: str
    job: Job
    state: str
    """"done", "to do", or why it is made again"""
    stamp: Stamp | None
    """of an artifact that is up to date"""

    @property
    def path(self) -> Path:
        return self.job.path(self.stage)


def artifacts(job: Job) -> list[Artifact]:
    """All artifacts of an experiment, in the order in which they are made."""
    found: list[Artifact] = []
    for stage, part in places(job):
        inputs = [
            a
            for a in found
            if a.stage in STAGES[stage].inputs and belong(a.job, part, stage == "sample")
        ]
        known = known_to(part, (Finished(a.stage, a.job, a.stamp) for a in found if a.stamp))
        if waits := list(dict.fromkeys(a.stage for a in inputs if a.state != "done")):
            there = part.path(stage).exists()
            state, stamp = f"again, after {' and '.join(waits)}" if there else "to do", None
        else:
            state, stamp = _state(stage, part, inputs, known)
        found.append(Artifact(stage, part, state, stamp))
    return found


def _state(
    stage: str, job: Job, inputs: list[Artifact], known: Mapping[str, Stamp]
) -> tuple[str, Stamp | None]:
    """State and stamp of an artifact whose inputs are done."""
    path = job.path(stage)
    if not path.exists():
        failed = _failed(job, known) if stage == "fit" else ""
        return _begun(f"to do{failed}", stage, job, known), None
    if stage == "report":  # the page has no stamp
        newer = path.stat().st_mtime >= max(a.path.stat().st_mtime for a in inputs)
        return "done" if newer else "again: the comparison is newer", None
    try:
        stamp = store.read_stamp(path, stage)
    except PcvError:
        return _begun(DAMAGED, stage, job, known), None
    if why := outdated(job, stage, stamp, known):
        return _begun(f"again: {why}", stage, job, known), None
    if stage == "compare" and not path.with_suffix(".csv").exists():
        return "again: comparison.csv is missing", None
    return "done", stamp


def _failed(job: Job, known: Mapping[str, Stamp]) -> str:
    """Why the same fit failed before, if it did."""
    try:
        stamp = store.read_stamp(failed_fit(job), "fit")
    except PcvError:
        return ""
    return "" if outdated(job, "fit", stamp, known) else f"; failed: {'; '.join(stamp.marks)}"


def _begun(state: str, stage: str, job: Job, known: Mapping[str, Stamp]) -> str:
    """The state, for samples and paths along random orders with what is saved of them."""
    if job.model and job.model_config.log_lik:
        return state
    if stage == "sample":
        pool, (made_of, number, words) = job.checkpoints, _blocks(job, known)
    elif stage == "evidence":
        pool = job.checkpoints.with_name("evidence")
        made_of, number, words = _orders(pool, job, known)
    else:
        return state
    if checkpoint.is_held(pool, made_of):
        return f"running: {words}"
    return f"{state}; resumes from {words}" if number else state


def _blocks(job: Job, known: Mapping[str, Stamp]) -> tuple[dict[str, Any], int, str]:
    """Of samples: what they are made of, and the number of blocks saved, also in words."""
    made_of, cv = sampled_recipe(job, known), job.settings.cv
    most = cv.most_draws // cv.batch_size
    number = min(checkpoint.count(job.checkpoints, made_of), most)
    return made_of, number, f"{number} of {'at most ' * bool(cv.until)}{most} blocks"


def _orders(pool: Path, job: Job, known: Mapping[str, Stamp]) -> tuple[dict[str, Any], int, str]:
    """The same of paths along random orders, by order."""
    made_of, most = evidence_recipe(job, known), len(opened(job, "folds")["order"])
    saved = checkpoint.saved(pool, made_of)
    number = min(sum(len(saved.block(i)["steps"]) for i in range(saved.number)), most)
    return made_of, number, f"{number} of {most} orders"


def table(found: list[Artifact]) -> str:
    """A table of an experiment's artifacts, and what a rerun would make."""
    rows = [("stage", "of", "size", "time", "state")]
    for a in found:
        of = " ".join((a.job.model, a.job.batch if a.job.batch != WHOLE else ""))
        of += f" round {a.job.round}" * bool(a.job.round)
        there = a.path.exists()
        size = in_bytes(size_of(a.path)) if there else ""
        seconds = a.stamp.provenance.get("seconds") if a.stamp else None
        time = "" if seconds is None else tqdm.format_interval(seconds)
        rows.append((a.stage, of.strip(), size, time, a.state))
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    lines = [
        f"{s:{widths[0]}}  {o:{widths[1]}}  {b:>{widths[2]}}  {t:>{widths[3]}}  {state}"
        for s, o, b, t, state in rows
    ]
    again = list(dict.fromkeys(a.stage for a in found if a.state != "done"))
    number = sum(a.state != "done" for a in found)
    left = f"A rerun makes {number} of {len(found)} artifacts: {', '.join(again)}."
    known = {a.job.model for a in found if a.stage == "sample"}
    settings = found[0].job.settings
    unknown = [name for name in settings.models if name not in known]
    if unknown and settings.makes("sample"):
        left += f" Fold batches of {', '.join(unknown)} are added, as many as `cut` finds."
    damaged = [str(a.path) for a in found if a.state.startswith(DAMAGED)]
    if damaged:
        left += (
            " Snakemake does not look inside artifacts; remove the damaged ones first: rm -r "
            + " ".join(damaged)
        )
    return "\n".join([*(line.rstrip() for line in lines), left if again else "All is done."])


def size_of(path: Path) -> int:
    """Bytes of a file, or of all files in a folder."""
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    return sum(file.stat().st_size for file in files)


def clean(job: Job, dry_run: bool = False) -> tuple[int, int, int]:
    """Remove the checkpoints of models whose samples, or evidence, are done; in a dry run, only
    count them.

    Returns:
        Checkpoints removed, bytes freed, and checkpoints kept for unfinished samples.
    """
    removed, freed, kept = 0, 0, 0
    samples = [a for a in artifacts(job) if a.stage in ("sample", "evidence")]
    unfinished = {a.job.model for a in samples if a.state != "done"}
    if job.settings.makes("sample"):  # batches not known
        unfinished |= set(job.settings.models) - {a.job.model for a in samples}
    for model in job.settings.models:
        for folder in checkpoint.folders(graph.checkpoints(job.results, job.experiment, model)):
            size = size_of(folder)
            if model not in unfinished and checkpoint.remove(folder, dry_run):
                removed, freed = removed + 1, freed + size
            else:
                kept += 1
    return removed, freed, kept
