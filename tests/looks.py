"""Sums of folds that end at one of several lengths: of chains, and of simulated scores."""

from functools import cache
from typing import NamedTuple

import jax
import numpy as np
from jax.flatten_util import ravel_pytree

from pcv.analysis.diagnostics import LogSums, batch_sums, elpd, mcse
from pcv.analysis.stopping.config import looks
from pcv.analysis.stopping.rule import Rule, finished, share_of_se
from pcv.models.model import target
from pcv.models.parameters import flat_target
from pcv.sampling.tiles import build
from tests.chains import ar1, fit_of, replicated, run
from tests.problems import exact, regression

REPLICATIONS = 200
CHAINS, BATCH_SIZE, MIN_DRAWS, MAX_DRAWS = 4, 20, 100, 600


@cache
def of_chains() -> tuple[LogSums, np.ndarray]:
    """Sums of the longest chains of all folds of all replications, and the exact answers."""
    problem = regression()
    once = problem.schemes["leave one out"]
    folds = replicated(once, REPLICATIONS)
    draws = problem.posterior(np.random.default_rng(1), len(folds.id) * CHAINS)
    starts = np.asarray(jax.vmap(lambda params: ravel_pytree(params)[0])(draws))
    fit = fit_of(starts, 0.55, 3)
    flat, _ = flat_target(target(problem.model, problem.data, "plain"))
    engine = build(flat, (), 14, BATCH_SIZE)
    starts = starts.reshape(len(folds.id), CHAINS, -1)
    sampled = run(engine, fit, folds, starts, 1, MAX_DRAWS // BATCH_SIZE)
    return sampled.joint, np.tile(exact(problem, once).joint, REPLICATIONS)


NUM_FOLDS, SIGMA, PHI, SPREAD = 20, 0.6, 0.5, 0.5
"""of two models: AR(1) log scores of each fold, and how far the folds' differences are apart"""
MOST_DRAWS = 1200
SE = SPREAD * np.sqrt(NUM_FOLDS)


def one_model(difference: float, rng: np.random.Generator) -> tuple[LogSums, np.ndarray]:
    """Sums of all folds of all replications of a model whose log scores have means that add up to
    so many SE, and the exact elpd of its folds: mean + σ²/2."""
    mean = np.random.default_rng(3).normal(size=NUM_FOLDS)
    mean = SPREAD * (mean - mean.mean()) / mean.std(ddof=1) + difference * SE / NUM_FOLDS
    draws = ar1(rng, PHI, (REPLICATIONS * NUM_FOLDS, CHAINS, MOST_DRAWS), SIGMA)
    draws += np.tile(mean, REPLICATIONS)[:, None, None]
    return batch_sums(draws, BATCH_SIZE), mean + SIGMA**2 / 2


USUAL_MIN_DRAWS = 200


class Totals(NamedTuple):
    """Of each replication, over its folds."""

    error: np.ndarray
    mcse: np.ndarray


def totals(number: np.ndarray, sums: LogSums, exact_elpd: np.ndarray) -> Totals:
    kept = first(number, sums)
    error = elpd(kept) - np.tile(exact_elpd, REPLICATIONS)
    return Totals(
        error.reshape(REPLICATIONS, -1).sum(1),
        np.sqrt((mcse(kept) ** 2).reshape(REPLICATIONS, -1).sum(1)),
    )


class ByShare(NamedTuple):
    """Totals of folds that ended early, of a fixed length, and how many draws the former took."""

    early: Totals
    fixed: Totals
    draws: np.ndarray


def by_share(share: float, seeds: int) -> ByShare:
    """`fold_mcse_over_se`: the tolerance is of the draws at the first look."""
    lengths = looks(USUAL_MIN_DRAWS, MOST_DRAWS, BATCH_SIZE)
    early, fixed, draws = [], [], []
    for seed in range(seeds):
        sums, exact_elpd = one_model(0.0, np.random.default_rng(seed))
        pilot = LogSums(*(x[:, :, : USUAL_MIN_DRAWS // BATCH_SIZE] for x in sums))
        tolerance = np.concatenate(
            [
                share_of_se(LogSums(*(x[k : k + NUM_FOLDS] for x in pilot)), share)
                for k in range(0, len(pilot.mean), NUM_FOLDS)
            ]
        )
        number = np.full(len(tolerance), lengths[-1])
        for length in reversed(lengths[:-1]):
            so_far = LogSums(*(x[:, :, : length // BATCH_SIZE] for x in sums))
            number[finished(so_far, Rule(tolerance, 1.05))] = length
        draws.append(number)
        early.append(totals(number, sums, exact_elpd))
        fixed.append(totals(np.full(len(number), 300), sums, exact_elpd))
    return ByShare(
        *(Totals(*map(np.concatenate, zip(*x))) for x in (early, fixed)), np.concatenate(draws)
    )


def first(number: np.ndarray, whole: LogSums) -> LogSums:
    """The sums of the first draws of each fold."""
    batch = np.arange(whole.count.shape[2])
    there = batch * BATCH_SIZE < number[:, None, None]
    return whole._replace(count=np.where(there, whole.count, 0))
