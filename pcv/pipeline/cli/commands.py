"""The `pcv` command: each stage by hand, the same functions that the workflow's rules call."""

import difflib
import sys
import traceback
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pcv.base import process
from pcv.base.errors import PcvError, Stopped
from pcv.base.process import all_cores

if TYPE_CHECKING:
    from pcv.pipeline.job import Job

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Bayesian cross-validation: which model predicts better, how sure that is, and whether "
    "the computation can be trusted. Start with `pcv init DIR`, which writes a project that runs. "
    "Stages, in order: data, fit, folds, (cut,) warmup, sample, diagnose, compare, report.",
    epilog="Example: pcv check config/config.yaml",
)
UsageError: type[Any] = typer.BadParameter.__mro__[1]
"""of typer: a command, option or argument that is wrong or missing"""

ConfigFile = Annotated[Path, typer.Argument(metavar="CONFIG", help="Config file (YAML).")]
Experiment = Annotated[str, typer.Option("--experiment", "-e", help="One of the experiments.")]
Model = Annotated[str, typer.Option("--model", "-m", help="One of the models.")]
Batch = Annotated[str, typer.Option("--batch", "-b", help="One fold batch, as 1-of-2.")]


def _on_disk(folder: Path) -> Path:
    if ":/" in str(folder):
        raise typer.BadParameter(
            f"{folder} is an address; artifacts are made in a folder (results of Python's "
            "`cross_validate` go elsewhere by `CV.save`)"
        )
    return folder


Results = Annotated[
    Path, typer.Option("--results", help="Folder of the artifacts.", callback=_on_disk)
]
Cores = Annotated[int, typer.Option("--cores", "-c", min=1, help="CPU cores to use.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]

HERE = Path("results")
USUAL = (Path("config.yaml"), Path("config/config.yaml"))
"""configs of a project of `pcv init`, and of the clone"""


ALL_CORES = all_cores()


def _version(asked: bool) -> bool:
    if asked:
        import pcv

        print(f"pcv {pcv.__version__}")
        raise typer.Exit
    return asked


@app.callback()
def _whole(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Which pcv this is.")
    ] = False,
) -> None:
    pass


@app.command(epilog="Example: pcv init my_project --frontend pymc")
def init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new folder, or an empty one.")],
    frontend: Annotated[
        str, typer.Option("--frontend", "-f", help="Of the models: numpyro, pymc, bambi or jax.")
    ] = "numpyro",
    debug: Debug = False,
) -> None:
    """Write a project to start from, which runs: config, models, data, Snakefile."""
    from pcv.pipeline.cli import project

    written = project.init(folder, frontend)
    print(f"Wrote to {folder}:", *(path.relative_to(folder) for path in written), sep="\n    ")
    print("Next:", *project.next_commands(folder), sep="\n    ")


@app.command(epilog="Example: pcv check config/config.yaml")
def check(config: ConfigFile, experiment: Experiment = "", debug: Debug = False) -> None:
    """Check all that can be known before sampling: config, data, folds, models."""
    from pcv.pipeline import stages
    from pcv.pipeline.storage.recipes import check_braces

    _prepare(1)
    problems = []
    jobs = _jobs(config, experiment, HERE)
    for job in jobs:
        try:
            check_braces(job.experiment, job.settings)
            stages.check(job)
        except PcvError as error:
            where = f"experiment '{job.experiment}': " * (len(jobs) > 1)
            problems += [
                line if line.startswith("experiment") else where + line
                for line in str(error).splitlines()
            ]
    if problems:
        raise PcvError("\n".join(problems))


@app.command(epilog="Example: pcv download radon")
def download(
    name: Annotated[str, typer.Argument(metavar="DATASET", help="A registered data set.")],
    results: Results = HERE,
    debug: Debug = False,
) -> None:
    """Fetch a registered data set, from the folder that PCV_DATA names or from its source."""
    from pcv.base.progress import say
    from pcv.pipeline import stages
    from pcv.pipeline.data.registry import SOURCES
    from pcv.pipeline.storage import layout

    if name not in SOURCES:
        near = difflib.get_close_matches(name, SOURCES, 1)
        hint = f"did you mean '{near[0]}'?" if near else f"there are {', '.join(SOURCES)}"
        raise PcvError(f"no registered data set '{name}'; {hint}")
    stages.download(name, layout.dataset(results, name), say)


@app.command(epilog="Example: pcv data config/config.yaml --experiment rats")
def data(
    config: ConfigFile, experiment: Experiment = "", results: Results = HERE, debug: Debug = False
) -> None:
    """Read the data, make units of its rows, check them: data.zarr."""
    from pcv.pipeline import stages

    for job in _jobs(config, experiment, results):
        stages.data(job)


