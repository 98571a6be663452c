"""The stages that look at stored sums: diagnostics, comparison, report, and plans of rounds."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import numpy as np
import xarray as xr

from pcv.base.errors import PcvError
from pcv.base.names import name_bits
from pcv.base.progress import now_and_then
from pcv.folds import columns
from pcv.folds.base import Folds, evenly
from pcv.folds.schemes import LeaveFutureOut, LeavePOut, Subsampling
from pcv.pipeline.job import Job, recipe
from pcv.pipeline.stages import along_orders
from pcv.pipeline.stages.common.chains import says
from pcv.pipeline.stages.common.pages import origin, write_figures
from pcv.pipeline.stages.common.problem import folds_of, observed, sampled_folds
from pcv.pipeline.storage import store
from pcv.pipeline.storage.artifacts import (
    approximated,
    batches,
    begin,
    fitted,
    keep,
    opened,
    require,
    sampled,
    samples,
    stamp_of,
)
from pcv.pipeline.storage.store import Stamp

if TYPE_CHECKING:
    import pandas as pd

    from pcv.analysis.results import Compared
    from pcv.models.scores import Score


CHECKED_FOLDS = 100
"""number of folds used to check the batch size on full-data draws"""


def plan(job: Job) -> None:
    """Which folds need more draws for the comparison to be settled: ``plan/<round>.zarr``.

    A fold that is not sampled in one round is not sampled in later ones.
    """
    from pcv.analysis import results

    making = begin(job, "plan")
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
    active = None
    if job.round > 1:
        before = job._replace(round=job.round - 1)
        inputs[f"plan {before.round}"] = require(before, "plan", known)
        active = opened(before, "plan")["more"].values
    found = results.plan(
        sums,
        opened(job, "folds"),
        until,
        job.settings.compare.reference,
        job.settings.cv.num_superchains,
        active,
    )
    keep(job, found, stamp_of(job, making, inputs))
    more = found["more"].stack(both=("model", "fold"))
    names = [f"{fold} of {model}" for model, fold in more["both"].values[more.values]]
    listed = ", ".join(names[:3]) + f" and {len(names) - 3} more" * (len(names) > 3)
    job.say(
        f"round {job.round}: {found.attrs['words']}; {len(names)} of {more.size} folds continue"
        + f": {listed}" * bool(names)
    )


def diagnose(job: Job) -> None:
    """Estimates and diagnostics of all folds of a model: ``diagnostics.zarr``."""
    from pcv.analysis import comparison, results
    from pcv.analysis.subspace import with_subspace

    making = begin(job, "diagnose")
    known = {"data": require(job, "data", {})}
    known["fit"] = require(job, "fit", known)
    folds, stamps = folds_of(job, known)
    known |= stamps
    known |= sampled(job, known)
    folds = sampled_folds(job, folds)
    dataset = _diagnosed(job, folds) if len(folds.id) else None
    if job.settings.folds.from_full_data:
        dataset = _with_the_rest(job, dataset)
    assert dataset is not None
    if job.settings.kernel is not None and len(folds.id):
        warm = opened(batches(job)[0], "warmup")
        dataset = with_subspace(dataset, warm, len(folds.id))
    keep(job, dataset, stamp_of(job, making, known))
    flagged = int((dataset["verdict"].values != "ok").sum())
    elpd = comparison.total(results.scores(dataset, "joint", "", "")).elpd
    job.say(
        f"diagnose {job.model}: elpd {elpd:.1f} (joint), "
        f"{results.rhat_max_in_words(dataset)}, {flagged} of {dataset.sizes['fold']} folds flagged"
    )


def _diagnosed(job: Job, folds: Folds) -> xr.Dataset:
    """Estimates and diagnostics of the folds that the model samples."""
    from pcv.analysis import results

    drawn = [sample for sample in samples(job) if sample.sizes["fold"]]
    of_folds = opened(job, "folds").sel(fold=folds.id)
    checks = opened(job, "fit", "checks")
    rng = np.random.default_rng([job.config.seed, name_bits("diagnose"), name_bits(job.model)])
    units = opened(job, "data")["unit"].values
    tell = now_and_then(says(job, "diagnose"))
    dataset = results.diagnose(drawn, of_folds, units, checks, rng, job.model, tell)
    dataset = results.with_scores(dataset, drawn, *_scored(job, folds), rng)
    if "log_weight" in fitted(job)["sample_stats"]:  # independent draws: nothing to learn of chains
        return dataset
    dataset = results.with_batch_check(dataset, _of_some_folds(job, of_folds["test"].values))
    _warn_of_short_batches(job, dataset)
    return dataset


def _with_the_rest(job: Job, sampled: xr.Dataset | None) -> xr.Dataset:
    """The diagnostics of the sampled folds among those scored from the full-data fit."""
    from pcv.analysis.results.by_psis import merged
    from pcv.analysis.subsampling import Subsample
    from pcv.pipeline.stages.from_full_data import with_subsample

    scheme = job.settings.folds
    estimated = opened(job, "surrogates", "folds").load()
    if not isinstance(scheme, Subsampling):
        return merged(estimated, sampled)
    chosen = opened(job, "subsample").load()
    of_terms = Subsample(*(chosen[name].values for name in ("chosen", "stratum", "stratum_size")))
    estimated = estimated.sel(fold=chosen["fold"].values)
    mcse = None
    if of_terms.term.size < of_terms.sizes.sum():
        mcse = float(opened(job, "surrogates", "terms").attrs["mcse"])
    return with_subsample(job, merged(estimated, sampled, of_terms, mcse), chosen)


def _warn_of_short_batches(job: Job, diagnostics: xr.Dataset) -> None:
    """Warn of correlated batches; single batches of independent chains are never correlated."""
    from pcv.analysis.diagnostics import SHORT_BATCHES

    size = job.settings.cv.batch_size
    share = float(diagnostics["batch_check"].sel(size=size))
    several = bool((diagnostics["n_draws"] > size).any())
    if several and np.isnan(share):
        job.say(
            f"warning: diagnose {job.model}: chains of the full-data fit are too short to tell "
            f"whether batches of {size} draws are long enough; use more draws of the fit"
        )
    if share < SHORT_BATCHES and several:
        job.say(
            f"warning: diagnose {job.model}: on full-data draws, batches of {size} give "
            f"{share:.0%} of the MCSE from a windowed ESS; use longer batches (cv.batch_size)"
        )
    raised = np.sqrt(diagnostics.attrs["batch_inflation"])
    if raised > 1 / SHORT_BATCHES:
        job.say(
            f"warning: diagnose {job.model}: MCSEs are raised by {raised - 1:.0%}, as successive "
            f"batches of {size} draws are correlated; use longer batches (cv.batch_size) and more "
            "draws"
        )


def _of_some_folds(job: Job, test: np.ndarray) -> np.ndarray:
    """Scores of some folds' test sets at full-data draws (fold, chain, draw), from the warmup or
    from the fit's log likelihood."""
    first = opened(batches(job)[0], "warmup")
    if "log_score_full" in first:
        return first["log_score_full"].values
    fit = opened(job, "fit", "log_likelihood")
    some = test[evenly(len(test), CHECKED_FOLDS)]
    units, place = np.unique(some[some >= 0], return_inverse=True)
    by_unit = fit[job.settings.data.outcome].isel(unit=units)
    of_slot = np.zeros((by_unit.sizes["draw"], *some.shape))
    found = []
    for chain in range(by_unit.sizes["chain"]):  # one at a time, to save memory
        of_slot[..., some >= 0] = by_unit.isel(chain=chain).values[..., place]
        found.append(of_slot.sum(-1).T)
    return np.stack(found, axis=1)


