"""The base of all schemes of a config: what they have in common, and what folds are made from."""

import importlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple

from pydantic import Field

from pcv.base.errors import PcvError, key_path
from pcv.base.section import Section

if TYPE_CHECKING:
    import numpy as np
    import xarray as xr

    from pcv.folds.base import Folds
    from pcv.folds.space import Places

GROUPS = "python group"
"""column of groups that a Python session gives as an array"""


JOINT_GROUPS = "python joint group"
"""column of groups to score jointly that a Python session gives as an array"""


def shown(name: str) -> str:
    """A column's name in words: groups of a Python session have none of their own."""
    return "group" if name in (GROUPS, JOINT_GROUPS) else name


class Table(NamedTuple):
    """What folds are made from: the units and their columns."""

    data: "xr.Dataset"
    """as `pcv.pipeline.data.tables.make_data` returns it"""
    seed: int = 0
    """of the config; random schemes draw from (seed, "folds") alone"""
    order: "xr.Dataset | None" = None
    """in which the terms of a subsample are chosen; None: at random"""

    @property
    def units(self) -> list[str]:
        return self.data["unit"].values.tolist()

    def column(self, key: str, name: str) -> "np.ndarray":
        from pcv.folds.columns import unit_column

        return unit_column(self.data, name, key_path(("folds", key)))

    def optional(self, key: str, name: str | None) -> "np.ndarray | None":
        return None if name is None else self.column(key, name)


class Scheme(Section):
    """Base of all schemes; `scheme` is the name in a config."""

    words: ClassVar[str]
    """template of the title, with keys in braces"""
    function: ClassVar[str]
    """in `pcv.folds`; its arguments are the units and the keys"""
    left_out: ClassVar[Literal["gap", "not used"]] = "gap"
    """name for units neither tested nor trained on"""

    @property
    def from_full_data(self) -> bool:
        """Whether folds are scored from the full-data fit, at least where that is good."""
        return False

    @property
    def samples(self) -> bool:
        """Whether any folds may be sampled."""
        return True

    @property
    def title(self) -> str:
        """In words, printed before `describe` of the folds."""
        return self.words.format(**dict(self))

    def lay_out(self, table: Table) -> "Folds":
        module, name = self.function.split(".")
        lay_out = getattr(importlib.import_module(f"pcv.folds.{module}"), name)
        return lay_out(table.units, **self.model_dump(exclude={"scheme", "time"}))

    def described(self, table: Table) -> "xr.Dataset | None":
        """What else ``folds.zarr`` has of each fold."""
        return None

    def laid_out(self, table: Table) -> "xr.Dataset":
        """All folds, as ``folds.zarr`` holds them."""
        from pcv.folds.base import as_dataset
        from pcv.folds.schemes import make

        layout, more = as_dataset(make(self, table)), self.described(table)
        return layout if more is None else layout.merge(more)

    def doubts(self, folds: "Folds", num_units: int) -> Iterator[str]:
        """Warnings about settings that were probably not intended."""
        yield from ()

    def series(self, table: Table) -> "np.ndarray | None":
        """The series of each unit; None: the scheme knows of none."""
        return None

    def places(self, table: Table) -> "Places | None":
        """Where units are, for schemes with coordinates."""
        return None


class FromFullData(Scheme):
    """Base of schemes whose folds may be scored from the full-data fit alone."""

    exact: Literal["auto", "psis", "folds"] = "folds"  # PSIS where it is good, everywhere, nowhere
    good_k: Annotated[float, Field(gt=0)] | None = None  # None: by the number of draws

    @property
    def from_full_data(self) -> bool:
        return self.exact != "folds"

    @property
    def samples(self) -> bool:
        return self.exact != "psis"


def with_groups(
    units: "xr.Dataset",
    groups: Any,
    column: str = GROUPS,
    key: tuple[str, ...] = ("folds", "group"),
) -> "xr.Dataset":
    """The data with a column of groups that a Python session gives as an array."""
    from pcv.folds.checks import complete

    place, number = key_path(key), units.sizes["unit"]
    if len(groups) != number:
        raise PcvError(f"{place} has {len(groups)} values; give one for each of the {number} units")
    return units.assign({column: ("unit", complete(groups, place, units["unit"].values))})
