"""The sampler on a Gaussian of known moments: invariance, keys, blocks, devices, tracing."""

import gc
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr
from arviz_stats.base import array_stats
from scipy.stats import kstest

from pcv.analysis import samples
from pcv.analysis.diagnostics import largest
from pcv.base.keys import key
from pcv.base.monitor import Monitor
from pcv.folds.base import from_sets
from pcv.folds.base import train_mask as numpy_train_mask
from pcv.models.model import Target
from pcv.pipeline.storage import growing, store
from pcv.sampling import hmc, tiles
from pcv.sampling.folds import moving
from pcv.sampling.kernel import Kernel
from tests.bounds import RATE, z_limit

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
        return tiles.build(TARGET, (), NUM_UNITS, BUFFER)


def with_scale(scale=SCALE):
    """A kernel whose z have the covariance COV under `scale`, a matrix or standard deviations."""
    cov = scale @ scale.T if scale.ndim == 2 else np.diag(scale**2)
    sd = np.sqrt(np.diag(cov))
    values, vectors = np.linalg.eigh(cov / np.outer(sd, sd))
    return Kernel(np.ones(DIM), sd, vectors, np.sqrt(values))


def moved_by(folds, step_size=0.8, num_steps=4):
    number = len(folds.id)
    steps, once = np.full(number, float(num_steps)), np.ones(number, int)
    return moving.Own(np.full(number, step_size), steps, once, np.ones((number, DIM)))


def stream(engine, folds=FOLDS, num_draws=20, chains=CHAINS, kernel=None, own=None, **more):
    """Blocks of all chains and where they stand, from starts that depend on fold and chain."""
    at = more.get("at")
    if at is None:
        starts = [
            [np.random.default_rng([c, *fold.encode()]).normal(size=DIM) for c in range(chains)]
            for fold in folds.id
        ]
        at = moving.standing_at(np.array(starts))
    return moving.blocks(
        engine,
        key(1, "m", "sample"),
        kernel or with_scale(),
        folds,
        own or moved_by(folds),
        at,
        moving.uncentered(folds),
        num_draws,
        more.get("first", 0),
        Monitor(emit=print),
    )


def run(engine, *args, **kwargs):
    """All blocks, and where the chains stand at their end."""
    made = list(stream(engine, *args, **kwargs))
    return [block for block, _ in made], made[-1][1]


def draws(blocks):
    return np.concatenate([block.draws for block in blocks], axis=2)


ONE = from_sets(["only"], [np.array([0, 1])], None, NUM_UNITS)


def off_by(engine, kernel=None, **pace):
    """Largest error of means and covariances in standard errors, and acceptance, after 10 draws."""
    chains, mean = 4000, 10 / NUM_UNITS
    blocks, end = run(engine, ONE, 10, chains, kernel, moved_by(ONE, **pace))
    position = end.position[0]
    error_of_mean = np.sqrt(np.diag(COV) / chains)
    error_of_cov = np.sqrt((np.outer(np.diag(COV), np.diag(COV)) + COV**2) / chains)
    off = [(position.mean(0) - mean) / error_of_mean, (np.cov(position.T) - COV) / error_of_cov]
    return max(abs(x).max() for x in off), blocks[0].stats["acceptance"]["total"].mean() / 10


DIAGONAL = np.sqrt(np.diag(COV))


@pytest.mark.parametrize("scale", [SCALE, DIAGONAL, np.eye(DIM)], ids=["dense", "diagonal", "unit"])
def test_leaves_the_posterior_invariant(engine, scale):
    off, acceptance = off_by(engine, with_scale(scale))
    assert off < z_limit(9)
    assert acceptance > 0.7


def test_chains_that_do_not_move_are_not_invariant(engine):
    off, _ = off_by(engine, step_size=30.0)
    assert off > 10  # false alarm < 1e-4: 77, with an sd of 1.4


def test_energy_error_falls_with_the_step_size(engine):
    """As its square, over trajectories of one time."""
    lost = [1 - off_by(engine, step_size=x, num_steps=3.2 / x)[1] for x in (0.8, 0.4, 0.2)]
    # False alarm < 1e-4: .053 with an sd of .009; then .27 and .26 times as much, with one of .008.
    assert lost[0] < 0.1
    assert lost[1] < lost[0] / 3
    assert lost[2] < lost[1] / 3


def test_train_mask_equals_the_folds_own():
    masks = jax.vmap(partial(hmc.train_mask, num_units=NUM_UNITS))(jnp.asarray(FOLDS.held_out))
    np.testing.assert_array_equal(np.asarray(masks), numpy_train_mask(FOLDS, NUM_UNITS))


@pytest.mark.parametrize(("mean", "found"), [(6.0, range(4, 10)), (1.5, (1, 2, 3)), (1.0, (1, 2))])
def test_times_are_jittered_within_half(mean, found):
    draw = jax.vmap(partial(hmc.jittered, jnp.asarray(mean)))
    steps, finer = (np.asarray(x) for x in draw(jax.random.split(key(3), 2000)))
    assert set(steps) == set(found)
    assert (finer <= 1).all()
    assert kstest(steps * finer / mean, "uniform", (0.5, 1)).pvalue > RATE


