"""Estimates and diagnostics of a model's folds: diagnostics.zarr."""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import xarray as xr
from jaxtyping import Bool, Float, Int

from pcv.analysis import diagnostics as diag
from pcv.analysis import verdicts
from pcv.analysis.diagnostics import Benchmark, LogSums, Sides, TwoSided
from pcv.analysis.diagnostics.jackknife import shared
from pcv.analysis.results import reading
from pcv.analysis.results.scored import listed
from pcv.analysis.run_verdict import mixed, run_verdict
from pcv.analysis.samples import energy_sums, log_sums, sides_of
from pcv.base.monitor import SILENT, Monitor
from pcv.folds.joint_groups import names_of_terms

MAX_POINTS = 100
"""most points of progressive estimates: after every batch, or this many evenly spaced"""


def diagnose(
    samples: Sequence[xr.Dataset],
    folds: xr.Dataset,
    unit_names: np.ndarray,
    checks: xr.Dataset,
    rng: np.random.Generator,
    model: str,
    monitor: Monitor = SILENT,
) -> xr.Dataset:
    """Estimates and diagnostics of all folds of a model.

    Args:
        samples: the sample artifacts of all fold batches, in order.
        folds: the folds artifact.
        unit_names: names of the units.
        checks: group ``checks`` of the model's fit.
        rng: random generator for the benchmark.
        model: name of the model.
        monitor: takes messages.

    Returns:
        Dims: fold, slot; point (progressive estimates, coordinate: draws per chain); replicate
        (R-hat max benchmark); param (full-data fit).
    """
    predictive = samples[0].attrs["predictive"]
    superchains = int(samples[0].attrs["superchains"])
    test, ids = folds["test"].values, folds["fold"].values
    names = names_of_terms(folds, unit_names)
    present = names != ""
    chains, batches = (samples[0].sizes[dim] for dim in ("chain", "batch"))
    num_draws = np.concatenate([s["n_draws"].values for s in samples])
    khat = khats(samples)
    in_groups = list(reading.groups(samples))
    blocks, correlations = [], []
    for rows, part in in_groups:
        joint = log_sums([part], "joint")
        correlations.append(diag.autocorrelation(joint))
        blocks.append(_blocks(part, joint, present[rows]))
        monitor.log(f"read the sums of {rows.stop} of {len(ids)} folds")
    benchmark, unit_benchmark = (
        diag.mixing_benchmark(rng, LogSums(*map(np.concatenate, zip(*x))), superchains, monitor)
        for x in zip(*blocks)
    )
    del blocks
    inflation = diag.batch_inflation(np.sum(correlations, axis=0))
    batch_size = int(max(s["log_joint_count"][:, 0, 0].max() for s in samples))
    points = np.unique(np.linspace(1, batches, min(batches, MAX_POINTS)).round().astype(int))
    of_groups = []
    for rows, part in in_groups:
        of_groups.append(
            _fold_variables(
                part,
                present[rows],
                khat[rows],
                benchmark,
                unit_benchmark,
                predictive,
                superchains,
                points,
                (len(ids), int(present.sum())),
                inflation,
            )
        )
        monitor.log(f"diagnosed {rows.stop} of {len(ids)} folds")
    found = {
        name: (dims, np.concatenate([x[name][1] for x in of_groups]))
        for name, (dims, _) in of_groups[0].items()
    }
    shared_by = {
        f"{kind}_shared": shared(np.nan_to_num(found.pop(f"{kind}_full_deviation")[1].T))
        for kind in ("joint", "pointwise")
    }
    verdict = found["verdict"][1]
    (_, of_chains), (_, of_units) = (found.pop(f"{x}_verdict") for x in ("chains", "units"))
    (_, ess), (_, mcse) = found["joint_ess"], found["own_mcse"]
    (_, ess_at), (_, mcse_at) = found["ess_at"], found["own_mcse_at"]
    variables = {
        **found,
        "khat": ("fold", khat),
        "n_draws": ("fold", num_draws),
        "n_warmup": ("fold", np.concatenate([s["n_warmup"].values for s in samples])),
        "unit_name": (("fold", "slot"), np.where(test >= 0, unit_names[test], "").astype(str)),
        "joint_ess_total": diag.ess_total(ess, mcse),
        "joint_ess_total_at": ("point", diag.ess_total(ess_at, mcse_at)),
        "rhat_max": benchmark.observed,
        "rhat_limit": benchmark.limit,
        "benchmark": ("replicate", benchmark.replicates),
        "benchmark_share": benchmark.share_above,
        **_nested(benchmark),
        "fit_rhat": ("param", checks["rhat"].values),
        "fit_ess": ("param", checks["ess"].values),
    }
    on_chains = run_verdict(ids, of_chains, benchmark, superchains)
    on_units = run_verdict(
        names[present],
        of_units[present],
        unit_benchmark if mixed(benchmark) else None,
        superchains,
        ids[np.nonzero(present)[0]],
    )
    attributes = {
        "model": model,
        "predictive": predictive,
        "integration": samples[0].attrs["integration"],
        "outcome": samples[0].attrs["outcome"],
        "verdict": run_verdict(ids, verdict, benchmark, superchains),
        "units_verdict": on_units,
        "pointwise_verdict": " ".join(x for x in (on_chains, on_units) if x != "ok") or "ok",
        "num_chains": int(chains),
        "superchains": superchains,
        "given_tested": int(samples[0].attrs["given_tested"]),
        "simulated": int(samples[0].attrs.get("simulated", 0)),
        "log_lik_alone": int(samples[0].attrs.get("log_lik_alone", 0)),
        "rhat_is_nested": diag.nested_alone(benchmark, superchains) > 0,
        "num_draws": int(num_draws.max()),
        "batch_size": batch_size,
        "batch_inflation": inflation,
        "good_k": float(diag.good_k(int(chains * num_draws.max()))),
        **about_fit(checks),
        **shared_by,
    }
    if "joint_by" in folds:
        variables["group_name"] = ("fold", "slot"), names
        attributes["joint_by"] = folds["joint_by"].attrs["column"]
    coords = {"fold": ids, "point": points * batch_size, "param": checks["param"].values}
    return xr.Dataset(variables, coords, attributes)


