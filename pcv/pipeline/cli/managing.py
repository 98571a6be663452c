"""Commands around the stages: create a project, check it, show its status, clean up."""

import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from pcv.base.errors import PcvError, nearest
from pcv.pipeline.cli import shared
from pcv.pipeline.cli.shared import (
    ALL_CORES,
    HERE,
    Cores,
    Debug,
    Experiment,
    Results,
    UsualConfig,
    usual,
)


def init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new folder, or an empty one.")],
    frontend: Annotated[
        str, typer.Option("--frontend", "-f", help="Of models: numpyro, pymc, bambi, stan or jax.")
    ] = "numpyro",
    debug: Debug = False,
) -> None:
    """Write a working project to start from: config, models, data, Snakefile."""
    from pcv.pipeline.cli import project

    written = project.init(folder, frontend)
    print(f"Wrote to {folder}:", *(path.relative_to(folder) for path in written), sep="\n    ")
    print("Next:", *project.next_commands(folder), sep="\n    ")


def check(config: UsualConfig = None, experiment: Experiment = "", debug: Debug = False) -> None:
    """Check all that can be known before sampling: config, data, folds, models."""
    from pcv.pipeline.stages import inputs
    from pcv.pipeline.storage.recipes import check_braces

    shared.prepare(1)
    problems = []
    jobs = shared.jobs_of(usual(config), experiment, HERE)
    for job in jobs:
        try:
            check_braces(job.experiment, job.settings)
            inputs.check(job)
        except PcvError as error:
            where = f"experiment '{job.experiment}': " * (len(jobs) > 1)
            problems += [
                line if line.startswith("experiment") else where + line
                for line in str(error).splitlines()
            ]
    if problems:
        raise PcvError("\n".join(problems))


def download(
    name: Annotated[str, typer.Argument(metavar="DATASET", help="A registered data set.")],
    results: Results = HERE,
    debug: Debug = False,
) -> None:
    """Fetch a registered data set, from the folder in PCV_DATA or from its source."""
    from pcv.base.monitor import TO_LOG, show_messages
    from pcv.pipeline import graph
    from pcv.pipeline.data.registry import SOURCES
    from pcv.pipeline.stages import inputs

    if name not in SOURCES:
        hint = nearest(name, SOURCES, f"there are {', '.join(SOURCES)}")
        raise PcvError(f"no registered data set '{name}'; {hint}")
    show_messages()
    inputs.download(name, graph.dataset(results, name), TO_LOG)


def import_file(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="Log likelihoods: .parquet, .csv or .nc.")
    ],
    config: UsualConfig = None,
    experiment: Experiment = "",
    results: Results = HERE,
    debug: Debug = False,
) -> None:
    """Import log likelihoods that brms, CmdStan or others made, as the config names them."""
    from pcv.pipeline.work import make_up_to

    chosen = usual(config)
    jobs = [
        job
        for job in shared.jobs_of(chosen, experiment, results, per="model")
        if any(Path(x).resolve() == file.resolve() for x in job.model_config.log_lik)
    ]
    if not jobs:
        key = f"experiments.{experiment or '<name>'}.models"
        raise PcvError(f"{chosen}: no model is '{file}'; add it to {key}, name: {{model: {file}}}")
    for job in jobs:
        make_up_to(job, "diagnose")
    print(f"Imported; `snakemake --cores all`, or `pcv compare {chosen}`, compares the models.")


def show(
    config: UsualConfig = None,
    experiment: Experiment = "",
    results: Results = HERE,
    debug: Debug = False,
) -> None:
    """Print the last comparison again, and the path of its report."""
    from pcv.pipeline.stages import comparison

    shared.print_each(shared.jobs_of(usual(config), experiment, results), comparison.show)


def devices(cores: Cores = ALL_CORES, debug: Debug = False) -> None:
    """Show the devices that JAX finds, and which of them chains run on."""
    from pcv.base import devices

    devices.setup(cores)
    print(devices.found())


def status(
    config: UsualConfig = None,
    experiment: Experiment = "",
    results: Results = HERE,
    debug: Debug = False,
) -> None:
    """Show the state of every artifact (done, started, out of date) and what a rerun would make."""
    from pcv.pipeline.status import artifacts, table

    chosen = usual(config)
    beside = chosen.parent / results
    if not results.exists() and beside.exists():
        raise PcvError(
            f"there is no folder '{results}' here, but one beside {chosen}; change to that folder, "
            f"or give --results {beside}"
        )
    jobs = shared.jobs_of(chosen, experiment, results)
    shared.print_each(jobs, lambda job: table(artifacts(job)), gap="\n")


def clean(
    config: UsualConfig = None,
    experiment: Experiment = "",
    results: Results = HERE,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", "-n", help="Only show what would be removed.")
    ] = False,
    debug: Debug = False,
) -> None:
    """Remove checkpoints of finished samples and evidence, from which more draws would resume."""
    from pcv.analysis.results.numbers import in_bytes
    from pcv.pipeline import status

    removed, freed, kept = map(
        sum,
        zip(
            *(
                status.clean(job, dry_run)
                for job in shared.jobs_of(usual(config), experiment, results)
            )
        ),
    )
    does, keeps, are = (
        ("Would remove", "Would keep", "would be") if dry_run else ("Removed", "Kept", "are")
    )
    print(
        f"{does} {removed} checkpoints of models whose samples are finished, "
        f"{in_bytes(freed)}; with more draws, folds or scores these {are} sampled anew."
        if removed
        else "No model whose samples are finished has a checkpoint."
    )
    if kept:
        print(
            f"{keeps} {kept} of models whose samples are not finished: a rerun resumes from them."
        )


def cache(
    clear: Annotated[bool, typer.Option("--clear", help="Remove them.")] = False,
    debug: Debug = False,
) -> None:
    """Show how much is kept of compiled functions, which save later runs time; or remove it."""
    from pcv.analysis.results.numbers import in_bytes
    from pcv.compile.cache import CACHE_BYTES, cache_folder

    if elsewhere := os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        raise PcvError(f"compiled functions are kept in JAX_COMPILATION_CACHE_DIR, {elsewhere}")
    folder = cache_folder()
    sizes = []
    for path in folder.rglob("*"):
        with suppress(FileNotFoundError):  # other processes write and remove files
            sizes += [path.stat().st_size] * path.is_file()
    if clear:
        try:
            shutil.rmtree(folder)
        except FileNotFoundError:
            pass
        except OSError as error:
            raise PcvError(f"{folder}: cannot be removed ({error.strerror})") from None
    does = "Removed" if clear else "Kept"
    most = "" if clear else f", at most {in_bytes(CACHE_BYTES)}"
    print(f"{does} compiled functions: {len(sizes)} files, {in_bytes(sum(sizes))}{most}: {folder}")
