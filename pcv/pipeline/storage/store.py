"""Artifacts: stamped Zarr stores, written whole or not at all.

A store is built beside its final path, synced to disk, and renamed. Its stamp (attribute ``pcv``)
records which stage made it, from what (recipe and inputs, which together give its fingerprint), and
where and when (provenance, not part of the fingerprint). A digest over all chunks reveals damage.
"""

import errno
import hashlib
import importlib.metadata
import json
import os
import platform
import shutil
import subprocess
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import xarray as xr

from pcv.base.errors import PcvError, is_python
from pcv.base.storable import storable, true_names
from pcv.pipeline.input_files import TIMESTAMP, folder_hash

IN_MEMORY = 2**26
"""size in bytes up to which a store is made in memory first: Zarr takes twice as long on disk"""
PACKAGES = (
    "pcv-bayes",
    "jax",
    "jaxlib",
    "blackjax",
    "numpyro",
    "arviz-stats",
    "numpy",
    "xarray",
    "zarr",
)


class Stamp(NamedTuple):
    """What an artifact is made of, and its provenance."""

    stage: str
    recipe: dict[str, Any]
    """the stage's version, its part of the config, hashes of the files it read"""
    inputs: dict[str, str]
    """fingerprints of the artifacts it was made from, by name"""
    fingerprint: str
    marks: list[str]
    """caveats that every later artifact and the report must repeat"""
    provenance: dict[str, Any]


def stamp(
    stage: str,
    recipe: Mapping[str, Any],
    inputs: Mapping[str, Stamp] | None = None,
    marks: list[str] | None = None,
    provenance: Mapping[str, Any] | None = None,
) -> Stamp:
    """The stamp of a new artifact; its inputs' marks are inherited."""
    inputs = inputs or {}
    made_of = {name: s.fingerprint for name, s in sorted(inputs.items())}
    plain = json.loads(json.dumps(recipe, sort_keys=True))
    inherited = [mark for s in inputs.values() for mark in s.marks]
    return Stamp(
        stage,
        plain,
        made_of,
        fingerprint(stage, plain, made_of),
        list(dict.fromkeys(inherited + (marks or []))),
        dict(provenance or {}),
    )


def fingerprint(*parts: Any) -> str:
    """A short hash of JSON-serialisable values."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def provenance(started: datetime, device: str = "") -> dict[str, Any]:
    """Start, duration, device, platform, versions and commit."""
    return {
        "started": started.isoformat(timespec="seconds"),
        "seconds": round((datetime.now(UTC) - started).total_seconds(), 2),
        "device": device,
        "platform": platform.platform(),
        "python": platform.python_version(),
        "versions": {name: importlib.metadata.version(name) for name in PACKAGES},
        "git_commit": _git_commit(),
    }


def _git_commit() -> str:
    try:
        described = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=12"],
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return ""
    return described.stdout.strip()


@contextmanager
def new(path: Path, stamp: Callable[[], Stamp]) -> Iterator[Path]:
    """A folder to build a store in; on success it is stamped and renamed to `path`.

    Raises:
        PcvError: the disk is full, or the folder not writable; nothing was changed.
    """
    aside, replaced = _beside(path, "new"), _beside(path, "old")
    try:
        with explained(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            _sweep(path)
            yield aside
            _seal(aside, stamp())
            for part in (*aside.rglob("*"), aside):
                _to_disk(part)
            if path.exists():
                path.rename(replaced)
            aside.rename(path)
            _to_disk(path.parent)
    finally:
        if replaced.exists() and not path.exists():
            replaced.rename(path)
        shutil.rmtree(replaced, ignore_errors=True)
        if aside.exists():
            _discard(aside)


def _beside(path: Path, what: str) -> Path:
    """A temporary path beside an artifact, unique to this process."""
    return path.with_name(f".{path.name}.{platform.node()}.{os.getpid()}.{what}")


def _sweep(path: Path) -> None:
    """Remove leftovers of this machine's killed writers of the artifact."""
    for left in path.parent.glob(f".{path.name}.{platform.node()}.*.*"):
        writer = left.suffixes[-2][1:]
        if writer.isdigit() and (int(writer) == os.getpid() or not _runs(int(writer))):
            shutil.rmtree(left, ignore_errors=True)