def _nested(benchmark: Benchmark) -> dict[str, float]:
    """Nested R-hat max, where it is judged beside R-hat max."""
    if not (nested := benchmark.nested):
        return {}
    return {"nested_rhat_max": nested.observed, "nested_benchmark_share": nested.share_above}


def about_fit(checks: xr.Dataset) -> dict[str, Any]:
    """What attributes of the diagnostics say of the full-data fit."""
    divergences = checks["divergences"].item()  # NaN: unknown
    problems, warnings = (listed(checks.attrs[name]) for name in ("problems", "warnings"))
    return {
        "fit_verdict": "; ".join(problems + warnings) or "ok",
        "fit_divergences": divergences if np.isnan(divergences) else int(divergences),
        "fit_efmi": checks["efmi"].values.tolist(),
        "bad_fit": bool(problems),
    }


def _blocks(
    sample: xr.Dataset, joint: LogSums, present: Bool[np.ndarray, "fold slot"]
) -> tuple[LogSums, LogSums]:
    """Sums by block, of folds and of units, for the benchmarks."""
    found = [diag.coarsen(sums, diag.BLOCKS) for _, sums, _ in reading.slots(sample)]
    slots = LogSums(found[0].count, *(np.concatenate(x, axis=3) for x in list(zip(*found))[1:]))
    return diag.coarsen(joint, diag.BLOCKS), reading.units(slots, present)


class _UnitVariables(NamedTuple):
    """Variables of the units of some folds, by slot."""

    elpd: Float[np.ndarray, "fold slot"]
    ess: Float[np.ndarray, "fold slot"]
    rhat: Float[np.ndarray, "fold slot"]
    own_mcse: Float[np.ndarray, "fold slot"]
    elpd_at: Float[np.ndarray, "fold slot point"]
    verdict: np.ndarray
    own_verdict: np.ndarray


