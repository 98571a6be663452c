"""Gradients of a model's log density, checked against finite differences.

They disagree where an index goes beyond the end of a parameter array: JAX reads the last element
there, and leaves it out of the gradient.
"""

import warnings
from collections.abc import Callable, Mapping

import jax
import numpy as np
from jaxtyping import Array, Bool, Float

from pcv.base.devices import precision
from pcv.base.errors import PcvError
from pcv.compile import programs
from pcv.models.model import Data, Params, Scalar
from pcv.models.parameters import flattened, unravel_like

POINTS = 3
"""points checked, those of highest density"""
STEPS = 10.0 ** -np.arange(2.0, 6)
"""of central differences, in nats per parameter"""
TOLERANCE, ROUNDING = 1e-3, 1e4
"""relative error tolerated in a gradient, and units of rounding error"""
NAMED = 3
"""most parameters named in a message"""


def check_slopes(
    density: Callable[[Params], Scalar],
    at: Mapping[str, np.ndarray],
    values: Float[np.ndarray, " point"],
    gradients: Mapping[str, np.ndarray],
    data: Data,
    outcome: str,
    name: str,
) -> None:
    """Check the gradient along a random direction against central differences, in 64 bit: no step
    size suits differences in 32 bit.

    Args:
        density: log density of the parameters.
        at: points, with the density's `values` and `gradients` there; not all are finite.
        data, outcome, name: of the model, for the message.

    Raises:
        PcvError: the gradient is wrong, but the forward-mode derivative, from which JAX
            drops nothing, is right: an index goes beyond the end of a parameter.

    Warns:
        UserWarning: the gradient is wrong for some other reason.
    """
    if not jax.config.jax_enable_x64:
        with precision("float64"):
            at = jax.tree.map(lambda x: np.asarray(x, np.float64), dict(at))
            try:
                found = programs.once(jax.vmap(jax.value_and_grad(density)))(at)
            except TypeError:  # a model that insists on 32 bit
                return
            values, gradients = jax.tree.map(np.asarray, found)
            check_slopes(density, at, values, gradients, data, outcome, name)
        return
    unravel = unravel_like({name: x[0] for name, x in at.items()})
    points, slopes = flattened(at), flattened(gradients)
    finite = np.isfinite(values) & np.isfinite(points).all(1) & np.isfinite(slopes).all(1)
    best = np.argsort(np.where(finite, -values, np.inf), kind="stable")[: min(POINTS, finite.sum())]
    signs: np.ndarray = np.random.default_rng(0).normal(size=(points.shape[1],))
    along = programs.once(jax.vmap(lambda x: density(unravel(x))))

    def off(inside: Bool[np.ndarray, " param"]) -> Bool[np.ndarray, " point"]:
        """Points at which the gradient is wrong along the parameters `inside`."""
        return np.array([_off(along, points[i], slopes[i], signs * inside) for i in best], bool)

    if not best.size or not off(np.ones_like(signs, bool)).all():
        return
    places = unravel(np.arange(signs.size))
    wrong = [
        parameter
        for parameter, own in places.items()
        if off(np.isin(np.arange(signs.size), np.asarray(own))).all()
    ] or list(places)
    said = ", ".join([f"'{x}'" for x in wrong[:NAMED]] + ["…"] * (len(wrong) > NAMED))
    x, move = points[best[0]], _move(slopes[best[0]], signs)
    try:
        forward = programs.once(lambda x, v: jax.jvp(lambda x: density(unravel(x)), (x,), (v,))[1])
        in_reverse_alone = not _differs(along, x, move, float(forward(x, move)))
    except TypeError:  # a custom_vjp has no forward mode
        in_reverse_alone = False
    if not in_reverse_alone:
        warnings.warn(
            f"model '{name}': its gradient in {said} is not the slope of its log density: chains "
            "will be slow, or stuck; look for stop_gradient and custom derivatives",
            stacklevel=3,
        )
        return
    sizes = {size for parameter in wrong for size in at[parameter].shape[1:]}
    columns = [
        column for column, x in data.items() if column != outcome and _counts_from_one(x, sizes)
    ]
    cause = " or ".join(f"column '{column}'" for column in columns)
    cause = f"{cause} counts from 1, subtract 1" if cause else "does one count from 1?"
    said = "a quantity computed from " * (len(wrong) > 1) + said
    raise PcvError(
        f"model '{name}': an index into {said} goes beyond its end, where JAX takes the last "
        f"element: {cause}"
    )


def _counts_from_one(x: object, sizes: set[int]) -> bool:
    values = np.asarray(x)
    if values.dtype.kind not in "iuf" or not values.size or not (values == np.round(values)).all():
        return False
    return bool(values.min() >= 1) and int(values.max()) in sizes


def _move(gradient: Float[np.ndarray, " param"], signs: np.ndarray) -> np.ndarray:
    """A direction in which every parameter matters, whatever its scale."""
    size = np.abs(gradient)
    usual = np.median(size[size > 0]) if (size > 0).any() else 1.0
    return signs / (size + usual / 10)


def _off(
    along: Callable[..., Array], x: np.ndarray, gradient: np.ndarray, signs: np.ndarray
) -> bool:
    move = _move(gradient, signs)
    return _differs(along, x, move, float(gradient @ move))


def _differs(
    along: Callable[..., Array], x: np.ndarray, move: np.ndarray, derivative: float
) -> bool:
    """Whether the slope along a move differs from the derivative by more than the error of finite
    differences, judged by the two adjacent step sizes that agree best."""
    values = np.asarray(along(x + np.outer([*STEPS, *-STEPS], move)))
    plus, minus = values.reshape(2, -1)
    with np.errstate(invalid="ignore"):
        slope = (plus - minus) / (2 * STEPS)
        apart = np.nan_to_num(np.abs(np.diff(slope)), nan=np.inf)
    i = int(np.argmin(apart))
    rounding = ROUNDING * np.finfo(float).eps * abs(plus[i]) / STEPS[i]
    tolerated = 100 * apart[i] + rounding + TOLERANCE * max(abs(slope[i]), abs(derivative))
    return bool(abs(slope[i] - derivative) > tolerated)
