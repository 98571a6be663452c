r"""Compare models by their scores.

- *terms* are what a score sums over: folds for the joint score, units for the pointwise one;
- every model is compared with one other, the *comparator*: the best model, or a named reference;
- each difference has two errors, never combined: its standard error over terms (SE, `dse`:
  epistemic, from the limited data) and its Monte Carlo standard error (MCSE, `mcse_diff`: from the
  limited number of draws; more draws shrink it);
- terms that share units, as overlapping test sets do, are correlated: the SE allows for it
  (`pcv.analysis.standard_errors`); of repeated folds, scores are means over repeats;
- where only some of the terms were scored, at random, their sum is estimated
  (`pcv.analysis.subsampling`), with a third error, the SE of subsampling.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.special import ndtr

from pcv.analysis.alignment import check, order
from pcv.analysis.scores import Scores, total, total_mcse
from pcv.analysis.standard_errors import (
    Overlap,
    degrees_of_freedom,
    error_of_sum,
    overlap_inflation,
    repeat_of_fold,
    standard_error,
)
from pcv.analysis.subsampling import difference_estimator
from pcv.base.errors import PcvError, nearest

__all__ = [
    "Comparison",
    "Scores",
    "compare",
    "noun",
    "overlap_inflation",
    "standard_error",
    "total",
    "total_mcse",
]


class Comparison(NamedTuple):
    """Models side by side, best first.

    Differences are model − comparator, in nats: at most 0 against the best. The comparator's own
    difference and errors are 0, and its `p_better` is NaN.
    """

    kind: Literal["joint", "pointwise"]
    score: str
    outcome: str
    predictive: list[str]
    """plain or marginal, per model; plain where both are the same"""
    reference: str
    """name of the comparator"""
    models: list[str]
    rank: Int[np.ndarray, " model"]
    """0 is best"""
    elpd: Float[np.ndarray, " model"]
    """sum of all terms, or its mean over repeats"""
    se: Float[np.ndarray, " model"]
    """SE of `elpd`, NaN with a single term"""
    subsampling_se: Float[np.ndarray, " model"]
    """SE of `elpd` over subsamples of the terms, 0 if all were scored"""
    mcse: Float[np.ndarray, " model"]
    """MCSE of `elpd`"""
    mcse_is_bound: Bool[np.ndarray, " model"]
    """whether `mcse` is only a lower bound"""
    elpd_diff: Float[np.ndarray, " model"]
    dse: Float[np.ndarray, " model"]
    """SE of `elpd_diff` over terms, NaN with a single term"""
    dse_folds: Float[np.ndarray, " model"]
    """SE of `elpd_diff` over the folds' sums, NaN with a single fold"""
    subsampling_dse: Float[np.ndarray, " model"]
    """SE of `elpd_diff` over subsamples of the terms"""
    dse_subsampling_se: Float[np.ndarray, " model"]
    """SE of `dse` over subsamples of the terms"""
    mcse_diff: Float[np.ndarray, " model"]
    """MCSE of `elpd_diff`"""
    mcse_diff_is_bound: Bool[np.ndarray, " model"]
    """whether `mcse_diff` is only a lower bound"""
    p_better: Float[np.ndarray, " model"]
    """probability that the model predicts better than the comparator, given what is known of all
    terms: its error is `dse` and, of a subsample, `subsampling_dse`"""
    term: list[str]
    elpd_diff_terms: Float[np.ndarray, "model term"]
    """differences term by term"""
    fold: list[str]
    given_tested: list[bool]
    """per model: whether units are scored given others that the same fold tests"""
    predict: list[str]
    """per model: "conditional", "path" or "either", as in `pcv.analysis.scores.Scores`"""
    overlap: Overlap | None
    """of the test sets; None: each unit is tested once"""
    df: float
    """degrees of freedom of `dse`"""
    repeat_sd: Float[np.ndarray, " model"]
    """standard deviation of elpd over repeats; NaN if there are none"""
    repeat_sd_diff: Float[np.ndarray, " model"]
    """standard deviation of `elpd_diff` over repeats"""
    elpd_diff_folds: Float[np.ndarray, "model fold"]
    """differences summed over the terms of each fold"""
    fold_of_term: Int[np.ndarray, " term"]
    """index of the fold of every term"""
    n_folds: int
    num_terms: int
    """number of all terms, scored or not; of one repeat"""
    verdict: list[str]
    """per model: "ok", or why its numbers cannot be trusted"""
    joint_by: str = ""
    """of pointwise terms that are joint scores of groups: what groups the units"""

    @property
    def is_subsample(self) -> bool:
        """Whether only some of the terms were scored, at random."""
        return self.num_terms > len(self.term)

    @property
    def repeats(self) -> int:
        """How often folds partition the units."""
        return self.overlap.repeats if self.overlap else 1


