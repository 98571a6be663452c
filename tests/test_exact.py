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
from pcv.sampling.folds.moving import Starts
from pcv.sampling.folds.sides import Facing, without_gap
from tests.chains import Sampled, run
from tests.problems import PROBLEMS, coin, kriging, variance
from tests.replications import BATCH_SIZE, BATCHES, REPLICATIONS, Setting, prepare

SEEDS = (1, 2, 3)
FULL_DRAWS = 800
MAX_Z = 4.0
"""Monte Carlo standard errors that an estimate may be off"""


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


@pytest.mark.parametrize("name", PROBLEMS)
def test_estimates_are_exact_within_their_error(name):
    for seed in SEEDS:
        assert max(worst(prepared(name), sampled(name, seed)).values()) < MAX_Z


@pytest.mark.parametrize("name", PROBLEMS)
def test_errors_are_as_large_as_stated(name):
    sums = [(x.joint, x.pointwise) for x in (sampled(name, seed) for seed in (*SEEDS, 4))]
    spread = spreads(prepared(name), *sums)
    assert min(spread.values()) > 0.8
    assert max(spread.values()) < 1.2


@pytest.mark.parametrize("name", PROBLEMS)
def test_a_held_out_unit_left_in_training_is_noticed(name):
    setting = prepared(name)
    held_out = setting.folds.held_out.copy()
    last = held_out[:, :, 1].argmax(axis=1)
    held_out[np.arange(len(last)), last, 1] -= 1
    leaky = setting._replace(folds=setting.folds._replace(held_out=held_out))
    for seed in SEEDS:
        off = worst(leaky, sample(leaky, seed))
        assert off["units"] > MAX_Z
        assert min(z for name, z in off.items() if name.endswith("folds")) > MAX_Z


@pytest.mark.parametrize("problem", [variance, coin])
def test_a_missing_jacobian_is_noticed(problem):
    broken = prepare(problem(jacobian=False))
    for seed in SEEDS:
        off = worst(broken, sample(broken, seed))
        assert min(off.values()) > MAX_Z


def forgetful():
    """A predictive that does not look at the training units."""
    problem = kriging()
    conditional = problem.model.log_predictive

    def log_predictive(params, fold):
        return conditional(params, fold._replace(train=jnp.zeros_like(fold.train)))

    return problem._replace(model=problem.model._replace(log_predictive=log_predictive))


@pytest.mark.parametrize("problem", [forgetful, lambda: kriging(noise=0.4)])
def test_a_target_that_errs_is_noticed(problem):
    broken = prepare(problem())
    for seed in SEEDS:
        assert min(worst(broken, sample(broken, seed)).values()) > MAX_Z


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


@pytest.mark.parametrize("kind", ["joint", "pointwise"])
@pytest.mark.parametrize("name", PROBLEMS)
def test_both_sides_are_exact_and_their_errors_as_large_as_stated(name, kind):
    each = [both_sides(prepared(name), sampled(name, seed))[kind] for seed in (*SEEDS, 4)]
    error, own, full, gap_p = (np.concatenate(x) for x in zip(*each))
    z = error / np.sqrt(own + (full**2).sum(2))
    total = error.sum(1) / np.sqrt(own.sum(1) + (full.sum(1) ** 2).sum(1))
    assert np.abs(z.mean(axis=0)).max() < MAX_Z / np.sqrt(len(z))
    assert abs(total.mean()) < MAX_Z / np.sqrt(len(total))
    assert 0.9 < z.std() < 1.1
    assert 0.8 < total.std() < 1.2
    assert (gap_p < 0.01).mean() < 0.03


@pytest.mark.parametrize("name", PROBLEMS)
def test_both_sides_say_more_than_one(name):
    setting, found = prepared(name), sampled(name, 1)
    two, one = diag.two_sided(found.joint, found.sides), diag.two_sided(found.joint, None)
    both = np.isfinite(found.sides.shift)
    truth = np.tile(setting.answer.joint, REPLICATIONS)
    of_two, of_one = (np.mean((x.elpd - truth)[both] ** 2) for x in (two, one))
    assert of_two < 0.85 * of_one


def moved(draws: np.ndarray) -> np.ndarray:
    """Draws of another posterior: by half a standard deviation in every direction."""
    return draws + draws.std(axis=(0, 1)) / 2


def wider(draws: np.ndarray) -> np.ndarray:
    center = draws.mean(axis=(0, 1))
    return center + 1.5 * (draws - center)


@pytest.mark.parametrize("broken", [moved, wider])
@pytest.mark.parametrize("name", ["regression", "variance"])
def test_sides_of_different_targets_are_noticed(name, broken):
    setting = prepared(name)
    found = both_sides(setting, sample(setting, 1, broken(full_draws(setting, 1))))["joint"]
    z = found.error / np.sqrt(found.own + (found.full**2).sum(2))
    off = np.abs(z) > MAX_Z
    seen = found.gap_p < 0.01 / found.gap_p.shape[1]
    assert off.mean() > 0.3
    assert seen[off].mean() > 0.95


def test_batches_of_one_draw_understate_the_error():
    name = "hierarchy, plain"
    once = [sampled(name, seed) for seed in SEEDS]
    spread = spreads(prepared(name), *((batch_sums(x.draws, 1), x.pointwise) for x in once))
    assert spread["joint, groups, folds"] > 1.2
    assert spread["joint, groups, total"] > 1.2


@pytest.mark.parametrize("seed", SEEDS)
def test_chains_of_one_fold_kept_apart_are_flagged(seed):
    setting = prepared("regression")
    folds = np.flatnonzero(setting.scheme == "k-fold")
    center = np.asarray(setting.fit.kernel.center)
    apart = setting._replace(starts=center + 3 * (setting.starts - center))
    stuck = apart._replace(fit=apart.fit._replace(step_size=1e-3))
    mixed, kept_apart = sample(apart, seed), sample(stuck, seed)
    joint, draws = LogSums(*(x[folds] for x in mixed.joint)), mixed.draws[folds]
    assert all_verdicts(joint, draws, seed) == (["ok"] * 4, "ok")

    for x, y in [*zip(joint, kept_apart.joint), (draws, kept_apart.draws)]:
        x[2] = y[folds[2]]
    of_fold, of_run = all_verdicts(joint, draws, seed)
    assert [words == "ok" for words in of_fold] == [True, True, False, True]
    assert "chains disagree" in of_fold[2]
    assert "1 of 4 folds is flagged: fold 3 (R-hat" in of_run
    assert "the chains have not mixed" in of_run
    assert min(spreads(setting, (kept_apart.joint, kept_apart.pointwise)).values()) > 1.2


def all_verdicts(joint: LogSums, draws: np.ndarray, seed: int) -> tuple[list[str], str]:
    benchmark = diag.rhat_max_benchmark(np.random.default_rng(seed), joint)
    khat, divergences = diag.pareto_khat(draws), np.zeros(len(draws))
    verdict = verdicts.faults(joint, khat, divergences, benchmark, "plain").words()
    names = [f"fold {k + 1}" for k in range(len(draws))]
    return verdict.tolist(), verdicts.run_verdict(names, verdict, benchmark)
