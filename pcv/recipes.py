"""Why Snakemake reruns a stage: one small file per stage and model, newer than what is out of date.

Snakemake itself remembers the settings of the jobs that it ran. Artifacts also come from `pcv`
commands, with another config perhaps: their stamps say which. No JAX, no xarray.
"""

import json
import os
from datetime import datetime
from pathlib import Path
from typing import Any

from pcv import layout
from pcv.config import Config, stage_config
from pcv.errors import PcvError

KEYS = ("stage version", "config")
"""what of a recipe is compared: Snakemake itself looks at the files"""


def recipe_files(results: Path, config: Config, renew: bool) -> dict[tuple[str, str, str], Path]:
    """The files that the stages' rules take as input, after they were brought up to date.

    Each holds the stage's version and its part of the config, and is newer than the artifact if
    that was made by anything else, else older than any.

    Args:
        results: folder of the artifacts.
        config: the present config.
        renew: bring them up to date; Snakemake's own processes on other machines do not.

    Returns:
        By experiment, stage and model (empty where a stage is of all models).

    Raises:
        PcvError: the folder may not be written.
    """
    files = {
        (experiment, stage, model): results
        / ".recipes"
        / experiment
        / f"{stage}{f'-{model}' * bool(model)}.json"
        for experiment, settings in config.experiments.items()
        for stage, place in (layout.ROUND_FILES | layout.FILES).items()
        for model in (settings.models if "{model}" in place else [""])
    }
    for (experiment, stage, model), file in files.items() if renew else ():
        _bring_up_to_date(file, results, config, experiment, stage, model)
    return files


def _bring_up_to_date(
    file: Path, results: Path, config: Config, experiment: str, stage: str, model: str
) -> None:
    made_of = layout.VERSIONS[stage], stage_config(config, experiment, stage, model or None)
    wanted = json.loads(json.dumps(dict(zip(KEYS, made_of))))
    known = _content(file)
    cv = config.experiments[experiment].cv
    rounds = range(stage == "plan", len(cv.rounds))
    number = layout.num_batches(results, experiment, model, cv.fold_batches) if model else 1
    artifacts = {
        layout.path(results, stage, experiment, model, name, r)
        for name in layout.batches(number or 1)
        for r in rounds
    }
    existing = [path for path in artifacts if path.exists()]
    if stage == "report":  # a page has no stamp
        stale = known is not None and known != wanted
    else:
        stale = any(_made_of(path) != wanted for path in existing)
    try:
        if stale or known != wanted:
            file.parent.mkdir(parents=True, exist_ok=True)
            # Snakemake overlooks a newer file whose content is that of its last run.
            found = {"out of date": datetime.now().isoformat()} if stale else {}
            file.write_text(json.dumps(wanted | found, indent=1))
            if not stale:
                os.utime(file, (0, 0))
    except OSError as error:
        raise PcvError(f"{file}: cannot be written: {error.strerror}") from error


def _content(file: Path) -> dict[str, Any] | None:
    try:
        content = json.loads(file.read_text())
        return {key: content[key] for key in KEYS}
    except (OSError, ValueError, LookupError, TypeError):
        return None


def _made_of(path: Path) -> dict[str, Any] | None:
    """What the stamp of an artifact says."""
    try:
        made = json.loads((path / "zarr.json").read_text())["attributes"]["pcv"]["recipe"]
        return {key: made[key] for key in KEYS}
    except (OSError, ValueError, LookupError, TypeError):
        return None
