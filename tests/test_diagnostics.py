"""Every diagnostic from stored sums equals its formula on stored draws."""

import inspect
import re
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from arviz_stats.base import array_stats
from scipy.stats import ks_2samp, ttest_ind

from pcv.analysis import diagnostics as diag
from pcv.analysis import verdicts
from pcv.analysis.diagnostics import Benchmark, LogSums, batch_sums, rhat_max, tails
from pcv.analysis.run_verdict import run_verdict
from pcv.analysis.stopping.rule import Rule, finished
from pcv.base.monitor import Monitor
from pcv.core.settings import CvConfig
from pcv.sampling.folds import lasting
from tests.bounds import RATE, count_limits, z_limit
from tests.chains import ar1
from tests.slow import repeated

SEEDS = (1, 2, 3)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_correlated_batches_raise_the_error(seed):
    """Of normal s with a small sd the elpd is the mean of s, nearly: its variance is known."""
    phi, sd, size, draws = 0.95, 0.1, 50, 400
    s = ar1(np.random.default_rng(seed), phi, (2000, 4, draws), sd)
    sums = batch_sums(s, size)
    of_errors = np.mean((diag.elpd(sums) - sd**2 / 2) ** 2) / np.mean(diag.mcse(sums) ** 2)
    inflation = diag.batch_inflation(diag.autocorrelation(sums))
    # False alarm < 1e-4: they are 1.52 and .08 on average, with an sd of .06 and .04.
    assert of_errors > 1.25
    assert abs(of_errors / inflation - 1) < 0.25
    parts = [sums._replace(**{f: x[k:][::2] for f, x in sums._asdict().items()}) for k in (0, 1)]
    pooled = sum(diag.autocorrelation(part) for part in parts)
    assert diag.batch_inflation(pooled) == pytest.approx(inflation, rel=1e-10)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_independent_batches_hardly_raise_the_error(seed):
    s = 0.3 * np.random.default_rng(seed).normal(size=(1000, 4, 200))
    sums = batch_sums(s, 50)
    # False alarm < 1e-4: correlations count from 2 of their standard errors, or 1.02, on.
    assert diag.batch_inflation(diag.autocorrelation(sums)) < 1.1
    ended = LogSums(*(np.where(np.arange(4) < 2, x, 0 * x) for x in sums))
    some = LogSums(
        *(np.where(np.arange(1000)[:, None, None] < 500, a, b) for a, b in zip(sums, ended))
    )
    assert diag.batch_inflation(diag.autocorrelation(some)) < 1.15


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_one_fold_raises_no_others_error(seed):
    """Whose chains disagree, or whose score varies more: correlations are pooled, not sizes."""
    s = ar1(np.random.default_rng(seed), 0.5, (500, 8, 200), 0.3)
    s[0, 0] += 2
    s[1] *= 5
    # False alarm < 1e-4: 1.03 on average, and 1.09 in one of 10,000 runs.
    assert diag.batch_inflation(diag.autocorrelation(batch_sums(s, 50))) < 1.15


def joint_draws(seed, shape=(3, 4, 40)):
    rng = np.random.default_rng(seed)
    return rng.normal(-20, 1, (shape[0], 1, 1)) + ar1(rng, 0.5, shape)


def pointwise_draws(seed, padded=True):
    """Three folds of three slots that share draws; the last slot of fold 1 is padding."""
    rng = np.random.default_rng(seed)
    draws = rng.normal(-3, 1, (3, 1, 1, 3)) + ar1(rng, 0.5, (3, 4, 40))[..., None]
    draws = draws + rng.normal(0, 0.3, draws.shape)
    if padded:
        draws[1, ..., 2] = np.nan
    return draws


def batch_means(draws, batch_size):
    """Means of exp(s) over the batches of one fold: (chain, draw) to (chain × batch)."""
    return np.exp(draws).reshape(-1, batch_size).mean(axis=1)


