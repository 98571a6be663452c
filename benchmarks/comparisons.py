"""How often are comparisons wrong? `python -m benchmarks.comparisons`, a minute on one core.

Data sets of terms whose expected difference is known: what 90% intervals of the difference cover,
by the Bayesian bootstrap and by other ways; how often the best of 40 equally good models is
announced as better; how far the standard errors of overlapping test sets are off; and whether those
of a subsample cover all terms.
"""

from collections.abc import Callable

import numpy as np
import pandas as pd
from scipy.signal import lfilter
from scipy.special import ndtr, stdtrit
from scipy.stats import norm

from pcv.analysis.bootstrap import LEVEL, bootstrap, tail_khat
from pcv.analysis.comparison import Scores, compare
from pcv.analysis.results.frames import frame
from pcv.analysis.results.notes import MAX_KHAT
from pcv.analysis.results.verdict import in_words
from pcv.analysis.selection import lead_of_best
from pcv.analysis.standard_errors import (
    degrees_of_freedom,
    error_of_sum,
    long_run_error,
    overlap_of,
    standard_error,
)
from pcv.analysis.subsampling import Subsample

DATA_SETS = 500
GROUPS = (8, 15, 30)
NORMAL_QUANTILE = norm.ppf((1 + LEVEL) / 2)
Draw = Callable[[np.random.Generator, tuple[int, int]], np.ndarray]


