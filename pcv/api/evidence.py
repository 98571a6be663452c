"""Evidence and cumulative cross-validation from Python."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import xarray as xr

from pcv.analysis.evidence import BRIDGE, LAPLACE, beside, confirmed, of_prior, of_ways
from pcv.api import calls, cross_validation
from pcv.api.cumulative import CumulativeCV, OneEvidence
from pcv.api.inputs import AnyModel
from pcv.base import devices
from pcv.base.errors import PcvError, nearest
from pcv.models.checks.prior import strayed
from pcv.pipeline import stages
from pcv.pipeline.job import Job
from pcv.pipeline.stages.along_orders import by_approximation, by_bridge, other_ways
from pcv.pipeline.stages.common.problem import by_unit, model_of
from pcv.pipeline.stages.inputs import check
from pcv.pipeline.storage.artifacts import opened, require

METHODS = ["auto", "path", "bridge", "laplace"]


def evidence(
    model: AnyModel | Mapping[str, AnyModel],
    splits: int = 64,
    *,
    particles: int = 512,
    data: Any = None,
    seed: int = 0,
    fit: Mapping[str, Any] | xr.DataTree | None = None,
    precision: str = "float64",
    results: str | None = None,
    cores: int | None = None,
    progress: bool = True,
    method: str = "auto",
) -> Any:
    r"""The log evidence of a model, its log marginal likelihood.

    .. math:: \log p(y) = \log \int p(y \mid \theta) \, p(\theta) \, d\theta
              = \sum_{i=1}^n \log p(y_i \mid y_1, \dots, y_{i-1})

    By bridge sampling from the full-data fit, where Laplace's approximation agrees for every model
    (k-hat at most 0.7) and the priors integrate to 1. Otherwise by sequential Monte Carlo along
    training sets that grow from none to all units, in random orders (`pcv.sampling.path`), beside
    both (`CumulativeCV.ways`). Differences between models are log Bayes factors (``pcv.compare``).

    Args:
        model, data, seed, precision, results, cores, progress: as for `cross_validate`. Draws of
            the model's `init` must be of its prior, which must be proper.
        splits: number of random orders, where growing training sets are followed.
        particles: in each of the two sets that follow each order; a multiple of 16.
        fit: settings of the full-data fit, or draws of it, as for `cross_validate`.
        method: "path" to follow growing training sets in any case, as `cumulative` does; "bridge"
            for bridge sampling alone; "laplace" for importance sampling from Laplace's
            approximation alone, which takes no fit and a second or so, and suffices where k-hat is
            at most 0.7.

    Returns:
        `OneEvidence`, or `CumulativeCV` where growing training sets were followed, which `results`
        keeps; or a dict of either by the models' names.

    Raises:
        PcvError: the prior is improper, or what else is wrong, where, and what to do.
    """
    settings = {"splits": splits, "particles": particles}
    if method not in METHODS:
        raise PcvError(f"method is {method!r}; {nearest(method, METHODS)}")
    kept = results if method in ("auto", "path") else None
    made = _checked(model, settings, data, seed, fit, precision, kept, cores, progress)
    several = isinstance(model, Mapping)
    with made as job:
        _check_priors(job)
        if method == "path":
            return _followed(job, several)
        if method != "laplace":
            cross_validation.run(job, "evidence")
        found = {}
        for name in job.settings.models:
            one = _by(method, job._replace(model=name))
            if one is None:
                return _followed(job, several)
            found[name] = one
        return found if several else next(iter(found.values()))


def cumulative(
    model: AnyModel | Mapping[str, AnyModel],
    prepare: float = 0.1,
    splits: int = 64,
    *,
    particles: int = 512,
    data: Any = None,
    seed: int = 0,
    fit: Mapping[str, Any] | xr.DataTree | None = None,
    precision: str = "float64",
    results: str | None = None,
    cores: int | None = None,
    progress: bool = True,
) -> Any:
    r"""Cumulative cross-validation: the evidence after a preparatory training set.

    .. math:: S_\mathrm{CCV}(P) = \mathrm E \log p(y_\mathrm{test} \mid y_\mathrm{train})
              = \sum_{p=1}^P S_\mathrm{CV}(p), \qquad |\mathrm{test}| = P = (1 - q)\, n

    over random test sets of P units (Fong and Holmes 2020, corollary 2). Unlike the evidence,
    which adds the score of training sets that are smaller still, it hardly depends on how vague the
    prior is, which may be improper. See `pcv.analysis.evidence`.

    Args:
        model, data, seed, precision, results, cores, progress: as for `cross_validate`.
        prepare: q, the share of units that train first, between 0 and 1.
        splits, particles, fit: as for `evidence`.

    Returns:
        `CumulativeCV`, or a dict of them by the models' names. Their `curve` has up to 100 P, and
        `at` any.

    Raises:
        PcvError: what is wrong, where, and what to do.
    """
    settings = {"prepare": prepare, "splits": splits, "particles": particles}
    made = _checked(model, settings, data, seed, fit, precision, results, cores, progress)
    with made as job:
        return _followed(job, isinstance(model, Mapping))


@contextmanager
def _checked(
    model: AnyModel | Mapping[str, AnyModel],
    settings: Mapping[str, Any],
    data: Any,
    seed: int,
    fit: Any,
    precision: str,
    results: str | None,
    cores: int | None,
    progress: bool,
) -> Iterator[Job]:
    folds = {"scheme": "cumulative", **settings}
    sections = {"fit": {} if fit is None else fit}
    prepared = calls.prepared(
        model, folds, data, sections, seed, precision, results, cores, progress
    )
    with calls.keys_as_arguments(), prepared as job:
        check(job._replace(say=calls.silent), leaks=False)
        yield job


def _followed(job: Job, several: bool) -> Any:
    cross_validation.run(job)
    found = {
        name: _collected(job._replace(model=name), name if several else "model")
        for name in job.settings.models
    }
    return found if several else next(iter(found.values()))


def _by(method: str, job: Job) -> OneEvidence | None:
    """Of one model; nothing where bridge sampling is to be confirmed and is not."""
    marks = () if method == "laplace" else tuple(require(job, "fit", {}).marks)
    made_of = cross_validation.outcome_print(opened(job, "data"), job.settings.data.outcome)
    with devices.at_work(job.config.precision):
        arrays, built = model_of(job)
        model = by_unit(built, job.model)
        if method == "laplace":
            estimate, khat = by_approximation(job, model, arrays)
            return OneEvidence("laplace", *estimate, khat, outcome_print=made_of)
        if method == "auto":
            ways = other_ways(job, model, arrays)
            by_way = of_ways(ways)
            (estimate, _), (by_laplace, khat) = by_way[BRIDGE], by_way[LAPLACE]
            if marks or not confirmed(estimate, by_laplace, khat, of_prior(ways)):
                job.say(
                    f"evidence {job.model}: bridge sampling is not confirmed; following growing "
                    "training sets"
                )
                return None
            words = beside(LAPLACE, by_laplace, khat)
        else:
            estimate, khat, words = by_bridge(job, model, arrays), np.nan, ""
    if np.isnan(estimate.value):
        raise PcvError(
            f"model '{job.model}': bridge sampling has no answer; it needs draws without weights, "
            "more than 8 per parameter, that vary in all directions: take more draws of the fit, "
            "or leave out `method`"
        )
    return OneEvidence("bridge", *estimate, khat, marks, words, made_of)


def _check_priors(job: Job) -> None:
    """Refuse improper priors before anything is sampled."""
    stages.data(job)
    for name in job.settings.models:
        with devices.at_work(job.config.precision):
            _, model = model_of(job._replace(model=name))
            wrong = strayed(by_unit(model, name))
        if wrong:
            raise PcvError(
                f"{name}: the prior of '{wrong}' is improper, or `init` does not draw from it, so "
                "that there is no evidence; give it a proper prior, or use pcv.cumulative"
            )


def _collected(job: Job, name: str) -> CumulativeCV:
    data, folds = opened(job, "data"), opened(job, "folds")
    made_of = cross_validation.prints(data, job.settings.data.outcome, folds)
    marks = require(job, "fit", {}).marks
    return CumulativeCV(opened(job, "evidence").load().assign_attrs(made_of, marks=marks), name)
