"""Observed variables of PyMC models with missing values, which PyMC splits in two: ``y_observed``,
and ``y_unobserved``, which is a parameter."""

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import pymc as pm
from jaxtyping import Array, Bool
from pytensor.graph.basic import Constant
from pytensor.graph.traversal import ancestors

from pcv.base.errors import PcvError
from pcv.models.frontends.graphs import content


class Partly(NamedTuple):
    """An observed variable, some of whose values may be missing."""

    values: np.ndarray
    """all of them, NaN where they are missing"""
    there: Bool[np.ndarray, "..."]
    """which of its terms are observed"""
    is_split: bool
    """whether the model has the observed ones alone, along one dimension"""
    dtype: str

    def given(self, x: Any) -> Array:
        """Values as the model takes them."""
        return jnp.asarray(x[self.there] if self.is_split else x, self.dtype)

    def terms(self, found: Array) -> Array:
        """All terms, 0 where they are missing."""
        if not self.is_split:
            return found
        return jnp.zeros(self.there.shape).at[self.there].set(jnp.ravel(found))

    def rows(self, found: Array) -> Array:
        """Values of all rows, 0 where the model has none."""
        if not self.is_split:
            return found
        some = jnp.reshape(found, self.values[self.there].shape)
        return jnp.ravel(jnp.zeros(self.values.shape).at[self.there].set(some))


def name_of(model: pm.Model, rv: Any) -> str:
    """The name of an observed variable, without what PyMC adds where it splits it."""
    name: str = rv.name.removesuffix("_observed")
    is_split = name in model.named_vars and f"{name}_unobserved" in model.named_vars
    return name if is_split else rv.name


def partly(model: pm.Model, rv: Any, where: str) -> Partly:
    """The values of an observed variable.

    Raises:
        PcvError: parts of a vector outcome are missing; or there is NaN that PyMC does not impute.
    """
    value, name, inner = model.rvs_to_values[rv], name_of(model, rv), rv.owner.op.ndim_supp
    values = np.asarray(content(value))
    if values.dtype.kind == "f" and np.isnan(values).any():
        raise PcvError(
            f"{where}: '{name}' is NaN at {np.argwhere(np.isnan(values))[0].tolist()}, as pm.Data "
            "may be; give the values as observed=, so that PyMC imputes those that are missing"
        )
    if name == rv.name:
        there = np.ones(values.shape[: values.ndim - inner], bool)
        return Partly(values, there, False, value.type.dtype)
    there = _mask(model[name], rv)
    whole = np.full(there.shape + values.shape[1:], np.nan)
    whole[there] = values
    if there.ndim > whole.ndim - inner:
        raise PcvError(
            f"{where}: parts of an outcome of '{name}' are missing, and its density does not "
            "split; drop these outcomes, or give each part a density of its own"
        )
    return Partly(whole, there, True, value.type.dtype)


def _mask(joined: Any, rv: Any) -> Bool[np.ndarray, "..."]:
    """Where the observed values stand among all."""
    nodes = [x.owner for x in ancestors([joined]) if x.owner is not None]
    node = next(x for x in nodes if any(part is rv for part in x.inputs))
    masks = [x.data for x in node.inputs if isinstance(x, Constant) and x.type.dtype == "bool"]
    return np.asarray(masks[0])
