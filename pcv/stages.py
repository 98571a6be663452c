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
from pcv.config import CvConfig
from pcv.errors import PcvError
from pcv.folds import Folds, describe, left_out, places, title
from pcv.folds import make as make_folds
from pcv.job import (
    Job,
    Say,
    batch_of,
    batches,
    build,
    folds_of,
    model_of,
    observed,
    opened,
    recipe,
    require,
    rounds,
    sample_name,
    sampled,
    samples,
    scored,
    stored_folds,
)
from pcv.names import name_bits
from pcv.progress import Progress
from pcv.store import Stamp

if TYPE_CHECKING:
    from pcv.kernels import Part, Variants
    from pcv.model import Model, Target
    from pcv.results import Compared
    from pcv.sampler import Chains, Kernel, Sampler
    from pcv.scores import Score
    from pcv.sums import Block


INHERITED = ("predictive", "integration", "outcome", "superchains")
"""attributes of a warmup that its samples have as well"""
CHECKED_FOLDS = 100
"""folds whose full-data draws check the size of the batches"""


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
    store.write(job.path("folds"), folds_dataset(result), stamp)
    scheme, name = job.settings.folds, title(job.settings.folds)
    job.say(f"{name}: {describe(result, data_set.sizes['unit'], left_out(scheme))}")
    if plot:
        from pcv.folds import plot as drawing
        from pcv.report import write_figures

        if scheme.scheme in ("spatial_block", "leave_one_location_out"):
            figure = drawing.on_map(result, places(data_set, scheme), name)
        else:
            figure = drawing.grid(result, data_set.sizes["unit"], name, left_out(scheme))
        folder = job.path("report").parent / "figures"
        job.say(f"picture: {write_figures({'folds': figure}, folder)[0]}")


def folds_dataset(folds: Folds) -> xr.Dataset:
    """Folds as ``folds.zarr`` holds them."""
    return xr.Dataset(
        {
            "test": (("fold", "slot"), folds.test),
            "held_out": (("fold", "run", "bound"), folds.held_out),
        },
        coords={"fold": folds.id.astype(str)},
    )


