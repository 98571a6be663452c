"""The full-data posterior: NUTS with window adaptation, its checks, and the kernel of the folds.

A fold's posterior is a perturbation of the full-data one, so all that can be tuned is tuned here:
the folds' HMC takes its metric from these draws' covariance, and its step size and number of
leapfrog steps from short pilot runs on the full data.
"""

from collections.abc import Callable
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

    def find_start(key: Key[Array, ""]) -> tuple[Bool[Array, ""], Float[Array, " param"]]:
        candidates = jax.vmap(target.init)(jax.random.split(key, PRIOR_DRAWS))
        values, grads = jax.vmap(jax.value_and_grad(log_density))(candidates)
        finite = jnp.isfinite(values) & jnp.isfinite(grads).all(1)
        return finite.any(), candidates[jnp.argmax(finite)]

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

        def draw(state: hmc.HMCState, key: Key[Array, ""]) -> tuple[hmc.HMCState, Draws]:
            state, info = transition(
                key, state, log_density, tuned["step_size"], tuned["inverse_mass_matrix"]
            )
            return state, Draws(
                state.position,
                state.logdensity,
                info.energy,
                info.acceptance_rate,
                info.num_integration_steps,
                info.is_divergent,
            )

        return jax.lax.scan(draw, state, jax.random.split(draws_key, draws))[1]

    start_key, run_key = jax.random.split(key)
    find_starts = jax.jit(jax.vmap(find_start), compiler_options=RUN_ONCE)
    found, starts = find_starts(jax.random.split(start_key, chains))
    if not found.all():
        raise PcvError(
            f"chain {int(np.argmin(found))}: the log density or its gradient is not finite at "
            f"any of {PRIOR_DRAWS} prior draws; check the model with `pcv check`"
        )
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
    result = run(*spread((jax.random.split(run_key, chains), starts)))
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


STEP_SIZES = 1.4 ** -np.arange(10) * 1.5
"""step sizes tried, in units of the whitened posterior's standard deviation"""
NUM_STEPS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
PILOT_CHAINS, PILOT_DRAWS = 16, 40
"""per step size"""
MIN_ACCEPTANCE = 0.65
MAX_PILOT_UNITS = 1000


