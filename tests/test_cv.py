"""Results as files, and as ArviZ takes them, of draws made up; no chain is run."""

import shutil
from itertools import cycle

import arviz_plots
import numpy as np
import pytest
import xarray as xr

import pcv
from pcv.api.result import CV
from pcv.base.errors import PcvError
from pcv.base.storable import true_names
from tests.synthetic import FOLDS, diagnosed


@pytest.fixture(scope="module")
def cv():
    draws = np.random.default_rng(1).normal(size=(3, 4, 400, 2))
    return CV(xr.DataTree.from_dict({"diagnostics": diagnosed(draws), "folds": FOLDS}), True)


def printed(cv):
    return cv.tree.attrs | {"outcome_print": "d", "folds_print": "f", "title": "made up"}


def test_files_that_are_damaged_are_told(cv, tmp_path):
    """Of a chunk that is lost, Zarr makes zeros or NaN without a word."""
    whole, spoilt = tmp_path / "whole.zarr", tmp_path / "spoilt.zarr"
    cv.save(whole)
    xr.testing.assert_identical(pcv.load(whole).diagnostics, cv.diagnostics)
    files = [x.relative_to(whole) for x in whole.rglob("*") if x.is_file() and "/c/" in f"{x}/"]
    assert len(files) > 20
    shutil.copytree(whole, spoilt)
    for file, spoil in zip(sorted(files), cycle(("lost", "cut", "changed"))):
        content = (spoilt / file).read_bytes()
        if spoil == "lost":
            (spoilt / file).unlink()
        else:
            half = len(content) // 2
            other = bytes([content[half] ^ 255])
            rest = b"" if spoil == "cut" else other + content[half + 1 :]
            (spoilt / file).write_bytes(content[:half] + rest)
        with pytest.raises(PcvError, match=r"spoilt\.zarr: damaged; restore it from a copy, or"):
            pcv.load(spoilt)
        (spoilt / file).write_bytes(content)
    pcv.load(spoilt)


def test_a_warning_that_is_taken_out_is_told(cv, tmp_path):
    marked = cv.tree.copy()
    marked.attrs["marks"] = ["a bad fit was allowed"]
    CV(marked, True).save(tmp_path / "cv.zarr")
    assert "a bad fit was allowed" in pcv.load(tmp_path / "cv.zarr").tree.attrs["marks"]
    file = tmp_path / "cv.zarr/zarr.json"
    file.write_text(file.read_text().replace('"a bad fit was allowed"', ""))
    with pytest.raises(PcvError, match=r"cv\.zarr: damaged; .* does not match its digest"):
        pcv.load(tmp_path / "cv.zarr")


def test_the_order_of_groups_is_no_damage(cv, tmp_path):
    """Zarr lists groups by name."""
    groups = ("posterior", "folds", "diagnostics")
    tree = xr.DataTree.from_dict({x: cv.tree.get(x, cv.tree["folds"]).dataset for x in groups})
    CV(tree, True).save(tmp_path / "cv.zarr")
    assert list(pcv.load(tmp_path / "cv.zarr").tree) == sorted(groups)


@pytest.mark.parametrize("name", ["joint_mcse_is_bound", "units_verdict"])
def test_results_of_an_earlier_version_are_told(cv, tmp_path, name):
    diagnosed = cv.diagnostics.drop_vars(name, errors="ignore")
    diagnosed.attrs = {key: x for key, x in diagnosed.attrs.items() if key != name}
    tree = xr.DataTree.from_dict({"diagnostics": diagnosed, "folds": FOLDS})
    CV(tree, True).save(tmp_path / "cv.zarr")
    with pytest.raises(PcvError, match=rf"cv\.zarr: saved by an earlier .*, without {name}; cross"):
        pcv.load(tmp_path / "cv.zarr")


def test_signs_of_nan_are_no_damage(cv, tmp_path):
    """0/0 has one on x86; Zarr leaves a chunk of NaN out, and reads it without."""
    signed = xr.full_like(cv.diagnostics["joint_elpd"], np.copysign(np.nan, -1))
    tree = cv.tree.assign({"diagnostics": xr.DataTree(cv.diagnostics.assign(joint_elpd=signed))})
    CV(tree, True).save(tmp_path / "cv.zarr")
    assert np.isnan(pcv.load(tmp_path / "cv.zarr").diagnostics["joint_elpd"]).all()


def test_variables_of_any_name_are_no_damage(cv, tmp_path):
    posterior = xr.Dataset({".dose": ("draw", [0.0, -0.0, np.nan]), "dose_2": ("draw", [1, 2, 3])})
    named = CV(cv.tree.assign({"posterior": xr.DataTree(posterior)}), True)
    named.save(tmp_path / "cv.zarr")
    again = pcv.load(tmp_path / "cv.zarr")
    again.save(tmp_path / "again.zarr")
    found = true_names(pcv.load(tmp_path / "again.zarr").tree["posterior"].to_dataset())
    xr.testing.assert_equal(found, posterior)


@pytest.mark.parametrize("content", ["[]", "{}", "no JSON"])
def test_what_is_no_saved_result_is_told(cv, tmp_path, content):
    cv.save(tmp_path / "cv.zarr")
    (tmp_path / "cv.zarr" / "zarr.json").write_text(content)
    with pytest.raises(PcvError, match=r"cv\.zarr: not a saved cross-validation \(CV\.save\)$"):
        pcv.load(tmp_path / "cv.zarr")


@pytest.mark.parametrize("name", ["file/cv.zarr", "x" * 300])
def test_where_nothing_can_be_saved(cv, tmp_path, name):
    (tmp_path / "file").touch()
    said = r"cannot be saved here \((Not a directory|File name too long)\); choose another path$"
    with pytest.raises(PcvError, match=rf"/{name}: {said}"):
        cv.save(tmp_path / name)


@pytest.mark.parametrize("joint", [True, False])
def test_arviz_draws_k_hat(cv, joint):
    cv.tree.attrs = printed(cv)
    elpd = CV(cv.tree, joint).to_arviz()
    np.testing.assert_array_equal(elpd.pareto_k, cv.diagnostics["khat"])
    assert elpd.pareto_k["fold"].values.tolist() == cv.diagnostics["fold"].values.tolist()
    assert elpd.good_k == cv.diagnostics.attrs["good_k"]
    figure = arviz_plots.plot_khat(elpd, backend="matplotlib").viz["figure"].item()
    assert any(ax.collections for ax in figure.axes)
