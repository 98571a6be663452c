"""Streaming sums that replace the draws.

An `Accumulator` stands for this loop, run on the device, one batch of draws at a time:

    carry = init(example)
    for x in draws:
        carry = update(carry, x)
    return finalize(carry)

What `finalize` returns is stored per (fold, chain, batch), and all later analysis is computed from
it. `merge` combines the stored sums of two consecutive runs of draws. Accumulators see one chain;
`vmap` adds the others.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from pcv.analysis import diagnostics
from pcv.analysis.diagnostics.jackknife import like

Carry = Any
Stored = dict[str, np.ndarray]


class Accumulator(NamedTuple):
    """Sums of a statistic: `init`, `update` on the device, `merge`, `finalize` on the host."""

    init: Callable[[Any], Carry]
    update: Callable[[Carry, Any], Carry]
    merge: Callable[[Stored, Stored], Stored]
    finalize: Callable[[Carry], Stored]


class LogSumsCarry(NamedTuple):
    """Sums of a log score about `center`, which preserves single precision."""

    center: Float[Array, "..."]
    number: Float[Array, ""]
    mean: Float[Array, "..."]
    m2: Float[Array, "..."]
    log_sum: Float[Array, "..."]
    log_sum_sq: Float[Array, "..."]


def _log_sums_init(center: Float[Array, "..."]) -> LogSumsCarry:
    zero = jnp.zeros_like(center)
    empty = jnp.full_like(center, -jnp.inf)
    return LogSumsCarry(center, jnp.zeros((), center.dtype), zero, zero, empty, empty)


def _log_sums_update(carry: LogSumsCarry, score: Float[Array, "..."]) -> LogSumsCarry:
    s = score - carry.center
    number = carry.number + 1
    delta = s - carry.mean
    mean = carry.mean + delta / number
    return LogSumsCarry(
        carry.center,
        number,
        mean,
        carry.m2 + delta * (s - mean),
        jnp.logaddexp(carry.log_sum, s),
        jnp.logaddexp(carry.log_sum_sq, 2 * s),
    )


def _log_sums_merge(first: Stored, second: Stored) -> Stored:
    fields = diagnostics.LogSums._fields
    both = diagnostics.LogSums(*(np.stack([first[f], second[f]]) for f in fields))
    return diagnostics.merge(both, axis=0)._asdict()


def _log_sums_finalize(carry: LogSumsCarry) -> Stored:
    center, number, mean, m2, log_sum, log_sum_sq = (np.asarray(x, np.float64) for x in carry)
    return {
        "count": number,
        "mean": mean + center,
        "m2": m2,
        "log_sum": log_sum + center,
        "log_sum_sq": log_sum_sq + 2 * center,
    }


log_sums = Accumulator(_log_sums_init, _log_sums_update, _log_sums_merge, _log_sums_finalize)
r"""Count, mean and M2 of a log score s (Welford), log Σ exp(s) and log Σ exp(2s).

`init` takes the centring constant, shaped like the score. PCV appendix A.
"""


def energy_sums(
    energy: Float[np.ndarray, "*chain draw"], before: Float[np.ndarray, "*chain"]
) -> Stored:
    r"""Count, mean, M2 and summed squared differences of the energy E of a batch of draws.

    .. math:: \text{E-FMI} = \sum_t (E_t - E_{t-1})^2 / M_2

    Args:
        energy: of the draws of each chain.
        before: of the last draw before the batch (NaN: none), so that batches add up.
    """
    mean = energy.mean(-1)
    steps = np.diff(np.concatenate([before[..., None], energy], axis=-1))
    return {
        "count": np.full(mean.shape, float(energy.shape[-1])),
        "mean": mean,
        "m2": ((energy - mean[..., None]) ** 2).sum(-1),
        "diff_sq": np.nansum(steps**2, axis=-1),
    }


class WeightedCarry(NamedTuple):
    """Weighted sums of several arrays, in units of the largest weight so far."""

    log_scale: Float[Array, "..."]
    weight: Float[Array, "..."]
    sums: dict[str, Array]


def _times(weight: Array, x: Array) -> Array:
    weight = like(weight, x)
    return jnp.where(weight > 0, weight * x, 0.0)


def _weighted_init(example: tuple[Array, dict[str, Array]]) -> WeightedCarry:
    log_weight, values = example
    return WeightedCarry(
        jnp.full_like(log_weight, -jnp.inf),
        jnp.zeros_like(log_weight),
        {name: jnp.zeros_like(x) for name, x in values.items()},
    )


def _weighted_update(carry: WeightedCarry, draw: tuple[Array, dict[str, Array]]) -> WeightedCarry:
    log_weight, values = draw
    scale = jnp.maximum(carry.log_scale, log_weight)
    finite = jnp.where(jnp.isfinite(scale), scale, 0.0)
    old, new = jnp.exp(carry.log_scale - finite), jnp.exp(log_weight - finite)
    return WeightedCarry(
        scale,
        old * carry.weight + new,
        {name: _times(old, x) + _times(new, values[name]) for name, x in carry.sums.items()},
    )


def _weighted_merge(first: Stored, second: Stored) -> Stored:
    log_weight = np.logaddexp(first["log_weight"], second["log_weight"])
    shares = [np.exp(part["log_weight"] - log_weight) for part in (first, second)]
    means = {
        name: like(shares[0], x) * x + like(shares[1], x) * second[name]
        for name, x in first.items()
        if name != "log_weight"
    }
    return {"log_weight": log_weight, **means}


def _weighted_finalize(carry: WeightedCarry) -> Stored:
    log_scale, weight = (np.asarray(x, np.float64) for x in (carry.log_scale, carry.weight))
    with np.errstate(divide="ignore", invalid="ignore"):
        means = {
            name: np.asarray(x, np.float64) / like(weight, x) for name, x in carry.sums.items()
        }
        return {"log_weight": log_scale + np.log(weight), **means}


weighted_means = Accumulator(_weighted_init, _weighted_update, _weighted_merge, _weighted_finalize)
r"""Weighted means :math:`\sum_t w_t x_t / \sum_t w_t` of named arrays, and log Σ w.

`init` and `update` take log w and the arrays, whose leading axes are those of log w. Sums are
relative to the largest weight, so none under- or overflows.
"""
