"""The stage of the full-data posterior: ``fit.zarr``."""

from pathlib import Path

import xarray as xr

from pcv.base.errors import BadFit, PcvError, in_one_line
from pcv.pipeline import work
from pcv.pipeline.job import Job
from pcv.pipeline.problems import problem_of
from pcv.pipeline.storage.artifacts import verified


def fit(job: Job, allow_bad_fit: bool = False) -> None:
    """The full-data posterior of a model and the kernel for its folds: ``fit.zarr``.

    Raises:
        BadFit: the fit cannot be trusted (its draws are kept in ``fit_failed.zarr``).
    """
    from pcv.core.fit import fit

    finished, file, settings = verified(job, "fit"), job.posterior, job.settings.fit
    if allow_bad_fit:
        settings = settings.model_copy(update={"allow_bad_fit": True})

    def make() -> xr.DataTree:
        if job.model_config.log_lik:
            return _import_fit(job)
        problem = problem_of(job, layout=xr.Dataset())
        draws = None if file is None else _read(file)
        return fit(problem, settings, job.monitor_of("fit"), draws, job.settings.folds.samples)

    try:
        work.write(job, "fit", finished, make)
    except BadFit as bad:
        advice = "to continue anyway, set fit.allow_bad_fit: true (--allow-bad-fit)"
        kept = f"the draws are saved in {work.failed_fit(job)}; {advice}"
        raise BadFit(bad.problems, bad.fit, kept) from None


def _import_fit(job: Job) -> xr.DataTree:
    """Take log likelihoods that were made elsewhere for the fit."""
    from pcv.core.log_lik import import_fit
    from pcv.pipeline.log_lik_files import read_full

    problem = problem_of(job, layout=xr.Dataset())
    return import_fit(problem, read_full(job, problem))


def _read(file: Path) -> xr.DataTree:
    """ArviZ groups from a .nc file or a .zarr folder."""
    if not file.exists():
        raise PcvError(f"{file}: no such file; fit.file is relative to the working directory")
    try:
        tree = xr.open_datatree(file, engine="zarr" if file.is_dir() else None)
    except (OSError, ValueError) as error:
        raise PcvError(f"{file}: cannot be read: {in_one_line(error)}") from error
    tree.attrs["source"] = str(file)
    return tree
