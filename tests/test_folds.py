import warnings

import numpy as np
import pytest
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter
from sklearn import model_selection

from pcv.folds.base import describe, from_sets, train_mask
from pcv.folds.checks import check
from pcv.folds.exchangeable import from_column, kfold, leave_one_group_out, leave_one_out
from pcv.folds.schemes import FoldScheme, Table, make
from pcv.folds.splitters import from_splitter
from tests.folds import assert_partition, names, quick, refusal, scored


def array(*units: int) -> np.ndarray:
    return np.array(units, np.int64)


# The type


@st.composite
def sets(draw):
    """Number of units, test sets and gaps: not empty, disjoint, some units left for training."""
    num_units = draw(st.integers(3, 30))
    role = st.sampled_from(["train", "test", "gap"])
    folds = []
    for _ in range(draw(st.integers(2, 5))):
        roles = draw(st.lists(role, min_size=num_units - 2, max_size=num_units - 2))
        roles = np.array(draw(st.permutations([*roles, "train", "test"])))
        folds.append((np.flatnonzero(roles == "test"), np.flatnonzero(roles == "gap")))
    return num_units, [test for test, _ in folds], [gap for _, gap in folds]


@quick
@given(sets())
def test_held_out_is_test_and_gap_as_maximal_ranges(given_sets):
    num_units, tests, gaps = given_sets
    folds = from_sets(names(len(tests)), [test[::-1] for test in tests], gaps, num_units)
    check(folds, names(num_units), cover=False)
    assert scored(folds) == [test.tolist() for test in tests]
    train = train_mask(folds, num_units)
    for fold, (test, gap) in enumerate(zip(tests, gaps, strict=True)):
        assert set(np.flatnonzero(~train[fold])) == {*test, *gap}
        ranges = folds.held_out[fold]
        used = ranges[ranges[:, 1] > 0]
        assert (used[:, 0] < used[:, 1]).all()
        assert (used[1:, 0] > used[:-1, 1]).all()
        assert not ranges[len(used) :].any()
    np.testing.assert_array_equal(train_mask(folds, num_units, slice(1, 2)), train[1:2])


@given(st.integers(2, 40))
def test_leave_one_out_leaves_out_each_unit_alone(num_units):
    folds = leave_one_out(names(num_units))
    assert_partition(folds, num_units)
    assert scored(folds) == [[unit] for unit in range(num_units)]


def test_leave_one_out_of_many_units_stays_small():
    num_units = 12_573
    folds = leave_one_out(names(num_units))
    assert folds.test.nbytes + folds.held_out.nbytes == 3 * 8 * num_units
    check(folds, names(num_units), cover=True)
    assert describe(folds, num_units) == "12573 folds, test 1, training 12572, no gap"
    assert np.flatnonzero(~train_mask(folds, num_units, slice(99, 100))).tolist() == [99]


def test_leave_future_out_stays_small():
    test = [array(unit) for unit in range(100, 1000)]
    gap = [np.arange(unit + 1, 1000) for unit in range(100, 1000)]
    folds = from_sets(names(900), test, gap, 1000)
    assert folds.held_out.shape == (900, 1, 2)
    assert describe(folds, 1000) == "900 folds, test 1, training 100 to 999, gap 0 to 899"


def test_sets_outside_the_units_are_refused():
    assert refusal(from_sets, ["a"], [array(0, 3)], None, 3) == (
        "fold 'a': index 3 of a unit; indices of the 3 units are 0 to 2"
    )
    assert "index -1 of a unit" in refusal(from_sets, ["a"], [array(0)], [array(-1)], 3)
    assert refusal(from_sets, ["a"], [array(1, 1)], None, 3) == "fold 'a' tests a unit twice"


def test_folds_of_a_column_that_may_be_typos():
    regions = np.array(["north"] * 10 + ["south"] * 9 + ["nroth"] + ["east"] * 2)
    said = "fold 'nroth' is spelt almost like 'north' and much smaller: is it a typo"
    with pytest.warns(UserWarning, match=said):
        assert len(from_column(regions, "region").id) == 4
    for fine in (regions[regions != "nroth"], np.array(["rat 1"] * 10 + ["rat 2"])):
        from_column(fine, "region")


# What is refused


