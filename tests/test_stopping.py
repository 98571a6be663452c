"""Stopping when the answer is in does not bias it: on a problem with exact answers."""

from functools import cache
from typing import NamedTuple

import numpy as np
import pytest
from scipy.stats import f

from pcv.analysis.comparison import Comparison, Scores, compare
from pcv.analysis.diagnostics import (
    LogSums,
    batch_sums,
    elpd,
    ess,
    mcse,
    nested_limit,
    nested_rhat,
    rhat,
)
from pcv.analysis.stopping.config import looks
from pcv.analysis.stopping.rule import MIN_ESS, Rule, finished, needs, share_of_se
from pcv.base.section import doubling
from tests.bounds import sd_limits
from tests.chains import ar1
from tests.looks import (
    BATCH_SIZE,
    CHAINS,
    MAX_DRAWS,
    MIN_DRAWS,
    MOST_DRAWS,
    NUM_FOLDS,
    PHI,
    REPLICATIONS,
    SE,
    SIGMA,
    USUAL_MIN_DRAWS,
    by_share,
    first,
    of_chains,
    one_model,
)

TOLERANCE = 0.02


SHARE = 0.02


def by_rounds() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """For each replication, after rounds until its total is settled: errors of its folds, MCSE and
    draws."""
    whole, truth = of_chains()
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
        errors.append(elpd(last) - truth[:num_folds])
        errors_mcse.append(np.sqrt((mcse(last) ** 2).sum()))
        used.append(number.mean())
    return np.array(errors), np.array(errors_mcse), np.array(used)


@pytest.mark.slow
def test_comparisons_by_rounds_are_not_biased():
    error, size, used = by_rounds()
    assert used.min() < used.max() < MAX_DRAWS
    assert equivalent(error, [linear_error(n) for n in LENGTHS])
    assert spread_as_stated(error.sum(1) / size)


@cache
def two_models(difference: float) -> tuple[LogSums, LogSums]:
    """Model a, which is better by so many SE, and b, whose folds are all alike."""
    rng = np.random.default_rng(3)
    a, _ = one_model(difference, rng)
    draws = ar1(rng, PHI, (REPLICATIONS * NUM_FOLDS, CHAINS, MOST_DRAWS), SIGMA)
    return a, batch_sums(draws, BATCH_SIZE)


def scores_of(name: str, elpd: np.ndarray, mcse: np.ndarray) -> Scores:
    names = [str(k) for k in range(NUM_FOLDS)]
    return Scores(
        *(name, "joint", "log", "y", "plain", "", ""),
        *(names, elpd, mcse, np.arange(NUM_FOLDS), names, "ok"),
    )


class Ended(NamedTuple):
    """Of each replication."""

    diff: np.ndarray
    """estimated difference of a to b, in its SE"""
    error: np.ndarray
    """of it (nats)"""
    mcse: np.ndarray
    draws: np.ndarray
    """mean over folds and models"""
    settled: np.ndarray


def eager(sums: LogSums, tolerance: np.ndarray) -> np.ndarray:
    """The twin of `finished`: the MCSE alone, as it is estimated."""
    return mcse(sums) <= tolerance


def patient(sums: LogSums, tolerance: np.ndarray) -> np.ndarray:
    return finished(sums, Rule(tolerance, 1.05))


def compared_at(
    lengths: list[int],
    difference: float,
    share: float | None,
    probability: float | None,
    done=patient,
    replications: int = REPLICATIONS,
    chains: int = CHAINS,
) -> Ended:
    """Rounds of draws until the comparison is settled, as the workflow goes through them; all
    replications side by side."""
    number_of_folds = replications * NUM_FOLDS
    both = [
        LogSums(*(x[:number_of_folds, :chains] for x in sums)) for sums in two_models(difference)
    ]
    number = np.full((2, number_of_folds), lengths[0])
    going = np.ones(number.shape, bool)
    for length in [*lengths[1:], 0]:
        so_far = [first(*x) for x in zip(number, both)]
        each = np.reshape([(elpd(x), mcse(x)) for x in so_far], (2, 2, replications, NUM_FOLDS))
        tolerance, ended = np.empty((2, replications)), []
        for r in range(replications):
            result = compare([scores_of(name, *each[i, :, r]) for i, name in enumerate("ab")], "b")
            a = result.models.index("a")
            tolerance[:, r] = needs(result, share, probability).tolerance[[a, 1 - a]]
            diff = result.elpd_diff[a]
            ended.append((diff / result.dse[a], diff - difference * SE, result.mcse_diff[a]))
        for i, sums in enumerate(so_far):
            going[i] &= ~done(sums, np.repeat(tolerance[i], NUM_FOLDS))
        number[going] = np.maximum(number[going], length)
    draws = number.mean(0).reshape(replications, -1).mean(1)
    return Ended(*np.transpose(ended), draws, np.isinf(tolerance[0]))


