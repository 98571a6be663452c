r"""Compare models by their scores.

- *terms* are what a score sums over: folds for the joint score, units for the pointwise one;
- every model is compared with one other, the *comparator*: the best model, or a named reference;
- each difference has two errors, never combined: its standard error over terms (SE, `dse`:
  epistemic, from the limited data) and its Monte Carlo standard error (MCSE, `mcse_diff`: from the
  limited number of draws; more draws shrink it);
- terms that share units, as overlapping test sets do, are correlated: the SE allows for it;
- where only some of the terms were scored, at random, their sum is estimated
  (`pcv.analysis.subsampling`), with a third error, the SE of subsampling.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.special import ndtr

from pcv.analysis.subsampling import Subsample, Sum, difference_estimator
from pcv.base.errors import PcvError, nearest, setting


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
    inflation: tuple[float, float] = (1.0, 1.0)
    """of `overlap_inflation`, of the terms and of the folds"""
    given_tested: bool = False
    """whether units are scored given others that the same fold tests, such as those just before"""


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
    """sum of all terms"""
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
    inflation: float
    """of `overlap_inflation`: 1 where each unit is tested once"""
    elpd_diff_folds: Float[np.ndarray, "model fold"]
    """differences summed over the terms of each fold"""
    n_folds: int
    num_terms: int
    """number of all terms, scored or not"""
    verdict: list[str]
    """per model: "ok", or why its numbers cannot be trusted"""

    @property
    def is_subsample(self) -> bool:
        """Whether only some of the terms were scored, at random."""
        return self.num_terms > len(self.term)


def overlap_inflation(unit: Int[np.ndarray, " tested"], term: Int[np.ndarray, " tested"]) -> float:
    r"""Ratio of the variance of a sum of T terms, some of whose units are tested by several, to
    that of as many terms with units of their own.

    .. math:: \frac{1}{T} \sum_{j,k} \frac{|U_j \cap U_k|}{\sqrt{|U_j| |U_k|}}
              = \frac{1}{T} \sum_i \Big( \sum_{j: i \in U_j} |U_j|^{-1/2} \Big)^2

    with the units :math:`U_j` of term j: the correlation of terms whose units contribute
    independently. 1 where each unit is tested once; R where every unit is tested R times by sets
    of one size.

    Args:
        unit, term: indices of every tested unit, and of the term that tests it.

    >>> round(overlap_inflation(np.arange(4), np.array([0, 0, 1, 1])), 6)
    1.0
    >>> round(overlap_inflation(np.array([0, 1, 0, 1]), np.array([0, 0, 1, 1])), 6)
    2.0
    """
    if not unit.size:
        return 1.0
    size = np.bincount(term)
    with np.errstate(divide="ignore"):
        share = np.bincount(unit, weights=(1 / np.sqrt(size))[term])
    return float((share**2).sum() / np.count_nonzero(size))


def standard_error(
    terms: Float[np.ndarray, "model term"], inflation: float = 1.0
) -> Float[np.ndarray, " model"]:
    r"""Standard error of each model's sum of T terms.

    .. math:: \mathrm{SE} = \sqrt{T \, \mathrm{var}_{T-1}(x) \,
              \frac{\varphi}{1 - (\varphi - 1) / (T - 1)}}

    with φ = 1 where terms are independent: PCV eq. 10, as in R's loo and `az.loo`. (ArviZ's
    `compare`, k-fold and leave-future-out use the variance with divisor T: smaller by
    :math:`\sqrt{(T - 1) / T}`.)

    Args:
        terms: the summands.
        inflation: φ, of `overlap_inflation`. (The denominator is what correlated terms lack in
            their own variance.)

    Returns:
        In the units of the terms; NaN with a single term, or where all terms have the same units.

    >>> standard_error(np.array([[1.0, 2.0, 3.0]])).round(3)
    array([1.732])
    """
    count = terms.shape[1]
    if count < 2:
        return np.full(len(terms), np.nan)
    with np.errstate(invalid="ignore"):
        return se_ratio(inflation, count) * np.sqrt(count * terms.var(axis=1, ddof=1))


def se_ratio(inflation: float, count: int) -> float:
    """Ratio of `standard_error` to that of as many independent terms; NaN where all terms have the
    same units."""
    variance_share = 1 - (inflation - 1) / max(count - 1, 1)
    return float(np.sqrt(inflation / variance_share)) if variance_share > 1e-9 else np.nan


def compare(scores: Sequence[Scores], reference: str | None = None) -> Comparison:
    r"""Compare models on the same folds.

    .. math:: \Delta = \sum_j \Delta_j, \quad \Delta_j = \eta_{A,j} - \eta_{B,j}, \qquad
              \mathrm{SE}^2 = T \, \mathrm{var}_{T-1}(\Delta_j), \qquad
              \Pr(A \succ B) = \Phi(\Delta / \mathrm{SE}), \qquad
              \mathrm{MCSE}^2 = \sum_k \mathrm{MCSE}_{A,k}^2 + \mathrm{MCSE}_{B,k}^2

    over terms j = 1..T and folds k. PCV eq. 9, 10 and 15. Of a subsample, the error of the
    probability is the root of SE² and the squared SE of subsampling.

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
    _check(scores)
    first = scores[0]
    terms = np.array([s.elpd[_order(first, s)] for s in scores])
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
        dse_folds=np.where(is_other, standard_error(diff_folds, first.inflation[1]), 0.0)
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
        inflation=first.inflation[0],
        fold=list(first.fold),
        elpd_diff_folds=diff_folds,
        n_folds=len(first.fold),
        num_terms=len(first.term) if first.chosen is None else int(first.chosen.sizes.sum()),
        verdict=[_verdict(scores[i]) for i in best_first],
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
        return Sums(terms.sum(axis=1), exact, standard_error(terms, first.inflation[0]), exact)
    every = surrogate if surrogate.size else [None] * len(terms)
    found = [difference_estimator(first.chosen, x, y) for x, y in zip(terms, every, strict=True)]
    return Sums(*(np.array([getattr(x, name) for x in found]) for name in Sums._fields))


