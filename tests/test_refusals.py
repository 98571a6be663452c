"""What is wrong in a call is told in one line, in words of Python, before anything is drawn."""

import json
import subprocess
import sys
import tempfile

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
import pytest
import xarray as xr

import pcv
from pcv.base.errors import PcvError
from pcv.core import fit as fitting
from pcv.folds.base import as_dataset
from pcv.models.model import Model, Outcome
from pcv.pipeline.storage import store
from tests.lines import GROUP, N, X, Y, line, numpyro_line


def with_a(values, i, value):
    return np.where(np.arange(N) == i, value, values)


def by_hand():
    return Model(
        lambda key: {"b": jax.random.normal(key)},
        lambda params: dist.Normal(0.0, 1.0).log_prob(params["b"]),
        lambda params, data: dist.Normal(params["b"] * data["x"], 1.0).log_prob(data["y"]),
        lambda params: params,
        Outcome("y"),
    )


def grouped(y, x):
    with numpyro.plate("rats", 4):
        u = numpyro.sample("u", dist.Normal(0, 1))
    with numpyro.plate("case", N):
        numpyro.sample("y", dist.Normal(u[jnp.asarray(GROUP)], 1.0), obs=y)


def validate(model=None, folds="loo", **given):
    given = {"progress": False, **given}
    return pcv.cross_validate(numpyro_line() if model is None else model, folds, **given)


CALLS = {
    "no models": (lambda: validate({}), "no models; give one, or several by their names"),
    "text for a model": (lambda: validate("rats.csv"), "the model is 'rats.csv', text; give pcv."),
    "a function for a model": (
        lambda: validate({"line": line}),
        "model 'line' is a function, line; give pcv.from_numpyro",
    ),
    "cores 0": (lambda: validate(cores=0), "cores is 0; give 1 or more"),
    "cores below 0": (lambda: pcv.loo(numpyro_line(), cores=-2), "cores is -2; give 1 or more"),
    "half a core": (lambda: pcv.fit(numpyro_line(), cores=0.5), "cores is 0.5; give 1 or more"),
    "folds of fewer units": (
        lambda: validate(folds=pcv.leave_p_out(N - 4, 2, splits=3)),
        "folds of 8 units, but the data have 12; make them of these 12",
    ),
    "groups of fewer units": (
        lambda: pcv.loo(numpyro_line(), group_by=GROUP[:9]),
        "group_by has 9 values; give one for each of the 12 units",
    ),
    "pairs of fewer units": (
        lambda: validate(folds=[(np.arange(4), np.arange(4, 8)), (np.arange(4, 8), np.arange(4))]),
        "folds: the pairs cover 8 units, but the data have 12; make them for these 12",
    ),
    "test sets alone": (
        lambda: validate(folds=[np.arange(6), np.arange(6, 12)]),
        "folds[0] is not a pair of training and test indices; give folds=[(train, test), ...]",
    ),
    "folds of more units": (
        lambda: validate(folds=pcv.kfold(N + 1, 2)),
        "folds of 13 units, but the data have 12 (rows that dropna removes do not count)",
    ),
    "text for groups": (
        lambda: pcv.leave_one_group_out("rat"),
        "group_by is 'rat'; give a value for each unit, or name columns of the data as in folds={",
    ),
    "a table of groups": (
        lambda: pcv.leave_one_group_out(GROUP.reshape(4, 3)),
        "group_by has shape (4, 3); give a flat array, a value for each unit",
    ),
    "a column of groups": (
        lambda: pcv.loo(numpyro_line(), group_by=GROUP[:, None]),
        "group_by has shape (12, 1); give a flat array",
    ),
    "a missing group": (
        lambda: pcv.leave_one_group_out([1.0, np.nan]),
        "group_by: the value of unit '1' is missing; fill it in, or leave the unit out of the data",
    ),
    "text for units": (
        lambda: pcv.kfold("40", 5),
        "units is '40'; give their number, or a list of their names",
    ),
    "no units": (lambda: pcv.leave_one_out(None), "units is None; give their number"),
    "text for a seed": (lambda: validate(seed="a"), "seed: must be a whole number, is 'a'"),
    "text for draws": (
        lambda: validate(draws="200"),
        "cv.draws: must be a whole number, is '200'",
    ),
    "a number for a section": (
        lambda: validate(fit=3),
        "fit is of type int; give settings by name, or draws",
    ),
    "a word for joint": (lambda: validate(joint="joint"), "joint is 'joint'; give True, False"),
    "a covariate that is missing": (
        lambda: numpyro_line(x=with_a(X, 5, np.nan)),
        "NumPyro model 'line': fails when called with y, x: ValueError: Normal distribution got "
        "invalid loc parameter; x[5] is nan: fill it in",
    ),
    "a column that is missing": (
        lambda: validate(by_hand(), data={"y": Y, "x": with_a(X, 5, np.nan)}),
        "data: column 'x': missing value in row 6; fill or drop it, or leave the column out",
    ),
    "an outcome that is infinite": (
        lambda: validate(by_hand(), data={"y": with_a(Y, 3, np.inf), "x": X}),
        "data: column 'y': infinite value in row 4",
    ),
    "an outcome of text": (
        lambda: numpyro_line(y=["a"] * N),
        "NumPyro model 'line': site 'y' holds 'a', which is not a number; recode it, for example",
    ),
    "an outcome of objects": (
        lambda: numpyro_line(y=Y.astype(object)),
        "NumPyro model 'line': site 'y' has dtype object; convert it to numbers",
    ),
    "a model without a name": (
        lambda: validate({"": numpyro_line()}),
        "a model needs a name, and one has ''",
    ),
    "no seed": (lambda: validate(seed=None), "seed: must be a whole number, is None"),
    "an outcome that is missing": (
        lambda: validate(by_hand(), data={"y": np.full(N, np.nan), "x": X}),
        f"data: all {N} values of the outcome 'y' are missing",
    ),
    "a column of text": (
        lambda: numpyro_line(x=np.array(["a"] * N)),
        "NumPyro model 'line': fails when called with y, x: ",
    ),
    "an outcome of text beside a model": (
        lambda: validate(by_hand(), data={"y": ["a"] * N, "x": X}),
        "data: the outcome 'y' must be numbers, not 'a' as in the first row; recode it",
    ),
    "a list for data": (
        lambda: validate(by_hand(), data=[Y, X]),
        "data is of type list; give arrays by name, or a table",
    ),
    "a single outcome": (
        lambda: validate(by_hand(), data={"y": 1.0, "x": X}),
        "data: the outcome 'y' has shape (); give a flat array, a value for each row",
    ),
    "marginal without effects": (
        lambda: validate(predictive="marginal"),
        "model 'model': no fold leaves out a whole group that has effects of its own; let folds",
    ),
    "a column that is not there": (
        lambda: validate(folds={"scheme": "leave_one_group_out", "group": "hospital"}),
        "the data: no column 'hospital'; there are 'case', 'x', 'y'",
    ),
    "a scheme without its group": (
        lambda: validate(folds={"scheme": "leave_one_group_out"}),
        "folds.group: missing; add it",
    ),
    "a number for results": (
        lambda: validate(results=3),
        "results is 3; give the path of a folder",
    ),
    "no name for results": (
        lambda: validate(results=""),
        "results is ''; give the path of a folder",
    ),
    "results in a folder that takes none": (
        lambda: validate(results="/proc/none"),
        "/proc/none: no folder can be made here; choose another",
    ),
    "a number for joint": (
        lambda: pcv.compare({}, joint=5),
        "joint is 5; give True, False, or None to have it chosen",
    ),
}
pytestmark = pytest.mark.filterwarnings("ignore:JAX is running already")

