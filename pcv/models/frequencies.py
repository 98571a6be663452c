"""Frequency weights: a row that stands for several alike is each of them.

The model of weighted rows is that of the rows repeated: its units, test sets, scores and standard
errors are theirs. Density and replicates of each copy are its own, also where scores change the
outcome of one.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key, Shaped

from pcv.base.errors import PcvError
from pcv.base.keys import any_key
from pcv.folds.columns import check_frequencies, copies, free, missing_column
from pcv.models.model import Data, Model, Params

DRAWS, CLOSE = 3, 1e-9
"""at which two models are compared, and how close they must be"""


def with_frequencies(model: Model, weights: Any, where: str) -> Model:
    """The model of its rows repeated, as often as their weights say.

    Args:
        model: of a front-end, without its missing outcomes.
        weights: name of a column of its data, or a value for each row; None: the model as it is.
        where: the model, for messages.

    Raises:
        PcvError: there is no such column; the weights are not whole numbers, or of another size; or
            units have several rows.
    """
    if weights is None:
        return model
    assert model.data is not None
    rows, columns = len(model.data.columns[model.outcome.name]), model.data.columns
    if isinstance(weights, str):
        if weights not in columns:
            raise PcvError(missing_column(weights, columns, where, "weights"))
        name, values = f"'{weights}'", columns[weights]
    else:
        name, values = "weights", np.asarray(weights)
        before = model.data.times
        if before is not None and values.shape == before.shape:
            values = values[before > 0]
    if values.shape != (rows,):
        raise PcvError(f"{where}: {name} has shape {values.shape}; give one for each row, {rows}")
    if model.data.units:
        raise PcvError(f"{where}: {name} weighs rows, but units have several; repeat whole units")
    names = [f"row {row + 1}" for row in range(rows)]
    return repeated(model, check_frequencies(values, names, f"{where}: {name}"), name)


class Copies(NamedTuple):
    """Rows that are repeated."""

    row: Int[np.ndarray, " copied"]
    """of each copy"""
    copy: Int[np.ndarray, " copied"]
    """number of each among those of its row, from 0"""
    times: Int[np.ndarray, " row"]
    place: Int[np.ndarray, "copy row"]
    """among all copies, of each of a row's, or its last one"""


def copies_of(times: Int[np.ndarray, " row"]) -> Copies:
    """The copies of rows, each repeated so many times."""
    row, copy = copies(times)
    first = np.where(times > 0, np.cumsum(times) - times, 0)
    number = np.clip(np.arange(times.max())[:, None], 0, np.maximum(times - 1, 0))
    return Copies(row, copy, times, first + number)


def repeated(model: Model, times: Int[np.ndarray, " row"], name: str) -> Model:
    """The model of its rows repeated.

    Args:
        model: of a front-end; its rows are its units.
        times: how often each row is repeated.
        name: of the weights, for the note.
    """
    assert model.data is not None
    outcome, own, each = model.outcome.name, model.data, copies_of(times)
    every, (row, copy, _, place) = own.columns, each
    along = {key for key, x in every.items() if np.ndim(x) and len(x) == times.size}

    def of_copies(function: Callable[..., Any], data: Data, *args: Any) -> Any:
        """What a function of data returns of each copy, given the outcomes of its own number."""
        given = {
            key: _of_rows(x, every[key], each, place[0]) if key in along else x
            for key, x in data.items()
        }
        y = jnp.asarray(data[outcome] if outcome in data else every[outcome][row])
        by_copy = _of_rows(y, every[outcome], each, place)
        found = jax.vmap(lambda y, *args: function({**given, outcome: y}, *args))(by_copy, *args)
        return jax.tree.map(lambda x: x[copy, row], found)

    log_lik, predict, moments, cdf = model.log_lik, model.predict, model.moments, model.cdf

    def replicate(key: Key[Array, ""], params: Params, data: Data) -> Float[Array, " row"]:
        assert predict is not None
        keys = jax.random.split(key, len(place))
        return of_copies(lambda data, key: predict(key, params, data), data, keys)

    def both(params: Params, data: Data) -> tuple[Array, Array]:
        assert moments is not None
        return of_copies(lambda data: moments(params, data), data)

    def below(params: Params, data: Data, y: Shaped[Array, " row"]) -> Float[Array, " row"]:
        assert cdf is not None
        by_copy = _of_rows(y, every[outcome], each, place)
        return of_copies(lambda data, y: cdf(params, data, y), data, by_copy)

    label = free("copy", every)
    columns = {key: x[row] if key in along else x for key, x in every.items()}
    data = own._replace(
        columns={**columns, label: copy + 1},
        order=(*own.order, label),
        times=times if own.times is None else _of_all(times, own.times),
    )
    note = f"{name}: {times.size} rows count as {row.size} units (frequencies)"
    return model._replace(
        log_lik=lambda params, data: of_copies(lambda data: log_lik(params, data), data),
        predict=predict and replicate,
        moments=moments and both,
        cdf=cdf and below,
        data=data,
        notes=[*model.notes, note],
        append=None,
    )


def _of_rows(x: Any, whole: np.ndarray, each: Copies, place: Int[np.ndarray, "*copy row"]) -> Any:
    """A column of the rows, from one of the copies at these places; as it was where a row has
    none."""
    if len(x) != each.row.size:
        return x
    xp = jnp if isinstance(x, jax.Array) else np
    there = (each.times > 0).reshape(-1, *[1] * (np.ndim(x) - 1))
    return xp.where(there, x[place], xp.asarray(whole, x.dtype))


def _of_all(
    times: Int[np.ndarray, " row"], before: Int[np.ndarray, " all_row"]
) -> Int[np.ndarray, " all_row"]:
    """Frequencies of all rows, 0 where they did not count before."""
    every = np.zeros(before.size, int)
    every[before > 0] = times
    return every


def from_repeated_rows(weighted: Model, anew: Callable[[np.ndarray], Model]) -> Model:
    """The model made of the rows repeated, if it is the weighted one: its numbers are then the same
    to the last digit as those of data with these rows.

    It is another one where an argument has as many elements as there are rows, such as knots, but
    is no column, or where each row has parameters of its own.

    Args:
        weighted: of `with_frequencies`.
        anew: makes a model of rows, each repeated so many times.
    """
    assert weighted.data is not None
    times = weighted.data.times
    assert times is not None
    try:
        twin = anew(times)
        draws = [weighted.init(key) for key in jax.random.split(jax.random.key(0), DRAWS)]
        alike = all(_alike(weighted, twin, params) for params in draws)
    except Exception:  # a user's function may raise anything given more rows
        return weighted
    if not alike or twin.data is None:
        return weighted
    data = twin.data._replace(times=times, missing=weighted.data.missing)
    return twin._replace(data=data, notes=weighted.notes, append=None)


def _alike(one: Model, other: Model, params: Params) -> bool:
    """Whether two models have the same parameters, prior and terms."""
    shapes = [jax.tree.map(jnp.shape, jax.eval_shape(x.init, any_key())) for x in (one, other)]
    if shapes[0] != shapes[1]:
        return False
    terms, priors = zip(*((x.log_lik(params, {}), x.log_prior(params)) for x in (one, other)))
    same = [np.allclose(x, y, rtol=CLOSE) for x, y in (terms, priors)]
    return all(same)
