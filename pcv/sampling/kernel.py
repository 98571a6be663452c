r"""The HMC metric, learnt from pooled draws: a diagonal plus the directions that it misses.

.. math:: \theta = c + d \circ \bigl(I + U\,\mathrm{diag}(r - 1)\,U^\top\bigr) z

with unit mass on z: standard deviations d, and orthonormal directions U in which the standardised
draws have standard deviations r instead of 1.
"""

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Array, Float

DENSE, MOST = 100, 16
"""largest number of parameters for a full-rank kernel, and the rank for more"""

FEWEST_PER_PARAM = 4
"""effective draws per parameter needed to use small eigenvalues of the correlation matrix"""


class Kernel(NamedTuple):
    """A metric; centring by `center` preserves single precision."""

    center: Float[Any, " param"]
    scale: Float[Any, " param"]
    directions: Float[Any, "param direction"]
    ratios: Float[Any, " direction"]


def num_directions(num_params: int) -> int:
    """Number of directions of a kernel.

    >>> num_directions(65), num_directions(400)
    (65, 16)
    """
    return num_params if num_params <= DENSE else MOST


def plain(num_params: int) -> Kernel:
    """The kernel of a standard normal posterior."""
    number = num_directions(num_params)
    directions = np.zeros((num_params, number))
    return Kernel(np.zeros(num_params), np.ones(num_params), directions, np.ones(number))


def to_z(kernel: Kernel, position: Float[Array, " param"]) -> Float[Array, " param"]:
    """Whitened coordinates z of a position θ."""
    x = (position - kernel.center) / kernel.scale
    return x + kernel.directions @ ((1 / kernel.ratios - 1) * (kernel.directions.T @ x))


def from_z(kernel: Kernel, z: Float[Array, " param"]) -> Float[Array, " param"]:
    """The position θ of whitened coordinates z."""
    x = z + kernel.directions @ ((kernel.ratios - 1) * (kernel.directions.T @ z))
    return kernel.center + kernel.scale * x


def whitened(
    kernel: Kernel, positions: Float[np.ndarray, "*draw param"]
) -> Float[np.ndarray, "*draw param"]:
    """`to_z` for many positions, in NumPy."""
    x = (positions - kernel.center) / kernel.scale
    return x + ((x @ kernel.directions) * (1 / kernel.ratios - 1)) @ kernel.directions.T


def covariance(kernel: Kernel) -> Float[np.ndarray, "param param"]:
    """Covariance of a posterior that the kernel whitens."""
    spread = (kernel.directions * (kernel.ratios**2 - 1)) @ kernel.directions.T
    spread[np.diag_indices_from(spread)] += 1
    return kernel.scale[:, None] * spread * kernel.scale


def precisions(kernel: Kernel) -> Float[np.ndarray, " param"]:
    """Conditional precision of each parameter given the others, where the kernel whitens."""
    return (1 + kernel.directions**2 @ (1 / kernel.ratios**2 - 1)) / kernel.scale**2


def learn(draws: Float[np.ndarray, "draw param"], num_effective: float) -> Kernel:
    r"""The kernel estimated from posterior draws.

    Only eigenvalues of the sample correlation matrix outside the Marchenko–Pastur range of
    independent parameters are used,

    .. math:: \lambda < (1 - \sqrt{p/n})^2 \quad\text{or}\quad \lambda > (1 + \sqrt{p/n})^2,

    and small ones only with at least four draws per parameter: underestimating the scale of a
    direction would keep chains from moving along it.

    Args:
        draws: pooled over chains.
        num_effective: their effective sample size.
    """
    num_params = draws.shape[1]
    center, scale = draws.mean(0), draws.std(0)
    scale = np.where(scale > 0, scale, 1.0)
    values, vectors = eigen(np.asarray((draws - center) / scale, np.float64))
    edge = np.sqrt(num_params / max(num_effective, 1.0))
    low = (1 - edge) ** 2 if edge <= 1 / np.sqrt(FEWEST_PER_PARAM) else 0.0
    counts = (values > (1 + edge) ** 2) | (values < low)
    away = np.where(counts, np.abs(np.log(np.maximum(values, 1e-12))), 0.0)
    made = plain(num_params)
    chosen = np.argsort(-away)[: made.ratios.size]
    chosen = chosen[counts[chosen]]
    made.directions[:, : chosen.size] = vectors[:, chosen]
    made.ratios[: chosen.size] = np.sqrt(np.maximum(values[chosen], 1e-12))
    return made._replace(center=center, scale=scale)


def eigen(x: Float[np.ndarray, "draw param"]) -> tuple[np.ndarray, np.ndarray]:
    """Eigenvalues and eigenvectors (columns) of the mean of x xᵀ over draws, from the smaller Gram
    matrix: ten times as fast as an SVD of x."""
    number, num_params = x.shape
    few = number < num_params
    values, vectors = np.linalg.eigh((x @ x.T if few else x.T @ x) / number)
    values = np.maximum(values, 0.0)  # rounding makes some zeros negative
    if few:
        lengths = np.sqrt(number * values)
        vectors = np.divide(x.T @ vectors, lengths, where=lengths > 0, out=np.zeros(x.T.shape))
    return values, vectors
