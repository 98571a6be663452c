"""A Python session's objects (models, data, scores, folds) in the terms of a config."""

import hashlib
import uuid
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import xarray as xr

import pcv
from pcv.base.errors import PcvError, in_one_line, nearest
from pcv.compile.programs import Uncertain, digest
from pcv.folds.base import Folds
from pcv.folds.columns import free, refuse_twice
from pcv.folds.splitters import from_splitter
from pcv.models.frontends import as_model
from pcv.models.model import Fold, Model, Observations, Params, Target, full_data, target
from pcv.models.scores import Score
from pcv.pipeline import config
from pcv.pipeline.storage import store

AnyModel = Any
"""a `pcv.Model` or `pcv.Target`, or a model of PyMC or Bambi"""
SCHEMES: dict[str, dict[str, Any]] = {
    "loo": {"scheme": "leave_one_out"},
    "kfold": {"scheme": "k_fold", "k": 10},
}
"""schemes that need no arguments"""


def model_of(made: AnyModel, name: str) -> Model | Target:
    found = as_model(made)
    if found is not None:
        return found
    which = f"model '{name}'" if name else "the model"
    hint = "pcv.from_numpyro(function, data), a model of PyMC or Bambi, or a pcv.Model"
    raise PcvError(f"{which} is {_kind(made)}; give {hint}")


def _kind(x: Any) -> str:
    """A short description of an argument.

    >>> _kind("rats.csv"), _kind(len), _kind(3.0)
    ("'rats.csv', text", 'a function, len', 'of type float')
    """
    if isinstance(x, str):
        return f"{x!r}, text"
    if callable(x) and hasattr(x, "__name__"):
        return f"a function, {x.__name__}"
    return f"of type {type(x).__name__}"


ORDERS = 3
"""orders of derivatives that are hashed: trajectories along integrals by Laplace's method take so
many of a log density"""


def fingerprint(model: Model | Target, observed: Observations, slots: int) -> str:
    """A hash of all that a model computes for test sets of a size, in the current precision: of its
    lowered programs, their derivatives, and the arrays that they hold.

    Args:
        model, observed: the model and the data of the call.
        slots: units in the largest test set; 1: also for the full data, with derivatives of higher
            orders.

    Raises:
        Uncertain: it cannot be hashed reliably.
    """
    own_data = model.data if isinstance(model, Model) else None
    rows = own_data or observed
    units = _num_units(rows, model.outcome.name)
    arrays = {"unit": _unit_of_row(rows, model.outcome.name), **rows.columns}
    if isinstance(model, Target):
        targets = [model]
    else:
        ways = ["plain"] + ["marginal"] * (model.marginal is not None)
        targets = [target(model, arrays, way) for way in ways]

    def everything(key: jax.Array, params: Params, fold: Fold) -> Any:
        y = jnp.zeros(fold.test.shape)
        calls = [
            call
            for x in targets
            for call in (
                (x.log_density, params, fold),
                (x.log_predictive, params, fold),
                (x.observed, fold),
                (x.density, params, fold, y),
                (x.predict, key, params, fold),
                (x.moments, params, fold),
            )
        ]
        shown = model.constrain(params)
        way_back = getattr(model, "unconstrain", None)
        back = None if way_back is None else way_back(shown)
        made = [function and function(*args) for function, *args in calls]
        return model.init(key), shown, back, made

    def density(params: Params, fold: Fold) -> Any:
        return targets[0].log_density(params, fold)

    def in_outcome(y: Any, params: Params, fold: Fold) -> Any:
        return [x.density(params, fold, y) for x in targets if x.density]

    key, whole = jax.random.key(0), full_data(units)
    fold = whole._replace(test=jnp.zeros(slots, int))
    try:
        params = jax.eval_shape(model.init, key)
        programs = [digest(everything, key, params, fold), digest(jax.grad(density), params, fold)]
    except Uncertain:
        raise
    except Exception as error:  # of a function that JAX cannot trace
        raise Uncertain(in_one_line(error)) from error
    if slots == 1:
        programs += _of_derivatives(density, params, whole)
        programs += _of_derivatives(in_outcome, jnp.zeros(slots), params, fold)
    group = getattr(model, "group", None)
    coords = {name: np.asarray(x).tolist() for name, x in model.coords.items()}
    fields = (
        *(model.outcome, None if group is None else np.asarray(group).tolist()),
        *(getattr(model, "notes", ()), getattr(model, "reads_test", None)),
    )
    said = repr((*programs, *fields, dict(model.dims), coords))
    return hashlib.sha256(said.encode()).hexdigest()[:16]


