"""Keys depend on names, never on positions."""

import jax
import numpy as np

from pcv.base.keys import chain_key, key
from pcv.base.names import name_bits


def chain_keys(parent, folds, num_chains):
    """Of all chains of all folds."""
    of_fold = np.array([name_bits(fold) for fold in folds], np.uint32)
    every = jax.vmap(jax.vmap(chain_key, (None, None, 0)), (None, 0, None))
    return every(parent, of_fold, np.arange(num_chains, dtype=np.uint32))


def bits(keys):
    return np.asarray(jax.random.key_data(keys))


def test_a_fold_keeps_its_keys_whatever_folds_are_beside_it():
    parent = key(7, "slopes", "sample")
    many = bits(chain_keys(parent, ["rat 1", "rat 2", "rat 3"], 4))
    few = bits(chain_keys(parent, ["rat 3", "rat 1"], 2))
    np.testing.assert_array_equal(few[0], many[2, :2])
    np.testing.assert_array_equal(few[1], many[0, :2])


def test_all_chains_of_all_folds_models_and_stages_differ():
    seen = [
        bits(chain_keys(key(seed, model, stage), ["a", "b", "c"], 5)).reshape(-1, 2)
        for seed in (1, 2)
        for model in ("m", "n")
        for stage in ("warmup", "sample")
    ]
    assert len(np.unique(np.concatenate(seen), axis=0)) == 2 * 2 * 2 * 3 * 5


def test_integers_enter_as_they_are():
    np.testing.assert_array_equal(bits(key(1, 3)), bits(jax.random.fold_in(jax.random.key(1), 3)))


def test_a_number_is_not_its_name_and_the_order_of_the_path_matters():
    paths = [(1, 3), (1, "3"), (3, 1), (1, "a", "b"), (1, "b", "a"), (1, "a"), (1, "ab")]
    assert len({tuple(bits(key(*path))) for path in paths}) == len(paths)


def test_keys_of_a_fold_are_below_its_name():
    parent = key(7, "m", "sample")
    np.testing.assert_array_equal(
        bits(chain_keys(parent, ["rat 1"], 2)[0, 1]), bits(key(7, "m", "sample", "rat 1", 1))
    )
