"""Cross-validation from Python: the stages that the workflow runs, in a folder of their own."""

import hashlib
import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from pcv.api import inputs
from pcv.api.comparisons import check_joint
from pcv.api.inputs import AnyModel
from pcv.api.result import CV
from pcv.base.errors import BadFit, PcvError, Stopped
from pcv.base.process import all_cores
from pcv.base.programs import devices
from pcv.base.progress import reporter, say
from pcv.folds.base import Folds, describe, stored
from pcv.folds.schemes import headline
from pcv.models.scores import Score
from pcv.pipeline import config, stages
from pcv.pipeline.job import Job
from pcv.pipeline.storage import store
from pcv.pipeline.storage.artifacts import batches, fitted, opened, require, rounds, sampled
from pcv.pipeline.storage.store import Stamp

EXPERIMENT = "cv"
GROUPS = ("posterior", "sample_stats", "log_likelihood", "observed_data")
"""of the full-data fit, as ArviZ has them"""


def cross_validate(
    model: AnyModel | Mapping[str, AnyModel],
    folds: str | Folds | Mapping[str, Any] | Any = "loo",
    *,
    data: Any = None,
    scores: str | Score | Sequence[Any] = ("log",),
    joint: bool | None = None,
    predictive: str = "auto",
    seed: int = 0,
    chains: int = 8,
    draws: int = 200,
    warmup: int = 50,
    until: Mapping[str, Any] | None = None,
    fit: Mapping[str, Any] | xr.DataTree | None = None,
    cv: Mapping[str, Any] | None = None,
    precision: str = "float64",
    results: str | Path | None = None,
    cores: int | None = None,
    progress: bool = True,
) -> Any:
    r"""How well a model predicts what it has not seen: exact cross-validation, all folds at once.

    .. math:: \mathrm{elpd} = \sum_k \log \frac{1}{S} \sum_{s=1}^{S}
              p(y_{\mathrm{test}_k} \mid \theta_{k,s}), \qquad
              \theta_{k,s} \sim p(\theta \mid y_{\mathrm{train}_k})

    Args:
        model: of a front-end (`from_numpyro`, PyMC, Bambi), a `pcv.Model` or a `pcv.Target`; or
            several by name, over the same folds.
        folds: "loo", "kfold" (10 random folds), `Folds` of any scheme (`pcv.kfold`), a
            scikit-learn splitter, or a scheme of columns as in a config:
            ``{"scheme": "leave_one_group_out", "group": "rat"}``.
        data: for a `pcv.Model` or `pcv.Target`: its data, arrays by name or a table. Arrays as
            long as the outcome are columns.
        scores: log, dss, hyvarinen, crps, energy, interval, rmse, mae, brier, accuracy,
            ``file.py:function``, or a `pcv.Score`.
        joint: which score is shown: of each test set as a whole, or of each unit; None: joint
            where folds hold several units. Both are computed.
        predictive: "plain", "marginal" (a left-out group's own effects integrated out) or "auto".
        seed: of all random numbers.
        chains, draws, warmup: of every fold; at least 2 chains, draws and warmup per chain.
        until: a rule by which folds end instead of after `draws`, as in a config:
            ``{"fold_mcse": 0.1, "max_draws": 2000}``.
        fit: settings of the full-data fit: chains (at least 4), warmup, draws, target_accept,
            allow_bad_fit; or draws of it, which are checked, as ArviZ has them (of PyMC, nutpie,
            NumPyro, Stan): a DataTree, of several models a dict of them.
        cv: further settings of the folds' chains: batch_size, superchains, adapt, store, ...
        precision: "float64", "float32" or "auto".
        results: folder in which artifacts are kept, so that a call that was interrupted goes on
            where it was: what was made of other models, data or settings is made anew, and what is
            made of functions that cannot be hashed for certain, which is said; None: they are in
            memory, and thrown away.
        cores: of the CPU to use; None: all.
        progress: whether to show what is being done.

    Returns:
        `CV`, or a dict of them by the models' names.

    Raises:
        PcvError: what is wrong, where, and what to do.
    """
    sections = {
        "predictive": predictive,
        "scores": scores,
        "fit": {} if fit is None else fit,
        "cv": cv_section(chains, draws, warmup, until, cv),
    }
    check_joint(joint)
    with prepared(model, folds, data, sections, seed, precision, results, cores, progress) as job:
        stages.check(job._replace(say=silent), leaks=False)
        run(job)
        if not isinstance(model, Mapping):
            (name,) = job.settings.models
            return collected(job._replace(model=name), joint).renamed("model")
        return {n: collected(job._replace(model=n), joint) for n in job.settings.models}


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
    """The job of an experiment whose models and data are at hand."""
    used, kept = _cores(cores), _kept(results)
    if isinstance(model, Mapping) and not model:
        raise PcvError("no models; give one, or several by their names")
    if isinstance(model, Mapping) and "" in model:
        raise PcvError("a model needs a name, and one has ''")
    with devices.precision(precision), devices.at_most(cores), _in_words_of_a_call(kept):
        models = (
            {name: inputs.model_of(x, name) for name, x in model.items()}
            if isinstance(model, Mapping)
            else {"model": inputs.model_of(model, "")}
        )
        names, own_scores = inputs.scores_of(sections.get("scores", ["log"]), kept)
        observed = inputs.observations(models, data)
        outcome = next(iter(models.values())).outcome.name
        devices.setup(used)
        devices.keep_compiled()
        hashes: dict[str, str | None] = dict.fromkeys(models, "")
        if kept is not None:
            for name, x in models.items():
                hashed = partial(inputs.fingerprint, x, observed)
                hashes[name] = inputs.certain(f"model '{name}'", hashed, kept)
            if not isinstance(model, Mapping) and hashes["model"]:  # several may be kept there
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
            config.parse(settings),
            EXPERIMENT,
            kept or Path(),
            say=say if progress else silent,
            progress=reporter() if progress else silent,
            objects={references[name]: x for name, x in models.items()} | own_scores | stored,
            made={},
            kept={} if kept is None else None,
        )