def _of_derivatives(function: Callable[..., Any], *args: Any) -> Iterator[str]:
    """Hashes of derivatives in the first argument, up to the first that does not exist."""
    for _ in range(ORDERS):
        function = partial(_slope, function)
        try:
            yield digest(function, *args)
        except Uncertain:
            raise
        except Exception:
            yield "none"
            return


def _slope(function: Callable[..., Any], x: Any, *args: Any) -> Any:
    return jax.grad(lambda x: sum(map(jnp.sum, jax.tree.leaves(function(x, *args)))))(x)


def certain(what: str, hashed: Callable[[], str], results: str | Path | None) -> str | None:
    """The hash of a model or score; None, with a warning, where it cannot be hashed reliably."""
    try:
        return hashed()
    except Uncertain as error:
        warnings.warn(
            f"{what}: cannot be hashed reliably ({error}), so nothing made from it before is "
            f"reused from {results}",
            stacklevel=2,
        )
        return None


def of_folds(
    model: Model | Target,
    observed: Observations,
    name: str,
    hashed: str | None,
    results: str | Path | None,
    slots: int,
) -> str:
    """The hash of a model for the test sets of a call; a random one where it has none."""
    known = hashed and certain(
        f"model '{name}'", partial(fingerprint, model, observed, slots), results
    )
    return known or uuid.uuid4().hex


def reference(name: str, hashed: str | None) -> str:
    """An object's name in the config: its own, unique within the call, and its hash, or a random
    one where it has none."""
    return f"{config.OBJECT}{name} {uuid.uuid4().hex if hashed is None else hashed}".rstrip()


def scores_of(
    scores: str | Score | Sequence[Any], results: str | Path | None = None
) -> tuple[list[str], dict[str, Score]]:
    """Names of built-in scores, and `Score` objects by their references: what functions in Python
    compute cannot be hashed reliably."""
    if isinstance(scores, str | Score):
        scores = [scores]
    names = [score for score in scores if isinstance(score, str)]
    own: dict[str, Score] = {}
    for score in scores:
        if isinstance(score, Score):
            if any(x.key == score.key and x is not score for x in own.values()):
                raise PcvError(
                    f"scores: there are two {score.kind} scores '{score.name}'; rename one"
                )
            if results is not None:
                warnings.warn(
                    f"score '{score.name}': what its functions compute cannot be hashed reliably, "
                    f"so nothing made from it before is reused from {results}; to reuse it, name a "
                    "file: scores=['file.py:function']",
                    stacklevel=2,
                )
            own[reference(score.key, "" if results is None else None)] = score
        elif not isinstance(score, str):
            raise PcvError(f"scores: {type(score).__name__} is neither a name nor a pcv.Score")
    return names, own


def posteriors_of(fit: Any, models: Sequence[str]) -> tuple[dict[str, Any], dict[str, xr.DataTree]]:
    """Settings of the full-data fit, or its existing draws by model name."""
    given = dict.fromkeys(models, fit) if _is_tree(fit) else fit
    if not isinstance(given, Mapping):
        raise PcvError(
            f"fit is {_kind(fit)}; give settings by name, or draws as an ArviZ DataTree with a "
            "group 'posterior'"
        )
    if not any(map(_is_tree, given.values())):
        return dict(given), {}
    if set(given) != set(models) or (given is not fit and len(models) > 1):
        wanted = ", ".join(map(repr, models))
        raise PcvError(f"fit holds draws; give those of each model by its name: {wanted}")
    return {}, {name: _tree(x) for name, x in given.items()}


def _is_tree(x: Any) -> bool:
    return isinstance(x, xr.DataTree) or isinstance(getattr(x, "posterior", None), xr.Dataset)


def _tree(x: Any) -> xr.DataTree:
    """The groups needed, from a DataTree or an older InferenceData."""
    groups = {name: getattr(x, name, None) for name in ("posterior", "sample_stats")}
    return xr.DataTree.from_dict(
        {
            name: group if isinstance(group, xr.Dataset) else group.to_dataset()
            for name, group in groups.items()
            if group is not None
        }
    )


