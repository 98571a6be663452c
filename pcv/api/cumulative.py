"""What `pcv.evidence` and `pcv.cumulative` give, and models compared by it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import pandas as pd
import xarray as xr

from pcv.analysis import evidence as estimates
from pcv.analysis.evidence import summary
from pcv.api.result import draw
from pcv.base.errors import PcvError
from pcv.folds.base import foldable

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class CumulativeCV:
    """The evidence of a model, and the path to it: from `evidence` and `cumulative`.

    Attributes:
        name: of the model.
        path: ``evidence.zarr``, by order, set of particles and number of training units.
    """

    def __init__(self, path: xr.Dataset, name: str) -> None:
        self.path, self.name = path, name

    @property
    def log_evidence(self) -> float:
        """log p(y) (nats), the log marginal likelihood; NaN where the prior is improper. By bridge
        sampling where that is more accurate than growing training sets, and these confirm it, or
        Laplace's approximation does and these are not higher."""
        return estimates.answer(self.path)[1].value

    @property
    def mcse(self) -> float:
        """Monte Carlo standard error of `log_evidence`."""
        return estimates.answer(self.path)[1].mcse

    @property
    def ways(self) -> pd.DataFrame:
        """log p(y) along growing training sets, by bridge sampling from the full-data fit, and by
        importance sampling from its Laplace approximation, with MCSE and k-hat."""
        if "way" not in self.path:
            raise PcvError(f"{self.name}: {estimates.in_words(self.path)}")
        found = estimates.every_way(self.path)
        rows = {way: (*estimate, khat) for way, (estimate, khat) in found.items()}
        columns = ["log_evidence", "mcse", "khat"]
        return pd.DataFrame.from_dict(rows, "index", columns=columns).rename_axis("way")

    @property
    def curve(self) -> pd.DataFrame:
        """By the number P of units left out: S_CV(P) per unit, S_CCV(P) and S_PCV(P) (nats), and
        the median and the trimmed mean of S_CCV(P) over orders, each with its SE over orders (0
        where it cannot be seen beside the MCSE) and MCSE; S_CCV(P) n/P."""
        return estimates.frame(self.path)

    def at(self, left_out: int) -> pd.Series:
        """S_CCV(P) and S_PCV(P) where P units are left out, as in `curve`, which may lack P.

        Raises:
            PcvError: P is not within 1 … n - 1, or leaves fewer units than an improper prior needs.
        """
        return estimates.at(self.path, left_out)

    def __repr__(self) -> str:
        return summary.curve_summary(self.path, self.name)

    def _repr_html_(self) -> str:
        return foldable(repr(self), "by the number of units left out", self.curve)

    def to_datatree(self) -> xr.DataTree:
        """The whole result, for xarray."""
        return xr.DataTree(self.path)


class OneEvidence(NamedTuple):
    """log p(y) without growing training sets (nats)."""

    method: str
    """"bridge" or "laplace\""""
    log_evidence: float
    mcse: float
    """by Laplace's approximation to be trusted where k-hat is at most 0.7"""
    khat: float
    """of Laplace's approximation; NaN where it was not made, or all weights are alike, as the
    posterior is normal"""
    by_laplace: str = ""
    """what Laplace's approximation gives, in words"""
    marks: tuple[str, ...] = ()
    """what is wrong with the full-data fit that bridge sampling took draws from"""
    outcome_print: str = ""
    """hash of the outcome"""

    def __repr__(self) -> str:
        estimate = estimates.Estimate(self.log_evidence, self.mcse)
        return summary.evidence_summary(
            self.method, estimate, self.khat, self.by_laplace, self.marks
        )


@dataclass(frozen=True, repr=False)
class EvidenceComparison:
    """Models side by side by evidence, best first.

    Attributes:
        frame: log p(y) with MCSE, and the log Bayes factor over the reference with its MCSE (nats).
        reference: the model that the others are compared with.
        warnings: what makes estimates doubtful.
    """

    frame: pd.DataFrame
    reference: str
    warnings: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return summary.bayes_factor_table(self.frame, self.reference, self.warnings)

    def _repr_html_(self) -> str:
        return foldable(repr(self), "in numbers", self.frame)


def by_evidence(models: Mapping[str, OneEvidence], reference: str | None) -> EvidenceComparison:
    """Models by their evidence alone."""
    reference = summary.check_evidences(models, reference)
    each = {x: estimates.Estimate(one.log_evidence, one.mcse) for x, one in models.items()}
    warnings = [f"'{name}': {words}" for name, one in models.items() for words in _doubts(one)]
    return EvidenceComparison(summary.bayes_factors(each, reference), reference, tuple(warnings))


def _doubts(one: OneEvidence) -> list[str]:
    tail = f"Laplace's approximation has a k-hat of {one.khat:.2f}, above {estimates.GOOD_K}"
    return [*one.marks, *[f"{tail}, and cannot be trusted"] * (one.khat > estimates.GOOD_K)]


@dataclass(frozen=True, repr=False)
class CumulativeComparison:
    """Models side by side, by cumulative score and by evidence; best first by the former.

    Attributes:
        paths: ``evidence.zarr`` of each model, by name.
        reference: the model that the others are compared with.
    """

    paths: Mapping[str, xr.Dataset]
    reference: str

    @property
    def frame(self) -> pd.DataFrame:
        """log p(y) with MCSE, the log Bayes factor over the reference, S_CCV(P) after the
        preparatory units, n/P of it, and its difference from the reference, with its SE over
        orders and MCSE (nats)."""
        return estimates.table(self.paths, self.reference)

    def at(self, left_out: int) -> pd.DataFrame:
        """S_CCV(P) where P units are left out, best first, and its difference from the reference,
        with its SE over orders and MCSE (nats).

        Raises:
            PcvError: as for `CumulativeCV.at`.
        """
        return estimates.at_of_models(self.paths, self.reference, left_out)

    def __repr__(self) -> str:
        return estimates.in_table(self.paths, self.reference)

    def plot(self) -> "Figure":
        """Scores over the size of the training set."""
        return draw("cumulative", self.paths)

    def _repr_html_(self) -> str:
        return foldable(repr(self), "in numbers", self.frame)


def compared(models: Mapping[str, CumulativeCV], reference: str | None) -> CumulativeComparison:
    """Models that were followed along the same orders."""
    curves = {name: one.path.assign_attrs(model=name) for name, one in models.items()}
    summary.check_curves(curves, reference)
    return CumulativeComparison(curves, reference or estimates.best(curves))
