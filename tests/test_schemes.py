"""Schemes of time and space, and leave-p-out, against brute enumeration."""

import inspect
import itertools
import math
import re
from functools import partial

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from pydantic import TypeAdapter
from sklearn.model_selection import TimeSeriesSplit

import pcv
from pcv.base.errors import PcvError
from pcv.folds import schemes
from pcv.folds.base import Folds, describe, train_mask
from pcv.folds.checks import check_order, names_of
from pcv.folds.exchangeable import kfold, leave_p_out
from pcv.folds.schemes import FoldScheme, Table, make
from pcv.folds.space import (
    EARTH_RADIUS,
    Places,
    leave_one_location_out,
    places_of,
    spatial_block,
)
from pcv.folds.splitters import from_splitter
from pcv.folds.time import block, hv_block, leave_future_out
from pcv.report.plots import folds as plot
from tests.bounds import z_limit
from tests.folds import assert_partition, names, quick, refusal, scored


def trained(folds: Folds, num_units: int) -> list[list[int]]:
    return [np.flatnonzero(mask).tolist() for mask in train_mask(folds, num_units)]


def well_formed(folds: Folds) -> None:
    """Ranges are sorted, maximal, and empty ones stand last."""
    for ranges in folds.held_out:
        used = ranges[ranges[:, 1] > 0]
        assert (used[:, 0] < used[:, 1]).all()
        assert (used[1:, 0] > used[:-1, 1]).all()
        assert not ranges[len(used) :].any()


# Leave-p-out


@quick
@given(st.integers(2, 8).flatmap(lambda n: st.tuples(st.just(n), st.integers(1, n - 1))))
def test_leave_p_out_takes_every_set(sizes):
    n, p = sizes
    folds = leave_p_out(names(n), p, "all")
    assert scored(folds) == [list(x) for x in itertools.combinations(range(n), p)]
    assert trained(folds, n) == [sorted(set(range(n)) - set(x)) for x in scored(folds)]


@quick
@given(st.integers(2, 7), st.data())
def test_leave_p_out_draws_without_repetition(n, data):
    p = data.draw(st.integers(1, n - 1))
    splits = data.draw(st.integers(2, math.comb(n, p)))
    folds = leave_p_out(names(n), p, splits, seed=splits)
    found = [tuple(units) for units in scored(folds)]
    assert len(found) == len(set(found)) == splits
    assert all(len(set(units)) == p for units in found)


def test_leave_p_out_draws_uniformly():
    counts = np.zeros(10)
    for seed in range(600):
        for units in scored(leave_p_out(names(10), 3, 5, seed)):
            counts[units] += 1
    expected = 600 * 5 * 3 / 10
    assert (abs(counts - expected) < z_limit(10) * np.sqrt(0.7 * expected)).all()


def test_leave_p_out_that_makes_no_sense():
    assert refusal(leave_p_out, names(3), 3, "all") == (
        "leave-p-out: p is 3, must be from 1 to 2 with 3 units"
    )
    assert refusal(leave_p_out, names(4), 2, 7) == (
        "leave-p-out: 7 splits, but only 6 sets of 2 among 4 units"
    )
    assert "too many; draw some of them with `splits`" in refusal(leave_p_out, names(100), 5, "all")
    assert refusal(leave_p_out, names(9), 2, "all", up_to=True) == (
        "leave-p-out: sets of up to p units are drawn; give a number of splits, 2 or more"
    )


# Time


@quick
@given(st.integers(2, 30), st.integers(1, 30))
def test_blocks_are_runs(n, size):
    if size >= n:
        assert "no unit to train on" in refusal(block, n, size)
        return
    folds = block(names(n), size)
    assert_partition(folds, n)
    assert [x for units in scored(folds) for x in units] == list(range(n))
    assert {len(units) for units in scored(folds)[:-1]} <= {size}


@quick
@given(st.integers(3, 25), st.integers(0, 4), st.integers(0, 6))
def test_hv_block_by_enumeration(n, v, h):
    if n <= 2 * v:
        assert "need more than" in refusal(hv_block, names(n), v, h)
        return
    centers = range(v, n - v)
    training = [[j for j in range(n) if abs(j - i) > v + h] for i in centers]
    if not all(training):
        assert "no unit to train on" in refusal(hv_block, n, v, h)
        return
    folds = hv_block(names(n), v, h)
    assert scored(folds) == [list(range(i - v, i + v + 1)) for i in centers]
    assert trained(folds, n) == training
    well_formed(folds)


