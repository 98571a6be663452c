"""Do a model and its folds fit together: gaps, and groups that are left out?"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from pcv.base import programs
from pcv.base.errors import PcvError
from pcv.folds import columns
from pcv.folds.base import Folds, train_mask
from pcv.models.checks.values import CHECKED_DRAWS
from pcv.models.model import Data, Fold, Model, Params, Target, numeric
from pcv.models.parameters import points

CHECKED_FOLDS = 50
"""at which `check_marginal` looks"""


def check_gap(
    make: Callable[[Data], Model | Target],
    data: Data,
    outcome: str,
    folds: Folds,
    units: list[str],
    name: str,
) -> str:
    """Does what a fold trains on depend on the outcomes that it tests, through lags for example?

    The outcomes that the fold in the middle tests are changed; terms of its training units, or a
    gradient of a target's log density, that change with them are conditioned on what is to be
    predicted.

    Args:
        make: makes the model of data.
        data: columns and constants, and `unit`.
        outcome: name of the outcome's column.
        folds: of the experiment.
        units: names of the units.
        name: of the model.

    Returns:
        What to warn of; empty if there is nothing.
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
                f"model '{name}': log_density of fold '{folds.id[middle]}', its gradient in "
                f"'{moved[0]}', depends on outcomes that the fold tests: its score is too good; "
                "let outcomes outside fold.train play no part in it"
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
                " looked at"
            )
    return ""


def check_marginal(model: Model | Target, data: Data, name: str, folds: Folds) -> None:
    """Is the model's own `marginal` finite at prior draws, for folds from first to last?

    And at points near zero. Where some unit is impossible, or its likelihood overflows, it may be
    anything.

    Raises:
        PcvError: naming the fold in which it is not finite at the most of them.
    """
    assert isinstance(model, Model)
    assert model.marginal is not None
    arrays = numeric(data)
    some = np.unique(np.linspace(0, len(folds.id) - 1, CHECKED_FOLDS).astype(int))
    marginal, test = model.marginal, jnp.asarray(folds.test[some])

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
    """The model's own `marginal` integrates over the effects of groups it has not seen: it holds
    where every group of a test set is left out as a whole.

    Raises:
        PcvError: it is not, in a fold.
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
                f"whole, but fold '{fold}' keeps part of a tested group in training; leave out "
                "whole groups, or set predictive: plain"
            )
