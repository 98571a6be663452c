"""Shapes of a model's functions and data, checked by tracing without running them."""

import traceback
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from pcv.base.errors import PcvError, in_one_line, is_python
from pcv.base.keys import any_key
from pcv.compile import programs
from pcv.models.model import (
    Data,
    Model,
    Outcome,
    Params,
    Target,
    full_data,
    numeric,
    rows_by_unit,
)

OF_DRAWS = ("chain", "draw")
"""dimensions of the full-data fit"""
_TAKEN = "has the name of a dimension of the draws"


def check_shapes(
    model: Model | Target, data: Data, num_units: int, outcome: str, name: str
) -> None:
    """Check the shapes of a model's functions against one another and the data, by tracing.

    Args:
        model, name: the model.
        data: its data.
        num_units: number of units of the data.
        outcome: the data's outcome, which must be the model's.

    Raises:
        PcvError: naming the model, the function and what it returns instead.
    """
    where = f"model '{name}'"
    if not isinstance(model.outcome, Outcome):
        raise PcvError(f"{where}: outcome is {model.outcome!r}, not a pcv.Outcome")
    if model.outcome.name != outcome:
        raise PcvError(
            f"{where}: its outcome is '{model.outcome.name}', but that of the data is '{outcome}'"
            f"{' (data.outcome)' * (not is_python())}; they must be the same"
        )
    if outcome in OF_DRAWS:
        raise PcvError(f"{where}: its outcome '{outcome}' {_TAKEN}; rename the column")
    params = _traced(where, "init", model.init, data, any_key())
    if not isinstance(params, dict) or not params:
        raise PcvError(f"{where}: init returns {_kind(params)}, not a dict of named parameters")
    for parameter, x in params.items():
        if not (hasattr(x, "dtype") and jnp.issubdtype(x.dtype, jnp.floating)):
            raise PcvError(
                f"{where}: init returns {_kind(x)} for '{parameter}'; every parameter must be a "
                "floating-point number or array (0.0, not 0)"
            )
    variables = _traced(where, "constrain", model.constrain, data, params)
    if not isinstance(variables, Mapping) or not variables:
        raise PcvError(f"{where}: constrain returns {_kind(variables)}, not a dict of variables")
    for name in OF_DRAWS:
        if name in variables:
            raise PcvError(f"{where}: its variable '{name}' {_TAKEN}; rename it")
    _check_dims(model, variables, where)
    if isinstance(model, Target):
        _check_target(model, data, num_units, where, params)
    else:
        _check_model(model, data, num_units, where, params)


def _check_dims(model: Model | Target, variables: Mapping[str, Any], where: str) -> None:
    """Check `dims` and `coords` against the variables of the posterior."""
    lengths = {name: len(x) for name, x in model.coords.items()}
    for name, dims in model.dims.items():
        if name not in variables:
            there = ", ".join(variables)
            raise PcvError(f"{where}: dims of '{name}', which is not a variable; there are {there}")
        shape = variables[name].shape
        if isinstance(dims, str) or len(dims) != len(shape) or len(set(dims)) != len(dims):
            raise PcvError(
                f"{where}: dims of '{name}' are {dims!r}; give a list of {len(shape)} different "
                f"names for its shape {shape}"
            )
        for dim, size in zip(dims, shape):
            if dim in (*variables, *OF_DRAWS):
                raise PcvError(
                    f"{where}: dimension '{dim}' of '{name}' has the name of another variable or "
                    "dimension in the posterior; rename it"
                )
            if lengths.setdefault(dim, size) != size:
                raise PcvError(
                    f"{where}: dimension '{dim}' has {size} elements in '{name}' and "
                    f"{lengths[dim]} elsewhere (dims, coords)"
                )


