"""Bambi models, converted through PyMC, with the columns of their data."""

import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import pandas as pd
from jaxtyping import Array, Float

from pcv.base.errors import PcvError
from pcv.folds.columns import RESERVED
from pcv.models.frequencies import with_frequencies
from pcv.models.frontends.graphs import content
from pcv.models.frontends.pymc import from_pymc
from pcv.models.model import Model, Params

ORDERED = {"cumulative": True, "sratio": True, "categorical": False}
"""families of categories → whether these are ordered"""


def from_bambi(
    model: Any, *, units: str | Sequence[str] | None = None, weights: Any = None
) -> Model:
    """A Bambi model, conditioned on its data, for cross-validation.

    Folds can name columns of its data frame: ``{"scheme": "leave_one_group_out",
    "group": "county"}``. Whatever the model computes from all data (splines, centring, priors
    scaled by the data) is the same in every fold as in the full-data fit. Intercepts are reported
    as Bambi reports them, for predictors that are not centred; its fits can be given as `fit`.

    Args:
        model: `bambi.Model`; built if necessary.
        units, weights: as for `from_pymc`.

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
    converted = _as_reported(from_pymc(made, units=units, columns=table), model)
    if model.family.name in ORDERED:
        outcome = converted.outcome._replace(ordered=ORDERED[model.family.name])
        converted = converted._replace(outcome=outcome)
    if model.response_term.is_weighted:
        weighted = f"scores of '{response}' are of its log density times its weights (weighted)"
        converted = converted._replace(notes=[weighted])
    return with_frequencies(converted, weights, "Bambi model")


class Centred(NamedTuple):
    """A linear predictor whose common terms Bambi centres."""

    intercept: str
    terms: dict[str, Float[np.ndarray, " column"]]
    """means of the columns of each term"""


def _as_reported(converted: Model, model: Any) -> Model:
    """The model with the posterior's variables as Bambi reports them.

    Bambi's model has the intercept of centred predictors, and reports the one of the predictors as
    they are. It leaves out the standardised effects of groups, which are ``effect / sd``.
    """
    parts = model.conditional_parameters.values()
    centred = [
        Centred(_label(x.intercept_term), {_label(term): _means(term) for term in terms})
        for x in parts
        if x.intercept_term and model.center_predictors and (terms := x.common_terms.values())
    ]
    of_groups = [term for x in parts for term in x.group_specific_terms.values()]
    effects = {
        _label(term): f"{_label(term)}_{term.hyperprior_alias.get('sigma', 'sigma')}"
        for term in of_groups
    }
    constrain, back = converted.constrain, converted.unconstrain

    def moved(variables: Mapping[str, Array], sign: int) -> dict[str, Array]:
        shifts = {x.intercept: sign * _shift(x, variables) for x in centred}
        return {**variables, **{name: variables[name] + x for name, x in shifts.items()}}

    def reported(params: Params) -> Mapping[str, Array]:
        return moved(constrain(params), -1)

    def unconstrain(variables: Mapping[str, Array]) -> Params:
        assert back is not None
        standardised = {
            f"{effect}_offset": variables[effect] / variables[sd]
            for effect, sd in effects.items()
            if {effect, sd} <= set(variables)
        }
        return back({**standardised, **moved(variables, 1)})

    return converted._replace(constrain=reported, unconstrain=back and unconstrain)


def _shift(centred: Centred, variables: Mapping[str, Array]) -> Float[Array, "..."]:
    """The linear predictor at the means of its common terms."""
    parts = [
        means @ jnp.reshape(variables[name], (len(means), -1))
        for name, means in centred.terms.items()
    ]
    return jnp.reshape(sum(parts), jnp.shape(variables[centred.intercept]))


def _means(term: Any) -> Float[np.ndarray, " column"]:
    return np.atleast_1d(np.asarray(term.data, float).mean(axis=0))


def _label(term: Any) -> str:
    return str(term.alias or term.name)


def _named(formula: str) -> set[str]:
    from formulae import model_description

    names: set[str] = model_description(formula).var_names
    return names


def _usable_in_folds(name: str, column: pd.Series) -> bool:
    """Whether folds can use a column; columns outside the formula may hold anything."""
    kind = np.asarray(column).dtype.kind
    return name not in RESERVED and kind in "biufOUM" and not column.isna().any()
