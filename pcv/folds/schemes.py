"""Folds for the API: each scheme as a function of how many units there are, or of their groups.

>>> kfold(6, k=3, seed=1).test.shape
(3, 2)
>>> leave_one_group_out(["a", "a", "b"]).id.tolist()
['group a', 'group b']
"""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import pandas as pd
from jaxtyping import Shaped

from pcv.base.errors import PcvError
from pcv.base.names import name_bits
from pcv.folds import making
from pcv.folds.base import Folds, Units, names_of

Values = Sequence[Any] | pd.Series | Shaped[np.ndarray, " unit"]


def _rng(scheme: str, seed: int) -> np.random.Generator:
    if seed < 0:
        raise PcvError(f"{scheme}: seed is {seed}; give 0 or more")
    return np.random.default_rng([seed, name_bits("folds")])


def _complete(values: Values, name: str, units: Units | None = None) -> np.ndarray:
    """The group of each unit, as an array.

    Raises:
        PcvError: that of a unit is missing, or there are not as many as units.
    """
    if isinstance(values, str):
        raise PcvError(
            f"{name} is {values!r}; give a value for each unit, or name columns of the data as in "
            "folds={'scheme': 'leave_one_group_out', 'group': 'rat'}"
        )
    found = np.asarray(values)
    if found.ndim != 1:
        raise PcvError(f"{name} has shape {found.shape}; give a flat array, a value for each unit")
    number = found.size if units is None else len(names_of(units))
    if not found.size or found.size != number:
        raise PcvError(f"{name}: {found.size} values, of {number} units; give one for each unit")
    missing = pd.isna(found)
    if missing.any():
        raise PcvError(
            f"{name}: the value of unit {int(missing.argmax()) + 1} is missing; fill it in, or "
            "leave the unit out of the data"
        )
    return found


def _whole(scheme: str, **numbers: Any) -> None:
    """Raises PcvError for what is not a whole number."""
    for name, number in numbers.items():
        if not isinstance(number, int | np.integer) or isinstance(number, bool):
            raise PcvError(f"{scheme}: {name} is {number!r}; give a whole number")


def _checked(made: Folds, units: Units, cover: bool = False, time: Values | None = None) -> Folds:
    making.check(made, names_of(units), cover)
    if time is not None:
        making.check_order(_complete(time, "time", units), names_of(units), "time", made)
    return made


def leave_one_out(units: Units) -> Folds:
    r"""A fold for every unit.

    .. math:: \mathrm{test}_i = \{i\}, \qquad \mathrm{train}_i = \{j : j \ne i\}

    PCV §2.2.

    Args:
        units: how many there are (n), or their names.

    Returns:
        n folds, named after their units.

    Raises:
        PcvError: a single unit, or two of one name.

    >>> leave_one_out(["A", "B", "C"]).test.tolist()
    [[0], [1], [2]]
    """
    return _checked(making.leave_one_out(names_of(units)), units)


def leave_p_out(units: Units, p: int, splits: int | Literal["all"] = 100, seed: int = 0) -> Folds:
    r"""Sets of p units: some drawn at random, or all.

    .. math:: |\mathrm{test}_k| = p, \qquad \mathrm{train}_k = \{j : j \notin \mathrm{test}_k\}

    No set is drawn twice, but sets overlap for p > 1: their scores are correlated, and errors over
    folds that take them for independent are too small. (Shao 1993, *Journal of the American
    Statistical Association* 88, 486–494: of all sets, and of some drawn at random.)

    Args:
        units: how many there are (n), or their names.
        p: units that a fold tests.
        splits: how many sets are drawn, at least 2; "all": every set, which are
            :math:`\binom{n}{p}`.
        seed: of the draw.

    Returns:
        Folds "split 1", "split 2", ...

    Raises:
        PcvError: p is not whole, or leaves no unit to train on; a single split, or more splits than
            there are sets; for "all", more than 100,000 sets; a seed that is not whole, or below 0.

    >>> leave_p_out(3, p=2, splits="all").test.tolist()
    [[0, 1], [0, 2], [1, 2]]
    """
    _whole("leave-p-out", p=p, splits=0 if splits == "all" else splits, seed=seed)
    number = None if splits == "all" else splits
    return _checked(
        making.leave_p_out(names_of(units), p, number, _rng("leave-p-out", seed)), units
    )