def _unit_variables(
    sample: xr.Dataset,
    present: Bool[np.ndarray, "fold slot"],
    tails: tuple[Float[np.ndarray, " fold"], Float[np.ndarray, " fold"]],
    faults: verdicts.Faults,
    benchmark: Benchmark,
    predictive: Literal["plain", "marginal", "either"],
    superchains: int,
    points: list[int],
    among: int,
    inflation: float,
    sides: Sides,
    joint_at: list[TwoSided],
) -> tuple[_UnitVariables, Int[np.ndarray, " fold"], list[TwoSided]]:
    """Variables by slot, numbers of units with a heavy tail, and the folds' pointwise scores at
    each point."""
    found, by_slots, heavy = [], [], np.zeros(len(present), int)
    alone = present.sum(axis=1) == 1
    for some, read, units in reading.slots(sample):
        there = present[:, some]
        padded = (np.where(there[:, None, None], x, np.nan) for x in read[1:])
        sums = LogSums(read.count, *padded)
        fold, each = np.nonzero(there)[0], reading.units(sums, there)
        khat, hidden = (np.where(alone, x, np.nan)[fold] for x in tails)
        at = [
            diag.two_sided_units(
                diag.first_batches(sums, p), joint, *diag.first_of_sides(sides, units, p), alone
            )
            for p, joint in zip(points, joint_at)
        ]
        carry = at[-1].carry[there]
        unit_faults = verdicts.faults(
            each,
            khat,
            np.zeros(len(fold)),
            benchmark,
            predictive,
            superchains,
            hidden=hidden,
            among=among,
            inflation=inflation,
            carry=carry,
        )
        verdict, own = np.full((2, *there.shape), "", dtype=object)
        verdict[there], own[there] = verdicts.of_units(unit_faults, faults, fold)
        is_heavy = verdicts.heavy_tail(each, khat, hidden, carry)
        heavy += np.bincount(fold[is_heavy], minlength=len(heavy))
        elpd_at = np.stack([x.elpd for x in at], axis=-1)
        ess, rhat = diag.ess(sums), diag.mixing(sums, diag.nested_alone(benchmark, superchains))
        own_mcse = np.sqrt(inflation) * diag.mcse(sums)
        found.append(
            _UnitVariables(at[-1].elpd, ess / inflation, rhat, own_mcse, elpd_at, verdict, own)
        )
        by_slots.append(at)
    summed = [
        x[0]._replace(
            own_deviation=sum(part.own_deviation for part in x),
            full_deviation=sum(part.full_deviation for part in x),
        )
        for x in zip(*by_slots)
    ]
    return _UnitVariables(*(np.concatenate(x, axis=1) for x in zip(*found))), heavy, summed


