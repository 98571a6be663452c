"""A Snakemake run that is killed with all its jobs while it samples, and what goes on from it."""

import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.workflow import MODEL, changed, command, make_project, tiny, write_config

OF_MODEL = Path("results/tiny/models/a")
SAMPLED = OF_MODEL / "sample/1-of-1.zarr"
WARMED, DIAGNOSED = (str(OF_MODEL / name) for name in ("warmup/1-of-1.zarr", "diagnostics.zarr"))
LONG = changed(
    models={"a": {"model": "a.py:normal"}},
    cv__fold_batches=1,
    cv__draws=1200,
    cv__batch_size=20,
)
"""60 blocks of draws"""
SLOW = """
import time

from pcv.sampling.folds import moving

blocks = moving.blocks


def slow_blocks(*args, **named):
    for block in blocks(*args, **named):
        time.sleep(0.1)
        yield block


moving.blocks = slow_blocks
"""
"""a model's file that takes its time on any machine, so that the kill is in the middle"""


@pytest.fixture
def begun(tmp_path: Path) -> Path:
    """A project before it is sampled."""
    project = tmp_path / "project"
    project.mkdir()
    make_project(project)
    write_config(project, LONG)
    (project / "a.py").write_text(MODEL + SLOW)
    run = tiny(project, WARMED)
    assert run.status == 0, run.err + run.out
    return project


def killed(project: Path) -> int:
    """`kill -9` of Snakemake and its jobs, once two blocks of draws are there; how many."""
    process = subprocess.Popen(
        command(DIAGNOSED, "--configfile", "tiny.yaml"),
        cwd=project,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        process_group=0,
    )
    limit = time.monotonic() + 300
    try:
        while not list(project.glob("results/.checkpoints/tiny/a/0/*/state-000001")):
            assert process.poll() is None
            assert time.monotonic() < limit
            time.sleep(0.01)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return len(list(project.glob("results/.checkpoints/tiny/a/0/*/block-*")))


def values(project: Path) -> dict[Path, bytes]:
    """What samples and diagnostics hold, byte by byte; not when and where they were made."""
    files = [file for store in (SAMPLED, DIAGNOSED) for file in (project / store).rglob("*")]
    return {
        file.relative_to(project): file.read_bytes()
        for file in files
        if file.is_file() and file.name not in ("zarr.json", ".snakemake_timestamp")
    }


def test_the_next_run_goes_on_to_the_same_result(begun):
    whole = shutil.copytree(begun, begun.with_name("whole"))
    blocks = killed(begun)
    assert 2 <= blocks < 60
    assert not (begun / SAMPLED).exists()
    locked = tiny(begun, DIAGNOSED)
    assert locked.status != 0
    assert "--unlock" in locked.err
    assert tiny(begun, "--unlock").status == 0
    for project in (begun, whole):
        run = tiny(project, DIAGNOSED)
        assert run.status == 0, run.err + run.out
        said = (project / "results/tiny/logs/sample-a-1-of-1.log").read_text()
        went_on = re.search(r"sample a: resuming from (\d+) saved blocks", said)
        assert bool(went_on) == (project == begun)
        if went_on:
            assert blocks - 1 <= int(went_on[1]) <= blocks
    assert len(values(whole)) > 50
    assert values(begun) == values(whole)
