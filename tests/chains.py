"""Chains of all folds of a model, without the stages: what tests of the estimates run."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

import numpy as np
import xarray as xr
from arviz_stats.base import array_stats
from jaxtyping import Float, Key
from scipy.signal import lfilter

from pcv.analysis.diagnostics import OFFSETS, LogSums, Sides, UnitSides
from pcv.analysis.diagnostics.jackknife import Parts
from pcv.analysis.samples import batch_of, parts
from pcv.base.keys import key
from pcv.base.monitor import SILENT
from pcv.folds.base import Folds
from pcv.models.model import Target
from pcv.models.scores import Replicates, across, frame
from pcv.sampling.fit import full_data
from pcv.sampling.fit.draws import Draws
from pcv.sampling.fit.full_data import Fit
from pcv.sampling.folds import moving, sides, warming
from pcv.sampling.folds.lasting import Length
from pcv.sampling.kernel import learn
from pcv.sampling.tiles import Engine
from tests.problems import Problem

NO_DRAWS = Draws(*(np.zeros((0, 0)) for _ in Draws._fields))


class Sampled(NamedTuple):
    """All folds' draws of the log score, as `pcv.analysis.diagnostics` takes them."""

    joint: LogSums
    pointwise: LogSums
    draws: Float[np.ndarray, "fold chain draw"]
    """of the joint score"""
    divergences: Float[np.ndarray, " fold"]
    parts: dict[str, Parts]
    """what scores besides the log score averaged, by their keys"""
    sides: Sides
    units: UnitSides | None


def posterior(target: Target, num_units: int, key: Key, total: int) -> Draws:
    """So many draws of all chains together, given the full data."""
    engine = full_data.engine_of(target, num_units, total)
    return full_data.sample(engine, key, 1000, total, 0.8).draws


def mcse(draws: Float[np.ndarray, "chain draw"], of: str = "mean") -> float:
    return float(array_stats.mcse(draws, method=of, chain_axis=0, draw_axis=1))


def off(draws: np.ndarray, mean: np.ndarray, error: np.ndarray) -> float:
    """Largest error of means of draws (chain, draw, ...), in their standard errors."""
    ess = np.asarray(array_stats.ess(draws, method="mean", chain_axis=0, draw_axis=1))
    total = np.sqrt(draws.var((0, 1)) / ess + error**2)
    return float(np.max(np.abs(draws.mean((0, 1)) - mean) / total))


def worst(problem: Problem, draws: Draws) -> float:
    """Of the posterior's means and mean squares, against exact draws."""
    exact = problem.posterior(np.random.default_rng(1), 1_000_000)
    exact = np.column_stack([exact[name] for name in sorted(exact)])
    found = []
    for power in (1, 2):
        x, known = ((y - exact.mean(0)) ** power for y in (draws.position, exact))
        found.append(off(x, known.mean(0), known.std(0) / np.sqrt(len(known))))
    return max(found)


def off_printed(
    draws: Mapping[str, Float[np.ndarray, "chain draw"]], printed: Mapping[str, tuple[float, float]]
) -> float:
    """How far means are from those printed, beyond their rounding: the most, in MCSE."""
    off = [
        (abs(draws[name].mean() - value) - rounding) / mcse(draws[name])
        for name, (value, rounding) in printed.items()
    ]
    return float(np.max(off))


def replicated(folds: Folds, times: int) -> Folds:
    """The folds so many times, each with chains of its own."""
    ids = [f"{fold}, replication {r}" for r in range(times) for fold in folds.id]
    each = np.tile(np.arange(len(folds.id)), times)
    return folds.some(each)._replace(id=np.array(ids))


def fit_of(draws: Float[np.ndarray, "draw param"], step_size: float, num_steps: int) -> Fit:
    """A fit in whose coordinates the draws are standard normal."""
    kernel = learn(draws, float(len(draws)))
    return Fit(NO_DRAWS, kernel, step_size, float(num_steps), target_accept=0.8)


def run(
    engine: Engine,
    fit: Fit,
    folds: Folds,
    starts: Float[np.ndarray, "fold chain param"],
    seed: int,
    num_batches: int,
    warmup: int = 20,
    y: Float[np.ndarray, "fold slot"] | None = None,
    full_side: Callable[[moving.Starts], sides.Facing] | None = None,
) -> Sampled:
    """Warmup from `starts`, then batches of draws, with the keys and centres of the stages.

    `y` is the outcome of the test sets, for scores that need it. `full_side` is what draws given
    the full data say of the folds after their warmup; None: folds have one side.
    """
    num_chains = starts.shape[1]
    root = partial(key, seed, "model")
    begun = warming.warmup(
        engine,
        root,
        fit,
        folds,
        starts,
        Length(warmup, 0),
        "never",
        starts[0],
        SILENT,
    )
    facing = None
    if full_side is not None:
        facing = full_side(begun)
        begun = begun._replace(center=begun.center | {"shift": facing.shift})
    drawn = moving.blocks(
        engine,
        root("sample"),
        fit.kernel,
        folds,
        begun.own,
        moving.standing_at(begun.position),
        begun.center,
        num_batches * engine.buffer,
        0,
        SILENT,
    )
    made = [block for block, _ in drawn]
    centers, stored = None, []
    for block in made:
        compared = {}
        if block.y_rep is not None:
            centers = centers or frame(block.y_rep)
            replicates = Replicates(block.y_rep, y, num_chains, *centers)
            compared = across(engine.scores, replicates)
        stored.append(batch_of(block, compared, keep_draws=False))
    batches = xr.concat(stored, "batch", data_vars="all")

    def sums(kind: str) -> LogSums:
        fields = [block.sums[kind] for block in made]
        return LogSums(*(np.stack([x[f] for x in fields], axis=2) for f in LogSums._fields))

    units, full_batches, full = None, np.zeros((len(folds.id), 1, len(OFFSETS))), 0
    if facing is not None:
        full_batches, full = facing.crossing, facing.num_draws
        if "bridge" in made[0].sums:
            own, own_sq = (
                np.stack([block.sums["bridge"][name] for block in made], axis=2)
                for name in ("log_sum", "log_sum_sq")
            )
            units = UnitSides(own, facing.bridge, own_sq, facing.bridge_sq)
    crossing = np.stack([block.crossing for block in made], axis=2)
    divergences = np.sum(
        [block.stats["divergences"]["total"].sum(axis=1) for block in made], axis=0
    )
    return Sampled(
        sums("joint"),
        sums("pointwise"),
        np.concatenate([block.draws for block in made], axis=2),
        divergences,
        {score.key: parts([batches], score.key) for score in engine.scores},
        Sides(begun.center["shift"], crossing, full_batches, full),
        units,
    )


def ar1(rng, phi, shape, sd=1.0):
    """Stationary AR(1) chains along the last axis, with mean 0 and standard deviation sd."""
    steps = rng.normal(size=shape)
    steps[..., 1:] *= np.sqrt(1 - phi**2)
    return sd * lfilter([1], [1, -phi], steps)
