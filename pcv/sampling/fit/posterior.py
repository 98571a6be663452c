"""The full-data posterior by many short chains, with NUTS as fallback where these disagree.

Each runs at the first target acceptance rate whose steps are small enough, or else the highest.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Array, Float, Key

from pcv.base.monitor import Monitor
from pcv.sampling.fit import fit_checks, full_data
from pcv.sampling.fit.draws import Draws, plain_rhat
from pcv.sampling.fit.full_data import Fit
from pcv.sampling.tiles import Engine


class Posterior(NamedTuple):
    """A full-data fit and its checks."""

    fit: Fit
    checks: fit_checks.Checks


def fit(
    engine: Engine,
    names: list[str],
    root: Callable[[str], Key[Array, ""]],
    chains: int,
    warmup: int,
    draws: int,
    target_accept: float | None,
    monitor: Monitor,
) -> Posterior:
    """Draws of the full-data posterior, and the kernel for its folds.

    Args:
        engine: of the model, from `full_data.engine_of`.
        names: of the parameters.
        root: key by sampler: "fit", "nuts".
        chains: of NUTS; `chains` times `draws` are kept in total.
        warmup: largest number of warmup draws per chain.
        draws: see `chains`.
        target_accept: target acceptance rate; None: .8, and higher where draws diverge or proposals
            are refused.
        monitor: takes messages, and the progress after every block.

    Raises:
        PcvError: a chain has no starting point with finite density and gradient.
    """
    targets = fit_checks.TARGETS if target_accept is None else (target_accept,)
    total = chains * draws
    number = full_data.num_chains(engine)
    monitor.log(
        f"the full data, {number} chains x {-(-total // number)} draws, {len(names)} parameters"
    )

    def attempt(target_accept: float) -> tuple[Draws, Fit]:
        part = _retry(target_accept, targets[0])
        found = full_data.sample(engine, root("fit"), warmup, total, target_accept, monitor, part)
        return found.draws, found

    accept, found = _with_small_steps(map(attempt, targets), targets, monitor)
    checks = fit_checks.check(found.draws, names, accept, kernel=found.kernel, seen=found.mixing)
    if not checks.problems:
        return Posterior(found, checks)
    from pcv.sampling.fit import nuts  # slow to import, rarely needed

    monitor.log(
        f"{checks.problems[0]}; rerunning with NUTS, {chains} chains x ({warmup} + {draws}) draws"
    )
    start = _overdispersed(found, chains), warmup, draws
    higher = targets[targets.index(accept) :]
    report_nuts = _nuts_reporter(monitor, chains, draws, accept)
    of_model = engine.target, engine.num_units, root("nuts")
    attempts = nuts.posteriors(*of_model, *start, higher, report_nuts)
    each = ((made, made) for made in attempts)
    accept, made = _with_small_steps(each, higher, monitor)
    found = full_data.after_nuts(engine, root("fit"), made, accept, monitor)
    return Posterior(found, fit_checks.check(made, names, accept))


def _overdispersed(fit: Fit, chains: int) -> Float[np.ndarray, "chain param"]:
    """Starting points for NUTS: last positions of chains, spread over the range of the parameter
    with the largest R-hat."""
    means = fit.draws.position.mean(1)
    worst = int(np.argmax(plain_rhat(fit.draws.position)))
    order = np.argsort(means[:, worst])
    return fit.draws.position[order[np.linspace(0, len(order) - 1, chains).astype(int)], -1]


def _with_small_steps[T](
    attempts: Iterator[tuple[Draws, T]], targets: Sequence[float], monitor: Monitor
) -> tuple[float, T]:
    """The first attempt whose steps are not too large, or the last; with its target acceptance."""
    for target_accept, higher in zip(targets, [*targets[1:], None]):
        draws, made = next(attempts)
        said = fit_checks.too_large(draws)
        if higher is None or not said:
            break
        monitor.log(f"target_accept {target_accept:g}: {said}; retrying at {higher:g}")
    return target_accept, made


def _retry(target_accept: float, first: float) -> str:
    """The part of the fit, for its progress: empty at the first target acceptance rate."""
    return f"at {target_accept:g}" * (target_accept != first)


def _nuts_reporter(
    monitor: Monitor, chains: int, draws: int, first: float
) -> Callable[[float, int, Draws], None]:
    """A callback that reports the progress of NUTS."""

    def report(target_accept: float, number: int, block: Draws) -> None:
        part = f"by NUTS {_retry(target_accept, first)}".rstrip()
        rate, diverged = float(block.acceptance_rate.mean()), int(block.diverging.sum())
        monitor.progress(chains, number, draws, rate, diverged, part)

    return report
