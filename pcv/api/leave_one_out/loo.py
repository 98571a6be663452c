"""`loo`: PSIS first, brute force where it fails."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr

from pcv.api import calls, cross_validation
from pcv.api.comparisons import check_joint
from pcv.api.inputs import AnyModel
from pcv.api.leave_one_out.exact import exact
from pcv.api.result import CV
from pcv.folds import exchangeable
from pcv.pipeline import stages
from pcv.pipeline.stages.inputs import check
from pcv.pipeline.stages.problem import stored_folds


def loo(
    model: AnyModel,
    *,
    group_by: str | Sequence[Any] | np.ndarray | None = None,
    brute_force: bool = True,
    good_k: float | None = None,
    data: Any = None,
    joint: bool | None = None,
    predictive: str = "auto",
    seed: int = 0,
    chains: int = 8,
    draws: int = 200,
    warmup: int = 50,
    fit: Mapping[str, Any] | xr.DataTree | None = None,
    cv: Mapping[str, Any] | None = None,
    precision: str = "float64",
    cores: int | None = None,
    progress: bool = True,
) -> CV:
    r"""Leave-one-out, or leave-one-group-out, from the full-data fit where its draws suffice.

    Folds whose importance weights have a light tail come from PSIS; those with k-hat above `good_k`
    are sampled, all at once. The column "source" of `CV.folds` tells which is which. At most 1,000
    full-data draws are used where effects are integrated out, for targets, and where the log
    likelihoods exceed the 512 MiB that a fit stores. Only the log score is available.

    Args:
        model, data, joint, seed, precision, cores, progress: as for `cross_validate`.
        group_by: group of each unit, or the name of its column; None: units are left out alone.
        brute_force: whether to sample the folds for which importance sampling fails.
        good_k: k-hat above which it fails; None: :math:`\min(1 - 1/\log_{10} S, 0.7)`.
        predictive: "auto" integrates out effects of the left-out unit or group alone, so that
            weights depend on the other parameters only.
        chains, draws, warmup, cv: of the folds sampled.
        fit: settings of the full-data fit, or draws of it, as for `cross_validate`.

    Raises:
        PcvError: what is wrong, where, and what to do.
    """
    check_joint(joint)
    folds: Any = "loo"
    if isinstance(group_by, str):
        folds = {"scheme": "leave_one_group_out", "group": group_by}
    elif group_by is not None:
        folds = exchangeable.leave_one_group_out(group_by)
    sections = {
        "predictive": predictive,
        "fit": {} if fit is None else fit,
        "cv": calls.cv_section(chains, draws, warmup, None, cv),
    }
    with calls.prepared(
        model, folds, data, sections, seed, precision, None, cores, progress
    ) as job:
        check(job._replace(say=calls.silent))
        (part,) = (job._replace(model=name) for name in job.settings.models)
        for stage in (stages.data, stages.folds, stages.fit):
            stage(part)
        found = exact(part, stored_folds(part), brute_force, good_k)
        return cross_validation.collected(part, joint, found.diagnostics)
