r"""The evidence of a growing training set, by sequential Monte Carlo (SMC) over its units.

Particles follow a path of densities from a start :math:`\gamma_0` that can be drawn from, through
increments that are taken up one after the other, each at first in part:

.. math:: \gamma_s(\theta) = \gamma_0(\theta) \exp \sum_k \min(\max(s - k, 0), 1)\, l_k(\theta)

With the prior as start and the units' log likelihoods as increments, in some order, the normaliser
after s of them is the evidence :math:`p(y_1, \dots, y_s)`, and a ratio of two is a posterior
predictive density.

A step from s to s' has particles of :math:`\gamma_s` with equal weights. Their mean weight
:math:`w = \gamma_{s'}/\gamma_s` estimates the ratio of both normalisers, and that to every unit
passed. Then some of them, drawn by weight, start chains like those of folds
(``pcv.sampling.hmc.run_chain``) under :math:`\gamma_{s'}`, all states of which are the next
particles (waste-free SMC; Dau and Chopin 2022). So particles have always moved under the density
whose ratio to the next they average; where they move first (BlackJAX 1.7's
`partial_posteriors_smc`), the estimate is biased.

The mean of exp of these estimates is very nearly the normaliser itself, whatever the number of
particles, as hardly anything is learnt from those that are averaged. To this end two sets of
particles go together, each of which takes its metric from the other; and s' was chosen before the
particles moved: it left a conditional effective sample size (Zhou, Johansen, Aston 2016),
:math:`(\sum W w)^2 / \sum W w^2` with their weights W, of half their number.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from blackjax.smc.resampling import systematic
from blackjax.smc.solver import dichotomy
from jax.scipy.special import logsumexp
from jaxtyping import Array, Bool, Float, Int, Key

from pcv.base.devices import BY_CHAIN, in_use, shard_mapped
from pcv.compile import programs
from pcv.sampling.hmc import MAX_LOG_STEP, MIN_LOG_STEP, Chain, Pace, State, run_chain
from pcv.sampling.kernel import DENSE, Kernel

LENGTH = 16
"""states of each chain, all of which become particles"""
MIN_SHARE = 0.5
"""conditional effective sample size of a step, per particle"""
TARGET_ACCEPT, LEAST_ACCEPT = 0.8, 0.4
"""of the step size; and the rate below which particles move once more before the next step"""
STEPS_AT_REST = 5
"""at the start, so that particles and step size suit it however few its draws"""
MAX_LEAPFROGS = 32.0
MOST_STEPS = 2000
KEPT = 1 - 1e-9
"""of correlations, so that they stay positive definite"""
LOWEST = -1e10
"""in place of an increment of minus infinity, or one that is not a number"""
GPU_ROOM = 2**31
"""bytes of the increments of paths that advance side by side on a GPU"""

Position = Float[Array, " param"]
LogDensity = Callable[[Position], Float[Array, ""]]
Order = Int[Array, " unit"]


class Densities(NamedTuple):
    """What paths lead through."""

    draw: Callable[[Key[Array, ""]], Position]
    """from the start"""
    start: LogDensity
    """its log density, up to a constant"""
    increments: Callable[[Position, Order], Float[Array, " increment"]]
    """in an order of the units"""


def from_prior(
    draw: Callable[[Key[Array, ""]], Position],
    log_prior: LogDensity,
    log_lik: Callable[[Position], Float[Array, " unit"]],
) -> Densities:
    """Densities from the prior on, one increment for each unit."""
    return Densities(draw, log_prior, lambda x, order: log_lik(x)[order])


def from_normal(
    center: Position,
    root: Float[Array, "param param"],
    log_prior: LogDensity,
    log_lik: Callable[[Position], Float[Array, " unit"]],
    first: int,
) -> Densities:
    """Densities from a normal on, the first increment of which leads to the posterior of the
    `first` units: for priors that cannot be drawn from."""
    size = float(np.linalg.slogdet(root)[1])

    def draw(key: Key[Array, ""]) -> Position:
        return center + root @ jax.random.normal(key, center.shape, center.dtype)

    def log_normal(x: Position) -> Float[Array, ""]:
        z = jnp.linalg.solve(root, x - center)
        return -0.5 * jnp.sum(z**2 + np.log(2 * np.pi)) - size

    def increments(x: Position, order: Order) -> Float[Array, " increment"]:
        each = log_lik(x)[order]
        begin = log_prior(x) + each[:first].sum() - log_normal(x)
        return jnp.concatenate([begin[None], each[first:]])

    return Densities(draw, log_normal, increments)


class Path(NamedTuple):
    """Estimates along one path, by each of two sets of particles."""

    log_evidence: Float[Any, "set knot"]
    """log of the normaliser after 0, 1, 2, … increments, relative to the start's"""
    score: Float[Any, "set size"]
    """mean of the log predictive density of the increments still to come, at some sizes"""
    steps: Int[Any, ""]
    acceptance: Float[Any, ""]
    """the lowest of a step"""