MARGIN = 0.25
"""of the Monte Carlo error of one run: a bias that counts as none"""
UNDERSTATED = 1.08
"""sd of errors in their MCSE, at most: batches are short, and stopping favours small MCSEs"""
LENGTHS = (100, 200, 300, 400, 600)


def linear_error(num_draws: int) -> np.ndarray:
    """Relative errors (replication, fold) of the mean of exp(s) over so many draws of `of_chains`,
    whose expectation is exactly 0."""
    whole, truth = of_chains()
    kept = first(np.full(len(truth), num_draws), whole)
    return np.expm1(elpd(kept) - truth).reshape(REPLICATIONS, -1)


def without_chance(error: np.ndarray, fixed: list[np.ndarray]) -> np.ndarray:
    """Errors (replication, fold) less what is linear in those of fixed lengths. These have an
    expectation of 0, so that the bias remains, with a third or less of its standard error."""
    rest = error.copy()
    for k in range(error.shape[1]):
        known = np.column_stack([x[:, k] for x in fixed])
        slope, *_ = np.linalg.lstsq(known - known.mean(0), error[:, k] - error[:, k].mean())
        rest[:, k] -= known @ slope
    return rest


def equivalent(error: np.ndarray, fixed: list[np.ndarray], margin: float = MARGIN) -> bool:
    """Two one-sided tests at 5%: is the bias of the total over folds within the margin?

    False alarm < 1e-4 for a bias that is smaller by six standard errors, as biases here are.
    """
    size, rest = error.sum(1).std(ddof=1), without_chance(error, fixed).sum(1)
    return bool(abs(rest.mean()) + 1.645 * rest.std(ddof=1) / np.sqrt(len(rest)) < margin * size)


def spread_as_stated(z: np.ndarray) -> bool:
    low, high = sd_limits(len(z))
    return bool(low < z.std(ddof=1) < UNDERSTATED * high)


@pytest.mark.slow
def test_a_settled_difference_is_equivalent_to_one_of_fixed_length():
    found = compared_at(doubling(USUAL_MIN_DRAWS, MOST_DRAWS), 2.5, 0.07, None)
    fixed, longer = (compared_at([n], 2.5, 0.07, None) for n in (400, 800))
    # False alarm < 1e-4: 713 draws with an sd of 3; all of 800 differences are settled.
    assert 1.5 * USUAL_MIN_DRAWS < found.draws.mean() < 0.8 * MOST_DRAWS
    assert found.settled.mean() > 0.95
    # Both models' scores vary alike: differences of a fixed length are not biased.
    assert equivalent(found.error[:, None], [x.error[:, None] for x in (fixed, longer)])
    for ended in (found, fixed):
        assert spread_as_stated(ended.error / ended.mcse)


@pytest.mark.slow
def test_a_difference_that_is_looked_at_after_every_batch_is_noticed():
    """By its MCSE alone, from the first batches on; the rule, at its own looks, is fine. Of two
    chains: the sd of the former is 1.9 then, known within .13."""
    every_batch = list(range(BATCH_SIZE, USUAL_MIN_DRAWS + 1, BATCH_SIZE))
    often = compared_at(every_batch, 0.0, 0.15, None, eager, chains=2)
    seldom = compared_at(doubling(USUAL_MIN_DRAWS, MAX_DRAWS), 0.0, 0.15, None, chains=2)
    assert (often.error / often.mcse).std(ddof=1) > UNDERSTATED * sd_limits(REPLICATIONS)[1]
    assert spread_as_stated(seldom.error / seldom.mcse)


