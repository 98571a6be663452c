"""Models compared: `compare`, and its result as text, figures and tables."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import xarray as xr

from pcv.analysis import comparison as comparing
from pcv.analysis import results, weights
from pcv.analysis.results import Compared, frames, steps, wording
from pcv.analysis.results.comparable import comparable
from pcv.analysis.standard_errors import over_repeats
from pcv.api import cumulative
from pcv.api.cumulative import CumulativeCV, OneEvidence
from pcv.api.result import CV, draw
from pcv.base.errors import PcvError
from pcv.base.storable import true_names
from pcv.folds.base import foldable
from pcv.folds.checks import complete
from pcv.folds.columns import missing_column, unit_column

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, repr=False)
class Comparisons:
    """Models side by side, best first.

    Attributes:
        compared: comparisons by joint, pointwise and other scores.
        joint: whether the joint score is shown, or the pointwise one.
        diagnostics: of each model, by name.
        num_units: of the data; None where the folds do not say.
        test: units of each fold's test set (fold, slot), padded with -1.
        columns: of the data.
    """

    compared: Compared
    joint: bool
    diagnostics: Mapping[str, xr.Dataset]
    num_units: int | None = None
    test: np.ndarray | None = None
    columns: xr.Dataset | None = None

    @property
    def shown(self) -> comparing.Comparison:
        """The comparison by the score shown."""
        return self.compared.comparisons["joint" if self.joint else "pointwise"]

    @property
    def frame(self) -> pd.DataFrame:
        """One row per model, best first: ArviZ's columns and ours, unrounded. ``p_better`` is by a
        normal approximation, ``p_better_bb`` and the 90% interval of the difference
        (``eti90_lb``, ``eti90_ub``) by the Bayesian bootstrap (`pcv.analysis.bootstrap`),
        ``khat_diff`` the k-hat of the differences, ``weight`` that of stacking with its SE."""
        return self._frame.copy()

    @cached_property
    def _frame(self) -> pd.DataFrame:
        return frames.frame([self.shown]).set_index("model").drop(columns="kind")

    @property
    def pairs(self) -> pd.DataFrame:
        """One row per pair of models: the difference of ``model`` from ``other``, with both
        errors, probabilities and interval as in `frame`."""
        return self._pairs.copy()

    @cached_property
    def _pairs(self) -> pd.DataFrame:
        if len(self.diagnostics) < 2:
            raise PcvError("pairs: there is one model; compare two or more")
        return frames.pairs(self._scores)

    @property
    def _scores(self) -> list[comparing.Scores]:
        kind: results.Kind = "joint" if self.joint else "pointwise"
        return [results.scores(d, kind, "", "") for d in self.diagnostics.values()]

    def by(self, column: str | Any) -> pd.DataFrame:
        """The comparison within groups of units: where each model predicts better. Differences of
        all groups add up to `elpd_diff`.

        Args:
            column: name of a column of the data, such as "county", or a value for each unit, in
                the order of the data. Of the joint score, all units that a fold tests must be in
                one group.

        Returns:
            One row per group and model: the group, ``model``, ``n_terms`` (units, or folds of the
            joint score), ``elpd``, ``elpd_diff``, ``dse``, ``mcse_diff``, ``p_better``. ``dse`` is
            NaN with a single term, ``mcse_diff`` where a fold's units are in several groups.

        Raises:
            PcvError: no such column; more or fewer values than units, or missing ones; a fold that
                tests several groups; a subsample.
        """
        if self.shown.is_subsample:
            raise PcvError("by: it needs the scores of all terms, and these are of a subsample")
        if self.shown.joint_by:
            raise PcvError("by: joint_by has scored groups in place of units; leave it out")
        group, name = self._groups(column)
        assert self.test is not None
        tested = np.where(self.test >= 0, group[self.test], group[self.test[:, :1]])
        if not self.joint:
            of_term = tested[self.test >= 0]
            return frames.by_group(self._scores, of_term, name, self.shown.reference)
        mixed = (tested != tested[:, :1]).any(axis=1)
        if mixed.any():
            fold = self.shown.fold[int(mixed.argmax())]
            raise PcvError(
                f"by: fold '{fold}' tests units of several groups of {name!r}; compare the "
                "pointwise score (joint=False)"
            )
        return frames.by_group(self._scores, tested[:, 0], name, self.shown.reference)

    def _groups(self, column: str | Any) -> tuple[np.ndarray, str]:
        """The group of each unit, and the name of the grouping."""
        if self.test is None:
            raise PcvError("by: these folds do not say which units they test; compare them again")
        if not isinstance(column, str):
            return complete(column, "by", self.num_units), "group"
        columns = xr.Dataset() if self.columns is None else self.columns
        known = [str(name) for name in columns.data_vars if name != "unit_of_row"]
        if column not in known:
            remedy = f"by: {missing_column(column, known, 'the data')}"
            raise PcvError(
                remedy
                if known
                else f"by: no columns are kept of the data; give {column!r} as an "
                "array, with a value for each unit"
            )
        return complete(unit_column(columns, column), column, self.num_units), column

    @property
    def dataset(self) -> xr.Dataset:
        """The content of comparison.zarr: differences by fold and unit, and over draws."""
        return self.compared.dataset

    @property
    def by_step(self) -> pd.DataFrame:
        """Pointwise log scores by a unit's place in its test set: in leave-future-out, by steps
        ahead; other pointwise scores besides. One row per step and model, with the comparator of
        the joint score. A model with lags is given the values just before a unit. Column
        ``predict`` says how: "path", simulated ones, so that elpd (``log_path``) and scores are of
        forecasts; "conditional", observed ones, even those that the fold tests: its ``steps_ahead``
        are at most its shortest lag, there is no difference to models that look further, and the
        joint score alone is that of its forecast.

        Raises:
            PcvError: scores come from the full-data fit, whose folds have one unit or no order.
        """
        if any("pointwise_own_mcse" not in d for d in self.diagnostics.values()):
            raise PcvError("by_step: only of folds that are sampled, such as leave-future-out")
        reference = self.compared.comparisons["joint"].reference
        return steps.by_step(self.diagnostics, reference)

    def cumulative(self, p: int) -> pd.DataFrame:
        r"""Cumulative scores S_CCV(P) for P = p, by every pointwise score, from folds of
        `pcv.leave_p_out` with ``up_to=True``.

        .. math:: \hat S_\mathrm{CCV}(P) = \frac{P}{T} \sum_{t=1}^T \frac{1}{p_t}
                  \sum_{j=1}^{p_t} s(y_{tj} \mid y_{\mathrm{train}, t})

        For the log score, `pcv.cumulative` is more accurate. (Fong and Holmes 2020, appendix A.5.)

        Returns:
            One row per score and model: ``s_ccv``, n/P of it, its difference from the comparator,
            SEs over folds (more folds shrink them) and MCSEs.

        Raises:
            PcvError: folds do not test random numbers of units from 1 to P.
        """
        if self.num_units is None:
            raise PcvError("cumulative: these folds do not know the number of units")
        reference = self.compared.comparisons["joint"].reference
        return frames.cumulative(self.diagnostics, p, self.num_units, reference)

    def weights(self, method: str = "stacking", seed: int = 0) -> pd.Series:
        """Weights of the models' predictions in a mixture.

        Args:
            method: "stacking" or "pseudo-bma+".
            seed: of the Bayesian bootstrap of pseudo-BMA+.

        Raises:
            PcvError: another method, or a subsample.
        """
        c = self.shown
        if c.is_subsample:
            raise PcvError("weights need the scores of all terms, and these are of a subsample")
        terms = over_repeats(c.elpd_diff_terms, c.overlap)
        return pd.Series(weights.weights(terms, method, seed), c.models, name="weight")

    def __repr__(self) -> str:
        tables = [wording.table(self.shown)]
        if self.compared.others:
            tables.append(wording.scores_table(self.compared.others))
        words = [wording.in_words(self.shown), *wording.deciding(self.shown)]
        words += results.on_subspaces(self.diagnostics)
        words += results.on_predictions(self.diagnostics)
        words += results.on_mixtures(self.diagnostics)
        return "\n\n".join([*tables, *map(wording.wrapped, words)])

    def _repr_html_(self) -> str:
        return foldable(repr(self), "all columns, in full", self.frame)

    def plot_difference(self) -> "Figure":
        """Differences over draws, with both errors."""
        return draw("difference", self.dataset)

    def plot_probability(self) -> "Figure":
        """Probability that each model predicts better than the comparator, over draws."""
        return draw("probability", self.dataset)

    def plot_folds(self) -> "Figure":
        """Differences fold by fold."""
        return draw("fold_differences", self.dataset)


def compare(
    models: Mapping[str, CV] | Mapping[str, CumulativeCV] | Mapping[str, OneEvidence],
    *,
    reference: str | None = None,
    joint: bool | None = None,
) -> Any:
    r"""Which model predicts better, and how sure that is.

    .. math:: \Delta = \sum_k (\eta_{A,k} - \eta_{B,k}), \qquad
              \mathrm{SE}(\Delta) = \sqrt{K \, \mathrm{var}_k(\Delta_k)}

    The SE is raised where several folds test a unit (`pcv.analysis.standard_errors.error_of_sum`).
    Of the scores besides the log score, those that all models have are compared.

    Args:
        models: cross-validations by the models' names, over the same folds of the same data; of
            the same subsample, differences are estimated by the difference estimator. Or results of
            `evidence` and `cumulative`, over the same orders.
        reference: the model that the others are compared with; None: the best by the joint score.
        joint: the joint or the pointwise score; None: what the models show.

    Returns:
        `Comparisons`; of cumulative scores `pcv.api.cumulative.CumulativeComparison`, of evidence
        alone `pcv.api.cumulative.EvidenceComparison`.

    Raises:
        PcvError: they differ in data, folds, outcome or predictive, and cannot be compared.
    """
    check_joint(joint)
    if not isinstance(models, Mapping) or not models:
        raise PcvError("compare: no models by name; give a dict of cross-validations")
    along = {name: cv for name, cv in models.items() if isinstance(cv, CumulativeCV)}
    if len(along) == len(models):
        return cumulative.compared(along, reference)
    alone = {x: cv for x, cv in models.items() if isinstance(cv, OneEvidence)}
    if len(alone) == len(models):
        return cumulative.by_evidence(alone, reference)
    scored = {name: cv for name, cv in models.items() if isinstance(cv, CV)}
    for name, cv in models.items():
        if name not in scored:
            if isinstance(cv, OneEvidence):
                raise PcvError(
                    f"compare: '{name}' is log p(y) alone, others are not; give all to one call of "
                    "`evidence`"
                )
            if along:
                other = next(x for x in models if x not in along)
                raise PcvError(
                    f"compare: '{next(iter(along))}' is of cumulative cross-validation, '{other}' "
                    "is not; compare those of one kind"
                )
            raise PcvError(
                f"compare: '{name}' is {type(cv).__name__}, not what cross_validate gives"
            )
    return _scored(scored, reference, joint)


def _scored(models: Mapping[str, CV], reference: str | None, joint: bool | None) -> Comparisons:
    shown = {cv.joint for cv in models.values()} if joint is None else {joint}
    if len(shown) > 1:
        raise PcvError("compare: some models show the joint score, some the pointwise; give joint=")
    (is_joint,) = shown
    trees = {name: cv.tree for name, cv in models.items()}
    diagnosed = comparable(trees, is_joint)
    first = next(iter(trees.values()))
    data, folds = (str(first.attrs[key]) for key in ("outcome_print", "folds_print"))
    compared = results.compare(diagnosed, data, folds, reference, "")
    layout, columns = first["folds"].dataset, None
    if "constant_data" in first:
        columns = true_names(first["constant_data"].to_dataset())
    return Comparisons(
        compared, is_joint, diagnosed, layout.attrs.get("num_units"), layout["test"].values, columns
    )


def check_joint(joint: object) -> None:
    if not isinstance(joint, bool | None):
        raise PcvError(f"joint is {joint!r}; give True, False, or None to have it chosen")