def _fold_variables(
    sample: xr.Dataset,
    present: Bool[np.ndarray, "fold slot"],
    khat: Float[np.ndarray, " fold"],
    benchmark: Benchmark,
    unit_benchmark: Benchmark,
    predictive: Literal["plain", "marginal", "either"],
    superchains: int,
    points: Int[np.ndarray, " point"],
    among: tuple[int, int],
    inflation: float,
) -> dict[str, tuple[Any, np.ndarray]]:
    """Variables of some folds, with their dimensions; `among`: numbers of all folds and units."""
    joint = log_sums([sample], "joint")
    diverged = sample["divergences"].sum(("chain", "batch"), min_count=1).values
    accepted = sample["acceptance"].mean(("chain", "batch")).values
    efmi = diag.efmi(**energy_sums([sample]))
    hidden = diag.hidden_variance(joint, sample["log_joint_m3"].values)
    sides = sides_of([sample])
    both_at = [
        diag.two_sided(
            diag.first_batches(joint, p), diag.first_of_sides(sides, None, p)[0], inflation
        )
        for p in points.tolist()
    ]
    both = both_at[-1]
    faults = verdicts.faults(
        joint,
        khat,
        diverged,
        benchmark,
        predictive,
        superchains,
        accepted,
        efmi,
        hidden,
        sample["integral_gap"].values if "integral_gap" in sample else None,
        sample["forgot"].values,
        among[0],
        inflation,
        both,
    )
    alone = diag.nested_alone(benchmark, superchains)
    joint_at = diag.progressive(joint, points, alone)
    units, heavy_units, summed_at = _unit_variables(
        sample,
        present,
        (khat, hidden),
        faults,
        unit_benchmark,
        predictive,
        superchains,
        points.tolist(),
        among[1],
        inflation,
        sides,
        both_at,
    )
    fold, fold_slot, fold_point = "fold", ("fold", "slot"), ("fold", "point")
    return {
        "joint_elpd": (fold, both.elpd),
        "joint_mcse": (fold, diag.two_sided_mcse(both, inflation)),
        "own_elpd": (fold, diag.elpd(joint)),
        "own_mcse": (fold, np.sqrt(inflation) * diag.mcse(joint)),
        "overlap": (fold, both.overlap),
        "crossings": (fold, both.carry),
        "gap": (fold, both.gap),
        "gap_p": (fold, both.gap_p),
        "hidden_variance": (fold, hidden),
        "joint_mcse_is_bound": (fold, verdicts.heavy_tail(joint, khat, hidden, both.carry)),
        "joint_ess": (fold, diag.ess(joint) / inflation),
        "rhat": (fold, diag.mixing(joint, alone)),
        **({"nested_rhat": (fold, diag.nested_rhat(joint, superchains))} if superchains else {}),
        "drift": (fold, diag.drift(joint)),
        "divergences": (fold, diverged),
        "acceptance": (fold, accepted),
        "efmi": (fold, efmi),
        "verdict": (fold, faults.words()),
        "chains_verdict": (fold, np.array(["; ".join(x) or "ok" for x in faults.chains])),
        "pointwise_elpd": (fold_slot, units.elpd),
        "pointwise_ess": (fold_slot, units.ess),
        "pointwise_rhat": (fold_slot, units.rhat),
        "pointwise_own_mcse": (fold_slot, units.own_mcse),
        "pointwise_verdict": (fold_slot, units.verdict.astype(str)),
        "units_verdict": (fold_slot, units.own_verdict.astype(str)),
        "pointwise_mcse": (fold, diag.two_sided_mcse(summed_at[-1], inflation)),
        "pointwise_mcse_is_bound": (fold, heavy_units > 0),
        "joint_elpd_at": (fold_point, np.stack([x.elpd for x in both_at], 1)),
        "joint_mcse_at": (fold_point, _mcse_at(both_at, inflation)),
        "own_mcse_at": (fold_point, np.sqrt(inflation) * joint_at.mcse),
        "rhat_at": (fold_point, joint_at.rhat),
        "ess_at": (fold_point, joint_at.ess / inflation),
        "pointwise_elpd_at": (("fold", "slot", "point"), units.elpd_at),
        "pointwise_mcse_at": (fold_point, _mcse_at(summed_at, inflation)),
        "joint_full_deviation": (("fold", "full_batch"), both.full_deviation),
        "pointwise_full_deviation": (("fold", "full_batch"), summed_at[-1].full_deviation),
    }


def _mcse_at(estimates: list[TwoSided], inflation: float) -> Float[np.ndarray, "fold point"]:
    return np.stack([diag.two_sided_mcse(x, inflation) for x in estimates], axis=1)


def with_batch_check(
    diagnostics: xr.Dataset, draws: Float[np.ndarray, "fold chain draw"]
) -> xr.Dataset:
    """Add ``batch_check`` (size), of `pcv.analysis.diagnostics.batch_size_check`.

    Args:
        diagnostics: of `diagnose`.
        draws: log likelihood of the test sets of some folds at full-data draws.
    """
    sizes = sorted({*diag.BATCH_SIZES, int(diagnostics.attrs["batch_size"])})
    found = diag.batch_size_check(draws, sizes)
    return diagnostics.assign(batch_check=("size", found)).assign_coords(size=sizes)


def khats(samples: Sequence[xr.Dataset]) -> Float[np.ndarray, " fold"]:
    """k-hat of all folds, from all their draws or the largest."""
    found = []
    for sample in samples:
        made = sample.sizes["chain"] * sample["n_draws"].values
        if "log_joint_draws" in sample:
            found.append(diag.pareto_khat(sample["log_joint_draws"], made))
        else:
            found.append(diag.pareto_khat_from_tail(sample["log_joint_tail"].values, made))
    return np.concatenate(found)