@pytest.mark.slow
def test_decisions_are_right_and_clear_ones_are_not_exaggerated():
    """Near the threshold they are, by less than a tenth of an SE where MCSEs are a tenth of it
    (docs/stopping.md); undecided ones go on."""
    lengths = doubling(USUAL_MIN_DRAWS, MOST_DRAWS)
    clear, near = (compared_at(lengths, x, None, 0.99) for x in (4.0, 2.5))
    fixed = compared_at(lengths[:1], 4.0, None, 0.99)
    # False alarm < 1e-4: of clear ones errors have an sd of .14 SE, and 200.1 draws are made on
    # average; of none errors have an sd of .05 SE.
    assert clear.settled.all()
    assert clear.draws.mean() < 1.1 * USUAL_MIN_DRAWS
    assert equivalent(clear.error[:, None], [fixed.error[:, None]])
    none = compared_at(lengths, 0.0, None, 0.99, replications=20)
    assert not none.settled.any()
    assert (near.diff[near.settled] > 2.33).all()
    # False alarm < 1e-4: .03 SE on average, with an sd of .005.
    assert abs(near.error.mean()) < 0.1 * SE
    decided = near.error[near.settled]
    # False alarm < 1e-4: 188 (sd 4) are decided, after 520 draws (sd 25), .04 SE off (sd .006).
    assert len(decided) > 0.2 * REPLICATIONS
    assert near.draws.mean() > 1.5 * clear.draws.mean()
    assert abs(decided.mean()) < 0.1 * SE


