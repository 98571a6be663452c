import sys
from pathlib import Path

import yaml

from pcv import config as pcv_config
from pcv import layout, reference
from pcv.errors import PcvError

# The `pcv` of the environment that runs Snakemake, activated or not.
shell.prefix(f'set -euo pipefail; export PATH="{Path(sys.executable).parent}:$PATH"; ')

CONFIG_FILE = "results/config.yaml"
try:
    CONFIG = pcv_config.parse(config, "config")
except PcvError as error:
    raise WorkflowError(str(error)) from None


wildcard_constraints:
    experiment="|".join(CONFIG.experiments),
    model="|".join({m for e in CONFIG.experiments.values() for m in e.models}),
    batch=r"\d+-of-\d+",


def save_config():
    """The merged config, beside the results; rewritten only where it differs."""
    text = yaml.safe_dump(config, sort_keys=False)
    path = Path(CONFIG_FILE)
    if not path.exists() or path.read_text() != text:
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)


def print_tables():
    for experiment in CONFIG.experiments:
        print(Path(f"results/{experiment}/logs/compare.log").read_text())
        print(f"Report: results/{experiment}/report.html")


def part(stage):
    """The stage's version and its part of the config: what a rerun is triggered by."""

    def of(wildcards):
        model = getattr(wildcards, "model", None)
        settings = pcv_config.stage_config(CONFIG, wildcards.experiment, stage, model)
        return {"version": layout.VERSIONS[stage], "config": settings}

    return of


def data_file(wildcards):
    return CONFIG.experiments[wildcards.experiment].data.file


def model_file(wildcards):
    try:
        settings = CONFIG.experiments[wildcards.experiment].models[wildcards.model]
        return str(reference.source(settings.model))
    except PcvError as error:
        raise WorkflowError(str(error)) from None


def fold_batches(stage):
    def of(wildcards):
        names = layout.batches(CONFIG.experiments[wildcards.experiment].cv.fold_batches)
        folder = f"results/{wildcards.experiment}/models/{wildcards.model}/{stage}"
        return [f"{folder}/{name}.zarr" for name in names]

    return of


def models(stage):
    def of(wildcards):
        names = CONFIG.experiments[wildcards.experiment].models
        root = Path("results")
        return [
            str(layout.path(root, stage, wildcards.experiment, name)) for name in names
        ]

    return of


def fit_threads(wildcards):
    return CONFIG.experiments[wildcards.experiment].fit.chains
