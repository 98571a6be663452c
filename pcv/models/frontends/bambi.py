"""Bambi models, converted through PyMC, with the columns of their data."""

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from pcv.base.errors import PcvError
from pcv.folds.columns import RESERVED
from pcv.models.frontends.pymc import content, from_pymc
from pcv.models.model import Model

ORDERED = {"cumulative": True, "sratio": True, "categorical": False}
"""families of categories → whether these are ordered"""


def from_bambi(model: Any, *, units: str | Sequence[str] | None = None) -> Model:
    """A Bambi model, conditioned on its data, for cross-validation.

    Folds can name columns of its data frame: ``{"scheme": "leave_one_group_out",
    "group": "county"}``. Whatever the model computes from all data (splines, centring, priors
    scaled by the data) is the same in every fold as in the full-data fit.

    Args:
        model: `bambi.Model`; built if necessary.
        units: as for `from_pymc`.

    Raises:
        PcvError: it is not a Bambi model; or as for `from_pymc`.
    """
    bambi = sys.modules.get("bambi")
    if bambi is None or not isinstance(model, bambi.Model):
        raise PcvError(f"from_bambi: {type(model).__name__} is not a Bambi model; give a bmb.Model")
    if not model.built:
        model.build()
    made = model.backend.model
    size = np.size(content(made.rvs_to_values[made.observed_RVs[0]]))
    response = made.observed_RVs[0].name
    rows = model.data
    if model.dropna:  # drop rows as Bambi does
        kept, *others = (
            rows.dropna(subset=list(rows.columns.intersection(_named(formula))))
            for formula in (model.formula.main, *model.formula.additionals)
        )
        if any(len(other) != len(kept) for other in others):
            raise PcvError(
                "Bambi model: dropna removes different rows for different formulas; remove rows "
                "with missing values from its data first (data.dropna())"
            )
        rows = kept
    table = {
        str(name): np.asarray(column.astype(str) if column.dtype.kind == "O" else column)
        for name, column in rows.items()
        if len(rows) == size and name != response and _usable_in_folds(str(name), column)
    }
    # Bambi reports a different intercept from its model's, which is for centred predictors.
    converted = from_pymc(made, units=units, columns=table)._replace(unconstrain=None)
    if model.family.name in ORDERED:
        outcome = converted.outcome._replace(ordered=ORDERED[model.family.name])
        converted = converted._replace(outcome=outcome)
    if not model.response_term.is_weighted:
        return converted
    weighted = f"scores of '{response}' are of its log density times its weights (weighted)"
    return converted._replace(notes=[weighted])


def _named(formula: str) -> set[str]:
    from formulae import model_description

    names: set[str] = model_description(formula).var_names
    return names


def _usable_in_folds(name: str, column: pd.Series) -> bool:
    """Whether folds can use a column; columns outside the formula may hold anything."""
    kind = np.asarray(column).dtype.kind
    return name not in RESERVED and kind in "biufOUM" and not column.isna().any()
