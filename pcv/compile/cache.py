"""What JAX has compiled, kept between processes in the user's own cache folder."""

import os
import stat
from contextlib import suppress
from functools import cache
from pathlib import Path

import jax
import platformdirs

from pcv.base import devices

CACHE_BYTES = 2**28
"""bytes of compiled functions cached between processes"""


def keep_compiled() -> None:
    """Cache compiled functions between processes, in the user's own cache folder.

    Its contents are executed, so a folder that others can write to is refused. The environment
    variable JAX_COMPILATION_CACHE_DIR takes precedence.
    """
    if "JAX_COMPILATION_CACHE_DIR" in os.environ:
        return
    folder = cache_folder()
    try:
        for part in (folder.parent, folder):
            _make_own(part)
        _prune(folder)
    except OSError as error:
        devices.warn_once(f"compiled functions are not kept between processes: {error}")
        return
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)


def cache_folder() -> Path:
    """The folder of compiled functions, unless JAX_COMPILATION_CACHE_DIR names another."""
    return platformdirs.user_cache_path("pcv", appauthor=False) / "jax"


def _make_own(folder: Path) -> None:
    """Make a private folder; OSError if it is a link or writable by others."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode):
        raise OSError(f"{folder} is not a folder; remove it")
    if hasattr(os, "getuid") and (status.st_uid != os.getuid() or status.st_mode & 0o022):
        raise OSError(f"{folder} is writable by others; remove it, or set XDG_CACHE_HOME")
    folder.chmod(0o700)


@cache
def _prune(folder: Path) -> None:
    """Keep only the newest `CACHE_BYTES`; once per process.

    JAX (0.12) with a size limit lists the whole folder for each function that it caches, blocking
    other processes: 1.2 s with 20,000 entries.
    """
    files = []
    for entry in filter(os.DirEntry.is_file, os.scandir(folder)):  # XLA may keep a folder here
        with suppress(FileNotFoundError):  # other processes prune and write too
            files.append((entry.stat().st_mtime, entry.stat().st_size, entry.path))
    total = 0
    for _, size, path in sorted(files, reverse=True):
        total += size
        if total > CACHE_BYTES:
            Path(path).unlink(missing_ok=True)