def test_hv_block_tests_no_unit_before_those_it_skips():
    folds = hv_block(names(6), 1, 1, skip=2)
    assert scored(folds) == [[2, 3, 4], [3, 4, 5]]
    assert trained(folds, 6) == [[0], [0, 1]]
    assert "need more than 2 units" in refusal(hv_block, names(6), 1, 0, 4)


@quick
@given(
    st.integers(2, 25),
    st.integers(1, 10),
    st.integers(1, 5),
    st.integers(1, 5),
    st.none() | st.integers(1, 12),
)
def test_leave_future_out_by_enumeration(n, first, horizon, step, window):
    starts = [t for t in range(first, n, step) if t + horizon <= n]
    arguments = names(n), first, horizon, step, window
    if not starts:
        assert "leave no fold of" in refusal(leave_future_out, *arguments)
    else:
        folds = leave_future_out(*arguments)
        assert scored(folds) == [list(range(t, t + horizon)) for t in starts]
        past = n if window is None else window
        assert trained(folds, n) == [list(range(max(0, t - past), t)) for t in starts]
        assert all(max(a) < min(b) for a, b in zip(trained(folds, n), scored(folds)))
        well_formed(folds)


@quick
@given(
    st.lists(st.sampled_from("abc"), min_size=2, max_size=25),
    st.integers(1, 5),
    st.integers(1, 3),
    st.integers(1, 3),
    st.none() | st.integers(1, 4),
)
def test_futures_of_each_series_by_enumeration(by, first, horizon, step, window):
    n = len(by)
    arguments = {"min_observations": first, "forecast_horizon": horizon, "step": step}
    arguments |= {"window": window, "by": by}
    expected = []
    for name in sorted(set(by)):
        own = [i for i in range(n) if by[i] == name]
        starts = [t for t in range(first, len(own), step) if t + horizon <= len(own)]
        if not starts:
            said = refusal(leave_future_out, names(n), **arguments)
            assert said.startswith(f"leave-future-out: series '{name}' has {len(own)} unit(s), too")
            return
        for t in starts:
            past = own[:t] if window is None else own[max(0, t - window) : t]
            others = [i for i in range(n) if by[i] != name]
            expected.append((own[t : t + horizon], sorted(past + others)))
    if not all(trained_on for _, trained_on in expected):
        assert "no unit to train on" in refusal(leave_future_out, names(n), **arguments)
        return
    folds = leave_future_out(names(n), **arguments)
    assert scored(folds) == [test for test, _ in expected]
    assert trained(folds, n) == [train for _, train in expected]
    well_formed(folds)


def test_names_in_a_series_are_taken_by_position():
    """As of a table that was sorted, or of which rows were left out."""
    series = pd.Series(["d", "c", "b", "a"], index=[3, 2, 1, 0]).sort_values()
    assert block(series, 2).id.tolist() == ["a to b", "c to d"]
    some = series[series != "b"]
    assert leave_future_out(some, 1).id.tolist() == ["c", "d"]
    assert "time: 'd' and" not in refusal(block, some, 1, time=[1, 3, 2])


def test_a_horizon_for_short():
    by = np.repeat(["a", "b"], 8)
    short = pcv.leave_future_out(by=by, units=16, min_observations=4, horizon=2, step=2)
    long = pcv.leave_future_out(16, 4, 2, step=2, by=by)
    assert short.id.tolist() == long.id.tolist()
    assert scored(short) == scored(long) == [[4, 5], [6, 7], [12, 13], [14, 15]]
    assert refusal(leave_future_out, 16, 4, 3, horizon=2) == (
        "leave-future-out: forecast_horizon is 3 and horizon 2, which are one; give one of them"
    )
    said = "leave-future-out: horizon is 0, must be at least 1"
    assert refusal(leave_future_out, 16, 4, horizon=0) == said


