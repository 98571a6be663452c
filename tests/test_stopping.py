"""Stopping when the answer is in does not bias it: on a problem with exact answers."""

from functools import cache
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from pcv.diagnostics import LogSums, batch_sums, elpd, mcse
from pcv.folds import Folds
from pcv.model import flat_target, target
from pcv.sampler import Kernel, build
from pcv.stopping import Rule, compacted, finished, looks, share_of_se, sizes
from tests.chains import run
from tests.problems import exact, regression

REPLICATIONS = 200
CHAINS, BATCH_SIZE, MIN_DRAWS, MAX_DRAWS = 4, 20, 100, 600
TOLERANCE = 0.04


@cache
def sums() -> tuple[LogSums, np.ndarray]:
    """Sums of the longest chains of all folds of all replications, and the exact answers."""
    problem = regression()
    once = problem.schemes["k-fold"]
    folds = Folds(
        np.array([f"{fold}, replication {r}" for r in range(REPLICATIONS) for fold in once.id]),
        np.tile(once.test, (REPLICATIONS, 1)),
        np.tile(once.held_out, (REPLICATIONS, 1, 1)),
    )
    draws = problem.posterior(np.random.default_rng(1), len(folds.id) * CHAINS)
    starts = np.asarray(jax.vmap(lambda params: ravel_pytree(params)[0])(draws))
    kernel = Kernel(
        center=jnp.asarray(starts.mean(0)),
        scale=jnp.asarray(np.linalg.cholesky(np.cov(starts.T))),
        step_size=jnp.asarray(0.55),
        num_steps=jnp.asarray(3),
    )
    flat, _ = flat_target(target(problem.model, problem.data, "plain"))
    engine = build(flat, (), 14, BATCH_SIZE)
    starts = starts.reshape(len(folds.id), CHAINS, -1)
    sampled = run(engine, kernel, folds, starts, 1, MAX_DRAWS // BATCH_SIZE)
    return sampled.joint, np.tile(exact(problem, once).joint, REPLICATIONS)


class Stopped(NamedTuple):
    num_draws: np.ndarray
    error: np.ndarray
    z: np.ndarray


def first(number: np.ndarray, whole: LogSums) -> LogSums:
    """The sums of the first draws of each fold."""
    batch = np.arange(whole.count.shape[2])
    there = batch * BATCH_SIZE < number[:, None, None]
    return whole._replace(count=np.where(there, whole.count, 0))


def stopped(lengths: list[int], done) -> Stopped:
    """Every fold ends at the first length at which it is done, or at the last."""
    whole, truth = sums()
    number = np.full(len(truth), lengths[-1])
    for length in reversed(lengths):
        so_far = LogSums(*(x[:, :, : length // BATCH_SIZE] for x in whole))
        number[done(so_far)] = length
    kept = first(number, whole)
    error = elpd(kept) - truth
    return Stopped(number, error, error / mcse(kept))


def by_rule(so_far: LogSums) -> np.ndarray:
    return finished(so_far, Rule(np.full(len(so_far.mean), TOLERANCE), 1.05))


def test_estimates_are_those_of_a_fixed_length():
    early = stopped(looks(MIN_DRAWS, MAX_DRAWS, BATCH_SIZE), by_rule)
    lengths, number = np.unique(early.num_draws, return_counts=True)
    assert len(lengths) >= 5
    assert number.max() < 0.6 * number.sum()
    fixed = stopped([300], lambda so_far: np.ones(len(so_far.mean), bool))
    for found in (early, fixed):
        by_fold = found.error.reshape(REPLICATIONS, -1)
        bias = by_fold.mean(0) / (by_fold.std(0, ddof=1) / np.sqrt(REPLICATIONS))
        assert np.abs(bias).max() < 3.5
        total = by_fold.sum(1)
        assert abs(total.mean()) < 3 * total.std(ddof=1) / np.sqrt(REPLICATIONS)
        assert 0.8 < found.z.std(ddof=1) < 1.2


def test_looking_at_every_batch_from_the_first_on_is_noticed():
    lengths = list(range(BATCH_SIZE, MAX_DRAWS + 1, BATCH_SIZE))
    eager = stopped(lengths, lambda so_far: mcse(so_far) <= TOLERANCE)
    assert eager.z.std(ddof=1) > 1.2


def test_a_fold_that_has_not_mixed_goes_on():
    rng = np.random.default_rng(1)
    draws = rng.normal(0, 0.01, (2, 4, 100))
    draws[1, 0] += 0.05
    rule = Rule(np.full(2, 0.05), 1.05)
    assert finished(batch_sums(draws, 20), rule).tolist() == [True, False]


def test_a_share_of_the_se():
    whole, _ = sums()
    some = LogSums(*(x[:4] for x in whole))
    tolerance = share_of_se(some, 0.05)
    assert np.sqrt((tolerance**2).sum()) == pytest.approx(
        0.05 * np.sqrt(4 * elpd(some).var(ddof=1))
    )


def test_looks_are_whole_batches_and_end_at_the_last():
    for batch_size in (1, 20, 50):
        found = looks(2 * batch_size, 40 * batch_size, batch_size)
        assert found[0] == 2 * batch_size
        assert found[-1] == 40 * batch_size
        assert (np.diff(found) > 0).all()
        assert not np.any(np.array(found) % batch_size)
    assert looks(100, 100, 50) == [100]


@pytest.mark.parametrize("number", [1, 2, 7, 30, 394])
def test_folds_are_compacted_to_few_sizes(number):
    assert len(sizes(number)) <= 4
    for active in range(1, number + 1):
        folds = compacted(np.arange(active), number)
        assert len(folds) in sizes(number)
        assert set(folds) == set(range(active))