def mcse_of_draws(draws, batch_size):
    """PCV eq. 13–15 for one fold, term by term."""
    num_chains, num_draws = draws.shape
    f = np.exp(draws).mean()
    total = sum((g - f) ** 2 for g in batch_means(draws, batch_size))
    sigma2 = batch_size / (num_chains * (num_draws // batch_size) - 1) * total
    return np.sqrt(sigma2 / (num_chains * num_draws * f**2))


def ess_of_draws(draws, batch_size):
    sigma2 = (mcse_of_draws(draws, batch_size) * np.exp(draws).mean()) ** 2 * draws.size
    return draws.size * np.exp(draws).var(ddof=1) / sigma2


def rhat_of_draws(draws):
    """PCV eq. 16 for one fold."""
    n = draws.shape[1]
    within = draws.var(axis=1, ddof=1).mean()
    between = n * draws.mean(axis=1).var(ddof=1)
    return np.sqrt(((n - 1) / n * within + between / n) / within)


# Sums


@pytest.mark.parametrize("batch_size", [1, 4, 10, 40])
def test_batch_sums_sum_consecutive_draws(batch_size):
    draws = joint_draws(1)
    sums = batch_sums(draws, batch_size)
    for index in np.ndindex(3, 4, 40 // batch_size):
        *chain, h = index
        s = draws[tuple(chain)][h * batch_size : (h + 1) * batch_size]
        expected = (
            s.size,
            s.mean(),
            ((s - s.mean()) ** 2).sum(),
            np.log(np.exp(s).sum()),
            np.log(np.exp(2 * s).sum()),
        )
        np.testing.assert_allclose([x[index] for x in sums], expected, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("batch_size", [1, 4, 10])
def test_merging_gives_the_same_in_any_order(batch_size):
    for draws in (joint_draws(2), pointwise_draws(2)):
        sums = batch_sums(draws, batch_size)
        rng = np.random.default_rng(0)
        shuffled = LogSums(*(x[:, rng.permutation(4)] for x in sums))
        order = rng.permutation(40 // batch_size)
        shuffled = LogSums(*(x[:, :, order] for x in shuffled))
        expected = batch_sums(draws.reshape(3, 1, 160, *draws.shape[3:]), 160)
        for merged in (
            diag.merge(sums, (1, 2)),
            diag.merge(diag.merge(sums, 2), 1),
            diag.merge(diag.merge(sums, 1), 1),
            diag.merge(diag.coarsen(sums, 3), (1, 2)),
            diag.merge(shuffled, (1, 2)),
        ):
            for x, y in zip(merged, expected):
                np.testing.assert_allclose(x, y[:, 0, 0], rtol=1e-12)


def test_coarsened_sums_are_those_of_longer_batches():
    draws = pointwise_draws(3)
    for x, y in zip(diag.coarsen(batch_sums(draws, 4), 5), batch_sums(draws, 8)):
        np.testing.assert_allclose(x, y, rtol=1e-12)


def test_coarsening_cuts_what_does_not_divide_as_evenly_as_it_can():
    blocks = diag.coarsen(batch_sums(joint_draws(3), 4), 4)
    assert set(blocks.count.ravel()) == {8, 12}
    assert (blocks.count.sum(axis=2) == 40).all()


def test_fewer_batches_than_blocks_leave_blocks_empty():
    blocks = diag.coarsen(batch_sums(joint_draws(3), 20), 5)
    assert (blocks.count == [20, 20, 0, 0, 0]).all()
    assert diag.rhat(blocks) == pytest.approx(diag.rhat(batch_sums(joint_draws(3), 20)))


# Estimates


@pytest.mark.parametrize("batch_size", [1, 2, 5, 20])
def test_joint_formulas_on_stored_draws(batch_size):
    draws = joint_draws(4)
    sums = batch_sums(draws, batch_size)
    for k, s in enumerate(draws):
        assert diag.elpd(sums)[k] == pytest.approx(np.log(np.exp(s).mean()), rel=1e-12)
        assert diag.mcse(sums)[k] == pytest.approx(mcse_of_draws(s, batch_size), rel=1e-10)
        assert diag.ess(sums)[k] == pytest.approx(ess_of_draws(s, batch_size), rel=1e-10)
        assert diag.rhat(sums)[k] == pytest.approx(rhat_of_draws(s), rel=1e-12)


@pytest.mark.parametrize("batch_size", [1, 2, 5, 20])
def test_pointwise_formulas_on_stored_draws(batch_size):
    draws = pointwise_draws(5)
    sums = batch_sums(draws, batch_size)
    for k, slots in enumerate((3, 2, 3)):
        unit_means = []
        for i in range(slots):
            s = draws[k, ..., i]
            assert diag.elpd(sums)[k, i] == pytest.approx(np.log(np.exp(s).mean()), rel=1e-12)
            assert diag.mcse(sums)[k, i] == pytest.approx(mcse_of_draws(s, batch_size), rel=1e-10)
            assert diag.ess(sums)[k, i] == pytest.approx(ess_of_draws(s, batch_size), rel=1e-10)
            assert diag.rhat(sums)[k, i] == pytest.approx(rhat_of_draws(s), rel=1e-12)
            unit_means.append(batch_means(s, batch_size) / np.exp(s).mean())
        summed = np.sum(unit_means, axis=0)
        expected = np.sqrt(summed.var(ddof=1) / summed.size)
        assert diag.mcse_pointwise(sums)[k] == pytest.approx(expected, rel=1e-10)
        total = np.log(np.exp(draws[k, ..., :slots]).mean(axis=(0, 1))).sum()
        assert diag.elpd_pointwise(sums)[k] == pytest.approx(total, rel=1e-12)
    for estimate in (diag.elpd, diag.mcse, diag.ess, diag.rhat):
        assert np.isnan(estimate(sums)[1, 2])


def test_count_may_have_a_slot_axis():
    sums = batch_sums(pointwise_draws(5), 5)
    wide = sums._replace(count=np.repeat(sums.count[..., None], 3, axis=3))
    functions = (diag.elpd, diag.mcse, diag.ess, diag.rhat)
    for f in (*functions, diag.mcse_pointwise, diag.elpd_pointwise):
        np.testing.assert_allclose(f(wide), f(sums), rtol=1e-13)
    for x, y in zip(diag.coarsen(wide, 3)[1:], diag.coarsen(sums, 3)[1:]):
        np.testing.assert_array_equal(x, y)


def test_folds_of_different_lengths_are_as_if_alone():
    lengths = (40, 20, 30)
    for draws in (joint_draws(6), pointwise_draws(6)):
        for ended in (0.0, np.nan):  # whatever the sums hold where there was no draw
            sums = LogSums(*(x.copy() for x in batch_sums(draws, 5)))
            for k, n in enumerate(lengths):
                sums.count[k, :, n // 5 :] = 0
                for x in sums[1:]:
                    x[k, :, n // 5 :] = ended
            functions = [diag.elpd, diag.mcse, diag.ess, diag.rhat]
            if draws.ndim == 4:
                functions += [diag.elpd_pointwise, diag.mcse_pointwise]
            for k, n in enumerate(lengths):
                alone = batch_sums(draws[k : k + 1, :, :n], 5)
                for f in functions:
                    np.testing.assert_allclose(f(sums)[k], f(alone)[0], rtol=1e-11)
                for x, y in zip(diag.coarsen(sums, 3), diag.coarsen(alone, 3)):
                    np.testing.assert_allclose(x[k], y[0], rtol=1e-11)
            late = diag.progressive(sums, [8])
            early = diag.progressive(sums, [4])
            np.testing.assert_allclose(late.mcse[1], early.mcse[1], rtol=1e-11)


def test_benchmark_takes_each_folds_own_length():
    draws = joint_draws(6, (2, 4, 200))
    draws[1] += 2.0 * np.arange(4)[:, None]  # whose R-hat is the larger one in all replicates
    sums = batch_sums(draws, 20)
    sums.count[1, :, 2:] = 0  # fewer batches than blocks
    benchmark = diag.rhat_max_benchmark(np.random.default_rng(0), sums)
    short = diag.rhat_max_benchmark(np.random.default_rng(1), batch_sums(draws[1:, :, :40], 20))
    assert benchmark.observed == pytest.approx(max(diag.rhat(sums)))
    assert np.isfinite(benchmark.replicates).all()
    assert ks_2samp(benchmark.replicates, short.replicates).pvalue > RATE


def test_nothing_is_lost_far_from_zero():
    draws = joint_draws(7)
    near, far = batch_sums(draws, 5), batch_sums(draws - 5000, 5)  # exp(−5000) is 0
    np.testing.assert_allclose(diag.elpd(far) + 5000, diag.elpd(near), rtol=1e-11)
    for f in (diag.mcse, diag.ess, diag.rhat):
        np.testing.assert_allclose(f(far), f(near), rtol=1e-9)


def test_too_few_draws_are_nan():
    one_batch = batch_sums(joint_draws(8, (1, 1, 20)), 20)
    assert np.isnan([diag.mcse(one_batch), diag.ess(one_batch), diag.rhat(one_batch)]).all()
    assert np.isfinite(diag.elpd(one_batch)).all()
    none = LogSums(*(np.zeros_like(x) for x in one_batch))
    for f in (diag.elpd, diag.mcse, diag.ess, diag.rhat):
        assert np.isnan(f(none)).all()


def test_non_finite_scores():
    draws = joint_draws(9)
    draws[0, 1, 3] = -np.inf  # density 0 at one draw
    draws[1] = -np.inf
    draws[2, 0, 0] = np.nan
    sums = batch_sums(draws, 5)
    expected = np.log(np.exp(draws[0]).mean())
    np.testing.assert_allclose(diag.elpd(sums), [expected, -np.inf, np.nan])
    assert np.isfinite(diag.mcse(sums)).tolist() == [True, False, False]
    assert np.isnan(diag.rhat(sums)).all()


def test_progressive_estimates_are_those_of_the_first_batches():
    points, assert_close = [1, 3, 8], np.testing.assert_allclose
    draws = joint_draws(10)
    curves = diag.progressive(batch_sums(draws, 5), points)
    units = pointwise_draws(10)
    unit_curves = diag.progressive(batch_sums(units, 5), points)
    for j, h in enumerate(points):
        first = batch_sums(draws[:, :, : 5 * h], 5)
        for name in ("elpd", "mcse", "rhat", "ess"):
            assert_close(getattr(curves, name)[:, j], getattr(diag, name)(first), rtol=1e-12)
        first = batch_sums(units[:, :, : 5 * h], 5)
        assert_close(unit_curves.elpd[:, j], diag.elpd_pointwise(first), rtol=1e-12)
        assert_close(unit_curves.mcse[:, j], diag.mcse_pointwise(first), rtol=1e-12)
        assert_close(unit_curves.rhat[:, j], np.nanmax(diag.rhat(first), axis=1), rtol=1e-12)
        assert_close(unit_curves.ess[:, j], np.nanmin(diag.ess(first), axis=1), rtol=1e-12)


def test_total_ess_of_the_first_batches():
    """PCV §4.1 on stored draws: s² over σ², each fold in units of its own mean."""
    draws = joint_draws(11)
    sums = batch_sums(draws, 5)
    for h in (2, 4, 8):
        some = draws[:, :, : 5 * h]
        relative = [np.exp(s).var(ddof=1) / np.exp(s).mean() ** 2 for s in some]
        error = [mcse_of_draws(s, 5) ** 2 for s in some]
        first = diag.first_batches(sums, h)
        found = diag.ess_total(diag.ess(first), diag.mcse(first))
        assert found == pytest.approx(sum(relative) / sum(error), rel=1e-10)


def over_exact(phi, seed, shape=(50, 4, 5000), sizes=(1, 20, 100)):
    """Against the variance of the mean of b draws of an AR(1) process; the median of 50 folds,
    each known within some 6% by its batches and 6% by its windowed ESS, is known within 1.1%, and
    off by up to 1.6%: bounds of 6% have a false-alarm rate < 1e-4."""
    draws = ar1(np.random.default_rng(seed), phi, shape, sd=0.1)
    exact = [np.sqrt(1 - 2 * phi * (1 - phi**b) / (b * (1 - phi**2))) for b in sizes]
    return diag.batch_size_check(draws, sizes) / exact


@pytest.mark.parametrize("phi", [0.5, 0.9])
def test_batch_size_check_on_ar1(phi):
    for seed in SEEDS:
        found = over_exact(phi, seed)
        assert np.abs(found - 1).max() < 4 * 0.015
    exact = np.sqrt(1 - 2 * phi * (1 - phi) / (1 - phi**2))
    assert found[0] * exact == pytest.approx(np.sqrt((1 - phi) / (1 + phi)), rel=0.06)


@pytest.mark.parametrize("phi", [0.5, 0.9])
def test_batch_size_check_without_a_windowed_ess_is_noticed(phi, monkeypatch):
    monkeypatch.setattr(array_stats, "ess", lambda x, **_: np.full(len(x), x[0].size))
    for seed in SEEDS:
        assert np.abs(over_exact(phi, seed) - 1).min() > 4 * 0.015


@pytest.mark.parametrize("phi", [0.5, 0.9])
def test_batch_size_check_counts_draws_that_fill_no_batch(phi):
    for seed in SEEDS:
        (found,) = over_exact(phi, seed, (50, 60, 599), (200,))
        assert abs(found - 1) < 4 * 0.015
        twin = found / np.sqrt(400 / 599)  # the error of two batches taken for that of all draws
        assert abs(twin - 1) > 4 * 0.015


def test_batch_size_check_of_fewer_than_two_batches():
    assert np.isnan(diag.batch_size_check(joint_draws(1), [21])).all()


# Against ArviZ


@pytest.mark.parametrize("seed", SEEDS)
def test_rhat_is_arviz_unsplit_rhat(seed):
    draws = joint_draws(seed, (5, 4, 100))
    draws[2, 1] += 1
    ours = diag.rhat(batch_sums(draws, 20))
    identity, split = (array_stats.rhat(draws, method=m) for m in ("identity", "split"))
    np.testing.assert_allclose(ours, identity, rtol=1e-12)
    assert (np.abs(ours - split) > 1e-4).any()


@pytest.mark.parametrize("phi", [0.0, 0.5, 0.9])
def test_ess_of_ar1(phi):
    # 320 batches: a relative standard deviation of √(2/319) = 8% in each of 20 folds, and a mean
    # of 319/317. Batches b long miss correlation across their ends: 2φ/(1 − φ²)/b of the variance,
    # 4.7% for φ = .9.
    draws = ar1(np.random.default_rng(1), phi, (20, 8, 8000), sd=0.1)
    ess = diag.ess(batch_sums(draws, 200))
    exact = 64000 * (1 - phi) / (1 + phi)
    arviz = np.array([array_stats.ess(np.exp(s), method="mean") for s in draws])
    expected = (1 + 2 * phi / (1 - phi**2) / 200) * 319 / 317
    assert ess.mean() / exact == pytest.approx(expected, abs=z_limit() * 0.018)
    assert np.abs(np.log(ess / arviz)).max() < z_limit(20) * 0.08 + 0.047


# Calibration: z-scores of 1,000 replications, the folds of one array. Their sd is known within
# 2.5%, and t errors and short batches make it up to 5% too large: false alarm < 1e-4.


def z_scores(estimate, exact, error):
    return ((estimate - exact) / error).std()


@pytest.mark.parametrize("seed", SEEDS)
def test_mcse_is_calibrated(seed):
    rng = np.random.default_rng(seed)
    sums = batch_sums(ar1(rng, 0.5, (1000, 8, 200), sd=0.5), 20)
    exact = 0.5**2 / 2
    assert 0.8 < z_scores(diag.elpd(sums), exact, diag.mcse(sums)) < 1.2
    whole = diag.merge(sums, (1, 2))  # broken twin: draws taken as independent
    naive = np.sqrt((np.exp(whole.log_sum_sq - 2 * diag.elpd(sums)) / 1600 - 1) / 1600)
    assert z_scores(diag.elpd(sums), exact, naive) > 1.2


@pytest.mark.parametrize("seed", SEEDS)
def test_mcse_sees_chains_that_disagree(seed):
    # Chains keep an offset with the variance of a batch mean: eq. 14 gives √(3/2) = 1.22;
    # deviations from each chain's own mean give √3 = 1.73.
    rng = np.random.default_rng(seed)
    folds, chains, draws, size, sd = 1000, 32, 200, 100, 0.3
    offset = sd**2 * (1 + 0.5) / (1 - 0.5) / size
    s = ar1(rng, 0.5, (folds, chains, draws), sd)
    s += rng.normal(0, np.sqrt(offset), (folds, chains, 1))
    exact = (sd**2 + offset) / 2
    sums = batch_sums(s, size)
    assert 0.8 < z_scores(diag.elpd(sums), exact, diag.mcse(sums)) / np.sqrt(3 / 2) < 1.2

    g = np.exp(s).reshape(folds, chains, draws // size, size).mean(axis=3)
    within = ((g - g.mean(axis=2, keepdims=True)) ** 2).sum(axis=(1, 2))
    num_batches = chains * draws // size
    twin = np.sqrt(within / (num_batches - chains) / num_batches) / g.mean(axis=(1, 2))
    assert z_scores(diag.elpd(sums), exact, twin) / np.sqrt(3 / 2) > 1.2


@pytest.mark.parametrize("seed", SEEDS)
def test_pointwise_mcse_counts_shared_draws(seed):
    rng = np.random.default_rng(seed)
    shared = ar1(rng, 0.5, (1000, 8, 200), sd=0.3)[..., None]
    s = shared + ar1(rng, 0.5, (1000, 5, 8, 200), sd=0.3).transpose(0, 2, 3, 1)
    sums = batch_sums(s, 20)
    total, exact = diag.elpd_pointwise(sums), 5 * 0.3**2
    assert 0.8 < z_scores(total, exact, diag.mcse_pointwise(sums)) < 1.2
    twin = np.sqrt((diag.mcse(sums) ** 2).sum(axis=1))
    assert z_scores(total, exact, twin) > 1.2


# R-hat max and its benchmark


def healthy(rng, phi=0.5, shape=(30, 8, 200)):
    return ar1(rng, phi, shape)


def unflagged(rng, phi=0.5, shape=(30, 8, 200)):
    """Healthy chains that R-hat and drift cannot flag by chance: their halves have a mean of 0."""
    halves = healthy(rng, phi, shape).reshape(*shape[:2], 2, -1)
    return (halves - halves.mean(3, keepdims=True)).reshape(shape)


def shares(benchmark, phi, shape, batch_size):
    """Share above R-hat max in 100 runs whose chains have all mixed."""
    rng = np.random.default_rng(1)
    return np.array(
        [benchmark(rng, batch_sums(healthy(rng, phi, shape), batch_size)) for _ in range(100)]
    )


def free_draw(rng, sums):
    return diag.rhat_max_benchmark(rng, sums, replicates=200).share_above


def kept_position(rng, sums):
    """PCV's algorithm 2, the broken twin: a block keeps its position and redraws its chain."""
    block = diag.coarsen(sums, 5)
    folds, chains, _ = block.count.shape
    source = rng.integers(0, chains, (200, folds, chains, 5))
    index = (np.arange(folds)[:, None, None], source, np.arange(5))
    emulated = LogSums(*(x[index].reshape(-1, chains, 5) for x in block))
    largest = diag.rhat(emulated).reshape(200, folds).max(axis=1)
    return (largest >= diag.rhat(sums).max()).mean()


@pytest.mark.parametrize("phi", [0.0, 0.5, 0.8])
def test_benchmark_rarely_flags_healthy_chains(phi):
    # Nominal rates .01, .05, .5. Seen in 900 runs: .003, .004, .014; .02, .02, .06; .39, .46, .64;
    # limits allow for .02, .07, .36 to .67. (With φ = .9 a block of 40 draws is two
    # autocorrelation times: .07, .23, .93.)
    share = shares(free_draw, phi, (30, 8, 200), 20)
    assert (share <= 0.01).sum() <= count_limits(100, 0.02)[1]
    assert (share <= 0.05).sum() <= count_limits(100, 0.07)[1]
    low, high = count_limits(100, 0.36)[0], count_limits(100, 0.67)[1]
    assert low <= (share <= 0.5).sum() <= high


def test_benchmark_of_two_chains_draws_blocks_freely():
    # Seen in 900 runs at nominal .05: .02 drawn freely, .36 with positions kept.
    most = count_limits(100, 0.03)[1]
    assert (shares(free_draw, 0.5, (30, 2, 500), 50) <= 0.05).sum() <= most
    assert (shares(kept_position, 0.5, (30, 2, 500), 50) <= 0.05).sum() > most


@pytest.mark.parametrize("seed", SEEDS)
def test_benchmark_flags_planted_pathologies(seed):
    rng = np.random.default_rng(seed)
    stuck, shifted = healthy(rng), healthy(rng)
    stuck[7, 2] = 2.5
    shifted[7, 2] += 5
    for draws in (stuck, shifted):
        sums = batch_sums(draws, 20)
        benchmark = diag.rhat_max_benchmark(rng, sums)
        # Not 0: in a run of 1,000 a replicate too has a chain that is stuck throughout.
        assert benchmark.share_above < 0.01
        assert benchmark.observed == diag.rhat(sums)[7] > benchmark.limit


def test_a_chain_stuck_near_the_mean_is_flagged_by_name():
    # The benchmark alone sees about half of the chains that stay at their first draw.
    rng = np.random.default_rng(1)
    for _ in range(20):
        draws = healthy(rng)
        draws[7, 2] = draws[7, 2, 0]
        sums = batch_sums(draws, 20)
        benchmark = diag.rhat_max_benchmark(rng, sums, replicates=200)
        verdict = verdicts.faults(sums, np.zeros(30), np.zeros(30), benchmark, "marginal").words()
        assert verdict[7].startswith("chain 2 never moved")


@pytest.mark.parametrize("seed", SEEDS)
def test_one_bad_fold_does_not_hide_another(seed, monkeypatch):
    rng = np.random.default_rng(seed)
    draws = healthy(rng, 0.0)
    draws[3, 1] += 5
    draws[9, 2] += 1
    sums = batch_sums(draws, 20)
    benchmark = diag.rhat_max_benchmark(rng, sums)
    flagged = np.flatnonzero(diag.rhat(sums) > benchmark.limit).tolist()
    assert {3, 9} <= {*flagged}
    assert len(flagged) <= 4  # false alarm < 1e-4: another one in one of 500 runs
    assert diag.rhat(sums)[9] < np.quantile(benchmark.replicates, 0.99)
    whole = diag.rhat_max_benchmark(np.random.default_rng(1), sums)
    monkeypatch.setattr(rhat_max, "KEPT_APART", 3)
    found = diag.rhat_max_benchmark(np.random.default_rng(1), sums)
    np.testing.assert_array_equal(found.replicates, whole.replicates)
    assert (found.limit, found.share_above) == (whole.limit, whole.share_above)


@pytest.mark.parametrize("blocks", [2, 4, 8])
def test_benchmark_of_any_number_of_blocks_and_any_length(blocks):
    """Each replicate is R-hat max of draws whose blocks were drawn anew, here draw by draw."""
    draws = joint_draws(12, (3, 4, 80))
    sums = diag.first_batches(batch_sums(draws, 5), 8)
    found = diag.rhat_max_benchmark(np.random.default_rng(6), sums, blocks, replicates=3)
    cut = draws[:, :, :40].reshape(3, 4 * blocks, 40 // blocks)
    drawn = (np.random.default_rng(6).random((3, 3, 4, blocks)) * 4 * blocks).astype(int)
    for r, by_fold in enumerate(drawn):
        emulated = [cut[k][chosen].reshape(4, 40) for k, chosen in enumerate(by_fold)]
        expected = max(rhat_of_draws(x) for x in emulated)
        assert found.replicates[r] == pytest.approx(expected, rel=1e-10)
    assert found.observed == pytest.approx(max(map(rhat_of_draws, draws[:, :, :40])), rel=1e-10)


def test_benchmark_is_reproducible_and_leaves_out_undefined_folds():
    draws = healthy(np.random.default_rng(1), shape=(4, 4, 100))
    draws[2] = -1.0
    sums = batch_sums(draws, 20)
    first, again = (diag.rhat_max_benchmark(np.random.default_rng(5), sums) for _ in range(2))
    np.testing.assert_array_equal(first.replicates, again.replicates)
    assert first.observed == np.nanmax(diag.rhat(sums))
    constant = diag.rhat_max_benchmark(np.random.default_rng(5), batch_sums(draws[2:3], 20))
    assert np.isnan([constant.observed, constant.share_above]).all()


def test_rhat_of_chains_that_never_moved():
    draws = np.zeros((2, 4, 60))
    draws[1] += 0.1 * np.arange(4)[:, None]
    np.testing.assert_array_equal(diag.rhat(batch_sums(draws, 20)), [np.nan, np.inf])
    assert (diag.merge(batch_sums(draws, 20), 2).m2 == 0).all()


# k-hat


@pytest.mark.parametrize("num_draws", [25, 200, 400])
def test_khat_is_that_of_arviz(num_draws):
    draws = np.random.default_rng(num_draws).normal(0, 1.5, (6, 4, num_draws))
    expected = array_stats.psislw(-draws, axis=(1, 2))[1]
    np.testing.assert_allclose(diag.pareto_khat(draws), expected, atol=1e-10)


@pytest.mark.parametrize("num_draws", [25, 200, 400])
def test_khat_of_the_tail_is_that_of_all_draws(num_draws):
    rng = np.random.default_rng(num_draws)
    draws = rng.normal(0, 1.5, (6, 4, num_draws))
    ordered = np.sort(draws.reshape(6, -1))
    size = diag.tail_size(4 * num_draws)
    khat = diag.pareto_khat(draws)
    for more in (1, 7):
        top = rng.permuted(ordered[:, -size - more :], axis=1)
        np.testing.assert_allclose(diag.pareto_khat_from_tail(top, 4 * num_draws), khat, atol=1e-10)
    too_few = diag.pareto_khat_from_tail(ordered[:, -size:], 4 * num_draws)
    assert (np.abs(too_few - khat) > 1e-10).all()


@pytest.mark.parametrize("k", [0.3, 0.7, 1.2])
def test_khat_recovers_a_pareto_tail(k):
    # exp(s) is Pareto with shape k; the fit's prior weighs 10 draws at .5 against M.
    draws = np.random.default_rng(1).exponential(k, (200, 4, 1000))
    size = diag.tail_size(4000)
    expected = (size * k + 10 * 0.5) / (size + 10)
    khat = diag.pareto_khat(draws)
    size_of_error = z_limit() * khat.std() / np.sqrt(200)
    assert khat.mean() == pytest.approx(expected, abs=size_of_error + 0.02)
    assert ((khat > diag.good_k(4000)).mean() > 0.95) == (k == 1.2)


def test_khat_of_draws_that_are_read_part_by_part(tmp_path, monkeypatch):
    draws = np.random.default_rng(1).normal(0, 1.5, (3, 4, 400))
    draws[1, :, 100:] = np.nan
    draws[2, 2, 399] = np.nan
    made = np.array([1600, 400, 1600])
    xr.Dataset({"s": (("fold", "chain", "draw"), draws)}).to_zarr(
        tmp_path / "s.zarr", consolidated=False
    )
    expected = diag.pareto_khat(draws, made)
    read = []
    monkeypatch.setattr(tails, "PART", 12 * 70)
    monkeypatch.setattr(tails, "largest", lambda *x: [read.append(x[1].shape), diag.largest(*x)][1])
    stored = xr.open_dataset(tmp_path / "s.zarr", engine="zarr", consolidated=False)
    found = diag.pareto_khat(stored["s"], made)
    np.testing.assert_array_equal(found, expected)
    assert np.isfinite(found).tolist() == [True, True, False]
    assert read == [*[(3, 4, 70)] * 5, (3, 4, 50)]


def test_khat_of_folds_of_different_lengths():
    draws = np.random.default_rng(1).normal(0, 1.5, (2, 4, 400))
    draws[1, :, 100:] = np.nan
    khat = diag.pareto_khat(draws, np.array([1600, 400]))
    np.testing.assert_array_equal(khat[1:], diag.pareto_khat(draws[1:, :, :100]))
    top = np.sort(np.where(np.isnan(draws), -np.inf, draws).reshape(2, -1))[:, -150:]
    np.testing.assert_array_equal(diag.pareto_khat_from_tail(top, np.array([1600, 400])), khat)


def test_khat_of_a_fold_with_an_unknown_score():
    draws = np.random.default_rng(1).normal(size=(2, 4, 100))
    draws[1, 2, 50] = np.nan
    top = np.sort(draws.reshape(2, -1))[:, -70:]
    for khat in (diag.pareto_khat(draws), diag.pareto_khat_from_tail(top, 400)):
        np.testing.assert_array_equal(np.isnan(khat), [False, True])


def test_khat_where_there_is_none():
    few = np.random.default_rng(1).normal(size=(1, 4, 6))
    assert np.isnan(diag.pareto_khat(few)).all()
    assert np.isnan(diag.pareto_khat(np.zeros((1, 4, 100)))).all()
    mostly_zero = np.full((1, 4, 100), -np.inf)
    mostly_zero[0, 0, :30] = 0.0
    assert np.isnan(diag.pareto_khat(mostly_zero)).all()


def test_good_k():
    np.testing.assert_allclose(diag.good_k(np.array([100, 1600, 10**6])), [0.5, 0.68790182, 0.7])


# Verdicts


def verdict_of(draws, predictive="marginal", khat=0.0, divergences=0):
    sums = batch_sums(draws, 20)
    benchmark = diag.rhat_max_benchmark(np.random.default_rng(1), sums)
    n = len(draws)
    return verdicts.faults(
        sums, np.full(n, khat), np.full(n, divergences), benchmark, predictive
    ).words()


def test_healthy_folds_are_ok():
    draws = unflagged(np.random.default_rng(3))
    assert (verdict_of(draws, khat=0.68, divergences=16) == "ok").all()


def test_each_reason_is_named_with_a_remedy():
    rng = np.random.default_rng(2)
    draws = unflagged(rng, shape=(30, 4, 200))
    draws[0, 0] += 2
    draws[1, [0, 2]] = 0.3
    draws[2] = np.nan
    draws[3, 1, 5] = -np.inf
    draws[4] = -1.5
    draws[7] = np.arange(4.0)[:, None]
    draws[5] = ar1(rng, 0.995, (4, 200))
    words = verdict_of(draws)
    assert words[0].startswith("R-hat 1.")
    assert "chains disagree; longer warmup" in words[0]
    assert words[1].startswith("chains 0, 2 never moved: longer warmup, or a smaller step size")
    assert words[2] == "elpd is nan: non-finite score; check log_lik at this fold's units"
    assert words[3].startswith("R-hat undefined: the predictive density is 0 at some draws")
    assert words[4] == "ok"  # exact: it does not depend on the parameters
    assert words[7].startswith("chains 0, 1, 2, 3 never moved: longer warmup")
    assert "too low; more draws" in words[5]
    assert words[6] == "ok"
    assert (words[8:] == "ok").all()


@pytest.mark.parametrize("size", [2, 50])
def test_a_score_that_is_not_finite_hides_no_other_fault(size):
    """Neither that of its chains, and so of its units, nor that of another fold; alone where
    chains have a single batch."""
    draws = np.random.default_rng(8).normal(size=(2, 64, 2 * size))
    draws[0], draws[1, :16] = -np.inf, draws[1, :16] + 3
    sums = batch_sums(draws, 2 * size if size == 2 else size)
    benchmark = diag.mixing_benchmark(np.random.default_rng(1), sums, 4)
    diverged = np.array([0.5 * draws[0].size, 0])
    found = verdicts.faults(sums, np.zeros(2), diverged, benchmark, "plain", 4)
    assert np.isfinite(benchmark.limit)
    assert re.fullmatch(r"\d+ divergences .*", found.chains[0][0])
    assert "elpd is -inf" in found.score[0][0]
    assert "R-hat" in found.chains[1][0]
    units = verdicts.Faults([[]], [[]])
    assert verdicts.of_units(units, found, np.array([0]))[0] == [verdicts.FOLD_FLAGGED]


def test_superchains_judge_each_fold_as_they_judge_the_run():
    """Folds that end after a single batch, and are read alone, among others that go on."""
    draws = np.random.default_rng(9).normal(size=(10, 64, 100))
    draws[0, 20] += 5  # a chain within its superchain
    sums = batch_sums(draws, 50)
    sums.count[:5, :, 1:] = 0
    benchmark = diag.mixing_benchmark(np.random.default_rng(1), sums, 4)
    some = LogSums(*(x[:5] for x in sums))
    found = verdicts.faults(some, np.zeros(5), np.zeros(5), benchmark, "plain", 4, among=10)
    assert found.chains[0][0].startswith("R-hat ")


def test_a_run_of_scores_without_parameters_is_ok():
    sums = batch_sums(np.full((3, 4, 100), -0.7), 50)
    benchmark = diag.mixing_benchmark(np.random.default_rng(1), sums, 0)
    words = verdicts.faults(sums, np.zeros(3), np.zeros(3), benchmark, "plain").words()
    assert words.tolist() == ["ok"] * 3
    assert run_verdict(list("abc"), words, benchmark) == "ok"
    assert finished(sums, Rule(np.full(3, 0.1), 1.05)).all()
    one = batch_sums(np.full((3, 1, 100), -0.7), 50)
    words = verdicts.faults(one, np.zeros(3), np.zeros(3), benchmark, "plain").words()
    assert all("never moved" in x for x in words)


@pytest.mark.parametrize(
    ("chains", "num_draws", "batch", "shift"),
    [(4, 100, 50, 50.0), (2, 100, 50, 50.0), (8, 100, 50, 5.0), (2, 20, 10, 5.0)],
)
def test_few_blocks_do_not_excuse_chains_that_are_far_apart(chains, num_draws, batch, shift):
    """The benchmark itself is blind there: its replicates draw from few blocks."""
    for seed in range(10):
        draws = np.random.default_rng(seed).normal(size=(10, chains, num_draws))
        draws[3, 0] += shift
        sums = batch_sums(draws, batch)
        benchmark = diag.rhat_max_benchmark(np.random.default_rng(seed), sums)
        words = verdicts.faults(sums, np.zeros(10), np.zeros(10), benchmark, "marginal").words()
        assert words[3].startswith("R-hat ")


def test_benchmark_at_the_default_length():
    """30 folds, 8 chains, 200 draws in batches of 50: rarely wrong, and not blind."""
    shares = {0.0: [], 0.5: [], 1.0: []}
    for shift, found in shares.items():
        for seed in range(60):
            draws = np.random.default_rng(seed).normal(size=(30, 8, 200))
            draws[7, 2] += shift
            rng = np.random.default_rng(seed)
            found.append(diag.rhat_max_benchmark(rng, batch_sums(draws, 50)).share_above)
    # Seen in 400 runs: .013 at nominal .05, a median of .6; in 150: .77 and 1.
    assert np.sum(np.array(shares[0.0]) <= 0.05) <= count_limits(60, 0.03)[1]
    # False alarm < 1e-4: of unshifted runs one in ten is below .2; of those shifted by 1, none of
    # 1,000 is above .01.
    assert np.median(shares[0.0]) > 0.2
    assert np.sum(np.array(shares[0.5]) <= 0.01) >= count_limits(60, 0.7)[0]
    assert np.mean(np.array(shares[1.0]) <= 0.01) > 0.9


def test_ess_of_the_sum_weighs_folds_by_their_error():
    rng = np.random.default_rng(4)
    draws = rng.normal(size=(3, 4, 4000)) * np.array([0.1, 0.5, 1.0])[:, None, None]
    slow = draws[2].repeat(8, axis=1)[:, :4000]  # an eighth of the draws are new
    draws[2] = slow
    sums = batch_sums(draws, 20)
    f = np.exp(draws)
    own = f.var((1, 2)) / f.mean((1, 2)) ** 2
    expected = own.sum() / (diag.mcse(sums) ** 2).sum()
    ess, mcse = diag.ess(sums), diag.mcse(sums)
    assert diag.ess_total(ess, mcse) == pytest.approx(expected, rel=1e-3)
    # False alarm < 1e-4: 800 batches, so the sd is 5%.
    assert diag.ess_total(ess[:2], mcse[:2]) == pytest.approx(16000, rel=0.25)
    assert ess[2] < diag.ess_total(ess, mcse) < ess[0]
    still = batch_sums(np.zeros((2, 4, 100)), 20)
    assert np.isnan(diag.ess_total(diag.ess(still), diag.mcse(still)))
    some = np.append(ess, np.nan), np.append(mcse, 0.0)
    assert diag.ess_total(*some) == diag.ess_total(ess, mcse)


def test_heavy_tail_and_divergences():
    draws = unflagged(np.random.default_rng(3))
    heavy = "k-hat 0.90: heavy-tailed predictive density, so the MCSE is only a lower bound; "
    plain, marginal = (verdict_of(draws, p, khat=0.9)[0] for p in ("plain", "marginal"))
    more = "more draws, smaller test sets"
    way_out = "where a test set has effects of its own, the marginal predictive"
    assert plain == f"{heavy}{more} or, {way_out}"
    assert marginal == f"{heavy}{more}, or a model that predicts them better"
    assert "more draws" not in verdict_of(draws, khat=1.3)[0]
    assert verdict_of(draws, divergences=17)[0] == (
        "17 divergences (1.1% of draws): higher target_accept, or reparameterise"
    )
    both = verdict_of(draws, khat=1.3, divergences=40)[0]
    assert both.startswith("40 divergences (2.5% of draws): ")
    assert "; k-hat 1.30: " in both


def test_chains_that_disagree_with_few_draws_are_not_ok_whatever_the_benchmark():
    """Blocks of chains that mix as slowly as these explain any R-hat: the draws are too few."""
    explained = Benchmark(1.5, np.array([1.5]), 1.0, 1.5)

    def said(draws):
        sums = batch_sums(draws, 50)
        words = verdicts.faults(sums, np.zeros(20), np.zeros(20), explained, "plain").words()
        return diag.rhat(sums), diag.ess(sums), words

    draws = 0.3 * unflagged(np.random.default_rng(2), 0.0, (20, 8, 200))
    draws[:10] += 0.2 * np.linspace(-1, 1, 8)[:, None]  # R-hat 1.1
    rhat, ess, words = said(draws)
    few = (rhat > 1.05) & (ess < 400)
    assert few.sum() == 10
    assert ((words != "ok") == few).all()
    first = np.flatnonzero(few)[0]
    assert words[first] == (
        f"R-hat {rhat[first]:.4g} with an ESS of {ess[first]:.0f}: too few effective draws to tell"
        " whether the chains have mixed; more draws"
    )
    # So many chains are short, and many enough.
    rhat, ess, words = said(ar1(np.random.default_rng(2), 0.8, (20, 128, 50)))
    assert (rhat > 1.02).all()  # false alarm < 1e-4: 1.08, with an sd of .01
    assert (ess > 400).all()
    assert (words == "ok").all()


def test_draws_that_lack_the_largest_densities_are_flagged():
    """Normal s with an sd of 2 to 2.5, 1,600 draws: where these happen to hold no large density,
    the estimate is off by more than four MCSEs, and k-hat alone sees nothing."""
    rng, missed, by_khat, number = np.random.default_rng(4), 0, 0, 0
    for sd in np.repeat([2.0, 2.5], 4):
        draws = rng.normal(0, sd, (1000, 8, 200))
        sums = batch_sums(draws, 50)
        off = np.abs(diag.elpd(sums) - sd**2 / 2) > 4 * diag.mcse(sums)
        sums, khat = LogSums(*(x[off] for x in sums)), diag.pareto_khat(draws[off])
        hidden = diag.hidden_variance(sums, diag.third_moments(draws[off], 50))
        by_khat += (~verdicts.heavy_tail(sums, khat)).sum()
        missed += (~verdicts.heavy_tail(sums, khat, hidden)).sum()
        number += off.sum()
    # False alarm < 1e-4: 145 on average, of which .77 and .09, with an sd of 12, .04 and .03.
    assert number > 90
    assert missed < 0.25 * number < by_khat


@pytest.mark.parametrize("sd", [0.3, 1.0])
def test_hidden_variance_of_scores_that_are_near_normal(sd):
    """Two draws in three ways: its formula, near 1 of normal s, near 0 with a long left tail."""
    rng, shape = np.random.default_rng(5), (4, 25_000)
    draws = np.stack([rng.normal(0, sd, shape), -3 * sd * rng.exponential(size=shape)])
    s = draws.reshape(2, -1)
    w = np.exp(s)
    third = ((s - s.mean(1, keepdims=True)) ** 3).mean(1)
    seen = (w**2).mean(1) / w.mean(1) ** 2 - 1
    found = diag.hidden_variance(batch_sums(draws, 50), diag.third_moments(draws, 50))
    np.testing.assert_allclose(found, np.maximum(np.expm1(s.var(1) + third), 0) / seen, rtol=1e-8)
    assert found[0] == pytest.approx(1, abs=0.2)  # false alarm < 1e-4: its sd is .02
    assert found[1] < 0.5


def test_a_heavy_tail_is_seen_in_the_sums_alone():
    """Where no k-hat is known, as of units: the effective number of draws is too small."""
    rng = np.random.default_rng(6)
    draws = unflagged(rng, 0.0, (3, 8, 200)) * [[[0.5]], [[0.8]], [[1.0]]]
    draws[2] = rng.normal(0, 3, (8, 200))
    sums, unknown = batch_sums(draws, 50), np.full(3, np.nan)
    w = np.exp(draws)
    carry = w.sum((1, 2)) ** 2 / (w**2).sum((1, 2))
    np.testing.assert_allclose(verdicts.effective_weights(sums), carry)
    assert verdicts.heavy_tail(sums, unknown).tolist() == [False, False, True]
    benchmark = diag.rhat_max_benchmark(np.random.default_rng(1), sums)
    words = verdicts.faults(sums, unknown, np.zeros(3), benchmark, "plain").words()
    assert words[:2].tolist() == ["ok", "ok"]
    assert f"for the mean of exp(s) is {carry[2]:.0f} of 1600: heavy-tailed predictive" in words[2]


def test_run_verdict():
    fine = Benchmark(1.02, np.array([1.01, 1.03]), 0.5, 1.03)
    apart = Benchmark(1.21, np.array([1.01, 1.03]), 0.0, 1.03)
    names = [f"rat {i}" for i in range(1, 6)]
    assert run_verdict(names, ["ok"] * 5, fine) == "ok"
    assert run_verdict(names, ["ok"] * 4 + ["A"], fine) == "1 of 5 folds is flagged: rat 5 (A)."
    assert run_verdict(names, ["A"] * 5, fine) == (
        "5 of 5 folds are flagged: rat 1 (A), rat 2 (A), rat 3 (A), and 2 more."
    )
    assert run_verdict(names, ["ok"] * 5, apart) == (
        "R-hat max 1.21 is reached by 0.0% of its benchmark: the chains have not mixed;"
        " longer warmup, then more draws."
    )
    nested = run_verdict(names, ["ok"] * 5, apart, superchains=4)
    assert nested.startswith("Nested R-hat max ")
    assert run_verdict(names, ["A"] + ["ok"] * 4, apart).count(". ") == 1


def test_a_reason_is_said_once():
    fine = Benchmark(1.02, np.array([1.01, 1.03]), 0.5, 1.03)
    words = [f"ESS {n}: too low; more draws" for n in (9, 8, 7, 6)] + ["ok"]
    assert run_verdict(list("abcde"), words, fine) == (
        "4 of 5 folds are flagged: a (ESS 9: too low; more draws), b (ESS 8), c (ESS 7), and 1"
        " more."
    )
    folds = ["rat 1", "rat 1", "rat 1", "rat 2", "rat 3"]
    assert run_verdict(list("abcde"), words, fine, of_fold=folds) == (
        "4 of 5 units are flagged: 3 units of rat 1 (ESS 9: too low; more draws), d (ESS 6)."
    )


def test_healthy_runs_are_ok_and_a_shifted_chain_is_not():
    # Seen over 500 runs: six are flagged; the limit allows for twice as many.
    ok = 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        draws = healthy(rng)
        for planted in (False, True):
            draws[4, 1] += 5 * planted
            sums = batch_sums(draws, 20)
            benchmark = diag.rhat_max_benchmark(rng, sums, replicates=200)
            khat, divergences = diag.pareto_khat(draws), np.zeros(30)
            folds = verdicts.faults(sums, khat, divergences, benchmark, "plain").words()
            run = run_verdict([f"rat {k}" for k in range(30)], folds, benchmark)
            if planted:
                assert "rat 4 (R-hat" in run
                assert "have not mixed" in run
            else:
                ok += run == "ok"
    assert ok >= 40 - count_limits(40, 0.025)[1]


def test_benchmark_of_models_is_over_all_of_them():
    rng = np.random.default_rng(1)
    one, two = (batch_sums(healthy(rng, shape=(5, 4, 100)), 20) for _ in range(2))
    a, b = (diag.rhat_max_benchmark(rng, x) for x in (one, two))
    both = diag.benchmark_of_models([a, b])
    assert both.observed == max(a.observed, b.observed)
    np.testing.assert_array_equal(both.replicates, np.maximum(a.replicates, b.replicates))
    assert both.share_above == (both.replicates >= both.observed).mean()


def test_import_is_light():
    modules = "pcv.analysis.diagnostics, pcv.analysis.comparison"
    code = f"import sys, {modules}; print({{'jax', 'arviz_stats'}} & {{*sys.modules}})"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "set()"


# Nested R-hat


def by_hand(draws: np.ndarray, superchains: int) -> np.ndarray:
    """NRHAT eq. 5-8 on stored draws (fold, chain, draw), term by term."""
    found = []
    for fold in draws:
        groups = np.split(fold, superchains)
        means = np.array([group.mean() for group in groups])
        between = ((means - means.mean()) ** 2).sum() / (superchains - 1)
        within = []
        for group in groups:
            chain_means = group.mean(1)
            m, n = group.shape
            b = ((chain_means - chain_means.mean()) ** 2).sum() / (m - 1) if m > 1 else 0.0
            w = np.mean([((x - x.mean()) ** 2).sum() / (n - 1) if n > 1 else 0.0 for x in group])
            within.append(b + w)
        found.append(np.sqrt(1 + between / np.mean(within)))
    return np.array(found)


def own_levels(chains, num_draws):
    rng = np.random.default_rng(1)
    return rng.normal(size=(5, chains, num_draws)) + rng.normal(size=(5, chains, 1))


def off_formula(found, draws, superchains):
    return np.abs(found / by_hand(draws, superchains) - 1)


@pytest.mark.parametrize("num_draws", [1, 2, 3, 4, 60])
@pytest.mark.parametrize(("chains", "superchains"), [(8, 2), (8, 4), (64, 4), (6, 6), (6, 3)])
def test_nested_rhat_is_the_formula(chains, superchains, num_draws):
    draws = own_levels(chains, num_draws)
    for size in {1, num_draws}:
        found = diag.nested_rhat(batch_sums(draws, size), superchains)
        if num_draws == 1 and chains == superchains:
            assert np.isposinf(found).all()  # nothing varies within a superchain
        else:
            assert off_formula(found, draws, superchains).max() < 1e-10


def dealt_in_turn(draws, superchains):
    """The chains of a superchain do not stand together."""
    folds, _, num_draws = draws.shape
    dealt = draws.reshape(folds, superchains, -1, num_draws).swapaxes(1, 2).reshape(draws.shape)
    return diag.nested_rhat(batch_sums(dealt, num_draws), superchains)


def chain_by_chain(draws, superchains):
    return diag.nested_rhat(batch_sums(draws, draws.shape[2]), draws.shape[1])


def without_spread_of_draws(draws, superchains):
    sums = batch_sums(draws, draws.shape[2])
    return diag.nested_rhat(sums._replace(m2=np.zeros_like(sums.m2)), superchains)


@pytest.mark.parametrize("twin", [dealt_in_turn, chain_by_chain, without_spread_of_draws])
@pytest.mark.parametrize("num_draws", [2, 60])
@pytest.mark.parametrize(("chains", "superchains"), [(8, 4), (64, 4)])
def test_another_nested_rhat_is_not_the_formula(chains, superchains, num_draws, twin):
    draws = own_levels(chains, num_draws)
    assert off_formula(twin(draws, superchains), draws, superchains).max() > 1e-4


@pytest.mark.parametrize(("chains", "superchains"), [(8, 2), (64, 4), (6, 6)])
def test_nested_rhat_is_that_of_arviz(chains, superchains):
    rng = np.random.default_rng(2)
    draws = rng.normal(size=(4, chains, 50)) + 0.3 * rng.normal(size=(4, chains, 1))
    ids = np.repeat(np.arange(superchains), chains // superchains)
    expected = [array_stats.rhat_nested(x, superchain_ids=ids, method="identity") for x in draws]
    np.testing.assert_allclose(diag.nested_rhat(batch_sums(draws, 10), superchains), expected)


def test_nested_rhat_of_slots():
    draws = np.random.default_rng(3).normal(size=(2, 8, 20, 3))
    draws[1, ..., 2] = np.nan
    found = diag.nested_rhat(batch_sums(draws, 5), 4)
    np.testing.assert_array_equal(np.isnan(found), [[False] * 3, [False, False, True]])
    for slot in range(3):
        one = diag.nested_rhat(batch_sums(draws[..., slot], 5), 4)
        np.testing.assert_allclose(found[:, slot], one)


def test_of_one_draw_it_is_what_the_theory_says():
    """1 + 1/M, squared, on average over folds (NRHAT corollary 3.3)."""
    draws = np.random.default_rng(4).normal(size=(4000, 64, 1))
    squared = diag.nested_rhat(batch_sums(draws, 1), 4) ** 2 - 1
    # E[F] of an F-distribution with 3 and 60 degrees of freedom, over M
    expected = 60 / 58 / 16
    error = z_limit() * squared.std() / np.sqrt(4000)
    assert squared.mean() == pytest.approx(expected, abs=error)


@pytest.mark.slow
@pytest.mark.parametrize("num_draws", repeated([1, 3, 20]))
def test_nested_benchmark_is_a_test_of_its_level(num_draws):
    shares, power = [], []
    for seed in range(250):
        draws = np.random.default_rng(seed).normal(size=(10, 32, num_draws))
        draws = draws.cumsum(axis=2) / np.sqrt(1 + np.arange(num_draws))  # chains that drift
        rng = np.random.default_rng(seed)
        shares.append(diag.nested_benchmark(rng, batch_sums(draws, 1), 4, 100).share_above)
        if seed < 80:
            draws[3, :8] += 2
            power.append(diag.nested_benchmark(rng, batch_sums(draws, 1), 4, 100).share_above)
    # 6/101: at most 5 of 100 dealings as high as the observed one
    low, high = count_limits(250, 6 / 101)
    assert low <= np.sum(np.array(shares) <= 0.05) <= high
    assert np.mean(shares) == pytest.approx(0.5, abs=z_limit() * np.sqrt(1 / 12 / 250))
    assert np.sum(np.array(power) <= 0.02) >= count_limits(80, 0.7)[0]  # seen: .8 to .95


@pytest.mark.parametrize("num_draws", [1, 2, 20])
def test_superchains_that_disagree_are_flagged(num_draws):
    one_superchain = np.random.default_rng(5).normal(size=(6, 16, num_draws))
    draws = np.tile(one_superchain, (1, 4, 1))  # superchains that cannot differ by chance
    draws[2, 16:32] += 4
    sums = batch_sums(draws, num_draws)
    benchmark = diag.nested_benchmark(np.random.default_rng(1), sums, 4)
    words = verdicts.faults(sums, np.zeros(6), np.zeros(6), benchmark, "plain", 4).words()
    assert words[2].startswith("Nested R-hat ")
    assert (np.delete(words, 2) == "ok").all()
    assert np.isnan(diag.rhat(sums)).all() == (num_draws == 1)


def one_chain_off(draws):
    draws[0] += 5


def half_in_another_mode(draws):
    draws[::2] += 4


def all_drift(draws):
    draws += np.linspace(-1.5, 1.5, draws.shape[1])


def judged(draws, size, superchains):
    sums = batch_sums(draws, size)
    benchmark = diag.mixing_benchmark(np.random.default_rng(1), sums, superchains)
    nothing = np.zeros(len(draws))
    words = verdicts.faults(sums, nothing, nothing, benchmark, "plain", superchains).words()
    return words, run_verdict(np.arange(len(draws)), words, benchmark, superchains)


@pytest.mark.parametrize("fault", [one_chain_off, half_in_another_mode, all_drift])
@pytest.mark.parametrize("chains", [8, 32, 64, 256])
def test_more_chains_see_no_less(chains, fault):
    """Faults that do not follow superchains, by the default number of them."""
    draws = np.random.default_rng(chains).normal(size=(10, chains, 200))
    fault(draws[3])
    words, run = judged(0.6 * draws, 50, CvConfig(chains=chains).num_superchains)
    # False alarm < 1e-4: their R-hat is 1.04 or more, limits are below 1.02, and halves are ten
    # standard errors apart. That of a sound fold is flagged in 2% of runs.
    assert words[3] != "ok"
    assert ("halves" if fault is all_drift else "R-hat") in words[3]
    assert (np.delete(words, 3) == "ok").sum() >= 7
    assert "flagged" in run


def test_starts_that_are_not_forgotten_are_seen_beside_rhat():
    """By .15 standard deviations, an error of half a chain."""
    draws = np.random.default_rng(2).normal(size=(10, 64, 200))
    draws[3] += 0.15 * np.repeat([1, -1], 32)[:, None]
    chains = judged(0.6 * draws, 50, 0)[0]
    words, run = judged(0.6 * draws, 50, 8)
    assert "R-hat" in chains[3] or words[3].startswith("Nested R-hat ")
    assert "Nested R-hat max" in run


def test_many_chains_with_correlated_batches_are_not_flagged():
    """A correlation of .1 between batches, which 256 chains tell from none."""
    runs = []
    for seed in range(10):
        draws = ar1(np.random.default_rng(seed), 0.4, (10, 256, 24), 0.6)
        runs.append(judged(draws, 6, 32)[1])
    assert np.sum(np.array(runs) != "ok") <= count_limits(10, 0.04)[1]


def test_superchains_in_which_nothing_varies_are_flagged():
    draws = np.repeat(np.arange(4.0), 16)[None, :, None] + np.zeros((2, 64, 8))
    draws[1] = np.tile(np.random.default_rng(6).normal(size=(16, 8)), (4, 1))
    sums = batch_sums(draws, 8)
    assert np.isinf(diag.nested_rhat(sums, 4)[0])
    benchmark = diag.nested_benchmark(np.random.default_rng(1), sums, 4)
    found = verdicts.faults(sums, np.zeros(2), np.zeros(2), benchmark, "plain", 4).words()
    assert found[1] == "ok" != found[0]
    assert diag.nested_rhat(sums, 4)[0] > diag.nested_limit(sums, 4, 0.02)[0]


# Drift


def test_drift_is_a_t_test_of_the_batches():
    draws = pointwise_draws(3)
    sums = batch_sums(draws, 5)
    early, late = (x.reshape(3, 4, 4, 5, 3).mean(3) for x in np.split(draws, 2, axis=2))
    early, late = (x.reshape(3, -1, 3) for x in (early, late))
    expected = ttest_ind(early, late, axis=1).pvalue
    np.testing.assert_allclose(diag.drift(sums), expected, rtol=1e-8)
    assert np.isnan(diag.drift(sums)[1, 2])
    shorter = sums._replace(count=sums.count.copy())
    shorter.count[0, :, 4:] = 0
    early, late = (x.reshape(4, 2, 5, 3).mean(2) for x in np.split(draws[0, :, :20], 2, axis=1))
    expected = ttest_ind(early.reshape(-1, 3), late.reshape(-1, 3)).pvalue
    np.testing.assert_allclose(diag.drift(shorter)[0], expected, rtol=1e-8)
    assert np.isnan(diag.drift(batch_sums(draws, 40))).all()


@pytest.mark.parametrize("phi", [0.0, 0.8])
def test_drift_rarely_flags_healthy_chains(phi):
    """Of 5,000 p-values 5 are expected below .001, give or take 2.2 (7, where neighbouring batches
    depend on each other a little, as with φ = .8), and half of them below .5, within .7%."""
    draws = ar1(np.random.default_rng(8), phi, (5000, 8, 200))
    found = diag.drift(batch_sums(draws, 50))
    assert (found < 0.001).sum() <= count_limits(5000, 0.0014 if phi else 0.001)[1]
    assert abs((found < 0.5).mean() - 0.5) < 0.05


def test_chains_that_are_still_on_their_way_are_flagged_together():
    """All chains of a fold move alike, as after too short a warmup: R-hat is near 1."""
    draws = unflagged(np.random.default_rng(3))
    draws[4] += 3 * np.exp(-np.arange(200) / 40)
    sums = batch_sums(draws, 50)
    assert diag.rhat(sums)[4] < 1.02
    words = verdict_of(draws)
    assert words[4].startswith("first and second halves of the chains differ (p = ")
    assert (np.delete(words, 4) == "ok").all()
    assert verdict_of(draws[4:5])[0] != "ok"


def test_the_benchmark_takes_few_folds_at_a_time(monkeypatch):
    """The same, bit by bit, in memory that does not grow with them but for what is kept."""
    sums = batch_sums(np.random.default_rng(1).normal(size=(3000, 4, 20)), batch_size=4)
    blocks = [x[:50] for x in sums[:3]]

    def peak(function, *args):
        tracemalloc.start()
        try:
            made = function(np.random.default_rng(2), *args)
            return made, tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    told = []
    monkeypatch.setattr(rhat_max, "EMULATED", 10**7)
    all_at_once, most = peak(diag.rhat_max_benchmark, sums, 5, 8, Monitor(emit=told.append))
    assert told[-1] == "R-hat max benchmark: 8 replicates"
    monkeypatch.setattr(rhat_max, "EMULATED", 50 * 4 * 5)
    few, least = peak(diag.rhat_max_benchmark, sums, 5, 8)
    for one, other in zip(few, all_at_once):
        np.testing.assert_array_equal(one, other)
    kept = peak(lambda rng: (diag.coarsen(sums, 5), diag.rhat(sums)))[1]
    assert least < kept + 2 * peak(rhat_max._emulated, *blocks, 1)[1]
    assert most > kept + 20 * peak(rhat_max._emulated, *blocks, 1)[1]


def test_integrals_that_disagree_are_flagged():
    draws = unflagged(np.random.default_rng(1), 0.0, (3, 4, 200))
    sums = batch_sums(draws, 20)
    benchmark = diag.rhat_max_benchmark(np.random.default_rng(2), sums)
    gap = np.array([0.21, 0.0, np.nan])
    found = verdicts.faults(
        sums, np.zeros(3), np.zeros(3), benchmark, "marginal", integral_gap=gap
    ).words()
    assert found[0].startswith("two integrals over its groups' effects differ by 0.21 nats at one ")
    assert (found[1:] == "ok").all()


def test_the_list_in_the_documentation_is_that_of_the_verdicts():
    """Each row of docs/mixing.md in order: a fold that it flags, and its limits."""
    text = (Path(__file__).parents[1] / "docs" / "mixing.md").read_text()
    table = text.split("| what | limit | remedy |\n|---|---|---|\n")[1].split("\n\n")[0]
    rows = [row.strip("| ").split(" | ") for row in table.splitlines()]
    reasons = {
        "elpd is not finite": ("elpd is ", ()),
        "a chain never moved": ("chain 2 never moved", (verdicts.MIN_DRAWS,)),
        "R-hat of the joint score": ("R-hat .*: chains disagree", (verdicts.MAX_RHAT,)),
        "R-hat, whatever the benchmark": (
            "R-hat .* with an ESS of ",
            (verdicts.ROUGH_RHAT, verdicts.ENOUGH_ESS),
        ),
        "nested R-hat": ("Nested R-hat", (verdicts.MAX_RHAT,)),
        "superchains still differ": ("superchains still differ", (f"{lasting.BY_CHANCE:.4f}",)),
        "first and second halves": ("first and second halves", (diag.BENCHMARK_LEVEL,)),
        "divergences": (".* divergences", (f"{verdicts.MAX_SHARE_DIVERGENT:.0%}",)),
        "mean acceptance": ("mean acceptance", (verdicts.MIN_ACCEPTANCE,)),
        "E-FMI": ("E-FMI", (verdicts.MIN_EFMI,)),
        "two integrals": ("two integrals", ()),
        "estimates that lean": ("its draws and those of the full data", (diag.BENCHMARK_LEVEL,)),
        "R-hat is undefined": ("R-hat undefined", ()),
        "ESS": ("ESS", (verdicts.MIN_ESS,)),
        "draws that cross": ("15 draws cross .* too few", (verdicts.MIN_CROSSINGS,)),
        "k-hat": ("k-hat 0.90: heavy", (0.7,)),
        "hidden variance": (
            "k-hat 0.50, but the variance",
            (verdicts.LIGHT_KHAT, verdicts.MAX_HIDDEN),
        ),
        "effective number of draws": ("effective number of draws", (verdicts.MIN_WEIGHTS,)),
    }
    rng, names = np.random.default_rng(1), list(reasons)
    number = len(reasons)
    draws = rng.normal(size=(number, 8, 200))
    hidden, khat = np.ones(number), np.zeros(number)
    accepted, efmi, gap = np.ones((2, number)).tolist() + [np.zeros(number)]
    at = names.index
    draws[at("elpd is not finite"), 1, 5] = np.nan
    draws[at("a chain never moved"), 2] = 0.3
    draws[at("R-hat of the joint score"), 0] += 3
    apart = 0.2 * np.linspace(-1, 1, 8)[:, None]  # R-hat 1.1
    draws[at("R-hat, whatever the benchmark")] = apart + 0.3 * unflagged(rng, 0.0, (1, 8, 200))[0]
    draws[at("nested R-hat")] += 0.55 * np.repeat([1, -1], 4)[:, None]
    draws[at("first and second halves")] += np.linspace(-1, 1, 200)
    accepted[at("mean acceptance")] = efmi[at("E-FMI")] = 0.1
    gap[at("two integrals")] = 1.0
    forgot = np.arange(number) != at("superchains still differ")
    draws[at("R-hat is undefined"), 1, 5] = -np.inf
    draws[at("ESS")] = ar1(rng, 0.995, (8, 200))
    khat[at("k-hat")] = 0.9
    khat[at("hidden variance")], hidden[at("hidden variance")] = 0.5, 3.0
    draws[at("effective number of draws")] *= 3
    khat[at("effective number of draws")] = np.nan
    crossings, gap_p = np.full((2, number), np.nan)
    crossings[at("draws that cross")], crossings[at("estimates that lean")] = 15, 500
    gap_p[at("estimates that lean")] = 1e-9
    one_sided = diag.two_sided(batch_sums(draws, 50), None)
    within = Benchmark(1.5, np.array([1.5]), 1.0, 1.5)
    found = verdicts.faults(
        batch_sums(draws, 50),
        khat,
        100.0 * (np.arange(number) == at("divergences")),
        within._replace(nested=within),
        "plain",
        superchains=2,
        acceptance=np.array(accepted),
        efmi=np.array(efmi),
        hidden=hidden,
        integral_gap=gap,
        forgot=forgot,
        both=one_sided._replace(carry=crossings, gap_p=gap_p),
    )
    assert [next(x for x in names if row[0].startswith(x)) for row in rows] == names
    for k, (row, (words, limits)) in enumerate(zip(rows, reasons.values())):
        assert any(re.match(words, x) for x in found.chains[k] + found.score[k]), row
        assert all(str(x).removeprefix("0").removesuffix(".0") in "".join(row) for x in limits), row
    checks = re.findall(r"(?<!class )\bCheck\(", inspect.getsource(verdicts))
    assert len(checks) == number + 1  # that of a k-hat above 1, which more draws do not help
