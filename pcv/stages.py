"""One function per stage, from artifacts to an artifact: what the CLI, the rules and the API call.

    data ─▶ fit ─▶ folds ─▶ warmup ─▶ sample ─▶ diagnose ─▶ compare ─▶ report

A stage takes a `Job`, reads the artifacts before it, refuses those that do not belong to the
present config, and writes its own.
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import xarray as xr

from pcv import datasets, store
from pcv.errors import PcvError
from pcv.folds import Folds, describe, places, title
from pcv.folds import make as make_folds
from pcv.job import (
    Job,
    Say,
    batch_of,
    batches,
    build,
    folds_of,
    model_of,
    opened,
    predictive_of,
    recipe,
    require,
    sampled,
)
from pcv.names import name_bits
from pcv.progress import Progress
from pcv.store import Stamp

if TYPE_CHECKING:
    from pcv.model import Model
    from pcv.results import Compared
    from pcv.sampler import Chains, Sampler
    from pcv.sums import Block


def download(name: str, to: Path, say: Say) -> None:
    """Fetch a registered data set, from the folder that ``PCV_DATA`` names or from its source."""
    from pcv import registry

    registry.fetch(name, to)
    say(f"data set '{name}' ({registry.SOURCES[name].origin}): {to}")


def data(job: Job) -> None:
    """Read the data, make its units, check them: ``data.zarr``."""
    started = datetime.now(UTC)
    _obtain(job)
    made_of = recipe(job, "data")
    result = _units(job)
    stamp = store.stamp("data", made_of, provenance=store.provenance(started))
    store.write(job.path("data"), result, stamp)
    rows = "" if "unit_of_row" not in result else f" of {result.sizes['row']} rows"
    job.say(f"data: {result.sizes['unit']} units{rows}, outcome '{job.settings.data.outcome}'")


def _obtain(job: Job) -> None:
    """Download the job's table, if it is a registered one that is not there yet."""
    name = job.settings.data.dataset
    if name is not None and not job.table.exists():
        download(name, job.table, job.say)


def _units(job: Job) -> xr.Dataset:
    """The job's table as checked units."""
    settings = job.settings.data
    table, constants = datasets.read_table(job.table, settings.outcome)
    return datasets.make_data(table, constants, settings, str(job.table))


def folds(job: Job, plot: bool = False) -> None:
    """Lay out the folds, once for all models: ``folds.zarr``; and draw them: ``figures/folds``."""
    started = datetime.now(UTC)
    known = {"data": require(job, "data", {})}
    data_set = opened(job, "data").load()
    result = make_folds(job.settings.folds, data_set, job.config.seed)
    stamp = store.stamp("folds", recipe(job, "folds"), known, None, store.provenance(started))
    dataset = xr.Dataset(
        {
            "test": (("fold", "slot"), result.test),
            "held_out": (("fold", "run", "bound"), result.held_out),
        },
        coords={"fold": result.id.astype(str)},
    )
    store.write(job.path("folds"), dataset, stamp)
    job.say(f"{title(job.settings.folds)}: {describe(result, data_set.sizes['unit'])}")
    if plot:
        from pcv.folds import plot as drawing
        from pcv.report import write_figures

        scheme, name = job.settings.folds, title(job.settings.folds)
        if scheme.scheme in ("spatial_block", "leave_one_location_out"):
            figure = drawing.on_map(result, places(data_set, scheme), name)
        else:
            figure = drawing.grid(result, data_set.sizes["unit"], name)
        folder = job.path("report").parent / "figures"
        job.say(f"picture: {write_figures({'folds': figure}, folder)[0]}")


