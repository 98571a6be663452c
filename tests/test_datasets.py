import subprocess
import sys
from datetime import date
from decimal import Decimal
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import xarray as xr

from pcv.base.errors import PcvError
from pcv.folds.columns import label, model_data, unit_column
from pcv.pipeline.config import DataConfig
from pcv.pipeline.data.tables import make_data, read_table, stacked

RATS = Path(__file__).parents[1] / "resources" / "rats.csv"


def data_of(table: pd.DataFrame, outcome: str = "y", constants: dict | None = None, **config):
    made = DataConfig(file="data.csv", outcome=outcome, **config)
    arrays = {name: as_variable(x) for name, x in (constants or {}).items()}
    return make_data(table, arrays, made, "data.csv")


def as_variable(x: np.ndarray | xr.Variable) -> xr.Variable:
    return xr.as_variable(x if isinstance(x, xr.Variable) else (["d", "e"][: x.ndim], x))


def refusal(table: pd.DataFrame, outcome: str = "y", **config) -> str:
    with pytest.raises(PcvError) as caught:
        data_of(table, outcome, **config)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def read_refusal(path: Path, outcome: str = "y") -> str:
    with pytest.raises(PcvError) as caught:
        read_table(path, outcome)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_rats_are_those_of_gelfand_1990():
    # Table 3 there; rows and sums of the list printed in the BUGS manual, Examples, volume I, Rats.
    table, constants = read_table(RATS, "weight_g")
    weights = table.pivot(index="rat", columns="day", values="weight_g")
    assert constants == {}
    assert weights.index.tolist() == list(range(1, 31))
    assert weights.columns.tolist() == [8, 15, 22, 29, 36]
    assert weights.loc[1].tolist() == [151, 199, 246, 283, 320]
    assert weights.loc[9].tolist() == [177, 236, 285, 350, 376]
    assert weights.loc[30].tolist() == [153, 200, 244, 286, 324]
    assert weights.sum().tolist() == [4565, 6053, 7351, 8685, 9744]
    assert (weights**2).to_numpy().sum() == 9_433_080
    assert table.dtypes.eq("int64").all()


def test_rats_by_weighing():
    table, _ = read_table(RATS, "weight_g")
    shuffled = table.sample(frac=1, random_state=1)
    data = data_of(shuffled, "weight_g", order=["rat", "day"])
    assert dict(data.sizes) == {"unit": 150}
    assert data["unit"].values[[0, 41]].tolist() == ["rat 1, day 8", "rat 9, day 15"]
    assert data["weight_g"].values[41] == 236
    assert data.attrs == {"outcome": "weight_g", "order": ["rat", "day"], "unit_columns": []}
    xr.testing.assert_identical(data, data_of(table, "weight_g", order=["rat", "day"]))


def test_rats_with_rats_as_units():
    table, _ = read_table(RATS, "weight_g")
    data = data_of(table, "weight_g", order=["rat", "day"], units=["rat"])
    assert dict(data.sizes) == {"row": 150, "unit": 30}
    assert data["unit"].values[[0, 8, 29]].tolist() == ["rat 1", "rat 9", "rat 30"]
    np.testing.assert_array_equal(data["unit_of_row"], np.repeat(np.arange(30), 5))
    np.testing.assert_array_equal(unit_column(data, "rat"), np.arange(1, 31))


# Kinds of files


GRID = xr.Dataset(
    {
        "y": (("rat", "day"), np.arange(6.0).reshape(2, 3)),
        "treated": ("rat", [True, False]),
        "dose": ("day", [1, 2, 4], {"units": "days"}),
        "knots": ("knot", [0.5, 1.5]),
        "scale": 5.0,
    },
    coords={"rat": [7, 9], "cage": ("rat", ["north", "south"]), "study": 3},
)