def _check_model(model: Model, data: Data, num_units: int, where: str, params: Any) -> None:
    arrays = numeric(data)
    terms = _traced(where, "log_lik", lambda p: model.log_lik(p, arrays), data, params)
    if getattr(terms, "shape", None) != (num_units,):
        raise PcvError(
            f"{where}: log_lik returns {_kind(terms)}; it must return one term per unit of the "
            f"data, an array of shape ({num_units},)"
        )
    prior = _traced(where, "log_prior", model.log_prior, data, params)
    if getattr(prior, "shape", None) != ():
        raise PcvError(f"{where}: log_prior returns {_kind(prior)}; it must return one number")
    if model.group is not None and np.shape(model.group) != (num_units,):
        raise PcvError(
            f"{where}: group has shape {np.shape(model.group)}; it must name the group of each "
            f"unit, shape ({num_units},)"
        )
    test = jax.device_put(np.zeros(2, int))
    _check_replicates(model, data, num_units, where, params, test)
    if model.marginal is not None:
        marginal = model.marginal
        made = _traced(where, "marginal", lambda p, t: marginal(p, arrays, t), data, params, test)
        _check_scores("marginal", made, where)


def _check_target(target: Target, data: Data, num_units: int, where: str, params: Any) -> None:
    all_units = full_data(num_units)
    density = _traced(where, "log_density", target.log_density, data, params, all_units)
    if getattr(density, "shape", None) != ():
        raise PcvError(f"{where}: log_density returns {_kind(density)}; it must return one number")
    fold = all_units._replace(test=jnp.zeros(2, int))
    made = _traced(where, "log_predictive", target.log_predictive, data, params, fold)
    _check_scores("log_predictive", made, where)


def _check_scores(part: str, made: Any, where: str) -> None:
    found = made if isinstance(made, tuple) else ()
    if [getattr(x, "shape", None) for x in found] != [(), (2,)]:
        raise PcvError(
            f"{where}: {part} returns {' and '.join(map(_kind, found)) or _kind(made)} for "
            "two slots; it must return the joint score, one number, and the pointwise ones, one "
            "per slot"
        )


def _check_replicates(
    model: Model, data: Data, num_units: int, where: str, params: Any, test: Array
) -> None:
    """Check the shapes of replicates and moments, where a model has them."""
    arrays = numeric(data)
    rows = rows_by_unit(arrays, model.outcome.name)
    every, two, y = (num_units,), (2,), jnp.asarray(arrays.get(model.outcome.name, 0.0), float)
    each, some = y.shape, two if rows is None else (2, rows.shape[1])
    calls: list[tuple[str, Callable[[Any, Any, Params], Any], list[tuple]]] = [
        ("predict", lambda f, key, p: f(key, p, arrays), [each]),
        ("cdf", lambda f, key, p: f(p, arrays, y), [each]),
        ("moments", lambda f, key, p: f(p, arrays), [every, every]),
        ("marginal_predict", lambda f, key, p: f(key, p, arrays, test), [some]),
        ("marginal_cdf", lambda f, key, p: f(key, p, arrays, test, jnp.zeros(some)), [some]),
        ("marginal_moments", lambda f, key, p: f(p, arrays, test), [two, (2, 2)]),
    ]
    for part, call, wanted in calls:
        function = getattr(model, part)
        if function is None:
            continue
        made = _traced(where, part, partial(call, function), data, any_key(), params)
        found = made if isinstance(made, tuple) else (made,)
        if [getattr(x, "shape", None) for x in found] != wanted:
            raise PcvError(
                f"{where}: {part} returns {' and '.join(map(_kind, found))}; it must return "
                f"{' and '.join(f'an array of shape {shape}' for shape in wanted)}"
                f"{' for two slots' if part.startswith('marginal') else ''}"
            )


def _traced(where: str, part: str, function: Callable[..., Any], data: Data, *args: Any) -> Any:
    """The shapes that a model's function returns; its error is reduced to one line."""
    try:
        return jax.eval_shape(function, *args)
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        ours = __file__, programs.__file__
        own = [f for f in frames if "site-packages" not in f.filename and f.filename not in ours]
        at = f" ({Path(own[-1].filename).name}, line {own[-1].lineno})" if own else ""
        said = in_one_line(error)
        if isinstance(error, jax.errors.JAXTypeError):
            said += "; write it with jax.numpy, and jnp.where instead of if"
        elif isinstance(error, KeyError) and error.args[0] in data:
            said += ": only the function that builds the model gets text; recode it there"
        raise PcvError(f"{where}: {part} fails{at}: {said}") from error


def _kind(x: Any) -> str:
    """What a function returned, in words."""
    if hasattr(x, "shape"):
        return f"an array of {x.dtype}, shape {x.shape}"
    return f"an object of type {type(x).__name__}"
