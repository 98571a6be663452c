"""One job's folder: its blocks, the states after them, and its recipe."""

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pcv.base.errors import PcvError
from pcv.pipeline.storage import store
from pcv.pipeline.storage.checkpoints import files
from pcv.pipeline.storage.checkpoints.locks import is_locked, locked

MADE_OF, MADE_ON = "made_of.json", "made on"
PATIENCE = 1.0
"""seconds that a job waits for its folder, as `pcv status` locks it for an instant"""
STATES = 2
"""latest states kept, besides those after 1, 2, 4 and 8 blocks and every 16th"""
EVERY = 16
"""so damage costs at most 15 sound blocks, and states, often larger than blocks, little space"""


class Checkpoint(NamedTuple):
    """A job's folder, held by this process."""

    folder: Path
    number: int
    """blocks found, up to the last with a state after it"""
    job: str
    """a hash of all that its blocks depend on, which is part of each file"""

    def block(self, index: int) -> dict[str, Any]:
        """One of the blocks found."""
        return files.nested(files.read(self.block_file(index), self.job))

    def state(self) -> dict[str, np.ndarray]:
        """The chains' state after the last block found."""
        return files.read(self.state_file(self.number - 1), self.job)

    def save(self, index: int, block: files.Tree, state: Mapping[str, np.ndarray]) -> None:
        """Save a new block and the state after it; drop some earlier states."""
        files.write(self.block_file(index), self.job, files.flat(block))
        files.write(self.state_file(index), self.job, state)
        number = index - STATES + 1
        if number > 0 and number % EVERY and number & (number - 1):
            self.state_file(number - 1).unlink(missing_ok=True)

    def block_file(self, index: int) -> Path:
        return self.folder / f"block-{index:06}"

    def state_file(self, index: int) -> Path:
        return self.folder / f"state-{index:06}"


NOWHERE = Checkpoint(Path(os.devnull), 0, "")
"""no folder: there are no blocks"""


@contextmanager
def held(
    jobs: Path,
    made_of: Mapping[str, Any],
    made_on: Mapping[str, Any],
    say: Callable[[str], None],
) -> Iterator[Checkpoint]:
    """A job's checkpoint, locked for this process.

    Args:
        jobs: parent of the folders of a model's jobs.
        made_of: all that its blocks depend on, including "folds"; blocks made of anything else are
            dropped.
        made_on: "platform" and number of "devices", which are recorded (blocks made on others agree
            up to rounding, and are used), and "dtype", which must not change.
        say: reports damaged or misplaced files, which are moved aside, and changed devices.

    Raises:
        PcvError: another process holds it, or its blocks are of another dtype.
    """
    folder = folder_of(jobs, made_of)
    with locked(folder, PATIENCE, say) as is_ours:
        if not is_ours:
            raise PcvError(
                f"{folder}: another process is making these draws; wait for it, or stop it"
            )
        with store.explained(folder):
            for file in folder.glob(".*.new"):  # left by killed writers
                file.unlink()
            before = _drop_others(folder, made_of, say)
        if before and any(folder.glob("state-*")):
            _compare(folder, before, made_on, say)
        saved = found(folder, made_of, made_on, say)
        if before != made_on:
            store.write_text(folder / MADE_OF, _in_words({**made_of, MADE_ON: made_on}))
        yield saved


def found(
    folder: Path,
    made_of: Mapping[str, Any],
    made_on: Mapping[str, Any],
    say: Callable[[str], None] | None = None,
) -> Checkpoint:
    """The sound blocks of a folder, up to the last with a state after it. Unsound files are moved
    aside if `say` is given; leave it out for another job's folder."""
    recipe = {name: x for name, x in made_of.items() if name != MADE_ON}
    saved = Checkpoint(folder, 0, store.fingerprint(recipe, made_on["dtype"]))
    number, with_state = 0, 0
    while files.is_sound(saved.block_file(number), saved.job, say):
        number += 1
        if files.is_sound(saved.state_file(number - 1), saved.job, say):
            with_state = number
    return saved._replace(number=with_state)


def folder_of(jobs: Path, made_of: Mapping[str, Any]) -> Path:
    """The folder of the job with these folds."""
    return jobs / store.fingerprint(made_of["folds"])


