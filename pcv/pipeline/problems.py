"""The problem of a job: its model, by reference, on the data and folds of its artifacts."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from pcv.base import reference
from pcv.base.errors import PcvError, nearest, no_model
from pcv.base.section import OBJECT
from pcv.core.problem import Problem
from pcv.folds.schemes import Table
from pcv.pipeline.config import ModelConfig
from pcv.pipeline.job import Job
from pcv.pipeline.storage.artifacts import opened

if TYPE_CHECKING:
    from pcv.models.model import Data, Model, Target
    from pcv.models.scores import Score


def problem_of(
    job: Job, data: xr.Dataset | None = None, layout: xr.Dataset | None = None
) -> Problem:
    """The problem of the job's model.

    Args:
        job: of a model.
        data: by unit; None: the data artifact.
        layout: of all folds; None: the folds artifact.
    """
    settings = job.settings
    data = opened(job, "data").load() if data is None else data
    scores: tuple[Score, ...] = ()
    if set(settings.scores) != {"log"} and not job.model_config.log_lik:
        from pcv.models.scores import named

        scores = named(settings.scores, series=settings.folds.series(Table(data)))
    outcome = settings.data.outcome
    return Problem(
        job.model,
        partial(no_model, job.model)
        if job.model_config.log_lik
        else partial(build, job.model_config, outcome),
        data,
        outcome,
        opened(job, "folds").load() if layout is None else layout,
        settings.predictive,
        scores,
        job.config.seed,
        settings.predict,
    )


def problems_of(job: Job) -> dict[str, Problem]:
    """The problems of all models of an experiment."""
    return {name: problem_of(job._replace(model=name)) for name in job.settings.models}


def comparable_problem_of(job: Job) -> Problem:
    """The problem of the job's model, which is scored as the other models are.

    Raises:
        PcvError: it could not be compared with them.
    """
    from pcv.core.problem import check_predictives

    problems = problems_of(job)
    check_predictives(models_of(job, problems), job.experiment)
    return problems[job.model]


def models_of(job: Job, problems: Mapping[str, Problem]) -> dict[str, Problem]:
    """Those of the problems that have a model, not log likelihoods alone."""
    settings = job.settings.models
    return {name: problem for name, problem in problems.items() if not settings[name].log_lik}


def build(settings: ModelConfig, outcome: str, arrays: "Data") -> "Model | Target":
    """The model that a config names, on some data."""
    from pcv.models.frontends import as_model
    from pcv.models.model import Target

    code = settings.model
    if code.startswith(OBJECT):
        raise PcvError(f"model '{code}': object of a Python session that has ended")
    if reference.is_program(code):
        return _of_column(_of_stan(settings, outcome, arrays), code, arrays, outcome)
    made = reference.build(code, dict(arrays), settings.args)
    model = as_model(made)
    if model is None:
        raise PcvError(
            f"model '{code}': it must return a pcv.Model (pcv.from_numpyro makes one), a "
            f"pcv.Target, or a model of PyMC or Bambi, not {type(made).__name__}"
        )
    if isinstance(model, Target):
        return model
    return _of_column(model, code, arrays, outcome)


def _of_stan(settings: ModelConfig, outcome: str, arrays: "Data") -> "Model":
    """A program of Stan on columns of the data, numbers of the config, or what a function makes of
    the data."""
    from pcv.models.frontends.stan import from_stan

    code, columns = settings.model, {name: x for name, x in arrays.items() if name != "unit"}
    if isinstance(settings.data, str):
        given = dict(reference.build(settings.data, dict(arrays), {}))
        alike = [name for name, x in given.items() if _alike(x, arrays[outcome])]
        variable = next((name for name in alike if name != outcome), outcome)
        return from_stan(Path(code), given, variable, **settings.args)
    given, variable = dict(columns), outcome
    for name, of in settings.data.items():
        if isinstance(of, str) and of not in columns:
            hint = nearest(of, columns, f"there are {', '.join(columns)}")
            raise PcvError(f"model '{code}': data.{name}: no column '{of}'; {hint}")
        given[name] = columns[of] if isinstance(of, str) else of
        variable = name if of == outcome else variable
    return from_stan(Path(code), given, variable, **settings.args)


def _of_column(model: "Model", name: str, arrays: "Data", column: str) -> "Model":
    """A front-end's model, with its observed variable renamed to the outcome's column. Of columns
    that it has changed, such as standardised ones, it keeps its own."""
    if model.data is None:
        return model
    own, known = model.outcome.name, model.data.columns
    if not _alike(known[own], arrays[column]):
        raise PcvError(
            f"model '{name}': what it observes, '{own}', is not column '{column}' of the data, row "
            "by row; build it from the `data` passed to the function"
        )
    changed = {x for x in known if x in arrays and x != own and not _alike(known[x], arrays[x])}
    if own == column and not changed:
        return model

    def seen(data: Mapping[str, Any]) -> dict[str, Any]:
        outcome = {own: data[column]} if column in data else {}
        return {name: x for name, x in data.items() if name not in changed} | outcome

    log_lik, predict, moments = model.log_lik, model.predict, model.moments
    cdf = model.cdf
    return model._replace(
        log_lik=lambda params, data: log_lik(params, seen(data)),
        predict=predict and (lambda key, params, data: predict(key, params, seen(data))),
        moments=moments and (lambda params, data: moments(params, seen(data))),
        cdf=cdf and (lambda params, data, y: cdf(params, seen(data), y)),
        outcome=model.outcome._replace(name=column),
    )


def _alike(one: Any, other: Any) -> bool:
    x, y = np.asarray(one), np.asarray(other)
    if x.shape != y.shape or x.dtype.kind not in "biuf" or y.dtype.kind not in "biuf":
        return x.shape == y.shape and bool((x == y).all())
    return np.allclose(x, y, atol=1e-8 * np.abs(y).max(initial=0.0), equal_nan=True)
