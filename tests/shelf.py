"""What many tests look at, made once in a run of the suite, for all its workers."""

import functools
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from filelock import FileLock


@pytest.fixture(scope="session")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, Callable], Path]:
    """Return a folder by its name, filled by `make(folder)`; tests that change it take a copy."""
    base = tmp_path_factory.getbasetemp()
    root = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "shelf"
    root.mkdir(exist_ok=True)

    @functools.cache
    def folder_of(name: str, make: Callable[[Path], None]) -> Path:
        folder, done = root / name, root / f"{name}.done"
        with FileLock(root / f"{name}.lock"):
            if not done.exists():
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir()
                make(folder)
                done.touch()
        return folder

    return folder_of
