"""Cross-validation of every problem of the table gives its exact answer, with an honest error."""

from functools import cache, partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from jaxtyping import Float
from scipy.special import log_expit, logsumexp

from pcv.analysis import diagnostics as diag
from pcv.analysis import verdicts
from pcv.analysis.diagnostics import LogSums, batch_sums
from pcv.analysis.run_verdict import run_verdict
from pcv.sampling.folds.moving import Starts
from pcv.sampling.folds.sides import Facing, without_gap
from tests.bounds import count_limits, sd_limits, z_limit
from tests.chains import Sampled, run
from tests.problems import PROBLEMS, coin, kriging, variance
from tests.replications import BATCH_SIZE, BATCHES, REPLICATIONS, Setting, prepare
from tests.slow import repeated

SEEDS = (1, 2, 3)
FULL_DRAWS = 800
ALIKE = ("autoregression", "autoregressions", "normal means")  # with "panel" and "regression"
EACH = repeated([name for name in PROBLEMS if name not in ALIKE], 3)
UNDERSTATED = {"hierarchy, plain": 1.2, "hierarchy, marginal": 1.15, "regression": 1.15}
"""sd of errors in units of their MCSE, at most, if it is not below 1.08: batches of 20 draws are
short where a fold's posterior is much wider than that of all data"""


def understated(name: str) -> float:
    return UNDERSTATED.get(name, 1.08)


@cache
def prepared(name: str) -> Setting:
    return prepare(PROBLEMS[name]())


def sample(setting: Setting, seed: int, full: np.ndarray | None = None) -> Sampled:
    """Draws of all folds; with full-data draws (replication, draw, param), of both sides."""
    _, _, engine, fit, folds, starts, *_ = setting
    side = None if full is None else partial(full_side, setting, full)
    return run(engine, fit, folds, starts, seed, BATCHES, full_side=side)


@cache
def sampled(name: str, seed: int) -> Sampled:
    setting = prepared(name)
    return sample(setting, seed, full_draws(setting, seed))


def full_draws(setting: Setting, seed: int) -> Float[np.ndarray, "replication draw param"]:
    """Exact ones, of every replication its own."""
    draws = setting.problem.posterior(np.random.default_rng(seed), REPLICATIONS * FULL_DRAWS)
    flat = jax.vmap(lambda params: ravel_pytree(params)[0])(draws)
    return np.asarray(flat).reshape(REPLICATIONS, FULL_DRAWS, -1)