def log_ratio(rng: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    """Log ratio of two predictives, N(0, 1) and N(0.5, 1.3²), over the five units of a group, of
    which there are y ~ N(0.2, 1.1²)."""
    y = rng.normal(0.2, 1.1, (*shape, 5))
    return (norm.logpdf(y) - norm.logpdf(y, 0.5, 1.3)).sum(axis=-1)


EXPECTED_RATIO = 5 * (np.log(1.3) - (1.21 + 0.04) / 2 + (1.21 + 0.09) / 2 / 1.69)
TERMS: dict[str, tuple[Draw, float]] = {
    "normal": (lambda rng, shape: rng.normal(0.3, 1, shape), 0.3),
    "Student t, 4 df": (lambda rng, shape: rng.standard_t(4, shape), 0.0),
    "log ratio, 5 units": (log_ratio, EXPECTED_RATIO),
    "exponential": (lambda rng, shape: rng.exponential(1, shape), 1.0),
}
"""differences of a group, and their expectation"""


def coverage(rng: np.random.Generator, name: str, groups: int) -> dict[str, str]:
    """Share of data sets whose 90% interval covers the expected difference."""
    draw, expected = TERMS[name]
    terms = draw(rng, (DATA_SETS, groups))
    error, difference = standard_error(terms), terms.sum(axis=1)
    weights = rng.dirichlet(np.ones(groups), 4000)
    plain = groups * np.quantile(terms @ weights.T, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=1)
    ours = np.array([bootstrap(d, groups - 1.0)[1:] for d in terms]).T
    off = np.abs(difference - groups * expected)

    def inside(ends: np.ndarray) -> str:
        return f"{np.mean((ends[0] <= groups * expected) & (groups * expected <= ends[1])):.1%}"

    return {
        "terms": name,
        "K": str(groups),
        "pcv": inside(ours),
        "normal": f"{np.mean(off <= NORMAL_QUANTILE * error):.1%}",
        "Student t": f"{np.mean(off <= stdtrit(groups - 1, (1 + LEVEL) / 2) * error):.1%}",
        "bootstrap as it is": inside(plain),
    }


def agreement(rng: np.random.Generator, name: str) -> dict[str, str]:
    """How far both probabilities are apart with 1,000 terms."""
    draw, expected = TERMS[name]
    terms = draw(rng, (100, 1000)) - expected
    by_normal = ndtr(terms.sum(axis=1) / standard_error(terms))
    apart = [bootstrap(d, 999.0).p_positive - p for d, p in zip(terms, by_normal, strict=True)]
    return {"terms": name, "largest difference": f"{np.abs(apart).max():.4f}"}


def warned(rng: np.random.Generator, name: str, number: int) -> dict[str, str]:
    """How often k-hat of the differences warns."""
    draw = rng.standard_cauchy if name == "Cauchy" else lambda size: TERMS[name][0](rng, (1, size))
    khats = np.array([tail_khat(np.ravel(draw(number))) for _ in range(DATA_SETS)])
    return {
        "terms": name,
        "T": str(number),
        f"k-hat > {MAX_KHAT}": f"{(khats > MAX_KHAT).mean():.1%}",
    }


def scored(name: str, elpd: np.ndarray, **more: object) -> Scores:
    """Joint scores of a model without Monte Carlo error."""
    folds = [f"fold {k}" for k in range(elpd.size)]
    found = Scores(
        *(name, "joint", "log", "y", "plain", "data", "folds", folds, elpd, np.zeros(elpd.size)),
        *(np.arange(elpd.size), folds, "ok"),
    )
    return found._replace(**more)


def equal_models(rng: np.random.Generator, number: int, terms: int) -> np.ndarray:
    """Log scores of models that differ by noise alone (model, term)."""
    return rng.normal(-1, 1, terms) + rng.normal(0, 0.3, (number, terms))


def irrelevant_covariates(rng: np.random.Generator, number: int, terms: int) -> np.ndarray:
    """Exact leave-one-out log scores of regressions with one covariate each, none of which matters:
    y ~ N(0, 1), coefficients N(0, 1); the first model has none."""
    y, covariates = rng.normal(size=terms), rng.normal(size=(number, terms))
    covariates[0] = 0
    x = np.stack([np.ones_like(covariates), covariates], axis=-1)
    inverse = np.linalg.inv(np.swapaxes(x, 1, 2) @ x + np.eye(2))
    leverage = np.einsum("mti,mij,mtj->mt", x, inverse, x)
    fitted = np.einsum("mti,mij,mj->mt", x, inverse, np.swapaxes(x, 1, 2) @ y)
    rest = 1 - leverage
    return norm.logpdf(y, (fitted - leverage * y) / rest, np.sqrt(1 / rest))


def announced(
    rng: np.random.Generator, draw: Callable, lead: float, data_sets: int = 200, number: int = 40
) -> dict[str, str]:
    """How often a best model is announced, against the next best and against the first model."""
    better, by_chance = {"next best": 0, "named reference": 0}, 0
    for _ in range(data_sets):
        terms = draw(rng, number, 100)
        terms[-1] += lead / 100
        models = [scored(f"m{m}", x) for m, x in enumerate(terms)]
        for against, reference in (("next best", None), ("named reference", "m0")):
            comparison = compare(models, reference)
            better[against] += "predicts left-out folds better than" in in_words(comparison)
        by_chance += lead_of_best(comparison).is_chance
    return {
        "models": draw.__name__.replace("_", " "),
        "lead of one": f"{lead:g}",
        **{f"announced, {key}": f"{count / data_sets:.1%}" for key, count in better.items()},
        "warned of chance": f"{by_chance / data_sets:.1%}",
    }


def overlapping(rng: np.random.Generator, units: int, horizon: int, rho: float) -> dict[str, str]:
    """Stated over true standard error of a sum over windows of an AR(1) series, and coverage."""
    windows = np.arange(units - horizon + 1)[:, None] + np.arange(horizon)
    overlap = overlap_of(windows.ravel(), np.repeat(np.arange(len(windows)), horizon))
    steps = np.sqrt(1 - rho**2) * rng.normal(size=(2000, units + 200))
    sums = lfilter([1], [1, -rho], steps, axis=1)[:, 200:][:, windows].sum(axis=2)
    total, number = sums.sum(axis=1), sums.shape[1]
    ours = error_of_sum(sums, np.arange(number), overlap)
    half = stdtrit(degrees_of_freedom(number, overlap), (1 + LEVEL) / 2) * ours

    def ratio(error: np.ndarray) -> str:
        return f"{np.sqrt(np.mean(error**2)) / total.std():.2f}"

    return {
        "units": str(units),
        "horizon": str(horizon),
        "rho": f"{rho:g}",
        "pcv": ratio(ours),
        "shared units alone": ratio(standard_error(sums, overlap.of_folds)),
        "autocovariances alone": ratio(long_run_error(sums, overlap)),
        "as if apart": ratio(standard_error(sums)),
        "90% interval covers": f"{np.mean(np.abs(total) <= half):.1%}",
    }


def subsampled(rng: np.random.Generator, m: int, n: int = 1000) -> dict[str, str]:
    """Coverage of intervals of n terms from m of them without a surrogate."""
    covered, alone = 0, 0
    for _ in range(DATA_SETS):
        terms = rng.normal(0.1, 1, n)
        chosen = Subsample(np.sort(rng.permutation(n)[:m]), np.zeros(m, int), np.array([n]))
        models = [
            scored(name, x[chosen.term], chosen=chosen)
            for name, x in (("a", terms), ("b", np.zeros(n)))
        ]
        comparison = compare(models, "b")
        row = comparison.models.index("a")
        rows = frame([comparison]).set_index("model").loc["a"]
        covered += rows["eti90_lb"] <= 0.1 * n <= rows["eti90_ub"]
        off = np.abs(comparison.elpd_diff[row] - 0.1 * n)
        alone += off <= NORMAL_QUANTILE * comparison.dse[row]
    return {
        "m": str(m),
        "n": str(n),
        "90% interval covers": f"{covered / DATA_SETS:.1%}",
        "by the SE alone": f"{alone / DATA_SETS:.1%}",
    }


def show(title: str, rows: list[dict[str, str]]) -> None:
    print(f"\n{title}\n{pd.DataFrame(rows).to_string(index=False)}", flush=True)


def main() -> None:
    rng = np.random.default_rng(1)
    show(
        f"Coverage of 90% intervals, {DATA_SETS} data sets",
        [coverage(rng, name, groups) for name in TERMS for groups in GROUPS],
    )
    show("Both probabilities, 1,000 terms", [agreement(rng, name) for name in TERMS])
    tails = [(name, number) for name in (*TERMS, "Cauchy") for number in (50, 200)]
    show("Warnings of outliers", [warned(rng, *tail) for tail in tails])
    designs = (
        (equal_models, 0),
        (irrelevant_covariates, 0),
        (equal_models, 10),
        (equal_models, 20),
    )
    show("40 models, 200 data sets", [announced(rng, *design) for design in designs])
    series = [
        overlapping(rng, units, horizon, rho)
        for units, horizon in ((160, 4), (60, 4), (150, 12), (60, 12))
        for rho in (0.0, 0.5, 0.8, 0.9)
    ]
    show("SE over its true value, 2,000 series", series)
    show("Subsamples", [subsampled(rng, m) for m in (50, 200)])


if __name__ == "__main__":
    main()
