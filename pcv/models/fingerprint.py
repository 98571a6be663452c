"""What a model computes, as a hash: of its lowered programs, never of how its code looks."""

import hashlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pcv.base.errors import in_one_line
from pcv.compile.programs import Uncertain, digest
from pcv.models.model import Fold, Model, Observations, Params, Target, full_data, target
from pcv.models.observations import num_units, unit_of_row

ORDERS = 3
"""orders of derivatives that are hashed: trajectories along integrals by Laplace's method take so
many of a log density"""


def fingerprint(model: Model | Target, observed: Observations, slots: int) -> str:
    """A hash of all that a model computes for test sets of a size, in the current precision: of its
    lowered programs, their derivatives, and the arrays that they hold.

    Args:
        model, observed: the model and the data of the call.
        slots: units in the largest test set; 1: also for the full data, with derivatives of higher
            orders.

    Raises:
        Uncertain: it cannot be hashed reliably.
    """
    if isinstance(model, Model) and model.identity:
        return model.identity[:16]
    own_data = model.data if isinstance(model, Model) else None
    rows = own_data or observed
    units = num_units(rows, model.outcome.name)
    arrays = {"unit": unit_of_row(rows, model.outcome.name), **rows.columns}
    if isinstance(model, Target):
        targets = [model]
    else:
        ways = ["plain"] + ["marginal"] * (model.marginal is not None)
        targets = [target(model, arrays, way) for way in ways]

    def everything(key: jax.Array, params: Params, fold: Fold) -> Any:
        y = jnp.zeros(fold.test.shape)
        calls = [
            call
            for x in targets
            for call in (
                (x.log_density, params, fold),
                (x.log_predictive, params, fold),
                (x.observed, fold),
                (x.density, params, fold, y),
                (x.predict, key, params, fold),
                (x.cdf, key, params, fold, x.observed(fold) if x.observed else y),
                (x.moments, params, fold),
            )
        ]
        shown = model.constrain(params)
        way_back = getattr(model, "unconstrain", None)
        back = None if way_back is None else way_back(shown)
        made = [function and function(*args) for function, *args in calls]
        return model.init(key), shown, back, made

    def density(params: Params, fold: Fold) -> Any:
        return targets[0].log_density(params, fold)

    def in_outcome(y: Any, params: Params, fold: Fold) -> Any:
        return [x.density(params, fold, y) for x in targets if x.density]

    key, whole = jax.random.key(0), full_data(units)
    fold = whole._replace(test=jnp.zeros(slots, int))
    try:
        params = jax.eval_shape(model.init, key)
        programs = [digest(everything, key, params, fold), digest(jax.grad(density), params, fold)]
    except Uncertain:
        raise
    except Exception as error:  # of a function that JAX cannot trace
        raise Uncertain(in_one_line(error)) from error
    if slots == 1:
        programs += _of_derivatives(density, params, whole)
        programs += _of_derivatives(in_outcome, jnp.zeros(slots), params, fold)
    group = getattr(model, "group", None)
    coords = {name: np.asarray(x).tolist() for name, x in model.coords.items()}
    fields = (
        *(model.outcome, None if group is None else np.asarray(group).tolist()),
        *(getattr(model, "notes", ()), getattr(model, "reads_test", None)),
    )
    said = repr((*programs, *fields, dict(model.dims), coords))
    return hashlib.sha256(said.encode()).hexdigest()[:16]


def _of_derivatives(function: Callable[..., Any], *args: Any) -> Iterator[str]:
    """Hashes of derivatives in the first argument, up to the first that does not exist."""
    for _ in range(ORDERS):
        function = partial(_slope, function)
        try:
            yield digest(function, *args)
        except Uncertain:
            raise
        except Exception:
            yield "none"
            return


def _slope(function: Callable[..., Any], x: Any, *args: Any) -> Any:
    return jax.grad(lambda x: sum(map(jnp.sum, jax.tree.leaves(function(x, *args)))))(x)
