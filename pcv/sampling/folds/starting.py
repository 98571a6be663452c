"""The warmup of folds as a whole: from draws of the full-data posterior to where chains stand, how
they move, and what the full-data draws say of each fold."""

from collections.abc import Callable
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Array, Bool, Float, Key

from pcv.analysis.sums import Block
from pcv.folds.base import Folds
from pcv.models.effects.marginal import Scored
from pcv.models.effects.prior import started_anew
from pcv.models.model import Target
from pcv.sampling.fit.full_data import Fit
from pcv.sampling.folds import adapting, moving, sides, warming
from pcv.sampling.folds.moving import Starts
from pcv.sampling.folds.sides import Facing
from pcv.sampling.tiles import Engine


class Plan(NamedTuple):
    """How folds are warmed up."""

    seed: int
    model: str
    """its name, on which random numbers depend"""
    num_chains: int
    num_superchains: int
    """0: there are none"""
    num_draws: int
    """of every chain"""
    adapted: Literal["auto", "always", "never"]
    """folds with a kernel of their own: those unlike the full data, all, or none"""
    start_scale: float
    """how much wider chains start than full-data draws lie"""


class FullData(NamedTuple):
    """Draws of the full-data posterior."""

    draws: Float[np.ndarray, "draw param"]
    """chain by chain"""
    terms: Float[np.ndarray, "draw unit"] | None
    """log likelihoods at these, where scores are sums of them and they are known"""
    bad: bool
    """can they not be trusted, or are they few?"""


class Warm(NamedTuple):
    """Where the warmup of folds ends."""

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
    say: Callable[[str], None],
    after: Callable[[list[Block], str], None],
    look: Callable[[], None],
) -> Warm:
    """A short run of all chains of some folds, thrown away.

    Args:
        how: the model is scored.
        engine: its program.
        fit: of the full data; its draws are not needed.
        folds: of whom.
        full: draws given the full data, among which chains start, and which are the other side of
            folds without a gap.
        plan: how.
        root: key of what is done.
        say: what is to be told.
        after: is told of every block: those so far of what is being done, and what that is.
        look: is called between blocks of full-data scores.
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
    made: dict[str, list[Block]] = {}

    def told(block: Block, what: str) -> None:
        so_far = made.setdefault(what, [])
        so_far.append(block._replace(draws=block.draws[..., :0]))
        after(so_far, what)

    starts = warming.warmup(
        engine,
        root,
        fit,
        folds,
        started_anew(how.model, how.local, folds, begin),
        plan.num_draws,
        plan.adapted,
        full.draws,
        told,
        say,
    )
    if starts.adapted.any():
        why = ", those whose scores in warmup are unlike the full data"
        several = int((starts.own.thin > 1).sum())
        say(
            f"warmup {plan.model}: kernels of their own for {starts.adapted.sum()} of "
            f"{len(folds.id)} folds"
            + why * (plan.adapted == "auto")
            + f"; {several} of them make {adapting.MOVES} transitions for a draw" * bool(several)
        )
    which = _with_two_sides(how, engine, fit, folds, full, say)
    numerical = how.local is not None and not how.local.exact
    most = sides.FEW_DRAWS if numerical else sides.MOST_DRAWS
    at = engine, folds, which, starts, full.draws, full.terms, most
    return Warm(starts, sides.facing(*at, say, look))


def _with_two_sides(
    how: Scored,
    engine: Engine,
    fit: Fit,
    folds: Folds,
    full: FullData,
    say: Callable[[str], None],
) -> Bool[np.ndarray, " fold"]:
    which = sides.without_gap(folds) & (not full.bad and how.exact)
    if isinstance(how.model, Target) and which.any():
        which &= sides.factors(engine, fit, folds, full.draws, say)
    return which
