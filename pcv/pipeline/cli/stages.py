"""Commands that run one stage each: the same functions that the workflow's rules call."""

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pcv.pipeline.cli import shared
from pcv.pipeline.cli.shared import (
    ALL_CORES,
    HERE,
    Batch,
    ConfigFile,
    Cores,
    Debug,
    Experiment,
    Model,
    Results,
)
from pcv.pipeline.graph import STAGES

if TYPE_CHECKING:
    from pcv.pipeline.job import Job


def fit(
    config: ConfigFile,
    experiment: Experiment = "",
    model: Model = "",
    results: Results = HERE,
    cores: Cores = ALL_CORES,
    allow_bad_fit: Annotated[
        bool, typer.Option("--allow-bad-fit", help="Accept a bad fit, and mark all results.")
    ] = False,
    debug: Debug = False,
) -> None:
    shared.prepare(cores)
    _run("fit", shared.jobs_of(config, experiment, results, model, per="model"), allow_bad_fit)


def folds(
    config: ConfigFile,
    experiment: Experiment = "",
    plot: Annotated[bool, typer.Option("--plot", help="Plot them: figures/folds.png.")] = False,
    results: Results = HERE,
    debug: Debug = False,
) -> None:
    _run("folds", shared.jobs_of(config, experiment, results), plot)


def warmup(
    config: ConfigFile,
    experiment: Experiment = "",
    model: Model = "",
    batch: Batch = "",
    results: Results = HERE,
    cores: Cores = ALL_CORES,
    debug: Debug = False,
) -> None:
    shared.prepare(cores)
    _run("warmup", shared.jobs_of(config, experiment, results, model, batch, per="batch"))


def sample(
    config: ConfigFile,
    experiment: Experiment = "",
    model: Model = "",
    batch: Batch = "",
    results: Results = HERE,
    round: Annotated[
        int, typer.Option(min=0, help="Round of sampling; from 1 on, folds chosen by `pcv plan`.")
    ] = 0,
    cores: Cores = ALL_CORES,
    debug: Debug = False,
) -> None:
    shared.prepare(cores)
    _run(
        "sample",
        _of_round(round, shared.jobs_of(config, experiment, results, model, batch, per="batch")),
    )


def plan(
    config: ConfigFile,
    experiment: Experiment = "",
    round: Annotated[int, typer.Option(min=1, help="The round to plan.")] = 1,
    results: Results = HERE,
    debug: Debug = False,
) -> None:
    _run("plan", _of_round(round, shared.jobs_of(config, experiment, results)))


def compare(
    config: ConfigFile, experiment: Experiment = "", results: Results = HERE, debug: Debug = False
) -> None:
    from pcv.pipeline import stages

    shared.print_each(shared.jobs_of(config, experiment, results), stages.compare)


WITH_OPTIONS = (fit, folds, warmup, sample, plan, compare)


def command(stage: str) -> Callable[..., None]:
    """The command of a stage: one of those above, or one without options of its own."""

    def of_experiment(
        config: ConfigFile,
        experiment: Experiment = "",
        results: Results = HERE,
        debug: Debug = False,
    ) -> None:
        _run(stage, shared.jobs_of(config, experiment, results))

    def of_model(
        config: ConfigFile,
        experiment: Experiment = "",
        model: Model = "",
        results: Results = HERE,
        debug: Debug = False,
    ) -> None:
        _run(stage, shared.jobs_of(config, experiment, results, model, per="model"))

    def of_model_on(
        config: ConfigFile,
        experiment: Experiment = "",
        model: Model = "",
        results: Results = HERE,
        cores: Cores = ALL_CORES,
        debug: Debug = False,
    ) -> None:
        shared.prepare(cores)
        of_model(config, experiment, model, results)

    known: dict[str, Callable[..., None]] = {x.__name__: x for x in WITH_OPTIONS}
    if STAGES[stage].has("model"):
        return known.get(stage, of_model_on if STAGES[stage].on_devices else of_model)
    return known.get(stage, of_experiment)


def _run(stage: str, jobs: Iterable["Job"], *settings: Any) -> None:
    from pcv.pipeline import stages

    for job in jobs:
        getattr(stages, stage)(job, *settings)


def _of_round(round: int, jobs: list["Job"]) -> Iterator["Job"]:
    """The jobs of a round of sampling; reports experiments that have no such round."""
    for job in jobs:
        last = len(job.settings.cv.rounds) - 1
        if round <= last:
            yield job._replace(round=round)
            continue
        asks = "rounds need cv.until with mcse_over_se or decide"
        rule = f"its rounds are 0 to {last}" if last else asks
        job.monitor.log(f"experiment '{job.experiment}': no round {round}: {rule}")
