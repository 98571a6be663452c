import atexit
import logging
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
from pcv.pipeline.storage import layout
from pcv.base import reference
from pcv.base.errors import PcvError
from pcv.pipeline.storage.recipes import check_braces, recipe_files

# The `pcv` of the environment that runs Snakemake, activated or not. The rules' `conda` is there for
# `--lint`: that environment is made from the clone (envs/README.md), not by `--sdm conda`.
# Setting a prefix drops Snakemake's own, without which a job that fails before `| tee` would count
# as done. A cluster sends SIGTERM to the shell and `tee` too, a terminal Ctrl-C: they wait for what
# `pcv` says of it.
shell.prefix(
    f'set -euo pipefail; export PATH="{Path(sys.executable).parent}:$PATH"; '
    "trap : TERM; tee() ( trap '' TERM INT; exec tee \"$@\" ); "
)


def checked_config():
    """The config as types; one that is a whole file is also searched for keys given twice."""
    files = [Path(file) for file in workflow.configfiles]
    if len(files) == 1 and yaml.safe_load(files[0].read_bytes()) == config:
        return pcv_config.load(files[0])
    return pcv_config.parse(config)


def check_files(checked):
    """Snakemake itself says nothing of a missing input whose output is already there."""
    for name, experiment in checked.experiments.items():
        if experiment.data.file and not Path(experiment.data.file).exists():
            raise PcvError(
                f"experiments.{name}.data.file: no file '{experiment.data.file}'"
                f" (paths are relative to {Path.cwd()})"
            )
        for model in experiment.models.values():
            reference.check(model.model)
        for score in experiment.scores:
            if ":" in score:
                reference.check(score)


def check_places(config):
    for name, experiment in config.experiments.items():
        check_braces(name, experiment)
    for folder in ("results", *(f"results/{name}" for name in config.experiments)):
        if Path(folder, "config.yaml").is_dir():
            raise PcvError(
                f"{folder}/config.yaml: a folder stands where a file is needed; move it away"
            )


# What is installed has no page of the paper.
HAS_PAPER = not IS_MODULE and (Path(workflow.current_basedir).parent / "paper").is_dir()
try:
    CONFIG = checked_config()
    check_places(CONFIG)
    if not IS_MODULE:
        check_files(CONFIG)
    RECIPES = recipe_files(Path("results"), CONFIG, renew=workflow.is_main_process)
except PcvError as error:
    sys.exit("\n".join(f"error: {line}" for line in str(error).splitlines()))

CONFIG_FILE = "results/config.yaml"
# On a GPU, jobs run one after the other (`resources: gpu`); on CPUs they share the cores.
JAX_FOR_GPUS = find_spec("jax_cuda13_plugin") or find_spec("jax_cuda12_plugin")
GPU = int(bool(JAX_FOR_GPUS) and shutil.which("nvidia-smi") is not None)
FAILED = {}


wildcard_constraints:
    experiment="|".join(CONFIG.experiments),
    model="|".join({m for e in CONFIG.experiments.values() for m in e.models}),
    batch=r"\d+-of-\d+",
    round=r"[1-9]\d*",


def save_config():
    """The merged config, whole and by experiment; rewritten only where it differs.

    Jobs read their experiment's: two runs of other experiments in one folder don't meet.
    """
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
    """Leave the terminal to what the stages say; the log in .snakemake/log has the rest."""
    if workflow.output_settings.verbose or not workflow.local_exec:
        return
    for handler in logger.handlers:
        if handler.name == "DefaultStreamHandler":
            handler.addFilter(is_calm)


def import_ahead():
    """What jobs import, once for all of them."""
    if workflow.local_exec:
        forkserver.start()


def is_calm(record):
    """Progress, warnings and errors; failed jobs are kept for the end."""
    event = getattr(record, "event", None)
    if event == LogEvent.JOB_ERROR:
        if not record.log:  # of another project's rule, which Snakemake tells of
            return True
        FAILED[record.log[0]] = record.rule_name
        return False
    if "CalledProcessError" in record.getMessage():
        return False
    return record.levelno >= logging.WARNING or event == LogEvent.PROGRESS


def said_in(log):
    """What a job said, as far as its log was kept."""
    path = Path(log)
    return path.read_text(errors="replace") if path.is_file() else ""


def print_tables():
    for experiment in CONFIG.experiments:
        page = Path(f"results/{experiment}/report.html")
        if page.exists():
            print(said_in(f"results/{experiment}/logs/compare.log"))
            print(f"Report: {page}", flush=True)
    if PAPER_ASKED_FOR:
        print("Paper: results/paper/index.html", flush=True)


def shows_what_is_done(record):
    """Snakemake calls no hook where nothing is to be done: the tables are shown then, too."""
    if record.getMessage() == NOTHING_TO_BE_DONE_MSG and not workflow.dryrun:
        atexit.register(print_tables)
    return True


if workflow.is_main_process:
    logger.addFilter(shows_what_is_done)


def print_errors():
    """What failed jobs said, as the last that one sees."""
    for log, rule_name in FAILED.items():
        said = said_in(log).splitlines()
        errors = [line for line in said if line.startswith("error: ")]
        if not errors:
            errors = [
                "error: none was said; was it interrupted or killed (memory, time limit)? Run "
                "again: what was finished stays, and sampling goes on from its last block of draws"
            ]
        heading = f"\n{rule_name} failed; all it said is in {log}"
        print(heading, *errors, sep="\n", file=sys.stderr)


def part(stage):
    """The stage's version and its part of the config: what a rerun is triggered by."""

    def of(wildcards):
        model = getattr(wildcards, "model", None)
        settings = pcv_config.stage_config(CONFIG, wildcards.experiment, stage, model)
        return {"version": graph.STAGES[stage].version, "config": settings}

    return of


def recipe(stage):
    """The stage's part of the config as a file: newer than an artifact of another config."""

    def of(wildcards):
        model = getattr(wildcards, "model", "")
        return str(RECIPES[wildcards.experiment, stage, model])

    return of


def data_file(wildcards):
    data = CONFIG.experiments[wildcards.experiment].data
    return data.file or str(layout.dataset(Path("results"), data.dataset))


def model_files(wildcards):
    experiment = CONFIG.experiments[wildcards.experiment]
    sources = reference.sources(experiment.models[wildcards.model].model)
    return [str(path) for path in sources]


def posterior_file(wildcards):
    given = CONFIG.experiments[wildcards.experiment].fit.file
    return [] if given is None else [given.replace("{model}", wildcards.model)]


def score_files(wildcards):
    scores = CONFIG.experiments[wildcards.experiment].scores
    own = [name for name in scores if ":" in name]
    return [str(path) for name in own for path in reference.sources(name)]


def batches(experiment, model):
    """Names of a model's fold batches, after `cut` where memory decides how many there are."""
    given = CONFIG.experiments[experiment].cv.fold_batches
    if given == "auto":
        checkpoints.cut.get(experiment=experiment, model=model)
    number = layout.num_batches(Path("results"), experiment, model, given)
    if not number:
        raise PcvError(
            f"results/{experiment}/models/{model}/batches.zarr: not read; run again"
        )
    return layout.batches(number)


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
    """Start-up and compiling use one core: the models' jobs run side by side.

    On a cluster a job has one for each chain of the fit.
    """
    settings = CONFIG.experiments[wildcards.experiment]
    if not (workflow.local_exec and workflow.is_main_process):
        return settings.fit.chains
    return max(1, workflow.cores // len(settings.models))


def fit_threads(wildcards):
    chains = CONFIG.experiments[wildcards.experiment].fit.chains
    return min(chains, cores_per_model(wildcards))
