r"""The evidence from draws of the full-data posterior, by warp-III bridge sampling.

Posterior draws are standardised by the moments of their first halves. Reflected at random, they
would have the density

.. math:: \tilde q(z) = \tfrac12 |L| \left[q(c + L z) + q(c - L z)\right]

with the mean, covariance and symmetry of a standard normal :math:`\varphi`, from which as many
proposals are drawn; as it is symmetric, they need not be. The ratio of both normalisers solves

.. math:: r = \frac{\mathrm{mean}_\varphi\, \tilde q / (s_1 \tilde q + s_2 r \varphi)}
                   {\mathrm{mean}_q\, \varphi / (s_1 \tilde q + s_2 r \varphi)}

with s the shares of effective draws (Meng and Wong 1996; Meng and Schilling 2002; its error:
Frühwirth-Schnatter 2004). From a few hundred draws of a nearly normal posterior this error, of
thousandths of a nat, can be too small, as they hardly reach the tails that make it. The posterior
density q must have all its constants.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from pcv.analysis.evidence import Estimate
from pcv.compile import programs
from pcv.sampling.fit.draws import mixing

AT_ONCE = 20
"""densities evaluated side by side"""
ITERATIONS, TOLERANCE = 1000, 1e-10
FEWEST_PER_PARAM = 4
"""draws per parameter below which their covariance says too little"""


def bridge(
    log_density: Callable[[Float[Array, " param"]], Float[Array, ""]],
    draws: Float[np.ndarray, "chain draw param"],
    rng: np.random.Generator,
) -> Estimate:
    """The log of a density's integral, from draws of it; NaN if these are few, or do not vary in
    all directions, or it is not found.

    Args:
        log_density: of the posterior, not normalised.
        draws: of the posterior.
        rng: for the proposals.
    """
    chains, number, width = draws.shape
    first, rest = draws[:, : number // 2].reshape(-1, width), draws[:, number // 2 :]
    if len(first) <= FEWEST_PER_PARAM * width:
        return Estimate(np.nan, np.nan)
    center = first.mean(0)
    try:
        root = np.linalg.cholesky(np.atleast_2d(np.cov(first.T)))
    except np.linalg.LinAlgError:  # a parameter that stands still, or is a function of others
        return Estimate(np.nan, np.nan)
    standard = np.linalg.solve(root, (rest.reshape(-1, width) - center).T).T
    proposals = rng.normal(size=standard.shape)

    def density(x: Float[Array, " param"]) -> Float[Array, ""]:
        value = log_density(x)
        return jnp.where(jnp.isnan(value), -jnp.inf, value)  # chains do not go there either

    def log_ratio(z: Float[Array, " param"]) -> Float[Array, ""]:
        both = (density(center + root @ z), density(center - root @ z))
        log_normal = -0.5 * jnp.sum(z**2 + np.log(2 * np.pi))
        return jnp.logaddexp(*both) - np.log(2) - log_normal

    program = programs.shared(lambda z: jax.lax.map(log_ratio, z, batch_size=AT_ONCE))
    size = float(np.linalg.slogdet(root)[1])
    of_draws, of_proposals = (np.asarray(program(z), float) + size for z in (standard, proposals))
    return _solved(of_draws.reshape(chains, -1), of_proposals)


def _solved(
    of_draws: Float[np.ndarray, "chain draw"], of_proposals: Float[np.ndarray, " proposal"]
) -> Estimate:
    """From the log ratios of both densities at draws of each."""
    shift = np.median(of_draws)
    at_draws, at_proposals = of_draws - shift, of_proposals - shift
    effective = float(mixing(of_draws[..., None]).ess[0])
    share = effective / (effective + of_proposals.size)
    log_r = 0.0
    for _ in range(ITERATIONS):
        bent = [
            np.logaddexp(np.log(share) + x, np.log1p(-share) + log_r)
            for x in (at_draws, at_proposals)
        ]
        above = np.exp(at_proposals - bent[1])
        below = np.exp(-bent[0])
        before, log_r = log_r, float(np.log(above.mean()) - np.log(below.mean()))
        if abs(log_r - before) < TOLERANCE:
            break
    else:
        return Estimate(np.nan, np.nan)
    ess = float(mixing(below[..., None]).ess[0])
    of_above = above.var() / above.mean() ** 2 / above.size
    of_below = below.var() / below.mean() ** 2 / ess
    return Estimate(float(log_r + shift), float(np.sqrt(of_above + of_below)))
