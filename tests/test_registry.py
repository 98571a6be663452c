"""Registered data sets: what makes tables of their files, and what is said without them."""

import json
import re
import zipfile
from typing import get_args

import pandas as pd
import pooch
import pytest

from pcv.base.errors import PcvError
from pcv.pipeline.config import sections
from pcv.pipeline.data import registry
from pcv.pipeline.input_files import file_hash
from tests.data import DATA, needs_data


def test_names_are_those_of_the_config():
    assert set(get_args(sections.Dataset)) == set(registry.SOURCES)


def test_radon_is_read_from_its_archive(tmp_path):
    content = {name: [1.5, 2.5] for name in registry.RADON} | {"N": 2, "J": 386}
    with zipfile.ZipFile(tmp_path / "radon_all.json.zip", "w") as archive:
        archive.writestr("radon_all.json", json.dumps(content))
    table = registry._radon([tmp_path / "radon_all.json.zip"])
    assert table.columns.tolist() == registry.RADON
    assert table.shape == (2, 4)


def test_wells_are_read_from_their_archive(tmp_path):
    content = {name: [1, 0] for name in ["switched", *registry.WELLS[1:]]} | {"N": 2}
    with zipfile.ZipFile(tmp_path / "wells_data.json.zip", "w") as archive:
        archive.writestr("wells_data.json", json.dumps(content))
    table = registry._wells([tmp_path / "wells_data.json.zip"])
    assert table.columns.tolist() == registry.WELLS
    assert table.shape == (2, 5)


def test_german_credit_is_read_from_columns_of_numbers(tmp_path):
    row = "   " + "   ".join(map(str, range(1, 26))) + " \n"
    (tmp_path / "german.txt").write_text(2 * row)
    table = registry._german([tmp_path / "german.txt"])
    assert table.columns.tolist() == registry.GERMAN
    assert table.to_numpy().tolist() == 2 * [[*range(1, 26)]]


def test_the_air_series_is_two_releases(tmp_path):
    counts = "Int_Pax_In,Int_Pax_Out,Int_Pax_Total"
    (tmp_path / "first.csv").write_text(
        f"AIRPORT,Year,Month,{counts}\nADELAIDE,2018,4,9,9,18\n"
        "All Australian Airports,2018,4,1,2,3\nAll Australian Airports,2018,5,2,3,5\n"
    )
    (tmp_path / "second.csv").write_text(
        f"Airport,Year,Month,Month_ID,{counts}\nAll Australian Airports,2018,MAY,5,7,7,14\n"
        "All Australian Airports,2018,JUN,6,3,4,7\nAll Australian Airports,2019,JAN,1,4,5,9\n"
        "All Australian Airports,2020,JAN,1,4,5,9\n",
        encoding="utf-8-sig",
    )
    table = registry._air([tmp_path / "first.csv", tmp_path / "second.csv"])
    assert table.to_numpy().tolist() == [
        [2018, 4, 1, 2, 3], [2018, 5, 2, 3, 5], [2018, 6, 3, 4, 7], [2019, 1, 4, 5, 9],
    ]  # fmt: skip


def test_the_simulated_data_never_change(tmp_path):
    registry.fetch("grouped_gaussian", tmp_path / "a.csv")
    table = pd.read_csv(tmp_path / "a.csv")
    assert len(table) == 250
    assert table.groupby("group")[["x1", "x4"]].nunique().eq(1).all().all()
    assert table.iloc[0].tolist() == [1, 1, 5.11844, 10.232382, -8.821458, 26.522867, -6.092333]


@needs_data
@pytest.mark.parametrize("name", ["radon", "wells", "german_credit", "air_passengers"])
def test_the_local_folder_comes_first(name, tmp_path, monkeypatch):
    monkeypatch.setattr(pooch, "retrieve", lambda *_, **__: pytest.fail("a download"))
    registry.fetch(name, tmp_path / "a.csv")
    assert pd.read_csv(tmp_path / "a.csv").columns.tolist() == registry.SOURCES[name].columns
    assert DATA


def test_another_file_of_that_name_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("PCV_DATA", str(tmp_path))
    (tmp_path / "radon_us.csv").write_text("log_radon\n1.0\n")
    with pytest.raises(PcvError, match=r"radon_us.csv: not the registered file \(its SHA-256 dif"):
        registry.fetch("radon", tmp_path / "a.csv")


def test_a_failed_download_says_what_to_do(tmp_path, monkeypatch):
    def fail(*_, **__):
        raise OSError("no route to host\nsecond line")

    monkeypatch.delenv("PCV_DATA", raising=False)
    monkeypatch.setattr(pooch, "retrieve", fail)
    with pytest.raises(PcvError) as caught:
        registry.fetch("radon", tmp_path / "a.csv")
    said = str(caught.value)
    assert "radon_all.json.zip could not be downloaded (OSError)" in said
    assert (
        "put radon_all.json.zip (or the table made of it, radon_us.csv) into a folder and set "
        "PCV_DATA to that folder, or name" in said
    )
    assert "\n" not in said
    assert not (tmp_path / "a.csv").exists()
    for folder, lacks in ((tmp_path, "has neither"), (tmp_path / "none", "is no folder")):
        monkeypatch.setenv("PCV_DATA", str(folder))
        with pytest.raises(PcvError, match=re.escape(f"(it is {folder}, which {lacks})")):
            registry.fetch("radon", tmp_path / "a.csv")


def test_a_downloaded_archive_may_lie_in_the_local_folder(tmp_path, monkeypatch):
    content = {name: [1.5, 2.5] for name in registry.RADON}
    archive = tmp_path / "radon_all.json.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("radon_all.json", json.dumps(content))
    monkeypatch.setenv("PCV_DATA", str(tmp_path))
    with pytest.raises(PcvError, match=r"radon_all.json.zip: not the registered file"):
        registry.fetch("radon", tmp_path / "a.csv")
    source = registry.SOURCES["radon"]
    (address,) = source.downloads
    registered = source._replace(downloads={address: file_hash(archive)})
    monkeypatch.setitem(registry.SOURCES, "radon", registered)
    registry.fetch("radon", tmp_path / "a.csv")
    assert len(pd.read_csv(tmp_path / "a.csv")) == 2
