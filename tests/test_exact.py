"""Cross-validation of every problem of the table gives its exact answer, with an honest error."""

from functools import cache
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from jaxtyping import Float, Shaped

from pcv import diagnostics as diag
from pcv import verdicts
from pcv.diagnostics import LogSums, batch_sums
from pcv.folds import Folds
from pcv.model import flat_target, target
from pcv.sampling.full_data import Fit
from pcv.sampling.tiles import Engine, build
from tests.chains import Sampled, fit_of, replicated, run
from tests.problems import PROBLEMS, Exact, Problem, coin, exact, kriging, side_by_side, variance

SEEDS = (1, 2, 3)
REPLICATIONS = 50
"""of all folds of a problem, by other names, so by other keys; per seed"""
CHAINS, BATCHES, BATCH_SIZE = 4, 10, 20
MAX_Z = 4.0
"""Monte Carlo standard errors that an estimate may be off"""


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
    return Setting(exact(problem, once), scheme, engine, fit, folds, starts)


@cache
def prepared(name: str) -> Setting:
    return prepare(PROBLEMS[name]())


def sample(setting: Setting, seed: int) -> Sampled:
    _, _, engine, fit, folds, starts = setting
    return run(engine, fit, folds, starts, seed, BATCHES)


@cache
def sampled(name: str, seed: int) -> Sampled:
    return sample(prepared(name), seed)


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
    sums = [(x.joint, x.pointwise) for x in (sampled(name, seed) for seed in SEEDS)]
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
