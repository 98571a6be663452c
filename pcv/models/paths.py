r"""Paths: held-out outcomes simulated one after another, as forecasts of several steps are.

The units that a fold tests, and those of the gap before them, are drawn in the order of the data,
each given the parameters, the training outcomes, and what has been drawn before it:

.. math:: \tilde y_j \sim p(y_j \mid \theta, y_\mathrm{train}, \tilde y_1, \dots, \tilde y_{j-1})

so that no held-out outcome is read. The j-th is a draw of the forecast j steps ahead, and the mean
over draws of

.. math:: p(y_j \mid \theta, y_\mathrm{train}, \tilde y_1, \dots, \tilde y_{j-1})

at the observed :math:`y_j` is the density of that forecast. Simulating ahead is the usual way to
forecast by autoregressions (Hyndman and Athanasopoulos 2021, *Forecasting: Principles and
Practice*, "sample paths"); the joint score of all steps is the product of the conditional densities
at what was observed, and needs none.

A random walk without noise, from the last training outcome:

>>> import numpy as np
>>> from pcv.models.model import Outcome
>>> def before(data):
...     return jnp.roll(data["y"], 1)
>>> walk = Model(None, None, None, dict, Outcome("y"), predict=lambda key, params, data:
...              before(data) + 1.0)
>>> data = {"y": np.array([0.0, 1.0, 7.0, 7.0, 7.0])}
>>> fold = Fold(jnp.array([True, True, False, False, False]), jnp.array([2, 3]))
>>> simulated(walk, data, jax.random.key(0), {}, fold)[0].tolist()
[0.0, 1.0, 2.0, 3.0, 0.0]
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Key, Shaped

from pcv.models.effects import prior
from pcv.models.effects.marginal import Scored
from pcv.models.model import Data, Fold, Model, Params, Target, numeric

Read = Callable[[Data], Float[Array, " unit"]]
"""what is read of every unit at each step, from data in which earlier outcomes are simulated"""


def path_units(fold: Fold) -> Bool[Array, " unit"]:
    """Mask of the units that are simulated: those tested, and those held out directly before.

    >>> fold = Fold(jnp.array([True, False, False, False, True, False]), jnp.array([2, -1]))
    >>> path_units(fold).tolist()  # the gap before unit 2, and the unit itself
    [False, True, True, False, False, False]
    """
    size = fold.train.size
    place = jnp.arange(size)
    tested = jnp.zeros(size, bool).at[jnp.where(fold.test >= 0, fold.test, size)].set(True)
    next_tested, next_trained = (
        jax.lax.cummin(jnp.where(mask, place, size), reverse=True) for mask in (tested, fold.train)
    )
    return next_tested < next_trained


def simulated(
    model: Model,
    data: Data,
    key: Key[Array, ""],
    params: Params,
    fold: Fold,
    read: Read | None = None,
    filling: Shaped[Array, ""] | None = None,
) -> tuple[Shaped[Array, " unit"], Float[Array, " unit"]]:
    """One path of a fold's held-out outcomes, given the parameters.

    Each unit is drawn by `model.predict` with the same random numbers, so that a model whose terms
    read no other outcomes draws what it does without paths.

    Args:
        model: with `predict`; a row of the data is a unit.
        data: of `numeric`.
        key: of the path.
        params: of the model.
        fold: whose held-out outcomes are not read.
        read: called at each step with the unit's own outcome as observed.
        filling: stands for held-out outcomes that are not drawn yet, or never; None: the first
            training outcome.

    Returns:
        Outcomes of all units, with simulated ones, and what `read` gave for each simulated unit, 0
        for others.
    """
    assert model.predict is not None
    name, kind = model.outcome.name, jnp.result_type(float)
    observed = jnp.asarray(data[name])
    if not model.outcome.discrete:  # measured in whole numbers, say, but not drawn so
        observed = observed.astype(kind)
    filling = observed[jnp.argmax(fold.train)] if filling is None else filling
    mask = path_units(fold)
    (units,) = jnp.nonzero(mask, size=mask.size, fill_value=0)

    def draw(j: Array, so_far: tuple[Array, Array]) -> tuple[Array, Array]:
        y, values = so_far
        unit = units[j]
        if read is not None:
            given = {**data, name: y.at[unit].set(observed[unit])}
            values = values.at[unit].set(read(given)[unit].astype(kind))
        assert model.predict is not None
        drawn = model.predict(key, params, {**data, name: y})[unit]
        return y.at[unit].set(drawn.astype(y.dtype)), values

    unread = jnp.where(fold.train, observed, filling.astype(observed.dtype))
    return jax.lax.fori_loop(0, mask.sum(), draw, (unread, jnp.zeros(mask.size, kind)))


def along_paths(target: Target, how: Scored, data: Data) -> Target:
    """A target whose replicates, and cdf, are those of paths, with the log density along them.

    Its joint and pointwise log scores stay: the joint one is that of the forecast as a whole, the
    pointwise one is given the outcomes just before each unit. Means and variances given the
    parameters are not known of paths.

    Args:
        target: of the model.
        how: the model, which is `simulated` with any effects of left-out groups drawn anew.
        data: its data.
    """
    model, arrays = how.model, numeric(data)
    assert isinstance(model, Model)
    anew = None if how.local is None else prior.drawn_anew(model, how.local)
    one_path = partial(simulated, model, arrays)

    def start(key: Key[Array, ""], params: Params, fold: Fold) -> tuple[Key[Array, ""], Params]:
        if anew is None:
            return key, params
        for_effects, for_outcome = jax.random.split(key)  # as without paths
        return for_outcome, anew(for_effects, params, fold.test)

    def predict(key: Key[Array, ""], params: Params, fold: Fold) -> Float[Array, " slot"]:
        key, params = start(key, params, fold)
        return one_path(key, params, fold)[0][fold.test].astype(float)

    def log_path(key: Key[Array, ""], params: Params, fold: Fold) -> Float[Array, " slot"]:
        key, params = start(key, params, fold)
        terms = one_path(key, params, fold, lambda given: model.log_lik(params, given))[1]
        return jnp.where(fold.test >= 0, terms[fold.test], 0.0)

    def cdf(
        key: Key[Array, ""], params: Params, fold: Fold, y: Float[Array, " slot"]
    ) -> Float[Array, " slot"]:
        key, params = start(key, params, fold)
        whole = jnp.asarray(arrays[model.outcome.name], y.dtype)
        place = jnp.where(fold.test >= 0, fold.test, whole.size)
        values = whole.at[place].set(y, mode="drop")

        def read(given: Data) -> Any:
            assert model.cdf is not None
            return model.cdf(params, given, values)

        return one_path(key, params, fold, read)[1][fold.test]

    return target._replace(
        predict=predict,
        cdf=None if model.cdf is None else cdf,
        moments=None,
        log_path=log_path,
    )
