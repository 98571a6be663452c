r"""How long warmup lasts: a given number of draws, or until chains have forgotten their starts.

Superchains, sets of chains that start at one point, agree once starting points no longer matter.
A fold is looked at after 10 draws, then each time they have grown by half, as in
`pcv.analysis.stopping`, until nested R-hat of its joint score in the draws since the last look is
at most `pcv.analysis.diagnostics.nested_limit` with :math:`\tau = 1/(5C)`: a fifth of the squared
Monte Carlo error of a draw from each of its C chains.

That alone is too early. Nested R-hat of K superchains has a noise of about :math:`\sqrt{2K}/C`,
far above that τ, and full-data draws are better than a fold's own in every fold, so that biases add
up over F folds while Monte Carlo errors cancel. But squared bias and variance between starts decay
at one rate (NRHAT theorem 3.5): where t draws took that variance from that of the score down to the
noise, further draws take the squared bias down to :math:`1/(5CF)`, after

.. math:: t \, \frac{\log(5 C F)}{\log(C / \sqrt{2K})}, \qquad F = 1000

draws in all. `benchmarks/nested.py` shows by how much sums over folds are off, with and without.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key
from scipy.special import chdtri

from pcv.analysis.diagnostics import LogSums, nested_limit, nested_rhat
from pcv.analysis.samples import Block
from pcv.analysis.stopping.config import looks
from pcv.folds.base import Folds
from pcv.sampling.folds import moving
from pcv.sampling.folds.moving import Centers, Own
from pcv.sampling.kernel import Kernel
from pcv.sampling.tiles import Engine

FIRST, LAST = 10, 200
"""draws per chain at the first look and at the last"""
KEPT = 5
"""fewest draws between two looks"""
SHARE, FOLDS = 5, 1000
"""squared Monte Carlo error of a draw of each chain, relative to what starting points may add, and
number of folds whose biases may add up"""


BY_CHANCE = 1e-4
"""probability of superchains that differ at the last look as much, if starts are forgotten"""


class Length(NamedTuple):
    """How long warmup lasts."""

    num_draws: int | None
    """per chain; None: until starts are forgotten"""
    superchains: int
    """0: none"""


class Run(NamedTuple):
    """A warmup run; leading axis: fold."""

    position: Float[np.ndarray, "fold chain param"]
    """where chains stand"""
    center: Centers
    early: Float[np.ndarray, "fold chain early_draw"]
    """joint scores of all draws, or of those before the first look"""
    late: Float[np.ndarray, "fold chain late_draw"]
    """joint scores of later draws"""
    num_draws: Int[np.ndarray, " fold"]
    """per chain"""
    forgot: Bool[np.ndarray, " fold"]
    """whether starts are forgotten; True where that was not asked"""


def run(
    engine: Engine,
    root: Key[Array, ""],
    kernel: Kernel,
    folds: Folds,
    own: Own,
    position: Float[np.ndarray, "fold chain param"],
    length: Length,
    first: int,
    after: Callable[[Block], None],
    say: Callable[[str], None],
) -> Run:
    """Draws of all chains, discarded.

    Args:
        engine: of the model.
        root: key of the seed, the model and the stage.
        kernel: of the full data.
        folds: to warm up.
        own: their sampler settings.
        position: starting points.
        length: how many draws.
        first: earlier draws per chain.
        after: called with every block.
        say: prints a message.
    """

    def drawn(
        some: np.ndarray, begin: np.ndarray, num_draws: int, before: int
    ) -> tuple[list[Block], np.ndarray]:
        made, part = [], folds.some(some)
        at = part, moving.chosen(own, some), moving.standing_at(begin), moving.uncentered(part)
        for block, standing in moving.blocks(engine, root, kernel, *at, num_draws, before, say):
            made.append(block)
            begin = standing.position
            after(block)
        return made, begin

    number = len(folds.id)
    every = np.arange(number)
    if length.num_draws is not None:
        made, end = drawn(every, position, length.num_draws, first)
        later = made[len(made) // 2 :]
        num_draws, forgot = np.full(number, length.num_draws), np.ones(number, bool)
        return Run(end, centers(later), _scores(made), _scores(later), num_draws, forgot)
    end, center = position.copy(), moving.uncentered(folds)
    early: list[np.ndarray] = []
    late = np.zeros((*position.shape[:2], KEPT))
    num_draws, forgot, done, left = np.zeros(number, int), np.zeros(number, bool), 0, every
    noise = chdtri(length.superchains - 1, BY_CHANCE) / (length.superchains - 1)
    for until in (KEPT, *looks(FIRST, LAST, 1)):
        made, end[left] = drawn(left, end[left], until - done, first + done)
        done = until
        if done <= FIRST:
            early.append(_scores(made))
        if done < FIRST:
            continue
        apart = excess(made, length.superchains)
        forgot[left] = apart <= (noise if done == LAST else 1)
        ended = left if done == LAST else left[forgot[left]]
        if len(ended):
            num_draws[ended] = in_all = enough(done, position.shape[1], length.superchains)
            made, end[ended] = drawn(ended, end[ended], in_all - done, first + done)
            late[ended] = _scores(made)[..., -KEPT:]
            for kind, x in centers(made[len(made) // 2 :]).items():
                center[kind][ended] = x
        left = left[~forgot[left]]
        if not len(left):
            break
    return Run(end, center, np.concatenate(early, axis=2), late, num_draws, forgot)


def enough(look: int, chains: int, superchains: int) -> int:
    """Draws per chain in all, where superchains agree after those of `look`.

    >>> enough(10, 32, 4), enough(10, 1000, 20)
    (50, 31)
    """
    down, noise = SHARE * chains * FOLDS, chains / np.sqrt(2 * superchains)
    return int(np.ceil(look * np.log(down) / np.log(noise)))


def excess(made: Sequence[Block], superchains: int) -> Float[np.ndarray, " fold"]:
    """Variance between superchains relative to the most that is accepted: once starts are forgotten
    about a chi-square over its degrees of freedom. 0 where a score does not vary, of which others
    tell."""
    fields = ([block.sums["joint"][name] for block in made] for name in LogSums._fields)
    sums = LogSums(*(np.stack(x, axis=2) for x in fields))
    tolerated = 1 / (SHARE * sums.mean.shape[1])
    limit = nested_limit(sums, superchains, tolerated)
    return np.nan_to_num((nested_rhat(sums, superchains) ** 2 - 1) / (limit**2 - 1), posinf=np.inf)


def centers(made: Sequence[Block]) -> Centers:
    """Centring constants of the log score by kind, from blocks of draws."""
    counts = [block.num_draws for block in made]

    def center(kind: str) -> np.ndarray:
        means = [block.sums[kind]["mean"].mean(1) for block in made]
        pooled = np.average(means, axis=0, weights=counts)
        return np.where(np.isfinite(pooled), pooled, 0.0)

    shift = np.full(len(made[0].draws), np.inf)
    return {"joint": center("joint"), "pointwise": center("pointwise"), "shift": shift}


def _scores(made: Sequence[Block]) -> Float[np.ndarray, "fold chain draw"]:
    return np.concatenate([block.draws for block in made], axis=2)
