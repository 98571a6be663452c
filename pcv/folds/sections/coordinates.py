"""Coordinates in a config: their columns, and distances in words."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pydantic import model_validator

from pcv.base.errors import PcvError
from pcv.base.section import Section, Text, problem

if TYPE_CHECKING:
    import numpy as np

    from pcv.folds.sections.scheme import Table

LEAST_METRES = 100
"""on the earth, a side or buffer below this was probably meant in degrees"""


class Coordinates(Section):
    """Columns of coordinates: in a plane, or on the earth in degrees."""

    x: Text | None = None
    y: Text | None = None
    longitude: Text | None = None
    latitude: Text | None = None

    @model_validator(mode="after")
    def _one_pair(self) -> "Coordinates":
        given = [name for name, column in self if column]
        if given not in (["x", "y"], ["longitude", "latitude"]):
            raise problem("name the columns of x and y, or of longitude and latitude")
        return self

    def of(self, table: "Table") -> "tuple[np.ndarray, np.ndarray, bool]":
        """Values of both columns, and whether they are degrees.

        Raises:
            PcvError: a column is missing, varies within a unit, or is not numeric.
        """
        found = []
        for key, column in self:
            if column:
                values = table.column(f"coordinates.{key}", column)
                if values.dtype.kind not in "biuf":
                    raise PcvError(
                        f"folds.coordinates.{key}: column '{column}' holds {values[0]!s}, which is"
                        " not a number"
                    )
                found.append(values.astype(float))
        first, second = found
        return first, second, bool(self.longitude)

    def doubts(self, **metres: float) -> Iterator[str]:
        for name, distance in metres.items():
            if self.longitude and 0 < distance < LEAST_METRES:
                yield (
                    f"folds.{name}: {distance:g} is in metres, as coordinates are longitude and"
                    " latitude; a degree of latitude is 111,000 m"
                )

    def distance(self, distance: float) -> str:
        if not self.longitude:
            return f"{distance:g}"
        return f"{distance / 1000:g} km" if distance >= 1000 else f"{distance:g} m"

    def buffer(self, distance: float) -> str:
        return f", buffer {self.distance(distance)}" if distance else ""