def kfold(
    units: Units,
    k: int = 10,
    *,
    group_by: Values | None = None,
    stratify_by: Values | None = None,
    contiguous: bool = False,
    time: Values | None = None,
    seed: int = 0,
) -> Folds:
    r"""Units in k folds: at random, or by what one of the other arguments asks for.

    .. math:: \mathrm{test}_1 \cup … \cup \mathrm{test}_k = \{0, …, n - 1\}, \qquad
              |\mathrm{test}_j| \in \{\lfloor n / k \rfloor, \lceil n / k \rceil\}

    Test sets are disjoint, and a fold trains on all units that it does not test. With `group_by`
    it is the numbers of groups, not those of units, that differ by at most one. PCV §2.2.

    Args:
        units: how many there are (n), or their names.
        k: number of folds.
        group_by: group of each unit; groups stay together.
        stratify_by: value of each unit; every fold has its share of each.
        contiguous: runs of the units' order.
        time: with `contiguous`, of each unit, numbers or dates that must increase; None: not
            checked.
        seed: of the draw.

    Returns:
        Folds "fold 1" to "fold k".

    Raises:
        PcvError: two of these are asked for, or k is not whole, below 2 or above what there is to
            deal out; a seed that is not whole, or below 0; a group, value or time is missing, or
            there are more or fewer of them than units; a time that does not increase, naming the
            fold, or without `contiguous`.

    >>> kfold(5, k=2, contiguous=True).test.tolist()
    [[0, 1, 2], [3, 4, -1]]
    >>> kfold(4, k=2, group_by=["a", "b", "b", "a"], seed=1).test.tolist()
    [[0, 3], [1, 2]]
    """
    _whole("kfold", k=k, seed=seed)
    names = names_of(units)
    asked = {"group_by": group_by, "stratify_by": stratify_by, "contiguous": contiguous or None}
    given = [name for name, x in asked.items() if x is not None]
    if len(given) > 1:
        raise PcvError(f"kfold: {' and '.join(given)} exclude each other; keep one of them")
    if time is not None and not contiguous:
        raise PcvError("kfold: time is of contiguous folds; add contiguous=True, or leave it out")
    rng = _rng("kfold", seed)
    if group_by is not None:
        made = making.k_fold_grouped(_complete(group_by, "group_by", units), k, rng)
    elif stratify_by is not None:
        made = making.k_fold_stratified(_complete(stratify_by, "stratify_by", units), k, rng)
    elif contiguous:
        made = making.k_fold_contiguous(names, k)
    else:
        made = making.k_fold(names, k, rng)
    return _checked(made, units, cover=True, time=time)


def leave_one_group_out(group_by: Values, name: str = "group") -> Folds:
    r"""A fold for every group.

    .. math:: \mathrm{test}_g = \{i : \mathrm{group}_i = g\}, \qquad
              \mathrm{train}_g = \{j : \mathrm{group}_j \ne g\}

    PCV §2.2.

    Args:
        group_by: group of each unit.
        name: what the groups are, for the folds' names: "rat" gives "rat 9".

    Returns:
        Folds in the order of the sorted groups.

    Raises:
        PcvError: all units are of one group, or that of a unit is missing.

    >>> folds = leave_one_group_out([10, 9, 10], "rat")
    >>> folds.id.tolist(), folds.test.tolist()
    (['rat 9', 'rat 10'], [[1, -1], [0, 2]])
    """
    values = _complete(group_by, "group_by")
    return _checked(making.leave_one_group_out(values, name), len(values), cover=True)


def block(units: Units, size: int, time: Values | None = None) -> Folds:
    r"""Runs of `size` consecutive units.

    .. math:: \mathrm{test}_k = \{i : \lfloor i / \mathrm{size} \rfloor = k\}, \qquad
              \mathrm{train}_k = \{j : j \notin \mathrm{test}_k\}

    with units and blocks counted from 0; the last block may be shorter. (Roberts et al.
    2017, *Ecography* 40, 913–929.)

    Args:
        units: how many there are, or their names, in their order.
        size: units of a block.
        time: of each unit, numbers or dates that must increase; None: not checked.

    Returns:
        Folds named after their first and last unit.

    Raises:
        PcvError: size is not whole or below 1, or one block holds all units; a time that does not
            increase, naming the fold.

    >>> block(["A", "B", "C"], size=2).id.tolist()
    ['A to B', 'C']
    """
    _whole("block", size=size)
    return _checked(making.blocks(names_of(units), size), units, True, time)