def _scored(job: Job, folds: Folds) -> "tuple[tuple[Score, ...], np.ndarray]":
    """The scores besides the log score, and the outcome that they refer to."""
    if set(job.scores) == {"log"}:
        return (), np.empty(0)
    from pcv.models import scores

    arrays = columns.model_data(opened(job, "data"))
    return scores.named(job.scores, job.objects), observed(job, arrays, folds)


def diagnosed_of(job: Job) -> tuple[dict[str, xr.Dataset], dict[str, Stamp]]:
    """The diagnostics of all models of an experiment, and the stamps of their inputs."""
    known = {"data": require(job, "data", {})}
    known["folds"] = require(job, "folds", known)
    datasets_, stamps = {}, dict(known)
    for name in job.settings.models:
        part = job._replace(model=name)
        inputs = known | {"fit": require(part, "fit", known)}
        inputs |= approximated(part, inputs)
        inputs |= sampled(part, inputs)
        stamps[f"diagnose {name}"] = require(part, "diagnose", inputs)
        datasets_[name] = opened(part, "diagnose").load()
    return datasets_, stamps


def _compared(job: Job, diagnosed: dict[str, xr.Dataset], known: dict[str, Stamp]) -> "Compared":
    from pcv.analysis import results

    return results.compare(
        diagnosed,
        known["data"].fingerprint,
        known["folds"].fingerprint,
        job.settings.compare.reference,
        job.experiment,
        job.settings.cv.until,
        scheme.until if isinstance(scheme := job.settings.folds, Subsampling) else None,
    )


