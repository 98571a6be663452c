"""Bayesian cross-validation by parallel MCMC.

Public names are loaded when they are first used: a bare ``import pcv`` loads no JAX.
"""

import importlib
from typing import Any

_PUBLIC = {
    "Model": "pcv.model",
    "Outcome": "pcv.model",
    "Target": "pcv.model",
    "support": "pcv.model",
    "Score": "pcv.scores",
    "Folds": "pcv.folds",
    "PcvError": "pcv.errors",
}

__all__ = list(_PUBLIC)


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'pcv' has no attribute {name!r}")
    return getattr(importlib.import_module(_PUBLIC[name]), name)


def __dir__() -> list[str]:
    return __all__
