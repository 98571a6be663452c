"""The workflow on a SLURM of this machine: time limits, kills, GPUs."""

import shutil
import subprocess
import sys
import time
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import pytest
import yaml

from tests.slurm import cluster

ROOT = Path(__file__).parents[2]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(cluster.missing()), reason=cluster.missing()),
]

LIMIT_S = 1800
MODELS = """
import sys
import time

from pcv.models.zoo.rats import random_slopes
from pcv.sampling.folds import moving

blocks = moving.blocks


def slow_blocks(*args, **named):
    for block in blocks(*args, **named):
        time.sleep("sample" in sys.argv)
        yield block


moving.blocks = slow_blocks
"""
"""a second for each block of draws, so that a job's time is known on any machine"""
RATS = {
    "seed": 1,
    "experiments": {
        "rats": {
            "data": {
                "file": str(ROOT / "resources/rats.csv"),
                "outcome": "weight_g",
                "order": ["rat", "day"],
            },
            "folds": {"scheme": "leave_one_group_out", "group": "rat"},
            "models": {"slopes": {"model": "models.py:random_slopes"}},
            "fit": {"warmup": 300, "draws": 300},
            "cv": {
                "chains": 4,
                "warmup": 30,
                "draws": 100,
                "batch_size": 20,
                "fold_batches": 2,
            },
        }
    },
}
"""in two batches of 15 folds"""


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    with cluster.up(tmp_path_factory.mktemp("slurm")) as env:
        yield env


@contextmanager
def submitted(project, env, *options, changes=None):
    """The workflow, as a user starts it; what it says is in a file."""
    if changes:
        settings = yaml.safe_load((project / "config.yaml").read_text())
        settings["experiments"]["rats"]["cv"] |= changes
        (project / "config.yaml").write_text(yaml.safe_dump(settings))
    command = [
        str(Path(sys.executable).parent / "snakemake"),
        "--snakefile", str(ROOT / "Snakefile"),
        "--workflow-profile", str(ROOT / "profiles/slurm-generic"),
        "--configfile", "config.yaml",
        *options,
    ]  # fmt: skip
    with (project / "said.txt").open("w") as said:
        run = subprocess.Popen(command, cwd=project, env=env, stdout=said, stderr=said)
        try:
            yield run
        finally:
            if run.poll() is None:
                run.terminate()
                run.wait(60)


def jobs(env):
    """Jobs of the cluster: name, state, start and end, by id."""
    said = subprocess.run(
        ["squeue", "--noheader", "--states=all", "--format=%i|%j|%T|%S|%e"],
        env=env, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    found = sorted(said.splitlines(), key=lambda line: int(line.split("|")[0]))
    return {line.split("|")[0]: line.split("|")[1:] for line in found}


def since(env, before):
    return {number: job for number, job in jobs(env).items() if number not in before}


@pytest.fixture(scope="module")
def two_batches(slurm, tmp_path_factory):
    """A folder after its workflow, whose warmup and sampling asked for the one GPU; its jobs."""
    project = tmp_path_factory.mktemp("rats") / "project"
    project.mkdir()
    (project / "config.yaml").write_text(yaml.safe_dump(RATS))
    (project / "models.py").write_text(MODELS)
    before = jobs(slurm)
    gpus = ("--set-resources", "warmup:gpu=1", "sample:gpu=1")
    with submitted(project, slurm, *gpus) as run:
        assert run.wait(LIMIT_S) == 0, (project / "said.txt").read_text()
    return project, since(slurm, before)


def test_two_batches_one_gpu(two_batches):
    project, made = two_batches
    assert (project / "results/rats/report.html").exists()
    names = [name for name, *_ in made.values()]
    assert names.count("pcv-sample") == names.count("pcv-warmup") == 2
    assert {state for _, state, *_ in made.values()} == {"COMPLETED"}
    gpu = ("pcv-sample", "pcv-warmup")
    times = sorted((start, end) for name, _, start, end in made.values() if name in gpu)
    assert all(end <= start for (_, end), (start, _) in pairwise(times))


def test_a_time_limit_and_a_kill(slurm, two_batches, tmp_path):
    """Two minutes of draws under a limit of one; the first job is killed as soon as it has some."""
    project = Path(shutil.copytree(two_batches[0], tmp_path / "project"))
    long = {"draws": 2400, "fold_batches": 1, "store": "sums"}
    options = ("--set-resources", "sample:runtime=1", "--set-threads", "sample=1", "--retries=30")
    before, signalled, deadline = jobs(slurm), set(), time.monotonic() + LIMIT_S

    def sampling():
        made = since(slurm, before).items()
        return {n: state for n, (name, state, *_) in made if name == "pcv-sample"}

    def log(number):
        file = project / f"results/.slurm/{number}-sample.log"
        return file.read_text() if file.exists() else ""

    def killed(states):
        return any(states[number] not in ("COMPLETED", "TIMEOUT") for number in signalled)

    with submitted(project, slurm, *options, changes=long) as run:
        while run.poll() is None:
            assert time.monotonic() < deadline
            states = sampling()
            for number in [n for n, state in states.items() if state == "RUNNING"]:
                if not killed(states) and "s left" in log(number):
                    kill = ["scancel", "--signal=KILL", "--full", number]
                    subprocess.run(kill, env=slurm, check=False)
                    signalled.add(number)
            time.sleep(1)
    assert run.returncode == 0, (project / "said.txt").read_text()
    states = sampling()
    assert killed(states)
    assert "TIMEOUT" in states.values()
    assert list(states.values())[-1] == "COMPLETED"
    assert len(states) > 2
    assert sum("resuming from" in log(number) for number in sampling()) > 1