def check(job: Job) -> None:
    """Check all of an experiment that can be known before sampling; writes nothing.

    Raises:
        PcvError: with a line for every part that would fail.
    """
    from pcv import devices
    from pcv.model import check_gap, check_marginal, check_prior, check_shapes, check_values

    settings = job.settings
    _obtain(job)
    data_set = _units(job)
    num_units = data_set.sizes["unit"]
    folds = make_folds(settings.folds, data_set, job.config.seed)
    job.say(f"{job.experiment}: {num_units} units of '{settings.data.outcome}'")
    job.say(f"{job.experiment}: {title(settings.folds)}: {describe(folds, num_units)}")
    if len(folds.id) < settings.cv.fold_batches:
        raise PcvError(
            f"cv.fold_batches: {settings.cv.fold_batches} batches for {len(folds.id)} folds; "
            "use fewer"
        )
    arrays = datasets.model_data(data_set)
    problems = []
    outcomes = {}
    with devices.precision(job.config.precision):
        for name, config in settings.models.items():
            try:
                model = build(config, arrays)
                check_shapes(model, arrays, num_units, settings.data.outcome, name)
                check_values(model, arrays, name, data_set["unit"].values.tolist())
                check_prior(model, name)
                check_gap(
                    partial(build, config),
                    arrays,
                    settings.data.outcome,
                    folds,
                    data_set["unit"].values.tolist(),
                    name,
                )
                outcomes[name] = str(model.outcome)
                job.say(f"{job.experiment}: model '{name}' is fit to run")
            except PcvError as error:
                problems.append(str(error))
        if problems:
            raise PcvError("\n".join(problems))
        if len(set(outcomes.values())) > 1:
            listed = ", ".join(f"{name}: {outcome}" for name, outcome in outcomes.items())
            raise PcvError(
                f"experiment '{job.experiment}': its models are of different outcomes ({listed}) "
                "and could not be compared; let them score the same variable on the same scale"
            )
        if predictive_of(settings, job.experiment, arrays, folds) == "marginal":
            for name, config in settings.models.items():
                check_marginal(build(config, arrays), arrays, name, folds)


def fit(job: Job, allow_bad_fit: bool = False) -> None:
    """The full-data posterior of a model and the kernel of its folds: ``fit.zarr``.

    Raises:
        PcvError: the fit cannot be trusted (its draws are kept in ``fit_failed.zarr``).
    """
    from pcv import devices, idata
    from pcv import fit as fitting
    from pcv.keys import key
    from pcv.model import check_prior, check_shapes, flat_target, numeric, param_names, target
    from pcv.tuning import tune

    started = datetime.now(UTC)
    config, settings = job.config, job.settings.fit
    known = {"data": require(job, "data", {})}
    with devices.precision(config.precision):
        arrays, model = model_of(job)
        data_set = opened(job, "data")
        num_units = data_set.sizes["unit"]
        check_shapes(model, arrays, num_units, job.settings.data.outcome, job.model)
        check_prior(model, job.model)
        named = target(model, arrays, "plain")
        flat, unravel = flat_target(named)
        names = param_names(named)
        job.say(
            f"fit {job.model}: NUTS on the full data, {settings.chains} chains x "
            f"({settings.warmup} + {settings.draws}) draws, {len(names)} parameters"
        )
        with _naming(f"fit {job.model}"):
            draws = fitting.posterior(
                flat,
                num_units,
                key(config.seed, job.model, "fit"),
                settings.chains,
                settings.warmup,
                settings.draws,
                settings.target_accept,
            )
        checks = fitting.check(draws, names)
        for warning in checks.warnings:
            job.say(f"warning: fit {job.model}: {warning}")
        allowed = allow_bad_fit or settings.allow_bad_fit
        bad = bool(checks.problems)
        for problem in checks.problems if allowed else []:
            job.say(f"warning: fit {job.model} is bad: {problem}")
        kernel = None
        if not bad or allowed:
            with _naming(f"fit {job.model}"):
                kernel = tune(
                    flat,
                    lambda position: model.log_lik(unravel(position), numeric(arrays)),
                    num_units,
                    draws,
                    checks.ess,
                    key(config.seed, job.model, "tune"),
                )
            job.say(
                f"fit {job.model}: R-hat at most {np.nanmax(checks.rhat):.3f}, ESS at least "
                f"{np.nanmin(checks.ess):.0f}, {checks.divergences} divergences; folds: "
                f"step size {float(kernel.step_size):.2f}, leapfrog steps {int(kernel.num_steps)}"
            )
        tree = idata.tree(model, unravel, numeric(arrays), data_set, names, draws, checks, kernel)
        marks = [f"full-data fit of '{job.model}' is bad: {p}" for p in checks.problems]
        stamp = store.stamp(
            "fit",
            recipe(job, "fit"),
            known,
            marks,
            store.provenance(started, devices.describe()),
        )
    failed = job.path("fit").with_name("fit_failed.zarr")
    if bad and not allowed:
        store.write(failed, tree, stamp)
        raise PcvError(
            f"fit {job.model}: "
            + "; ".join(checks.problems)
            + f". The draws are kept in {failed}; fit.allow_bad_fit: true (--allow-bad-fit) goes on"
        )
    store.write(job.path("fit"), tree, stamp)
    shutil.rmtree(failed, ignore_errors=True)