def observations(models: Mapping[str, Model | Target], data: Any) -> Observations:
    """The rows shared by all models: one outcome, and the columns of each model."""
    outcomes = {name: x.outcome.name for name, x in models.items()}
    first, *others = models
    for name in others:
        if outcomes[name] != outcomes[first]:
            raise PcvError(
                f"models '{first}' and '{name}' are of different outcomes, '{outcomes[first]}' and "
                f"'{outcomes[name]}'; they cannot share folds"
            )
    outcome = outcomes[first]
    if not isinstance(data, Mapping | pd.DataFrame | xr.Dataset | None):
        raise PcvError(f"data is {_kind(data)}; give arrays by name, or a table")
    table = {} if data is None else data
    refuse_twice([str(name) for name in table], "data")
    given = {str(name): np.asarray(table[name]) for name in table}
    parts = {
        name: (isinstance(x, Model) and x.data) or Observations(given) for name, x in models.items()
    }
    for name, part in parts.items():
        if outcome not in part.columns:
            there = ", ".join(part.columns) or "none"
            raise PcvError(
                f"model '{name}': its outcome '{outcome}' is not in the data ({there}); give them "
                "by data=..."
            )
        if np.ndim(part.columns[outcome]) != 1:
            shape = np.shape(part.columns[outcome])
            raise PcvError(
                f"data: the outcome '{outcome}' has shape {shape}; give a flat array, a value for "
                "each row"
            )
        own = models[name]
        holds_its_own = isinstance(own, Model) and own.data is not None and outcome in given
        if holds_its_own and not np.array_equal(np.ravel(given[outcome]), part.columns[outcome]):
            sizes = len(part.columns[outcome]), np.size(given[outcome])
            raise PcvError(
                f"model '{name}' was made with {sizes[0]} values of '{outcome}', and data=... has "
                f"{'others' if sizes[0] == sizes[1] else sizes[1]}; make the model of these data"
            )
        if name == first:
            continue
        same = np.array_equal(part.columns[outcome], parts[first].columns[outcome])
        if not same or part.units != parts[first].units:
            raise PcvError(
                f"models '{first}' and '{name}' were made with different values, or units, of "
                f"'{outcome}'; they cannot share folds"
            )
    return _agreed(models, parts, given)


def _agreed(
    models: Mapping[str, Model | Target],
    parts: Mapping[str, Observations],
    given: Mapping[str, np.ndarray],
) -> Observations:
    """The first model's rows, with the columns on which all models agree.

    Front-end models hold their own values, and keep them for columns that are left out here.
    """
    first, *_ = parts.values()
    columns: dict[str, np.ndarray] = {}
    owner: dict[str, str] = {}
    differ = set()
    for name, part in parts.items():
        for column, x in part.columns.items():
            there = columns.setdefault(column, x)
            other = owner.setdefault(column, name)
            if there is x or np.array_equal(there, x):
                continue
            differ.add(column)
            if column in given and any(
                isinstance(m, Model) and not m.data for m in models.values()
            ):
                raise PcvError(
                    f"models '{other}' and '{name}' have different values of column '{column}', "
                    "and one of them reads it from data=...; rename it there"
                )
    agreed = {name: x for name, x in {**given, **columns}.items() if name not in differ}
    of_rows = (*first.order, *first.units, *first.labels.values())
    renamed = {name: f"{name}_of_unit" if name in differ else name for name in of_rows}
    return Observations(
        agreed | {new: first.columns[name] for name, new in renamed.items()},
        tuple(renamed[name] for name in first.order),
        tuple(renamed[name] for name in first.units),
        {renamed[name]: renamed[label] for name, label in first.labels.items()},
    )


def rows(observed: Observations, outcome: str) -> xr.Dataset:
    """Arrays of the outcome's length as columns, all others as constants, sorted by name."""
    columns = dict(sorted(observed.columns.items()))

    def dims(name: str, x: Any) -> list[str]:
        if np.shape(x) == np.shape(columns[outcome]):
            return [free("row", columns)]
        return [free(f"{name}_{axis}", columns) for axis in range(np.ndim(x))]

    return xr.Dataset({name: (dims(name, x), np.asarray(x)) for name, x in columns.items()})


