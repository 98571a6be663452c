"""The comparison of all models of an experiment: comparison.zarr."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
import xarray as xr

from pcv.analysis import comparison as comparing
from pcv.analysis import diagnostics as diag
from pcv.analysis.comparison import Comparison, Scores
from pcv.analysis.results import frames, wording
from pcv.analysis.results.numbers import mcse_in_words, two_figures
from pcv.analysis.results.planned import needed
from pcv.analysis.results.scored import (
    KINDS,
    Kind,
    distinct_kinds,
    is_oriented,
    names_of_terms,
    scores,
    shared_scores,
)
from pcv.analysis.stopping.config import UntilConfig
from pcv.analysis.stopping.rule import needs_terms
from pcv.folds.sections.subsampling import GrowConfig


def trimmed(diagnostics: Mapping[str, xr.Dataset]) -> dict[str, xr.Dataset]:
    """Diagnostics at the lengths common to all models. Lengths that no fold of a model reached are
    dropped; a model that ended earlier keeps its last values."""
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
    others: list[Comparison]
    """by scores other than the log score"""

    @property
    def frame(self) -> pd.DataFrame:
        """The rows of comparison.csv."""
        rows = [x for x in self.comparisons.values() if x.kind == "joint" or not x.is_subsample]
        return frames.frame(rows)


def compare(
    diagnostics: Mapping[str, xr.Dataset],
    data: str,
    folds: str,
    reference: str | None,
    experiment: str,
    until: UntilConfig | None = None,
    grow: GrowConfig | None = None,
) -> Compared:
    """Compare the models of an experiment, jointly and pointwise, and over draws.

    Args:
        diagnostics: contents of each model's diagnostics artifact, by model name.
        data, folds: fingerprints that all models share.
        reference: the comparator, or None for the best model by the joint score.
        experiment: its name.
        until: the stopping rule, or None.
        grow: the rule by which a subsample grows, or None.

    Returns:
        The comparisons, and a dataset of dims kind, model, fold, unit, point, replicate.
    """
    diagnostics = trimmed(diagnostics)
    models = list(diagnostics)
    if reference is None:
        found = [scores(d, "joint", data, folds) for d in diagnostics.values()]
        reference = comparing.compare(found).reference
    comparisons: dict[Kind, Comparison] = {}
    by_kind = []
    for kind in KINDS:
        all_scores = [scores(d, kind, data, folds) for d in diagnostics.values()]
        comparisons[kind] = result = comparing.compare(all_scores, reference)
        at = _progressive(diagnostics, all_scores, result)
        fold_sums = [np.bincount(s.fold_of_term, s.elpd, len(s.fold)) for s in all_scores]
        fold_mcse = np.stack([s.mcse for s in all_scores])
        is_bound = np.stack([s.mcse_is_bound for s in all_scores])
        comparator = models.index(result.reference)
        is_other = np.arange(len(models))[:, None] != comparator
        fold_mcse_diff = np.where(is_other, np.hypot(fold_mcse, fold_mcse[comparator]), 0.0)
        by_model = [result.models.index(name) for name in models]
        columns = ["rank", "elpd", "se", "mcse", "mcse_is_bound", "elpd_diff", "dse", "dse_folds"]
        columns += ["mcse_diff", "mcse_diff_is_bound", "p_better"]
        columns += ["subsampling_se", "subsampling_dse"]
        columns += ["repeat_sd", "repeat_sd_diff"] * (result.repeats > 1)
        by_kind.append(
            xr.Dataset(
                {
                    **{name: ("model", getattr(result, name)[by_model]) for name in columns},
                    "fold_diff": (("model", "fold"), result.elpd_diff_folds[by_model]),
                    "fold_elpd": (("model", "fold"), np.stack(fold_sums)),
                    "fold_mcse": (("model", "fold"), fold_mcse),
                    "fold_mcse_is_bound": (("model", "fold"), is_bound),
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
        "predictive": wording.predictive_in_words(
            comparisons["joint"].models, comparisons["joint"].predictive
        ),
        "integration": ", ".join(
            dict.fromkeys(
                d.attrs["integration"] for d in diagnostics.values() if d.attrs["integration"]
            )
        ),
        "rhat_is_nested": first.attrs["rhat_is_nested"],
        "joint_by": pointwise.joint_by,
        "verdict": _verdict(comparisons, diagnostics),
        "until": _stopping(comparisons["joint"], diagnostics, until) if until else "",
        **{f"reference_{kind}": c.reference for kind, c in comparisons.items()},
    }
    if grow:
        dataset.attrs["until"] = _grown(comparisons["joint"], grow)
    others = []
    for score, kind in shared_scores(diagnostics):
        of_all = [scores(d, kind, data, folds, score) for d in diagnostics.values()]
        other = comparing.compare(of_all, reference)
        oriented = is_oriented(diagnostics, score, kind)
        others.append(other if oriented else without_differences(other))
    return Compared(comparisons, dataset, others)


def without_differences(c: Comparison) -> Comparison:
    """A comparison by a score of which higher is not better, such as coverage: values alone."""
    unknown = np.full(len(c.models), np.nan)
    return c._replace(
        rank=unknown,
        elpd_diff=unknown,
        dse=unknown,
        dse_folds=unknown,
        mcse_diff=unknown,
        mcse_diff_is_bound=np.zeros(len(c.models), bool),
        p_better=unknown,
    )


def _ess_of_differences(diagnostics: Mapping[str, xr.Dataset], comparator: str) -> np.ndarray:
    """Progressive ESS of the joint differences (model, point), NaN for the comparator."""
    curves = np.full((len(diagnostics), next(iter(diagnostics.values())).sizes["point"]), np.nan)
    for m, name in enumerate(diagnostics):
        if name != comparator:
            both = (diagnostics[name], diagnostics[comparator])
            ess, mcse = (
                np.concatenate([folds[of].values for folds in both])
                for of in ("ess_at", "own_mcse_at")
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


def below_the_joint_table(
    comparison: Comparison, diagnostics: Mapping[str, xr.Dataset]
) -> list[str]:
    """Notes on each model under the pointwise table, given that the joint table is above it."""
    said = []
    for name, words in zip(comparison.models, comparison.verdict):
        units = str(diagnostics[name].attrs["units_verdict"])
        said.append(words if words in ("ok", units) else f"as above. {units}".removesuffix(" ok"))
    return said


def _verdict(comparisons: Mapping[Kind, Comparison], diagnostics: Mapping[str, xr.Dataset]) -> str:
    """The joint comparison in words, and models of which only single units are flagged."""
    joint = comparisons["joint"]
    trust = dict(zip(joint.models, joint.verdict))
    if len(trust) > 1:
        words = wording.in_words(joint)
    else:
        mcse = mcse_in_words(joint.mcse[0], joint.mcse_is_bound[0])
        words = (
            f"The elpd of '{joint.models[0]}' is {joint.elpd[0]:.1f} (SE {joint.se[0]:.1f}, "
            + f"subsampling SE {two_figures(joint.subsampling_se[0])}, " * joint.is_subsample
            + f"MCSE {mcse}). "
            + (
                "No fold is flagged."
                if joint.verdict == ["ok"]
                else "It is flagged, see the table."
            )
        )
    units = [
        name
        for name in comparisons["pointwise"].models
        if diagnostics[name].attrs["units_verdict"] != "ok" and trust[name] == "ok"
    ]
    if not units or "pointwise" not in distinct_kinds(diagnostics):
        return words
    of, where = comparisons["pointwise"], "pointwise"
    if of.joint_by:
        where = "second"
    single = f"Single {comparing.noun(of)}s of {' and '.join(units)}"
    return f"{words} {single} are flagged, see the {where} table."


def _stopping(joint: Comparison, diagnostics: Mapping[str, xr.Dataset], until: UntilConfig) -> str:
    """Whether the comparison was settled, and after how many draws folds ended."""
    made = {name: d["n_draws"].values for name, d in diagnostics.items()}
    stopped = {name: int((number == until.max_draws).sum()) for name, number in made.items()}
    bound = {name: int(d["joint_mcse_is_bound"].sum()) for name, d in diagnostics.items()}
    each = [
        f"{name} {number.min()}"
        + f" to {number.max()}, {number.mean():.0f} on average" * bool(np.ptp(number))
        + f", {stopped[name]} of {number.size} folds stopped by max_draws"
        + f", {bound[name]} with only a lower bound on the MCSE" * bool(bound[name])
        for name, number in made.items()
    ]
    draws = f"Draws per chain: {'; '.join(each)}."
    if not until.of_comparison:
        return draws
    words = needed(joint, until).words
    if words != "settled" and any(stopped.values()):
        words += f", stopped by max_draws, {until.max_draws}"
    return f"cv.until: {words}. {draws}"


def _grown(joint: Comparison, grow: GrowConfig) -> str:
    """Whether a subsample is large enough, by its rule."""
    decide = grow.decide.probability if grow.decide else None
    words = needs_terms(joint, grow.subsampling_se_over_se, decide)
    return f"folds.until: {words}, with {joint.n_folds} terms."


def _progressive(
    diagnostics: Mapping[str, xr.Dataset], final: Sequence[Scores], result: Comparison
) -> dict[str, np.ndarray]:
    """Progressive comparison with the final comparator (model, point)."""
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
            present = np.ones(elpd.shape, bool) if kind == "joint" else names_of_terms(d) != ""
            so_far.append(s._replace(elpd=elpd[present], mcse=d[f"{kind}_mcse_at"].values[:, i]))
        then = comparing.compare(so_far, result.reference)
        order = [then.models.index(name) for name in models]
        for name, field in renamed.items():
            curves[name][:, i] = getattr(then, field)[order]
    return curves