def compare(scores: Sequence[Scores], reference: str | None = None) -> Comparison:
    r"""Compare models on the same folds.

    .. math:: \Delta = \sum_j \Delta_j, \quad \Delta_j = \eta_{A,j} - \eta_{B,j}, \qquad
              \mathrm{SE}^2 = T \, \mathrm{var}_{T-1}(\Delta_j), \qquad
              \Pr(A \succ B) = \Phi(\Delta / \mathrm{SE}), \qquad
              \mathrm{MCSE}^2 = \sum_k \mathrm{MCSE}_{A,k}^2 + \mathrm{MCSE}_{B,k}^2

    over terms j = 1..T and folds k. PCV eq. 9, 10 and 15. Of a subsample, the error of the
    probability is the root of SE² and the squared SE of subsampling. Where test sets overlap, the
    SE is that of `pcv.analysis.standard_errors.error_of_sum`. Of R repeats, sums are divided by R.

    Args:
        scores: one per model, all joint or all pointwise; terms are aligned by their names and
            those of their folds.
        reference: the comparator; by default, the model with the highest elpd.

    Returns:
        Models, best first. Terms and folds in the order of the first scores. A single model is
        its own comparator. Differences are NaN where one model's units are scored given others
        that the same fold tests, and the other's are not.

    Raises:
        PcvError: two models with the same name, an unknown reference, or scores that differ in
            kind, score, outcome, predictive, data, folds or terms.

    >>> def scores(model, *elpd):
    ...     return Scores(model, "joint", "log", "weight", "plain", "d", "f", ["a", "b", "c"],
    ...                   np.array(elpd), np.full(3, 0.1), np.arange(3), ["a", "b", "c"], "ok")
    >>> result = compare([scores("common", -1.0, -2.0, -3.0), scores("slopes", -1.0, -1.0, -2.5)])
    >>> result.models, result.elpd_diff, result.dse.round(3), result.p_better.round(3)
    (['slopes', 'common'], array([ 0. , -1.5]), array([0.   , 0.866]), array([  nan, 0.042]))
    """
    check(scores)
    first = scores[0]
    terms = np.array([s.elpd[order(first, s)] for s in scores])
    mcse = np.array([total_mcse(s) for s in scores])
    is_bound = np.array([np.any(s.mcse_is_bound) for s in scores])
    surrogate = np.array([s.surrogate for s in scores if s.surrogate is not None])
    best_first = np.argsort(-_sums(first, terms, surrogate).elpd, kind="stable")
    names = [scores[i].model for i in best_first]
    if reference is not None and reference not in names:
        raise PcvError(f"compare.reference: no model '{reference}'; {nearest(reference, names)}")
    comparator = 0 if reference is None else names.index(reference)
    terms, mcse, is_bound = (x[best_first] for x in (terms, mcse, is_bound))
    surrogate = surrogate[best_first] if surrogate.size else surrogate
    sums = _sums(first, terms, surrogate)

    is_other = np.arange(len(names)) != comparator
    conditional = np.array([scores[i].given_tested for i in best_first])
    unlike = conditional != conditional[comparator]
    with np.errstate(invalid="ignore", divide="ignore"):
        diff_terms = np.where(is_other[:, None], terms - terms[comparator], 0.0)
        diff_terms[unlike] = np.nan
        of_diff = _sums(first, diff_terms, surrogate - surrogate[comparator : comparator + 1])
        dse = np.where(is_other, of_diff.se, 0.0)
        error = np.hypot(dse, of_diff.elpd_subsampling_se)
        p_better = np.where(is_other, ndtr(of_diff.elpd / error), np.nan)
    diff_folds = np.array(
        [np.bincount(first.fold_of_term, x, minlength=len(first.fold)) for x in diff_terms]
    )
    return Comparison(
        kind=first.kind,
        score=first.score,
        outcome=first.outcome,
        predictive=[scores[i].predictive.replace("either", "plain") for i in best_first],
        reference=names[comparator],
        models=names,
        rank=np.arange(len(names)),
        elpd=sums.elpd,
        se=sums.se,
        subsampling_se=sums.elpd_subsampling_se,
        mcse=mcse,
        mcse_is_bound=is_bound,
        elpd_diff=of_diff.elpd,
        dse=dse,
        dse_folds=np.where(
            is_other, error_of_sum(diff_folds, np.arange(len(first.fold)), first.overlap), 0.0
        )
        if first.chosen is None
        else dse,
        subsampling_dse=of_diff.elpd_subsampling_se,
        dse_subsampling_se=of_diff.se_subsampling_se,
        mcse_diff=np.where(unlike, np.nan, np.where(is_other, np.hypot(mcse, mcse[comparator]), 0)),
        mcse_diff_is_bound=is_other & ~unlike & (is_bound | is_bound[comparator]),
        p_better=p_better,
        term=list(first.term),
        elpd_diff_terms=diff_terms,
        given_tested=conditional.tolist(),
        predict=[scores[i].predict for i in best_first],
        overlap=first.overlap,
        df=degrees_of_freedom(len(first.term), first.overlap),
        repeat_sd=_over_repeats(first, terms),
        repeat_sd_diff=_over_repeats(first, diff_terms),
        fold=list(first.fold),
        elpd_diff_folds=diff_folds,
        fold_of_term=np.asarray(first.fold_of_term),
        n_folds=len(first.fold),
        num_terms=len(first.term) // first.repeats
        if first.chosen is None
        else int(first.chosen.sizes.sum()),
        verdict=[_verdict(scores[i]) for i in best_first],
        joint_by=first.joint_by,
    )


