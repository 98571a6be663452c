"""Where compiled functions are kept: what lies there is run, so nobody else may write to it.

And what a stage at work takes of the machine.
"""

import os
import stat
import tempfile
import warnings
from pathlib import Path

import jax
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from pcv.api import calls
from pcv.base import devices
from pcv.compile import cache
from pcv.pipeline.cli import shared
from tests.lines import numpyro_line


@pytest.fixture
def kept(monkeypatch, tmp_path):
    """What JAX is told of the cache, with the user's own cache folder elsewhere."""
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    monkeypatch.setattr(devices, "setup", lambda cores: None)
    devices.warn_once.cache_clear()
    told = {}
    monkeypatch.setattr(jax.config, "update", told.__setitem__)
    return told


def ours(tmp_path):
    return tmp_path / "caches" / "pcv" / "jax"


def from_python():
    with calls.prepared(numpyro_line(), "loo", None, {}, 1, "float64", None, None, progress=False):
        pass


@pytest.mark.parametrize("prepare", [from_python, lambda: shared.prepare(1)])
def test_python_and_the_command_use_the_users_own_folder(kept, tmp_path, monkeypatch, prepare):
    planted = tmp_path / "shared"
    (planted / "pcv-jax-cache").mkdir(parents=True)
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(planted))
    before = os.umask(0)
    try:
        prepare()
    finally:
        os.umask(before)
    assert kept["jax_compilation_cache_dir"] == str(ours(tmp_path))
    for folder in (ours(tmp_path), ours(tmp_path).parent):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_a_folder_that_others_can_read_is_closed_to_them(kept, tmp_path):
    ours(tmp_path).mkdir(parents=True, mode=0o755)
    cache.keep_compiled()
    assert stat.S_IMODE(ours(tmp_path).stat().st_mode) == 0o700
    assert kept["jax_compilation_cache_dir"] == str(ours(tmp_path))


def test_the_oldest_functions_make_room(kept, tmp_path, monkeypatch):
    monkeypatch.setattr(cache, "CACHE_BYTES", 250)
    ours(tmp_path).mkdir(parents=True, mode=0o700)
    for age in range(5):
        (ours(tmp_path) / f"of-{age}-days-cache").write_bytes(bytes(100))
        os.utime(ours(tmp_path) / f"of-{age}-days-cache", (0, 1e9 - 86400 * age))
    cache.keep_compiled()
    assert {x.name for x in ours(tmp_path).iterdir()} == {"of-0-days-cache", "of-1-days-cache"}


def writable(folder: Path, monkeypatch):
    folder.mkdir(parents=True)
    folder.chmod(0o777)


def linked(folder: Path, monkeypatch):
    folder.parent.mkdir(parents=True, mode=0o700)
    (folder.parents[2] / "planted").mkdir()
    folder.symlink_to(folder.parents[2] / "planted")


def of_another(folder: Path, monkeypatch):
    monkeypatch.setattr(os, "getuid", lambda: folder.parents[2].stat().st_uid + 1)


def in_the_way(folder: Path, monkeypatch):
    folder.parents[1].write_text("a file")


@pytest.mark.parametrize("spoil", [writable, linked, of_another, in_the_way])
def test_a_folder_that_others_can_write_to_is_not_used(kept, tmp_path, monkeypatch, spoil):
    spoil(ours(tmp_path), monkeypatch)
    with pytest.warns(UserWarning, match=r"^compiled functions are not kept between processes: "):
        cache.keep_compiled()
    cache.keep_compiled()  # a second warning would be an error
    assert not kept


def test_the_environment_takes_precedence(kept, tmp_path, monkeypatch):
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path / "chosen"))
    cache.keep_compiled()
    assert not kept
    assert not ours(tmp_path).exists()


def test_a_call_lays_chains_over_as_many_cores_as_it_asks_for():
    """Where JAX runs on two host devices, as it does here."""
    devices.warn_once.cache_clear()

    def used(cores):
        with calls.prepared(numpyro_line(), "loo", None, {}, 1, "float64", None, cores, False):
            return len(devices.in_use())

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert used(1) == 1
        assert used(2) == len(devices.in_use()) == 2
    with pytest.warns(UserWarning, match=r"on 2 host device\(s\) instead of 3: "):
        assert used(3) == 2


def test_a_stage_takes_one_thread_for_linear_algebra():
    """Those of a BLAS and the chains would wait for each other."""

    def threads():
        return [pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"]

    if not threads():
        pytest.skip("threadpoolctl knows no BLAS here")
    with threadpool_limits(2, user_api="blas"):
        first, second = (devices.at_work("float64") for _ in range(2))
        first.__enter__()
        second.__enter__()
        first.__exit__(None, None, None)
        assert set(threads()) == {1}
        second.__exit__(None, None, None)
        assert set(threads()) == {2}
