r"""Chains on a linear subspace of the parameters (Tarek, Francis and Panagiotelis).

.. math:: \theta = \hat\theta + U \xi, \qquad \xi \in \mathbb R^d

with the full data's posterior mean :math:`\hat\theta` and the d leading eigenvectors U of its
covariance, on the unconstrained scale. Prior and likelihood are those at θ, so that a fold's chains
draw from its posterior on the subspace: exact where d is the number of parameters, else biased by
as much as the fold would move in the directions left out.
"""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from pcv.models.model import Target
from pcv.sampling.kernel import Kernel, eigen, plain

NO_TERMS = (
    "kernel.subspace.predictive_share needs the log likelihoods of the full-data fit, which has "
    "none; give a share, or a number"
)
SINGULAR = 1e-12
"""ratio of an eigenvalue to the largest, below which there is no variance"""


class Subspace(NamedTuple):
    """Where chains move, and how the full-data posterior is spread there."""

    center: Float[np.ndarray, " param"]
    directions: Float[np.ndarray, "param direction"]
    """orthonormal"""
    scale: Float[np.ndarray, " direction"]
    """standard deviations along them"""
    share: float
    """of the posterior's variance"""


def principal(draws: Float[np.ndarray, "draw param"]) -> Subspace:
    """All directions in which the draws vary, by decreasing variance.

    >>> draws = np.random.default_rng(1).normal(size=(1000, 3)) * [1, 3, 0]
    >>> abs(principal(draws).directions).round(1)
    array([[0., 1.],
           [1., 0.],
           [0., 0.]])
    """
    center = draws.mean(0)
    values, vectors = eigen(np.asarray(draws - center, np.float64))
    order = np.argsort(-values)
    order = order[values[order] > SINGULAR * values.max()]
    directions = vectors[:, order]
    largest = np.abs(directions).argmax(0)
    directions = directions * np.sign(directions[largest, np.arange(len(order))])
    return Subspace(center, directions, np.sqrt(values[order]), 1.0)


def leading(space: Subspace, number: int) -> Subspace:
    """The first directions."""
    kept = float((space.scale[:number] ** 2).sum() / (space.scale**2).sum())
    return Subspace(space.center, space.directions[:, :number], space.scale[:number], kept)


def by_terms(
    space: Subspace, draws: Float[np.ndarray, "draw param"], terms: Float[np.ndarray, "draw unit"]
) -> tuple[Subspace, Float[np.ndarray, " direction"]]:
    r"""Directions by what they add to the variance of the units' log likelihoods :math:`l_i`, as
    far as these are linear in the parameters; and what each adds,

    .. math:: \sum_i \mathrm{cov}(l_i, \xi_j)^2 / \mathrm{var}(\xi_j)

    >>> draws = np.random.default_rng(1).normal(size=(1000, 2)) * [3, 1]
    >>> by_terms(principal(draws), draws, draws[:, 1:])[0].scale.round(1)
    array([1., 3.])
    """
    finite = terms[:, np.isfinite(terms).all(0)]
    along = projected(space, draws) / space.scale
    added = (((finite - finite.mean(0)).T @ along / len(draws)) ** 2).sum(0)
    order = np.argsort(-added)
    space = space._replace(directions=space.directions[:, order], scale=space.scale[order])
    return space, added[order]


def enough(of_each: Float[np.ndarray, " direction"], share: float) -> int:
    """The least number of directions with a share of the sum.

    >>> enough(np.array([9.0, 1.0]), 0.8), enough(np.array([9.0, 1.0]), 0.95)
    (1, 2)
    """
    cumulated = np.cumsum(of_each) / of_each.sum()
    return min(int(np.searchsorted(cumulated, share * (1 - 1e-9))) + 1, len(of_each))


def beyond(asked: int, num_params: int, most: int | None = None) -> str:
    """What is wrong with a number of directions; empty if nothing.

    >>> beyond(4, 3)
    'kernel.subspace is 4, but the model has 3 parameters; give 1 to 3'
    """
    most = num_params if most is None else most
    if asked <= most:
        return ""
    singular = f", whose posterior covariance has rank {most}" * (most < num_params)
    return (
        f"kernel.subspace is {asked}, but the model has {num_params} parameters{singular}; give 1 "
        f"to {most}"
    )


def projected(
    space: Subspace, positions: Float[np.ndarray, "*draw param"]
) -> Float[np.ndarray, "*draw direction"]:
    r""":math:`\xi = U^\top (\theta - \hat\theta)`."""
    return (positions - space.center) @ space.directions


def lifted(
    space: Subspace, positions: Float[np.ndarray, "*draw direction"]
) -> Float[np.ndarray, "*draw param"]:
    r""":math:`\theta = \hat\theta + U \xi`."""
    return space.center + positions @ space.directions.T


def kernel(space: Subspace) -> Kernel:
    """The metric that whitens the full-data posterior on the subspace."""
    return plain(len(space.scale))._replace(scale=space.scale)


def on_subspace(target: Target, space: Subspace) -> Target:
    """A target on flat parameters as one of their coordinates in the subspace."""
    center, directions = jnp.asarray(space.center), jnp.asarray(space.directions)
    density, predict, moments = target.density, target.predict, target.moments
    cdf, log_path = target.cdf, target.log_path

    def at(x: Float[Array, " direction"]) -> Float[Array, " param"]:
        return center + directions @ x

    return target._replace(
        init=lambda key: directions.T @ (target.init(key) - center),
        log_density=lambda x, fold: target.log_density(at(x), fold),
        log_predictive=lambda x, fold: target.log_predictive(at(x), fold),
        constrain=lambda x: target.constrain(at(x)),
        density=density and (lambda x, fold, y: density(at(x), fold, y)),
        predict=predict and (lambda key, x, fold: predict(key, at(x), fold)),
        cdf=cdf and (lambda key, x, fold, y: cdf(key, at(x), fold, y)),
        moments=moments and (lambda x, fold: moments(at(x), fold)),
        log_path=log_path and (lambda key, x, fold: log_path(key, at(x), fold)),
    )
