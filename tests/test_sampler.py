"""The sampler on a Gaussian of known moments: invariance, keys, blocks, devices, tracing."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr
from arviz_stats.base import array_stats

from pcv import sampler, sums
from pcv.folds import from_sets
from pcv.folds import train_mask as numpy_train_mask
from pcv.keys import key
from pcv.model import Target
from pcv.sampler import Kernel
from pcv.scores import SCORES

NUM_UNITS, DIM, CHAINS, BUFFER = 12, 3, 3, 10
COV = np.array([[2.0, 0.6, 0.0], [0.6, 1.0, -0.3], [0.0, -0.3, 0.5]])
SCALE = np.linalg.cholesky(COV)
TRACES = {"log_density": 0}


def _log_density(position, fold):
    TRACES["log_density"] += 1
    centered = position - jnp.sum(fold.train) / NUM_UNITS
    return -0.5 * centered @ jnp.linalg.solve(COV, centered)


def _log_predictive(position, fold):
    pointwise = jnp.where(fold.test >= 0, -0.5 * (position[0] - fold.test) ** 2, 0.0)
    return pointwise.sum(), pointwise


TARGET = Target(lambda k: jax.random.normal(k, (DIM,)), _log_density, _log_predictive)
FOLDS = from_sets(
    ["a", "b", "c", "d", "e"],
    [np.array([i, i + 1]) for i in (0, 3, 5, 8, 10)],
    [np.array([], int), np.array([4, 5]), np.array([2]), np.array([0, 11]), np.array([], int)],
    NUM_UNITS,
)


@pytest.fixture(scope="module")
def engine():
    with jax.enable_x64(True):
        return sampler.build(TARGET, (SCORES["log"],), NUM_UNITS, BUFFER)


def hmc_kernel(scale=SCALE, step_size=0.8, num_steps=4):
    return Kernel(jnp.ones(DIM), jnp.asarray(scale), jnp.asarray(step_size), jnp.asarray(num_steps))


def run(engine, folds=FOLDS, num_draws=20, chains=CHAINS, kernel=None, state=None, first=0):
    """Blocks and the last state of all chains, from starts that depend on fold and chain."""
    kernel = kernel or hmc_kernel()
    ids = folds.id.tolist()
    keys = sampler.chains_of(key(1, "m", "sample"), ids, chains, folds.test, folds.held_out)
    spread = sampler.spread(keys)
    if state is None:
        starts = jax.vmap(TARGET.init)(keys.key)
        state = engine.start(kernel, sampler.spread(starts), spread)
    zero = {"joint": np.zeros(len(ids)), "pointwise": np.zeros(folds.test.shape)}
    made = list(
        sampler.blocks(
            engine,
            kernel,
            state,
            spread,
            {"log": zero},
            key(1, "jitter"),
            chains,
            num_draws,
            first,
        )
    )
    return [block for block, _ in made], made[-1][1]


def draws(blocks):
    return np.concatenate([block.draws["log"] for block in blocks], axis=2)


@pytest.mark.parametrize("scale", [SCALE, np.sqrt(np.diag(COV))], ids=["dense", "diagonal"])
def test_leaves_the_posterior_invariant(engine, scale):
    one = from_sets(["only"], [np.array([0, 1])], None, NUM_UNITS)
    chains, mean = 4000, 10 / NUM_UNITS
    blocks, state = run(engine, one, 10, chains, hmc_kernel(scale))
    position = np.asarray(sampler.positions(hmc_kernel(scale), state))
    error = position.std(0) / np.sqrt(chains)
    assert (abs(position.mean(0) - mean) < 4 * error).all()
    se_of_cov = np.sqrt((np.outer(np.diag(COV), np.diag(COV)) + COV**2) / chains)
    assert (abs(np.cov(position.T) - COV) < 4 * se_of_cov).all()
    assert blocks[-1].stats["acceptance"]["total"].mean() / 10 > 0.7


def test_train_mask_equals_the_folds_own():
    masks = jax.vmap(partial(sampler.train_mask, num_units=NUM_UNITS))(jnp.asarray(FOLDS.held_out))
    np.testing.assert_array_equal(np.asarray(masks), numpy_train_mask(FOLDS, NUM_UNITS))


def test_steps_are_jittered_within_half():
    steps = jax.vmap(partial(sampler.jittered_steps, hmc_kernel(num_steps=6)))(
        jax.random.split(key(3), 2000)
    )
    assert set(np.unique(steps)) == set(range(3, 10))
    once = jax.vmap(partial(sampler.jittered_steps, hmc_kernel(num_steps=1)))(
        jax.random.split(key(3), 100)
    )
    assert set(np.unique(once)) == {1}


def test_blocks_of_any_size_give_the_same_draws(engine):
    whole = draws(run(engine, num_draws=20)[0])
    for size in (1, 7, 20):
        other = sampler.build(TARGET, (SCORES["log"],), NUM_UNITS, size)
        np.testing.assert_array_equal(draws(run(other, num_draws=20)[0]), whole)


def test_going_on_from_a_state_is_the_same_run(engine):
    whole, _ = run(engine, num_draws=30)
    begun, state = run(engine, num_draws=10)
    rest, _ = run(engine, num_draws=20, state=state, first=10)
    np.testing.assert_array_equal(draws(begun + rest), draws(whole))


@pytest.mark.parametrize("kept", [[2], [4, 0], [3, 1, 2]])
def test_other_folds_change_nothing(engine, kept):
    some = type(FOLDS)(*(x[kept] for x in FOLDS))
    np.testing.assert_allclose(
        draws(run(engine, some)[0]), draws(run(engine)[0])[kept], rtol=1e-9, atol=1e-12
    )


def test_groups_of_chains_change_nothing(engine, monkeypatch):
    monkeypatch.setattr(sampler, "CPU_ROOM", 8 * NUM_UNITS * 2)
    pairs = sampler.build(TARGET, (SCORES["log"],), NUM_UNITS, BUFFER)
    np.testing.assert_allclose(draws(run(pairs)[0]), draws(run(engine)[0]), rtol=1e-9, atol=1e-12)


def test_traced_once_whatever_the_lengths(engine):
    run(engine, num_draws=20)
    before = TRACES["log_density"]
    run(engine, num_draws=7)
    run(engine, num_draws=45)
    assert TRACES["log_density"] == before


def test_sums_are_those_of_the_draws(engine):
    blocks, _ = run(engine, num_draws=20)
    s = draws(blocks)
    for i, block in enumerate(blocks):
        part = s[..., 10 * i : 10 * (i + 1)]
        joint = block.sums["log"]["joint"]
        np.testing.assert_allclose(joint["mean"], part.mean(-1))
        np.testing.assert_allclose(joint["log_sum"], np.logaddexp.reduce(part, axis=-1))
        assert (joint["count"] == 10).all()


def test_energy_sums_give_the_fraction_of_missing_information():
    single = sampler.build(TARGET, (SCORES["log"],), NUM_UNITS, 1)
    whole = sampler.build(TARGET, (SCORES["log"],), NUM_UNITS, 40)
    each, _ = run(single, num_draws=40)
    (block,), _ = run(whole, num_draws=40)
    energy = np.stack([b.stats["energy"]["mean"] for b in each], axis=-1)
    efmi = block.stats["energy"]["diff_sq"] / block.stats["energy"]["m2"]
    expected = [array_stats.bfmi(e, chain_axis=0, draw_axis=1) for e in energy]
    np.testing.assert_allclose(efmi * (40 - 1) / 40, np.array(expected), rtol=0.06)


def test_divergences_are_counted(engine):
    blocks, _ = run(engine, num_draws=10, kernel=hmc_kernel(step_size=30.0, num_steps=8))
    assert (blocks[0].stats["divergences"]["total"] == 10).all()
    blocks, _ = run(engine, num_draws=10)
    assert (blocks[0].stats["divergences"]["total"] == 0).all()


def test_starts_are_distinct_within_a_fold_and_uniform():
    folds = [f"fold {i}" for i in range(3000)]
    picks = sampler.starting_draws(1, "m", folds, 8, 100)
    assert all(len(set(row)) == 8 for row in picks)
    counts = np.bincount(picks.ravel(), minlength=100)
    assert abs(counts - 240).max() < 5 * np.sqrt(240)
    np.testing.assert_array_equal(sampler.starting_draws(1, "m", folds[7:8], 8, 100)[0], picks[7])


@pytest.mark.parametrize("keep", [True, False])
def test_sample_store_round_trip(engine, tmp_path, keep):
    blocks, _ = run(engine, num_draws=30)
    folder, top = tmp_path / "s.zarr", np.full((5, 13), -np.inf)
    for i, block in enumerate(blocks):
        batch = sums.batch_of(block, keep)
        if i == 0:
            sums.create(folder, batch, len(blocks))
        sums.put(folder, batch, i)
        top = sums.largest(top, block.draws["log"])
    sums.finish(folder, FOLDS.id, 30, {} if keep else {"log": top}, {"predictive": "plain"})
    stored = xr.open_dataset(folder, engine="zarr", consolidated=True)
    s = draws(blocks)
    if keep:
        np.testing.assert_array_equal(stored["log_joint_draws"].values, s)
    else:
        expected = np.sort(s.reshape(5, -1))[:, -13:]
        np.testing.assert_array_equal(stored["log_joint_tail"].values, expected)
    read = sums.log_sums([stored], "log", "pointwise")
    for i, block in enumerate(blocks):
        np.testing.assert_array_equal(read.mean[:, :, i], block.sums["log"]["pointwise"]["mean"])
    assert stored["n_draws"].values.tolist() == [30] * 5
