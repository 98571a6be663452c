"""Leave-one-out from the full-data fit: ``surrogates.zarr``, and ``subsample.zarr``."""

from pcv.folds.sections.subsampling import Subsampling
from pcv.pipeline.job import Job
from pcv.pipeline.problems import comparable_problem_of
from pcv.pipeline.storage.artifacts import opened, opened_tree, verified
from pcv.pipeline.work import write


def surrogates(job: Job) -> None:
    """Surrogates of all terms, and importance sampling of the folds: ``surrogates.zarr``."""
    from pcv.core.psis import compute_surrogates

    monitor = job.monitor_of("surrogates")
    if not job.settings.makes("surrogates"):
        monitor.log("nothing to do, every fold is sampled")
        return
    finished, fit = verified(job, "surrogates"), opened_tree(job, "fit")
    made_of = fit, job.settings, monitor
    write(
        job,
        "surrogates",
        finished,
        lambda: compute_surrogates(comparable_problem_of(job), *made_of),
    )


def subsample(job: Job) -> None:
    """Which terms are computed exactly, the same for all models: ``subsample.zarr``."""
    from pcv.core.subsample import choose_terms

    scheme, monitor = job.settings.folds, job.monitor_of("subsample")
    if not isinstance(scheme, Subsampling):
        monitor.log("nothing to do, folds.scheme is not subsample")
        return
    finished = verified(job, "subsample")
    parts = [job._replace(model=name) for name in job.settings.models]
    surrogates = {part.model: opened_tree(part, "surrogates") for part in parts}
    rule = scheme, job.settings.compare.reference, monitor
    layout = opened(job, "folds").load()
    write(job, "subsample", finished, lambda: choose_terms(layout, surrogates, *rule))
