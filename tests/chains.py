"""Chains of all folds of a model, without the stages: what tests of the estimates run."""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from pcv.diagnostics import LogSums
from pcv.folds import Folds
from pcv.keys import key
from pcv.sampler import Kernel, Sampler, blocks, chains_of, spread


class Sampled(NamedTuple):
    """All folds' draws of the log score, as `pcv.diagnostics` takes them."""

    joint: LogSums
    pointwise: LogSums
    draws: Float[np.ndarray, "fold chain draw"]
    """of the joint score"""
    divergences: Float[np.ndarray, " fold"]


def run(
    sampler: Sampler,
    kernel: Kernel,
    folds: Folds,
    starts: Float[np.ndarray, "fold chain param"],
    seed: int,
    num_batches: int,
    warmup: int = 20,
) -> dict[str, Sampled]:
    """Warmup from `starts`, then batches of draws, with the keys and centres of the stages.

    Returns all scores of the sampler by name.
    """
    ids = folds.id.tolist()
    num_chains = starts.shape[1]

    def chains(stage: str):
        return spread(
            chains_of(key(seed, "model", stage), ids, num_chains, folds.test, folds.held_out)
        )

    zero = {"joint": np.zeros(len(ids)), "pointwise": np.zeros(folds.test.shape)}
    center = {score.name: zero for score in sampler.scores}
    flat = spread(jnp.asarray(starts.reshape(-1, starts.shape[-1])))
    state = sampler.start(kernel, flat, chains("warmup"))
    jitter = key(seed, "model", "warmup", "jitter")
    for block, after in blocks(
        sampler, kernel, state, chains("warmup"), center, jitter, num_chains, warmup
    ):
        state, last = after, block
    center = {
        score: {kind: sums["mean"].mean(1) for kind, sums in kinds.items()}
        for score, kinds in last.sums.items()
    }
    num_draws = num_batches * sampler.buffer
    jitter = key(seed, "model", "sample", "jitter")
    drawn = blocks(sampler, kernel, state, chains("sample"), center, jitter, num_chains, num_draws)
    made = [block for block, _ in drawn]

    def sums(score: str, kind: str) -> LogSums:
        fields = [block.sums[score][kind] for block in made]
        return LogSums(*(np.stack([x[f] for x in fields], axis=2) for f in LogSums._fields))

    divergences = np.sum(
        [block.stats["divergences"]["total"].sum(axis=1) for block in made], axis=0
    )
    return {
        score: Sampled(
            sums(score, "joint"),
            sums(score, "pointwise"),
            np.concatenate([block.draws[score] for block in made], axis=2),
            divergences,
        )
        for score in center
    }
