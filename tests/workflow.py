"""A project that Snakemake runs in a folder of its own, and what it has to do there."""

import copy
import json
import multiprocessing
import os
import re
import subprocess
import sys
import tempfile
from multiprocessing.connection import wait
from multiprocessing.reduction import DupFd
from pathlib import Path
from threading import Lock
from typing import NamedTuple

import numpy as np
import yaml

from pcv.pipeline.cli import project

ROOT = Path(__file__).parents[1]
MODEL = """
import numpyro.distributions as dist
import pcv


def normal(data, scale=10.0):
    prior = dist.Normal(0.0, scale)
    return pcv.Model(
        init=lambda key: {"mu": prior.sample(key)},
        log_prior=lambda params: prior.log_prob(params["mu"]),
        log_lik=lambda params, data: dist.Normal(params["mu"], 1.0).log_prob(data["y"]),
        constrain=lambda params: params,
        outcome=pcv.Outcome("y", discrete=False),
        predict=lambda key, params, data: dist.Normal(params["mu"], 1.0).sample(
            key, data["y"].shape
        ),
    )
"""
DATA = "y\n" + "\n".join(str(0.3 * (i % 5)) for i in range(12)) + "\n"
CONFIG = {
    "seed": 1,
    "experiments": {
        "tiny": {
            "data": {"file": "data.csv", "outcome": "y"},
            "folds": {"scheme": "k_fold", "k": 4},
            "models": {
                "a": {"model": "a.py:normal", "args": {"scale": 10.0}},
                "b": {"model": "b.py:normal", "args": {"scale": 0.5}},
            },
            "fit": {"warmup": 200, "draws": 200},
            "cv": {"chains": 2, "warmup": 5, "draws": 40, "batch_size": 10, "fold_batches": 2},
        }
    },
}


class Run(NamedTuple):
    status: int
    out: str
    err: str


def command(*arguments: str, snakefile: Path = ROOT / "Snakefile") -> list[str]:
    snakemake = [sys.executable, "-m", "snakemake", "--snakefile", str(snakefile), "--cores", "2"]
    return [*snakemake, *arguments]


FORKS = multiprocessing.get_context("forkserver")
ONE_AT_A_TIME = Lock()
"""threads of which one starts and another joins would both ask how the other's process ended"""
FORKS.set_forkserver_preload(["snakemake.cli", "pandas", "pcv.pipeline.storage.recipes"])


