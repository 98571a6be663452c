"""The numbers of the paper's tables and figure, from the exact terms and surrogates of our runs."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from pcv.analysis.comparison import standard_error
from pcv.analysis.subsampling import Subsample, Sum, difference_estimator, hansen_hurwitz

SUBSETS, M = 100, 100
"""number and size of the subsamples that SEs are averaged over, as in the paper"""


class Terms(NamedTuple):
    """A model's leave-one-out terms."""

    chosen: Int[np.ndarray, " chosen"]
    """those known exactly, in the order in which a subsample grows"""
    exact: Float[np.ndarray, " chosen"]
    """their values by PSIS (nats)"""
    khat: Float[np.ndarray, " chosen"]
    surrogates: Mapping[str, Float[np.ndarray, " term"]]
    """of all terms (nats)"""

    @property
    def in_order(self) -> Float[np.ndarray, " term"]:
        """The exact terms by their indices, where all are known."""
        return self.exact[np.argsort(self.chosen)]


class Run(NamedTuple):
    """An experiment's results."""

    models: Mapping[str, Terms]
    draws: int
    """of the full-data fit"""
    good_k: float
    marks: Sequence[str]
    """warnings stored in the artifacts"""


def difference(run: Run, model: str, other: str, surrogate: str, m: int) -> Sum:
    """elpd of a model less that of another, from the first m of the terms chosen."""
    one, two = run.models[model], run.models[other]
    base = one.surrogates[surrogate] - two.surrogates[surrogate]
    return difference_estimator(
        _subsample(one.chosen[:m], base.size), (one.exact - two.exact)[:m], base
    )


def exact_difference(run: Run, model: str, other: str) -> float:
    """The same from all terms; NaN where only some are known."""
    one, two = run.models[model], run.models[other]
    whole = one.exact.size == next(iter(one.surrogates.values())).size
    return float((one.exact - two.exact).sum()) if whole else np.nan


def mean_se(estimate: Callable[[np.random.Generator], Sum], seed: int) -> float:
    """The mean SE of subsampling over subsamples."""
    rng = np.random.default_rng(seed)
    return float(np.mean([estimate(rng).elpd_subsampling_se for _ in range(SUBSETS)]))


def from_some(terms: Terms, surrogate: str | None) -> Callable[[np.random.Generator], Sum]:
    """The difference estimator from a random subsample; None: plain expansion."""
    exact = terms.in_order
    base = None if surrogate is None else terms.surrogates[surrogate]

    def estimate(rng: np.random.Generator) -> Sum:
        which = rng.choice(exact.size, M, replace=False)
        return difference_estimator(_subsample(which, exact.size), exact[which], base)

    return estimate


def hansen_hurwitz_from(terms: Terms, surrogate: str) -> Callable[[np.random.Generator], Sum]:
    """Hansen–Hurwitz, with terms drawn in proportion to a surrogate, which has one sign."""
    exact, share = terms.in_order, terms.surrogates[surrogate] / terms.surrogates[surrogate].sum()

    def estimate(rng: np.random.Generator) -> Sum:
        which = rng.choice(exact.size, M, p=share)
        return hansen_hurwitz(exact[which], share[which], exact.size)

    return estimate


def sigma(terms: Terms) -> float:
    """σ_loo, the SE of elpd over terms."""
    return float(standard_error(terms.exact[None])[0])


def _subsample(which: Int[np.ndarray, " chosen"], n: int) -> Subsample:
    return Subsample(which, np.zeros(which.size, int), np.array([n]))