def test_folds_that_make_no_sense_are_refused():
    def message(ids, test, gap=None, cover=True):
        return refusal(check, from_sets(ids, test, gap, 4), ["A", "B", "C", "D"], cover)

    halves = [array(0, 1), array(2, 3)]
    assert message([], []) == "no folds: give at least one test set"
    assert message(["a", "a"], halves) == "fold names must be distinct; repeated: 'a'"
    assert message(["a", "b"], [array(0, 1, 2), array()]) == (
        "empty folds, which test no unit: 'b'"
    )
    assert message(["a", "b"], halves, [array(2, 3), array()]) == (
        "folds that leave no unit to train on: 'a'"
    )
    assert message(["a", "b"], [array(0), array(2)]) == ("2 of 4 units are in no fold: 'B', 'D'")
    assert message(["a", "b"], [array(0, 1, 2), array(1, 2, 3)]) == (
        "2 of 4 units are tested more than once: 'B', 'C'"
    )
    check(from_sets(["a", "b"], [array(0), array(0)], None, 4), list("ABCD"), cover=False)


def test_many_units_are_counted_not_listed():
    folds = from_sets(["a", "b"], [array(0), array(1)], None, 9)
    assert refusal(check, folds, names(9), True) == (
        "7 of 9 units are in no fold: '3', '4', '5' and 4 more"
    )
    assert refusal(check, folds, ["1"], True) == (
        "folds of 9 units, but the data have 1 (rows that dropna removes do not count); make "
        "them of these 1, in the order of the data"
    )
    unsaid = folds._replace(num_units=None)
    words = "folds test unit 1, counted from 0, but the data have 1 units"
    assert refusal(check, unsaid, ["1"], True) == words


@pytest.mark.parametrize("unit", [0, 3, 5])
def test_a_fold_that_trains_on_what_it_tests_is_refused(unit):
    folds = from_sets(["a", "b"], [array(1, 2, 4), array(0, 3, 5)], None, 6)
    check(folds, names(6), cover=True)
    leaky = folds._replace(test=np.array([[1, 2, unit], [0, 3, 5]]))
    assert refusal(check, leaky, names(6), True) == (
        f"fold 'a' trains on units that it tests: '{unit + 1}'"
    )
    unmasked = folds._replace(held_out=np.zeros((2, 0, 2), np.int64))
    assert "fold 'a' trains on units that it tests: '2', '3', '5'" in refusal(
        check, unmasked, names(6), True
    )


# Schemes


sizes = st.tuples(st.integers(2, 40), st.integers(2, 40)).filter(lambda pair: pair[1] <= pair[0])
seeds = st.integers(0, 2**32 - 1)


@quick
@given(sizes, seeds)
def test_k_folds_are_even(size, seed):
    num_units, k = size
    for folds in [
        kfold(names(num_units), k, seed=seed),
        kfold(names(num_units), k, contiguous=True),
    ]:
        assert_partition(folds, num_units)
        assert folds.id.tolist() == [f"fold {fold}" for fold in range(1, k + 1)]
        assert np.ptp([len(units) for units in scored(folds)]) <= 1
    assert folds.held_out.shape == (k, 1, 2)


@quick
@given(st.lists(st.sampled_from(["x", "y", "z"]), min_size=4, max_size=40), seeds)
def test_stratified_folds_share_every_value_evenly(values, seed):
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "stratify_by: ")
        folds = kfold(len(values), 4, stratify_by=values, seed=seed)
    assert_partition(folds, len(values))
    shares = [[[values[u] for u in units].count(v) for units in scored(folds)] for v in "xyz"]
    assert max(np.ptp(share) for share in shares) <= 1
    assert np.ptp(np.sum(shares, axis=0)) <= 1


@quick
@given(st.lists(st.integers(0, 9), min_size=2, max_size=40), seeds)
def test_groups_are_kept_together(values, seed):
    groups = sorted(set(values))
    if len(groups) < 2:
        return
    singly = leave_one_group_out(np.array(values), "g")
    assert_partition(singly, len(values))
    assert singly.id.tolist() == [f"g {group}" for group in groups]
    assert [{values[u] for u in units} for units in scored(singly)] == [{g} for g in groups]
    k = len(groups) // 2 + 1
    jointly = kfold(len(values), k, group_by=values, seed=seed)
    assert_partition(jointly, len(values))
    sets_of_groups = [{values[u] for u in units} for units in scored(jointly)]
    assert sum(len(groups) for groups in sets_of_groups) == len(groups)
    assert np.ptp([len(groups) for groups in sets_of_groups]) <= 1


