"""Joint scores of large test sets: `python -m benchmarks.wells`, some ten minutes.

Logistic regressions of the wells of Bangladesh (3,020 households, wells.csv in `PCV_DATA`), 10
folds of 302, three seeds. Exact scores are differences of log evidences, of all data and of a
fold's training set, by importance sampling from a t distribution at the mode, which is nearly the
posterior of so many households.
"""

from itertools import combinations

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pandas as pd
from scipy.interpolate import BSpline
from scipy.optimize import minimize
from scipy.special import expit, gammaln, logsumexp

import pcv
from benchmarks.data import data_file

DRAWS, FREEDOM = 40_000, 30
"""of importance sampling"""
SEEDS = (1, 2, 3)


def designs(table: pd.DataFrame) -> dict[str, np.ndarray]:
    """Matrices of 5, 11 and 35 columns."""
    columns = (table["dist"] / 100, np.log(table["arsenic"]), table["educ"] / 4, table["assoc"])
    each = np.stack([x - x.mean() for x in columns], axis=1)
    pairs = np.stack([each[:, i] * each[:, j] for i, j in combinations(range(4), 2)], axis=1)
    linear = np.concatenate([np.ones((len(table), 1)), each], axis=1)
    curves = [splines(each[:, i]) for i in range(3)]
    return {
        "linear": linear,
        "pairs": np.concatenate([linear, pairs], axis=1),
        "splines": np.concatenate([linear, pairs, *curves], axis=1),
    }


def splines(x: np.ndarray) -> np.ndarray:
    """Cubic B-splines but the first, with knots at quantiles."""
    inner = np.unique(np.quantile(x, np.linspace(0, 1, 8)))
    knots = np.concatenate([[inner[0]] * 3, inner, [inner[-1]] * 3])
    return BSpline.design_matrix(x, knots, 3).toarray()[:, 1:]


def model(x: np.ndarray) -> pcv.Model:
    """Coefficients are normal with mean 0 and standard deviation 1."""

    def log_lik(params, data):
        signs = 2 * data["switch"] - 1
        return -jnp.logaddexp(0, -signs * (jnp.asarray(x) @ params["b"]))

    prior = dist.Normal(0, 1).expand([x.shape[1]]).to_event(1)
    return pcv.Model(
        init=lambda key: {"b": prior.sample(key)},
        log_prior=lambda params: prior.log_prob(params["b"]),
        log_lik=log_lik,
        constrain=lambda params: params,
        outcome=pcv.Outcome("switch", discrete=True),
    )


def log_evidence(rng: np.random.Generator, x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """Of y under `model`, and its Monte Carlo error."""
    signed, dim = x * (2 * y - 1)[:, None], x.shape[1]

    def minus_log_joint(b: np.ndarray) -> tuple[float, np.ndarray]:
        margin = signed @ b
        return np.logaddexp(0, -margin).sum() + b @ b / 2, b - expit(-margin) @ signed

    mode = minimize(minus_log_joint, np.zeros(dim), jac=True, method="BFGS").x
    p = expit(x @ mode)
    root = np.linalg.cholesky(np.linalg.inv((x * (p * (1 - p))[:, None]).T @ x + np.eye(dim)))
    z = rng.normal(size=(DRAWS, dim)) / np.sqrt(rng.chisquare(FREEDOM, (DRAWS, 1)) / FREEDOM)
    log_t = gammaln((FREEDOM + dim) / 2) - gammaln(FREEDOM / 2) - dim / 2 * np.log(FREEDOM * np.pi)
    log_t = log_t - (FREEDOM + dim) / 2 * np.log1p((z**2).sum(1) / FREEDOM)
    log_t -= np.log(np.diag(root)).sum()
    log_joint = np.concatenate(
        [
            -np.logaddexp(0, -signed @ b.T).sum(0) - (b**2).sum(1) / 2
            for b in np.array_split(mode + z @ root.T, 40)
        ]
    )
    log_weight = log_joint - dim / 2 * np.log(2 * np.pi) - log_t
    found = logsumexp(log_weight) - np.log(DRAWS)
    weight = np.exp(log_weight - found)
    return float(found), float(weight.std() / np.sqrt(DRAWS))


def exact(x: np.ndarray, y: np.ndarray, folds: pcv.Folds) -> tuple[np.ndarray, np.ndarray]:
    """Joint elpd of every fold, and the error of each."""
    rng = np.random.default_rng(1)
    whole, of_whole = log_evidence(rng, x, y)
    trained = [np.setdiff1d(np.arange(len(y)), test) for test in folds.test]
    without, errors = np.array([log_evidence(rng, x[some], y[some]) for some in trained]).T
    return whole - without, np.hypot(of_whole, errors)


if __name__ == "__main__":
    table = pd.read_csv(data_file("wells.csv"))
    y = table["switch"].to_numpy()
    folds = pcv.kfold(len(y), 10, seed=1)
    x = designs(table)
    truth = {name: exact(design, y, folds) for name, design in x.items()}
    for name, (elpd, error) in truth.items():
        print(f"{name}: {x[name].shape[1]} columns, {elpd.sum():.2f} exact, ±{error.max():.3f}")
    print("\n| model | seed | fold | z | k-hat | hidden variance | MCSE | verdict |")
    print("|---" * 8 + "|")
    for seed in SEEDS:
        models = {name: model(design) for name, design in x.items()}
        cvs = pcv.cross_validate(models, folds, data=table, seed=seed, progress=False)
        for name, cv in cvs.items():
            found = cv.folds.assign(hidden=cv.diagnostics["hidden_variance"].values)
            error = found["elpd"] - truth[name][0]
            for fold, row in found.assign(z=error / found["mcse"]).iterrows():
                mcse = "> " * bool(row.mcse_is_bound) + f"{row.mcse:.3f}"
                cells = f"{row.z:.2f} | {row.khat:.2f} | {row.hidden:.2f} | {mcse} | {row.verdict}"
                print(f"| {name} | {seed} | {fold} | {cells} |")
            mcse = "> " * bool(found["mcse_is_bound"].any()) + f"{cv.mcse:.3f}"
            print(f"| {name} | {seed} | sum | {error.sum() / cv.mcse:.2f} | | | {mcse} | |")
        c = pcv.compare(cvs, reference="linear").shown
        for i, name in enumerate(c.models):
            if name != c.reference:
                error = c.elpd_diff[i] - (truth[name][0] - truth[c.reference][0]).sum()
                mcse = "> " * bool(c.mcse_diff_is_bound[i]) + f"{c.mcse_diff[i]:.3f}"
                cells = f"{error / c.mcse_diff[i]:.2f} | | | {mcse} | "
                print(f"| {name} − linear | {seed} | sum | {cells} |", flush=True)
