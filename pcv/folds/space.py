"""Schemes for units at places: blocks of a grid, or single locations, with a buffer around them."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from pcv.base.errors import PcvError
from pcv.folds.base import Folds, from_sets
from pcv.folds.columns import label

EARTH_RADIUS = 6_371_008.8
"""mean radius of the earth in metres"""


class Places(NamedTuple):
    r"""Where units are, in a plane or on the earth.

    .. math:: d_{ij} = \sqrt{(x_i - x_j)^2 + (y_i - y_j)^2} \quad \text{or} \quad
              R \arccos(\sin\phi_i \sin\phi_j + \cos\phi_i \cos\phi_j \cos(\lambda_i - \lambda_j))

    of x and y, or of longitudes λ and latitudes φ on a sphere of the earth's mean radius R.
    """

    first: Float[np.ndarray, " unit"]
    """x, or longitude in degrees"""
    second: Float[np.ndarray, " unit"]
    """y, or latitude in degrees"""
    on_earth: bool
    """distances are great-circle distances in metres; else Euclidean, in the unit of x and y"""


def check_places(places: Places) -> None:
    """Refuse coordinates that are not finite, and longitudes and latitudes that cannot be.

    Args:
        places: of the units.

    Raises:
        PcvError: naming the value and its row.

    >>> check_places(Places(np.array([13.4, 2.35]), np.array([52.5, 48.9]), on_earth=True))
    """
    finite = np.isfinite(places.first) & np.isfinite(places.second)
    if not finite.all():
        i = int(finite.argmin())
        pair = f"{label(places.first[i])} and {label(places.second[i])}"
        raise PcvError(f"coordinates {pair} of unit {i + 1} are not finite")
    if not places.on_earth:
        return
    for name, values, low, high in [
        ("longitude", places.first, -180, 360),
        ("latitude", places.second, -90, 90),
    ]:
        wrong = (values < low) | (values > high)
        if wrong.any():
            i = int(wrong.argmax())
            raise PcvError(
                f"{name} {label(values[i])} of unit {i + 1} is not between {low} and {high}"
                " degrees; are longitude and latitude swapped, or are these metres (x, y)?"
            )


def spatial_blocks(places: Places, size: float, buffer: float = 0.0) -> Folds:
    r"""One fold per cell of a square grid that holds units.

    .. math:: \mathrm{cell}_i = \left(\lfloor (x_i - \min x) / \mathrm{size} \rfloor, \;
              \lfloor (y_i - \min y) / \mathrm{size} \rfloor\right)

    .. math:: \mathrm{test}_c = \{i : \mathrm{cell}_i = c\}, \qquad
              \mathrm{train}_c = \{j : d_{ij} > \mathrm{buffer} \text{ for all }
              i \in \mathrm{test}_c\}

    with the distances d of `Places`. (Roberts et al. 2017.)

    Args:
        places: of the units. On the earth the grid lies on the sinusoidal projection about the mean
            longitude: cells of equal area, `size` metres high.
        size: side of a cell, in the unit of the distances.
        buffer: units this near to a tested one are left out of training besides; in the unit of the
            distances.

    Raises:
        PcvError: size is not positive, the buffer is negative or NaN, or one cell holds all units.

    >>> places = Places(np.array([0.0, 1.0, 10.0]), np.zeros(3), False)
    >>> spatial_blocks(places, size=5.0).test.tolist()
    [[0, 1], [2, -1]]
    """
    if not size > 0:
        raise PcvError(f"spatial blocks of size {size:g}: it must be positive")
    x, y = _plane(places)
    across = max(np.ptp(x), np.ptp(y))
    if not across / size < 2**31:
        raise PcvError(f"blocks of size {size:g}: too small for places that are {across:g} apart")
    column, row = (np.floor((z - z.min()) / size).astype(int) for z in (x, y))
    cells, group = np.unique(np.stack([row, column], axis=1), axis=0, return_inverse=True)
    if len(cells) < 2:
        raise PcvError(f"one spatial block of size {size:g} holds all units; make them smaller")
    ids = [f"row {r + 1}, column {c + 1}" for r, c in cells.tolist()]
    return _with_buffer(places, group.reshape(-1), ids, buffer)


def leave_one_location_out(places: Places, buffer: float = 0.0) -> Folds:
    r"""One fold per place: all units there, and a buffer around it.

    .. math:: \mathrm{test}_a = \{i : \mathrm{place}_i = a\}, \qquad
              \mathrm{train}_a = \{j : d_{aj} > \mathrm{buffer}\}

    with the distances d of `Places`. (Le Rest et al. 2014, of one unit at each place.)

    Args:
        places: of the units; those of equal coordinates are at one place, whether longitudes are
            counted from -180 or to 360.
        buffer: units this near to the place are left out of training besides; in the unit of the
            distances.

    Raises:
        PcvError: the buffer is negative or NaN, or all units are at one place.

    >>> places = Places(np.array([0.0, 0.0, 1.0, 10.0]), np.zeros(4), False)
    >>> folds = leave_one_location_out(places, buffer=2.0)
    >>> folds.test.tolist(), folds.held_out.tolist()
    ([[0, 1], [2, -1], [3, -1]], [[[0, 3]], [[0, 3]], [[3, 4]]])
    """
    at = np.stack([places.first, places.second], axis=1)
    _, first, group = np.unique(
        _on_globe(at) if places.on_earth else at, axis=0, return_index=True, return_inverse=True
    )
    distinct = at[first]
    if len(distinct) < 2:
        raise PcvError("all units are at one place: folds need at least 2")
    names = ("longitude", "latitude") if places.on_earth else ("x", "y")
    ids = [f"{names[0]} {a:.12g}, {names[1]} {b:.12g}" for a, b in distinct]
    return _with_buffer(places, group.reshape(-1), ids, buffer)


def _on_globe(at: Float[np.ndarray, "unit 2"]) -> Float[np.ndarray, "unit 2"]:
    """Longitudes and latitudes that are equal where places are, to a tenth of a millimetre."""
    longitude, latitude = at.T
    east = np.where(longitude >= 180, longitude - 360, longitude)
    return np.round(np.stack([np.where(abs(latitude) == 90, 0, east), latitude], axis=1), 9)


def _with_buffer(
    places: Places, group: Int[np.ndarray, " unit"], ids: list[str], buffer: float
) -> Folds:
    if not buffer >= 0:
        raise PcvError(f"a buffer of {buffer:g}: it must be 0 or more")
    order = np.argsort(group, kind="stable")
    tests = np.split(order, np.cumsum(np.bincount(group))[:-1])
    if buffer == 0:
        return from_sets(ids, tests, None, group.size)
    from scipy.spatial import cKDTree

    points, radius = _points(places, buffer)
    tree = cKDTree(points)
    gaps = [
        np.setdiff1d(np.concatenate(tree.query_ball_point(points[test], radius)).astype(int), test)
        for test in tests
    ]
    return from_sets(ids, tests, gaps, group.size)


def _points(places: Places, distance: float) -> tuple[Float[np.ndarray, "unit axis"], float]:
    """Points in space, and the straight distance between two that are `distance` apart."""
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
