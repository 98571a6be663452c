"""Own effects of a test set's groups, under their prior given the other parameters."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int, Key

from pcv.base.keys import any_key
from pcv.compile import programs
from pcv.folds.base import Folds
from pcv.models.effects.effects import Locals, Position
from pcv.models.effects.laplace import Function, Prior, independent_prior, normal_prior
from pcv.models.model import Model, Params, Target
from pcv.models.parameters import unravel_of


def entries_and_put(
    model: Model, local: Locals
) -> tuple[Int[Array, "group dim"], Callable[[Params, Array, Array], Params]]:
    """The groups' entries, followed by those of an empty group; and a function that replaces local
    entries of the parameters. It leaves arrays without any alone, to spare their derivatives."""
    shapes = jax.eval_shape(model.init, any_key())
    total, ranges = 0, {}
    for name in sorted(shapes):
        size = int(np.prod(shapes[name].shape))
        if ((local.entries >= total) & (local.entries < total + size)).any():
            ranges[name] = total, size
        total += size

    def put(params: Params, entries: Int[Array, " dim"], x: Float[Array, " dim"]) -> Params:
        moved = {}
        for name, (first, size) in ranges.items():
            inside = (entries >= first) & (entries < first + size)
            place = jnp.where(inside, entries - first, size)
            flat = params[name].reshape(-1).at[place].set(x, mode="drop")
            moved[name] = flat.reshape(params[name].shape)
        return {**params, **moved}

    nobody = np.full((1, local.entries.shape[1]), total)
    return jnp.asarray(np.concatenate([local.entries, nobody])), put


def groups_of(
    local: Locals, test: Int[Array, " slot"]
) -> tuple[Int[Array, " slot"], Int[Array, " group"]]:
    """The group of each slot, -1 where it has none, and the groups of the test set, both padded by
    the empty group."""
    nobody = len(local.entries)
    of_slot = jnp.where(test >= 0, jnp.asarray(local.group)[test], nobody)
    present = jnp.where(of_slot >= 0, of_slot, nobody)
    if local.most == 1:
        return of_slot, jnp.min(present, keepdims=True)
    return of_slot, jnp.unique(present, size=local.most + 1, fill_value=nobody)[:-1]


def over_groups(function: Callable[..., Any], *arrays: Array) -> Any:
    """Apply `function` to each group of a test set, without `vmap` for a single one."""
    if len(arrays[0]) > 1:
        return jax.vmap(function)(*arrays)
    return jax.tree.map(lambda x: x[None], function(*(x[0] for x in arrays)))


def get(params: Params, entries: Int[Array, "*dims"]) -> Float[Array, "*dims"]:
    """Entries of the flat vector, 0 beyond its end."""
    position: Position = ravel_pytree(params)[0]
    return position.at[entries].get(mode="fill", fill_value=0.0)


def of_entries(
    log_prior: Callable[[Params], Array],
    put: Callable[[Params, Array, Array], Params],
    params: Params,
    entries: Int[Array, " dim"],
) -> tuple[Function, Float[Array, " dim"]]:
    """Log prior as a function of a group's own parameters (padded ones standard normal), and their
    current values."""
    there = entries < ravel_pytree(params)[0].size

    def of_values(x: Float[Array, " dim"]) -> Float[Array, ""]:
        prior = log_prior(put(params, entries, x))
        return prior - jnp.sum(jnp.where(there, 0.0, x**2)) / 2

    return of_values, get(params, entries)


def widths(local: Locals) -> Float[Array, "group dim"]:
    return jnp.asarray(np.append(local.width, np.ones((1, local.width.shape[1])), axis=0))


def priors(local: Locals) -> Callable[[Key[Array, ""], Function, Array, Array], Prior]:
    """Function that makes the prior of effects from their log density, current values and group."""
    all_widths = widths(local)

    def prior_of(key: Key[Array, ""], log_prior: Function, now: Array, group: Array) -> Prior:
        if local.normal:
            return normal_prior(log_prior, now)
        width = all_widths[group].astype(now.dtype)
        return independent_prior(jax.random.fold_in(key, 1), log_prior, now, width)

    return prior_of


def key_of(params: Params) -> Key[Array, ""]:
    """A key derived from the position, so that each position has its own quadrature nodes."""
    position = ravel_pytree(params)[0]
    bits = jax.lax.bitcast_convert_type(position.astype(jnp.float32), jnp.uint32)
    odd = 2 * jnp.arange(position.size, dtype=jnp.uint32) + 1
    return jax.random.fold_in(jax.random.key(0), jnp.sum(bits * odd, dtype=jnp.uint32))


def drawn_anew(
    model: Model, local: Locals
) -> Callable[[Key[Array, ""], Params, Int[Array, " slot"]], Params]:
    """Function that redraws the own effects of a test set from their prior."""
    own = programs.Inner(model.log_prior)
    (all_entries, put), prior_of = entries_and_put(model, local), priors(local)

    def moved(key: Key[Array, ""], params: Params, test: Int[Array, " slot"]) -> Params:
        _, present = groups_of(local, test)

        def of_group(group: Int[Array, ""]) -> Float[Array, " dim"]:
            own_key = jax.random.fold_in(key, group)
            log_prior, now = of_entries(own, put, params, all_entries[group])
            return prior_of(own_key, log_prior, now, group).draw(own_key, 1)[0]

        effects = over_groups(of_group, present)
        return put(params, all_entries[present].ravel(), effects.ravel())

    return moved


def started_anew(
    model: Model | Target,
    local: Locals | None,
    folds: Folds,
    positions: Float[np.ndarray, "fold chain param"],
) -> Float[np.ndarray, "fold chain param"]:
    """Chain starts, with own effects redrawn if their prior is not normal: started at their
    full-data values, far in a tail or in one mode of it, a chain could stay there for long."""
    if isinstance(model, Target) or local is None or local.normal:
        return positions
    anew, unravel = drawn_anew(model, local), unravel_of(model.init)

    def of_chain(position: Position, test: Int[Array, " slot"]) -> Position:
        params = unravel(position)
        moved = anew(jax.random.fold_in(key_of(params), 2), params, test)
        return ravel_pytree(moved)[0]

    every = programs.once(jax.vmap(jax.vmap(of_chain, (0, None))))
    return np.asarray(every(jnp.asarray(positions), jnp.asarray(folds.test)))
