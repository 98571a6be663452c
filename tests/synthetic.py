"""Made-up results of a comparison, laid out as the diagnose and compare stages write them."""

from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from scipy.stats import norm

from pcv.analysis import results
from pcv.analysis.diagnostics import batch_sums, third_moments

KINDS = ("joint", "pointwise")
COLUMNS = ["model", "kind", "rank", "elpd_diff", "dse", "mcse_diff", "mcse_diff_is_bound"]
COLUMNS += ["p_better", "p_better_bb", "eti90_lb", "eti90_ub", "weight", "weight_se"]
COLUMNS += ["diag_diff", "elpd", "se", "mcse", "mcse_is_bound", "n_folds"]
COLUMNS += ["predictive", "verdict"]


def make_results(
    models: tuple[str, ...] = ("slopes", "common"),
    folds: int = 30,
    slots: int = 5,
    batches: int = 10,
    fold_name: str = "rat {}",
    slot_name: str = "rat {}, day {}",
    khat_of_worst: float = 0.58,
    seed: int = 7,
) -> tuple[xr.Dataset, dict[str, xr.Dataset], pd.DataFrame]:
    """A comparison, the diagnostics of its models (best first), and the table of comparison.csv.

    The numbers resemble rats: each model is 14.5 worse than the one before, with a standard
    error of 7 and a Monte Carlo standard error of .35.
    """
    rng = np.random.default_rng(seed)
    names = [fold_name.format(k + 1) for k in range(folds)]
    units = [slot_name.format(k + 1, 8 + 7 * i) for k in range(folds) for i in range(slots)]
    points = 20 * np.arange(1, batches + 1)
    shape = (len(KINDS), len(models), folds)

    steps = rng.standard_t(4, size=shape)
    steps -= steps.mean(axis=2, keepdims=True)
    steps *= 7 / np.sqrt(folds) / steps.std(axis=2, ddof=1, keepdims=True)
    losses = steps - np.array([14.5, 3.0])[:, None, None] / folds
    losses[:, 0] = 0
    fold_diff = np.cumsum(losses, axis=1)
    fold_elpd = fold_diff + rng.normal(-17, 3, folds)
    fold_mcse = 0.25 * rng.gamma(4, 0.25, shape) / np.sqrt(folds)
    fold_mcse_diff = np.hypot(fold_mcse, fold_mcse[:, :1])
    fold_mcse_diff[:, 0] = 0

    def error(terms: np.ndarray) -> np.ndarray:
        return np.sqrt(folds * terms.var(axis=-1, ddof=1))

    def total(mcse: np.ndarray) -> np.ndarray:
        return np.sqrt((mcse**2).sum(axis=-1))

    growth = np.sqrt(batches / np.arange(1, batches + 1))
    walk = np.cumsum(rng.normal(size=(*shape[:2], batches)), axis=2) / np.arange(1, batches + 1)
    walk = (walk - walk[..., -1:]) * np.sqrt(batches)

    def curves(value: np.ndarray, se: np.ndarray, mcse: np.ndarray) -> tuple[np.ndarray, ...]:
        mcse_at = mcse[..., None] * growth
        se_at = np.hypot(se[..., None], mcse_at)
        return value[..., None] + mcse[..., None] * walk, se_at, mcse_at

    elpd, se, mcse = fold_elpd.sum(axis=2), error(fold_elpd), total(fold_mcse)
    elpd_diff, dse, mcse_diff = fold_diff.sum(axis=2), error(fold_diff), total(fold_mcse_diff)
    elpd_at, se_at, mcse_at = curves(elpd, se, mcse)
    diff_at, dse_at, mcse_diff_at = curves(elpd_diff, dse, mcse_diff)
    dse_at[:, 0] = 0
    with np.errstate(invalid="ignore"):
        p_better, p_better_at = norm.cdf(elpd_diff / dse), norm.cdf(diff_at / dse_at)

    def per_model(value: np.ndarray) -> tuple[tuple[str, str], np.ndarray]:
        return ("kind", "model"), value

    def per_fold(value: np.ndarray) -> tuple[tuple[str, str, str], np.ndarray]:
        return ("kind", "model", "fold"), value

    def per_point(value: np.ndarray) -> tuple[tuple[str, str, str], np.ndarray]:
        return ("kind", "model", "point"), value

    benchmark = 1.012 + rng.gamma(4, 0.0025, 500)
    comparison = xr.Dataset(
        {
            "elpd": per_model(elpd),
            "se": per_model(se),
            "mcse": per_model(mcse),
            "elpd_diff": per_model(elpd_diff),
            "dse": per_model(dse),
            "dse_folds": per_model(dse.copy()),
            "mcse_diff": per_model(mcse_diff),
            "p_better": per_model(p_better),
            "rank": per_model(np.tile(np.arange(len(models)), (len(KINDS), 1))),
            "fold_elpd": per_fold(fold_elpd),
            "fold_mcse": per_fold(fold_mcse),
            "fold_diff": per_fold(fold_diff),
            "fold_mcse_diff": per_fold(fold_mcse_diff),
            "elpd_at": per_point(elpd_at),
            "se_at": per_point(se_at),
            "mcse_at": per_point(mcse_at),
            "diff_at": per_point(diff_at),
            "dse_at": per_point(dse_at),
            "mcse_diff_at": per_point(mcse_diff_at),
            "p_better_at": per_point(p_better_at),
            "unit_diff": (
                ("model", "unit"),
                np.repeat(fold_diff[1] / slots, slots, axis=1),
            ),
            "rhat_max": 1.0186,
            "benchmark": ("replicate", benchmark),
            "benchmark_share": float((benchmark >= 1.0186).mean()),
        },
        coords={"kind": list(KINDS), "model": list(models), "fold": names, "point": points}
        | {"unit": units},
        attrs={
            "reference_joint": models[0],
            "reference_pointwise": models[0],
            "verdict": f"{models[0]} predicts whole folds best. The computation can be trusted.",
            "experiment": "rats",
            "outcome": "weight_g",
            "predictive": "marginal",
            "integration": "analytically",
            "rhat_is_nested": False,
            "until": "",
        },
    )

    efficiency = np.random.default_rng(seed).beta(20, 10, (len(models), folds, 1))
    ess_at = 4 * points * efficiency
    ess_diff_at = ess_at.mean(axis=1)
    ess_diff_at[0] = np.nan
    comparison["ess_diff_at"] = (("model", "point"), ess_diff_at)

    diagnostics = {}
    for m, model in enumerate(models):
        rhat_at = 1 + rng.gamma(1.2, 0.04, (folds, 1)) / points * 20 * rng.gamma(
            6, 1 / 6, (folds, batches)
        )
        khat = rng.normal(0.15, 0.12, folds)
        khat[folds // 3] = khat_of_worst if m else 0.3
        verdict = np.full(folds, "ok", dtype="U200")
        verdict[khat > 0.7] = (
            f"k-hat {khat_of_worst:.1f}: heavy-tailed predictive density, so the MCSE is only a"
            " lower bound; smaller test sets or, where a test set has effects of its own, the"
            " marginal predictive"
        )
        params = ["mu_alpha", "sigma_alpha", "sigma_y"] + [
            f"{name}[{k}]" for name in ("alpha", "beta") for k in range(folds)
        ]
        diagnostics[model] = xr.Dataset(
            {
                "joint_elpd": ("fold", fold_elpd[0, m]),
                "joint_mcse": ("fold", fold_mcse[0, m]),
                "joint_mcse_is_bound": ("fold", khat > 0.7),
                "pointwise_mcse_is_bound": ("fold", np.full(folds, False)),
                "joint_ess": ("fold", rng.gamma(20, 60, folds)),
                "joint_ess_total": 1210.0,
                "batch_check": ("size", np.array([0.8, 0.91, 0.97, 0.99, 1.0])),
                "ess_at": (("fold", "point"), ess_at[m]),
                "own_mcse_at": (("fold", "point"), np.ones((folds, batches))),
                "joint_ess_total_at": ("point", ess_at[m].mean(axis=0)),
                "rhat": ("fold", rhat_at[:, -1]),
                "khat": ("fold", khat),
                "overlap": ("fold", overlap := np.clip(1 - np.abs(khat), 0.01, 1)),
                "crossings": ("fold", 800 * overlap),
                "divergences": ("fold", rng.poisson(0.2, folds)),
                "acceptance": ("fold", rng.beta(80, 12, folds)),
                "efmi": ("fold", np.linspace(0.8, 1.2, folds)),
                "verdict": ("fold", verdict),
                "n_draws": ("fold", np.full(folds, 20 * batches)),
                "pointwise_verdict": (("fold", "slot"), np.full((folds, slots), "ok", "U99")),
                "unit_name": (("fold", "slot"), np.reshape(units, (folds, slots))),
                "pointwise_elpd": (
                    ("fold", "slot"),
                    np.repeat(fold_elpd[1, m][:, None] / slots, slots, axis=1),
                ),
                "pointwise_mcse": ("fold", fold_mcse[1, m]),
                "rhat_at": (("fold", "point"), rhat_at),
                "rhat_max": rhat_at[:, -1].max(),
                "benchmark": ("replicate", 1.01 + rng.gamma(4, 0.0025, 500)),
                "benchmark_share": 0.31,
                "fit_rhat": ("param", 1 + rng.gamma(1.5, 0.0008, len(params))),
                "fit_ess": ("param", rng.gamma(9, 280, len(params))),
            },
            coords={"fold": names, "point": points, "param": params, "size": [5, 10, 20, 50, 100]},
            attrs={
                "model": model,
                "predictive": "marginal",
                "integration": "analytically",
                "outcome": "weight_g",
                "verdict": "All folds are sound.",
                "num_chains": 8,
                "superchains": 0,
                "rhat_is_nested": False,
                "given_tested": False,
                "num_draws": 20 * batches,
                "batch_size": 20,
                "good_k": 0.7,
                "fit_verdict": "ok",
                "fit_divergences": 0,
                "fit_efmi": [0.91, 0.88, 0.95, 0.9],
                "bad_fit": False,
            },
        )

    rows: list[dict[str, Any]] = []
    for kind in KINDS:
        for m, model in enumerate(models):
            row = {
                name: float(comparison[name].sel(kind=kind, model=model))
                for name in ("elpd_diff", "dse", "mcse_diff", "p_better", "elpd", "se", "mcse")
            }
            half = 1.7 * row["dse"] if m else np.nan
            row |= {"eti90_lb": row["elpd_diff"] - half, "eti90_ub": row["elpd_diff"] + half}
            row |= {"p_better_bb": row["p_better"], "weight": float(m == 0), "weight_se": 0.25}
            row |= {"model": model, "kind": kind, "rank": m, "n_folds": folds}
            row |= {"mcse_is_bound": False, "mcse_diff_is_bound": False, "diag_diff": ""}
            rows.append(row | {"predictive": "marginal", "verdict": "ok"})
    return comparison, diagnostics, pd.DataFrame(rows)[COLUMNS]


PROVENANCE: dict[str, Any] = {
    "config": {
        "seed": 20231,
        "experiments": {"rats": {"data": {"file": "resources/rats.csv", "outcome": "weight_g"}}},
    },
    "seed": 20231,
    "versions": {"pcv": "0.1.0", "jax": "0.12.0", "blackjax": "1.7.1", "python": "3.12.9"},
    "device": "2 CPU devices",
    "seconds": {"fit/slopes": 6.31, "fit/common": 5.02, "sample/slopes/0": 3.4},
    "git_commit": "0123abc",
}
CHAINS, DRAWS, BATCH = 4, 400, 50
TEST = np.array([[0, 1], [2, 3], [4, -1]])
UNITS = np.array([f"unit {i}" for i in range(5)])
HELD_OUT = [[[0, 2]], [[2, 4]], [[4, 5]]]
FOLDS = xr.Dataset(
    {"test": (("fold", "slot"), TEST), "held_out": (("fold", "run", "bound"), HELD_OUT)},
    {"fold": ["a", "b", "c"]},
)
CHECKS = xr.Dataset(
    {
        "rhat": ("param", [1.0]),
        "ess": ("param", [900.0]),
        "efmi": ("chain", [1.0]),
        "divergences": 0,
    },
    {"param": ["mu"]},
    {"problems": [], "warnings": []},
)
ATTRIBUTES = {"predictive": "plain", "integration": "", "outcome": "y", "superchains": 0}
ATTRIBUTES |= {"full_draws": 0, "given_tested": False}


def energy(seed: int, phi: float = 0.0) -> dict[str, np.ndarray]:
    """Sums of energies that are an AR(1) process, per batch."""
    x = np.random.default_rng(seed).normal(size=(len(TEST), CHAINS, DRAWS))
    for t in range(1, DRAWS):
        x[..., t] = phi * x[..., t - 1] + np.sqrt(1 - phi**2) * x[..., t]
    steps = np.diff(x, axis=2, prepend=x[..., :1]) ** 2
    batches = x.reshape(len(TEST), CHAINS, -1, BATCH)
    return {
        "count": np.full(batches.shape[:3], float(BATCH)),
        "mean": batches.mean(3),
        "m2": BATCH * batches.var(3),
        "diff_sq": steps.reshape(batches.shape).sum(3),
    }


def sample(pointwise: np.ndarray, divergences: int = 0) -> xr.Dataset:
    """The sample artifact of draws (fold, chain, draw, slot); padded slots score 0."""
    pointwise = np.where(TEST[:, None, None] >= 0, pointwise, 0.0)
    joint = pointwise.sum(axis=3)
    dims = ("fold", "chain", "batch")
    variables = {
        **{f"log_joint_{k}": (dims, x) for k, x in batch_sums(joint, BATCH)._asdict().items()},
        **{
            f"log_pointwise_{k}": (dims if x.ndim == 3 else (*dims, "slot"), x)
            for k, x in batch_sums(pointwise, BATCH)._asdict().items()
        },
        "log_joint_m3": (dims, third_moments(joint, BATCH)),
        "shift": ("fold", np.full(len(TEST), np.inf)),
        "crossing": ((*dims, "offset"), np.zeros((len(TEST), CHAINS, DRAWS // BATCH, 5))),
        "full_crossing": (("fold", "full_batch", "offset"), np.zeros((len(TEST), 2, 5))),
        "forgot": ("fold", np.ones(len(TEST), bool)),
        "n_warmup": ("fold", np.full(len(TEST), 50)),
        "log_joint_draws": (("fold", "chain", "draw"), joint),
        "n_draws": ("fold", np.full(len(TEST), DRAWS)),
        "divergences": (dims, np.full((len(TEST), CHAINS, DRAWS // BATCH), divergences)),
        "acceptance": (dims, np.full((len(TEST), CHAINS, DRAWS // BATCH), 0.9)),
        **{f"energy_{name}": (dims, x) for name, x in energy(seed=1).items()},
    }
    return xr.Dataset(variables, attrs=ATTRIBUTES)


def diagnosed(pointwise: np.ndarray, divergences: int = 0) -> xr.Dataset:
    made = sample(pointwise, divergences)
    rng = np.random.default_rng(1)
    return results.diagnose([made], FOLDS, UNITS, CHECKS, rng, "m")


def make_predictions(
    diagnostics: dict[str, xr.Dataset], sd: float = 1.0, seed: int = 3
) -> dict[str, xr.Dataset]:
    """Predictions of all units by every model, with `sd` times the right standard deviation."""
    rng = np.random.default_rng(seed)
    predictions = {}
    for model, d in diagnostics.items():
        names = d["unit_name"].values
        fold, _ = np.nonzero(names != "")
        mean = rng.normal(200, 50, fold.size)
        y = mean + rng.normal(0, 10, fold.size)
        predictions[model] = xr.Dataset(
            {
                "y_rep": (
                    ("chain", "draw", "unit"),
                    mean + rng.normal(0, 10 * sd, (4, 25, fold.size)),
                ),
                "y": ("unit", y),
                "pit": ("unit", norm.cdf((y - mean) / 10 / sd)),
                "pit_mcse": ("unit", np.full(fold.size, 0.01)),
            },
            {
                "unit": names[names != ""],
                "row": ("unit", np.arange(fold.size)),
                "of_fold": ("unit", d["fold"].values.astype(str)[fold]),
            },
        )
    return predictions
