"""A job that is ended anywhere goes on where it was: same draws as if nothing had happened."""

import contextlib
import errno
import fcntl
import itertools
import json
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event, Timer

import jax
import numpy as np
import pytest
import xarray as xr
from jax.errors import JaxRuntimeError

from pcv.analysis.kept import NONE
from pcv.base.errors import PcvError
from pcv.core import sample as sampling
from pcv.folds.base import Folds
from pcv.pipeline.job import sample_recipe, warmup_recipe
from pcv.pipeline.storage import store
from pcv.pipeline.storage.checkpoints import checkpoint, files, locks, merging
from pcv.sampling import tiles
from pcv.sampling.folds import moving
from tests.faults import Killed, killed_after
from tests.project import run, set_up
from tests.slow import repeated

DRAWS = {
    "cv": {"chains": 4, "warmup": 20, "draws": 60, "batch_size": 12},
    "scores": ["log", "crps"],
}
UNTIL = {
    "cv": {
        "chains": 4,
        "warmup": 20,
        "draws": 60,
        "batch_size": 12,
        "until": {"fold_mcse": 0.12, "min_draws": 48, "max_draws": 192},
    }
}
BLOCKS = 5
HERE = {"platform": "cpu", "devices": 2, "dtype": "float64"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = set_up(tmp_path_factory.mktemp("checkpoint") / "project")
    with contextlib.chdir(made.folder), jax.enable_x64(True):
        run(made.job(DRAWS, "flat"), "data", "folds", "fit", "warmup")
    return made


@pytest.fixture(scope="module")
def wholes(folder):
    """What jobs sample that nothing stops."""
    with contextlib.chdir(folder.folder), jax.enable_x64(True):
        return [sampled(folder, changes) for changes in (DRAWS, UNTIL)]


@pytest.fixture
def whole(wholes):
    return wholes[0]


@pytest.fixture
def project(folder):
    """After warmup, without samples; what was said is forgotten."""
    folder.said.clear()
    with contextlib.chdir(folder.folder), jax.enable_x64(True):
        for left in ("results/.checkpoints", "results/yields/models/flat/sample"):
            shutil.rmtree(left, ignore_errors=True)
        yield folder


def sampled(project, changes=DRAWS):
    """What a job samples, in memory."""
    run(project.job(changes, "flat"), "sample")
    path = project.path("models/flat/sample/1-of-1.zarr")
    return xr.open_dataset(path, engine="zarr").load().drop_attrs(deep=False)


def folder_of(project):
    """The only one of the samples."""
    (file,) = project.job(DRAWS, "flat").checkpoints.glob("*/made_of.json")
    return file.parent


@pytest.mark.parametrize("changes", [DRAWS, UNTIL], ids=["draws", "until"])
@pytest.mark.parametrize("writes", repeated([5, 0, 2]))
def test_killed_between_two_files(project, wholes, monkeypatch, writes, changes):
    with monkeypatch.context() as patch:
        killed_after(patch, writes)
        with pytest.raises(Killed):
            sampled(project, changes)
    assert sampled(project, changes).identical(wholes[changes is UNTIL])
    going_on = [line for line in project.said if "resuming from" in line]
    assert len(going_on) == (writes > 2)  # what it is made of, a block, the state after it


def test_a_lock_whose_folder_was_removed_is_none(tmp_path):
    """`pcv clean` removes what it holds; who waited for it begins in a new folder."""
    made_of = {"folds": ["a"]}
    folder = checkpoint.folder_of(tmp_path, made_of)

    def clean_again_and_again():
        while not done.is_set():
            checkpoint.remove(folder)

    done = Event()
    with ThreadPoolExecutor() as pool:
        cleaning = pool.submit(clean_again_and_again)
        try:
            for _ in range(200):
                with checkpoint.held(tmp_path, made_of, HERE, print):
                    assert (folder / "lock").exists()
                    assert checkpoint.is_held(tmp_path, made_of)
                    assert not checkpoint.remove(folder)
        finally:
            done.set()
        cleaning.result()
    assert {path.name for path in tmp_path.iterdir()} <= {folder.name}


def test_files_of_writers_that_were_killed_go(tmp_path):
    with checkpoint.held(tmp_path, {"folds": ["a"]}, HERE, print) as saved:
        left = saved.folder / ".block-000000.node.1.new"
        left.touch()
    with checkpoint.held(tmp_path, {"folds": ["a"]}, HERE, print):
        assert not left.exists()


def test_draws_of_something_else_are_dropped_and_that_is_said(tmp_path):
    said = []
    for scores in (["log"], ["log"], ["crps", "log"]):
        made_of = {"folds": ["a"], "config": {"scores": scores}}
        with checkpoint.held(tmp_path, made_of, HERE, said.append) as saved:
            saved.save(0, {"x": np.zeros(1)}, {"x": np.zeros(1)})
    assert len(said) == 1
    words = "draws from other inputs or settings are dropped and made again: "
    assert said[0].endswith(f'{words}config.scores was ["log"], is ["crps", "log"]')


@pytest.mark.parametrize("at_once", [True, False])
def test_killed_while_the_artifact_is_written(at_once, project, whole, monkeypatch):
    """At once, or, where it is large, block by block."""
    with monkeypatch.context() as patch:
        if not at_once:
            patch.setattr(store, "IN_MEMORY", 0)
        killed_after(patch, 0 if at_once else 1, "put")
        with pytest.raises(Killed):
            sampled(project)
    assert sampled(project).identical(whole)
    assert any(f"resuming from {BLOCKS} saved blocks" in line for line in project.said)


def test_nothing_is_sampled_twice(project, monkeypatch):
    sampled(project)

    def none_are_left(*args, num_draws, **_):
        assert num_draws == 0
        return []

    monkeypatch.setattr(moving, "blocks", none_are_left)
    sampled(project)


def of_small_device(monkeypatch, room):
    """A device that has room for so many chains at a time."""
    as_it_is, tried = tiles.advance, []
    devices = jax.device_count()

    def advance(engine, *rest):
        tried.append(engine.tile // devices)
        if tried[-1] > room:
            exhausted()
        return as_it_is(engine, *rest)

    monkeypatch.setattr(moving, "advance", advance)
    return tried


def test_out_of_memory(project, whole, monkeypatch):
    tried = of_small_device(monkeypatch, 2)
    drawn = sampled(project)
    most = tiles.MOST_CPU
    assert tried[:5] == [16, 8, 4, 2, 2]
    said = [line for line in project.said if "out of memory" in line]
    assert said[0].startswith(
        f"warning: sample flat: out of memory with {most} chains at a time per device; retrying "
        f"with {most // 2}"
    )
    for name in ("log_joint_mean", "log_joint_draws", "acceptance"):
        np.testing.assert_allclose(drawn[name], whole[name], rtol=1e-6)


def test_the_tile_that_fits_is_found_once(project, monkeypatch):
    tried = of_small_device(monkeypatch, 2)
    sampled(project, UNTIL)
    assert tried[:4] == [16, 8, 4, 2]
    assert len(tried) > 6  # of several looks
    assert set(tried[4:]) == {2}


def test_out_of_memory_for_good(project, monkeypatch, request):
    job = project.job(DRAWS, "flat")
    request.addfinalizer(lambda: run(job, "warmup"))
    with monkeypatch.context() as patch:
        of_small_device(patch, 0)
        with pytest.raises(PcvError, match=r"out of memory with one chain per device; "):
            run(job, "sample")
    with monkeypatch.context() as patch:
        patch.setattr(sampling, "standing_at", exhausted)
        with pytest.raises(PcvError, match=r"^out of memory on cpu; cut the folds into batches"):
            run(job, "sample")


def exhausted(*args):
    raise JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 1 bytes.")


@pytest.mark.slow
def test_killed_after_a_warmup_of_its_own_length(project, monkeypatch, request):
    cv = {**DRAWS["cv"], "chains": 16, "superchains": 4, "warmup": "auto"}
    request.addfinalizer(lambda: run(project.job(DRAWS, "flat"), "warmup"))
    run(project.job({"cv": cv}, "flat"), "warmup")
    warm = xr.open_dataset(project.path("models/flat/warmup/1-of-1.zarr"), engine="zarr")
    assert np.unique(warm["n_warmup"]).size > 1
    whole = sampled(project, {"cv": cv})
    shutil.rmtree("results/.checkpoints")
    with monkeypatch.context() as patch:
        killed_after(patch, 5)
        with pytest.raises(Killed):
            sampled(project, {"cv": cv})
    assert sampled(project, {"cv": cv}).identical(whole)
    assert any("resuming from" in line for line in project.said)


def test_more_draws_go_on(project, monkeypatch):
    made, as_it_is = [], sampling.engine_of
    monkeypatch.setattr(sampling, "engine_of", lambda *x: made.append(as_it_is(*x)) or made[-1])
    longer = {**DRAWS, "cv": {**DRAWS["cv"], "draws": 120}}
    at_once = sampled(project, longer)
    compiled = len(made[-1].advance.known)
    shutil.rmtree("results/.checkpoints")
    shorter = sampled(project)
    assert sampled(project, longer).identical(at_once)
    assert len(made[-1].advance.known) == compiled
    assert shorter["log_joint_draws"].identical(at_once["log_joint_draws"][..., :60])
    assert sampled(project).identical(shorter)


def cut_short(file):
    file.write_bytes(file.read_bytes()[:-7])


def flipped(file):
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


@pytest.mark.parametrize(
    ("damage", "name", "left"),
    [
        (cut_short, "block-000004", 4),
        (flipped, "state-000004", 4),
        (lambda file: file.write_bytes(b""), "block-000002", 2),
    ],
    ids=["cut short", "flipped", "empty"],
)
def test_a_damaged_file_is_moved_aside(project, whole, damage, name, left):
    sampled(project)
    damage(folder_of(project) / name)
    assert sampled(project).identical(whole)
    assert any(f"{name}: damaged; renamed to damaged-{name}" in line for line in project.said)
    assert any(f"resuming from {left} saved blocks" in line for line in project.said)
    assert (folder_of(project) / f"damaged-{name}").exists()


@pytest.mark.parametrize("file", ["block", "state"])
def test_damage_deep_in_a_run_costs_few_blocks(tmp_path, file):
    made_of, said, number = {"folds": ["1"]}, [], 203
    with checkpoint.held(tmp_path, made_of, HERE, said.append) as saved:
        for i in range(number):
            saved.save(i, {"x": np.array([i])}, {"z": np.array([i + 1])})
        folder = saved.folder
    flipped(folder / ("block-000199" if file == "block" else "state-000202"))
    with checkpoint.held(tmp_path, made_of, HERE, said.append) as saved:
        assert saved.number == (192 if file == "block" else 202)
        assert saved.state()["z"] == saved.number
    assert len(said) == 1


def made_by(jobs, folds, number, say=print):
    """The folder of a job whose blocks and states say which folds they are of, and when made."""
    with checkpoint.held(jobs, {"folds": folds}, HERE, say) as saved:
        for i in range(number):
            x = np.array([int(fold) + i / 1000 for fold in folds])
            saved.save(i, {"x": x}, {"z": x})
    return saved.folder


def put_together(jobs, folds, made, say=print):
    """A job's checkpoint after it took what others have of its folds, and made the rest."""

    def make(rows, own, number):
        made.append(rows.tolist())
        for i in range(number):
            x = np.array([int(folds[row]) + i / 1000 for row in rows])
            own.save(i, {"x": x}, {"z": x})

    made_of = {"folds": folds}
    with checkpoint.held(jobs, made_of, HERE, say) as own:
        return merging.completed(own, made_of, HERE, make, say)


def test_what_is_put_together_has_states_as_well(tmp_path):
    for fold in ("1", "2"):
        made_by(tmp_path, [fold], 20)
    whole = put_together(tmp_path, ["2", "1", "3"], made := [])
    assert (whole.number, made) == (20, [[2]])
    np.testing.assert_array_equal(whole.block(16)["x"], [2.016, 1.016, 3.016])
    found = {int(file.name[-6:]) + 1 for file in whole.folder.glob("state-*")}
    assert found == {1, 2, 4, 8, 16, 19, 20}
    np.testing.assert_array_equal(whole.state()["z"], [2.019, 1.019, 3.019])


@pytest.mark.parametrize(
    ("module", "function"), [(checkpoint, "record"), (files, "is_sound"), (files, "read")]
)
def test_a_folder_that_goes_while_it_is_read(tmp_path, monkeypatch, module, function):
    """As another batch removes what it made apart, once it has all its folds in one folder."""
    gone, as_it_is = made_by(tmp_path, ["1", "3"], 3), getattr(module, function)
    made_by(tmp_path, ["2"], 3)

    def read(file, *args):
        if file.parent == gone:
            shutil.rmtree(gone, ignore_errors=True)
        return as_it_is(file, *args)

    monkeypatch.setattr(module, function, read)
    whole = put_together(tmp_path, ["1", "2"], made := [])
    assert (whole.number, made) == (3, [[0]])
    np.testing.assert_array_equal(whole.block(2)["x"], [1.002, 2.002])
    assert {folder.name for folder in tmp_path.iterdir()} == {
        store.fingerprint(folds) for folds in (["2"], ["1", "2"])
    }


TORN = [b"", b'{"folds": ["1"', b"\0" * 16, b"\xff\xfe"]
OTHER_TYPES = [
    *(b"[]", b"3", b"null", b'"made of"', b"{}", b'{"folds": 3}', b'{"folds": null}'),
    *(b'{"folds": ["1", "3"], "made on": []}', b'{"folds": ["1", "3"], "made on": {}}'),
]


@pytest.mark.parametrize("content", TORN + OTHER_TYPES)
def test_a_torn_record_of_another_job_is_skipped(tmp_path, content):
    torn, said = made_by(tmp_path, ["1", "3"], 3) / "made_of.json", []
    torn.write_bytes(content)
    made_by(tmp_path, ["2"], 2)
    whole = put_together(tmp_path, ["1", "2"], made := [], said.append)
    assert (whole.number, made) == (2, [[0]])
    assert said == [
        f"warning: {torn}: damaged; the draws beside it are not used",
        "1 of 2 folds have saved blocks; the others are made",
    ]
    assert checkpoint.count(tmp_path, {"folds": ["1", "3"]}) == 0


@pytest.mark.parametrize("content", [b"", *OTHER_TYPES])
def test_ones_own_torn_record_is_moved_aside(tmp_path, content):
    torn, said = made_by(tmp_path, ["1"], 3) / "made_of.json", []
    torn.write_bytes(content)
    with checkpoint.held(tmp_path, {"folds": ["1"]}, HERE, said.append) as saved:
        assert saved.number == 0
    assert said == [
        f"warning: {torn}: damaged; renamed to damaged-made_of.json, and its draws are made again"
    ]
    made_by(tmp_path, ["1"], 3, pytest.fail)


@pytest.mark.parametrize(
    "name", ["lock", ".block-000000.node.1.new", "block-000000", "state-000000"]
)
def test_a_folder_in_the_place_of_a_file(tmp_path, name):
    """It is moved aside, or told of in one line."""
    made_of = {"folds": ["1"], "seed": 1}
    folder = checkpoint.folder_of(tmp_path, made_of)
    (folder / name).mkdir(parents=True)
    assert not checkpoint.is_held(tmp_path, made_of)
    said = re.escape(f"{folder / name}: a folder stands where a file is needed; move it away")
    with (
        pytest.raises(PcvError, match=said),
        checkpoint.held(tmp_path, made_of, HERE, print),
    ):
        pass


def test_a_record_that_is_a_folder_is_moved_aside(tmp_path):
    made_of, said = {"folds": ["1"]}, []
    folder = checkpoint.folder_of(tmp_path, made_of)
    (folder / "made_of.json").mkdir(parents=True)
    with checkpoint.held(tmp_path, made_of, HERE, said.append) as saved:
        assert saved.number == 0
    assert said == [
        f"warning: {folder / 'made_of.json'}: damaged; renamed to damaged-made_of.json, and its "
        "draws are made again"
    ]


def test_a_file_that_is_called_like_a_state_is_none(tmp_path):
    (made_by(tmp_path, ["1"], 3) / "state-000002.bak").touch()
    assert checkpoint.count(tmp_path, {"folds": ["1"]}) == 3


def test_states_that_are_kept(project):
    sampled(project, {**DRAWS, "cv": {**DRAWS["cv"], "draws": 144}})
    found = {int(file.name[-6:]) + 1 for file in folder_of(project).glob("state-*")}
    assert found == {1, 2, 4, 8, 11, 12}


@pytest.mark.slow
def test_draws_remade_from_an_earlier_state(project):
    """Of 50 blocks one is damaged whose number is no power of two."""
    longer = {**DRAWS, "cv": {**DRAWS["cv"], "draws": 600}}
    before = sampled(project, longer)
    flipped(folder_of(project) / "block-000048")
    assert sampled(project, longer).identical(before)
    assert any("resuming from 48 saved blocks" in line for line in project.said)


def test_two_processes(tmp_path):
    with checkpoint.held(tmp_path, {"folds": ["1"]}, HERE, print):
        code = f"""
import sys
from pathlib import Path
from pcv.pipeline.storage.checkpoints import checkpoint
from pcv.base.errors import PcvError
try:
    with checkpoint.held(Path({str(tmp_path)!r}), {{"folds": ["1"]}}, {HERE!r}, print):
        pass
except PcvError as error:
    sys.exit(str(error))
"""
        other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "another process is making these draws; wait for it, or stop it" in other.stderr
    assert other.returncode == 1


def test_who_only_looks_keeps_no_job_from_starting(tmp_path, monkeypatch):
    """`pcv status` asks whether a folder is held in the very instant in which a job takes it."""
    made_of = {"folds": ["1"]}
    file = made_by(tmp_path, ["1"], 1) / "lock"
    assert not checkpoint.is_held(tmp_path, made_of)
    assert not checkpoint.is_held(tmp_path, {"folds": ["2"]})
    with file.open() as one, file.open() as other:
        assert all(locks.is_granted(lock, fcntl.LOCK_SH, print) for lock in (one, other))
        assert not checkpoint.is_held(tmp_path, made_of)
        monkeypatch.setattr(checkpoint, "PATIENCE", 30.0)
        Timer(0.2, lambda: [lock.close() for lock in (one, other)]).start()
        with checkpoint.held(tmp_path, made_of, HERE, print):
            assert checkpoint.is_held(tmp_path, made_of)
    assert not checkpoint.is_held(tmp_path, made_of)


@pytest.mark.parametrize("number", ["ENOSYS", "ENOLCK", "ENOTSUP", "EOPNOTSUPP"])
def test_a_file_system_without_locks(tmp_path, monkeypatch, number):
    def flock(*args):
        raise OSError(getattr(errno, number), "there are none")

    monkeypatch.setattr(fcntl, "flock", flock)
    said = []
    for fold in ("1", "2"):
        made_by(tmp_path, [fold], 2, said.append)
    assert said == [
        f"warning: {tmp_path}: this file system has no locks (there are none), so two "
        "processes making the same draws would not notice each other; start only one"
    ]
    assert not checkpoint.is_held(tmp_path, {"folds": ["1"]})
    with checkpoint.held(tmp_path, {"folds": ["1"]}, HERE, said.append) as saved:
        assert saved.number == 2
    assert checkpoint.remove(saved.folder)


def recorded(folder, **changes):
    """As if its draws had been made on something else."""
    file = folder / "made_of.json"
    record = json.loads(file.read_text())
    record["made on"] |= changes
    file.write_text(json.dumps(record))


def test_going_on_with_other_devices_is_said_once(project, whole):
    sampled(project)
    record = json.loads((folder_of(project) / "made_of.json").read_text())
    assert record["made on"] == HERE
    recorded(folder_of(project), platform="gpu", devices=3)
    project.said.clear()
    for _ in range(2):
        assert sampled(project).identical(whole)
    (said,) = [line for line in project.said if "made on" in line]
    assert said == (
        f"{folder_of(project)}: its draws were made on 3 x gpu, new ones are made on 2 x cpu; "
        "the two agree up to rounding, not bit by bit"
    )


def test_going_on_in_another_precision_is_refused(project, whole):
    sampled(project)
    recorded(folder_of(project), platform="gpu", devices=1, dtype="float32")
    before = sorted(folder_of(project).iterdir())
    with pytest.raises(PcvError) as caught:
        sampled(project)
    assert str(caught.value) == (
        f"{folder_of(project)}: its draws are in float32 (on 1 x gpu), and new ones would be in "
        "float64 (on 2 x cpu); resume on a machine like the first one, or remove the folder to "
        "start again"
    )
    assert sorted(folder_of(project).iterdir()) == before
    shutil.rmtree(folder_of(project))
    assert sampled(project).identical(whole)


def test_draws_of_others_in_another_precision_are_not_used(tmp_path):
    other = made_by(tmp_path, ["1", "2"], 3)
    recorded(other, dtype="float32")
    made_by(tmp_path, ["1"], 2)
    whole = put_together(tmp_path, ["1", "3"], made := [], (said := []).append)
    assert (whole.number, made) == (2, [[1]])
    assert said[0] == f"{other}: its draws are in float32, and are not used here"


def test_trees_and_back():
    tree = {"a": {"b": np.ones(2), "c": {"d": np.zeros(())}}, "e": np.arange(3)}
    again = files.nested(files.flat(tree))
    assert jax.tree.structure(again) == jax.tree.structure(tree)


def test_a_full_disk(project, whole, monkeypatch):
    with monkeypatch.context() as patch:
        as_it_is, count = Path.write_bytes, itertools.count()

        def full(path, content):
            if "block" in path.name and next(count) == 2:
                raise OSError(28, "No space left on device")
            return as_it_is(path, content)

        patch.setattr(Path, "write_bytes", full)
        with pytest.raises(PcvError, match="the disk is full; free some room and run again"):
            sampled(project)
    assert sampled(project).identical(whole)
    assert any("resuming from 2 saved blocks" in line for line in project.said)


JOB = {"stage": "sample", "experiment": "a", "model": "m", "round": 0, "seed": 1}
OTHERS = {"stage": "warmup", "experiment": "b", "model": "n", "round": 1, "seed": 2}
JOBS = [
    ({"job": JOB, "inputs": {"fit": "x"}, "folds": ["1", "2"]}, HERE),
    *(
        ({"job": {**JOB, name: x}, "inputs": {"fit": "x"}, "folds": ["1", "2"]}, HERE)
        for name, x in OTHERS.items()
    ),
    ({"job": JOB, "inputs": {"fit": "y"}, "folds": ["1", "2"]}, HERE),
    ({"job": JOB, "inputs": {"fit": "x"}, "folds": ["3", "4"]}, HERE),
    ({"job": JOB, "inputs": {"fit": "x"}, "folds": ["2", "1"]}, HERE),
    ({"job": JOB, "inputs": {"fit": "x"}, "folds": ["1", "2"]}, {**HERE, "dtype": "float32"}),
]
"""what blocks are made of, and on: each differs from the first in one thing"""


def test_no_file_of_a_job_is_taken_for_another(tmp_path):
    """Every block and state of every job copied over every other one."""
    number, contents, places = 2, {}, []
    for i, (made_of, made_on) in enumerate(JOBS):
        with checkpoint.held(tmp_path / str(i), made_of, made_on, print) as saved:
            for j in range(number):
                saved.save(j, {"x": np.array([i, j])}, {"x": np.array([i, j])})
        for name in ("block-000000", "state-000000", "block-000001", "state-000001"):
            contents[i, name] = (saved.folder / name).read_bytes()
            places.append((i, saved.folder / name))
    left = {"block-000000": 0, "block-000001": 1, "state-000000": 2, "state-000001": 1}
    for i, file in places:
        for source, foreign in contents.items():
            if source == (i, file.name):
                continue
            file.write_bytes(foreign)
            said = []
            with checkpoint.held(tmp_path / str(i), *JOBS[i], said.append) as saved:
                assert saved.number == left[file.name], source
                found = [saved.block(j)["x"].tolist() for j in range(saved.number)]
                assert found == [[i, j] for j in range(saved.number)]
            assert said == [
                f"warning: {file}: of another job, or of another place in this one; renamed to "
                f"misplaced-{file.name}, and its draws are made again"
            ]
            file.with_name(f"misplaced-{file.name}").unlink()
            file.write_bytes(contents[i, file.name])


def test_misplaced_blocks_of_others_are_not_used(tmp_path):
    """Folds are taken from other jobs' folders only where they are those jobs' own."""
    one, two = made_by(tmp_path, ["1", "3"], 3), made_by(tmp_path, ["2", "4"], 3)
    shutil.copy(two / "block-000001", one / "block-000001")
    whole = put_together(tmp_path, ["1", "2"], made := [])
    assert (whole.number, made) == (3, [[0]])
    np.testing.assert_array_equal(whole.block(1)["x"], [1.001, 2.001])


def test_a_recipe_names_its_job(project):
    job = project.job(DRAWS, "flat")
    known = {name: store.stamp("fit", {}) for name in ("data", "fit")}
    other = next(name for name in job.settings.models if name != "flat")
    seed = job._replace(config=job.config.model_copy(update={"seed": 77}))
    jobs = [job, job._replace(model=other), job._replace(round=1), seed]
    folds = Folds(np.array(["a"]), np.zeros((1, 1), int), np.ones((1, 1, 2), int))
    how = {"predictive": "plain", "integration": "none", "decoupled": 0}
    warm = xr.Dataset({"shift": ("fold", [-1.0])}, attrs=how)
    recipes = [sample_recipe(x, known, folds, warm, NONE)["job"] for x in jobs]
    recipes += [warmup_recipe(x, known, folds, list(how.values()))["job"] for x in jobs]
    assert len({json.dumps(x, sort_keys=True) for x in recipes}) == 2 * len(jobs)
    assert recipes[0] == {
        "stage": "sample",
        "experiment": job.experiment,
        "model": "flat",
        "round": 0,
        "seed": job.config.seed,
    }


def test_misplaced_blocks_are_made_again(project, whole):
    """A block twice, which is sound in itself."""
    sampled(project)
    folder = folder_of(project)
    shutil.copy(folder / "block-000001", folder / "block-000003")
    assert sampled(project).identical(whole)
    assert any("block-000003: of another job, or of another place" in x for x in project.said)
    assert any("resuming from 2 saved blocks" in line for line in project.said)


def test_checkpoints_that_name_no_job_begin_anew(tmp_path):
    """Those of before."""
    made_by(tmp_path, ["1"], 3)
    with checkpoint.held(tmp_path, {"job": JOB, "folds": ["1"]}, HERE, (said := []).append) as own:
        assert own.number == 0
    assert "draws from other inputs or settings are dropped and made again: job was" in said[0]
