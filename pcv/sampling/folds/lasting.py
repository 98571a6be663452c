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

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key
from scipy.special import fdtri

from pcv.analysis.diagnostics import batch_sums, nested_limit, nested_rhat, tolerated
from pcv.analysis.stopping.config import looks
from pcv.base.monitor import Monitor
from pcv.folds.base import Folds
from pcv.sampling.folds import moving
from pcv.sampling.folds.moving import Centers, Own
from pcv.sampling.kernel import Kernel
from pcv.sampling.tiles import Engine

FIRST, LAST = 10, 200
"""draws per chain at the first look and at the last"""
KEPT = 5
"""fewest draws between two looks"""
FOLDS = 1000
"""whose biases may add up"""


BY_CHANCE = 1e-4
"""probability of superchains that differ at the last look as much, if starts are forgotten"""


class Seen(NamedTuple):
    """What is kept of a block."""

    draws: Float[np.ndarray, "fold chain draw"]
    """joint scores"""
    mean: Centers
    """of the log score, by kind"""
    accepted: Float[np.ndarray, " fold"]
    """mean acceptance probability"""


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
    accepted: Float[np.ndarray, " fold"]
    """mean acceptance probability of the early draws"""
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
    monitor: Monitor,
    part: str = "",
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
        monitor: takes the progress after every block.
        part: of the task, for the monitor.
    """

    def drawn(
        some: np.ndarray, begin: np.ndarray, done: int, until: int, in_all: int
    ) -> tuple[list[Seen], np.ndarray]:
        made, of_some = [], folds.some(some)
        settings = moving.chosen(own, some), moving.standing_at(begin), moving.uncentered(of_some)
        blocks = moving.blocks(
            engine,
            root,
            kernel,
            of_some,
            *settings,
            num_draws=until - done,
            first=first + done,
            monitor=monitor,
        )
        for block, standing in blocks:
            means = {kind: block.sums[kind]["mean"].mean(1) for kind in ("joint", "pointwise")}
            accepted = block.stats["acceptance"]["total"].mean(1) / block.num_draws
            made.append(Seen(block.draws, means, accepted))
            begin, done = standing.position, done + block.num_draws
            moving.report(monitor, block, first + done, first + in_all, part)
        return made, begin

    number, (chains, superchains) = len(folds.id), (position.shape[1], length.superchains)
    every = np.arange(number)
    if (given := length.num_draws) is not None:
        made, end = drawn(every, position, 0, given, given)
        later = made[len(made) // 2 :]
        num_draws, forgot = np.full(number, given), np.ones(number, bool)
        scores = _scores(made), _accepted(made), _scores(later)
        return Run(end, centers(later), *scores, num_draws, forgot)
    end, center = position.copy(), moving.uncentered(folds)
    early: list[Seen] = []
    late = np.zeros((*position.shape[:2], KEPT))
    num_draws, forgot, done, left = np.zeros(number, int), np.zeros(number, bool), 0, every
    noise = fdtri(superchains - 1, chains - superchains, 1 - BY_CHANCE)

    def conclude(ended: np.ndarray, last: list[Seen], draws: int, forgotten: bool) -> None:
        late[ended] = _scores(last)[..., -KEPT:]
        for kind, x in centers(last[len(last) // 2 :]).items():
            center[kind][ended] = x
        num_draws[ended], forgot[ended] = draws, forgotten

    for until in (KEPT, *looks(FIRST, LAST, 1)):
        in_all = enough(until, chains, superchains)
        made, end[left] = drawn(left, end[left], done, until, in_all)
        done = until
        if done <= FIRST:
            early.extend(made)
        if done < FIRST:
            continue
        apart = excess(_scores(made), superchains)
        passed = ~(apart > noise) if done == LAST else apart <= 1
        if len(agree := left[passed]):
            further, end[agree] = drawn(agree, end[agree], done, in_all, in_all)
            conclude(agree, further, in_all, True)
        left = left[~passed]
        if not len(left):
            break
    else:
        rest = [
            Seen(x.draws[~passed], {k: m[~passed] for k, m in x.mean.items()}, x.accepted[~passed])
            for x in made
        ]
        conclude(left, rest, LAST, False)
    return Run(end, center, _scores(early), _accepted(early), late, num_draws, forgot)


def enough(look: int, chains: int, superchains: int) -> int:
    """Draws per chain in all, where superchains agree after those of `look`.

    >>> enough(10, 32, 4), enough(10, 1000, 20)
    (50, 31)
    """
    down, noise = FOLDS / tolerated(chains), chains / np.sqrt(2 * superchains)
    return int(np.ceil(look * np.log(down) / np.log(noise)))


def excess(
    draws: Float[np.ndarray, "fold chain draw"], superchains: int
) -> Float[np.ndarray, " fold"]:
    """Variance between superchains relative to the most that is accepted: about F distributed once
    starts are forgotten. 0 where nothing varies; NaN where a score is not finite.
    """
    sums = batch_sums(draws, draws.shape[2])
    limit = nested_limit(sums, superchains, tolerated(draws.shape[1]))
    found = (nested_rhat(sums, superchains) ** 2 - 1) / (limit**2 - 1)
    return np.where(np.ptp(draws, axis=(1, 2)) == 0, 0.0, found)


def centers(made: Sequence[Seen]) -> Centers:
    """Centring constants of the log score by kind, from blocks of draws."""

    def center(kind: str) -> np.ndarray:
        pooled = _average(made, [seen.mean[kind] for seen in made])
        return np.where(np.isfinite(pooled), pooled, 0.0)

    shift = np.full(len(made[0].draws), np.inf)
    return {"joint": center("joint"), "pointwise": center("pointwise"), "shift": shift}


def _scores(made: Sequence[Seen]) -> Float[np.ndarray, "fold chain draw"]:
    return np.concatenate([seen.draws for seen in made], axis=2)


def _accepted(made: Sequence[Seen]) -> Float[np.ndarray, " fold"]:
    return _average(made, [seen.accepted for seen in made])


def _average(made: Sequence[Seen], means: Sequence[np.ndarray]) -> np.ndarray:
    return np.average(means, axis=0, weights=[seen.draws.shape[2] for seen in made])
