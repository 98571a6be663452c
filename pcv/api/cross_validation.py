"""Cross-validation from Python, and the full-data fit alone."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import xarray as xr

from pcv.analysis.results.comparable import shared_prints
from pcv.api import calls
from pcv.api.calls import Call
from pcv.api.comparisons import check_joint
from pcv.api.inputs import AnyModel
from pcv.api.result import CV
from pcv.base.errors import PcvError
from pcv.base.storable import storable
from pcv.core import cross_validate as core
from pcv.core import fit as fitting
from pcv.core.check import check
from pcv.core.problem import Problem
from pcv.core.settings import chain_settings
from pcv.folds.base import Folds, describe, stored
from pcv.folds.schemes import headline
from pcv.folds.sections.scheme import Scheme
from pcv.models.scores import Score

GROUPS = ("posterior", "sample_stats", "log_likelihood", "observed_data")
"""ArviZ groups of the full-data fit"""


def cross_validate(
    model: AnyModel | Mapping[str, AnyModel],
    folds: str | Folds | Mapping[str, Any] | Any = "loo",
    *,
    data: Any = None,
    scores: str | Score | Sequence[Any] = ("log",),
    predictions: int = 400,
    predict: str = "conditional",
    joint: bool | None = None,
    joint_by: Any = None,
    predictive: str = "auto",
    estimator: str = "two_sided",
    seed: int = 0,
    chains: int = 8,
    draws: int = 200,
    warmup: int | str = 50,
    until: Mapping[str, Any] | None = None,
    fit: Any = None,
    kernel: Mapping[str, Any] | None = None,
    cv: Mapping[str, Any] | None = None,
    precision: str = "float64",
    results: str | Path | None = None,
    cores: int | None = None,
    progress: bool = True,
) -> Any:
    r"""How well a model predicts unseen data: exact cross-validation, all folds at once.

    .. math:: \mathrm{elpd} = \sum_k \log \frac{1}{S} \sum_{s=1}^{S}
              p(y_{\mathrm{test}_k} \mid \theta_{k,s}), \qquad
              \theta_{k,s} \sim p(\theta \mid y_{\mathrm{train}_k})

    This is the estimate from a fold's own draws. A fold that holds out its test set and nothing
    else is by default estimated from both sides, its own draws and full-data draws, by Bennett's
    acceptance ratio (`pcv.analysis.diagnostics.two_sided`), with a smaller error.

    Args:
        model: a PyMC or Bambi model, the result of `from_numpyro`, a `pcv.Model` or a
            `pcv.Target`; or a dict of several, which share the folds.
        folds: "loo", "kfold" (10 random folds), `Folds` of any scheme (`pcv.kfold`), a
            scikit-learn splitter, or a scheme that names columns, as in a config:
            ``{"scheme": "leave_one_group_out", "group": "rat"}``.
        data: the data of a `pcv.Model` or `pcv.Target`, as arrays by name or a table. Arrays as
            long as the outcome are columns.
        scores: log, dss, hyvarinen, crps, scrps, energy, interval, rmse, mae, r2, mase, brier,
            accuracy, balanced_accuracy, rps; pinball_10, coverage_90, width_90, interval_50 or
            with another percentage; ``file.py:function``, or a `pcv.Score`.
        predictions: number of replicates of each tested unit that are kept, evenly over chains and
            draws (`CV.predictions`); fewer where they would take more than 256 MiB. 0: none.
        predict: for models whose terms read other outcomes (lags), what replicates of a unit are
            given: "conditional", the outcomes before it as observed, even those that its fold
            tests; "path", simulated ones, so that they are forecasts of as many steps as the unit
            is ahead (`pcv.models.paths`). Scores from replicates follow, and ``log_path`` is added.
        joint: which score to show, that of each test set as a whole (True) or of each unit
            (False); None: joint where folds hold several units. Both are computed.
        joint_by: column of the data, or a value for each unit: of each fold, the units of one value
            are scored jointly, as brms' ``joint = "group"``. These scores take the place of the
            pointwise ones, and are shown by default: ten folds of three rats each have 30 terms.
        predictive: "plain", "marginal" (a left-out group's own effects integrated out) or "auto".
        estimator: "two_sided", or "own": each fold's own draws alone, as in the formula.
        seed: of all random numbers.
        chains, draws, warmup: of every fold; at least 2 chains; draws and warmup are per chain.
            Warmup "auto", with 32 chains or more: until chains have forgotten their starts.
        until: a stopping rule for folds, in place of `draws`, as in a config:
            ``{"fold_mcse": 0.1, "max_draws": 2000}``.
        fit: settings of the full-data fit: chains (at least 4), warmup, draws, target_accept,
            approximation, allow_bad_fit; or existing draws from it (PyMC, nutpie, NumPyro, Stan) as
            an ArviZ DataTree, or a fit of CmdStanPy, or a dict of one per model. Existing draws are
            checked.
        kernel: ``{"subspace": d}``: chains move on the d leading principal directions of the
            full-data posterior; or ``{"subspace": {"share": 0.99}}``, on those with this share of
            its variance (``predictive_share``: of the variance of the log likelihoods). Biased if
            there are too few: printed results say how far a few folds are off, and `CV.verdict`
            whether that is too far. None: in all directions.
        cv: further settings of the folds' chains: batch_size, superchains, adapt, store, ...
        precision: "float64", "float32" or "auto".
        results: folder in which artifacts are kept, so that an interrupted call can resume.
            Artifacts of other models, data or settings are remade, and, with a warning, those of
            functions that cannot be hashed reliably. None: artifacts live in memory only.
        cores: CPU cores to use; None: all.
        progress: whether to show progress and messages; warnings are always logged.

    Returns:
        `CV`, or a dict of them by the models' names.

    Raises:
        PcvError: what is wrong, where, and what to do.
    """
    sections = {
        "predictive": predictive,
        "estimator": estimator,
        "scores": scores,
        "joint_by": joint_by,
        "predictions": predictions,
        "predict": predict,
        "fit": {} if fit is None else fit,
        "kernel": kernel,
        "cv": chain_settings(chains, draws, warmup, until, cv),
    }
    check_joint(joint)
    with calls.prepared(
        model, folds, data, sections, seed, precision, results, cores, progress
    ) as call:
        return cross_validated(call, joint, isinstance(model, Mapping))


def cross_validated(call: Call, joint: bool | None, several: bool) -> Any:
    """A `CV` of a call's model, or several of them by the models' names."""
    if not (call.settings.folds.samples or call.settings.folds.from_full_data):
        raise PcvError(
            "cumulative has no folds to sample", ("folds", "scheme"), "use pcv.cumulative"
        )
    check(call.problems, call.settings, call.monitor.only_warnings(), look_for_leaks=False)
    each = core.cross_validate(*call).items()
    scheme = call.settings.folds
    cvs = {name: cv_of(call.problems[name], x, scheme, joint) for name, x in each}
    return cvs if several else next(iter(cvs.values())).renamed("model")


def cv_of(problem: Problem, result: core.Result, scheme: Scheme, joint: bool | None) -> CV:
    """The cross-validation of a model by folds of a scheme, from what the core computes."""
    diagnosed = result.diagnostics.load()
    folds = problem.layout.load().sel(fold=diagnosed["fold"].values)  # a subsample may have grown
    groups = {**_groups(result.fit), "folds": folds, "diagnostics": diagnosed}
    groups["constant_data"] = columns_of(problem.data, problem.outcome)
    if result.predictions:
        groups["predictions"] = result.predictions.load()
    if result.surrogates is not None and "terms" in result.surrogates:
        groups["surrogates"] = result.surrogates["terms"].to_dataset().load()
    tree = xr.DataTree.from_dict(groups)
    description = describe(stored(folds), problem.num_units)
    tree.attrs = {
        "title": headline(scheme, description),
        "outcome": problem.outcome,
        "seed": problem.seed,
        "marks": result.marks,
        **shared_prints(problem.data, problem.outcome, folds),
    }
    several = bool((folds["test"] >= 0).sum("slot").max() > 1)
    shown = several and "joint_by" not in folds if joint is None else joint
    return CV(tree, shown, problem)


def columns_of(data: xr.Dataset, outcome: str) -> xr.Dataset:
    """Columns of the data other than the outcome, by unit or, where units have several, by row."""
    columns = {
        str(name): x.astype(str) if x.dtype == object else x
        for name, x in data.data_vars.items()
        if x.dims in (("unit",), ("row",)) and name != outcome
    }
    return storable(xr.Dataset(columns, {"unit": data["unit"].values}))


def _groups(fit: xr.DataTree) -> dict[str, xr.Dataset]:
    return {name: fit[name].to_dataset().load() for name in GROUPS if name in fit}


def fit(
    model: AnyModel,
    *,
    data: Any = None,
    seed: int = 0,
    chains: int = 4,
    warmup: int = 1000,
    draws: int = 1000,
    target_accept: float | None = None,
    allow_bad_fit: bool = False,
    precision: str = "float64",
    cores: int | None = None,
    progress: bool = True,
) -> xr.DataTree:
    """The full-data posterior of a model, from which every cross-validation starts.

    Many short HMC chains with a shared kernel sample it; where they disagree, BlackJAX's NUTS does.

    Args:
        model, data, seed, precision, cores, progress: as for `cross_validate`.
        chains, draws: their product is the total number of draws kept; more are kept where chains
            mix slowly or would have fewer than 100 each.
        warmup: maximum draws per chain for adapting the kernel.
        target_accept: target acceptance rate; None: .8, then .95 and .99 while more than 1% of
            draws diverge or of proposals are refused.
        allow_bad_fit: return the fit even if chains disagree or diverge.

    Returns:
        ArviZ groups posterior, sample_stats, log_likelihood (up to 512 MiB) and observed_data.

    Raises:
        PcvError: what is wrong with the model, the data or the fit.
    """
    settings = {
        "chains": chains,
        "warmup": warmup,
        "draws": draws,
        "target_accept": target_accept,
        "allow_bad_fit": allow_bad_fit,
    }
    with calls.prepared(
        model, None, data, {"fit": settings}, seed, precision, None, cores, progress
    ) as call:
        (problem,) = call.problems.values()
        monitor = call.monitor.of(f"fit {problem.name}")
        return xr.DataTree.from_dict(_groups(fitting.fit(problem, call.settings.fit, monitor)))
