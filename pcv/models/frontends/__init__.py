"""Models written for NumPyro, PyMC or Bambi, as a `pcv.Model`."""

import sys
from typing import Any

from pcv.models.model import Model, Target


def as_model(made: Any) -> Model | Target | None:
    """A model of any front-end, or None where it is something else.

    Args:
        made: a `pcv.Model` or `pcv.Target`, or a model of PyMC or Bambi.
    """
    if isinstance(made, Model | Target):
        return made
    for package, name in (("pymc", "from_pymc"), ("bambi", "from_bambi")):
        module = sys.modules.get(package)
        if module is not None and isinstance(made, module.Model):
            from pcv.models.frontends import pymc

            found: Model = getattr(pymc, name)(made)
            return found
    return None
