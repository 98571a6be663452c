"""Registered data sets: their sources, checksums, and functions that make tables of them.

The folder in ``PCV_DATA`` is searched first, for tables and for the files that they are made of.
The data are not part of this package.
"""

import json
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from pcv.base.errors import PcvError
from pcv.pipeline.input_files import file_hash
from pcv.pipeline.storage import store

VARIABLE = "PCV_DATA"


class Source(NamedTuple):
    """Files of a data set, at their source or in the folder in ``PCV_DATA``."""

    file: str
    """name of the table in that folder"""
    sha256: str
    """of that table"""
    downloads: dict[str, str]
    """address → SHA-256"""
    table: Callable[[list[Path]], pd.DataFrame]
    """makes the table from the downloaded files"""
    columns: list[str]
    origin: str
    """who made the data, and their licence as far as it is stated"""
    finish: Callable[[pd.DataFrame], pd.DataFrame] = lambda table: table
    """adds columns, to a local table too"""


POSTERIORDB = (
    "https://raw.githubusercontent.com/stan-dev/posteriordb/"
    "28f8d3d6e975315f42aa274a8399f21e07a43b30/posterior_database/data/data/"
)
IMMI = (
    "https://raw.githubusercontent.com/abhinav10kaushik/immi-data/"
    "1a2303602c9adafbfa037af338fefb6512ede7c7/mon_pax_web.csv"
)
VIS2 = (
    "https://raw.githubusercontent.com/sachin-f/vis2/"
    "9aca931207dd92c861b3b235f769239648abdea4/data/new_data.csv"
)
MONTHS = ["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"]
AIR = {"Int_Pax_In": "inbound", "Int_Pax_Out": "outbound", "Int_Pax_Total": "total"}


def _radon(files: list[Path]) -> pd.DataFrame:
    with zipfile.ZipFile(files[0]) as archive:
        content = json.loads(archive.read("radon_all.json"))
    return pd.DataFrame({name: content[name] for name in RADON})


def _air(files: list[Path]) -> pd.DataFrame:
    """Two releases of one series: the first to May 2018, the second to the end of 2019."""
    parts = []
    for path in files:
        part = pd.read_csv(path, encoding="utf-8-sig").rename(columns=str.lower)
        part = part[part["airport"] == "All Australian Airports"]
        part = part.rename(columns={name.lower(): short for name, short in AIR.items()})
        month = part["month"].replace({name: i + 1 for i, name in enumerate(MONTHS)})
        parts.append(part.assign(month=month.astype(int))[["year", "month", *AIR.values()]])
    first, second = parts
    last = first[["year", "month"]].iloc[-1]
    later = (second["year"] > last["year"]) | (
        (second["year"] == last["year"]) & (second["month"] > last["month"])
    )
    both = pd.concat([first, second[later]], ignore_index=True)
    return both[both["year"] < 2020].astype(int)


def grouped_gaussian(seed: int) -> pd.DataFrame:
    """50 groups of 5: y = α_j + x_j β + noise, parameters drawn from the priors; x has sd 10."""
    rng = np.random.default_rng(seed)
    mu, beta = rng.normal(), rng.normal(size=4)
    sigma_alpha, sigma_y = np.sqrt(10) * np.abs(rng.normal(size=2))
    x = rng.normal(0, 10, (50, 4))
    effect = rng.normal(mu, sigma_alpha, 50) + x @ beta
    group = np.repeat(np.arange(50), 5)
    table = pd.DataFrame({"group": group + 1, "member": np.tile(np.arange(5) + 1, 50)})
    for k in range(4):
        table[f"x{k + 1}"] = x[group, k].round(6)
    table["y"] = rng.normal(effect[group], sigma_y).round(6)
    return table


def _polynomial(files: list[Path]) -> pd.DataFrame:
    """100 outcomes about 1 + x/2, with noise of variance 1; x is uniform on (-1, 1).

    The seed is one for which the evidence of a slope is about that of the paper's data, which are
    not known.
    """
    rng = np.random.default_rng(18)
    x = rng.uniform(-1, 1, 100).round(6)
    return pd.DataFrame({"x": x, "y": (1 + 0.5 * x + rng.normal(size=100)).round(6)})


