"""What a run starts from: the stages data and folds, and checks of the whole experiment."""

import tempfile
from pathlib import Path

import xarray as xr

from pcv.base.errors import PcvError
from pcv.base.monitor import Monitor
from pcv.core.problem import Problem
from pcv.folds.base import describe, stored
from pcv.folds.joint_groups import with_joint_groups
from pcv.folds.schemes import Table, headline, make
from pcv.pipeline.data import tables
from pcv.pipeline.job import Job
from pcv.pipeline.problems import models_of, problem_of
from pcv.pipeline.stages.page import write_figures
from pcv.pipeline.storage import store
from pcv.pipeline.storage.artifacts import opened, verified
from pcv.pipeline.work import write


def download(name: str, to: Path, monitor: Monitor) -> None:
    """Fetch a registered data set, from the folder in ``PCV_DATA`` or from its source."""
    from pcv.pipeline.data import registry

    registry.fetch(name, to)
    monitor.log(f"data set '{name}' ({registry.SOURCES[name].origin}): {to}")


def data(job: Job) -> None:
    """Read and check the data, and lay them out by unit: ``data.zarr``."""
    _obtain(job)
    units = write(job, "data", (), lambda: _units(job))
    rows = "" if "unit_of_row" not in units else f" of {units.sizes['row']} rows"
    outcome = job.settings.data.outcome
    job.monitor.of("data").log(f"{units.sizes['unit']} units{rows}, outcome '{outcome}'")


def _obtain(job: Job) -> None:
    """Fetch the job's table, if it is a registered data set that is not there yet."""
    name = job.settings.data.dataset
    if name is not None and not job.table.exists():
        download(name, job.table, job.monitor)


def _units(job: Job) -> xr.Dataset:
    """The job's table as checked units."""
    settings = job.settings.data
    table, arrays = tables.read_table(job.table, settings.outcome)
    return tables.make_data(table, arrays, settings, str(job.table))


def folds(job: Job, plot: bool = False) -> None:
    """Lay out the folds, once for all models: ``folds.zarr``; and plot them: ``figures/folds``."""
    finished = verified(job, "folds")
    table = Table(opened(job, "data").load(), job.config.seed)
    write(job, "folds", finished, lambda: laid_out(job, table))
    if plot:
        _plot(job, table)


def laid_out(job: Job, table: Table) -> xr.Dataset:
    """All folds of the scheme, and what it says of each."""
    scheme = job.settings.folds
    layout = with_joint_groups(scheme.laid_out(table), table, job.settings.joint_by)
    described = describe(stored(layout), len(table.units), scheme.left_out)
    job.monitor.log(headline(scheme, described))
    return layout


def _plot(job: Job, table: Table) -> None:
    from pcv.report import drawn
    from pcv.report.plots import folds as drawing

    scheme = job.settings.folds
    folds = make(scheme, table)
    if places := scheme.places(table):
        figure = drawing.on_map(folds, places, scheme.title)
    else:
        figure = drawing.grid(folds, len(table.units), scheme.title, scheme.left_out)
    folder = job.path("report").parent / "figures"
    job.monitor.log(f"picture: {write_figures(drawn({'folds': figure}), folder)[0]}")


def check(job: Job) -> None:
    """Check all of an experiment that can be known before sampling; writes nothing.

    Raises:
        PcvError: one line for each problem.
    """
    from pcv.base import devices
    from pcv.core import check as checking

    settings, monitor = job.settings, job.monitor.of(job.experiment)
    _obtain(job)
    units = _as_read(_units(job))
    monitor.log(f"{units.sizes['unit']} units of '{settings.data.outcome}'")
    layout = laid_out(job._replace(monitor=monitor), Table(units, job.config.seed))
    parts = [job._replace(model=name) for name in settings.models]
    problems = {part.model: problem_of(part, units, layout) for part in parts}
    files = [part.posterior for part in parts if part.posterior is not None]
    missing = "no such file; fit.file is relative to the working directory"
    faults = [f"{file}: {missing}" for file in files if not file.exists()]
    for part in parts:
        if part.model_config.log_lik:
            faults += _check_log_lik(part, problems[part.model], monitor)
    try:
        if models := models_of(job, problems):
            with devices.at_work(job.config.precision):
                checking.check(models, settings, monitor)
    except PcvError as error:
        faults.append(str(error))
    if faults:
        raise PcvError("\n".join(faults))


def _check_log_lik(job: Job, problem: Problem, monitor: Monitor) -> list[str]:
    """Check log likelihoods that were made elsewhere; returns what is wrong with them."""
    from pcv.pipeline.log_lik_files import read_log_lik

    try:
        log_lik = read_log_lik(job, problem)
    except PcvError as error:
        return [f"model '{job.model}': {error}"]
    chains, draws, _ = log_lik.folds[0].shape
    full = "" if log_lik.full is None else ", and of the full data"
    monitor.log(f"model '{job.model}': log likelihoods of {chains} chains x {draws} draws{full}")
    return []


def _as_read(units: xr.Dataset) -> xr.Dataset:
    """The data as later stages will read them."""
    with tempfile.TemporaryDirectory(prefix="pcv-") as folder:
        store.put(folder, units, mode="w")
        return store.opened(Path(folder)).load()
