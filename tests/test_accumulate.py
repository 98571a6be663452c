"""Streaming equals the formula on stored draws: accumulators × batch sizes × merge orders."""

from collections.abc import Callable
from functools import cache, reduce
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import logsumexp

from pcv.analysis.diagnostics import LogSums, batch_sums, efmi, elpd
from pcv.sampling.accumulate import Accumulator, Stored, energy_sums, log_sums, weighted_means

DRAWS = 62
BATCHES = [1, 2, 5, 12, 62]


class Case(NamedTuple):
    accumulator: Accumulator
    draws: np.ndarray
    """(draw, chain[, slot])"""
    start: Callable[[int], np.ndarray]
    """what `init` takes for a batch that begins at a draw"""
    formula: Callable[[np.ndarray], Stored]
    """what must be stored for all draws"""


def of_log_scores(s: np.ndarray) -> Stored:
    return {
        "count": np.full(s.shape[1], len(s)),
        "mean": s.mean(0),
        "m2": len(s) * s.var(0),
        "log_sum": logsumexp(s, axis=0),
        "log_sum_sq": logsumexp(2 * s, axis=0),
    }


def pair(x):
    return x[..., 0], {"value": x[..., 1], "square": x[..., 1:] ** 2}


weighted = weighted_means._replace(
    init=lambda x: weighted_means.init(pair(x)),
    update=lambda carry, x: weighted_means.update(carry, pair(x)),
)


def of_weighted(draws: np.ndarray) -> Stored:
    log_weight, values = pair(draws)
    share = np.exp(log_weight - logsumexp(log_weight, axis=0))
    return {
        "log_weight": logsumexp(log_weight, axis=0),
        "value": (share * values["value"]).sum(0),
        "square": (share[..., None] * values["square"]).sum(0),
    }


def case(name: str) -> Case:
    rng = np.random.default_rng(1)
    s = 40 * rng.normal(size=(DRAWS, 2, 3)) - 300
    return {
        "joint": Case(log_sums, s[..., 0], lambda i: np.full(2, -310.0), of_log_scores),
        "pointwise": Case(log_sums, s, lambda i: np.full((2, 3), -310.0), of_log_scores),
        "weighted": Case(
            weighted,
            np.stack([rng.uniform(-700, 700, (DRAWS, 2, 3)), s], axis=-1),
            lambda i: np.zeros((2, 3, 2)),
            of_weighted,
        ),
    }[name]


@cache
def over_chains(accumulator: Accumulator) -> tuple[Callable, Callable]:
    return jax.vmap(accumulator.init), jax.jit(jax.vmap(accumulator.update))


def stream(accumulator: Accumulator, start: np.ndarray, draws: np.ndarray) -> Stored:
    init, update = over_chains(accumulator)
    return accumulator.finalize(reduce(update, draws, init(jnp.asarray(start))))


def in_batches(case: Case, size: int) -> list[Stored]:
    """What is stored for each batch; the last one may be shorter."""
    return [
        stream(case.accumulator, case.start(i), case.draws[i : i + size])
        for i in range(0, len(case.draws), size)
    ]


def assert_same(found: Stored, expected: Stored) -> None:
    assert found.keys() == expected.keys()
    for name, x in expected.items():
        np.testing.assert_allclose(found[name], x, rtol=1e-11, err_msg=name)


