"""Spatial schemes: blocks of a grid, or single locations, with a buffer around them."""

from typing import NamedTuple

import numpy as np
import pandas as pd
from jaxtyping import Float, Int

from pcv.base.errors import PcvError
from pcv.folds.base import Folds, from_sets
from pcv.folds.checks import Values, checked, complete
from pcv.folds.columns import label

EARTH_RADIUS = 6_371_008.8
"""mean radius of the earth in metres"""


class Places(NamedTuple):
    r"""Where units are, in a plane or on the earth.

    .. math:: d_{ij} = \sqrt{(x_i - x_j)^2 + (y_i - y_j)^2} \quad \text{or} \quad
              R \arccos(\sin\phi_i \sin\phi_j + \cos\phi_i \cos\phi_j \cos(\lambda_i - \lambda_j))

    for x and y, or longitudes λ and latitudes φ on a sphere of the earth's mean radius R.
    """

    first: Float[np.ndarray, " unit"]
    """x, or longitude in degrees"""
    second: Float[np.ndarray, " unit"]
    """y, or latitude in degrees"""
    on_earth: bool
    """great-circle distances in metres; else Euclidean, in the unit of x and y"""


def places_of(x: Values, y: Values, degrees: bool) -> Places:
    """Where units are.

    Args:
        x, y, degrees: as for `spatial_block`.

    Raises:
        PcvError: a missing or impossible coordinate, naming the value and its unit.

    >>> places_of([13.4, 2.35], [52.5, 48.9], degrees=True).on_earth
    True
    """
    first, second = (
        _numbers(complete(values, name), name) for values, name in ((x, "x"), (y, "y"))
    )
    if first.shape != second.shape:
        raise PcvError(f"{len(first)} values of x, {len(second)} of y; give both for every unit")
    places = Places(first, second, degrees)
    finite = np.isfinite(places.first) & np.isfinite(places.second)
    if not finite.all():
        i = int(finite.argmin())
        pair = f"{label(places.first[i])} and {label(places.second[i])}"
        raise PcvError(f"coordinates {pair} of unit {i}, counted from 0, are not finite")
    if not degrees:
        return places
    for name, values, low, high in [
        ("longitude", places.first, -180, 360),
        ("latitude", places.second, -90, 90),
    ]:
        wrong = (values < low) | (values > high)
        if wrong.any():
            i = int(wrong.argmax())
            raise PcvError(
                f"{name} {label(values[i])} of unit {i}, counted from 0, is not between {low} and "
                f"{high} degrees; are longitude and latitude swapped, or are these metres (x, y)?"
            )
    return places


def _numbers(values: np.ndarray, name: str) -> Float[np.ndarray, " unit"]:
    try:
        return values.astype(float)
    except (ValueError, TypeError):
        wrong = values[np.isnan(pd.to_numeric(values, errors="coerce"))]
        raise PcvError(
            f"{name}: {label(wrong[0])!r} is not a number; give coordinates as numbers"
        ) from None


def spatial_block(
    x: Values, y: Values, size: float | int, buffer: float | int = 0, degrees: bool = False
) -> Folds:
    r"""Units in squares of a grid.

    .. math:: \mathrm{cell}_i = \left(\lfloor (x_i - \min x) / \mathrm{size} \rfloor, \;
              \lfloor (y_i - \min y) / \mathrm{size} \rfloor\right)

    .. math:: \mathrm{test}_c = \{i : \mathrm{cell}_i = c\}, \qquad
              \mathrm{train}_c = \{j : d_{ij} > \mathrm{buffer} \text{ for all }
              i \in \mathrm{test}_c\}

    with Euclidean distances d. For longitudes and latitudes, distances are great-circle, and the
    grid lies on the sinusoidal projection about the mean longitude: cells have equal area.
    (Roberts et al. 2017, *Ecography* 40, 913–929.)

    Args:
        x, y: coordinates of each unit, in metres or any other unit of length; or longitudes and
            latitudes.
        size: side of a square; in metres with `degrees`.
        buffer: distance around a test set within which units are not trained on; in metres with
            `degrees`.
        degrees: whether x and y are longitudes and latitudes.

    Returns:
        A fold for every non-empty square, named after its row and column.

    Raises:
        PcvError: a missing or impossible coordinate, naming the unit; a buffer that leaves nothing
            to train on, naming the fold; a size that is not positive, a negative buffer, or a
            single square for all units.

    >>> folds = spatial_block(x=[0.0, 1.0, 10.0], y=[0.0, 0.0, 0.0], size=5)
    >>> folds.id.tolist(), folds.test.tolist()
    (['row 1, column 1', 'row 1, column 3'], [[0, 1], [2, -1]])
    """
    places = places_of(x, y, degrees)
    if not size > 0:
        raise PcvError(f"spatial blocks: size is {size:g}, must be positive")
    x, y = _plane(places)
    across = max(np.ptp(x), np.ptp(y))
    if not across / size < 2**31:
        raise PcvError(f"blocks of size {size:g}: too small for places that are {across:g} apart")
    column, row = (np.floor((z - z.min()) / size).astype(int) for z in (x, y))
    cells, group = np.unique(np.stack([row, column], axis=1), axis=0, return_inverse=True)
    if len(cells) < 2:
        raise PcvError(f"one spatial block of size {size:g} holds all units; give a smaller size")
    ids = [f"row {r + 1}, column {c + 1}" for r, c in cells.tolist()]
    return _with_buffer(places, group.reshape(-1), ids, float(buffer))


