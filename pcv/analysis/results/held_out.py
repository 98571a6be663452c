"""In-sample, cross-validated and test-set scores side by side. No JAX."""

import numpy as np
import pandas as pd
import xarray as xr
from jaxtyping import Float

from pcv.analysis import diagnostics as diag
from pcv.analysis.comparison import Scores, total_mcse
from pcv.analysis.results.scored import scores
from pcv.analysis.results.summary import is_subsample, log_predictive_density
from pcv.analysis.standard_errors import error_of_sum
from pcv.base.errors import PcvError
from pcv.base.storable import true_names

SETS = ("in-sample", "cross-validated", "test set")
BATCH_SIZE = 50
"""draws per batch, for the MCSE of in-sample scores"""


def sets(tree: xr.DataTree, test: xr.DataTree | None) -> pd.DataFrame:
    r"""Scores per unit, and their differences.

    Args:
        tree: of a cross-validation, with the groups "diagnostics", "folds" and, for in-sample
            scores, "log_likelihood".
        test: of a test set that is independent of the data.

    Returns:
        n_units, elpd (nats per unit), se, mcse of each set and each difference.
    """
    if is_subsample(tree["diagnostics"].dataset):
        raise PcvError("compare_sets: a subsample does not score every unit")
    of_cv = scores(tree["diagnostics"].dataset, "pointwise", "", "")
    in_sample, mcse = log_predictive_density(tree, of_cv), total_mcse(of_cv)
    mcse_in_sample = _mcse_in_sample(tree, of_cv.predictive)
    rows = {
        SETS[0]: _per_unit(of_cv, in_sample, mcse_in_sample),
        SETS[1]: _per_unit(of_cv, of_cv.elpd, mcse),
    }
    optimism = _per_unit(of_cv, in_sample - of_cv.elpd, float(np.hypot(mcse, mcse_in_sample)))
    differences = {f"{SETS[0]} − {SETS[1]}": optimism}
    if test is not None:
        of_test = scores(test["diagnostics"].dataset, "pointwise", "", "")
        rows[SETS[2]] = _per_unit(of_test, of_test.elpd, total_mcse(of_test))
        (n, *one), (m, *other) = rows[SETS[1]], rows[SETS[2]]
        errors = np.hypot(one[1:], other[1:]).tolist()
        differences[f"{SETS[1]} − {SETS[2]}"] = n + m, one[0] - other[0], *errors
    names = ["n_units", "elpd", "se", "mcse"]
    return pd.DataFrame.from_dict(rows | differences, orient="index", columns=names)


def _per_unit(
    of: Scores, terms: Float[np.ndarray, " term"], mcse: float
) -> tuple[int, float, float, float]:
    """Number of units, mean of their terms, its SE and MCSE.

    Args:
        of: scores with the same terms.
        terms: of units, in the order of `of`.
        mcse: of their sum.
    """
    number = len(terms) // of.repeats
    se = float(error_of_sum(terms[None], of.fold_of_term, of.overlap)[0])
    return number, float(terms.sum()) / of.repeats / number, se / number, mcse / number


def _mcse_in_sample(tree: xr.DataTree, predictive: str) -> float:
    """Monte Carlo standard error of the sum of in-sample scores, by batch means; NaN where these
    are unknown."""
    if predictive == "marginal" or "log_likelihood" not in tree:
        return np.nan
    draws = true_names(tree["log_likelihood"].to_dataset())[tree.attrs["outcome"]]
    test = tree["folds"].dataset["test"].values
    tested = np.unique(test[test >= 0])
    values = draws.transpose("chain", "draw", ...).values[None, ..., tested]
    size = max(min(BATCH_SIZE, values.shape[2] // 2), 1)
    whole = values.shape[2] // size * size
    return float(diag.mcse_pointwise(diag.batch_sums(values[:, :, -whole:], size))[0])
