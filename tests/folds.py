"""Folds, as tests say what they hold."""

import numpy as np
import pytest
from hypothesis import settings

from pcv.base.errors import PcvError
from pcv.folds.base import Folds, train_mask
from pcv.folds.checks import check

quick = settings(max_examples=50)


def scored(folds: Folds) -> list[list[int]]:
    return [test[test >= 0].tolist() for test in folds.test]


def names(num_units: int) -> list[str]:
    return [str(unit + 1) for unit in range(num_units)]


def refusal(function, *args, **kwargs) -> str:
    with pytest.raises(PcvError) as caught:
        function(*args, **kwargs)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def assert_partition(folds: Folds, num_units: int) -> None:
    """Every unit tested once, and trained on in all other folds."""
    check(folds, names(num_units), cover=True)
    assert sorted(unit for units in scored(folds) for unit in units) == list(range(num_units))
    train = train_mask(folds, num_units)
    for fold, units in enumerate(scored(folds)):
        assert np.flatnonzero(~train[fold]).tolist() == units