def test_times_of_each_series_increase():
    by = ["a", "a", "b", "b", "b"]
    names = ["a 1", "a 2", "b 1", "b 2", "b 3"]
    made = leave_future_out(names, 1, by=by, time=[1, 2, 1, 2, 3])
    assert made.id.tolist() == ["a 2", "b 2", "b 3"]
    assert refusal(leave_future_out, names, 1, by=by, time=[1, 2, 1, 3, 2]) == (
        "fold 'b 3': time is not in order: 2 ('b 3') comes after 3 ('b 2'); sort the data by it "
        "(in a config: data.order)"
    )
    assert refusal(leave_future_out, names, 1, by=by, time=[1, 2, 1, 2, 2]).startswith(
        "fold 'b 3': time: 'b 2' and 'b 3' have the same time, 2;"
    )
    assert refusal(leave_future_out, names, 1, by=by[:4]) == (
        "by: 4 values, of 5 units; give one for each unit"
    )


def test_folds_of_time_are_named_by_their_ends():
    months = ["May", "June", "July", "August"]
    assert leave_future_out(months, 2).id.tolist() == ["July", "August"]
    assert leave_future_out(months, 1, 2).id.tolist() == ["June to July", "July to August"]
    assert hv_block(months, 1, 0).id.tolist() == ["May to July", "June to August"]
    assert block(months, 3).id.tolist() == ["May to July", "August"]


def test_long_series_stay_small():
    folds = leave_future_out(names(20_000), 1, window=500)
    assert folds.held_out.shape == (19_999, 2, 2)
    assert hv_block(names(20_000), 0, 10).held_out.shape == (20_000, 1, 2)


def test_a_gap_that_empties_a_training_set_is_refused():
    assert refusal(hv_block, 6, 0, 3) == ("folds that leave no unit to train on: '2', '3'")


def test_times_that_are_not_in_order():
    names = ["a", "b", "c"]
    folds = leave_future_out(names, 1)
    months = np.array(["2020-01", "2020-02", "2020-03"], "datetime64[M]")
    check_order(months, names, "column 'month'", folds)
    assert refusal(check_order, np.array([1, 3, 2]), names, "column 'year'", folds) == (
        "fold 'c': column 'year' is not in order: 2 ('c') comes after 3 ('b'); sort the data by it "
        "(in a config: data.order)"
    )
    assert refusal(check_order, np.array([1, 2, 2]), names, "column 'year'", folds).startswith(
        "fold 'c': column 'year': 'b' and 'c' have the same time, 2; where order matters, times"
    )
    late = leave_future_out(["a", "b", "c", "d"], 2)
    trained = refusal(check_order, np.array([1, 1, 2, 3]), ["a", "b", "c", "d"], "time", late)
    assert trained.startswith("fold 'c': time: 'a' and 'b' have the same time, 1;")
    untested = refusal(check_order, np.array([1, 1, 2]), names, "column 'year'", folds)
    assert untested.startswith("fold 'b': column 'year': 'a' and 'b' have the same time, 1;")
    assert refusal(check_order, months[:2], names, "time", folds) == "time: 2 times of 3 units"


def test_training_sizes_are_told_where_they_are_known():
    assert repr(pcv.leave_p_out(1000, 1, splits=3)) == (
        "3 folds of 1000 units: test 1, training 999, no gap"
    )
    unsaid = pcv.leave_p_out(1000, 1, splits=3)._replace(num_units=None)
    assert repr(unsaid) == "3 folds: test 1, training all other units, no gap"
    assert repr(pcv.leave_future_out(20, 5)).startswith("15 folds of 20 units: test 1, train")


def test_seeds_that_are_none():
    words = "kfold: seed is -1; give 0 or more"
    assert refusal(inspect.unwrap(pcv.kfold), 9, k=3, seed=-1) == words
    words = "leave-p-out: seed is 1.5; give a whole number"
    assert refusal(inspect.unwrap(pcv.leave_p_out), 9, p=3, seed=1.5) == words


def test_places_and_units_that_make_no_folds():
    far = [0.0, 1e6, 2e6]
    words = "blocks of size 1e-14: too small for places that are 2e+06 apart"
    assert refusal(pcv.spatial_block, far, [0.0] * 3, size=1e-14) == words
    words = refusal(spatial_block, ["a", "b"], [0.0, 1.0], size=1)
    assert words == "x: 'a' is not a number; give coordinates as numbers"
    near = pcv.leave_one_location_out([500000.0, 500000.02], [4567890.12, 4567890.1])
    assert near.id.tolist() == ["x 500000, y 4567890.12", "x 500000.02, y 4567890.1"]
    words = "units is 3.0; give their number, or a list of their names"
    assert refusal(inspect.unwrap(names_of), 3.0) == words


