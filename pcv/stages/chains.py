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

    engine: "Sampler"
    chains: "Chains"
    jitter: Any


def engine_of(
    job: Job,
    predictive: str,
    arrays: Any,
    model: "Model | Target",
    scores: "tuple[Score, ...]" = (),
) -> "Sampler":
    """The compiled functions of a model."""
    import jax

    from pcv import sampler
    from pcv.model import flat_target, target

    def make() -> "Sampler":
        flat, _ = flat_target(target(model, arrays, predictive))
        # Traced once, however many functions of the sampler call them.
        flat = flat._replace(
            log_density=jax.jit(flat.log_density), log_predictive=jax.jit(flat.log_predictive)
        )
        return sampler.build(flat, scores, datasets.num_units(arrays), job.settings.cv.batch_size)

    found: Sampler = job.once(("engine", predictive, id(model), *(s.key for s in scores)), make)
    return found


def run_of(job: Job, stage: str, folds: Folds, engine: "Sampler") -> Run:
    from pcv import sampler
    from pcv.keys import key

    seed, ids = job.config.seed, [str(fold) for fold in folds.id]
    parent, number = key(seed, job.model, stage), job.settings.cv.chains
    chains = sampler.chains_of(parent, ids, number, folds.test, folds.held_out)
    return Run(engine, sampler.spread(chains), key(seed, job.model, stage, "jitter"))


def in_chains(job: Job, how: "Scored", kernel: xr.Dataset) -> "Scored":
    """A model as chains sample it, whose kernel is that of the full-data fit."""
    from pcv.marginal import detached

    center, scale = kernel["center"].values, kernel["scale"].values
    cov = np.diag(scale**2) if scale.ndim == 1 else scale @ scale.T
    found: Scored = job.once(("in chains", id(how)), lambda: detached(how, center, cov))
    return found


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
