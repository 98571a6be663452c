import atexit
import logging
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import yaml
from snakemake.common import NOTHING_TO_BE_DONE_MSG
from snakemake.logging import logger
from snakemake_interface_logger_plugins.common import LogEvent

from pcv.pipeline import config as pcv_config
from pcv.pipeline import graph
from pcv.pipeline.cli import forkserver
from pcv.pipeline.input_files import input_files
from pcv.base import reference
from pcv.base.errors import PcvError
from pcv.base.names import batch_names
from pcv.pipeline.storage.recipes import check_braces, recipe_files

# PATH finds the `pcv` of the environment that runs Snakemake, activated or not. The rules' `conda` is
# only for `--lint`: that environment is made from the clone (envs/README.md), not by `--sdm conda`.
# `set` restores the default that our prefix replaces: else a job that fails before `| tee` would
# count as done. SIGTERM from a cluster and Ctrl-C also reach the shell and `tee`, which must outlive
# them to log the last messages of `pcv`.
shell.prefix(
    f'set -euo pipefail; export PATH="{Path(sys.executable).parent}:$PATH"; '
    "trap : TERM; tee() ( trap '' TERM INT; exec tee \"$@\" ); "
)


def checked_config():
    """The typed config; if it is exactly one file, duplicate keys are errors too."""
    files = [Path(file) for file in workflow.configfiles]
    if len(files) == 1 and yaml.safe_load(files[0].read_bytes()) == config:
        return pcv_config.load(files[0])
    return pcv_config.parse(config)


def check_files(checked):
    """Snakemake does not report a missing input if the output exists; it makes those in results."""
    for name, experiment in checked.experiments.items():
        file = Path(experiment.data.file or ".")
        if file.parts[:1] != ("results",) and not file.exists():
            raise PcvError(
                f"experiments.{name}.data.file: no file '{experiment.data.file}'"
                f" (paths are relative to {Path.cwd()})"
            )
        for model_name, model in experiment.models.items():
            files_of_model = list(map(Path, model.log_lik))
            if not files_of_model:
                reference.check(model.model)
            for file in files_of_model:
                if file.parts[:1] != ("results",) and not file.exists():
                    raise PcvError(
                        f"experiments.{name}.models.{model_name}: no file '{file}'"
                        f" (paths are relative to {Path.cwd()})"
                    )
        for score in experiment.scores:
            if ":" in score:
                reference.check(score)
        if splitter := getattr(experiment.folds, "splitter", None):
            reference.check(splitter)


def check_places(config):
    place = Path("results") if Path("results").exists() else Path(".")
    if not place.is_dir():
        raise PcvError("results: a file stands where a folder is needed; move it away")
    if not os.access(place, os.W_OK | os.X_OK):
        raise PcvError(
            f"results: {place.resolve()} cannot be written to; change its permissions, or run "
            "in another folder"
        )
    for name, experiment in config.experiments.items():
        check_braces(name, experiment)
    for folder in ("results", *(f"results/{name}" for name in config.experiments)):
        if Path(folder, "config.yaml").is_dir():
            raise PcvError(
                f"{folder}/config.yaml: a folder stands where a file is needed; move it away"
            )


# The page of nested R-hat runs chains of its own; the other sections are those of experiments. A
# section without keys is wrong.
SHORT_CHAINS = config.pop("nested_rhat") or {} if "nested_rhat" in config else None
# The installed package lacks the papers' pages.
HAS_PAGES = not IS_MODULE and (Path(workflow.current_basedir).parent / "paper").is_dir()
try:
    CONFIG = checked_config()
    check_places(CONFIG)
    if not IS_MODULE:
        check_files(CONFIG)
    RECIPES = recipe_files(Path("results"), CONFIG, renew=workflow.is_main_process)
except PcvError as error:
    sys.exit("\n".join(f"error: {line}" for line in str(error).splitlines()))

CONFIG_FILE = "results/config.yaml"
# Jobs take turns on a GPU (`resources: gpu`) and share the cores of CPUs.
JAX_FOR_GPUS = find_spec("jax_cuda13_plugin") or find_spec("jax_cuda12_plugin")
GPU = int(bool(JAX_FOR_GPUS) and shutil.which("nvidia-smi") is not None)
FAILED = {}


CUMULATIVE = [name for name, e in CONFIG.experiments.items() if e.makes("evidence")]
BY_FOLD = [name for name in CONFIG.experiments if name not in CUMULATIVE]


def any_of(names):
    """A pattern of these names; of none, if there are none."""
    return "|".join(names) or "(?!)"


wildcard_constraints:
    experiment="|".join(CONFIG.experiments),
    model="|".join({m for e in CONFIG.experiments.values() for m in e.models}),
    batch=r"\d+-of-\d+",
    round=r"[1-9]\d*",


def save_config():
    """Write the merged config, whole and by experiment, where it has changed.

    Jobs read that of their experiment, so that runs of different experiments can share a folder.
    """
    if asked_for("nested_rhat"):
        save_settings()
    if PAGE == "nested_rhat":  # whose experiments are only a default
        return
    parts = {Path(CONFIG_FILE): config}
    for name, settings in config["experiments"].items():
        parts[Path(f"results/{name}/config.yaml")] = {
            **config,
            "experiments": {name: settings},
        }
    for path, content in parts.items():
        text = yaml.safe_dump(content, sort_keys=False)
        if not path.exists() or path.read_text() != text:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)


def config_file(wildcards):
    return f"results/{wildcards.experiment}/config.yaml"


