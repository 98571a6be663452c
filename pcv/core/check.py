"""What can be known of problems before anything is sampled."""

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import jax

from pcv.analysis.results.wording import GIVEN_TESTED, SIMULATED
from pcv.base.errors import PcvError, setting
from pcv.base.keys import any_key
from pcv.base.monitor import Monitor
from pcv.core.problem import (
    Problem,
    by_unit,
    check_predictives,
    check_scores,
    checked,
    given_tested,
    predictive_model,
    warn_of_leaks,
)
from pcv.core.settings import Settings
from pcv.folds.sections.cumulative import Cumulative
from pcv.models.checks.folds import check_marginal
from pcv.models.checks.paths import check_paths
from pcv.models.checks.prior import check_prior
from pcv.models.checks.shapes import check_shapes
from pcv.models.checks.values import check_values
from pcv.models.model import Target
from pcv.sampling.folds.subspace import NO_TERMS, beyond

MIN_BATCHES = 16
"""batches, over all chains of a fold, below which `until` gets a warning"""


def check(
    problems: Mapping[str, Problem],
    settings: Settings,
    monitor: Monitor,
    look_for_leaks: bool = True,
) -> None:
    """Check all of some problems that can be known before sampling.

    Args:
        problems: by the models' names; they share data and folds.
        settings: with which they are to be computed.
        monitor: takes a line for each model, and notes; its task is the experiment's name.
        look_for_leaks: whether to look for training terms that depend on what is tested, as the
            warmup does.

    Raises:
        PcvError: one line for each problem.
    """
    first = next(iter(problems.values()))
    cv, num_folds = settings.cv, len(first.folds.id)
    _warn_of_chains(settings, monitor)
    if isinstance(cv.fold_batches, int) and num_folds < cv.fold_batches:
        raise PcvError(
            f"cv.fold_batches: {cv.fold_batches} batches for {num_folds} folds; use fewer"
        )
    faults, outcomes = [], {}
    for name, problem in problems.items():
        try:
            with _warnings_kept() as warned:
                _check_model(problem, settings, monitor, look_for_leaks)
        except PcvError as error:
            faults.append(str(error))
            continue
        outcomes[name] = str(problem.model.outcome)
        for note in getattr(problem.model, "notes", ()):
            monitor.of("").log(f"note: model '{name}': {note}")
        state = "runs, but see the warning" if warned else "is fit to run"
        monitor.log(f"model '{name}' {state}")
    if faults:
        raise PcvError("\n".join(faults))
    if len(set(outcomes.values())) > 1:
        listed = ", ".join(f"{name}: {outcome}" for name, outcome in outcomes.items())
        of = f"experiment '{monitor.task}': its models" if monitor.task else "models"
        raise PcvError(
            f"{of} have different outcomes ({listed}) and could not be compared; let them score "
            "the same variable on the same scale"
        )
    check_predictives(problems, monitor.task)
    for name, problem in problems.items():
        how = predictive_model(problem)
        if how.integration == "analytically":
            assert not isinstance(how.model, Target)
            of_model = how.model, problem.arrays, name, problem.folds
            checked(problem, check_marginal, *of_model)
        check_scores(problem, how, problem.folds.test.shape[1])


def simulates(problem: Problem) -> bool:
    """Whether replicates of test sets are simulated paths that differ from replicates given the
    outcomes that are tested.

    Raises:
        PcvError: paths are asked for, and cannot be simulated.
    """
    if problem.predict != "path":
        return False
    of_folds = problem.outcome, problem.folds, problem.units, problem.name
    differ: bool = checked(problem, check_paths, problem.build, problem.arrays, *of_folds)
    if differ and predictive_model(problem).integration == "analytically":
        raise PcvError(
            f"model '{problem.name}': {setting('predict', value='path')} cannot simulate under its "
            f"own `marginal`; set {setting('predictive', value='plain')}, or leave `marginal` out"
        )
    return differ


def _check_model(
    problem: Problem, settings: Settings, monitor: Monitor, look_for_leaks: bool
) -> None:
    model, arrays, name = problem.model, problem.arrays, problem.name
    checked(problem, check_shapes, model, arrays, problem.num_units, problem.outcome, name)
    checked(problem, check_values, model, arrays, name, problem.units)
    checked(problem, check_prior, model, problem.num_units, name)
    _check_kernel(problem, settings)
    if isinstance(settings.folds, Cumulative):
        by_unit(problem)
    if look_for_leaks:
        warn_of_leaks(problem)
    if simulates(problem):
        monitor.of("").log(f"note: model '{name}': {SIMULATED}")
    elif given_tested(problem):
        monitor.of("").log(f"note: model '{name}': {GIVEN_TESTED}")


def _check_kernel(problem: Problem, settings: Settings) -> None:
    """Refuse a subspace of more dimensions than there are parameters, or by the log likelihoods of
    a model that has none."""
    if settings.kernel is None:
        return
    asked, fault = settings.kernel.subspace, ""
    if asked.number is not None:
        sizes = [x.size for x in jax.eval_shape(problem.model.init, any_key()).values()]
        fault = beyond(asked.number, sum(sizes))
    elif asked.predictive_share and isinstance(problem.model, Target):
        fault = NO_TERMS
    if fault:
        raise PcvError(f"model '{problem.name}': {fault}")


def _warn_of_chains(settings: Settings, monitor: Monitor) -> None:
    """Warn of superchains that say little, and of `until` with few batches: their MCSE is noisy,
    and folds stop where it is low by chance."""
    cv = settings.cv
    if cv.num_superchains == 2:
        monitor.warn(
            "cv.superchains: 2 leave one degree of freedom between starting points, so that "
            "nested R-hat says little; take 4 or more"
        )
    if cv.until is None:
        return
    batches = cv.chains * (cv.until.min_draws // cv.batch_size)
    if batches < MIN_BATCHES:
        monitor.warn(
            f"cv.until.min_draws: {cv.until.min_draws} draws are {batches} batches of all chains, "
            f"too few to tell when to stop; take {MIN_BATCHES} or more (more draws or chains, or a "
            "smaller cv.batch_size)"
        )


@contextmanager
def _warnings_kept() -> Iterator[list[warnings.WarningMessage]]:
    """Collects warnings meant for the user, and issues them afterwards."""
    of_user: list[warnings.WarningMessage] = []
    try:
        with warnings.catch_warnings(record=True) as every:
            warnings.simplefilter("always", UserWarning)
            try:
                yield of_user
            finally:
                of_user += [one for one in every if issubclass(one.category, UserWarning)]
    finally:
        for one in every:
            warnings.warn_explicit(one.message, one.category, one.filename, one.lineno)
