"""A test set that was never part of the data: its scores, and a table beside cross-validation."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import xarray as xr

from pcv.analysis.results import held_out
from pcv.api import calls
from pcv.api.calls import Call
from pcv.api.comparisons import check_joint
from pcv.api.cross_validation import cv_of
from pcv.api.result import CV
from pcv.base import devices
from pcv.base.errors import PcvError, kind_of
from pcv.core.fit import fit as fit_model
from pcv.core.held_out import score_new_data
from pcv.core.problem import Problem
from pcv.folds.base import as_dataset, from_sets
from pcv.folds.schemes import FoldsOfFile
from pcv.models.frontends import as_model
from pcv.models.model import Model
from pcv.models.observations import append_rows, observations, rows
from pcv.models.scores import Score
from pcv.pipeline.data import tables

FOLD = "new data"
"""name of the test set"""
HOW = (
    "give pcv.from_numpyro(function, data), or a function that makes the model of data: "
    "pcv.score(function, new_data, data=...)"
)


def score(
    model: Any,
    new_data: Any,
    *,
    data: Any = None,
    fit: Any = None,
    scores: str | Score | Sequence[Any] = ("log",),
    predictions: int = 400,
    joint: bool = False,
    predictive: str = "auto",
    seed: int = 0,
    precision: str = "float64",
    cores: int | None = None,
    progress: bool = True,
) -> Any:
    r"""How well a model predicts a test set that was never part of the data.

    .. math:: \mathrm{elpd} = \sum_i \log \frac{1}{S} \sum_s p(\tilde y_i \mid \theta_s), \qquad
              \mathrm{elpd}_\mathrm{joint} = \log \frac{1}{S} \sum_s p(\tilde y \mid \theta_s),
              \qquad \theta_s \sim p(\theta \mid y)

    for new outcomes :math:`\tilde y`. This is cross-validation with one fold: the new rows are
    appended to the data, one fold tests them, and its draws are those of the full-data posterior.
    Rows of known groups, and the steps after a series, are predicted as such. Effects of new groups
    are drawn given the other parameters, or integrated out. What a model computes from all rows,
    such as a mean of a covariate, would change with the new ones, and is refused: compute it from
    the data, and pass it on.

    Args:
        model: the result of `from_numpyro`, whose outcome is an argument of its function; or a
            function of the data, arrays by name, that returns a model of NumPyro or PyMC or a
            `pcv.Model`, as in a config. Or a dict of several.
        new_data: the test set, with its outcome: a table, or arrays by name, with a row per
            observation, of the columns that the data have. New groups are numbered after the
            others. Other arguments of the model, such as the number of groups, replace their old
            values.
        data: the data of the posterior, a table or arrays by name, if `model` is a function.
        fit: the posterior of the data: what `pcv.fit` or `pcv.cross_validate` returns, or draws of
            another sampler as an ArviZ DataTree, or a dict of one per model; or settings of a fit,
            as in `pcv.cross_validate`. Draws are checked. None: the model is fitted.
        scores, predictions, predictive, seed, precision, cores, progress: as for
            `pcv.cross_validate`.
        joint: which score to show, that of each unit (False) or of the test set as a whole (True),
            which has no SE. Both are computed.

    Returns:
        `CV` of one fold, or a dict of them for `pcv.compare`. Its SE is over units, its MCSE by
        batches of draws.

    Raises:
        PcvError: what is wrong with the model, the data or the posterior.

    >>> import numpyro, numpyro.distributions as dist
    >>> def coin(y):
    ...     p = numpyro.sample("p", dist.Beta(2, 2))
    ...     with numpyro.plate("toss", len(y)):
    ...         numpyro.sample("y", dist.Bernoulli(p), obs=y)
    >>> from pcv import from_numpyro
    >>> tosses = from_numpyro(coin, {"y": np.array([0, 1, 1, 1, 0, 1])})
    >>> test = score(tosses, {"y": np.array([1, 0])}, progress=False)
    >>> round(test.elpd, 1), len(test.table())                 # log .6 + log .4
    (-1.4, 2)
    """
    check_joint(joint)
    given = model if isinstance(model, Mapping) else {"model": model}
    sections = {"predictive": predictive, "scores": scores, "predictions": predictions}
    of_call = seed, precision, None, cores, progress
    cvs = {}
    for name, one in given.items():
        pair = _pair(one, data, new_data, f"model '{name}'")
        asked = {**sections, "estimator": "own", "fit": _fit_of(fit, name)}
        with calls.prepared(pair.model, None, pair.data, asked, *of_call) as call:
            cvs[name] = _score_one(call, pair, joint).renamed(name)
    return cvs if isinstance(model, Mapping) else cvs["model"]


class _Pair(NamedTuple):
    """A model of the data, and of the data with the new rows at their end."""

    model: Model
    data: Any
    """None: the model holds them"""
    appended: Model
    whole: Any


def _pair(model: Any, data: Any, new_data: Any, where: str) -> _Pair:
    """The model with and without the new rows.

    Raises:
        PcvError: it cannot be made of other data.
    """
    with devices.precision("float64"):
        if isinstance(model, Model) and model.append is not None:
            if data is not None:
                raise PcvError(f"{where} holds its data; leave data out")
            return _Pair(model, None, model.append(new_data), None)
        if as_model(model) is not None or not callable(model):
            holds = "holds its data" if callable(model) or as_model(model) else "cannot be used"
            raise PcvError(f"{where} ({kind_of(model)}) {holds}; {HOW}")
        if data is None:
            raise PcvError(f"{where} is a function; give the data of its posterior: data=...")
        arrays = {str(name): np.asarray(data[name]) for name in data}
        first = _build(model, arrays, where)
        outcome = first.outcome.name
        values = (first.data.columns if first.data else arrays).get(outcome)
        if values is None:
            raise PcvError(f"{where}: its outcome '{outcome}' is not in the data")
        count = len(arrays.get(outcome, values))
        whole = append_rows(arrays, new_data, count, outcome)
        second = _build(model, whole, where)
    held = first.data is not None
    return _Pair(first, None if held else arrays, second, None if held else whole)


def _build(build: Callable[[Any], Any], data: Mapping[str, Any], where: str) -> Model:
    """What the user's function makes of data."""
    found = as_model(build(data))
    if not isinstance(found, Model):
        raise PcvError(f"{where}: its function gives no model of units; {HOW}")
    return found


