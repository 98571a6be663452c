r"""Surrogates of leave-one-out terms: approximations for every unit, from full-data draws alone.

With ll the log likelihood of a unit at S draws, θ̂ their mean and Σ their covariance:

- plpd: :math:`\log p(y_i \mid \hat\theta)`;
- waic: :math:`\mathrm{lpd}_i - \mathrm{var}_s(ll_{is})`, with lpd the log of the mean of
  exp(ll);
- tis, psis: truncated, and Pareto-smoothed, importance sampling of
  :math:`\log p(y_i \mid y_{-i})`;
- d1waic_m, d1waic, d2waic: waic with the variance by the delta method, of first order with the
  diagonal of Σ, of first order, and of second order:
  :math:`g^\top \Sigma g + \tfrac12 \mathrm{tr}(H \Sigma H \Sigma)`;
- plpd_d1waic_m, plpd_d1waic, plpd_d2waic: the same, subtracted from plpd instead of lpd.

waic_100, tis_100 and psis_100 are from at most 100 of the draws, every k-th.

Besides, the *influence* of each draw on the sum of all terms by importance sampling, with truncated
weights w: :math:`\sum_i w_{is} p_{is} / \sum_s w_{is} p_{is} - w_{is} / \sum_s w_{is}`. The sum of
its squares is the Monte Carlo variance of that sum, were the draws independent.

(Magnusson, Andersen, Jonasson, Vehtari 2020, section 2.2. Its proposition 3 (b) adds the variance,
a slip; its table 1 has the costs of subtracting from plpd, its proposition 3 subtracts from lpd.)
A unit here is whatever has one term: a group's joint predictive serves as well.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp
from jaxtyping import Array, Float, Int

from pcv.base.section import DELTA, OF_DRAWS, SURROGATES, draws_of_surrogate
from pcv.compile import programs

Terms = Callable[[Float[Array, " param"]], Float[Array, " unit"]]
CHUNK = 2**26
"""bytes of the log likelihoods of a chunk of units, at all draws"""
DRAWS_AT_ONCE = 20
"""evaluated side by side: intermediate results of a log likelihood take several times its memory"""
MIN_TAIL = 5
"""draws in the tail of the weights that a Pareto distribution can be fitted to"""


class Posterior(NamedTuple):
    """The full-data posterior, as draws and moments, on the unconstrained scale."""

    draws: Float[Array, "draw param"]
    log_weight: Float[Array, " draw"]
    """log p(θ|y)/q(θ) of draws from an approximation q, up to a constant; 0 of posterior draws"""
    center: Float[Array, " param"]
    root: Float[Array, "param direction"]
    """a root R of the covariance, Σ = R Rᵀ"""
    sd: Float[Array, " param"]


def posterior(
    draws: Float[np.ndarray, "draw param"],
    names: Collection[str] = SURROGATES,
    log_weight: Float[np.ndarray, " draw"] | None = None,
    kept: Int[np.ndarray, " kept"] | None = None,
) -> Posterior:
    """Some draws, with the moments of all that surrogates of these names need.

    Args:
        draws: flat parameters.
        names: of surrogates.
        log_weight: of draws of an approximation; None: they are of the posterior itself.
        kept: indices of the draws to evaluate terms at; None: all.
    """
    weight = np.zeros(len(draws)) if log_weight is None else log_weight
    share = np.exp(weight - weight.max())
    share /= share.sum()
    center = share @ draws
    centered = (draws - center) * np.sqrt(share / (1 - np.sum(share**2)))[:, None]
    root = np.zeros((draws.shape[1], 0))
    if any(name.endswith(("d1waic", "d2waic")) for name in names):
        values, vectors = np.linalg.eigh(np.atleast_2d(centered.T @ centered))
        root = vectors * np.sqrt(np.clip(values, 0, None))
    some = slice(None) if kept is None else kept
    sd = np.sqrt((centered**2).sum(0))
    return Posterior(*map(jnp.asarray, (draws[some], weight[some], center, root, sd)))


def surrogates(
    terms: Terms,
    given: Posterior,
    names: Collection[str],
    counted: Float[Array, " unit"] | None = None,
) -> dict[str, Float[Array, " _"]]:
    """The surrogates of these names, all from one evaluation of the terms at every draw.

    Args:
        terms: log likelihood of each unit, given flat parameters.
        given: the posterior.
        names: of the key `surrogate` in a config.
        counted: 0 for units that "influence" leaves out, 1 for others; None: all count.

    Returns:
        By name (unit; nats); "lpd" where it was needed, "khat" with "psis" ("khat_100" with
        "psis_100"); and "influence" (draw).
    """
    ll = jax.lax.map(terms, given.draws, batch_size=DRAWS_AT_ONCE)
    found = {"influence": _influence(ll, given.log_weight, counted)}
    wanted = set(names)
    if needs_draws(wanted):
        found |= _of_draws(ll, given, wanted)
    if any(name.startswith("plpd") for name in wanted):
        found["plpd"] = terms(given.center)
    order = {name.removeprefix("plpd_") for name in wanted}
    variance = _by_delta(terms, given, order & set(DELTA))
    for name, p_eff in variance.items():
        for prefix, density in (("", "lpd"), ("plpd_", "plpd")):
            if prefix + name in wanted:
                found[prefix + name] = found[density] - p_eff
    return found


def in_chunks(
    log_lik: Callable[[Float[Array, " param"], Mapping[str, Any]], Float[Array, " unit"]],
    data: Mapping[str, Any],
    num_units: int,
    given: Posterior,
    names: Collection[str],
    size: int | None = None,
) -> dict[str, Float[np.ndarray, " _"]]:
    """The surrogates of units whose terms depend on their own rows of the data alone.

    Memory is bounded by a chunk: arrays as long as the units are read a slice at a time.

    Args:
        log_lik: terms of the rows that it is given.
        data: arrays by name.
        num_units: number of units, n.
        given, names: as for `surrogates`.
        size: units of a chunk; None: `chunk_size`.
    """

    by_unit = {name: x for name, x in data.items() if np.ndim(x) and len(x) == num_units}
    rest = {name: x for name, x in data.items() if name not in by_unit}

    def of_rows(
        given: Posterior, rows: Mapping[str, Any], counted: Float[Array, " unit"]
    ) -> dict[str, Array]:
        terms = lambda position: log_lik(position, {**rest, **rows})  # noqa: E731
        return surrogates(terms, given, names, counted)

    program = programs.shared(of_rows)
    found: dict[str, np.ndarray] = {"influence": np.zeros(len(given.draws))}
    counted = np.ones(num_units)
    for some in _slices(num_units, size or chunk_size(len(given.draws), num_units)):
        rows = {name: x[some] for name, x in by_unit.items()}
        of_chunk = program(given, rows, counted[some].copy())  # JAX may read it later
        counted[some] = 0.0
        found["influence"] += np.asarray(of_chunk.pop("influence"))
        for name, x in of_chunk.items():
            found.setdefault(name, np.empty(num_units))[some] = x
    return found


def chunk_size(num_draws: int, number: int) -> int:
    """Units, or folds, at a time."""
    return min(max(CHUNK // (8 * num_draws), 1), number)


def _slices(number: int, size: int) -> Iterator[slice]:
    """All of a number of units; the last slice is as long as the others, and overlaps."""
    for first in range(0, number, size):
        start = min(first, number - size)
        yield slice(start, start + size)


def needs_draws(names: Collection[str]) -> bool:
    """Whether some of these surrogates are from more than the moments of the draws."""
    return bool(set(names) - {"plpd", *(f"plpd_{name}" for name in DELTA)})


def _of_draws(ll: Float[Array, "draw unit"], given: Posterior, names: set[str]) -> dict[str, Array]:
    log_weight = (given.log_weight - logsumexp(given.log_weight))[:, None]
    found = {"lpd": logsumexp(ll + log_weight, axis=0)}
    for name in names:
        kind = name.partition("_")[0]
        if kind in OF_DRAWS:
            some = evenly(len(ll), draws_of_surrogate(name) or len(ll))
            found |= _of_some_draws(name, kind, ll[some], given.log_weight[some])
    return found


def _of_some_draws(
    name: str, kind: str, ll: Float[Array, "draw unit"], log_weight: Float[Array, " draw"]
) -> dict[str, Float[Array, " unit"]]:
    if kind == "waic":
        number, log_share = len(ll), (log_weight - logsumexp(log_weight))[:, None]
        share = jnp.exp(log_share)
        mean = (share * ll).sum(0)
        variance = (share * (ll - mean) ** 2).sum(0) * number / (number - 1)
        return {name: logsumexp(ll + log_share, axis=0) - variance}
    ratio = log_weight[:, None] - ll
    if kind == "tis":
        return {name: _importance(truncated(ratio), ll)}
    smooth, khat = smoothed(ratio)
    return {name: _importance(smooth, ll), name.replace("psis", "khat"): khat}


def evenly(draws: int, number: int) -> Int[np.ndarray, " some"]:
    """Places of at most a number of draws, every k-th.

    >>> evenly(9, 4).tolist(), evenly(3, 9).tolist()
    ([0, 3, 6], [0, 1, 2])
    """
    return np.arange(0, draws, -(-draws // number))


def _influence(
    ll: Float[Array, "draw unit"],
    log_weight: Float[Array, " draw"],
    counted: Float[Array, " unit"] | None,
) -> Float[Array, " draw"]:
    weight = truncated(log_weight[:, None] - ll)
    each = jax.nn.softmax(weight + ll, axis=0) - jax.nn.softmax(weight, axis=0)
    return each.sum(1) if counted is None else each @ counted


def _importance(log_weight: Array, ll: Array) -> Float[Array, " unit"]:
    return logsumexp(log_weight + ll, axis=0) - logsumexp(log_weight, axis=0)


def truncated(log_ratio: Float[Array, "draw unit"]) -> Float[Array, "draw unit"]:
    r"""Log weights, at most :math:`\sqrt S` times their mean (Ionides 2008)."""
    number = len(log_ratio)
    mean = logsumexp(log_ratio, axis=0) - np.log(number)
    return jnp.minimum(log_ratio, mean + np.log(number) / 2)


def smoothed(
    log_ratio: Float[Array, "draw unit"],
) -> tuple[Float[Array, "draw unit"], Float[Array, " unit"]]:
    """Pareto-smoothed log weights of many units at once, and their k-hat.

    What `arviz_stats` computes (`array_stats.psislw`), which takes a millisecond per unit: too
    long for a million. Not normalised. k-hat is NaN, and the weights are as they were, where the
    tail is too short or far from a Pareto distribution.
    """
    number = len(log_ratio)
    size = int(3 * number**0.5 if number > 225 else number / 5)
    ratio = log_ratio - log_ratio.max(0)
    if size < MIN_TAIL:
        return ratio, jnp.full(ratio.shape[1], jnp.nan)
    largest, place = (x[:, ::-1].T for x in jax.lax.top_k(ratio.T, size + 1))
    log_cutoff, tail = largest[0], largest[1:]
    cutoff = jnp.exp(log_cutoff)
    khat, scale = _fitted(jnp.exp(tail) - cutoff)
    p = jnp.log1p(-(jnp.arange(size) + 0.5) / size)[:, None]
    excess = jnp.where(khat == 0, -scale * p, scale * jnp.expm1(-khat * p) / khat)
    smooth = jnp.minimum(jnp.log(cutoff + excess), tail[-1])
    usable = jnp.isfinite(khat) & (scale > 0)
    smooth = jnp.where(usable, smooth, tail)
    return jnp.put_along_axis(ratio, place[1:], smooth, axis=0, inplace=False), khat


def smoothed_in_chunks(
    log_ratio: Float[np.ndarray, "fold draw"],
) -> tuple[Float[np.ndarray, "fold draw"], Float[np.ndarray, " fold"]]:
    """`smoothed`, of a slice of the folds at a time."""
    number, draws = log_ratio.shape
    program = programs.shared(lambda ratio: smoothed(ratio.T))
    weight, khat = np.empty_like(log_ratio), np.empty(number)
    for some in _slices(number, chunk_size(draws, number)):
        found, khat[some] = program(log_ratio[some])
        weight[some] = np.asarray(found).T
    return weight, khat


def _fitted(excess: Float[Array, "tail unit"]) -> tuple[Array, Array]:
    """Shape and scale of generalised Pareto distributions (Zhang and Stephens 2009), the shape
    drawn towards 0.5 as by ten observations."""
    size = len(excess)
    grid = 30 + int(size**0.5)
    quartile, largest = excess[int(size / 4 + 0.5) - 1], excess[-1]
    steps = (1 - jnp.sqrt(grid / (jnp.arange(grid) + 0.5))) / 3
    b = steps[:, None] / quartile + 1 / largest

    def shape(b: Float[Array, " unit"]) -> Float[Array, " unit"]:
        return jnp.log1p(-b * excess).mean(0)

    k = jax.lax.map(shape, b)
    weight = jax.nn.softmax(size * (jnp.log(-b / k) - k - 1), axis=0)
    center = (weight * b).sum(0)
    k = shape(center)
    scale = -k / center
    k = (size * k + 5.0) / (size + 10)
    return jnp.where(quartile > excess[0], k, jnp.nan), scale


def _by_delta(terms: Terms, given: Posterior, names: set[str]) -> dict[str, Array]:
    """Variances of the log likelihood by the delta method."""

    def slope(direction: Float[Array, " param"]) -> Float[Array, " unit"]:
        return jax.jvp(terms, (given.center,), (direction,))[1]

    def squared(directions: Float[Array, "direction param"]) -> Float[Array, " unit"]:
        return jnp.sum(jax.lax.map(slope, directions, batch_size=DRAWS_AT_ONCE) ** 2, axis=0)

    def curvature(one: Float[Array, " param"]) -> Float[Array, " unit"]:
        """Row of RᵀHR, squared and summed."""

        def along(center: Float[Array, " param"]) -> Float[Array, " unit"]:
            return jax.jvp(terms, (center,), (one,))[1]

        _, twice = jax.linearize(along, given.center)
        return jnp.sum(jax.lax.map(twice, given.root.T, batch_size=DRAWS_AT_ONCE) ** 2, axis=0)

    found = {}
    if "d1waic_m" in names:
        found["d1waic_m"] = squared(jnp.diag(given.sd))
    if names & {"d1waic", "d2waic"}:
        first = squared(given.root.T)
        found["d1waic"] = first
        if "d2waic" in names:
            found["d2waic"] = first + jax.lax.map(curvature, given.root.T).sum(0) / 2
    return found