class Sums(NamedTuple):
    """`pcv.analysis.subsampling.Sum` of several models."""

    elpd: Float[np.ndarray, " model"]
    elpd_subsampling_se: Float[np.ndarray, " model"]
    se: Float[np.ndarray, " model"]
    se_subsampling_se: Float[np.ndarray, " model"]


def _sums(
    first: Scores,
    terms: Float[np.ndarray, "model term"],
    surrogate: Float[np.ndarray, "model any_term"] | Float[np.ndarray, "0"],
) -> Sums:
    """Sums of all terms, which are these or, where they are a subsample, many more."""
    if first.chosen is None:
        exact = np.zeros(len(terms))
        error = error_of_sum(terms, first.fold_of_term, first.overlap)
        return Sums(terms.sum(axis=1) / first.repeats, exact, error, exact)
    every = surrogate if surrogate.size else [None] * len(terms)
    found = [difference_estimator(first.chosen, x, y) for x, y in zip(terms, every, strict=True)]
    return Sums(*(np.array([getattr(x, name) for x in found]) for name in Sums._fields))


def _over_repeats(
    first: Scores, terms: Float[np.ndarray, "model term"]
) -> Float[np.ndarray, " model"]:
    """Standard deviation over repeats of the sums of each one's terms; NaN without repeats."""
    if first.overlap is None or first.repeats == 1:
        return np.full(len(terms), np.nan)
    repeat = repeat_of_fold(first.overlap)[first.fold_of_term]
    return np.array([np.bincount(repeat, x) for x in terms]).std(axis=1, ddof=1)


def noun(scores: Scores | Comparison) -> str:
    """What a term is: a fold, a unit, or a group of units."""
    return "group" if scores.joint_by else {"joint": "fold", "pointwise": "unit"}[scores.kind]


def _verdict(scores: Scores) -> str:
    found = [] if scores.verdict == "ok" else [scores.verdict]
    lost = np.flatnonzero(~np.isfinite(scores.elpd))
    if len(lost):
        found.append(
            f"{'elpd' if scores.score == 'log' else scores.score} of {scores.term[lost[0]]} is "
            f"{scores.elpd[lost[0]]} ({len(lost)} not finite)."
        )
    return " ".join(found) or "ok"
