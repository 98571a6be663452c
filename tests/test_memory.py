"""Batches of folds by memory: what a step takes, what there is, and the stage that cuts."""

import contextlib
from pathlib import Path

import jax
import numpy as np
import pytest

from pcv.base.errors import PcvError
from pcv.pipeline import stages, status
from pcv.pipeline.storage.artifacts import batches, opened
from pcv.sampling import memory
from pcv.sampling.folds import moving
from pcv.sampling.memory import Step
from tests.project import run, run_all, set_up

SETTINGS = {
    "models": {"flat": {"model": "models.py:flat"}},
    "cv": {
        "chains": 4,
        "warmup": 20,
        "draws": 60,
        "batch_size": 12,
        "fold_batches": "auto",
        "memory_share": 0.5,
    },
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = set_up(tmp_path_factory.mktemp("memory") / "project")
    with contextlib.chdir(made.folder), jax.enable_x64(True):
        run(made.job(SETTINGS, "flat"), "data", "folds", "fit")
    return made


@pytest.fixture
def project(folder, monkeypatch):
    monkeypatch.chdir(folder.folder)
    folder.said.clear()
    return folder


def of_machine(monkeypatch, size):
    """A machine, and devices, of so many bytes."""
    monkeypatch.setattr(memory, "of_devices", lambda: Step(size, size))


def test_a_step_takes_what_its_results_are(project, monkeypatch):
    """As many bytes as a block of draws returns, which is counted after running one."""
    found, lengths = {}, []
    of_step = memory.of_step

    def noted(engine, fold, num_chains, num_folds, keeps):
        found[num_folds] = of_step(engine, fold, num_chains, num_folds, keeps)
        return found[num_folds]

    as_it_is = moving.advance

    def spied(*args):
        found = as_it_is(*args)
        lengths.append(sum(x.nbytes for x in jax.tree.leaves(found)))
        return found

    monkeypatch.setattr(memory, "of_step", noted)
    of_all = {"chains": 400, "adapt": "never"}
    job = project.job({**SETTINGS, "cv": {**SETTINGS["cv"], **of_all}}, "flat")
    stages.cut(job)
    run(job, "warmup")
    monkeypatch.setattr(moving, "advance", spied)
    run(job, "sample")
    devices = len(jax.devices())
    results = (found[4].host - devices * found[4].device) / memory.HOST_COPIES
    assert results == pytest.approx(lengths[0], rel=0.05)
    assert 0 < found[4].device < lengths[0]


def test_folds_are_cut_until_they_fit(project, monkeypatch):
    job = project.job(SETTINGS, "flat")
    of_machine(monkeypatch, 2**40)
    stages.cut(job)
    assert [part.batch for part in batches(job)] == ["1-of-1"]
    assert "cut flat: 4 folds in one batch, " in project.said[-1]
    whole = opened(job, "cut").attrs
    of_tile = jax.device_count() * whole["batch_device"]  # whatever the number of folds
    of_machine(monkeypatch, int(whole["batch_host"] + of_tile) + 100)
    stages.cut(job)
    assert "cut flat: 4 folds in 2 batches of at most 2, each " in project.said[-1]
    found = opened(job, "cut").attrs
    assert found["batch_host"] <= found["machine_host"] / 2
    assert [part.batch for part in batches(job)] == ["1-of-2", "2-of-2"]
    assert [a.job.batch for a in status.artifacts(job) if a.stage == "warmup"] == [
        "1-of-2",
        "2-of-2",
    ]
    run(job, "warmup", "sample", "diagnose")
    by_number = project.job({**SETTINGS, "cv": {**SETTINGS["cv"], "fold_batches": 2}}, "flat")
    drawn = [opened(part, "sample").load() for part in batches(job)]
    run(by_number, "warmup", "sample")
    for part, mine in zip(batches(by_number), drawn, strict=True):
        assert opened(part, "sample").drop_attrs(deep=False).identical(mine.drop_attrs(deep=False))


def test_a_device_that_is_too_small_for_a_tile_cuts_no_folds(project, monkeypatch):
    """It has one tile at a time, of however many folds."""
    monkeypatch.setattr(memory, "of_devices", lambda: memory.Step(1000, 2**40))
    job = project.job(SETTINGS, "flat")
    stages.cut(job)
    assert [part.batch for part in batches(job)] == ["1-of-1"]
    assert "warning: cut flat: a tile of chains takes more than the share 0.5" in project.said[-1]


def test_nothing_fits(project, monkeypatch):
    of_machine(monkeypatch, 1000)
    job = project.job(SETTINGS, "flat")
    stages.cut(job)
    assert len(batches(job)) == 4
    assert (
        "warning: cut flat: even a batch of one fold takes more than the share 0.5"
        in project.said[-1]
    )


def test_what_comes_after_asks_for_it(project):
    changes = {**SETTINGS, "cv": {**SETTINGS["cv"], "memory_share": 0.25}}
    stages.cut(project.job(SETTINGS, "flat"))
    job = project.job(changes, "flat", "1-of-1")
    with pytest.raises(PcvError, match=r"memory_share was 0\.5, is 0\.25; run `pcv cut` again"):
        stages.warmup(job)
    stands = {a.stage: a.state for a in status.artifacts(job)}
    assert stands["cut"] == "again: config.cv.memory_share was 0.5, is 0.25"
    assert stands["diagnose"].startswith(("to do", "again, after"))


def test_a_given_number_needs_no_measuring(project):
    job = project.job({"cv.fold_batches": 3}, "flat")
    stages.cut(job)
    assert project.said == ["cut flat: nothing to measure, cv.fold_batches is 3"]


@pytest.mark.slow
def test_from_python(project, monkeypatch):
    of_machine(monkeypatch, 1000)
    job = project.job(SETTINGS)._replace(results=Path("python"))
    run_all(job)
    assert len(batches(job._replace(model="flat"))) == 4
    of_machine(monkeypatch, 2**40)
    longer = {**SETTINGS, "cv": {**SETTINGS["cv"], "draws": 120, "memory_share": 0.4}}
    job = project.job(longer)._replace(results=Path("python"))
    run_all(job)
    assert set(opened(job._replace(model="flat"), "diagnose")["n_draws"].values) == {120}


def test_the_limit_of_a_job_counts(monkeypatch, tmp_path):
    for name in ("MEM_PER_NODE", "MEM_PER_CPU", "CPUS_ON_NODE"):
        monkeypatch.delenv(f"SLURM_{name}", raising=False)
    monkeypatch.setattr(memory, "GROUPS", tmp_path)
    monkeypatch.setattr(memory, "OWN_GROUPS", tmp_path / "own")
    machine = memory.of_devices().host
    (tmp_path / "own").write_text("0::/slurm/job\n3:memory:/job\n2:cpu:/job\n")
    (tmp_path / "slurm/job").mkdir(parents=True)
    (tmp_path / "slurm/job/memory.max").write_text("max\n")
    assert memory.of_devices().host == machine
    (tmp_path / "slurm/memory.max").write_text(f"{2**31}\n")
    assert memory.of_devices() == Step(2**31, 2**31)
    (tmp_path / "memory/job").mkdir(parents=True)
    (tmp_path / "memory/job/memory.limit_in_bytes").write_text(f"{2**30}\n")
    assert memory.of_devices() == Step(2**30, 2**30)
    monkeypatch.setenv("SLURM_MEM_PER_NODE", "512")
    assert memory.of_devices().host == 2**29
    monkeypatch.setenv("SLURM_MEM_PER_NODE", "0")
    assert memory.of_devices().host == 2**30
    monkeypatch.setenv("SLURM_CPUS_ON_NODE", "4")
    monkeypatch.setenv("SLURM_MEM_PER_CPU", "64")
    assert memory.of_devices().host == 2**28


@pytest.mark.parametrize(
    ("fixed", "each", "num_folds"), [(0.1, 0.01, 1000), (0.0, 0.3, 7), (0.4, 1e-4, 12573)]
)
def test_number_of_batches(fixed, each, num_folds):
    """Least that fits, where a step has a part that does not depend on its folds."""
    number = memory.num_batches(num_folds, lambda n: fixed + each * n, 0.5)
    sizes = (-(-num_folds // k) for k in range(1, num_folds + 1))
    fits = [fixed + each * size <= 0.5 for size in sizes]
    assert number == fits.index(True) + 1


def test_samples_are_read_where_they_are_looked_at(project, monkeypatch):
    run(project.job({"models": SETTINGS["models"]}, "flat"), "warmup", "sample")
    from pcv.pipeline.storage.artifacts import samples

    (read,) = samples(project.job({"models": SETTINGS["models"]}, "flat"))
    assert not any(x.variable._in_memory for x in read.data_vars.values())
    assert np.isfinite(read["log_joint_mean"].values).all()
    assert not read["log_joint_mean"].variable._in_memory
