"""The cross-validation of one model as text, as rows by fold, and in ArviZ's type. No JAX.

`scores` are the terms of the score shown, of `pcv.analysis.results.scores`; `diagnostics` the
content of diagnostics.zarr.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import xarray as xr
from jaxtyping import Float
from scipy.special import logsumexp

from pcv.analysis import comparison
from pcv.analysis.comparison import Scores
from pcv.analysis.results import notes as notes_of
from pcv.analysis.results import scored as reading
from pcv.analysis.results import wording
from pcv.analysis.results.numbers import mcse_in_words
from pcv.analysis.results.scored import Kind
from pcv.base.errors import PcvError
from pcv.base.storable import true_names

if TYPE_CHECKING:
    from arviz_stats import ELPDData


def summary(
    diagnostics: xr.Dataset,
    scores: Scores,
    title: str,
    p: float,
    marks: Sequence[str],
) -> str:
    """The cross-validation of a model as text.

    Args:
        diagnostics, scores: of the model.
        title: the scheme and its folds, in words.
        p: effective number of parameters; NaN: unknown.
        marks: caveats of the full-data fit.
    """
    d, name = diagnostics, diagnostics.attrs["model"]
    mcse = mcse_in_words(comparison.total_mcse(scores), bool(np.any(scores.mcse_is_bound)))
    total = comparison.total(scores)
    if is_subsample(d):
        n, strata = (d.sizes[dim] for dim in ("any_term", "any_stratum"))
        title = f"{d.sizes['fold']} of {n} {d.attrs['terms']} left out, chosen at random"
        title += f" in {strata} strata" * (strata > 1)
    lines = [
        f"{name}: {title}",
        f"{wording.kind_in_words(scores)} of {d.attrs['outcome']}, {_predictive(d)}, {_draws(d)}",
        "",
    ]
    if is_subsample(d):
        lines[1] += f"; surrogate {d.attrs['surrogate']}"
        lines.append(notes_of.errors_apart(total, mcse))
    else:
        lines += [
            f"{'':12}{'Estimate':>10}{'SE':>8}{'MCSE':>8}",
            f"{'elpd':12}{total.elpd:10.1f} {total.se:7.1f} {mcse:>7}",
        ]
    if not np.isnan(p):
        lines.append(f"{'p':12}{p:10.1f}")
    for key in reading.listed(d.attrs.get("scores", [])):
        score, _, kind = key.rpartition("_")
        of_kind = other_score(d, score, "joint" if kind == "joint" else "pointwise")
        estimate, se, error = of_kind
        key += ", path" * ("predict" in d[key].attrs)
        lines.append(f"{key:20}  {estimate:.4g}  (SE {se:.2g}, MCSE {error:.2g})")
    return "\n".join([*lines, "", *map(wording.wrapped, _notes(d, scores, marks))])


def _notes(d: xr.Dataset, scores: Scores, marks: Sequence[str]) -> list[str]:
    """Whether the computation can be trusted, and what there is to know besides."""
    trust = "all folds are ok" if scores.verdict == "ok" else scores.verdict
    if not np.isnan(d["rhat_max"]):
        rhat = reading.rhat_max_in_words(d)
        trust = f"{rhat[0].upper()}{rhat[1:]}: {trust}"
    notes = [d.attrs["subspace"]] if "subspace" in d.attrs else []
    if "mixture" in d.attrs:
        notes.insert(0, "R-hat, k-hat, ESS and overlap of a fold are the worst of the models'.")
        notes.append(d.attrs["mixture"])
    if estimator := wording.estimator_in_words(d):
        notes.insert(0, estimator)
    notes += [f"{x}." for x in notes_of.single_note(len(scores.term), scores.kind)]
    notes += [f"{x}." for x in notes_of.overlap_note(scores.overlap, len(scores.term))]
    notes += [f"{x}." for x in notes_of.repeat_notes(comparison.compare([scores]))]
    notes += [f"P{notes_of.GIVEN_TESTED[1:]}."] * scores.given_tested
    notes += [d.attrs[name] for name in ("predictions", "calibration") if name in d.attrs]
    lines = [trust, *notes, *(f"Warning: {mark}" for mark in marks)]
    if is_subsample(d):
        errors = notes_of.error_notes(comparison.compare([scores]))
        grown = [f"{d.attrs['until']}."] if "until" in d.attrs else []
        lines = [f"Exact terms: {lines[0]}", *lines[1:], *grown, *errors]
    return lines


def is_subsample(diagnostics: xr.Dataset) -> bool:
    """Whether only some of all terms are scored."""
    return "chosen" in diagnostics


def _draws(d: xr.Dataset) -> str:
    """Where the folds' draws come from."""
    if "mixture" in d.attrs:
        weight = d["weight"].mean("fold")
        each = [f"{w:.2f} {name}" for name, w in zip(d["component"].values, weight.values)]
        return f"mixture of {', '.join(each)}"
    if "source" not in d:
        number = int(d["n_draws"].values.max())
        return f"{d.attrs['num_chains']} chains x {number} draws each"
    sampled = int((d["source"].values == "mcmc").sum())
    if not sampled:
        return f"PSIS from the full-data fit, largest k-hat {float(d['khat'].max()):.2f}"
    if sampled == d.sizes["fold"]:
        return "all folds sampled"
    return f"PSIS from the full-data fit for {d.sizes['fold'] - sampled} folds, {sampled} sampled"