def _runs(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _discard(folder: Path) -> None:
    """Remove a half-written store; Zarr's threads may still be writing for a moment."""
    for _ in range(20):
        shutil.rmtree(folder, ignore_errors=True)
        time.sleep(0.1)
        if not folder.exists():
            return


def write_text(path: Path, text: str) -> None:
    """Write a text file whole or not at all."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file whole or not at all.

    Raises:
        PcvError: the disk is full, or the folder not writable; nothing was changed.
    """
    aside = _beside(path, "new")
    try:
        with explained(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            aside.write_bytes(content)
            _to_disk(aside)
            aside.replace(path)
            _to_disk(path.parent)
    finally:
        if aside.exists():
            aside.unlink()


def _to_disk(path: Path) -> None:
    """Sync a file's content, or a folder's entries, so that it survives a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if (
            error.errno != errno.EINVAL or not path.is_dir()
        ):  # some file systems cannot sync folders
            raise
    finally:
        os.close(descriptor)


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turns errors of the file system into one line that says what to do."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise PcvError(
                f"{path}: the disk is full; free some room and run again (nothing was changed)"
            ) from error
        if error.errno == errno.EFBIG:
            raise PcvError(
                f"{path}: a file larger than this process may write (ulimit -f): raise the limit "
                "and run again (nothing was changed)"
            ) from error
        if error.errno == errno.EISDIR:
            raise PcvError(
                f"{error.filename or path}: a folder stands where a file is needed; move it away"
            ) from error
        if error.errno in (errno.EEXIST, errno.ENOTDIR):
            raise PcvError(
                f"{path}: a file stands where a folder is needed; move it away, or choose another "
                f"folder{_with_results()}"
            ) from error
        if error.errno == errno.ENOENT:  # as in /proc
            raise PcvError(
                f"{path}: no folder can be made here; choose another{_with_results()}"
            ) from error
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise PcvError(
                f"{path}: no permission to write here; check the folder's owner, or choose "
                f"another{_with_results()}"
            ) from error
        raise


def _with_results() -> str:
    """How to choose another folder on the command line."""
    return "" if is_python() else " with --results"


def write(path: Path, data: xr.Dataset | xr.DataTree, stamp: Stamp) -> None:
    """Write a whole artifact at once."""
    with new(path, lambda: stamp) as folder:
        put(folder, data, mode="w")


def renew(path: Path, data: xr.Dataset, stamp: Stamp) -> None:
    """Write an artifact, unless a sound one with the same fingerprint is there, so that nothing
    after it is remade."""
    with suppress(PcvError):
        if read_stamp(path, stamp.stage).fingerprint == stamp.fingerprint:
            return
    write(path, data, stamp)


def exists(path: str | Path) -> bool:
    """Whether a path, or a URL that fsspec knows, exists.

    Raises:
        PcvError: the package for such URLs is not installed.
    """
    if "://" not in str(path):
        return Path(path).exists()
    try:
        import fsspec

        system, place = fsspec.url_to_fs(str(path))
    except (ImportError, ValueError) as error:
        raise PcvError(f"{path}: {error}; URLs need fsspec, and s3fs, gcsfs or the like") from None
    return bool(system.exists(place))


def put(folder: str | Path, data: xr.Dataset | xr.DataTree, **kwargs: Any) -> None:
    """xarray's `to_zarr` in format 3, consolidated so that `open_datatree` does not warn.

    Variables may have any name; `opened` restores it.
    """
    from zarr.storage import MemoryStore

    data = storable(data) if isinstance(data, xr.Dataset) else data.map_over_datasets(storable)
    small = "://" not in str(folder) and not Path(folder).exists() and data.nbytes <= IN_MEMORY
    files: dict[str, Any] = {}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Consolidated metadata is currently not part")
        place = MemoryStore(files) if small else folder
        data.to_zarr(place, zarr_format=3, consolidated=True, **kwargs)
    for name, content in sorted(files.items(), key=lambda item: item[0] == "zarr.json"):
        file = Path(folder, name)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content.to_bytes())


def opened(path: Path, group: str | None = None, cache: bool = True) -> xr.Dataset:
    """What `put` has written, or a group of it; lazily read."""
    return true_names(
        xr.open_dataset(path, group=group, engine="zarr", consolidated=True, cache=cache)
    )


def _seal(folder: Path, stamp: Stamp) -> None:
    root = folder / "zarr.json"
    meta = json.loads(root.read_text())
    meta["attributes"]["pcv"] = stamp._asdict()
    meta["attributes"]["pcv"]["digest"] = _digest(folder, meta)
    root.write_text(json.dumps(meta))


def _digest(folder: Path, meta: Mapping[str, Any]) -> str:
    """A hash of a store: of its files, and of its root's metadata before the digest is added."""
    return fingerprint(folder_hash(folder, TIMESTAMP, "zarr.json"), meta)


def read_stamp(path: Path, stage: str, command: str = "") -> Stamp:
    """The stamp of an artifact, after checking that the artifact is whole.

    Args:
        path: the store.
        stage: the stage that must have made it.
        command: the command that makes it, for messages; by default ``pcv <stage>``.

    Raises:
        PcvError: it is missing, not a pcv artifact, another stage's, or damaged.
    """
    command = command or f"pcv {stage}"
    again = f"run `{command}` again"
    if not path.exists():
        raise PcvError(f"{path}: not found; run `{command}` first")
    try:
        meta = json.loads((path / "zarr.json").read_text())
        fields = meta["attributes"].get("pcv")
        written = fields.pop("digest", "") if isinstance(fields, dict) else ""
        present = _digest(path, meta)
    except PermissionError as error:
        raise PcvError(f"{path}: no permission to read it; check the folder's owner") from error
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise PcvError(f"{path}: not a readable Zarr store; move it away and {again}") from error
    if not written:
        raise PcvError(f"{path}: a Zarr store, but not made by pcv; move it away and {again}")
    if written != present:
        raise PcvError(f"{path}: damaged (its content does not match its digest); {again}")
    found = Stamp(**fields)
    if found.stage != stage:
        raise PcvError(f"{path}: made by stage '{found.stage}', expected '{stage}'; {again}")
    return found


def difference(made: Mapping[str, Any], wanted: Mapping[str, Any], prefix: str = "") -> str:
    """The first entry in which two recipes differ, in words; empty if they agree.

    >>> difference({"fit": {"draws": 500}}, {"fit": {"draws": 1000}})
    'fit.draws was 500, is 1000'
    >>> difference({"files": {"my_models.py": "8a3f"}}, {"files": {"my_models.py": "02bc"}})
    'my_models.py has changed'
    """
    for name in [*made, *(k for k in wanted if k not in made)]:
        was, is_ = (
            json.dumps(recipe[name], sort_keys=True) if name in recipe else "not given"
            for recipe in (made, wanted)
        )
        if was == is_:
            continue
        if isinstance(made.get(name), Mapping) and isinstance(wanted.get(name), Mapping):
            return difference(made[name], wanted[name], f"{prefix}{name}.")
        if prefix.endswith("files."):
            return f"{name} has changed"
        if prefix.endswith("inputs."):
            return f"its input '{name}' has changed"
        return f"{prefix}{name} was {was}, is {is_}"
    return ""
