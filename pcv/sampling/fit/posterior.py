"""The full-data posterior by many short chains, and where these do not agree by NUTS.

Each with the first acceptance rate at which steps are small enough everywhere, or the last.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Array, Float, Key

from pcv.base.progress import Progress
from pcv.models.model import Target
from pcv.sampling.fit import fit_checks, full_data
from pcv.sampling.fit.draws import Draws, plain_rhat
from pcv.sampling.fit.full_data import Fit
from pcv.sampling.hmc import Moved


class Posterior(NamedTuple):
    """A fit, and whether it can be trusted."""

    fit: Fit
    checks: fit_checks.Checks


def fit(
    target: Target,
    num_units: int,
    names: list[str],
    root: Callable[[str], Key[Array, ""]],
    chains: int,
    warmup: int,
    draws: int,
    target_accept: float | None,
    say: Callable[[str], None],
    after: Callable[[Progress], None],
) -> Posterior:
    """Draws of the posterior given all units, and the kernel of its folds.

    Args:
        target: the model on flat parameters.
        num_units: number of units.
        names: of the parameters.
        root: the key of a way to sample: "fit", "nuts".
        chains: of NUTS; `chains` times `draws` are kept, of all chains together.
        warmup: draws of a chain after which the search for a kernel ends at the latest.
        draws: see `chains`.
        target_accept: acceptance that the step size is adapted to; None: .8, and higher where draws
            diverge or proposals are refused.
        say: what is to be told.
        after: is told of every block how far it is.

    Raises:
        PcvError: no start of some chain has a finite density and gradient.
    """
    targets = fit_checks.TARGETS if target_accept is None else (target_accept,)
    total = chains * draws
    engine = full_data.engine_of(target, num_units, total)
    number = full_data.num_chains(engine)
    say(f"the full data, {number} chains x {-(-total // number)} draws, {len(names)} parameters")

    def attempt(target_accept: float) -> tuple[Draws, Fit]:
        told = shown(after, number, target_accept, targets[0])
        found = full_data.sample(engine, root("fit"), warmup, total, target_accept, told)
        return found.draws, found

    accept, found = _with_small_steps(map(attempt, targets), targets, say)
    checks = fit_checks.check(found.draws, names, accept, kernel=found.kernel, seen=found.mixing)
    if not checks.problems:
        return Posterior(found, checks)
    from pcv.sampling.fit import nuts  # only where it is needed: its library takes a while to load

    say(f"{checks.problems[0]}; again by NUTS, {chains} chains x ({warmup} + {draws}) draws")
    start = _spread(found, chains), warmup, draws
    higher = targets[targets.index(accept) :]
    shown_of_nuts = _nuts_shown(after, chains, warmup, warmup + draws, accept)
    attempts = nuts.posteriors(target, num_units, root("nuts"), *start, higher, shown_of_nuts)
    each = ((made, made) for made in attempts)
    accept, made = _with_small_steps(each, higher, say)
    told = shown(after, number, accept, accept)
    found = full_data.after_nuts(engine, root("fit"), made, accept, told)
    return Posterior(found, fit_checks.check(made, names, accept))


def _spread(fit: Fit, chains: int) -> Float[np.ndarray, "chain param"]:
    """Where some chains of a fit that do not agree stand: from one end to the other of the
    parameter in which they agree least."""
    means = fit.draws.position.mean(1)
    worst = int(np.argmax(plain_rhat(fit.draws.position)))
    order = np.argsort(means[:, worst])
    return fit.draws.position[order[np.linspace(0, len(order) - 1, chains).astype(int)], -1]


def _with_small_steps[T](
    attempts: Iterator[tuple[Draws, T]], targets: Sequence[float], say: Callable[[str], None]
) -> tuple[float, T]:
    """The first attempt whose steps are not too large, or the last, and the acceptance of it."""
    for target_accept, higher in zip(targets, [*targets[1:], None]):
        draws, made = next(attempts)
        said = fit_checks.too_large(draws)
        if higher is None or not said:
            break
        say(f"target_accept {target_accept:g}: {said}; again at {higher:g}")
    return target_accept, made


def shown(
    after: Callable[[Progress], None], chains: int, target_accept: float, first: float
) -> Callable[[int, int, Moved], None]:
    """Tell how far many short chains are."""
    at = f"at {target_accept:g}" * (target_accept != first)

    def told(made: int, most: int, block: Moved) -> None:
        accepted, diverged = float(block.acceptance.mean()), int(block.diverging.sum())
        after(Progress(at, chains, made, most, accepted, diverged))

    return told


def _nuts_shown(
    after: Callable[[Progress], None], chains: int, warmup: int, most: int, first: float
) -> Callable[[float, int, Draws], None]:
    """The same of NUTS."""
    divergences = 0

    def told(target_accept: float, made: int, block: Draws) -> None:
        nonlocal divergences
        divergences = divergences + int(block.diverging.sum()) if made > warmup else 0
        label = "by NUTS" + f" at {target_accept:g}" * (target_accept != first)
        accepted = float(block.acceptance_rate.mean())
        after(Progress(label, chains, made, most, accepted, divergences))

    return told
