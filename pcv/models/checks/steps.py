"""Which parameters move a model's log likelihood in steps alone, as hard change points do."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from pcv.compile import programs
from pcv.models.model import Data, Model, Target, numeric
from pcv.models.parameters import unravel_of

FEW = 50
"""draws at which slopes and steps are looked for"""


def stepwise(
    model: Model | Target, data: Data, position: Float[np.ndarray, "chain draw param"]
) -> list[str]:
    """Parameters that have no slope at any draw, though the log likelihood differs between draws.

    HMC does not see them: its chains keep the value that they started from. Each is moved from draw
    to draw alone, the others staying where the first draw has them.

    Args:
        model: the model.
        data: of its units.
        position: draws of all parameters, flat and unconstrained.
    """
    if isinstance(model, Target):
        return []
    flat = position.reshape(-1, position.shape[-1])
    draws = flat[np.linspace(0, len(flat) - 1, FEW).astype(int)]
    unravel, arrays = unravel_of(model.init), numeric(data)

    def total(position: Float[Array, " param"]) -> Float[Array, ""]:
        params = unravel(position)
        if model.log_joint is None:
            return model.log_lik(params, arrays).sum()
        return model.log_joint(params, jnp.ones(())) - model.log_prior(params)

    def level(draws: Float[Array, "draw param"]) -> Bool[Array, " param"]:
        return (jax.lax.map(jax.grad(total), draws) == 0).all(0)

    flat_in = np.asarray(programs.once(level)(draws))
    moved, totals = np.tile(draws[0], (FEW, 1)), programs.shared(lambda x: jax.lax.map(total, x))

    def steps(index: int) -> bool:
        alone = moved.copy()
        alone[:, index] = draws[:, index]
        values = np.asarray(totals(alone))
        return np.unique(values[np.isfinite(values)]).size > 1

    entries = [index for index in np.flatnonzero(flat_in).tolist() if steps(index)]
    owner = unravel(jnp.arange(draws.shape[1], dtype=draws.dtype))
    return [name for name, x in owner.items() if np.isin(np.asarray(x), entries).any()]
