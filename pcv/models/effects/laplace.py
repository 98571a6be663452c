r"""Integrals over a few parameters, with nodes around a Laplace approximation.

Newton's method finds the approximation by automatic differentiation. One-dimensional integrals are
sums over a grid with a random offset, others importance sampling estimates. Both are unbiased, as
the integral of the prior is known, so their error is part of the variance of whatever they are
averaged over. If everything is normal, derivatives at one point give the integral exactly.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Bool, Float, Key

from pcv.models.effects.grid import finite, nodes

MAX_STEPS, CLOSE = 20, 0.01
"""most Newton steps, and the squared step length, in standard deviations, at which they stop"""
STEP_SIZES = (1.0, 0.3, 0.05, *(10.0**-k for k in range(3, 20, 2)), 0.0)
"""multiples of a Newton step that are tried: near an inflection point it is almost unbounded"""
NODES_1D, SPACING, BEND = 61, 0.5, 0.4
"""the grid: nodes, their spacing in standard deviations at the centre, and how fast it widens; it
reaches 500 of them, since single units of a large group vary over the whole of its wide prior"""
NODES_PER_DIM = 16
"""of importance sampling, half around the Laplace approximation, half from the prior"""
TAIL = 5
"""degrees of freedom of the former"""

Function = Callable[[Float[Array, " dim"]], Float[Array, ""]]


class Laplace(NamedTuple):
    """Normal approximation to an unnormalised density."""

    mean: Float[Array, " dim"]
    scale: Float[Array, "dim dim"]
    """a square root of the covariance"""
    whiten: Float[Array, "dim dim"]
    """inverse of `scale`"""
    log_det: Float[Array, ""]
    """log of the determinant of `scale`"""
    log_integral: Float[Array, ""]


class Newton(NamedTuple):
    """A log density at a point, with its Newton step and curvature."""

    value: Float[Array, ""]
    step: Float[Array, " dim"]
    """to the maximum"""
    length: Float[Array, ""]
    """squared length of the step, in standard deviations"""
    scale: Float[Array, "dim dim"]
    """this and the remaining fields as in `Laplace`"""
    whiten: Float[Array, "dim dim"]
    log_det: Float[Array, ""]


class Prior(NamedTuple):
    """A density with a known integral, and draws from it."""

    start: Float[Array, " dim"]
    """a point of high density"""
    log_integral: Float[Array, ""]
    draw: Callable[[Key[Array, ""], int], Float[Array, "draw dim"]]


def normal_prior(function: Function, start: Float[Array, " dim"]) -> Prior:
    """Normal prior whose log density is `function`, up to a constant."""
    found = normal(function, start)

    def draw(key: Key[Array, ""], number: int) -> Float[Array, "draw dim"]:
        z = jax.random.normal(key, (number, start.size), start.dtype)
        return found.mean + z @ found.scale.T

    return Prior(found.mean, found.log_integral, draw)


def independent_prior(
    key: Key[Array, ""],
    function: Function,
    start: Float[Array, " dim"],
    width: Float[Array, " dim"],
) -> Prior:
    """Prior with independent dimensions, each of any shape."""

    def along(place: Array, x: Array) -> Float[Array, ""]:
        return function(start.at[place].set(x))

    def of_dim(key: Key[Array, ""], place: Array) -> tuple[Array, Array, Array]:
        found = nodes(key, lambda x: along(place, x)[None], start[place], width[place])
        density = finite(jax.vmap(lambda x: along(place, x))(found.x))
        return found.x, density, density + found.log_weight

    dim = start.size
    keys = jax.random.split(key, dim)
    x, density, mass = jax.vmap(of_dim)(keys, jnp.arange(dim))
    mode = jnp.take_along_axis(x, jnp.argmax(density, axis=1)[:, None], axis=1)[:, 0]
    total = jnp.sum(jax.nn.logsumexp(mass, axis=1)) - (dim - 1) * function(start)

    def draw(key: Key[Array, ""], number: int) -> Float[Array, "draw dim"]:
        chosen = jax.random.categorical(key, mass[:, None], axis=-1, shape=(dim, number))
        return jnp.take_along_axis(x, chosen, axis=1).T

    return Prior(mode, total, draw)


def log_mean(
    key: Key[Array, ""],
    log_prior: Function,
    terms: Callable[[Float[Array, " dim"]], Float[Array, " slot"]],
    prior: Prior,
    nodes_per_dim: int = NODES_PER_DIM,
) -> tuple[Float[Array, ""], Float[Array, " slot"]]:
    """Log of the prior mean of exp(terms): of their sum, and of each. In one dimension the prior
    must be normal."""
    posterior = laplace(lambda x: log_prior(x) + jnp.sum(terms(x)), prior.start)

    def log_density(x: Float[Array, "node dim"]) -> Float[Array, " node"]:
        return jax.vmap(log_prior)(x) - prior.log_integral

    if prior.start.size == 1:
        x, log_weight = _grid(key, posterior)
        log_weight += log_density(x)
    else:
        x, log_weight = _sampled(key, posterior, prior, log_density, nodes_per_dim)
    at_nodes = jax.vmap(terms)(x)
    joint = jax.nn.logsumexp(log_weight + at_nodes.sum(1))
    return joint, jax.nn.logsumexp(log_weight[:, None] + at_nodes, axis=0)


class Expansion(NamedTuple):
    """Values and first two derivatives of functions at a point."""

    value: Float[Array, "*function"]
    slope: Float[Array, "*function dim"]
    curvature: Float[Array, "*function dim dim"]


def expansion(
    functions: Callable[[Float[Array, " dim"]], Float[Array, "*function"]], x: Float[Array, " dim"]
) -> Expansion:
    """In forward mode throughout: in few dimensions, the smallest program to compile."""

    def value_and_slope(x: Float[Array, " dim"]) -> tuple[Array, tuple[Array, Array]]:
        slope, value = jax.jacfwd(lambda x: (functions(x),) * 2, has_aux=True)(x)
        return slope, (value, slope)

    curvature, (value, slope) = jax.jacfwd(value_and_slope, has_aux=True)(x)
    return Expansion(value, slope, curvature)


def differences(
    functions: Callable[[Float[Array, " dim"]], Float[Array, " function"]],
    x: Float[Array, " dim"],
    width: Float[Array, " dim"],
) -> Expansion:
    """`expansion` of quadratic functions from their values alone: then differences are exact."""
    dim = x.size
    one, other = np.triu_indices(dim, 1)
    steps = jnp.diag(width)
    moves = jnp.concatenate([jnp.zeros((1, dim)), steps, -steps, steps[one] + steps[other]])
    values = jax.vmap(lambda move: functions(x + move))(moves)
    here, up, down, pair = jnp.split(values, [1, 1 + dim, 1 + 2 * dim])
    bent = jnp.zeros((dim, dim, values.shape[1]), values.dtype)
    bent = bent.at[jnp.arange(dim), jnp.arange(dim)].set(up + down - 2 * here)
    mixed = pair - up[one] - up[other] + here
    bent = bent.at[one, other].set(mixed).at[other, one].set(mixed)
    slope, curvature = (up - down) / 2, jnp.moveaxis(bent, 2, 0)
    return Expansion(here[0], slope.T / width, curvature / (width[:, None] * width))


def normal_log_mean(
    log_prior: Function,
    terms: Callable[[Float[Array, " dim"]], Float[Array, " slot"]],
    start: Float[Array, " dim"],
    width: Float[Array, " dim"] | None = None,
) -> tuple[Float[Array, ""], Float[Array, " slot"]]:
    r"""`log_mean` of quadratic terms over a normal prior, exactly.

    A quadratic function with value :math:`t`, slope :math:`a` and curvature :math:`-P` anywhere has

    .. math:: \log \int e^{t + a^\top u - u^\top P u / 2} \, du =
              t + \frac{a^\top P^{-1} a}{2} - \frac{\log \det P}{2} + c

    In single precision "anywhere" is the mode of all terms, where no large numbers cancel.
    Derivatives are JAX's, or, if `width` is given, differences of that size.
    """

    def both(x: Float[Array, " dim"]) -> Float[Array, " term"]:
        return jnp.append(log_prior(x), terms(x))

    def expanded(x: Float[Array, " dim"]) -> Expansion:
        return expansion(both, x) if width is None else differences(both, x, width)

    found = expanded(jax.lax.stop_gradient(start))
    if start.dtype == jnp.float32:
        step = jnp.linalg.solve(-found.curvature.sum(0), found.slope.sum(0))
        found = expanded(jax.lax.stop_gradient(start + step))

    # The prior's value, which may be large, cancels.
    found = found._replace(value=found.value.at[0].set(0.0))

    def sums(x: Float[Array, "term ..."]) -> Float[Array, "sum ..."]:
        """The prior alone, with all terms, and with each term."""
        prior, of_terms = x[:1], x[1:]
        return jnp.concatenate([prior, prior + of_terms.sum(0), prior + of_terms])

    integrals = jax.vmap(_log_integral)(*(sums(x) for x in found))
    return integrals[1] - integrals[0], integrals[2:] - integrals[0]


def _log_integral(value: Array, slope: Array, curvature: Array) -> Float[Array, ""]:
    """Log integral of a normal density, up to a constant that depends on its dimension."""
    root = _root(-curvature)
    w = slope / root[0] if slope.size == 1 else solve_triangular(root, slope, lower=True)
    return value + w @ w / 2 - jnp.sum(jnp.log(jnp.diagonal(root)))


def _root(precision: Float[Array, "dim dim"]) -> Float[Array, "dim dim"]:
    return jnp.sqrt(precision) if precision.size == 1 else jnp.linalg.cholesky(precision)


def normal(function: Function, start: Float[Array, " dim"]) -> Laplace:
    """Normal density whose logarithm is `function`, from a single Newton step."""
    function, constants = jax.closure_convert(function, start)
    constants = jax.lax.stop_gradient(constants)
    start = jax.lax.stop_gradient(start)
    _, slope, curvature = expansion(lambda x: function(x, *constants), start)
    root = _root(-curvature)
    scale = 1 / root if start.size == 1 else jnp.linalg.inv(root).T
    mean = start + scale @ (scale.T @ slope)
    log_det = -jnp.sum(jnp.log(jnp.diagonal(root)))
    peak = function(mean, *constants)  # by the step's length, leading digits would cancel
    return Laplace(mean, scale, root.T, log_det, _of_normal(peak, mean, log_det))


def _of_normal(peak: Array, mean: Array, log_det: Array) -> Float[Array, ""]:
    """Log integral of a normal density from its log density at the mode."""
    return peak + mean.size / 2 * jnp.log(2 * jnp.pi) + log_det


def laplace(function: Function, start: Float[Array, " dim"]) -> Laplace:
    """Safeguarded Newton: absolute eigenvalues, and steps that never decrease the function."""
    function, constants = jax.closure_convert(function, start)
    constants = jax.lax.stop_gradient(constants)  # no gradient through nodes
    start = jax.lax.stop_gradient(start)

    def at(x: Float[Array, " dim"]) -> Newton:
        value, slope, hessian = expansion(lambda x: function(x, *constants), x)
        slope, hessian = jnp.nan_to_num(slope), jnp.nan_to_num(-hessian)
        width = jnp.abs(jnp.diagonal(hessian)) ** -0.5  # each parameter's own unit
        width = jnp.where(jnp.isfinite(width), width, 1.0)
        if x.size == 1:
            values, vectors = hessian[0] * width**2, jnp.ones((1, 1), x.dtype)
        else:
            values, vectors = jnp.linalg.eigh(width[:, None] * hessian * width)
        size = jnp.abs(values)
        sharp = jnp.sqrt(jnp.maximum(size, 1e-6 * jnp.max(size) + 1e-10))
        scale = width[:, None] * vectors / sharp
        whitened = scale.T @ slope
        return Newton(
            value,
            scale @ whitened,
            whitened @ whitened,
            scale,
            (vectors / width[:, None] * sharp).T,
            jnp.sum(jnp.log(width)) - jnp.sum(jnp.log(sharp)),
        )

    def improve(carry: tuple) -> tuple:
        steps, x, here = carry
        tried = x + jnp.asarray(STEP_SIZES, x.dtype)[:, None] * here.step
        values = jax.vmap(lambda x: function(x, *constants))(tried)
        x = tried[jnp.argmax(jnp.where(jnp.isnan(values), -jnp.inf, values))]
        return steps + 1, x, at(x)

    def unsettled(carry: tuple) -> Bool[Array, ""]:
        steps, _, here = carry
        return (steps <= MAX_STEPS) & (here.length > CLOSE)

    zero, far = jnp.zeros((), start.dtype), jnp.array(jnp.inf, start.dtype)
    square = jnp.eye(start.size, dtype=start.dtype)
    nowhere = Newton(zero, jnp.zeros_like(start), far, square, square, zero)
    # The first pass does not move, so that `at` is compiled once.
    _, mean, here = jax.lax.while_loop(unsettled, improve, (0, start, nowhere))
    log_integral = _of_normal(here.value + here.length / 2, mean, here.log_det)
    return Laplace(mean, here.scale, here.whiten, here.log_det, log_integral)


def _grid(
    key: Key[Array, ""], around: Laplace
) -> tuple[Float[Array, "node dim"], Float[Array, " node"]]:
    """Points and log quadrature weights."""
    offset = jax.random.uniform(key, (), around.mean.dtype) - 0.5
    u = SPACING * (jnp.arange(NODES_1D) - NODES_1D // 2 + offset)
    sd = around.scale[0, 0]
    x = around.mean + (sd * jnp.sinh(BEND * u) / BEND)[:, None]
    return x, jnp.log(SPACING * sd * jnp.cosh(BEND * u))


def _sampled(
    key: Key[Array, ""],
    around: Laplace,
    prior: Prior,
    log_density: Callable[[Float[Array, "node dim"]], Float[Array, " node"]],
    per_dim: int,
) -> tuple[Float[Array, "node dim"], Float[Array, " node"]]:
    """Equally many draws from a t distribution and the prior, with log importance weights for prior
    means: none exceeds twice that of equal weighting."""
    dim, dtype = around.mean.size, around.mean.dtype
    half = per_dim * dim // 2
    of_near, of_prior = jax.random.split(key)
    near = draws_of_t(of_near, around, TAIL, half)
    x = jnp.concatenate([near, prior.draw(of_prior, half)])
    tail = dist.MultivariateStudentT(TAIL, jnp.zeros(dim, dtype), jnp.eye(dim, dtype=dtype))
    known = log_density(x)
    of_tail = tail.log_prob((x - around.mean) @ around.whiten.T) - around.log_det
    return x, known - jnp.logaddexp(known, of_tail) - jnp.log(float(half))


def draws_of_t(
    key: Key[Array, ""], around: Laplace, degrees: int, number: int
) -> Float[Array, "draw dim"]:
    drawn = jax.random.normal(key, (number, around.mean.size + degrees), around.mean.dtype)
    z, chi_square = drawn[:, :-degrees], jnp.sum(drawn[:, -degrees:] ** 2, 1)
    return around.mean + z * jnp.sqrt(degrees / chi_square)[:, None] @ around.scale.T
