"""The result of cross-validating a model: `CV`."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import xarray as xr

from pcv.analysis import comparison as comparing
from pcv.analysis import results
from pcv.analysis.results import Kind, predicted, summary
from pcv.analysis.results.comparable import comparable
from pcv.base.errors import PcvError
from pcv.base.storable import true_names
from pcv.folds.base import foldable, is_exchangeable, stored
from pcv.folds.columns import missing_column, unit_column
from pcv.pipeline.storage import saved

if TYPE_CHECKING:
    from collections.abc import Sequence

    from arviz_stats import ELPDData
    from matplotlib.figure import Figure

    from pcv.core.problem import Problem


def draw(name: str, *args: Any) -> "Figure":
    """A figure of `pcv.report.plots`, which load when the first is drawn."""
    from pcv.report import plots

    figure: Figure = getattr(plots, name)(*args)
    return figure


@dataclass(frozen=True, repr=False)
class CV:
    """Cross-validation of one model, or of a mixture of several.

    Attributes:
        tree: ArviZ groups of the full-data fit (posterior, sample_stats, observed_data, and
            log_likelihood where units are independent given the parameters), `folds`, and
            `diagnostics`: estimates and diagnostics of all folds. A mixture has no fit.
        joint: whether `elpd` and its errors refer to the joint score (each test set predicted as a
            whole) or to the pointwise score (each unit on its own).
        problem: the model, its data and folds; None for a loaded result and a mixture.
    """

    tree: xr.DataTree
    joint: bool
    problem: "Problem | None" = field(default=None, compare=False)

    @property
    def kind(self) -> Kind:
        return "joint" if self.joint else "pointwise"

    @property
    def name(self) -> str:
        """Name of the model."""
        return str(self.diagnostics.attrs["model"])

    def renamed(self, name: str) -> "CV":
        """The same result under another name."""
        diagnosed = self.diagnostics.assign_attrs(model=name)
        return replace(self, tree=self.tree.assign({"diagnostics": xr.DataTree(diagnosed)}))

    @property
    def diagnostics(self) -> xr.Dataset:
        """Estimates and diagnostics of all folds: (fold), (fold, slot), and over draws (point)."""
        return self.tree["diagnostics"].dataset

    @property
    def scores(self) -> comparing.Scores:
        """The terms of the score shown, with what identifies their data and folds."""
        data, folds = (self.tree.attrs[name] for name in ("outcome_print", "folds_print"))
        return results.scores(self.diagnostics, self.kind, data, folds)

    @property
    def elpd(self) -> float:
        """Expected log predictive density, summed over folds (joint) or units (nats): all of them,
        of a subsample by the difference estimator."""
        return comparing.total(self.scores).elpd

    @property
    def se(self) -> float:
        """Standard error of `elpd`: epistemic, due to limited data. NaN where a subsample's
        estimate of its square is negative."""
        return comparing.total(self.scores).se

    @property
    def subsampling_se(self) -> float:
        """Standard error of `elpd` over subsamples of m terms; 0 where all terms are scored."""
        return comparing.total(self.scores).elpd_subsampling_se

    @property
    def mcse(self) -> float:
        """Monte Carlo standard error of `elpd`: due to limited draws."""
        return comparing.total_mcse(self.scores)

    @property
    def p(self) -> float:
        r"""Effective number of parameters: :math:`\sum \mathrm{lpd} - \mathrm{elpd}`, with the
        log predictive density of the same terms under the full-data posterior. NaN for targets,
        log likelihoods above 512 MiB, which are not stored, the marginal predictive, a subsample,
        and where the order of units counts: futures, blocks, gaps, overlapping test sets."""
        if self._is_subsample or not is_exchangeable(stored(self.tree["folds"].dataset)):
            return np.nan
        lpd = summary.log_predictive_density(self.tree, self.scores)
        return float(np.sum(lpd - self.scores.elpd))

    @property
    def pointwise(self) -> xr.DataArray:
        """elpd of each tested unit (nats), in the order of the data, whichever score is shown; with
        `joint_by`, of each group of each fold."""
        whole = self.diagnostics.drop_vars("chosen", errors="ignore")
        scores = results.scores(whole, "pointwise", "", "")
        order = summary.order_of_terms(self.tree["folds"].dataset["test"].values, scores)
        dim = comparing.noun(scores)
        return xr.DataArray(
            scores.elpd[order],
            {
                dim: np.array(scores.term)[order],
                "fold": (dim, np.array(scores.fold)[scores.fold_of_term[order]]),
            },
            dim,
            "elpd",
        )

    @property
    def folds(self) -> pd.DataFrame:
        """One row per fold: elpd, its MCSE and whether that is only a lower bound, ESS, R-hat,
        k-hat, overlap with the full data, divergences, verdict."""
        return summary.folds_frame(self.diagnostics, self.kind)

    @property
    def verdict(self) -> str:
        """The verdict: "ok", or which folds cannot be trusted, why, and what to do."""
        return self.scores.verdict

    @property
    def surrogates(self) -> xr.Dataset:
        """Of a subsample: the surrogates of all terms (term; nats), and what they are computed
        from."""
        self._check_subsample(True)
        return true_names(self.tree["surrogates"].to_dataset())

    @property
    def by_surrogate(self) -> pd.DataFrame:
        """Of a subsample: the estimate with each surrogate that was asked for, and with none, which
        is plain expansion of the exact terms."""
        self._check_subsample(True)
        return results.by_surrogate(self.diagnostics)

    @property
    def _is_subsample(self) -> bool:
        return summary.is_subsample(self.diagnostics)

    def _check_subsample(self, wanted: bool) -> None:
        if wanted and not self._is_subsample:
            raise PcvError(f"{self.name}: it scores every term, so that it has no surrogates")
        if self._is_subsample and not wanted:
            raise PcvError(
                f"{self.name}: ArviZ has no scores of subsamples; compare them by pcv.compare"
            )

    def score(self, name: str, kind: Kind = "pointwise") -> pd.Series:
        """Estimate, SE and MCSE of a score besides the log score.

        Args:
            name: "crps", ...
            kind: joint or pointwise.

        Raises:
            PcvError: it was not computed.
        """
        return summary.other_score(self.diagnostics, name, kind)

    def predictions(self) -> xr.DataTree:
        """Replicates of the outcome of every tested unit, drawn without its fold, for ArviZ.

        Returns:
            Groups posterior_predictive (chain, draw, unit), observed_data and constant_data (unit),
            in the order of the data; a unit that several folds test comes once for each. Coordinate
            ``fold`` names the fold. Under the marginal predictive, a left-out group's own effects
            are drawn anew for each replicate.

        Raises:
            PcvError: none were kept, or the model cannot make them.
        """
        outcome = str(self.tree.attrs["outcome"])
        return predicted.groups_of(predicted.replicated(self.tree), outcome, self._columns)

    def table(self) -> pd.DataFrame:
        """Predictions unit by unit, in the order of the data: fold, outcome ``y``, mean, standard
        deviation and quantiles of the predictive, PIT, elpd and its MCSE (nats).

        The PIT is the probability of an outcome below y; it is uniform over units if predictives
        are calibrated. Of models with lags, ``predict`` says whether replicates are given tested
        outcomes as observed ("conditional") or simulated ("path").

        Raises:
            PcvError: no predictions were kept, or the model cannot make them.
        """
        return predicted.table(predicted.replicated(self.tree), self.diagnostics)

    def fold_summary(self, names: "str | Sequence[str]") -> pd.DataFrame:
        """Parameters in every fold, from the draws that are kept with the predictions.

        Args:
            names: variables of the posterior, such as ``["slope", "sigma"]``.

        Returns:
            One row per parameter and fold: mean, sd, quantiles, and ``shift``, the distance of the
            mean from that of the full-data posterior in its standard deviations. For each
            parameter, the folds that move it most come first.

        Raises:
            PcvError: no such variable, no draws were kept, the result was loaded, or it is of a
                mixture or of log likelihoods alone.
        """
        self._check_one_model("fold_summary")
        return predicted.fold_summary(self._draws(names), self._posterior)

    def _draws(self, names: "str | Sequence[str]") -> xr.Dataset:
        """Draws of variables in every fold."""
        from pcv.core.parameters import parameter_draws

        if self.diagnostics.attrs.get("log_lik_alone"):
            raise PcvError(f"fold_summary: {predicted.LOG_LIK_ALONE}")
        if self.problem is None:
            raise PcvError(
                f"{self.name}: a loaded result does not know its model, from which the variables "
                "are computed; call fold_summary before it is saved"
            )
        chosen = [names] if isinstance(names, str) else list(names)
        return parameter_draws(self.problem, self._predicted, chosen, self._posterior)

    @property
    def _posterior(self) -> xr.Dataset:
        return true_names(self.tree["posterior"].to_dataset())

    @property
    def _predicted(self) -> xr.Dataset:
        return predicted.predictions_of(self.tree)

    def _column(self, name: str, units: np.ndarray | None = None) -> tuple[str, np.ndarray]:
        """A column of the data: by row of the predictions, or by unit for some units."""
        columns = true_names(self.tree.children["constant_data"].to_dataset(inherit=False))
        if units is not None:
            return name, unit_column(columns, name)[units]
        if name not in self._columns:
            raise PcvError(missing_column(name, self._columns, "the data"))
        return name, self._columns[name][self._predicted["row"].values]

    @property
    def _columns(self) -> dict[str, np.ndarray]:
        """The columns of the data besides the outcome, by row."""
        columns = true_names(self.tree.children["constant_data"].to_dataset(inherit=False))
        return {
            str(name): x.values for name, x in columns.data_vars.items() if name != "unit_of_row"
        }

    def __repr__(self) -> str:
        attrs = self.tree.attrs
        marks = results.listed(attrs.get("marks", []))
        return summary.summary(self.diagnostics, self.scores, attrs["title"], self.p, marks)

    def _repr_html_(self) -> str:
        return foldable(repr(self), "fold by fold", self.folds)

    def to_datatree(self) -> xr.DataTree:
        """The whole result, for ArviZ and xarray."""
        return self.tree

    def to_arviz(self) -> "ELPDData":
        """The score for ArviZ functions such as `az.compare` and `az.plot_khat`.

        Its `pareto_k` are those of the folds (`CV.folds`). ArviZ's SE divides by T, ours by T − 1,
        so that it is smaller by :math:`\\sqrt{(T-1)/T}`.
        Where terms are below −700 nats, `az.compare` has no weights; `pcv.compare` has.
        """
        self._check_subsample(False)
        return summary.elpd_data(self.tree, self.scores, self.p)

    def save(self, path: str | Path) -> None:
        """Write everything to a Zarr store that `pcv.load` and `xr.open_datatree` read.

        Args:
            path: a new folder, or a saved result to overwrite; or a URL that fsspec knows, such as
                ``s3://bucket/cv.zarr``.

        Raises:
            PcvError: something else is there, or nothing can be written.
        """
        tree = self.tree.copy()
        tree.attrs["joint"] = self.joint
        saved.write(path, tree)

    def plot_predictions(self, x: str | None = None, color: str | None = None) -> "Figure":
        """Outcomes and their out-of-fold predictives; without x, binary outcomes and categories
        against the probability that they were given.

        Args:
            x: column of the data to plot them along; None: along the median of the predictive.
            color: column whose values are coloured, such as the group of a unit; needs x.
        """
        replicates = predicted.replicated(self.tree)
        if x is None:
            if color is not None:
                raise PcvError("plot_predictions: color needs a column to plot along; give x=")
            return draw("observed", replicates, self.name)
        outcome, colour = str(self.tree.attrs["outcome"]), color and self._column(color)
        return draw("along", replicates, self.name, outcome, self._column(x), colour)

    def plot_pit(self) -> "Figure":
        """ECDF of the PITs, less that of uniform ones: near 0 if predictives are calibrated."""
        return draw("pit", {self.name: predicted.replicated(self.tree)})

    def plot_calibration(self) -> "Figure":
        """Coverage of central intervals less their level; of binary outcomes and ordered
        categories, observed frequencies against predicted probabilities."""
        return draw("calibration", {self.name: predicted.replicated(self.tree)})

    def plot_units(self, other: "CV", x: str | None = None, color: str | None = None) -> "Figure":
        """Differences in elpd from another model, unit by unit; the largest are named.

        Args:
            other: cross-validation of the other model, over the same folds.
            x: column of the data to plot them along; None: in the order of the data.
            color: column whose values are coloured.

        Raises:
            PcvError: results of other folds or data; groups that are scored jointly.
        """
        if "group_name" in self.diagnostics:
            raise PcvError("plot_units: joint_by has scored groups in place of units; leave it out")
        label = other.name if other.name != self.name else f"{other.name} (other)"
        comparable({self.name: self.tree, label: other.tree}, False, "plot_units")
        mine, theirs = self.pointwise, other.pointwise
        names = mine["unit"].values
        test = self.tree["folds"].dataset["test"].values
        units = np.sort(test[test >= 0], kind="stable")
        along = self._column(x, units) if x else ("unit", np.arange(len(names)))
        colour = color and self._column(color, units)
        models = self.name, label
        difference = mine.values - theirs.values
        return draw("unit_differences", difference, names, models, along, colour)

    def plot_fold_summary(self, names: "str | Sequence[str]") -> "Figure":
        """Parameters in the five folds that move each of them most, and given the full data.

        Args:
            names: as for `fold_summary`.
        """
        draws = self._draws(names)
        full = predicted.full_data(draws, self._posterior)
        return draw("parameters", predicted.fold_summary(draws, self._posterior), full)

    def plot_elpd(self) -> "Figure":
        """elpd over draws, with both errors."""
        return draw("difference", _alone(self))

    def plot_rhat(self) -> "Figure":
        """R-hat of every fold over draws."""
        self._check_sampled()
        return draw("rhat", {self.name: self.diagnostics})

    def plot_benchmark(self) -> "Figure":
        """R-hat max against its benchmark, the distribution if all chains mixed."""
        self._check_sampled()
        return draw("benchmark", {self.name: self.diagnostics})

    def _check_sampled(self) -> None:
        if "source" in self.diagnostics or "rhat_at" not in self.diagnostics:
            raise PcvError(
                f"{self.name}: its folds may come from PSIS, which has no chains to compare; see "
                "plot_khat"
            )

    def plot_ess(self) -> "Figure":
        """ESS of every fold's score, and of their sum, over draws."""
        self._check_sampled()
        return draw("ess", {self.name: self.diagnostics})

    def plot_overlap(self) -> "Figure":
        """Overlap of every fold's posterior with that of the full data."""
        return draw("overlap", {self.name: self.diagnostics})

    def plot_khat(self) -> "Figure":
        """Pareto k-hat of every fold's score."""
        return draw("khat", {self.name: self.diagnostics})

    def _check_one_model(self, call: str) -> None:
        if "mixture" in self.diagnostics.attrs:
            names = ", ".join(map(str, self.diagnostics["component"].values))
            raise PcvError(
                f"{call}: a mixture has no parameters of its own; call it of its models, {names}"
            )

    def plot_full_data(self) -> "Figure":
        """R-hat and ESS of the parameters of the full-data fit."""
        self._check_one_model("plot_full_data")
        if not self.diagnostics.sizes["param"]:
            raise PcvError("plot_full_data: no log likelihoods of the full data were given")
        return draw("full_data", {self.name: self.diagnostics})


def _alone(cv: CV) -> xr.Dataset:
    from pcv.api.comparisons import compare

    return compare({cv.name: cv}, joint=cv.joint).dataset


def load(path: str | Path) -> CV:
    """Load a saved cross-validation.

    Args:
        path: path or URL given to `CV.save`.

    Raises:
        PcvError: it is missing, damaged, or saved by an earlier version.
    """
    tree = saved.read(path)
    return CV(tree, bool(tree.attrs["joint"]))
