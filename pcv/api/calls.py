"""A call from Python as problems and settings; its errors and signals."""

import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import xarray as xr

import pcv
from pcv.api import inputs
from pcv.api.inputs import AnyModel
from pcv.base import devices, process
from pcv.base.errors import Stopped, in_python
from pcv.base.monitor import TO_LOG, Monitor, show_messages
from pcv.base.progress import reporter
from pcv.base.section import OBJECT
from pcv.compile import cache
from pcv.core.groups import posteriors_of
from pcv.core.problem import Problem
from pcv.core.settings import Settings
from pcv.core.store import InMemory, Step, Store
from pcv.folds.base import Folds, as_dataset
from pcv.folds.checks import checked
from pcv.folds.joint_groups import with_joint_groups
from pcv.folds.schemes import Table
from pcv.folds.sections.scheme import JOINT_GROUPS, with_groups
from pcv.models.model import Model, Target
from pcv.models.observations import observations, of_units, rows
from pcv.models.scores import named
from pcv.pipeline import config
from pcv.pipeline.config import Experiment
from pcv.pipeline.data import tables
from pcv.pipeline.job import Job
from pcv.pipeline.session import alone_in, folder_of, model_hashes, session_of, unique
from pcv.pipeline.storage.store import explained
from pcv.pipeline.work import Results

EXPERIMENT = "cv"
"""name of the experiment in `results`"""


class Call(NamedTuple):
    """What a call from Python asks for."""

    problems: dict[str, Problem]
    """by the models' names"""
    settings: Experiment
    monitor: Monitor
    store: Store
    draws: dict[str, xr.DataTree]
    """existing draws of full-data posteriors, by model"""


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
    *,
    flat: bool = False,
    groups: Any = None,
) -> Iterator[Call]:
    """The problems of a call, and the settings that it asks for.

    Args:
        model, folds, data, seed, precision, results, cores, progress: as for
            `pcv.cross_validate`. Folds None: there are none, for the full-data fit alone.
        sections: of `pcv.core.settings.Settings`, not yet validated.
        flat: whether the keys of `folds` are arguments of the call themselves.
        groups: of the units, which the column `GROUPS` of the data will hold.
    """
    num_cores, folder = process.cores_of(cores), folder_of(results)
    with (
        in_python(flat),
        _stopped_in_python(folder),
        devices.at_most(cores),
        devices.at_work(precision),
        alone_in(folder),
    ):
        models, several = inputs.models_of(model), isinstance(model, Mapping)
        names, own_scores = inputs.scores_of(sections.get("scores", ["log"]), folder)
        observed = observations(models, data)
        outcome = next(iter(models.values())).outcome.name
        devices.setup(num_cores)
        cache.keep_compiled()
        hashes: dict[str, str | None] = dict.fromkeys(models, "")
        if folder is not None:
            hashes = model_hashes(models, observed, folder)
            if not several and hashes["model"]:  # `results` may hold several
                name = f"model-{hashes['model'][:6]}"
                models, hashes = {name: models["model"]}, {name: hashes["model"]}
        programs = {name: unique(hashed) for name, hashed in hashes.items()}
        scheme, own_folds = inputs.scheme_of(
            "loo" if folds is None else folds, observed, outcome, pcv.__all__
        )
        joint_by = sections.get("joint_by")
        if joint_by is not None and not isinstance(joint_by, str):
            sections = {**sections, "joint_by": JOINT_GROUPS}
        of_fit, draws = posteriors_of(sections.get("fit", {}), list(models))
        experiment = {
            "data": {
                "file": f"{OBJECT}table",
                "outcome": outcome,
                "order": list(observed.order),
                "units": list(observed.units),
                "labels": dict(observed.labels),
            },
            "folds": scheme,
            "models": {
                name: {"model": f"{OBJECT}{name} {program}".rstrip()}
                for name, program in programs.items()
            },
            **sections,
            "fit": {"file": f"{OBJECT}posterior"} if draws else of_fit,
            "scores": [*names, *own_scores],
        }
        asked = {"seed": seed, "precision": precision, "experiments": {EXPERIMENT: experiment}}
        parsed = config.parse(asked)
        settings = parsed.experiments[EXPERIMENT]
        monitor = TO_LOG.only_warnings()
        if progress:
            show_messages()
            monitor = Monitor(show=reporter())
        table, arrays = tables.stacked(rows(observed, outcome), outcome, "data")
        if observed.times is not None and not observed.order:  # named as in all of the data
            table = table.set_axis(np.flatnonzero(observed.times))
        units = tables.make_data(table, arrays, settings.data, "data")
        if observed.missing is not None:
            units = units.assign_attrs(counts=[str(observed.missing)])
        if groups is not None:
            units = with_groups(units, of_units(groups, observed))
        if settings.joint_by == JOINT_GROUPS:
            of_joint = of_units(joint_by, observed)
            units = with_groups(units, of_joint, JOINT_GROUPS, ("joint_by",))
        store: Store = InMemory()
        if folder is not None:
            with explained(folder):
                folder.mkdir(parents=True, exist_ok=True)
            session = session_of(models, observed, hashes, units, own_folds, draws, folder)
            store = Results(Job(parsed, EXPERIMENT, folder, monitor=monitor, session=session))
            store.keep(Step("data"), lambda: units)
        layout = xr.Dataset()
        if folds is not None:
            layout = store.keep(Step("folds"), layout_of, settings, Table(units, seed), own_folds)
        series = settings.folds.series(Table(units, seed))
        scores = named(settings.scores, own_scores, series)
        of_all = units, outcome, layout, settings.predictive, scores, parsed.seed, settings.predict
        kept_for = {name: " ".join([program, *own_scores]) for name, program in programs.items()}
        problems = {  # random keys know no hash
            name: Problem(name if several else "model", partial(_same, x), *of_all, kept_for[name])
            for name, x in models.items()
        }
        yield Call(problems, settings, monitor, store, draws)


def _same(model: Model | Target, arrays: Any) -> Model | Target:
    """The model, whatever the data: it has been made of them."""
    return model


def layout_of(settings: Settings, table: Table, folds: Folds | None) -> xr.Dataset:
    """All folds, and what their scheme says of each."""
    of_all = settings.folds.laid_out(table) if folds is None else None
    if folds is not None:
        of_all = as_dataset(checked(folds, table.units))
    assert of_all is not None
    return with_joint_groups(of_all, table, settings.joint_by)


@contextmanager
def _stopped_in_python(folder: Path | None) -> Iterator[None]:
    """Signals and bad fits as a call from Python reports them."""
    try:
        yield
    except Stopped as stopped:  # a script must not catch SIGTERM as an ordinary error
        if stopped.signum != signal.SIGINT:
            raise SystemExit(stopped.exit_code) from None
        kept = "; what was made is kept, and the same call resumes from it" if folder else ""
        raise KeyboardInterrupt(f"stopped by Ctrl-C{kept}") from None