@pytest.mark.parametrize("kind", ["netcdf3", "netcdf4", "zarr"])
@pytest.mark.filterwarnings("ignore:Consolidated metadata")
def test_grids_are_stacked_into_rows(tmp_path, kind):
    path = tmp_path / ("grid.zarr" if kind == "zarr" else "grid.nc")
    if kind == "zarr":
        GRID.to_zarr(path)
    else:
        GRID.to_netcdf(path, engine="scipy" if kind == "netcdf3" else "h5netcdf")
    table, constants = read_table(path, "y")
    assert table["y"].tolist() == [0, 1, 2, 3, 4, 5]
    assert table["rat"].tolist() == [7, 7, 7, 9, 9, 9]
    assert table["day"].tolist() == [0, 1, 2, 0, 1, 2]
    assert table["treated"].tolist() == [True] * 3 + [False] * 3
    assert table["dose"].tolist() == [1, 2, 4, 1, 2, 4]
    assert table["cage"].tolist() == ["north"] * 3 + ["south"] * 3
    assert set(table) == {"y", "rat", "day", "treated", "dose", "cage"}
    assert constants.keys() == {"knots", "scale", "study"}
    data = data_of(table, constants=constants, order=["rat", "day"])
    assert data["knots"].dims == ("knots_dim_0",)
    given = model_data(data)
    assert given["scale"] == 5.0
    assert given["knots"].tolist() == [0.5, 1.5]
    assert given["cage"].dtype.kind == "U"
    assert given["rat"].dtype == np.int64


def test_one_dimension_without_labels_gives_no_column(tmp_path):
    xr.Dataset({"y": ("unit", [1.0, 2.0])}).to_netcdf(tmp_path / "y.nc", engine="scipy")
    table, _ = read_table(tmp_path / "y.nc", "y")
    assert table.columns.tolist() == ["y"]


def test_every_kind_of_file_gives_the_same_data(tmp_path):
    table = read_table(RATS, "weight_g")[0].reset_index(drop=True)
    table.to_parquet(tmp_path / "rats.parquet")
    table.set_index(["rat", "day"]).to_parquet(tmp_path / "indexed.parquet")
    grid = xr.Dataset.from_dataframe(table.set_index(["rat", "day"]))
    grid.to_netcdf(tmp_path / "rats.nc", engine="scipy")
    expected = data_of(table, "weight_g", order=["rat", "day"])
    for name in ["rats.parquet", "indexed.parquet", "rats.nc"]:
        read, _ = read_table(tmp_path / name, "weight_g")
        xr.testing.assert_identical(data_of(read, "weight_g", order=["rat", "day"]), expected)


def test_text_files_keep_every_digit_and_skip_blank_lines(tmp_path):
    path = tmp_path / "data.csv"
    path.write_bytes(
        b'\xef\xbb\xbf"full, name",y\n\n"a, b",0.1234567890123456789\r\n"c\nd",1e-300\n\n'
    )
    table, _ = read_table(path, "y")
    assert table["y"].tolist() == [0.1234567890123456789, 1e-300]
    assert table["full, name"].tolist() == ["a, b", "c\nd"]
    assert table.index.tolist() == [(0, 3), (1, 5)]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a,y\n1,2\n3\n", "line 3 has 1 field(s), the header has 2"),
        ("a,y\n1,2,3\n4,5,6\n", "line 2 has 3 field(s), the header has 2"),
        ("a,y,a\n1,2,3\n", "two columns are named 'a'; rename one"),
        ("", "cannot be read: No columns to parse from file"),
        (b"a,y\n\xff,2\n", "cannot be read: it is not UTF-8 text; save it as that"),
        (
            "a;y\n1,5;2\n",
            "columns are separated by ';'; separate them by commas, and write numbers with",
        ),
        ("a\ty\n1\t2\n", r"columns are separated by '\t'; separate them by commas, and write num"),
    ],
)
def test_damaged_text_files_are_refused(tmp_path, content, message):
    path = tmp_path / "data.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    assert read_refusal(path).startswith(f"{path}: {message}")


