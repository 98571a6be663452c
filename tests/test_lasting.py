"""Warmup that ends once chains have forgotten their starts.

Chains of a linear regression start two posterior standard deviations off, in all folds in the same
direction, and take small steps. Nothing is held out, so that exact draws are known.
"""

from functools import cache, partial

import jax
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from pcv.base.keys import key
from pcv.base.monitor import SILENT
from pcv.sampling.folds import adapting, lasting, moving, warming
from pcv.sampling.folds.lasting import Length
from tests.bounds import z_limit
from tests.problems import regression
from tests.replications import Setting, prepare
from tests.slow import repeated

CHAINS, SUPERCHAINS = 64, 8
OFF = 2.0
STEP = 0.3
"""of one leapfrog step: draws have an autocorrelation of about 1 - STEP²/2"""
FOLDS = 60
MAX_Z = z_limit(3)  # of as many parameters
ADAPTING = sum(adapting.WINDOWS) + adapting.LAST_WINDOW + adapting.CHECKED


@cache
def setting() -> Setting:
    made = prepare(regression())
    folds = made.folds.some(slice(FOLDS))
    return made._replace(
        folds=folds._replace(held_out=np.zeros_like(folds.held_out)),
        fit=made.fit._replace(step_size=STEP, num_steps=1.0),
    )


def starts(seed: int) -> np.ndarray:
    made = setting()
    rng = np.random.default_rng(seed)
    draws = made.problem.posterior(rng, FOLDS * SUPERCHAINS)
    flat = np.asarray(jax.vmap(lambda params: ravel_pytree(params)[0])(draws))
    moved = flat + OFF * made.fit.kernel.scale
    by_start = moved.reshape(FOLDS, SUPERCHAINS, -1)
    return np.repeat(by_start, CHAINS // SUPERCHAINS, axis=1)


def warmed(seed: int, num_draws: int | None, some: slice = slice(None)) -> lasting.Run:
    made = setting()
    folds = made.folds.some(some)
    own = moving.alike(made.fit, len(folds.id))
    at = made.engine, key(seed, "warmup"), made.fit.kernel, folds, own, starts(seed)[some]
    return lasting.run(*at, Length(num_draws, SUPERCHAINS), 0, SILENT)


def z_of_ends(found: lasting.Run) -> np.ndarray:
    """Errors of each parameter's mean over all folds, from their spread over superchains."""
    made = setting()
    draws = made.problem.posterior(np.random.default_rng(0), 200_000)
    exact = np.asarray(jax.vmap(lambda params: ravel_pytree(params)[0])(draws))
    each = found.position.reshape(FOLDS * SUPERCHAINS, CHAINS // SUPERCHAINS, -1).mean(1)
    error = np.hypot(each.std(0) / np.sqrt(len(each)), exact.std(0) / np.sqrt(len(exact)))
    return (each.mean(0) - exact.mean(0)) / error


@pytest.mark.parametrize("seed", repeated([1, 2, 3]))
def test_starts_are_forgotten_in_sum_over_folds(seed):
    found = warmed(seed, None)
    # False alarm < 1e-4: two of 60 folds get to the last look, where one in 10,000 fails by chance.
    assert (~found.forgot).sum() <= 1
    assert found.num_draws.min() < found.num_draws.max()  # 46, and 746 or more
    assert np.abs(z_of_ends(found)).max() < MAX_Z


def test_ten_draws_are_too_few():
    # False alarm < 1e-4: 41 with an sd of 3, and the limit is 21.
    assert np.abs(z_of_ends(warmed(1, 10))).max() > 5 * MAX_Z


def test_the_first_agreement_is_too_early(monkeypatch):
    """Superchains of single folds agree, within their noise, while all are off alike."""
    monkeypatch.setattr(lasting, "enough", lambda look, *_: look + lasting.KEPT)
    found = warmed(1, None)
    # False alarm < 1e-4: 12.6 with an sd of 1.8, and the limit is 5.0.
    assert np.abs(z_of_ends(found)).max() > 1.2 * MAX_Z


@pytest.mark.slow
def test_slower_chains_take_longer(monkeypatch):
    fast = warmed(1, None)
    slow = setting()._replace(fit=setting().fit._replace(step_size=STEP / 2))
    monkeypatch.setitem(globals(), "setting", lambda: slow)
    # False alarm < 1e-4: 4 times, give or take a sixth.
    assert np.median(warmed(1, None).num_draws) > 1.5 * np.median(fast.num_draws)


def test_chains_that_do_not_move_have_not_forgotten(monkeypatch):
    still = setting()._replace(fit=setting().fit._replace(step_size=1e-4))
    monkeypatch.setitem(globals(), "setting", lambda: still)
    found = warmed(1, None)
    # False alarm < 1e-4: superchains vary 3e5 times as much as is accepted, or more.
    assert not found.forgot.any()
    assert (found.num_draws == lasting.LAST).all()


def test_a_fold_does_not_depend_on_others():
    every, some = warmed(1, None), warmed(1, None, slice(20, 30))
    np.testing.assert_array_equal(some.num_draws, every.num_draws[20:30])
    np.testing.assert_allclose(some.position, every.position[20:30], rtol=1e-9)
    for kind, x in some.center.items():
        np.testing.assert_allclose(x, every.center[kind][20:30], rtol=1e-9)


def test_late_draws_are_those_of_a_run_of_that_length():
    found = warmed(1, None)
    number = int(found.num_draws[0])
    fixed = warmed(1, number)
    np.testing.assert_allclose(found.position[0], fixed.position[0], rtol=1e-9)
    np.testing.assert_allclose(found.late[0], fixed.early[0][:, -lasting.KEPT :], rtol=1e-9)
    np.testing.assert_allclose(found.early[0], fixed.early[0][:, : lasting.FIRST], rtol=1e-9)


def test_chains_that_have_not_forgotten_are_adapted():
    still = setting()._replace(fit=setting().fit._replace(step_size=1e-4))
    folds, begin = still.folds.some(slice(6)), starts(1)[:6]
    at = still.engine, partial(key, 1), still.fit, folds, begin, Length(None, SUPERCHAINS)
    draws = begin.reshape(-1, begin.shape[-1])
    found = warming.warmup(*at, "auto", draws, SILENT)
    assert found.adapted.all()
    assert found.forgot.all()
    assert (found.num_draws > lasting.LAST + ADAPTING).all()
    left_alone = warming.warmup(*at, "never", draws, SILENT)
    assert not left_alone.forgot.any()
    assert (left_alone.num_draws == lasting.LAST).all()


def test_excess_of_scores_that_do_not_vary_or_are_not_finite():
    draws = np.random.default_rng(1).normal(size=(3, 64, 5))
    draws[1] = 2.0
    draws[2, 0, 0] = -np.inf
    found = lasting.excess(draws, SUPERCHAINS)
    assert 0 < found[0] < 6  # false alarm < 1e-4: F of 7 and 56 degrees of freedom
    assert found[1] == 0
    assert np.isnan(found[2])
    draws[0, :8] += 3
    assert lasting.excess(draws, SUPERCHAINS)[0] > 20