def check(job: Job) -> None:
    """Check all of an experiment that can be known before sampling; writes nothing.

    Raises:
        PcvError: with a line for every part that would fail.
    """
    from pcv import devices
    from pcv import scores as scoring
    from pcv.model import check_gap, check_marginal, check_prior, check_shapes, check_values

    settings = job.settings
    _obtain(job)
    data_set = _units(job)
    num_units = data_set.sizes["unit"]
    folds = make_folds(settings.folds, data_set, job.config.seed)
    job.say(f"{job.experiment}: {num_units} units of '{settings.data.outcome}'")
    described = describe(folds, num_units, left_out(settings.folds))
    job.say(f"{job.experiment}: {title(settings.folds)}: {described}")
    if settings.cv.num_superchains == 2:
        job.say(
            f"warning: {job.experiment}: cv.superchains: 2 leave one degree of freedom between "
            "starts, so that nested R-hat says little; take 4 or more"
        )
    if len(folds.id) < settings.cv.fold_batches:
        raise PcvError(
            f"cv.fold_batches: {settings.cv.fold_batches} batches for {len(folds.id)} folds; "
            "use fewer"
        )
    arrays = datasets.model_data(data_set)
    problems = []
    outcomes = {}
    with devices.precision(job.config.precision):
        for name in settings.models:
            part = job._replace(model=name)
            try:
                model = build(part, arrays)
                check_shapes(model, arrays, num_units, settings.data.outcome, name)
                check_values(model, arrays, name, data_set["unit"].values.tolist())
                check_prior(model, name)
                check_gap(
                    partial(build, part),
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
        scores = scoring.named(job.scores)
        for name in settings.models:
            model, predictive, integration, _ = scored(job._replace(model=name), arrays, folds)
            if integration == "analytically":
                check_marginal(model, arrays, name, folds)
            scoring.check(scores, model, name, arrays, num_units, predictive, folds.test.shape[1])


def fit(job: Job, allow_bad_fit: bool = False) -> None:
    """The full-data posterior of a model and the kernel of its folds: ``fit.zarr``.

    Raises:
        PcvError: the fit cannot be trusted (its draws are kept in ``fit_failed.zarr``).
    """
    from pcv import devices, idata, nuts
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
            draws = nuts.posterior(
                flat,
                num_units,
                key(config.seed, job.model, "fit"),
                settings.chains,
                settings.warmup,
                settings.draws,
                settings.target_accept,
            )
        checks = nuts.check(draws, names)
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

    target: "Target"
    num_units: int
    engine: "Sampler"
    chains: "Chains"
    jitter: Any
    outcome: str


def _run(
    job: Job,
    stage: str,
    folds: Folds,
    predictive: str,
    arrays: Any,
    model: "Model",
    scores: "tuple[Score, ...]" = (),
) -> Run:
    import jax

    from pcv import sampler
    from pcv.keys import key
    from pcv.model import flat_target, target

    seed, cv = job.config.seed, job.settings.cv
    flat, _ = flat_target(target(model, arrays, predictive))
    # Traced once, however many functions of the sampler call them.
    flat = flat._replace(
        log_density=jax.jit(flat.log_density), log_predictive=jax.jit(flat.log_predictive)
    )
    ids = [str(fold) for fold in folds.id]
    chains = sampler.chains_of(
        key(seed, job.model, stage), ids, cv.chains, folds.test, folds.held_out
    )
    num_units = int(arrays["unit"].max()) + 1
    return Run(
        flat,
        num_units,
        sampler.build(flat, scores, num_units, cv.batch_size),
        sampler.spread(chains),
        key(seed, job.model, stage, "jitter"),
        str(model.outcome),
    )


def warmup(job: Job) -> None:
    """Short warmup of all chains of a fold batch, thrown away: ``warmup/<batch>.zarr``."""
    import jax.numpy as jnp

    from pcv import devices, idata, kernels, sampler

    started = datetime.now(UTC)
    config, cv = job.config, job.settings.cv
    known = {"data": require(job, "data", {})}
    known["fit"] = require(job, "fit", known)
    all_folds, known["folds"] = folds_of(job, known)
    folds = batch_of(job, all_folds)
    fitted = xr.open_datatree(job.path("fit"), engine="zarr", consolidated=True)
    full_draws = fitted["unconstrained/position"].stack(s=("chain", "draw")).values.T
    ids = [str(fold) for fold in folds.id]
    with devices.precision(config.precision):
        arrays = datasets.model_data(opened(job, "data"))
        fitted_kernel = fitted["kernel"].dataset
        model, predictive, integration, _ = scored(job, arrays, all_folds, fitted_kernel)
        run = _run(job, "warmup", folds, predictive, arrays, model)
        kernel = idata.kernel(fitted_kernel)
        picks = sampler.starting_draws(
            config.seed, job.model, ids, cv.chains, len(full_draws), cv.num_superchains
        )
        starts = sampler.spread(jnp.asarray(full_draws[picks.reshape(-1)]))
        start = run.engine.start(kernel, starts, run.chains)
        shapes = {"joint": (len(ids),), "pointwise": folds.test.shape}
        zero = {kind: np.zeros(shape) for kind, shape in shapes.items()}
        made, draws = [], []
        drawn = sampler.blocks(
            run.engine, kernel, start, run.chains, zero, run.jitter, cv.chains, cv.warmup
        )
        for block, state in drawn:
            draws.append(block.draws)
            made.append(block._replace(draws=block.draws[..., :0]))
            end = state
            job.progress(_progress(job, "warmup", made, cv.warmup))
        position = np.array(sampler.positions(kernel, end)[: len(ids) * cv.chains])
        position = position.reshape(len(ids), cv.chains, -1)
        center = _centers(made)
        unlike = np.full(len(ids), cv.adapt == "always")
        if cv.adapt == "auto":
            full = kernels.at_full_data(
                run.target, run.num_units, full_draws, folds.test, folds.held_out
            )
            unlike = kernels.unlike(np.concatenate(draws, axis=2), full)
        variants = kernels.shared(kernel)
        if unlike.any():
            some = Folds(*(x[unlike] for x in folds))
            variants, position[unlike], made = _adapt(job, run, some, kernel, position[unlike])
            for name, constants in _centers(made).items():
                center[name][unlike] = constants
            why = ": by their scores in warmup, they are unlike the full data"
            job.say(
                f"warmup {job.model}: {unlike.sum()} of {len(ids)} folds have a kernel of their own"
                + why * (cv.adapt == "auto")
            )
        made_on = store.provenance(started, devices.describe())
    variables = {
        "state": (("fold", "chain", "param"), position),
        "variant": ("fold", np.where(unlike, np.cumsum(unlike), 0)),
        **{f"center_log_{name}": (("fold", "slot")[: x.ndim], x) for name, x in center.items()},
        **{
            f"kernel_{name}": (("param", "column")[: x.ndim], x)
            for name, x in (("center", variants.center), ("scale", variants.scale))
        },
        **{
            f"kernel_{name}": (("variant", "param")[: x.ndim], x)
            for name, x in list(variants._asdict().items())[2:]
        },
    }
    dataset = xr.Dataset(
        variables,
        {"fold": folds.id, "param": fitted["unconstrained/param"].values},
        {
            "predictive": predictive,
            "integration": integration,
            "outcome": run.outcome,
            "superchains": cv.num_superchains,
        },
    )
    stamp = store.stamp("warmup", recipe(job, "warmup"), known, None, made_on)
    store.write(job.path("warmup"), dataset, stamp)


def _adapt(
    job: Job, run: Run, folds: Folds, kernel: "Kernel", position: np.ndarray
) -> tuple["Variants", np.ndarray, list["Block"]]:
    """Kernels of some folds' own, where a warmup with them ends, and its blocks."""
    import jax

    from pcv import kernels, sampler
    from pcv.keys import key

    seed, cv = job.config.seed, job.settings.cv
    parent, jitter = key(seed, job.model, "adapt"), key(seed, job.model, "adapt", "jitter")
    ids = [str(fold) for fold in folds.id]
    chains = sampler.chains_of(parent, ids, cv.chains, folds.test, folds.held_out)
    by_fold = jax.tree.map(lambda x: x.reshape(len(ids), cv.chains, *x.shape[1:]), chains)
    variants, position, first = kernels.adapt(
        run.target, run.num_units, kernel, position, by_fold, jitter
    )
    variant = np.arange(1, len(ids) + 1)
    start = kernels.start(run.engine, variants, variant, position, chains)
    zero = {"joint": np.zeros(len(ids)), "pointwise": np.zeros(folds.test.shape)}
    made = []
    warmup = kernels.blocks(run.engine, start, zero, jitter, cv.chains, cv.warmup, first)
    for block, after in warmup:
        made.append(block._replace(draws=block.draws[..., :0]))
        end = after
        job.progress(_progress(job, "warmup of own kernels,", made, cv.warmup))
    return variants, kernels.positions(end, cv.chains), made


def _centers(blocks: list["Block"]) -> dict[str, np.ndarray]:
    """Centring constants of the log score by kind, from the later half of a warmup."""
    later = blocks[len(blocks) // 2 :]
    return {kind: _center(later, kind) for kind in ("joint", "pointwise")}


def _center(blocks: list["Block"], kind: str) -> np.ndarray:
    counts = [block.num_draws for block in blocks]
    means = [block.sums[kind]["mean"].mean(1) for block in blocks]
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


def plan(job: Job) -> None:
    """Which folds need more draws for the comparison to be settled: ``plan/<round>.zarr``.

    A fold that is left out of one round stays out of the next ones.
    """
    from pcv import results

    started = datetime.now(UTC)
    until = job.settings.cv.until
    assert until is not None
    known = {"data": require(job, "data", {})}
    known["folds"] = require(job, "folds", known)
    inputs, sums = dict(known), {}
    for name in job.settings.models:
        part = job._replace(model=name)
        stamps = known | {"fit": require(part, "fit", known)}
        inputs |= sampled(part, stamps, job.round)
        sums[name] = samples(part, job.round)
    going = None
    if job.round > 1:
        before = job._replace(round=job.round - 1)
        inputs[f"plan {before.round}"] = require(before, "plan", known)
        going = opened(before, "plan")["more"].values
    found = results.plan(sums, opened(job, "folds"), until, job.settings, going)
    stamp = store.stamp("plan", recipe(job, "plan"), inputs, None, store.provenance(started))
    store.write(job.path("plan"), found, stamp)
    more = int(found["more"].sum())
    job.say(
        f"round {job.round}: {found.attrs['words']}; {more} of {found['more'].size} folds go on"
    )


def sample(job: Job) -> None:
    """Draws of all chains of a fold batch, as sums per batch of draws: ``sample/<batch>.zarr``.

    Rounds after the first go on with the folds that their plan names.
    """
    from pcv import devices, kernels, sums
    from pcv import scores as scoring
    from pcv.diagnostics import tail_size

    started = datetime.now(UTC)
    config, cv = job.config, job.settings.cv
    known = {"data": require(job, "data", {})}
    all_folds, known["folds"] = folds_of(job, known)
    folds = batch_of(job, all_folds)
    known["warmup"] = require(job, "warmup", known | {"fit": require(job, "fit", known)})
    warm = opened(job, "warmup")
    state, frame, made = warm["state"], None, 0
    keep = np.arange(len(folds.id))
    if job.round:
        before = job._replace(round=job.round - 1)
        known[sample_name(before)] = require(before, "sample", known)
        known[f"plan {job.round}"] = require(job, "plan", known)
        more = opened(job, "plan")["more"].sel(model=job.model, fold=folds.id).values
        keep = np.flatnonzero(more)
        if keep.size:
            earlier = opened(before, "sample").sel(fold=folds.id[keep])
            state, made = earlier["state"], cv.rounds[job.round - 1]
            if "y_rep_location" in earlier:
                frame = earlier["y_rep_location"].values, earlier["y_rep_scale"].values
        folds = Folds(*(x[keep] for x in folds))
    tail = None
    if cv.store == "sums":
        room = tail_size(cv.chains * cv.most_draws) + 1
        tail = np.full((len(folds.id), room), -np.inf)

    def stamp() -> Stamp:
        made_on = store.provenance(started, devices.describe())
        return store.stamp("sample", recipe(job, "sample"), known, None, made_on)

    if not len(folds.id):
        store.write(job.path("sample"), xr.Dataset(coords={"fold": folds.id}), stamp())
        return
    lengths = [cv.rounds[job.round]] if cv.until and cv.until.of_comparison else cv.lengths
    num_draws, divergences = np.zeros(len(folds.id), int), 0
    with devices.precision(config.precision), store.new(job.path("sample"), stamp) as folder:
        arrays = datasets.model_data(opened(job, "data"))
        kernel = xr.open_dataset(job.path("fit"), group="kernel", engine="zarr", consolidated=True)
        model, predictive, _, _ = scored(job, arrays, all_folds, kernel)
        scores, num_units = scoring.named(job.scores), int(arrays["unit"].max()) + 1
        scoring.check(scores, model, job.model, arrays, num_units, predictive, folds.test.shape[1])
        run = _run(job, "sample", folds, predictive, arrays, model, scores)
        y, num_starts = observed(job, arrays, folds), cv.num_superchains or cv.chains
        parts = kernels.start(
            run.engine,
            kernels.Variants(*(warm[f"kernel_{name}"].values for name in kernels.Variants._fields)),
            warm["variant"].values[keep],
            state.values,
            run.chains,
        )
        center = {kind: warm[f"center_log_{kind}"].values[keep] for kind in ("joint", "pointwise")}
        drawn = _until_done(cv, run, parts, center, made, lengths)
        for i, (block, active, parts) in enumerate(drawn):  # noqa: B007
            across: dict[str, dict[str, np.ndarray]] = {}
            if block.y_rep is not None:
                frame = frame or scoring.frame(block.y_rep)
                own = (x[active] for x in frame)
                replicates = scoring.Replicates(block.y_rep, y[active], num_starts, *own)
                across = scoring.across(scores, replicates)
            batch = sums.batch_of(block, across, cv.store == "draws")
            if i == 0:
                sums.create(folder, batch, (lengths[-1] - made) // cv.batch_size)
            sums.put(folder, sums.among_all(batch, active, len(folds.id)), i)
            if tail is not None:
                tail[active] = sums.largest(tail[active], block.draws)
            num_draws[active] += block.num_draws
            divergences += int(block.stats["divergences"]["total"].sum())
            done = _progress(job, "sample", [block], lengths[-1])
            done = done._replace(done=made + int(num_draws.max()), divergences=divergences)
            job.progress(done)
        last: dict[str, tuple] = {}
        if frame:
            for name, x in zip(("location", "scale"), frame):
                last[f"y_rep_{name}"] = (("fold", "slot"), x)
        if len(cv.rounds) > 1:
            end = kernels.positions(parts, cv.chains)
            last["state"] = (("fold", "chain", "param"), end)
        attributes = {key: warm.attrs[key] for key in INHERITED}
        sums.finish(folder, folds.id, num_draws, tail, last, attributes)
    if len(cv.lengths) > 1 and len(cv.rounds) == 1:
        job.say(
            f"sample {job.model}: folds ended after {num_draws.min()} to {num_draws.max()} draws, "
            f"{num_draws.mean():.0f} on average; {int((num_draws == cv.most_draws).sum())} of "
            f"{len(num_draws)} by max_draws"
        )


def _until_done(
    cv: CvConfig,
    run: Run,
    parts: "list[Part]",
    center: dict[str, np.ndarray],
    made: int,
    lengths: list[int],
) -> Iterator[tuple["Block", np.ndarray, "list[Part]"]]:
    """Blocks of draws, the folds that they are of, and the chains to go on from.

    All folds at first; from each of the lengths on, those whose answer is not in.
    """
    from pcv import kernels, stopping
    from pcv.diagnostics import LogSums

    active, tolerance, so_far = np.arange(len(center["joint"])), None, []
    for length in lengths:
        some = {kind: x[active] for kind, x in center.items()}
        drawn = kernels.blocks(run.engine, parts, some, run.jitter, cv.chains, length - made, made)
        for block, parts in drawn:
            so_far.append(block.sums["joint"])
            yield block, active, parts
        made = length
        if cv.until is None or length == lengths[-1]:
            return
        sums = LogSums(*(np.stack([x[f] for x in so_far], axis=2) for f in LogSums._fields))
        if tolerance is None:
            tolerance = stopping.tolerance(sums, cv.until.fold_mcse, cv.until.fold_mcse_over_se)
        rule = stopping.Rule(tolerance[active], cv.until.rhat, cv.num_superchains)
        going = ~stopping.finished(sums, rule)
        if not going.any():
            return
        if not going.all():
            parts = kernels.kept(parts, going, cv.chains)
            so_far = [{name: x[going] for name, x in fields.items()} for fields in so_far]
            active = active[going]


def diagnose(job: Job) -> None:
    """Estimates and diagnostics of all folds of a model: ``diagnostics.zarr``."""
    from pcv import results

    started = datetime.now(UTC)
    known = {"data": require(job, "data", {})}
    known["folds"] = require(job, "folds", known)
    known["fit"] = require(job, "fit", known)
    known |= sampled(job, known)
    drawn = samples(job)
    checks = xr.open_dataset(job.path("fit"), group="checks", engine="zarr", consolidated=True)
    rng = np.random.default_rng([job.config.seed, name_bits("diagnose"), name_bits(job.model)])
    units = opened(job, "data")["unit"].values
    dataset = results.diagnose(drawn, opened(job, "folds"), units, checks, rng, job.model)
    dataset = results.with_scores(dataset, drawn, *_scored(job), rng)
    dataset = results.with_batch_check(dataset, _of_some_folds(job))
    stamp = store.stamp("diagnose", recipe(job, "diagnose"), known, None, store.provenance(started))
    store.write(job.path("diagnose"), dataset, stamp)
    flagged = int((dataset["verdict"].values != "ok").sum())
    job.say(
        f"diagnose {job.model}: elpd {float(dataset['joint_elpd'].sum()):.1f} (joint), "
        f"{'nested ' * bool(dataset.attrs['superchains'])}R-hat max "
        f"{float(dataset['rhat_max']):.3f}, {flagged} of {dataset.sizes['fold']} folds flagged"
    )


def _of_some_folds(job: Job) -> np.ndarray:
    """Log likelihood of the test sets of some folds, at the draws of the full-data fit."""
    fit = xr.open_dataset(job.path("fit"), group="log_likelihood", engine="zarr", consolidated=True)
    test = opened(job, "folds")["test"].values
    some = test[np.unique(np.linspace(0, len(test) - 1, CHECKED_FOLDS).astype(int))]
    units, place = np.unique(some[some >= 0], return_inverse=True)
    by_unit = fit[job.settings.data.outcome].isel(unit=units).values
    of_slot = np.zeros((*by_unit.shape[:2], *some.shape))
    of_slot[..., some >= 0] = by_unit[..., place]
    return np.moveaxis(of_slot.sum(-1), -1, 0)


def _scored(job: Job) -> "tuple[tuple[Score, ...], np.ndarray]":
    """The scores besides the log score, and the outcome that they are of."""
    if set(job.scores) == {"log"}:
        return (), np.empty(0)
    from pcv import scores

    arrays = datasets.model_data(opened(job, "data"))
    return scores.named(job.scores), observed(job, arrays, stored_folds(job))


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
        job.settings.cv.until,
    )


def compare(job: Job) -> str:
    """Compare the models: ``comparison.zarr`` and ``comparison.csv``; returns the table."""
    from pcv import results
    from pcv.comparison import scores_frame, scores_table, table

    started = datetime.now(UTC)
    diagnosed, known = diagnosed_of(job)
    compared = _compared(job, diagnosed, known)
    stamp = store.stamp("compare", recipe(job, "compare"), known, None, store.provenance(started))
    store.write(job.path("compare"), compared.dataset, stamp)
    store.write_text(job.path("compare").with_suffix(".csv"), compared.frame.to_csv(index=False))
    tables = [table(compared.comparisons[kind]) for kind in results.distinct_kinds(diagnosed)]
    scores = scores_frame([*compared.comparisons.values(), *compared.others])
    file = job.path("compare").with_name("scores.csv")
    store.write_text(file, scores.to_csv(index=False))
    if compared.others:
        tables.append(scores_table(compared.others))
    until = compared.dataset.attrs["until"]
    marks = [f"Warning: {mark}" for mark in stamp.marks]
    words = [compared.dataset.attrs["verdict"], *([until] if until else []), *marks]
    return "\n\n".join([*tables, *words])


def report(job: Job) -> None:
    """The figures and the page that shows them: ``figures/``, ``report.html``."""
    from pcv import report as reporting
    from pcv import results
    from pcv.comparison import caveats, scores_frame, scores_notes

    started = datetime.now(UTC)
    diagnosed, known = diagnosed_of(job)
    kinds = results.distinct_kinds(diagnosed)
    compared = _compared(job, diagnosed, known)
    frame = compared.frame.query("kind in @kinds")
    known["compare"] = require(job, "compare", known)
    comparison = opened(job, "compare").sel(kind=kinds).load()
    figures = reporting.figures(comparison, results.trimmed(diagnosed))
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
        {kind: caveats(compared.comparisons[kind]) for kind in kinds},
        scores_frame(compared.others) if compared.others else None,
        scores_notes(compared.others),
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
        if stage == "sample":
            parts = [each for part in parts for each in rounds(part)]
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
