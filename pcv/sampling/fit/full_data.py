r"""The full-data posterior: many short chains that adapt together.

Chains start uniformly on (-2, 2) of the unconstrained scale. After each block, the pooled draws
update the kernel and the acceptance rates the step size, until chains agree; later draws are kept.
Nothing is adapted while draws are kept, so chains are then independent.
"""

from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Float, Key

from pcv.base.errors import PcvError
from pcv.base.monitor import SILENT, Monitor
from pcv.compile import programs
from pcv.models.model import Target
from pcv.sampling.fit.draws import MAX_RHAT, MIN_ESS, Draws, Mixing, mixing, plain_rhat, tau
from pcv.sampling.hmc import Moved, Pace, State
from pcv.sampling.kernel import FEWEST_PER_PARAM, Kernel, learn, plain, whitened
from pcv.sampling.tiles import Engine, advance, build, chains_of

FEWEST, CANDIDATES = 16, 20
"""fewest chains; and candidate starting points per chain, of which the first usable is taken"""
RADIUS = 2.0
STEP = 1.6
"""step size of the folds' chains times the fourth root of the number of parameters, which gives
acceptance rates of about .8 where the posterior is near normal"""
FIRST_STEP, NEXT_STEP, LONG = 0.1, 0.3, 12.0
"""step size at first and under new kernels, and leapfrog steps until they are chosen"""
FAST, SLOW = 0.4, 0.1
"""step-size gains, early and late"""
LATER = 4
"""number of kernels after which the step size adapts slowly"""
LOST, LOST_PER_PARAM, HARDLY = 100.0, 1.0, 0.1
"""chains are lost if their log density is this far below the median (plus this per parameter) and
their acceptance rate below this"""
AGREE = 1.1
"""R-hat of a block below which chains agree"""
HELD, SHORT, TOGETHER = 10, 0.5, 4
"""blocks in which chains disagree with integration times shorter than this, before trajectories are
doubled (narrow directions slow such chains); and blocks then pooled to judge agreement"""
GOOD, MOST_GOOD = 3, 12
"""blocks in agreement before draws are kept; and the same where effective draws are still few"""
QUARTER, MAX_STEPS = np.pi / 2, 64.0
"""integration time that makes draws of a standard normal independent, and most leapfrog steps"""
BLOCK, LEAST = 25, 100
"""draws per chain between adaptations, and the fewest to keep"""
ROOM = 50
"""capacity of a block: the default of folds, so that fit and folds share a program where their
tiles are of equal size"""


class Fit(NamedTuple):
    """The full-data posterior, and the tuned sampler."""

    draws: Draws
    kernel: Kernel
    step_size: float
    num_steps: float
    """mean integration time, in units of the step size"""
    target_accept: float
    mixing: Mixing | None = None
    """of the draws, if sufficient"""
    log_weight: Float[np.ndarray, "chain draw"] | None = None
    """of draws of an approximation; None: all alike"""


