"""The result of `subsample`: `Subsampled`, and several compared."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

import numpy as np
import pandas as pd
import xarray as xr
from scipy.special import ndtr

from pcv.analysis.results import wording
from pcv.analysis.results.numbers import by_error, mcse_in_words, two_figures
from pcv.analysis.subsampling import Subsample, Sum, difference_estimator
from pcv.api.result import CV
from pcv.base.errors import PcvError, nearest
from pcv.folds.base import foldable


@dataclass(frozen=True, repr=False)
class Subsampled:
    """Leave-one-out of all terms, estimated from the exact scores of some.

    Attributes:
        cv: the exact scores, one fold for each chosen term.
        surrogates: of all terms (term; nats), what they are computed from, and k-hat with "psis".
        chosen: which terms are exact, in the order in which they were chosen.
        surrogate: name of the one that the estimate uses.
        apart: contribution of each batch of full-data draws to the Monte Carlo errors of the terms
            by PSIS (part, fold; nats); 0 for sampled ones.
        shared: covariance of the sampled terms' Monte Carlo errors, summed over their pairs.
    """

    cv: CV
    surrogates: xr.Dataset
    chosen: Subsample
    surrogate: str
    apart: np.ndarray
    shared: float

    @property
    def exact(self) -> np.ndarray:
        """Exact scores of the chosen terms, in their order (nats)."""
        return np.asarray(self.cv.scores.elpd)[self._place]

    @property
    def _place(self) -> np.ndarray:
        """The fold of each chosen term: folds are in the order of the data."""
        return np.argsort(np.argsort(self.chosen.term))

    @property
    def sum(self) -> Sum:
        """Both sums with their SEs of subsampling, by the difference estimator."""
        return difference_estimator(self.chosen, self.exact, self._values)

    @property
    def _values(self) -> np.ndarray:
        return np.asarray(self.surrogates[self.surrogate].values)

    @property
    def elpd(self) -> float:
        """Expected log predictive density, summed over all terms (nats)."""
        return self.sum.elpd

    @property
    def se(self) -> float:
        """Standard error of `elpd` over terms: due to limited data. NaN where the estimate of its
        square is negative."""
        return self.sum.se

    @property
    def subsampling_se(self) -> float:
        """Standard error of `elpd` over subsamples: due to limited m."""
        return self.sum.elpd_subsampling_se

    @property
    def mcse(self) -> float:
        """Monte Carlo standard error of `elpd`: due to limited draws for the exact terms."""
        weight = self.chosen.weight[np.argsort(self._place)]
        by_psis = ((self.apart * weight).sum(1) ** 2).sum()
        sampled = np.asarray(self.cv.folds["source"]) == "mcmc"
        own = ((weight * np.asarray(self.cv.scores.mcse))[sampled] ** 2).sum()
        between = self.shared * weight[sampled].mean() ** 2 if sampled.any() else 0.0
        return float(np.sqrt(by_psis + max(own + between, 0.0)))

    @property
    def verdict(self) -> str:
        """The verdict on the exact terms."""
        return self.cv.verdict

    @property
    def folds(self) -> pd.DataFrame:
        """One row per chosen term, in the order of the data: as `CV.folds`, and its surrogate."""
        values = pd.Series(self._values[np.sort(self.chosen.term)], self.cv.folds.index)
        return self.cv.folds.assign(surrogate=values)

    def __repr__(self) -> str:
        n = self._values.size
        lines = [
            f"{self.cv.name}: {self.chosen.term.size} of {n} {self.surrogates.attrs['terms']} left "
            "out, chosen at random"
            + f" in {self.chosen.sizes.size} strata"
            * (self.chosen.sizes.size > 1),
            f"Log score of {self.cv.diagnostics.attrs['outcome']}, {self.cv._predictive()}; "
            f"surrogate {self.surrogate}; {self.cv._drawn()}",
            "",
            wording.errors_apart([self.elpd], [self.sum], [self._mcse_in_words()], ["elpd"]),
        ]
        trust = "all folds are ok" if self.verdict == "ok" else self.verdict
        words = [
            f"Exact terms: {trust}",
            *wording.advice(self.sum, self.mcse, self.chosen.term.size, n, self._is_bound),
        ]
        return "\n".join([*lines, "", *map(wording.wrapped, words)])

    def _mcse_in_words(self) -> str:
        return mcse_in_words(self.mcse, self._is_bound)

    @property
    def _is_bound(self) -> bool:
        return bool(np.any(self.cv.scores.mcse_is_bound))

    def _repr_html_(self) -> str:
        return foldable(repr(self), "exact terms", self.folds)


@dataclass(frozen=True, repr=False)
class SubsampledComparison:
    """Models side by side on one subsample, best first.

    Attributes:
        models: results by the models' names, best first.
        reference: the model that the others are compared with.
    """

    models: Mapping[str, Subsampled]
    reference: str

    def difference(self, name: str) -> Sum:
        """The sum of a model's terms minus those of the reference, from the exact terms of both."""
        one, other = self.models[name], self.models[self.reference]
        both = min(one.chosen, other.chosen, key=lambda chosen: chosen.term.size)
        exact = one.exact[: both.term.size] - other.exact[: both.term.size]
        return difference_estimator(both, exact, one._values - other._values)

    @property
    def frame(self) -> pd.DataFrame:
        """One row per model, best first, unrounded: ArviZ's columns and ours."""
        rows = []
        for rank, (name, x) in enumerate(self.models.items()):
            itself = name == self.reference
            found = Sum(0.0, 0.0, 0.0, 0.0) if itself else self.difference(name)
            mcse = 0.0 if itself else np.hypot(x.mcse, self.models[self.reference].mcse)
            with np.errstate(divide="ignore", invalid="ignore"):
                p = np.nan if itself else float(ndtr(np.divide(found.elpd, found.se)))
            rows.append(
                {
                    "model": name,
                    "rank": rank,
                    "elpd_diff": found.elpd,
                    "dse": found.se,
                    "subsampling_dse": found.elpd_subsampling_se,
                    "mcse_diff": mcse,
                    "p_better": p,
                    "elpd": x.elpd,
                    "se": x.se,
                    "subsampling_se": x.subsampling_se,
                    "mcse": x.mcse,
                    "verdict": x.verdict,
                }
            )
        return pd.DataFrame(rows).set_index("model")

    def __repr__(self) -> str:
        first = self.models[self.reference]
        m, n = min(x.chosen.term.size for x in self.models.values()), first._values.size
        names = sorted({x.surrogate for x in self.models.values()})
        frame = self.frame
        error = np.hypot(frame["mcse_diff"], frame["subsampling_dse"])
        printed = pd.DataFrame(
            {
                "rank": frame["rank"],
                "elpd_diff": [by_error(x, e) for x, e in zip(frame["elpd_diff"], error)],
                **{
                    name: [two_figures(x) for x in frame[name]]
                    for name in ("dse", "subsampling_dse", "mcse_diff")
                },
                "p_better": ["" if np.isnan(p) else f"{p:.2f}" for p in frame["p_better"]],
                "elpd": [by_error(x, e) for x, e in zip(frame["elpd"], frame["subsampling_se"])],
                **{
                    name: [two_figures(x) for x in frame[name]]
                    for name in ("se", "subsampling_se", "mcse")
                },
            }
        )
        printed.index.name = None
        words = [f"{name}: {x.verdict}" for name, x in self.models.items() if x.verdict != "ok"]
        for name in self.models:
            if name != self.reference:
                found = self.difference(name)
                bound = first._is_bound or self.models[name]._is_bound
                said = wording.advice(found, float(frame["mcse_diff"][name]), m, n, bound)
                words += [f"{name} against {self.reference}: {line}" for line in said]
        heading = (
            f"Log score of {first.cv.diagnostics.attrs['outcome']}: {m} of {n} "
            f"{first.surrogates.attrs['terms']} left out, "
            f"surrogate {' and '.join(names)}; differences from {self.reference}"
        )
        return "\n".join([heading, printed.to_string(), *map(wording.wrapped, words)])

    def _repr_html_(self) -> str:
        return foldable(repr(self), "all columns, in full", self.frame)


