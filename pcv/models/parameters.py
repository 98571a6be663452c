"""Parameters of a model: as a flat vector, with names of its entries, and draws from the prior."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Key, Shaped

from pcv.base.keys import any_key
from pcv.compile import programs
from pcv.models.model import Data, Model, Params, Target, numeric

MOST_DRAWS, MOST_NUMBERS = 1000, 2**23
"""prior draws made at once, and the most numbers they may hold"""
MODELS = 4
"""whose prior draws are kept"""


def flat_target(target: Target) -> tuple[Target, Callable[[Float[Array, " param"]], Params]]:
    """The target as a function of a flat parameter vector, and the inverse of the flattening."""
    unravel = unravel_of(target.init)
    density, predict, moments = target.density, target.predict, target.moments
    cdf, log_path = target.cdf, target.log_path
    flat = Target(
        init=lambda key: ravel_pytree(target.init(key))[0],
        log_density=lambda position, fold: target.log_density(unravel(position), fold),
        log_predictive=lambda position, fold: target.log_predictive(unravel(position), fold),
        outcome=target.outcome,
        constrain=lambda position: target.constrain(unravel(position)),
        observed=target.observed,
        density=density and (lambda position, fold, y: density(unravel(position), fold, y)),
        predict=predict and (lambda key, position, fold: predict(key, unravel(position), fold)),
        cdf=cdf and (lambda key, position, fold, y: cdf(key, unravel(position), fold, y)),
        moments=moments and (lambda position, fold: moments(unravel(position), fold)),
        log_path=log_path and (lambda key, position, fold: log_path(key, unravel(position), fold)),
        dims=target.dims,
        coords=target.coords,
        reads_test=target.reads_test,
        calls_back=target.calls_back,
    )
    return flat, unravel


def unit_log_lik(
    model: Model | Target, data: Data
) -> Callable[[Float[Array, " param"]], Float[Array, " unit"]] | None:
    """The log likelihood terms as a function of the flat parameter vector; None for a target."""
    if isinstance(model, Target):
        return None
    log_lik, arrays, unravel = model.log_lik, numeric(data), unravel_of(model.init)
    return lambda position: log_lik(unravel(position), arrays)


def param_names(target: Target) -> list[str]:
    """Names of the entries of the flat parameter vector, in order: ``mu``, ``alpha[0]``, ...

    >>> param_names(Target(lambda key: {"b": np.zeros(2), "a": np.zeros(())}, None, None))
    ['a', 'b[0]', 'b[1]']
    """
    shapes = jax.eval_shape(target.init, any_key())
    names = []
    for name in sorted(shapes):
        for index in np.ndindex(shapes[name].shape):
            names.append(f"{name}[{', '.join(map(str, index))}]" if index else name)
    return names


def unravel_of(init: Callable[[Key[Array, ""]], Params]) -> Callable[[Any], Params]:
    """Map from the flat vector to named parameters."""
    return unravel_like(jax.eval_shape(init, any_key()))


def unravel_like(shapes: Any) -> Callable[[Any], Params]:
    """Map from the flat vector to parameters of these shapes."""
    leaves, structure = jax.tree.flatten(shapes)
    ends = np.cumsum([x.size for x in leaves]).tolist()

    def unravel(position: Any) -> Any:
        parts = [
            position[end - x.size : end].reshape(x.shape).astype(x.dtype)
            for x, end in zip(leaves, ends)
        ]
        return jax.tree.unflatten(structure, parts)

    return unravel


def flattened(params: Mapping[str, Any]) -> Float[np.ndarray, "point param"]:
    """Named parameters at several points as flat vectors, ordered as in `flat_target`."""
    rows = [np.asarray(params[name]).reshape(len(params[name]), -1) for name in sorted(params)]
    return np.concatenate(rows, axis=1)


def prior_draws(
    init: Callable[[Key[Array, ""]], Params], number: int
) -> dict[str, Shaped[np.ndarray, "draw ..."]]:
    """Up to `MOST_DRAWS` draws from the prior, the same in each call: prior samplers are slow to
    compile, so they are compiled once, and all checks of a model share its draws."""
    key = id(init), bool(jax.config.jax_enable_x64)
    if key not in _drawn or _drawn[key].number < number:
        size = sum(x.size for x in jax.eval_shape(init, any_key()).values())
        most = MOST_DRAWS if size * MOST_DRAWS <= MOST_NUMBERS else number

        def draw() -> Params:
            drawn: Params = jax.lax.map(init, jax.random.split(jax.random.key(0), most))
            return drawn

        every = programs.once(draw)()
        _drawn[key] = _Drawn(init, most, {name: np.asarray(x) for name, x in every.items()})
        while len(_drawn) > MODELS:
            del _drawn[next(iter(_drawn))]
    return {name: x[:number] for name, x in _drawn[key].draws.items()}


class _Drawn(NamedTuple):
    """Draws from the prior of a model."""

    init: Callable[[Key[Array, ""]], Params]
    """which is alive with its id"""
    number: int
    draws: dict[str, Shaped[np.ndarray, "draw ..."]]


_drawn: dict[tuple[int, bool], _Drawn] = {}


def points(
    init: Callable[[Key[Array, ""]], Params], number: int
) -> dict[str, Shaped[np.ndarray, "point ..."]]:
    """Draws from the prior, then as many points within 2 of 0 on the unconstrained scale, where
    densities do not overflow however vague the priors."""
    rng = np.random.default_rng(0)
    return {
        name: np.concatenate([x, rng.uniform(-2, 2, x.shape).astype(x.dtype)])
        for name, x in sorted(prior_draws(init, number).items())
    }
