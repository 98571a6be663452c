"""The type that every scheme returns."""

import html
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import xarray as xr
from jaxtyping import Bool, Int, Shaped

from pcv.base.errors import PcvError

MAX_ROWS = 60
"""rows shown of a table in a notebook"""


class Folds(NamedTuple):
    """Which units each fold tests, and which it keeps from training.

    A fold trains on every unit outside its ``held_out`` ranges. Ranges take O(n) memory for
    leave-future-out, and at most twice that of indices where test sets are scattered.

    Three units; the first fold leaves one out as a gap:

    >>> Folds(np.array(["a", "b"]), np.array([[0], [2]]), np.array([[[0, 2]], [[2, 3]]]), 3)
    2 folds of 3 units: test 1, training 1 to 2, neither tested nor trained on 0 to 1
    """

    id: Shaped[np.ndarray, " fold"]
    """readable names"""
    test: Int[np.ndarray, "fold slot"]
    """indices of the tested units in ascending order, padded with -1"""
    held_out: Int[np.ndarray, "fold run 2"]
    """ranges [start, stop) of the units not trained on (test and gap): sorted, disjoint, maximal,
    padded with empty ranges (0, 0)"""
    num_units: int | None = None
    """number of units, if known; may exceed the largest index left out"""

    def some(self, which: Any) -> "Folds":
        """A subset, by indices or a mask."""
        return Folds(self.id[which], self.test[which], self.held_out[which], self.num_units)

    def __repr__(self) -> str:
        words = describe(self, self.num_units or 0, "neither tested nor trained on")
        folds, test, training, gap = words.split(", ")
        if self.num_units is None:
            return f"{folds}: {test}, training all other units, {gap}"
        return f"{folds} of {self.num_units} units: {test}, {training}, {gap}"

    def _repr_html_(self) -> str:
        test, gap = _sizes(self)
        sizes = {"test": test, "neither tested nor trained on": gap}
        if self.num_units is not None:
            sizes["training"] = self.num_units - test - gap
        table = pd.DataFrame(sizes, pd.Index(self.id, name="fold"))
        return foldable(repr(self), "units of each fold", table)


def stored(dataset: xr.Dataset) -> Folds:
    """Folds from a dataset like folds.zarr: `fold`, `test` and `held_out`."""
    number = dataset.attrs.get("num_units")
    return Folds(
        dataset["fold"].values,
        dataset["test"].values,
        dataset["held_out"].values,
        None if number is None else int(number),
    )


def is_exchangeable(folds: Folds) -> bool:
    """Whether the order of units plays no part: each is tested once, by a fold that trains on all
    units that it does not test, and folds are not blocks named after their first and last units.

    >>> halves = np.array([0, 0, 1, 1])
    >>> [is_exchangeable(from_labels(halves, x)) for x in (["a", "b"], ["0 to 1", "2 to 3"])]
    [True, False]
    """
    size, tested = (folds.test >= 0).sum(axis=1), folds.test[folds.test >= 0]
    once = tested.size == np.unique(tested).size == (folds.num_units or tested.size)
    with_gap = (np.diff(folds.held_out, axis=-1).sum(axis=(1, 2)) > size).any()
    first = np.where(folds.test < 0, folds.test.max(), folds.test).min(axis=1)
    runs = size.max() > 1 and (folds.test.max(axis=1) - first + 1 == size).all()
    blocks = runs and all(" to " in name for name in folds.id[size > 1])
    return bool(once and not with_gap and not blocks)


def as_dataset(folds: Folds) -> xr.Dataset:
    """Folds as ``folds.zarr`` holds them; `stored` reads them back."""
    return xr.Dataset(
        {
            "test": (("fold", "slot"), folds.test),
            "held_out": (("fold", "run", "bound"), folds.held_out),
        },
        coords={"fold": folds.id.astype(str)},
        attrs={} if folds.num_units is None else {"num_units": folds.num_units},
    )


def from_file(path: Path) -> Folds:
    """Saved folds: `fold`, `test` and `held_out` of a store like folds.zarr.

    Args:
        path: of the store.

    Raises:
        PcvError: the store is missing, or holds something else.
    """
    if not path.exists():
        raise PcvError(f"{path}: no such file; folds.file is relative to the working directory")
    try:
        with xr.open_dataset(path) as file:
            return stored(file)
    except (OSError, ValueError, KeyError) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise PcvError(
            f"{path}: not a store of folds like folds.zarr, with fold, test, held_out: {reason}"
        ) from error


def from_sets(
    ids: Sequence[str],
    test: Sequence[Int[np.ndarray, " _"]],
    gap: Sequence[Int[np.ndarray, " _"]] | None,
    num_units: int,
) -> Folds:
    """Folds from each one's test set and gap.

    Args:
        ids: names of the folds.
        test: for each fold, indices of the units it tests, in any order.
        gap: for each fold, indices of units it neither tests nor trains on; None: no gaps.
        num_units: number of units, n.

    Raises:
        PcvError: a fold names a unit outside 0 to n - 1, or tests a unit twice.

    >>> folds = from_sets(["a", "b"], [np.array([0, 1]), np.array([3])], None, 4)
    >>> folds.test.tolist(), folds.held_out.tolist()
    ([[0, 1], [3, -1]], [[[0, 2]], [[3, 4]]])
    """
    gaps = gap if gap is not None else [np.empty(0, np.int64)] * len(test)
    tests, runs = [], []
    for name, tested, left_out in zip(ids, test, gaps, strict=True):
        unique = np.unique(np.asarray(tested, np.int64))
        if unique.size < len(tested):
            raise PcvError(f"fold {name!r} tests a unit twice")
        out = np.union1d(unique, np.asarray(left_out, np.int64))
        if out.size and not 0 <= out[0] <= out[-1] < num_units:
            wrong = out[0] if out[0] < 0 else out[-1]
            raise PcvError(
                f"fold {name!r}: index {wrong} of a unit; indices of the {num_units} units are 0 "
                f"to {num_units - 1}"
            )
        tests.append(unique)
        runs.append(_runs(out))
    return Folds(np.array(ids, str), _padded(tests, (), -1), _padded(runs, (2,), 0), num_units)


