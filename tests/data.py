"""Registered data sets, where PCV_DATA names their folder."""

import os
from pathlib import Path

import pytest

DATA = os.environ.get("PCV_DATA", "")
needs_data = pytest.mark.skipif(
    not (Path(DATA) / "radon_us.csv").is_file(), reason="PCV_DATA names no folder with the data"
)
