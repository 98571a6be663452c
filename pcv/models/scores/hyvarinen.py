r"""The Hyvärinen score: how well the slope of the log predictive density fits, not its height.

.. math:: \mathrm{HS} = -\sum_i \left\{ 2 E^*[\partial_i^2 \ell + (\partial_i \ell)^2]
          - (E^*[\partial_i \ell])^2 \right\}, \qquad \ell = \log p(y \mid \theta)

with derivatives in the outcome of unit i. E* is the expectation under the posterior that includes
the scored data (Shao et al. 2019): the draws of a fold, which leaves them out, weighted by
:math:`p(y_\mathrm{test}\mid\theta)` (joint) or :math:`p(y_i\mid\theta)` (pointwise). Coordinates
are squared one by one, then summed. In the inverse square of the outcome's units.

PCV eq. 38–39, which are losses: the sign is that of its table 1. Eq. 39 and algorithm 3 leave the
scored data out of the expectation, and algorithm 3 sums first.

An outcome N(θ, 1) with θ from N(0, 1) is marginally N(0, 2) and scores
:math:`2 / 2 - (y / 2)^2`:

>>> y, theta = 1.5, np.linspace(-9, 9, 1001)
>>> weight = np.exp(-(theta**2) / 2 - (y - theta) ** 2 / 2)
>>> first, second = theta - y, -1
>>> means = {
...     "first": np.array([[np.average(first, weights=weight)]]),
...     "second": np.array([[np.average(second + first**2, weights=weight)]]),
... }
>>> hyvarinen[1].estimate(means, np.array([[y]])).round(4)
array([[0.4375]])
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from pcv.models.model import Fold, Target
from pcv.models.scores.score import Kind, Means, Score


def derivatives(
    target: Target, params: Any, fold: Fold, kind: Kind
) -> tuple[Float[Array, " slot"], Float[Array, " slot"]]:
    r"""First and second derivative of the log predictive in each slot's own outcome.

    .. math:: \partial_i \ell, \quad \partial_i^2 \ell, \qquad
              \ell = \log p(y_\mathrm{test} \mid \theta) \quad \text{or} \quad
              \log p(y_i \mid \theta)

    Args:
        target: with `observed` and `density`.
        params: of one draw.
        fold: whose test set is scored.
        kind: log predictive to differentiate: joint or pointwise.

    Returns:
        Both for every slot, per unit of the outcome and per unit squared.

    >>> target = Target(
    ...     None, None, None, observed=lambda fold: jnp.array([1.0, 2.0]),
    ...     density=lambda params, fold, y: ((-(y**2) / 2).sum(), -(y**2) / 2))
    >>> fold = Fold(train=jnp.array([False, False]), test=jnp.array([0, 1]))
    >>> first, second = derivatives(target, {}, fold, "joint")
    >>> first.tolist(), second.tolist()
    ([-1.0, -2.0], [-1.0, -1.0])
    """
    assert target.observed is not None
    assert target.density is not None
    y, density = target.observed(fold), target.density

    def along(slot: Array) -> tuple[Array, Array]:
        def at(t: Array) -> Array:
            joint, pointwise = density(params, fold, y.at[slot].add(t))
            return joint if kind == "joint" else pointwise[slot]

        zero, one = jnp.zeros((), y.dtype), jnp.ones((), y.dtype)
        return jax.jvp(lambda t: jax.jvp(at, (t,), (one,))[1], (zero,), (one,))

    return jax.vmap(along)(jnp.arange(y.size))


def _score(kind: Kind) -> Score:
    def statistic(key: Key[Array, ""], target: Target, params: Any, fold: Fold) -> dict[str, Array]:
        first, second = derivatives(target, params, fold, kind)
        return {"first": first, "second": second + first**2}

    def log_weight(key: Key[Array, ""], target: Target, params: Any, fold: Fold) -> Array:
        joint, pointwise = target.log_predictive(params, fold)
        return joint if kind == "joint" else pointwise

    def estimate(means: Means, y: np.ndarray) -> np.ndarray:
        by_unit = means["first"] ** 2 - 2 * means["second"]
        return np.where(np.isnan(y), 0.0, by_unit).sum(-1) if kind == "joint" else by_unit

    return Score("hyvarinen", kind, statistic, estimate, log_weight, needs=("derivatives",))


hyvarinen = (_score("joint"), _score("pointwise"))
