"""`pcv status` and `pcv clean`: what is there, what a rerun would make, what may go."""

import contextlib
import json
import os
import shutil
import signal
from pathlib import Path

import jax
import pytest

from pcv.base.errors import Stopped
from pcv.pipeline import stages
from pcv.pipeline.status import artifacts, clean, table
from pcv.pipeline.storage.checkpoints import checkpoint
from tests.faults import Killed, killed_after
from tests.project import run, set_up

SETTINGS = {"cv": {"chains": 4, "warmup": 20, "draws": 60, "batch_size": 12, "fold_batches": 2}}
IN_ROUNDS = {
    "cv": {
        **SETTINGS["cv"],
        "until": {"mcse_over_se": 0.01, "min_draws": 24, "max_draws": 48},
    }
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = set_up(tmp_path_factory.mktemp("status") / "project")
    with contextlib.chdir(made.folder), jax.enable_x64(True):
        run(made.job(SETTINGS), "data", "folds", "fit", "warmup")
    return made


@pytest.fixture
def project(folder, monkeypatch):
    """After warmup, of two models in two batches of folds."""
    monkeypatch.chdir(folder.folder)
    made = [f"models/{x}/{y}" for x in ("flat", "linear") for y in ("sample", "diagnostics.zarr")]
    made += ["plan", "comparison.zarr", "figures"]
    for left in ("results/.checkpoints", *(f"results/yields/{x}" for x in made)):
        shutil.rmtree(left, ignore_errors=True)
    for name in ("comparison.csv", "scores.csv", "report.html"):
        Path("results/yields", name).unlink(missing_ok=True)
    return folder


def states(job):
    """What is said of each artifact, by its stage, model and batch."""
    return {
        " ".join(filter(None, (a.stage, a.job.model, a.job.batch))): a.state for a in artifacts(job)
    }


def chunks(store):
    """Files of values, and what is in them."""
    return {
        file: file.read_bytes()
        for file in store.rglob("*")
        if file.is_file() and file.name != "zarr.json"
    }


def stopped(project, monkeypatch, number):
    """A sampling job that ends after so many blocks."""
    job = project.job(SETTINGS, "flat", "2-of-2")
    with monkeypatch.context() as patch:
        killed_after(patch, 1 + 2 * number)
        with pytest.raises(Killed):
            stages.sample(job)
    return job


def test_nothing_is_there(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    job = set_up(tmp_path).job(SETTINGS)
    assert set(states(job).values()) == {"to do"}
    *_, last = table(artifacts(job)).splitlines()
    assert last == (
        "A rerun makes 16 of 16 artifacts: data, fit, folds, warmup, sample, diagnose, compare, "
        "report."
    )


def test_samples_that_were_begun(project, monkeypatch):
    job = stopped(project, monkeypatch, 2)
    found = states(project.job(SETTINGS))
    assert found["warmup flat 1-of-2"] == found["data"] == "done"
    assert found["sample flat 1-of-2"] == "to do"
    assert found["sample flat 2-of-2"] == "to do; resumes from 2 of 5 blocks"
    assert found["diagnose flat"] == "to do"
    other = {"cv": {**SETTINGS["cv"], "chains": 5}}
    assert states(project.job(other))["sample flat 2-of-2"] == "to do"
    lines = table(artifacts(project.job(SETTINGS))).splitlines()
    assert lines[-1].startswith("A rerun makes 8 of 16 artifacts: sample, diagnose, ")
    assert any(line.startswith("sample    flat 2-of-2 ") for line in lines)
    with held(job):
        assert states(project.job(SETTINGS))["sample flat 2-of-2"].startswith("running: ")


def test_what_is_out_of_date_and_why(project):
    job = project.job(SETTINGS)
    run(job, "sample", "diagnose", "compare", "report")
    assert set(states(job).values()) == {"done"}
    assert table(artifacts(job)).endswith("All is done.")
    changed = states(project.job({**SETTINGS, "models.flat.args": {"scale": 4.0}}))
    assert changed["fit flat"] == "again: config.model.args.scale was 5.0, is 4.0"
    assert changed["sample flat 1-of-2"] == "again, after warmup"
    assert changed["report"] == "again, after compare"
    assert changed["diagnose linear"] == "done"
    longer = states(project.job({"cv": {**SETTINGS["cv"], "draws": 120}}))
    assert longer["sample flat 1-of-2"] == (
        "again: config.cv.draws was 60, is 120; resumes from 5 of 10 blocks"
    )


def test_what_was_damaged(project):
    job = project.job(SETTINGS)
    run(job, "sample")
    next(iter(chunks(project.path("models/flat/sample/1-of-2.zarr")))).write_bytes(b"")
    assert states(job)["sample flat 1-of-2"] == (
        "again: damaged, or not of this stage; resumes from 5 of 5 blocks"
    )
    assert states(job)["sample flat 2-of-2"] == "done"
    path = job._replace(model="flat", batch="1-of-2").path("sample")
    assert table(artifacts(job)).endswith(f"remove the damaged ones first: rm -r {path}")


def test_progress_tells_batches_apart(project):
    shown, job = [], project.job(SETTINGS, "flat")
    job = job._replace(monitor=job.monitor._replace(show=shown.append))
    run(job, "sample")
    assert {p.label for p in shown} == {"sample flat 1-of-2", "sample flat 2-of-2"}


@pytest.mark.slow
def test_rounds(project):
    job = project.job(IN_ROUNDS)
    places = [(a.stage, a.job.round) for a in artifacts(job) if a.stage in ("plan", "sample")]
    assert places == [("sample", 0)] * 4 + [("plan", 1)] + [("sample", 1)] * 4
    run(job, "sample")
    stages.plan(job._replace(round=1))
    found = [a.state for a in artifacts(job) if a.stage in ("plan", "sample")]
    assert found == ["done"] * 5 + ["to do"] * 4


@contextlib.contextmanager
def held(job):
    """As another process would hold the last of the samples that were begun."""
    *_, file = sorted(job.checkpoints.glob("*/made_of.json"))
    record = json.loads(file.read_text())
    with checkpoint.held(job.checkpoints, record, record["made on"], print):
        yield


def test_clean_keeps_what_a_rerun_goes_on_from(project, monkeypatch):
    job = project.job(SETTINGS)
    stopped(project, monkeypatch, 2)
    run(job._replace(model="linear"), "sample")
    told = clean(job, dry_run=True)
    assert clean(job, dry_run=True) == told
    removed, freed, kept = clean(job)
    assert (removed, freed, kept) == told
    assert (removed, kept) == (2, 1)
    assert freed > 1000
    assert states(job)["sample flat 2-of-2"] == "to do; resumes from 2 of 5 blocks"
    assert states(job)["sample linear 1-of-2"] == "done"
    assert clean(job) == (0, 0, 1)


@pytest.mark.slow
def test_clean_removes_those_of_former_cuts(project):
    run(project.job(SETTINGS, "flat"), "sample")
    whole = project.job({"cv": {**SETTINGS["cv"], "fold_batches": 1}})
    run(whole._replace(model="flat"), "warmup", "sample")
    assert clean(whole)[::2] == (4, 0)  # a warmup of this cut; samples of both
    assert not list(whole.results.glob(".checkpoints/yields/flat/**/block*"))
    run(project.job(SETTINGS, "flat"), "warmup")


@pytest.mark.slow
def test_clean_keeps_what_may_be_of_batches_to_come(project):
    run(project.job(SETTINGS), "sample")
    measured = project.job({"cv": {**SETTINGS["cv"], "fold_batches": "auto"}})
    assert clean(measured)[0] == 0
    assert table(artifacts(measured)).endswith(
        " Fold batches of linear, flat are added, as many as `cut` finds."
    )


def test_clean_leaves_what_is_held(project):
    job = project.job(SETTINGS)
    part = job._replace(model="linear")
    run(part, "sample")
    with held(part):
        assert clean(job, dry_run=True)[::2] == (1, 1)
        assert clean(job)[::2] == (1, 1)


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_keeps_the_block(project, monkeypatch, signum):
    job = project.job(SETTINGS, "flat", "1-of-2")
    stages.sample(job)
    whole = job.path("sample")
    first = chunks(whole)
    shutil.rmtree(whole)
    shutil.rmtree("results/.checkpoints")
    as_it_is = checkpoint.Checkpoint.save

    def save(self, index, *args):
        if index == 1:
            os.kill(os.getpid(), signum)
        as_it_is(self, index, *args)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint.Checkpoint, "save", save)
        with pytest.raises(Stopped) as caught:
            stages.sample(job)
    name = {signal.SIGTERM: "SIGTERM", signal.SIGINT: "Ctrl-C"}[signum]
    assert str(caught.value) == (
        f"sample flat: stopped by {name}; the blocks of draws made so far, 2, are kept, and the "
        "same command resumes from them"
    )
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert not whole.exists()
    stages.sample(job)
    assert chunks(whole) == first
