"""Leave-one-out from the full-data fit where it suffices: `loo` of all terms, and `subsample`."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from pcv.api import calls
from pcv.api.calls import Call
from pcv.api.comparisons import check_joint
from pcv.api.cross_validation import cross_validated
from pcv.api.inputs import AnyModel
from pcv.base.errors import PcvError
from pcv.core.fit import fit as fit_model
from pcv.core.psis import order_in_strata
from pcv.core.settings import chain_settings
from pcv.core.store import Step, run_step
from pcv.folds.sections.scheme import GROUPS, Table
from pcv.folds.sections.subsampling import Subsampling

Groups = str | Sequence[Any] | np.ndarray | None


def loo(
    model: AnyModel | Mapping[str, AnyModel],
    *,
    group_by: Groups = None,
    brute_force: bool = True,
    good_k: float | None = None,
    data: Any = None,
    joint: bool | None = None,
    predictions: int = 400,
    predictive: str = "auto",
    estimator: str = "two_sided",
    seed: int = 0,
    chains: int = 8,
    draws: int = 200,
    warmup: int | str = 50,
    fit: Mapping[str, Any] | xr.DataTree | None = None,
    kernel: Mapping[str, Any] | None = None,
    cv: Mapping[str, Any] | None = None,
    precision: str = "float64",
    cores: int | None = None,
    progress: bool = True,
) -> Any:
    r"""Leave-one-out, or leave-one-group-out, from the full-data fit where its draws suffice.

    Folds whose importance weights have a light tail come from PSIS. Those with k-hat above `good_k`
    are sampled, all at once, and so are those that inform the posterior by more than .5 nats
    (lpd - elpd) at a k-hat above .3, and, under the plain predictive, those whose test set has
    parameters of its own. The column "source" of `CV.folds` tells which is which. At most 1,000
    full-data draws are used where effects are integrated out, for targets, and where the log
    likelihoods exceed the 512 MiB that a fit stores. Only the log score is available.

    Args:
        model, data, joint, seed, precision, cores, progress: as for `cross_validate`.
        group_by: group of each unit, or the name of its column; None: units are left out alone.
        brute_force: whether to sample the folds for which importance sampling is not trusted.
        good_k: k-hat above which it fails; None: :math:`\min(1 - 1/\log_{10} S, 0.7)`.
        predictions: number of replicates of each tested unit that are kept (`CV.predictions`), as
            for `cross_validate`; where PSIS suffices they are made at full-data draws, resampled by
            their weights. 0: none.
        predictive: "auto" integrates out effects of the left-out unit or group alone, so that
            weights depend on the other parameters only.
        estimator: of the folds sampled, as for `cross_validate`.
        chains, draws, warmup, kernel, cv: of the folds sampled, as for `cross_validate`.
        fit: settings of the full-data fit, or draws of it, as for `cross_validate`.

    Returns:
        `CV`, or a dict of them by the models' names.

    Raises:
        PcvError: what is wrong, where, and what to do.
    """
    check_joint(joint)
    exact = {"exact": "auto" if brute_force else "psis", "good_k": good_k}
    folds: dict[str, Any] = {"scheme": "leave_one_out", **exact}
    if group_by is not None:
        group = group_by if isinstance(group_by, str) else GROUPS
        folds = {"scheme": "leave_one_group_out", "group": group, **exact}
    sections = {
        "predictions": predictions,
        "predictive": predictive,
        "estimator": estimator,
        "fit": {} if fit is None else fit,
        "kernel": kernel,
        "cv": chain_settings(chains, draws, warmup, None, cv),
    }
    of_call = seed, precision, None, cores, progress
    groups = group_by if _is_array(group_by) else None
    with calls.prepared(model, folds, data, sections, *of_call, flat=True, groups=groups) as call:
        return cross_validated(call, joint, isinstance(model, Mapping))


def subsample(
    model: AnyModel | Mapping[str, AnyModel],
    m: int = 400,
    surrogate: str | Sequence[str] = "auto",
    exact: str = "auto",
    until: Mapping[str, Any] | None = None,
    group_by: Groups = None,
    *,
    strata: int = 1,
    by_spread: bool = False,
    good_k: float | None = None,
    data: Any = None,
    predictions: int = 400,
    predictive: str = "auto",
    estimator: str = "two_sided",
    seed: int = 0,
    chains: int = 8,
    draws: int = 200,
    warmup: int | str = 50,
    fit: Mapping[str, Any] | xr.DataTree | None = None,
    kernel: Mapping[str, Any] | None = None,
    cv: Mapping[str, Any] | None = None,
    precision: str = "float64",
    results: str | Path | None = None,
    cores: int | None = None,
    progress: bool = True,
) -> Any:
    r"""Leave-one-out of large data: exact terms of m units, and a surrogate for all n.

    .. math:: \widehat{\mathrm{elpd}} = \sum_{i=1}^n \tilde\pi_i +
              \frac nm \sum_{j \in \mathcal S} (\pi_j - \tilde\pi_j)

    Unbiased for any surrogate if m is fixed; a good one makes the SE of subsampling small
    (Magnusson, Andersen, Jonasson, Vehtari 2020, eq. 7 to 9). The subsample follows from the seed
    alone, so that models are compared on the same one: ``pcv.compare({"a": one, "b": other})``.

    Args:
        model: as for `cross_validate`; of a dict, all models share the subsample.
        data, seed, precision, results, cores, progress: as for `cross_validate`.
        m: number of terms computed exactly, from 2 to all of them.
        surrogate: "plpd", good and cheapest where n is large and effects are few; "waic", "tis" or
            "psis", for hierarchical models; "d1waic_m", "d1waic" or "d2waic", variances by the
            delta method, or these with "plpd\_" in front. "auto" is plpd if there are 1,000 terms
            or more per parameter, waic otherwise. "waic_100" is from 100 full-data draws,
            "waic" from those of the exact terms. Of several, the first is used, and
            `CV.by_surrogate` shows the others.
        exact: of the chosen terms: "psis", "folds" (brute force), or "auto": PSIS where its k-hat
            is good, brute force elsewhere.
        until: let m double, up to "max_m" (10 m by default), until the SE of subsampling, with the
            chosen terms by PSIS, is below a share of the SE,
            ``{"subsampling_se_over_se": 0.1}``, or all differences between models are clear
            (`docs/stopping.md`), ``{"decide": {"probability": 0.99}}``. A subsample that misses
            rare terms with a poor surrogate looks precise and stops early: begin with 100 or more.
        group_by: group of each unit, or its column's name: leave whole groups out. None: units.
        strata: number of strata, between quantiles of the surrogate. With several, the subsample
            depends on the model, and models cannot be compared.
        by_spread: allocate m to strata in proportion to their size times the surrogate's spread
            within; otherwise to their size.
        good_k: k-hat above which PSIS fails; None: :math:`\min(1 - 1/\log_{10} S, 0.7)`.
        predictions, predictive, estimator: as for `loo`.
        chains, draws, warmup, kernel, cv: of the folds sampled, as for `cross_validate`.
        fit: settings of the full-data fit, or draws of it, as for `cross_validate`; for very large
            data perhaps ``{"approximation": "laplace"}``.

    Returns:
        `CV`, whose `elpd` and errors are of all terms and whose `folds` are the chosen ones; of a
        dict, by the models' names.

    Raises:
        PcvError: what is wrong, where, and what to do.
    """
    folds = {
        "scheme": "subsample",
        "m": m,
        "group": group_by if isinstance(group_by, str | None) else GROUPS,
        "surrogate": list(surrogate) if isinstance(surrogate, tuple) else surrogate,
        "exact": exact,
        "good_k": good_k,
        "until": dict(until) if isinstance(until, Mapping) else until,
    }
    several = isinstance(model, Mapping)
    _check_strata(strata, by_spread, m, several or results is not None)
    sections = {
        "predictions": predictions,
        "predictive": predictive,
        "estimator": estimator,
        "fit": {} if fit is None else fit,
        "kernel": kernel,
        "cv": chain_settings(chains, draws, warmup, None, cv),
    }
    if results is not None and _is_array(group_by):
        raise PcvError("group_by: an array cannot be kept in `results`; name a column of the data")
    of_call = seed, precision, results, cores, progress
    groups = group_by if _is_array(group_by) else None
    with calls.prepared(model, folds, data, sections, *of_call, flat=True, groups=groups) as call:
        if strata > 1:
            call = _in_strata(call, strata, by_spread)
        return cross_validated(call, True, several)


def _is_array(group_by: Groups) -> bool:
    return group_by is not None and not isinstance(group_by, str)


def _check_strata(strata: int, by_spread: bool, m: object, shared: bool) -> None:
    if not isinstance(strata, int | np.integer) or isinstance(strata, bool) or strata < 1:
        raise PcvError(f"strata is {strata!r}; give a whole number of 1 or more")
    if by_spread and strata == 1:
        raise PcvError("by_spread: there is one stratum; give strata=5, say")
    if strata > 1 and shared:
        raise PcvError("strata: they follow from one model's draws, in memory; leave strata out")
    if strata > 1 and isinstance(m, int | np.integer) and m < 2 * strata:
        raise PcvError(f"m is {m} for {strata} strata; give at least 2 of each, m={2 * strata}")


def _in_strata(call: Call, number: int, by_spread: bool) -> Call:
    """The call with an order of all terms in strata between quantiles of their surrogate."""
    ((name, problem),) = call.problems.items()
    settings, scheme = call.settings, call.settings.folds
    assert isinstance(scheme, Subsampling)
    step, of_fit = Step("fit", name), {"draws": call.draws.get(name), "tune": scheme.samples}
    fit = run_step(call.store, call.monitor, step, fit_model, problem, settings.fit, **of_fit)
    monitor = call.monitor.of(f"surrogates {name}")
    order = order_in_strata(problem, fit, scheme, number, by_spread, monitor)
    layout = scheme.laid_out(Table(problem.data, problem.seed, order))
    return call._replace(problems={name: replace(problem, layout=layout)})
