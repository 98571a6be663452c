"""Both sides of a fold: shift, crossings, estimates on sides whose answer is known, and which folds
have two. Models are in test_exact.py."""

from typing import NamedTuple

import numpy as np
import pytest
from scipy.special import log_expit, logsumexp
from scipy.stats import norm

from pcv.analysis import diagnostics as diag
from pcv.analysis.diagnostics import Sides, UnitSides, batch_sums
from pcv.analysis.stopping.rule import Rule, finished
from pcv.analysis.verdicts import MIN_WEIGHTS, faults, heavy_tail
from pcv.base.monitor import SILENT
from pcv.folds.base import Folds, from_sets
from pcv.folds.exchangeable import kfold, leave_one_out
from pcv.folds.time import hv_block
from pcv.models.model import target
from pcv.models.parameters import flat_target
from pcv.sampling.folds import moving, sides
from pcv.sampling.tiles import build
from tests.bounds import count_limits, sd_limits, z_limit
from tests.chains import fit_of
from tests.problems import kriging, regression
from tests.replications import prepare

CHAINS, DRAWS, BATCH = 8, 200, 50
TRUTH = -0.5
SEEDS = (1, 2, 3)


class Drawn(NamedTuple):
    own: np.ndarray
    """log scores (fold, chain, draw)"""
    full: np.ndarray
    """(fold, draw)"""


def normal_sides(rng, folds=200, variance=1.0, draws=DRAWS, full=1600) -> Drawn:
    """Log scores that are normal under the fold, and so under the full data, by exp(s) more."""
    sd = np.sqrt(variance)
    own = rng.normal(TRUTH - variance / 2, sd, (folds, CHAINS, draws))
    return Drawn(own, rng.normal(TRUTH + variance / 2, sd, (folds, full)))


def sides_of(drawn: Drawn, shift: np.ndarray) -> Sides:
    own = drawn.own.reshape(*drawn.own.shape[:2], -1, BATCH)
    full = drawn.full.reshape(len(drawn.full), -1, BATCH)
    each = diag.crossing(own, shift, own=True), diag.crossing(full, shift, own=False)
    return Sides(shift, *each, drawn.full.shape[1])


def estimate(drawn: Drawn, off: float = 0.3) -> diag.TwoSided:
    shift = np.full(len(drawn.own), TRUTH + off)
    return diag.two_sided(batch_sums(drawn.own, BATCH), sides_of(drawn, shift))


def as_stated(z: np.ndarray) -> bool:
    """Are errors, in units of their MCSE, 0 on average, and spread as t errors of some 60 degrees
    of freedom are?"""
    low, high = sd_limits(len(z), kurtosis=3.4)
    unbiased = abs(z.mean()) < z_limit(1, len(z) - 1) * z.std(ddof=1) / np.sqrt(len(z))
    return bool(unbiased and low < z.std(ddof=1) < 1.02 * high)


def test_the_shift_is_where_both_sides_cross_alike():
    drawn = normal_sides(np.random.default_rng(1), folds=5, variance=4.0)
    own = drawn.own.reshape(5, -1)
    shift = diag.balanced_shift(own, drawn.full)
    crossings = (diag.crossing(x, shift, own=x is own)[:, 2] for x in (own, drawn.full))
    np.testing.assert_allclose(*crossings, rtol=1e-9)
    np.testing.assert_allclose(shift, TRUTH, atol=0.3)  # false alarm < 1e-4: the sd is .05


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("variance", [0.1, 1.0, 4.0, 9.0])
def test_exact_within_the_stated_error(seed, variance):
    found = estimate(normal_sides(np.random.default_rng(seed), variance=variance))
    assert as_stated((found.elpd - TRUTH) / diag.two_sided_mcse(found))
    assert (found.gap_p < 0.01).sum() <= count_limits(200, 0.01)[1]
    assert (found.carry > 20).all()  # false alarm < 1e-4: more than 100, within 4


