r"""Many short chains in superchains, looked at after warmups of several lengths.

Superchains start at draws of a fit, twice as far from its mean (as with `cv.start_scale: 2`):
overdispersed, and with 16 of them about half a standard deviation off on average. Each chain gives
one draw, so that nested R-hat of superchains that have forgotten where they started is
:math:`\sqrt{1 + 1/M}`.

Two samplers: the program that folds run on, HMC under a kernel that a fit of the target has learnt
(as a fold's chains move under that of the full data); and ChEES-HMC, BlackJAX's, which adapts while
it warms up, with unit mass, as in the paper.
"""

import time
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
import optax
import xarray as xr
from jaxtyping import Array, Float

from nested_rhat.settings import Runs
from nested_rhat.targets import Example
from pcv.analysis.diagnostics.convergence import nested_rhat_of_moments
from pcv.base.keys import key
from pcv.base.monitor import SILENT, Monitor
from pcv.models.model import full_data
from pcv.sampling.fit import draws as of_draws
from pcv.sampling.fit import full_data as fitting
from pcv.sampling.fit.full_data import Fit
from pcv.sampling.hmc import Pace, State
from pcv.sampling.tiles import Engine, advance, chains_of

WARMUP, TARGET_ACCEPT = 500, 0.8
ADAPTED = 20
"""draws in which each chain of the program adapts its step size, as starts may lie where that of
the fit is far too long; then all chains have the fit's"""
FIRST_STEP, RATE, MOST_STEPS = 0.1, 0.05, 100
"""of ChEES: step size and learning rate to begin with, and most leapfrog steps"""
SAMPLERS = ("program", "chees")
START_SCALE = 2.0

Start = Float[np.ndarray, "repeat chain param"]


class Looks(NamedTuple):
    """What is recorded; leading axes: repeat, length."""

    rhat: Float[Any, "repeat length param"]
    """nested R-hat"""
    mean: Float[Any, "repeat length param"]
    """over all chains"""


def run(name: str, example: Example, runs: Runs, seed: int, monitor: Monitor) -> xr.Dataset:
    """Nested R-hat and the mean of every parameter, by sampler, number of superchains and warmup.

    Args:
        name: of the target.
        example: the target.
        runs: what to run.
        seed: of all random numbers.
        monitor: of the target; takes messages.
    """
    root = partial(key, seed, name)
    engine = fitting.engine_of(example.target, example.num_units, runs.reference)
    fit = fitted(engine, root("fit"), runs.reference)
    draws = fit.draws.position
    mean = draws.mean((0, 1)) if example.mean is None else example.mean
    variance = draws.var((0, 1)) if example.variance is None else example.variance
    seen = of_draws.mixing(draws)
    monitor.log(f"{draws[..., 0].size} draws for the kernel, ESS at least {seen.ess.min():.0f}")
    found: dict[str, list[Looks]] = {sampler: [] for sampler in SAMPLERS}
    seconds: dict[str, list[float]] = {sampler: [] for sampler in SAMPLERS}
    for number in runs.superchains:
        rng = np.random.default_rng([seed, number])
        begin = starts(rng, fit, runs.repeats, number, runs.chains)
        for sampler in SAMPLERS:
            begun = time.perf_counter()
            of = root(sampler), begin, runs.lengths, number
            made = by_program(engine, fit, *of) if sampler == "program" else by_chees(example, *of)
            seconds[sampler].append(time.perf_counter() - begun)
            found[sampler].append(made)
            monitor.log(f"{sampler}, {number} superchains, {seconds[sampler][-1]:.0f} s")
    dims = "sampler", "superchains", "repeat", "length", "param"
    return xr.Dataset(
        {
            "nested_rhat": (dims, np.array([[x.rhat for x in found[s]] for s in SAMPLERS])),
            "mean": (dims, np.array([[x.mean for x in found[s]] for s in SAMPLERS])),
            "true_mean": ("param", mean),
            "true_variance": ("param", variance),
            "ess": ("param", seen.ess if example.mean is None else np.full(len(mean), np.inf)),
            "seconds": (("sampler", "superchains"), [seconds[s] for s in SAMPLERS]),
        },
        {
            "sampler": list(SAMPLERS),
            "superchains": runs.superchains,
            "length": runs.lengths,
            "param": example.names,
        },
        {"chains": runs.chains},
    )


