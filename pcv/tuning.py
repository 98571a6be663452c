"""The kernel of the folds, tuned on the full data.

A fold's posterior is a perturbation of the full-data one, so all that can be tuned is tuned here:
the folds' HMC takes its metric from the full-data draws' covariance, and its step size and number
of leapfrog steps from short pilot runs.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import blackjax.mcmc.hmc as hmc
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key

from pcv.devices import BY_CHAIN, EVERYWHERE, jit_once, laid_out
from pcv.errors import PcvError
from pcv.model import Target, full_data
from pcv.nuts import Draws
from pcv.sampler import Kernel, from_z, jittered_steps, spread, to_z

STEP_SIZES = 1.5 * 1.4 ** -np.arange(28.0)
"""step sizes that may be tried, in standard deviations of the whitened posterior"""
NUM_STEPS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
AT_ONCE, PILOTS, PILOT_DRAWS = 4, 16, 40
"""step sizes tried side by side, pilot chains of each, and their draws"""
FINALISTS = 4
"""kernels that all pilots try once more"""
MIN_ACCEPTANCE, MAX_PILOTS_DIVERGENT = 0.65, 0.005
USUAL_TARGET = 0.8
"""acceptance that NUTS aims at by default: where more is asked of it, folds accept as much"""
MAX_PILOT_TERMS = 1000
MIN_DRAWS_PER_PARAM = 5


class Trial(NamedTuple):
    """How a kernel did; the best one is the largest."""

    sound: bool
    """few divergences"""
    efficiency: float
    """effective draws per gradient; 0 if too few proposals were accepted"""
    step_size: float
    num_steps: int
    slowest: float
    """draws that an independent one of the slowest parameter is worth"""


class Tuned(NamedTuple):
    """A kernel, and how it does on the full data."""

    kernel: Kernel
    slowest: float
    """draws that an independent one of the slowest parameter is worth"""
    target_accept: float
    """of the full-data fit, which kernels of folds follow"""


def tune(
    target: Target,
    score: Callable[[Float[Array, " param"]], Float[Array, " term"]],
    num_units: int,
    draws: Draws,
    ess: Float[np.ndarray, " param"],
    key: Key[Array, ""],
    target_accept: float,
) -> Tuned:
    r"""The HMC kernel with the most effective draws per gradient, on the full data.

    The metric is the draws' covariance, or its diagonal where there are fewer than five effective
    draws per parameter. Pilot chains that start in equilibrium try step sizes and numbers of steps.
    A draw of a functional with variance :math:`\sigma^2` is worth :math:`1/\tau` independent ones:

    .. math:: \tau = \max\left(1,\; \frac{1 + \rho}{1 - \rho},\;
              \frac{T v}{1 - v}\right)

    with the lag-1 autocorrelation :math:`\rho`, which tells slow kernels apart, and the variance
    :math:`v\sigma^2` of the means of chains of T draws, which sees what moves slower than the
    rest. The longest :math:`\tau` of three counts: that of the sum of the score's terms, and the
    averages over these terms and over the parameters; per gradient, the score's own
    evaluation counted as one. The few best kernels are tried again by more chains.

    Args:
        target: the model on flat parameters.
        score: what is to be predicted, at a position: the unit log likelihoods, or fewer terms.
        num_units: number of units.
        draws: of the full-data posterior.
        ess: effective number of draws of every parameter.
        key: of this tuning.
        target_accept: of the full-data fit; above .8, the kernel accepts as much on the full data,
            which steps of the most effective draws seldom do; else at least .65.

    Raises:
        PcvError: the pilots accept no step size.
    """
    sample = draws.position.reshape(-1, draws.position.shape[-1])
    least = target_accept if target_accept > USUAL_TARGET else MIN_ACCEPTANCE
    dense = bool(np.median(ess) >= MIN_DRAWS_PER_PARAM * sample.shape[1])
    center, scale = jnp.asarray(sample.mean(0)), jnp.asarray(_scale(sample, dense))
    num_terms = jax.eval_shape(score, jnp.asarray(sample[0])).size
    some = np.unique(np.linspace(0, num_terms - 1, MAX_PILOT_TERMS).astype(int))
    everything = full_data(num_units)

    def functionals(position: Float[Array, " param"]) -> Float[Array, " functional"]:
        terms = score(position)
        return jnp.concatenate([terms[some], terms.sum()[None], position])

    def log_density(kernel: Kernel, z: Float[Array, " param"]) -> Float[Array, ""]:
        return target.log_density(from_z(kernel, z), everything)

    def start(position: Float[Array, " param"]) -> tuple[hmc.HMCState, Float[Array, " functional"]]:
        whitened = Kernel(center, scale, jnp.ones(()), jnp.ones((), int))
        state = hmc.init(to_z(whitened, position), partial(log_density, whitened))
        return state, functionals(position)

    thinned = jnp.asarray(sample[:: max(len(sample) // 1000, 1)])
    over_draws = jit_once(lambda x: jax.lax.map(start, x, batch_size=100))
    at_draws = jax.tree.map(np.asarray, over_draws(thinned))
    variance = at_draws[1].var(0)
    num_pilots = AT_ONCE * PILOTS
    spaced = np.linspace(0, len(thinned) - 1, num_pilots).astype(int)
    starts = jax.tree.map(lambda x: x[spaced.reshape(PILOTS, AT_ONCE).T.reshape(-1)], at_draws)

    def pilot(
        num_steps: Int[Array, ""],
        key: Key[Array, ""],
        chain: Int[Array, ""],
        step_size: Float[Array, ""],
        start: tuple[hmc.HMCState, Float[Array, " functional"]],
    ) -> tuple[Array, Array, Array, Array]:
        kernel = Kernel(center, scale, step_size, num_steps)
        steps_key = jax.random.fold_in(key, num_pilots)

        def draw(i: Int[Array, ""], carry: tuple) -> tuple:
            state, last, mean, moved, accepted, diverged = carry
            state, info = hmc.build_kernel()(
                jax.random.fold_in(jax.random.fold_in(key, chain), i),
                state,
                partial(log_density, kernel),
                step_size,
                jnp.ones_like(state.position),
                jittered_steps(kernel, jax.random.fold_in(steps_key, i)),
            )
            now = functionals(from_z(kernel, state.position))
            return (
                state,
                now,
                mean + (now - start[1]) / PILOT_DRAWS,
                moved + (now - last) ** 2 / PILOT_DRAWS,
                accepted + info.acceptance_rate / PILOT_DRAWS,
                diverged + info.is_divergent / PILOT_DRAWS,
            )

        nothing, zero = jnp.zeros_like(start[1]), jnp.zeros_like(step_size)
        carry = (*start, nothing, nothing, zero, zero)
        _, _, mean, moved, accepted, diverged = jax.lax.fori_loop(0, PILOT_DRAWS, draw, carry)
        return mean + start[1], moved, accepted, diverged

    pilots = jax.vmap(pilot, (None, None, 0, 0, 0))
    run = jax.jit(laid_out(pilots, EVERYWHERE, EVERYWHERE, BY_CHAIN, BY_CHAIN, BY_CHAIN))

    def trials(step_sizes: np.ndarray, num_steps: int, again: int) -> list[Trial]:
        each = np.repeat(step_sizes, num_pilots // step_sizes.size).astype(scale.dtype)
        run_key = jax.random.fold_in(jax.random.fold_in(key, num_steps), again)
        out = run(jnp.asarray(num_steps), run_key, *spread((np.arange(num_pilots), each, starts)))
        mean, moved, accepted, diverged = (
            np.asarray(x)[:num_pilots].reshape(step_sizes.size, -1, *x.shape[1:]) for x in out
        )
        with np.errstate(invalid="ignore", divide="ignore"):
            rho = 1 - moved.mean(1) / (2 * variance)
            v = np.minimum(mean.var(1, ddof=1) / variance, 0.98)
            tau = np.fmax(np.fmax((1 + rho) / (1 - rho), PILOT_DRAWS * v / (1 - v)), 1.0)
        n = some.size
        longest = np.max([tau[:, :n].mean(1), tau[:, n], tau[:, n + 1 :].mean(1)], axis=0)
        usable = accepted.mean(1) >= least
        efficiency = np.where(usable, 1 / (longest * (num_steps + 1)), 0.0)
        sound = diverged.mean(1) <= MAX_PILOTS_DIVERGENT
        slowest = np.nanmax(tau[:, n + 1 :], axis=1)
        return [
            Trial(bool(s), float(e), float(x), num_steps, float(t))
            for s, e, x, t in zip(sound, efficiency, step_sizes, slowest)
        ]

    found: list[Trial] = []
    first = 0
    for num_steps in NUM_STEPS:
        if found and max(found).efficiency >= 1 / (num_steps + 1):
            break
        while first < STEP_SIZES.size:
            tried = trials(STEP_SIZES[first : first + AT_ONCE], num_steps, 0)
            accepted = [i for i, trial in enumerate(tried) if trial.efficiency > 0]
            found += [tried[i] for i in accepted]
            first += accepted[0] if accepted else AT_ONCE
            if accepted:
                break
    ranked = sorted(found, reverse=True)
    confirmed: list[Trial] = []
    while ranked and not confirmed:
        again = [trials(np.array([x.step_size]), x.num_steps, 1)[0] for x in ranked[:FINALISTS]]
        confirmed = [trial for trial in again if trial.efficiency > 0]
        ranked = ranked[FINALISTS:]
    if not confirmed and target_accept > USUAL_TARGET:
        raise PcvError(
            f"no step size of HMC is accepted in {target_accept:g} of proposals on the full data: "
            "set a lower fit.target_accept, use precision: float64, or reparameterise"
        )
    if not confirmed:
        raise PcvError(
            "no step size of HMC is accepted on the full data: the posterior's scales vary too "
            "much; reparameterise the model"
        )
    best = max(confirmed)
    kernel = Kernel(center, scale, jnp.asarray(best.step_size), jnp.asarray(best.num_steps))
    return Tuned(kernel, best.slowest, target_accept)


def _scale(sample: Float[np.ndarray, "draw param"], dense: bool) -> np.ndarray:
    """Lower Cholesky factor of the sample's covariance, or its diagonal, whatever the units."""
    deviation = sample.std(0)
    if not dense:
        return deviation
    correlation = np.corrcoef(sample.T).reshape(deviation.size, deviation.size)
    correlation[np.diag_indices_from(correlation)] += 1e-9
    return deviation[:, None] * np.linalg.cholesky(correlation)
