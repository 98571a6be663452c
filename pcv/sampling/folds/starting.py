"""The warmup of folds as a whole: from full-data draws to starting points, sampler settings and
the other side of each fold."""

from collections.abc import Callable
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Array, Bool, Float, Key

from pcv.base.monitor import Monitor
from pcv.folds.base import Folds
from pcv.models.effects.marginal import Scored
from pcv.models.effects.prior import started_anew
from pcv.models.model import Target
from pcv.sampling.fit.full_data import Fit
from pcv.sampling.folds import adapting, moving, sides, warming
from pcv.sampling.folds.lasting import Length
from pcv.sampling.folds.moving import Starts
from pcv.sampling.folds.sides import Facing
from pcv.sampling.folds.subspace import Subspace, projected
from pcv.sampling.tiles import Engine


class Plan(NamedTuple):
    """How folds are warmed up."""

    seed: int
    model: str
    """name of the model, part of the random keys"""
    num_chains: int
    num_superchains: int
    """0: none"""
    num_draws: int | None
    """per chain; None: until chains have forgotten their starts"""
    adapted: Literal["auto", "always", "never"]
    """which folds are adapted: those unlike the full data, all, or none"""
    start_scale: float
    """spread of starting points relative to full-data draws"""
    two_sided: bool = True
    """whether full-data draws are scored as well, for folds that have two sides"""


class FullData(NamedTuple):
    """Draws of the full-data posterior."""

    draws: Float[np.ndarray, "draw param"]
    """chain by chain"""
    terms: Float[np.ndarray, "draw unit"] | None
    """log likelihoods at these draws, if known and scores are sums of them"""
    bad: bool
    """whether they are too few, or cannot be trusted"""


class Warm(NamedTuple):
    """The result of the warmup of folds."""

    starts: Starts
    facing: Facing


def warmed(
    how: Scored,
    engine: Engine,
    fit: Fit,
    folds: Folds,
    full: FullData,
    plan: Plan,
    root: Callable[[str], Key[Array, ""]],
    monitor: Monitor,
    space: Subspace | None = None,
) -> Warm:
    """A run of all chains of some folds, discarded.

    Args:
        how: the model and its predictive.
        engine: its program.
        fit: of the full data; its draws are not needed.
        folds: to warm up.
        full: full-data draws: starting points, and the other side of folds without a gap.
        plan: settings of the warmup.
        root: key by stage.
        monitor: takes messages and progress.
        space: on which chains move, as the engine and the fit's kernel do; None: all.
    """
    picks = moving.starting_draws(
        plan.seed,
        plan.model,
        [str(fold) for fold in folds.id],
        plan.num_chains,
        len(full.draws),
        plan.num_superchains,
    )
    center = full.draws.mean(0)
    begin = center + plan.start_scale * (full.draws[picks] - center)
    begin = started_anew(how.model, how.local, folds, begin)
    if space is not None:
        begin = projected(space, begin)
        full = full._replace(draws=projected(space, full.draws), bad=True)  # not of its posterior
    starts = warming.warmup(
        engine,
        root,
        fit,
        folds,
        begin,
        Length(plan.num_draws, plan.num_superchains),
        plan.adapted,
        full.draws,
        monitor,
    )
    if starts.adapted.any():
        why = " whose scores in warmup are unlike the full data"
        several = int((starts.own.thin > 1).sum())
        monitor.log(
            f"adapted {starts.adapted.sum()} of {len(folds.id)} folds"
            + why * (plan.adapted == "auto")
            + f"; {several} of them take {adapting.MOVES} transitions per draw" * bool(several)
        )
    if plan.num_draws is None:
        _report_lengths(starts, monitor)
    which = np.zeros(len(folds.id), bool)
    if plan.two_sided:
        which = _with_two_sides(how, engine, fit, folds, full, monitor)
    numerical = how.local is not None and not how.local.exact
    most = sides.FEW_DRAWS if numerical else sides.MOST_DRAWS
    at = engine, folds, which, starts, full.draws, full.terms, most
    return Warm(starts, sides.facing(*at, monitor))


def _report_lengths(starts: Starts, monitor: Monitor) -> None:
    """Log how long folds took to forget where their chains started."""
    longest, unlike = starts.num_draws.max(), int((~starts.forgot).sum())
    message = f"{np.median(starts.num_draws):.0f} draws per chain, at most {longest}"
    if unlike:
        message += f"; {unlike} of {len(starts.forgot)} folds have not forgotten their starts"
    (monitor.warn if unlike else monitor.log)(message)


def _with_two_sides(
    how: Scored,
    engine: Engine,
    fit: Fit,
    folds: Folds,
    full: FullData,
    monitor: Monitor,
) -> Bool[np.ndarray, " fold"]:
    which = sides.without_gap(folds) & (not full.bad and how.exact)
    if isinstance(how.model, Target) and which.any():
        which &= sides.factors(engine, fit, folds, full.draws, monitor)
    return which