def test_files_that_cannot_be_read_are_refused(tmp_path):
    assert "no such file" in read_refusal(tmp_path / "none.csv")
    assert "not a kind of file that pcv reads" in read_refusal(tmp_path / "data.xlsx")
    for name in ["junk.parquet", "junk.nc"]:
        (tmp_path / name).write_text("junk")
        assert "cannot be read: " in read_refusal(tmp_path / name)
    (tmp_path / "junk.zarr").mkdir()
    assert "cannot be read: No group found" in read_refusal(tmp_path / "junk.zarr")


def test_grids_without_rows_to_speak_of_are_refused(tmp_path):
    path = tmp_path / "data.nc"
    grid = xr.Dataset({"y": ("unit", [1.0, 2.0]), "mean": 1.5})
    grid.to_netcdf(path, engine="scipy")
    assert read_refusal(path, "yy").endswith("no column 'yy' (data.outcome); did you mean 'y'?")
    assert read_refusal(path, "mean").endswith("the outcome 'mean' is a single number")
    with pytest.warns(UserWarning, match="Duplicate dimension names"):
        square = grid.assign(distance=(("unit", "unit"), np.ones((2, 2))))
    with pytest.raises(PcvError, match="'distance' has dimension 'unit' twice; rename one"):
        stacked(square, "y", "data")


def test_arrays_along_the_rows(tmp_path):
    day, x = np.array([2, 1, 3]), np.arange(6.0).reshape(3, 2)
    stored = xr.Dataset(
        {"y": ("row", [1.5, 2.5, 3.5]), "day": ("row", day), "x": (("k", "row"), x.T)}
    )
    stored["row_of_x"] = "row", day
    stored["grid"] = "row_2", np.arange(3)  # as many, but not along the rows
    stored.to_netcdf(tmp_path / "data.nc", engine="scipy")
    table, arrays = read_table(tmp_path / "data.nc", "y")
    assert set(table) == {"y", "day", "row_of_x"}
    data = data_of(table, constants=arrays, order=["day"])
    assert data["x"].dims == ("unit", "x_dim_0")
    given = model_data(data)
    np.testing.assert_array_equal(given["x"], x[[1, 0, 2]])
    np.testing.assert_array_equal(given["grid"], [0, 1, 2])
    in_units = data_of(table, constants=arrays, order=["day"], units=["row_of_x"])
    assert in_units["x"].dims == ("row", "x_dim_0")
    assert data_of(table, constants=arrays, columns=["day"]).data_vars.keys() == {"y", "day"}
    arrays["x"].values[2, 1] = np.nan
    with pytest.raises(PcvError, match="array 'x': missing value in row 3; fill or drop it"):
        data_of(table, constants=arrays)
    with pytest.raises(PcvError, match=r"no column 'x' \(data.order\)"):
        data_of(table, constants=arrays, order=["x"])


def test_arrays_of_grids_are_repeated_where_they_lack_a_dimension():
    slope = xr.DataArray([[1.0, 2.0], [3.0, 4.0]], dims=["rat", "k"])
    table, arrays = stacked(GRID.assign(slope=slope), "y", "grid")
    assert len(table) == 6
    np.testing.assert_array_equal(arrays["slope"], slope.values[[0, 0, 0, 1, 1, 1]])


# What stands in the table


def test_values_become_one_of_few_types():
    table = pd.DataFrame(
        {
            "y": pd.array([1, 2], "Int64"),
            "small": np.array([1, 2], np.uint8),
            "half": np.array([0.5, 1.5], np.float32),
            "exact": [Decimal("1.5"), Decimal("2.5")],
            "yes": [True, False],
            "kind": pd.Categorical(["b", "a"]),
            "when": [date(2020, 1, 1), date(2020, 1, 2)],
        }
    )
    types = {name: values.dtype.str[1:] for name, values in model_data(data_of(table)).items()}
    assert types == {
        "y": "i8",
        "small": "i8",
        "half": "f8",
        "exact": "f8",
        "yes": "b1",
        "kind": "U1",
        "when": "M8[ns]",
        "unit": "i8",
    }


