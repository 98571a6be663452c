r"""Adaptive, derivative-free quadrature for means over the density of one effect.

The line is repeatedly cut into bins where the integrands have mass, starting at high temperature to
find other modes. The density may have any shape, and the start be anywhere in it. Numerator and
denominator share their nodes, so a mean never exceeds the largest value at a node.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Key

BINS, MORE_BINS, PER_BIN = 96, 100, 3
"""bins, most extra bins (one per function), and Gauss–Legendre nodes in each"""
NEAREST, FURTHEST = 1e-6, 1e6
"""distances of the first bins from the start, in widths, which may be off by the same factors"""
TEMPERATURES = tuple(6.0 * 4.0**k for k in range(7, -1, -1))
"""of the densities that bins are cut by; the last exceeds 1, so that tails get bins too"""
TO_MASS, TO_PEAKS = 0.6, 0.3
"""shares of bins allotted by mass, and to both sides of local maxima, which may be narrow; the rest
are spread evenly"""
NEGLIGIBLE = 80.0
"""how far below its maximum the log prior mass at a node counts as zero"""
BEYOND = 1e-3
"""share of the prior beyond the last nodes at which a term can be computed"""
LOWEST = -1e8
"""log density, relative to the maximum, that counts as zero density"""


class Nodes(NamedTuple):
    x: Float[Array, " node"]
    log_weight: Float[Array, " node"]
    """log quadrature weights"""


class Bins(NamedTuple):
    """Edges in x, and the centre and scale of their coordinate s: x = center + scale sinh(s)."""

    center: Float[Array, ""]
    scale: Float[Array, ""]
    edges: Float[Array, " edge"]


def nodes(
    key: Key[Array, ""],
    functions: Callable[[Float[Array, ""]], Float[Array, " function"]],
    start: Float[Array, ""],
    width: Float[Array, ""],
) -> Nodes:
    """Quadrature points and weights for positive functions on the line.

    Args:
        key: for an offset of all edges.
        functions: their logarithms at a point; the first is the density averaged over. A third of
            the bins is for this, a third for the second, and a third for whichever has the
            largest share of its own mass there, so that none of up to a hundred is missed.
        start: a point of nonzero density.
        width: of the density, to within a factor of a million.
    """
    dtype = start.dtype
    number = BINS + min(jax.eval_shape(functions, start).size, MORE_BINS)
    inside = (jnp.arange(1, number) + jax.random.uniform(key, (), dtype) - 0.5) / number
    even = jnp.concatenate([jnp.zeros(1, dtype), inside.astype(dtype), jnp.ones(1, dtype)])

    def cut(bins: Bins, temperature: Float[Array, ""]) -> tuple[Bins, None]:
        s = jnp.arcsinh((bins.edges - bins.center) / bins.scale)
        found = jax.vmap(functions)(bins.edges) + jnp.log(jnp.cosh(s))[:, None]
        found = finite(found).astype(dtype)
        top = jnp.max(found, axis=0)
        found = jnp.maximum(jnp.where(jnp.isfinite(top), found - top, 0.0), LOWEST)
        size = jnp.diff(s)[:, None]
        ends = jnp.maximum(found[1:], found[:-1])  # no bin beside a narrow peak counts as empty
        mass = size * jnp.exp(ends / temperature)
        peak = (found[1:-1] > found[:-2]) & (found[1:-1] >= found[2:])
        beside = jnp.pad(peak, ((1, 0), (0, 0))) | jnp.pad(peak, ((0, 1), (0, 0)))
        share = TO_MASS * _bin_shares(mass)
        share += TO_PEAKS * _bin_shares(beside.astype(dtype))
        share += (1 - share.sum()) / number

        def quantiles(share: Float[Array, " bin"], at: Array) -> Array:
            below = jnp.concatenate([jnp.zeros(1, dtype), jnp.cumsum(share)])
            found = jnp.interp(at * below[-1], below, s)
            return bins.center + bins.scale * jnp.sinh(found)

        quarters = jnp.asarray([0.25, 0.5, 0.75], dtype)
        low, middle, high = quantiles((size * jnp.exp(ends))[:, 0], quarters)
        scale = jnp.maximum((high - low) / 2, NEAREST * bins.scale)
        return Bins(middle, scale, quantiles(share, even)), None

    scale = NEAREST * width
    reach = float(np.arcsinh(FURTHEST / NEAREST))
    first = Bins(start, scale, start + scale * jnp.sinh(reach * (2 * even - 1)))
    bins, _ = jax.lax.scan(cut, first, jnp.asarray(TEMPERATURES, dtype))
    s = jnp.arcsinh((bins.edges - bins.center) / bins.scale)
    at, weight = (jnp.asarray(x, dtype) for x in np.polynomial.legendre.leggauss(PER_BIN))
    half = jnp.diff(s)[:, None] / 2
    s = s[:-1, None] + half * (1 + at)
    log_weight = jnp.log(half * weight) + jnp.log(bins.scale * jnp.cosh(s))
    return Nodes((bins.center + bins.scale * jnp.sinh(s)).ravel(), log_weight.ravel())


def _bin_shares(mass: Float[Array, "bin function"]) -> Float[Array, " bin"]:
    """Shares of the bins: by the mass of the first function, the second, and any."""
    tiny = jnp.finfo(mass.dtype).tiny
    share = mass / jnp.maximum(mass.sum(0), tiny)
    of_any = jnp.max(share, axis=1)
    return (2 * share[:, :2].mean(1) + of_any / jnp.maximum(of_any.sum(), tiny)) / 3


def finite(log_density: Float[Array, "*point"]) -> Float[Array, "*point"]:
    """Density 0 where it is NaN, as where both its parts overflow."""
    return jnp.where(jnp.isnan(log_density), -jnp.inf, log_density)


def log_mean(
    key: Key[Array, ""],
    log_prior: Callable[[Float[Array, ""]], Float[Array, ""]],
    terms: Callable[[Float[Array, ""]], Float[Array, " slot"]],
    start: Float[Array, ""],
    width: Float[Array, ""],
) -> tuple[Float[Array, ""], Float[Array, " slot"]]:
    """Log mean of exp(terms) over a prior of any shape: of their sum, and of each."""

    def functions(x: Float[Array, ""]) -> Float[Array, " function"]:
        prior, each = log_prior(x), terms(x)
        return jnp.concatenate([jnp.stack([prior, prior + each.sum()]), prior + each])

    x, log_weight = nodes(key, functions, start, width)
    mass = finite(jax.vmap(log_prior)(x)) + log_weight
    each = _extrapolated(jax.vmap(terms)(x), jax.nn.softmax(mass))

    of_node = mass[:, None]
    found = jnp.concatenate([of_node, of_node + each.sum(1)[:, None], of_node + each], axis=1)
    # A term may overflow where the prior is negligible; elsewhere that is the model's own.
    nowhere = _overflows(found) & (of_node < jnp.max(mass) - NEGLIGIBLE)
    integrals = jax.nn.logsumexp(jnp.where(nowhere, -jnp.inf, found), axis=0)
    return integrals[1] - integrals[0], integrals[2:] - integrals[0]


def _overflows(x: Float[Array, "*any"]) -> Bool[Array, "*any"]:
    return jnp.isnan(x) | jnp.isposinf(x)


def _extrapolated(
    each: Float[Array, "node slot"], mass: Float[Array, " node"]
) -> Float[Array, "node slot"]:
    """Terms that overflow at the ends of the line, as for counts whose rate does, replaced by
    those of the nearest node if next to no prior mass lies beyond it."""
    mask, places = ~_overflows(each), jnp.arange(len(each))[:, None]
    last = len(each) - 1 - jnp.argmax(mask[::-1], axis=0)
    nearest = jnp.clip(places, jnp.argmax(mask, axis=0), last)
    lost = jnp.sum(jnp.where(nearest != places, mass[:, None], 0.0), axis=0)
    return jnp.where(lost < BEYOND, jnp.take_along_axis(each, nearest, axis=0), each)