class _Now(NamedTuple):
    particles: Float[Array, "set particle param"]
    place: Float[Array, ""]
    next: Float[Array, ""]
    """place, chosen before the particles moved to the present one"""
    evidence: Float[Array, " set"]
    log_step: Float[Array, ""]
    path: Path


def paths(
    densities: Densities,
    number: int,
    sizes: Int[np.ndarray, " size"],
    keys: Key[Array, " path"],
    orders: Int[np.ndarray, "path unit"],
) -> Path:
    """Paths of all orders, over all devices.

    Args:
        densities: of the paths.
        number: of particles of each set, a multiple of `LENGTH`.
        sizes: numbers of increments at which those to come are scored.
        keys: of each path.
        orders: the increments in the order in which each path takes them up.

    Returns:
        All results with a leading axis of paths; NaN from where a path got stuck.
    """
    devices, at_once = in_use(), side_by_side(number, orders.shape[1])
    one = partial(follow, densities, number, jnp.asarray(sizes))

    def share(keys: Key[Array, " path"], orders: Int[Array, "path unit"]) -> Path:
        return jax.lax.map(lambda x: one(*x), (keys, orders), batch_size=at_once)

    program = programs.shared(shard_mapped(share, BY_CHAIN, BY_CHAIN))
    every = np.pad(np.arange(len(orders)), (0, -len(orders) % len(devices)), mode="edge")
    made: Path = program(keys[every], orders[every])
    return Path(*(np.asarray(x)[: len(orders)] for x in made))