def _predictive(d: xr.Dataset) -> str:
    if d.attrs["predictive"] != "marginal":
        return "plain predictive"
    return f"marginal predictive (integrated {d.attrs['integration']})"


def other_score(diagnostics: xr.Dataset, name: str, kind: Kind) -> pd.Series:
    """Estimate, SE and MCSE of a score besides the log score.

    Raises:
        PcvError: it was not computed.
    """
    names = reading.listed(diagnostics.attrs.get("scores", []))
    if f"{name}_{kind}" not in names:
        there = f"there are {', '.join(names)}" if names else f"request it: scores=['{name}']"
        if diagnostics.attrs.get("log_lik_alone"):
            there = "log likelihoods alone have the log score"
        if "mixture" in diagnostics.attrs:
            there = "a mixture has the log score, and predictions"
        raise PcvError(f"no {kind} score '{name}'; {there}")
    scores = reading.scores(diagnostics, kind, "", "", name)
    total, mcse = comparison.total(scores), comparison.total_mcse(scores)
    return pd.Series({"estimate": total.elpd, "se": total.se, "mcse": mcse}, name=name)


def folds_frame(diagnostics: xr.Dataset, kind: Kind) -> pd.DataFrame:
    """One row per fold: estimates of the score, and diagnostics."""
    names = ["rhat", "khat", "overlap", "divergences", "acceptance", "efmi", "n_draws", "verdict"]
    names += ["source"] * ("source" in diagnostics)
    of_kind = {
        "elpd": diagnostics[f"{kind}_elpd"],
        "mcse": diagnostics[f"{kind}_mcse"],
        "mcse_is_bound": diagnostics[f"{kind}_mcse_is_bound"],
        "ess": diagnostics["joint_ess"],
    }
    if kind == "pointwise":
        of_kind["elpd"] = of_kind["elpd"].sum("slot")
    if is_subsample(diagnostics):
        of_kind["surrogate"] = diagnostics["surrogate"][diagnostics["chosen"].values]
    return pd.DataFrame(
        {name: x.values for name, x in of_kind.items()}
        | {name: diagnostics[name].values for name in names},
        pd.Index(diagnostics["fold"].values, name="fold"),
    )


def order_of_terms(test: np.ndarray, scores: Scores) -> np.ndarray:
    """Places of the terms: of units in the order of the data, of folds and groups as they are."""
    if scores.kind == "joint" or scores.joint_by:
        return np.arange(len(scores.elpd))
    return np.argsort(test[test >= 0], kind="stable")


def log_predictive_density(tree: xr.DataTree, scores: Scores) -> Float[np.ndarray, " term"]:
    """Log predictive density of every term under the full-data posterior; NaN for targets, log
    likelihoods that are not stored, the marginal predictive, and groups."""
    if scores.predictive == "marginal" or "log_likelihood" not in tree or scores.joint_by:
        return np.full(len(scores.elpd), np.nan)
    draws = true_names(tree["log_likelihood"].to_dataset())[tree.attrs["outcome"]]
    by_unit = draws.stack(draw_of=("chain", "draw")).values
    stats = tree["sample_stats"].dataset
    weight = np.zeros(by_unit.shape[1])
    if "log_weight" in stats:
        weight = stats["log_weight"].stack(draw_of=("chain", "draw")).values
    test = tree["folds"].dataset["test"].values
    if scores.kind == "joint":
        terms = np.stack([by_unit[units[units >= 0]].sum(0) for units in test])
    else:
        terms = by_unit[test[test >= 0]]
    return logsumexp(terms + weight, axis=1) - logsumexp(weight)


def elpd_data(tree: xr.DataTree, scores: Scores, p: float) -> "ELPDData":
    """The score in ArviZ's type, terms in the order of the data.

    Args:
        tree: with the groups "diagnostics" and "folds".
        scores: of the model.
        p: effective number of parameters.
    """
    from arviz_stats.utils import ELPDDataLOOKFold

    diagnostics, test = tree["diagnostics"].dataset, tree["folds"].dataset["test"].values
    order = order_of_terms(test, scores)
    terms, dim = np.asarray(scores.elpd)[order] / scores.repeats, comparison.noun(scores)
    coords = {dim: np.array(scores.term)[order]}
    khat, of_term = diagnostics["khat"], scores.fold_of_term[order]
    if len(order) == khat.size:  # folds of one unit each: in the order of the terms
        khat = xr.DataArray(khat.values[of_term], coords, dim)
    lpd = log_predictive_density(tree, scores) / scores.repeats
    se = float(np.sqrt(terms.size * terms.var())) if terms.size > 1 else np.nan
    return ELPDDataLOOKFold(
        elpd=float(terms.sum()),
        se=se if scores.overlap is None else comparison.total(scores).se,
        p=p,
        n_samples=int(diagnostics.attrs["num_chains"] * diagnostics["n_draws"].max()),
        n_data_points=terms.size,
        scale="log",
        warning=scores.verdict != "ok",
        good_k=float(diagnostics.attrs["good_k"]),
        pareto_k=khat.rename("pareto_k"),
        elpd_i=xr.DataArray(terms, coords, dim, "elpd_i"),
        n_folds=diagnostics.sizes["fold"],
        p_kfold_i=xr.DataArray(lpd[order] - terms, coords, dim, "p_kfold_i"),
    )