def test_times_that_are_text():
    names = ["a", "b", "c"]
    folds = leave_future_out(names, 1)
    check_order(np.array(["2020-9", "2020-10", "2020-11"]), names, "time", folds)
    turned = refusal(check_order, np.array(["2020-10", "2020-11", "2020-9"]), names, "time", folds)
    assert turned.startswith(
        "fold 'c': time is not in order: 2020-09-01 ('c') comes after 2020-11-01 ('b')"
    )
    assert refusal(check_order, np.array(["Apr", "Feb", "Jan"]), names, "time", folds) == (
        "time: text such as 'Apr' has no order in time unless it is a date like 2024-03-31; give "
        "dates or numbers"
    )


@pytest.mark.parametrize(
    "scheme",
    [
        partial(pcv.leave_future_out, 4, 2),
        partial(pcv.hv_block, 4, 0, 1),
        partial(pcv.h_block, 4, 1),
        partial(pcv.block, 4, 2),
        partial(pcv.kfold, 4, 2, contiguous=True),
        partial(from_splitter, TimeSeriesSplit(2), 4),
    ],
)
def test_schemes_of_an_order_are_told_the_times(scheme):
    assert len(scheme(time=[2001, 2002, 2003, 2005]).id) == len(scheme().id)
    assert refusal(scheme, time=[2001, 2002, 2004, 2003]).startswith(
        f"fold '{scheme().id[-1]}': time is not in order: 2003 ('3') comes after 2004 ('2')"
    )
    assert "'1' and '2' have the same time, 2002" in refusal(scheme, time=[2001, 2002, 2002, 2003])
    assert refusal(scheme, time=[2001, None, 2002, 2003]).startswith("time: the value of unit '1'")


def test_folds_at_random_have_no_order():
    assert refusal(pcv.kfold, 4, 2, time=[1, 2, 3, 4]) == (
        "kfold: time is for contiguous folds; add contiguous=True, or omit it"
    )


# Space


def distances(places: Places) -> np.ndarray:
    """Between all pairs: haversine formula on the earth."""
    a, b = places.first, places.second
    if not places.on_earth:
        return np.hypot(a[:, None] - a, b[:, None] - b)
    a, b = np.radians(a), np.radians(b)
    half = (
        np.sin((b[:, None] - b) / 2) ** 2
        + np.cos(b[:, None]) * np.cos(b) * np.sin((a[:, None] - a) / 2) ** 2
    )
    return 2 * EARTH_RADIUS * np.arcsin(np.sqrt(np.clip(half, 0, 1)))


