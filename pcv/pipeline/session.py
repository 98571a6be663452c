"""A call from Python that keeps its artifacts in a folder: what these are made of, and its lock."""

import os
import uuid
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import xarray as xr
from filelock import FileLock, Timeout

from pcv.base.errors import PcvError
from pcv.compile.programs import Uncertain
from pcv.folds.base import Folds, as_dataset
from pcv.pipeline.job import Session
from pcv.pipeline.storage.saved import digest

if TYPE_CHECKING:
    from pcv.models.model import Model, Observations, Target


def model_hashes(
    models: "Mapping[str, Model | Target]", observed: "Observations", folder: Path
) -> dict[str, str | None]:
    """Hashes of models; None, with a warning, for one that cannot be hashed reliably."""
    from pcv.models.fingerprint import fingerprint

    return {
        name: _certain(name, partial(fingerprint, model, observed, 1), folder)
        for name, model in models.items()
    }


def session_of(
    models: "Mapping[str, Model | Target]",
    observed: "Observations",
    hashes: Mapping[str, str | None],
    units: xr.Dataset,
    folds: Folds | None,
    draws: Mapping[str, xr.DataTree],
    folder: Path,
) -> Session:
    """Hashes of what a call works on.

    Args:
        models: by name.
        observed: the rows of the data.
        hashes: of the models, from `model_hashes`.
        units: the data by unit.
        folds: of the call; None: its scheme is part of the config.
        draws: existing draws of full-data posteriors, by model.
        folder: for messages.
    """
    from pcv.models.fingerprint import fingerprint

    contents = {"table": digest(xr.DataTree(units))}
    if folds is not None:
        contents["folds"] = digest(xr.DataTree(as_dataset(folds)))
    contents |= {f"posterior {name}": digest(tree) for name, tree in draws.items()}

    def program(name: str, slots: int) -> str:
        hashed = partial(fingerprint, models[name], observed, slots)
        return unique(None if hashes[name] is None else _certain(name, hashed, folder))

    return Session(contents, {name: cache(partial(program, name)) for name in hashes})


def _certain(name: str, hashed: Callable[[], str], folder: Path) -> str | None:
    try:
        return hashed()
    except Uncertain as error:
        warnings.warn(
            f"model '{name}': cannot be hashed reliably ({error}), so nothing made from it before "
            f"is reused from {folder}",
            stacklevel=2,
        )
        return None


def unique(hashed: str | None) -> str:
    """A hash, or a random one where there is none."""
    return uuid.uuid4().hex if hashed is None else hashed


def folder_of(results: Any) -> Path | None:
    """The folder in which artifacts are kept; None: in memory."""
    if results is None:
        return None
    if not isinstance(results, str | os.PathLike) or results == "":
        raise PcvError(f"results is {results!r}; give the path of a folder")
    return Path(results)


@contextmanager
def alone_in(folder: Path | None) -> Iterator[None]:
    """Keep other calls out of a folder. One that takes no lock, as one that is only read, is used
    without."""
    if folder is None:
        yield
        return
    with ExitStack() as stack:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            stack.enter_context(FileLock(folder / ".lock", timeout=0, fallback_to_soft=False))
        except Timeout:
            raise PcvError(
                f"results: another call uses '{folder}'; wait for it, or name another folder"
            ) from None
        except (OSError, NotImplementedError):
            pass  # whatever cannot be written is told where it is
        yield
