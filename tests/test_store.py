"""Artifacts are whole or not there, say what they are made of, and open in plain xarray and ArviZ.

Warnings are errors in every test (pyproject.toml), so a store that opens here opens silently.
"""

import errno
import json
import os
import platform
import shutil
import stat
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import arviz as az
import numpy as np
import pytest
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st

from pcv.base.errors import PcvError
from pcv.pipeline.input_files import file_hash
from pcv.pipeline.storage import store


def table(seed=0, size=6):
    rng = np.random.default_rng(seed)
    return xr.Dataset(
        {"x": ("unit", rng.normal(size=size)), "n": ("unit", np.arange(size))},
        {"unit": [f"rat {i + 1}, day 8" for i in range(size)]},
        {"outcome": "x", "order": ["rat", "day"], "none": []},
    )


def posterior(seed=0):
    rng = np.random.default_rng(seed)
    draws = {
        "mu": (("chain", "draw"), rng.normal(size=(4, 50))),
        "theta": (("chain", "draw", "school"), rng.normal(size=(4, 50, 3))),
    }
    stats = {"diverging": (("chain", "draw"), rng.random((4, 50)) < 0.1)}
    index = {"chain": np.arange(4), "draw": np.arange(50)}
    return xr.DataTree.from_dict(
        {
            "posterior": xr.Dataset(draws, {**index, "school": ["Ay", "Bee", "See"]}),
            "sample_stats": xr.Dataset(stats, index),
        }
    )


@pytest.fixture
def path(tmp_path):
    return tmp_path / "results" / "data.zarr"


@pytest.fixture
def stored(path):
    """An artifact that is there already."""
    store.write(path, table(), stamp())
    return path


def stamp(stage="data", recipe=None, **kwargs):
    return store.stamp(stage, recipe or {"config": {"seed": 1}}, **kwargs)


def leftovers(path):
    """What a failed write left behind, besides the artifact."""
    return [p.name for p in path.parent.iterdir() if p.name != path.name]


def message(path, stage="data"):
    with pytest.raises(PcvError) as caught:
        store.read_stamp(path, stage)
    return str(caught.value)


class TestRoundTrip:
    def test_dataset(self, stored):
        for opened in (xr.open_dataset(stored), xr.open_zarr(stored)):
            assert opened.attrs.pop("pcv")["stage"] == "data"
            xr.testing.assert_identical(opened.load(), table())
            assert {name: x.dtype for name, x in opened.variables.items()} == {
                name: x.dtype for name, x in table().variables.items()
            }

    def test_tree(self, tmp_path):
        path = tmp_path / "fit.zarr"
        store.write(path, posterior(), stamp("fit"))
        for opened in (xr.open_datatree(path), az.from_zarr(path)):
            assert opened.attrs["pcv"]["stage"] == "fit"
            for name in ("posterior", "sample_stats"):
                xr.testing.assert_identical(
                    opened[name].to_dataset().load(), posterior()[name].to_dataset()
                )
        assert az.summary(xr.open_datatree(path), var_names=["mu"]).shape[0] == 1

    def test_snakemakes_timestamp_is_not_content(self, stored):
        before = store.read_stamp(stored, "data")
        (stored / ".snakemake_timestamp").touch()
        assert store.read_stamp(stored, "data") == before
        xr.testing.assert_equal(xr.open_dataset(stored).load(), table())
        xr.open_datatree(stored).load()
        az.from_zarr(stored).load()

    def test_store_that_is_written_in_parts(self, path):
        with store.new(path, stamp) as folder:
            store.put(folder, table()[["x"]], mode="w")
            assert not path.exists()
            store.put(folder, table()[["n"]], mode="a")
        xr.testing.assert_equal(xr.open_dataset(path).load(), table())
        assert leftovers(path) == []

    def test_stamp(self, path):
        made = stamp(recipe={"config": {"k": [1, None, 0.5], "name": "ä"}}, marks=["bad"])
        store.write(path, table(), made)
        assert store.read_stamp(path, "data") == made
        assert xr.open_dataset(path).attrs["pcv"]["recipe"] == made.recipe


