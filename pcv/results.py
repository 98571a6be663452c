"""What diagnostics.zarr and comparison.zarr hold, computed from the stored sums alone. No JAX."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import pandas as pd
import xarray as xr
from jaxtyping import Float

from pcv import comparison as comparing
from pcv import diagnostics as diag
from pcv import verdicts, wording
from pcv.comparison import Comparison, Scores
from pcv.config import Experiment, UntilConfig
from pcv.diagnostics import LogSums
from pcv.jackknife import Parts, batch_bootstrap, batch_jackknife
from pcv.stopping import Needs, Rule, finished, needs
from pcv.sums import energy_sums, log_sums, parts

if TYPE_CHECKING:
    from pcv.scores import Score

MAX_POINTS = 100
"""lengths at which progressive estimates are kept: after every batch, or that many evenly spaced"""

Kind = Literal["joint", "pointwise"]
KINDS: tuple[Kind, ...] = ("joint", "pointwise")


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


def plan(
    samples: Mapping[str, Sequence[xr.Dataset]],
    folds: xr.Dataset,
    until: UntilConfig,
    settings: Experiment,
    going: np.ndarray | None,
) -> xr.Dataset:
    """Which folds of which models need more draws for the comparison to be settled.

    Args:
        samples: by model, the samples so far of all batches of folds.
        folds: the folds artifact.
        until: the rule.
        settings: of the experiment.
        going: (model, fold), those that the round before went on with; None: all.

    Returns:
        ``more`` (model, fold); attribute ``words``.
    """
    joint = {name: log_sums(parts, "joint") for name, parts in samples.items()}
    first = next(iter(samples.values()))[0].attrs
    ids = folds["fold"].values.tolist()
    scored = [
        Scores(
            model=name,
            kind="joint",
            score="log",
            outcome=first["outcome"],
            predictive=first["predictive"],
            data="",
            folds="",
            fold=ids,
            elpd=diag.elpd(sums),
            mcse=diag.mcse(sums),
            fold_of_term=np.arange(len(ids)),
            term=ids,
            verdict="ok",
        )
        for name, sums in joint.items()
    ]
    compared = comparing.compare(scored, settings.compare.reference)
    wanted = _needs(compared, until)
    more = np.stack(
        [
            ~finished(
                joint[name],
                Rule(
                    np.full(len(ids), wanted.tolerance[compared.models.index(name)]),
                    until.rhat,
                    settings.cv.num_superchains,
                ),
            )
            for name in samples
        ]
    )
    return xr.Dataset(
        {"more": (("model", "fold"), more if going is None else more & going)},
        {"model": list(samples), "fold": ids},
        {"words": wanted.words},
    )


def _needs(joint: Comparison, until: UntilConfig) -> Needs:
    return needs(joint, until.mcse_over_se, until.decide.probability if until.decide else None)


def listed(attribute: Any) -> list[str]:
    """A list that was stored as an attribute: one of a single text comes back as the text."""
    return [attribute] if isinstance(attribute, str) else list(attribute)


def _khat(sample: xr.Dataset, num_draws: np.ndarray) -> np.ndarray:
    if "log_joint_draws" in sample:
        return diag.pareto_khat(sample["log_joint_draws"], num_draws)
    return diag.pareto_khat_from_tail(sample["log_joint_tail"].values, num_draws)


def scores(
    diagnostics: xr.Dataset, kind: Kind, data: str, folds: str, score: str = "log"
) -> Scores:
    """A model's scores, as `pcv.comparison.compare` takes them.

    Args:
        diagnostics: the contents of a diagnostics artifact.
        kind: joint or pointwise.
        data, folds: fingerprints of the data and the folds that were scored.
        score: name of the score.
    """
    names = diagnostics["fold"].values
    units = diagnostics["unit_name"].values
    present = units != ""
    joint = kind == "joint"
    variable = diagnostics[f"{kind}_elpd" if score == "log" else f"{score}_{kind}"]
    mcse = diagnostics[f"{kind}_mcse" if score == "log" else f"{score}_{kind}_mcse"].values
    terms = variable.values if joint else variable.values[present]
    slope, constant = _in_total(terms, str(variable.attrs.get("total", "sum")))
    return Scores(
        model=diagnostics.attrs["model"],
        kind=kind,
        score=score,
        outcome=diagnostics.attrs["outcome"],
        predictive=diagnostics.attrs["predictive"],
        data=data,
        folds=folds,
        fold=names.tolist(),
        elpd=constant + slope * terms,
        mcse=slope * mcse,
        fold_of_term=np.arange(len(names)) if joint else np.nonzero(present)[0],
        term=names.tolist() if joint else units[present].tolist(),
        verdict=_trust(diagnostics, kind) if score == "log" else _note(diagnostics, score, kind),
        shared=float(diagnostics.attrs.get(f"{kind}_shared", 0.0)) if score == "log" else 0.0,
    )


def _note(diagnostics: xr.Dataset, score: str, kind: Kind) -> str:
    """What is to be said of a score besides the log score, or of the chains of all."""
    keys, notes = (listed(diagnostics.attrs[name]) for name in ("scores", "score_notes"))
    own, chains = dict(zip(keys, notes))[f"{score}_{kind}"], _trust(diagnostics, kind)
    return " ".join(words for words in (own, chains) if words != "ok") or "ok"


def _in_total(terms: np.ndarray, total: str) -> tuple[float, float]:
    r"""Slope and constant that make terms add up to the model's score, with its errors.

    A function g of the mean of T terms :math:`x_i` is the sum of
    :math:`g(\bar x)/T + g'(\bar x)(x_i - \bar x)/T`, and to first order has its SE and MCSE.
    """
    size = len(terms)
    if total == "sum":
        return 1.0, 0.0
    if total == "mean":
        return 1 / size, 0.0
    assert total == "root mean"
    mean = terms.mean()
    with np.errstate(invalid="ignore", divide="ignore"):
        root = np.sqrt(-mean)
        return 1 / (2 * root * size), (-root - mean / (2 * root)) / size


def _trust(diagnostics: xr.Dataset, kind: Kind) -> str:
    """The verdict on the chains of all folds, after that on the full-data fit if it is bad."""
    chains = diagnostics.attrs["verdict" if kind == "joint" else "pointwise_verdict"]
    if not diagnostics.attrs["bad_fit"]:
        return chains
    fit = f"The full-data fit is bad: {diagnostics.attrs['fit_verdict']}."
    return fit if chains == "ok" else f"{fit} {chains}"


def distinct_kinds(diagnostics: Mapping[str, xr.Dataset]) -> list[Kind]:
    """The kinds of scores that differ: joint alone where every fold leaves out one unit."""
    return ["joint"] if all(d.sizes["slot"] == 1 for d in diagnostics.values()) else list(KINDS)


def trimmed(diagnostics: Mapping[str, xr.Dataset]) -> dict[str, xr.Dataset]:
    """The same at the lengths after which every model was looked at, or had ended: those that no
    fold reached are left out, and a model that ended keeps its last values."""
    reached = [
        d.isel(point=slice(int((d["point"] < d["n_draws"].max()).sum()) + 1))
        for d in diagnostics.values()
    ]
    lengths = [d["point"].values for d in reached]
    common = [
        n
        for n in np.unique(np.concatenate(lengths)).tolist()
        if all(n in own or n > own[-1] for own in lengths)
    ]
    return {
        name: d.sel(point=common, method="ffill").assign_coords(point=common)
        for name, d in zip(diagnostics, reached)
    }


class Compared(NamedTuple):
    """All comparisons of an experiment."""

    comparisons: dict[Kind, Comparison]
    dataset: xr.Dataset
    frame: pd.DataFrame
    others: list[Comparison]
    """by scores besides the log score"""


def compare(
    diagnostics: Mapping[str, xr.Dataset],
    data: str,
    folds: str,
    reference: str | None,
    experiment: str,
    until: UntilConfig | None = None,
) -> Compared:
    """The models of an experiment side by side, joint and pointwise, and over draws.

    Args:
        diagnostics: contents of the diagnostics artifact of each model, by its name.
        data, folds: fingerprints that all models share.
        reference: the comparator, or None for the best model.
        experiment: its name.
        until: what ended the folds, or None.

    Returns:
        The comparisons, their rows for comparison.csv, and a dataset of dims kind, model, fold,
        unit, point, replicate.
    """
    diagnostics = trimmed(diagnostics)
    models = list(diagnostics)
    comparisons: dict[Kind, Comparison] = {}
    by_kind = []
    for kind in KINDS:
        all_scores = [scores(d, kind, data, folds) for d in diagnostics.values()]
        comparisons[kind] = result = comparing.compare(all_scores, reference)
        at = _progressive(diagnostics, all_scores, result)
        fold_sums = [np.bincount(s.fold_of_term, s.elpd, len(s.fold)) for s in all_scores]
        fold_mcse = np.stack([s.mcse for s in all_scores])
        comparator = models.index(result.reference)
        is_other = np.arange(len(models))[:, None] != comparator
        fold_mcse_diff = np.where(is_other, np.hypot(fold_mcse, fold_mcse[comparator]), 0.0)
        by_model = [result.models.index(name) for name in models]
        columns = ("rank", "elpd", "se", "mcse", "elpd_diff", "dse", "dse_folds", "mcse_diff")
        by_kind.append(
            xr.Dataset(
                {
                    **{
                        name: ("model", getattr(result, name)[by_model])
                        for name in (*columns, "p_better")
                    },
                    "fold_diff": (("model", "fold"), result.elpd_diff_folds[by_model]),
                    "fold_elpd": (("model", "fold"), np.stack(fold_sums)),
                    "fold_mcse": (("model", "fold"), fold_mcse),
                    "fold_mcse_diff": (("model", "fold"), fold_mcse_diff),
                    **{name: (("model", "point"), x) for name, x in at.items()},
                }
            )
        )
    dataset = xr.concat(by_kind, xr.DataArray(list(KINDS), dims="kind", name="kind"))
    pointwise = comparisons["pointwise"]
    order = [pointwise.models.index(name) for name in models]
    dataset["unit_diff"] = (("model", "unit"), pointwise.elpd_diff_terms[order])
    dataset["rhat_max"] = np.max([float(d["rhat_max"]) for d in diagnostics.values()])
    if all("ess_at" in d for d in diagnostics.values()):
        dataset["ess_diff_at"] = (
            ("model", "point"),
            _ess_of_differences(diagnostics, comparisons["joint"].reference),
        )
    if all("benchmark" in d for d in diagnostics.values()):
        benchmark = _benchmark(diagnostics)
        dataset["benchmark"] = ("replicate", benchmark.replicates)
        dataset["benchmark_share"] = benchmark.share_above
    first = next(iter(diagnostics.values()))
    dataset = dataset.assign_coords(
        model=models, fold=first["fold"].values, point=first["point"].values, unit=pointwise.term
    )
    dataset.attrs = {
        "experiment": experiment,
        "outcome": first.attrs["outcome"],
        "predictive": comparisons["joint"].predictive,
        "integration": ", ".join(
            dict.fromkeys(
                d.attrs["integration"] for d in diagnostics.values() if d.attrs["integration"]
            )
        ),
        "superchains": first.attrs["superchains"],
        "verdict": _verdict(comparisons, "pointwise" in distinct_kinds(diagnostics)),
        "until": _ended(comparisons["joint"], diagnostics, until) if until else "",
        **{f"reference_{kind}": c.reference for kind, c in comparisons.items()},
    }
    others = [
        comparing.compare(
            [scores(d, kind, data, folds, score) for d in diagnostics.values()], reference
        )
        for score, kind in _shared_scores(diagnostics)
    ]
    return Compared(comparisons, dataset, wording.frame(list(comparisons.values())), others)


def _ess_of_differences(diagnostics: Mapping[str, xr.Dataset], comparator: str) -> np.ndarray:
    """ESS of the joint differences from the draws so far (model, point), NaN of the comparator."""
    curves = np.full((len(diagnostics), next(iter(diagnostics.values())).sizes["point"]), np.nan)
    for m, name in enumerate(diagnostics):
        if name != comparator:
            both = (diagnostics[name], diagnostics[comparator])
            ess, mcse = (
                np.concatenate([folds[of].values for folds in both])
                for of in ("ess_at", "joint_mcse_at")
            )
            curves[m] = diag.ess_total(ess, mcse)
    return curves


def _benchmark(diagnostics: Mapping[str, xr.Dataset]) -> diag.Benchmark:
    return diag.benchmark_of_models(
        [
            diag.Benchmark(
                float(d["rhat_max"]),
                d["benchmark"].values,
                float(d["benchmark_share"]),
                float(d["rhat_limit"]),
            )
            for d in diagnostics.values()
        ]
    )


def _shared_scores(diagnostics: Mapping[str, xr.Dataset]) -> list[tuple[str, Kind]]:
    """Names and kinds of the scores besides the log score that all models have."""
    first, *others = (listed(d.attrs.get("scores", [])) for d in diagnostics.values())
    keys = [key for key in first if all(key in other for other in others)]
    return [(name, kind) for name, kind in (key.rsplit("_", 1) for key in keys)]  # type: ignore[misc]


def _verdict(comparisons: Mapping[Kind, Comparison], by_unit: bool) -> str:
    """The joint comparison in words, and of which models single units are flagged alone."""
    joint = comparisons["joint"]
    trust = dict(zip(joint.models, joint.verdict))
    if len(trust) > 1:
        words = wording.in_words(joint)
    else:
        words = (
            f"The elpd of '{joint.models[0]}' is {joint.elpd[0]:.1f} (SE {joint.se[0]:.1f}, "
            f"MCSE {joint.mcse[0]:.2f}). "
            + ("No fold is flagged." if joint.verdict == ["ok"] else joint.verdict[0])
        )
    units = [
        name
        for name, said in zip(comparisons["pointwise"].models, comparisons["pointwise"].verdict)
        if by_unit and said != "ok" and trust[name] == "ok"
    ]
    if not units:
        return words
    return f"{words} Single units of {' and '.join(units)} are flagged, see the pointwise table."


def _ended(joint: Comparison, diagnostics: Mapping[str, xr.Dataset], until: UntilConfig) -> str:
    """Was the comparison settled, and after how many draws did the folds end?"""
    made = {name: d["n_draws"].values for name, d in diagnostics.items()}
    stopped = {name: int((number == until.max_draws).sum()) for name, number in made.items()}
    each = [
        f"{name} {number.min()}"
        + f" to {number.max()}, {number.mean():.0f} on average" * bool(np.ptp(number))
        + f", {stopped[name]} of {number.size} folds stopped by max_draws"
        for name, number in made.items()
    ]
    draws = f"Draws per chain: {'; '.join(each)}."
    if not until.of_comparison:
        return draws
    words = _needs(joint, until).words
    if words != "settled" and any(stopped.values()):
        words += f", stopped by max_draws, {until.max_draws}"
    return f"cv.until: {words}. {draws}"


def _progressive(
    diagnostics: Mapping[str, xr.Dataset], final: Sequence[Scores], result: Comparison
) -> dict[str, np.ndarray]:
    """The comparison from the draws so far, against the final comparator (model, point)."""
    kind = result.kind
    models = [s.model for s in final]
    num_points = next(iter(diagnostics.values())).sizes["point"]
    renamed = {
        "elpd_at": "elpd",
        "se_at": "se",
        "mcse_at": "mcse",
        "diff_at": "elpd_diff",
        "dse_at": "dse",
        "mcse_diff_at": "mcse_diff",
        "p_better_at": "p_better",
    }
    curves = {name: np.full((len(models), num_points), np.nan) for name in renamed}
    for i in range(num_points):
        so_far = []
        for s, d in zip(final, diagnostics.values()):
            elpd = d[f"{kind}_elpd_at"].values[..., i]
            present = np.ones(elpd.shape, bool) if kind == "joint" else d["unit_name"].values != ""
            so_far.append(s._replace(elpd=elpd[present], mcse=d[f"{kind}_mcse_at"].values[:, i]))
        then = comparing.compare(so_far, result.reference)
        order = [then.models.index(name) for name in models]
        for name, field in renamed.items():
            curves[name][:, i] = getattr(then, field)[order]
    return curves