def compare(models: Mapping[str, object], reference: str | None = None) -> SubsampledComparison:
    """Models on one subsample; `pcv.compare` calls it.

    Raises:
        PcvError: they differ in data, outcome, predictive or subsample.
    """
    for name, x in models.items():
        if not isinstance(x, Subsampled):
            raise PcvError(
                f"compare: '{name}' is {type(x).__name__}, others come from subsample; compare "
                "results of one kind"
            )
    given = cast(Mapping[str, Subsampled], models)
    (first, one), *others = given.items()
    for name, other in others:
        a, b = one.cv, other.cv
        m = min(one.chosen.term.size, other.chosen.term.size)
        either = {a.scores.predictive, b.scores.predictive} - {"either"}
        alike = {
            "data": a.tree.attrs["outcome_print"] == b.tree.attrs["outcome_print"],
            "outcomes": a.scores.outcome == b.scores.outcome,
            "predictives": len(either) < 2,
            "groups": one.surrogates.attrs["terms_print"] == other.surrogates.attrs["terms_print"],
            "subsamples": np.array_equal(one.chosen.term[:m], other.chosen.term[:m])
            and np.array_equal(one.chosen.sizes, other.chosen.sizes),
        }
        for what, same in alike.items():
            if not same:
                raise PcvError(
                    f"compare: '{first}' and '{name}' have different {what}; give both the same "
                    "data, seed, predictive and group_by, and one stratum"
                )
    if reference is not None and reference not in given:
        raise PcvError(f"compare: no model '{reference}'; {nearest(reference, list(given))}")
    ordered = dict(sorted(given.items(), key=lambda item: -item[1].elpd))
    return SubsampledComparison(ordered, reference or next(iter(ordered)))