OF_A_CONFIG = (
    "config",
    ": true",
    ": plain",
    ": auto",
    "--",
    "quotes",
    "YAML",
    tempfile.gettempdir(),
)


@pytest.fixture
def _nothing_is_drawn(monkeypatch):
    monkeypatch.setattr(fitting, "_posterior", _not_refused)


def _not_refused(*_):
    raise AssertionError("it was not refused")


def told():
    """What each call raises, where no types are checked around the functions of pcv, as here."""
    fitting._posterior = _not_refused
    found = {}
    for name, (call, _) in CALLS.items():
        try:
            call()
        except Exception as error:
            found[name] = [type(error).__name__, str(error)]
    return found


@pytest.fixture(scope="module")
def messages():
    command = [sys.executable, "-W", "ignore", "-m", "tests.test_refusals"]
    return json.loads(subprocess.run(command, capture_output=True, check=True).stdout)


@pytest.mark.parametrize("call", CALLS)
def test_one_line_that_says_what_where_and_what_to_do(messages, call):
    kind, said = messages[call]
    assert (kind, said[: len(CALLS[call][1])]) == ("PcvError", CALLS[call][1])
    assert len(said.splitlines()) == 1
    assert not [word for word in OF_A_CONFIG if word in said]


@pytest.mark.usefixtures("_nothing_is_drawn")
def test_folds_that_leave_the_last_units_alone_are_what_they_say():
    """Sets drawn at random test not all units, and leave-future-out may end before the last."""
    folds = (pcv.leave_p_out(N, 1, splits=2, seed=1), pcv.leave_future_out(N, 6, step=4))
    assert all(x.test.max() < N - 1 for x in folds)
    for some in folds:
        with pytest.raises(AssertionError, match="it was not refused"):
            validate(folds=some)


@pytest.mark.usefixtures("_nothing_is_drawn")
def test_folds_in_a_file_are_of_as_many_units_as_they_were_made_for(tmp_path):
    folds = {"scheme": "file", "file": str(tmp_path / "folds.zarr")}
    few = pcv.leave_p_out(N - 4, 2, splits=3)
    store.put(tmp_path / "folds.zarr", as_dataset(few))
    with pytest.raises(PcvError, match="folds of 8 units, but the data have 12; make them"):
        validate(folds=folds)


@pytest.mark.usefixtures("_nothing_is_drawn")
def test_results_that_cannot_be_written(tmp_path, monkeypatch):
    (tmp_path / "taken").write_text("precious")
    with pytest.raises(PcvError, match=r"/taken: a file stands where a folder is needed; move it"):
        validate(results=tmp_path / "taken")
    assert (tmp_path / "taken").read_text() == "precious"

    def refuse(*args, **kwargs):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(xr.Dataset, "to_zarr", refuse)
    with pytest.raises(
        PcvError, match=r"/locked/cv/data.zarr: no permission .* or choose another$"
    ):
        validate(results=tmp_path / "locked")


@pytest.mark.usefixtures("_nothing_is_drawn")
def test_data_that_were_damaged_are_written_again(tmp_path):
    for _ in range(2):
        with pytest.raises(AssertionError, match="it was not refused"):
            validate(results=tmp_path)
        (tmp_path / "cv" / "data.zarr" / "zarr.json").write_text("[]")


def test_bambi_models_that_drop_rows():
    bambi = pytest.importorskip("bambi")
    table = pd.DataFrame({"y": Y, "x": X, "s": with_a(X, 5, np.nan)})
    model = bambi.Model(bambi.Formula("y ~ x", "sigma ~ s"), table, dropna=True)
    with pytest.raises(PcvError, match=r"dropna removes different rows for different formulas"):
        pcv.from_bambi(model)


if __name__ == "__main__":
    print(json.dumps(told()))
