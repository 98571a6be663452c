"""Two host devices and double precision for every test: what `pcv` does on two cores."""

import gc
import os
import shutil
from contextlib import suppress
from pathlib import Path

# One cache of compiled functions for all workers, the processes that they start, and later runs.
os.environ.setdefault(
    "JAX_COMPILATION_CACHE_DIR", str(Path(__file__).parents[1] / ".pytest_cache/compiled")
)
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
# Programs tell where in Python they come from at a twentieth of a test's time.
os.environ["JAX_TRACEBACK_IN_LOCATIONS_LIMIT"] = "0"
# What tests compute by themselves runs once; pcv's programs say how far each is optimised.
os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_backend_optimization_level=0"

import hypothesis
import jax
import jaxtyping
import pytest

# A collection looks at all that JAX has traced, and finds little.
gc.set_threshold(50_000, 20, 50)

# The same examples in every run, however slow the machine.
hypothesis.settings.register_profile("here", deadline=None, derandomize=True)
hypothesis.settings.load_profile("here")

checked = jaxtyping.jaxtyped


def outermost(**options):
    """Functions in functions would be prepared for a check of types each time they are made."""
    check = checked(**options)
    return lambda made: made if "<locals>" in made.__qualname__ else check(made)


jaxtyping.jaxtyped = outermost

from pcv.base import process  # noqa: E402

CORES = process.all_cores()
process.all_cores = lambda: 2  # on any machine

from pcv.base import devices  # noqa: E402

devices.setup(2)

# Loaded here as a whole: an import that a test's error cut short would leave half of it behind.
import numpyro  # noqa: E402, F401

from tests.shelf import shelf  # noqa: E402, F401

MAX_BYTES = 2**30
"""size of the cache at which a run begins with an empty one"""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config):
    """One more than cores: tests of workflows wait for other processes."""
    return int(os.environ.get("PYTEST_XDIST_AUTO_NUM_WORKERS", CORES + 1))


def pytest_configure(config):
    folder = Path(os.environ["JAX_COMPILATION_CACHE_DIR"])
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if hasattr(config, "workerinput"):
        return
    with suppress(FileNotFoundError):  # another run empties it
        if sum(file.stat().st_size for file in folder.iterdir()) > MAX_BYTES:
            shutil.rmtree(folder)
    folder.mkdir(mode=0o700, exist_ok=True)


@pytest.fixture(autouse=True)
def _double_precision():
    with jax.enable_x64(True):
        yield