@pytest.mark.parametrize("seed", SEEDS)
def test_more_exact_than_one_side(seed):
    # False alarm < 1e-4: the ratio is .49, .31 and .02, with an sd of .04 at most.
    for variance, ratio in ((0.1, 0.8), (1.0, 0.8), (9.0, 0.3)):
        drawn = normal_sides(np.random.default_rng(seed), variance=variance)
        one = diag.elpd(batch_sums(drawn.own, BATCH)) - TRUTH
        two = estimate(drawn).elpd - TRUTH
        assert np.mean(two**2) < ratio * np.mean(one**2)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_side_with_more_draws_leads(seed):
    """Not so, errors of the few full-data draws would be a floor for folds of many draws."""
    drawn = normal_sides(np.random.default_rng(seed), draws=2000, full=1600)
    sums, shift = batch_sums(drawn.own, BATCH), np.full(len(drawn.own), TRUTH)
    sides = sides_of(drawn, shift)
    led, equal = (diag.two_sided(sums, sides._replace(full_draws=n)) for n in (1600, 16_000))
    # False alarm < 1e-4: the ratio is .66, with an sd of .005.
    assert diag.two_sided_mcse(led).mean() < 0.9 * diag.two_sided_mcse(equal).mean()
    assert as_stated((led.elpd - TRUTH) / diag.two_sided_mcse(led))


def test_sides_that_never_meet():
    """As of an outlier that decides the full posterior: the fold's own draws remain, flagged."""
    rng = np.random.default_rng(1)
    own, full = rng.normal(-3000, 1, (2, CHAINS, DRAWS)), rng.normal(-50, 1, (2, 1600))
    own[1], full[1] = normal_sides(rng, folds=1)
    shift = np.array([-1500.0, TRUTH])
    sides_, sums = sides_of(Drawn(own, full), shift), batch_sums(own, BATCH)
    found, alone = diag.two_sided(sums, sides_), diag.two_sided(sums, None)
    np.testing.assert_allclose(found.elpd[0], alone.elpd[0])
    assert abs(found.elpd[1] - TRUTH) < 0.1  # false alarm < 1e-4: the sd is .02
    assert diag.two_sided_mcse(found)[0] == diag.two_sided_mcse(alone)[0]
    assert found.carry[0] == found.overlap[0] == 0
    assert np.isfinite(found.elpd).all()
    assert heavy_tail(sums, np.zeros(2), None, found.carry).tolist() == [True, False]


def test_a_fold_with_one_side_has_its_own_mean():
    drawn = normal_sides(np.random.default_rng(1), folds=4)
    sums, shift = batch_sums(drawn.own, BATCH), np.array([TRUTH, np.inf, TRUTH, np.inf])
    found, alone = diag.two_sided(sums, sides_of(drawn, shift)), diag.two_sided(sums, None)
    own = np.isinf(shift)
    np.testing.assert_allclose(alone.elpd, diag.elpd(sums))
    np.testing.assert_allclose(diag.two_sided_mcse(alone), diag.mcse(sums))
    np.testing.assert_array_equal(found.elpd[own], alone.elpd[own])
    np.testing.assert_array_equal(diag.two_sided_mcse(found)[own], diag.two_sided_mcse(alone)[own])
    # False alarm < 1e-4: the ratio is .6, with an sd of .06.
    assert (diag.two_sided_mcse(found)[~own] < diag.two_sided_mcse(alone)[~own]).all()
    np.testing.assert_array_equal(np.isnan(found.overlap), own)


def test_overlap_is_that_of_the_densities():
    variance = 4.0
    s = np.linspace(-40, 40, 100_001)
    p0, p1 = (
        np.exp(-((s - TRUTH + sign * variance / 2) ** 2) / (2 * variance))
        / np.sqrt(2 * np.pi * variance)
        for sign in (1, -1)
    )
    exact = np.trapezoid(2 * p0 * p1 / (p0 + p1), s)
    found = estimate(normal_sides(np.random.default_rng(1), variance=variance), off=0.0)
    error = found.overlap.std(ddof=1) / np.sqrt(200)
    assert abs(found.overlap.mean() - exact) < z_limit(1, df=199) * error


def flagged(drawn: Drawn) -> list[str]:
    sums, found = batch_sums(drawn.own, BATCH), estimate(drawn)
    none = np.zeros(len(drawn.own))
    benchmark = diag.rhat_max_benchmark(np.random.default_rng(1), sums)
    khat = np.full(len(none), 0.9)
    return faults(sums, khat, none, benchmark, "plain", both=found).words().tolist()


