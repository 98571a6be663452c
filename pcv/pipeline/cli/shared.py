"""Options shared by the commands, and the jobs that they select."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pcv.base.errors import PcvError, nearest
from pcv.base.process import all_cores

if TYPE_CHECKING:
    from pcv.pipeline.job import Job

ConfigFile = Annotated[Path, typer.Argument(metavar="CONFIG", help="Config file (YAML).")]
UsualConfig = Annotated[
    Path | None,
    typer.Argument(
        metavar="[CONFIG]", help="Config file (YAML); by default config.yaml, if there is one."
    ),
]
USUAL = (Path("config.yaml"), Path("config/config.yaml"))
"""configs of a project of `pcv init`, and of the clone"""
Experiment = Annotated[str, typer.Option("--experiment", "-e", help="Only this experiment.")]
Model = Annotated[str, typer.Option("--model", "-m", help="Only this model.")]
Batch = Annotated[str, typer.Option("--batch", "-b", help="Only this fold batch, such as 1-of-2.")]


def _on_disk(folder: Path) -> Path:
    if ":/" in str(folder):
        raise typer.BadParameter(
            f"{folder} is an address; artifacts need a local folder (from Python, `CV.save` takes "
            "addresses)"
        )
    return folder


Results = Annotated[
    Path, typer.Option("--results", help="Folder for the artifacts.", callback=_on_disk)
]
Cores = Annotated[int, typer.Option("--cores", "-c", min=1, help="CPU cores to use.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]

HERE = Path("results")
ALL_CORES = all_cores()


def usual(config: Path | None) -> Path:
    """The config that is given, or the usual one."""
    return config or next((path for path in USUAL if path.exists()), USUAL[0])


def prepare(cores: int) -> None:
    from pcv.base import devices
    from pcv.compile import cache

    devices.setup(cores)
    cache.keep_compiled()


def jobs_of(
    config: Path, experiment: str, results: Path, model: str = "", batch: str = "", per: str = ""
) -> list["Job"]:
    from pcv.base.monitor import Monitor, show_messages
    from pcv.base.progress import reporter
    from pcv.pipeline.config import load
    from pcv.pipeline.job import Job
    from pcv.pipeline.storage.artifacts import batches

    settings = load(config)
    names = _chosen(config, "experiment", experiment, list(settings.experiments))
    given = f" {config}" + f" --results {results}" * (results != HERE)
    show_messages()
    monitor = Monitor(show=reporter())
    jobs = [Job(settings, name, results, monitor=monitor, given=given) for name in names]
    if per:
        known = list(dict.fromkeys(name for job in jobs for name in job.settings.models))
        wanted = _chosen(config, "model", model, known)
        jobs = [
            job._replace(model=name)
            for job in jobs
            for name in job.settings.models
            if name in wanted
        ]
    if per == "batch":
        for job in jobs:
            if not job.settings.makes("sample"):
                monitor.log(f"{job.experiment} {job.model}: no fold is sampled (see `folds`)")
        jobs = [job for job in jobs if job.settings.makes("sample")]
        if not jobs:
            return []
        parts = [part for job in jobs for part in batches(job)]
        known = list(dict.fromkeys(part.batch for part in parts))
        wanted = _chosen(config, "fold batch", batch, known)
        jobs = [part for part in parts if part.batch in wanted]
    return jobs


def _chosen(config: Path, what: str, name: str, known: list[str]) -> list[str]:
    if not name:
        return known
    if name not in known:
        hint = nearest(name, known, f"it has {', '.join(known)}")
        raise PcvError(f"{config}: no {what} '{name}'; {hint}")
    return [name]


def print_each(jobs: list["Job"], words: "Callable[[Job], str]", gap: str = "") -> None:
    """Print `words` of each job, under its experiment's name where there are several."""
    for job in jobs:
        said = words(job)
        print(f"Experiment '{job.experiment}'\n{said}{gap}" if len(jobs) > 1 else said)