@pytest.mark.filterwarnings("ignore:Consolidated metadata")
@pytest.mark.parametrize("units", [[], ["kind"]])
def test_data_survive_storage(tmp_path, units):
    table = pd.DataFrame(
        {"y": [1.5, 2.5], "yes": [True, False], "kind": ["b", "aa"], "when": [date(2020, 1, 1)] * 2}
    )
    constants = {"scale": np.array(2.0), "names": np.array([["k"], ["l"]])}
    data = data_of(table, constants=constants, units=units)
    data.to_zarr(tmp_path / "data.zarr")
    stored = xr.open_dataset(tmp_path / "data.zarr", engine="zarr").load()
    xr.testing.assert_identical(stored, data)
    np.testing.assert_equal(model_data(stored), model_data(data))


def test_units_are_named_and_numbered():
    table = pd.DataFrame(
        {
            "y": [1, 2, 3, 4],
            "state": ["b", "a", "b", "b"],
            "county": [10.0, 9.0, 10.0, 2.5],
        }
    )
    assert data_of(table)["unit"].values.tolist() == ["1", "2", "3", "4"]
    data = data_of(table, units=["state", "county"])
    units = ["state a, county 9", "state b, county 2.5", "state b, county 10"]
    assert data["unit"].values.tolist() == units
    assert data["y"].values.tolist() == [1, 2, 3, 4]
    assert model_data(data)["unit"].tolist() == [2, 0, 2, 1]
    assert unit_column(data, "county").tolist() == [9, 2.5, 10]


def test_only_the_columns_asked_for_are_checked_and_kept():
    table = pd.DataFrame({"y": [1, 2], "g": [2, 1], "x": [0, 1], "bad": [np.nan, 1]})
    constants = {"k": np.arange(3), "bad_too": np.array([np.nan])}
    data = data_of(table, constants=constants, order=["g"], columns=["x", "k"])
    assert model_data(data).keys() == {"y", "g", "x", "k", "unit"}
    with pytest.raises(PcvError, match="constant 'bad_too': missing value in row 1"):
        data_of(table, constants=constants, columns=["x", "bad_too"])


def test_unknown_columns_are_refused():
    table = pd.DataFrame({"weight_g": [1, 2], "rat": [1, 2]})
    assert refusal(table, "wieght_g") == (
        "data.csv: no column 'wieght_g' (data.outcome); did you mean 'weight_g'?"
    )
    assert refusal(table, "weight_g", order=["day"]) == (
        "data.csv: no column 'day' (data.order); there are 'weight_g', 'rat'"
    )
    assert "'rats' (data.units); did you mean 'rat'?" in refusal(table, "weight_g", units=["rats"])
    assert "(data.columns)" in refusal(table, "weight_g", columns=["rats"])


def test_missing_and_infinite_values_are_refused(tmp_path):
    path = tmp_path / "data.csv"
    path.write_text("rat,y\n1,5\n\n2,\n3,inf\n4,NA\n")
    table, _ = read_table(path, "y")
    assert refusal(table) == "data.csv: column 'y': infinite value in row 3 (line 5)"
    assert refusal(table.assign(x=table["y"], y=1.0)).startswith(
        "data.csv: column 'x': missing value in rows 2 (line 4), 4 (line 6); fill or drop it"
    )
    many = pd.DataFrame({"x": [np.nan] * 7 + [1.0], "y": 1.0})
    assert "missing value in rows 1, 2, 3 and 4 more;" in refusal(many)


def test_rows_whose_outcome_is_missing_are_left_out(tmp_path):
    path = tmp_path / "data.csv"
    path.write_text("rat,y,x\n1,5,1\n2,,\n3,7,2\n4,NA,3\n5,9,\n")
    table, _ = read_table(path, "y")
    assert "column 'x': missing value in row 5 (line 6)" in refusal(table)
    data = data_of(table.fillna({"x": 0.0}))
    assert data["unit"].values.tolist() == ["1", "3", "5"]
    assert data["y"].values.tolist() == [5, 7, 9]
    assert data.attrs["counts"] == ["2 of 5 outcomes are missing and not scored"]
    assert "all 2 values of the outcome 'y' are missing" in refusal(table.loc[[(1, 3), (3, 5)]])


