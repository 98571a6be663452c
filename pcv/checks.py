"""What can be known of a model before sampling: do its functions fit together, and the data?"""

import traceback
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Key

from pcv import datasets
from pcv.devices import jit_once
from pcv.errors import PcvError, in_one_line
from pcv.folds import Folds, train_mask
from pcv.model import (
    Data,
    Fold,
    Model,
    Outcome,
    Params,
    Scalar,
    Target,
    full_data,
    numeric,
    points,
)

CHECKED_DRAWS, CHECKED_FOLDS = 20, 50
"""prior draws at which `check_values` and `check_marginal` look, and folds of the latter"""
FAR = 100
"""log density per unit below the best, from which on no fold's chains are at a point"""
PRIOR_DRAWS, MAX_PRIOR_Z = 1000, 6.0
"""prior draws of `check_prior`, and the z-score that it warns of"""


def check_shapes(
    model: Model | Target, data: Data, num_units: int, outcome: str, name: str
) -> None:
    """Do the functions of a model fit together and the data? Traces them without running them.

    Args:
        model, name: the model.
        data: its data.
        num_units: number of units of the data.
        outcome: the data's outcome, which must be the model's.

    Raises:
        PcvError: naming the model, its function and what that returns instead.
    """
    where = f"model '{name}'"
    if not isinstance(model.outcome, Outcome):
        raise PcvError(f"{where}: outcome is {model.outcome!r}, not a pcv.Outcome")
    if model.outcome.name != outcome:
        raise PcvError(
            f"{where}: its outcome is '{model.outcome.name}', that of the data is '{outcome}' "
            "(data.outcome); they must be the same"
        )
    params = _traced(where, "init", model.init, data, jax.random.key(0))
    if not isinstance(params, dict) or not params:
        raise PcvError(f"{where}: init returns {_kind(params)}, not a dict of named parameters")
    for parameter, x in params.items():
        if not (hasattr(x, "dtype") and jnp.issubdtype(x.dtype, jnp.floating)):
            raise PcvError(
                f"{where}: init returns {_kind(x)} for '{parameter}'; every parameter must be a "
                "number or an array of numbers with a decimal point (0.0, not 0)"
            )
    variables = _traced(where, "constrain", model.constrain, data, params)
    if not isinstance(variables, Mapping) or not variables:
        raise PcvError(f"{where}: constrain returns {_kind(variables)}, not a dict of variables")
    _check_dims(model, variables, where)
    if isinstance(model, Target):
        _check_target(model, data, num_units, where, params)
    else:
        _check_model(model, data, num_units, where, params)