def some_places(on_earth: bool, n: int = 60) -> Places:
    rng = np.random.default_rng(3)
    if on_earth:  # across the date line, with repeated places
        first, second = rng.uniform(170, 190, n), rng.uniform(-70, 70, n)
        first = np.where(first > 180, first - 360, first)
    else:
        first, second = rng.uniform(-5, 5, (2, n))
    again = rng.integers(0, n // 2, n)
    return Places(first[again], second[again], on_earth)


def at(places: Places) -> dict:
    return {"x": places.first, "y": places.second, "degrees": places.on_earth}


@pytest.mark.parametrize("on_earth", [False, True], ids=["plane", "earth"])
@pytest.mark.parametrize("share", [0.0, 0.02, 0.3])
def test_buffers_by_enumeration(on_earth, share):
    places = some_places(on_earth)
    far = distances(places)
    buffer = share * far.max()
    size = far.max() / 3
    for folds in (
        leave_one_location_out(**at(places), buffer=buffer),
        spatial_block(**at(places), size=size, buffer=buffer),
    ):
        tested = sorted(unit for units in scored(folds) for unit in units)
        assert tested == list(range(len(far)))
        for units, train in zip(scored(folds), trained(folds, len(far)), strict=True):
            near = far[units].min(0) <= (buffer if buffer else -1)
            near[units] = True
            assert train == np.flatnonzero(~near).tolist()


def test_units_of_one_place_are_left_out_together():
    places = some_places(False)
    folds = leave_one_location_out(**at(places))
    pairs = {(a, b) for a, b in zip(places.first, places.second)}
    assert len(folds.id) == len(pairs)
    for units in scored(folds):
        assert len({(places.first[i], places.second[i]) for i in units}) == 1


@given(seeds=st.integers(0, 10_000), buffer=st.sampled_from([0.0, 1e6]))
def test_places_are_the_same_however_their_longitude_is_counted(seeds, buffer):
    """-10 and 350 degrees are one meridian, and all meridians meet at a pole."""
    rng = np.random.default_rng(seeds)
    longitude, latitude = (
        rng.choice([-180, -10.1, 0, 13.4, 179.9], 30),
        rng.choice([-90.0, 0.0, 45.5, 90.0], 30),
    )
    turned = np.where(rng.random(30) < 0.5, longitude % 360, longitude)
    folds = leave_one_location_out(turned, latitude, buffer, degrees=True)
    meridian = np.where(abs(latitude) == 90, 0, longitude)
    assert len(folds.id) == len({*zip(meridian.round(6), latitude)})
    far = distances(Places(longitude, latitude, True))
    for units, train in zip(scored(folds), trained(folds, 30), strict=True):
        assert far[np.ix_(units, units)].max() < 1
        assert far[np.ix_(units, train)].min(initial=np.inf) > max(buffer, 1)


def test_blocks_of_space_are_cells_of_a_grid():
    x, y = np.meshgrid(np.arange(6.0), np.arange(4.0))
    folds = spatial_block(x.ravel(), y.ravel(), size=2.0)
    assert len(folds.id) == 6
    assert {len(units) for units in scored(folds)} == {4}
    assert folds.id[0] == "row 1, column 1"
    for units in scored(folds):
        assert np.ptp(x.ravel()[units]) == np.ptp(y.ravel()[units]) == 1


def test_blocks_on_the_earth_do_not_shrink_towards_the_pole():
    """Points 100 km apart in a row at 60 degrees north: half as many cells as degrees suggest."""
    longitude = np.degrees(1e5 / (EARTH_RADIUS * 0.5)) * np.arange(20.0)
    places = Places(longitude, np.full(20, 60.0), True)
    assert distances(places)[0, 1] == pytest.approx(1e5, rel=1e-3)
    assert len(spatial_block(**at(places), size=5.01e5).id) == 4


def test_places_that_cannot_be():
    assert refusal(places_of, [50.0], [100.0], degrees=True).startswith(
        "latitude 100 of unit 0, counted from 0, is not between -90 and 90 degrees; are longitude "
    )
    places_of([50.0], [100.0], degrees=False)
    assert refusal(leave_one_location_out, [0.0] * 3, [0.0] * 3) == (
        "all units are at one location; folds need at least 2"
    )
    assert "holds all units" in refusal(spatial_block, [0.0] * 3, [0.0] * 3, 1.0)
    for scheme in (leave_one_location_out, partial(spatial_block, size=1.0)):
        assert (
            refusal(scheme, x=[0.0, 1.0], y=[0.0, 0.0], buffer=np.nan)
            == "buffer is nan, must be 0 or more"
        )


# Configs


def scheme(name: str, **keys):
    return TypeAdapter(FoldScheme).validate_python({"scheme": name, **keys})


N = 40
MONTHS = np.arange("2000-01", "2003-05", dtype="datetime64[M]").astype("datetime64[ns]")
RNG = np.random.default_rng(1)
DATA = xr.Dataset(
    {
        "month": ("unit", MONTHS),
        "east": ("unit", RNG.uniform(0, 1000, N)),
        "north": ("unit", RNG.uniform(0, 1000, N)),
        "lon": ("unit", RNG.uniform(5, 10, N)),
        "lat": ("unit", RNG.uniform(50, 55, N)),
        "site": ("unit", np.arange(N) % 7),
    },
    coords={"unit": [f"month {str(m)[:7]}" for m in MONTHS]},
)
TABLE = Table(DATA, 1)
PLANE = {"x": "east", "y": "north"}
EARTH = {"longitude": "lon", "latitude": "lat"}


@pytest.mark.parametrize(
    ("config", "line"),
    [
        (scheme("leave_p_out", p=3, splits=50), "leave-3-out: 50 folds, test 3, training 37"),
        (scheme("leave_p_out", p=2, splits="all"), "leave-2-out: 780 folds, test 2, training 38"),
        (scheme("block", size=6, time="month"), "blocks of 6: 7 folds, test 4 to 6, training 34"),
        (scheme("h_block", h=2), "h-block, h = 2: 40 folds, test 1, training 35 to 37, gap 2 to 4"),
        (
            scheme("hv_block", v=1, h=3, time="month"),
            "hv-block, v = 1, h = 3: 38 folds, test 3, training 31 to 34, gap 3 to 6",
        ),
        (
            scheme("leave_future_out", min_observations=12, time="month"),
            "leave-future-out, 1 ahead, expanding window: 28 folds, test 1, training 12 to 39,"
            " not used 0 to 27",
        ),
        (
            scheme("leave_future_out", min_observations=12, window=12, forecast_horizon=3, step=3),
            "leave-future-out, 3 ahead, window of 12: 9 folds, test 3, training 12, not used 25",
        ),
        (
            scheme("leave_future_out", by="site", min_observations=2, horizon=2, time="month"),
            "leave-future-out of each site, 2 ahead, expanding window: 19 folds, test 2, training"
            " 36 to 38, not used 0 to 2",
        ),
        (
            scheme("spatial_block", coordinates=PLANE, size=500),
            "spatial blocks of 500: 4 folds, test",
        ),
        (
            scheme("spatial_block", coordinates=EARTH, size=2e5, buffer=5e4),
            "spatial blocks of 200 km, buffer 50 km: ",
        ),
        (
            scheme("leave_one_location_out", coordinates=EARTH, buffer=30000),
            "leave-one-location-out, buffer 30 km: 40 folds, test 1, training",
        ),
        (
            scheme(
                "splitter",
                splitter="tests.test_schemes:EveryOther",
                args={"every": 4},
                groups="site",
            ),
            "folds of EveryOther: 4 folds, test 10, training 30, no gap",
        ),
    ],
)
def test_schemes_of_a_config(config, line):
    folds = make(config, TABLE)
    assert f"{config.title}: {describe(folds, N, config.left_out)}".startswith(line)
    again, other = make(config, TABLE), make(config, Table(DATA, 2))
    np.testing.assert_equal(folds._asdict(), again._asdict())
    drawn = config.scheme == "leave_p_out" and config.splits != "all"
    assert (scored(folds) != scored(other)) == drawn


class EveryOther:
    """A splitter as a user may write it."""

    def __init__(self, every: int) -> None:
        self.every = every

    def split(self, X, y=None, groups=None):
        assert groups is not None
        units = np.arange(len(X))
        for k in range(self.every):
            yield units[units % self.every != k], units[units % self.every == k]


def test_configs_that_do_not_fit_the_data():
    assert "no column 'mnth' (folds.time); did you mean 'month'?" in refusal(
        make, scheme("h_block", h=1, time="mnth"), TABLE
    )
    shuffled = DATA.isel(unit=np.random.default_rng(1).permutation(N))
    assert "column 'month' is not in order" in refusal(
        make, scheme("hv_block", v=0, h=1, time="month"), Table(shuffled, 1)
    )
    assert " have the same time, 0" in refusal(
        make, scheme("leave_future_out", min_observations=3, time="site"), TABLE
    )
    assert "column 'month' is not in order" in refusal(
        make, scheme("k_fold", k=4, contiguous=True, time="month"), Table(shuffled, 1)
    )
    assert "no column 'nrth' (folds.coordinates.y)" in refusal(
        make,
        scheme("spatial_block", coordinates={"x": "east", "y": "nrth"}, size=9),
        TABLE,
    )
    assert refusal(make, scheme("splitter", splitter="tests.test_schemes:EvryOther"), TABLE) == (
        "'tests.test_schemes:EvryOther': "
        f"{__file__} has no function 'EvryOther'; did you mean 'EveryOther'?"
    )
    said = refusal(make, scheme("splitter", splitter="sklearn.model_selection:GruopKFold"), TABLE)
    assert said.endswith("has no function 'GruopKFold'; did you mean 'GroupKFold'?")
    said = refusal(make, scheme("splitter", splitter="tests.test_schemes:EveryOther"), TABLE)
    assert "EveryOther() fails: TypeError" in said
    said = refusal(
        make,
        scheme("splitter", splitter="tests.test_schemes:EveryOther", args={"every": 4}),
        TABLE,
    )
    assert re.fullmatch(
        r"'tests.test_schemes:EveryOther': split fails \(line \d+\): AssertionError: .*", said
    )
    said = refusal(make, scheme("splitter", splitter="sklearn.none:TimeSeriesSplit"), TABLE)
    assert said.endswith("in this environment; add scikit-learn to it: `pip install scikit-learn`")
    assert refusal(make, scheme("h_block", h=39), TABLE).startswith("folds that leave no unit")
    with pytest.raises(ValueError, match="name the columns of x and y, or of longitude and"):
        scheme("spatial_block", coordinates={"x": "east", "latitude": "lat"}, size=9)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (
            scheme("spatial_block", coordinates=EARTH, size=2),
            "folds.size: 2 is in metres, as coordinates are longitude and latitude; a degree",
        ),
        (
            scheme("leave_one_location_out", coordinates=EARTH, buffer=0.5),
            "folds.buffer: 0.5 is in metres",
        ),
        (
            scheme("column", column="month"),
            "column 'month' makes 40 folds of 40 units: does it hold folds, or measurements?",
        ),
        (
            scheme("leave_p_out", p=2, splits="all"),
            "leave-p-out: 780 folds, each with chains of its own, take long; sample some of them",
        ),
    ],
)
def test_folds_that_are_hardly_meant_are_said(config, said, monkeypatch):
    monkeypatch.setattr(schemes, "MANY_FOLDS", 700)
    with pytest.warns(UserWarning, match=re.escape(said)):
        make(config, Table(DATA))


