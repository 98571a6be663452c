"""What a run starts from: the stages data and folds, and checks of the whole experiment."""

import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import xarray as xr

from pcv.base.errors import PcvError
from pcv.folds import columns
from pcv.folds.base import Folds, describe
from pcv.folds.schemes import Cumulative, Table, headline, make
from pcv.pipeline.data import tables
from pcv.pipeline.job import Job, Say
from pcv.pipeline.stages.common.problem import build, by_unit, scored_alike
from pcv.pipeline.storage import store
from pcv.pipeline.storage.artifacts import begin, keep, opened, require, stamp_of

if TYPE_CHECKING:
    from pcv.models.model import Model, Target


def download(name: str, to: Path, say: Say) -> None:
    """Fetch a registered data set, from the folder in ``PCV_DATA`` or from its source."""
    from pcv.pipeline.data import registry

    registry.fetch(name, to)
    say(f"data set '{name}' ({registry.SOURCES[name].origin}): {to}")


def data(job: Job) -> None:
    """Read and check the data, and lay them out by unit: ``data.zarr``."""
    _obtain(job)
    making, result = begin(job, "data"), _units(job)
    keep(job, result, stamp_of(job, making, {}), follows=True)
    rows = "" if "unit_of_row" not in result else f" of {result.sizes['row']} rows"
    job.say(f"data: {result.sizes['unit']} units{rows}, outcome '{job.settings.data.outcome}'")


def _obtain(job: Job) -> None:
    """Fetch the job's table, if it is a registered data set that is not there yet."""
    name = job.settings.data.dataset
    if name is not None and not job.table.exists():
        download(name, job.table, job.say)


def _units(job: Job) -> xr.Dataset:
    """The job's table as checked units."""
    settings = job.settings.data
    if job.kept is None:
        table, arrays = tables.read_table(job.table, settings.outcome)
    else:
        known = job.objects[str(settings.file)]
        table, arrays = tables.stacked(known, settings.outcome, job.source)
    return tables.make_data(table, arrays, settings, job.source)


def _as_read(job: Job, data_set: xr.Dataset) -> xr.Dataset:
    """The data as later stages will read them."""
    if job.kept is not None:
        return data_set
    with tempfile.TemporaryDirectory(prefix="pcv-") as folder:
        store.put(folder, data_set, mode="w")
        return store.opened(Path(folder)).load()


def folds(job: Job, plot: bool = False) -> None:
    """Lay out the folds, once for all models: ``folds.zarr``; and plot them: ``figures/folds``."""
    making, known = begin(job, "folds"), {"data": require(job, "data", {})}
    data_set = opened(job, "data").load()
    scheme, table = job.settings.folds, Table(data_set, job.config.seed, job.objects)
    result = make(scheme, table)
    laid_out = folds_dataset(result)
    if (more := scheme.described(table)) is not None:
        laid_out = laid_out.merge(more)
    keep(job, laid_out, stamp_of(job, making, known), follows=True)
    described = describe(result, data_set.sizes["unit"], scheme.left_out)
    job.say(headline(scheme, described))
    if plot:
        from pcv.pipeline.stages.common.pages import write_figures
        from pcv.report import drawn
        from pcv.report.plots import folds as drawing

        if places := scheme.places(table):
            figure = drawing.on_map(result, places, scheme.title)
        else:
            num_units = data_set.sizes["unit"]
            figure = drawing.grid(result, num_units, scheme.title, scheme.left_out)
        folder = job.path("report").parent / "figures"
        job.say(f"picture: {write_figures(drawn({'folds': figure}), folder)[0]}")


def folds_dataset(folds: Folds) -> xr.Dataset:
    """Folds as ``folds.zarr`` holds them."""
    return xr.Dataset(
        {
            "test": (("fold", "slot"), folds.test),
            "held_out": (("fold", "run", "bound"), folds.held_out),
        },
        coords={"fold": folds.id.astype(str)},
        attrs={} if folds.num_units is None else {"num_units": folds.num_units},
    )


def warn_of_leaks(job: Job, data_set: xr.Dataset, folds: Folds) -> list[str]:
    """Warn if the model's training terms depend on what a fold tests; returns the warning."""
    from pcv.models.checks.folds import check_gap

    arrays, units = columns.model_data(data_set), data_set["unit"].values.tolist()
    outcome = job.settings.data.outcome
    words = check_gap(partial(build, job), arrays, outcome, folds, units, job.model)
    if words:
        warnings.warn(words, stacklevel=2)
    return [words] if words else []


def conditions_on_tested(job: Job, data_set: xr.Dataset, folds: Folds) -> int:
    """The shortest lag by which units are scored given others of the same fold; 0: none is."""
    from pcv.models.checks.folds import given_tested

    arrays = columns.model_data(data_set)
    return given_tested(partial(build, job), arrays, job.settings.data.outcome, folds)


MIN_BATCHES = 16
"""batches, over all chains of a fold, below which `until` gets a warning"""