@pytest.mark.parametrize("rho", [0.0, 0.8])
@pytest.mark.parametrize(("superchains", "num_draws"), [(16, 4), (4, 4), (16, 40), (4, 1000)])
def test_superchains_that_have_mixed_may_end(superchains, num_draws, rho):
    """As often as Fisher's distribution says of their means, which differ more if chains are short:
    nested R-hat is then √(1 + 1/M), above any limit near 1."""
    folds, each = 250, 64 // superchains
    draws = ar1(np.random.default_rng(3), rho, (folds, 64, num_draws), 0.1)
    sums = batch_sums(draws, num_draws // 2)
    kept = as_theory_has_it(each, num_draws, rho)
    limit = nested_limit(sums, superchains, 0.0)
    # False alarm < 1e-4: the sd of a fold's limit is .006 at most, that of a share .5.
    assert limit.mean() == pytest.approx(np.sqrt(1 + kept), abs=0.004)
    share = f(superchains - 1, superchains * (each - 1)).cdf(1 + 0.02 / kept)
    passed = nested_rhat(sums, superchains) <= nested_limit(sums, superchains, 0.02)
    assert passed.mean() == pytest.approx(share, abs=4 * 0.5 / np.sqrt(folds))
    ended = finished(sums, Rule(np.full(folds, 1.0), 1.05, superchains))
    # Short chains that are correlated go on, and 4% of others; false alarm < 1e-4: none of 250.
    alone = rhat(sums) <= 1.05
    assert alone.all() == (num_draws > 4 and (num_draws > 40 or not rho))
    np.testing.assert_array_equal(ended, passed & (ess(sums) >= MIN_ESS) & alone)


def as_theory_has_it(each, num_draws, rho):
    """What chains that have forgotten their starts leave of nested R-hat squared, less 1."""
    lags = np.arange(1, num_draws)
    of_mean = (1 + 2 * ((1 - lags / num_draws) * rho**lags).sum()) / num_draws
    within = (1 - of_mean) * num_draws / max(num_draws - 1, 1)
    return of_mean / each / (of_mean + within)


@pytest.mark.parametrize(("spread", "num_draws"), [(0.1, 40), (0.03, 1000), (0.03, 4000)])
def test_superchains_that_have_not_quite_mixed_go_on(spread, num_draws):
    """Long chains from one start stay together, .3 or 1 of a standard deviation from others."""
    draws = ar1(np.random.default_rng(4), 0.5, (20, 16, num_draws), 0.1)
    draws += np.repeat(np.linspace(-1.5, 1.5, 4), 4)[:, None] * spread
    sums = batch_sums(draws, num_draws // 20)
    rule = Rule(np.full(20, 0.1), 1.05, 4)
    # False alarm < 1e-4: R-hat is 7 sds of a fold, or more, from either limit.
    assert not finished(sums, rule).any()
    whole = np.sqrt(1.05**2 + 1 / 4)  # as if each chain had made a single draw
    passed = (nested_rhat(sums, 4) <= whole) & (mcse(sums) <= 0.1) & (ess(sums) >= MIN_ESS)
    assert passed.all() == (spread < 0.1)


@pytest.mark.slow
def test_a_share_of_the_se_is_equivalent_to_a_fixed_length():
    """The bias that is left, up to .23 of a Monte Carlo error, is told from three tenths by 1,600
    replications. In fixed lengths a fold's bias is half its squared error."""
    found = by_share(0.08, 8)
    linear = [(found.fixed.error + found.fixed.mcse**2 / 2)[:, None]]
    assert len(np.unique(found.draws)) >= 3
    for ended in (found.early, found.fixed):
        assert equivalent(ended.error[:, None], linear, margin=0.3)
        # False alarm < 1e-4: 1.06 on average, with an sd of .02.
        assert 0.8 < (ended.error / ended.mcse).std(ddof=1) < 1.2


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


def test_a_lower_bound_of_the_mcse_settles_nothing():
    for diff, share, probability in ((1.0, 0.05, None), (4.0, None, 0.99)):
        both = compared(diff, 0.004)
        assert needs(both, share, probability).words == "settled"
        bound = both._replace(mcse_diff_is_bound=np.array([False, True]))
        found = needs(bound, share, probability)
        assert found.words == "not settled (b: MCSE > 0.04, only a lower bound)"
        assert np.isinf(found.tolerance).all()  # but for folds with such a one, see `finished`


class Stopped(NamedTuple):
    num_draws: np.ndarray
    error: np.ndarray
    z: np.ndarray


def stopped(lengths: list[int], done) -> Stopped:
    """Every fold ends at the first length at which it is done, or at the last."""
    whole, truth = of_chains()
    number = np.full(len(truth), lengths[-1])
    for length in reversed(lengths):
        so_far = LogSums(*(x[:, :, : length // BATCH_SIZE] for x in whole))
        number[done(so_far)] = length
    kept = first(number, whole)
    error = elpd(kept) - truth
    return Stopped(number, error, error / mcse(kept))


def by_rule(so_far: LogSums) -> np.ndarray:
    return finished(so_far, Rule(np.full(len(so_far.mean), TOLERANCE), 1.05))


@pytest.mark.slow
def test_estimates_are_those_of_a_fixed_length():
    early = stopped(looks(MIN_DRAWS, MAX_DRAWS, BATCH_SIZE), by_rule)
    lengths, number = np.unique(early.num_draws, return_counts=True)
    # False alarm < 1e-4: of 2,800 folds 58% end at the first look, and 4% or more at each other.
    assert len(lengths) >= 5
    assert number.max() < 0.9 * number.sum()
    fixed = stopped([300], lambda so_far: np.ones(len(so_far.mean), bool))
    for found in (early, fixed):
        by_fold = found.error.reshape(REPLICATIONS, -1)
        known = [linear_error(n) for n in LENGTHS]
        # False alarm < 1e-4: .04 at most, with an sd of .03.
        bias = without_chance(by_fold, known).mean(0) / by_fold.std(0, ddof=1)
        assert np.abs(bias).max() < MARGIN
        assert equivalent(by_fold, known)
        # False alarm < 1e-4: 1.06 at most, with an sd of .02.
        assert 0.8 < found.z.std(ddof=1) < 1.2


@pytest.mark.slow
def test_looking_at_every_batch_from_the_first_on_is_noticed():
    lengths = list(range(BATCH_SIZE, MAX_DRAWS + 1, BATCH_SIZE))
    eager = stopped(lengths, lambda so_far: mcse(so_far) <= TOLERANCE)
    # False alarm < 1e-4: 1.7, with an sd of .1.
    assert eager.z.std(ddof=1) > 1.2


def test_a_fold_that_has_not_mixed_goes_on():
    rng = np.random.default_rng(1)
    draws = rng.normal(0, 0.01, (2, 4, 100))
    draws[1, 0] += 0.05
    rule = Rule(np.full(2, 0.05), 1.05)
    assert finished(batch_sums(draws, 20), rule).tolist() == [True, False]


def test_a_fold_with_a_heavy_tail_goes_on():
    draws = np.random.default_rng(1).normal(0, [[[0.5]], [[3.0]]], (2, 8, 200))
    sums, rule = batch_sums(draws, 50), Rule(np.full(2, 9.0), 1.05)
    assert finished(sums, rule).tolist() == [True, False]
    assert finished(sums, rule, np.array([0.8, 0.4])).tolist() == [False, True]
    assert finished(sums, rule, np.full(2, 0.4), np.array([1.0, 3.0])).tolist() == [True, False]


def test_a_share_of_the_se():
    some = batch_sums(ar1(np.random.default_rng(1), PHI, (4, CHAINS, 200), SIGMA), 20)
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