# Pictures


def pixels(figure, colour: str) -> float:
    """Share of the picture that has a colour."""
    figure.set_dpi(50)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    image = np.asarray(canvas.buffer_rgba())[..., :3] / 255
    return float((abs(image - to_rgb(colour)).max(-1) < 0.02).mean())


def test_a_grid_shows_test_sets_gaps_and_training():
    shares = {
        h: [pixels(plot.grid(hv_block(names(30), 2, h), 30, "x"), c) for c in (plot.TEST, plot.GAP)]
        for h in (0, 4, 8)
    }
    assert shares[0][1] == 0
    assert shares[8][1] > 1.5 * shares[4][1] > 0.05
    assert shares[0][0] == pytest.approx(shares[8][0], rel=0.2)


def test_large_designs_are_drawn_in_time():
    folds = leave_future_out(names(20_000), 100)
    figure = plot.grid(folds, 20_000, "x", left_out="not used")
    assert pixels(figure, plot.GAP) == 0
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [
        "training",
        "not used",
        "test",
    ]
    assert pixels(plot.grid(folds, 20_000, "x"), plot.GAP) > 0.2


def test_few_folds_have_whole_numbers_and_long_titles_are_broken():
    figure = plot.grid(kfold(6, 2, contiguous=True), 6, "a title of many words " * 6)
    pixels(figure, plot.TEST)
    for axis in (figure.axes[0].xaxis, figure.axes[0].yaxis):
        assert all(float(tick).is_integer() for tick in axis.get_ticklocs())
    drawn = figure.axes[0].get_title(loc="left")
    assert max(map(len, drawn.splitlines())) <= plot.TITLE_WIDTH


