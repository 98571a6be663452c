"""Two host devices and double precision for every test: what `pcv` does on two cores."""

import os
import tempfile

# One cache of compiled functions for all workers of a run, and the processes that they start.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", tempfile.mkdtemp(prefix="pcv-tests-"))
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"

import jax
import pytest

from pcv import devices, programs

devices.setup(2)

# Loaded here as a whole: an import that a test's error cut short would leave half of it behind.
import numpyro  # noqa: E402, F401


class Patches(pytest.MonkeyPatch):
    """Of what a test changes of pcv's functions, traces of before know nothing."""

    def setattr(self, *args, **kwargs):
        forget_traces()
        super().setattr(*args, **kwargs)

    def undo(self):
        if self._setattr:
            forget_traces()
        super().undo()


def forget_traces():
    programs._traced.clear()
    programs._shapes.clear()


@pytest.fixture
def monkeypatch():
    with Patches.context() as patches:
        yield patches


@pytest.fixture(autouse=True)
def _double_precision():
    with jax.enable_x64(True):
        yield
