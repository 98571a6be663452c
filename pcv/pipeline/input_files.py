"""The files that an experiment names, and hashes of their content. Loads neither JAX nor xarray."""

import hashlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from pcv.base import reference
from pcv.base.errors import PcvError
from pcv.base.section import OBJECT
from pcv.pipeline.config import Experiment
from pcv.pipeline.graph import Files, dataset

TIMESTAMP = ".snakemake_timestamp"
"""written by Snakemake into folders that are outputs of its rules"""


def input_files(
    settings: Experiment, which: Files, results: Path, model: str = ""
) -> list[Path] | None:
    """The files of a kind; None if the experiment names none.

    Raises:
        PcvError: the code of a model or score is not found.
    """
    match which:
        case "table":
            data = settings.data
            return [Path(data.file or dataset(results, str(data.dataset)))]
        case "folds":
            match settings.folds.scheme:
                case "file":
                    return [Path(settings.folds.file)]
                case "splitter":
                    return _code(settings.folds.splitter)
                case _:
                    return None
        case "model":
            code = settings.models[model].model
            if files := settings.models[model].log_lik:
                return list(map(Path, files))
            return None if code.startswith(OBJECT) else reference.sources(code)
        case "posterior":
            file = settings.fit.file
            return None if file is None else [Path(file.replace("{model}", model))]
        case "scores":
            scores = [x for x in settings.scores if ":" in x and not x.startswith(OBJECT)]
            return [path for score in scores for path in _code(score)]


def _code(name: str) -> list[Path]:
    """The files of a splitter or score."""
    try:
        return reference.sources(name)
    except PcvError as error:
        raise PcvError(str(error).removeprefix("model ")) from error


def file_hash(path: Path) -> str:
    """SHA-256 of a file, or of all files in a folder with their names."""
    return folder_hash(path, TIMESTAMP) if path.is_dir() else _content_hash(path)


def hashes(files: Sequence[Path], of: Callable[[Path], str] = file_hash) -> dict[str, str]:
    """Hashes of files by their paths relative to the folder of the first."""
    folder = files[0].parent if files else Path()
    return {os.path.relpath(path, folder): of(path) for path in files}


def folder_hash(folder: Path, *skipped: str) -> str:
    """SHA-256 of all files in a folder, with their names.

    What a link leads to counts as well as where it leads: Zarr follows links to folders.
    """
    found = {}
    for within, folders, names in os.walk(folder):
        for name in (*folders, *names):
            path = os.path.join(within, name)
            if os.path.isfile(path) or os.path.islink(path):
                found[os.path.relpath(path, folder).replace(os.sep, "/")] = path
    total = hashlib.sha256()
    for name in sorted(found.keys() - set(skipped)):
        link = f" -> {os.readlink(found[name])}" if os.path.islink(found[name]) else ""
        content = _content_hash(found[name]) if os.path.isfile(found[name]) else ""
        total.update(f"{name}{link} {content}\n".encode())
    return total.hexdigest()


def _content_hash(file: str | Path) -> str:
    with open(file, "rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()
