"""The stage of the full-data posterior: ``fit.zarr``."""

import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from pcv import stops, store
from pcv.errors import BadFit, PcvError
from pcv.job import Job, begin, keep, model_of, opened, require, stamp_of
from pcv.progress import Progress
from pcv.stages.chains import says

if TYPE_CHECKING:
    from pcv.model import Model, Target

LOG_LIK_BYTES = 2**29
"""of log likelihoods that are kept: of 16,777 units at 4,000 draws"""


def fit(job: Job, allow_bad_fit: bool = False) -> None:
    """The full-data posterior of a model and the kernel of its folds: ``fit.zarr``.

    Raises:
        BadFit: the fit cannot be trusted (its draws are kept in ``fit_failed.zarr``).
    """
    from pcv import devices, idata, nuts
    from pcv.checks import centred, check_prior
    from pcv.keys import key
    from pcv.model import flat_target, param_names, target, unit_log_lik
    from pcv.sampling import posterior
    from pcv.shapes import check_shapes

    making = begin(job, "fit")
    config, settings = job.config, job.settings.fit
    known = {"data": require(job, "data", {})}
    with devices.at_work(config.precision):
        arrays, model = model_of(job)
        data_set = opened(job, "data")
        num_units = data_set.sizes["unit"]
        check_shapes(model, arrays, num_units, job.settings.data.outcome, job.model)
        check_prior(model, num_units, job.model)
        named = target(model, arrays, "plain")
        flat, _ = flat_target(named)
        names = param_names(named)
        log_lik = unit_log_lik(model, arrays)
        notes = [f"model '{job.model}': {x}" for x in getattr(model, "notes", ())]
        for note in notes:
            job.say(f"note: {note}")
        asked = settings.chains, settings.warmup, settings.draws, settings.target_accept
        root = partial(key, config.seed, job.model)

        def after(done: Progress) -> None:
            job.progress(done._replace(label=f"fit {job.model} {done.label}".rstrip()))
            stops.look(f"fit {job.model}")

        with _naming(f"fit {job.model}"):
            found = posterior.fit(flat, num_units, names, root, *asked, says(job, "fit"), after)
        fitted, checks = found
        draws = fitted.draws
        if checks.problems:
            checks = nuts.check(draws, names, fitted.target_accept, centred(model))
            units = data_set["unit"].values.tolist()
            checks.problems[:0] = _cause(model, arrays, job.model, units)
        for warning in checks.warnings:
            job.say(f"warning: fit {job.model}: {warning}")
        allowed = allow_bad_fit or settings.allow_bad_fit
        bad = bool(checks.problems)
        for problem in checks.problems if allowed else []:
            job.say(f"warning: fit {job.model} is bad: {problem}")
        if not bad or allowed:
            job.say(
                f"fit {job.model}: R-hat at most {np.nanmax(checks.rhat):.3f}, ESS at least "
                f"{np.nanmin(checks.ess):.0f}, {checks.divergences} divergences; folds: "
                f"step size {fitted.step_size:.2g}, leapfrog steps {fitted.num_steps}"
            )
        size = draws.lp.nbytes * num_units
        if log_lik and size > LOG_LIK_BYTES:
            log_lik = None
            job.say(
                f"fit {job.model}: the log likelihoods of {num_units} units at {draws.lp.size} "
                f"draws, {size / 2**30:.1f} GiB, are not kept, so that p and az.loo have none; "
                "fewer fit.draws would be"
            )
        tree = idata.tree(flat, log_lik, data_set, names, fitted, checks)
        marks = notes + [f"full-data fit of '{job.model}' is bad: {p}" for p in checks.problems]
        stamp = stamp_of(job, making, known, marks, devices.describe())
    failed = job.path("fit").with_name("fit_failed.zarr")
    if bad and not allowed:
        if job.kept is None:
            store.write(failed, tree, stamp)
        raise BadFit([f"fit {job.model}: {problem}" for problem in checks.problems], failed)
    keep(job, tree, stamp)
    if job.kept is None:
        shutil.rmtree(failed, ignore_errors=True)


def _cause(
    model: "Model | Target", arrays: dict[str, np.ndarray], name: str, units: list[str]
) -> list[str]:
    """What `pcv check` finds wrong with a model whose fit is bad."""
    from pcv.checks import check_values

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            check_values(model, arrays, name, units)
    except PcvError as error:
        return [str(error).removeprefix(f"model '{name}': ")]
    return []


@contextmanager
def _naming(what: str) -> Iterator[None]:
    """Says in errors what was being done."""
    try:
        yield
    except PcvError as error:
        raise PcvError(f"{what}: {error}") from error