def _kinetics(files: list[Path]) -> pd.DataFrame:
    """Concentrations of a drug in 12 subjects, 11 times after a dose that two depots release."""
    rng, subjects = np.random.default_rng(1), 12
    hours = np.array([0.25, 0.5, 1, 2, 3, 4, 6, 8, 12, 18, 24])
    weight = rng.normal(70, 12, subjects).round(1)
    age = rng.integers(22, 62, subjects)
    own = rng.normal(size=(3, subjects)) * [[0.3], [0.2], [0.5]]
    volume = 30 * (weight / 70) * np.exp(own[1])
    rate = 4 * (weight / 70) ** 0.75 * np.exp(-0.05 * (age - 40) / 10 + own[0]) / volume
    first = 0.6 / (0.6 + 0.4 * np.exp(-own[2]))
    mean = np.zeros((subjects, hours.size))
    for share, absorption in ((first, 2.0), (1 - first, 0.25)):
        decays = np.exp(-np.outer(rate, hours)) - np.exp(-absorption * hours)
        mean += (share * 100 / volume * absorption / (absorption - rate))[:, None] * decays
    noise = rng.normal(size=mean.shape) * np.sqrt(0.05**2 + (0.1 * mean) ** 2)
    columns = {"subject": np.arange(1, subjects + 1), "weight": weight, "age": age, "dose": 100}
    table = pd.DataFrame(columns).loc[np.repeat(np.arange(subjects), hours.size)]
    return table.assign(hours=np.tile(hours, subjects), conc=(mean + noise).round(4).ravel())


def _pima(table: pd.DataFrame) -> pd.DataFrame:
    return table.assign(diabetic=(table["type"] == "Yes").astype(int))


def _german(files: list[Path]) -> pd.DataFrame:
    return pd.read_csv(files[0], sep=r"\s+", names=GERMAN)


def _wells(files: list[Path]) -> pd.DataFrame:
    with zipfile.ZipFile(files[0]) as archive:
        content = json.loads(archive.read("wells_data.json"))
    return pd.DataFrame({name: content[name] for name in ["switched", *WELLS[1:]]}).rename(
        columns={"switched": "switch"}
    )


