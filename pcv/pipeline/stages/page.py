"""The stage of the report, ``report.html``: its figures, and the provenance of its numbers."""

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pcv.analysis import results
from pcv.pipeline.job import Job, recipe
from pcv.pipeline.stages import cumulative
from pcv.pipeline.stages.comparison import by_scheme, compared_of, predictions_by_model
from pcv.pipeline.storage import store
from pcv.pipeline.storage.artifacts import known_to, opened, places, require

if TYPE_CHECKING:
    from pcv.report import Picture


def origin(job: Job, started: datetime) -> dict[str, Any]:
    """The provenance of the numbers; where stages differ, all values."""
    made: dict[str, list[dict[str, Any]]] = {}
    for stage, part in places(job):
        if stage == "report":  # nothing of what may come after it
            break
        if stage != "plan":
            stamp = store.read_stamp(part.path(stage), stage)
            made.setdefault(stage, []).append(stamp.provenance)
    everything = [one for of_stage in made.values() for one in of_stage]

    def all_of(key: str) -> str:
        return ", ".join(dict.fromkeys(str(one[key]) for one in everything if one[key]))

    names = sorted({name for one in everything for name in one["versions"]})
    versions = {
        name: ", ".join(dict.fromkeys(one["versions"].get(name, "none") for one in everything))
        for name in names
    }
    own = job.config.model_copy(update={"experiments": {job.experiment: job.settings}})
    return {
        "config": own.model_dump(mode="json"),
        "seed": job.config.seed,
        "device": all_of("device"),
        "platform": all_of("platform"),
        "draws made": (made.get("sample") or made["fit"])[-1]["started"],
        "report made": store.provenance(started)["started"],
        "git commit": all_of("git_commit") or "not in a repository",
        "time by stage": {
            stage: f"{sum(one['seconds'] for one in of_stage):.1f} s"
            for stage, of_stage in made.items()
        },
        "versions": {"python": all_of("python"), **versions},
    }


def write_figures(pictures: Mapping[str, "Picture"], folder: Path) -> list[Path]:
    """Write each as PNG and SVG into a folder, created if need be.

    Returns:
        The paths written.

    Raises:
        PcvError: the folder or a file cannot be written.
    """
    paths = []
    for name, picture in pictures.items():
        for content, suffix in [(picture.png, "png"), (picture.svg.encode(), "svg")]:
            paths.append(folder / f"{name}.{suffix}")
            store.write_bytes(paths[-1], content)
    return paths


def report(job: Job) -> None:
    """The figures, and the page that shows them: ``figures/``, ``report.html``."""
    from pcv import report as reporting
    from pcv.analysis.results.frames import scores_frame
    from pcv.analysis.results.wording import caveats, scores_notes

    started = datetime.now(UTC)
    if job.settings.makes("evidence"):
        return cumulative.report(job, started)
    comparison = compared_of(job)
    compared, diagnosed, finished = comparison
    kinds = results.distinct_kinds(diagnosed)
    stamp = require(job, "compare", known_to(job, finished))
    dataset = opened(job, "compare").sel(kind=kinds).load()
    predictions = predictions_by_model(job)
    figures = reporting.figures(dataset, results.trimmed(diagnosed), predictions)
    pictures = reporting.drawn(figures)
    write_figures(pictures, job.path("report").parent / "figures")
    page = reporting.html(
        dataset,
        diagnosed,
        compared.frame.query("kind in @kinds"),
        origin(job, started),
        pictures,
        job.settings.report.title or f"Cross-validation of {job.experiment}",
        stamp.marks,
        {kind: caveats(compared.comparisons[kind]) for kind in kinds},
        scores_frame(compared.others) if compared.others else None,
        scores_notes(compared.others),
        by_scheme(job, comparison),
        recipe(job, "report"),
        predictions,
    )
    store.write_text(job.path("report"), page)
    job.monitor.of("report").log(str(job.path("report")))
