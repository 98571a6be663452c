"""Models written for NumPyro, PyMC or Bambi, as a `pcv.Model`."""

import sys
from typing import Any

from pcv.model import Model, Target


def as_model(made: Any) -> Model | Target | None:
    """A model of any front-end, or None where it is something else.

    Args:
        made: a `pcv.Model` or `pcv.Target`, or a model of PyMC or Bambi.
    """
    if isinstance(made, Model | Target):
        return made
    return None