def total(scores: Scores) -> Sum:
    """The sum of all terms of one model, and its variability."""
    terms = np.asarray(scores.elpd)
    if scores.chosen is not None:
        return difference_estimator(scores.chosen, terms, scores.surrogate)
    se = standard_error(terms[None], scores.inflation[0])
    return Sum(float(terms.sum()), 0.0, float(se[0]), 0.0)


def total_mcse(scores: Scores) -> float:
    """Monte Carlo standard error of the sum of all terms."""
    mcse = scores.mcse
    if scores.chosen is not None:
        mcse = mcse * scores.chosen.weight
    return float(np.sqrt(np.sum(mcse**2) + scores.shared))


def _check(scores: Sequence[Scores]) -> None:
    if not scores:
        raise PcvError("compare: no models")
    first = scores[0]
    seen: set[str] = set()
    for s in scores:
        if s.model in seen:
            raise PcvError(f"compare: two models are named '{s.model}'; rename one")
        seen.add(s.model)
    plain = setting("predictive", value="plain")
    remedy = {
        "kind": "compare joint with joint and pointwise with pointwise scores",
        "score": "compare one score at a time",
        "outcome": "let both models score the same variable on the same scale",
        "predictive": f"set {plain}, or give each model a `marginal`",
        "data": "rerun both models on the same data",
        "folds": "rerun both models on the same folds",
    }
    for s in scores[1:]:
        for field, what_to_do in remedy.items():
            a, b = getattr(first, field), getattr(s, field)
            if a != b and not (field == "predictive" and "either" in (a, b)):
                raise PcvError(
                    f"cannot compare '{first.model}' with '{s.model}': different {field}"
                    f" ({a}, {b}); {what_to_do}"
                )
        if not _one_subsample(first.chosen, s.chosen):
            raise PcvError(
                f"cannot compare '{first.model}' with '{s.model}': different subsamples; give both "
                "the same seed, m and group_by, and one stratum"
            )


def _one_subsample(one: Subsample | None, other: Subsample | None) -> bool:
    """Whether both are subsamples of the same number of terms, chosen alike."""
    if one is None or other is None:
        return one is other
    a, b = ((np.sort(x.term), x.stratum[np.argsort(x.term)], x.sizes) for x in (one, other))
    return all(map(np.array_equal, a, b))


def noun(scores: Scores | Comparison) -> str:
    """What a term is: a fold or a unit."""
    return {"joint": "fold", "pointwise": "unit"}[scores.kind]


def _terms(scores: Scores) -> list[tuple[str, str]]:
    """Identify terms by fold and name, since several folds may leave out the same unit."""
    return [(scores.fold[k], name) for k, name in zip(scores.fold_of_term, scores.term)]


def _order(first: Scores, other: Scores) -> list[int]:
    """Index in `other` of each term of `first`."""
    terms = {s.model: _terms(s) for s in (first, other)}

    def named(term: tuple[str, str]) -> str:
        fold = f"fold '{term[0]}'"
        return fold if first.kind == "joint" else f"unit '{term[1]}' in {fold}"

    for model, own in terms.items():
        if len(set(own)) < len(own):
            twice = next(term for term in own if own.count(term) > 1)
            raise PcvError(f"scores of '{model}': {named(twice)} occurs more than once")
        missing = sorted({*terms[first.model], *terms[other.model]} - set(own))
        if missing:
            raise PcvError(
                f"cannot compare '{first.model}' with '{other.model}': '{model}' has no score of"
                f" {named(missing[0])} ({len(missing)} missing); rerun both on the same folds"
            )
    place = {term: i for i, term in enumerate(terms[other.model])}
    return [place[term] for term in terms[first.model]]


def _verdict(scores: Scores) -> str:
    found = [] if scores.verdict == "ok" else [scores.verdict]
    lost = np.flatnonzero(~np.isfinite(scores.elpd))
    if len(lost):
        found.append(
            f"{'elpd' if scores.score == 'log' else scores.score} of {scores.term[lost[0]]} is "
            f"{scores.elpd[lost[0]]} ({len(lost)} not finite)."
        )
    if len(scores.elpd) < 2:
        found.append(f"SE undefined with one {noun(scores)}.")
    return " ".join(found) or "ok"
