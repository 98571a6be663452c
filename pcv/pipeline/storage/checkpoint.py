"""Blocks of draws on disk while a job makes them, so that one that was killed goes on where it was.

The jobs of a model's batches have a folder each, named after their folds. It holds a file for each
block, the chains' state after the last two and every 16th, what they are made of, and a lock. Files
are written aside and renamed, with two digests in front: one that is cut short, by a power cut for
example, is told from a sound one, and so is one that belongs elsewhere: to another job, or to
another place in it. The folders lie outside the artifacts, whose half-made remains
Snakemake deletes, and stay when they are finished, so that draws and folds can be added: arrays
have the fold as their first axis, and where a fold is in other company than before its rows are
taken from there.
"""

import errno
import fcntl
import hashlib
import io
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import numpy as np

from pcv.base.errors import PcvError
from pcv.pipeline.storage import store

Tree = Mapping[str, Any]
"""arrays by name, or by names of names"""
MADE_OF, MADE_ON = "made_of.json", "made on"
DIGEST, MISPLACED = hashlib.sha256().digest_size, "misplaced"
PATIENCE = 1.0
"""seconds that a job waits for its folder: `pcv status` looks whether it is held in an instant"""
WITHOUT_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP)
"""what file systems without locks answer: Lustre, NFS"""
STATES = 2
"""latest states that are kept, beside those after 1, 2, 4 and 8 blocks and every 16th"""
EVERY = 16
"""damage costs at most one block fewer before it; states, often larger than a block, little room"""


class Checkpoint(NamedTuple):
    """A job's folder, held by this process."""

    folder: Path
    number: int
    """blocks that were found, after which a state was found"""
    job: str
    """a hash of all that its blocks depend on, to which its files are bound"""

    def block(self, index: int) -> dict[str, Any]:
        """One of the blocks that were found."""
        return nested(_read(self._block(index), self.job))

    def state(self) -> dict[str, np.ndarray]:
        """The chains after the last block that was found."""
        return _read(self._state(self.number - 1), self.job)

    def save(self, index: int, block: Tree, state: Mapping[str, np.ndarray]) -> None:
        """A new block and the state after it; some earlier states are dropped."""
        if self is NOWHERE:
            return
        _write(self._block(index), self.job, flat(block))
        _write(self._state(index), self.job, state)
        number = index - STATES + 1
        if number > 0 and number % EVERY and number & (number - 1):
            self._state(number - 1).unlink(missing_ok=True)

    def _block(self, index: int) -> Path:
        return self.folder / f"block-{index:06}"

    def _state(self, index: int) -> Path:
        return self.folder / f"state-{index:06}"


NOWHERE = Checkpoint(Path(os.devnull), 0, "")
"""where blocks stay in memory"""


@contextmanager
def held(
    jobs: Path,
    made_of: Mapping[str, Any],
    made_on: Mapping[str, Any],
    say: Callable[[str], None],
) -> Iterator[Checkpoint]:
    """A job's checkpoint, for this process alone.

    Args:
        jobs: where folders of a model's jobs lie.
        made_of: all that its blocks depend on, its "folds" among them; blocks made of anything else
            are dropped.
        made_on: "platform" and number of "devices", recorded; blocks that were made on others agree
            up to rounding, and are gone on from. "dtype", which must stay what it was.
        say: tells of files that are cut short, damaged or of another job or place, which are moved
            aside, and of other devices.

    Raises:
        PcvError: another process holds it; its blocks are of another dtype.
    """
    folder = folder_of(jobs, made_of)
    with _locked(folder, PATIENCE, say) as is_ours:
        if not is_ours:
            raise PcvError(
                f"{folder}: another process is making these draws; wait for it, or stop it"
            )
        with store.explained(folder):
            for file in folder.glob(".*.new"):  # of writers that were killed
                file.unlink()
            before = _drop_others(folder, made_of, say)
        if before and any(folder.glob("state-*")):
            _compare(folder, before, made_on, say)
        saved = Checkpoint(folder, 0, _job(made_of, made_on))
        saved = saved._replace(number=_sound(saved, say))
        if before != made_on:
            store.write_text(folder / MADE_OF, _in_words({**made_of, MADE_ON: made_on}))
        yield saved


