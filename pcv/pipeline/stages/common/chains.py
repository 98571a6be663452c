"""Shared by the stages that run the folds' chains: the model as sampled, its engine, and how an
interrupted job resumes."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from pcv.base.progress import Progress
from pcv.folds import columns
from pcv.folds.base import Folds
from pcv.pipeline.job import Job, Made, Say
from pcv.pipeline.storage import paths
from pcv.pipeline.storage.checkpoints import checkpoint, merging
from pcv.pipeline.storage.checkpoints.checkpoint import Checkpoint

if TYPE_CHECKING:
    from pcv.analysis.samples import Block
    from pcv.models.effects.marginal import Scored
    from pcv.models.model import Data, Model, Target
    from pcv.models.scores import Score
    from pcv.sampling.fit.full_data import Fit
    from pcv.sampling.folds.subspace import Subspace
    from pcv.sampling.tiles import Engine


def engine_of(
    job: Job,
    predictive: str,
    arrays: Any,
    model: "Model | Target",
    scores: "tuple[Score, ...]" = (),
    space: "Subspace | None" = None,
) -> "Engine":
    """The compiled program for a model's folds, on a subspace if given."""
    from pcv.models.model import target
    from pcv.models.parameters import flat_target
    from pcv.sampling import tiles
    from pcv.sampling.folds.subspace import on_subspace

    def make() -> "Engine":
        flat, _ = flat_target(target(model, arrays, predictive))
        flat = flat if space is None else on_subspace(flat, space)
        return tiles.build(flat, scores, columns.num_units(arrays), job.settings.cv.batch_size)

    of_space = None if space is None else space.directions.shape
    key = "engine", predictive, id(model), of_space, *(s.key for s in scores)
    found: Engine = job.once(key, make)
    return found


def space_of(warm: xr.Dataset) -> "Subspace | None":
    """The subspace on which chains were warmed up; None: they move in all directions."""
    if "subspace_share" not in warm.attrs:
        return None
    from pcv.sampling.folds.subspace import Subspace

    center, directions, scale = (
        warm[f"subspace_{name}"].values for name in ("center", "directions", "scale")
    )
    return Subspace(center, directions, scale, warm.attrs["subspace_share"])


def in_chains(
    job: Job,
    how: "Scored",
    arrays: "Data",
    folds: Folds,
    fit: "Fit",
    known: bool | None = None,
) -> "Scored":
    """The model as the folds' chains sample it, perhaps decoupled from the prior of own effects.

    Args:
        job: of the model.
        how: it is scored.
        arrays: its data.
        folds: all folds.
        fit: of the full data.
        known: whether chains are decoupled; None: decided here.
    """
    from pcv.models.effects import decoupling
    from pcv.models.model import Model
    from pcv.sampling import kernel
    from pcv.sampling.folds import sides

    center = fit.kernel.center

    def are_detached() -> bool:
        if how.local is not None:
            return decoupling.much_wider(how, center, kernel.precisions(fit.kernel))
        engine = engine_of(job, how.predictive, arrays, how.model)
        assert isinstance(how.model, Model)
        wide = sides.frees_effects(engine, fit, folds, np.asarray(how.model.group), job.say)
        if wide and not decoupling.is_smooth(how, arrays, center, folds):
            job.say(
                f"warning: model '{job.model}': its `marginal` has no gradient, so chains keep the "
                "wide priors of left-out effects and may not mix"
            )
            return False
        return wide

    def make() -> "Scored":
        if not (are_detached() if known is None else known):
            return how
        return decoupling.decoupled(how, arrays, center, kernel.covariance(fit.kernel))

    if not decoupling.may_be_decoupled(how):
        return how
    found: Scored = job.once(("in chains", id(how)), make)
    return found


@contextmanager
def resumed(
    job: Job, pool: Path, made_of: Made, make: merging.Make, stage: str
) -> Iterator[Checkpoint]:
    """The job's checkpoint, with blocks of its folds from other jobs' checkpoints merged in; folds
    that have none are caught up by `make`."""
    if job.kept is not None:
        yield checkpoint.NOWHERE
        return
    from pcv.base import devices

    made_on = devices.made_on()
    with checkpoint.held(pool, made_of, made_on, job.say) as own:
        yield merging.completed(own, made_of, made_on, make, says(job, stage))


def says(job: Job, stage: str) -> Say:
    """A reporter that prefixes messages with stage and model."""
    return lambda words: job.say(f"{stage} {job.model}: {words}")


def progress(job: Job, label: str, blocks: list["Block"], draws: int) -> Progress:
    last = blocks[-1]
    accepted = last.stats["acceptance"]["total"]
    part = f" {job.batch}" * (job.batch != paths.WHOLE)
    return Progress(
        f"{label} {job.model}{part}",
        accepted.size,
        sum(block.num_draws for block in blocks),
        draws,
        float(accepted.mean() / last.num_draws),
        int(sum(block.stats["divergences"]["total"].sum() for block in blocks)),
    )
