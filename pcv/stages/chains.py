"""What the stages of the folds' chains share: the model as chains sample it, and its engine."""

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import xarray as xr

from pcv import datasets, layout
from pcv.folds import Folds
from pcv.job import Job, Say
from pcv.progress import Progress

if TYPE_CHECKING:
    from pcv.marginal import Scored
    from pcv.model import Model, Target
    from pcv.sampler import Chains, Sampler
    from pcv.scores import Score
    from pcv.sums import Block


class Run(NamedTuple):
    """What warmup and sampling of a fold batch share."""

    target: "Target"
    num_units: int
    engine: "Sampler"
    chains: "Chains"
    jitter: Any
    outcome: str


def run_of(
    job: Job,
    stage: str,
    folds: Folds,
    predictive: str,
    arrays: Any,
    model: "Model | Target",
    scores: "tuple[Score, ...]" = (),
) -> Run:
    import jax

    from pcv import sampler
    from pcv.keys import key
    from pcv.model import flat_target, target

    seed, cv = job.config.seed, job.settings.cv
    flat, _ = flat_target(target(model, arrays, predictive))
    # Traced once, however many functions of the sampler call them.
    flat = flat._replace(
        log_density=jax.jit(flat.log_density), log_predictive=jax.jit(flat.log_predictive)
    )
    ids = [str(fold) for fold in folds.id]
    chains = sampler.chains_of(
        key(seed, job.model, stage), ids, cv.chains, folds.test, folds.held_out
    )
    num_units = datasets.num_units(arrays)
    return Run(
        flat,
        num_units,
        sampler.build(flat, scores, num_units, cv.batch_size),
        sampler.spread(chains),
        key(seed, job.model, stage, "jitter"),
        str(model.outcome),
    )


def in_chains(how: "Scored", kernel: xr.Dataset) -> "Scored":
    """A model as chains sample it, whose kernel is that of the full-data fit."""
    from pcv.marginal import detached

    center, scale = kernel["center"].values, kernel["scale"].values
    return detached(how, center, np.diag(scale**2) if scale.ndim == 1 else scale @ scale.T)


def says(job: Job, stage: str) -> Say:
    """Say it of a stage of the job's model."""
    return lambda words: job.say(f"{stage} {job.model}: {words}")


def progress(job: Job, label: str, blocks: list["Block"], draws: int) -> Progress:
    last = blocks[-1]
    accepted = last.stats["acceptance"]["total"]
    part = f" {job.batch}" * (job.batch != layout.WHOLE)
    return Progress(
        f"{label} {job.model}{part}",
        accepted.size,
        sum(block.num_draws for block in blocks),
        draws,
        float(accepted.mean() / last.num_draws),
        int(sum(block.stats["divergences"]["total"].sum() for block in blocks)),
    )
