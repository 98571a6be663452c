"""Chains of test problems on replicated folds, started at the exact posterior."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Float, Shaped

from pcv.folds.base import Folds
from pcv.models.model import Fold, target
from pcv.models.parameters import flat_target
from pcv.sampling.fit.full_data import Fit
from pcv.sampling.hmc import train_mask
from pcv.sampling.tiles import Engine, build
from tests.chains import fit_of, replicated
from tests.problems import Exact, Problem, exact, side_by_side

REPLICATIONS = 50
"""of all folds of a problem, by other names, so by other keys; per seed"""
CHAINS, BATCHES, BATCH_SIZE = 4, 10, 20


class Setting(NamedTuple):
    """A problem that is ready to run: all folds of all its schemes and replications at once."""

    answer: Exact
    scheme: Shaped[np.ndarray, " fold"]
    engine: Engine
    fit: Fit
    folds: Folds
    """of all replications, one after another"""
    starts: Float[np.ndarray, "fold_of_replication chain param"]
    """exact draws of the full-data posterior"""
    problem: Problem
    scores: Callable[[Float[np.ndarray, "draw param"]], tuple[jax.Array, jax.Array]]
    """of the folds of one replication: (draw, fold), (draw, fold, slot)"""


def prepare(problem: Problem) -> Setting:
    flat, _ = flat_target(target(problem.model, problem.data, problem.predictive))
    once, scheme = side_by_side(problem.schemes)
    folds = replicated(once, REPLICATIONS)
    draws = problem.posterior(np.random.default_rng(1), len(folds.id) * CHAINS)
    starts = np.asarray(jax.vmap(lambda params: ravel_pytree(params)[0])(draws))
    dim = starts.shape[1]
    fit = fit_of(starts, 0.55, 3)
    engine = build(flat, (), len(problem.data["y"]), BATCH_SIZE)
    starts = starts.reshape(len(folds.id), CHAINS, dim)

    def of_fold(position, test, held_out):
        train = train_mask(held_out, engine.num_units)
        return flat.log_predictive(position, Fold(train, test))

    def at(position):
        return jax.vmap(partial(of_fold, position))(once.test, once.held_out)

    every = jax.jit(lambda x: jax.lax.map(at, x))
    return Setting(exact(problem, once), scheme, engine, fit, folds, starts, problem, every)
