"""Estimates and diagnostics of a model's folds: diagnostics.zarr."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr
from jaxtyping import Float

from pcv import diagnostics as diag
from pcv import verdicts
from pcv.diagnostics import LogSums
from pcv.jackknife import Parts, batch_bootstrap, batch_jackknife
from pcv.results.scored import KINDS, listed
from pcv.sums import energy_sums, log_sums, parts

if TYPE_CHECKING:
    from pcv.scores import Score

MAX_POINTS = 100
"""lengths at which progressive estimates are kept: after every batch, or that many evenly spaced"""


def diagnose(
    samples: Sequence[xr.Dataset],
    folds: xr.Dataset,
    unit_names: np.ndarray,
    checks: xr.Dataset,
    rng: np.random.Generator,
    model: str,
) -> xr.Dataset:
    """Estimates and diagnostics of all folds of a model.

    Args:
        samples: the sample artifacts of all fold batches, in order.
        folds: the folds artifact.
        unit_names: names of the units.
        checks: group ``checks`` of the model's fit.
        rng: for the benchmark's replicates.
        model: name of the model.

    Returns:
        Dims: fold, slot; point (progressive estimates, coordinate: draws per chain); replicate
        (R-hat max benchmark); param (full-data fit).
    """
    joint, pointwise = (log_sums(samples, kind) for kind in KINDS)
    predictive = samples[0].attrs["predictive"]
    test = folds["test"].values
    present = test >= 0
    pointwise = LogSums(
        pointwise.count, *(np.where(present[:, None, None], x, np.nan) for x in pointwise[1:])
    )
    num_draws = np.concatenate([s["n_draws"].values for s in samples])
    chains, batches = joint.count.shape[1:]
    batch_size = int(joint.count.max())
    divergences, acceptance = (
        np.concatenate([s[name].values for s in samples]) for name in ("divergences", "acceptance")
    )
    khat = np.concatenate([_khat(s, chains * s["n_draws"].values) for s in samples])
    superchains = int(samples[0].attrs["superchains"])
    benchmark = diag.mixing_benchmark(rng, joint, superchains)
    diverged = np.nansum(divergences, axis=(1, 2))
    accepted = np.nanmean(acceptance, axis=(1, 2))
    efmi = diag.efmi(**energy_sums(samples))
    verdict = verdicts.fold_verdict(
        joint, khat, diverged, benchmark, predictive, superchains, accepted, efmi
    )
    ids = folds["fold"].values
    names = np.where(present, unit_names[test], "").astype(str)
    fold_of_unit = np.nonzero(present)[0]
    slots = np.broadcast_to(pointwise.count[..., None], pointwise.mean.shape)
    units = LogSums(*(np.moveaxis(x, 3, 1)[present] for x in (slots, *pointwise[1:])))
    unit_benchmark = diag.mixing_benchmark(rng, units, superchains)
    alone = np.where(present.sum(axis=1) == 1, khat, np.nan)
    unit_verdict = np.full(test.shape, "", dtype=object)
    unit_verdict[present] = verdicts.fold_verdict(
        units, alone[fold_of_unit], diverged[fold_of_unit], unit_benchmark, predictive, superchains
    )
    points = np.unique(np.linspace(1, batches, min(batches, MAX_POINTS)).round().astype(int))
    joint_at, pointwise_at = (diag.progressive(x, points, superchains) for x in (joint, pointwise))
    unit_at = [diag.elpd(diag.first_batches(pointwise, p)) for p in points.tolist()]
    fold, fold_slot, fold_point = "fold", ("fold", "slot"), ("fold", "point")
    variables = {
        "joint_elpd": (fold, diag.elpd(joint)),
        "joint_mcse": (fold, diag.mcse(joint)),
        "joint_ess": (fold, diag.ess(joint)),
        "rhat": (fold, diag.mixing(joint, superchains)),
        "khat": (fold, khat),
        "divergences": (fold, diverged),
        "acceptance": (fold, accepted),
        "efmi": (fold, efmi),
        "verdict": (fold, verdict.astype(str)),
        "n_draws": (fold, num_draws),
        "unit_name": (fold_slot, names),
        "pointwise_elpd": (fold_slot, diag.elpd(pointwise)),
        "pointwise_ess": (fold_slot, diag.ess(pointwise)),
        "pointwise_rhat": (fold_slot, diag.mixing(pointwise, superchains)),
        "pointwise_verdict": (fold_slot, unit_verdict.astype(str)),
        "pointwise_mcse": (fold, diag.mcse_pointwise(pointwise)),
        "joint_elpd_at": (fold_point, joint_at.elpd),
        "joint_mcse_at": (fold_point, joint_at.mcse),
        "rhat_at": (fold_point, joint_at.rhat),
        "ess_at": (fold_point, joint_at.ess),
        "pointwise_elpd_at": (("fold", "slot", "point"), np.stack(unit_at, axis=-1)),
        "pointwise_mcse_at": (fold_point, pointwise_at.mcse),
        "joint_ess_total": diag.ess_total(diag.ess(joint), diag.mcse(joint)),
        "joint_ess_total_at": ("point", diag.ess_total(joint_at.ess, joint_at.mcse)),
        "rhat_max": benchmark.observed,
        "rhat_limit": benchmark.limit,
        "benchmark": ("replicate", benchmark.replicates),
        "benchmark_share": benchmark.share_above,
        "fit_rhat": ("param", checks["rhat"].values),
        "fit_ess": ("param", checks["ess"].values),
    }
    problems, warnings = (listed(checks.attrs[name]) for name in ("problems", "warnings"))
    attributes = {
        "model": model,
        "predictive": predictive,
        "integration": samples[0].attrs["integration"],
        "outcome": samples[0].attrs["outcome"],
        "verdict": verdicts.run_verdict(ids, verdict, benchmark, "fold", superchains),
        "pointwise_verdict": verdicts.run_verdict(
            names[present], unit_verdict[present], unit_benchmark, "unit", superchains
        ),
        "num_chains": int(chains),
        "superchains": superchains,
        "num_draws": int(num_draws.max()),
        "batch_size": batch_size,
        "good_k": float(diag.good_k(int(chains * num_draws.max()))),
        "fit_verdict": "; ".join(problems + warnings) or "ok",
        "fit_divergences": int(checks["divergences"]),
        "fit_efmi": checks["efmi"].values.tolist(),
        "bad_fit": bool(problems),
    }
    coords = {"fold": ids, "point": points * batch_size, "param": checks["param"].values}
    return xr.Dataset(variables, coords, attributes)


def with_scores(
    diagnostics: xr.Dataset,
    samples: Sequence[xr.Dataset],
    scores: "Sequence[Score]",
    y: np.ndarray,
    rng: np.random.Generator,
) -> xr.Dataset:
    """The same with the estimates of scores besides the log score, and their MCSE.

    Args:
        diagnostics: of `diagnose`.
        samples: the sample artifacts of all fold batches, in order.
        scores: what was averaged.
        y: outcome of the test sets (fold, slot), NaN in padded slots.
        rng: for scores whose estimate jumps.

    Returns:
        With ``<score>_<kind>`` (fold) or (fold, slot), and ``<score>_<kind>_mcse`` (fold).
    """
    found: dict[str, Any] = {}
    notes = dict.fromkeys((score.key for score in scores), "ok")
    present = ~np.isnan(y)
    for score in scores:
        by_unit = score.kind == "pointwise"
        shown = present if by_unit else None
        sums = parts(samples, score.key)

        def estimate(means: dict[str, np.ndarray], score: "Score" = score) -> np.ndarray:
            return score.estimate(means, y)

        if score.smooth:
            result = batch_jackknife(sums, estimate, shown)
        else:
            result = batch_bootstrap(sums, estimate, rng, shown)
        value = np.where(present, result.value, np.nan) if by_unit else result.value
        if score.log_weight is not None and (lone := _on_one_batch(sums, shown)):
            terms = "units" if by_unit else "folds"
            notes[score.key] = f"{lone} {terms} rest on one batch of draws: more draws."
        found[score.key] = (("fold", "slot")[: value.ndim], value, {"total": score.total})
        found[f"{score.key}_mcse"] = ("fold", result.mcse)
    attributes = {"scores": list(notes), "score_notes": list(notes.values())} if scores else {}
    return diagnostics.assign(found).assign_attrs(attributes)


def _on_one_batch(sums: Parts, present: np.ndarray | None) -> int:
    """How many folds, or units, have more than half of their weight in one batch of draws."""
    with np.errstate(invalid="ignore"):
        weight = np.exp(sums.log_weight - np.nanmax(sums.log_weight, axis=1, keepdims=True))
        lone = 1 / np.nansum(weight, axis=1) > 0.5
    return int(lone.sum() if present is None else (lone & present).sum())


def with_batch_check(
    diagnostics: xr.Dataset, draws: Float[np.ndarray, "fold chain draw"]
) -> xr.Dataset:
    """The same with ``batch_check`` (size): MCSE by batches of several sizes over a windowed one.

    Args:
        diagnostics: of `diagnose`.
        draws: of the full-data fit: the log likelihood of the test sets of some folds.
    """
    sizes = sorted({*diag.BATCH_SIZES, int(diagnostics.attrs["batch_size"])})
    found = diag.batch_size_check(draws, sizes)
    return diagnostics.assign(batch_check=("size", found)).assign_coords(size=sizes)


def _khat(sample: xr.Dataset, num_draws: np.ndarray) -> np.ndarray:
    if "log_joint_draws" in sample:
        return diag.pareto_khat(sample["log_joint_draws"], num_draws)
    return diag.pareto_khat_from_tail(sample["log_joint_tail"].values, num_draws)
