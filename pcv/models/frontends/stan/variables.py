"""Names and shapes of a Stan program's variables, which it lists in column-major order."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np


class Variable(NamedTuple):
    """A variable among the values that Stan lists."""

    begin: int
    shape: tuple[int, ...]

    def of(self, listed: Any) -> Any:
        """Its value, of the shape that the program declares."""
        size = int(np.prod(self.shape))
        return listed[self.begin : self.begin + size].reshape(self.shape[::-1]).T


def variables(names: Sequence[str]) -> dict[str, Variable]:
    """The variables of names such as ``mu``, ``z.1``, ``L.2.1``.

    >>> variables(["mu", "L.1.1", "L.2.1", "L.1.2", "L.2.2"])["L"]
    Variable(begin=1, shape=(2, 2))
    """
    known: dict[str, Variable] = {}
    for place, name in enumerate(names):
        parts = name.split(".")
        shape = tuple(int(part) for part in parts if part.isdigit())
        base = ".".join(part for part in parts if not part.isdigit())
        begin = known[base].begin if base in known else place
        known[base] = Variable(begin, shape)  # the last name has the largest indices
    return known
