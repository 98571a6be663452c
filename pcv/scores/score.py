"""The shape of a score."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Array, Key

from pcv.accumulate import Accumulator
from pcv.model import Fold, Target


class Score(NamedTuple):
    """A scoring rule whose estimate follows from sums over draws.

    `statistic` is evaluated at every draw, for every kind ("joint", "pointwise"); `accumulator`
    sums each of them; `estimate` turns the stored sums (fold, chain, batch[, slot]) into the
    score of every fold (or slot).
    """

    name: str
    statistic: Callable[[Key[Array, ""], Target, Any, Fold], dict[str, Array]]
    accumulator: Accumulator
    estimate: Callable[[dict[str, np.ndarray]], np.ndarray]