def test_all_chains_of_a_draw_take_as_many_steps():
    """Without forces a chain moves by step size × time in steps × momentum."""
    free = Target(
        lambda k: jnp.zeros(DIM),
        lambda position, fold: jnp.zeros(()),
        lambda position, fold: (position[0], position[:1]),
    )
    engine = tiles.build(free, (), NUM_UNITS, 1)
    folds = FOLDS._replace(test=FOLDS.test[:, :1])
    at = moving.standing_at(np.zeros((5, CHAINS, DIM)))
    plain = with_scale(np.ones(DIM))
    made = list(stream(engine, folds, 40, kernel=plain, own=moved_by(folds, 0.1, 6), at=at))
    momentum = np.sqrt(2 * np.stack([b.stats["energy"]["mean"] for b, _ in made], axis=-1))
    places = np.stack([at.position, *(end.position for _, end in made)])
    moved = np.sqrt((np.diff(places, axis=0) ** 2).sum(-1)).transpose(1, 2, 0)
    steps = (moved / (0.1 * momentum)).reshape(-1, 40)
    np.testing.assert_allclose(steps, np.broadcast_to(steps[0], steps.shape), rtol=1e-9)
    assert (steps.min() >= 3) & (steps.max() <= 9)
    assert steps.std() > 1


@pytest.mark.slow
def test_blocks_of_any_size_give_the_same_draws(engine):
    whole = draws(run(engine, num_draws=20)[0])
    for size in (1, 7, 20):
        other = tiles.build(TARGET, (), NUM_UNITS, size)
        np.testing.assert_allclose(draws(run(other, num_draws=20)[0]), whole, rtol=1e-9)


def test_going_on_from_a_state_is_the_same_run(engine):
    whole, _ = run(engine, num_draws=30)
    begun, end = run(engine, num_draws=10)
    rest, _ = run(engine, num_draws=20, at=end, first=10)
    np.testing.assert_array_equal(draws(begun + rest), draws(whole))


@pytest.mark.parametrize("kept", [[2], [4, 0], [3, 1, 2]])
def test_other_folds_change_nothing(engine, kept):
    some = FOLDS.some(kept)
    np.testing.assert_allclose(
        draws(run(engine, some)[0]), draws(run(engine)[0])[kept], rtol=1e-9, atol=1e-12
    )


@pytest.mark.parametrize("chains", [1, 2, 3])
def test_chains_that_fill_a_tile_change_nothing(engine, chains):
    np.testing.assert_allclose(
        draws(run(engine, ONE, chains=chains)[0]),
        draws(run(engine, ONE, chains=4)[0])[:, :chains],
        rtol=1e-9,
    )


def test_tiles_of_another_size_change_nothing(engine):
    pairs = engine.with_tile(2)
    assert pairs.tile < len(FOLDS.id) * CHAINS < engine.tile
    np.testing.assert_allclose(draws(run(pairs)[0]), draws(run(engine)[0]), rtol=1e-9, atol=1e-12)


def test_tiles_of_one_call_change_nothing(engine):
    """15 chains in two calls of three tiles of four: the second is of one that is not full."""
    one_by_one = engine.with_tile(4)
    of_engine = engine.target, engine.scores, engine.num_units, engine.buffer
    together = tiles.build(*of_engine, tile=4, stack=3)
    assert (one_by_one.stack, together.stack, together.tile) == (1, 3, 4)
    found, expected = draws(run(together)[0]), draws(run(one_by_one)[0])
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)


def test_a_call_of_a_large_model_is_of_one_tile(engine):
    assert engine.stack == tiles.STACK
    assert tiles.build(TARGET, (), 10**6, 50).stack == 1


def test_folds_of_other_steps_and_thinning_advance_apart(engine):
    """As each does alone; a thinned draw is the last of its transitions."""
    own = moved_by(FOLDS)._replace(
        num_steps=np.array([4.0, 2.0, 4.0, 8.0, 2.0]),
        thin=np.array([1, 1, 3, 1, 3]),
        scale_ratio=np.linspace(1, 2, 5)[:, None] * np.ones(DIM),
    )
    together, _ = run(engine, own=own)
    for k in range(5):
        alone, _ = run(engine, FOLDS.some([k]), own=moving.chosen(own, np.array([k])))
        np.testing.assert_allclose(draws(alone)[0], draws(together)[k], rtol=1e-9, atol=1e-12)
    each, _ = run(engine, FOLDS.some([2]), num_draws=60, own=moved_by(FOLDS.some([2])))
    thinned = moved_by(FOLDS.some([2]))._replace(thin=np.array([3]))
    third, _ = run(engine, FOLDS.some([2]), num_draws=20, own=thinned)
    np.testing.assert_allclose(draws(third), draws(each)[..., 2::3], rtol=1e-9)


def test_traced_once_whatever_the_lengths(engine):
    run(engine, num_draws=20)
    before = TRACES["log_density"]
    run(engine, num_draws=7)
    run(engine, num_draws=45)
    assert TRACES["log_density"] == before


