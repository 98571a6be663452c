"""What is known of a model before sampling: its values at prior draws, its prior, its gaps."""

import warnings
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Key

from pcv.base import programs
from pcv.base.errors import PcvError, in_one_line
from pcv.folds import columns
from pcv.folds.base import Folds, train_mask
from pcv.models.effects.slopes import check_slopes
from pcv.models.model import Data, Fold, Model, Params, Scalar, Target, full_data, numeric
from pcv.models.parameters import MOST_DRAWS, points, prior_draws

CHECKED_DRAWS, CHECKED_FOLDS = 20, 50
"""prior draws at which `check_values` and `check_marginal` look, and folds of the latter"""
FAR, NEAR = 100, 10
"""log density per unit below the best, from which on no fold's chains are at a point, for certain;
and most likely"""
MAX_PRIOR_Z = 6.0
"""z-score that `check_prior` warns of"""


def _once(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """`function` over draws, compiled for a single call."""
    return programs.once(jax.vmap(function))


class Looked(NamedTuple):
    """A model at prior draws, then at points near zero."""

    at: Mapping[str, np.ndarray]
    usable: Bool[np.ndarray, " point"]
    """the point itself is finite"""
    rest: Float[np.ndarray, " point"]
    """log density of all but the terms that are not finite"""
    terms: Float[np.ndarray, "point unit"]
    prior: Float[np.ndarray, " point"]
    gradients: dict[str, np.ndarray]
    """of `rest`"""


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
    draws = CHECKED_DRAWS
    if isinstance(model, Target):
        density, fold = model.log_density, full_data(len(units))
        one = jax.value_and_grad(lambda p: density(p, fold))
        at = prior_draws(model.init, draws)
        values, grads = (jax.tree.map(np.asarray, x) for x in _once(one)(at))
        if not np.isfinite(values).all():
            raise PcvError(_disagree(name, "log_density"))
        everywhere = np.ones(draws, bool)
        _check_gradients(grads, everywhere, everywhere, name)
        check_slopes(lambda p: density(p, fold), at, values, grads, data, model.outcome.name, name)
        return
    looked = _look(model, data, name)
    possible = looked.usable & np.isfinite(looked.terms).all(1)
    lost = _ruled_out(looked, possible)
    at_draws: Looked = jax.tree.map(lambda x: x[:draws], looked)
    lost = lost[:draws]
    if not np.isfinite(at_draws.prior[at_draws.usable]).all():
        raise PcvError(_disagree(name, "log_prior"))
    impossible = np.isneginf(at_draws.terms) & ~lost[:, None]
    bad = ~np.isfinite(at_draws.terms) & ~impossible & ~lost[:, None]

    def said(wrong: Bool[np.ndarray, "draw unit"], value: str) -> str:
        unit = int(np.argmax(wrong.sum(0)))
        return (
            f"model '{name}': log_lik of unit '{units[unit]}' is {value} at "
            f"{int(wrong[:, unit].sum())} of {draws} prior draws"
        )

    if bad.any():
        raise PcvError(f"{said(bad, 'not finite')}; check its data and the priors")
    if not possible.any():
        raise PcvError(
            f"{said(impossible, '-inf')}, and at each of them some unit is impossible; check its "
            "data and the priors"
        )
    best = np.max(looked.rest, where=possible & np.isfinite(looked.rest), initial=-np.inf)
    whole = np.where(possible, looked.rest, np.nan)
    density_of = partial(_density, model, numeric(data))
    check_slopes(density_of, looked.at, whole, looked.gradients, data, model.outcome.name, name)
    near = at_draws.rest > best - NEAR * len(units)
    _check_gradients(at_draws.gradients, ~lost, near & impossible.any(1), name)
    if impossible.any():
        warnings.warn(
            f"{said(impossible, '-inf')}: right if it is impossible there, or all but that; else "
            "check its data",
            stacklevel=2,
        )
    vague = lost & np.isnan(at_draws.terms).any(1)
    if vague.any():
        warnings.warn(
            f"model '{name}': log_lik overflows at {vague.sum()} of {draws} prior draws: its "
            "priors reach far beyond the data; if that is not meant, tighten them, or standardise "
            "predictors",
            stacklevel=2,
        )


def _look(model: Model, data: Data, name: str) -> Looked:
    arrays = numeric(data)

    def of_rest(params: Params) -> tuple[Scalar, tuple[Array, Scalar]]:
        terms, prior = model.log_lik(params, arrays), model.log_prior(params)
        return prior + jnp.sum(jnp.where(jnp.isfinite(terms), terms, 0.0)), (terms, prior)

    at = points(model.init, CHECKED_DRAWS)
    one = jax.value_and_grad(of_rest, has_aux=True)
    (rest, (terms, prior)), gradients = _derived(one, at, name)
    usable = np.all([np.isfinite(x).reshape(len(x), -1).all(1) for x in at.values()], axis=0)
    return Looked(at, usable, rest, terms, prior, gradients)


def _derived(function: Callable[[Any], Any], at: Any, name: str) -> Any:
    """`function` at draws, whose own error, as of what JAX has no derivative of, is one line."""
    try:
        return jax.tree.map(np.asarray, _once(function)(at))
    except (ValueError, NotImplementedError) as error:
        raise PcvError(
            f"model '{name}': the gradient of its log_lik fails: {in_one_line(error)}"
        ) from error


def _density(model: Model, arrays: Data, params: Params) -> Scalar:
    return model.log_prior(params) + jnp.sum(model.log_lik(params, arrays))


def _ruled_out(looked: Looked, possible: Bool[np.ndarray, " point"]) -> Bool[np.ndarray, " point"]:
    """Points that the data rule out by far.

    Where an overflow spares some terms, these are lower than at any draw from a fold's posterior.
    """
    reached = possible & np.isfinite(looked.rest)
    best = np.max(looked.rest, where=reached, initial=-np.inf)
    far = looked.rest < best - FAR * looked.terms.shape[1]
    few_left = np.isfinite(looked.terms).mean(1) < 0.5
    return ~looked.usable | far | (possible.any() & few_left)


def _disagree(name: str, part: str) -> str:
    return (
        f"model '{name}': {part} is not finite at draws from `init`; do they agree on the supports?"
    )


def _check_gradients(
    grads: Mapping[str, np.ndarray],
    looked_at: Bool[np.ndarray, " draw"],
    in_reach: Bool[np.ndarray, " draw"],
    name: str,
) -> None:
    """Chains turn back where a gradient is not finite. That is wrong where a fold leads them there:
    where the units that it leaves out are impossible, and the others are not (`in_reach`)."""
    bad = {k: ~np.isfinite(x).reshape(len(x), -1).all(1) & looked_at for k, x in grads.items()}
    parameter = max(bad, key=lambda k: int(bad[k].sum()))
    where = bad[parameter]
    if not where.any():
        return
    said = (
        f"model '{name}': the gradient in '{parameter}' is not finite at {where.sum()} of "
        f"{len(where)} prior draws"
    )
    if (where & in_reach).any() or where.sum() > looked_at.sum() / 2:
        raise PcvError(f"{said}; look for sqrt, log or division at a bound")
    warnings.warn(
        f"{said}, perhaps by overflow: chains turn back there; if that is not far from the data, "
        "tighten the priors, or look for sqrt, log or division at a bound",
        stacklevel=3,
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
    gradients = programs.once(partial(jax.lax.map, jax.grad(log_prior)))
    worst = {}
    for parameter, grad in gradients(prior_draws(model.init, MOST_DRAWS)).items():
        grad = np.asarray(grad, np.float64)
        with np.errstate(invalid="ignore", divide="ignore"):
            z = np.abs(grad.mean(0)) / (grad.std(0) / np.sqrt(MOST_DRAWS))
        worst[parameter] = float(np.nan_to_num(z, nan=0.0).max(initial=0.0))
    parameter = max(worst, key=lambda name: worst[name])
    if worst[parameter] > MAX_PRIOR_Z:
        warnings.warn(
            f"model '{name}': draws from `init` do not follow `log_prior` in '{parameter}' (its "
            f"mean gradient is {worst[parameter]:.0f} standard errors from 0): is the Jacobian "
            "missing, or does `init` return constrained values?",
            stacklevel=2,
        )


def centred(model: Model | Target) -> list[str]:
    """Parameters of several elements whose prior hangs on others: a non-centred one would not.

    Where a prior is a product over parameters, exchanging one between two draws leaves the sum of
    the two log priors as it is.
    """
    if isinstance(model, Target):
        return []

    def gaps(keys: Key[Array, " 2"]) -> dict[str, Scalar]:
        one, other = model.init(keys[0]), model.init(keys[1])
        apart = model.log_prior(one) + model.log_prior(other)

        def gap(name: str) -> Scalar:
            exchanged = {**one, name: other[name]}, {**other, name: one[name]}
            return jnp.abs(sum(map(model.log_prior, exchanged)) - apart) / (1 + jnp.abs(apart))

        return {name: gap(name) for name, x in one.items() if x.size > 1}

    found = _once(gaps)(jax.random.split(jax.random.key(0), (3, 2)))
    return [name for name, gap in found.items() if (gap > 1e-3).any()]


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
    trained = train_mask(folds, columns.num_units(data), slice(middle, middle + 1))[0]
    one, other = make(data), make(changed)
    params = points(one.init, 1)
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

    And at points near zero. Where some unit is impossible, or its likelihood overflows, it may be
    anything.

    Raises:
        PcvError: naming the fold in which it is not finite at the most of them.
    """
    assert isinstance(model, Model)
    assert model.marginal is not None
    arrays = numeric(data)
    some = np.unique(np.linspace(0, len(folds.id) - 1, CHECKED_FOLDS).astype(int))
    marginal, test = model.marginal, jnp.asarray(folds.test[some])

    def of_folds(params: Params) -> tuple[Array, Array]:
        terms = jax.vmap(lambda units: marginal(params, arrays, units)[0])(test)
        return terms, jnp.isfinite(model.log_lik(params, arrays)).all()

    at = points(model.init, CHECKED_DRAWS)
    terms, possible = jax.tree.map(np.asarray, _once(of_folds)(at))
    bad = ~np.isfinite(terms) & possible[:, None]
    if bad.any():
        fold = int(np.argmax(bad.sum(0)))
        raise PcvError(
            f"model '{name}': marginal of fold '{folds.id[some[fold]]}' is not finite at "
            f"{int(bad[:, fold].sum())} of {len(bad)} prior draws and points near zero"
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
    for fold, test, runs in zip(folds.id, folds.test, folds.held_out):
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