def calm_terminal():
    """Leave the terminal to the stages' output; .snakemake/log has the rest."""
    if workflow.output_settings.verbose or not workflow.local_exec:
        return
    for handler in logger.handlers:
        if handler.name == "DefaultStreamHandler":
            handler.addFilter(is_calm)


def import_ahead():
    """Import the jobs' modules once, in a process that they fork from."""
    if workflow.local_exec:
        forkserver.start()


def is_calm(record):
    """Whether to show a record now: progress, warnings and errors; failed jobs come last."""
    event = getattr(record, "event", None)
    if event == LogEvent.JOB_ERROR:
        if not record.log:  # another project's rule: Snakemake reports it
            return True
        FAILED[record.log[0]] = record.rule_name
        return False
    if "CalledProcessError" in record.getMessage():
        return False
    return record.levelno >= logging.WARNING or event == LogEvent.PROGRESS


def said_in(log):
    """A job's log, or nothing if there is none."""
    path = Path(log)
    return path.read_text(errors="replace") if path.is_file() else ""


def print_tables():
    for experiment in [] if PAGE == "nested_rhat" else CONFIG.experiments:
        page = Path(f"results/{experiment}/report.html")
        if page.exists():
            print(said_in(f"results/{experiment}/logs/compare.log"))
            print(f"Report: {page}", flush=True)
    if PAGE:
        print(f"Page: results/{PAGE}/index.html", flush=True)


def shows_what_is_done(record):
    """Show the tables also if nothing is to be done, when Snakemake calls no hook."""
    if record.getMessage() == NOTHING_TO_BE_DONE_MSG and not workflow.dryrun:
        atexit.register(print_tables)
    return True


if workflow.is_main_process:
    logger.addFilter(shows_what_is_done)


def print_errors():
    """The errors of failed jobs, as the last lines on the terminal."""
    for log, rule_name in FAILED.items():
        said = said_in(log).splitlines()
        errors = [line for line in said if line.startswith("error: ")]
        if not errors:
            errors = [
                "error: no message; was the job interrupted or killed (memory, time limit)? Run "
                "again: finished artifacts stay, and sampling resumes from its last block of draws"
            ]
        heading = f"\n{rule_name} failed; full output in {log}"
        print(heading, *errors, sep="\n", file=sys.stderr)


def part(stage):
    """The stage's version and its part of the config, which trigger reruns."""

    def of(wildcards):
        model = getattr(wildcards, "model", None)
        settings = pcv_config.stage_config(CONFIG, wildcards.experiment, stage, model)
        return {"version": graph.STAGES[stage].version, "config": settings}

    return of


def recipe(stage):
    """The stage's part of the config as a file, newer than artifacts of another config."""

    def of(wildcards):
        model = getattr(wildcards, "model", "")
        return str(RECIPES[wildcards.experiment, stage, model])

    return of


def files(which):
    """The files of a kind that the experiment names."""

    def of(wildcards):
        experiment = CONFIG.experiments[wildcards.experiment]
        model = getattr(wildcards, "model", "")
        return list(
            map(str, input_files(experiment, which, Path("results"), model) or [])
        )

    return of


def surrogates(wildcards):
    """What is computed from the full-data fit, where the config asks for it."""
    makes = CONFIG.experiments[wildcards.experiment].makes
    place = wildcards.experiment, wildcards.model
    return [
        str(graph.path(Path("results"), stage, *place))
        for stage in ("surrogates", "subsample")
        if makes(stage)
    ]


def batches(experiment, model):
    """Names of a model's fold batches, after `cut` with `fold_batches: auto`."""
    if not CONFIG.experiments[experiment].makes("sample"):
        return []
    given = CONFIG.experiments[experiment].cv.fold_batches
    if given == "auto":
        checkpoints.cut.get(experiment=experiment, model=model)
    number = graph.num_batches(Path("results"), experiment, model, given)
    if not number:
        raise PcvError(
            f"results/{experiment}/models/{model}/batches.zarr: not readable; run again"
        )
    return batch_names(number)


def samples(experiment, names, rounds):
    """The samples of models in rounds, all fold batches."""
    return [
        str(graph.path(Path("results"), "sample", experiment, name, batch, round))
        for name in names
        for batch in batches(experiment, name)
        for round in rounds
    ]


def all_samples(wildcards):
    cv = CONFIG.experiments[wildcards.experiment].cv
    rounds = range(len(cv.rounds))
    return samples(wildcards.experiment, [wildcards.model], rounds)


def samples_before(wildcards):
    names = CONFIG.experiments[wildcards.experiment].models
    return samples(wildcards.experiment, names, range(int(wildcards.round)))


def sample_before(wildcards):
    before = int(wildcards.round) - 1
    place = wildcards.experiment, wildcards.model, wildcards.batch, before
    return str(graph.path(Path("results"), "sample", *place))


def models(stage):
    def of(wildcards):
        names = CONFIG.experiments[wildcards.experiment].models
        root = Path("results")
        return [
            str(graph.path(root, stage, wildcards.experiment, name)) for name in names
        ]

    return of


def cores_per_model(wildcards):
    """Run the models' jobs side by side, since start-up and compiling use one core each.

    On a cluster, a job gets one core per chain of the fit.
    """
    settings = CONFIG.experiments[wildcards.experiment]
    if not (workflow.local_exec and workflow.is_main_process):
        return settings.fit.chains
    return max(1, workflow.cores // len(settings.models))


def fit_threads(wildcards):
    chains = CONFIG.experiments[wildcards.experiment].fit.chains
    return min(chains, cores_per_model(wildcards))