def test_device_memory_does_not_grow_with_draws(engine):
    gc.collect()  # of what earlier tests left
    held = []
    for i, _ in enumerate(stream(engine, num_draws=300)):
        if i in (1, 29):
            held.append(sum(x.nbytes for x in jax.live_arrays()))
    assert held[0] == held[1]


def test_sums_are_those_of_the_draws(engine):
    blocks, _ = run(engine, num_draws=20)
    s = draws(blocks)
    for i, block in enumerate(blocks):
        part = s[..., 10 * i : 10 * (i + 1)]
        joint = block.sums["joint"]
        np.testing.assert_allclose(joint["mean"], part.mean(-1))
        np.testing.assert_allclose(joint["log_sum"], np.logaddexp.reduce(part, axis=-1))
        assert (joint["count"] == 10).all()


def test_energy_sums_give_the_fraction_of_missing_information():
    single = tiles.build(TARGET, (), NUM_UNITS, 1)
    whole = tiles.build(TARGET, (), NUM_UNITS, 40)
    each, _ = run(single, num_draws=40)
    (block,), _ = run(whole, num_draws=40)
    energy = np.stack([b.stats["energy"]["mean"] for b in each], axis=-1)
    efmi = block.stats["energy"]["diff_sq"] / block.stats["energy"]["m2"]
    expected = [array_stats.bfmi(e, chain_axis=0, draw_axis=1) for e in energy]
    np.testing.assert_allclose(efmi, np.array(expected), rtol=1e-9)


def test_divergences_are_counted(engine):
    blocks, _ = run(engine, num_draws=10, own=moved_by(FOLDS, 30.0, 8))
    assert (blocks[0].stats["divergences"]["total"] == 10).all()
    blocks, _ = run(engine, num_draws=10)
    assert (blocks[0].stats["divergences"]["total"] == 0).all()


def test_starts_are_distinct_within_a_fold_and_uniform():
    folds = [f"fold {i}" for i in range(3000)]
    picks = moving.starting_draws(1, "m", folds, 8, 100)
    assert all(len(set(row)) == 8 for row in picks)
    counts = np.bincount(picks.ravel(), minlength=100)
    assert abs(counts - 240).max() < z_limit(100) * np.sqrt(0.92 * 240)
    np.testing.assert_array_equal(moving.starting_draws(1, "m", folds[7:8], 8, 100)[0], picks[7])


def test_chains_of_a_superchain_start_at_one_draw():
    picks = moving.starting_draws(1, "m", ["a", "b"], 8, 100, superchains=2)
    assert picks.shape == (2, 8)
    for row in picks:
        assert len(set(row[:4])) == len(set(row[4:])) == 1
        assert row[0] != row[4]


def test_more_chains_than_starts_share_them():
    picks = moving.starting_draws(1, "m", ["a", "b"], 8, 5)
    assert all(sorted(np.bincount(row, minlength=5)) == [1, 1, 2, 2, 2] for row in picks)


@pytest.mark.parametrize("keep", [True, False])
def test_sample_store_round_trip(engine, tmp_path, keep):
    blocks, _ = run(engine, num_draws=30)
    folder, top = tmp_path / "s.zarr", np.full((5, 13), -np.inf)
    batches = [samples.batch_of(block, {}, keep) for block in blocks]
    for i, (block, batch) in enumerate(zip(blocks, batches)):
        growing.put(folder, batch, i, len(blocks))
        top = largest(top, block.draws)
    tail = None if keep else top
    end = samples.end(FOLDS.id, np.full(5, 30), tail, {}, {"predictive": "plain"})
    store.put(folder, end, mode="a")
    stored = xr.open_dataset(folder, engine="zarr", consolidated=True)
    xr.testing.assert_identical(
        samples.whole(batches, end, len(blocks)), stored.load().drop_encoding()
    )
    s = draws(blocks)
    if keep:
        np.testing.assert_array_equal(stored["log_joint_draws"].values, s)
    else:
        expected = np.sort(s.reshape(5, -1))[:, -13:]
        np.testing.assert_array_equal(stored["log_joint_tail"].values, expected)
    read = samples.log_sums([stored], "pointwise")
    for i, block in enumerate(blocks):
        np.testing.assert_array_equal(read.mean[:, :, i], block.sums["pointwise"]["mean"])
    assert stored["n_draws"].values.tolist() == [30] * 5


@pytest.mark.parametrize(("columns", "tile"), [(20, 2 * tiles.LEAST_WIDE), (1, 2)])
def test_wide_data_are_read_once_for_several_chains(columns, tile):
    units = 200_000
    x = np.ones((units, columns))

    def log_density(position, fold):
        return jnp.sum(jnp.where(fold.train, -((x @ position) ** 2), 0.0))

    target = Target(
        init=lambda key: jax.random.normal(key, (columns,)),
        log_density=log_density,
        log_predictive=lambda position, fold: (jnp.zeros(()), jnp.zeros(fold.test.shape)),
    )
    assert tiles.build(target, (), units, 50).tile == tile
