"""The full-data posterior: NUTS with window adaptation, and its checks."""

from typing import NamedTuple

import blackjax
import blackjax.mcmc.hmc as hmc
import jax
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key

from pcv.devices import BY_CHAIN, jit_once, laid_out
from pcv.errors import PcvError
from pcv.model import Target, full_data, points
from pcv.sampler import spread

MAX_RHAT, WARN_RHAT = 1.05, 1.01
MAX_DIVERGENT = 0.01
MIN_ESS_PER_CHAIN = 100

PRIOR_DRAWS = 20
"""prior draws per chain among which a start with finite density and gradient is looked for"""
FAR = 1e12
"""log density below the best, from which on a start is passed over: chains may never come back"""


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

    Chains start at draws from the prior, or near 0 on the unconstrained scale where the prior is so
    vague that the density overflows.

    Args:
        target: the model on flat parameters.
        num_units: number of units, all of them in training.
        key: of this fit.
        chains, warmup, draws: how many, the last two per chain.
        target_accept: acceptance rate that the step size is adapted to.

    Raises:
        PcvError: no start of some chain has a finite density and gradient.
    """
    everything = full_data(num_units)

    def log_density(position: Float[Array, " param"]) -> Float[Array, ""]:
        return target.log_density(position, everything)

    def candidates(key: Key[Array, ""]) -> hmc.HMCState:
        keys = jax.random.split(key, chains * PRIOR_DRAWS)
        return jax.lax.map(lambda x: hmc.init(x, log_density), points(target.init, keys))

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

    find = jit_once(candidates)
    found = jax.tree.map(
        lambda x: np.concatenate(np.asarray(x).reshape(2, chains, PRIOR_DRAWS, *x.shape[1:]), 1),
        find(jax.random.fold_in(key, 0)),
    )
    finite = np.isfinite(found.logdensity) & np.isfinite(found.logdensity_grad).all(2)
    if not finite.any(1).all():
        raise PcvError(
            f"chain {int(np.argmin(finite.any(1)))}: the log density or its gradient is not finite "
            f"at any of {PRIOR_DRAWS} prior draws; check the model with `pcv check`"
        )
    near = finite & (found.logdensity > found.logdensity[finite].max() - FAR)
    usable = np.where(near.any(1, keepdims=True), near, finite)
    starts = found.position[np.arange(chains), usable.argmax(1)]
    run = jax.jit(laid_out(jax.vmap(one_chain), BY_CHAIN, BY_CHAIN))
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
            f"R-hat of '{names[worst]}' is {rhat[worst]:.4f}, above {WARN_RHAT}: "
            "more fit.draws would make sure of it"
        )
    fewest = int(np.argmin(np.where(np.isnan(ess), np.inf, ess)))
    if ess[fewest] < MIN_ESS_PER_CHAIN * num_chains:
        warnings.append(
            f"ESS of '{names[fewest]}' is {ess[fewest]:.0f}, below {MIN_ESS_PER_CHAIN} per chain: "
            "more fit.draws"
        )
    divergences = int(draws.diverging.sum())
    if divergences > MAX_DIVERGENT * draws.diverging.size:
        problems.append(
            f"{divergences} of {draws.diverging.size} draws diverged, more than "
            f"{MAX_DIVERGENT:.0%}: raise fit.target_accept, or reparameterise (non-centred)"
        )
    elif divergences:
        plural = "s" * (divergences > 1)
        warnings.append(f"{divergences} divergence{plural}: raise fit.target_accept")
    return Checks(rhat, ess, efmi, divergences, problems, warnings)
