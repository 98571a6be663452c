"""Folders that one process holds at a time."""

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from errno import ENOLCK, ENOSYS, ENOTSUP, EOPNOTSUPP
from functools import cache
from pathlib import Path
from typing import TextIO

from pcv.pipeline.storage import store

WITHOUT_LOCKS = (ENOSYS, ENOLCK, ENOTSUP, EOPNOTSUPP)
"""errors of file systems without locks, such as Lustre and NFS"""


@contextmanager
def locked(
    folder: Path, patience: float = 0.0, say: Callable[[str], None] = lambda words: None
) -> Iterator[bool]:
    """Lock a folder for this process, waiting up to `patience` seconds; gives whether it succeeded
    (always, on file systems without locks)."""
    until = time.monotonic() + patience
    while True:
        with store.explained(folder):
            try:
                folder.mkdir(parents=True, exist_ok=True)
                file = (folder / "lock").open("a")
            except (FileExistsError, FileNotFoundError):
                if folder.is_file() or folder.is_symlink():
                    raise
                continue  # its former holder has just removed it
        with file as lock:
            is_ours = is_granted(lock, fcntl.LOCK_EX, say)
            if is_ours and not _is_in_place(lock):  # its former holder has removed the folder
                continue
            if is_ours or time.monotonic() >= until:
                yield is_ours
                return
        time.sleep(patience / 20)


def is_locked(folder: Path) -> bool:
    """Whether a process holds the folder; one that tries to meanwhile waits briefly."""
    try:
        with (folder / "lock").open() as lock:
            return not is_granted(lock, fcntl.LOCK_SH, lambda words: None)
    except (FileNotFoundError, IsADirectoryError):  # `locked` reports the latter
        return False


def _is_in_place(lock: TextIO) -> bool:
    try:
        return os.path.samestat(os.fstat(lock.fileno()), os.stat(lock.name))
    except FileNotFoundError:
        return False


def is_granted(lock: TextIO, kind: int, say: Callable[[str], None]) -> bool:
    """Whether a lock is granted; without locks it always is, with one warning per model."""
    try:
        fcntl.flock(lock, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in WITHOUT_LOCKS:
            raise
        _say_once(
            say,
            f"warning: {Path(lock.name).parents[1]}: this file system has no locks "
            f"({error.strerror}), so two processes making the same draws would not notice each "
            "other; start only one",
        )
    return True


@cache
def _say_once(say: Callable[[str], None], words: str) -> None:
    say(words)