def tune(
    target: Target,
    log_lik: Callable[[Float[Array, " param"]], Float[Array, " unit"]],
    num_units: int,
    draws: Draws,
    key: Key[Array, ""],
) -> Kernel:
    r"""The HMC kernel with the most effective draws per gradient, on the full data.

    The metric is the draws' covariance (its diagonal where there are fewer than ten draws per
    parameter). Pilot chains that start in equilibrium try step sizes and numbers of steps; the
    effective share of draws of a functional with lag-1 autocorrelation :math:`\rho` is
    :math:`(1-\rho)/(1+\rho)`. It is taken over the unit log likelihoods (their mean share),
    their sum, and every parameter (the least share), and the least of the three counts, per
    gradient, the score's own evaluation counted as one.

    Args:
        target: the model on flat parameters.
        log_lik: the unit log likelihoods at a position.
        num_units: number of units.
        draws: of the full-data posterior.
        key: of this tuning.
    """
    sample = draws.position.reshape(-1, draws.position.shape[-1])
    center, scale = jnp.asarray(sample.mean(0)), jnp.asarray(_scale(sample))
    start_key, run_key = jax.random.split(key)
    units = np.unique(np.linspace(0, num_units - 1, MAX_PILOT_UNITS).astype(int))

    def functionals(position: Float[Array, " param"]) -> Float[Array, " functional"]:
        terms = log_lik(position)
        return jnp.concatenate([terms[units], terms.sum()[None], position])

    at_draws = jax.jit(lambda x: jax.lax.map(functionals, x, batch_size=100))
    thinned = sample[:: max(len(sample) // 1000, 1)]
    variance = np.asarray(at_draws(jnp.asarray(thinned))).var(0)

    num_pilots = STEP_SIZES.size * PILOT_CHAINS
    picks = np.asarray(jax.random.randint(start_key, (num_pilots,), 0, len(sample)))
    positions = jnp.asarray(sample[picks])
    keys = jax.random.split(run_key, num_pilots)
    everything = Fold(jnp.ones(num_units, bool), jnp.zeros(0, int))

    def pilot(
        num_steps: Int[Array, ""],
        steps_key: Key[Array, ""],
        step_size: Float[Array, ""],
        position: Float[Array, " param"],
        key: Key[Array, ""],
    ) -> tuple[Array, Array, Array]:
        kernel = Kernel(center, scale, step_size, num_steps)

        def log_density(z: Float[Array, " param"]) -> Float[Array, ""]:
            return target.log_density(from_z(kernel, z), everything)

        def draw(i: Array, carry: tuple) -> tuple:
            state, last, moved, accepted, diverged = carry
            state, info = hmc.build_kernel()(
                jax.random.fold_in(key, i),
                state,
                log_density,
                step_size,
                jnp.ones_like(state.position),
                jittered_steps(kernel, jax.random.fold_in(steps_key, i)),
            )
            now = functionals(from_z(kernel, state.position))
            return (
                state,
                now,
                moved + (now - last) ** 2 / PILOT_DRAWS,
                accepted + info.acceptance_rate / PILOT_DRAWS,
                diverged + info.is_divergent,
            )

        state = hmc.init(to_z(kernel, position), log_density)
        first = functionals(position)
        zero = jnp.zeros((), first.dtype)
        carry = (state, first, jnp.zeros_like(first), zero, jnp.zeros((), int))
        _, _, moved, accepted, diverged = jax.lax.fori_loop(0, PILOT_DRAWS, draw, carry)
        return moved, accepted, diverged

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

    def efficiency(step_sizes: np.ndarray, num_steps: int) -> Float[np.ndarray, " step_size"]:
        each = jnp.asarray(np.repeat(step_sizes, PILOT_CHAINS))
        steps_key = jax.random.fold_in(run_key, num_steps)
        out = run(jnp.asarray(num_steps), steps_key, *spread((each, positions, keys)))
        moved, accepted, diverged = (
            np.asarray(x)[:num_pilots].reshape(step_sizes.size, PILOT_CHAINS, *x.shape[1:])
            for x in out
        )
        with np.errstate(invalid="ignore", divide="ignore"):
            rho = np.clip(1 - moved.mean(1) / (2 * variance), -0.5, 1.0)
        share = np.nan_to_num((1 - rho) / (1 + rho), nan=1.0)
        n = units.size
        least = np.minimum(share[:, :n].mean(1), share[:, n:].min(1))
        usable = (accepted.mean(1) >= MIN_ACCEPTANCE) & (diverged.sum(1) <= 1)
        return np.where(usable, least / (num_steps + 1), 0.0)

    for step_sizes in (STEP_SIZES, STEP_SIZES / 25, STEP_SIZES / 625):
        best, chosen, worse = 0.0, None, 0
        for num_steps in NUM_STEPS:
            found = efficiency(step_sizes, num_steps)
            top = int(np.argmax(found))
            if found[top] > best:
                best, chosen, worse = found[top], (step_sizes[top], num_steps), 0
            else:
                worse += 1
            if worse == 2:
                break
        if chosen is not None:
            return Kernel(center, scale, jnp.asarray(chosen[0]), jnp.asarray(chosen[1]))
    raise PcvError(
        "no step size of HMC is accepted on the full data: the posterior's scales vary too much; "
        "reparameterise the model (non-centred)"
    )


def _scale(sample: Float[np.ndarray, "draw param"]) -> np.ndarray:
    size, dim = sample.shape
    if size < 10 * dim:
        return np.sqrt(sample.var(0) * size / (size + 5) + 1e-3 * 5 / (size + 5))
    shrunk = np.cov(sample.T).reshape(dim, dim) * size / (size + 5)
    return np.linalg.cholesky(shrunk + 1e-3 * 5 / (size + 5) * np.eye(dim))