def _stored(
    given: Mapping[str, xr.Dataset | xr.DataTree | Folds], kept: Path | None
) -> dict[str, Any]:
    """What a call has instead of files, by what a config calls it; files are written."""
    if kept is None:
        return {_named(name, kept): x for name, x in given.items()}
    with store.explained(kept):
        for name, x in given.items():
            held = stages.folds_dataset(x) if isinstance(x, Folds) else x
            inputs.write(Path(_named(name, kept)), held)
    return {}


def _named(name: str, kept: Path | None) -> str:
    """What a config calls an input of a call."""
    return f"{config.OBJECT}{name}" if kept is None else str(kept / "inputs" / f"{name}.zarr")


def _cores(cores: Any) -> int:
    """How many a call uses."""
    if cores is None:
        return all_cores()
    if isinstance(cores, int | np.integer) and not isinstance(cores, bool) and cores > 0:
        return int(cores)
    raise PcvError(f"cores is {cores!r}; give 1 or more, or leave it out for all")


def _kept(results: Any) -> Path | None:
    """The folder of the artifacts that stay."""
    if results is None:
        return None
    if not isinstance(results, str | os.PathLike) or results == "":
        raise PcvError(f"results is {results!r}; give the path of a folder")
    return Path(results)


@contextmanager
def _in_words_of_a_call(results: Path | None) -> Iterator[None]:
    """Errors as they read in Python, where there is no config and no command."""
    try:
        yield
    except Stopped as stopped:  # what ends a process is no error that a script goes on from
        if stopped.signum != signal.SIGINT:
            raise SystemExit(stopped.exit_code) from None
        kept = "; what was made is kept, and the same call goes on from it" if results else ""
        raise KeyboardInterrupt(f"stopped by Ctrl-C{kept}") from None
    except BadFit as error:
        kept = f"the draws are kept in {error.kept}; " if results else ""
        goes_on = f"{kept}fit={{'allow_bad_fit': True}} goes on (a keyword of pcv.fit)"
        raise PcvError("\n".join([*error.problems, goes_on])) from None
    except PcvError as error:
        error.args = (inputs.in_python(str(error).replace(f"experiments.{EXPERIMENT}.", "")),)
        raise


def run(job: Job) -> None:
    """Every stage of a job up to the diagnostics of all models; those that are done are kept.

    Raises:
        PcvError: of the stage that fails.
    """
    known = {"data": _made(job, "data", {})}
    known["folds"] = _made(job, "folds", known)
    parts = [job._replace(model=name) for name in job.settings.models]
    fits = {part.model: known | {"fit": _made(part, "fit", known)} for part in parts}
    warm: dict[tuple[str, str], Stamp] = {}
    for part in parts:
        if job.settings.cv.fold_batches == "auto":
            _made(part, "cut", fits[part.model])
        for batch in batches(part):
            warm[batch.model, batch.batch] = _made(batch, "warmup", fits[part.model])
    for each in rounds(job):
        if each.round:
            stages.plan(each)
        for part in parts:
            for batch in batches(part._replace(round=each.round)):
                read = known | {"warmup": warm[batch.model, batch.batch]}
                if each.round:
                    read[f"plan {each.round}"] = require(each, "plan", known)
                _made(batch, "sample", read)
    for part in parts:
        _made(part, "diagnose", fits[part.model] | sampled(part, fits[part.model]))


