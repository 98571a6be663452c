"""Conversion of models of NumPyro, PyMC, Bambi and Stan to `pcv.Model`."""

import sys
from importlib import import_module
from typing import Any

from pcv.models.model import Model, Target


def as_model(made: Any) -> Model | Target | None:
    """The `pcv.Model` or `pcv.Target` for an object, or None if it is not a model.

    Args:
        made: a `pcv.Model` or `pcv.Target`, or a model of PyMC or Bambi.
    """
    if isinstance(made, Model | Target):
        return made
    for package in ("pymc", "bambi"):
        module = sys.modules.get(package)
        if module is not None and isinstance(made, module.Model):
            front_end = import_module(f"pcv.models.frontends.{package}")
            found: Model = getattr(front_end, f"from_{package}")(made)
            return found
    return None
