"""Recipe files, which make Snakemake rerun a stage: one per stage and model, newer than an artifact
that is out of date.

Snakemake remembers only the settings of its own jobs. Artifacts may also come from `pcv` commands,
perhaps with another config; their stamps tell. Loads neither JAX nor xarray.
"""

import json
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from html import unescape
from pathlib import Path
from typing import Any

from pcv.base.errors import PcvError
from pcv.base.names import batch_names
from pcv.pipeline import graph
from pcv.pipeline.config import Config, Experiment, stage_config
from pcv.pipeline.graph import STAGES
from pcv.pipeline.input_files import hashes, input_files

KEYS = ("stage version", "config")
"""the entries of a recipe that are compared"""
HEAD = 4096
"""characters at the start of a page that contain its recipe"""


def recipe_files(results: Path, config: Config, renew: bool) -> dict[tuple[str, str, str], Path]:
    """The recipe files that the stages' rules take as input, brought up to date.

    Each holds the stage's version and its part of the config. It is newer than the artifact if that
    has another recipe, otherwise older than any. Where the job to remake an artifact failed, it is
    newer than what was made from the former artifact, which Snakemake would otherwise take as done.

    Args:
        results: folder of the artifacts.
        config: the present config.
        renew: whether to bring them up to date; Snakemake's processes on other machines do not.

    Returns:
        Paths by experiment, stage and model (empty for a stage of all models).

    Raises:
        PcvError: the folder is not writable.
    """
    files = {
        (experiment, stage, model): results
        / ".recipes"
        / experiment
        / f"{stage}{f'-{model}' * bool(model)}.json"
        for experiment, settings in config.experiments.items()
        for stage, line in STAGES.items()
        for model in (settings.models if line.has("model") else [""])
    }
    for (experiment, stage, model), file in files.items() if renew else ():
        _bring_up_to_date(file, results, config, experiment, stage, model)
    return files


def check_braces(name: str, experiment: Experiment) -> None:
    """Refuse names that Snakemake cannot work with: braces in those of files, which it takes for a
    wildcard even from functions, and line breaks in that of the folder.

    Raises:
        PcvError: a name has some.
    """
    if len(str(Path.cwd()).splitlines()) > 1:
        raise PcvError(f"the folder {str(Path.cwd())!r} has a line break in its name; rename it")
    files = [("data.file", experiment.data.file or "")]
    files += [(f"models.{n}.model", x.model) for n, x in experiment.models.items()]
    files += [("scores", score) for score in experiment.scores]
    files += [("folds.splitter", getattr(experiment.folds, "splitter", ""))]
    for key, file in files:
        if re.search(r"\{.*\}", file):
            raise PcvError(
                f"experiments.{name}.{key}: '{file}' has braces, which Snakemake takes for a "
                "wildcard; rename the file"
            )


def _bring_up_to_date(
    file: Path, results: Path, config: Config, experiment: str, stage: str, model: str
) -> None:
    made_of = STAGES[stage].version, stage_config(config, experiment, stage, model or None)
    wanted = json.loads(json.dumps(dict(zip(KEYS, made_of))))
    known = _content(file)
    artifacts, known_batches = _artifacts(results, config, experiment, stage, model)
    existing = [path for path in artifacts if path.exists()]
    for path in existing:
        _renew_benchmark(artifacts[path], path)
    settled = known == wanted
    # Snakemake itself compares times alone: a file that was moved or unpacked may be older.
    files = _files(results, config, experiment, stage, model) if existing else {}
    stale = any(_made_of(path, files) != wanted for path in existing)
    lacking = not known_batches or len(existing) < len(artifacts)
    after = _time_of_what_follows(results, config, experiment, stage, model) if lacking else 0.0
    try:
        if stale or after or not settled:
            file.parent.mkdir(parents=True, exist_ok=True)
            # Snakemake ignores a newer file whose content is the same as in its last run.
            found = {"out of date": datetime.now().isoformat()} if stale or after else {}
            file.write_text(json.dumps(wanted | found, indent=1))
            if not stale:  # so that other batches made since then stay
                os.utime(file, (0, after + 1 if after else 0))
    except OSError as error:
        raise PcvError(f"{file}: cannot be written: {error.strerror}") from error


def _renew_benchmark(file: Path, artifact: Path) -> None:
    """Give the benchmark the artifact's time: Snakemake goes by the older of the two, and would
    remake an artifact that a command made after the benchmarked job."""
    made = _time(artifact)
    if file.exists() and file.stat().st_mtime < made:
        with suppress(OSError):
            os.utime(file, (made, made))


def _time_of_what_follows(
    results: Path, config: Config, experiment: str, stage: str, model: str
) -> float:
    """Time of the newest artifact of later stages; 0 if there is none."""
    stages = [name for name, line in STAGES.items() if line.path]
    found = [
        path
        for later in stages[stages.index("sample" if stage == "plan" else stage) + 1 :]
        for name in ([model] if model else config.experiments[experiment].models)
        for path in _artifacts(results, config, experiment, later, name)[0]
    ]
    return max((_time(path) for path in found if path.exists()), default=0.0)


def _artifacts(
    results: Path, config: Config, experiment: str, stage: str, model: str
) -> tuple[dict[Path, Path], bool]:
    """A stage's artifacts of all batches and rounds, with their jobs' benchmarks; and whether the
    number of batches is known."""
    cv = config.experiments[experiment].cv
    if not config.experiments[experiment].makes(stage):
        return {}, True
    rounds = range(stage == "plan", len(cv.rounds))
    number = graph.num_batches(results, experiment, model, cv.fold_batches) if model else 1
    places = [
        (results, stage, experiment, model, name, r)
        for name in batch_names(number or 1)
        for r in rounds
    ]
    benchmarks = {graph.path(*place): graph.benchmark(*place) for place in places}
    return benchmarks, bool(number)


def _time(path: Path) -> float:
    """Modification time of an artifact; for folders Snakemake records it inside."""
    noted = path / ".snakemake_timestamp"
    return (noted if noted.exists() else path).stat().st_mtime


def _content(file: Path) -> dict[str, Any] | None:
    try:
        content: dict[str, Any] = json.loads(file.read_text())
        _compared(content)
        return content
    except (OSError, ValueError, LookupError, TypeError):
        return None


def _files(
    results: Path, config: Config, experiment: str, stage: str, model: str
) -> dict[str, dict[str, str] | None]:
    """Hashes of a stage's files by their entry in its recipe, None where the config names none;
    without those that do not exist yet, for example because another rule makes them."""
    found: dict[str, dict[str, str] | None] = {}
    for entry, which in STAGES[stage].files.items():
        with suppress(PcvError, OSError):
            files = input_files(config.experiments[experiment], which, results, model)
            found[entry] = None if files is None else hashes(files)
    return found


def _made_of(path: Path, files: Mapping[str, Mapping[str, str] | None]) -> dict[str, Any] | None:
    """The recipe in an artifact's stamp, or in the page's head; None if it was made of other files,
    for example by a job that ran while they were edited."""
    try:
        if path.is_dir():
            made = json.loads((path / "zarr.json").read_text())["attributes"]["pcv"]["recipe"]
        else:
            with path.open() as page:
                (found,) = re.findall(r'<meta name="pcv" content="(.*)">', page.read(HEAD))
            made = json.loads(unescape(found))
        if any(made.get(entry) != hashes for entry, hashes in files.items()):
            return None
        return _compared(made)
    except (OSError, ValueError, LookupError, TypeError):
        return None


def _compared(recipe: Mapping[str, Any]) -> dict[str, Any]:
    return {key: recipe[key] for key in KEYS}
