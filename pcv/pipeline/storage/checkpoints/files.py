"""Files of arrays, written atomically, with two digests in front.

One digest reveals damage, such as truncation by a power cut; the other reveals a file that belongs
to another job, or to another place in this one.
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
"""arrays by name, perhaps nested"""
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
    """Whether the file exists and is sound; given `say`, an unsound one is moved aside."""
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
    """A digest of the job and the file's name, which tells block or state and its index."""
    return hashlib.sha256(f"{job} {file.name}".encode()).digest()


def move_aside(file: Path, say: Callable[[str], None], fault: str = "damaged") -> None:
    aside = file.with_name(f"{fault}-{file.name}")
    if aside.is_dir():  # from a folder that stood in a file's place before
        shutil.rmtree(aside)
    file.replace(aside)
    what = "of another job, or of another place in this one" if fault == MISPLACED else fault
    say(f"warning: {file}: {what}; renamed to {aside.name}, and its draws are made again")


def flat(tree: Tree, prefix: str = "") -> dict[str, Any]:
    """Nested names joined by slashes, without entries that are None.

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
