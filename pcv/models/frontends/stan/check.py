"""Checks that `log_lik` of a Stan program is what its density depends on the outcome by."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int
from scipy.optimize import minimize

from pcv.base.errors import PcvError
from pcv.models.frontends.stan.loaded import Stan, log_lik

POINTS, TRIED, RADII = 4, 50, (1.0, 0.3, 0.1, 3.0, 6.0)
"""points at which densities are compared, tries at each distance from 0, and these"""
CLIMBS, NEAR, FAR = 50, 0.1, 2
"""steps to the mode, how far from there points lie, and how many lie about 0"""
SOLVED = 1e-3
"""relative error tolerated where rows are left out: solvers of equations then take other steps"""
HALVES, SINGLE = 4, 3
"""random halves of the units, and single ones, whose outcomes are changed"""
TOLERANCE, ROUNDING, SLOPE = 1e-9, 1e4, 1e-4
"""relative errors tolerated in changes and gradients, and units of rounding error"""


def points(stan: Stan, num_units: int, where: str) -> Float[np.ndarray, "point param"]:
    """Points at which the density and its terms are finite: some near 0, and some about the mode,
    where no large numbers hide small ones.

    Raises:
        PcvError: there are none.
    """
    rng, ones = np.random.default_rng(0), np.ones(num_units)
    usable = np.empty((0, stan.num_params))
    for radius in RADII:
        some = rng.uniform(-radius, radius, (TRIED, stan.num_params))
        value, _ = stan.joint(some, np.tile(ones, (TRIED, 1)))
        whole = np.isfinite(value) & np.isfinite(stan.terms(some)).all(1)
        usable = np.concatenate([usable, some[whole]])
        if len(usable) >= POINTS:
            break
    if len(usable) < 2:
        raise PcvError(
            f"{where}: its log density or log_lik is not finite at {TRIED * len(RADII)} points "
            "about 0 on the unconstrained scale; check the data, and the support of the parameters"
        )

    def uphill(x: np.ndarray) -> tuple[float, np.ndarray]:
        value, slope = stan.joint(x[None], ones[None])
        return (
            (-float(value[0]), -slope[0]) if np.isfinite(value[0]) else (np.inf, np.zeros_like(x))
        )

    climbed = minimize(uphill, usable[0], jac=True, method="L-BFGS-B", options={"maxiter": CLIMBS})
    near = climbed.x + NEAR * rng.normal(size=(TRIED, stan.num_params))
    near = near[np.isfinite(stan.joint(near, np.tile(ones, (TRIED, 1)))[0])]
    near = near[np.isfinite(stan.terms(near)).all(1)]
    return np.concatenate([near[:POINTS], usable[:FAR]])


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


class Look(NamedTuple):
    """What a change of some outcomes shows."""

    fault: str = ""
    moved: bool = False
    """whether density or terms change"""


def check_terms(
    build: Callable[[Mapping[str, Any]], Stan],
    stan: Stan,
    data: Mapping[str, Any],
    outcome: str,
    num_units: int,
    where: str,
) -> list[str]:
    """Check that a change of outcomes changes the density by the change of their units' terms.

    Densities are known up to constants that do not depend on the parameters, so that changes are
    compared between points. Outcomes of all units are changed, of random halves, and of single
    ones; a half that fails is halved until the unit is known. Where a program counts its rows, some
    are left out, too, which must take their terms from the density.

    Args:
        build: the program on other data.
        stan: the program on its data.
        data: by name.
        outcome: which of them is predicted; units are its last `num_units` elements.
        num_units: number of terms.
        where: the program, for messages.

    Returns:
        What could not be checked, in a line each.

    Raises:
        PcvError: naming a unit, and both changes; or the gradient is not the slope.
    """
    at = points(stan, num_units, where)
    before = values(stan, at, num_units)
    subject = Subject(build, stan, data, outcome, at, before, where)
    every = np.arange(num_units)
    halves = np.random.default_rng(2).random((HALVES, num_units)) < 0.5
    ends = np.unique(np.linspace(0, num_units - 1, SINGLE).astype(int))
    looks = [
        _traced(subject, units)
        for units in [every, *(every[half] for half in halves if half.any()), *ends[:, None]]
    ]
    _check_slope(stan, at[0], num_units, where)
    seen, rows = [look for look in looks if look is not None], _check_removal(subject)
    notes = []
    if not any(look.moved for look in seen):
        if seen and not stan.masked and np.unique(data[outcome]).size > 1:
            raise PcvError(
                f"{where}: other values of '{outcome}' change neither the density nor log_lik; "
                "name what the program predicts as outcome"
            )
        notes.append(f"log_lik could not be compared with the density at other values of {outcome}")
    if not rows:
        notes.append(
            "terms of log_lik without the outcome, such as normalisers, could not be compared with "
            "the density: rows of the data cannot be left out"
        )
    return notes


def _traced(subject: Subject, units: Int[np.ndarray, " unit"]) -> Look | None:
    """Look at a change of some outcomes, and of fewer ones until a faulty unit is known."""
    first = look = _look(subject, units)
    while look is not None and look.fault:
        if len(units) == 1:
            raise PcvError(f"{subject.where}: {look.fault}")
        one, other = np.array_split(units, 2)
        look, units = _look(subject, one), one
        if look is None or not look.fault:
            look, units = _look(subject, other), other
    return first


def _others(y: np.ndarray, sign: int) -> Int[np.ndarray, " row"]:
    """The row of each row's nearest other outcome, above it or below; if there is none, on the
    other side."""
    if y.ndim > 1:
        return np.roll(np.arange(len(y)), sign)
    each, of_row = np.unique(sign * y, return_inverse=True)
    row_of = np.unique(sign * y, return_index=True)[1]
    return row_of[np.where(of_row + 1 < len(each), of_row + 1, of_row - 1)]


def _look(subject: Subject, units: Int[np.ndarray, " unit"]) -> Look | None:
    """Compare density and terms where some units have other outcomes; None: the program takes
    no others."""
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
            moved = bool((after.terms != subject.before.terms).any())
            told = _compared(subject.before, after, units, what)
            return Look(told or _of_fold(subject, changed, after, units), moved)
    return None


def _compared(before: Values, after: Values, units: np.ndarray, what: str) -> str:
    """How the changes of density and terms differ, where some units have other outcomes."""
    change = after.terms - before.terms
    of_density, of_terms = after.density - before.density, change.sum(1)
    unit, whole = units[0] + 1, before.density
    if _differ(of_density, of_terms, whole):
        worst = np.argmax(np.abs((of_density - of_terms) - (of_density - of_terms)[0]))
        ours, terms = (f"{x[worst] - x[0]:.6g}" for x in (of_density, of_terms))
        return (
            f"log_lik of unit {unit} is not what the model's density has: where {what}, the log "
            f"density changes by {ours} more at one point than at another, log_lik by {terms}; "
            "check its index and its terms, and let no prior depend on the outcome"
        )
    others = np.full(change.shape[1], True)
    others[units] = False
    unlike = np.flatnonzero(change.any(0) & others)
    if unlike.size and not change[:, units].any(0).all():
        none = " (it is 0: of an outcome that has no term, declare none)"
        return (
            f"log_lik of unit {unit} is of another unit: where {what}, log_lik of unit "
            f"{unlike[0] + 1} changes by {change[0, unlike[0]]:.6g}, its own by 0; check its index"
            f"{none * (not before.terms[:, units[0]].any())}"
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


def _differ(
    one: np.ndarray, other: np.ndarray, size: np.ndarray, tolerance: float = TOLERANCE
) -> bool:
    """Whether changes differ by more than a constant and rounding."""
    apart = np.ptp(one - other)
    rounding = ROUNDING * np.finfo(float).eps * np.abs(size).max()
    return bool(apart > rounding + tolerance * max(np.ptp(one), np.ptp(other)))


def _check_removal(subject: Subject) -> int:
    """Compare the density without some rows with their terms; returns how many could be left out.

    Terms of other units may depend on a row, as through a mean of all: the sum of terms counts.
    """
    before, tried = subject.before, 0
    rows = len(subject.data[subject.outcome])
    some = np.linspace(rows - subject.num_units, rows - 1, SINGLE).astype(int)
    for row in np.unique(some).tolist():
        try:
            loaded = subject.stan.program(_without(subject.data, row, rows))
            if loaded.model.param_unc_num() != subject.stan.num_params:
                return tried
            density, _ = loaded.gradient(subject.at)
            terms = np.array([log_lik(loaded, x) for x in subject.at])
        except (PcvError, RuntimeError):
            continue  # rows are counted, or indexed, in another way
        if terms.shape[1] != subject.num_units - 1 or not np.isfinite(density).all():
            continue
        tried += 1
        near = slice(max(len(density) - FAR, 2))  # far from the mode, large numbers hide others
        change = (before.density - density)[near]
        of_terms = (before.terms.sum(1) - terms.sum(1))[near]
        if _differ(change, of_terms, before.density[near], SOLVED):
            worst = np.argmax(np.abs((change - of_terms) - (change - of_terms)[0]))
            raise PcvError(
                f"{subject.where}: log_lik of unit {row - rows + subject.num_units + 1} lacks a "
                "term, or has one too many: with its row, the log density is higher by "
                f"{change[worst] - change[0]:.6g} more at one point than at another, log_lik by "
                f"{of_terms[worst] - of_terms[0]:.6g}"
            )
    return tried


def _without(data: Mapping[str, Any], row: int, rows: int) -> dict[str, np.ndarray]:
    """The data without a row: arrays along the rows lose it, and their number is one less."""
    shorter = {}
    for name, given in data.items():
        x = np.asarray(given)
        for axis in [axis for axis, size in enumerate(x.shape) if size == rows]:
            x = np.delete(x, row, axis)
        is_number = x.ndim == 0 and x.dtype.kind in "iu" and x == rows
        shorter[name] = np.asarray(x - 1 if is_number else x)
    return shorter


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
