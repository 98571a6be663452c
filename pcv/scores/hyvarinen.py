r"""The Hyvärinen score: how well the slope of the log predictive density fits, not its height.

.. math:: \mathrm{HS} = -\sum_i \left\{ 2 E^*[\partial_i^2 \ell + (\partial_i \ell)^2]
          - (E^*[\partial_i \ell])^2 \right\}, \qquad \ell = \log p(y \mid \theta)

with derivatives in the outcome of unit i. E* is the expectation under the posterior that includes
the scored data (Shao et al. 2019): the draws of a fold, which leaves them out, weighted by
:math:`p(y_\mathrm{test}\mid\theta)` (joint) or :math:`p(y_i\mid\theta)` (pointwise). Coordinates
are squared one by one, then summed. PCV appendix A; its algorithm 3 is unweighted and sums first.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from pcv.model import Fold, Target
from pcv.scores.score import Kind, Means, Score


def derivatives(
    target: Target, params: Any, fold: Fold, kind: Kind
) -> tuple[Float[Array, " slot"], Float[Array, " slot"]]:
    """First and second derivative of the log predictive in each slot's own outcome."""
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
