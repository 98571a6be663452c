"""Stopping when the answer is in does not bias it: on a problem with exact answers."""

from functools import cache
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from pcv.comparison import Comparison, Scores, compare
from pcv.diagnostics import LogSums, batch_sums, elpd, mcse
from pcv.folds import Folds
from pcv.kernels import compacted, sizes
from pcv.model import flat_target, target
from pcv.sampler import Kernel, build
from pcv.stopping import (
    Rule,
    doubling,
    finished,
    looks,
    needs,
    share_of_se,
)
from tests.chains import run
from tests.problems import exact, regression

REPLICATIONS = 200
CHAINS, BATCH_SIZE, MIN_DRAWS, MAX_DRAWS = 4, 20, 100, 600
TOLERANCE = 0.02


@cache
def sums() -> tuple[LogSums, np.ndarray]:
    """Sums of the longest chains of all folds of all replications, and the exact answers."""
    problem = regression()
    once = problem.schemes["leave one out"]
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


SHARE = 0.02


def by_rounds() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """For each replication, after rounds until its total is settled: error, MCSE and draws."""
    whole, truth = sums()
    num_folds = len(truth) // REPLICATIONS
    lengths = doubling(MIN_DRAWS, MAX_DRAWS)
    errors, errors_mcse, used = [], [], []
    for r in range(REPLICATIONS):
        own = LogSums(*(x[r * num_folds : (r + 1) * num_folds] for x in whole))
        number = np.full(num_folds, lengths[0])
        going = np.ones(num_folds, bool)
        for length in lengths[1:]:
            so_far = first(number, own)
            each = mcse(so_far)
            scores = Scores(
                *("m", "joint", "log", "y", "plain", "", ""),
                fold=[str(k) for k in range(num_folds)],
                elpd=elpd(so_far),
                mcse=each,
                fold_of_term=np.arange(num_folds),
                term=[str(k) for k in range(num_folds)],
                verdict="ok",
            )
            wanted = needs(compare([scores]), SHARE, None).tolerance[0]
            going &= ~finished(so_far, Rule(np.full(num_folds, wanted), 1.05))
            number[going] = length
        last = first(number, own)
        errors.append((elpd(last) - truth[:num_folds]).sum())
        errors_mcse.append(np.sqrt((mcse(last) ** 2).sum()))
        used.append(number.mean())
    return np.array(errors), np.array(errors_mcse), np.array(used)


def test_comparisons_by_rounds_are_not_biased():
    error, size, used = by_rounds()
    assert used.min() < used.max() < MAX_DRAWS
    assert abs(error.mean()) < 3 * error.std(ddof=1) / np.sqrt(REPLICATIONS)
    assert 0.8 < (error / size).std(ddof=1) < 1.2


def compared(diff: float, fold_mcse: float, num_folds: int = 50) -> Comparison:
    rng = np.random.default_rng(1)
    spread = rng.normal(size=num_folds)
    terms = (spread - spread.mean()) / spread.std(ddof=1) / np.sqrt(num_folds)  # SE 1
    names = [str(k) for k in range(num_folds)]
    return compare(
        [
            Scores(
                *(name, "joint", "log", "y", "plain", "", "", names, elpds),
                *(np.full(num_folds, fold_mcse), np.arange(num_folds), names, "ok"),
            )
            for name, elpds in [("a", terms + diff / num_folds), ("b", np.zeros(num_folds))]
        ]
    )


def test_a_difference_is_settled_by_its_share_of_the_se():
    for fold_mcse, settled in [(0.004, True), (0.006, False)]:  # in all .04 and .06 of the SE
        found = needs(compared(1.0, fold_mcse), 0.05, None)
        assert np.isinf(found.tolerance).all() == settled
        assert (found.words == "settled") == settled
    assert found.tolerance == pytest.approx(0.05 / np.sqrt(100), rel=1e-6)


def test_a_difference_is_decided_whatever_its_monte_carlo_error_does():
    clear, close = compared(4.0, 0.06), compared(2.5, 0.06)  # MCSE .6 of the SE
    assert np.isinf(needs(clear, None, 0.99).tolerance).all()
    found = needs(close, None, 0.99).tolerance
    assert found == pytest.approx((2.5 - 2.3263) / 2 / np.sqrt(100), rel=1e-3)
    assert (needs(compared(1.0, 0.06), None, 0.99).tolerance == 0).all()
    both = needs(compared(1.0, 0.006), 0.1, 0.99).tolerance
    assert np.isinf(both).all()


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
    assert number.max() < 0.9 * number.sum()
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