def test_random_folds_are_random_and_repeatable():
    def drawn(seed):
        by = {}, {"stratify_by": np.repeat([0, 1], 50)}, {"group_by": np.arange(100) // 4}
        return [scored(kfold(100, 5, seed=seed, **key)) for key in by]

    assert drawn(1) == drawn(1)
    assert all(one != other for one, other in zip(drawn(1), drawn(2), strict=True))


def test_groups_are_ordered_and_named_by_value():
    assert leave_one_group_out(np.array([10.0, 9.0, 2.5]), "dose").id.tolist() == [
        *("dose 2.5", "dose 9", "dose 10")
    ]
    folds = from_column(np.array(["b", "a", "b"], object), "part")
    assert folds.id.tolist() == ["part a", "part b"]
    assert scored(folds) == [[1], [0, 2]]
    assert leave_one_out(["rat 1", "rat 2"]).id.tolist() == ["rat 1", "rat 2"]


def test_numbers_of_folds_that_cannot_be_are_refused():
    message = "k is {}: it must be from 2 to 3, the number of units"
    for k in [1, 4]:
        assert refusal(kfold, 3, k) == message.format(k)
        assert refusal(kfold, 3, k, contiguous=True) == message.format(k)
        assert refusal(kfold, 3, k, stratify_by=[1, 1, 1]) == message.format(k)
        assert refusal(kfold, 4, k, group_by=array(1, 1, 2, 3)) == (
            f"k is {k}: it must be from 2 to 3, the number of groups"
        )
    assert refusal(leave_one_group_out, array(7, 7), "rat") == (
        "'rat' has one value for all units, '7': folds need at least 2 groups"
    )


def test_a_fold_misspelt_in_a_column_is_refused():
    assert refusal(from_column, np.array(["north", "south", "North ", "north"]), "part") == (
        "column 'part': folds 'North ' and 'north' differ only in case or spaces;"
        " make them identical or clearly distinct"
    )


# Splitters of scikit-learn's kind


class ExpandingWindow:
    """Like sklearn.model_selection.TimeSeriesSplit: the future is neither tested nor trained on."""

    def split(self, X, y=None, groups=None):
        for start in range(3, len(X), 2):
            yield np.arange(start), np.arange(start, min(start + 2, len(X)))


class LeaveOneGroupOut:
    def split(self, X, y=None, groups=None):
        for group in np.unique(groups):
            yield np.flatnonzero(groups != group), np.flatnonzero(groups == group)


class Fixed:
    def __init__(self, train, test):
        self.pair = train, test

    def split(self, X, y=None, groups=None):
        yield self.pair


@pytest.mark.parametrize(
    "splitter",
    [
        model_selection.KFold(3, shuffle=True, random_state=1),
        model_selection.StratifiedKFold(3),
        model_selection.GroupKFold(3),
        model_selection.LeaveOneGroupOut(),
        model_selection.TimeSeriesSplit(3, gap=1),
        model_selection.ShuffleSplit(4, test_size=2, random_state=1),
        model_selection.LeavePOut(2),
    ],
    ids=lambda splitter: type(splitter).__name__,
)
def test_splitters_of_scikit_learn(splitter):
    """Every split as it is: what it tests, and what it trains on; the rest is a gap."""
    n, y = 12, np.arange(12) % 2
    groups = np.arange(12) // 3 if "Group" in type(splitter).__name__ else None
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        folds = from_splitter(splitter, n, y, groups)
    splits = list(splitter.split(np.zeros((n, 1)), y, groups))
    times = np.bincount(np.concatenate([test for _, test in splits])).max()
    every = np.bincount(np.concatenate([test for _, test in splits]), minlength=n)
    of, told = type(splitter).__name__, [str(w.message) for w in said]
    assert (f"{of} tests units up to {times} times, '" in told[0]) if times > 1 else not told[1:]
    never = f"{of} tests {(every == 0).sum()} of 12 units never, "
    assert any(x.startswith(never) for x in told) == (of == "ShuffleSplit")
    assert len(folds.id) == len(splits)
    for k, (train, test) in enumerate(splits):
        assert scored(folds)[k] == sorted(test.tolist())
        assert np.flatnonzero(train_mask(folds, n)[k]).tolist() == sorted(train.tolist())


@pytest.mark.filterwarnings("ignore:_Splits tests")
def test_twin_splits_are_refused():
    class _Splits:
        def __init__(self, *splits):
            self.splits = splits

        def split(self, x, y=None, groups=None):
            return iter(self.splits)

    one, other = (array(2, 3), array(0, 1)), (array(0), array(2, 3))
    assert refusal(from_splitter, _Splits(one, other, one), 4) == (
        "'fold 1' and 'fold 3' of the splitter are the same: they test, and train on, the same "
        "units; drop one"
    )
    with_gap = array(2), array(0, 1)
    assert len(from_splitter(_Splits(one, other, with_gap), 4).id) == 3


def test_splitters_are_schemes():
    folds = from_splitter(ExpandingWindow(), names(8))
    assert folds.id.tolist() == ["fold 1", "fold 2", "fold 3"]
    assert scored(folds) == [[3, 4], [5, 6], [7]]
    assert folds.held_out.tolist() == [[[3, 8]], [[5, 8]], [[7, 8]]]
    groups = np.array(["b", "a", "b"])
    for ours, theirs in zip(
        leave_one_group_out(groups, "g")[1:],
        from_splitter(LeaveOneGroupOut(), names(3), group_by=groups)[1:],
        strict=True,
    ):
        np.testing.assert_array_equal(ours, theirs)


def test_splitters_that_leak_or_index_otherwise_are_refused():
    assert refusal(from_splitter, Fixed([0, 1, 2], [2, 3]), names(4)) == (
        "'fold 1' of the splitter trains on units that it tests: '3'"
    )
    assert refusal(from_splitter, Fixed(np.array([True, False]), [1]), names(2)) == (
        "'fold 1' of the splitter: integer indices needed, not bool"
    )
    assert "index 4 of a unit" in refusal(from_splitter, Fixed([0], [4]), names(4))


# From a config and data


def scheme(name: str, **keys) -> FoldScheme:
    return TypeAdapter(FoldScheme).validate_python({"scheme": name, **keys})


RATS = xr.Dataset(
    {
        "rat": ("unit", np.repeat(np.arange(1, 31), 5)),
        "day": ("unit", np.tile([8, 15, 22, 29, 36], 30)),
        "sex": ("unit", np.repeat(["f", "m"], 75)),
    },
    coords={"unit": [f"rat {r}, day {d}" for r in range(1, 31) for d in [8, 15, 22, 29, 36]]},
)


@pytest.mark.parametrize(
    ("config", "line"),
    [
        (scheme("leave_one_out"), "leave-one-out: 150 folds, test 1, training 149, no gap"),
        (
            scheme("leave_one_group_out", group="rat"),
            "leave-one-group-out over rat: 30 folds, test 5, training 145, no gap",
        ),
        (
            scheme("column", column="day"),
            "folds of column day: 5 folds, test 30, training 120, no gap",
        ),
        (scheme("k_fold", k=4), "4-fold at random: 4 folds, test 37 to 38, training 112 to 113"),
        (scheme("k_fold", k=4, contiguous=True), "4-fold contiguous: 4 folds, test 37 to 38"),
        (
            scheme("k_fold", k=5, stratify_by="sex"),
            "5-fold stratified by sex: 5 folds, test 30, training 120, no gap",
        ),
        (scheme("k_fold", k=4, group_by="rat"), "4-fold over groups of rat: 4 folds, test 35 to"),
    ],
)
def test_schemes_of_a_config(config, line):
    folds = make(config, Table(RATS, 1))
    assert f"{config.title}: {describe(folds, 150)}".startswith(line)
    again, other = make(config, Table(RATS, 1)), make(config, Table(RATS, 2))
    np.testing.assert_equal(folds._asdict(), again._asdict())
    random = config.scheme == "k_fold" and not config.contiguous
    assert (scored(folds) != scored(other)) == random


def test_the_default_experiment_leaves_out_one_rat_at_a_time():
    folds = make(scheme("leave_one_group_out", group="rat"), Table(RATS, 1))
    assert folds.id[8] == "rat 9"
    assert scored(folds)[8] == [40, 41, 42, 43, 44]
    assert folds.held_out[8].tolist() == [[40, 45]]


def test_schemes_on_units_of_several_rows():
    data = xr.Dataset(
        {
            "state": ("row", ["b", "a", "b", "a"]),
            "floor": ("row", [0, 0, 1, 0]),
            "unit_of_row": ("row", [2, 0, 2, 1]),
        },
        coords={"unit": ["county 1", "county 2", "county 3"]},
    )
    assert scored(make(scheme("column", column="state"), Table(data, 1))) == [[0, 1], [2]]
    assert "differs within unit 'county 3': 0 and 1" in refusal(
        make, scheme("column", column="floor"), Table(data, 1)
    )


def test_configs_that_do_not_fit_the_data_are_refused():
    assert refusal(make, scheme("leave_one_group_out", group="rats"), Table(RATS, 1)) == (
        "the data: no column 'rats' (folds.group); did you mean 'rat'?"
    )
    assert "no column 'dya' (folds.column); did you mean 'day'?" in refusal(
        make, scheme("column", column="dya"), Table(RATS, 1)
    )
    assert refusal(make, scheme("k_fold", k=31, group_by="rat"), Table(RATS, 1)) == (
        "k is 31: it must be from 2 to 30, the number of groups"
    )
    assert refusal(make, scheme("k_fold", k=151), Table(RATS, 1)) == (
        "k is 151: it must be from 2 to 150, the number of units"
    )


def test_values_too_rare_to_be_in_every_fold_are_said():
    with pytest.warns(UserWarning, match="stratify_by: 30 of 30 values occur in fewer than 10"):
        make(scheme("k_fold", k=10, stratify_by="rat"), Table(RATS, 1))
