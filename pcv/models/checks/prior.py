"""Whether a model's `init` draws from its prior, and which of its parameters are centred."""

import warnings
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from pcv.compile import programs
from pcv.models.model import Fold, Model, Scalar, Target
from pcv.models.parameters import MOST_DRAWS, prior_draws

MAX_PRIOR_Z = 6.0
"""z-score above which `check_prior` warns"""


def check_prior(model: Model | Target, num_units: int, name: str) -> None:
    r"""Check that `init` draws from `log_prior`, whose gradient then has mean zero:

    .. math:: E_{p(u)} \left[ \nabla_u \log p(u) \right] = 0

    The prior of a target is its log density given no units. Models of front-ends are skipped: they
    draw from their priors unless these are improper.

    Warns:
        UserWarning: naming the parameter whose mean gradient is furthest from zero.
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
        worst[parameter] = _off(np.asarray(grad, np.float64))
    parameter = max(worst, key=lambda name: worst[name])
    if worst[parameter] > MAX_PRIOR_Z:
        warnings.warn(
            f"model '{name}': draws from `init` do not follow `log_prior` in '{parameter}' (its "
            f"mean gradient is {worst[parameter]:.0f} standard errors from 0): is the Jacobian "
            "missing, or does `init` return constrained values?",
            stacklevel=2,
        )


def strayed(model: Model) -> str | None:
    r"""The parameter whose draws by `init` follow another density than `log_prior`, or a factor
    that these ignore, if any; as where the prior is improper. By Stein's identity for the functions
    1 and u,

    .. math:: E \left[ \nabla_u \log p(u) \right] = 0, \qquad
              E \left[ u \, \partial_u \log p(u) \right] = -1
    """
    if model.factors:
        return model.factors[0]
    gradients = programs.once(partial(jax.lax.map, jax.grad(model.log_prior)))
    draws = prior_draws(model.init, MOST_DRAWS)
    of_all = np.concatenate([x.reshape(MOST_DRAWS, -1) for x in draws.values()], axis=1)
    _, distinct = np.unique(of_all, axis=0, return_index=True)  # PyMC's are from a few hundred
    for name, slope in gradients(draws).items():
        g, u = (np.asarray(x, float)[distinct] for x in (slope, draws[name]))
        for zero in (g, (u - u.mean(0)) * g + 1):
            if _off(zero) > MAX_PRIOR_Z:
                return name
    return None


def _off(draws: Float[np.ndarray, "draw ..."]) -> float:
    """How many standard errors the mean that is furthest from 0 is off."""
    with np.errstate(invalid="ignore", divide="ignore"):
        z = np.abs(draws.mean(0)) / (draws.std(0) / np.sqrt(len(draws)))
    return float(np.nan_to_num(z, nan=0.0, posinf=np.inf).max(initial=0.0))


def centred(model: Model | Target) -> list[str]:
    """Vector parameters whose prior depends on other parameters, as in centred parameterisations.

    Where the prior is a product over parameters, swapping one between two draws leaves the sum of
    their log priors unchanged.
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

    found = programs.once(jax.vmap(gaps))(jax.random.split(jax.random.key(0), (3, 2)))
    return [name for name, gap in found.items() if (gap > 1e-3).any()]
