"""The full-data posterior: NUTS with window adaptation, its checks, and the kernel of the folds.

A fold's posterior is a perturbation of the full-data one, so all that can be tuned is tuned here:
the folds' HMC takes its metric from these draws' covariance, and its step size and number of
leapfrog steps from short pilot runs on the full data.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import blackjax
import blackjax.mcmc.hmc as hmc
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Bool, Float, Int, Key

from pcv.devices import RUN_ONCE
from pcv.errors import PcvError
from pcv.model import Fold, Target
from pcv.sampler import Kernel, from_z, jittered_steps, spread, to_z

MAX_RHAT, WARN_RHAT = 1.05, 1.01
MAX_DIVERGENT = 0.01

PRIOR_DRAWS = 20
"""prior draws per chain among which a start with finite density and gradient is looked for"""


class Draws(NamedTuple):
    """Draws from the full-data posterior, on the unconstrained scale."""

    position: Float[np.ndarray, "chain draw param"]
    lp: Float[np.ndarray, "chain draw"]
    energy: Float[np.ndarray, "chain draw"]
    acceptance_rate: Float[np.ndarray, "chain draw"]
    n_steps: Int[np.ndarray, "chain draw"]
    diverging: Bool[np.ndarray, "chain draw"]


class Checks(NamedTuple):
    """Can the full-data fit be trusted? Problems stop the run, warnings do not."""

    rhat: Float[np.ndarray, " param"]
    ess: Float[np.ndarray, " param"]
    efmi: Float[np.ndarray, " chain"]
    divergences: int
    problems: list[str]
    warnings: list[str]


def posterior(
    target: Target,
    num_units: int,
    key: Key[Array, ""],
    chains: int,
    warmup: int,
    draws: int,
    target_accept: float,
) -> Draws:
    """Draws from the posterior given all units: BlackJAX's NUTS, each chain adapting alone.

    Args:
        target: the model on flat parameters.
        num_units: number of units, all of them in training.
        key: of this fit.
        chains, warmup, draws: how many, the last two per chain.
        target_accept: acceptance rate that the step size is adapted to.

    Raises:
        PcvError: no prior draw of some chain has a finite density and gradient.
    """
    everything = Fold(jnp.ones(num_units, bool), jnp.zeros(0, int))

    def log_density(position: Float[Array, " param"]) -> Float[Array, ""]:
        return target.log_density(position, everything)

    def candidates(key: Key[Array, ""]) -> hmc.HMCState:
        keys = jax.random.split(key, chains * PRIOR_DRAWS)
        return jax.lax.map(lambda x: hmc.init(x, log_density), jax.lax.map(target.init, keys))

    def one_chain(key: Key[Array, ""], start: Float[Array, " param"]) -> Draws:
        warmup_key, draws_key = jax.random.split(key)
        adaptation = blackjax.window_adaptation(
            blackjax.nuts,
            log_density,
            target_acceptance_rate=target_accept,
            adaptation_info_fn=lambda *_: (),
        )
        (state, tuned), _ = adaptation.run(warmup_key, start, warmup)
        transition = blackjax.mcmc.nuts.build_kernel()

        def draw(state: hmc.HMCState, key: Key[Array, ""]) -> tuple[hmc.HMCState, tuple]:
            state, info = transition(
                key, state, log_density, tuned["step_size"], tuned["inverse_mass_matrix"]
            )
            return state, (
                state.position,
                state.logdensity,
                info.energy,
                info.acceptance_rate,
                info.num_integration_steps,
                info.is_divergent,
            )

        return Draws(*jax.lax.scan(draw, state, jax.random.split(draws_key, draws))[1])

    find = jax.jit(candidates, compiler_options=RUN_ONCE)
    found = jax.tree.map(
        lambda x: np.asarray(x).reshape(chains, PRIOR_DRAWS, *x.shape[1:]),
        find(jax.random.fold_in(key, 0)),
    )
    finite = np.isfinite(found.logdensity) & np.isfinite(found.logdensity_grad).all(2)
    if not finite.any(1).all():
        raise PcvError(
            f"chain {int(np.argmin(finite.any(1)))}: the log density or its gradient is not finite "
            f"at any of {PRIOR_DRAWS} prior draws; check the model with `pcv check`"
        )
    starts = found.position[np.arange(chains), finite.argmax(1)]
    spec = PartitionSpec("chain")
    run = jax.jit(
        jax.shard_map(
            jax.vmap(one_chain),
            mesh=Mesh(np.array(jax.devices()), ("chain",)),
            in_specs=spec,
            out_specs=spec,
            check_vma=False,
        )
    )
    keys = jax.random.split(jax.random.fold_in(key, 1), chains)
    result = run(*spread((keys, starts)))
    return jax.tree.map(lambda x: np.asarray(x)[:chains], result)


def check(draws: Draws, names: list[str]) -> Checks:
    """R-hat, bulk ESS, divergences and E-FMI of a full-data fit, and what they mean.

    Args:
        draws: at least two chains.
        names: of the parameters, for the messages.
    """
    from arviz_stats.base import array_stats

    num_chains, num_draws, _ = draws.position.shape
    axes = {"chain_axis": 0, "draw_axis": 1}
    with np.errstate(invalid="ignore", divide="ignore"):
        rhat = np.asarray(array_stats.rhat(draws.position, method="rank", **axes))
        ess = np.asarray(array_stats.ess(draws.position, method="bulk", **axes))
        efmi = np.asarray(array_stats.bfmi(draws.energy, **axes))
    problems, warnings = [], []
    for chain in range(num_chains):
        distinct = np.unique(draws.lp[chain]).size
        if distinct < 0.05 * num_draws:
            problems.append(
                f"chain {chain} is stuck ({distinct} distinct draws of {num_draws}): other "
                "priors or a non-centred parameterisation may help"
            )
    worst = int(np.argmax(np.where(np.isnan(rhat), np.inf, rhat)))
    if not rhat[worst] <= MAX_RHAT:
        means = draws.position[..., worst].mean(1)
        apart = int(np.argmax(np.abs(means - np.median(means))))
        problems.append(
            f"R-hat of '{names[worst]}' is {rhat[worst]:.2f}, above {MAX_RHAT} (chain {apart} is "
            "furthest from the others): more fit.warmup and fit.draws, or reparameterise"
        )
    elif rhat[worst] > WARN_RHAT:
        warnings.append(
            f"R-hat of '{names[worst]}' is {rhat[worst]:.3f}, above {WARN_RHAT}: "
            "more fit.draws would make sure of it"
        )
    divergences = int(draws.diverging.sum())
    if divergences > MAX_DIVERGENT * draws.diverging.size:
        problems.append(
            f"{divergences} of {draws.diverging.size} draws diverged, more than "
            f"{MAX_DIVERGENT:.0%}: raise fit.target_accept, or reparameterise (non-centred)"
        )
    elif divergences:
        warnings.append(f"{divergences} divergences: raise fit.target_accept")
    return Checks(rhat, ess, efmi, divergences, problems, warnings)


STEP_SIZES = 1.5 * 1.4 ** -np.arange(28.0)
"""step sizes that may be tried, in standard deviations of the whitened posterior"""
NUM_STEPS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
AT_ONCE, PILOTS, PILOT_DRAWS = 4, 16, 40
"""step sizes tried side by side, pilot chains of each, and their draws"""
FINALISTS = 4
"""kernels that all pilots try once more"""
MIN_ACCEPTANCE, MAX_PILOTS_DIVERGENT = 0.65, 0.005
MAX_PILOT_UNITS = 1000
MIN_DRAWS_PER_PARAM = 5


class Trial(NamedTuple):
    """How a kernel did; the best one is the largest."""

    sound: bool
    """few divergences"""
    efficiency: float
    """effective draws per gradient; 0 if too few proposals were accepted"""
    step_size: float
    num_steps: int


def tune(
    target: Target,
    log_lik: Callable[[Float[Array, " param"]], Float[Array, " unit"]],
    num_units: int,
    draws: Draws,
    ess: Float[np.ndarray, " param"],
    key: Key[Array, ""],
) -> Kernel:
    r"""The HMC kernel with the most effective draws per gradient, on the full data.

    The metric is the draws' covariance, or its diagonal where there are fewer than five effective
    draws per parameter. Pilot chains that start in equilibrium try step sizes and numbers of steps.
    A draw of a functional with variance :math:`\sigma^2` is worth :math:`1/\tau` independent ones:

    .. math:: \tau = \max\left(1,\; \frac{1 + \rho}{1 - \rho},\;
              \frac{T v}{1 - v}\right)

    with the lag-1 autocorrelation :math:`\rho`, which tells slow kernels apart, and the variance
    :math:`v\sigma^2` of the means of chains of T draws, which sees what moves slower than the
    rest. The longest :math:`\tau` of three counts: that of the sum of the unit log likelihoods,
    and the averages over their terms and over the parameters; per gradient, the score's own
    evaluation counted as one. The few best kernels are tried again by more chains.

    Args:
        target: the model on flat parameters.
        log_lik: the unit log likelihoods at a position.
        num_units: number of units.
        draws: of the full-data posterior.
        ess: effective number of draws of every parameter.
        key: of this tuning.

    Raises:
        PcvError: the pilots accept no step size.
    """
    sample = draws.position.reshape(-1, draws.position.shape[-1])
    dense = bool(np.median(ess) >= MIN_DRAWS_PER_PARAM * sample.shape[1])
    center, scale = jnp.asarray(sample.mean(0)), jnp.asarray(_scale(sample, dense))
    units = np.unique(np.linspace(0, num_units - 1, MAX_PILOT_UNITS).astype(int))
    everything = Fold(jnp.ones(num_units, bool), jnp.zeros(0, int))

    def functionals(position: Float[Array, " param"]) -> Float[Array, " functional"]:
        terms = log_lik(position)
        return jnp.concatenate([terms[units], terms.sum()[None], position])

    def log_density(kernel: Kernel, z: Float[Array, " param"]) -> Float[Array, ""]:
        return target.log_density(from_z(kernel, z), everything)

    def start(position: Float[Array, " param"]) -> tuple[hmc.HMCState, Float[Array, " functional"]]:
        whitened = Kernel(center, scale, jnp.ones(()), jnp.ones((), int))
        state = hmc.init(to_z(whitened, position), partial(log_density, whitened))
        return state, functionals(position)

    thinned = jnp.asarray(sample[:: max(len(sample) // 1000, 1)])
    over_draws = jax.jit(lambda x: jax.lax.map(start, x, batch_size=100), compiler_options=RUN_ONCE)
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

    shared, by_chain = PartitionSpec(), PartitionSpec("chain")
    run = jax.jit(
        jax.shard_map(
            jax.vmap(pilot, (None, None, 0, 0, 0)),
            mesh=Mesh(np.array(jax.devices()), ("chain",)),
            in_specs=(shared, shared, by_chain, by_chain, by_chain),
            out_specs=by_chain,
            check_vma=False,
        )
    )

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
        n = units.size
        longest = np.max([tau[:, :n].mean(1), tau[:, n], tau[:, n + 1 :].mean(1)], axis=0)
        usable = accepted.mean(1) >= MIN_ACCEPTANCE
        efficiency = np.where(usable, 1 / (longest * (num_steps + 1)), 0.0)
        sound = diverged.mean(1) <= MAX_PILOTS_DIVERGENT
        return [
            Trial(bool(s), float(e), float(x), num_steps)
            for s, e, x in zip(sound, efficiency, step_sizes)
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
    if not found:
        raise PcvError(
            "no step size of HMC is accepted on the full data: the posterior's scales vary too "
            "much; reparameterise the model (non-centred)"
        )
    finalists = sorted(found, reverse=True)[:FINALISTS]
    best = max(trials(np.array([x.step_size]), x.num_steps, 1)[0] for x in finalists)
    return Kernel(center, scale, jnp.asarray(best.step_size), jnp.asarray(best.num_steps))


def _scale(sample: Float[np.ndarray, "draw param"], dense: bool) -> np.ndarray:
    """Lower Cholesky factor of the sample's covariance, or its diagonal, whatever the units."""
    deviation = sample.std(0)
    if not dense:
        return deviation
    correlation = np.corrcoef(sample.T).reshape(deviation.size, deviation.size)
    correlation[np.diag_indices_from(correlation)] += 1e-9
    return deviation[:, None] * np.linalg.cholesky(correlation)
