"""The stages that look at stored sums of one experiment: diagnostics, and plans of rounds."""

from pcv.core import diagnose as core
from pcv.pipeline.job import Job
from pcv.pipeline.problems import problem_of, problems_of
from pcv.pipeline.storage.artifacts import batches, opened, opened_tree, samples, verified
from pcv.pipeline.work import write


def diagnose(job: Job) -> None:
    """Estimates, diagnostics and predictions of a model's folds: ``diagnostics.zarr``."""
    finished, settings = verified(job, "diagnose"), job.settings
    asked = settings.without_model if job.model_config.log_lik else settings
    parts = batches(job)
    warmup = opened(parts[0], "warmup") if parts else None
    surrogates = opened_tree(job, "surrogates") if settings.makes("surrogates") else None
    chosen = opened(job, "subsample").load() if settings.makes("subsample") else None
    made_of = opened_tree(job, "fit"), warmup, samples(job), asked, job.monitor_of("diagnose")
    of_scheme = surrogates, chosen
    write(
        job,
        "diagnose",
        finished,
        lambda: core.diagnose(problem_of(job), *made_of, *of_scheme),
    )


def plan(job: Job) -> None:
    """Which folds need more draws for the comparison to be settled: ``plan/<round>.zarr``."""
    finished = verified(job, "plan")
    parts = [job._replace(model=name, round=0) for name in job.settings.models]
    so_far = {part.model: samples(part, job.round) for part in parts}
    before = opened(job._replace(round=job.round - 1), "plan") if job.round > 1 else None
    made_of = so_far, job.settings, job.round, before, job.monitor.of("plan")
    write(job, "plan", finished, lambda: core.plan(problems_of(job), *made_of))
