r"""Warmup and sampling of folds: from draws of the full-data posterior, under its kernel.

A fold that keeps little of the data has a posterior wider than the full-data one, in some
directions more than in others, and the full-data kernel takes small steps there. Its scores in
warmup tell: trajectories are longer where they are autocorrelated (`longer`), and a fold is adapted
where that is not enough (`needs_adapting`, `adapt`): in the coordinates that the kernel whitens, a
scale for each, learnt from all its chains, with a step size and a number of steps.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import jax
import numpy as np
from jax.errors import JaxRuntimeError
from jaxtyping import Array, Bool, Float, Int, Key

from pcv.analysis.diagnostics import crossing
from pcv.analysis.sums import Block
from pcv.base.errors import PcvError
from pcv.base.names import name_bits
from pcv.base.programs import Shared
from pcv.base.programs.devices import in_use, out_of_memory
from pcv.folds import Folds
from pcv.sampling.accumulate import energy_sums, log_sums, weighted_means
from pcv.sampling.fit.full_data import QUARTER, REFUSED, Fit, autocorrelation
from pcv.sampling.hmc import Chain, Moved, Pace, State
from pcv.sampling.kernel import Kernel, whitened
from pcv.sampling.scoring import Made
from pcv.sampling.tiles import Engine, Taken, advance, chains_of, rows, score, taken

MAX_RHO = 0.6
"""lag-1 autocorrelation of a fold's score, above which its chains are slow"""
NEARLY = 0.3
"""powers of √2 that a trajectory may be shorter than a quarter period"""
MAX_WIDER = 3
"""variance of a fold's score, over that at full-data draws, above which the fold is unlike them"""
FULL_DRAWS = 100
"""full-data draws at which scores are evaluated"""
MIN_DRAWS = 10
"""warmup draws of a chain below which they say nothing"""
WINDOWS = (25, 50, 100)
"""draws after each of which a fold's scale is learnt anew"""
LAST_WINDOW, CHECKED = 50, 100
"""draws after them in which its step size is tuned for the last time, and then looked at"""
TARGET_ACCEPT = 0.9
FIRST_STEP, MAX_STEPS = 0.5, 32.0
GAIN, LAST_GAIN = 0.3, 0.1
"""by which the step size follows the acceptance"""
MAX_REFUSED = 0.002
"""share of refused proposals above which no one step size suits the fold's posterior"""
FINER, MOVES = 4, 16
"""what the step size of such a fold is divided by, and its transitions for a draw"""
POSITIONS = 2**28
"""bytes of a block's draws, from which on folds are adapted some at a time"""
PRIOR_DRAWS = 5
"""draws that the present scale counts for beside those of a window"""

Centers = dict[str, np.ndarray]
"""kind → centring constants of the log score (fold[, slot]); shift → of
`pcv.analysis.diagnostics.Sides`"""


class Own(NamedTuple):
    """How each fold's chains move under the kernel of the full data; leading axis: fold."""

    step_size: Float[np.ndarray, " fold"]
    num_steps: Float[np.ndarray, " fold"]
    thin: Int[np.ndarray, " fold"]
    """HMC transitions for a draw"""
    scale_ratio: Float[np.ndarray, "fold param"]
    """how much wider than the full-data posterior"""


class Standing(NamedTuple):
    """What the next draws of all chains need; leading axes: fold, chain."""

    position: Float[np.ndarray, "fold chain param"]
    energy: Float[np.ndarray, "fold chain"]
    """of the last draw, NaN before the first"""


def standing_at(position: Float[np.ndarray, "fold chain param"]) -> Standing:
    """Chains that begin."""
    return Standing(position, np.full(position.shape[:2], np.nan))


class Starts(NamedTuple):
    """Where the warmup of folds ends."""

    position: Float[np.ndarray, "fold chain param"]
    own: Own
    adapted: Bool[np.ndarray, " fold"]
    center: Centers
    draws: Float[np.ndarray, "fold chain draw"]
    """of the joint score, in the later half"""


def uncentered(folds: Folds) -> Centers:
    """What is known before the warmup."""
    number = len(folds.id)
    zero = {"joint": np.zeros(number), "pointwise": np.zeros(folds.test.shape)}
    return {**zero, "shift": np.full(number, np.inf)}


def alike(fit: Fit, num_folds: int) -> Own:
    """Folds whose chains move as those of the full data."""

    def each(x: Any) -> np.ndarray:
        return np.broadcast_to(x, (num_folds, *np.shape(x)))

    one = np.ones(len(fit.kernel.center))
    return Own(each(fit.step_size), each(fit.num_steps), each(1), each(one))


