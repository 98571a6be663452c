"""Two host devices and double precision for every test: what `pcv` does on two cores."""

import os
import tempfile
from pathlib import Path

import jax
import pytest

from pcv import devices

# One cache of compiled functions for all workers of a run, which inherit it.
CACHE = Path(os.environ.setdefault("PCV_TEST_CACHE", tempfile.mkdtemp(prefix="pcv-tests-")))
devices.setup(2, CACHE)

# Loaded here as a whole: an import that a test's error cut short would leave half of it behind.
import numpyro  # noqa: E402, F401


@pytest.fixture(autouse=True)
def _double_precision():
    with jax.enable_x64(True):
        yield
