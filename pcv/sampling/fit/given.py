r"""A full-data posterior from the draws of another sampler, checked.

Draws must satisfy two identities that hold under their own posterior,

.. math:: E[\nabla \log p(u \mid y)] = 0, \qquad
          E[(u_j - E u_j)\,\partial_j \log p(u \mid y)] = -1,

on the unconstrained scale: other models, priors or data violate one of them. Where gradients have
heavy tails, their means say little. So draws are also moved by Hamiltonian Monte Carlo, which
leaves the posterior as it is: a draw and where it ends are exchangeable, so that the log density,
and every parameter, rises as often as it falls.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key, Shaped

from pcv.base.errors import PcvError
from pcv.base.keys import any_key
from pcv.base.monitor import Monitor
from pcv.compile import programs
from pcv.models.model import Target, full_data
from pcv.sampling.fit import fit_checks
from pcv.sampling.fit.draws import Draws
from pcv.sampling.fit.full_data import after_nuts, untuned
from pcv.sampling.fit.posterior import Posterior
from pcv.sampling.tiles import Engine

MAX_Z = 6.0
"""largest z-score of a mean"""
AT_ONCE = 100
"""draws evaluated side by side"""
MOVED, TRIED = 400, 50
"""draws that are moved, evenly spaced, and of these, for which step sizes are tried"""
TRANSITIONS, STEPS = 5, 8
"""HMC transitions of each, and their leapfrog steps"""
STEP_SIZES = 2.0 ** np.arange(4, -15, -1)
"""step sizes that are tried, in standard deviations of the draws"""
ACCEPTED = 0.6
"""acceptance rate from which on a step size is taken"""

Variables = Mapping[str, Shaped[np.ndarray, "chain draw ..."]]


def posterior(
    target: Target,
    unconstrain: Callable[[Mapping[str, Array]], Float[Array, " param"]],
    variables: Variables,
    stats: Mapping[str, np.ndarray],
    num_units: int,
    names: list[str],
    root: Callable[[str], Key[Array, ""]],
    target_accept: float,
    monitor: Monitor,
    engine_of: Callable[[int], Engine] | None,
) -> Posterior:
    """The posterior of existing draws, and the kernel for its folds.

    Args:
        target: the model on flat parameters.
        unconstrain: from the variables of one draw to flat parameters.
        variables: of the posterior, by name.
        stats: of the sampler, where available: energy, diverging, acceptance_rate, n_steps.
        num_units: number of units.
        names: of the parameters.
        root: key by sampler.
        target_accept: target acceptance rate of the folds.
        monitor: takes messages, and the progress after every block.
        engine_of: makes the program of a fit with so many draws; None: no folds will be sampled,
            so that they need no kernel, which takes longer to find than all else.

    Raises:
        PcvError: a variable is missing or has another shape, a draw lies outside its support, or
            the draws are not from this model and these data.
    """
    position = _unconstrained(target, unconstrain, variables)
    if len(position) < 2:
        raise PcvError(
            "the given posterior has one chain, so its mixing cannot be checked; give two or more"
        )
    lp, gradient = _derivatives(target, position, num_units)
    known = {name: x for name, x in stats.items() if np.shape(x) == lp.shape}
    draws = Draws(
        position,
        lp,
        *(
            np.nan_to_num(known[name], nan=nothing).astype(kind)
            if name in known
            else np.full(lp.shape, nothing, kind)
            for name, nothing, kind in (
                ("energy", np.nan, float),
                ("acceptance_rate", np.nan, float),
                ("n_steps", 0, int),
                ("diverging", False, bool),
            )
        ),
    )
    checks = fit_checks.check(draws, names, target_accept)
    if not checks.problems:
        _check_identities(position, gradient, names)
        _check_moves(target, position, num_units, names, root("moves"))
    monitor.log(
        f"given posterior, {lp.shape[0]} chains x {lp.shape[1]} draws, {len(names)} parameters"
    )
    if engine_of is None:
        size = float(np.nanmin(checks.ess))
        equal = position.reshape(-1, position.shape[-1])
        return Posterior(untuned(draws, equal, size, target_accept), checks)
    engine = engine_of(lp.size)
    fit = after_nuts(engine, root("fit"), draws, target_accept, monitor)
    return Posterior(fit, checks)


def _unconstrained(
    target: Target,
    unconstrain: Callable[[Mapping[str, Array]], Float[Array, " param"]],
    variables: Variables,
) -> Float[np.ndarray, "chain draw param"]:
    """Draws as flat unconstrained parameters."""
    shapes = jax.eval_shape(lambda key: target.constrain(target.init(key)), any_key())
    known = {name: np.asarray(variables[name]) for name in shapes if name in variables}
    for name, x in known.items():
        if x.shape[2:] != shapes[name].shape:
            raise PcvError(
                f"the given posterior has '{name}' with shape {x.shape[2:]}, the model with shape "
                f"{shapes[name].shape}: it is from another model or other data"
            )
        if x.dtype.kind == "f" and np.isnan(x).any():
            lost = int(np.isnan(x).reshape(*x.shape[:2], -1).any(2).sum())
            raise PcvError(
                f"the given posterior has NaN in {lost} draws of '{name}'; give it without them"
            )
    there = ", ".join(f"'{name}'" for name in variables)
    if not known:
        raise PcvError(f"the given posterior has none of the model's variables, only {there}")
    chains, draws = next(iter(known.values())).shape[:2]
    flat = {
        name: x.reshape(-1, *x.shape[2:]).astype(shapes[name].dtype) for name, x in known.items()
    }

    try:
        every = programs.shared(lambda x: jax.lax.map(unconstrain, x, batch_size=AT_ONCE))
        found = np.asarray(every(flat))
    except KeyError as error:
        raise PcvError(
            f"the given posterior has no variable {error}, only {there}: it is from another model"
        ) from error
    if not np.isfinite(found).all():
        outside = int((~np.isfinite(found).all(1)).sum())
        raise PcvError(
            f"{outside} of {len(found)} draws of the given posterior lie outside the model's "
            "support, or on its boundary, perhaps by rounding: give more digits, or a posterior of "
            "this model"
        )
    return found.reshape(chains, draws, -1)


def _derivatives(
    target: Target, position: Float[np.ndarray, "chain draw param"], num_units: int
) -> tuple[Float[np.ndarray, "chain draw"], Float[np.ndarray, "chain draw param"]]:
    """Log density and its gradient at the draws."""
    everything = full_data(num_units)
    both = jax.value_and_grad(lambda x: target.log_density(x, everything))
    every = programs.shared(lambda x: jax.lax.map(both, x, batch_size=AT_ONCE))
    found = every(jnp.asarray(position.reshape(-1, position.shape[-1])))
    lp, gradient = (np.asarray(x) for x in found)
    bad = ~(np.isfinite(lp) & np.isfinite(gradient).all(1))
    if bad.any():
        raise PcvError(
            f"the model's log density, or its gradient, is not finite at {bad.sum()} of {lp.size} "
            "draws of the given posterior: it is from another model or other data"
        )
    return lp.reshape(position.shape[:2]), gradient.reshape(position.shape)


def _check_identities(
    position: Float[np.ndarray, "chain draw param"],
    gradient: Float[np.ndarray, "chain draw param"],
    names: list[str],
) -> None:
    """Check that draws come from the posterior of these gradients."""
    from arviz_stats.base import array_stats

    away = position - position.mean((0, 1))
    for of, x in (("", gradient), (" by its parameter", away * gradient + 1)):
        error = np.asarray(array_stats.mcse(x, method="mean", chain_axis=0, draw_axis=1))
        with np.errstate(invalid="ignore", divide="ignore"):
            z = np.nan_to_num(np.abs(x.mean((0, 1)) / error), posinf=1e9)
        worst = int(np.argmax(z))
        if z[worst] > MAX_Z:
            raise PcvError(
                "the given posterior is not that of this model and these data: the mean "
                f"gradient of the log density{of} in '{names[worst]}' is {z[worst]:.0f} standard "
                "errors off; give one of the same model, priors and data, or leave out fit"
            )


def _check_moves(
    target: Target,
    position: Float[np.ndarray, "chain draw param"],
    num_units: int,
    names: list[str],
    root: Key[Array, ""],
) -> None:
    """Check that HMC raises the log density, and each parameter, as often as it lowers them."""
    chains, number, size = position.shape
    per_chain = max(min(number, MOVED // chains), 1)
    some = position[:, np.linspace(0, number - 1, per_chain).round().astype(int)]
    start, variance = some.reshape(-1, size), position.var(axis=(0, 1))
    everything = full_data(num_units)

    def transitions(step_size: Array, variance: Array, start: Array, keys: Array) -> Any:
        """All of one draw, where they end, and how many are accepted on average."""

        def density(x: Array) -> Array:
            return target.log_density(x, everything)

        hmc = blackjax.hmc(density, step_size, variance, STEPS)

        def transition(state: Any, key: Array) -> Any:
            state, info = hmc.step(key, state)
            return state, info.acceptance_rate

        begin = hmc.init(start)
        end, rates = jax.lax.scan(transition, begin, keys)
        return end.position, end.logdensity - begin.logdensity, rates.mean()

    def of_all(step_size: Array, variance: Array, start: Array, keys: Array) -> Any:
        each = partial(transitions, step_size, variance)
        return jax.lax.map(lambda x: each(*x), (start, keys), batch_size=AT_ONCE)

    every, few = programs.shared(of_all), start[:: -(-len(start) // TRIED)]
    for step_size in STEP_SIZES:
        one = jax.random.split(jax.random.fold_in(root, 0), (len(few), 1))
        _, _, rate = every(step_size, variance, few, one)
        if np.nan_to_num(rate).mean() >= ACCEPTED:
            break
    keys = jax.random.split(jax.random.fold_in(root, 1), (len(start), TRANSITIONS))
    end, rise, _ = every(step_size, variance, start, keys)
    rises = np.concatenate([np.asarray(rise)[:, None], np.asarray(end) - start], axis=1)
    _check_signs(np.sign(rises).reshape(chains, per_chain, -1), names)


def _check_signs(sign: Float[np.ndarray, "chain draw what"], names: list[str]) -> None:
    """Check that signs of moves, of the log density and of each parameter, are 0 on average."""
    from arviz_stats.base import array_stats

    error = np.asarray(array_stats.mcse(sign, method="mean", chain_axis=0, draw_axis=1))
    independent = 1 / np.sqrt(sign[..., 0].size)
    z = np.nan_to_num(np.abs(sign.mean((0, 1))) / np.fmax(error, independent), nan=np.inf)
    worst = int(np.argmax(z))
    if z[worst] > MAX_Z:
        what = "the log density" if worst == 0 else f"'{names[worst - 1]}'"
        rises = (sign[..., worst] > 0).mean()
        raise PcvError(
            "the given posterior is not that of this model and these data: from its draws, "
            f"Hamiltonian Monte Carlo raises {what} in {rises:.0%} of cases, where half are "
            "expected; give one of the same model, priors and data, or leave out fit"
        )