def h_block(units: Units, h: int, skip: int = 0, time: Values | None = None) -> Folds:
    r"""Every unit alone, with the h on each side of it left out: `hv_block` with v = 0.

    .. math:: \mathrm{test}_i = \{i\}, \qquad \mathrm{train}_i = \{j : |j - i| > h\}

    (Burman, Chow and Nolan 1994, *Biometrika* 81, 351–358.)

    Args:
        units, h, skip, time: as for `hv_block`.

    Returns:
        A fold for every unit from `skip` on, named after it.

    Raises:
        PcvError: as of `hv_block`.

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
    and errors over folds that take them for independent are too small. (Racine 2000, *Journal of
    Econometrics* 99, 39–61.)

    Args:
        units: how many there are, or their names, in the order of time.
        v: units on each side that are tested with the one in the middle.
        h: units on each side of these that are neither tested nor trained on. A model whose terms
            depend on p units before them needs h ≥ p.
        skip: units at the start that are not tested, such as those whose lags are not there.
        time: of each unit, numbers or dates that must increase; None: not checked.

    Returns:
        Folds named after the first and last unit that they test.

    Raises:
        PcvError: v, h or skip is negative or not whole; fewer than two units have v on both sides;
            a fold is left nothing to train on; a time that does not increase, naming the fold.

    >>> folds = hv_block(6, v=1, h=1)
    >>> folds.test.tolist(), folds.held_out[:2].tolist()
    ([[0, 1, 2], [1, 2, 3], [2, 3, 4], [3, 4, 5]], [[[0, 4]], [[0, 5]]])
    """
    _whole("hv-block", v=v, h=h, skip=skip)
    return _checked(making.hv_block(names_of(units), v, h, skip), units, time=time)


def leave_future_out(
    units: Units,
    min_observations: int,
    forecast_horizon: int = 1,
    step: int = 1,
    window: int | None = None,
    time: Values | None = None,
) -> Folds:
    r"""Units predicted from those before them.

    .. math:: \mathrm{test}_t = \{t, …, t + \mathrm{horizon} - 1\}, \qquad
              \mathrm{train}_t = \{\max(0, t - \mathrm{window}), …, t - 1\}

    for t = min_observations, min_observations + step, … (units counted from 0) as long as the test
    set is whole. (Bürkner, Gabry and Vehtari 2020, *Journal of Statistical Computation and
    Simulation* 90, 2499–2523.)

    Args:
        units: how many there are, or their names, in the order of time.
        min_observations: units before the first that is predicted.
        forecast_horizon: units that a fold predicts.
        step: units between the starts of test sets.
        window: latest units that a fold trains on; None: all before its test set.
        time: of each unit, numbers or dates that must increase; None: not checked.

    Returns:
        Folds named after the first and last unit that they test.

    Raises:
        PcvError: a number below 1 or not whole; fewer than two test sets; a time that does not
            increase, naming the fold.

    >>> folds = leave_future_out(["A", "B", "C", "D"], min_observations=2)
    >>> folds.test.tolist(), folds.held_out.tolist()
    ([[2], [3]], [[[2, 4]], [[3, 4]]])
    """
    _whole(
        "leave-future-out",
        min_observations=min_observations,
        forecast_horizon=forecast_horizon,
        step=step,
        window=1 if window is None else window,
    )
    made = making.leave_future_out(
        names_of(units), min_observations, forecast_horizon, step, window
    )
    return _checked(made, units, time=time)


def _places(x: Values, y: Values, degrees: bool) -> making.Places:
    first, second = (_complete(values, name).astype(float) for values, name in ((x, "x"), (y, "y")))
    if first.shape != second.shape:
        raise PcvError(f"{len(first)} values of x, {len(second)} of y; give both of every unit")
    places = making.Places(first, second, degrees)
    making.check_places(places)
    return places


