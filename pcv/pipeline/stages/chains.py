"""The stages that run the folds' chains: ``warmup/<batch>.zarr``, ``sample/<batch>.zarr``."""

import xarray as xr

from pcv.folds.base import Folds
from pcv.pipeline.job import Job
from pcv.pipeline.problems import comparable_problem_of, problem_of
from pcv.pipeline.storage.artifacts import known_to, opened, opened_tree, verified
from pcv.pipeline.work import (
    batch_of,
    mcmc_folds,
    resume_sample,
    resume_warmup,
    write,
    write_batches,
)


def warmup(job: Job) -> None:
    """Warmup of all chains of a fold batch: ``warmup/<batch>.zarr``.

    Draws are discarded. Final states are also kept beside the samples' checkpoints, so that folds
    can be regrouped or added.
    """
    from pcv.core.warmup import warm_up

    finished = verified(job, "warmup")
    settings = opened_tree(job, "fit"), job.settings, job.monitor_of("warmup")
    needed = mcmc_folds(job)
    folds = batch_of(job, needed)
    if job.model_config.log_lik:
        write(job, "warmup", finished, lambda: _import_warmup(job, folds))
        return
    of_batch = needed, folds, resume_warmup(job, known_to(job, finished), folds)
    write(
        job, "warmup", finished, lambda: warm_up(comparable_problem_of(job), *settings, *of_batch)
    )


def sample(job: Job) -> None:
    """Draws of all chains of a fold batch, as sums per batch of draws: ``sample/<batch>.zarr``.

    Rounds after the first continue the folds that their plan chooses. Valid blocks of draws from an
    earlier run are taken from the job's checkpoint.
    """
    from pcv.core.sample import next_round, num_batches, sample_batches

    finished, before = verified(job, "sample"), None
    if job.model_config.log_lik:
        write(job, "sample", finished, lambda: _import_samples(job))
        return
    if job.round:
        earlier = opened(job._replace(round=job.round - 1), "sample")
        before = next_round(job.round, job.model, earlier, opened(job, "plan"))
    warmup, monitor = opened(job, "warmup"), job.monitor_of("sample")
    made_of = opened_tree(job, "fit"), warmup, job.settings, monitor, before
    saved = resume_sample(job, known_to(job, finished))
    number = num_batches(job.settings.cv, job.round)
    draw = lambda: sample_batches(problem_of(job), *made_of, saved)  # noqa: E731
    write_batches(job, finished, draw, number)


def _import_warmup(job: Job, folds: Folds) -> xr.Dataset:
    """Find what a warmup would know, from log likelihoods that were made elsewhere."""
    from pcv.core.log_lik import import_warmup
    from pcv.pipeline.log_lik_files import read_log_lik

    problem = problem_of(job)
    made_of = read_log_lik(job, problem), opened_tree(job, "fit"), job.settings
    return import_warmup(problem, *made_of, job.monitor_of("warmup"), folds)


def _import_samples(job: Job) -> xr.Dataset:
    """Sum log likelihoods that were made elsewhere."""
    from pcv.core.log_lik import import_samples
    from pcv.pipeline.log_lik_files import read_log_lik

    problem = problem_of(job)
    return import_samples(problem, read_log_lik(job, problem), opened(job, "warmup"))
