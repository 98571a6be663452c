"""Checks that a model's densities and gradients are finite at prior draws."""

import warnings
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float
from scipy.optimize import minimize

from pcv.base.errors import PcvError, in_one_line
from pcv.compile import programs
from pcv.models.checks.slopes import check_slopes
from pcv.models.model import Data, Model, Params, Scalar, Target, full_data, log_joint, numeric
from pcv.models.parameters import flattened, points, prior_draws, unravel_of

CHECKED_DRAWS = 20
"""prior draws evaluated"""
MOST = 2_000_000
"""units of all draws evaluated in parallel, at most"""
CLIMBS, SMALL, MOSTLY = 200, 0.1, 0.9
"""steps to the mode, its distance from there in posterior variances, and the share of draws about
it that must be finite"""
MOST_PARAMS = 500
"""for which the mode is looked for"""
FAR, NEAR = 100, 10
"""log density per unit below the best, beyond which chains certainly, or most likely, never go"""


def _once(function: Callable[[Any], Any], num_units: int = 1) -> Callable[[Any], Any]:
    """`function` mapped over draws, compiled for a single call."""
    size = MOST // num_units
    if size >= 2 * CHECKED_DRAWS:
        return programs.once(jax.vmap(function))
    return programs.once(partial(jax.lax.map, function, batch_size=max(size, 1)))


class Looked(NamedTuple):
    """A model evaluated at prior draws, then at points near zero."""

    at: Mapping[str, np.ndarray]
    usable: Bool[np.ndarray, " point"]
    """the point itself is finite"""
    rest: Float[np.ndarray, " point"]
    """log density without the terms that are not finite"""
    terms: Float[np.ndarray, "point unit"]
    prior: Float[np.ndarray, " point"]
    gradients: dict[str, np.ndarray]
    """of `rest`"""


def check_values(model: Model | Target, data: Data, name: str, units: list[str]) -> None:
    """Check that log likelihood terms, log prior and gradient are finite at prior draws; for a
    target, the log density given all units.

    Terms of impossible units may be -inf, but need finite gradients. Draws from vague priors that
    the data rule out by far do not count: no fold's chains go there. Where others fail, points
    about the mode decide.

    Raises:
        PcvError: naming the unit or parameter that is not finite at the most prior draws; or, if no
            draw makes all units possible, the unit that is impossible at the most draws.

    Warns:
        UserWarning: units are impossible, or the log likelihood overflows, at some prior draws.
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
        _check_gradients(grads, everywhere, everywhere, name, lambda: False)
        check_slopes(lambda p: density(p, fold), at, values, grads, data, model.outcome.name, name)
        return
    looked = _look(model, data, name)
    possible = looked.usable & np.isfinite(looked.terms).all(1)
    lost = _ruled_out(looked, possible)
    at_draws: Looked = jax.tree.map(lambda x: x[:draws], looked)
    lost = lost[:draws]
    known = at_draws.usable
    if model.log_joint is not None:  # the prior is the density less the terms
        known = known & np.isfinite(at_draws.terms).all(1)
    if not np.isfinite(at_draws.prior[known]).all():
        raise PcvError(_disagree(name, "log_prior"))
    impossible = np.isneginf(at_draws.terms) & ~lost[:, None]
    bad = ~np.isfinite(at_draws.terms) & ~impossible & ~lost[:, None]

    def said(wrong: Bool[np.ndarray, "draw unit"], value: str) -> str:
        unit = int(np.argmax(wrong.sum(0)))
        return (
            f"model '{name}': log_lik of unit '{units[unit]}' is {value} at "
            f"{int(wrong[:, unit].sum())} of {draws} prior draws"
        )

    if (infinite := np.isposinf(at_draws.terms) & ~lost[:, None]).any():
        raise PcvError(
            f"{said(infinite, 'infinite')}: is a normaliser 0 there, as that of NumPyro's "
            "TruncatedNormal is far from its bounds? Tighten the priors, or take its logarithm"
        )
    finite = cache(partial(_finite_about_the_mode, model, data, looked))
    if bad.any():
        words = said(bad, "not finite")
        if not finite():
            raise PcvError(f"{words}; check its data and the priors")
        warnings.warn(
            f"{words}, and finite about the mode of the posterior: chains turn back there; if that "
            "is not far from the data, tighten the priors, or look for a term that underflows",
            stacklevel=2,
        )
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
    _check_gradients(at_draws.gradients, ~lost, near & impossible.any(1), name, finite)
    if impossible.any():
        warnings.warn(
            f"{said(impossible, '-inf')}: right if it is (nearly) impossible there; otherwise "
            "check its data",
            stacklevel=2,
        )
    vague = lost & np.isnan(at_draws.terms).any(1)
    if vague.any():
        warnings.warn(
            f"model '{name}': log_lik is NaN at {vague.sum()} of {draws} prior draws, which count "
            "as impossible: its priors reach far beyond the data, where it overflows (tighten "
            "them, or standardise predictors), or to where it is not defined (the log of a "
            "negative number)",
            stacklevel=2,
        )


def _of_rest(model: Model, arrays: Data, params: Params) -> tuple[Scalar, tuple[Array, Scalar]]:
    """The log density without terms that are not finite; the terms, and the log prior."""
    at = params if model.log_joint is None else jax.lax.stop_gradient(params)
    terms, prior = model.log_lik(at, arrays), model.log_prior(params)
    rest = log_joint(model, params, arrays, jnp.isfinite(terms), terms)
    return rest, (terms, prior)


def _look(model: Model, data: Data, name: str) -> Looked:
    arrays, at = numeric(data), points(model.init, CHECKED_DRAWS)
    of_rest = partial(_of_rest, model, arrays)
    try:
        num_units = len(arrays[model.outcome.name])
        found = _once(jax.value_and_grad(of_rest, has_aux=True), num_units)(at)
    except (ValueError, NotImplementedError) as error:  # JAX has no derivative of it
        said = in_one_line(error)
        of_counts = "Betainc" in said
        way_out = "zero-inflated in place of hurdle or truncated" if of_counts else "another one"
        raise PcvError(
            f"model '{name}': the gradient of its log_lik fails: {said}; JAX has no derivative of "
            f"this distribution: take {way_out}, or write the density in JAX (pcv.Model)"
        ) from error
    (rest, (terms, prior)), gradients = jax.tree.map(np.asarray, found)
    usable = np.all([np.isfinite(x).reshape(len(x), -1).all(1) for x in at.values()], axis=0)
    return Looked(at, usable, rest, terms, prior, gradients)


def _density(model: Model, arrays: Data, params: Params) -> Scalar:
    return log_joint(model, params, arrays, True)


def _ruled_out(looked: Looked, possible: Bool[np.ndarray, " point"]) -> Bool[np.ndarray, " point"]:
    """Points that the data rule out by far: where only some terms overflow, the others are lower
    than at any draw from a fold's posterior."""
    reached = possible & np.isfinite(looked.rest)
    best = np.max(looked.rest, where=reached, initial=-np.inf)
    far = looked.rest < best - FAR * looked.terms.shape[1]
    few_left = np.isfinite(looked.terms).mean(1) < 0.5
    return ~looked.usable | far | (possible.any() & few_left)


