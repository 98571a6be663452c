"""What a call from Python is given: models, scores, folds, and draws used as fits."""

import uuid
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pcv.base.errors import PcvError, kind_of, nearest
from pcv.base.section import OBJECT
from pcv.folds.base import Folds, of_present
from pcv.folds.checks import some
from pcv.folds.schemes import SCHEMES
from pcv.folds.splitters import from_object
from pcv.models.frontends import as_model
from pcv.models.model import Model, Observations, Target
from pcv.models.observations import num_units
from pcv.models.scores import Score

AnyModel = Any
"""a `pcv.Model` or `pcv.Target`, or a model of PyMC or Bambi"""
BY_NAME: dict[str, dict[str, Any]] = {
    "loo": {"scheme": "leave_one_out"},
    "kfold": {"scheme": "k_fold", "k": 10},
}
"""schemes that need no arguments"""


def models_of(model: AnyModel | Mapping[str, AnyModel]) -> dict[str, Model | Target]:
    """The models of a call by their names; a single one is named "model"."""
    if not isinstance(model, Mapping):
        return {"model": _model(model, "the model")}
    if not model:
        raise PcvError("no models; give one, or several by their names")
    if "" in model:
        raise PcvError("a model needs a name, and one has ''")
    return {name: _model(x, f"model '{name}'") for name, x in model.items()}


def _model(given: AnyModel, which: str) -> Model | Target:
    model = as_model(given)
    if model is None:
        hint = (
            "pcv.from_numpyro(function, data), pcv.from_stan(file, data, outcome), a model of "
            "PyMC or Bambi, or a pcv.Model"
        )
        raise PcvError(f"{which} is {kind_of(given)}; give {hint}")
    return model


def scores_of(
    scores: str | Score | Sequence[Any], results: str | Path | None = None
) -> tuple[list[str], dict[str, Score]]:
    """Names of scores, and `Score` objects by their names in settings: what functions in Python
    compute cannot be hashed reliably."""
    scores = [scores] if isinstance(scores, str | Score) else scores
    names: list[str] = []
    objects: dict[str, Score] = {}
    for score in scores:
        if isinstance(score, Score):
            if any(x.key == score.key and x is not score for x in objects.values()):
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
            unlike_others = "" if results is None else uuid.uuid4().hex
            objects[f"{OBJECT}{score.key} {unlike_others}".rstrip()] = score
        elif isinstance(score, str):
            names.append(score)
        else:
            raise PcvError(f"scores: {type(score).__name__} is neither a name nor a pcv.Score")
    return names, objects


def scheme_of(
    folds: Any, observed: Observations, outcome: str, public: Sequence[str]
) -> tuple[dict[str, Any], Folds | None]:
    """The keys of a scheme; or folds that are already laid out.

    Args:
        folds: of the call.
        observed: the rows of the data.
        outcome: name of their outcome.
        public: names of the package, among them those of functions that make folds.
    """
    if isinstance(folds, Mapping):
        return dict(folds), None
    if isinstance(folds, str):
        if folds not in BY_NAME:
            hint = nearest(folds.lower(), BY_NAME, "there are 'loo', 'kfold', pcv.kfold(...)")
            if folds in SCHEMES and folds in public:
                hint = f"it needs more than its name: pcv.{folds}(...)"
            raise PcvError(f"folds {folds!r}; {hint}")
        return BY_NAME[folds], None
    key = {"scheme": "file", "file": f"{OBJECT}folds"}
    times = observed.times
    if isinstance(folds, Folds) and times is not None and folds.num_units == times.size:
        of_units = of_present(folds, times)
        if (lost := ~np.isin(folds.id, of_units.id)).any():
            warnings.warn(
                "folds whose outcomes are all missing, or count 0 times, are left out: "
                + some(folds.id[lost]),
                stacklevel=2,
            )
        return key, of_units
    y = observed.columns[outcome] if not observed.units else None
    return key, from_object(folds, num_units(observed, outcome), y)
