"""What `pcv.evidence` and `pcv.cumulative` give, and models compared by it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd
import xarray as xr

from pcv.analysis import evidence as estimates
from pcv.analysis.results.wording import wrapped
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
        path, (n, left_out) = self.path, estimates.extent(self.path)
        every = {left_out, *estimates.left_out(n, path.attrs["num_params"])}
        out = [p for p in sorted(every) if p in self.curve.index]
        columns = ["s_ccv", "s_ccv_se", "s_ccv_mcse", "s_ccv_per_n", "s_ccv_trimmed", "s_cv"]
        rows = self.curve.loc[out, columns].rename_axis(index=None, columns="left out")
        errors = dict.fromkeys(("s_ccv_se", "s_ccv_mcse"), "{:.2g}".format)
        shown = rows.to_string(float_format="{:.2f}".format, formatters=errors)
        first = estimates.in_words(path)
        rest = [f"{words}." for words in estimates.doubts(path)] + path.attrs["marks"]
        return "\n".join(
            [
                f"{self.name}: {path.sizes['order']} random orders of {n} units, "
                f"2 x {path.attrs['particles']} particles along each",
                *map(wrapped, (f"{first}.", *(f"Warning: {words}" for words in rest))),
                "",
                shown,
            ]
        )

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
    marks: tuple[str, ...] = ()
    """what is wrong with the full-data fit that bridge sampling took draws from"""
    by_laplace: str = ""
    """what Laplace's approximation gives, in words"""
    outcome_print: str = ""
    """hash of the outcome"""

    def __repr__(self) -> str:
        known = estimates.Estimate(self.log_evidence, self.mcse)
        words = f"log p(y) {estimates.number(known)} (MCSE {self.mcse:.2g}) by "
        if self.method == "bridge":
            first = ", ".join([words + estimates.BRIDGE, *filter(None, [self.by_laplace])])
            return "\n".join(map(wrapped, [first, *(f"Warning: {mark}" for mark in self.marks)]))
        words += "Laplace's approximation, "
        words += f"k-hat {self.khat:.2f}" if np.isfinite(self.khat) else "whose weights are alike"
        if self.khat > estimates.GOOD_K:
            words += (
                f", above {estimates.GOOD_K}: the posterior has heavier tails, so neither can be "
                "trusted; leave out `method`"
            )
        return wrapped(words)


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
        rows = self.frame.rename_axis(index=None, columns="model")
        errors = dict.fromkeys(("mcse", "log_bf_mcse"), "{:.2g}".format)
        table = rows.to_string(float_format="{:.2f}".format, formatters=errors)
        said = [wrapped(f"Warning: {words}") for words in self.warnings]
        return "\n".join([f"Log evidence; log Bayes factors over {self.reference}", table, *said])

    def _repr_html_(self) -> str:
        return foldable(repr(self), "in numbers", self.frame)


def by_evidence(models: Mapping[str, OneEvidence], reference: str | None) -> EvidenceComparison:
    """Models by their evidence alone.

    Raises:
        PcvError: they have other data.
    """
    best = max(models, key=lambda name: models[name].log_evidence)
    if reference is not None and reference not in models:
        raise PcvError(f"compare: no model '{reference}'; there are {', '.join(models)}")
    base = models[reference or best]
    rows, warnings = {}, []
    for name, one in models.items():
        warnings += [f"'{name}': {mark}" for mark in one.marks]
        if one.khat > estimates.GOOD_K:
            warnings.append(
                f"'{name}': Laplace's approximation has a k-hat of {one.khat:.2f}, above "
                f"{estimates.GOOD_K}, and cannot be trusted"
            )
        if one.outcome_print != base.outcome_print:
            raise PcvError(f"compare: '{name}' has another set of data than '{reference or best}'")
        rows[name] = {
            "log_evidence": one.log_evidence,
            "mcse": one.mcse,
            "log_bf": one.log_evidence - base.log_evidence,
            "log_bf_mcse": float(np.hypot(one.mcse, base.mcse)) * (one is not base),
        }
    frame = pd.DataFrame.from_dict(rows, orient="index").rename_axis("model")
    frame = frame.sort_values("log_evidence", ascending=False)
    return EvidenceComparison(frame, reference or best, tuple(warnings))


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
        from pcv.report import plots

        return plots.cumulative(self.paths)

    def _repr_html_(self) -> str:
        return foldable(repr(self), "in numbers", self.frame)


def compared(models: Mapping[str, CumulativeCV], reference: str | None) -> CumulativeComparison:
    """Models that were followed along the same orders.

    Raises:
        PcvError: they have other data, orders or shares that prepare.
    """
    paths = {name: one.path.assign_attrs(model=name) for name, one in models.items()}
    first = next(iter(paths))
    keys = {
        **{"outcome_print": "set of data", "outcome": "outcome", "folds_print": "set of orders"},
        "prepared": "share that prepares",
    }
    for key, what in keys.items():
        for name, path in paths.items():
            if path.attrs[key] != paths[first].attrs[key]:
                raise PcvError(
                    f"compare: '{name}' has another {what} than '{first}'; give the same data, "
                    "splits, prepare and seed"
                )
    if reference is not None and reference not in paths:
        raise PcvError(f"compare: no model '{reference}'; there are {', '.join(paths)}")
    return CumulativeComparison(paths, reference or estimates.best(paths))
