"""Arrays that go into a program and come out of it together are what they were."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pcv.sampling.packing import bytes_of_one, pack, unpack


class Tree(NamedTuple):
    position: np.ndarray
    diverging: np.ndarray
    fold: np.ndarray
    none: None
    sums: dict[str, np.ndarray]


TREE = Tree(
    np.arange(12.0).reshape(3, 2, 2),
    np.array([True, False, True]),
    np.array([0, 1, 2**32 - 1], np.uint32),
    None,
    {"center": np.array([-np.inf, np.nan, 0.5]), "empty": np.zeros((3, 0), np.int32)},
)


@pytest.mark.parametrize("double", [True, False])
def test_round_trip(double):
    with jax.enable_x64(double):
        real = jax.dtypes.canonicalize_dtype(float)
        tree = jax.tree.map(lambda x: x.astype(real) if x.dtype.kind == "f" else x, TREE)
        through = jax.jit(lambda packed: pack(unpack(packed), jnp))(pack(tree))
        assert len(jax.tree.leaves(through)) == 2
        found = unpack(jax.tree.map(np.asarray, through))
        jax.tree.map(np.testing.assert_array_equal, found, tree)
        assert [x.dtype for x in jax.tree.leaves(found)] == [x.dtype for x in jax.tree.leaves(tree)]
        assert bytes_of_one(through) == (5 * (8 if double else 4)) + 1 + 4


def test_arrays_of_one_kind():
    assert pack({"a": np.zeros((2, 3))}).integers is None
