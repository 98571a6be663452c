"""Parameters of a model in every fold, from the draws that chains keep."""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array

from pcv.base import devices
from pcv.base.errors import PcvError, nearest
from pcv.compile import programs
from pcv.core.problem import Problem, predictive_model
from pcv.models.effects import prior
from pcv.models.effects.effects import Locals, find
from pcv.models.model import Model, Params
from pcv.models.parameters import unravel_of


def parameter_draws(
    problem: Problem, predicted: xr.Dataset, names: Sequence[str], like: xr.Dataset
) -> xr.Dataset:
    """Draws of some of the posterior's variables in every sampled fold.

    Under the marginal predictive, chains may move under another prior of a left-out group's own
    effects. These are drawn anew, given the other parameters.

    Args:
        problem: the model.
        predicted: its predictions, with draws of the parameters.
        names: of variables.
        like: the full data's posterior, which names dimensions.

    Returns:
        The variables, dims (fold, chain, draw, …).

    Raises:
        PcvError: no draws were kept, or there is no such variable.
    """
    if "position" not in predicted:
        raise PcvError(
            "no draws of parameters were kept: no fold was sampled, or `predictions` is 0"
        )
    for name in names:
        if name not in like:
            raise PcvError(
                f"fold_summary: no variable {name!r}; {nearest(name, [str(x) for x in like])}"
            )
    model, position = problem.model, predicted["position"].values
    folds = problem.named(predicted["sampled_fold"].values)

    def of_fold(key: Array, positions: Array, test: Array) -> dict[str, Array]:
        def of_draw(of_one: tuple[Array, Array]) -> dict[str, Array]:
            key, position = of_one
            variables = model.constrain(redraw(key, unravel(position), test))
            return {name: variables[name] for name in names}

        return jax.lax.map(of_draw, (jax.random.split(key, len(positions)), positions))

    with devices.precision("float64"):
        unravel, redraw = unravel_of(model.init), _redraw_effects(problem)
        flat = jnp.asarray(position.reshape(len(position), -1, position.shape[-1]), float)
        keys = jax.random.split(problem.key("fold_summary"), len(flat))
        every = programs.once(jax.vmap(of_fold))
        drawn = every(keys, flat, jnp.asarray(folds.test))
    first = ("fold", "chain", "draw")
    return xr.Dataset(
        {
            name: (
                (*first, *(dim for dim in like[name].dims if dim not in first)),
                np.asarray(x).reshape(*position.shape[:3], *x.shape[2:]),
            )
            for name, x in drawn.items()
        },
        {"fold": folds.id}
        | {dim: like[dim] for name in names for dim in like[name].dims if dim not in first},
    )


def _redraw_effects(problem: Problem) -> Callable[[Array, Params, Array], Params]:
    """Function that draws the own effects of a test set's groups anew, where the predictive
    integrates them out."""
    model, how = problem.model, predictive_model(problem)
    if how.predictive == "marginal" and isinstance(model, Model):
        effects = how.local or find(model, problem.arrays, problem.folds)
        if isinstance(effects, Locals) and len(effects.entries):
            return prior.drawn_anew(model, effects)
    return lambda key, params, test: params
