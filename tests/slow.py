"""Parameters of which most run under `make test-all` alone."""

from collections.abc import Iterable
from typing import Any

import pytest


def repeated(values: Iterable[Any], quick: int = 1) -> list[Any]:
    """Return parameters for `pytest.mark.parametrize`: the first `quick` always run, the others,
    which repeat the same on further models, seeds or faults, are marked as slow."""
    return [
        value if place < quick else pytest.param(value, marks=pytest.mark.slow)
        for place, value in enumerate(values)
    ]