RECIPE = {"stage version": 1, "config": {"fit": {"draws": 100}, "seed": 1}, "files": {"a": "f"}}
INPUT = stamp("data")


class TestFingerprint:
    def print_of(self, stage="fit", recipe=RECIPE, inputs=None, **kwargs):
        inputs = {"data": INPUT} if inputs is None else inputs
        return store.stamp(stage, recipe, inputs, **kwargs).fingerprint

    def test_equal_for_equal_parts(self):
        reordered = {name: RECIPE[name] for name in reversed(RECIPE)}
        assert self.print_of() == self.print_of(recipe=reordered)
        assert self.print_of() == self.print_of(recipe=json.loads(json.dumps(RECIPE)))

    def test_provenance_and_marks_are_no_part_of_it(self):
        here = store.provenance(datetime.now(UTC), "2 x cpu")
        there = here | {"seconds": 99.0, "git_commit": "0", "versions": {"jax": "0.1"}}
        made = {self.print_of(provenance=p) for p in (None, here, there)}
        assert made | {self.print_of(marks=["bad fit"])} == {self.print_of()}

    @pytest.mark.parametrize(
        "change",
        [
            {"stage": "warmup"},
            {"recipe": RECIPE | {"stage version": 2}},
            {"recipe": RECIPE | {"config": {"fit": {"draws": 101}, "seed": 1}}},
            {"recipe": RECIPE | {"config": {"fit": {"draws": 100}, "seed": 2}}},
            {"recipe": RECIPE | {"files": {"a": "g"}}},
            {"recipe": RECIPE | {"files": {"b": "f"}}},
            {"recipe": RECIPE | {"batch": "1-of-2"}},
            {"inputs": {}},
            {"inputs": {"folds": INPUT}},
            {"inputs": {"data": stamp("data", {"config": {"seed": 2}})}},
        ],
        ids=str,
    )
    def test_differs_when_any_part_differs(self, change):
        assert self.print_of(**change) != self.print_of()

    VALUES = st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
        max_leaves=8,
    )
    RECIPES = st.dictionaries(st.text(), VALUES, max_size=4)

    @given(RECIPES, RECIPES)
    def test_differs_exactly_where_difference_finds_words(self, one, other):
        differ = store.stamp("fit", one).fingerprint != store.stamp("fit", other).fingerprint
        assert bool(store.difference(one, other)) == differ
        assert store.difference(one, json.loads(json.dumps(one))) == ""

    def test_marks_are_inherited_once(self):
        a, b = stamp(marks=["fit of 'a' is bad"]), stamp(marks=["fit of 'b' is bad"])
        both = store.stamp("diagnose", {}, {"a": a, "b": b, "a again": a}, ["few draws"])
        assert both.marks == ["fit of 'a' is bad", "fit of 'b' is bad", "few draws"]
        assert store.stamp("compare", {}, {"diagnose": both}).marks == both.marks

    def test_provenance(self):
        made = store.provenance(datetime.now(UTC), "2 x cpu")
        assert {"jax", "blackjax", "numpyro", "xarray", "zarr", "pcv-bayes"} <= made[
            "versions"
        ].keys()
        assert made["device"] == "2 x cpu"
        assert 0 <= made["seconds"] < 60
        assert json.loads(json.dumps(made)) == made


class TestFileHash:
    def test_file(self, tmp_path):
        one, other = tmp_path / "one.csv", tmp_path / "other.csv"
        one.write_text("a,b\n")
        other.write_text("a,b\n")
        assert file_hash(one) == file_hash(other)
        other.write_text("a,c\n")
        assert file_hash(one) != file_hash(other)

    def test_folder(self, tmp_path):
        folder = tmp_path / "mine.zarr"
        (folder / "x").mkdir(parents=True)
        (folder / "zarr.json").write_text("{}")
        (folder / "x" / "0").write_bytes(b"\x00")
        first = file_hash(folder)
        (folder / ".snakemake_timestamp").touch()
        assert file_hash(folder) == first
        (folder / "zarr.json").write_text('{"attributes": {"scale": 2}}')
        second = file_hash(folder)
        (folder / "x" / "0").rename(folder / "x" / "1")
        assert len({first, second, file_hash(folder)}) == 3


