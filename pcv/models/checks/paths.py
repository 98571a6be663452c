"""Checks of simulated outcomes of a fold's test set: whether they can be made, and matter."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool

from pcv.base import devices
from pcv.base.errors import PcvError, setting
from pcv.compile import programs
from pcv.folds import columns
from pcv.folds.base import Folds, evenly, train_mask
from pcv.models.model import Data, Fold, Model, Params, Target, numeric
from pcv.models.parameters import points
from pcv.models.paths import path_units, simulated

CHECKED_FOLDS, CHECKED_DRAWS = 20, 10
"""folds whose paths are tried, and prior draws at each, with as many points near zero"""
MAX_LAG = 1000
"""units by which columns are compared with the outcome"""
SAME = 0.8
"""agreement beyond chance from which a column is taken for lags of the outcome"""


class _Tried(NamedTuple):
    """Of each fold that is tried, at any point."""

    trained: Bool[Array, " fold"]
    """whether training terms depend on what would be simulated"""
    outside: Bool[Array, " fold"]
    """whether paths depend on held-out outcomes that are not simulated before"""
    drawn: Bool[Array, " fold"]
    """whether replicates do on what is simulated"""
    scored: Bool[Array, " fold"]
    """whether log densities do"""


def check_paths(
    make: Callable[[Data], Model | Target],
    data: Data,
    outcome: str,
    folds: Folds,
    units: list[str],
    name: str,
) -> bool:
    """Whether terms that a fold tests depend on others' outcomes that it holds out, so that paths
    differ from replicates given these as observed.

    Tries paths of some folds, with two values in place of what must not be read.

    Args:
        make: makes the model from data.
        data: columns and constants, and `unit`.
        outcome: name of the outcome's column.
        folds: of the experiment.
        units: names of the units.
        name: of the model.

    Returns:
        False for a target, too, whose predictive is its own.

    Raises:
        PcvError: outcomes cannot be simulated, or terms depend on what no forecast knows.
    """
    model = make(data)
    if isinstance(model, Target):
        return False
    where = f"model '{name}': {setting('predict', value='path')}"
    if len(data[outcome]) != columns.num_units(data):
        raise PcvError(f"{where} simulates units one by one, and these have several rows each")
    lags = f"compute lags from data['{outcome}'] in log_lik and predict"
    remedy = f"{lags} (a NumPyro model gets the outcome as an argument)"
    if column := lag_column(make, data, outcome):
        raise PcvError(
            f"{where} cannot simulate outcomes that column '{column}' holds as lags; {remedy}, or "
            "drop the column if it is not used"
        )
    if model.predict is None:
        if _reads_when_made(make, data, outcome, folds):
            raise PcvError(f"{where} needs pcv.Model(..., predict=...), a replicate of the outcome")
        return False
    tried = _tried(model, data, outcome, folds)
    some = folds.some(evenly(len(folds.id), CHECKED_FOLDS))
    first = {field: some.id[x.argmax()] for field, x in tried._asdict().items() if x.any()}
    if "trained" in first:
        raise PcvError(
            f"{where}: fold '{first['trained']}' trains on units whose terms depend on outcomes "
            "that it holds out (through lags, or a summary of all outcomes), so that its posterior "
            "knows them; test the end of a series (leave_future_out), or leave a gap after the "
            "test set (folds.h)"
        )
    if "outside" in first:
        raise PcvError(
            f"{where}: terms that fold '{first['outside']}' tests depend on outcomes that it holds "
            "out and that do not come directly before (later ones, a gap elsewhere, or a window "
            "shorter than the lags); order the data by time, or train on them"
        )
    if ("drawn" in first) != ("scored" in first):
        does, lacks = ("predict", "log_lik") if "drawn" in first else ("log_lik", "predict")
        raise PcvError(
            f"{where}: {does} depends on earlier outcomes that a fold tests, {lacks} does not; "
            f"{remedy}"
        )
    if not first and _reads_when_made(make, data, outcome, folds):
        raise PcvError(
            f"{where} cannot simulate lags that are computed when the model is made; {remedy}"
        )
    return bool(first)


def _tried(model: Model, data: Data, outcome: str, folds: Folds) -> _Tried:
    some = folds.some(evenly(len(folds.id), CHECKED_FOLDS))
    with devices.precision("float64"):
        arrays = numeric(data)
        observed = arrays[outcome]
        other = jnp.asarray(_following(np.asarray(data[outcome])), observed.dtype)
        at = points(model.init, CHECKED_DRAWS)

        def differ(x: Array, y: Array, among: Array) -> Array:
            return (~jnp.isclose(x, y, equal_nan=True) & among).any()

        def of_point(params: Params, fold: Fold) -> _Tried:
            mask, key = path_units(fold), jax.random.key(0)
            assert model.predict is not None

            def path(filling: Array) -> tuple[Array, Array]:
                read = lambda given: model.log_lik(params, given)  # noqa: E731
                return simulated(model, arrays, key, params, fold, read, filling)

            first = jnp.argmax(fold.train)
            (y, terms), (y_too, terms_too) = path(observed[first]), path(other[first])
            given = model.log_lik(params, arrays)
            moved = {**arrays, outcome: jnp.where(mask, other, observed)}
            trained = differ(model.log_lik(params, moved), given, fold.train)
            drawn = model.predict(key, params, arrays)
            return _Tried(
                trained,
                differ(y, y_too, mask) | differ(terms, terms_too, mask),
                differ(y, drawn, mask),
                differ(terms, given, mask),
            )

        def of_fold(fold: Fold) -> _Tried:
            found = jax.vmap(lambda params: of_point(params, fold))(at)
            return jax.tree.map(lambda x: x.any(), found)

        train = jnp.asarray(train_mask(some, columns.num_units(data)))
        every = programs.once(lambda several: jax.lax.map(of_fold, several))
        return jax.tree.map(np.asarray, every(Fold(train, jnp.asarray(some.test))))


def _following(y: np.ndarray) -> np.ndarray:
    """For each value the next larger one, for the largest the smallest."""
    values = np.unique(y)
    return values[(np.searchsorted(values, y) + 1) % values.size]


def _reads_when_made(
    make: Callable[[Data], Model | Target], data: Data, outcome: str, folds: Folds
) -> bool:
    """Whether the term of a unit depends on what its fold holds out when the model is made anew: of
    the middle fold, the last one that it tests."""
    middle = folds.some([len(folds.id) // 2])
    train, last = train_mask(middle, columns.num_units(data))[0], int(middle.test.max())
    others = ~train & (np.arange(train.size) < last)
    y = np.asarray(data[outcome])
    changed = {**data, outcome: np.where(others, _following(y), y)}
    one, other = make(data), make(changed)
    assert isinstance(one, Model)
    assert isinstance(other, Model)
    return not _alike(one, other, data, changed, last)


def lag_column(make: Callable[[Data], Model | Target], data: Data, outcome: str) -> str:
    """The column that holds lags of the outcome and that the likelihood depends on, or may, or "".

    Args:
        make: makes the model from data.
        data: columns and constants.
        outcome: name of the outcome's column.
    """
    y, model = np.asarray(data[outcome]), make(data)
    assert isinstance(model, Model)
    for name, x in numeric(data).items():
        column = np.asarray(x)
        if name in (outcome, "unit") or not column.ndim or len(column) != len(y):
            continue
        of_each = column.reshape(len(y), -1).T
        if any(_is_lag(each, y) for each in of_each):
            changed = {**data, name: np.roll(column, 1, axis=0)}
            other = make(changed)
            assert isinstance(other, Model)
            fixed = model.data is not None and model.data.fixed  # nobody knows if it is used
            if fixed or not _alike(model, other, data, changed):
                return name
    return ""


def _alike(one: Model, other: Model, data: Data, changed: Data, unit: int | None = None) -> bool:
    """Whether two models have the same terms on their data, of all units or of one."""
    at = points(one.init, CHECKED_DRAWS)
    terms = []
    for model, arrays in ((one, numeric(data)), (other, numeric(changed))):
        every = programs.once(jax.vmap(lambda p: model.log_lik(p, arrays)))(at)  # noqa: B023
        terms.append(np.asarray(every) if unit is None else np.asarray(every)[:, unit])
    return np.allclose(terms[0], terms[1], equal_nan=True)


def _is_lag(x: np.ndarray, y: np.ndarray) -> bool:
    """Whether a column is the outcome of some units before, for nearly all units.

    >>> y = np.random.default_rng(1).normal(size=50)
    >>> _is_lag(np.roll(y, 2), y), _is_lag(np.arange(50.0), y)
    (True, False)
    """
    values, counts = np.unique(y, return_counts=True)
    share = counts / y.size
    place = np.minimum(np.searchsorted(values, x), values.size - 1)
    present = values[place] == x
    if present.mean() < SAME / 2:  # a few lags are of outcomes before the first one
        return False
    chance = np.where(present, share[place], 0.0).mean()
    for lag in range(1, min(MAX_LAG, y.size // 2) + 1):
        agree = (x[lag:] == y[:-lag]).mean()
        if agree - chance > SAME * (1 - chance):
            return True
    return False