def engine_of(target: Target, num_units: int, total: int) -> Engine:
    """The program of a full-data fit, with no more chains than have `LEAST` draws each.

    Args:
        target: the model on flat parameters.
        num_units: number of units.
        total: draws to keep, over all chains.
    """
    engine = build(target, (), num_units, ROOM)
    most = max(total // LEAST, FEWEST)
    return engine.with_tile(most) if engine.tile > most else engine


def num_chains(engine: Engine) -> int:
    """Chains of a fit: at least `FEWEST`, in full tiles."""
    return -(-FEWEST // engine.tile) * engine.tile


def sample(
    engine: Engine,
    root: Key[Array, ""],
    warmup: int,
    total: int,
    target_accept: float,
    monitor: Monitor = SILENT,
    part: str = "",
) -> Fit:
    """Draws of the full-data posterior.

    Args:
        engine: from `engine_of`.
        root: key of the seed, the model and the stage.
        warmup: largest number of warmup draws per chain.
        total: fewest draws to keep, over all chains.
        target_accept: target acceptance rate.
        monitor: takes the progress after every block.
        part: of the task, for the monitor.

    Raises:
        PcvError: a chain has no starting point with finite density and gradient.
    """
    search = Search(engine, root, target_accept, monitor, part)
    search.begin()
    search.settle(warmup)
    search.choose_steps()
    return search.keep(total)


def after_nuts(
    engine: Engine,
    root: Key[Array, ""],
    draws: Draws,
    target_accept: float,
    monitor: Monitor = SILENT,
) -> Fit:
    """Kernel, step size and trajectory length for folds, from NUTS draws of the full data."""
    pooled = draws.position.reshape(-1, draws.position.shape[-1])
    search = Search(engine, root, target_accept, monitor)
    search.learn(draws.position, True)
    picks = np.linspace(0, len(pooled) - 1, search.number).astype(int)
    nothing = np.full(search.number, np.nan)
    search.state = State(pooled[picks], np.full(search.number, np.log(NEXT_STEP)), nothing)
    search.choose_steps()
    return search.fit(draws)


def untuned(
    draws: Draws,
    alike: Float[np.ndarray, "pooled param"],
    num_effective: float,
    target_accept: float,
    log_weight: Float[np.ndarray, "chain draw"] | None = None,
) -> Fit:
    """A fit with a kernel from its draws alone, and the step size that suits a normal posterior.

    Args:
        draws: of the posterior, or of an approximation with these log weights.
        alike: draws of equal weight, pooled over chains.
        num_effective: number of independent ones.
        target_accept: of the folds.
        log_weight: of the draws.
    """
    step = STEP / alike.shape[1] ** 0.25
    kernel = learn(alike, num_effective)
    return Fit(draws, kernel, step, QUARTER / step, target_accept, None, log_weight)


class Search:
    """A fit in progress: the state of its chains, and what has been adapted."""

    def __init__(
        self,
        engine: Engine,
        root: Key[Array, ""],
        target_accept: float,
        monitor: Monitor,
        part: str = "",
    ) -> None:
        self.engine, self.root, self.monitor, self.part = engine, root, monitor, part
        self.target_accept = target_accept
        self.number = num_chains(engine)
        test, held_out = np.full((1, 1), -1), np.zeros((1, 1, 2), int)  # nothing is held out
        self.chains = chains_of(["full data"], self.number, test, held_out, engine.num_params)
        self.kernel = plain(engine.num_params)
        self.num_steps, self.made, self.learnt_together, self.taught = LONG, 0, False, False
        self.state: State
        self.size = BLOCK

    def block(self, rate: float, num_draws: int, more: int = LEAST) -> Moved:
        """A block of draws of all chains; `more` are expected to follow."""
        pace = Pace(self.made, num_draws, self.num_steps, 1, rate, self.target_accept)
        self.state, made = self._run(self.state, pace)
        self.made += num_draws
        accepted, diverged = float(made.acceptance.mean()), int(made.diverging.sum()) * (rate == 0)
        done = self.number, self.made, self.made + more
        self.monitor.progress(*done, accepted, diverged, self.part)
        return made

    def _run(self, state: State, pace: Pace) -> tuple[State, Moved]:
        at = self.engine, self.root, self.kernel, pace, state, self.chains
        state, moved, *_ = advance(*at, center=None, with_positions=True)
        return state, Moved(*(x[:, : pace.num_draws] for x in moved))

    def begin(self) -> None:
        """Overdispersed starting points with finite density and gradient."""
        draw = np.random.default_rng(np.asarray(jax.random.key_data(self.root)).tolist())
        nowhere, left = np.full(self.number, -np.inf), np.ones(self.number, bool)
        start = np.zeros((self.number, self.engine.num_params))
        for trial in range(2 * CANDIDATES):
            if trial < CANDIDATES:
                here = draw.uniform(-RADIUS, RADIUS, start.shape)
            else:  # prior draws
                keys = jax.random.split(jax.random.fold_in(self.root, trial), self.number)
                here = np.asarray(programs.once(jax.vmap(self.engine.target.init))(keys))
            _, found = self._run(State(here, nowhere, nowhere), Pace(0, 1, 1.0, 1, 0.0, 0.8))
            usable = np.isfinite(found.lp[:, 0]) & (found.acceptance[:, 0] > 0)
            start[left & usable] = here[left & usable]
            left &= ~usable
            if not left.any():
                break
        if left.any():
            raise PcvError(
                f"chain {int(np.argmax(left))}: the log density or its gradient is not finite at "
                f"any of {CANDIDATES} points within {RADIUS:g} of 0 on the unconstrained scale, "
                f"nor at {CANDIDATES} prior draws; check the model with `pcv check`"
            )
        first = np.full(self.number, np.log(FIRST_STEP))
        self.state = State(start, first, np.full(self.number, np.nan))

    def settle(self, warmup: int) -> None:
        """Adapt the kernel until chains agree and have enough effective draws, or warmup ends."""
        learnt = disagreed = 0
        pool: list[np.ndarray] = []
        held: list[np.ndarray] = []
        while self.made < warmup:
            block = self.block(FAST if learnt < LATER else SLOW, self.size)
            self.rescue(block)
            if self.made < 3 * self.size:
                continue
            freed = False
            if self.num_steps > LONG and not pool:
                held = [*held, block.position][-TOGETHER:]
                freed = len(held) == TOGETHER and self.agreed(np.concatenate(held, 1))
            if freed:
                pool, held = held, []
                self.num_steps = LONG
            elif learnt and self.agreed(block.position):
                pool, held = [*pool, block.position], []
            else:
                pool = []
            agree = bool(pool)
            self.learn(np.concatenate(pool, 1) if agree else block.position, agree)
            learnt += 1
            step = self.step_size()
            short = step * self.num_steps < SHORT
            disagreed = disagreed + 1 if short and not agree else 0
            if disagreed == HELD or (short and len(held) == TOGETHER):
                self.num_steps, held = min(2 * self.num_steps, MAX_STEPS), []
            self.set_step(NEXT_STEP if learnt <= 2 or freed else step)
            if len(pool) >= (GOOD if self.taught else MOST_GOOD):
                break

    def agreed(self, position: Float[np.ndarray, "chain draw param"]) -> bool:
        """Whether chains agree on every parameter and in every whitened coordinate."""
        both = (position, whitened(self.kernel, position))
        return all(bool(plain_rhat(x).max() < AGREE) for x in both)

    def learn(self, position: Float[np.ndarray, "chain draw param"], agree: bool) -> None:
        """Update the kernel, from the second half of the draws while chains disagree."""
        if not agree:
            position = position[:, position.shape[1] // 2 :]
        effective = num_effective(position) if agree else float(len(position))
        self.kernel = learn(position.reshape(-1, position.shape[-1]), effective)
        self.learnt_together, self.taught = agree, teaches(effective, position)

    def rescue(self, block: Moved) -> None:
        """Move lost chains, nearly stuck at a far lower density, to the positions of others: a
        region both narrower and lower than theirs has no mass."""
        lp = block.lp[:, -1]
        lost = lp < np.median(lp) - LOST - LOST_PER_PARAM * self.engine.num_params
        lost &= block.acceptance.mean(1) < HARDLY
        if lost.any() and not lost.all():
            others = np.resize(np.flatnonzero(~lost), lost.sum())
            for x in self.state:
                x[lost] = x[others]

    def step_size(self) -> float:
        """Median step size over chains."""
        return float(np.exp(np.median(self.state.log_step_size)))

    def set_step(self, size: float) -> None:
        self.state = self.state._replace(log_step_size=np.full(self.number, np.log(size)))

    def choose_steps(self) -> None:
        """Choose step size and trajectory length: the most effective draws per gradient, of
        parameters and their squares, since antithetic draws only help the former. Scoring a draw
        counts as one more gradient; rounding up adds half a step on average."""
        for gain in (FAST, SLOW):
            self.block(gain, self.size)
            self.set_step(self.step_size())
        step = self.step_size()
        tried: list[tuple[float, float]] = []
        for quarters in (0.5, 1.0, 2.0, 4.0):
            self.num_steps = min(quarters * QUARTER / step, MAX_STEPS)
            if any(self.num_steps == steps for _, steps in tried):
                continue
            block = self.block(SLOW, self.size)
            x = block.position
            taus = [tau(x), tau((x - x.mean((0, 1))) ** 2)]
            slowest = max(max(t.mean(), t.max() / 2) for t in taus)
            tried.append(((self.num_steps + 1.5) * float(slowest), self.num_steps))
        self.num_steps = min(tried)[1]
        self.set_step(self.step_size())

    def keep(self, total: int) -> Fit:
        """Draws to keep. If chains disagree, re-adapt on them and draw more. Earlier draws count,
        unless chains agree only without them: sampling until draws look good would lose what is
        rare."""
        wanted = max(-(-total // self.number), LEAST)
        draws = self.kept(wanted)
        seen = self.mixed(draws)
        for times in (2, 4):
            if seen is not None:
                break
            self.learn(draws.position, True)
            self.choose_steps()
            last = self.kept(wanted * times)
            draws = Draws(*(np.concatenate(both, 1) for both in zip(draws, last)))
            if (seen := self.mixed(draws)) is None and (seen := self.mixed(last)) is not None:
                draws = last
        position = draws.position  # folds need a kernel as good as these can teach
        if not self.learnt_together or (
            not self.taught and teaches(num_effective(position), position)
        ):
            self.learn(position, True)
            self.set_step(NEXT_STEP)
            self.choose_steps()
        return self.fit(draws, seen)

    def mixed(self, draws: Draws) -> Mixing | None:
        """Their mixing, if sufficient."""
        seen = mixing(draws.position)
        enough = (seen.rhat <= MAX_RHAT) & (seen.ess >= MIN_ESS)
        return seen if enough.all() and self.agreed(draws.position) else None

    def kept(self, num_draws: int) -> Draws:
        blocks = []
        for first in range(0, num_draws, self.engine.buffer):
            more = max(num_draws - first - self.engine.buffer, 0)
            blocks.append(self.block(0.0, min(self.engine.buffer, num_draws - first), more))
        fields = ("position", "lp", "energy", "acceptance", "diverging")
        kept = {name: np.concatenate([getattr(b, name) for b in blocks], 1) for name in fields}
        return Draws(
            kept["position"],
            kept["lp"],
            kept["energy"],
            kept["acceptance"],
            np.full(kept["lp"].shape, round(self.num_steps + 0.5)),
            kept["diverging"],
        )

    def fit(self, draws: Draws, seen: Mixing | None = None) -> Fit:
        """The draws with the current sampler settings."""
        step = self.step_size()
        return Fit(draws, self.kernel, step, self.num_steps, self.target_accept, seen)


def num_effective(position: Float[np.ndarray, "chain draw param"]) -> float:
    """Effective draws of all chains, by the mean autocorrelation time of the parameters."""
    return float(len(position) * position.shape[1] / tau(position).mean())


def teaches(effective: float, position: Float[np.ndarray, "chain draw param"]) -> bool:
    """Whether there are enough effective draws for every direction."""
    return effective >= FEWEST_PER_PARAM * position.shape[-1]