def dry_run(folder: Path, *arguments: str, snakefile: Path = ROOT / "Snakefile") -> Run:
    """What `snakemake` says in a process that begins with it imported: half of its time."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        _, *given = command("--dry-run", *arguments, snakefile=snakefile)
        process = FORKS.Process(
            target=_in_folder, args=(folder, given[2:], DupFd(out.fileno()), DupFd(err.fileno()))
        )
        with ONE_AT_A_TIME:
            process.start()
        wait([process.sentinel], 900)
        with ONE_AT_A_TIME:
            process.join(0)
        for file in (out, err):
            file.seek(0)
        return Run(process.exitcode, out.read(), err.read())


def _in_folder(folder: Path, arguments: list[str], out, err) -> None:
    from snakemake.cli import main

    for number, file in ((1, out), (2, err)):
        os.dup2(file.detach(), number)
    os.chdir(folder)
    sys.path.insert(0, str(folder))
    sys.argv = ["snakemake", *arguments]
    main(arguments)


def snakemake(folder: Path, *arguments: str, snakefile: Path = ROOT / "Snakefile") -> Run:
    if "--dry-run" in arguments:
        others = [argument for argument in arguments if argument != "--dry-run"]
        return dry_run(folder, *others, snakefile=snakefile)
    done = subprocess.run(
        command(*arguments, snakefile=snakefile),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=900,
    )
    return Run(done.returncode, done.stdout, done.stderr)


def tiny(folder: Path, *arguments: str) -> Run:
    return snakemake(folder, *arguments, "--configfile", "tiny.yaml")


def planned(run: Run) -> set[str]:
    """The jobs of a dry run, as "stage" or "stage model"; several fold batches count once."""
    assert run.status == 0, run.err + run.out
    jobs = re.findall(
        r"^(?:local)?(?:rule|checkpoint) (\w+):\n((?:    .*\n)*)", run.out + run.err, re.MULTILINE
    )
    named = {
        f"{rule} {model[1]}" if (model := re.search(r"model=(\w+)", body)) else rule
        for rule, body in jobs
    }
    return named - {"default"}


def write_config(folder: Path, config: dict, name: str = "tiny.yaml") -> None:
    (folder / name).write_text(yaml.safe_dump(config, sort_keys=False))


def changed(**values: object) -> dict:
    """The config with other values; `cv__draws` is the key `draws` of section `cv`."""
    config = copy.deepcopy(CONFIG)
    for path, value in values.items():
        *sections, key = path.split("__")
        place = config["experiments"]["tiny"]
        for section in sections:
            place = place.setdefault(section, {})
        place[key] = value
    return config


def make_project(folder: Path) -> Path:
    for name in "abc":
        (folder / f"{name}.py").write_text(MODEL)
    (folder / "data.csv").write_text(DATA)
    write_config(folder, CONFIG)
    return folder


def run_whole(folder: Path) -> None:
    """A tiny project, run to its end; what it printed is in `run.json`."""
    keep(folder, tiny(make_project(folder)))


def keep(folder: Path, run: Run) -> None:
    assert run.status == 0, run.err + run.out
    (folder / "run.json").write_text(json.dumps(run))


def kept(folder: Path) -> tuple[Path, Run]:
    return folder, Run(*json.loads((folder / "run.json").read_text()))


OUTLIER, NUM_UNITS = 7, 60


def outcomes() -> np.ndarray:
    """A normal sample, one of whose units has importance weights with a heavy tail."""
    y = np.random.default_rng(1).normal(0.5, 1.0, NUM_UNITS)
    y[OUTLIER] = 25.0
    return y


SUBSAMPLE = {
    **CONFIG["experiments"]["tiny"],
    "data": {"file": "outlier.csv", "outcome": "y"},
    "folds": {"scheme": "subsample", "m": 20, "surrogate": ["waic", "plpd"]},
    "fit": {"draws": 500},
    "cv": {"chains": 4, "warmup": 20, "draws": 100, "batch_size": 20},
}
"""an experiment on units of which one has to be sampled"""


def module_experiments(default: dict) -> dict:
    """Experiments beside the default one of `pcv init`, which leaves less to compute."""
    tiny = CONFIG["experiments"]["tiny"]
    until = {"mcse_over_se": 0.01, "min_draws": 40, "max_draws": 160}
    by_memory = {"until": until, "fold_batches": "auto", "memory_share": 1e-7}
    growing = {"until": {"subsampling_se_over_se": 0.001, "max_m": 50}}
    return {
        "yields": {
            **default,
            "predictive": "plain",
            "fit": {"warmup": 200, "draws": 200, "allow_bad_fit": True},
            "cv": {"chains": 2, "warmup": 5, "draws": 20, "batch_size": 10, "adapt": "never"},
        },
        "rounds": {
            **tiny,
            "data": {"file": "tiny.csv", "outcome": "y"},
            "folds": {"scheme": "k_fold", "k": 2},
            "models": {"a": tiny["models"]["a"]},
            "cv": {**tiny["cv"], **by_memory},
        },
        "subsample": {**SUBSAMPLE, "folds": {**SUBSAMPLE["folds"], **growing}},
    }


def run_module(folder: Path) -> None:
    """A project of `pcv init`, whose Snakefile uses the workflow as a module."""
    project.init(folder, "numpyro")
    settings = yaml.safe_load((folder / "config.yaml").read_text())
    settings["experiments"] = module_experiments(settings["experiments"]["yields"])
    write_config(folder, settings, "config.yaml")
    for name in "abc":
        (folder / f"{name}.py").write_text(MODEL)
    (folder / "tiny.csv").write_text(DATA)
    (folder / "outlier.csv").write_text("\n".join(["y", *map(str, outcomes())]) + "\n")
    keep(folder, snakemake(folder, snakefile=folder / "Snakefile"))