@contextmanager
def _naming(what: str) -> Iterator[None]:
    """Says in errors what was being done."""
    try:
        yield
    except PcvError as error:
        raise PcvError(f"{what}: {error}") from error


class Run(NamedTuple):
    """What warmup and sampling of a fold batch share."""

    engine: "Sampler"
    chains: "Chains"
    jitter: Any
    outcome: str


def _run(job: Job, stage: str, folds: Folds, predictive: str, arrays: Any, model: "Model") -> Run:
    from pcv import sampler
    from pcv.keys import key
    from pcv.model import flat_target, target
    from pcv.scores import SCORES

    seed, cv = job.config.seed, job.settings.cv
    flat, _ = flat_target(target(model, arrays, predictive))
    scores = tuple(SCORES[name] for name in job.scores)
    ids = [str(fold) for fold in folds.id]
    chains = sampler.chains_of(
        key(seed, job.model, stage), ids, cv.chains, folds.test, folds.held_out
    )
    return Run(
        sampler.build(flat, scores, int(arrays["unit"].max()) + 1, cv.batch_size),
        sampler.spread(chains),
        key(seed, job.model, stage, "jitter"),
        str(model.outcome),
    )


def warmup(job: Job) -> None:
    """Short warmup of all chains of a fold batch, thrown away: ``warmup/<batch>.zarr``."""
    import jax
    import jax.numpy as jnp

    from pcv import devices, idata, sampler

    started = datetime.now(UTC)
    config, cv = job.config, job.settings.cv
    known = {"data": require(job, "data", {})}
    known["fit"] = require(job, "fit", known)
    all_folds, known["folds"] = folds_of(job, known)
    folds = batch_of(job, all_folds)
    fitted = xr.open_datatree(job.path("fit"), engine="zarr", consolidated=True)
    draws = fitted["unconstrained/position"].stack(s=("chain", "draw")).values.T
    ids = [str(fold) for fold in folds.id]
    with devices.precision(config.precision):
        arrays, model = model_of(job)
        predictive = predictive_of(job.settings, job.experiment, arrays, all_folds)
        run = _run(job, "warmup", folds, predictive, arrays, model)
        kernel = idata.kernel(fitted["kernel"].dataset)
        picks = sampler.starting_draws(
            config.seed, job.model, ids, cv.chains, len(draws), cv.num_superchains
        )
        starts = sampler.spread(jnp.asarray(draws[picks.reshape(-1)]))
        start = run.engine.start(kernel, starts, run.chains)
        shapes = {"joint": (len(ids),), "pointwise": folds.test.shape}
        zero = {
            score.name: {kind: np.zeros(shape) for kind, shape in shapes.items()}
            for score in run.engine.scores
        }
        made = []
        drawn = sampler.blocks(
            run.engine, kernel, start, run.chains, zero, run.jitter, cv.chains, cv.warmup
        )
        for block, state in drawn:
            made.append(block._replace(draws={}))
            end = state
            job.progress(_progress(job, "warmup", made, cv.warmup))
        position = jax.device_get(sampler.positions(kernel, end))[: len(ids) * cv.chains]
    later = made[len(made) // 2 :]
    variables = {
        "state": (("fold", "chain", "param"), position.reshape(len(ids), cv.chains, -1)),
        "variant": ("fold", np.zeros(len(ids), int)),
        **{
            f"center_{score}_{kind}": (("fold", "slot")[: len(shape)], _center(later, score, kind))
            for score in job.scores
            for kind, shape in shapes.items()
        },
        **{
            f"kernel_{name}": (("variant", *x.dims), x.values[None])
            for name, x in fitted["kernel"].dataset.data_vars.items()
        },
    }
    dataset = xr.Dataset(
        variables,
        {"fold": folds.id, "param": fitted["unconstrained/param"].values},
        {
            "predictive": predictive,
            "outcome": run.outcome,
            "superchains": cv.num_superchains,
        },
    )
    made_on = store.provenance(started, devices.describe())
    stamp = store.stamp("warmup", recipe(job, "warmup"), known, None, made_on)
    store.write(job.path("warmup"), dataset, stamp)


def _center(blocks: list["Block"], score: str, kind: str) -> np.ndarray:
    counts = [block.num_draws for block in blocks]
    means = [block.sums[score][kind]["mean"].mean(1) for block in blocks]
    pooled = np.average(means, axis=0, weights=counts)
    return np.where(np.isfinite(pooled), pooled, 0.0)


def _progress(job: Job, label: str, blocks: list["Block"], draws: int) -> Progress:
    last = blocks[-1]
    accepted = last.stats["acceptance"]["total"]
    part = f" {job.batch}" if job.settings.cv.fold_batches > 1 else ""
    return Progress(
        f"{label} {job.model}{part}",
        accepted.size,
        sum(block.num_draws for block in blocks),
        draws,
        float(accepted.mean() / last.num_draws),
        int(sum(block.stats["divergences"]["total"].sum() for block in blocks)),
    )


def sample(job: Job) -> None:
    """Draws of all chains of a fold batch, as sums per batch of draws: ``sample/<batch>.zarr``."""
    import jax.numpy as jnp

    from pcv import devices, sampler, sums
    from pcv.diagnostics import tail_size

    started = datetime.now(UTC)
    config, cv = job.config, job.settings.cv
    known = {"data": require(job, "data", {})}
    all_folds, known["folds"] = folds_of(job, known)
    folds = batch_of(job, all_folds)
    known["warmup"] = require(job, "warmup", known | {"fit": require(job, "fit", known)})
    warm = opened(job, "warmup")
    tails = {}
    if cv.store == "sums":
        room = tail_size(cv.chains * cv.draws) + 1
        tails = {score: np.full((len(folds.id), room), -np.inf) for score in job.scores}

    def stamp() -> Stamp:
        made_on = store.provenance(started, devices.describe())
        return store.stamp("sample", recipe(job, "sample"), known, None, made_on)

    with devices.precision(config.precision), store.new(job.path("sample"), stamp) as folder:
        arrays, model = model_of(job)
        run = _run(job, "sample", folds, warm.attrs["predictive"], arrays, model)
        kernel = sampler.Kernel(
            *(jnp.asarray(warm[f"kernel_{name}"].values[0]) for name in sampler.Kernel._fields)
        )
        starts = sampler.spread(jnp.asarray(warm["state"].stack(c=("fold", "chain")).values.T))
        start = run.engine.start(kernel, starts, run.chains)
        center = {
            score: {kind: warm[f"center_{score}_{kind}"].values for kind in ("joint", "pointwise")}
            for score in job.scores
        }
        divergences = 0
        drawn = sampler.blocks(
            run.engine, kernel, start, run.chains, center, run.jitter, cv.chains, cv.draws
        )
        for i, (block, _) in enumerate(drawn):
            batch = sums.batch_of(block, cv.store == "draws")
            if i == 0:
                sums.create(folder, batch, cv.draws // cv.batch_size)
            sums.put(folder, batch, i)
            tails = {name: sums.largest(top, block.draws[name]) for name, top in tails.items()}
            divergences += int(block.stats["divergences"]["total"].sum())
            done = _progress(job, "sample", [block], cv.draws)
            job.progress(done._replace(done=(i + 1) * cv.batch_size, divergences=divergences))
        attributes = {key: warm.attrs[key] for key in ("predictive", "outcome", "superchains")}
        sums.finish(folder, folds.id, cv.draws, tails, attributes)


def diagnose(job: Job) -> None:
    """Estimates and diagnostics of all folds of a model: ``diagnostics.zarr``."""
    from pcv import results

    started = datetime.now(UTC)
    known = {"data": require(job, "data", {})}
    known["folds"] = require(job, "folds", known)
    known["fit"] = require(job, "fit", known)
    known |= sampled(job, known)
    samples = [opened(part, "sample") for part in batches(job)]
    checks = xr.open_dataset(job.path("fit"), group="checks", engine="zarr", consolidated=True)
    dataset = results.diagnose(
        samples,
        opened(job, "folds"),
        opened(job, "data")["unit"].values,
        checks,
        np.random.default_rng([job.config.seed, name_bits("diagnose"), name_bits(job.model)]),
        job.model,
    )
    stamp = store.stamp("diagnose", recipe(job, "diagnose"), known, None, store.provenance(started))
    store.write(job.path("diagnose"), dataset, stamp)
    flagged = int((dataset["verdict"].values != "ok").sum())
    job.say(
        f"diagnose {job.model}: elpd {float(dataset['joint_elpd'].sum()):.1f} (joint), R-hat max "
        f"{float(dataset['rhat_max']):.3f}, {flagged} of {dataset.sizes['fold']} folds flagged"
    )


def diagnosed_of(job: Job) -> tuple[dict[str, xr.Dataset], dict[str, Stamp]]:
    """The diagnostics of all models of an experiment, and the stamps of what they are made of."""
    known = {"data": require(job, "data", {})}
    known["folds"] = require(job, "folds", known)
    datasets_, stamps = {}, dict(known)
    for name in job.settings.models:
        part = job._replace(model=name)
        inputs = known | {"fit": require(part, "fit", known)}
        inputs |= sampled(part, inputs)
        stamps[f"diagnose {name}"] = require(part, "diagnose", inputs)
        datasets_[name] = opened(part, "diagnose").load()
    return datasets_, stamps


def _compared(job: Job, diagnosed: dict[str, xr.Dataset], known: dict[str, Stamp]) -> "Compared":
    from pcv import results

    return results.compare(
        diagnosed,
        known["data"].fingerprint,
        known["folds"].fingerprint,
        job.settings.compare.reference,
        job.experiment,
    )


def compare(job: Job) -> str:
    """Compare the models: ``comparison.zarr`` and ``comparison.csv``; returns the table."""
    from pcv import results
    from pcv.compare import table

    started = datetime.now(UTC)
    diagnosed, known = diagnosed_of(job)
    compared = _compared(job, diagnosed, known)
    stamp = store.stamp("compare", recipe(job, "compare"), known, None, store.provenance(started))
    store.write(job.path("compare"), compared.dataset, stamp)
    store.write_text(job.path("compare").with_suffix(".csv"), compared.frame.to_csv(index=False))
    tables = [table(compared.comparisons[kind]) for kind in results.distinct_kinds(diagnosed)]
    marks = [f"Warning: {mark}" for mark in stamp.marks]
    return "\n\n".join([*tables, compared.dataset.attrs["verdict"], *marks])


def report(job: Job) -> None:
    """The figures and the page that shows them: ``figures/``, ``report.html``."""
    from pcv import report as reporting
    from pcv import results

    started = datetime.now(UTC)
    diagnosed, known = diagnosed_of(job)
    kinds = results.distinct_kinds(diagnosed)
    frame = _compared(job, diagnosed, known).frame.query("kind in @kinds")
    known["compare"] = require(job, "compare", known)
    comparison = opened(job, "compare").sel(kind=kinds).load()
    figures = reporting.figures(comparison, diagnosed)
    folder = job.path("report").parent
    reporting.write_figures(figures, folder / "figures")
    page = reporting.html(
        comparison,
        diagnosed,
        frame,
        _origin(job, started),
        figures,
        job.settings.report.title or f"Cross-validation of {job.experiment}",
        known["compare"].marks,
    )
    store.write_text(job.path("report"), page)
    job.say(f"report: {job.path('report')}")


def _origin(job: Job, started: datetime) -> dict[str, Any]:
    """Where the numbers come from: what made the draws; where stages differ, all there is."""
    made: dict[str, list[dict[str, Any]]] = {}
    for stage in ("data", "folds", "fit", "warmup", "sample", "diagnose", "compare"):
        models = [""] if stage in ("data", "folds", "compare") else list(job.settings.models)
        parts = [job._replace(model=name) for name in models]
        if stage in ("warmup", "sample"):
            parts = [batch for part in parts for batch in batches(part)]
        made[stage] = [store.read_stamp(p.path(stage), stage).provenance for p in parts]
    everything = [one for of_stage in made.values() for one in of_stage]

    def all_of(key: str) -> str:
        return ", ".join(dict.fromkeys(str(one[key]) for one in everything if one[key]))

    names = sorted({name for one in everything for name in one["versions"]})
    versions = {
        name: ", ".join(dict.fromkeys(one["versions"].get(name, "none") for one in everything))
        for name in names
    }
    own = job.config.model_copy(update={"experiments": {job.experiment: job.settings}})
    return {
        "config": own.model_dump(mode="json"),
        "seed": job.config.seed,
        "device": all_of("device"),
        "platform": all_of("platform"),
        "draws made": made["sample"][-1]["started"],
        "report made": store.provenance(started)["started"],
        "git commit": all_of("git_commit") or "not in a repository",
        "time by stage": {
            stage: f"{sum(one['seconds'] for one in of_stage):.1f} s"
            for stage, of_stage in made.items()
        },
        "versions": {"python": all_of("python"), **versions},
    }
