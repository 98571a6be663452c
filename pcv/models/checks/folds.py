"""Checks of a model against its folds: gaps, and left-out groups."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from pcv.base.errors import PcvError, setting
from pcv.compile import programs
from pcv.folds import columns
from pcv.folds.base import Folds, train_mask
from pcv.models.checks.values import CHECKED_DRAWS
from pcv.models.model import Data, Fold, Model, Params, Target, numeric
from pcv.models.parameters import points

CHECKED_FOLDS = 50
"""folds that `check_marginal` evaluates"""


def check_gap(
    make: Callable[[Data], Model | Target],
    data: Data,
    outcome: str,
    folds: Folds,
    units: list[str],
    name: str,
) -> str:
    """Whether a fold's training terms depend on the outcomes it tests, for example through lags.

    Perturbs the outcomes that the middle fold tests: training terms, or gradients of a target's log
    density, that change with them condition on what is to be predicted.

    Args:
        make: makes the model from data.
        data: columns and constants, and `unit`.
        outcome: name of the outcome's column.
        folds: of the experiment.
        units: names of the units.
        name: of the model.

    Returns:
        A warning, or "".
    """
    middle = len(folds.id) // 2
    values = np.unique(data[outcome])
    following = values[(np.searchsorted(values, data[outcome]) + 1) % values.size]
    tested = np.isin(data["unit"], folds.test[middle])
    changed = {**data, outcome: np.where(tested, following, data[outcome])}
    trained = train_mask(folds, columns.num_units(data), slice(middle, middle + 1))[0]
    one, other = make(data), make(changed)
    params = points(one.init, 1)
    if isinstance(one, Target) and isinstance(other, Target):
        fold = Fold(jnp.asarray(trained), jnp.asarray(folds.test[middle]))
        before, after = (
            programs.once(jax.vmap(jax.grad(lambda p: x.log_density(p, fold))))(params)  # noqa: B023
            for x in (one, other)
        )
        moved = [
            param for param, x in before.items() if not np.allclose(x, after[param], equal_nan=True)
        ]
        if moved:
            return (
                f"model '{name}': log_density of fold '{folds.id[middle]}' (its gradient in "
                f"'{moved[0]}') depends on outcomes that the fold tests: its score is too good; "
                "make it ignore outcomes outside fold.train"
            )
    elif isinstance(one, Model) and isinstance(other, Model):
        before, after = (
            np.asarray(programs.once(jax.vmap(lambda p: x.log_lik(p, given)))(params))  # noqa: B023
            for x, given in ((one, numeric(data)), (other, numeric(changed)))
        )
        differs = (before != after) & ~np.isnan(before)
        of_units = np.flatnonzero(trained & differs.any(0))
        if of_units.size:
            return (
                f"model '{name}': terms of {of_units.size} unit(s) that fold '{folds.id[middle]}'"
                f" trains on, such as '{units[of_units[0]]}', depend on outcomes that it tests"
                " (through lags, or a summary of all outcomes): its score is too good; leave out"
                " a wider gap (folds.h), or make the summary a constant; other folds were not"
                " checked"
            )
    return ""


def given_tested(
    make: Callable[[Data], Model | Target], data: Data, outcome: str, folds: Folds
) -> int:
    """How far back a unit's term looks at outcomes that its own fold tests: the shortest lag, 0 if
    none does.

    Pointwise scores are given these outcomes: in leave-future-out, they are of so many steps ahead
    at most, whatever the horizon. Of folds that test runs of units the middle one is looked at; of
    its last unit, the outcomes before are perturbed one by one.

    Args:
        make: makes the model from data.
        data: columns and constants, and `unit`.
        outcome: name of the outcome's column.
        folds: of the experiment.
    """
    size = (folds.test >= 0).sum(axis=1)
    runs = np.flatnonzero((size > 1) & (folds.test.max(axis=1) - folds.test[:, 0] == size - 1))
    if not runs.size:
        return 0
    test = folds.test[runs[len(runs) // 2]]
    *before, last = test[test >= 0].tolist()
    one = make(data)
    if isinstance(one, Target):
        return 0
    params, values = points(one.init, 1), np.unique(data[outcome])
    following = values[(np.searchsorted(values, data[outcome]) + 1) % values.size]

    def term(others: list[int]) -> np.ndarray:
        changed = np.where(np.isin(data["unit"], others), following, data[outcome])
        given = {**data, outcome: changed}
        model, arrays = make(given) if others else one, numeric(given)
        assert isinstance(model, Model)
        every = programs.once(jax.vmap(lambda p: model.log_lik(p, arrays)))
        return np.asarray(every(params))[:, last]

    def looks_at(others: list[int]) -> bool:
        return not np.array_equal(own, term(others), equal_nan=True)

    own = term([])
    if not looks_at(before):
        return 0
    return next((last - unit for unit in before[::-1] if looks_at([unit])), 1)


def check_marginal(model: Model | Target, data: Data, name: str, folds: Folds) -> None:
    """Check that the model's own `marginal` is finite at prior draws and at points near zero.

    Evaluates folds evenly spaced from first to last. Points where a unit is impossible, or its
    likelihood overflows, do not count.

    Raises:
        PcvError: naming the fold with the most points at which it is not finite.
    """
    assert isinstance(model, Model)
    assert model.marginal is not None
    arrays = numeric(data)
    some = np.unique(np.linspace(0, len(folds.id) - 1, CHECKED_FOLDS).astype(int))
    marginal, test = model.marginal, folds.test[some]

    def of_folds(params: Params) -> tuple[Array, Array]:
        terms = jax.vmap(lambda units: marginal(params, arrays, units)[0])(test)
        return terms, jnp.isfinite(model.log_lik(params, arrays)).all()

    at = points(model.init, CHECKED_DRAWS)
    terms, possible = jax.tree.map(np.asarray, programs.once(jax.vmap(of_folds))(at))
    bad = ~np.isfinite(terms) & possible[:, None]
    if bad.any():
        fold = int(np.argmax(bad.sum(0)))
        raise PcvError(
            f"model '{name}': marginal of fold '{folds.id[some[fold]]}' is not finite at "
            f"{int(bad[:, fold].sum())} of {len(bad)} prior draws and points near zero"
        )


def check_whole_groups(model: Model, name: str, folds: Folds) -> None:
    """Check that folds leave out whole groups, as the model's own `marginal` assumes: it integrates
    over the effects of unseen groups.

    Raises:
        PcvError: a fold trains on part of a tested group.
    """
    if model.group is None:
        return
    group = np.asarray(model.group)
    for fold, test, runs in zip(folds.id, folds.test, folds.held_out):
        tested = np.isin(group, group[test[test >= 0]])
        left_out = np.zeros(group.size, bool)
        for start, stop in runs:
            left_out[start:stop] = True
        if (tested & ~left_out).any():
            raise PcvError(
                f"model '{name}': its marginal predictive is for groups that are left out as a "
                f"whole, but fold '{fold}' trains on part of a tested group; leave out whole "
                f"groups, or set {setting('predictive', value='plain')}"
            )
