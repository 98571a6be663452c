r"""Kernel variants for folds unlike the full data.

A fold that keeps little of the data has a posterior wider than the full-data one, in some
directions more than in others, and the full-data kernel takes small steps there. The score's draws
in warmup tell (`unlike`). Such a fold gets a variant of the kernel (`adapt`): in the coordinates
that the full-data kernel whitens, a scale for each, learnt from all its chains, with a step size
and a number of steps; all folds at once. `pcv.all_chains` goes on with both kinds.
"""

from functools import partial
from typing import Any, NamedTuple

import blackjax.mcmc.hmc as hmc
import jax
import jax.numpy as jnp
import numpy as np
from blackjax.adaptation.step_size import dual_averaging_adaptation
from jaxtyping import Array, Bool, Float, Int, Key

from pcv import sampler
from pcv.devices import BY_CHAIN, EVERYWHERE, in_use, laid, laid_out
from pcv.model import Fold
from pcv.sampler import (
    Chains,
    Kernel,
    Sampler,
    chains_at_once,
    filled,
    from_z,
    in_groups,
    spread,
    to_z,
)

MAX_TAU, MOST_TAU = 3.5, 7.0
"""draws that an independent one is worth, above which a fold's chains are slow; and where the
kernel is slow on the full data as well"""
SLOWER = 1.5
"""times that they are worth less than on the full data"""
MAX_WIDER = 3
"""variance of a fold's score, over that at full-data draws, above which the fold is unlike them"""
FULL_DRAWS = 100
"""full-data draws at which scores are evaluated, at one time or at all"""
ITEMS = 64
"""folds at so many draws that are evaluated by one call"""
MIN_DRAWS = 10
"""warmup draws of a chain below which they say nothing"""
WINDOWS = (25, 50, 100)
"""draws after each of which a fold's scale is learnt anew"""
LAST_WINDOW, CHECKED = 50, 100
"""draws after them in which its step size is tuned for the last time, and then looked at"""
TARGET_ACCEPT = 0.9
FIRST_STEP_SIZE, MAX_STEPS = 0.5, 32
REFUSED, MAX_REFUSED = 0.02, 0.005
"""acceptance of a proposal below which it counts as refused; and the share of those above which no
one step size suits the fold's posterior"""
FINER, MOVES = 4, 16
"""what the step size of such a fold is divided by, and its transitions for a draw"""
PRIOR_DRAWS = 5
"""draws that the present scale counts for beside those of a window"""


class Variants(NamedTuple):
    """The full-data kernel and variants of it, which share its centre and scale."""

    center: Float[np.ndarray, " param"]
    scale: Float[np.ndarray, "param ..."]
    step_size: Float[np.ndarray, " variant"]
    num_steps: Int[np.ndarray, " variant"]
    stretch: Float[np.ndarray, "variant param"]
    moves: Int[np.ndarray, " variant"]


def shared(kernel: Kernel) -> Variants:
    """The full-data kernel alone."""
    center, scale, step_size, num_steps = (np.asarray(x) for x in kernel[:4])
    one = np.ones_like(center)[None], np.ones(1, int)
    return Variants(center, scale, step_size[None], num_steps[None], *one)


def slow(draws: Float[np.ndarray, "fold chain draw"], slowest: float) -> Bool[np.ndarray, " fold"]:
    r"""Which folds' chains mix slowly: many draws are worth an independent one.

    .. math:: \tau = \frac{1 + \rho}{1 - \rho} > \min(\max(3.5, 1.5 \tau_0), 7)
              \quad\text{or}\quad \rho \ge 1

    with that of the slowest parameter on the full data, :math:`\tau_0`, and the lag-1
    autocorrelation :math:`\rho` about the mean of all chains, so that chains apart count as slow;
    of the draws or of their ranks, whichever is larger, for outliers hide it. Chains that never
    moved are not slow.

    Args:
        draws: of a score, from a warmup with the full-data kernel.
        slowest: of `pcv.tuning.tune`.

    >>> walk = np.random.default_rng(1).normal(size=(2, 4, 50))
    >>> walk[1] = walk[1].cumsum(axis=1)
    >>> slow(walk, 1.0)
    array([False,  True])
    """
    from scipy.stats import rankdata

    ranks = rankdata(draws.reshape(len(draws), -1), axis=1).reshape(draws.shape)
    with np.errstate(invalid="ignore", divide="ignore"):
        rho = np.fmax(_autocorrelation(draws), _autocorrelation(ranks))
        tau = np.clip(SLOWER * slowest, MAX_TAU, MOST_TAU)
        return rho > (tau - 1) / (tau + 1)


