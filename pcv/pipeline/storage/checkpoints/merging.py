"""Reusing blocks of a job's folds from other jobs' folders, where folds were batched differently.

Arrays have the fold as their first axis, so that rows of single folds can be taken.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pcv.pipeline.storage.checkpoints import checkpoint, files
from pcv.pipeline.storage.checkpoints.checkpoint import MADE_OF, MADE_ON, Checkpoint


class Rows(NamedTuple):
    """Folds whose blocks are in another job's folder."""

    source: Checkpoint
    here: np.ndarray
    """their places among this job's folds"""
    there: np.ndarray
    """their places among the source's"""


Make = Callable[[np.ndarray, Checkpoint, int], None]


def completed(
    own: Checkpoint,
    made_of: Mapping[str, Any],
    made_on: Mapping[str, Any],
    make: Make,
    say: Callable[[str], None],
) -> Checkpoint:
    """A job's checkpoint, with blocks of its folds taken from other jobs that have more of them.

    Args:
        own: the job's checkpoint.
        made_of, made_on: as for `checkpoint.held`; folds of another dtype are not used.
        make: given places of folds, a checkpoint and a number of blocks, makes that many blocks of
            the folds that no other job has.
        say: reports what is found.
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
    say(f"{len(folds) - left.size} of {len(folds)} folds have saved blocks; the others are made")
    of_left = {**made_of, "folds": [folds[i] for i in left]}
    with checkpoint.held(own.folder.parent, of_left, made_on, say) as fresh:
        make(left, fresh, number)
        there = Rows(fresh._replace(number=number), left, np.arange(left.size))
        whole = _merged(own, [*known, there])
    if whole is None:
        return completed(own, made_of, made_on, make, say)
    checkpoint.remove(fresh.folder)
    return whole


def _known(
    folder: Path,
    made_of: Mapping[str, Any],
    made_on: Mapping[str, Any],
    say: Callable[[str], None],
) -> list[Rows]:
    """Other jobs' blocks of the folder's folds, with the same recipe: each fold once, from the jobs
    with the most blocks."""

    def skip(file: Path) -> None:
        say(f"warning: {file}: damaged; the draws beside it are not used")

    wanted = {fold: place for place, fold in enumerate(made_of["folds"])}
    found = []
    for file in sorted(folder.parent.glob(f"*/{MADE_OF}")):
        others = checkpoint.record(file, skip)
        if file.parent == folder or others is None:
            continue
        alike = checkpoint.alike(others, made_of, "folds")
        if alike and not wanted.keys().isdisjoint(others["folds"]):
            dtype = others.get(MADE_ON, made_on)["dtype"]
            if dtype != made_on["dtype"]:
                say(f"{file.parent}: its draws are in {dtype}, and are not used here")
                continue
            found.append((checkpoint.found(file.parent, others, made_on), others["folds"]))
    most = max((source.number for source, _ in found), default=0)
    rows = []
    for source, folds in found if most else ():
        if source.number == most:
            there = [place for place, fold in enumerate(folds) if fold in wanted]
            here = [wanted.pop(folds[place]) for place in there]
            rows.append(Rows(source, np.array(here, int), np.array(there, int)))
    return rows


def _merged(own: Checkpoint, rows: list[Rows]) -> Checkpoint | None:
    """The job's checkpoint with the blocks of others; None if a file has vanished meanwhile, as its
    job resumed or removed it."""
    number = rows[0].source.number
    for index in range(own.number, number):
        try:
            blocks = [files.read(x.block_file(index), x.job) for x, *_ in rows]
            ends = [
                files.read(x.state_file(index), x.job)
                for x, *_ in rows
                if index == number - 1 or files.is_sound(x.state_file(index), x.job, None)
            ]
        except FileNotFoundError:
            return None
        files.write(own.block_file(index), own.job, _by_fold(blocks, rows))
        if len(ends) == len(rows):
            files.write(own.state_file(index), own.job, _by_fold(ends, rows))
    return own._replace(number=number)


def _by_fold(parts: list[dict[str, np.ndarray]], rows: list[Rows]) -> dict[str, np.ndarray]:
    """Arrays of all folds, in the job's order; scalars are the same in all parts."""
    order = np.argsort(np.concatenate([part.here for part in rows]))

    def together(name: str) -> np.ndarray:
        if parts[0][name].ndim == 0:
            return parts[0][name]
        return np.concatenate([x[name][part.there] for x, part in zip(parts, rows)])[order]

    return {name: together(name) for name in parts[0]}
