"""A model's scores, read from its diagnostics."""

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import xarray as xr

from pcv.analysis.comparison import Scores
from pcv.analysis.standard_errors import Overlap, overlap_of
from pcv.analysis.subsampling import Subsample

Kind = Literal["joint", "pointwise"]
Predict = Literal["conditional", "path", "either"]
KINDS: tuple[Kind, ...] = ("joint", "pointwise")


def listed(attribute: Any) -> list[str]:
    """A list of strings stored as an attribute: one of length 1 comes back as a string."""
    return [attribute] if isinstance(attribute, str) else list(attribute)


def scores(
    diagnostics: xr.Dataset, kind: Kind, data: str, folds: str, score: str = "log"
) -> Scores:
    """A model's scores, as input to `pcv.analysis.comparison.compare`.

    Terms of a subsample are scored as a whole, so that both kinds are joint.

    Args:
        diagnostics: the contents of a diagnostics artifact.
        kind: joint or pointwise.
        data, folds: fingerprints of the scored data and folds.
        score: name of the score.
    """
    names = diagnostics["fold"].values
    units = names_of_terms(diagnostics, score)
    present = units != ""
    chosen, surrogate = _subsample(diagnostics)
    joint = kind == "joint" or chosen is not None
    of = "joint" if joint else kind
    is_log = score == "log" or (score == "log_path" and "log_path_pointwise" not in diagnostics)
    variable = diagnostics[f"{of}_elpd" if is_log else f"{score}_{of}"]
    mcse = diagnostics[f"{of}_mcse" if is_log else f"{score}_{of}_mcse"].values
    linear = diagnostics.get(f"{score}_{of}_linear", variable).values
    terms = linear if joint else linear[present]
    grouped = not joint and score == "log" and "group_name" in diagnostics
    overlap = _overlap(units) if chosen is None and "group_name" not in diagnostics else None
    total = str(variable.attrs.get("total", "sum"))
    slope, constant = linearised(terms, total, overlap.repeats if overlap else 1)
    given = predict_of(diagnostics, of, score)
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
        verdict=_verdict(diagnostics, of) if is_log else _note(diagnostics, score, of),
        mcse_is_bound=diagnostics[f"{of}_mcse_is_bound"].values if is_log else False,
        shared=float(diagnostics.attrs.get(f"{of}_shared", 0.0)) if is_log else 0.0,
        chosen=chosen,
        surrogate=surrogate,
        given_tested=given == "conditional",
        predict=given,
        overlap=overlap,
        joint_by=diagnostics.attrs["joint_by"] if grouped else "",
    )


def predict_of(diagnostics: xr.Dataset, kind: str, score: str) -> Predict:
    """What a model's predictions of a unit are given: the outcomes of others that its fold tests as
    observed ("conditional"), simulated ones ("path"), or none ("either": both are the same).

    Args:
        diagnostics: of the model.
        kind, score: by which they are scored. The joint log score is that of the whole test set.
    """
    if score != "log" and diagnostics.attrs.get("simulated", 0):
        of_score = diagnostics.get(f"{score}_{kind}")
        if of_score is not None and "predict" in of_score.attrs:
            return "path"
    lagged = kind == "pointwise" and diagnostics.attrs["given_tested"] > 0
    return "conditional" if lagged else "either"


def names_of_terms(diagnostics: xr.Dataset, score: str = "log") -> np.ndarray:
    """Names of the terms within folds by slot: units, or, of the log score, the groups of
    `joint_by`; "" in slots without one."""
    grouped = score == "log" and "group_name" in diagnostics
    names: np.ndarray = diagnostics["group_name" if grouped else "unit_name"].values
    return names


def _overlap(units: np.ndarray) -> Overlap | None:
    """How test sets overlap, from the names of tested units (fold, slot)."""
    fold, slot = np.nonzero(units != "")
    _, unit = np.unique(units[fold, slot], return_inverse=True)
    return overlap_of(unit, fold)


def cumulated(diagnostics: xr.Dataset, p: int, score: str = "log") -> Scores:
    r"""A model's terms of the cumulative score, one per fold, from pointwise scores s.

    .. math:: \hat S_\mathrm{CCV}(P) = \frac{P}{T} \sum_{t=1}^T \frac{1}{p_t}
              \sum_{j=1}^{p_t} s(y_{tj} \mid y_{\mathrm{train}, t})

    for T random test sets of :math:`p_t` units, with :math:`p_t` uniform on 1, …, P; the error is
    that of the choice of sets. Fong and Holmes (2020, appendix A.5).

    Args:
        diagnostics: the contents of a diagnostics artifact.
        p: largest number of units left out, P.
        score: whose model score is the sum or the mean over units.
    """
    name, error = f"{score}_pointwise", f"{score}_pointwise_mcse"
    if score == "log":
        name, error = "pointwise_elpd", "pointwise_mcse"
    there = diagnostics["unit_name"].values != ""
    size = there.sum(axis=1)
    per_unit = p / len(size) / size
    whole = scores(diagnostics, "pointwise", "", "", score)
    names = diagnostics["fold"].values.tolist()
    return whole._replace(
        fold=names,
        term=names,
        fold_of_term=np.arange(len(names)),
        elpd=per_unit * np.where(there, diagnostics[name].values, 0.0).sum(axis=1),
        mcse=per_unit * diagnostics[error].values,
        overlap=None,  # the error is that of the choice of sets
        shared=whole.shared * (p / size.sum()) ** 2,  # in proportion to numbers of units
    )


