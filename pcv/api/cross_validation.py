"""Cross-validation from Python: the same stages that the workflow runs."""

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from pcv.api import calls
from pcv.api.comparisons import check_joint
from pcv.api.inputs import AnyModel
from pcv.api.result import CV
from pcv.base.errors import PcvError
from pcv.folds.base import Folds, describe, stored
from pcv.folds.schemes import headline
from pcv.models.scores import Score
from pcv.pipeline import stages
from pcv.pipeline.job import Job
from pcv.pipeline.stages.inputs import check
from pcv.pipeline.storage.artifacts import Made, fitted, known_to, opened, places, require

GROUPS = ("posterior", "sample_stats", "log_likelihood", "observed_data")
"""ArviZ groups of the full-data fit"""


def cross_validate(
    model: AnyModel | Mapping[str, AnyModel],
    folds: str | Folds | Mapping[str, Any] | Any = "loo",
    *,
    data: Any = None,
    scores: str | Score | Sequence[Any] = ("log",),
    joint: bool | None = None,
    predictive: str = "auto",
    estimator: str = "two_sided",
    seed: int = 0,
    chains: int = 8,
    draws: int = 200,
    warmup: int | str = 50,
    until: Mapping[str, Any] | None = None,
    fit: Mapping[str, Any] | xr.DataTree | None = None,
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
        scores: log, dss, hyvarinen, crps, energy, interval, rmse, mae, brier, accuracy,
            ``file.py:function``, or a `pcv.Score`.
        joint: which score to show, that of each test set as a whole (True) or of each unit
            (False); None: joint where folds hold several units. Both are computed.
        predictive: "plain", "marginal" (a left-out group's own effects integrated out) or "auto".
        estimator: "two_sided", or "own": each fold's own draws alone, as in the formula.
        seed: of all random numbers.
        chains, draws, warmup: of every fold; at least 2 chains; draws and warmup are per chain.
            Warmup "auto", with 32 chains or more: until chains have forgotten their starts.
        until: a stopping rule for folds, in place of `draws`, as in a config:
            ``{"fold_mcse": 0.1, "max_draws": 2000}``.
        fit: settings of the full-data fit: chains (at least 4), warmup, draws, target_accept,
            approximation, allow_bad_fit; or existing draws from it (PyMC, nutpie, NumPyro, Stan) as
            an ArviZ DataTree, or a dict of one per model. Existing draws are checked.
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
        progress: whether to show progress.

    Returns:
        `CV`, or a dict of them by the models' names.

    Raises:
        PcvError: what is wrong, where, and what to do.
    """
    sections = {
        "predictive": predictive,
        "estimator": estimator,
        "scores": scores,
        "fit": {} if fit is None else fit,
        "kernel": kernel,
        "cv": calls.cv_section(chains, draws, warmup, until, cv),
    }
    check_joint(joint)
    with calls.prepared(
        model, folds, data, sections, seed, precision, results, cores, progress
    ) as job:
        check(job._replace(say=calls.silent), leaks=False)
        run(job)
        return of_models(job, joint, isinstance(model, Mapping))


def run(job: Job, stop: str = "compare") -> None:
    """Run every stage of a job that comes before one, for all models, reusing finished artifacts.

    Raises:
        PcvError: a stage fails.
    """
    made: list[Made] = []
    for stage, part in places(job):
        if stage in (stop, "compare"):
            return
        known = known_to(part, made)
        with suppress(PcvError):
            made.append(Made(stage, part, require(part, stage, known)))
            continue
        getattr(stages, stage)(part)
        made.append(Made(stage, part, require(part, stage, known)))


def of_models(job: Job, joint: bool | None, several: bool) -> Any:
    """A `CV`, or several of them by the models' names."""
    found = {name: collected(job._replace(model=name), joint) for name in job.settings.models}
    return found if several else next(iter(found.values())).renamed("model")


def collected(job: Job, joint: bool | None) -> CV:
    """A model's artifacts as a `CV`."""
    folds, data, diagnosed = (opened(job, x).load() for x in ("folds", "data", "diagnose"))
    folds = folds.sel(fold=diagnosed["fold"].values)  # all but those of a larger subsample
    outcome = job.settings.data.outcome
    groups = {**_groups(job), "folds": folds, "diagnostics": diagnosed}
    if job.settings.makes("subsample"):
        groups["surrogates"] = opened(job, "surrogates", "terms").load()
    tree = xr.DataTree.from_dict(groups)
    said = describe(stored(folds), data.sizes["unit"])
    stamp = require(job, "fit", {})
    tree.attrs = {
        "title": headline(job.settings.folds, said),
        "outcome": outcome,
        "seed": job.config.seed,
        "marks": stamp.marks,
        **prints(data, outcome, folds),
    }
    return CV(tree, bool((folds["test"] >= 0).sum("slot").max() > 1) if joint is None else joint)


def prints(data: xr.Dataset, outcome: str, folds: xr.Dataset) -> dict[str, str]:
    """Hashes of what models must share to be compared."""
    of_folds = [folds[name].values for name in ("test", "held_out", "order") if name in folds]
    return {"outcome_print": outcome_print(data, outcome), "folds_print": _hash(*of_folds)}


def outcome_print(data: xr.Dataset, outcome: str) -> str:
    """A hash of the outcome, and of the units that its rows belong to."""
    return _hash(*(data[name].values for name in (outcome, "unit_of_row") if name in data))


def _groups(job: Job) -> dict[str, xr.Dataset]:
    tree = fitted(job)
    return {name: tree[name].to_dataset().load() for name in GROUPS if name in tree}


def _hash(*arrays: np.ndarray) -> str:
    """A hash of the arrays' values, whatever their dtype."""
    digest = hashlib.sha256()
    for x in arrays:
        digest.update(np.ascontiguousarray(x, float).tobytes())
    return digest.hexdigest()[:16]


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

    Sampled by many short HMC chains that adapt a shared kernel; where they disagree, by BlackJAX's
    NUTS.

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
        model, "loo", data, {"fit": settings}, seed, precision, None, cores, progress
    ) as job:
        stages.data(job)
        (part,) = (job._replace(model=name) for name in job.settings.models)
        stages.fit(part)
        groups = _groups(part)
    return xr.DataTree.from_dict(groups)