def test_a_map_names_few_folds():
    places = some_places(False, 200)
    far = distances(places).max()
    few = plot.on_map(spatial_block(**at(places), size=far / 2), places, "x").axes[0]
    folds = spatial_block(**at(places), size=far / 2).id.tolist()
    assert [text.get_text() for text in few.get_legend().get_texts()] == folds
    many = plot.on_map(spatial_block(**at(places), size=far / 6), places, "x").axes[0]
    assert many.get_legend() is None


@pytest.mark.parametrize("on_earth", [False, True])
def test_a_map_shows_the_fold_in_the_middle(on_earth):
    places = some_places(on_earth, 200)
    far = distances(places).max()
    for folds in (
        spatial_block(**at(places), size=far / 3, buffer=far / 20),
        leave_one_location_out(**at(places), buffer=far / 9),
    ):
        figure = plot.on_map(folds, places, "x")
        assert pixels(figure, plot.GAP) > 0
        middle = len(folds.id) // 2
        test = folds.test[middle][folds.test[middle] >= 0]
        trained = np.flatnonzero(train_mask(folds, 200)[middle])
        gap = np.setdiff1d(np.arange(200), [*test, *trained])
        for drawn, units in zip(
            figure.axes[-1].collections, (trained, gap, np.sort(test)), strict=True
        ):
            there = np.stack([places.first[units], places.second[units]], axis=1)
            np.testing.assert_array_equal(drawn.get_offsets(), there)