def _fit_of(fit: Any, name: str) -> Any:
    """The posterior of a model, or settings of its fit."""
    if isinstance(fit, Mapping) and isinstance(fit.get(name), CV | xr.DataTree):
        fit = fit[name]
    if isinstance(fit, CV):
        return fit.tree
    return {} if fit is None else fit


def _score_one(call: Call, pair: _Pair, joint: bool) -> CV:
    """The test set's scores."""
    ((name, problem),) = call.problems.items()
    monitor = call.monitor.of(f"fit {name}")
    fit = fit_model(problem, call.settings.fit, monitor, call.draws.get(name), tune=False)
    observed = observations({name: pair.appended}, pair.whole)
    table, arrays = tables.stacked(rows(observed, problem.outcome), problem.outcome, "new_data")
    units = tables.make_data(table, arrays, call.settings.data, "new_data")
    old, new = problem.num_units, units.sizes["unit"]
    layout = as_dataset(from_sets([FOLD], [np.arange(old, new)], None, new))
    of_new = Problem(
        problem.name,
        lambda arrays: pair.appended,
        units,
        problem.outcome,
        layout,
        problem.predictive,
        problem.scores,
        problem.seed,
    )
    scheme = FoldsOfFile(scheme="file", file=FOLD)
    settings = call.settings.model_copy(update={"folds": scheme})
    result = score_new_data(problem, of_new, fit, settings, call.monitor.of(f"score {name}"))
    return cv_of(of_new, result, scheme, joint)


def compare_sets(cv: CV, test: CV | None = None) -> pd.DataFrame:
    r"""In-sample, cross-validated and test-set scores of a model, per unit.

    .. math:: \frac1n \sum_i \log p(y_i \mid y), \qquad
              \frac1n \sum_i \log p(y_i \mid y_{\mathrm{train}}), \qquad
              \frac1m \sum_j \log p(\tilde y_j \mid y)

    The first is too high, as it is of the data that the posterior has seen; its **optimism** over
    leave-one-out is p/n, with the effective number of parameters p. The second and third estimate
    the same for new units like the old ones; if they differ by much more than their errors, the
    test set is unlike the data.

    Args:
        cv: cross-validation of the data.
        test: of `score`, for the same model; None: two rows, and their difference.

    Returns:
        One row per set and per difference: ``n_units``, ``elpd`` (nats per unit), ``se`` and
        ``mcse``. The difference in-sample − cross-validated is paired over units; the test set is
        independent of the data. In-sample scores are NaN where `CV.p` is for want of log
        likelihoods: targets, more than 512 MiB, the marginal predictive.

    Raises:
        PcvError: a subsample; scores of different outcomes; `test` is not of `score`.
    """
    if not isinstance(cv, CV):
        raise PcvError(f"compare_sets: cv is {kind_of(cv)}; give what cross_validate returns")
    if test is None:
        return held_out.sets(cv.tree, None)
    if not isinstance(test, CV) or test.diagnostics["fold"].values.tolist() != [FOLD]:
        raise PcvError("compare_sets: test is not what pcv.score returns")
    outcomes = [x.diagnostics.attrs["outcome"] for x in (cv, test)]
    if outcomes[0] != outcomes[1]:
        raise PcvError(f"compare_sets: different outcomes, {' and '.join(outcomes)}")
    return held_out.sets(cv.tree, test.tree)