@app.command(epilog="Example: pcv fit config/config.yaml --model slopes --cores 4")
def fit(
    config: ConfigFile,
    experiment: Experiment = "",
    model: Model = "",
    results: Results = HERE,
    cores: Cores = ALL_CORES,
    allow_bad_fit: Annotated[
        bool, typer.Option("--allow-bad-fit", help="Go on with a bad fit, and mark all results.")
    ] = False,
    debug: Debug = False,
) -> None:
    """Fit the models to the full data and tune the kernels of their folds: fit.zarr."""
    from pcv.pipeline import stages

    _prepare(cores)
    for job in _jobs(config, experiment, results, model, per="model"):
        stages.fit(job, allow_bad_fit)


@app.command(epilog="Example: pcv folds config/config.yaml --plot")
def folds(
    config: ConfigFile,
    experiment: Experiment = "",
    plot: Annotated[bool, typer.Option("--plot", help="Draw them: figures/folds.png.")] = False,
    results: Results = HERE,
    debug: Debug = False,
) -> None:
    """Lay out the folds, once for all models: folds.zarr."""
    from pcv.pipeline import stages

    for job in _jobs(config, experiment, results):
        stages.folds(job, plot)


@app.command(epilog="Example: pcv cut my_config.yaml --model slopes")
def cut(
    config: ConfigFile,
    experiment: Experiment = "",
    model: Model = "",
    results: Results = HERE,
    cores: Cores = ALL_CORES,
    debug: Debug = False,
) -> None:
    """Cut the folds into batches that fit the memory (cv.fold_batches: auto): batches.zarr."""
    from pcv.pipeline import stages

    _prepare(cores)
    for job in _jobs(config, experiment, results, model, per="model"):
        stages.cut(job)


@app.command(epilog="Example: pcv warmup config/config.yaml --model slopes --cores 4")
def warmup(
    config: ConfigFile,
    experiment: Experiment = "",
    model: Model = "",
    batch: Batch = "",
    results: Results = HERE,
    cores: Cores = ALL_CORES,
    debug: Debug = False,
) -> None:
    """Warm up all chains of all folds from full-data draws: warmup/<batch>.zarr."""
    from pcv.pipeline import stages

    _prepare(cores)
    for job in _jobs(config, experiment, results, model, batch, per="batch"):
        stages.warmup(job)


@app.command(epilog="Example: pcv sample config/config.yaml --model slopes --cores 4")
def sample(
    config: ConfigFile,
    experiment: Experiment = "",
    model: Model = "",
    batch: Batch = "",
    results: Results = HERE,
    round: Annotated[
        int, typer.Option(min=0, help="Of sampling: from 1 on, the folds that `pcv plan` names.")
    ] = 0,
    cores: Cores = ALL_CORES,
    debug: Debug = False,
) -> None:
    """Sample all chains of all folds and keep the sums of their scores: sample/<batch>.zarr."""
    from pcv.pipeline import stages

    _prepare(cores)
    for job in _jobs(config, experiment, results, model, batch, per="batch"):
        if _has_round(job, round):
            stages.sample(job._replace(round=round))


@app.command(epilog="Example: pcv plan my_config.yaml --round 1")
def plan(
    config: ConfigFile,
    experiment: Experiment = "",
    round: Annotated[int, typer.Option(min=1, help="The round to plan.")] = 1,
    results: Results = HERE,
    debug: Debug = False,
) -> None:
    """Name the folds whose draws the comparison still needs (cv.until): plan/<round>.zarr."""
    from pcv.pipeline import stages

    for job in _jobs(config, experiment, results):
        if _has_round(job, round):
            stages.plan(job._replace(round=round))


@app.command(epilog="Example: pcv diagnose config/config.yaml --model slopes")
def diagnose(
    config: ConfigFile,
    experiment: Experiment = "",
    model: Model = "",
    results: Results = HERE,
    debug: Debug = False,
) -> None:
    """Estimates and diagnostics of every fold, from the stored sums: diagnostics.zarr."""
    from pcv.pipeline import stages

    for job in _jobs(config, experiment, results, model, per="model"):
        stages.diagnose(job)


@app.command(epilog="Example: pcv compare config/config.yaml")
def compare(
    config: ConfigFile, experiment: Experiment = "", results: Results = HERE, debug: Debug = False
) -> None:
    """Compare the models and print the table: comparison.zarr, comparison.csv."""
    from pcv.pipeline import stages

    jobs = _jobs(config, experiment, results)
    for job in jobs:
        table = stages.compare(job)
        print(f"Experiment '{job.experiment}'\n{table}" if len(jobs) > 1 else table)


@app.command(epilog="Example: pcv report config/config.yaml")
def report(
    config: ConfigFile, experiment: Experiment = "", results: Results = HERE, debug: Debug = False
) -> None:
    """Write the report and its figures: report.html, figures/."""
    from pcv.pipeline import stages

    for job in _jobs(config, experiment, results):
        stages.report(job)


@app.command(epilog="Example: pcv show config/config.yaml")
def show(
    config: Annotated[
        Path | None,
        typer.Argument(
            metavar="[CONFIG]", help="Config file (YAML); one of the usual name if any."
        ),
    ] = None,
    experiment: Experiment = "",
    results: Results = HERE,
    debug: Debug = False,
) -> None:
    """Print the last comparison of the models again, and where its report is."""
    from pcv.pipeline import stages

    chosen = config or next((path for path in USUAL if path.exists()), USUAL[0])
    jobs = _jobs(chosen, experiment, results)
    for job in jobs:
        last = stages.show(job)
        print(f"Experiment '{job.experiment}'\n{last}" if len(jobs) > 1 else last)


