"""The scores of one model: terms, what they are of, and their sum with its errors."""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from pcv.analysis.standard_errors import Overlap, error_of_sum
from pcv.analysis.subsampling import Subsample, Sum, difference_estimator


class Scores(NamedTuple):
    """The scores of one model, with what was scored."""

    model: str
    kind: Literal["joint", "pointwise"]
    score: str
    """name of the scoring rule"""
    outcome: str
    """name and scale of the scored variable"""
    predictive: Literal["plain", "marginal", "either"]
    """either: nothing to integrate out, so both are the same"""
    data: str
    """fingerprint of the data"""
    folds: str
    """fingerprint of the folds"""
    fold: Sequence[str]
    """names of the folds"""
    elpd: Float[np.ndarray, " term"]
    """of every term (nats)"""
    mcse: Float[np.ndarray, " fold"]
    """Monte Carlo standard error of each fold's sum of terms (nats)"""
    fold_of_term: Int[np.ndarray, " term"]
    """index of the fold of every term"""
    term: Sequence[str]
    """names of the terms: of folds (joint) or units (pointwise)"""
    verdict: str
    """whether the run can be trusted: "ok", or why not"""
    mcse_is_bound: Bool[np.ndarray, " fold"] | bool = False
    """whether a fold's MCSE is only a lower bound, because of a heavy tail (k-hat)"""
    shared: float = 0.0
    """covariance of folds that share draws, added to the variance of the sum of all terms"""
    chosen: Subsample | None = None
    """which of all terms these are, in this order; None: all"""
    surrogate: Float[np.ndarray, " any_term"] | None = None
    """of all terms, if only some were scored (nats)"""
    overlap: Overlap | None = None
    """of the test sets; None: each unit is tested once"""
    given_tested: bool = False
    """whether units are scored given others that the same fold tests, such as those just before"""
    predict: str = "either"
    """conditional: given these as observed; path: given simulated ones; either: given none"""

    joint_by: str = ""
    """of pointwise terms that are joint scores of groups: what groups the units"""

    @property
    def repeats(self) -> int:
        """How often folds partition the units; sums of terms are divided by it."""
        return self.overlap.repeats if self.overlap else 1


def total(scores: Scores) -> Sum:
    """The sum of all terms of one model, or its mean over repeats, and its variability."""
    terms = np.asarray(scores.elpd)
    if scores.chosen is not None:
        return difference_estimator(scores.chosen, terms, scores.surrogate)
    se = error_of_sum(terms[None], scores.fold_of_term, scores.overlap)
    return Sum(float(terms.sum()) / scores.repeats, 0.0, float(se[0]), 0.0)


def total_mcse(scores: Scores) -> float:
    """Monte Carlo standard error of the sum of all terms."""
    mcse = scores.mcse
    if scores.chosen is not None:
        mcse = mcse * scores.chosen.weight
    return float(np.sqrt(np.sum(mcse**2) + scores.shared)) / scores.repeats
