"""Scores of folds, exact where they must be: PSIS first, brute force where it fails."""

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Float

from pcv.analysis import diagnostics
from pcv.analysis.diagnostics import Benchmark, benchmark_of_models
from pcv.analysis.diagnostics.jackknife import shared
from pcv.analysis.diagnostics.psis import Psis, psis
from pcv.analysis.results import listed
from pcv.analysis.verdicts import run_verdict
from pcv.api import calls, cross_validation
from pcv.base import programs
from pcv.base.programs import devices
from pcv.folds import columns
from pcv.folds.base import Folds
from pcv.models.effects.marginal import Scored, integrated
from pcv.models.model import Fold, Model, target
from pcv.models.parameters import flat_target, unit_log_lik
from pcv.pipeline.job import Job
from pcv.pipeline.stages.problem import build, scored
from pcv.pipeline.storage.artifacts import fitted, opened
from pcv.sampling.hmc import train_mask

MAX_DRAWS = 1000
"""full-data draws at which to evaluate a predictive that the fit does not store"""
NODES_PER_DIM = 256
"""of integrals over a group's own effects: many, as their noise biases the importance weights,
which are their reciprocals"""
FOLDS_AT_ONCE = 50
"""evaluated in parallel"""


class Exact(NamedTuple):
    """Scores of folds, and those of them that were sampled.

    Covariances between the Monte Carlo errors of folds by PSIS and of sampled ones are left out.
    """

    diagnostics: xr.Dataset
    """the content of diagnostics.zarr for all of the folds"""
    brute: tuple[xr.Dataset, ...]
    """that of the sampled folds, one dataset for each time that some were"""
    apart: Float[np.ndarray, "part fold"]
    """contribution of each batch of full-data draws to the errors of folds by PSIS; 0 for others"""
    shared: float
    """covariance of the sampled folds' errors, through full-data draws: sum over their pairs"""


def exact(
    part: Job,
    folds: Folds,
    brute_force: bool | Literal["all"] = True,
    good_k: float | None = None,
    before: Exact | None = None,
) -> Exact:
    """Scores of folds, by PSIS where its weights have a light tail, else by sampling the fold.

    Args:
        part: in-memory job of the model, whose data and fit are made.
        folds: to score.
        brute_force: whether to sample the folds for which importance sampling fails, or all.
        good_k: k-hat above which it fails; None: by the number of draws.
        before: scores of some of the folds, which are not sampled again. Folds sampled at
            different times share as much of their errors as those sampled together.
    """
    with devices.at_work(part.config.precision):
        scored_as, draws_of = _full_data_scores(part, folds)
    found = psis(*draws_of, folds.test)
    number = draws_of[0].shape[0] * draws_of[0].shape[1]
    limit = float(diagnostics.good_k(number)) if good_k is None else good_k
    bad = ~(found.khat <= limit)
    part.say(f"PSIS: k-hat above {limit:.2f} in {bad.sum()} of {bad.size} folds")
    done = before.brute if before else ()
    known = np.isin(folds.id, [name for x in done for name in x["fold"].values])
    again = (np.full(bad.shape, brute_force == "all") | bad) & bool(brute_force)
    diagnosed = _diagnostics(part, folds, found, scored_as, limit, number)
    diagnosed.attrs |= {
        f"{kind}_shared": shared(np.delete(apart, np.flatnonzero(again), axis=1))
        for kind, apart in (("joint", found.joint_apart), ("pointwise", found.pointwise_apart))
    }
    if (again & ~known).any():
        sampled = _at_least_two(found.khat, again & ~known)
        others = calls.with_folds(part, folds.some(sampled))
        cross_validation.run(others)
        new = opened(others, "diagnose").load().sel(fold=folds.id[again & ~known])
        done = (*done, new)
    of_brute = {kind: _shared(done, kind) for kind in ("joint", "pointwise")}
    for kind, value in of_brute.items():
        diagnosed.attrs[f"{kind}_shared"] += value
    apart = np.where(again, 0.0, found.joint_apart)
    return Exact(_patched(diagnosed, done) if done else diagnosed, done, apart, of_brute["joint"])


def _shared(brute: Sequence[xr.Dataset], kind: str) -> float:
    """Covariance of all pairs of sampled folds, by that of the pairs sampled together."""
    sizes = np.array([part.sizes["fold"] for part in brute])
    together = sum(part.attrs[f"{kind}_shared"] for part in brute if part.sizes["fold"] > 1)
    pairs = (sizes * (sizes - 1)).sum()
    return float(together * sizes.sum() * (sizes.sum() - 1) / pairs) if pairs else 0.0


