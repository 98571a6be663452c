"""Files of arrays, written aside and renamed, with two digests in front.

One digest tells a file that is cut short, by a power cut for example, from a sound one; the other
tells one that belongs elsewhere: to another job, or to another place in it.
"""

import hashlib
import io
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from pcv.pipeline.storage import store

Tree = Mapping[str, Any]
"""arrays by name, or by names of names"""
DIGEST, MISPLACED = hashlib.sha256().digest_size, "misplaced"


class Unsound(ValueError):
    """A file that is damaged, or misplaced."""


def write(file: Path, job: str, arrays: Mapping[str, np.ndarray]) -> None:
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **{name: np.asarray(x) for name, x in arrays.items()})
    content = _place(file, job) + buffer.getvalue()
    store.write_bytes(file, hashlib.sha256(content).digest() + content)


def read(file: Path, job: str) -> dict[str, np.ndarray]:
    with np.load(io.BytesIO(_content(file, job))) as arrays:
        return dict(arrays)


def is_sound(file: Path, job: str, say: Callable[[str], None] | None) -> bool:
    """Is the file there and sound? One that is not is moved aside where it can be told of."""
    try:
        _content(file, job)
    except FileNotFoundError:
        return False
    except (Unsound, OSError) as error:
        if say is not None:
            move_aside(file, say, str(error) if isinstance(error, Unsound) else "damaged")
        return False
    return True


def _content(file: Path, job: str) -> bytes:
    packed = file.read_bytes()
    if hashlib.sha256(packed[DIGEST:]).digest() != packed[:DIGEST]:
        raise Unsound("damaged")
    if packed[DIGEST : 2 * DIGEST] != _place(file, job):
        raise Unsound(MISPLACED)
    return packed[2 * DIGEST :]


def _place(file: Path, job: str) -> bytes:
    """A digest of the job and, by the name, of whether it is a block or a state, and which."""
    return hashlib.sha256(f"{job} {file.name}".encode()).digest()


def move_aside(file: Path, say: Callable[[str], None], fault: str = "damaged") -> None:
    aside = file.with_name(f"{fault}-{file.name}")
    if aside.is_dir():  # as where a folder stood in the place of a file before
        shutil.rmtree(aside)
    file.replace(aside)
    what = "of another job, or of another place in this one" if fault == MISPLACED else fault
    say(f"warning: {file}: {what}; it is now {aside.name}, and its draws are made again")


def flat(tree: Tree, prefix: str = "") -> dict[str, Any]:
    """Names of names as one name each; entries that are None are left out.

    >>> flat({"a": {"b": 1, "c": None}, "d": 2})
    {'a/b': 1, 'd': 2}
    """
    found: dict[str, Any] = {}
    for name, x in tree.items():
        if isinstance(x, Mapping):
            found |= flat(x, f"{prefix}{name}/")
        elif x is not None:
            found[f"{prefix}{name}"] = x
    return found


def nested(arrays: Mapping[str, Any]) -> dict[str, Any]:
    """The inverse of `flat`.

    >>> nested({"a/b": 1, "d": 2})
    {'a': {'b': 1}, 'd': 2}
    """
    tree: dict[str, Any] = {}
    for path, x in arrays.items():
        *names, last = path.split("/")
        inner = tree
        for name in names:
            inner = inner.setdefault(name, {})
        inner[last] = x
    return tree
