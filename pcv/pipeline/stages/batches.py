"""The stage that cuts folds into batches that fit in memory: ``batches.zarr``."""

import xarray as xr

from pcv.pipeline.job import Job
from pcv.pipeline.problems import problem_of
from pcv.pipeline.storage.artifacts import opened_tree, verified
from pcv.pipeline.work import mcmc_folds, write


def cut(job: Job) -> None:
    """Cut a model's folds into batches that fit in memory: ``batches.zarr``.

    Where the config gives the number of batches, nothing is measured.
    """
    from pcv.core.batches import cut

    cv, monitor = job.settings.cv, job.monitor_of("cut")
    if cv.fold_batches != "auto":
        monitor.log(f"nothing to measure, cv.fold_batches is {cv.fold_batches}")
        return
    finished = verified(job, "cut")
    if job.model_config.log_lik:
        write(job, "cut", finished, lambda: xr.Dataset(attrs={"fold_batches": 1}))
        return
    made_of = opened_tree(job, "fit"), mcmc_folds(job), job.settings, monitor
    write(job, "cut", finished, lambda: cut(problem_of(job), *made_of))
