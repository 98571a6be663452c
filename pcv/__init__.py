"""Bayesian cross-validation by parallel MCMC.

Public names are loaded when they are first used: a bare ``import pcv`` loads no JAX. Of the rooms,
each uses what stands before it: `base` (errors, keys, devices), `compile` (programs shared between
calls), `folds`, `models` (with front-ends, scores and left-out effects), `analysis` (NumPy on sums
of draws), `sampling`, `core` (the method), `report`, `pipeline` (stages, artifacts, the command),
`api` (calls from Python).
"""

import importlib
from importlib import metadata
from typing import Any

_PUBLIC = {
    "Model": "pcv.models.model",
    "Outcome": "pcv.models.model",
    "Target": "pcv.models.model",
    "support": "pcv.models.model",
    "normal_target": "pcv.models.normal",
    "Score": "pcv.models.scores",
    "Folds": "pcv.folds.base",
    "PcvError": "pcv.base.errors",
    "from_numpyro": "pcv.models.frontends.numpyro",
    "from_pymc": "pcv.models.frontends.pymc",
    "from_bambi": "pcv.models.frontends.bambi",
    "from_stan": "pcv.models.frontends.stan",
    "cross_validate": "pcv.api.cross_validation",
    "fit": "pcv.api.cross_validation",
    "loo": "pcv.api.loo",
    "subsample": "pcv.api.loo",
    "evidence": "pcv.api.evidence",
    "cumulative": "pcv.api.evidence",
    "from_log_lik": "pcv.api.log_lik",
    "score": "pcv.api.held_out",
    "compare_sets": "pcv.api.held_out",
    "compare": "pcv.api.comparisons",
    "mixture": "pcv.api.mixture",
    "load": "pcv.api.result",
    "CV": "pcv.api.result",
    "Comparisons": "pcv.api.comparisons",
    "CumulativeCV": "pcv.api.cumulative",
    "leave_one_out": "pcv.folds.exchangeable",
    "leave_p_out": "pcv.folds.exchangeable",
    "kfold": "pcv.folds.exchangeable",
    "leave_one_group_out": "pcv.folds.exchangeable",
    "block": "pcv.folds.time",
    "h_block": "pcv.folds.time",
    "hv_block": "pcv.folds.time",
    "leave_future_out": "pcv.folds.time",
    "spatial_block": "pcv.folds.space",
    "leave_one_location_out": "pcv.folds.space",
    "workflow_path": "pcv.pipeline.cli.project",
}

__all__ = list(_PUBLIC)


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return metadata.version("pcv-bayes")
    if name not in _PUBLIC:
        raise AttributeError(f"module 'pcv' has no attribute {name!r}")
    return getattr(importlib.import_module(_PUBLIC[name]), name)


def __dir__() -> list[str]:
    return __all__
