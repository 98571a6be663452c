"""Checks that `log_lik` of a Stan program is what its density depends on the outcome by."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from pcv.base.errors import PcvError
from pcv.models.frontends.stan.loaded import Stan, log_lik

POINTS, TRIED, RADIUS = 4, 200, 1.0
"""points at which densities are compared, most that are tried, and how far from 0 they lie"""
HALVES, SINGLE = 4, 3
"""random halves of the units, and single ones, whose outcomes are changed"""
TOLERANCE, ROUNDING, SLOPE = 1e-6, 1e4, 1e-4
"""relative errors tolerated in changes and gradients, and units of rounding error"""


def points(stan: Stan, num_units: int, where: str) -> Float[np.ndarray, "point param"]:
    """Points at which the density and its terms are finite.

    Raises:
        PcvError: there are none.
    """
    rng = np.random.default_rng(0)
    tried = rng.uniform(-RADIUS, RADIUS, (TRIED, stan.num_params))
    tried *= np.linspace(1.0, 0.1, TRIED)[:, None]
    usable = tried[:0]
    for some in np.array_split(tried, TRIED // 20):
        value, _ = stan.joint(some, np.ones((len(some), num_units)))
        whole = np.isfinite(value) & np.isfinite(stan.terms(some)).all(1)
        usable = np.concatenate([usable, some[whole]])[:POINTS]
        if len(usable) == POINTS:
            return usable
    if len(usable) > 1:
        return usable
    raise PcvError(
        f"{where}: its log density or log_lik is not finite at {TRIED} points near 0 on the "
        "unconstrained scale; check the data, and the support of the parameters"
    )


class Values(NamedTuple):
    """Log density given all units, and its terms, at the same points."""

    density: Float[np.ndarray, " point"]
    terms: Float[np.ndarray, "point unit"]


def values(stan: Stan, at: Float[np.ndarray, "point param"], num_units: int) -> Values:
    density, _ = stan.joint(at, np.ones((len(at), num_units)))
    return Values(density, stan.terms(at))


class Subject(NamedTuple):
    """A program under check."""

    build: Callable[[Mapping[str, Any]], Stan]
    """the program on other data"""
    stan: Stan
    data: Mapping[str, Any]
    outcome: str
    """which of them is predicted; units are its last elements"""
    at: Float[np.ndarray, "point param"]
    before: Values
    """at the points, for the data as they are"""
    where: str
    """the program, for messages"""

    @property
    def num_units(self) -> int:
        return self.before.terms.shape[1]


def check_terms(
    build: Callable[[Mapping[str, Any]], Stan],
    stan: Stan,
    data: Mapping[str, Any],
    outcome: str,
    num_units: int,
    where: str,
) -> None:
    """Check that a change of outcomes changes the density by the change of their units' terms.

    Densities are known up to constants that do not depend on the parameters, so that changes are
    compared between points. Outcomes of all units are changed, of random halves, and of single
    ones; a half that fails is halved until the unit is known. Where a program counts its rows, the
    last unit is also left out, which must take its term from the density.

    Args:
        build: the program on other data.
        stan: the program on its data.
        data: by name.
        outcome: which of them is predicted; units are its last `num_units` elements.
        num_units: number of terms.
        where: the program, for messages.

    Raises:
        PcvError: naming a unit, and both changes; or the gradient is not the slope.
    """
    at = points(stan, num_units, where)
    before = values(stan, at, num_units)
    subject = Subject(build, stan, data, outcome, at, before, where)
    every = np.arange(num_units)
    halves = np.random.default_rng(2).random((HALVES, num_units)) < 0.5
    ends = np.unique(np.linspace(0, num_units - 1, SINGLE).astype(int))
    for units in [every, *(every[half] for half in halves), *ends[:, None]]:
        while fault := _fault(subject, units):
            if len(units) == 1:
                raise PcvError(f"{where}: {fault}")
            first, second = np.array_split(units, 2)
            units = first if _fault(subject, first) else second
    _check_removal(subject)
    _check_slope(stan, at[0], num_units, where)


def _others(y: np.ndarray, sign: int) -> Int[np.ndarray, " row"]:
    """The row of each row's nearest other outcome, above it or below; if there is none, on the
    other side."""
    if y.ndim > 1:
        return np.roll(np.arange(len(y)), sign)
    each, of_row = np.unique(sign * y, return_inverse=True)
    row_of = np.unique(sign * y, return_index=True)[1]
    return row_of[np.where(of_row + 1 < len(each), of_row + 1, of_row - 1)]


def _fault(subject: Subject, units: Int[np.ndarray, " unit"]) -> str:
    """What is wrong where some units have other outcomes, or nothing."""
    y = np.asarray(subject.data[subject.outcome])
    rows = len(y) - subject.num_units + units
    for sign in (1, -1):
        other = y.copy()
        other[rows] = y[_others(y, sign)[rows]]
        try:
            changed = subject.build({**subject.data, subject.outcome: other})
        except PcvError:
            continue  # outside the bounds of the program
        after = values(changed, subject.at, subject.num_units)
        if np.isfinite(after.density).all() and np.isfinite(after.terms).all():
            what = f"{subject.outcome}[{rows[0] + 1}] is {_said(other[rows[0]])} in place of "
            what += _said(y[rows[0]])
            told = _compared(subject.before, after, units, what)
            return told or _of_fold(subject, changed, after, units)
    return ""


def _compared(before: Values, after: Values, units: np.ndarray, what: str) -> str:
    """How the changes of density and terms differ, where some units have other outcomes."""
    change = after.terms - before.terms
    of_density, of_terms = after.density - before.density, change.sum(1)
    unit, whole = units[0] + 1, before.density
    if not change.any() and not _differ(of_density, np.zeros_like(of_density), whole):
        return (
            f"where {what}, neither the density nor log_lik of unit {unit} changes; name what the "
            "program predicts as outcome"
        )
    if _differ(of_density, of_terms, whole):
        worst = np.argmax(np.abs((of_density - of_terms) - (of_density - of_terms)[0]))
        ours, terms = (f"{x[worst] - x[0]:.6g}" for x in (of_density, of_terms))
        return (
            f"log_lik of unit {unit} is not what the model's density has: where {what}, the log "
            f"density changes by {ours} more at one point than at another, log_lik by {terms}; "
            "check its index and its terms, and let no prior depend on the outcome"
        )
    if not change[:, units].any(0).all():
        unlike = int(np.flatnonzero(change.any(0))[0])
        return (
            f"log_lik of unit {unit} is of another unit: where {what}, log_lik of unit "
            f"{unlike + 1} changes by {change[0, unlike]:.6g}, its own by 0; check its index"
        )
    return ""


def _of_fold(subject: Subject, changed: Stan, after: Values, units: np.ndarray) -> str:
    """What a fold without some units knows of their outcomes, but for terms of others that look
    back at them."""
    before, others = subject.before, np.full(subject.num_units, True)
    others[units] = False
    weights = np.broadcast_to(others.astype(float), before.terms.shape)
    density, expected = (stan.joint(subject.at, weights)[0] for stan in (changed, subject.stan))
    apart = density - expected - (after.terms - before.terms)[:, others].sum(1)
    if not _differ(apart, np.zeros_like(apart), before.density):
        return ""
    return (
        f"the density of a fold that holds out unit {units[0] + 1} depends on its outcome: it "
        f"changes by {np.ptp(apart):.6g} more at one point than at another; let no prior depend "
        "on the outcome, and, where a mask says which units are held out, let the model obey it"
    )


def _differ(one: np.ndarray, other: np.ndarray, size: np.ndarray) -> bool:
    """Whether changes differ by more than a constant and rounding."""
    apart = np.ptp(one - other)
    rounding = ROUNDING * np.finfo(float).eps * np.abs(size).max()
    return bool(apart > rounding + TOLERANCE * max(np.ptp(one), np.ptp(other)))


def _check_removal(subject: Subject) -> None:
    """Compare the density without the last unit's row with its term."""
    data, units, at = subject.data, subject.num_units, subject.at
    rows = len(data[subject.outcome])
    if rows != units:
        return
    shorter = {
        name: x[:-1] if x.ndim and len(x) == rows else x - 1 if x.ndim == 0 and x == rows else x
        for name, x in ((name, np.asarray(x)) for name, x in data.items())
    }
    try:
        loaded = subject.stan.program(shorter)
        if loaded.model.param_unc_num() != subject.stan.num_params:
            return
        density, _ = loaded.gradient(at)
        terms = np.array([log_lik(loaded, x) for x in at])
    except (PcvError, RuntimeError):
        return  # rows are counted, or indexed, in another way
    before = subject.before
    if terms.shape[1] != units - 1 or not np.isfinite(density).all():
        return
    if not np.allclose(terms, before.terms[:, :-1], rtol=1e-9, atol=1e-9):
        return  # the others depend on the row, as on a mean of all
    change, term = before.density - density, before.terms[:, -1]
    if _differ(change, term, before.density):
        worst = np.argmax(np.abs((change - term) - (change - term)[0]))
        raise PcvError(
            f"{subject.where}: log_lik of unit {units} lacks a term, or has one too many: with its "
            f"row, the log density is higher by {change[worst] - change[0]:.6g} more at one point "
            f"than at another, log_lik by {term[worst] - term[0]:.6g}"
        )


def _check_slope(stan: Stan, at: np.ndarray, num_units: int, where: str) -> None:
    """Compare the gradient with central differences in a random direction."""
    direction = np.random.default_rng(1).normal(size=len(at))
    steps = np.array([[1e-4], [-1e-4], [1e-5], [-1e-5]])
    value, _ = stan.joint(at + steps * direction, np.ones((4, num_units)))
    _, slope = stan.joint(at[None], np.ones((1, num_units)))
    along, coarse, fine = slope[0] @ direction, value[0] - value[1], value[2] - value[3]
    coarse, fine = coarse / 2e-4, fine / 2e-5
    rounding = ROUNDING * np.finfo(float).eps * np.abs(value).max() / 1e-5
    if abs(along - fine) > rounding + 10 * abs(fine - coarse) + SLOPE * abs(along):
        raise PcvError(
            f"{where}: its gradient is not the slope of its density ({along:.6g} and {fine:.6g} "
            "along one direction); is it smooth in its parameters?"
        )


def _said(y: Any) -> str:
    return np.array2string(np.asarray(y), precision=6, threshold=4)
