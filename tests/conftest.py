"""Two host devices and double precision for every test: what `pcv` does on two cores."""

import jax
import pytest

from pcv import devices

devices.setup(2)


@pytest.fixture(autouse=True)
def _double_precision():
    with jax.enable_x64(True):
        yield