RDATASETS = (
    "https://raw.githubusercontent.com/vincentarelbundock/Rdatasets/"
    "1c97ab8a1df2469762e635481ba27cf4e80e3e51/csv/MASS/Pima.te.csv"
)
FAIRNESS = (
    "https://raw.githubusercontent.com/KevinChittilapilly/Fairness-Research/"
    "586a031c8777efe33042cb60c3b84595e8964c7d/german.data-numeric.txt"
)
GERMAN = [*(f"x{i}" for i in range(1, 25)), "outcome"]
PIMA = ["npreg", "glu", "bp", "skin", "bmi", "ped", "age"]
WELLS = ["switch", "arsenic", "dist", "assoc", "educ"]
RADON = ["log_radon", "floor_measure", "county_idx", "log_uppm"]
SOURCES: dict[str, Source] = {
    # The first seed for which the fourth covariate matters about as much as in the paper: the
    # authors' data are not known (`benchmarks.authors`: others).
    "grouped_gaussian": Source(
        "",
        "",
        {},
        lambda files: grouped_gaussian(14),
        ["group", "member", "x1", "x2", "x3", "x4", "y"],
        "simulated here",
    ),
    "radon": Source(
        "radon_us.csv",
        "665c558356fbf112f52aa34c69f1402f55ef2518c3b05c5a3a86df1f6abbc8ef",
        {
            f"{POSTERIORDB}radon_all.json.zip": (
                "3f30c7909d530be01e70ab9e98f9f5d5e83371bb15c6dd168696aefd805b5672"
            )
        },
        _radon,
        RADON,
        "State Residential Radon Survey, in posteriordb; BSD-3-Clause (of the repository)",
    ),
    "wells": Source(
        "wells.csv",
        "23f1d5e413eb17a3f5f7dca63c35613142d7505305d063b54d5ad3f8ffc57405",
        {
            f"{POSTERIORDB}wells_data.json.zip": (
                "0ecd7efe3e64c63d849c562e61658fe322509942a882bc515176e016cc57c969"
            )
        },
        _wells,
        WELLS,
        "arsenic in wells in Bangladesh (Gelman and Hill 2007), in posteriordb; BSD-3-Clause (of "
        "the repository)",
    ),
    "polynomial": Source("", "", {}, _polynomial, ["x", "y"], "simulated here"),
    "kinetics": Source(
        "",
        "",
        {},
        _kinetics,
        ["subject", "hours", "weight", "age", "dose", "conc"],
        "simulated here",
    ),
    "pima": Source(
        "pima_te.csv",
        "3da573ab0fdd29df2467d09b22b6562805654a9b9808f90357d2b71fd09a0e2b",
        {RDATASETS: "b00bf6540cce6b6bc44ea65a149da3142b2039b37980dbcdf18d3750fc9db032"},
        lambda files: pd.read_csv(files[0]),
        [*PIMA, "diabetic"],
        "National Institute of Diabetes and Digestive and Kidney Diseases, in MASS (Venables and "
        "Ripley 2002) and Rdatasets; licence not stated",
        _pima,
    ),
    "german_credit": Source(
        "german_credit_numeric.csv",
        "d6cdd613caaeeaae3ccb257f38a0acf8c83543e7472a96621b2f4c9ca5f28905",
        {FAIRNESS: "2752b044394958ab6dd193a0b56ca0f0b3a2d8bc7cb8c008e35a5e84bbec02f8"},
        _german,
        GERMAN,
        "Statlog German Credit, attributes as numbers (Hofmann 1994, UCI repository); licence "
        "not stated",
    ),
    "air_passengers": Source(
        "air_passengers_au.csv",
        "0cf7670e119227c46f1714dc766e7e0ec9cf862ef2e5ec4f06d5742e7e8a0554",
        {
            IMMI: "f85e2c0d3a40da17e2ccfe3b962ca8178e9a734af6caf915ae9d934766128374",
            VIS2: "30f4466eae8dc36e9be2f58885b819148dfe3bb539a790c5659ef95ae0b63afc",
        },
        _air,
        ["year", "month", "inbound", "outbound", "total"],
        "Bureau of Infrastructure and Transport Research Economics (BITRE), Australia; listed as "
        "Creative Commons Attribution at data.gov.au, not stated in the repositories",
    ),
}
"""registered data sets by name"""


def fetch(name: str, to: Path) -> None:
    """Write a registered data set as CSV, from its table or original files in the folder in
    ``PCV_DATA``, otherwise from its source.

    Args:
        name: one of `SOURCES`.
        to: file to write.

    Raises:
        PcvError: a local file has another checksum; or a file cannot be downloaded (says which, and
            where to put a copy).
    """
    source = SOURCES[name]
    local = _local(source.file, source.sha256)
    if local is not None:
        table = pd.read_csv(local)
    else:
        table = source.table([_original(name, *item) for item in source.downloads.items()])
    store.write_bytes(to, source.finish(table)[source.columns].to_csv(index=False).encode())


def _local(file: str, sha256: str) -> Path | None:
    """A file in the folder in ``PCV_DATA``, if it is there."""
    folder = os.environ.get(VARIABLE)
    if not folder or not file or not (local := Path(folder) / file).exists():
        return None
    if file_hash(local) != sha256:
        raise PcvError(
            f"{local}: not the registered file (its SHA-256 differs); move it away, or unset "
            f"{VARIABLE} to download it"
        )
    return local


def _original(name: str, address: str, sha256: str) -> Path:
    """An original file of a data set, local or downloaded."""
    import pooch

    file = address.rpartition("/")[2]
    if (local := _local(file, sha256)) is not None:
        return local
    try:
        return Path(
            pooch.retrieve(
                address, f"sha256:{sha256}", path=pooch.os_cache("pcv"), progressbar=False
            )
        )
    except Exception as error:  # from whichever library downloads
        folder = os.environ.get(VARIABLE)
        lacks = "has neither" if folder and Path(folder).is_dir() else "is no folder"
        now = f" (it is {folder}, which {lacks})" if folder else ""
        raise PcvError(
            f"data set '{name}': {address} could not be downloaded ({type(error).__name__}); get "
            f"it by other means, put {file} (or the table made of it, {SOURCES[name].file}) into a "
            f"folder and set {VARIABLE} to that folder{now}, or name your own copy of the table in "
            "data.file"
        ) from error