def _finite_about_the_mode(model: Model, data: Data, looked: Looked) -> bool:
    """Whether terms and gradients are finite at most draws of a normal about the mode, where that
    is reached from the best point through finite ones."""
    flat, slopes = flattened(looked.at), flattened(looked.gradients)
    whole = looked.usable & np.isfinite(looked.terms).all(1) & np.isfinite(slopes).all(1)
    whole &= np.isfinite(looked.rest)
    if not whole.any() or flat.shape[1] > MOST_PARAMS:
        return False
    unravel, of_rest = unravel_of(model.init), partial(_of_rest, model, numeric(data))
    both = programs.shared(jax.value_and_grad(lambda x: of_rest(unravel(x)), has_aux=True))

    def objective(x: np.ndarray) -> tuple[float, np.ndarray]:
        (value, (terms, _)), gradient = both(x.astype(flat.dtype))
        if not all(np.isfinite(y).all() for y in (value, terms, gradient)):
            return np.inf, np.zeros_like(x)
        return -float(value), -np.asarray(gradient, float)

    best = flat[np.argmax(np.where(whole, looked.rest, -np.inf))]
    mode = minimize(objective, best, jac=True, method="L-BFGS-B", options={"maxiter": CLIMBS})
    covariance = mode.hess_inv.todense()
    if not mode.jac @ covariance @ mode.jac < SMALL:  # stopped where values are not finite
        return False
    z: np.ndarray = np.random.default_rng(0).normal(size=(CHECKED_DRAWS, flat.shape[1]))
    values, vectors = np.linalg.eigh(covariance)
    about = mode.x + (z * np.sqrt(np.maximum(values, 0.0))) @ vectors.T
    near = jax.vmap(unravel)(jnp.asarray(about, flat.dtype))
    whole_at = _once(jax.value_and_grad(of_rest, has_aux=True), looked.terms.shape[1])
    (rest, (terms, _)), gradients = jax.tree.map(np.asarray, whole_at(near))
    finite = np.isfinite(rest) & (np.isfinite(terms) | np.isneginf(terms)).all(1)
    for x in gradients.values():
        finite &= np.isfinite(x).reshape(CHECKED_DRAWS, -1).all(1)
    return bool(finite.mean() > MOSTLY)


def _disagree(name: str, part: str) -> str:
    return (
        f"model '{name}': {part} is not finite at draws from `init`; do they agree on the supports?"
    )


def _check_gradients(
    grads: Mapping[str, np.ndarray],
    checked: Bool[np.ndarray, " draw"],
    in_reach: Bool[np.ndarray, " draw"],
    name: str,
    finite_about_the_mode: Callable[[], bool],
) -> None:
    """Chains turn back where a gradient is not finite. That is an error where a fold's posterior
    has mass, as only units it leaves out are impossible (`in_reach`), and where most draws have
    none, unless it is finite about the mode."""
    bad = {k: ~np.isfinite(x).reshape(len(x), -1).all(1) & checked for k, x in grads.items()}
    parameter = max(bad, key=lambda k: int(bad[k].sum()))
    where = bad[parameter]
    if not where.any():
        return
    said = (
        f"model '{name}': the gradient in '{parameter}' is not finite at {where.sum()} of "
        f"{len(where)} prior draws"
    )
    most = where.sum() > checked.sum() / 2
    if (where & in_reach).any() or (most and not finite_about_the_mode()):
        raise PcvError(f"{said}; look for sqrt, log or division at a bound")
    warnings.warn(
        f"{said}, perhaps by overflow: chains turn back there; if that is not far from the data, "
        "tighten the priors, or look for sqrt, log or division at a bound",
        stacklevel=3,
    )