def is_held(jobs: Path, made_of: Mapping[str, Any]) -> bool:
    """Whether a process is making these draws."""
    return is_locked(folder_of(jobs, made_of))


def count(jobs: Path, made_of: Mapping[str, Any]) -> int:
    """The number of blocks that a job can resume from, without checking for damage."""
    folder = folder_of(jobs, made_of)
    known = record(folder / MADE_OF, lambda file: None)
    if known is None or not alike(known, made_of):
        return 0
    numbers = [file.name.removeprefix("state-") for file in folder.glob("state-*")]
    return max((int(number) + 1 for number in numbers if number.isdecimal()), default=0)


def saved(jobs: Path, made_of: Mapping[str, Any]) -> Checkpoint:
    """What a job can resume from, for one that only looks."""
    folder = folder_of(jobs, made_of)
    known = record(folder / MADE_OF, lambda file: None)
    if known is None or MADE_ON not in known or not alike(known, made_of):
        return NOWHERE
    return found(folder, made_of, known[MADE_ON])


def folders(model: Path) -> list[Path]:
    """The folders of all jobs of a model."""
    return [file.parent for file in sorted(model.rglob(MADE_OF))]


def remove(folder: Path, dry_run: bool = False) -> bool:
    """Remove a job's folder unless a process holds it; returns whether it is free."""
    with locked(folder) as is_free:
        if is_free and not dry_run:
            # Renamed first: a waiting process would create a new lock while the folder is emptied.
            aside = tempfile.mkdtemp(prefix=f"{folder.name}.", dir=folder.parent)
            shutil.rmtree(folder.rename(aside))
        return is_free


def record(file: Path, damaged: Callable[[Path], None]) -> dict[str, Any] | None:
    """The recipe of a job's blocks; None if it is missing or unreadable."""
    try:
        known = json.loads(file.read_text())
    except FileNotFoundError:
        return None
    except (ValueError, IsADirectoryError):
        known = None
    if not _is_record(known):
        damaged(file)
        return None
    return dict(known)


def _is_record(known: Any) -> bool:
    """Whether it has the entries of a record by `held` that are read here."""
    if not isinstance(known, dict) or not isinstance(known.get("folds"), list):
        return False
    made_on = known.get(MADE_ON, dict.fromkeys(("platform", "devices", "dtype")))
    return isinstance(made_on, dict) and {"platform", "devices", "dtype"} <= made_on.keys()


def alike(one: Mapping[str, Any], other: Mapping[str, Any], *but: str) -> bool:
    """Whether two recipes agree except for the entries `but`, on whatever devices."""
    nothing = dict.fromkeys((*but, MADE_ON))
    return _in_words({**one, **nothing}) == _in_words({**other, **nothing})


def _in_words(made_of: Mapping[str, Any]) -> str:
    return json.dumps(made_of, sort_keys=True, indent=1)


def _drop_others(
    folder: Path, made_of: Mapping[str, Any], say: Callable[[str], None]
) -> dict[str, Any] | None:
    """Drop blocks with another recipe; returns what the blocks kept were made on."""
    known = record(folder / MADE_OF, partial(files.move_aside, say=say))
    if known is not None and alike(known, made_of):
        return known.get(MADE_ON)
    blocks = list(folder.glob("block-*"))
    if known is not None and blocks:
        why = store.difference(known, {**made_of, MADE_ON: known.get(MADE_ON)})
        say(f"{folder}: draws from other inputs or settings are dropped and made again: {why}")
    for file in (*blocks, *folder.glob("state-*")):
        file.unlink()
    return None


def _compare(
    folder: Path, before: Mapping[str, Any], now: Mapping[str, Any], say: Callable[[str], None]
) -> None:
    """Compare what blocks were made on with what new ones would be: dtype, devices."""
    was, is_ = (f"{on['devices']} x {on['platform']}" for on in (before, now))
    if before["dtype"] != now["dtype"]:
        raise PcvError(
            f"{folder}: its draws are in {before['dtype']} (on {was}), and new ones would be in "
            f"{now['dtype']} (on {is_}); resume on a machine like the first one, or remove the "
            "folder to start again"
        )
    if was != is_:
        say(
            f"{folder}: its draws were made on {was}, new ones are made on {is_}; the two agree up "
            "to rounding, not bit by bit"
        )
