"""The scheme of cumulative cross-validation: training sets of every size, in random orders."""

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from pcv.base.errors import PcvError
from pcv.folds.sections.scheme import Scheme, Table

if TYPE_CHECKING:
    import xarray as xr

    from pcv.folds.base import Folds


class Cumulative(Scheme):
    """Units taken up one after the other, in random orders; nothing is sampled fold by fold."""

    scheme: Literal["cumulative"]
    splits: Annotated[int, Field(ge=2)] = 64  # random orders
    prepare: Annotated[float, Field(gt=0, lt=1)] = 0.1  # share of units that train first
    particles: Annotated[int, Field(ge=64, multiple_of=16)] = 512  # in each of two sets

    @property
    def samples(self) -> bool:
        return False

    @property
    def title(self) -> str:
        return f"cumulative, {self.splits} random orders"

    def first(self, num_units: int) -> int:
        """Number of units that prepare: the least training set of the cumulative score."""
        return min(max(round(self.prepare * num_units), 1), num_units - 1)

    def lay_out(self, table: Table) -> "Folds":
        """Of each order, the units after those that prepare."""
        from pcv.folds.base import from_sets

        n = len(table.units)
        if n < 2:
            raise PcvError("cumulative: there is a single unit; give two or more")
        order = self.described(table)["order"].values
        names = [f"order {t}" for t in range(1, self.splits + 1)]
        return from_sets(names, [row[self.first(n) :] for row in order], None, n)

    def described(self, table: Table) -> "xr.Dataset":
        """The units in each fold's order."""
        import numpy as np
        import xarray as xr

        from pcv.folds.checks import generator

        rng = generator("cumulative", table.seed)
        orders = np.stack([rng.permutation(len(table.units)) for _ in range(self.splits)])
        return xr.Dataset({"order": (("fold", "place"), orders)})
