"""Groups of units within folds, each scored jointly (`joint_by`): the terms are fold × group.

A group's term is kept in its first slot of the fold; its other slots have none.
"""

import numpy as np
import xarray as xr
from jaxtyping import Bool, Int, Shaped

from pcv.base.errors import PcvError, key_path
from pcv.folds.checks import complete
from pcv.folds.sections.scheme import Table, shown


def with_joint_groups(layout: xr.Dataset, table: Table, column: str | None) -> xr.Dataset:
    """The folds with ``joint_by`` (unit), names of the groups, where a column says them.

    Args:
        layout: of all folds, as `pcv.folds.base.as_dataset` returns them.
        table: the units.
        column: of the groups; None: units are scored one by one.

    Raises:
        PcvError: no such column, a missing value, or a unit that several folds test.
    """
    if column is None:
        return layout
    from pcv.folds.columns import unit_column

    place, tested = key_path(("joint_by",)), layout["test"].values
    group = complete(unit_column(table.data, column, place), place, table.units)
    _, times = np.unique(tested[tested >= 0], return_counts=True)
    if (times > 1).any():
        raise PcvError(
            f"{place}: some units are tested by several folds; take folds that test each unit "
            "once, or leave joint_by out"
        )
    names = [f"{shown(column)} {value}" for value in group.tolist()]
    return layout.assign(joint_by=("unit", names, {"column": shown(column)}))


def codes_of(layout: xr.Dataset) -> Int[np.ndarray, " unit"] | None:
    """The group of each unit, as a number; None where units are scored one by one."""
    if "joint_by" not in layout:
        return None
    return np.unique(layout["joint_by"].values.astype(str), return_inverse=True)[1]


def first_slots(
    test: Int[np.ndarray, "fold slot"], code: Int[np.ndarray, " unit"]
) -> Bool[np.ndarray, "fold slot"]:
    """Which slots are the first ones of their group in the fold.

    Args:
        test: units of each fold's test set, padded with -1.
        code: the group of each unit.

    >>> first_slots(np.array([[0, 1, 3], [2, -1, -1]]), np.array([5, 5, 5, 7]))
    array([[ True, False,  True],
           [ True, False, False]])
    """
    fold = np.arange(len(test))[:, None]
    of_fold = np.where(test >= 0, code[test] + fold * (code.max() + 1), -1)
    first = np.zeros(test.size, bool)
    first[np.unique(of_fold, return_index=True)[1]] = True
    return first.reshape(test.shape) & (test >= 0)


def names_of_terms(
    layout: xr.Dataset, unit_names: Shaped[np.ndarray, " unit"]
) -> Shaped[np.ndarray, "fold slot"]:
    """Names of the terms within folds, units or groups; "" in slots without one.

    Args:
        layout: of folds.
        unit_names: of all units.
    """
    test, code = layout["test"].values, codes_of(layout)
    if code is None:
        return np.where(test >= 0, unit_names[test], "").astype(str)
    names = layout["joint_by"].values.astype(str)
    return np.where(first_slots(test, code), names[test], "")
