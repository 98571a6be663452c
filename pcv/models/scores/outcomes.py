"""What scores ask of an outcome, and why a model has it not, in words."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from pcv.compile import programs
from pcv.folds.base import evenly
from pcv.models.model import Fold, Outcome, Target
from pcv.models.scores import categories

CHECKED_DRAWS, CHECKED_UNITS, CHECKED_FOLDS = 5, 20, 3
"""prior draws, units and folds at which densities of other outcomes are checked"""
NEAR = 1e-3
"""largest error of a probability, in single precision"""


def no_derivatives(whole: Target, y: np.ndarray, wanted: str, reads: str) -> str:
    """Why there is no Hyvärinen score, or ""."""
    outcome, density = whole.outcome, whole.density
    integers = bool((y == np.round(y)).all())
    if outcome.discrete or (integers and np.unique(y).size <= 2):
        return f"'{outcome.name}' is discrete: it has no derivative; use log or crps instead"
    if outcome.discrete is None and integers:
        return (
            f"'{outcome.name}' has only whole numbers: if it is continuous, declare it as "
            f"pcv.Outcome('{outcome.name}', discrete=False); a discrete one has no derivative"
        )
    if whole.calls_back:
        return "a program of Stan has no derivative in its outcome"
    if outcome.scale != "identity":
        return f"its density is that of {outcome}, not of '{outcome.name}' itself"
    if density is None or whole.observed is None:
        return f"it needs {wanted}density=..., observed=...)"
    units = np.unique(np.linspace(0, len(y) - 1, CHECKED_UNITS).astype(int))
    fold, params = Fold(jnp.ones(len(y), bool), jnp.asarray(units)), _prior_draws(whole)

    def joint(values: Float[jax.Array, " slot"], params: dict[str, jax.Array]) -> jax.Array:
        return density(params, fold, values)[0]

    slopes = jax.vmap(jax.grad(joint), (None, 0))(jnp.asarray(y[units], float), params)
    return "" if slopes.any() else _ignored(outcome, reads)


def _prior_draws(whole: Target) -> dict[str, jax.Array]:
    """Parameters at which densities are checked."""
    draws: dict[str, jax.Array] = jax.vmap(whole.init)(
        jax.random.split(jax.random.key(0), CHECKED_DRAWS)
    )
    return draws


def _ignored(outcome: Outcome, reads: str) -> str:
    if reads == "density":
        return f"density ignores the values of '{outcome.name}' that it is given"
    return (
        f"{reads} does not read '{outcome.name}' from its second argument: write it with "
        f"data['{outcome.name}'] there"
    )


def no_categories(
    whole: Target, y: np.ndarray, wanted: str, reads: str, test: Int[np.ndarray, "fold slot"]
) -> str:
    """Why there are no probabilities of the outcome's categories, or ""."""
    outcome, name = whole.outcome, whole.outcome.name
    if np.isin(y, (0, 1)).all() and outcome.categories in (None, 2):
        return ""
    if outcome.discrete is False:
        return f"'{name}' is continuous: it has no categories"
    if (odd := y[(y != np.round(y)) | (y < 0)]).size:
        return f"it needs categories 0, 1, 2, ..., but '{name}' has a value of {odd[0]}"
    if whole.density is None or whole.observed is None:
        return f"it needs {wanted}density=..., observed=...)"
    if y.max() >= (count := categories.number(whole, len(y))):
        return f"it has {count} categories from 0, but '{name}' has a value of {y.max()}"

    def both(test: jax.Array, params: dict[str, jax.Array]) -> tuple[jax.Array, jax.Array]:
        """Probabilities of all categories (slot, category), and of the observed one (slot)."""
        fold = Fold(jnp.ones(len(y), bool), test)
        of_all = categories.probabilities(whole, params, fold, count)
        return of_all, jnp.exp(whole.log_predictive(params, fold)[1])

    some = test[evenly(len(test), CHECKED_FOLDS)]
    over_draws = programs.once(jax.vmap(jax.vmap(both, (None, 0)), (0, None)))
    made = over_draws(jnp.asarray(some), _prior_draws(whole))
    p, observed = (np.moveaxis(np.asarray(x), 1, 2)[some >= 0] for x in made)
    of_observed = p[np.arange(len(p)), :, y[some[some >= 0]].astype(int)]
    if np.nanmax(np.abs(of_observed - observed)) > NEAR:
        return "probabilities of a unit's categories depend on other tested outcomes (lags)"
    if (np.ptp(p, axis=-1) == 0).all():
        return _ignored(outcome, reads)
    total = p.sum(-1)
    if (off := total[np.abs(total - 1) > NEAR]).size:
        other = y[~np.isin(y, (0, 1))][0] if not np.isin(y, (0, 1)).all() else count - 1
        return (
            f"it needs outcomes of 0 and 1, but '{name}' has a value of {other}; or categories, "
            f"but probabilities of 0 to {count - 1} add up to {off[0]:.3g}, not 1, at a draw from "
            "the prior: for counts, use crps"
        )
    return ""


def no_order(outcome: Outcome, y: np.ndarray, by_front_end: bool) -> str:
    """Why categories have no order, or ""."""
    if outcome.ordered or (np.isin(y, (0, 1)).all() and outcome.categories in (None, 2)):
        return ""
    if outcome.ordered is False:
        return f"categories of '{outcome.name}' have no order: use brier instead"
    declared = f"pcv.Outcome('{outcome.name}', ordered=True)"
    if by_front_end:
        declared = "of the result of pcv.from_numpyro, from_pymc or from_bambi by "
        declared += "model._replace(outcome=model.outcome._replace(ordered=True))"
    return (
        f"it is not known whether categories of '{outcome.name}' have an order: if so, declare it, "
        f"{declared}; else use brier"
    )