def full_side(setting: Setting, draws: np.ndarray, starts: Starts) -> Facing:
    """What `pcv.sampling.folds.sides.facing` makes, but of other draws for each replication."""

    def by_fold(x: np.ndarray) -> np.ndarray:
        of_draws = np.moveaxis(x.reshape(*draws.shape[:2], *x.shape[1:]), 1, 2)
        return of_draws.reshape(len(setting.folds.id), FULL_DRAWS // BATCH_SIZE, BATCH_SIZE, -1)

    scores = setting.scores(draws.reshape(-1, draws.shape[-1]))
    joint, pointwise = (by_fold(np.asarray(x)) for x in scores)
    pilot = joint.reshape(len(joint), -1)[:, ::8]
    shift = diag.balanced_shift(starts.draws.reshape(len(joint), -1), pilot)
    shift = np.where(without_gap(setting.folds), shift, np.inf)
    belongs = log_expit(shift[:, None, None, None] - joint)
    bridge, bridge_sq = (
        logsumexp(power * (pointwise + belongs), axis=2) - np.log(BATCH_SIZE) for power in (1, 2)
    )
    crossings = diag.crossing(joint[..., 0], shift, own=False)
    return Facing(shift, crossings, bridge, bridge_sq, FULL_DRAWS)


def z_scores(setting: Setting, joint: LogSums, pointwise: LogSums) -> dict[str, np.ndarray]:
    """Errors of all estimates in units of their MCSE, replication by replication."""
    present = ~np.isnan(setting.answer.pointwise)

    def by_fold(x: np.ndarray) -> np.ndarray:
        return x.reshape(-1, len(present), *x.shape[1:])

    unit_errors = by_fold(diag.elpd(pointwise)) - setting.answer.pointwise
    found = {"units": (unit_errors / by_fold(diag.mcse(pointwise)))[:, present]}
    summed = diag.elpd_pointwise(pointwise), diag.mcse_pointwise(pointwise)
    for kind, (estimate, mcse), truth in [
        ("joint", (diag.elpd(joint), diag.mcse(joint)), setting.answer.joint),
        ("pointwise", summed, np.nansum(setting.answer.pointwise, axis=1)),
    ]:
        error, mcse = by_fold(estimate) - truth, by_fold(mcse)
        for scheme in np.unique(setting.scheme):
            off, its_mcse = (x[:, setting.scheme == scheme] for x in (error, mcse))
            found[f"{kind}, {scheme}, folds"] = off / its_mcse
            found[f"{kind}, {scheme}, total"] = off.sum(1) / np.sqrt((its_mcse**2).sum(1))
    return found


def worst(setting: Setting, sampled: Sampled) -> dict[str, float]:
    """Largest errors of estimates from the draws of all replications, in units of their MCSE.

    Infinite where an estimate is not a number.
    """

    def pooled(x: np.ndarray) -> np.ndarray:
        by_fold = x.reshape(REPLICATIONS, -1, *x.shape[1:]).swapaxes(0, 1)
        return by_fold.reshape(len(by_fold), -1, *x.shape[2:])

    joint, pointwise = (LogSums(*map(pooled, x)) for x in (sampled.joint, sampled.pointwise))
    z = z_scores(setting, joint, pointwise)
    return {name: float(np.nan_to_num(np.abs(x), nan=np.inf).max()) for name, x in z.items()}


def spreads(setting: Setting, *sums: tuple[LogSums, LogSums]) -> dict[str, float]:
    """Standard deviations of the z-scores over replications: 1 where MCSE is right."""
    found = [z_scores(setting, joint, pointwise) for joint, pointwise in sums]
    return {
        name: float(np.std(np.concatenate([z[name] for z in found]), ddof=1)) for name in found[0]
    }


def limit(setting: Setting, name: str = "") -> float:
    """Of `worst`, for all seeds together."""
    units, folds = (~np.isnan(setting.answer.pointwise)).sum(), len(setting.scheme)
    estimates = units + 2 * (folds + len(np.unique(setting.scheme)))
    return understated(name) * z_limit(len(SEEDS) * estimates)


def spread_limits(name: str, spread: dict[str, float], replications: int) -> tuple[float, float]:
    """Of `spreads`; of t errors, since 40 batches tell an MCSE."""
    low, high = sd_limits(replications, kurtosis=3.2, among=len(spread))
    return low, understated(name) * high


@pytest.mark.parametrize("name", EACH)
def test_estimates_are_exact_within_their_error(name):
    setting = prepared(name)
    for seed in SEEDS:
        assert max(worst(setting, sampled(name, seed)).values()) < limit(setting, name)


@pytest.mark.parametrize("name", EACH)
def test_errors_are_as_large_as_stated(name):
    sums = [(x.joint, x.pointwise) for x in (sampled(name, seed) for seed in (*SEEDS, 4))]
    spread = spreads(prepared(name), *sums)
    low, high = spread_limits(name, spread, 4 * REPLICATIONS)
    assert low < min(spread.values()) < max(spread.values()) < high


@pytest.mark.parametrize("name", repeated(["hierarchy, plain", "hierarchy, marginal", "panel"], 2))
def test_a_held_out_unit_left_in_training_is_noticed(name):
    setting = prepared(name)
    held_out = setting.folds.held_out.copy()
    last = held_out[:, :, 1].argmax(axis=1)
    held_out[np.arange(len(last)), last, 1] -= 1
    leaky = setting._replace(folds=setting.folds._replace(held_out=held_out))
    for seed in SEEDS:
        off = worst(leaky, sample(leaky, seed))
        # 43 at the least, of exact draws
        assert off["units"] > limit(leaky, name)
        assert min(z for kind, z in off.items() if kind.endswith("folds")) > limit(leaky, name)


@pytest.mark.parametrize("problem", repeated([variance, coin]))
def test_a_missing_jacobian_is_noticed(problem):
    broken = prepare(problem(jacobian=False))
    for seed in SEEDS:
        off = worst(broken, sample(broken, seed))
        assert min(off.values()) > limit(broken)  # 12 at the least, of exact draws


def forgetful():
    """A predictive that does not look at the training units."""
    problem = kriging()
    conditional = problem.model.log_predictive

    def log_predictive(params, fold):
        return conditional(params, fold._replace(train=jnp.zeros_like(fold.train)))

    return problem._replace(model=problem.model._replace(log_predictive=log_predictive))


@pytest.mark.slow
def test_a_target_that_errs_is_noticed():
    broken = prepare(forgetful())
    for seed in SEEDS:
        off = worst(broken, sample(broken, seed))
        assert min(off.values()) > limit(broken)  # 25 at the least, of exact draws


class Both(NamedTuple):
    """Of folds with two sides, by replication (replication, fold)."""

    error: np.ndarray
    own: np.ndarray
    """squared error that is due to the fold's draws"""
    full: np.ndarray
    """deviations of batches of full-data draws, (replication, fold, batch)"""
    gap_p: np.ndarray


def both_sides(setting: Setting, found: Sampled) -> dict[str, Both]:
    present = np.tile(~np.isnan(setting.answer.pointwise), (REPLICATIONS, 1))
    joint = diag.two_sided(found.joint, found.sides)
    padded = (np.where(present[:, None, None], x, np.nan) for x in found.pointwise[1:])
    pointwise = LogSums(found.pointwise.count, *padded)
    of_units = found.sides, found.units, present.sum(1) == 1
    units = diag.two_sided_units(pointwise, joint, *of_units)
    inflation = diag.batch_inflation(diag.autocorrelation(found.joint))
    which = np.isfinite(found.sides.shift).reshape(REPLICATIONS, -1)[0]

    def by_fold(x: np.ndarray) -> np.ndarray:
        return x.reshape(REPLICATIONS, len(which), *x.shape[1:])[:, which]

    truth = setting.answer.joint, np.nansum(setting.answer.pointwise, 1)
    estimate = joint.elpd, np.nansum(units.elpd, 1)
    return {
        kind: Both(
            by_fold(x) - exact[which],
            by_fold(inflation * (of.own_deviation**2).sum((1, 2))),
            by_fold(of.full_deviation),
            by_fold(of.gap_p),
        )
        for kind, x, exact, of in zip(("joint", "pointwise"), estimate, truth, (joint, units))
    }


def means_near_0(z: np.ndarray) -> bool:
    """Over replications; logs of means are biased by up to a tenth of their MCSE."""
    error = z.std(axis=0, ddof=1) / np.sqrt(len(z))
    return bool((np.abs(z.mean(axis=0)) < 0.1 + z_limit(error.size, len(z) - 1) * error).all())


@pytest.mark.parametrize("kind", ["joint", "pointwise"])
@pytest.mark.parametrize("name", EACH)
def test_both_sides_are_exact_and_their_errors_as_large_as_stated(name, kind):
    each = [both_sides(prepared(name), sampled(name, seed))[kind] for seed in (*SEEDS, 4)]
    error, own, full, gap_p = (np.concatenate(x) for x in zip(*each))
    z = error / np.sqrt(own + (full**2).sum(2))
    total = error.sum(1) / np.sqrt(own.sum(1) + (full.sum(1) ** 2).sum(1))
    assert means_near_0(z)
    assert means_near_0(total)
    # Folds of a replication share full-data draws: their errors are worth three independent ones.
    # The sd is .96 to 1.06.
    for errors, number in ((z, 3 * len(z)), (total, len(total))):
        low, high = sd_limits(number, kurtosis=3.3)
        assert 0.95 * low < errors.std() < 1.07 * high
    assert (gap_p < 0.01).sum() <= count_limits(gap_p.size, 0.015)[1]


@pytest.mark.parametrize("name", EACH)
def test_both_sides_say_more_than_one(name):
    truth, squares = np.tile(prepared(name).answer.joint, REPLICATIONS), []
    for seed in (*SEEDS, 4):
        found = sampled(name, seed)
        both = np.isfinite(found.sides.shift)
        of = (diag.two_sided(found.joint, x).elpd for x in (found.sides, None))
        squares.append([np.mean((elpd - truth)[both] ** 2) for elpd in of])
    of_two, of_one = np.mean(squares, axis=0)
    assert of_two < 0.85 * of_one  # false alarm < 1e-4: a ratio of .4 to .7, with an sd of .04


def moved(draws: np.ndarray) -> np.ndarray:
    """Draws of another posterior: by half a standard deviation in every direction."""
    return draws + draws.std(axis=(0, 1)) / 2


def wider(draws: np.ndarray) -> np.ndarray:
    center = draws.mean(axis=(0, 1))
    return center + 1.5 * (draws - center)


@pytest.mark.parametrize("broken", [moved, wider])
@pytest.mark.parametrize("name", repeated(["variance", "regression"]))
def test_sides_of_different_targets_are_noticed(name, broken):
    setting = prepared(name)
    found = both_sides(setting, sample(setting, 1, broken(full_draws(setting, 1))))["joint"]
    z = found.error / np.sqrt(found.own + (found.full**2).sum(2))
    off = np.abs(z) > z_limit(z.size)
    seen = found.gap_p < 0.01 / found.gap_p.shape[1]
    # False alarm < 1e-4: .40 and .99 at the least, with an sd of .02 and .005.
    assert off.mean() > 0.3
    assert seen[off].mean() > 0.95


def test_batches_of_one_draw_understate_the_error():
    name = "hierarchy, plain"
    once = [sampled(name, seed) for seed in SEEDS]
    spread = spreads(prepared(name), *((batch_sums(x.draws, 1), x.pointwise) for x in once))
    _, high = spread_limits(name, spread, 4 * REPLICATIONS)
    assert spread["joint, groups, folds"] > high  # 2.1, known within .1
    assert spread["joint, groups, total"] > high  # 2.2, known within .13


@pytest.mark.slow
def test_chains_of_one_fold_kept_apart_are_flagged():
    setting, seed = prepared("regression"), 1
    folds = np.flatnonzero(setting.scheme == "k-fold")
    center = np.asarray(setting.fit.kernel.center)
    apart = setting._replace(starts=center + 3 * (setting.starts - center))
    stuck = apart._replace(fit=apart.fit._replace(step_size=1e-3))
    mixed, kept_apart = sample(apart, seed), sample(stuck, seed)
    right = 0
    for replication in range(6):
        those = folds + replication * len(setting.scheme)
        joint, draws = LogSums(*(x[those] for x in mixed.joint)), mixed.draws[those]
        before = all_verdicts(joint, draws, seed)
        for x, y in [*zip(joint, kept_apart.joint), (draws, kept_apart.draws)]:
            x[2] = y[those[2]]
        of_fold, of_run = all_verdicts(joint, draws, seed)
        assert "chains disagree" in of_fold[2]
        assert "the chains have not mixed" in of_run
        only_that = [words == "ok" for words in of_fold] == [True, True, False, True]
        assert ("1 of 4 folds is flagged: fold 3 (R-hat" in of_run) == only_that
        right += only_that and before == (["ok"] * 4, "ok")
    assert right >= 2  # false alarm < 1e-4: of six, where one in ten is flagged by chance
    spread = spreads(setting, (kept_apart.joint, kept_apart.pointwise))
    assert min(spread.values()) > spread_limits("regression", spread, REPLICATIONS)[1]


def all_verdicts(joint: LogSums, draws: np.ndarray, seed: int) -> tuple[list[str], str]:
    benchmark = diag.rhat_max_benchmark(np.random.default_rng(seed), joint)
    khat, divergences = diag.pareto_khat(draws), np.zeros(len(draws))
    verdict = verdicts.faults(joint, khat, divergences, benchmark, "plain").words()
    names = [f"fold {k + 1}" for k in range(len(draws))]
    return verdict.tolist(), run_verdict(names, verdict, benchmark)