def _full_data_scores(job: Job, folds: Folds) -> tuple[Scored, tuple[np.ndarray, np.ndarray]]:
    """Log scores of all folds at the draws of the full-data fit: (chain, draw, fold[, slot])."""
    arrays = columns.model_data(opened(job, "data"))
    made = scored(job, arrays, folds)
    tree = fitted(job)
    position = np.asarray(tree["unconstrained/position"].values)
    chains, draws, _ = position.shape
    thin = -(-chains * draws // MAX_DRAWS)
    model = build(job, arrays)
    if made.predictive != "marginal" and isinstance(model, Model):
        tested = np.unique(folds.test[folds.test >= 0])
        if "log_likelihood" in tree:
            kept = opened(job, "fit", "log_likelihood")[job.settings.data.outcome]
            by_unit = kept.isel(unit=tested).values
        else:
            log_lik = unit_log_lik(model, arrays)
            assert log_lik is not None
            terms = programs.shared(lambda x: jax.lax.map(lambda at: log_lik(at)[tested], x))
            by_unit = np.stack([np.asarray(terms(x)) for x in position[:, ::thin]])
        place = np.searchsorted(tested, np.maximum(folds.test, tested[0]))
        pointwise = np.where(folds.test >= 0, by_unit[..., place], 0.0)
        return made, (pointwise.sum(-1), pointwise)
    at = predictive_of_folds(made, arrays, folds)
    every = programs.shared(lambda x: jax.lax.map(at, x))
    found = every(jnp.asarray(position[:, ::thin].reshape(-1, position.shape[-1])))
    joint, pointwise = (np.asarray(x).reshape(chains, -1, *x.shape[1:]) for x in found)
    return made, (joint, pointwise)


def predictive_of_folds(
    made: Scored, arrays: dict[str, np.ndarray], folds: Folds
) -> Callable[[jax.Array], tuple[jax.Array, jax.Array]]:
    """Joint (fold) and pointwise (fold, slot) log predictive of all folds at a draw."""
    model = made.model
    if made.local is not None and isinstance(model, Model):
        model = integrated(model, arrays, made.local, made.few, NODES_PER_DIM)
    flat, _ = flat_target(target(model, arrays, made.predictive))
    num_units = columns.num_units(arrays)
    every_fold = jnp.asarray(folds.test), jnp.asarray(folds.held_out)

    def at(position: jax.Array) -> tuple[jax.Array, jax.Array]:
        def of_fold(fold: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            test, held_out = fold
            return flat.log_predictive(position, Fold(train_mask(held_out, num_units), test))

        return jax.lax.map(of_fold, every_fold, batch_size=FOLDS_AT_ONCE)

    return at


def _at_least_two(khat: np.ndarray, bad: np.ndarray) -> np.ndarray:
    """Places of the bad folds, in order; if there is only one, the worst other one as well."""
    if bad.sum() > 1:
        return np.flatnonzero(bad)
    others = np.where(np.isnan(khat), np.finfo(float).max, khat)
    return np.sort(np.argsort(np.where(bad, np.inf, others))[-2:])


def _diagnostics(
    job: Job, folds: Folds, found: Psis, made: Scored, limit: float, number: int
) -> xr.Dataset:
    """The content of diagnostics.zarr for folds estimated by PSIS."""
    fold, slot = "fold", ("fold", "slot")
    units = opened(job, "data")["unit"].values
    present = folds.test >= 0
    checks = opened(job, "fit", "checks")
    problems, warnings = (listed(checks.attrs[name]) for name in ("problems", "warnings"))
    shape, nothing = found.khat.shape, (fold, np.full(found.khat.shape, np.nan))
    verdict = np.where(
        found.khat <= limit,
        "ok",
        [f"k-hat {k:.2f}: importance sampling fails" for k in found.khat],
    )
    return xr.Dataset(
        {
            "joint_elpd": (fold, found.joint_elpd),
            "joint_mcse": (fold, found.joint_mcse),
            "pointwise_elpd": (slot, found.pointwise_elpd),
            "pointwise_mcse": (fold, found.pointwise_mcse),
            **{
                f"{kind}_mcse_is_bound": (fold, ~(found.khat <= limit))
                for kind in ("joint", "pointwise")
            },
            "khat": (fold, found.khat),
            "source": (fold, np.full(shape, "psis")),
            "verdict": (fold, verdict),
            "n_draws": (fold, np.full(shape, number // checks.sizes["chain"])),
            "unit_name": (slot, np.where(present, units[folds.test], "").astype(str)),
            "divergences": (fold, np.zeros(shape)),
            **dict.fromkeys(
                ("joint_ess", "rhat", "acceptance", "efmi", "overlap", "crossings"), nothing
            ),
            **_over_draws(found),
            "rhat_max": np.nan,
            "fit_rhat": ("param", checks["rhat"].values),
            "fit_ess": ("param", checks["ess"].values),
        },
        {
            "fold": folds.id,
            "param": checks["param"].values,
            "point": [number // checks.sizes["chain"]],
        },
        {
            "model": job.model,
            **dict.fromkeys(("verdict", "pointwise_verdict"), _flagged(folds.id, verdict)),
            "units_verdict": "ok",
            "predictive": made.predictive,
            "integration": made.integration,
            "outcome": str(made.model.outcome),
            "num_chains": checks.sizes["chain"],
            "superchains": 0,
            "good_k": limit,
            "fit_verdict": "; ".join(problems + warnings) or "ok",
            "bad_fit": bool(problems),
        },
    )


def _over_draws(found: Psis) -> dict[str, tuple]:
    """Progressive estimates, with all draws as their only point."""
    at = {
        "joint_elpd": found.joint_elpd,
        "joint_mcse": found.joint_mcse,
        "pointwise_mcse": found.pointwise_mcse,
        "pointwise_elpd": found.pointwise_elpd,
    }
    return {
        f"{name}_at": (("fold", "slot", "point") if x.ndim > 1 else ("fold", "point"), x[..., None])
        for name, x in at.items()
    }


def _flagged(names: np.ndarray, verdict: np.ndarray) -> str:
    bad = names[verdict != "ok"]
    if not bad.size:
        return "ok"
    shown = ", ".join(bad[:3]) + (f" and {bad.size - 3} more" if bad.size > 3 else "")
    said = f"importance sampling fails for {bad.size} of {names.size} folds: {shown}"
    return f"{said}; brute_force=True (exact='auto' of subsample) samples them"


def _patched(diagnosed: xr.Dataset, brute: Sequence[xr.Dataset]) -> xr.Dataset:
    """The diagnostics with those of the sampled folds put in."""
    patched = diagnosed.copy(deep=True)
    for part in brute:
        place = diagnosed.indexes["fold"].get_indexer(part.indexes["fold"])
        for name, variable in list(patched.data_vars.items()):
            if name in part and "point" not in variable.dims and variable.dims[:1] == ("fold",):
                values = variable.values.astype(object)
                width = part.sizes["slot"] if "slot" in variable.dims else None
                index: Any = place if width is None else (place, slice(width))
                values[index] = part[name].values
                dtype = str if variable.dtype.kind == "U" else variable.dtype
                patched[name] = (variable.dims, values.astype(dtype))
        patched["source"][place] = "mcmc"
    benchmark = benchmark_of_models([_benchmark(part) for part in brute])
    patched["rhat_max"], patched["benchmark_share"] = benchmark.observed, benchmark.share_above
    for kind in ("joint", "pointwise"):
        patched[f"{kind}_mcse_at"] = (("fold", "point"), patched[f"{kind}_mcse"].values[:, None])
    patched["joint_elpd_at"] = (("fold", "point"), patched["joint_elpd"].values[:, None])
    by_unit = patched["pointwise_elpd"].values[..., None]
    patched["pointwise_elpd_at"] = (("fold", "slot", "point"), by_unit)
    folds = run_verdict(patched["fold"].values, patched["verdict"].values, benchmark)
    units = next((x for part in brute if (x := part.attrs["units_verdict"]) != "ok"), "ok")
    verdicts = {
        "verdict": folds,
        "units_verdict": units,
        "pointwise_verdict": " ".join(x for x in (folds, units) if x != "ok") or "ok",
    }
    return patched.assign_attrs(verdicts)


def _benchmark(brute: xr.Dataset) -> Benchmark:
    return Benchmark(
        float(brute["rhat_max"]),
        brute["benchmark"].values,
        float(brute["benchmark_share"]),
        float(brute["rhat_limit"]),
    )
