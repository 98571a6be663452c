"""Diagnostics of folds that are not sampled: estimates by PSIS from the full-data draws. No JAX."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import xarray as xr

from pcv.analysis.diagnostics.jackknife import shared
from pcv.analysis.diagnostics.psis import Psis
from pcv.analysis.results.diagnosed import about_fit
from pcv.analysis.subsampling import Subsample


def by_psis(
    found: Psis,
    fold: np.ndarray,
    unit_name: np.ndarray,
    checks: xr.Dataset,
    doubts: Sequence[str],
    limit: float,
    num_draws: int,
    attrs: dict[str, Any],
) -> xr.Dataset:
    """The content of diagnostics.zarr for folds estimated by PSIS, and what each batch of
    full-data draws contributes to their errors.

    Args:
        found: the estimates.
        fold: names of the folds.
        unit_name: of their test units, "" in padded slots.
        checks: of the full-data fit.
        doubts: why importance sampling is not trusted, by fold; "" where it is.
        limit: k-hat above which it fails.
        num_draws: number of full-data draws.
        attrs: model, predictive, integration, outcome.
    """
    shape, nothing = found.khat.shape, ("fold", np.full(found.khat.shape, np.nan))
    verdict = np.array([why or "ok" for why in doubts])
    per_chain = num_draws // checks.sizes["chain"]
    return xr.Dataset(
        {
            "joint_elpd": ("fold", found.joint_elpd),
            "joint_mcse": ("fold", found.joint_mcse),
            "pointwise_elpd": (("fold", "slot"), found.pointwise_elpd),
            "pointwise_mcse": ("fold", found.pointwise_mcse),
            **{
                f"{kind}_mcse_is_bound": ("fold", verdict != "ok")
                for kind in ("joint", "pointwise")
            },
            "joint_apart": (("part", "fold"), found.joint_apart),
            "pointwise_apart": (("part", "fold"), found.pointwise_apart),
            "khat": ("fold", found.khat),
            "source": ("fold", np.full(shape, "psis")),
            "verdict": ("fold", verdict),
            "n_draws": ("fold", np.full(shape, per_chain)),
            "n_warmup": ("fold", np.zeros(shape, int)),
            "unit_name": (("fold", "slot"), unit_name),
            "pointwise_verdict": (
                ("fold", "slot"),
                np.where(unit_name == "", "", verdict[:, None]).astype(str),
            ),
            "divergences": ("fold", np.zeros(shape)),
            **dict.fromkeys(
                ("joint_ess", "rhat", "acceptance", "efmi", "overlap", "crossings"), nothing
            ),
            "rhat_max": np.nan,
            "fit_rhat": ("param", checks["rhat"].values),
            "fit_ess": ("param", checks["ess"].values),
        },
        {"fold": fold, "param": checks["param"].values},
        {
            **attrs,
            "num_chains": checks.sizes["chain"],
            "superchains": 0,
            "rhat_is_nested": False,
            "good_k": limit,
            **about_fit(checks),
        },
    )


def merged(
    estimated: xr.Dataset,
    sampled: xr.Dataset | None,
    chosen: Subsample | None = None,
    whole_mcse: float | None = None,
) -> xr.Dataset:
    """Diagnostics of folds by PSIS, with those of the sampled folds put in.

    Covariances between the Monte Carlo errors of folds by PSIS and of sampled ones are left out.

    Args:
        estimated: of all folds, from `by_psis`.
        sampled: of the sampled ones; None: there are none.
        chosen: which terms the folds score, if they are a subsample.
        whole_mcse: Monte Carlo standard error of the sum of all terms by PSIS, which a subsample
            takes over: given the draws its estimate is unbiased for that sum, and what they add to
            the spread between terms is part of its SE of subsampling.
    """
    estimates = estimated.drop_vars(["needs_mcmc", "joint_apart", "pointwise_apart"])
    weight = np.ones(estimates.sizes["fold"]) if chosen is None else chosen.weight
    place = np.empty(0, int) if sampled is None else _places(estimated, sampled)
    of_psis = np.delete(np.arange(estimates.sizes["fold"]), place)
    for kind in ("joint", "pointwise"):
        apart = (estimated[f"{kind}_apart"].values * weight)[:, of_psis]
        estimates.attrs[f"{kind}_shared"] = shared(apart)
    if whole_mcse is not None and of_psis.size:
        own = (weight * estimates["joint_mcse"].values)[of_psis]
        estimates.attrs["joint_shared"] = whole_mcse**2 - np.sum(own**2)
    if sampled is None:
        of_folds = _fails(estimates["fold"].values, estimates["verdict"].values)
    else:
        estimates = _put_in(estimates, sampled, place)
        for kind in ("joint", "pointwise"):
            alike = float(np.mean(weight[place])) ** 2
            estimates.attrs[f"{kind}_shared"] += alike * sampled.attrs[f"{kind}_shared"]
        rest = _fails(estimates["fold"].values[of_psis], estimates["verdict"].values[of_psis])
        said = [x for x in (sampled.attrs["verdict"], rest) if x != "ok"]
        of_folds = " ".join(said) or "ok"
    units = "ok" if sampled is None else sampled.attrs["units_verdict"]
    both = " ".join(x for x in (of_folds, units) if x != "ok") or "ok"
    estimates.attrs |= {"verdict": of_folds, "units_verdict": units, "pointwise_verdict": both}
    return _at_the_end(estimates)


def _places(estimated: xr.Dataset, sampled: xr.Dataset) -> np.ndarray:
    return estimated.indexes["fold"].get_indexer(sampled.indexes["fold"])


def _put_in(estimated: xr.Dataset, sampled: xr.Dataset, place: np.ndarray) -> xr.Dataset:
    """Values by fold, and all that only sampled folds have."""
    found = estimated.copy(deep=True)
    for name, variable in list(found.data_vars.items()):
        if variable.dims[:1] == ("fold",) and name in sampled:
            values = variable.values.astype(object)
            width = sampled.sizes["slot"] if "slot" in variable.dims else None
            index: Any = place if width is None else (place, slice(width))
            values[index] = sampled[name].values
            dtype = str if variable.dtype.kind == "U" else variable.dtype
            found[name] = (variable.dims, values.astype(dtype))
    found["source"][place] = "mcmc"
    others = sampled.drop_dims(["fold", "point"])
    found = found.drop_vars(set(others.data_vars) & set(found.data_vars)).merge(others)
    names = "num_chains", "superchains", "rhat_is_nested"
    of_chains = {name: sampled.attrs[name] for name in names}
    return found.assign_attrs(sampled.attrs | estimated.attrs | of_chains)


def _fails(names: np.ndarray, verdict: np.ndarray) -> str:
    bad = names[verdict != "ok"]
    if not bad.size:
        return "ok"
    shown = ", ".join(bad[:3]) + (f" and {bad.size - 3} more" if bad.size > 3 else "")
    return (
        f"importance sampling is not trusted for {bad.size} of {names.size} folds: {shown}; sample "
        "them by brute force (exact: auto, or brute_force=True of pcv.loo)"
    )


def _at_the_end(found: xr.Dataset) -> xr.Dataset:
    """With progressive estimates, whose only point is the end."""
    names = [f"{kind}_{name}" for kind in ("joint", "pointwise") for name in ("elpd", "mcse")]
    ends = {f"{name}_at": found[name].expand_dims("point", -1) for name in names}
    return found.assign(ends).assign_coords(point=[int(found["n_draws"].max())])