@contextmanager
def _locked(
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
            is_ours = _is_granted(lock, fcntl.LOCK_EX, say)
            if is_ours and not _is_in_place(lock):  # who held it has removed the folder
                continue
            if is_ours or time.monotonic() >= until:
                yield is_ours
                return
        time.sleep(patience / 20)


def _is_in_place(lock: TextIO) -> bool:
    try:
        return os.path.samestat(os.fstat(lock.fileno()), os.stat(lock.name))
    except FileNotFoundError:
        return False


def _is_granted(lock: TextIO, kind: int, say: Callable[[str], None]) -> bool:
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


def folder_of(jobs: Path, made_of: Mapping[str, Any]) -> Path:
    """The folder of the job with these folds."""
    return jobs / store.fingerprint(made_of["folds"])


def is_held(jobs: Path, made_of: Mapping[str, Any]) -> bool:
    """Is a process making these draws? One that begins to meanwhile waits for the answer."""
    try:
        with (folder_of(jobs, made_of) / "lock").open() as lock:
            return not _is_granted(lock, fcntl.LOCK_SH, lambda words: None)
    except (FileNotFoundError, IsADirectoryError):  # the latter is told of by who wants to hold it
        return False


def count(jobs: Path, made_of: Mapping[str, Any]) -> int:
    """How many blocks there are to go on from, damage not looked for."""
    folder = folder_of(jobs, made_of)
    known = _made_of(folder / MADE_OF, lambda file: None)
    if known is None or not _alike(known, made_of):
        return 0
    numbers = [file.name.removeprefix("state-") for file in folder.glob("state-*")]
    return max((int(number) + 1 for number in numbers if number.isdecimal()), default=0)


class Rows(NamedTuple):
    """Folds that another job's folder has blocks of."""

    source: Checkpoint
    here: np.ndarray
    """their places among the folds that are asked for"""
    there: np.ndarray
    """among those of the source"""


Make = Callable[[np.ndarray, Checkpoint, int], None]


def completed(
    own: Checkpoint,
    made_of: Mapping[str, Any],
    made_on: Mapping[str, Any],
    make: Make,
    say: Callable[[str], None],
) -> Checkpoint:
    """A job's checkpoint with the blocks that others have of its folds, where they have more.

    Args:
        own: the job's.
        made_of, made_on: the same as in `held`; folds of another dtype are not there.
        make: given places of folds, a checkpoint and a number of blocks, makes these: of the folds
            that no other has.
        say: tells what is there.
    """
    known = _known(own.folder, made_of, made_on, say)
    number = known[0].source.number if known else 0
    if number <= own.number:
        return own
    folds = made_of["folds"]
    left = np.setdiff1d(np.arange(len(folds)), np.concatenate([rows.here for rows in known]))
    if not left.size:
        whole = _merged(own, known)
        return completed(own, made_of, made_on, make, say) if whole is None else whole
    say(f"{len(folds) - left.size} of {len(folds)} folds are there; the others are made")
    of_left = {**made_of, "folds": [folds[i] for i in left]}
    with held(own.folder.parent, of_left, made_on, say) as fresh:
        make(left, fresh, number)
        there = Rows(fresh._replace(number=number), left, np.arange(left.size))
        whole = _merged(own, [*known, there])
    if whole is None:
        return completed(own, made_of, made_on, make, say)
    remove(fresh.folder)
    return whole


def _known(
    folder: Path,
    made_of: Mapping[str, Any],
    made_on: Mapping[str, Any],
    say: Callable[[str], None],
) -> list[Rows]:
    """Where blocks of the folder's folds are, made of the same in other company: as many blocks
    of all as of any, each fold once."""

    def skip(file: Path) -> None:
        say(f"warning: {file}: damaged; draws that are kept beside it are not used")

    wanted = {fold: place for place, fold in enumerate(made_of["folds"])}
    found = []
    for file in sorted(folder.parent.glob(f"*/{MADE_OF}")):
        others = _made_of(file, skip)
        if file.parent == folder or others is None:
            continue
        alike = _alike(others, made_of, "folds")
        if alike and not wanted.keys().isdisjoint(others["folds"]):
            dtype = others.get(MADE_ON, made_on)["dtype"]
            if dtype != made_on["dtype"]:
                say(f"{file.parent}: its draws are in {dtype}, and are not used for those here")
                continue
            source = Checkpoint(file.parent, 0, _job(others, made_on))
            found.append((source._replace(number=_sound(source)), others["folds"]))
    most = max((source.number for source, _ in found), default=0)
    rows = []
    for source, folds in found if most else ():
        if source.number == most:
            there = [place for place, fold in enumerate(folds) if fold in wanted]
            here = [wanted.pop(folds[place]) for place in there]
            rows.append(Rows(source, np.array(here, int), np.array(there, int)))
    return rows


def _merged(own: Checkpoint, rows: list[Rows]) -> Checkpoint | None:
    """The job's checkpoint with the blocks of others; None where one has gone meanwhile: its job
    went on, or removed it."""
    number = rows[0].source.number
    for index in range(own.number, number):
        try:
            blocks = [_read(x._block(index), x.job) for x, *_ in rows]
            ends = [
                _read(x._state(index), x.job)
                for x, *_ in rows
                if index == number - 1 or _is_sound(x._state(index), x.job, None)
            ]
        except FileNotFoundError:
            return None
        _write(own._block(index), own.job, _by_fold(blocks, rows))
        if len(ends) == len(rows):
            _write(own._state(index), own.job, _by_fold(ends, rows))
    return own._replace(number=number)


def _by_fold(parts: list[dict[str, np.ndarray]], rows: list[Rows]) -> dict[str, np.ndarray]:
    """Arrays of all folds, in their order; numbers are the same in all parts."""
    order = np.argsort(np.concatenate([part.here for part in rows]))

    def together(name: str) -> np.ndarray:
        if parts[0][name].ndim == 0:
            return parts[0][name]
        return np.concatenate([x[name][part.there] for x, part in zip(parts, rows)])[order]

    return {name: together(name) for name in parts[0]}


def folders(model: Path) -> list[Path]:
    """The folders of all jobs of a model."""
    return [file.parent for file in sorted(model.rglob(MADE_OF))]


def remove(folder: Path, dry_run: bool = False) -> bool:
    """Remove a job's folder, unless a process holds it; or, in a dry run, see whether one does."""
    with _locked(folder) as is_free:
        if is_free and not dry_run:
            # At once with its lock, for who waits would open a new one while the folder is emptied.
            aside = tempfile.mkdtemp(prefix=f"{folder.name}.", dir=folder.parent)
            shutil.rmtree(folder.rename(aside))
        return is_free


def _drop_others(
    folder: Path, made_of: Mapping[str, Any], say: Callable[[str], None]
) -> dict[str, Any] | None:
    """Keep what is made of the same, and drop all else; what those that are kept were made on."""
    known = _made_of(folder / MADE_OF, partial(_moved_aside, say=say))
    if known is not None and _alike(known, made_of):
        return known.get(MADE_ON)
    blocks = list(folder.glob("block-*"))
    if known is not None and blocks:
        why = store.difference(known, {**made_of, MADE_ON: known.get(MADE_ON)})
        say(f"{folder}: draws of other inputs or settings are dropped: {why}")
    for file in (*blocks, *folder.glob("state-*")):
        file.unlink()
    return None


def _compare(
    folder: Path, before: Mapping[str, Any], now: Mapping[str, Any], say: Callable[[str], None]
) -> None:
    """What blocks were made on, and what the next ones are."""
    was, is_ = (f"{on['devices']} x {on['platform']}" for on in (before, now))
    if before["dtype"] != now["dtype"]:
        raise PcvError(
            f"{folder}: its draws are in {before['dtype']} (on {was}), and those to come would be "
            f"in {now['dtype']} (on {is_}); go on on a machine like the first one, or remove the "
            "folder to begin anew"
        )
    if was != is_:
        say(
            f"{folder}: draws made on {was} are there, any more are made on {is_}: the same as on "
            "either up to rounding, not bit by bit"
        )


def _made_of(file: Path, damaged: Callable[[Path], None]) -> dict[str, Any] | None:
    """What a job's blocks are made of; None where there are none, or it cannot be read."""
    try:
        found = json.loads(file.read_text())
    except FileNotFoundError:
        return None
    except (ValueError, IsADirectoryError):
        found = None
    if not _is_record(found):
        damaged(file)
        return None
    return dict(found)


def _is_record(found: Any) -> bool:
    """Is it what `held` writes, as far as it is read here?"""
    if not isinstance(found, dict) or not isinstance(found.get("folds"), list):
        return False
    made_on = found.get(MADE_ON, dict.fromkeys(("platform", "devices", "dtype")))
    return isinstance(made_on, dict) and {"platform", "devices", "dtype"} <= made_on.keys()


def _alike(one: Mapping[str, Any], other: Mapping[str, Any], *but: str) -> bool:
    """Are two jobs' blocks made of the same, but for some entries, wherever they were made?"""
    nothing = dict.fromkeys((*but, MADE_ON))
    return _in_words({**one, **nothing}) == _in_words({**other, **nothing})


def _in_words(made_of: Mapping[str, Any]) -> str:
    return json.dumps(made_of, sort_keys=True, indent=1)


def _job(made_of: Mapping[str, Any], made_on: Mapping[str, Any]) -> str:
    """What files are bound to: all that their content depends on."""
    recipe = {name: x for name, x in made_of.items() if name != MADE_ON}
    return store.fingerprint(recipe, made_on["dtype"])


def _moved_aside(file: Path, say: Callable[[str], None], fault: str = "damaged") -> None:
    aside = file.with_name(f"{fault}-{file.name}")
    if aside.is_dir():  # as where a folder stood in the place of a file before
        shutil.rmtree(aside)
    file.replace(aside)
    what = "of another job, or of another place in this one" if fault == MISPLACED else fault
    say(f"warning: {file}: {what}; it is now {aside.name}, and its draws are made again")


def _sound(checkpoint: Checkpoint, say: Callable[[str], None] | None = None) -> int:
    """How many blocks there are with a state after them; files that are damaged or misplaced are
    moved aside, but for those of another job, of which nothing is said."""
    number, with_state = 0, 0
    while _is_sound(checkpoint._block(number), checkpoint.job, say):
        number += 1
        if _is_sound(checkpoint._state(number - 1), checkpoint.job, say):
            with_state = number
    return with_state


def _is_sound(file: Path, job: str, say: Callable[[str], None] | None) -> bool:
    try:
        _content(file, job)
    except FileNotFoundError:
        return False
    except (Unsound, OSError) as error:
        if say is not None:
            _moved_aside(file, say, str(error) if isinstance(error, Unsound) else "damaged")
        return False
    return True


class Unsound(ValueError):
    """A file that is damaged, or misplaced."""


def _write(file: Path, job: str, arrays: Mapping[str, np.ndarray]) -> None:
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **{name: np.asarray(x) for name, x in arrays.items()})
    content = _place(file, job) + buffer.getvalue()
    store.write_bytes(file, hashlib.sha256(content).digest() + content)


def _place(file: Path, job: str) -> bytes:
    """A digest of the job and, by the name, of whether it is a block or a state, and which."""
    return hashlib.sha256(f"{job} {file.name}".encode()).digest()


def _content(file: Path, job: str) -> bytes:
    packed = file.read_bytes()
    if hashlib.sha256(packed[DIGEST:]).digest() != packed[:DIGEST]:
        raise Unsound("damaged")
    if packed[DIGEST : 2 * DIGEST] != _place(file, job):
        raise Unsound(MISPLACED)
    return packed[2 * DIGEST :]


def _read(file: Path, job: str) -> dict[str, np.ndarray]:
    with np.load(io.BytesIO(_content(file, job))) as arrays:
        return dict(arrays)


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
    """The way back.

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
