"""Schemes for ordered units, such as time series. All but `block` may test units several times or
not at all."""

from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Int

from pcv.base.errors import PcvError
from pcv.folds.base import Folds, from_labels, from_sets
from pcv.folds.checks import Units, Values, checked, complete, names_of, series_of, whole


def block(units: Units, size: int, time: Values | None = None) -> Folds:
    r"""Blocks of `size` consecutive units.

    .. math:: \mathrm{test}_k = \{i : \lfloor i / \mathrm{size} \rfloor = k\}, \qquad
              \mathrm{train}_k = \{j : j \notin \mathrm{test}_k\}

    with units and blocks counted from 0; the last block may be shorter. (Roberts et al.
    2017, *Ecography* 40, 913–929.)

    Args:
        units: their number, or their names in order.
        size: units per block.
        time: of each unit, numbers or dates that must increase; None: not checked.

    Returns:
        Folds named after their first and last unit.

    Raises:
        PcvError: size is not whole or below 1, or a single block holds all units; a time that does
            not increase, naming the fold.

    >>> block(["A", "B", "C"], size=2).id.tolist()
    ['A to B', 'C']
    """
    whole("block", size=size)
    names = names_of(units)
    if size < 1:
        raise PcvError(f"blocks of {size} units: size must be at least 1")
    starts = np.arange(0, len(names), size)
    stops = np.minimum(starts + size, len(names))
    ids = _spans(names, np.stack([starts, stops], axis=1))
    return checked(from_labels(np.arange(len(names)) // size, ids), units, True, time)


def h_block(units: Units, h: int, skip: int = 0, time: Values | None = None) -> Folds:
    r"""Every unit alone, with h left out on each side: `hv_block` with v = 0.

    .. math:: \mathrm{test}_i = \{i\}, \qquad \mathrm{train}_i = \{j : |j - i| > h\}

    (Burman, Chow and Nolan 1994, *Biometrika* 81, 351–358.)

    Args:
        units, h, skip, time: as for `hv_block`.

    Returns:
        A fold for every unit from `skip` on, named after it.

    Raises:
        PcvError: as for `hv_block`.

    >>> folds = h_block(["A", "B", "C", "D"], h=1)
    >>> folds.test.tolist(), folds.held_out.tolist()
    ([[0], [1], [2], [3]], [[[0, 2]], [[0, 3]], [[1, 4]], [[2, 4]]])
    """
    return hv_block(units, 0, h, skip, time)


def hv_block(units: Units, v: int, h: int, skip: int = 0, time: Values | None = None) -> Folds:
    r"""Blocks of 2v + 1 units around every unit, with h more left out on each side.

    .. math:: \mathrm{test}_i = \{i - v, …, i + v\}, \qquad
              \mathrm{train}_i = \{j : |j - i| > v + h\}

    for every unit i with v on both sides. Test sets overlap for v > 0: their scores are correlated,
    which standard errors allow for. (Racine 2000,
    *Journal of Econometrics* 99, 39–61.)

    Args:
        units: their number, or their names in temporal order.
        v: units tested on each side of the centre.
        h: gap on each side of the test set. A model whose terms depend on p units before them needs
            h ≥ p.
        skip: units at the start that are not tested, such as those without lags.
        time: of each unit, numbers or dates that must increase; None: not checked.

    Returns:
        Folds named after the first and last unit they test.

    Raises:
        PcvError: v, h or skip is negative or not whole; no unit has v on both sides;
            a fold has nothing left to train on; a time that does not increase, naming the fold.

    >>> folds = hv_block(6, v=1, h=1)
    >>> folds.test.tolist(), folds.held_out[:2].tolist()
    ([[0, 1, 2], [1, 2, 3], [2, 3, 4], [3, 4, 5]], [[[0, 4]], [[0, 5]]])
    """
    whole("hv-block", v=v, h=h, skip=skip)
    names = names_of(units)
    n = len(names)
    for name, number in [("v", v), ("h", h), ("skip", skip)]:
        if number < 0:
            raise PcvError(f"hv-block: {name} is {number}, must not be negative")
    if n - skip <= 2 * v:
        raise PcvError(
            f"hv-block with v = {v}: its blocks of {2 * v + 1} need more than {n - skip} units"
        )
    center = np.arange(skip + v, n - v)
    tested = np.stack([center - v, center + v + 1], axis=1)
    held_out = np.stack([np.maximum(center - v - h, 0), np.minimum(center + v + h + 1, n)], axis=1)
    return checked(_of_ranges(names, tested, held_out[:, None]), units, time=time)


def leave_future_out(
    units: Units,
    min_observations: int,
    forecast_horizon: int = 1,
    step: int = 1,
    window: int | None = None,
    time: Values | None = None,
    by: Values | None = None,
    horizon: int | None = None,
) -> Folds:
    r"""Units predicted from earlier ones, of one series or of many.

    .. math:: \mathrm{test}_t = \{t, …, t + \mathrm{horizon} - 1\}, \qquad
              \mathrm{train}_t = \{\max(0, t - \mathrm{window}), …, t - 1\}

    for t = min_observations, min_observations + step, … (units counted from 0) as long as the test
    set is whole. Of many series (`by`), such as patients, units of each are counted apart, and a
    fold trains on all units of the other series besides. (Bürkner, Gabry and Vehtari 2020, *Journal
    of Statistical Computation and Simulation* 90, 2499–2523; Tarek, Francis and Panagiotelis, for
    patients.)

    Args:
        units: their number, or their names; in temporal order, of each series.
        min_observations: units of a series before its first test set.
        forecast_horizon, or `horizon` for short: units per test set.
        step: units between the starts of test sets.
        window: latest units of its series that a fold trains on; None: all before its test set.
        time: of each unit, numbers or dates that must increase; None: not checked.
        by: series of each unit; None: all are one. By the name of a column in
            ``cross_validate(model, {"scheme": "leave_future_out", "by": "subject", …}, …)``.

    Returns:
        Folds named after the first and last unit they test.

    Raises:
        PcvError: a number below 1 or not whole; no test set; a series too short for
            one; a time that does not increase, naming the fold.

    >>> folds = leave_future_out(["A", "B", "C", "D"], min_observations=2)
    >>> folds.test.tolist(), folds.held_out.tolist()
    ([[2], [3]], [[[2, 4]], [[3, 4]]])
    >>> folds = leave_future_out(6, min_observations=2, by=["Ann", "Ann", "Ann", "Bo", "Bo", "Bo"])
    >>> folds.test.tolist(), folds.held_out.tolist()
    ([[2], [5]], [[[2, 3]], [[5, 6]]])
    """
    if horizon is not None:
        if forecast_horizon not in (1, horizon):
            raise PcvError(
                f"leave-future-out: forecast_horizon is {forecast_horizon} and horizon {horizon}, "
                "which are one; give one of them"
            )
        forecast_horizon = horizon
    numbers = {
        "min_observations": min_observations,
        "forecast_horizon" if horizon is None else "horizon": forecast_horizon,
        "step": step,
        "window": 1 if window is None else window,
    }
    whole("leave-future-out", **numbers)
    names = names_of(units)
    n = len(names)
    for name, number in numbers.items():
        if number < 1:
            raise PcvError(f"leave-future-out: {name} is {number}, must be at least 1")
    if by is not None:
        series = series_of(complete(by, "by", units))
        folds = _of_series(names, series, min_observations, forecast_horizon, step, window or n)
        return checked(folds, units, time=time, by=by)
    start = np.arange(min_observations, n - forecast_horizon + 1, step)
    if not start.size:
        raise PcvError(
            f"leave-future-out: {n} units leave no fold of {forecast_horizon} after the first "
            f"{min_observations}"
        )
    past = np.maximum(start - (n if window is None else window), 0)
    before = np.stack([np.zeros_like(past), past], axis=1)
    after = np.stack([start, np.full_like(start, n)], axis=1)
    ranges = np.stack([before, after], axis=1)
    ranges[past == 0] = ranges[past == 0][:, ::-1]  # empty ranges stand last
    if not past.any():
        ranges = ranges[:, :1]
    tested = np.stack([start, start + forecast_horizon], axis=1)
    return checked(_of_ranges(names, tested, ranges), units, time=time)


def _of_series(
    unit_names: Sequence[str],
    series: Mapping[str, Int[np.ndarray, " unit"]],
    min_observations: int,
    horizon: int,
    step: int,
    window: int,
) -> Folds:
    """Leave-future-out of each series, given the indices of its units."""
    ids, tests, gaps = [], [], []
    for name, units in series.items():
        starts = range(min_observations, len(units) - horizon + 1, step)
        if not starts:
            raise PcvError(
                f"leave-future-out: series {name!r} has {len(units)} unit(s), too few for a test "
                f"set of {horizon} after the first {min_observations}; leave this series out, or "
                "lower min_observations or the horizon"
            )
        for start in starts:
            test = units[start : start + horizon]
            tests.append(test)
            gaps.append(np.append(units[: max(start - window, 0)], units[start + horizon :]))
            ids += _spans(unit_names, np.array([[test[0], test[-1] + 1]]))
    return from_sets(ids, tests, gaps, len(unit_names))


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
