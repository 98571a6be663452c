"""Why Snakemake reruns a stage: one small file per stage and model, newer than what is out of date.

Snakemake itself remembers the settings of the jobs that it ran. Artifacts also come from `pcv`
commands, with another config perhaps: their stamps say which. No JAX, no xarray.
"""

import json
import os
from pathlib import Path
from typing import Any

from pcv import layout
from pcv.config import Config, stage_config
from pcv.errors import PcvError


def recipe_file(
    results: Path, config: Config, experiment: str, stage: str, model: str = ""
) -> Path:
    """The file that a stage's rule takes as input, after it was brought up to date.

    It holds the stage's version and its part of the config, and is newer than the artifact if that
    was made by anything else, else older than any.

    Args:
        results: folder of the artifacts.
        config, experiment, stage, model: which artifact.

    Raises:
        PcvError: the folder may not be written.
    """
    wanted = {
        "stage version": layout.VERSIONS[stage],
        "config": stage_config(config, experiment, stage, model or None),
    }
    file = results / ".recipes" / experiment / f"{stage}{f'-{model}' * bool(model)}.json"
    text = json.dumps(wanted, indent=1)
    known = file.is_file() and file.read_text() == text
    names = layout.batches(config.experiments[experiment].cv.fold_batches)
    artifacts = {layout.path(results, stage, experiment, model, name) for name in names}
    existing = [path for path in artifacts if path.exists()]
    if stage == "report":
        stale = not known and file.is_file()
    else:
        stale = any(_made_of(path) != json.loads(text) for path in existing)
    try:
        if not known:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        if stale:
            os.utime(file)
        elif not known:
            os.utime(file, (0, 0))
    except OSError as error:
        raise PcvError(f"{file}: cannot be written: {error.strerror}") from error
    return file


def _made_of(path: Path) -> dict[str, Any] | None:
    """What the stamp of an artifact says, without the files that Snakemake itself looks at."""
    try:
        made = json.loads((path / "zarr.json").read_text())["attributes"]["pcv"]["recipe"]
        return {key: made[key] for key in ("stage version", "config")}
    except (OSError, ValueError, LookupError, TypeError):
        return None
