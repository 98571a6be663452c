"""Draws of a posterior, scored on a test set as those of a fold's chains are."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array, Float, Key

from pcv.analysis import kept as keeping
from pcv.analysis import samples
from pcv.analysis.kept import Keeps
from pcv.compile import programs
from pcv.folds.base import Folds
from pcv.models import scores
from pcv.models.model import Target
from pcv.models.scores import Score
from pcv.sampling.folds import moving
from pcv.sampling.hmc import Chain, Moved
from pcv.sampling.scoring import Made, keep_of_block, score_block
from pcv.sampling.tiles import Keep, chains_of, typed


def score_draws(
    target: Target,
    of_scores: Sequence[Score],
    folds: Folds,
    y: Float[np.ndarray, "fold slot"],
    root: Key[Array, ""],
    position: Float[np.ndarray, "chain draw param"],
    stats: xr.Dataset,
    batch_size: int,
    keeps: Keeps,
) -> xr.Dataset:
    """Sums of scores over batches of draws, as `pcv.analysis.samples` describes them.

    Args:
        target: the model on flat parameters.
        of_scores: scores besides the log score.
        folds: a single one, of known size.
        y: its outcome, NaN for units of several rows.
        root: key of the seed, the model and the stage.
        position: draws, a whole number of batches per chain.
        stats: of the sampler (chain, draw): acceptance_rate, diverging, energy, lp.
        batch_size: draws per batch.
        keeps: how many draws each chain keeps.
    """
    chains, number, width = position.shape
    assert folds.num_units is not None
    num_units, some_scores, frame = folds.num_units, tuple(of_scores), None
    identity = typed(chains_of(folds.id.tolist(), chains, folds.test, folds.held_out, width))
    zero = np.zeros(folds.test.shape[1])
    center = jax.tree.map(jnp.asarray, {"joint": 0.0, "pointwise": zero, "shift": np.inf})

    def of_chains(first: Array, keep: Keep | None, each: Chain, x: Array) -> Any:
        size, block = jnp.asarray(batch_size), jnp.arange(chains)

        def of_chain(block: Array, chain: Chain) -> Made:
            at = first, size, x, block, chain, center
            by_unit = target.log_predictive
            return score_block(target, by_unit, some_scores, num_units, root, *at)

        made = jax.vmap(of_chain)(block, each)
        if keep is None:
            return made, None
        kept, number, returned = jax.tree.map(jnp.asarray, tuple(keep))
        at = first, kept, number, returned, x, block, each
        return made, keep_of_block(target, num_units, root, *at)

    program = programs.shared(of_chains)
    batches, kept = [], []
    energy = np.full(chains, np.nan)
    for first in range(0, number, batch_size):
        these = slice(first, first + batch_size)
        keep, returned = moving.keep_of_block(keeps, first, batch_size, batch_size)
        of_block = typed((first, keep))
        made, of_kept = jax.device_get(program(*of_block, identity, typed(position[:, these])))
        moved = _moved(stats.isel(draw=these))
        block = moving.block_of(moved, made, energy, chains, batch_size, np.full(1, np.inf))
        energy = moved.energy[:, -1]
        if keep is not None:
            block = moving.with_kept(block, of_kept, keep.number, returned, chains)
            kept.append(keeping.of_block(block, first, keeps))
        across: dict[str, dict[str, np.ndarray]] = {}
        if block.y_rep is not None:
            frame = frame or scores.frame(block.y_rep)
            replicates = scores.Replicates(block.y_rep, y, chains, *frame)
            across = scores.across(some_scores, replicates)
        batches.append(samples.batch_of(block, across, True))
    last: dict[str, tuple] = {}
    if kept:
        thinned = keeping.thinned(keeping.joined(kept), np.array([number]), keeps)
        last = {str(name): (x.dims, x.values) for name, x in thinned.data_vars.items()}
    end = samples.end(folds.id, np.array([number]), None, last, {})
    return samples.whole(batches, end, len(batches))


def _moved(stats: xr.Dataset) -> Moved:
    """The sampler's statistics of a batch."""

    def of(name: str) -> np.ndarray:
        return np.asarray(stats[name].transpose("chain", "draw").values, float)

    return Moved(None, of("lp"), of("energy"), of("acceptance_rate"), of("diverging"))
