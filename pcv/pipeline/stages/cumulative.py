"""The stages of evidence and cumulative cross-validation: ``evidence.zarr``, and its comparison."""

from collections.abc import Mapping
from datetime import datetime

import xarray as xr

from pcv.folds.schemes import Cumulative
from pcv.pipeline.job import Job, recipe
from pcv.pipeline.problems import problem_of
from pcv.pipeline.storage import artifacts, store
from pcv.pipeline.storage.store import Stamp
from pcv.pipeline.work import resume_evidence, write


def evidence(job: Job) -> None:
    """Evidence of growing training sets, in random orders of the units: ``evidence.zarr``."""
    from pcv.core.evidence import follow_evidence

    scheme, monitor = job.settings.folds, job.monitor_of("evidence")
    if not isinstance(scheme, Cumulative):
        monitor.log("nothing to do, folds.scheme is not cumulative")
        return
    finished, fit = artifacts.verified(job, "evidence"), artifacts.opened_tree(job, "fit")
    settings = scheme, monitor, resume_evidence(job, artifacts.known_to(job, finished))
    write(job, "evidence", finished, lambda: follow_evidence(problem_of(job), fit, *settings))


def curves_of(job: Job) -> tuple[dict[str, xr.Dataset], str, list[artifacts.Finished]]:
    """``evidence.zarr`` of all models, the reference model, and what they are made from."""
    from pcv.analysis.evidence import best

    finished = artifacts.verified(job, "compare")
    parts = [job._replace(model=name) for name in job.settings.models]
    curves = {part.model: artifacts.opened(part, "evidence").load() for part in parts}
    return curves, job.settings.compare.reference or best(curves), finished


def compare(job: Job) -> str:
    """Compare the models: ``comparison.zarr``, ``comparison.csv`` and ``cumulative.csv``, scores by
    the number of units left out; returns the table."""
    import pandas as pd

    from pcv.analysis import evidence as estimates

    making = artifacts.begin(job, "compare")
    curves, reference, finished = curves_of(job)
    frame = estimates.table(curves, reference)
    verdict = " ".join(estimates.verdict(curves, reference))
    about = {"reference": reference, "outcome": job.settings.data.outcome, "verdict": verdict}
    stamp = artifacts.stamp_of(making, artifacts.inputs_of(job, "compare", finished))
    artifacts.keep(job, xr.Dataset.from_dataframe(frame).assign_attrs(about), stamp)
    file = job.path("compare").with_suffix(".csv")
    store.write_text(file, frame.to_csv())
    by_size = {name: estimates.frame(curve) for name, curve in curves.items()}
    every = pd.concat(by_size, names=["model"])
    store.write_text(file.with_name("cumulative.csv"), every.to_csv())
    return in_words(curves, reference, stamp)


def show(job: Job) -> str:
    """The existing comparison, as `compare` returns it."""
    curves, reference, finished = curves_of(job)
    return in_words(
        curves, reference, artifacts.require(job, "compare", artifacts.known_to(job, finished))
    )


def in_words(curves: Mapping[str, xr.Dataset], reference: str, stamp: Stamp) -> str:
    from pcv.analysis import evidence as estimates
    from pcv.analysis.results.wording import wrapped

    marks = [wrapped(f"Warning: {mark}") for mark in stamp.marks]
    return "\n\n".join([estimates.in_table(curves, reference), *marks])


def report(job: Job, started: datetime) -> None:
    """The figure, and the page that shows it: ``figures/``, ``report.html``."""
    from pcv import report as reporting
    from pcv.pipeline.stages.page import origin, write_figures
    from pcv.report import plots

    curves, reference, finished = curves_of(job)
    marks = artifacts.require(job, "compare", artifacts.known_to(job, finished)).marks
    pictures = reporting.drawn({"cumulative": plots.cumulative(curves)})
    write_figures(pictures, job.path("report").parent / "figures")
    page = reporting.cumulative_html(
        curves,
        reference,
        origin(job, started),
        pictures["cumulative"],
        job.settings.report.title or f"Cumulative cross-validation of {job.experiment}",
        marks,
        recipe(job, "report"),
    )
    store.write_text(job.path("report"), page)
    job.monitor.of("report").log(str(job.path("report")))
