"""`loo`: PSIS first, brute force where it fails."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr

from pcv.analysis import diagnostics
from pcv.analysis.diagnostics import Benchmark
from pcv.analysis.diagnostics.jackknife import shared
from pcv.analysis.diagnostics.psis import Psis, psis
from pcv.analysis.results import listed
from pcv.analysis.verdicts import run_verdict
from pcv.api import calls, cross_validation
from pcv.api.comparisons import check_joint
from pcv.api.inputs import AnyModel
from pcv.api.result import CV
from pcv.base import programs
from pcv.base.programs import devices
from pcv.folds import columns, exchangeable
from pcv.folds.base import Folds
from pcv.models.effects.marginal import Scored, integrated
from pcv.models.model import Fold, Model, target
from pcv.models.parameters import flat_target, unit_log_lik
from pcv.pipeline import stages
from pcv.pipeline.job import Job
from pcv.pipeline.stages.inputs import check
from pcv.pipeline.stages.problem import build, scored, stored_folds
from pcv.pipeline.storage.artifacts import fitted, opened
from pcv.sampling.hmc import train_mask

MAX_DRAWS = 1000
"""full-data draws at which to evaluate a predictive that the fit does not store"""
NODES_PER_DIM = 256
"""of integrals over a group's own effects: many, as their noise biases the importance weights,
which are their reciprocals"""
FOLDS_AT_ONCE = 50
"""evaluated in parallel"""


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
        everything = stored_folds(part)
        with devices.at_work(precision):
            model_scored, draws_of = _full_data_scores(part, everything)
        found = psis(*draws_of, everything.test)
        number = draws_of[0].shape[0] * draws_of[0].shape[1]
        limit = float(diagnostics.good_k(number)) if good_k is None else good_k
        bad = ~(found.khat <= limit)
        job.say(f"PSIS: k-hat above {limit:.2f} in {bad.sum()} of {bad.size} folds")
        again = bad.any() and brute_force
        sampled = _at_least_two(found.khat, bad) if again else np.empty(0, int)
        diagnosed = _diagnostics(part, everything, found, model_scored, limit, number)
        diagnosed.attrs |= {
            f"{kind}_shared": shared(np.delete(apart, np.flatnonzero(bad & again), axis=1))
            for kind, apart in (("joint", found.joint_apart), ("pointwise", found.pointwise_apart))
        }
        whole = cross_validation.collected(part, joint, diagnosed)
        if again:
            others = calls.with_folds(part, everything.some(sampled))
            cross_validation.run(others)
            brute = opened(others, "diagnose").load().sel(fold=everything.id[bad])
            for kind in ("joint", "pointwise") if bad.sum() > 1 else ():
                diagnosed.attrs[f"{kind}_shared"] += brute.attrs[f"{kind}_shared"]
            whole = CV(
                whole.tree.assign({"diagnostics": xr.DataTree(_patched(diagnosed, brute))}),
                whole.joint,
            )
    return whole


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
        if "log_likelihood" in tree:
            by_unit = opened(job, "fit", "log_likelihood")[job.settings.data.outcome].values
        else:
            log_lik = unit_log_lik(model, arrays)
            assert log_lik is not None
            terms = programs.shared(lambda x: jax.lax.map(log_lik, x))
            by_unit = np.stack([np.asarray(terms(x)) for x in position[:, ::thin]])
        pointwise = np.where(folds.test >= 0, by_unit[..., folds.test], 0.0)
        return made, (pointwise.sum(-1), pointwise)
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

    every = programs.shared(lambda x: jax.lax.map(at, x))
    found = every(jnp.asarray(position[:, ::thin].reshape(-1, position.shape[-1])))
    joint, pointwise = (np.asarray(x).reshape(chains, -1, *x.shape[1:]) for x in found)
    return made, (joint, pointwise)


def _at_least_two(khat: np.ndarray, bad: np.ndarray) -> np.ndarray:
    """Places of the bad folds, in order; if there is only one, the next worst as well."""
    if bad.sum() > 1:
        return np.flatnonzero(bad)
    return np.sort(np.argsort(np.where(np.isnan(khat), np.inf, khat))[-2:])


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
    return f"{said}; brute_force=True samples them"


def _patched(diagnosed: xr.Dataset, brute: xr.Dataset) -> xr.Dataset:
    """The diagnostics with those of the sampled folds put in."""
    place = diagnosed.indexes["fold"].get_indexer(brute.indexes["fold"])
    patched = diagnosed.copy(deep=True)
    for name, variable in diagnosed.data_vars.items():
        if name in brute and "point" not in variable.dims and variable.dims[:1] == ("fold",):
            values = variable.values.astype(object)
            values[place] = brute[name].values
            dtype = str if variable.dtype.kind == "U" else variable.dtype
            patched[name] = (variable.dims, values.astype(dtype))
    patched["source"][place] = "mcmc"
    patched = patched.assign({name: brute[name] for name in ("rhat_max", "benchmark_share")})
    for kind in ("joint", "pointwise"):
        patched[f"{kind}_mcse_at"] = (("fold", "point"), patched[f"{kind}_mcse"].values[:, None])
    patched["joint_elpd_at"] = (("fold", "point"), patched["joint_elpd"].values[:, None])
    by_unit = patched["pointwise_elpd"].values[..., None]
    patched["pointwise_elpd_at"] = (("fold", "slot", "point"), by_unit)
    benchmark = Benchmark(
        float(brute["rhat_max"]),
        brute["benchmark"].values,
        float(brute["benchmark_share"]),
        float(brute["rhat_limit"]),
    )
    folds = run_verdict(patched["fold"].values, patched["verdict"].values, benchmark)
    units = brute.attrs["units_verdict"]
    verdicts = {
        "verdict": folds,
        "units_verdict": units,
        "pointwise_verdict": " ".join(x for x in (folds, units) if x != "ok") or "ok",
    }
    return patched.assign_attrs(verdicts)
