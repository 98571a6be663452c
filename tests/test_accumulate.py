"""Streaming equals the formula on stored draws: every accumulator × batch size, one table."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pcv.accumulate import Accumulator, energy_sums, log_sums, total
from pcv.diagnostics import LogSums, batch_sums, elpd, merge

DRAWS = 60
BATCHES = [1, 2, 5, 12, 60]


def stream(accumulator: Accumulator, start: jax.Array, draws: np.ndarray) -> dict[str, np.ndarray]:
    carry, _ = jax.lax.scan(
        lambda carry, x: (accumulator.update(carry, x), None),
        accumulator.init(start),
        jnp.asarray(draws),
    )
    return accumulator.finalize(carry)


def in_batches(accumulator, starts, draws, size):
    """Stored sums of consecutive batches, stacked."""
    parts = [
        stream(accumulator, starts[i], draws[i : i + size]) for i in range(0, len(draws), size)
    ]
    return {name: np.stack([p[name] for p in parts]) for name in parts[0]}


def as_log_sums(stored: dict[str, np.ndarray]) -> LogSums:
    return LogSums(*(stored[name][None, None] for name in LogSums._fields))


@pytest.mark.parametrize("size", BATCHES)
@pytest.mark.parametrize("shape", [(), (3,)])
def test_log_sums_equal_stored_draws(size, shape):
    draws = 40 * np.random.default_rng(1).normal(size=(DRAWS, *shape)) - 300
    center = jnp.full(shape, -310.0)
    stored = in_batches(log_sums, [center] * DRAWS, draws, size)
    expected = batch_sums(draws[None, None], size)
    for name in LogSums._fields:
        np.testing.assert_allclose(
            stored[name], getattr(expected, name)[0, 0], rtol=1e-12, atol=1e-9, err_msg=name
        )


@pytest.mark.parametrize("size", BATCHES)
def test_any_merge_order_gives_the_same(size):
    rng = np.random.default_rng(2)
    draws = rng.normal(size=DRAWS)
    stored = as_log_sums(in_batches(log_sums, [jnp.zeros(())] * DRAWS, draws, size))
    order = rng.permutation(DRAWS // size)
    whole = merge(as_log_sums(in_batches(log_sums, [jnp.zeros(())] * DRAWS, draws, DRAWS)), axis=2)
    for sums in (stored, LogSums(*(x[:, :, order] for x in stored))):
        for name, x in merge(sums, axis=2)._asdict().items():
            np.testing.assert_allclose(x, getattr(whole, name), rtol=1e-11, err_msg=name)


@pytest.mark.parametrize("size", BATCHES)
def test_energy_sums_add_up_across_batches(size):
    energy = np.random.default_rng(3).normal(size=DRAWS) + 1e3
    last = [jnp.asarray(energy[i - 1] if i else np.nan) for i in range(DRAWS)]
    stored = in_batches(energy_sums, last, energy, size)
    np.testing.assert_allclose(stored["diff_sq"].sum(), (np.diff(energy) ** 2).sum(), rtol=1e-9)
    batches = energy.reshape(-1, size)
    np.testing.assert_allclose(stored["mean"], batches.mean(1))
    np.testing.assert_allclose(stored["m2"], size * batches.var(1), atol=1e-8)


@pytest.mark.parametrize("size", BATCHES)
def test_totals(size):
    x = np.random.default_rng(4).normal(size=DRAWS)
    stored = in_batches(total, [jnp.zeros(())] * DRAWS, x, size)
    np.testing.assert_allclose(stored["total"], x.reshape(-1, size).sum(1), atol=1e-12)


def test_zero_density_and_nan():
    draws = np.array([-1.0, -np.inf, -2.0])
    stored = stream(log_sums, jnp.zeros(()), draws)
    assert np.isclose(stored["log_sum"], np.logaddexp(-1.0, -2.0))
    assert np.isnan(stored["m2"])
    assert np.isneginf(stream(log_sums, jnp.zeros(()), np.full(3, -np.inf))["log_sum"])
    assert np.isnan(stream(log_sums, jnp.zeros(()), np.array([0.0, np.nan]))["log_sum"])


def test_centring_saves_single_precision():
    draws = np.random.default_rng(5).normal(size=2000) - 1e5
    exact = elpd(batch_sums(draws[None, None], draws.size))[0]

    def single(center: float) -> float:
        start = jnp.asarray(center, jnp.float32)
        shifted = draws.astype(np.float64) - center
        carry = log_sums.init(jnp.zeros_like(start))
        carry, _ = jax.lax.scan(
            lambda c, x: (log_sums.update(c, x), None), carry, jnp.asarray(shifted, jnp.float32)
        )
        return float(
            elpd(as_log_sums({k: v[None] for k, v in log_sums.finalize(carry).items()}))[0]
        )

    assert abs(single(-1e5) - 1e5 - exact) < 1e-4
    assert abs(single(0.0) - exact) > 1e-3, "uncentred sums would do as well: no need to centre"