def pairwise(merge: Callable[[Stored, Stored], Stored], parts: list[Stored]) -> Stored:
    while len(parts) > 1:
        odd = parts[len(parts) // 2 * 2 :]
        parts = [merge(a, b) for a, b in zip(parts[::2], parts[1::2])] + odd
    return parts[0]


ORDERS = {
    "one by one": reduce,
    "backwards": lambda merge, parts: reduce(merge, parts[::-1]),
    "in pairs": pairwise,
    "shuffled": lambda merge, parts: reduce(
        merge, [parts[i] for i in np.random.default_rng(2).permutation(len(parts))]
    ),
}


@pytest.mark.parametrize("size", BATCHES)
@pytest.mark.parametrize("name", ["joint", "pointwise", "weighted"])
def test_any_batches_merged_in_any_order_equal_the_stored_draws(name, size):
    it = case(name)
    parts = in_batches(it, size)
    expected = it.formula(it.draws)
    for merge in ORDERS.values():
        assert_same(merge(it.accumulator.merge, parts), expected)


@pytest.mark.parametrize("size", [2, 31])
@pytest.mark.parametrize("name", ["joint", "pointwise"])
def test_batches_are_those_of_the_diagnostics(name, size):
    it = case(name)
    expected = batch_sums(it.draws.swapaxes(0, 1)[None], size)
    for i, stored in enumerate(in_batches(it, size)):
        for field, x in stored.items():
            of_chains = getattr(expected, field)[0, :, i]
            np.testing.assert_allclose(x, of_chains, rtol=1e-11, err_msg=field)


@pytest.mark.parametrize("size", BATCHES)
def test_energy_in_batches_tells_what_it_does_as_a_whole(size):
    energy = np.random.default_rng(1).normal(size=(1, 2, DRAWS)) + 1e3

    def told(remembers: bool) -> np.ndarray:
        parts = []
        for i in range(0, DRAWS, size):
            before = energy[..., i - 1] if i and remembers else np.full((1, 2), np.nan)
            parts.append(energy_sums(energy[..., i : i + size], before))
        return efmi(**{name: np.stack([x[name] for x in parts], axis=2) for name in parts[0]})

    steps = (np.diff(energy) ** 2).sum((1, 2))
    expected = steps / ((energy - energy.mean(-1, keepdims=True)) ** 2).sum((1, 2))
    np.testing.assert_allclose(told(True), expected, rtol=1e-11)
    if size < DRAWS:
        assert (told(False) < 0.999 * expected).all()


FINE, ZERO, UNKNOWN = ([-1.0, -2.0], [-1.0, -np.inf], [0.0, np.nan])


def log_score(draws: list[float]) -> Stored:
    return stream(log_sums, np.zeros(1), np.array(draws)[:, None])


def estimate(stored: Stored) -> float:
    return float(elpd(LogSums(*(stored[name][None, None] for name in LogSums._fields)))[0])


def test_zero_density_counts_in_the_estimate_and_shows_in_the_moments():
    for stored in (log_score(ZERO), log_score(ZERO[::-1]), log_score([-np.inf, -np.inf])):
        assert not np.isfinite([stored["mean"], stored["m2"]]).any()
    for merged in (
        log_sums.merge(log_score(FINE), log_score(ZERO)),
        log_sums.merge(log_score(ZERO), log_score(FINE)),
        log_score(ZERO + FINE),
    ):
        assert np.isclose(estimate(merged), np.log((2 * np.exp(-1) + np.exp(-2)) / 4), rtol=1e-12)
        assert not np.isfinite([merged["mean"], merged["m2"]]).any()
    assert estimate(log_score([-np.inf, -np.inf])) == -np.inf


def test_nan_spreads_to_everything_but_the_count():
    for stored in (
        log_score(UNKNOWN),
        log_sums.merge(log_score(FINE), log_score(UNKNOWN)),
        log_sums.merge(log_score(UNKNOWN), log_score(FINE)),
    ):
        assert np.isfinite(stored.pop("count")).all()
        assert np.isnan([*stored.values()]).all()


def test_centring_saves_single_precision():
    """Scores near -1e5, whose single precision is .008, 2,000 of them."""
    scores = np.random.default_rng(5).normal(size=(2000, 1)).astype(np.float32) - np.float32(1e5)
    exact = of_log_scores(scores.astype(np.float64))

    def worst(center: float) -> float:
        stored = stream(log_sums, np.array([center], np.float32), scores)
        absolute = [stored[name] - exact[name] for name in ("mean", "log_sum", "log_sum_sq")]
        return float(np.abs([*absolute, stored["m2"] / exact["m2"] - 1]).max())

    # False alarm < 1e-4: 6e-6, 2e-3 and .7 on average, give or take half as much.
    assert worst(-1e5) < 1e-4
    assert worst(-1e5 + 300) < 1e-2, "a centre that is off by 300 does little harm"
    assert worst(0.0) > 0.05, "uncentred sums would do as well: no need to centre"
