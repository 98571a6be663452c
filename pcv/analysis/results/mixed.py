"""Diagnostics and predictions of a mixture, from those of its models."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr
from jaxtyping import Float, Int

from pcv.analysis import mixture
from pcv.analysis.predictions import pit_of_replicates
from pcv.analysis.results.compared import trimmed

DENSITIES = ("joint_elpd", "joint_elpd_at", "own_elpd", "pointwise_elpd", "pointwise_elpd_at")
ERRORS = {
    "joint_mcse": "joint_elpd",
    "joint_mcse_at": "joint_elpd_at",
    "own_mcse": "own_elpd",
    "own_mcse_at": "joint_elpd_at",
    "pointwise_own_mcse": "pointwise_elpd",
}
"""MCSE of every term → its elpd"""
ERRORS_OF_SUMS = {"pointwise_mcse": "pointwise_elpd", "pointwise_mcse_at": "pointwise_elpd_at"}
"""MCSE of the sum over the units of every fold → their elpd"""
LARGEST = (
    *("rhat", "rhat_at", "rhat_max", "rhat_limit", "benchmark", "nested_rhat", "nested_rhat_max"),
    *("pointwise_rhat", "khat", "divergences", "n_draws", "n_warmup"),
    *("joint_mcse_is_bound", "pointwise_mcse_is_bound"),
)
"""diagnostics of which the largest is the worst, among models"""
SMALLEST = (
    *("joint_ess", "ess_at", "joint_ess_total", "joint_ess_total_at", "pointwise_ess", "overlap"),
    *("crossings", "acceptance", "efmi", "nested_benchmark_share"),
)
"""diagnostics of which the smallest is the worst"""
VERDICTS = ("verdict", "pointwise_verdict", "units_verdict")
SHARES_DRAWS = "The MCSE of its difference from one of its models is too large: they share draws."
GIVEN = (
    "Its elpd is too high if its weights were fitted to the same scores, as by stacking: "
    f"weights='stacking' fits those of each fold to the other folds. {SHARES_DRAWS}"
)
STACKED = (
    "The weights of each fold are fitted to the scores of the other folds, by stacking. "
    f"{SHARES_DRAWS}"
)
NO_PREDICTIONS = (
    "The mixture has no predictions: its models do not all predict the same units; give each a "
    "`predict`, and cross-validate them with predictions=400."
)


def diagnostics_of(
    models: Mapping[str, xr.Dataset], weight: Float[np.ndarray, "model fold"]
) -> xr.Dataset:
    r"""Estimates and diagnostics of a mixture.

    elpd and MCSE of a term are those of `pcv.analysis.mixture`. The MCSE of a sum over the units of
    a fold takes each model's largest share in one of them:

    .. math:: \mathrm{MCSE}_k^2 = \sum_m \max_{i \in \mathrm{test}_k} s_{mi}^2 \,
              \mathrm{MCSE}_{mk}^2

    This is exact where a model's shares are equal, and else too large, unless errors of units that
    share draws are negatively correlated. Covariances of folds are treated alike. Diagnostics are
    the worst of the models'.

    Args:
        models: diagnostics of each, over the same folds, by name.
        weight: of the models in each fold.
    """
    models = trimmed(models)
    each, first = list(models.values()), next(iter(models.values()))
    stacked = {
        str(name): np.stack([d[name].values for d in each])
        for name in first.data_vars
        if all(name in d and d[name].shape == first[name].shape for d in each)
    }
    share = {name: mixture.shares(stacked[name], weight) for name in DENSITIES if name in stacked}
    found = {name: mixture.log_density(stacked[name], weight) for name in share}
    found |= {x: mixture.error(stacked[x], share[of]) for x, of in ERRORS.items() if x in stacked}
    for name, of in ERRORS_OF_SUMS.items():
        found[name] = mixture.error(stacked[name], np.fmax.reduce(share[of], axis=2))
    for names, worst in ((LARGEST, np.fmax), (SMALLEST, np.fmin)):
        found |= {name: worst.reduce(stacked[name]) for name in names if name in stacked}
    found |= {name: _joined(list(models), stacked[name]) for name in VERDICTS if name in stacked}
    if "benchmark" in found:
        found["benchmark_share"] = np.asarray((found["benchmark"] >= found["rhat_max"]).mean())
    variables: dict[str, Any] = {name: (first[name].dims, x) for name, x in found.items()}
    of_terms = {x: first[x].variable for x in ("unit_name", "group_name") if x in first}
    variables |= {**of_terms, "weight": (("component", "fold"), weight)}
    coords = {"fold": first["fold"].values, "point": first["point"].values}
    return xr.Dataset(
        variables,
        coords | {"component": list(models)},
        _attributes(models)
        | {
            f"{kind}_shared": _shared(each, kind, share[f"{kind}_elpd"])
            for kind in ("joint", "pointwise")
        },
    )


def _shared(models: Sequence[xr.Dataset], kind: str, share: np.ndarray) -> float:
    """Covariance part of the variance of the sum over folds, no smaller than it is where
    covariances of a model are of one sign."""
    total = 0.0
    for d, of_model in zip(models, share):
        own = float(d.attrs.get(f"{kind}_shared", 0.0))
        total += own * float(np.nanmax(of_model) if own > 0 else np.nanmin(of_model)) ** 2
    return total


def _attributes(models: Mapping[str, xr.Dataset]) -> dict[str, Any]:
    first = next(iter(models.values())).attrs
    of: dict[str, dict[str, Any]] = {
        key: {name: d.attrs.get(key) for name, d in models.items()} for key in _READ
    }
    lags = [lag for lag in of["given_tested"].values() if lag]
    predictive = {*of["predictive"].values()}
    fits = {name: x for name, x in of["fit_verdict"].items() if of["bad_fit"][name]}
    words = {key: _in_words(of[key]) for key in (*VERDICTS, "subspace") if any(of[key].values())}
    return words | {
        "model": "mixture",
        **{name: first[name] for name in ("outcome", "joint_by") if name in first},
        "predictive": next(x for x in ("marginal", "plain", "either") if x in predictive),
        "integration": ", ".join(dict.fromkeys(x for x in of["integration"].values() if x)),
        "given_tested": min(lags, default=0),
        "bad_fit": bool(fits),
        "fit_verdict": _in_words(fits) if fits else "ok",
        "num_chains": min(of["num_chains"].values()),
        "superchains": first["superchains"],
        "rhat_is_nested": any(of["rhat_is_nested"].values()),
        "good_k": min(of["good_k"].values()),
    }


_READ = (
    *("predictive", "integration", "given_tested", "bad_fit", "fit_verdict", *VERDICTS),
    *("subspace", "num_chains", "rhat_is_nested", "good_k"),
)


def _in_words(of_model: Mapping[str, str | None]) -> str:
    """What is said of models, or "ok"."""
    said = [f"'{name}': {words}" for name, words in of_model.items() if words and words != "ok"]
    return " ".join(said) or "ok"


def _joined(names: Sequence[str], words: np.ndarray) -> np.ndarray:
    """Verdicts of the models as one, element by element; "" where there is none."""
    flat = words.reshape(len(names), -1)
    found = [_in_words(dict(zip(names, x))) if any(x) else "" for x in flat.T.tolist()]
    return np.array(found, str).reshape(words.shape[1:])


def predictions_of_mixture(
    predicted: Sequence[xr.Dataset],
    fold: Int[np.ndarray, " unit"],
    weight: Float[np.ndarray, "model fold"],
    rng: np.random.Generator,
    same_uniforms: bool,
) -> xr.Dataset:
    r"""Replicates and PITs of a mixture.

    All units of a fold's replicate come from one model, as in a draw from the mixture of joint
    densities. As many replicates are kept as the model with fewest has.

    .. math:: \mathrm{PIT}_i = \sum_m w_m \mathrm{PIT}_{mi}

    where the models share the uniform numbers that randomise PITs of discrete outcomes; else the
    PIT is that among the replicates.

    Args:
        predicted: of each model, of the same units in the same order.
        fold: index of each unit's fold.
        weight: of the models in each fold.
        rng: random generator.
        same_uniforms: whether the models share them, as those of one seed do.
    """
    fewest = min(predicted, key=lambda p: p.sizes["chain"] * p.sizes["draw"])
    shape = fewest["y_rep"].shape
    number = shape[0] * shape[1]
    of_replicate = mixture.models_of_replicates(rng, number, weight)[:, fold]
    y_rep = np.empty(of_replicate.shape, fewest["y_rep"].dtype)
    for m, p in enumerate(predicted):
        of_model = p["y_rep"].values.reshape(-1, shape[2])
        thinned = of_model[np.arange(number) * len(of_model) // number]
        np.copyto(y_rep, thinned, where=of_replicate == m)
    y, of_unit = fewest["y"].values, weight[:, fold]
    if same_uniforms:
        pit = np.sum(of_unit * [p["pit"].values for p in predicted], axis=0)
        mcse = np.sqrt(np.sum((of_unit * [p["pit_mcse"].values for p in predicted]) ** 2, axis=0))
    else:
        pit, mcse = pit_of_replicates(y_rep.T[:, None], y, rng.random(len(y)))
    return xr.Dataset(
        {
            "y_rep": (("chain", "draw", "unit"), y_rep.reshape(shape)),
            "y": ("unit", y),
            "pit": ("unit", pit),
            "pit_mcse": ("unit", mcse),
        },
        {name: predicted[0][name].variable for name in ("unit", "row", "of_fold")},
        predicted[0].attrs,
    )