def test_values_of_the_wrong_kind_are_refused():
    def with_x(*values):
        return pd.DataFrame({"y": range(len(values)), "x": pd.Series(values, dtype=object)})

    assert refusal(pd.DataFrame({"y": ["Yes", "No"]})) == (
        "data.csv: the outcome 'y' must be numbers, not 'Yes' as in the first row;"
        " recode it, for example as 0 and 1"
    )
    assert data_of(with_x("1", "2", "3", "K"))["x"].values.tolist() == ["1", "2", "3", "K"]
    of_csv = with_x("1", "2", "3", "4,5").set_axis(
        pd.MultiIndex.from_arrays([range(4), range(2, 6)], names=["row", "line"])
    )
    assert refusal(of_csv) == (
        "data.csv: column 'x': text among numbers: '4,5' in row 4 (line 5); correct it,"
        " or write all values as text"
    )
    assert refusal(pd.DataFrame({"y": ["1,84", "2,5"]})) == (
        "data.csv: the outcome 'y' must be numbers, not '1,84' as in the first row; write it,"
        " with a decimal point"
    )
    days = pd.DataFrame({"y": range(3), "day": ["25/01/2024", "01/02/2024", "2/2/2024"]})
    assert refusal(days, order=["day"]) == (
        "data.csv: data.order: column 'day' holds dates as text ('25/01/2024'), which do not sort"
        " by time; write them as in 2024-03-31, and labels that are no dates unlike dates"
    )
    for first, second in (
        ("2024-1-9", "2024-1-10"),
        ("9-Feb-24", "10-Feb-24"),
        ("Mar 2024", "Apr 2024"),
    ):
        days = pd.DataFrame({"y": range(2), "day": [first, second]})
        assert "holds dates as text" in refusal(days, order=["day"])
    for first, second in (("2024-01-09", "2024-01-10"), ("week 9", "week 10"), ("a", "b")):
        data_of(pd.DataFrame({"y": range(2), "day": [first, second]}), order=["day"])
    assert "values of kind 'mixed-integer' (object) cannot be used" in refusal(with_x(1, "a"))
    assert "values of kind 'integer' (object) cannot be used" in refusal(with_x(1, 2**70))
    assert "values of kind 'bytes' (object) cannot be used" in refusal(with_x(b"a", b"b"))
    assert refusal(pd.DataFrame({"y": []})) == "data.csv: no rows"
    assert data_of(with_x("1", "2", "3"))["x"].values.tolist() == ["1", "2", "3"]