def _check_dims(model: Model | Target, variables: Mapping[str, Any], where: str) -> None:
    """Do the names of dimensions and of elements fit the variables of the posterior?"""
    lengths = {name: len(x) for name, x in model.coords.items()}
    for name, dims in model.dims.items():
        if name not in variables:
            there = ", ".join(variables)
            raise PcvError(f"{where}: dims of '{name}', which is no variable; there are {there}")
        shape = variables[name].shape
        if isinstance(dims, str) or len(dims) != len(shape) or len(set(dims)) != len(dims):
            raise PcvError(
                f"{where}: dims of '{name}' are {dims!r}; give a list of {len(shape)} different "
                f"names for its shape {shape}"
            )
        for dim, size in zip(dims, shape):
            if dim in (*variables, "chain", "draw"):
                raise PcvError(
                    f"{where}: dimension '{dim}' of '{name}' has the name of something else in the "
                    "posterior; rename it"
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
    test = jnp.zeros(2, int)
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
    """The shapes of replicates and moments, where a model has them."""
    arrays, key = numeric(data), jax.random.key(0)
    every, two = (num_units,), (2,)
    calls: list[tuple[str, Callable[[Any, Params], Any], list[tuple]]] = [
        ("predict", lambda f, p: f(key, p, arrays), [every]),
        ("moments", lambda f, p: f(p, arrays), [every, every]),
        ("marginal_predict", lambda f, p: f(key, p, arrays, test), [two]),
        ("marginal_moments", lambda f, p: f(p, arrays, test), [two, (2, 2)]),
    ]
    for part, call, wanted in calls:
        function = getattr(model, part)
        if function is None:
            continue
        made = _traced(where, part, partial(call, function), data, params)
        found = made if isinstance(made, tuple) else (made,)
        if [getattr(x, "shape", None) for x in found] != wanted:
            raise PcvError(
                f"{where}: {part} returns {' and '.join(map(_kind, found))}; it must return "
                f"{' and '.join(f'an array of shape {shape}' for shape in wanted)}"
                f"{' for two slots' if part.startswith('marginal') else ''}"
            )


def _traced(where: str, part: str, function: Callable[..., Any], data: Data, *args: Any) -> Any:
    """The shapes that one function of a model returns; its own error in one line."""
    try:
        return jax.eval_shape(function, *args)
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        own = [f for f in frames if "site-packages" not in f.filename and f.filename != __file__]
        at = f" ({Path(own[-1].filename).name}, line {own[-1].lineno})" if own else ""
        said = in_one_line(error)
        if isinstance(error, jax.errors.JAXTypeError):
            said += "; write it with jax.numpy, and jnp.where instead of if"
        elif isinstance(error, KeyError) and error.args[0] in data:
            said += ": text reaches only the function that builds the model; recode it there"
        raise PcvError(f"{where}: {part} fails{at}: {said}") from error


def _kind(x: Any) -> str:
    """What a function returned, in words."""
    if hasattr(x, "shape"):
        return f"an array of {x.dtype}, shape {x.shape}"
    return f"an object of type {type(x).__name__}"


def _once(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """`function` over draws, compiled for a single call."""
    return jit_once(jax.vmap(function))


def _drawn(model: Model | Target, number: int) -> Params:
    """Draws from the prior."""
    drawn: Params = _once(model.init)(jax.random.split(jax.random.key(0), number))
    return drawn


def check_values(model: Model | Target, data: Data, name: str, units: list[str]) -> None:
    """Are the log likelihood terms, the log prior and their gradient finite at prior draws?

    Terms of units that are impossible at some draws may be -inf there, not their gradients. Draws
    that the data rule out by far, of vague priors, do not count: no fold's chains go there. Of a
    target, the log density given all units.

    Raises:
        PcvError: naming the unit or parameter that is not finite at the most prior draws, or the
            unit that is impossible at the most of them where no draw makes all units possible.

    Warns:
        UserWarning: at some prior draws units are impossible, or the log likelihood overflows.
    """
    draws, arrays = CHECKED_DRAWS, numeric(data)
    if isinstance(model, Target):
        density, fold = model.log_density, full_data(len(units))
        one = jax.value_and_grad(lambda p: density(p, fold))
        values, grads = (jax.tree.map(np.asarray, x) for x in _once(one)(_drawn(model, draws)))
        if not np.isfinite(values).all():
            raise PcvError(_disagree(name, "log_density"))
        _check_gradients(grads, np.ones(draws, bool), name)
        return

    def of_rest(params: Params) -> tuple[Scalar, tuple[Array, Scalar]]:
        """Log density of all but the terms that are not finite; these terms; the log prior."""
        terms, prior = model.log_lik(params, arrays), model.log_prior(params)
        return prior + jnp.sum(jnp.where(jnp.isfinite(terms), terms, 0.0)), (terms, prior)

    keys = jax.random.split(jax.random.key(0), draws)
    one = jax.value_and_grad(of_rest, has_aux=True)
    at = jit_once(partial(points, model.init))(keys)
    (rest, (terms, prior)), grads = jax.tree.map(np.asarray, _once(one)(at))
    usable = np.all([np.isfinite(x).reshape(len(x), -1).all(1) for x in at.values()], axis=0)
    if not np.isfinite(prior[:draws][usable[:draws]]).all():
        raise PcvError(_disagree(name, "log_prior"))
    possible = usable & np.isfinite(terms).all(1)
    # Where an overflow spares some terms, these are lower than at any draw from a fold's posterior.
    best = np.max(rest, where=possible & np.isfinite(rest), initial=-np.inf)
    few_left = np.isfinite(terms).mean(1) < 0.5
    lost = ~usable | (rest < best - FAR * len(units)) | (possible.any() & few_left)
    impossible = np.isneginf(terms) & ~lost[:, None]
    bad = ~np.isfinite(terms) & ~impossible & ~lost[:, None]

    def said(wrong: Bool[np.ndarray, "draw unit"], value: str) -> str:
        wrong = wrong[:draws]
        unit = int(np.argmax(wrong.sum(0)))
        return (
            f"model '{name}': log_lik of unit '{units[unit]}' is {value} at "
            f"{int(wrong[:, unit].sum())} of {draws} prior draws"
        )

    if bad[:draws].any():
        raise PcvError(f"{said(bad, 'not finite')}; check its data and the priors")
    if not possible.any():
        raise PcvError(
            f"{said(impossible, '-inf')}, and at each of them some unit is impossible; check its "
            "data and the priors"
        )
    _check_gradients(jax.tree.map(lambda x: x[:draws], grads), ~lost[:draws], name)
    if impossible[:draws].any():
        warnings.warn(
            f"{said(impossible, '-inf')}: right if it is impossible there, or all but that; else "
            "check its data",
            stacklevel=2,
        )
    vague = (lost & np.isnan(terms).any(1))[:draws]
    if vague.any():
        warnings.warn(
            f"model '{name}': log_lik overflows at {vague.sum()} of {draws} prior draws: its "
            "priors reach far beyond the data; if that is not meant, tighten them, or standardise "
            "predictors",
            stacklevel=2,
        )


def _disagree(name: str, part: str) -> str:
    return (
        f"model '{name}': {part} is not finite at draws from `init`; do they agree on the supports?"
    )


def _check_gradients(
    grads: Mapping[str, np.ndarray], looked_at: Bool[np.ndarray, " draw"], name: str
) -> None:
    for parameter, grad in grads.items():
        if not np.isfinite(grad[looked_at]).all():
            raise PcvError(
                f"model '{name}': the gradient in '{parameter}' is not finite at some prior draws; "
                "look for sqrt, log or division at a bound"
            )


def check_prior(model: Model | Target, num_units: int, name: str) -> None:
    r"""Does `init` draw from `log_prior`? If so, the mean of its gradient is zero:

    .. math:: E_{p(u)} \left[ \nabla_u \log p(u) \right] = 0

    The prior of a target is its log density given no unit. Models of a front-end draw from their
    priors, or these are improper.

    Warns:
        UserWarning: naming the parameter whose mean gradient is furthest from it.
    """
    if isinstance(model, Target):
        density, nothing = model.log_density, Fold(jnp.zeros(num_units, bool), jnp.zeros(0, int))
        log_prior = lambda params: density(params, nothing)  # noqa: E731
    elif model.data is not None:
        return
    else:
        log_prior = model.log_prior
    keys = jax.random.split(jax.random.key(0), PRIOR_DRAWS)

    def gradient(key: Key[Array, ""]) -> Params:
        return jax.grad(log_prior)(model.init(key))

    gradients = jit_once(lambda keys: jax.lax.map(gradient, keys))
    worst = {}
    for parameter, grad in gradients(keys).items():
        grad = np.asarray(grad, np.float64)
        with np.errstate(invalid="ignore", divide="ignore"):
            z = np.abs(grad.mean(0)) / (grad.std(0) / np.sqrt(PRIOR_DRAWS))
        worst[parameter] = float(np.nan_to_num(z, nan=0.0).max(initial=0.0))
    parameter = max(worst, key=lambda name: worst[name])
    if worst[parameter] > MAX_PRIOR_Z:
        warnings.warn(
            f"model '{name}': draws from `init` do not follow `log_prior` in '{parameter}' (its "
            f"mean gradient is {worst[parameter]:.0f} standard errors from 0): is the Jacobian "
            "missing, or does `init` return constrained values?",
            stacklevel=2,
        )


def check_gap(
    make: Callable[[Data], Model | Target],
    data: Data,
    outcome: str,
    folds: Folds,
    units: list[str],
    name: str,
) -> str:
    """Does what a fold trains on depend on the outcomes that it tests, through lags for example?

    The outcomes that the fold in the middle tests are changed; terms of its training units, or a
    gradient of a target's log density, that change with them are conditioned on what is to be
    predicted.

    Args:
        make: makes the model of data.
        data: columns and constants, and `unit`.
        outcome: name of the outcome's column.
        folds: of the experiment.
        units: names of the units.
        name: of the model.

    Returns:
        What to warn of; empty if there is nothing.
    """
    middle = len(folds.id) // 2
    values = np.unique(data[outcome])
    following = values[(np.searchsorted(values, data[outcome]) + 1) % values.size]
    tested = np.isin(data["unit"], folds.test[middle])
    changed = {**data, outcome: np.where(tested, following, data[outcome])}
    trained = train_mask(folds, datasets.num_units(data), slice(middle, middle + 1))[0]
    one, other = make(data), make(changed)
    params = jit_once(partial(points, one.init))(jax.random.split(jax.random.key(0), 1))
    if isinstance(one, Target) and isinstance(other, Target):
        fold = Fold(jnp.asarray(trained), jnp.asarray(folds.test[middle]))
        before, after = (
            _once(jax.grad(lambda p: x.log_density(p, fold)))(params)  # noqa: B023
            for x in (one, other)
        )
        moved = [
            param for param, x in before.items() if not np.allclose(x, after[param], equal_nan=True)
        ]
        if moved:
            return (
                f"model '{name}': log_density of fold '{folds.id[middle]}', its gradient in "
                f"'{moved[0]}', depends on outcomes that the fold tests: its score is too good; "
                "let outcomes outside fold.train play no part in it"
            )
    elif isinstance(one, Model) and isinstance(other, Model):
        before, after = (
            np.asarray(_once(lambda p: x.log_lik(p, given))(params))  # noqa: B023
            for x, given in ((one, numeric(data)), (other, numeric(changed)))
        )
        differs = (before != after) & ~np.isnan(before)
        of_units = np.flatnonzero(trained & differs.any(0))
        if of_units.size:
            return (
                f"model '{name}': terms of {of_units.size} unit(s) that fold '{folds.id[middle]}'"
                f" trains on, such as '{units[of_units[0]]}', depend on outcomes that it tests"
                " (through lags, or a summary of all outcomes): its score is too good; leave out"
                " a wider gap (folds.h), or make the summary a constant; other folds were not"
                " looked at"
            )
    return ""


def check_marginal(model: Model | Target, data: Data, name: str, folds: Folds) -> None:
    """Is the model's own `marginal` finite at prior draws, for folds from first to last?

    Raises:
        PcvError: naming the fold in which it is not finite at the most prior draws.
    """
    assert isinstance(model, Model)
    assert model.marginal is not None
    arrays = numeric(data)
    some = np.unique(np.linspace(0, len(folds.id) - 1, CHECKED_FOLDS).astype(int))
    marginal, test = model.marginal, jnp.asarray(folds.test[some])
    of_folds = _once(lambda p: jax.vmap(lambda units: marginal(p, arrays, units)[0])(test))
    bad = ~np.isfinite(np.asarray(of_folds(_drawn(model, CHECKED_DRAWS))))
    if bad.any():
        fold = int(np.argmax(bad.sum(0)))
        raise PcvError(
            f"model '{name}': marginal of fold '{folds.id[some[fold]]}' is not finite at "
            f"{int(bad[:, fold].sum())} of {CHECKED_DRAWS} prior draws"
        )


def check_whole_groups(model: Model, name: str, folds: Folds) -> None:
    """The model's own `marginal` integrates over the effects of groups it has not seen: it holds
    where every group of a test set is left out as a whole.

    Raises:
        PcvError: it is not, in a fold.
    """
    if model.group is None:
        return
    group = np.asarray(model.group)
    for fold, test, runs in zip(*folds):
        tested = np.isin(group, group[test[test >= 0]])
        left_out = np.zeros(group.size, bool)
        for start, stop in runs:
            left_out[start:stop] = True
        if (tested & ~left_out).any():
            raise PcvError(
                f"model '{name}': its marginal predictive is for groups that are left out as a "
                f"whole, but fold '{fold}' keeps part of a tested group in training; leave out "
                "whole groups, or set predictive: plain"
            )