def compare(job: Job) -> str:
    """Compare the models: ``comparison.zarr`` and ``comparison.csv``; returns the table."""
    if job.settings.makes("evidence"):
        return along_orders.compare(job)
    from pcv.analysis.results.frames import scores_frame

    making = begin(job, "compare")
    diagnosed, known = diagnosed_of(job)
    compared = _compared(job, diagnosed, known)
    stamp = stamp_of(job, making, known)
    keep(job, compared.dataset, stamp, follows=True)
    store.write_text(job.path("compare").with_suffix(".csv"), compared.frame.to_csv(index=False))
    scores = scores_frame([*compared.comparisons.values(), *compared.others])
    file = job.path("compare").with_name("scores.csv")
    store.write_text(file, scores.to_csv(index=False))
    if of_scheme := _of_scheme(job, compared, diagnosed):
        name, rows = of_scheme
        store.write_text(file.with_name(f"{name}.csv"), rows.to_csv(index=False))
    return _in_words(compared, diagnosed, stamp)


def _of_scheme(
    job: Job, compared: "Compared", diagnosed: dict[str, xr.Dataset]
) -> "tuple[str, pd.DataFrame] | None":
    """What the scheme's folds tell besides, with the name of its file: scores by steps ahead where
    folds test several, and the cumulative score where they test up to p units."""
    from pcv.analysis.results.frames import by_step, cumulative

    scheme, reference = job.settings.folds, compared.comparisons["joint"].reference
    if isinstance(scheme, LeaveFutureOut) and scheme.forecast_horizon > 1:
        return "steps", by_step(diagnosed, reference)
    if isinstance(scheme, LeavePOut) and scheme.up_to:
        num_units = opened(job, "folds").attrs["num_units"]
        return "cumulative", cumulative(diagnosed, scheme.p, num_units, reference)
    return None


def show(job: Job) -> str:
    """The existing comparison, as `compare` returns it, and the path of its report.

    Raises:
        PcvError: there is none, or it is out of date.
    """
    if not job.path("compare").exists():
        raise PcvError(f"no comparison yet ({job.path('compare')}): run `snakemake --cores all`")
    page = job.path("report")
    report = f"Report: {page}" if page.exists() else f"No report yet: run `pcv report{job.given}`"
    if job.settings.makes("evidence"):
        paths, known = along_orders.followed(job)
        reference = along_orders.reference_of(job, paths)
        words = along_orders.in_words(paths, reference, require(job, "compare", known))
    else:
        diagnosed, known = diagnosed_of(job)
        stamp = require(job, "compare", known)
        words = _in_words(_compared(job, diagnosed, known), diagnosed, stamp)
    return f"{words}\n\n{report}"


def _in_words(compared: "Compared", diagnosed: dict[str, xr.Dataset], stamp: Stamp) -> str:
    """A comparison as text: tables and verdict."""
    from pcv.analysis import results
    from pcv.analysis.results.wording import scores_table, table, wrapped

    tables = [
        table(
            of_kind := compared.comparisons[kind],
            None if kind == "joint" else results.below_the_joint_table(of_kind, diagnosed),
        )
        for kind in results.distinct_kinds(diagnosed)
    ]
    if compared.others:
        tables.append(scores_table(compared.others))
    on_subspaces = results.on_subspaces(diagnosed)
    until = compared.dataset.attrs["until"]
    marks = [f"Warning: {mark}" for mark in stamp.marks]
    words = [compared.dataset.attrs["verdict"], *on_subspaces, *([until] if until else []), *marks]
    return "\n\n".join([*tables, *map(wrapped, words)])


def report(job: Job) -> None:
    """The figures, and the page that shows them: ``figures/``, ``report.html``."""
    from pcv import report as reporting
    from pcv.analysis import results
    from pcv.analysis.results.frames import scores_frame
    from pcv.analysis.results.wording import caveats, scores_notes

    started = datetime.now(UTC)
    if job.settings.makes("evidence"):
        return along_orders.report(job, started)
    diagnosed, known = diagnosed_of(job)
    kinds = results.distinct_kinds(diagnosed)
    compared = _compared(job, diagnosed, known)
    frame = compared.frame.query("kind in @kinds")
    known["compare"] = require(job, "compare", known)
    comparison = opened(job, "compare").sel(kind=kinds).load()
    pictures = reporting.drawn(reporting.figures(comparison, results.trimmed(diagnosed)))
    folder = job.path("report").parent
    write_figures(pictures, folder / "figures")
    page = reporting.html(
        comparison,
        diagnosed,
        frame,
        origin(job, started),
        pictures,
        job.settings.report.title or f"Cross-validation of {job.experiment}",
        known["compare"].marks,
        {kind: caveats(compared.comparisons[kind]) for kind in kinds},
        scores_frame(compared.others) if compared.others else None,
        scores_notes(compared.others),
        _of_scheme(job, compared, diagnosed),
        recipe(job, "report"),
    )
    store.write_text(job.path("report"), page)
    job.say(f"report: {job.path('report')}")
