r"""Check the integrals of `marginal` over own effects at a few draws, by a second method.

Self-normalised importance sampling from a mixture of a t distribution around the integrand's mode
and wide Cauchy distributions around the prior's. It finds the modes independently, needs no
integral of the prior, and estimates its own error.
"""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jaxtyping import Array, Float, Int, Key

from pcv.base.monitor import Monitor
from pcv.compile import programs
from pcv.folds.base import Folds, evenly
from pcv.models.effects.grid import finite
from pcv.models.effects.laplace import Function, draws_of_t, laplace
from pcv.models.effects.marginal import Scored, Terms, by_group, integrated
from pcv.models.model import Data, Predictive, Target, numeric
from pcv.models.parameters import unravel_of

DRAWS = 4096
"""of effects, per integral"""
MAX_TERMS = 2_000_000_000
"""most log-likelihood terms evaluated; beyond that, fewer folds are checked"""
TAIL, WIDER = 3, 10.0
"""degrees of freedom of the t distribution, and ratio of the two Cauchy scales"""
NODES_PER_DIM = 256
"""for the integrals being checked, if they are noisy"""
MAX_Z, TOLERANCE_1D, TOLERANCE = 4.0, 0.03, 0.25
"""tolerated difference: errors of the second look, plus nats"""
MAX_ERROR = 3.0
"""error, in tolerances, above which a second look is itself unreliable"""
OVERFLOWN = 1e-4
"""share of the prior where terms may be NaN, as for counts whose rate overflows"""


def gaps(
    scored: Scored,
    data: Data,
    folds: Folds,
    positions: Float[np.ndarray, "fold draw param"],
    monitor: Monitor,
) -> Float[np.ndarray, " fold"] | None:
    """Difference in nats between two methods' scores, where it exceeds their errors.

    Checks the joint score; if the nodes of `pcv.models.effects.grid` serve several units, also the
    lowest and highest pointwise scores, where peaks may be missed or hit by few nodes.

    Args:
        scored: of `choose`, of these data.
        folds: to check.
        positions: some draws of each.
        monitor: takes how many folds are checked.

    Returns:
        The largest over each fold's draws: 0 if they agree, NaN if a fold is not checked, as
        there are too many, or its second look is itself unreliable. None if nothing is integrated
        numerically.
    """
    model, local = scored.model, scored.local
    if isinstance(model, Target) or local is None or local.exact:
        return None
    arrays, unravel = numeric(data), unravel_of(model.init)
    fine = integrated(model, data, local, scored.few, NODES_PER_DIM).marginal
    other = by_group(model, data, local, scored.few, importance_sampling)
    assert fine is not None
    of_units = local.entries.shape[1] == 1 and not local.normal and folds.test.shape[1] > 1
    rows = folds.test.shape[1] if scored.few else len(local.group)
    cost = DRAWS * local.most * (rows + positions.shape[-1]) * (3 if of_units else 1)
    positions = positions[:, : max(MAX_TERMS // (cost * len(folds.id)), 1)]
    some = evenly(len(folds.id), max(MAX_TERMS // (cost * positions.shape[1]), 1))
    monitor.log(f"checking integrals of {len(some)} of {len(folds.id)} folds by a second method")

    def differ(at: tuple[Array, Array]) -> tuple[Array, Array]:
        params, test = unravel(at[0]), at[1]
        joint, pointwise = fine(params, arrays, test)
        first, slots = joint[None], jnp.ones((1, test.size), bool)
        if of_units:
            low = jnp.argmin(jnp.where(test >= 0, pointwise, jnp.inf))
            high = jnp.argmax(jnp.where(test >= 0, pointwise, -jnp.inf))
            units = jnp.stack([low, high])
            first = jnp.append(first, pointwise[units])
            slots = jnp.concatenate([slots, jnp.arange(test.size) == units[:, None]])
        second, variance = jax.lax.map(lambda some: other(params, arrays, test, some), slots)
        variance = jnp.where(jnp.asarray(local.group)[test] >= 0, variance, 0.0)  # of integrals
        return jnp.abs(first - second), jnp.sqrt(local.most * jnp.max(variance, axis=1))

    tests = jnp.repeat(jnp.asarray(folds.test[some]), positions.shape[1], axis=0)
    flat = jnp.asarray(positions[some].reshape(-1, positions.shape[-1]))
    every = programs.once(lambda *at: jax.lax.map(differ, at))
    shape = *positions[some].shape[:2], -1
    gap, error = (np.asarray(x).reshape(shape) for x in every(flat, tests))
    tolerance = TOLERANCE_1D if local.entries.shape[1] == 1 else TOLERANCE
    checked = error < MAX_ERROR * tolerance
    beyond = checked & ~(gap <= MAX_Z * error + tolerance)
    found = np.full(len(folds.id), np.nan)
    worst = np.where(beyond, np.where(np.isnan(gap), np.inf, gap), 0.0).max((1, 2))
    joint_checked = checked[..., 0].any(1)
    found[some] = np.where(joint_checked | (worst > 0), worst, np.nan)
    return found


def importance_sampling(
    key: Key[Array, ""],
    group: Int[Array, ""],
    log_prior: Function,
    terms: Terms,
    now: Float[Array, " dim"],
) -> Predictive:
    """Log mean of a group's joint density over its effects, and its variance in every slot."""
    dim, half = now.size, DRAWS // 2

    def joint(x: Float[Array, " dim"]) -> Float[Array, ""]:
        return jnp.sum(terms(x))

    prior = laplace(log_prior, now)
    posterior = laplace(lambda x: log_prior(x) + joint(x), now)
    of_near, of_wide = jax.random.split(key)
    spread = jnp.where(jnp.arange(half) % 2, 1.0, WIDER).astype(now.dtype)[:, None]
    z = spread * jax.random.cauchy(of_wide, (half, dim), now.dtype)
    x = jnp.concatenate(
        [draws_of_t(of_near, posterior, TAIL, half), prior.mean + z @ prior.scale.T]
    )
    t = dist.MultivariateStudentT(TAIL, jnp.zeros(dim), jnp.eye(dim))
    of_near_x = t.log_prob((x - posterior.mean) @ posterior.whiten.T) - posterior.log_det
    whitened = (x - prior.mean) @ prior.whiten.T
    of_wide_x = [
        dist.Cauchy(0.0, scale).log_prob(whitened).sum(1) - prior.log_det for scale in (1.0, WIDER)
    ]
    parts = jnp.stack([of_near_x + jnp.log(2.0), *of_wide_x])
    at_draws = jax.lax.map(lambda x: jnp.stack([log_prior(x), joint(x)]), x, batch_size=256)
    known = finite(at_draws[:, 0]) - jax.nn.logsumexp(parts, axis=0)
    found = known + at_draws[:, 1]
    lost = jnp.isnan(found)
    few = jnp.sum(jnp.where(lost, jax.nn.softmax(known), 0.0)) < OVERFLOWN
    found = jnp.where(lost & few, -jnp.inf, found)
    log_ratio = jax.nn.logsumexp(found) - jax.nn.logsumexp(known)
    variance = jnp.sum((jax.nn.softmax(found) - jax.nn.softmax(known)) ** 2)
    slots = jax.eval_shape(terms, now).shape
    return log_ratio, jnp.full(slots, variance)
