"""The result of cross-validating a model: `CV`."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import xarray as xr
from scipy.special import logsumexp

from pcv.analysis import comparison as comparing
from pcv.analysis import results
from pcv.analysis.results import Kind, wording
from pcv.analysis.results.numbers import mcse_in_words
from pcv.api import saved
from pcv.base.errors import PcvError
from pcv.folds.base import foldable, is_exchangeable, stored
from pcv.pipeline.storage.storable import true_names

if TYPE_CHECKING:
    from arviz_stats import ELPDData
    from matplotlib.figure import Figure


@dataclass(frozen=True, repr=False)
class CV:
    """Cross-validation of one model.

    Attributes:
        tree: ArviZ groups of the full-data fit (posterior, sample_stats, observed_data, and
            log_likelihood where units are independent given the parameters), `folds`, and
            `diagnostics`: estimates and diagnostics of all folds.
        joint: whether `elpd` and its errors refer to the joint score (each test set predicted as a
            whole) or to the pointwise score (each unit on its own).
    """

    tree: xr.DataTree
    joint: bool

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
        """Standard error of `elpd` over subsamples, due to limited m; 0 where all terms are
        scored."""
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
        return float(np.sum(self._lpd() - self.scores.elpd))

    @property
    def pointwise(self) -> xr.DataArray:
        """elpd of each tested unit, in the order of the data, whichever score is shown (unit;
        nats)."""
        whole = self.diagnostics.drop_vars("chosen", errors="ignore")
        scores, order = results.scores(whole, "pointwise", "", ""), self._order
        return xr.DataArray(
            scores.elpd[order],
            {
                "unit": np.array(scores.term)[order],
                "fold": ("unit", np.array(scores.fold)[scores.fold_of_term[order]]),
            },
            "unit",
            "elpd",
        )

    @property
    def _order(self) -> np.ndarray:
        """Places of the tested units in the order of the data."""
        test = self.tree["folds"].dataset["test"].values
        return np.argsort(test[test >= 0], kind="stable")

    @property
    def folds(self) -> pd.DataFrame:
        """One row per fold: elpd, its MCSE and whether that is only a lower bound, ESS, R-hat,
        k-hat, overlap with the full data, divergences, verdict."""
        diagnostics = self.diagnostics
        names = ["rhat", "khat", "overlap", "divergences", "acceptance", "efmi", "n_draws"]
        names += ["verdict"]
        names += ["source"] * ("source" in diagnostics)
        of_kind = {
            "elpd": diagnostics[f"{self.kind}_elpd"],
            "mcse": diagnostics[f"{self.kind}_mcse"],
            "mcse_is_bound": diagnostics[f"{self.kind}_mcse_is_bound"],
            "ess": diagnostics["joint_ess"],
        }
        if not self.joint:
            of_kind["elpd"] = of_kind["elpd"].sum("slot")
        if self._is_subsample:
            of_kind["surrogate"] = diagnostics["surrogate"][diagnostics["chosen"].values]
        return pd.DataFrame(
            {name: x.values for name, x in of_kind.items()}
            | {name: diagnostics[name].values for name in names},
            pd.Index(diagnostics["fold"].values, name="fold"),
        )

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
        return "chosen" in self.diagnostics

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
        known = results.listed(self.diagnostics.attrs.get("scores", []))
        if f"{name}_{kind}" not in known:
            there = f"there are {', '.join(known)}" if known else f"request it: scores=['{name}']"
            raise PcvError(f"no {kind} score '{name}'; {there}")
        found = results.scores(self.diagnostics, kind, "", "", name)
        se = comparing.standard_error(found.elpd[None], found.inflation[0])[0]
        mcse = np.sqrt(np.sum(found.mcse**2))
        return pd.Series({"estimate": found.elpd.sum(), "se": se, "mcse": mcse}, name=name)

    def _lpd(self) -> np.ndarray:
        """Log predictive density of every term under the full-data posterior; NaN as for `p`."""
        marginal = self.diagnostics.attrs["predictive"] == "marginal"
        if marginal or "log_likelihood" not in self.tree:
            return np.full(len(self.scores.elpd), np.nan)
        draws = true_names(self.tree["log_likelihood"].to_dataset())[self.tree.attrs["outcome"]]
        by_unit = draws.stack(draw_of=("chain", "draw")).values
        stats = self.tree["sample_stats"].dataset
        weight = np.zeros(by_unit.shape[1])
        if "log_weight" in stats:
            weight = stats["log_weight"].stack(draw_of=("chain", "draw")).values
        test = self.tree["folds"].dataset["test"].values
        if self.joint:
            terms = np.stack([by_unit[units[units >= 0]].sum(0) for units in test])
        else:
            terms = by_unit[test[test >= 0]]
        return logsumexp(terms + weight, axis=1) - logsumexp(weight)

    def __repr__(self) -> str:
        d, attrs = self.diagnostics, self.tree.attrs
        title = attrs["title"]
        if self._is_subsample:
            n, strata = (d.sizes[dim] for dim in ("any_term", "any_stratum"))
            title = f"{d.sizes['fold']} of {n} {d.attrs['terms']} left out, chosen at random"
            title += f" in {strata} strata" * (strata > 1)
        lines = [
            f"{self.name}: {title}",
            f"{self.kind.capitalize()} log score of {d.attrs['outcome']}, {self._predictive()}, "
            f"{self._drawn()}",
            "",
        ]
        if self._is_subsample:
            lines[1] += f"; surrogate {d.attrs['surrogate']}"
            lines.append(wording.errors_apart(comparing.total(self.scores), self._mcse_in_words()))
        else:
            lines += [
                f"{'':12}{'Estimate':>10}{'SE':>8}{'MCSE':>8}",
                f"{'elpd':12}{self.elpd:10.1f} {self.se:7.1f} {self._mcse_in_words():>7}",
            ]
        if not np.isnan(p := self.p):
            lines.append(f"{'p':12}{p:10.1f}")
        for key in results.listed(d.attrs.get("scores", [])):
            name, _, kind = key.rpartition("_")
            estimate, se, mcse = self.score(name, "joint" if kind == "joint" else "pointwise")
            lines.append(f"{key:20}  {estimate:.4g}  (SE {se:.2g}, MCSE {mcse:.2g})")
        trust = "all folds are ok" if self.verdict == "ok" else self.verdict
        if not np.isnan(d["rhat_max"]):
            rhat = results.rhat_max_in_words(d)
            trust = f"{rhat[0].upper()}{rhat[1:]}: {trust}"
        s = self.scores
        notes = [d.attrs["subspace"]] if "subspace" in d.attrs else []
        if said := wording.estimator_in_words(d):
            notes.insert(0, said)
        notes += [f"{x}." for x in wording.overlap_note(s.inflation[0], len(s.term))]
        notes += [f"P{wording.GIVEN_TESTED[1:]}."] * s.given_tested
        words = [trust, *notes, *(f"Warning: {mark}" for mark in self._marks())]
        if self._is_subsample:
            notes = wording.error_notes(comparing.compare([self.scores]))
            grown = [f"{d.attrs['until']}."] if "until" in d.attrs else []
            words = [f"Exact terms: {words[0]}", *words[1:], *grown, *notes]
        return "\n".join([*lines, "", *map(wording.wrapped, words)])

    def _mcse_in_words(self) -> str:
        return mcse_in_words(self.mcse, bool(np.any(self.scores.mcse_is_bound)))

    def _repr_html_(self) -> str:
        return foldable(repr(self), "fold by fold", self.folds)

    def _drawn(self) -> str:
        d = self.diagnostics
        if "source" not in d:
            number = int(d["n_draws"].values.max())
            return f"{d.attrs['num_chains']} chains x {number} draws each"
        sampled = int((d["source"].values == "mcmc").sum())
        by_psis = f"PSIS from the full-data fit, largest k-hat {float(d['khat'].max()):.2f}"
        if not sampled:
            return by_psis
        if sampled == d.sizes["fold"]:
            return "all folds sampled"
        return (
            f"PSIS from the full-data fit for {d.sizes['fold'] - sampled} folds, {sampled} sampled"
        )

    def _predictive(self) -> str:
        attrs = self.diagnostics.attrs
        if attrs["predictive"] != "marginal":
            return "plain predictive"
        return f"marginal predictive (integrated {attrs['integration']})"

    def _marks(self) -> list[str]:
        return results.listed(self.tree.attrs.get("marks", []))

    def to_datatree(self) -> xr.DataTree:
        """The whole result, for ArviZ and xarray."""
        return self.tree

    def to_arviz(self) -> "ELPDData":
        """The score for ArviZ functions such as `az.compare` and `az.plot_khat`.

        Its `pareto_k` are those of the folds (`CV.folds`). ArviZ's SE divides by T, ours by T − 1,
        so that it is smaller by :math:`\\sqrt{(T-1)/T}`.
        """
        from arviz_stats.utils import ELPDDataLOOKFold

        scores = self.scores
        self._check_subsample(False)
        order = np.arange(len(scores.elpd)) if self.joint else self._order
        terms, dim = np.asarray(scores.elpd)[order], "fold" if self.joint else "unit"
        coords = {dim: np.array(scores.term)[order]}
        khat, of_term = self.diagnostics["khat"], scores.fold_of_term[order]
        if len(order) == khat.size:  # folds of one unit each: in the order of the terms
            khat = xr.DataArray(khat.values[of_term], coords, dim)
        return ELPDDataLOOKFold(
            elpd=float(terms.sum()),
            se=float(np.sqrt(terms.size * terms.var())),
            p=self.p,
            n_samples=int(self.diagnostics.attrs["num_chains"] * self.diagnostics["n_draws"].max()),
            n_data_points=terms.size,
            scale="log",
            warning=scores.verdict != "ok",
            good_k=float(self.diagnostics.attrs["good_k"]),
            pareto_k=khat.rename("pareto_k"),
            elpd_i=xr.DataArray(terms, coords, dim, "elpd_i"),
            n_folds=self.diagnostics.sizes["fold"],
            p_kfold_i=xr.DataArray(self._lpd()[order] - terms, coords, dim, "p_kfold_i"),
        )

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

    def plot_elpd(self) -> "Figure":
        """elpd over draws, with both errors."""
        from pcv.report import plots

        return plots.difference(_alone(self))

    def plot_rhat(self) -> "Figure":
        """R-hat of every fold over draws."""
        from pcv.report import plots

        self._check_sampled()
        return plots.rhat({self.name: self.diagnostics})

    def plot_benchmark(self) -> "Figure":
        """R-hat max against its benchmark, the distribution if all chains mixed."""
        from pcv.report import plots

        self._check_sampled()
        return plots.benchmark({self.name: self.diagnostics})

    def _check_sampled(self) -> None:
        if "source" in self.diagnostics:
            raise PcvError(
                f"{self.name}: its folds may come from PSIS, which has no chains to compare; see "
                "plot_khat"
            )

    def plot_ess(self) -> "Figure":
        """ESS of every fold's score, and of their sum, over draws."""
        from pcv.report import plots

        self._check_sampled()
        return plots.ess({self.name: self.diagnostics})

    def plot_overlap(self) -> "Figure":
        """Overlap of every fold's posterior with that of the full data."""
        from pcv.report import plots

        return plots.overlap({self.name: self.diagnostics})

    def plot_khat(self) -> "Figure":
        """Pareto k-hat of every fold's score."""
        from pcv.report import plots

        return plots.khat({self.name: self.diagnostics})

    def plot_full_data(self) -> "Figure":
        """R-hat and ESS of the parameters of the full-data fit."""
        from pcv.report import plots

        return plots.full_data({self.name: self.diagnostics})


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
