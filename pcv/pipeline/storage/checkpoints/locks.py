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
"""what file systems without locks answer: Lustre, NFS"""


@contextmanager
def locked(
    folder: Path, patience: float = 0.0, say: Callable[[str], None] = lambda words: None
) -> Iterator[bool]:
    """Whether the folder is this process's, perhaps after some seconds; no other can have it
    meanwhile, where there are locks."""
    until = time.monotonic() + patience
    while True:
        with store.explained(folder):
            try:
                folder.mkdir(parents=True, exist_ok=True)
                file = (folder / "lock").open("a")
            except (FileExistsError, FileNotFoundError):
                if folder.is_file() or folder.is_symlink():
                    raise
                continue  # who held the folder has removed it since
        with file as lock:
            is_ours = is_granted(lock, fcntl.LOCK_EX, say)
            if is_ours and not _is_in_place(lock):  # who held it has removed the folder
                continue
            if is_ours or time.monotonic() >= until:
                yield is_ours
                return
        time.sleep(patience / 20)


def is_locked(folder: Path) -> bool:
    """Does a process hold the folder? One that begins to meanwhile waits for the answer."""
    try:
        with (folder / "lock").open() as lock:
            return not is_granted(lock, fcntl.LOCK_SH, lambda words: None)
    except (FileNotFoundError, IsADirectoryError):  # the latter is told of by who wants to hold it
        return False


def _is_in_place(lock: TextIO) -> bool:
    try:
        return os.path.samestat(os.fstat(lock.fileno()), os.stat(lock.name))
    except FileNotFoundError:
        return False


def is_granted(lock: TextIO, kind: int, say: Callable[[str], None]) -> bool:
    """Where the file system has no locks it is, and that is said once of a model."""
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
            f"({error.strerror}), so that two processes making the same draws are not kept apart: "
            "start only one",
        )
    return True


@cache
def _say_once(say: Callable[[str], None], words: str) -> None:
    say(words)