@pytest.mark.parametrize("seed", SEEDS)
def test_sides_of_other_targets_are_flagged(seed):
    rng = np.random.default_rng(seed)
    right = normal_sides(rng, folds=50)
    assert flagged(right).count("ok") >= 48  # false alarm < 1e-4: one flag is expected in 50 runs
    moved, wider = right.full + 0.5, TRUTH + 0.5 + 1.5 * (right.full - TRUTH - 0.5)
    for full in (moved, wider):  # false alarm < 1e-4: of 4,000 such folds all are
        said = flagged(right._replace(full=full))
        assert sum("those of the full data differ by" in words for words in said) >= 45


def test_few_crossings_are_flagged_and_heavy_tails_are_not():
    rng = np.random.default_rng(1)
    near, far = normal_sides(rng, folds=5, variance=9.0), normal_sides(rng, folds=5, variance=60.0)
    # Though k-hat is .9; false alarm < 1e-4: one flag is expected in 50 runs.
    assert flagged(near).count("ok") >= 3
    said = flagged(far)
    assert all("draws cross between the fold and the full data: too few" in words for words in said)
    sums = batch_sums(near.own, BATCH)
    assert heavy_tail(sums, np.full(5, 0.9)).all()


def units_of_a_group(rng, y: np.ndarray, noise: float) -> tuple[np.ndarray, diag.TwoSided]:
    """Errors of the pointwise sums of 100 folds that leave out a group with a mean of its own,
    theta ~ N(0, 1), and their estimates."""
    folds, precision = 100, 1 + len(y) / noise**2
    theta = rng.normal(size=(folds, CHAINS, DRAWS))
    full = y.sum() / noise**2 / precision + rng.normal(size=(folds, 1600)) / np.sqrt(precision)
    own, given = (norm.logpdf(y, x[..., None], noise) for x in (theta, full))
    shift = diag.balanced_shift(own.sum(-1).reshape(folds, -1)[:, ::8], given.sum(-1)[:, ::8])
    sides = sides_of(Drawn(own.sum(-1), given.sum(-1)), shift)
    batches = own.reshape(folds, CHAINS, -1, BATCH, len(y)), given.reshape(folds, -1, BATCH, len(y))
    sums = []
    for power in (1, 2):
        for x, number in zip(batches, (1, BATCH)):
            at = (*(slice(None),) * (x.ndim - 1), None)
            belongs = log_expit(shift.reshape(-1, *(1,) * (x.ndim - 2)) - x.sum(-1))[at]
            sums.append(logsumexp(power * (x + belongs), axis=-2) - np.log(number))
    joint = diag.two_sided(batch_sums(own.sum(-1), BATCH), sides)
    at = batch_sums(own, BATCH), joint, sides, UnitSides(*sums), np.full(folds, False)
    found = diag.two_sided_units(*at)
    exact = norm.logpdf(y, 0, np.sqrt(1 + noise**2)).sum()
    return found.elpd.sum(1) - exact, found


@pytest.mark.parametrize("seed", SEEDS)
def test_units_that_few_draws_carry_are_flagged(seed):
    """Many draws of a group's fold cross, and hardly any comes near one of its units."""
    ordinary, outlier = np.linspace(-0.5, 1, 10), np.append(np.zeros(9), 4.0)
    for y, noise, honest in ((ordinary, 1.0, True), (outlier, 0.5, False)):
        error, found = units_of_a_group(np.random.default_rng(seed), y, noise)
        least = MIN_WEIGHTS * np.sqrt(CHAINS * DRAWS)
        assert (found.carry >= least).all(axis=1).all() == honest
        if honest:
            assert as_stated(error / diag.two_sided_mcse(found))
        else:
            assert (found.carry[:, -1] < least).all()


def test_folds_of_two_sides_end_earlier():
    drawn = normal_sides(np.random.default_rng(1), folds=20, variance=2.0)
    sums, sides = batch_sums(drawn.own, BATCH), sides_of(drawn, np.full(20, TRUTH))
    between = (diag.two_sided_mcse(diag.two_sided(sums, x)) for x in (None, sides))
    rule = Rule(np.mean(list(between), axis=0), 1.05)
    khat = np.zeros(20)
    assert not finished(sums, rule, khat).any()
    assert finished(sums, rule, khat, sides=sides).mean() > 0.9