def spatial_block(
    x: Values, y: Values, size: float | int, buffer: float | int = 0, degrees: bool = False
) -> Folds:
    r"""Units in squares of a grid.

    .. math:: \mathrm{cell}_i = \left(\lfloor (x_i - \min x) / \mathrm{size} \rfloor, \;
              \lfloor (y_i - \min y) / \mathrm{size} \rfloor\right)

    .. math:: \mathrm{test}_c = \{i : \mathrm{cell}_i = c\}, \qquad
              \mathrm{train}_c = \{j : d_{ij} > \mathrm{buffer} \text{ for all }
              i \in \mathrm{test}_c\}

    with Euclidean distances d. Of longitudes and latitudes they are great-circle distances, and the
    grid lies on the sinusoidal projection about the mean longitude: cells of equal area.
    (Roberts et al. 2017, *Ecography* 40, 913–929.)

    Args:
        x, y: coordinates of each unit, in metres or any other unit of length; or longitudes and
            latitudes.
        size: side of a square (metres, for degrees).
        buffer: distance around a test set within which units are not trained on (metres, for
            degrees).
        degrees: whether x and y are longitudes and latitudes.

    Returns:
        A fold for every square that holds units, named after its row and column.

    Raises:
        PcvError: a coordinate that is missing or cannot be, naming the unit; a buffer that leaves
            nothing to train on, naming the fold; a size that is not positive, a negative buffer, or
            a single square for all units.

    >>> folds = spatial_block(x=[0.0, 1.0, 10.0], y=[0.0, 0.0, 0.0], size=5)
    >>> folds.id.tolist(), folds.test.tolist()
    (['row 1, column 1', 'row 1, column 3'], [[0, 1], [2, -1]])
    """
    places = _places(x, y, degrees)
    return _checked(
        making.spatial_blocks(places, float(size), float(buffer)), len(places.first), cover=True
    )


def leave_one_location_out(
    x: Values, y: Values, buffer: float | int = 0, degrees: bool = False
) -> Folds:
    r"""A fold for every place, with the units nearby left out.

    .. math:: \mathrm{test}_a = \{i : (x_i, y_i) = a\}, \qquad
              \mathrm{train}_a = \{j : d_{aj} > \mathrm{buffer}\}

    (Le Rest et al. 2014, *Global Ecology and Biogeography* 23, 811–820, of one unit at each place.)

    Args:
        x, y, buffer, degrees: as for `spatial_block`.

    Returns:
        A fold for every distinct pair of coordinates, named after it.

    Raises:
        PcvError: a coordinate or a buffer as of `spatial_block`, or all units are at one place.

    >>> folds = leave_one_location_out(x=[0, 0, 1, 9], y=[0, 0, 0, 0], buffer=2)
    >>> folds.test.tolist(), folds.held_out.tolist()
    ([[0, 1], [2, -1], [3, -1]], [[[0, 3]], [[0, 3]], [[3, 4]]])
    """
    places = _places(x, y, degrees)
    return _checked(
        making.leave_one_location_out(places, float(buffer)), len(places.first), cover=True
    )


def from_splitter(
    splitter: Any,
    units: Units,
    y: Values | None = None,
    group_by: Values | None = None,
    time: Values | None = None,
) -> Folds:
    """Folds of any object with scikit-learn's ``split(X, y, groups)``.

    Test and training sets are those of the splits; units in neither are the gap.

    Args:
        splitter: its ``split`` yields pairs of integer indices from 0, training and test.
        units: how many there are, or their names.
        y, group_by: what it stratifies or groups by, a value for each unit.
        time: of each unit, numbers or dates that must increase, for a splitter that takes units in
            their order; None: not checked.

    Returns:
        Folds "fold 1", "fold 2", ... in the order of the splits.

    Raises:
        PcvError: a split yields anything but indices of units, trains on units that it tests,
            tests or trains on nothing; a single split; a time that does not increase, naming the
            fold.

    Warns:
        UserWarning: units are tested more than once.

    >>> from sklearn.model_selection import TimeSeriesSplit
    >>> folds = from_splitter(TimeSeriesSplit(2), ["A", "B", "C"])
    >>> folds.test.tolist(), folds.held_out.tolist()
    ([[1], [2]], [[[1, 3]], [[2, 3]]])
    """
    y, groups = (None if x is None else np.asarray(x) for x in (y, group_by))
    return _checked(making.from_splitter(splitter, names_of(units), y, groups), units, time=time)