def _subsample(diagnostics: xr.Dataset) -> tuple[Subsample | None, np.ndarray | None]:
    """Which of all terms the folds score, and the surrogate of all; None if they score all."""
    if "chosen" not in diagnostics:
        return None, None
    d = diagnostics
    chosen = Subsample(*(d[name].values for name in ("chosen", "stratum", "stratum_size")))
    return chosen, d["surrogate"].values


def on_subspaces(diagnostics: Mapping[str, xr.Dataset]) -> list[str]:
    """What is known of the models whose chains moved on a subspace, in sentences."""
    return [
        f"'{name}': {d.attrs['subspace']}"
        for name, d in diagnostics.items()
        if "subspace" in d.attrs
    ]


def on_mixtures(diagnostics: Mapping[str, xr.Dataset]) -> list[str]:
    """What is to be known of mixtures of models, in sentences."""
    return [
        f"'{name}': {d.attrs['mixture']}" for name, d in diagnostics.items() if "mixture" in d.attrs
    ]


def on_predictions(diagnostics: Mapping[str, xr.Dataset]) -> list[str]:
    """Which models have no predictions, fewer than wanted, or such that are not calibrated, in
    sentences."""
    return [
        f"'{name}': {d.attrs[note]}"
        for name, d in diagnostics.items()
        for note in ("predictions", "calibration")
        if note in d.attrs
    ]


def shared_scores(diagnostics: Mapping[str, xr.Dataset]) -> list[tuple[str, Kind]]:
    """Names and kinds of scores other than the log score that all models have."""
    first, *others = map(_score_keys, diagnostics.values())
    keys = [key for key in first if all(key in other for other in others)]
    if not any("log_path_pointwise" in d for d in diagnostics.values()):
        keys = [key for key in keys if key != "log_path_pointwise"]
    return [(name, kind) for name, kind in (key.rsplit("_", 1) for key in keys)]  # type: ignore[misc]


def _score_keys(diagnostics: xr.Dataset) -> list[str]:
    """Keys of a model's scores; the path's log score of one that reads no tested outcomes is its
    pointwise one."""
    keys = listed(diagnostics.attrs.get("scores", []))
    own = "log_path_pointwise" in keys or diagnostics.attrs["given_tested"]
    return keys if own else [*keys, "log_path_pointwise"]


def is_oriented(diagnostics: Mapping[str, xr.Dataset], score: str, kind: Kind) -> bool:
    """Whether higher is better by a score other than the log score."""
    name = f"{score}_{kind}"
    return not any(name in d and "oriented" in d[name].attrs for d in diagnostics.values())


def _note(diagnostics: xr.Dataset, score: str, kind: Kind) -> str:
    """The verdict on a score other than the log score, and on the chains of all folds."""
    keys, notes = (listed(diagnostics.attrs[name]) for name in ("scores", "score_notes"))
    own, chains = dict(zip(keys, notes))[f"{score}_{kind}"], _verdict(diagnostics, kind)
    return " ".join(words for words in (own, chains) if words != "ok") or "ok"


def linearised(terms: np.ndarray, total: str, repeats: int) -> tuple[float, float]:
    r"""Slope and constant by which the transformed terms sum to the model's score, or to R times
    the score, of R repeats.

    A function g of the mean of T terms :math:`x_i` equals the sum of
    :math:`g(\bar x)/T + g'(\bar x)(x_i - \bar x)/T`, whose SE and MCSE are those of g to first
    order.
    """
    size = len(terms) / repeats
    if total == "function":  # whose terms are stored as they sum to the score
        return float(repeats), 0.0
    if total == "sum":
        return 1.0, 0.0
    if total == "mean":
        return 1 / size, 0.0
    assert total == "root mean"
    mean = terms.mean()
    with np.errstate(invalid="ignore", divide="ignore"):
        root = np.sqrt(-mean)
        return 1 / (2 * root * size), (-root - mean / (2 * root)) / size


def _verdict(diagnostics: xr.Dataset, kind: Kind) -> str:
    """The verdict on the chains of all folds, preceded by that on a bad full-data fit."""
    chains = diagnostics.attrs["verdict" if kind == "joint" else "pointwise_verdict"]
    if not diagnostics.attrs["bad_fit"]:
        return chains
    fit = f"The full-data fit is bad: {diagnostics.attrs['fit_verdict']}."
    return fit if chains == "ok" else f"{fit} {chains}"


def rhat_max_in_words(diagnostics: xr.Dataset) -> str:
    """R-hat max with its benchmark share, or that it is undefined; nested R-hat max beside it."""
    plain, nested = "R-hat max", "nested R-hat max"
    names = {nested if diagnostics.attrs["rhat_is_nested"] else plain: ""}
    if "nested_rhat_max" in diagnostics:
        names[nested] = "nested_"

    def words(name: str, prefix: str) -> str:
        rhat = float(diagnostics[f"{prefix}rhat_max"])
        if np.isnan(rhat):
            return f"{name} undefined"
        share = float(diagnostics[f"{prefix}benchmark_share"])
        return f"{name} {rhat:.3f} (reached by {share:.1%} of its benchmark)"

    return ", ".join(words(name, prefix) for name, prefix in names.items())


def distinct_kinds(diagnostics: Mapping[str, xr.Dataset]) -> list[Kind]:
    """The kinds of scores that differ: joint only, if every fold leaves out one unit, and of
    subsamples."""
    alike = all(d.sizes["slot"] == 1 or "chosen" in d for d in diagnostics.values())
    return ["joint"] if alike else list(KINDS)