def unlike(
    draws: Float[np.ndarray, "fold chain draw"],
    full: Float[np.ndarray, "fold full_draw"],
    slowest: float,
) -> Bool[np.ndarray, " fold"]:
    """Which folds are unlike the full data: slow ones, or whose score varies three times as much.

    None is when the chains made fewer than 10 draws, which say nothing.

    Args:
        draws: of a score, from a warmup with the full-data kernel.
        full: the same score at full-data draws, of `at_full_data`.
        slowest: of `pcv.tuning.tune`.
    """
    if draws.shape[2] < MIN_DRAWS:
        return np.zeros(len(draws), bool)
    with np.errstate(invalid="ignore"):
        return slow(draws, slowest) | (draws.var(axis=(1, 2)) > MAX_WIDER * full.var(axis=1))


def at_full_data(
    engine: Sampler,
    draws: Float[np.ndarray, "draw param"],
    picks: Int[np.ndarray, " pick"],
    test: Int[np.ndarray, "fold slot"],
    held_out: Int[np.ndarray, "fold run 2"],
) -> Float[np.ndarray, "fold pick"]:
    """Joint log predictive of every fold's test set at some draws given the full data.

    In parts of one size, for any number of folds and draws, so that it is compiled once.
    """
    some = picks[filled(len(picks), -(-len(picks) // FULL_DRAWS) * FULL_DRAWS)]
    some = some.reshape(-1, FULL_DRAWS)
    num_items, size = len(test) * len(some), -(-ITEMS // len(in_use())) * len(in_use())
    everywhere, found = jnp.asarray(draws), []
    for first in range(0, num_items, size):
        fold, part = np.divmod(np.minimum(first + np.arange(size), num_items - 1), len(some))
        found.append(np.asarray(engine.predict(everywhere, some[part], test[fold], held_out[fold])))
    return np.concatenate(found)[:num_items].reshape(len(test), -1)[:, : len(picks)]


def _autocorrelation(x: Float[np.ndarray, "fold chain draw"]) -> Float[np.ndarray, " fold"]:
    x = x - x.mean(axis=(1, 2), keepdims=True)
    return (x[:, :, 1:] * x[:, :, :-1]).mean(axis=(1, 2)) / (x**2).mean(axis=(1, 2))


def quarter_period(step_size: Float[Array, "..."]) -> Int[Array, "..."]:
    """Leapfrog steps that carry a standard normal to an independent place, at most 32."""
    return jnp.clip(jnp.round(jnp.pi / 2 / step_size), 1, MAX_STEPS).astype(int)


def adapt(
    engine: Sampler,
    kernel: Kernel,
    position: Float[np.ndarray, "fold chain param"],
    chains: Chains,
    steps_key: Key[Array, ""],
    target_accept: float,
) -> tuple[Variants, Float[np.ndarray, "fold chain param"], int]:
    r"""A variant of the kernel for each fold, from short windows of draws of its own chains.

    After each of three windows of growing length the stretch :math:`d` of every whitened
    coordinate becomes the standard deviation of the n pooled draws,

    .. math:: d_j^2 \leftarrow d_j^2 \, (n v_j + 5) / (n + 5)

    with their variance :math:`v_j` in the coordinates of the present variant. (One scale for each
    coordinate rather than a covariance: it takes few draws whatever the number of parameters, and
    all chains share the full-data metric.) Within a window the step size follows the acceptance of
    all chains of the fold by dual averaging towards .9, or `target_accept` if that is more; a last
    window tunes it for the final stretch. The number of steps is a quarter period. A fold's variant
    depends on no other fold.

    Under a step size of that acceptance, a normal posterior refuses hardly any proposal outright.
    Where more than .5% are (accepted by less than .02; in 100 more draws, and in the later halves
    of the two windows before them, which try larger steps), scales vary over the posterior, as in a
    funnel, whose neck chains then hardly enter or leave. Such a fold takes a quarter of the step
    size, and sixteen transitions for a draw: what moves chains along a funnel are new momenta, not
    long trajectories.

    Args:
        engine: of the model.
        kernel: of the full data.
        position: where the chains stand.
        chains: their keys and folds; axes (fold, chain).
        steps_key: key of the trajectories' jitter.
        target_accept: of the full-data fit.

    Returns:
        The full-data kernel and a variant for each fold; where the chains stand, and how many
        draws they made.
    """
    target, num_units = engine.target, engine.num_units
    num_folds, num_chains, dim = position.shape
    start, update, final = dual_averaging_adaptation(max(TARGET_ACCEPT, target_accept))
    transition = hmc.build_kernel()

    def window(
        kernel: Kernel,
        first: Array,
        num_draws: Array,
        stretch: Array,
        tuned: Array,
        position: Array,
        own: Chains,
    ) -> tuple[Array, Array, Array, Array]:
        """Of one fold, whose step size was tuned or is now (0): the new stretch, the step size,
        where the chains end, and how many proposals were refused: of all, or of the later half.
        """
        fold = Fold(sampler.train_mask(own.held_out[0], num_units), own.test[0])
        variant = kernel._replace(stretch=stretch)

        def log_density(z: Float[Array, " param"]) -> Float[Array, ""]:
            return target.log_density(from_z(variant, z), fold)

        def draw(i: Int[Array, ""], carry: tuple) -> tuple:
            states, tuning, total, squares, refused = carry
            step_size = jnp.where(tuned > 0, tuned, jnp.exp(tuning.log_step_size))
            shaped = variant._replace(num_steps=quarter_period(step_size))
            steps = sampler.jittered_steps(shaped, jax.random.fold_in(steps_key, first + i))
            step_size, steps = sampler.nowhere(i < 0, step_size, steps)
            keys = jax.vmap(jax.random.fold_in, (0, None))(own.key, first + i)
            after, info = jax.vmap(transition, (0, 0, None, None, None, None))(
                keys, states, log_density, step_size, jnp.ones(dim, position.dtype), steps
            )
            states = sampler.found(i < 0, states, after, info)
            z = states.position
            tuning = jax.tree.map(
                partial(jnp.where, i < 0), tuning, update(tuning, info.acceptance_rate.mean())
            )
            low = (info.acceptance_rate < REFUSED).sum(dtype=refused.dtype)
            refused += jnp.where((i >= 0) & ((tuned > 0) | (i >= num_draws // 2)), low, 0)
            drawn = (i >= 0) * z
            return states, tuning, total + drawn.sum(0), squares + (drawn**2).sum(0), refused

        states = jax.vmap(sampler.unseen)(jax.vmap(to_z, (None, 0))(variant, position))
        nothing = jnp.zeros(dim, position.dtype)
        carry = (states, start(FIRST_STEP_SIZE), nothing, nothing, jnp.int32(0))
        states, tuning, total, squares, refused = jax.lax.fori_loop(-1, num_draws, draw, carry)
        number = num_chains * num_draws
        variance = squares / number - (total / number) ** 2
        wider = (number * variance + PRIOR_DRAWS) / (number + PRIOR_DRAWS)
        end = jax.vmap(from_z, (None, 0))(variant, states.position)
        return stretch * jnp.sqrt(wider), final(tuning), end, refused

    def all_folds(kernel: Kernel, first: Array, num_draws: Array, *folds: Any) -> Any:
        each = partial(window, kernel, first, num_draws)
        return in_groups(each, folds, chains_at_once(num_units * num_chains))

    run = jax.jit(laid_out(all_folds, *(EVERYWHERE,) * 3, *(BY_CHAIN,) * 4))
    nothing, one = np.zeros(num_folds, position.dtype), np.ones((num_folds, dim), position.dtype)
    stretch, untuned, place, chains = spread((one, nothing, position, chains))
    stretch, untuned, place = laid((stretch, untuned, place))
    made = 0
    for length in WINDOWS:
        draws = jnp.int32(made), jnp.int32(length)
        stretch, _, place, in_window = run(kernel, *draws, stretch, untuned, place, chains)
        made += length
    draws = jnp.int32(made), jnp.int32(LAST_WINDOW)
    _, step_size, place, in_last = run(kernel, *draws, stretch, untuned, place, chains)
    made += LAST_WINDOW
    draws = jnp.int32(made), jnp.int32(CHECKED)
    _, _, place, refused = run(kernel, *draws, stretch, step_size, place, chains)
    refused += in_window + in_last
    found = step_size, quarter_period(step_size), stretch, refused, place
    step_size, num_steps, stretch, refused, place = (np.array(x)[:num_folds] for x in found)
    looked_at = CHECKED + (WINDOWS[-1] + LAST_WINDOW) // 2
    rough = refused > MAX_REFUSED * num_chains * looked_at
    step_size[rough] /= FINER
    own = step_size, num_steps, stretch, np.where(rough, MOVES, 1)
    center, scale, *first = shared(kernel)
    both = (np.concatenate(x) for x in zip(first, own))
    return Variants(center, scale, *both), place, made + CHECKED