def test_files_that_end_early_are_told(tmp_path):
    xr.Dataset({"y": ("row", np.arange(100.0))}).to_netcdf(tmp_path / "data.nc", engine="scipy")
    whole = (tmp_path / "data.nc").read_bytes()
    for size in (10, 60, len(whole) // 2):
        (tmp_path / "data.nc").write_bytes(whole[:size])
        with pytest.raises(PcvError, match=r"data\.nc: cannot be read: "):
            read_table(tmp_path / "data.nc", "y")


def test_too_many_columns_are_refused():
    table = pd.DataFrame(np.zeros((2, 10_001)), columns=[f"x{i}" for i in range(10_001)])
    assert refusal(table, outcome="x0") == (
        "data.csv: 10,001 columns; name those that the models read (data.columns)"
    )
    assert len(data_of(table, outcome="x0", columns=["x1"]).data_vars) == 2


def test_codes_that_are_one_number_are_refused(tmp_path):
    file = tmp_path / "data.csv"
    file.write_text("site,y\n001,1\n1,2\n002,3\n")
    with pytest.raises(
        PcvError, match="column 'site' has '001' and '1', which are the same number"
    ):
        read_table(file, "y")
    file.write_text("site,y\n 01,1\n1,2\n,3\n")
    with pytest.raises(PcvError, match="column 'site' has '01' and '1'"):
        read_table(file, "y")
    file.write_text("site,y\n001,1\n010,2\n002,3\n")
    table, _ = read_table(file, "y")
    assert table["site"].tolist() == [1, 10, 2]


def test_rows_that_the_order_does_not_tell_apart_are_refused():
    table = pd.DataFrame({"y": range(4), "rat": [2, 1, 1, 1], "day": [8, 8, 15, 8]})
    assert refusal(table, order=["rat", "day"]) == (
        "data.csv: data.order does not tell all rows apart: 'rat 1, day 8' stands in rows 2, 4"
    )


def test_labels_name_what_other_columns_order():
    months = pd.DataFrame({"y": [1, 2, 3], "month": [3, 1, 2], "name": ["Mar", "Jan", "Feb"]})
    data = data_of(months, order=["month"], labels={"month": "name"})
    assert data["unit"].values.tolist() == ["name Jan", "name Feb", "name Mar"]
    assert data["y"].values.tolist() == [2, 3, 1]
    twice = pd.concat([months, months.assign(y=[4, 5, 6])])
    data = data_of(twice, units=["month"], labels={"month": "name"}, columns=[])
    assert data["unit"].values.tolist() == ["name Jan", "name Feb", "name Mar"]
    assert data["unit_of_row"].values.tolist() == [2, 0, 1, 2, 0, 1]
    same = months.assign(name="Mon")
    assert refusal(same, order=["month"], labels={"month": "name"}) == (
        "data.csv: data.labels: two units are named 'name Mon'; give each a label of its own"
    )
    assert "no column 'nam' (data.labels); did you mean 'name'?" in refusal(
        months, order=["month"], labels={"month": "nam"}
    )
    with pytest.raises(ValueError, match="labels: 'month' is in neither order nor units, which na"):
        DataConfig(file="data.csv", outcome="y", labels={"month": "name"})


@pytest.mark.parametrize("units", [[], ["g"]])
def test_copies_of_rows_are_told(units):
    table = pd.DataFrame({"g": ["a", "a", "b", "b"], "y": [1.5, 1.5, 2.5, 3.5]})
    with pytest.warns(UserWarning, match=r"data.csv: copies of other rows: row 2; remove them if"):
        data_of(table, units=units)
    data_of(table.drop_duplicates(), units=units)
    x = xr.Variable(["row", "k"], [[0.0, 1.0], [0.0, 2.0], [0.0, 3.0], [0.0, 4.0]])
    data_of(table, constants={"x": x}, units=units)
    data_of(table.assign(y=[1, 1, 0, 1]), units=units)


def test_names_that_pcv_needs_are_refused():
    table = pd.DataFrame({"y": [1, 2], "unit": ["g", "g"]})
    assert "pcv needs the name 'unit' for itself; rename the column" in refusal(table)
    assert model_data(data_of(table, columns=["y"]))["unit"].tolist() == [0, 1]


def test_columns_that_differ_within_a_unit_are_refused():
    table = pd.DataFrame({"y": [1, 2, 3], "county": [1, 1, 2], "floor": [0, 9, 0]})
    data = data_of(table, units=["county"], constants={"k": np.arange(2)})
    with pytest.raises(PcvError, match="'floor' differs within unit 'county 1': 0 and 9"):
        unit_column(data, "floor")
    for name in ["countyy", "k", "unit_of_row"]:
        with pytest.raises(PcvError, match=f"no column '{name}'"):
            unit_column(data, name)


def test_labels_read_well():
    values = [9, 9.0, 0.1, True, np.datetime64("2020-01-31T12:30"), np.str_("Bo")]
    assert [label(value) for value in values] == [
        *("9", "9", "0.1", "True", "2020-01-31 12:30:00", "Bo")
    ]


def test_no_jax_is_loaded():
    modules = "sys, pcv.pipeline.data.tables, pcv.folds.exchangeable"
    code = f"import {modules}; sys.exit('jaxlib' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
