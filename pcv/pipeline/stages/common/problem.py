"""What a job works on: its model, its folds, and how they are scored."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Int

from pcv.base import reference
from pcv.base.errors import PcvError
from pcv.folds import columns
from pcv.folds.base import Folds, stored
from pcv.pipeline.config import OBJECT
from pcv.pipeline.job import Job
from pcv.pipeline.storage.artifacts import approximated, batches, command, opened, require
from pcv.pipeline.storage.store import Stamp

if TYPE_CHECKING:
    from pcv.models.effects.marginal import Scored
    from pcv.models.model import Model, Target


def model_of(job: Job) -> tuple[dict[str, np.ndarray], "Model | Target"]:
    """The data as arrays, and the model built on them."""
    arrays = columns.model_data(opened(job, "data"))
    return arrays, build(job, arrays)


def build(job: Job, arrays: dict[str, np.ndarray]) -> "Model | Target":
    """The job's model."""
    from pcv.models.frontends import as_model
    from pcv.models.model import Model, Target

    settings = job.model_config
    if settings.model in job.objects:
        known: Model | Target = job.objects[settings.model]
        return known
    if settings.model.startswith(OBJECT):
        raise PcvError(f"model '{settings.model}': object of a Python session that has ended")
    made = reference.build(settings.model, arrays, settings.args)
    model = as_model(made)
    if model is None:
        raise PcvError(
            f"model '{settings.model}': it must return a pcv.Model (pcv.from_numpyro makes one), a "
            f"pcv.Target, or a model of PyMC or Bambi, not {type(made).__name__}"
        )
    if isinstance(model, Target):
        return model
    return _of_column(model, settings.model, arrays, job.settings.data.outcome)


def by_unit(model: "Model | Target", name: str) -> "Model":
    """The model, if training sets of it can grow.

    Raises:
        PcvError: they cannot.
    """
    from pcv.models.model import Target

    if isinstance(model, Target):
        raise PcvError(
            f"model '{name}': a pcv.Target has no log likelihood of each unit, by which training "
            "sets could grow; make it a pcv.Model, or take other folds"
        )
    return model


def _of_column(model: "Model", name: str, arrays: dict[str, np.ndarray], column: str) -> "Model":
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
    return model._replace(
        log_lik=lambda params, data: log_lik(params, seen(data)),
        predict=predict and (lambda key, params, data: predict(key, params, seen(data))),
        moments=moments and (lambda params, data: moments(params, seen(data))),
        outcome=model.outcome._replace(name=column),
    )


def _alike(one: Any, other: Any) -> bool:
    x, y = np.asarray(one), np.asarray(other)
    if x.shape != y.shape or x.dtype.kind not in "biuf" or y.dtype.kind not in "biuf":
        return x.shape == y.shape and bool((x == y).all())
    return np.allclose(x, y, atol=1e-8 * np.abs(y).max(initial=0.0), equal_nan=True)


def folds_of(job: Job, known: Mapping[str, Stamp]) -> tuple[Folds, dict[str, Stamp]]:
    """All folds of the experiment, and the stamps of the artifacts that say which are sampled."""
    stamps = {"folds": require(job, "folds", known)}
    return stored_folds(job), stamps | approximated(job, {**known, **stamps})


def stored_folds(job: Job) -> Folds:
    """All folds of the experiment, after their stamp was checked."""
    return stored(opened(job, "folds"))


def chosen_folds(job: Job, folds: Folds) -> Folds:
    """The folds that are scored: all, unless the scheme is a subsample that may grow."""
    if not job.settings.makes("subsample"):
        return folds
    return folds.some(np.isin(folds.id, opened(job, "subsample")["fold"].values))


def sampled_folds(job: Job, folds: Folds) -> Folds:
    """The folds that the job's model samples: all that are scored, except where the full-data fit
    suffices."""
    scored = chosen_folds(job, folds)
    if not job.settings.folds.from_full_data:
        return scored
    again = opened(job, "surrogates", "folds")["again"]
    return scored.some(again.sel(fold=scored.id).values)


def batch_of(job: Job, folds: Folds) -> Folds:
    """Those of the job's batch, of the folds that its model samples; perhaps none where the
    full-data fit suffices."""
    names = [part.batch for part in batches(job)]
    if job.batch not in names:
        raise PcvError(f"fold batch '{job.batch}': not one of {', '.join(names)}")
    places = np.array_split(np.arange(len(folds.id)), len(names))[names.index(job.batch)]
    if places.size == 0 and not job.settings.folds.from_full_data:
        advice = "use fewer"
        if job.settings.cv.fold_batches == "auto":
            advice = f"run `{command(job, 'cut')}` again"
        raise PcvError(f"cv.fold_batches: {len(names)} batches for {len(folds.id)} folds; {advice}")
    return folds.some(places)


def active_folds(job: Job, folds: Folds) -> Int[np.ndarray, " place"]:
    """The batch's folds that the job samples: in rounds after the first, those of its plan."""
    if not job.round:
        return np.arange(len(folds.id))
    more = opened(job, "plan")["more"].sel(model=job.model, fold=folds.id)
    return np.flatnonzero(more.values)


def observed(job: Job, arrays: Mapping[str, np.ndarray], folds: Folds) -> np.ndarray:
    """The outcome of each fold's test set, NaN in padded slots and for units of several rows."""
    y = np.asarray(arrays[job.settings.data.outcome], float)
    if len(y) != columns.num_units(arrays):
        return np.full(folds.test.shape, np.nan)
    return np.where(folds.test >= 0, y[folds.test], np.nan)


def scored(job: Job, arrays: dict[str, np.ndarray], folds: Folds) -> "Scored":
    """The job's model as its folds score it."""
    from pcv.models.effects.marginal import choose

    setting = job.settings.predictive

    def make() -> "Scored":
        return choose(setting, build(job, arrays), job.model, arrays, folds)

    of_folds = ((x.shape, x.tobytes()) for x in (folds.test, folds.held_out))
    found: Scored = job.once(("scored", setting, *of_folds), make)
    return found


def scored_alike(job: Job, arrays: dict[str, np.ndarray], folds: Folds) -> dict[str, "Scored"]:
    """All models of an experiment as their folds score them.

    Raises:
        PcvError: their predictives differ, so that they could not be compared.
    """
    each = {name: scored(job._replace(model=name), arrays, folds) for name in job.settings.models}
    if len({x.predictive for x in each.values()} - {"either"}) > 1:
        listed = ", ".join(f"{name}: {x.predictive}" for name, x in each.items())
        raise PcvError(
            f"experiment '{job.experiment}': its models would be scored by different predictives "
            f"({listed}) and could not be compared; set predictive: plain, or give each model a "
            "`marginal`"
        )
    return each