def write(path: Path, data: xr.Dataset | xr.DataTree) -> None:
    """Write an input, unless an identical one is there."""
    with suppress(OSError, ValueError, LookupError, TypeError):  # missing or damaged
        if isinstance(data, xr.Dataset) and store.opened(path).identical(data):
            return
        if isinstance(data, xr.DataTree) and data.identical(xr.open_datatree(path, engine="zarr")):
            return
    store.put(path, data, mode="w")


def _unit_of_row(observed: Observations, outcome: str) -> np.ndarray:
    """The index of each row's unit, as in `model_data` up to the order of units."""
    if not observed.units:
        return np.arange(len(observed.columns[outcome]))
    units = pd.DataFrame({name: observed.columns[name] for name in observed.units})
    return np.asarray(units.groupby(list(observed.units), sort=False).ngroup())


def _num_units(observed: Observations, outcome: str) -> int:
    return int(_unit_of_row(observed, outcome).max(initial=-1)) + 1


def scheme(folds: Any, observed: Observations, outcome: str) -> tuple[dict[str, Any], Folds | None]:
    """A scheme in config terms, or folds that are already laid out."""
    if isinstance(folds, Mapping):
        return dict(folds), None
    if isinstance(folds, str):
        if folds not in SCHEMES:
            hint = nearest(folds.lower(), SCHEMES, "there are 'loo', 'kfold', pcv.kfold(...)")
            if folds in config.SCHEMES and folds in pcv.__all__:
                hint = f"it needs more than its name: pcv.{folds}(...)"
            raise PcvError(f"folds {folds!r}; {hint}")
        return SCHEMES[folds], None
    if not isinstance(folds, Folds):
        if isinstance(folds, Sequence):
            _check_pairs(folds)
            folds = _Pairs(folds)
        if not hasattr(folds, "split"):
            raise PcvError(
                f"folds is {type(folds).__name__}; give 'loo', Folds such as pcv.kfold(...), a "
                "scikit-learn splitter or its pairs, or a scheme of a config"
            )
        number = _num_units(observed, outcome)
        if isinstance(folds, _Pairs):
            _check_reach(folds, number)
        y = observed.columns[outcome] if not observed.units else None
        try:
            folds = from_splitter(folds, number, y)
        except PcvError:
            raise
        except Exception as error:
            raise PcvError(
                f"folds: {type(folds).__name__}.split fails: {in_one_line(error)}; one that takes "
                "groups can give its pairs: folds=list(splitter.split(X, y, groups))"
            ) from error
    if folds.num_units is None:
        _warn_of_a_rest(folds, _num_units(observed, outcome))
    return {}, folds


class _Pairs(NamedTuple):
    """Pairs of training and test indices, posing as a splitter."""

    pairs: Sequence[Any]

    def split(self, x: Any, y: Any = None, groups: Any = None) -> Iterator[Any]:
        return iter(self.pairs)


def _check_pairs(folds: Sequence[Any]) -> None:
    """Refuse a list of test sets alone."""
    for i, pair in enumerate(folds):
        if not np.iterable(pair) or [np.ndim(part) for part in pair] != [1, 1]:
            raise PcvError(
                f"folds[{i}] is not a pair of training and test indices; give "
                "folds=[(train, test), ...], or each unit's fold as a column: "
                "folds={'scheme': 'column', 'column': ...}"
            )


def _check_reach(folds: _Pairs, num_units: int) -> None:
    """Refuse pairs made for fewer units: the last units would be neither trained on nor tested."""
    reach = 0
    with suppress(ValueError, TypeError):  # `from_splitter` reports malformed pairs
        reach = max(int(np.max(units, initial=-1)) for pair in folds.pairs for units in pair) + 1
    if 0 < reach < num_units:
        raise PcvError(
            f"folds: the pairs cover {reach} units, but the data have {num_units}; make them for "
            f"these {num_units}, in the order of the data"
        )


def _warn_of_a_rest(folds: Folds, num_units: int) -> None:
    """Warn of folds without `num_units` that seem to be made for fewer units."""
    used = max(int(folds.test.max()) + 1, int(folds.held_out.max()))
    if used < num_units:
        warnings.warn(
            f"folds test none of the last {num_units - used} of {num_units} units, and always "
            "train on them: were they made for fewer units?",
            stacklevel=2,
        )
