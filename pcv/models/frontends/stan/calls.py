"""Stan's densities as functions of JAX, which calls them for all chains of a tile at once.

Stan has first derivatives of a density. Those of log likelihoods, and second ones, are central
differences; they place nodes and find out what depends on what, and are exact up to rounding where
the log likelihood is quadratic.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from pcv.models.frontends.stan.loaded import Stan

STEP, WIDE_STEP = 1e-4, 1e-2
"""of first and second differences, relative to the parameters they move"""
ROUNDING = 64.0
"""differences below so many units of rounding error are 0"""

Vector = Float[Array, " param"]


def call(
    function: Callable[..., Any], shapes: tuple[tuple[int, ...], ...], *args: Any
) -> list[Array]:
    """Call a function of NumPy arrays, whose leading axis is the chain, from JAX.

    Numbers of 64 bits travel as two of 32: JAX (0.12) converts a callback's numbers in a thread of
    its own, in which they are of 32 bits.

    Args:
        function: returns one array for each of `shapes`.
        shapes: of its results for one chain.
        args: of one chain.
    """
    dtype = jnp.result_type(float)
    wide = dtype == jnp.float64
    dims = [x.ndim for x in args]

    def on_host(*sent: Any) -> list[np.ndarray]:
        arrays = [np.ascontiguousarray(x) for x in sent]
        if wide:
            arrays = [x.view(np.float64)[..., 0] for x in arrays]
        lead = arrays[0].shape[: arrays[0].ndim - dims[0]]
        flat = [x.reshape(-1, *x.shape[x.ndim - dim :]) for x, dim in zip(arrays, dims)]
        made = function(*(x.astype(np.float64) for x in flat))
        with np.errstate(over="ignore"):  # beyond single precision
            shaped = [np.asarray(x, dtype).reshape((*lead, *of)) for x, of in zip(made, shapes)]
        if not wide:
            return shaped
        return [np.ascontiguousarray(x[..., None]).view(np.uint32) for x in shaped]

    def bits(x: Array) -> Array:
        return jax.lax.bitcast_convert_type(jnp.asarray(x, dtype), jnp.uint32) if wide else x

    kinds = [
        jax.ShapeDtypeStruct((*of, 2) if wide else of, np.uint32 if wide else dtype)
        for of in shapes
    ]
    sent = [bits(x) if wide else jnp.asarray(x, dtype) for x in args]
    made = jax.pure_callback(on_host, kinds, *sent, vmap_method="broadcast_all")
    return [jax.lax.bitcast_convert_type(x, dtype) if wide else x for x in made]


def log_joint(stan: Stan) -> Callable[[Vector, Array], Array]:
    """Log prior plus weighted log likelihood, twice differentiable in the parameters."""
    size = (stan.num_params,)

    def turned(q: np.ndarray, weights: np.ndarray, v: np.ndarray) -> list[np.ndarray]:
        step = _steps(q, v, STEP)
        (_, up), (_, down) = (stan.joint(q + sign * step * v, weights) for sign in (1, -1))
        return [_rounded(up - down, up, down) / (2 * step)]

    @jax.custom_jvp
    def with_slope(q: Vector, weights: Array) -> tuple[Array, Vector]:
        value, slope = call(stan.joint, ((), size), q, weights)
        return value, slope

    @with_slope.defjvp
    def _(primals: Any, tangents: Any) -> tuple[Any, Any]:
        (value, slope), v = with_slope(*primals), tangents[0]
        return (value, slope), (slope @ v, call(turned, (size,), *primals, v)[0])

    @jax.custom_jvp
    def value(q: Vector, weights: Array) -> Array:
        return with_slope(q, weights)[0]

    @value.defjvp
    def _(primals: Any, tangents: Any) -> tuple[Array, Array]:
        density, slope = with_slope(*primals)
        return density, slope @ tangents[0]

    return value


def log_prior(stan: Stan, num_units: int) -> Callable[[Vector], Array]:
    """Log prior, twice differentiable."""
    joint, none = log_joint(stan), np.zeros(num_units)

    @jax.custom_jvp
    def value(q: Vector) -> Array:
        return call(lambda q: [stan.prior(q)], ((),), q)[0]

    @value.defjvp
    def _(primals: Any, tangents: Any) -> tuple[Array, Array]:
        return jax.jvp(lambda q: joint(q, jnp.asarray(none)), primals, tangents)

    return value


def log_lik(stan: Stan, num_units: int) -> Callable[[Vector], Float[Array, " unit"]]:
    """Log likelihood of each unit, twice differentiable in forward mode."""
    size = ((num_units,),)

    def along(q: np.ndarray, v: np.ndarray) -> list[np.ndarray]:
        step = _steps(q, v, STEP)
        up, down = (stan.terms(q + sign * step * v) for sign in (1, -1))
        return [_rounded(up - down, up, down) / (2 * step)]

    def twice(q: np.ndarray, v: np.ndarray, u: np.ndarray) -> list[np.ndarray]:
        one, other = _steps(q, v, WIDE_STEP) * v, _steps(q, u, WIDE_STEP) * u
        corners = [
            stan.terms(q + first * one + second * other)
            for first, second in ((1, 1), (1, -1), (-1, 1), (-1, -1))
        ]
        plus, minus = corners[0] + corners[3], corners[1] + corners[2]
        area = 4 * _steps(q, v, WIDE_STEP) * _steps(q, u, WIDE_STEP)
        return [_rounded(plus - minus, plus, minus) / area]

    @jax.custom_jvp
    def slope(q: Vector, v: Vector) -> Float[Array, " unit"]:
        return call(along, size, q, v)[0]

    @slope.defjvp
    def _(primals: Any, tangents: Any) -> tuple[Array, Array]:
        q, v = primals
        of_q, of_v = tangents
        return slope(q, v), call(twice, size, q, v, of_q)[0] + slope(q, of_v)

    @jax.custom_jvp
    def terms(q: Vector) -> Float[Array, " unit"]:
        return call(lambda q: [stan.terms(q)], size, q)[0]

    @terms.defjvp
    def _(primals: Any, tangents: Any) -> tuple[Array, Array]:
        return terms(*primals), slope(*primals, *tangents)

    return terms


def _steps(q: np.ndarray, v: np.ndarray, relative: float) -> Float[np.ndarray, "point 1"]:
    """Multiples of directions that move parameters a little."""
    length = np.abs(v).max(1, keepdims=True)
    moved = np.where(v != 0, np.abs(q), 0.0).max(1, keepdims=True)
    step = relative * np.maximum(moved, 1.0) / np.where(length > 0, length, 1.0)
    return np.where(length > 0, step, 1.0)


def _rounded(difference: np.ndarray, one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Differences, 0 where rounding may have made them."""
    size = np.maximum(np.abs(one), np.abs(other))
    return np.where(np.abs(difference) <= ROUNDING * np.finfo(float).eps * size, 0.0, difference)