@app.command(epilog="Example: pcv devices")
def devices(cores: Cores = ALL_CORES, debug: Debug = False) -> None:
    """What JAX finds on this machine, and what chains run on."""
    from pcv.base.programs import devices

    devices.setup(cores)
    print(devices.found())


@app.command(epilog="Example: pcv status config/config.yaml")
def status(
    config: ConfigFile, experiment: Experiment = "", results: Results = HERE, debug: Debug = False
) -> None:
    """Where every artifact stands: done, begun or out of date, and what a rerun would make."""
    from pcv.pipeline.status import artifacts, table

    jobs = _jobs(config, experiment, results)
    for job in jobs:
        stands = table(artifacts(job))
        print(f"Experiment '{job.experiment}'\n{stands}\n" if len(jobs) > 1 else stands)


@app.command(epilog="Example: pcv clean config/config.yaml")
def clean(
    config: ConfigFile,
    experiment: Experiment = "",
    results: Results = HERE,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", "-n", help="Say what would be removed, and keep it.")
    ] = False,
    debug: Debug = False,
) -> None:
    """Remove the blocks of draws of finished samples, which more draws would go on from."""
    from pcv.pipeline import status

    removed, freed, kept = map(
        sum, zip(*(status.clean(job, dry_run) for job in _jobs(config, experiment, results)))
    )
    does, keeps, are = (
        ("Would remove", "Would keep", "would be") if dry_run else ("Removed", "Kept", "are")
    )
    print(
        f"{does} {removed} checkpoints of models whose samples are finished, "
        f"{status.in_bytes(freed)}; with more draws, folds or scores these {are} sampled anew."
        if removed
        else "No model whose samples are finished has a checkpoint."
    )
    if kept:
        print(
            f"{keeps} {kept} of models whose samples are not finished: a rerun goes on from them."
        )


def _has_round(job: "Job", round: int) -> bool:
    """Whether an experiment is sampled in so many rounds; says so if not."""
    last = len(job.settings.cv.rounds) - 1
    if round > last:
        asks = "there is one where cv.until names mcse_over_se or decide"
        rule = f"its rounds are 0 to {last}" if last else asks
        job.say(f"experiment '{job.experiment}': no round {round}: {rule}")
    return round <= last


def _prepare(cores: int) -> None:
    from pcv.base.programs import devices

    devices.setup(cores)
    devices.keep_compiled()


def _jobs(
    config: Path, experiment: str, results: Path, model: str = "", batch: str = "", per: str = ""
) -> list["Job"]:
    from pcv.base.progress import reporter, say
    from pcv.pipeline.config import load
    from pcv.pipeline.job import Job
    from pcv.pipeline.storage.artifacts import batches

    settings = load(config)
    names = _chosen(config, "experiment", experiment, list(settings.experiments))
    given = f" {config}" + f" --results {results}" * (results != HERE)
    jobs = [
        Job(settings, name, results, say=say, progress=reporter(), given=given, made={})
        for name in names
    ]
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
        parts = [part for job in jobs for part in batches(job)]
        known = list(dict.fromkeys(part.batch for part in parts))
        wanted = _chosen(config, "fold batch", batch, known)
        jobs = [part for part in parts if part.batch in wanted]
    return jobs


def _chosen(config: Path, what: str, name: str, known: list[str]) -> list[str]:
    if not name:
        return known
    if name not in known:
        near = difflib.get_close_matches(name, known, 1)
        hint = f"did you mean '{near[0]}'?" if near else f"it has {', '.join(known)}"
        raise PcvError(f"{config}: no {what} '{name}'; {hint}")
    return [name]


def main() -> None:
    """Run the command; an error is one line and a non-zero exit status, a warning is one line."""
    if "--debug" not in sys.argv:
        warnings.formatwarning = lambda said, *_, **__: f"warning: {str(said).splitlines()[0]}\n"
    try:
        with process.at_once():
            sys.exit(app(prog_name="pcv", standalone_mode=False))
    except UsageError as error:
        if said := error.format_message():
            command = error.ctx.command_path if error.ctx else "pcv"
            print(f"error: {said.rstrip('.')}; see {command} --help", file=sys.stderr)
        sys.exit(error.exit_code)
    except Stopped as stopped:
        print(f"error: {stopped}", file=sys.stderr)
        sys.exit(stopped.exit_code)
    except Exception as error:
        if "--debug" in sys.argv:
            traceback.print_exc()
        known = isinstance(error, PcvError)
        for line in str(error).splitlines() or [""]:
            print(f"error: {line if known else f'{type(error).__name__}: {line}'}", file=sys.stderr)
        if not known and "--debug" not in sys.argv:
            print("This may be a fault of pcv; --debug shows where it happened", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
