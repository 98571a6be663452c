"""Wherever a process ends, and however: what is there is whole, and going on gives the same.

After each fault, and not only at the end: the process ended as its fault ends processes; every
artifact that the next stage takes as complete has the values of an undisturbed run; none is there
that it refuses, but for one that a power cut tore. At the end: all artifacts have those values,
nothing half-written is left, sampling that was begun went on from its blocks, and torn files of
checkpoints were told.
"""

import contextlib
import shutil

import jax
import numpy as np
import pytest
import yaml

from pcv.pipeline import stages
from tests import faults
from tests.faults import NONE, Fault
from tests.project import ONE_MODEL, run_all, set_up

EACH = 5
"""faults that a job meets, one after another: another order of kinds in every job"""
STARTS = ("fit", "warmup")
"""stages after which jobs start"""


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """Folders after `STARTS`; what nothing disturbed makes of them, and in how many changes."""
    project = set_up(tmp_path_factory.mktemp("faults") / "base")
    (project.folder / "config.yaml").write_text(yaml.safe_dump(ONE_MODEL))
    with contextlib.chdir(project.folder), jax.enable_x64(True):
        job = faults.job_of(project.folder / "config.yaml", project.said.append)
        stages.data(job)
        stages.folds(job)
        stages.fit(job._replace(model="flat"))
    whole = shutil.copytree(project.folder, project.folder.with_name("whole"))
    changes = {"fit": undisturbed(whole)}
    warm = shutil.copytree(whole, project.folder.with_name("warm"))
    flat = warm / "results/yields/models/flat"
    for made in (
        flat / "sample",
        flat / "diagnostics.zarr",
        warm / "results/.checkpoints/yields/flat/0",
    ):
        shutil.rmtree(made)
    changes["warmup"] = undisturbed(shutil.copytree(warm, warm.with_name("again")))
    with contextlib.chdir(whole):
        taken, refused = faults.found(job)
    assert len(taken) == 5
    assert not refused
    return {"fit": project.folder, "warmup": warm}, taken, changes


def undisturbed(project):
    """Run to its end; in how many changes of files."""
    ended = faults.run(project / "config.yaml", NONE)
    assert ended.code == 0, ended.said
    return ended.changes


@pytest.mark.slow
@pytest.mark.parametrize(("among", "start"), [*zip(faults.AMONG, STARTS)])
def test_faults_one_after_another(base, tmp_path, among, start):
    folders, whole, changes = base
    config = shutil.copytree(folders[start], tmp_path / "project") / "config.yaml"
    series = list(faults.AMONG).index(among), STARTS.index(start)
    rng, most = np.random.default_rng([2, *series]), changes[start][among] // EACH
    said, torn, torn_files = [], set(), 0
    with contextlib.chdir(config.parent):
        job = faults.job_of(config, said.append)
        for how in np.roll(list(faults.HOW), 2 * series[0] + series[1]).tolist():
            fault = Fault(how, int(rng.integers(most)), among)
            ended = faults.run(config, fault)
            print(f"{how} at change {fault.at} of {among}: {ended.met}, {ended.where}")
            assert ended.code in faults.ANSWERS[how], (fault, ended)
            assert ended.where.startswith(faults.AMONG[among])
            if how == "full":
                assert "the disk is full; free some room and run again" in ended.said
            taken, refused = faults.found(job)
            assert not faults.wrong(taken, whole), fault
            assert len(refused - torn) <= (how == "power_cut"), (fault, refused)
            torn = refused
            said += ended.said.splitlines()
            in_checkpoint = ended.where.startswith(faults.AMONG["checkpoints"])
            torn_files += how == "power_cut" and in_checkpoint
        run_all(job)
        taken, refused = faults.found(job)
        assert taken.keys() == whole.keys()
        assert not faults.wrong(taken, whole)
        assert not refused
        assert not faults.leftovers(job)
    if start == "warmup":
        assert any("resuming from" in line for line in said)
    assert sum("damaged; renamed to" in line for line in said) == torn_files