FILL_THE_DISK = """
import sys
from pathlib import Path
import numpy as np, xarray as xr
from pcv.pipeline.storage import store

folder, stamp = Path(sys.argv[1]), store.stamp("data", {})
path, page = folder / "data.zarr", folder / "report.html"
store.write(path, xr.Dataset({"x": ("unit", np.zeros(3))}), stamp)
store.write_text(page, "old")
try:
    large = np.random.default_rng(0).normal(size=100_000)
    store.write(path, xr.Dataset({"x": ("unit", large)}), stamp)
except store.PcvError as error:
    print(error)
try:
    store.write_text(page, "new" * 200_000)
except store.PcvError as error:
    print(error)
print(xr.open_dataset(path)["x"].values, page.read_text())
print(*sorted(p.name for p in folder.iterdir()))
"""


class TestAtomicity:
    """A failed write leaves what was there, and nothing else."""

    @pytest.fixture(params=["first write", "old artifact"])
    def before(self, request, path):
        path.parent.mkdir()
        if request.param == "old artifact":
            store.write(path, table(), stamp())
        return request.param

    def check_seen(self, before, path):
        if before == "first write":
            assert not path.exists()
        else:
            xr.testing.assert_equal(xr.open_dataset(path).load(), table())

    def check_untouched(self, before, path):
        self.check_seen(before, path)
        assert leftovers(path) == []

    def test_failure_in_the_middle(self, before, path):
        def write():
            with store.new(path, stamp) as folder:
                store.put(folder, table(1), mode="w")
                self.check_seen(before, path)
                raise ValueError("the model blew up")

        with pytest.raises(ValueError, match="the model blew up"):
            write()
        self.check_untouched(before, path)

    def test_failure_of_the_stamp(self, before, path):
        def no_stamp():
            raise PcvError("no stamp")

        with pytest.raises(PcvError, match="no stamp"), store.new(path, no_stamp) as folder:
            store.put(folder, table(1), mode="w")
        self.check_untouched(before, path)

    def test_interruption(self, before, path):
        def write():
            with store.new(path, stamp) as folder:
                store.put(folder, table(1), mode="w")
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            write()
        self.check_untouched(before, path)

    def test_threads_that_write_on(self, before, path, monkeypatch):
        """Zarr writes chunks in threads; those of a failed write go on for a moment."""
        late = []

        def sleep(_):
            if late:
                chunk = late.pop() / "late"
                chunk.mkdir(parents=True)
                (chunk / "c").write_bytes(b"0" * 1000)

        monkeypatch.setattr(store, "time", SimpleNamespace(sleep=sleep))

        def write():
            with store.new(path, stamp) as folder:
                store.put(folder, table(1), mode="w")
                late.append(folder)
                raise ValueError("the model blew up")

        with pytest.raises(ValueError, match="the model blew up"):
            write()
        assert not late
        self.check_untouched(before, path)

    def test_leftovers_of_killed_writers_are_swept(self, before, path):
        gone = subprocess.Popen(["true"])
        gone.wait()
        for kind in ("new", "old"):
            (path.parent / f".{path.name}.{platform.node()}.{gone.pid}.{kind}").mkdir()
        at_work = f".{path.name}.{platform.node()}.{os.getppid()}.new"
        elsewhere = f".{path.name}.another-node.{gone.pid}.new"
        for name in (at_work, elsewhere):
            (path.parent / name).mkdir()
        store.write(path, table(1), stamp())
        assert sorted(leftovers(path)) == sorted([at_work, elsewhere])

    def test_failure_of_the_last_rename(self, before, path, monkeypatch):
        rename = Path.rename

        def failing(self, target):
            if self.name.endswith(".new"):
                raise OSError(errno.EIO, "Input/output error")
            return rename(self, target)

        monkeypatch.setattr(Path, "rename", failing)
        with pytest.raises(OSError, match="Input/output"):
            store.write(path, table(1), stamp())
        monkeypatch.undo()
        self.check_untouched(before, path)

    def test_full_disk_between_two_files(self, before, path, monkeypatch):
        """The root's metadata, without which there is no store, comes last."""
        write_bytes, written = Path.write_bytes, []

        def some(self, content):
            if len(written) == 3:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            written.append(self)
            return write_bytes(self, content)

        monkeypatch.setattr(Path, "write_bytes", some)
        with pytest.raises(PcvError, match="the disk is full"):
            store.write(path, table(1), stamp())
        monkeypatch.undo()
        assert len(written) == 3
        assert all(
            file.parent.name != f".{path.name}" and file.parent.parent != path.parent
            for file in written
        )
        self.check_untouched(before, path)

    @pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
    def test_full_disk(self, before, path, monkeypatch, number):
        to_zarr = xr.Dataset.to_zarr

        def partly(self, *args, **kwargs):
            to_zarr(self[["x"]], *args, **kwargs)
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(xr.Dataset, "to_zarr", partly)
        with pytest.raises(PcvError) as caught:
            store.write(path, table(1), stamp())
        monkeypatch.undo()
        assert str(caught.value) == (
            f"{path}: the disk is full; free some room and run again (nothing was changed)"
        )
        self.check_untouched(before, path)

    @pytest.mark.parametrize("number", [errno.EACCES, errno.EPERM, errno.EROFS])
    def test_no_permission(self, before, path, monkeypatch, number):
        def refuse(self, *args, **kwargs):
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(xr.Dataset, "to_zarr", refuse)
        with pytest.raises(PcvError) as caught:
            store.write(path, table(1), stamp())
        monkeypatch.undo()
        assert str(caught.value) == (
            f"{path}: no permission to write here; check the folder's owner, or choose another "
            "with --results"
        )
        self.check_untouched(before, path)

    def test_really_full_disk(self, tmp_path):
        """On a file system of 300 kB, which the kernel takes away with the process."""
        mount = [
            "unshare",
            "--mount",
            "sh",
            "-c",
            'mount -t tmpfs -o size=300k t "$0" && exec "$@"',
        ]
        if not shutil.which("unshare") or subprocess.run([*mount, tmp_path, "true"]).returncode:
            pytest.skip("no permission to mount a small file system")
        script = [sys.executable, "-c", FILL_THE_DISK, str(tmp_path)]
        filled = subprocess.run([*mount, tmp_path, *script], capture_output=True, text=True)
        assert filled.stdout.splitlines() == [
            f"{tmp_path}/data.zarr: the disk is full; free some room and run again "
            "(nothing was changed)",
            f"{tmp_path}/report.html: the disk is full; free some room and run again "
            "(nothing was changed)",
            "[0. 0. 0.] old",
            "data.zarr report.html",
        ], filled.stderr

    @pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
    def test_really_no_permission(self, tmp_path):
        tmp_path.chmod(0o500)
        try:
            with pytest.raises(PcvError, match="no permission to write here"):
                store.write(tmp_path / "results" / "data.zarr", table(), stamp())
            with pytest.raises(PcvError, match="no permission to write here"):
                store.write_text(tmp_path / "report.html", "new")
        finally:
            tmp_path.chmod(0o700)

    @pytest.mark.parametrize("inside", ["data.zarr", "rats/data.zarr"])
    def test_file_where_a_folder_is_needed(self, tmp_path, inside):
        (tmp_path / "results").write_text("mine")
        path = tmp_path / "results" / inside
        with pytest.raises(PcvError) as caught:
            store.write(path, table(), stamp())
        assert str(caught.value) == (
            f"{path}: a file stands where a folder is needed; move it away, or choose another "
            "folder with --results"
        )
        assert (tmp_path / "results").read_text() == "mine"

    def test_text(self, tmp_path, monkeypatch):
        page = tmp_path / "new" / "report.html"
        store.write_text(page, "old")

        def partly(self, content):
            with self.open("wb") as file:
                file.write(content[:2])
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(Path, "write_bytes", partly)
        with pytest.raises(PcvError, match=r"report\.html: the disk is full; free some room"):
            store.write_text(page, "new")
        assert page.read_text() == "old"
        assert leftovers(page) == []


