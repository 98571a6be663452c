"""A call from Python as a pipeline job, in memory or in a folder; errors phrased for Python."""

import os
import re
import signal
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from filelock import FileLock, Timeout

from pcv.api import inputs
from pcv.api.inputs import AnyModel
from pcv.base import devices
from pcv.base.errors import BadFit, PcvError, Stopped
from pcv.base.process import all_cores
from pcv.base.progress import reporter, say
from pcv.compile import cache
from pcv.folds.base import Folds
from pcv.pipeline import config
from pcv.pipeline.job import Job
from pcv.pipeline.stages.inputs import folds_dataset
from pcv.pipeline.storage import store

EXPERIMENT = "cv"
OF_YAML = {
    r"config: ": "",
    r"; (put it in quotes|write \{\} for one without keys)": "",
    r"; write numbers without quotes, exponents as in 1\.0e-3": "",
    r" \((data|folds|compare)\.\w+\)": "",
    r"(must be a whole number|must be text), is empty": r"\1, is None",
    r"a section \(lines of key: value\)": "a dict",
    r"true or false": "True or False",
    r"\b(fit|cv)\.(\w+): (auto|always|true)\b": r"\1={'\2': \3}",
    r"\b(predictive|estimator|precision): (plain|own|float32|float64)\b": r"\1='\2'",
    r"choose another( folder)? with --results": r"choose another\1",
    r"'(\w+)': true\b": r"'\1': True",
    r"'(\w+)': (auto|always)\b": r"'\1': '\2'",
}
"""phrases about configs, and their Python counterparts"""


def in_python(said: str) -> str:
    """A message about a config, rephrased for a call from Python.

    >>> in_python("config: seed: must be text, is 1; put it in quotes")
    'seed: must be text, is 1'
    >>> in_python("out of memory; cut the folds (cv.fold_batches: auto)")
    "out of memory; cut the folds (cv={'fold_batches': 'auto'})"
    """
    for pattern, words in OF_YAML.items():
        said = re.sub(pattern, words, said)
    return said


@contextmanager
def prepared(
    model: AnyModel | Mapping[str, AnyModel],
    folds: Any,
    data: Any,
    sections: Mapping[str, Any],
    seed: int,
    precision: str,
    results: str | Path | None,
    cores: int | None,
    progress: bool,
) -> Iterator[Job]:
    """The job of an experiment whose models and data are Python objects."""
    used, kept = _cores(cores), _kept(results)
    if isinstance(model, Mapping) and not model:
        raise PcvError("no models; give one, or several by their names")
    if isinstance(model, Mapping) and "" in model:
        raise PcvError("a model needs a name, and one has ''")
    with (
        devices.precision(precision),
        devices.at_most(cores),
        _in_words_of_a_call(kept),
        _alone_in(kept),
    ):
        models = (
            {name: inputs.model_of(x, name) for name, x in model.items()}
            if isinstance(model, Mapping)
            else {"model": inputs.model_of(model, "")}
        )
        names, own_scores = inputs.scores_of(sections.get("scores", ["log"]), kept)
        observed = inputs.observations(models, data)
        outcome = next(iter(models.values())).outcome.name
        devices.setup(used)
        cache.keep_compiled()
        hashes: dict[str, str | None] = dict.fromkeys(models, "")
        if kept is not None:
            for name, x in models.items():
                hashed = partial(inputs.fingerprint, x, observed, 1)
                hashes[name] = inputs.certain(f"model '{name}'", hashed, kept)
            if not isinstance(model, Mapping) and hashes["model"]:  # `results` may hold several
                models = {f"model-{hashes['model'][:6]}": models["model"]}
                hashes = dict(zip(models, hashes.values()))
        references = {name: inputs.reference(name, x) for name, x in hashes.items()}
        chosen, own_folds = inputs.scheme(folds, observed, outcome)
        rows = inputs.rows(observed, outcome)
        settings_of_fit, drawn = inputs.posteriors_of(sections.get("fit", {}), list(models))
        files: dict[str, xr.Dataset | xr.DataTree | Folds] = {"table": rows}
        if own_folds is not None:
            files["folds"] = own_folds
        files |= {f"posterior-{name}": tree for name, tree in drawn.items()}
        stored = _stored(files, kept)
        if drawn:
            settings_of_fit["file"] = _named("posterior-{model}", kept)
        if own_folds is not None:
            chosen = {"scheme": "file", "file": _named("folds", kept)}
        experiment = {
            "data": {
                "file": _named("table", kept),
                "outcome": outcome,
                "order": list(observed.order),
                "units": list(observed.units),
                "labels": dict(observed.labels),
            },
            "folds": chosen,
            "models": {name: {"model": reference} for name, reference in references.items()},
            **sections,
            "fit": settings_of_fit,
            "scores": [*names, *own_scores],
        }
        settings = {
            "seed": seed,
            "precision": precision,
            "experiments": {EXPERIMENT: experiment},
        }
        yield Job(
            config.parse(_of_python(settings)),
            EXPERIMENT,
            kept or Path(),
            say=say if progress else silent,
            progress=reporter() if progress else silent,
            objects={references[name]: x for name, x in models.items()} | own_scores | stored,
            programs={
                name: partial(inputs.of_folds, x, observed, name, hashes[name], kept)
                for name, x in models.items()
            },
            made={},
            kept={} if kept is None else None,
        )


