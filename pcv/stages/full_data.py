"""The stage of the full-data posterior: ``fit.zarr``."""

import shutil
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from pcv import stops, store
from pcv.errors import BadFit, PcvError
from pcv.job import Job, begin, keep, model_of, opened, require, stamp_of
from pcv.progress import Progress

if TYPE_CHECKING:
    from pcv.model import Model, Target
    from pcv.nuts import Checks
    from pcv.sampling.full_data import Draws, Fit
    from pcv.sampling.hmc import Made

LOG_LIK_BYTES = 2**29
"""of log likelihoods that are kept: of 16,777 units at 4,000 draws"""


def fit(job: Job, allow_bad_fit: bool = False) -> None:
    """The full-data posterior of a model and the kernel of its folds: ``fit.zarr``.

    Raises:
        BadFit: the fit cannot be trusted (its draws are kept in ``fit_failed.zarr``).
    """
    from pcv import devices, idata, nuts
    from pcv.checks import centred, check_prior
    from pcv.model import flat_target, param_names, target, unit_log_lik
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
        with _naming(f"fit {job.model}"):
            fitted, checks = _fitted(job, flat, num_units, names)
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
    shutil.rmtree(failed, ignore_errors=True)


def _fitted(job: Job, target: "Target", num_units: int, names: list[str]) -> "tuple[Fit, Checks]":
    """The posterior by many short chains; where they do not agree, by NUTS.

    Each with the first acceptance rate at which few draws diverge, or the last.
    """
    from pcv import nuts
    from pcv.keys import key
    from pcv.sampling import full_data

    settings, seed = job.settings.fit, job.config.seed
    asked = settings.target_accept
    targets: tuple[float, ...] = nuts.TARGETS if asked is None else (asked,)
    root, total = key(seed, job.model, "fit"), settings.chains * settings.draws
    engine = full_data.engine_of(target, num_units, total)
    number = full_data.num_chains(engine)
    job.say(
        f"fit {job.model}: the full data, {number} chains x {-(-total // number)} draws, "
        f"{len(names)} parameters"
    )

    def attempt(target_accept: float) -> "tuple[Draws, Fit]":
        shown = _shown(job, number, target_accept, targets[0])
        fit = full_data.sample(engine, root, settings.warmup, total, target_accept, shown)
        return fit.draws, fit

    target_accept, fit = _without_divergences(job, map(attempt, targets), targets)
    checks = nuts.check(fit.draws, names, target_accept, kernel=fit.kernel)
    if not checks.problems:
        return fit, checks
    job.say(
        f"fit {job.model}: {checks.problems[0]}; again by NUTS, {settings.chains} chains x "
        f"({settings.warmup} + {settings.draws}) draws"
    )
    after = _nuts_shown(job, target_accept)
    start = full_data.apart(fit, settings.chains), settings.warmup, settings.draws
    targets = targets[targets.index(target_accept) :]
    attempts = nuts.posteriors(
        target, num_units, key(seed, job.model, "nuts"), *start, targets, after
    )
    each = ((draws, draws) for draws in attempts)
    target_accept, draws = _without_divergences(job, each, targets)
    checks = nuts.check(draws, names, target_accept)
    shown = _shown(job, number, target_accept, target_accept)
    return full_data.after_nuts(engine, root, draws, target_accept, shown), checks


def _without_divergences[T](
    job: Job, attempts: "Iterator[tuple[Draws, T]]", targets: Sequence[float]
) -> tuple[float, T]:
    """The first attempt with few divergences, or the last, and the acceptance it aimed at."""
    from pcv.nuts import diverged

    for target_accept, higher in zip(targets, [*targets[1:], None]):
        draws, made = next(attempts)
        if higher is None or not diverged(draws):
            break
        share = draws.diverging.mean()
        job.say(
            f"fit {job.model}: target_accept {target_accept:g}: {share:.1%} of draws diverged; "
            f"again at {higher:g}"
        )
    return target_accept, made


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


def _shown(
    job: Job, chains: int, target_accept: float, first: float
) -> "Callable[[int, int, Made], None]":
    """Tell how far the fit is, and end there if that was asked for."""
    at = f" at {target_accept:g}" * (target_accept != first)

    def after(made: int, most: int, block: "Made") -> None:
        accepted, diverged = float(block.acceptance.mean()), int(block.diverging.sum())
        job.progress(Progress(f"fit {job.model}{at}", chains, made, most, accepted, diverged))
        stops.look(f"fit {job.model}")

    return after


def _nuts_shown(job: Job, first: float) -> "Callable[[float, int, Draws], None]":
    """The same of NUTS."""
    settings, divergences = job.settings.fit, 0

    def after(target_accept: float, made: int, block: "Draws") -> None:
        nonlocal divergences
        divergences = divergences + int(block.diverging.sum()) if made > settings.warmup else 0
        job.progress(
            Progress(
                f"fit {job.model} by NUTS" + f" at {target_accept:g}" * (target_accept != first),
                settings.chains,
                made,
                settings.warmup + settings.draws,
                float(block.acceptance_rate.mean()),
                divergences,
            )
        )
        stops.look(f"fit {job.model}")

    return after


@contextmanager
def _naming(what: str) -> Iterator[None]:
    """Says in errors what was being done."""
    try:
        yield
    except PcvError as error:
        raise PcvError(f"{what}: {error}") from error
