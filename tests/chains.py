"""Chains of all folds of a model, without the stages: what tests of the estimates run."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import xarray as xr
from arviz_stats.base import array_stats
from jaxtyping import Float

from pcv.diagnostics import LogSums
from pcv.folds import Folds
from pcv.jackknife import Parts
from pcv.keys import key
from pcv.nuts import Draws, posteriors
from pcv.sampler import Kernel, Sampler, blocks, chains_of, spread, start
from pcv.scores import Replicates, across, frame
from pcv.sums import batch_of, parts


class Sampled(NamedTuple):
    """All folds' draws of the log score, as `pcv.diagnostics` takes them."""

    joint: LogSums
    pointwise: LogSums
    draws: Float[np.ndarray, "fold chain draw"]
    """of the joint score"""
    divergences: Float[np.ndarray, " fold"]
    parts: dict[str, Parts]
    """what scores besides the log score averaged, by their keys"""


def posterior(*settings: Any) -> Draws:
    """The draws of `pcv.nuts.posteriors` for one acceptance rate, the last of the settings."""
    return next(posteriors(*settings[:-1], settings[-1:]))


def mcse(draws: Float[np.ndarray, "chain draw"], of: str = "mean") -> float:
    return float(array_stats.mcse(draws, method=of, chain_axis=0, draw_axis=1))


def off_printed(
    draws: Mapping[str, Float[np.ndarray, "chain draw"]], printed: Mapping[str, tuple[float, float]]
) -> float:
    """How far means are from those printed, beyond their rounding: the most, in MCSE."""
    off = [
        (abs(draws[name].mean() - value) - rounding) / mcse(draws[name])
        for name, (value, rounding) in printed.items()
    ]
    return float(np.max(off))


def replicated(folds: Folds, times: int) -> Folds:
    """The folds so many times, each with chains of its own."""
    ids = [f"{fold}, replication {r}" for r in range(times) for fold in folds.id]
    each = np.tile(np.arange(len(folds.id)), times)
    return folds.some(each)._replace(id=np.array(ids))


def whitening(draws: Float[np.ndarray, "draw param"], step_size: float, num_steps: int) -> Kernel:
    """A kernel in whose coordinates the draws are standard normal."""
    dim = draws.shape[1]
    scale = np.linalg.cholesky(np.cov(draws.T).reshape(dim, dim))
    return Kernel(*(jnp.asarray(x) for x in (draws.mean(0), scale, step_size, num_steps)))


def run(
    sampler: Sampler,
    kernel: Kernel,
    folds: Folds,
    starts: Float[np.ndarray, "fold chain param"],
    seed: int,
    num_batches: int,
    warmup: int = 20,
    y: Float[np.ndarray, "fold slot"] | None = None,
) -> Sampled:
    """Warmup from `starts`, then batches of draws, with the keys and centres of the stages.

    `y` is the outcome of the test sets, for scores that need it.
    """
    ids = folds.id.tolist()
    num_chains = starts.shape[1]

    def chains(stage: str):
        return spread(
            chains_of(key(seed, "model", stage), ids, num_chains, folds.test, folds.held_out)
        )

    zero = {"joint": np.zeros(len(ids)), "pointwise": np.zeros(folds.test.shape)}
    flat = spread(jnp.asarray(starts.reshape(-1, starts.shape[-1])))
    state = start(kernel, flat)
    jitter = key(seed, "model", "warmup", "jitter")
    for block, after in blocks(
        sampler, kernel, state, chains("warmup"), zero, jitter, num_chains, warmup
    ):
        state, last = after, block
    center = {kind: sums["mean"].mean(1) for kind, sums in last.sums.items()}
    num_draws = num_batches * sampler.buffer
    jitter = key(seed, "model", "sample", "jitter")
    drawn = blocks(sampler, kernel, state, chains("sample"), center, jitter, num_chains, num_draws)
    made = [block for block, _ in drawn]
    centers, stored = None, []
    for block in made:
        compared = {}
        if block.y_rep is not None:
            centers = centers or frame(block.y_rep)
            replicates = Replicates(block.y_rep, y, num_chains, *centers)
            compared = across(sampler.scores, replicates)
        stored.append(batch_of(block, compared, keep_draws=False))
    batches = xr.concat(stored, "batch", data_vars="all")

    def sums(kind: str) -> LogSums:
        fields = [block.sums[kind] for block in made]
        return LogSums(*(np.stack([x[f] for x in fields], axis=2) for f in LogSums._fields))

    divergences = np.sum(
        [block.stats["divergences"]["total"].sum(axis=1) for block in made], axis=0
    )
    return Sampled(
        sums("joint"),
        sums("pointwise"),
        np.concatenate([block.draws for block in made], axis=2),
        divergences,
        {score.key: parts([batches], score.key) for score in sampler.scores},
    )