def side_by_side(number: int, num_units: int) -> int | None:
    """Paths that advance together on a device; None on a CPU, where chains of one path fill the
    cache, and none waits for another."""
    if in_use()[0].platform == "cpu":
        return None
    return max(GPU_ROOM // (16 * number * num_units), 1)


def follow(
    densities: Densities,
    number: int,
    sizes: Int[Array, " size"],
    key: Key[Array, ""],
    order: Order,
) -> Path:
    """One path; arguments as for `paths`."""
    chains, (drawing, key) = number // LENGTH, jax.random.split(key)
    drawn = jax.vmap(jax.vmap(densities.draw))(jax.random.split(drawing, (2, chains)))
    last = jax.eval_shape(densities.increments, drawn[0, 0], order).shape[0]
    knots = jnp.arange(last + 1)

    def increments(x: Position) -> Float[Array, " increment"]:
        each = densities.increments(x, order)
        return jnp.where(each > LOWEST, each, LOWEST)

    def log_density(place: Float[Array, ""], x: Position) -> Float[Array, ""]:
        share = jnp.clip(place - knots[:-1], 0.0, 1.0)
        return densities.start(x) + jnp.sum(jnp.where(share > 0, share * increments(x), 0.0))

    def step(now: _Now) -> _Now:
        each = jax.vmap(jax.vmap(increments))(now.particles)
        sums = jnp.pad(jnp.cumsum(each, axis=2), ((0, 0), (0, 0), (1, 0)))

        def up_to(place: Float[Array, ""]) -> Float[Array, "set particle"]:
            whole = jnp.minimum(place, last - 1).astype(int)
            return sums[:, :, whole] + (place - whole) * each[:, :, whole]

        here, place = up_to(now.place), now.next
        log_weight = up_to(place) - here
        passed = (knots > now.place) & (knots <= place) | (knots == 0) & (now.place == 0)
        of_knots = sums - here[:, :, None]
        evidence = now.evidence[:, None] + _log_mean(of_knots)
        scored = _scores(each, of_knots[:, :, sizes], sizes, passed[sizes])
        path = now.path._replace(
            log_evidence=jnp.where(passed, evidence, now.path.log_evidence),
            score=jnp.where(passed[sizes], scored, now.path.score),
            steps=now.path.steps + 1,
        )
        weight = jax.nn.softmax(log_weight, axis=1)
        there = up_to(place)
        ahead = dichotomy(
            lambda by: _share_left(up_to(place + by) - there, weight) - MIN_SHARE, 0.0, last - place
        )
        at_rest = path.steps < STEPS_AT_REST
        choosing, moving = jax.random.split(jax.random.fold_in(key, path.steps))
        chosen = jax.vmap(lambda key, weight: systematic(key, weight, chains))(
            jax.random.split(choosing), weight
        )
        some = jnp.take_along_axis(now.particles, chosen[:, :, None], axis=1)
        distinct = jnp.where(path.steps == 1, chains, number)
        kernels = jax.vmap(_kernel, (0, 0, None))(now.particles, weight, distinct)
        exchanged = jax.tree.map(lambda x: x[::-1], kernels)
        of_place = partial(log_density, place)
        particles, accepted = jax.lax.cond(
            place < last,
            lambda: _moved(of_place, moving, some, exchanged, now.log_step),
            lambda: (now.particles, one),
        )
        stays = at_rest | (accepted < LEAST_ACCEPT)
        then = jnp.where(stays, place, jnp.minimum(place + ahead, last))
        path = path._replace(acceptance=jnp.minimum(path.acceptance, accepted))
        evidence = now.evidence + _log_mean(log_weight)
        log_step = jnp.clip(now.log_step + accepted - TARGET_ACCEPT, MIN_LOG_STEP, MAX_LOG_STEP)
        return _Now(particles, place, then, evidence, log_step, path)

    zero, one = jnp.zeros((), drawn.dtype), jnp.ones((), drawn.dtype)
    unseen = jnp.full((2, last + 1), jnp.nan, drawn.dtype)
    begun = Path(unseen, unseen[:, sizes], jnp.zeros((), int), one)
    log_step = zero - 0.25 * np.log(drawn.shape[2])
    particles = jnp.repeat(drawn, LENGTH, axis=1)
    now = _Now(particles, zero, zero, jnp.zeros(2, drawn.dtype), log_step, begun)
    under_way = lambda now: (now.place < last) & (now.path.steps < MOST_STEPS)  # noqa: E731
    return jax.lax.while_loop(under_way, step, now).path


def _moved(
    log_density: LogDensity,
    key: Key[Array, ""],
    some: Float[Array, "set chain param"],
    kernels: Kernel,
    log_step: Float[Array, ""],
) -> tuple[Float[Array, "set particle param"], Float[Array, ""]]:
    """All states of the chains of some particles, and their acceptance; kernels by set."""
    sets, chains, width = some.shape
    num_steps = jnp.minimum(np.pi / 2 / jnp.exp(log_step), MAX_LEAPFROGS)
    fixed, unused = jnp.zeros_like(log_step), jnp.full_like(log_step, jnp.nan)
    none, no_runs = jnp.zeros(0, jnp.int32), jnp.zeros((0, 2), jnp.int32)  # density knows its units
    pace = Pace(jnp.array(0), jnp.array(LENGTH - 1), num_steps, jnp.array(1), fixed, unused)

    def one(kernel: Kernel, of_set: Array, number: Array, begin: Position) -> tuple[Array, Array]:
        state = State(begin, log_step, unused)
        chain = Chain(of_set, number, none, no_runs, jnp.ones(width, begin.dtype))
        _, made = run_chain(
            lambda x, fold: log_density(x), 0, LENGTH - 1, key, kernel, pace, state, chain
        )
        return jnp.concatenate([begin[None], made.position]), made.acceptance

    numbers = jnp.arange(sets, dtype=jnp.uint32), jnp.arange(chains, dtype=jnp.uint32)
    of_sets = jax.vmap(jax.vmap(one, (None, None, 0, 0)), (0, 0, None, 0))
    every, accepted = of_sets(kernels, *numbers, some)
    return every.reshape(sets, -1, width), accepted.mean()


def _kernel(
    particles: Float[Array, "particle param"],
    weight: Float[Array, " particle"],
    distinct: Int[Array, ""],
) -> Kernel:
    """Of the particles' moments: without correlations if parameters are many; with shrunk ones if
    these are more than half as many as effective particles. Otherwise shrinking would widen narrow
    directions manifold, such as those that the first data inform."""
    center = weight @ particles
    apart = (particles - center) * jnp.sqrt(weight)[:, None]
    sd = jnp.sqrt((apart**2).sum(0))
    scale = jnp.where(sd > 0, sd, 1.0)
    if sd.size > DENSE:
        return Kernel(center, scale, jnp.zeros((sd.size, 0), sd.dtype), jnp.ones(0, sd.dtype))
    number = jnp.minimum(1 / jnp.sum(weight**2), distinct)
    kept = jnp.where(number > 2 * sd.size, KEPT, number / (number + sd.size))
    standard = apart / scale
    values, directions = jnp.linalg.eigh(
        kept * standard.T @ standard + (1 - kept) * jnp.eye(sd.size, dtype=sd.dtype)
    )
    return Kernel(center, scale, directions, jnp.sqrt(jnp.maximum(values, 1 - KEPT)))


def _share_left(
    log_ratio: Float[Array, "set particle"], weight: Float[Array, "set particle"]
) -> Float[Array, ""]:
    """Conditional effective sample size, per particle."""
    mean, squares = (logsumexp(k * log_ratio, b=weight / 2) for k in (1, 2))
    return jnp.exp(2 * mean - squares)


def _log_mean(x: Float[Array, "set particle ..."]) -> Float[Array, "set ..."]:
    return logsumexp(x, axis=1) - np.log(x.shape[1])


def _scores(
    each: Float[Array, "set particle increment"],
    log_weight: Float[Array, "set particle size"],
    sizes: Int[Array, " size"],
    wanted: Bool[Array, " size"],
) -> Float[Array, "set size"]:
    """Mean log predictive density of the increments beyond each size, where wanted.

    The logs of means over each set are too low, by twice as much as those over both: their mean is
    raised accordingly, the sets' difference stays.
    """
    places = jnp.arange(each.shape[2])

    def at(of_size: tuple[Array, Array]) -> Float[Array, " set"]:
        size, log_weight = of_size
        weighted = each + jax.nn.log_softmax(log_weight, axis=1)[:, :, None]
        apart = logsumexp(weighted, axis=1)
        both = jnp.concatenate([apart, logsumexp(apart, axis=0)[None] - np.log(2)])
        means = jnp.where(places >= size, both, 0.0).sum(1) / (len(places) - size)
        return means[:2] + 2 * (means[2] - means[:2].mean())

    def one(x: tuple[Array, Array, Array]) -> Float[Array, " set"]:
        wanted, *of_size = x
        return jax.lax.cond(wanted, at, lambda _: jnp.zeros(2, each.dtype), tuple(of_size))

    return jax.lax.map(one, (wanted, sizes, jnp.moveaxis(log_weight, 2, 0))).T
