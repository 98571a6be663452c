"""One function per stage, from artifacts to an artifact, called by the commands and the rules.

    data ─▶ fit ─▶ folds ─▶ warmup ─▶ sample ─▶ diagnose ─▶ compare ─▶ report

A stage takes a `Job`, reads its input artifacts, refuses those that do not belong to the current
config, calls `pcv.core` and writes what that returns. The table in ``pcv.pipeline.graph`` names its
module.
"""

import importlib
from typing import Any

from pcv.pipeline.graph import STAGES


def __getattr__(name: str) -> Any:
    if name not in STAGES:
        raise AttributeError(f"no stage {name!r}")
    function = getattr(importlib.import_module(f"{__name__}.{STAGES[name].module}"), name)
    globals()[name] = function
    return function
