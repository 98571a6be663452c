"""The mixture of models' predictives: `mixture`."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from jaxtyping import Float

from pcv.analysis import results
from pcv.analysis.alignment import check
from pcv.analysis.results import mixed, predicted
from pcv.analysis.results.comparable import comparable
from pcv.analysis.results.summary import is_subsample
from pcv.analysis.weights import stacking_without
from pcv.api.comparisons import check_joint
from pcv.api.result import CV
from pcv.base.errors import PcvError, kind_of, nearest
from pcv.base.names import name_bits

Weights = Mapping[str, float | int] | pd.Series | Sequence[float | int] | np.ndarray
STACKING = "stacking"
ROUNDING = 1e-6
"""that weights may sum to more or less than 1"""


def mixture(
    models: Mapping[str, CV],
    weights: Weights | str,
    *,
    joint: bool | None = None,
) -> CV:
    r"""How well the mixture of models' predictives predicts unseen data.

    .. math:: \mathrm{elpd} = \sum_j \log \sum_m w_m \, p_m(y_j), \qquad
              \mathrm{MCSE}_j^2 = \sum_m s_{mj}^2 \, \mathrm{MCSE}_{mj}^2, \qquad
              s_{mj} = \frac{w_m p_m(y_j)}{\sum_l w_l p_l(y_j)}

    over folds j (joint: the mixture of the test set's joint densities) or units (pointwise), by the
    delta method. Replicates come from model m with probability :math:`w_m`, those of a fold's units
    from one model; PITs are weighted means of the models'. A mixture is flagged where a model with
    a positive weight is. (Yao, Vehtari, Simpson and Gelman 2018.)

    Weights that are fitted to the scores which they are judged by, as those of stacking are, make
    elpd too high, though less so with more terms. ``"stacking"`` avoids that: the weights of a
    fold maximise the score of the other folds.

    Args:
        models: cross-validations over the same folds of the same data, by the models' names.
        weights: of the models: a Series such as `Comparisons.weights` returns, a dict by name, or a
            sequence in the order of the models; non-negative, with sum 1. Or ``"stacking"``.
        joint: which score to show, and to fit weights to; None: that which the models show.

    Returns:
        `CV` with log scores, predictions, PITs and verdicts. `compare` takes it beside its models:
        there, the MCSE of a difference is too large, as both share draws. It has no other scores,
        no parameters, and no predictions where a model has none or has those of other units.

    Raises:
        PcvError: weights of other models, negative ones, or a sum other than 1; results of other
            folds, data or predictives, of subsamples or of cumulative cross-validation.
    """
    check_joint(joint)
    names, is_joint = _checked(models, joint)
    diagnosed = comparable({name: models[name].tree for name in names}, True, "mixture")
    check([results.scores(d, "joint", "", "") for d in diagnosed.values()])
    if isinstance(weights, str):
        weight = _stacked(diagnosed, weights, is_joint)
    else:
        by_fold = _weights(names, weights)[:, None]
        weight = np.repeat(by_fold, next(iter(diagnosed.values())).sizes["fold"], axis=1)
    some = (weight > 0).any(axis=1)
    names = [name for name, there in zip(names, some) if there]
    found = mixed.diagnostics_of({name: diagnosed[name] for name in names}, weight[some])
    found.attrs["mixture"] = mixed.STACKED if isinstance(weights, str) else mixed.GIVEN
    return _assembled({name: models[name] for name in names}, found, is_joint)


def _checked(models: Mapping[str, CV], joint: bool | None) -> tuple[list[str], bool]:
    """Names of the models, and whether the joint score is shown."""
    if not isinstance(models, Mapping) or not models:
        raise PcvError("mixture: no models by name; give a dict of cross-validations")
    for name, cv in models.items():
        if not isinstance(cv, CV):
            raise PcvError(f"mixture: '{name}' is {kind_of(cv)}, not what cross_validate gives")
        if is_subsample(cv.diagnostics):
            raise PcvError(
                f"mixture: '{name}' scores a subsample, and a mixture needs the scores of all "
                "terms; score them by pcv.loo"
            )
    shown = {cv.joint for cv in models.values()} if joint is None else {joint}
    if len(shown) > 1:
        raise PcvError("mixture: some models show the joint score, some the pointwise; give joint=")
    return list(models), shown.pop()


def _weights(names: Sequence[str], weights: Weights) -> Float[np.ndarray, " model"]:
    """Weights in the order of the models.

    >>> _weights(["a", "b"], {"b": 0.25, "a": 0.75})
    array([0.75, 0.25])
    """
    if isinstance(weights, Mapping | pd.Series):
        of = dict(weights.items())
        for name in of:
            if name not in names:
                raise PcvError(f"mixture: no model {name!r}; {nearest(str(name), names)}")
        if missing := [name for name in names if name not in of]:
            raise PcvError(f"mixture: '{missing[0]}' has no weight; give it one, perhaps 0")
        values: Any = [of[name] for name in names]
    else:
        values = weights
    try:
        w = np.asarray(values, float)
    except (TypeError, ValueError):
        given = kind_of(weights)
        raise PcvError(f"mixture: weights are {given}; give a number for each model") from None
    if w.shape != (len(names),):
        raise PcvError(f"mixture: {w.size} weights of {len(names)} models; give one of each")
    if not (w >= 0).all():
        bad = int(np.argmin(w >= 0))
        raise PcvError(f"mixture: the weight of '{names[bad]}' is {w[bad]:g}; give 0 or more")
    if not abs(w.sum() - 1) <= ROUNDING:
        raise PcvError(f"mixture: weights sum to {w.sum():.6g}; give weights that sum to 1")
    return w


def _stacked(
    models: Mapping[str, xr.Dataset], method: str, joint: bool
) -> Float[np.ndarray, "model fold"]:
    """Weights of each fold, fitted to the other folds."""
    if method != STACKING:
        raise PcvError(f"mixture: weights are {method!r}; give numbers, or 'stacking'")
    scores = [results.scores(d, "joint" if joint else "pointwise", "", "") for d in models.values()]
    first = scores[0]
    if first.overlap is not None:
        raise PcvError(
            "mixture: weights='stacking' needs folds that test each unit once, which these do not; "
            "give weights=pcv.compare(cvs).weights()"
        )
    if len(first.fold) < 3:
        raise PcvError("mixture: weights='stacking' needs three folds or more; give weights")
    return stacking_without(np.array([s.elpd for s in scores]), np.asarray(first.fold_of_term))


def _assembled(models: Mapping[str, CV], found: xr.Dataset, joint: bool) -> CV:
    """The mixture as a `CV`, with what its models share."""
    cvs = list(models.values())
    first, seed = cvs[0].tree, int(cvs[0].tree.attrs["seed"])
    groups = {
        name: first.children[name].to_dataset(inherit=False)
        for name in _SHARED
        if name in first.children
    }
    every = _predictions(cvs, found["weight"].values, seed)
    if every is None:
        found.attrs["predictions"] = mixed.NO_PREDICTIONS
    else:
        groups["predictions"] = every
    tree = xr.DataTree.from_dict({**groups, "diagnostics": found})
    marks = [
        f"'{name}': {mark}"
        for name, cv in models.items()
        for mark in results.listed(cv.tree.attrs["marks"])
    ]
    tree.attrs = {**first.attrs, "marks": marks}
    return CV(tree, joint)


_SHARED = ("observed_data", "constant_data", "folds")
"""groups that all models have alike"""


def _predictions(
    cvs: Sequence[CV], weight: Float[np.ndarray, "model fold"], seed: int
) -> xr.Dataset | None:
    """Those of the mixture; None if the models do not all predict the same units."""
    each = [predicted.predictions_of(cv.tree) for cv in cvs]
    if not all("y_rep" in p for p in each):
        return None
    places = [
        (
            pd.Index(cv.diagnostics["fold"].values.astype(str)).get_indexer(p["of_fold"].values),
            p["row"].values,
        )
        for cv, p in zip(cvs, each)
    ]
    if not all(np.array_equal(x, places[0]) for x in places):
        return None
    same = len({int(cv.tree.attrs["seed"]) for cv in cvs}) == 1
    rng = np.random.default_rng([seed, name_bits("mixture")])
    return mixed.predictions_of_mixture(each, places[0][0], weight, rng, same)