def chunk(path, variable="x"):
    return next(p for p in (path / variable / "c").rglob("*") if p.is_file())


def flip_byte(path):
    content = bytearray(chunk(path).read_bytes())
    content[len(content) // 2] ^= 1
    chunk(path).write_bytes(content)


def remove_chunk(path):
    chunk(path).unlink()  # plain xarray would read missing values


def link_chunks(path):
    """To a copy elsewhere, which may change later."""
    chunks = next(x for x in sorted(path.rglob("c")) if x.is_dir())
    elsewhere = path.with_name("elsewhere")
    shutil.copytree(chunks, elsewhere)
    shutil.rmtree(chunks)
    chunks.symlink_to(elsewhere)


def remove_variable(path):
    shutil.rmtree(path / "n")


def add_file(path):
    (path / "x" / "c" / "99").write_bytes(b"more")


def rename_chunk(path):
    chunk(path).rename(path / "x" / "c" / "1")


def change_root(path, change):
    meta = json.loads((path / "zarr.json").read_text())
    change(meta["attributes"])
    (path / "zarr.json").write_text(json.dumps(meta))


def change_attribute(path):
    change_root(path, lambda attributes: attributes.update(outcome="y"))


def remove_mark(path):
    change_root(path, lambda attributes: attributes["pcv"].update(marks=[]))


def change_recipe(path):
    change_root(path, lambda attributes: attributes["pcv"].update(recipe={}))


class TestPowerCut:
    @pytest.fixture
    def events(self, monkeypatch):
        """What is brought to the disk and what is renamed, in their order, by inodes."""
        found, fsync, rename = [], os.fsync, os.rename

        def synced(descriptor):
            found.append(("synced", os.fstat(descriptor).st_ino))
            fsync(descriptor)

        def renamed(source, to):
            parts = (Path(source), *Path(source).rglob("*"))
            found.append(("renamed", {part.stat().st_ino for part in parts}))
            rename(source, to)

        monkeypatch.setattr(os, "fsync", synced)
        monkeypatch.setattr(os, "rename", renamed)
        monkeypatch.setattr(os, "replace", renamed)
        return found

    @pytest.mark.parametrize("what", ["store", "file"])
    def test_all_is_on_the_disk_before_it_has_its_name_and_so_is_the_name(self, path, events, what):
        if what == "store":
            store.write(path, table(), stamp())
        else:
            store.write_bytes(path, b"content")
        here = [i for i, (event, of) in enumerate(events) if event == "renamed"]
        last, parts = here[-1], events[here[-1]][1]
        assert path.stat().st_ino in parts
        assert parts <= {of for event, of in events[:last] if event == "synced"}
        assert ("synced", path.parent.stat().st_ino) in events[last:]

    def test_file_systems_that_sync_no_folders(self, path, monkeypatch):
        fsync = os.fsync

        def of_files(descriptor):
            if stat.S_ISDIR(os.fstat(descriptor).st_mode):
                raise OSError(errno.EINVAL, "Invalid argument")
            fsync(descriptor)

        monkeypatch.setattr(os, "fsync", of_files)
        store.write(path, table(), stamp())
        assert store.read_stamp(path, "data") == stamp()


class TestDamage:
    @pytest.mark.parametrize(
        "damage",
        [
            flip_byte,
            remove_chunk,
            link_chunks,
            remove_variable,
            add_file,
            rename_chunk,
            change_attribute,
            remove_mark,
            change_recipe,
        ],
    )
    def test_is_seen(self, path, damage):
        store.write(path, table(), stamp(marks=["bad fit"]))
        damage(path)
        assert message(path) == (
            f"{path}: damaged (its content does not match its digest); run `pcv data` again"
        )

    def test_it_is_the_digest_that_sees_it(self, path, monkeypatch):
        monkeypatch.setattr(store, "folder_hash", lambda folder, *skipped: "blind")
        store.write(path, table(), stamp())
        flip_byte(path)
        store.read_stamp(path, "data")

    @pytest.mark.parametrize("end", [0, 20, -1])
    def test_truncated_root(self, stored, end):
        root = stored / "zarr.json"
        root.write_text(root.read_text()[:end])
        assert message(stored) == (
            f"{stored}: not a readable Zarr store; move it away and run `pcv data` again"
        )

    def test_unreadable(self, stored, monkeypatch):
        def refuse(self, *args, **kwargs):
            raise PermissionError(errno.EACCES, "Permission denied")

        monkeypatch.setattr(Path, "open", refuse)
        assert message(stored) == f"{stored}: no permission to read it; check the folder's owner"


def make_file(path):
    path.write_text("not a folder")


def make_empty_folder(path):
    path.mkdir()


def make_zarr_2(path):
    path.mkdir()
    (path / ".zgroup").write_text('{"zarr_format": 2}')


def make_list(path):
    path.mkdir()
    (path / "zarr.json").write_text("[]")


class TestForeign:
    def test_missing(self, path):
        assert message(path, "fit") == f"{path}: not found; run `pcv fit` first"

    def test_wrong_stage(self, stored):
        assert message(stored, "fit") == (
            f"{stored}: made by stage 'data', expected 'fit'; run `pcv fit` again"
        )

    @pytest.mark.parametrize("attributes", [{}, {"pcv": "mine"}, {"pcv": {"by": "me"}}], ids=str)
    def test_zarr_of_others(self, path, attributes):
        store.put(path, table().assign_attrs(attributes), mode="w")
        assert message(path) == (
            f"{path}: a Zarr store, but not made by pcv; move it away and run `pcv data` again"
        )

    @pytest.mark.parametrize("make", [make_file, make_empty_folder, make_zarr_2, make_list])
    def test_no_store_at_all(self, tmp_path, make):
        path = tmp_path / "data.zarr"
        make(path)
        assert message(path) == (
            f"{path}: not a readable Zarr store; move it away and run `pcv data` again"
        )


FIT = {"config": {"fit": {"draws": 100, "chains": 4}}, "stage version": 1}


class TestDifference:
    @pytest.mark.parametrize(
        ("made", "wanted", "words"),
        [
            (FIT, FIT, ""),
            (
                FIT,
                FIT | {"config": {"fit": {"draws": 200, "chains": 4}}},
                "config.fit.draws was 100, is 200",
            ),
            (FIT, FIT | {"stage version": 2}, "stage version was 1, is 2"),
            ({"priors": "paper"}, {"priors": "authors"}, 'priors was "paper", is "authors"'),
            ({"order": ["rat"]}, {"order": []}, 'order was ["rat"], is []'),
            ({}, {"slope": False}, "slope was not given, is false"),
            ({"slope": None}, {}, "slope was null, is not given"),
            ({"k": 1}, {"k": True}, "k was 1, is true"),
            ({"k": 1}, {"k": 1.0}, "k was 1, is 1.0"),
            ({"args": {}}, {"args": 3}, "args was {}, is 3"),
            ({"files": {"a.py": "1"}}, {"files": {"a.py": "2"}}, "a.py has changed"),
            ({"inputs": {"data": "1"}}, {"inputs": {"data": "2"}}, "its input 'data' has changed"),
            ({"b": 1, "a": 1}, {"a": 2, "b": 2}, "b was 1, is 2"),
        ],
    )
    def test_in_words(self, made, wanted, words):
        assert store.difference(made, wanted) == words
