"""Schemes for units in an order, such as that of time. All but `blocks` test units more than once,
or not at all."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from jaxtyping import Int, Shaped

from pcv.base.errors import PcvError
from pcv.folds.base import Folds, from_labels
from pcv.folds.columns import label


def blocks(unit_names: Sequence[str], size: int) -> Folds:
    r"""Runs of `size` consecutive units; the last one may be shorter.

    .. math:: \mathrm{test}_k = \{i : \lfloor i / \mathrm{size} \rfloor = k\}, \qquad
              \mathrm{train}_k = \{j : j \notin \mathrm{test}_k\}

    with units and blocks counted from 0. (Roberts et al. 2017.)

    Args:
        unit_names: in their order.
        size: units of a block.

    Raises:
        PcvError: size is below 1.

    >>> blocks(["A", "B", "C"], 2).id.tolist()
    ['A to B', 'C']
    """
    if size < 1:
        raise PcvError(f"blocks of {size} units: size must be at least 1")
    starts = np.arange(0, len(unit_names), size)
    stops = np.minimum(starts + size, len(unit_names))
    return from_labels(
        np.arange(len(unit_names)) // size, _spans(unit_names, np.stack([starts, stops], axis=1))
    )


def hv_block(unit_names: Sequence[str], v: int, h: int, skip: int = 0) -> Folds:
    r"""Blocks of 2v + 1 units around every unit that has v on both sides, with h more left out
    on each side. A model whose terms depend on p units before them needs h ≥ p, or training terms
    depend on tested units.

    .. math:: \mathrm{test}_i = \{i - v, …, i + v\}, \qquad
              \mathrm{train}_i = \{j : |j - i| > v + h\}

    Test sets overlap for v > 0: their scores are correlated, and errors over folds that take them
    for independent are too small. v = 0 is h-block. (Racine 2000; Burman, Chow, Nolan 1994.)

    Args:
        unit_names: in the order of time.
        v: units on each side that are tested with the one in the middle.
        h: units on each side of these that are neither tested nor trained on.
        skip: units at the start that are not tested, such as those whose lags are not there.

    Raises:
        PcvError: v, h or skip is negative, or no unit has v on both sides.

    >>> folds = hv_block(["A", "B", "C", "D", "E", "F"], v=1, h=1)
    >>> folds.id.tolist(), folds.test[0].tolist(), folds.held_out[1].tolist()
    (['A to C', 'B to D', 'C to E', 'D to F'], [0, 1, 2], [[0, 5]])
    """
    n = len(unit_names)
    for name, number in [("v", v), ("h", h), ("skip", skip)]:
        if number < 0:
            raise PcvError(f"hv-block with {name} = {number}: it must not be negative")
    if n - skip <= 2 * v:
        raise PcvError(
            f"hv-block with v = {v}: its blocks of {2 * v + 1} need more than {n - skip} units"
        )
    center = np.arange(skip + v, n - v)
    tested = np.stack([center - v, center + v + 1], axis=1)
    held_out = np.stack([np.maximum(center - v - h, 0), np.minimum(center + v + h + 1, n)], axis=1)
    return _of_ranges(unit_names, tested, held_out[:, None])


def leave_future_out(
    unit_names: Sequence[str],
    min_observations: int,
    forecast_horizon: int = 1,
    step: int = 1,
    window: int | None = None,
) -> Folds:
    r"""Units are predicted from those before them.

    .. math:: \mathrm{test}_t = \{t, …, t + \mathrm{horizon} - 1\}, \qquad
              \mathrm{train}_t = \{\max(0, t - \mathrm{window}), …, t - 1\}

    for t = min_observations, min_observations + step, … as long as the test set is whole.
    (Bürkner, Gabry, Vehtari 2020.)

    Args:
        unit_names: in the order of time.
        min_observations: units before the first test set.
        forecast_horizon: units that a fold tests.
        step: units from one fold to the next; `forecast_horizon` tests every later unit once.
        window: units that a fold trains on at most, the latest ones; None: all before the test set.

    Raises:
        PcvError: a number below 1, or too few units.

    >>> folds = leave_future_out(["A", "B", "C", "D"], min_observations=2, window=2)
    >>> folds.test.tolist(), folds.held_out.tolist()
    ([[2], [3]], [[[2, 4], [0, 0]], [[0, 1], [3, 4]]])
    """
    n = len(unit_names)
    for name, number in [
        ("min_observations", min_observations),
        ("forecast_horizon", forecast_horizon),
        ("step", step),
        ("window", 1 if window is None else window),
    ]:
        if number < 1:
            raise PcvError(f"leave-future-out: {name} is {number}, must be at least 1")
    start = np.arange(min_observations, n - forecast_horizon + 1, step)
    if start.size < 2:
        raise PcvError(
            f"leave-future-out: {n} units leave {start.size} fold(s) of {forecast_horizon} after "
            f"the first {min_observations}; at least 2 are needed"
        )
    past = np.maximum(start - (n if window is None else window), 0)
    before = np.stack([np.zeros_like(past), past], axis=1)
    after = np.stack([start, np.full_like(start, n)], axis=1)
    ranges = np.stack([before, after], axis=1)
    ranges[past == 0] = ranges[past == 0][:, ::-1]  # empty ranges stand last
    if not past.any():
        ranges = ranges[:, :1]
    return _of_ranges(unit_names, np.stack([start, start + forecast_horizon], axis=1), ranges)


def check_order(
    times: Shaped[np.ndarray, " unit"], unit_names: Sequence[str], name: str, folds: Folds
) -> None:
    """Refuse folds of units whose times do not increase.

    Args:
        times: of the units, numbers, dates or text.
        unit_names: their names.
        name: what the times are called: a column, or an argument.
        folds: of the units, for the fold that is named.

    Raises:
        PcvError: text that is not a date; two units of one time, or one that comes before its
            predecessor, and the first fold that tests it, else the first that trains on it.

    >>> names = ["A", "B", "C"]
    >>> check_order(np.array([1, 2, 4]), names, "column 'year'", blocks(names, 2))
    """
    if len(times) != len(unit_names):
        raise PcvError(f"{name}: {len(times)} times of {len(unit_names)} units")
    if isinstance(times[0], str):
        times = _dates(times, name)
    distinct, count = np.unique(times, return_counts=True)
    if (count > 1).any():
        twice = distinct[count > 1][0]
        places = np.flatnonzero(times == twice)[:2].tolist()
        units = [unit_names[i] for i in places]
        raise PcvError(
            f"{_with(places[1], folds)}{name}: {label(twice)} is the time of {units[0]!r} and of"
            f" {units[1]!r}; where order matters every unit needs a time of its own (data.units"
            " makes one unit of rows of one time)"
        )
    if (np.diff(np.argsort(times, kind="stable")) < 0).any():
        i = int(np.flatnonzero(times[1:] < times[:-1])[0])
        raise PcvError(
            f"{_with(i + 1, folds)}{name} is not in order: {label(times[i + 1])} "
            f"({unit_names[i + 1]!r}) comes after {label(times[i])} ({unit_names[i]!r}); sort the "
            "data by it (in a config: data.order)"
        )


def _dates(texts: Shaped[np.ndarray, " unit"], name: str) -> Shaped[np.ndarray, " unit"]:
    """Text as the dates that it writes: the order of the alphabet need not be that of time."""
    try:
        dates = pd.to_datetime(texts, format="ISO8601", utc=True)
    except ValueError as error:
        raise PcvError(
            f"{name}: {label(texts[0])!r} and the others are not dates as in 2024-03-31, and text"
            " has no order in time; give dates or numbers"
        ) from error
    return dates.tz_localize(None).to_numpy()


def _with(unit: int, folds: Folds) -> str:
    """The first fold that tests a unit, else that trains on it, to begin a message with."""
    tests_it = (folds.test == unit).any(axis=1)
    start, stop = np.moveaxis(folds.held_out, -1, 0)
    trains_on_it = ~((start <= unit) & (unit < stop)).any(axis=1)
    concerned = tests_it if tests_it.any() else trains_on_it
    return f"fold {str(folds.id[concerned.argmax()])!r}: " if concerned.any() else ""


def _of_ranges(
    unit_names: Sequence[str],
    tested: Int[np.ndarray, "fold 2"],
    held_out: Int[np.ndarray, "fold run 2"],
) -> Folds:
    """Folds that test one range [start, stop) each, all of one length."""
    length = int(tested[0, 1] - tested[0, 0])
    return Folds(
        np.array(_spans(unit_names, tested), str),
        tested[:, :1] + np.arange(length),
        held_out,
        len(unit_names),
    )


def _spans(unit_names: Sequence[str], ranges: Int[np.ndarray, "fold 2"]) -> list[str]:
    ends = [(unit_names[start], unit_names[stop - 1]) for start, stop in ranges.tolist()]
    return [first if first == last else f"{first} to {last}" for first, last in ends]