def check(job: Job, leaks: bool = True) -> None:
    """Check all of an experiment that can be known before sampling; writes nothing.

    Args:
        job: what to check.
        leaks: whether to look for training terms that depend on what is tested, as `warmup` does.

    Raises:
        PcvError: one line for each problem.
    """
    from pcv.analysis.results.wording import GIVEN_TESTED
    from pcv.base import devices
    from pcv.models import scores as scoring
    from pcv.models.checks.folds import check_marginal
    from pcv.models.checks.prior import check_prior
    from pcv.models.checks.shapes import check_shapes
    from pcv.models.checks.values import check_values

    settings = job.settings
    _obtain(job)
    data_set = _as_read(job, _units(job))
    num_units = data_set.sizes["unit"]
    folds = make(settings.folds, Table(data_set, job.config.seed, job.objects))
    job.say(f"{job.experiment}: {num_units} units of '{settings.data.outcome}'")
    described = describe(folds, num_units, settings.folds.left_out)
    job.say(f"{job.experiment}: {headline(settings.folds, described)}")
    if settings.cv.num_superchains == 2:
        job.say(
            f"warning: {job.experiment}: cv.superchains: 2 leave one degree of freedom between "
            "starting points, so that nested R-hat says little; take 4 or more"
        )
    _warn_of_few_batches(job)
    if isinstance(settings.cv.fold_batches, int) and len(folds.id) < settings.cv.fold_batches:
        raise PcvError(
            f"cv.fold_batches: {settings.cv.fold_batches} batches for {len(folds.id)} folds; "
            "use fewer"
        )
    arrays = columns.model_data(data_set)
    problems = []
    outcomes = {}
    with devices.at_work(job.config.precision):
        for name in settings.models:
            part = job._replace(model=name)
            try:
                with _watched() as warned:
                    model = build(part, arrays)
                    check_shapes(model, arrays, num_units, settings.data.outcome, name)
                    check_values(model, arrays, name, data_set["unit"].values.tolist())
                    check_prior(model, num_units, name)
                    _check_kernel(part, model)
                    _check_posterior(part)
                    if isinstance(settings.folds, Cumulative):
                        by_unit(model, name)
                    if leaks:
                        warn_of_leaks(part, data_set, folds)
                    if conditions_on_tested(part, data_set, folds):
                        job.say(f"note: model '{name}': {GIVEN_TESTED}")
                outcomes[name] = str(model.outcome)
                for note in getattr(model, "notes", ()):
                    job.say(f"note: model '{name}': {note}")
                fit = "runs, but see the warning" if warned else "is fit to run"
                job.say(f"{job.experiment}: model '{name}' {fit}")
            except PcvError as error:
                problems.append(str(error))
        if problems:
            raise PcvError("\n".join(problems))
        if len(set(outcomes.values())) > 1:
            listed = ", ".join(f"{name}: {outcome}" for name, outcome in outcomes.items())
            raise PcvError(
                f"experiment '{job.experiment}': its models have different outcomes ({listed}) "
                "and could not be compared; let them score the same variable on the same scale"
            )
        scores = scoring.named(job.scores, job.objects)
        for name, how in scored_alike(job, arrays, folds).items():
            model, predictive, integration, *_ = how
            if integration == "analytically":
                check_marginal(model, arrays, name, folds)
            scoring.check(scores, model, name, arrays, num_units, predictive, folds.test.shape[1])


def _check_posterior(job: Job) -> None:
    """Refuse a file of draws that is not there."""
    file = job.posterior
    if file is not None and str(file) not in job.objects and not file.exists():
        raise PcvError(f"{file}: no such file; fit.file is relative to the working directory")


def _check_kernel(job: Job, model: "Model | Target") -> None:
    """Refuse a subspace of more dimensions than there are parameters, or by the log likelihoods of
    a model that has none."""
    if job.settings.kernel is None:
        return
    import jax

    from pcv.base.keys import any_key
    from pcv.models.model import Target
    from pcv.sampling.folds.subspace import NO_TERMS, beyond

    asked, wrong = job.settings.kernel.subspace, ""
    if asked.number is not None:
        sizes = [x.size for x in jax.eval_shape(model.init, any_key()).values()]
        wrong = beyond(asked.number, sum(sizes))
    elif asked.predictive_share and isinstance(model, Target):
        wrong = NO_TERMS
    if wrong:
        raise PcvError(f"model '{job.model}': {wrong}")


@contextmanager
def _watched() -> Iterator[list[warnings.WarningMessage]]:
    """Collects warnings meant for the user, and issues them afterwards."""
    said: list[warnings.WarningMessage] = []
    try:
        with warnings.catch_warnings(record=True) as every:
            warnings.simplefilter("always", UserWarning)
            try:
                yield said
            finally:
                said += [one for one in every if issubclass(one.category, UserWarning)]
    finally:
        for one in every:
            warnings.warn_explicit(one.message, one.category, one.filename, one.lineno)


def _warn_of_few_batches(job: Job) -> None:
    """Warn of `until` with few batches: their MCSE is noisy, and folds stop where it is low by
    chance."""
    cv = job.settings.cv
    if cv.until is None:
        return
    batches = cv.chains * (cv.until.min_draws // cv.batch_size)
    if batches < MIN_BATCHES:
        job.say(
            f"warning: {job.experiment}: cv.until.min_draws: {cv.until.min_draws} draws are "
            f"{batches} batches of all chains, too few to tell when to stop; take {MIN_BATCHES} or "
            "more (more draws or chains, or a smaller cv.batch_size)"
        )
