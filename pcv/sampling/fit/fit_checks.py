"""Checks of a full-data fit: R-hat, ESS, divergences and E-FMI, with advice."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy.special import chdtri

from pcv.sampling.fit.draws import MAX_RHAT, MIN_ESS, REFUSED, Draws, Mixing, mixing, plain_rhat
from pcv.sampling.kernel import Kernel, whitened

WARN_RHAT, CHANCE = 1.01, 0.01
"""R-hat that needs no explanation, and the probability that mixed chains exceed the limit"""
MAX_SHARE = 0.01
"""of divergent draws, or of refused proposals"""
TARGETS = (0.8, 0.95, 0.99)
"""target acceptance rates tried in turn by default, while steps are too large"""
FAR, MOST_LABELS = 1.2, 20
"""R-hat above which chains are in different places, and most components of a mixture"""
SEPARATE = 2.0
"""R-hat between a vector's elements above which each has a place of its own to give to another:
elements that overlap change places within a chain"""
APART = 0.5
"""standard deviations, and at least four standard errors, by which the mean of divergent draws must
differ in a parameter to name it"""


class Checks(NamedTuple):
    """Checks of a full-data fit: problems stop the run, warnings do not."""

    rhat: Float[np.ndarray, " param"]
    ess: Float[np.ndarray, " param"]
    efmi: Float[np.ndarray, " chain"]
    divergences: int
    problems: list[str]
    warnings: list[str]


def too_large(draws: Draws) -> str:
    """The sign, if any, that steps are too large for narrow regions of the posterior.

    Chains hardly enter or leave such regions, so they may agree without having explored them.
    """
    number = draws.diverging.size
    if (diverging := draws.diverging.sum()) > MAX_SHARE * number:
        return f"{diverging} of {number} draws diverged"
    refused = (draws.acceptance_rate < REFUSED).sum()
    return f"{refused} of {number} proposals were refused" if refused > MAX_SHARE * number else ""


def check(
    draws: Draws,
    names: list[str],
    target_accept: float = TARGETS[0],
    centred: Sequence[str] = (),
    stepwise: Sequence[str] = (),
    kernel: Kernel | None = None,
    seen: Mixing | None = None,
) -> Checks:
    """R-hat, bulk ESS, divergences and E-FMI of a full-data fit, with advice.

    Args:
        draws: of at least two chains.
        names: of the parameters.
        target_accept: of the fit, for advice.
        centred: parameters that could be non-centred.
        stepwise: parameters that move the log likelihood in steps alone.
        kernel: of the fit, in whose whitened coordinates chains must agree as well.
        seen: R-hat and ESS, if known.
    """
    from arviz_stats.base import array_stats

    num_draws = draws.position.shape[1]
    rhat, ess = seen or mixing(draws.position)
    with np.errstate(invalid="ignore", divide="ignore"):
        efmi = np.asarray(array_stats.bfmi(draws.energy, chain_axis=0, draw_axis=1))
    problems, warnings = [], []
    advice = _advice(draws, names, rhat, centred, stepwise)
    other = "another parameterisation"
    if centred:
        other = f"a non-centred {' and '.join(repr(x) for x in centred)}"
    distinct = np.array([np.unique(x).size for x in draws.lp])
    stuck = np.flatnonzero(distinct < 0.05 * num_draws)
    if stuck.size:
        several, number = stuck.size > 1, distinct[stuck].max()
        problems.append(
            f"chain{'s' * several} {', '.join(map(str, stuck))} {'are' if several else 'is'} stuck "
            f"({'at most ' * several}{number} distinct draws of {num_draws}): other priors or "
            f"{other} may help"
        )
    worst = int(np.argmax(np.where(np.isnan(rhat), np.inf, rhat)))
    if not rhat[worst] <= MAX_RHAT:
        means = draws.position[..., worst].mean(1)
        apart = int(np.argmax(np.abs(means - np.median(means))))
        problems.append(
            f"R-hat of '{names[worst]}' is {_beyond(rhat[worst])} (chain {apart} is "
            f"furthest from the others): {advice}"
        )
    elif kernel is not None and (said := _in_directions(draws, names, kernel)):
        problems.append(f"{said}: {advice}")
    elif rhat[worst] > (usual := _usual(draws.position[..., worst], ess[worst], rhat.size)):
        warnings.append(
            f"R-hat of '{names[worst]}' is {rhat[worst]:.4f}, above {usual:.4f}: "
            "more draws of the fit to be sure"
        )
    fewest = int(np.argmin(np.where(np.isnan(ess), np.inf, ess)))
    if ess[fewest] < MIN_ESS:
        warnings.append(
            f"ESS of '{names[fewest]}' is {ess[fewest]:.0f}, below {MIN_ESS}: more draws of the fit"
        )
    divergences = int(draws.diverging.sum())
    higher = target_accept < TARGETS[-1]
    if said := too_large(draws):
        problems.append(
            f"{said} at target_accept {target_accept:g} (limit {MAX_SHARE:.0%})"
            f"{_where(draws, names)}: try "
            f"{'a higher one, ' * higher}tighter priors or {other}"
        )
    elif divergences:
        plural = "s" * (divergences > 1)
        warnings.append(
            f"{divergences} divergence{plural}{_where(draws, names)}: "
            f"{'a higher target_accept of the fit, ' * higher}tighter priors or {other} may help"
        )
    return Checks(rhat, ess, efmi, divergences, problems, warnings)


def _beyond(rhat: float) -> str:
    """An R-hat with as many digits as show that it is above the limit.

    >>> _beyond(1.32), _beyond(1.0504)
    ('1.32, above 1.05', '1.0504, above 1.05')
    """
    digits = 2 if round(rhat, 2) > MAX_RHAT else 4
    return f"{rhat:.{digits}f}, above {MAX_RHAT}"


def _usual(position: Float[np.ndarray, "chain draw"], ess: float, num_params: int) -> float:
    """R-hat that mixed chains seldom exceed, given the Monte Carlo errors of means over their
    halves, of the parameter and of its distance from the median."""
    from arviz_stats.base import array_stats

    apart = np.abs(position - np.median(position))
    of_spread = float(array_stats.ess(apart, method="mean", chain_axis=0, draw_axis=1))
    halves = 2 * len(position)
    chance = chdtri(halves - 1, CHANCE / num_params) / (halves - 1)
    return max(WARN_RHAT, float(np.sqrt(1 + chance * halves / max(min(ess, of_spread), 1.0))))


def _in_directions(draws: Draws, names: list[str], kernel: Kernel) -> str:
    """The problem, if any, of chains that agree on parameters but not on their combinations."""
    rhat = plain_rhat(whitened(kernel, draws.position))
    worst = int(np.argmax(rhat))
    if rhat[worst] <= MAX_RHAT:
        return ""
    return f"R-hat of '{names[worst]}' given the others is {_beyond(rhat[worst])}"


def _advice(
    draws: Draws,
    names: list[str],
    rhat: Float[np.ndarray, " param"],
    centred: Sequence[str],
    stepwise: Sequence[str],
) -> str:
    """What may help chains that disagree."""
    longer = "more warmup and draws of the fit"
    if switched := _switched(draws, names, rhat):
        return (
            f"the elements of '{switched}' change places between chains, as labels of a mixture "
            "do: order them"
        )
    if stepwise:
        return (
            f"the log likelihood has steps in '{stepwise[0]}' and no slope: smooth the switch, for "
            "example by a logistic function"
        )
    if centred:
        return f"a non-centred {' and '.join(repr(x) for x in centred)}, or {longer}"
    return f"{longer}, or another parameterisation"


def _switched(draws: Draws, names: list[str], rhat: Float[np.ndarray, " param"]) -> str:
    """The vector, if any, whose chains disagree element by element and agree once it is sorted.

    Its elements must be apart within chains, too: those of a funnel that has not mixed are not.
    """
    base = np.array([name.split("[")[0] for name in names])
    for name in dict.fromkeys(base[~(rhat <= FAR)]):
        elements = np.flatnonzero(base == name)
        if 2 <= elements.size <= MOST_LABELS:
            position = draws.position[..., elements]
            in_order = plain_rhat(np.sort(position, axis=-1))
            between = plain_rhat(position.transpose(2, 1, 0))  # elements take the place of chains
            if in_order.max() <= MAX_RHAT and np.median(between) > SEPARATE:
                return str(name)
    return ""


def _where(draws: Draws, names: list[str]) -> str:
    """The parameter in which divergent or refused draws stand out most, if any."""
    those = draws.diverging | (draws.acceptance_rate < REFUSED)
    mean, sd = draws.position.mean((0, 1)), draws.position.std((0, 1))
    with np.errstate(invalid="ignore", divide="ignore"):
        z = np.nan_to_num((draws.position[those].mean(0) - mean) / sd, posinf=0, neginf=0)
    worst = int(np.argmax(np.abs(z)))
    if abs(z[worst]) < max(APART, 4 / np.sqrt(max(int(those.sum()), 1))):
        return ""
    return f", mostly where '{names[worst]}' is {'high' if z[worst] > 0 else 'low'}"