def _of_python(x: Any) -> Any:
    """Settings with NumPy's numbers as Python's."""
    if isinstance(x, np.generic):
        return x.item()
    if isinstance(x, Mapping):
        return {key: _of_python(value) for key, value in x.items()}
    return [_of_python(value) for value in x] if isinstance(x, list) else x


def _stored(
    given: Mapping[str, xr.Dataset | xr.DataTree | Folds], kept: Path | None
) -> dict[str, Any]:
    """In-memory inputs by their names in the config; with a folder, written to files instead."""
    if kept is None:
        return {_named(name, kept): x for name, x in given.items()}
    with store.explained(kept):
        for name, x in given.items():
            held = folds_dataset(x) if isinstance(x, Folds) else x
            inputs.write(Path(_named(name, kept)), held)
    return {}


def _named(name: str, kept: Path | None) -> str:
    """An input's name in the config."""
    return f"{config.OBJECT}{name}" if kept is None else str(kept / "inputs" / f"{name}.zarr")


def _cores(cores: Any) -> int:
    if cores is None:
        return all_cores()
    if isinstance(cores, int | np.integer) and not isinstance(cores, bool) and cores > 0:
        return int(cores)
    raise PcvError(f"cores is {cores!r}; give 1 or more, or leave it out for all")


def _kept(results: Any) -> Path | None:
    """The folder in which artifacts are kept; None: in memory."""
    if results is None:
        return None
    if not isinstance(results, str | os.PathLike) or results == "":
        raise PcvError(f"results is {results!r}; give the path of a folder")
    return Path(results)


@contextmanager
def _alone_in(results: Path | None) -> Iterator[None]:
    """Keep other calls out of a folder, whose inputs each call writes.

    A folder that takes no lock, as one that is only read, is used without.
    """
    if results is None:
        yield
        return
    with ExitStack() as stack:
        try:
            results.mkdir(parents=True, exist_ok=True)
            stack.enter_context(FileLock(results / ".lock", timeout=0))
        except Timeout:
            raise PcvError(
                f"results: another call uses '{results}'; wait for it, or name another folder"
            ) from None
        except (OSError, NotImplementedError):
            pass  # whatever cannot be written is told where it is
        yield


@contextmanager
def _in_words_of_a_call(results: Path | None) -> Iterator[None]:
    """Rephrases errors for Python, where there is no config and no command."""
    try:
        yield
    except Stopped as stopped:  # a script must not catch SIGTERM as an ordinary error
        if stopped.signum != signal.SIGINT:
            raise SystemExit(stopped.exit_code) from None
        kept = "; what was made is kept, and the same call resumes from it" if results else ""
        raise KeyboardInterrupt(f"stopped by Ctrl-C{kept}") from None
    except BadFit as error:
        kept = f"the draws are kept in {error.kept}; " if results else ""
        advice = (
            f"{kept}fit={{'allow_bad_fit': True}} continues anyway (allow_bad_fit=True in pcv.fit)"
        )
        raise PcvError("\n".join([*error.problems, advice])) from None
    except PcvError as error:
        error.args = (in_python(str(error).replace(f"experiments.{EXPERIMENT}.", "")),)
        raise


def cv_section(chains: Any, draws: Any, warmup: Any, until: Any, more: Any) -> Any:
    """The config's `cv` section from a call's arguments, not yet validated."""
    fewest = until.get("min_draws", 200) if isinstance(until, Mapping) else draws
    section = {"chains": chains, "draws": draws, "warmup": warmup}
    if isinstance(fewest, int | np.integer):
        several = 1 if int(fewest) < SHORT and _superchains(chains, more) else 2
        batches = range(min(50, max(int(fewest) // several, 1)), 0, -1)
        section["batch_size"] = next(b for b in batches if fewest % b == 0)
    if until is not None:
        section["until"] = until
    return {**section, **(more or {})} if isinstance(more, Mapping | None) else more


SHORT = 40
"""draws below which chains of superchains are a single batch, so that nested R-hat alone is judged:
R-hat asks for longer ones"""


def _superchains(chains: Any, more: Any) -> int:
    """The number of superchains of a `cv` section that is not yet validated."""
    asked = more.get("superchains", "auto") if isinstance(more, Mapping) else "auto"
    if not isinstance(chains, int):
        return 0
    return config.CvConfig.model_construct(chains=chains, superchains=asked).num_superchains


@contextmanager
def keys_as_arguments() -> Iterator[None]:
    """Errors that name a key of `folds` name the argument that it came from instead."""
    try:
        yield
    except PcvError as error:
        renamed = {"group": "group_by"}
        key = r"(?<![\w/\\.])folds\.(\w+)\b"  # and no file, such as results/folds.zarr
        said = re.sub(key, lambda found: renamed.get(found[1], found[1]), str(error))
        error.args = (said,)
        raise


def silent(what: Any) -> None:
    pass