def test_groups_that_floats_do_not_tell_apart_are_refused():
    whole = [2**53, 2**53 + 1, 2**53, 2**53 + 1]
    assert len(pcv.leave_one_group_out(whole).id) == 2
    with pytest.raises(PcvError, match=r"9007199254740992 is a float, which .* as text"):
        pcv.leave_one_group_out(np.array(whole, float))


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda group: pcv.leave_one_group_out(group), "group_by"),
        (lambda group: pcv.kfold(4, 2, group_by=group), "group_by"),
        (lambda group: pcv.kfold(4, 2, stratify_by=group), "stratify_by"),
    ],
)
def test_missing_groups_are_refused(make, name):
    for group in ([1.0, np.nan, 2.0, 2.0], ["a", None, "b", "b"]):
        with pytest.raises(PcvError, match=f"^{name}: the value of unit '1' is missing"):
            make(group)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: pcv.leave_one_out(0), "there are no units to make folds of"),
        (lambda: pcv.leave_one_group_out([]), "group_by: 0 values, of 0 units; give one for each"),
        (lambda: pcv.kfold(6, 2, group_by=[1, 2]), "group_by: 2 values, of 6 units; give one for"),
        (
            lambda: pcv.block(6, 2, time=[1, 2]),
            "time: 2 values, of 6 units; give one for each unit",
        ),
        (lambda: pcv.spatial_block([], [], 1), "x: 0 values, of 0 units; give one for each unit"),
        (
            lambda: pcv.spatial_block([0.0, np.inf], [1, 1], 1),
            "coordinates inf and 1 of unit 1, counted from 0, are",
        ),
        (
            lambda: pcv.hv_block(6, 1, 0, skip=-1),
            "hv-block: skip is -1, must not be negative",
        ),
    ],
)
def test_nonsense_is_refused_from_python(make, words):
    assert refusal(make).startswith(words)


@pytest.mark.parametrize(
    ("scheme", "arguments", "words"),
    [
        (pcv.hv_block, {"units": 9, "v": 1, "h": 0.5}, "hv-block: h is 0.5"),
        (pcv.kfold, {"units": 6, "k": "2"}, "kfold: k is '2'"),
        (pcv.block, {"units": 6, "size": 2.0}, "block: size is 2.0"),
        (pcv.leave_p_out, {"units": 6, "p": 2, "splits": None}, "leave-p-out: splits is None"),
        (
            pcv.leave_future_out,
            {"units": 9, "min_observations": 3, "forecast_horizon": 1.5},
            "leave-future-out: forecast_horizon is 1.5",
        ),
    ],
)
def test_numbers_that_are_not_whole_are_refused(scheme, arguments, words):
    """By the function that users call, which has no types checked around it as here."""
    assert refusal(inspect.unwrap(scheme), **arguments) == f"{words}; give a whole number"


def test_numbers_of_numpy_count_units():
    assert len(pcv.leave_one_out(np.int64(3)).id) == 3


def test_folds_print_themselves():
    assert repr(pcv.kfold(40, 5)) == "5 folds of 40 units: test 8, training 32, no gap"
    assert repr(pcv.h_block(10, 2)) == (
        "10 folds of 10 units: test 1, training 5 to 7, neither tested nor trained on 2 to 4"
    )
    page = pcv.h_block(10, 2)._repr_html_()
    assert ">10 folds of 10 units: test 1, " in page
    assert page.count("<tr") == 12  # names of columns, name of the index, folds
    first = page.partition("<th>0</th>")[2].partition("</tr>")[0]
    assert re.findall(r"<td>(\d+)</td>", first) == ["1", "2", "7"]
