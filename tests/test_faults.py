"""Wherever a process ends, and however: what is there is whole, and going on gives the same."""

import contextlib
import shutil

import jax
import numpy as np
import pytest
import yaml

from pcv import api, stages
from tests import faults
from tests.faults import Fault
from tests.test_stages import CONFIG, set_up

EXPERIMENT = CONFIG["experiments"]["yields"]
SETTINGS = CONFIG | {
    "experiments": {
        "yields": EXPERIMENT
        | {"models": {"flat": EXPERIMENT["models"]["flat"]}, "scores": ["log", "crps"]}
    }
}
SERIES, EACH = 4, 5
"""jobs, and faults that each meets, one after another: another order of kinds in every job"""


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """After the full-data fit; what nothing disturbed makes of it, and in how many changes."""
    project = set_up(tmp_path_factory.mktemp("faults") / "base")
    (project.folder / "config.yaml").write_text(yaml.safe_dump(SETTINGS))
    with contextlib.chdir(project.folder), jax.enable_x64(True):
        job = faults.job_of(project.folder / "config.yaml", project.said.append)
        stages.data(job)
        stages.folds(job)
        stages.fit(job._replace(model="flat"))
    whole = shutil.copytree(project.folder, project.folder.with_name("whole"))
    ended = faults.run(whole / "config.yaml", Fault("kill", 10**9))
    assert ended.code == 0, ended.said
    with contextlib.chdir(whole):
        return project.folder, faults.made(job), ended.changes


@pytest.mark.parametrize("series", range(SERIES))
def test_faults_one_after_another(base, tmp_path, series):
    folder, whole, changes = base
    config = shutil.copytree(folder, tmp_path / "project") / "config.yaml"
    rng, said = np.random.default_rng([2, series]), []
    with contextlib.chdir(config.parent):
        job = faults.job_of(config, said.append)
        for how in np.roll(list(faults.HOW), series).tolist():
            fault = Fault(how, int(rng.integers(changes // EACH)))
            ended = faults.run(config, fault)
            assert ended.code in faults.ANSWERS[how], (fault, ended)
            if how == "full":
                assert "the disk is full; free some room and run again" in ended.said
            torn = faults.broken(job)
            assert len(torn) <= (how == "power_cut"), (fault, torn)
        api.run(job)
        assert all(a.identical(b) for a, b in zip(faults.made(job), whole, strict=True))
        assert not faults.leftovers(job)
    assert any("goes on from" in line for line in said)