def test_which_folds_hold_out_their_test_set_alone():
    def some(folds: Folds) -> list[bool]:
        return sides.without_gap(folds).tolist()

    names = [str(i) for i in range(8)]
    assert all(some(leave_one_out(names)))
    assert all(some(kfold(names, 3, seed=1)))
    assert not any(some(hv_block(names, 0, 1)))
    assert all(some(hv_block(names, 1, 0)))
    gaps = [np.array([7]), np.array([], int)]
    *earlier, last = some(from_sets(["1", "2"], [np.array([6]), np.array([7])], gaps, 8))
    assert last
    assert not any(earlier)


@pytest.mark.parametrize("problem", [regression, kriging])
def test_full_data_draws_are_scored_block_by_block(problem):
    """By the program of the chains; as the predictive says, called by itself."""
    setting = prepare(problem())
    once = setting.folds.some(np.arange(len(setting.scheme)))
    draws = setting.starts[:320].reshape(-1, setting.starts.shape[-1])
    zero = moving.uncentered(once)
    pilot = np.asarray(setting.scores(draws)[0]).T[:, None]
    own = moving.alike(setting.fit, len(once.id))
    no = np.zeros(len(once.id), bool)
    at = setting.starts[: len(once.id)], own, no, zero, pilot, no.astype(int), ~no
    which = sides.without_gap(once)
    engine = setting.engine
    side = engine, once, which, moving.Starts(*at), draws
    found = sides.facing(*side, None, 4000, SILENT)
    joint, pointwise = (np.asarray(x) for x in setting.scores(draws))
    assert found.num_draws == 1280  # of blocks of 20, two to a batch
    assert np.isfinite(found.shift).tolist() == which.tolist()
    some = np.flatnonzero(which)
    blocks = joint.T[some].reshape(len(some), 32, 40)
    expected = diag.crossing(blocks, found.shift[some], own=False)
    np.testing.assert_allclose(found.crossing[some], expected, rtol=1e-9)
    belongs = 1 / (1 + np.exp(joint.T[some] - found.shift[some, None]))
    weighted = np.exp(pointwise[:, some].transpose(1, 0, 2)) * belongs[..., None]
    means = np.log(weighted.reshape(len(some), 32, 40, -1).mean(2))
    there = np.broadcast_to((once.test[some] >= 0)[:, None], means.shape)
    np.testing.assert_allclose(found.bridge[some][there], means[there], rtol=1e-9)
    if problem is regression:
        terms = np.empty((len(draws), len(setting.problem.data["y"])))
        for k, test in enumerate(once.test):
            terms[:, test[test >= 0]] = pointwise[:, k, test >= 0]
        summed = sides.facing(*side, terms, 4000, SILENT)
        for name in ("shift", "crossing", "bridge", "bridge_sq"):
            one, other = (getattr(x, name)[some] for x in (found, summed))
            if name.startswith("bridge"):
                one, other = one[there], other[there]
            np.testing.assert_allclose(one, other, rtol=1e-9)


@pytest.mark.slow
def test_a_target_has_two_sides_where_its_predictive_is_what_its_density_has_more_of():
    def factors(model) -> np.ndarray:
        problem = kriging()
        flat, _ = flat_target(target(model, problem.data, "either"))
        num_units, rng = len(problem.data["y"]), np.random.default_rng(1)
        draws = np.stack([*problem.posterior(rng, 50).values()], axis=1)
        engine = build(flat, (), num_units, 20)
        at = (
            engine,
            fit_of(draws, 0.5, 3),
            leave_one_out([str(i) for i in range(num_units)]),
            draws,
            SILENT,
        )
        return sides.factors(*at)

    model = kriging().model

    def tempered(params, fold):
        joint, pointwise = model.log_predictive(params, fold)
        return 0.9 * joint, pointwise

    assert factors(model).all()
    assert not factors(model._replace(log_predictive=tempered)).any()
    prior = model._replace(log_density=lambda params, fold: -(params["mu"] ** 2))
    assert not factors(prior).any()