def _made(job: Job, stage: str, known: Mapping[str, Stamp]) -> Stamp:
    """The stamp of a stage's artifact, which is made unless it is there."""
    with suppress(PcvError):
        return require(job, stage, known)
    getattr(stages, stage)(job)
    return require(job, stage, known)


def cv_section(chains: Any, draws: Any, warmup: Any, until: Any, more: Any) -> Any:
    """The section of a config that the arguments of a call make, right or wrong."""
    fewest = until.get("min_draws", 200) if isinstance(until, Mapping) else draws
    section = {"chains": chains, "draws": draws, "warmup": warmup}
    if isinstance(fewest, int):
        batches = range(min(50, max(fewest // 2, 1)), 0, -1)
        section["batch_size"] = next(b for b in batches if fewest % b == 0)
    if until is not None:
        section["until"] = until
    return {**section, **(more or {})} if isinstance(more, Mapping | None) else more


def with_folds(job: Job, folds: Folds) -> Job:
    """The same job, in memory, over other folds: its data and fits are there."""
    assert job.kept is not None
    experiment = job.settings.model_dump(mode="json")
    experiment["folds"] = {"scheme": "file", "file": _named("folds", None)}
    settings = job.config.model_dump(mode="json") | {"experiments": {EXPERIMENT: experiment}}
    return job._replace(
        config=config.parse(settings),
        objects={**job.objects, **_stored({"folds": folds}, None)},
        kept={path: x for path, x in job.kept.items() if x[0].stage in ("data", "fit")},
    )


def collected(job: Job, joint: bool | None, diagnosed: xr.Dataset | None = None) -> CV:
    """What the stages made of a model, in memory; with other diagnostics than theirs, if given."""
    folds, data = (opened(job, x).load() for x in ("folds", "data"))
    diagnosed = opened(job, "diagnose").load() if diagnosed is None else diagnosed
    outcome = job.settings.data.outcome
    tree = xr.DataTree.from_dict({**_groups(job), "folds": folds, "diagnostics": diagnosed})
    said = describe(stored(folds), data.sizes["unit"])
    stamp = require(job, "fit", {})
    rows = [data[name].values for name in (outcome, "unit_of_row") if name in data]
    tree.attrs = {
        "title": headline(job.settings.folds, said),
        "outcome": outcome,
        "seed": job.config.seed,
        "marks": stamp.marks,
        "outcome_print": _hash(*rows),
        "folds_print": _hash(folds["test"].values, folds["held_out"].values),
    }
    return CV(tree, bool((folds["test"] >= 0).sum("slot").max() > 1) if joint is None else joint)


def _groups(job: Job) -> dict[str, xr.Dataset]:
    """What ArviZ reads of the full-data fit, in memory."""
    tree = fitted(job)
    return {name: tree[name].to_dataset().load() for name in GROUPS if name in tree}


def _hash(*arrays: np.ndarray) -> str:
    """Of values, whatever their type."""
    digest = hashlib.sha256()
    for x in arrays:
        digest.update(np.ascontiguousarray(x, float).tobytes())
    return digest.hexdigest()[:16]


def fit(
    model: AnyModel,
    *,
    data: Any = None,
    seed: int = 0,
    chains: int = 4,
    warmup: int = 1000,
    draws: int = 1000,
    target_accept: float | None = None,
    allow_bad_fit: bool = False,
    precision: str = "float64",
    cores: int | None = None,
    progress: bool = True,
) -> xr.DataTree:
    """The full-data posterior of a model, with which every cross-validation begins.

    Many short chains of HMC, which learn their kernel from one another; where they do not agree,
    BlackJAX's NUTS.

    Args:
        model, data, seed, precision, cores, progress: as for `cross_validate`.
        chains, draws: their product is the number of draws that are kept, of all chains together;
            more where chains are slow, or would have fewer than 100 each.
        warmup: draws per chain after which the search for a kernel ends at the latest.
        target_accept: acceptance rate that the step size is adapted to; None: .8, and where more
            than 1% of draws diverge, or of proposals are refused, .95, then .99.
        allow_bad_fit: go on where chains disagree or diverge.

    Returns:
        ArviZ's groups posterior, sample_stats, log_likelihood (up to 512 MiB) and observed_data.

    Raises:
        PcvError: what is wrong with the model, the data or the fit.
    """
    settings = {
        "chains": chains,
        "warmup": warmup,
        "draws": draws,
        "target_accept": target_accept,
        "allow_bad_fit": allow_bad_fit,
    }
    with prepared(
        model, "loo", data, {"fit": settings}, seed, precision, None, cores, progress
    ) as job:
        stages.data(job)
        (part,) = (job._replace(model=name) for name in job.settings.models)
        stages.fit(part)
        groups = _groups(part)
    return xr.DataTree.from_dict(groups)


def silent(what: Any) -> None:
    pass