def chosen(tree: Any, folds: np.ndarray) -> Any:
    """Some of the folds."""
    return jax.tree.map(lambda x: x[folds], tree)


def starting_draws(
    seed: int,
    model: str,
    folds: list[str],
    num_chains: int,
    num_available: int,
    superchains: int = 0,
) -> Int[np.ndarray, "fold chain"]:
    """Which full-data draws the chains start from: random, and distinct within a fold.

    A random first one and equal strides from there (with repeats only where a fold has more
    starts than there are draws). With superchains, the chains of each start at one draw.
    """
    starts = superchains or num_chains
    of_fold = ([seed, name_bits(model), name_bits("start"), name_bits(fold)] for fold in folds)
    first = np.array([np.random.default_rng(x).integers(num_available) for x in of_fold])
    stride = max(num_available // starts, 1)
    picks = (first[:, None] + stride * np.arange(starts)) % num_available
    return np.repeat(picks, num_chains // starts, axis=1)


def blocks(
    engine: Engine,
    root: Key[Array, ""],
    kernel: Kernel,
    folds: Folds,
    own: Own,
    standing: Standing,
    center: Centers,
    num_draws: int,
    first: int,
    say: Callable[[str], None],
) -> Iterator[tuple[Block, Standing]]:
    """Draws of all chains, one block after another; memory on the device does not grow with them.

    Args:
        engine: of the model.
        root: key of the seed, the model and the stage.
        kernel: of the full data.
        folds: and how their chains move.
        standing: where the chains stand.
        center: constants of the log score.
        num_draws: draws per chain to make.
        first: draws per chain made before.
        say: is told where the device's memory is too small for a tile.

    Yields:
        Each block's sums and draws, and where the chains stand.
    """
    num_chains = standing.position.shape[1]
    state, chains, center_of = of_chains(folds, own, standing, center)
    steps, thin = np.repeat(own.num_steps, num_chains), np.repeat(own.thin, num_chains)
    done = 0
    while done < num_draws:
        size = min(engine.buffer, num_draws - done)
        pace = Pace(first + done, size, steps, thin, 0.0, 0.0)
        before, at = state.energy, (root, kernel, pace, state, chains, center_of)
        state, moved, made = in_memory(engine, advance, at, say)
        done += size
        standing = Standing(*(_by_fold(x, num_chains) for x in (state.position, state.energy)))
        yield block_of(moved, made, before, num_chains, size, center["shift"]), standing


_smaller: WeakKeyDictionary[Shared, Engine] = WeakKeyDictionary()
"""by the program of a tile that did not fit the device's memory"""


def in_memory[T](
    engine: Engine, call: Callable[..., T], args: tuple[Any, ...], say: Callable[[str], None]
) -> T:
    """What a call of an engine gives; where a tile does not fit the device's memory, with smaller
    ones from then on.

    Raises:
        PcvError: it does not fit with one chain at a time.
    """
    while True:
        while engine.advance in _smaller:
            engine = _smaller[engine.advance]
        try:
            return call(engine, *args)
        except JaxRuntimeError as error:
            if not out_of_memory(error):
                raise
            together = engine.tile // len(in_use())
            if together <= 1:
                raise PcvError(
                    "out of memory with one chain of a device at a time; use precision: float32, "
                    "or a smaller cv.batch_size"
                ) from error
            _smaller[engine.advance] = engine = engine.with_tile(engine.tile // 2)
            say(
                f"warning: out of memory with {together} chains of a device at a time; tried again "
                f"with {engine.tile // len(in_use())}"
            )


def measured(engine: Engine, fold: Folds) -> Taken | None:
    """What a block of draws takes, where JAX says it."""
    ones = np.ones(1, int)
    one = Own(np.ones(1), np.ones(1), ones, np.ones((1, engine.num_params)))
    at = standing_at(np.zeros((1, 1, engine.num_params)))
    return taken(engine, *of_chains(fold, one, at, uncentered(fold)))


def of_chains(
    folds: Folds, own: Own, standing: Standing, center: Centers
) -> tuple[State, Chain, Centers]:
    """Of each chain, what its fold has."""
    num_chains, num_params = standing.position.shape[1:]
    ids = [str(fold) for fold in folds.id]
    chains = chains_of(ids, num_chains, folds.test, folds.held_out, num_params)
    if (own.scale_ratio != 1).any():
        chains = chains._replace(scale_ratio=np.repeat(own.scale_ratio, num_chains, axis=0))
    with np.errstate(divide="ignore"):
        log_step = np.log(np.repeat(own.step_size, num_chains))
    state = State(standing.position.reshape(-1, num_params), log_step, standing.energy.reshape(-1))
    return state, chains, {kind: np.repeat(x, num_chains, axis=0) for kind, x in center.items()}


def _by_fold(x: np.ndarray, num_chains: int) -> np.ndarray:
    return x.reshape(-1, num_chains, *x.shape[1:])


def block_of(
    moved: Moved,
    made: Made,
    before: np.ndarray,
    num_chains: int,
    size: int,
    shift: Float[np.ndarray, " fold"],
) -> Block:
    """What a block makes, by fold and chain, in double precision."""

    def stored(fields: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {name: _by_fold(x, num_chains) for name, x in fields.items()}

    def drawn(x: np.ndarray) -> np.ndarray:
        return _by_fold(np.asarray(x[:, :size], float), num_chains)

    joint = drawn(made.joint)
    sums = {kind: stored(log_sums.finalize(x)) for kind, x in made.sums.items()}
    if "bridge" in sums:
        sums["bridge"] = {name: sums["bridge"][name] for name in ("log_sum", "log_sum_sq")}
    return Block(
        sums,
        joint,
        crossing(joint, shift, own=True),
        {name: stored(weighted_means.finalize(x)) for name, x in made.means.items()},
        None if made.y_rep is None else drawn(made.y_rep),
        {
            "acceptance": {"total": drawn(moved.acceptance).sum(2)},
            "divergences": {"total": drawn(moved.diverging).sum(2)},
            "energy": energy_sums(drawn(moved.energy), _by_fold(before, num_chains)),
        },
        size,
    )


def warmup(
    engine: Engine,
    root: Callable[[str], Key[Array, ""]],
    fit: Fit,
    folds: Folds,
    position: Float[np.ndarray, "fold chain param"],
    num_draws: int,
    adapted: str,
    full_draws: Float[np.ndarray, "draw param"],
    after: Callable[[Block, str], None],
    say: Callable[[str], None],
) -> Starts:
    """A short run of all chains, thrown away; folds that are unlike the full data are adapted.

    Args:
        engine: of the model.
        root: key of the seed, the model and a stage.
        fit: of the full data; its draws are not needed.
        folds: of whom.
        position: where the chains start.
        num_draws: of every chain.
        adapted: "auto": folds that are `needs_adapting`; "always"; "never".
        full_draws: some draws given the full data, on which the score's variance is looked at.
        after: is told of every block, and what it is for.
        say: what is to be told.
    """
    own = alike(fit, len(folds.id))
    made, end = _warmed(
        engine, root("warmup"), fit.kernel, folds, own, position, num_draws, 0, after, say
    )
    center = centers(made)
    which = np.full(len(folds.id), adapted == "always")
    if adapted == "auto" and num_draws >= MIN_DRAWS:
        thinned = full_draws[:: -(-len(full_draws) // FULL_DRAWS)]
        full = at_full_data(engine, folds, thinned, say)
        draws = np.concatenate([block.draws for block in made], axis=2)
        which = needs_adapting(draws, full)
        own = own._replace(num_steps=own.num_steps * longer(draws))
    draws = _later(made)
    if not which.any():
        return Starts(end, own, which, center, draws)
    number, taken = which.sum(), engine.buffer * end[which].size * 8
    groups = np.array_split(np.flatnonzero(which), min(-(-taken // POSITIONS), number))
    each = [
        adapt(engine, root("adapt"), fit, folds.some(group), end[group], after, say)
        for group in groups
    ]
    owns, places, lengths = zip(*each)
    its, where, first = Own(*map(np.concatenate, zip(*owns))), np.concatenate(places), lengths[0]
    at = folds.some(which), its, where, num_draws, first
    made, where = _warmed(engine, root("adapt"), fit.kernel, *at, after, say)
    for x, new in zip((end, *(own := Own(*map(np.array, own)))), (where, *its)):
        x[which] = new
    for kind, x in centers(made).items():
        center[kind][which] = x
    draws[which] = _later(made)
    return Starts(end, own, which, center, draws)


def _later(made: list[Block]) -> Float[np.ndarray, "fold chain draw"]:
    return np.concatenate([block.draws for block in made[len(made) // 2 :]], axis=2)


def _warmed(
    engine: Engine,
    root: Key[Array, ""],
    kernel: Kernel,
    folds: Folds,
    own: Own,
    position: np.ndarray,
    num_draws: int,
    first: int,
    after: Callable[[Block, str], None],
    say: Callable[[str], None],
) -> tuple[list[Block], np.ndarray]:
    made, what = [], "of adapted folds," if first else ""
    at = folds, own, standing_at(position), uncentered(folds), num_draws, first, say
    for block, end in blocks(engine, root, kernel, *at):
        made.append(block)
        position = end.position
        after(block, what)
    return made, position


def centers(made: list[Block]) -> Centers:
    """Centring constants of the log score by kind, from the later half of a warmup."""
    later = made[len(made) // 2 :]
    counts = [block.num_draws for block in later]

    def center(kind: str) -> np.ndarray:
        means = [block.sums[kind]["mean"].mean(1) for block in later]
        pooled = np.average(means, axis=0, weights=counts)
        return np.where(np.isfinite(pooled), pooled, 0.0)

    shift = np.full(len(later[0].draws), np.inf)
    return {"joint": center("joint"), "pointwise": center("pointwise"), "shift": shift}


def at_full_data(
    engine: Engine,
    folds: Folds,
    draws: Float[np.ndarray, "draw param"],
    say: Callable[[str], None],
) -> Float[np.ndarray, "fold draw"]:
    """Joint log predictive of every fold's test set at draws given the full data."""
    each = scored_blocks(engine, folds, uncentered(folds), draws, say)
    return np.concatenate([made.joint for made in each], 1).astype(float)


def scored_blocks(
    engine: Engine,
    folds: Folds,
    center: Centers,
    draws: Float[np.ndarray, "draw param"],
    say: Callable[[str], None],
    size: int | None = None,
) -> Iterator[Made]:
    """Scores of every fold's test set at draws given the full data, so many at a time: what a chain
    for each fold makes, whose draws these are."""
    number, size = len(folds.id), size or engine.buffer
    ids = [str(fold) for fold in folds.id]
    chains = chains_of(ids, 1, folds.test, folds.held_out, engine.num_params)
    even = len(draws) // size * size
    together = max(engine.tile * engine.stack // number, 1) * size  # a call is full
    for first in (*range(0, even, together), *range(even, len(draws), size)):
        last = min(first + together, even) if first < even else len(draws)
        some = draws[first:last].reshape(-1, min(size, last - first), draws.shape[1])
        made = in_memory(engine, score, (chains, center, some), say)
        for block in range(len(some)):
            found = rows(made, block)
            yield found._replace(joint=found.joint[:, : some.shape[1]])


def autocorrelated(draws: Float[np.ndarray, "fold chain draw"]) -> Float[np.ndarray, " fold"]:
    """Lag-1 autocorrelation about the mean of all chains, so that chains apart count as slow; of
    the draws or of their ranks, whichever is larger, for outliers hide it; NaN where none moved."""
    from scipy.stats import rankdata

    ranks = rankdata(draws.reshape(len(draws), -1), axis=1).reshape(draws.shape)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.fmax(autocorrelation(draws), autocorrelation(ranks))


def needs_adapting(
    draws: Float[np.ndarray, "fold chain draw"],
    full: Float[np.ndarray, "fold full_draw"],
) -> Bool[np.ndarray, " fold"]:
    """Which folds are unlike the full data: slow ones (an autocorrelation above .6), or whose
    score varies three times as much.

    Args:
        draws: of a score, from a warmup with the full-data kernel.
        full: the same score at full-data draws, of `at_full_data`.

    >>> walk = np.random.default_rng(1).normal(size=(2, 4, 50))
    >>> walk[1] = walk[1].cumsum(axis=1)
    >>> needs_adapting(walk, np.full((2, 100), np.inf))
    array([False,  True])
    """
    with np.errstate(invalid="ignore"):
        wider = draws.var(axis=(1, 2)) > MAX_WIDER * full.var(axis=1)
        return (autocorrelated(draws) > MAX_RHO) | wider


def longer(draws: Float[np.ndarray, "fold chain draw"]) -> Float[np.ndarray, " fold"]:
    r"""What trajectories are to be multiplied by for a quarter of a fold's own period, as a power
    of √2 up to 2.

    .. math:: \frac{\pi / 2}{\arccos \rho}

    as for a normal coordinate, whose autocorrelation :math:`\rho` is the cosine of the way.

    Args:
        draws: of a score.
    """
    rho = np.clip(np.nan_to_num(autocorrelated(draws)), 0.0, MAX_RHO)
    return np.exp2(np.ceil(2 * np.log2(QUARTER / np.arccos(rho)) - NEARLY) / 2)


def quarter_period(step_size: Float[np.ndarray, " fold"]) -> Float[np.ndarray, " fold"]:
    """Leapfrog steps that carry a standard normal to an independent place, as a power of √2, so
    that folds advance together; at most 32.

    >>> quarter_period(np.array([0.01, 0.2, 0.5, 2.0])).round(1)
    array([32. ,  8. ,  2.8,  1. ])
    """
    steps = np.exp2(np.round(2 * np.log2(QUARTER / step_size)) / 2)
    return np.clip(steps, 1.0, MAX_STEPS)


def adapt(
    engine: Engine,
    root: Key[Array, ""],
    fit: Fit,
    folds: Folds,
    position: Float[np.ndarray, "fold chain param"],
    after: Callable[[Block, str], None],
    say: Callable[[str], None],
) -> tuple[Own, Float[np.ndarray, "fold chain param"], int]:
    r"""How the chains of folds unlike the full data move, from short windows of their own draws.

    After each of three windows of growing length the scale ratio :math:`d` of every whitened
    coordinate becomes the standard deviation of the n pooled draws,

    .. math:: d_j^2 \leftarrow d_j^2 \, (n v_j + 5) / (n + 5)

    with their variance :math:`v_j` in the coordinates of the present scale ratio. (One scale for
    each coordinate rather than a covariance: it takes few draws whatever the number of parameters,
    and all chains share the full-data metric.) Within a window the step size follows the acceptance
    of the fold's chains towards .9, or that of the fit if it is more; a last window tunes it for
    the final scale ratio. Trajectories last a quarter period, or are `longer`. A fold depends on no
    other.

    Under a step size of that acceptance, a normal posterior refuses hardly any proposal outright.
    Where more than .2% are (accepted by less than .02; in 100 more draws, and in the later halves
    of the two windows before them), scales vary over the posterior, as in a funnel, whose neck
    chains then hardly enter or leave. Such a fold takes a quarter of the step size, and sixteen
    transitions for a draw: what moves chains along a funnel are new momenta, not long trajectories.

    Args:
        engine, root, fit, folds, after, say: as for `warmup`.
        position: where the chains stand.

    Returns:
        How they move, where they end, and how many draws they made.
    """
    num_folds, num_chains, num_params = position.shape
    target = max(TARGET_ACCEPT, fit.target_accept)
    step, scale_ratio = np.full(num_folds, FIRST_STEP), np.ones((num_folds, num_params))
    refused, looked_at, made, zero = np.zeros(num_folds), 0, 0, uncentered(folds)

    for i, length in enumerate((*WINDOWS, LAST_WINDOW, CHECKED)):
        scores: list[np.ndarray] = []
        total, squares = np.zeros((2, num_folds, num_params))
        gain = 0.0 if i > len(WINDOWS) else LAST_GAIN if i == len(WINDOWS) else GAIN
        if 0 < i < len(WINDOWS):
            step = np.full(num_folds, FIRST_STEP)
        counted = length - length // 2 if i < len(WINDOWS) + 1 else length
        for first in range(0, length, engine.buffer):
            size = min(engine.buffer, length - first)
            own = Own(step, quarter_period(step), np.ones(num_folds, int), scale_ratio)
            state, chains, center = of_chains(folds, own, standing_at(position), zero)
            steps = np.repeat(own.num_steps, num_chains)
            pace = Pace(made, size, steps, 1, gain, target)
            at = root, fit.kernel, pace, state, chains, center, True
            state, drawn, made_of = in_memory(engine, advance, at, say)
            position = _by_fold(state.position, num_chains)
            step = np.exp(_by_fold(state.log_step_size, num_chains).mean(1)) if gain else step
            z = whitened(fit.kernel, drawn.position[:, :size]) / chains.scale_ratio[:, None]
            z = z.reshape(num_folds, num_chains * size, num_params)
            total, squares = total + z.sum(1), squares + (z**2).sum(1)
            if i >= len(WINDOWS) - 1:
                late = np.arange(first, first + size) >= length - counted
                low = (drawn.acceptance[:, :size] < REFUSED) & late
                refused += low.reshape(num_folds, -1).sum(1)
            made += size
            before = np.full(len(state.energy), np.nan)
            block = block_of(drawn, made_of, before, num_chains, size, zero["shift"])
            after(block, "of adapted folds,")
            scores.append(block.draws)
        looked_at += counted if i >= len(WINDOWS) - 1 else 0
        if i < len(WINDOWS):
            number = num_chains * length
            variance = squares / number - (total / number) ** 2
            wider = (number * variance + PRIOR_DRAWS) / (number + PRIOR_DRAWS)
            scale_ratio = scale_ratio * np.sqrt(wider)
    rough = refused > MAX_REFUSED * num_chains * looked_at
    num_steps = quarter_period(step)
    num_steps = np.where(rough, num_steps, num_steps * longer(np.concatenate(scores, 2)))
    own = Own(
        np.where(rough, step / FINER, step), num_steps, np.where(rough, MOVES, 1), scale_ratio
    )
    return own, position, made