def fitted(engine: Engine, root: Any, total: int) -> Fit:
    """Draws and a kernel, with trajectories of a quarter period. Chains that disagree, as those of
    two modes, are not run for longer."""
    search = fitting.Search(engine, root, TARGET_ACCEPT, SILENT)
    search.begin()
    search.settle(WARMUP)
    step = search.step_size()
    search.set_step(step)
    search.num_steps = min(fitting.QUARTER / step, fitting.MAX_STEPS)
    return search.fit(search.kept(-(-total // search.number)))


def starts(
    rng: np.random.Generator, fit: Fit, repeats: int, superchains: int, chains: int
) -> Start:
    """The same for all chains of a superchain, which are adjacent."""
    pooled = fit.draws.position.reshape(-1, fit.draws.position.shape[-1])
    each = pooled[rng.integers(len(pooled), size=(repeats, superchains))]
    wide = pooled.mean(0) + START_SCALE * (each - pooled.mean(0))
    return np.repeat(wide, chains // superchains, axis=1)


def by_program(
    engine: Engine, fit: Fit, root: Any, begin: Start, lengths: Sequence[int], superchains: int
) -> Looks:
    """All repeats side by side."""
    names = [f"{superchains} superchains, repeat {i}" for i in range(len(begin))]
    looks = []
    for made, position, _ in advanced(engine, fit, root, names, begin, lengths):
        if made in lengths:
            looks.append(looked_at(position, superchains))
    return Looks(*(np.stack(x, axis=1) for x in zip(*looks)))


def advanced(
    engine: Engine,
    fit: Fit,
    root: Any,
    names: Sequence[str],
    begin: Start,
    stops: Sequence[int],
    with_draws: bool = False,
) -> Iterator[tuple[int, Start, Float[np.ndarray, "repeat chain draw param"] | None]]:
    """Chains as of folds of these names that hold nothing out, block by block: the number of draws
    so far, `stops` among them, where chains stand, and the draws of the block."""
    repeats, number, num_params = begin.shape
    nothing = np.full((repeats, 1), -1), np.zeros((repeats, 1, 2), int)
    chains = chains_of(list(names), number, *nothing, num_params)
    steps = np.full(repeats * number, np.log(fit.step_size))
    state = State(begin.reshape(-1, num_params), steps, np.full(repeats * number, np.nan))
    done = 0
    for stop in sorted({ADAPTED, *stops}):
        while done < min(stop, max(stops)):
            size = min(engine.buffer, stop - done)
            rate = fitting.FAST if done < ADAPTED else 0.0
            pace = Pace(done, size, fit.num_steps, 1, rate, TARGET_ACCEPT)
            at = engine, root, fit.kernel, pace, state, chains, None
            state, moved, *_ = advance(*at, with_positions=with_draws)
            done += size
            draws = moved.position[:, :size].astype(float) if with_draws else None
            if draws is not None:
                draws = draws.reshape(repeats, number, size, num_params)
            yield done, state.position.astype(float).reshape(begin.shape), draws
        if stop == ADAPTED:
            state = state._replace(log_step_size=steps)


def looked_at(
    position: Float[np.ndarray, "repeat chain param"], superchains: int
) -> tuple[Float[np.ndarray, "repeat param"], Float[np.ndarray, "repeat param"]]:
    """Nested R-hat, and the mean, of one draw of each chain."""
    once = np.ones((*position.shape[:2], 1))
    rhat = nested_rhat_of_moments(once, position, np.zeros_like(position), superchains)
    return rhat, position.mean(1)


def by_chees(
    example: Example, root: Any, begin: Start, lengths: Sequence[int], superchains: int
) -> Looks:
    """One repeat after the other, as chains of a run adapt together."""
    whole = full_data(example.num_units)

    def look(states: Any, info: Any, adapted: Any) -> Looks:
        x = states.position.reshape(superchains, -1, states.position.shape[-1])
        between, within = x.mean(1).var(0, ddof=1), x.var(1, ddof=1).mean(0)
        return Looks(jnp.sqrt(1 + between / within), x.mean((0, 1)))

    chees = blackjax.chees_adaptation(
        lambda position: example.target.log_density(position, whole),
        begin.shape[1],
        target_acceptance_rate=TARGET_ACCEPT,
        max_leapfrog_steps=MOST_STEPS,
        adaptation_info_fn=look,
    )

    @jax.jit
    def one(key: Any, position: Float[Array, "chain param"]) -> Looks:
        _, info = chees.run(key, position, FIRST_STEP, optax.adam(RATE), max(lengths))
        return Looks(info.rhat, info.mean)

    at = np.array(lengths) - 1
    made = [one(jax.random.fold_in(root, i), jnp.asarray(x)) for i, x in enumerate(begin)]
    return Looks(*(np.stack([np.asarray(x)[at] for x in of], 0) for of in zip(*made)))