def from_labels(fold_of_unit: Int[np.ndarray, " unit"], ids: Sequence[str]) -> Folds:
    """Folds without gaps that test every unit once: unit i in fold ``fold_of_unit[i]``.

    Args:
        fold_of_unit: the fold of each unit, from 0.
        ids: names of the folds.

    >>> from_labels(np.array([1, 0, 1]), ["a", "b"]).test.tolist()
    [[1, -1], [0, 2]]
    """
    sizes = np.bincount(fold_of_unit, minlength=len(ids))
    test = np.split(np.argsort(fold_of_unit, kind="stable"), np.cumsum(sizes)[:-1])
    return from_sets(ids, test, None, fold_of_unit.size)


def of_present(folds: Folds, times: Int[np.ndarray, " unit"]) -> Folds:
    """Folds of the units that are present, some repeatedly, without folds that test none of them.

    Args:
        folds: of all units.
        times: how often each unit is present.

    >>> folds = from_labels(np.array([0, 1, 1, 2]), ["a", "b", "c"])
    >>> of_present(folds, np.array([1, 0, 2, 0])).test.tolist()
    [[0, -1], [1, 2]]
    """
    unit = np.repeat(np.arange(times.size), times)
    tests = [np.flatnonzero(np.isin(unit, test[test >= 0])) for test in folds.test]
    left_out = ~train_mask(folds, times.size)[:, unit]
    kept = [i for i, test in enumerate(tests) if test.size]
    gaps = [np.flatnonzero(left_out[i]) for i in kept]
    return from_sets(folds.id[kept].tolist(), [tests[i] for i in kept], gaps, unit.size)


def evenly(num_folds: int, most: int) -> Int[np.ndarray, " some"]:
    """Indices of at most `most` folds, evenly spaced from the first to the last.

    >>> evenly(100, 3).tolist(), evenly(2, 3).tolist()
    ([0, 49, 99], [0, 1])
    """
    return np.unique(np.linspace(0, num_folds - 1, most).astype(int))


def train_mask(
    folds: Folds, num_units: int, which: slice = slice(None)
) -> Bool[np.ndarray, "fold unit"]:
    """Which units the folds ``which`` train on.

    Args:
        folds: the folds.
        num_units: number of units, n.
        which: of the folds; all by default.

    >>> folds = from_sets(["a"], [np.array([1])], [np.array([2])], 4)
    >>> train_mask(folds, 4).tolist()
    [[True, False, False, True]]
    """
    ranges = folds.held_out[which]
    fold = np.arange(len(ranges))[:, None]
    steps = np.zeros((len(ranges), num_units + 1), np.int8)
    np.add.at(steps, (fold, ranges[..., 0]), 1)
    np.add.at(steps, (fold, ranges[..., 1]), -1)
    return steps.cumsum(axis=1, dtype=np.int8)[:, :-1] == 0


def describe(folds: Folds, num_units: int, left_out: str = "gap") -> str:
    """The folds in one line: their number, and how many units they test, train on and leave out.

    Args:
        folds: the folds.
        num_units: number of units.
        left_out: name for units neither tested nor trained on.

    >>> describe(from_labels(np.array([0, 0, 1]), ["a", "b"]), 3)
    '2 folds, test 1 to 2, training 1 to 2, no gap'
    """
    test, gap = _sizes(folds)
    training = _span(num_units - test - gap)
    number = f"{len(folds.id)} fold{'s' * (len(folds.id) != 1)}"
    return f"{number}, test {_span(test)}, training {training}, " + (
        f"{left_out} {_span(gap)}" if gap.any() else "no gap"
    )


def _sizes(folds: Folds) -> tuple[Int[np.ndarray, " fold"], Int[np.ndarray, " fold"]]:
    """Number of units each fold tests, and number it neither tests nor trains on."""
    test = (folds.test >= 0).sum(axis=1)
    return test, np.diff(folds.held_out, axis=-1).sum(axis=(1, 2)) - test


def _runs(units: Int[np.ndarray, " out"]) -> Int[np.ndarray, "run 2"]:
    """Maximal ranges [start, stop) of sorted, distinct indices."""
    ends = np.diff(units) > 1
    starts = units[np.concatenate([[True], ends])] if units.size else units
    stops = units[np.concatenate([ends, [True]])] + 1 if units.size else units
    return np.stack([starts, stops], axis=1)


def _padded(rows: Sequence[np.ndarray], shape: tuple[int, ...], fill: int) -> np.ndarray:
    longest = max((len(row) for row in rows), default=0)
    result = np.full((len(rows), longest, *shape), fill, np.int64)
    for padded, row in zip(result, rows, strict=True):
        padded[: len(row)] = row
    return result


def _span(sizes: Int[np.ndarray, " fold"]) -> str:
    low, high = sizes.min(), sizes.max()
    return f"{low}" if low == high else f"{low} to {high}"


def foldable(text: str, title: str, table: pd.DataFrame) -> str:
    """HTML for notebooks: wrapped text, and a table that opens on a click."""
    with pd.option_context("display.max_colwidth", None):
        cells = table.to_html(max_rows=MAX_ROWS)
    return (
        f'<pre style="white-space: pre-wrap">{html.escape(text)}</pre>'
        f'<details><summary>{title}</summary><div style="overflow-x: auto">{cells}</div></details>'
    )