def leave_one_location_out(
    x: Values, y: Values, buffer: float | int = 0, degrees: bool = False
) -> Folds:
    r"""A fold for every location, with the units nearby left out.

    .. math:: \mathrm{test}_a = \{i : (x_i, y_i) = a\}, \qquad
              \mathrm{train}_a = \{j : d_{aj} > \mathrm{buffer}\}

    (Le Rest et al. 2014, *Global Ecology and Biogeography* 23, 811–820, one unit per location.)

    Args:
        x, y, buffer, degrees: as for `spatial_block`.

    Returns:
        A fold for every distinct pair of coordinates, named after it.

    Raises:
        PcvError: a coordinate or buffer as for `spatial_block`, or a single location for all units.

    >>> folds = leave_one_location_out(x=[0, 0, 1, 9], y=[0, 0, 0, 0], buffer=2)
    >>> folds.test.tolist(), folds.held_out.tolist()
    ([[0, 1], [2, -1], [3, -1]], [[[0, 3]], [[0, 3]], [[3, 4]]])
    """
    places = places_of(x, y, degrees)
    at = np.stack([places.first, places.second], axis=1)
    _, first, group = np.unique(
        _on_globe(at) if places.on_earth else at, axis=0, return_index=True, return_inverse=True
    )
    distinct = at[first]
    if len(distinct) < 2:
        raise PcvError("all units are at one location; folds need at least 2")
    names = ("longitude", "latitude") if places.on_earth else ("x", "y")
    ids = [f"{names[0]} {a:.12g}, {names[1]} {b:.12g}" for a, b in distinct]
    return _with_buffer(places, group.reshape(-1), ids, float(buffer))


def _on_globe(at: Float[np.ndarray, "unit 2"]) -> Float[np.ndarray, "unit 2"]:
    """Longitudes and latitudes that are equal for equal places, to a tenth of a millimetre."""
    longitude, latitude = at.T
    east = np.where(longitude >= 180, longitude - 360, longitude)
    return np.round(np.stack([np.where(abs(latitude) == 90, 0, east), latitude], axis=1), 9)


def _with_buffer(
    places: Places, group: Int[np.ndarray, " unit"], ids: list[str], buffer: float
) -> Folds:
    if not buffer >= 0:
        raise PcvError(f"buffer is {buffer:g}, must be 0 or more")
    order = np.argsort(group, kind="stable")
    tests = np.split(order, np.cumsum(np.bincount(group))[:-1])
    if buffer == 0:
        return checked(from_sets(ids, tests, None, group.size), group.size, cover=True)
    from scipy.spatial import cKDTree

    points, radius = _points(places, buffer)
    tree = cKDTree(points)
    gaps = [
        np.setdiff1d(np.concatenate(tree.query_ball_point(points[test], radius)).astype(int), test)
        for test in tests
    ]
    return checked(from_sets(ids, tests, gaps, group.size), group.size, cover=True)


def _points(places: Places, distance: float) -> tuple[Float[np.ndarray, "unit axis"], float]:
    """Points in Euclidean space, and the straight-line equivalent of `distance`."""
    if not places.on_earth:
        return np.stack([places.first, places.second], axis=1), distance
    longitude, latitude = np.radians(places.first), np.radians(places.second)
    points = np.stack(
        [
            np.cos(latitude) * np.cos(longitude),
            np.cos(latitude) * np.sin(longitude),
            np.sin(latitude),
        ],
        axis=1,
    )
    angle = min(distance / EARTH_RADIUS, np.pi)
    return points, 2 * np.sin(angle / 2)


def _plane(places: Places) -> tuple[np.ndarray, np.ndarray]:
    if not places.on_earth:
        return places.first, places.second
    longitude, latitude = np.radians(places.first), np.radians(places.second)
    mean = np.angle(np.exp(1j * longitude).mean())
    away = np.angle(np.exp(1j * (longitude - mean)))
    return EARTH_RADIUS * away * np.cos(latitude), EARTH_RADIUS * latitude
