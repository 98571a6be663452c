"""Observed arrays as table rows, and their elements as units."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from pcv.base.errors import PcvError, nearest
from pcv.folds.columns import RESERVED
from pcv.models.model import Observations


class Layout(NamedTuple):
    """The dimensions of an observed array."""

    dims: tuple[str, ...]
    """along which it has log-likelihood terms"""
    inner: tuple[str, ...]
    """within a term, for vector outcomes"""
    shape: tuple[int, ...]
    """of all dimensions"""
    labels: Mapping[str, np.ndarray] = {}
    """element names along some dimensions; others count from 0"""

    def by_unit(
        self, terms: Float[Array, " *dims"], units: tuple[str, ...]
    ) -> Float[Array, " unit"]:
        """Terms summed over all dimensions but the units', in unit order."""
        if self.dims == units:
            return jnp.ravel(terms)
        terms = jnp.broadcast_to(terms, self.shape[: len(self.dims)])
        others = tuple(axis for axis, name in enumerate(self.dims) if name not in units)
        kept = [name for name in self.dims if name in units]
        return jnp.ravel(jnp.transpose(terms.sum(others), [kept.index(name) for name in units]))

    def by_row(self, terms: Bool[np.ndarray, " *dims"]) -> Bool[np.ndarray, " row"]:
        """What holds for each term, for each value."""
        inner = terms.reshape(terms.shape + (1,) * len(self.inner))
        return np.ravel(np.broadcast_to(inner, self.shape))


def common_units(
    layouts: Mapping[str, Layout], units: str | Sequence[str] | None, where: str
) -> tuple[str, ...]:
    """The dimensions whose elements are the units.

    Args:
        layouts: of the observed variables.
        units: one or several dimensions; None: those that all variables share.
        where: the model, for messages.

    Raises:
        PcvError: a variable lacks a dimension, or the variables share none.
    """
    units = (units,) if isinstance(units, str) else tuple(units or ())
    for name in units:
        lacking = [variable for variable, x in layouts.items() if name not in x.dims]
        if lacking:
            known = layouts[lacking[0]].dims
            hint = nearest(name, known, f"there are {', '.join(known)}")
            raise PcvError(f"{where}: units '{name}' is not a dimension of '{lacking[0]}'; {hint}")
    if units:
        return units
    first, *others = layouts.values()
    shared = tuple(name for name in first.dims if all(name in x.dims for x in others))
    if not shared:
        listed = " and ".join(f"'{name}' ({', '.join(x.dims)})" for name, x in layouts.items())
        raise PcvError(
            f"{where}: {listed} share no dimension; give them the same one (a plate, or dims=...), "
            "whose elements are left out together"
        )
    return shared


def observations(
    outcome: str,
    observed: Mapping[str, np.ndarray],
    layouts: Mapping[str, Layout],
    units: tuple[str, ...],
    known: Mapping[str, Any],
    columns: Mapping[str, Any],
    where: str,
) -> Observations:
    """One row per value of the observed variables.

    Args:
        outcome: name of the column of values.
        observed, layouts: values of the variables, and their dimensions.
        units: dimensions whose elements are the units.
        known: arguments of the model; those with a value or a row per observed value are kept.
        columns: further columns, with one value per row.
        where: the model, for messages.

    Raises:
        PcvError: a column has the wrong size, or missing values.
    """
    dims = list(dict.fromkeys(name for x in layouts.values() for name in (*x.dims, *x.inner)))
    rows: dict[str, list[np.ndarray]] = {name: [] for name in dims}
    for layout in layouts.values():
        places = dict(zip((*layout.dims, *layout.inner), np.indices(layout.shape)))
        size = int(np.prod(layout.shape))
        for name in dims:
            place = np.ravel(places[name]) if name in places else np.zeros(size, int)
            rows[name].append(place)
    values = np.concatenate([np.ravel(x) for x in observed.values()])
    named = {name: x for layout in layouts.values() for name, x in layout.labels.items()}
    unsorted = {name for name, x in named.items() if not (x[:-1] < x[1:]).all()}
    taken = {*RESERVED, outcome, *known, *columns}
    plain = {name: name.strip("_") or name for name in dims}  # Bambi's is __obs__
    of_dim = {
        name: f"{short}_index" if short in taken or name in unsorted else short
        for name, short in plain.items()
    }
    labels = {
        of_dim[name]: f"{short}_name" if short in taken else short
        for name, short in plain.items()
        if name in unsorted
    }
    table = {outcome: values}
    for name, key in of_dim.items():
        place = np.concatenate(rows[name])
        table[key] = named[name][place] if name in named and name not in unsorted else place
        if key in labels:
            table[labels[key]] = named[name][place]
    order = list(of_dim.values())
    if len(observed) > 1:
        sizes = [np.size(x) for x in observed.values()]
        table["variable"] = np.repeat(np.arange(len(sizes)), sizes)
        order = ["variable", *order]
    for name, x in known.items():
        if name in (*RESERVED, outcome):
            continue
        column = _column(x, observed)
        if column is not None:
            table[name] = column
        elif len(observed) == 1 and np.ndim(x) > 1 and len(x) == values.size:
            table[name] = np.asarray(x)
    for name, x in columns.items():
        column = _column(x, observed)
        if column is None:
            raise PcvError(
                f"{where}: column '{name}' must have a value for each of the {values.size} "
                f"observations, without missing ones; it has shape {np.shape(x)}"
            )
        table[name] = column
    whole = len(observed) == 1 and len(units) == len(dims)
    by = () if whole else tuple(of_dim[name] for name in units)
    copies = {name: np.array(x) for name, x in table.items()}  # users change theirs in place
    return Observations(copies, tuple(order), by, labels)


def _column(x: Any, observed: Mapping[str, np.ndarray]) -> np.ndarray | None:
    """The argument as a column, if it aligns with the only observed variable."""
    first = next(iter(observed.values()))
    array = np.asarray(x)
    if len(observed) > 1 or array.shape not in (first.shape, (first.size,)):
        return None
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        return None
    return np.ravel(array) if array.dtype.kind in "biufUSOMT" else None
