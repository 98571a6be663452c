"""The stage that compares the models of an experiment: ``comparison.zarr``, and tables."""

from typing import TYPE_CHECKING, NamedTuple

import pandas as pd
import xarray as xr

from pcv.analysis import results
from pcv.base.errors import PcvError
from pcv.folds.schemes import LeaveFutureOut, LeavePOut, Subsampling
from pcv.pipeline.job import Job
from pcv.pipeline.stages import cumulative
from pcv.pipeline.storage import artifacts, store
from pcv.pipeline.storage.store import Stamp

if TYPE_CHECKING:
    from pcv.analysis.results import Compared


class Comparison(NamedTuple):
    """The models of an experiment side by side."""

    compared: "Compared"
    diagnosed: dict[str, xr.Dataset]
    """diagnostics of each model"""
    finished: list[artifacts.Finished]
    """what they are made from"""


def compare(job: Job) -> str:
    """Compare the models: ``comparison.zarr`` and ``comparison.csv``; returns the table."""
    if job.settings.makes("evidence"):
        return cumulative.compare(job)
    from pcv.analysis.results.frames import all_pairs, scores_frame
    from pcv.analysis.results.predicted import table

    making, comparison = artifacts.begin(job, "compare"), compared_of(job)
    compared = comparison.compared
    stamp = artifacts.stamp_of(making, artifacts.inputs_of(job, "compare", comparison.finished))
    artifacts.keep(job, compared.dataset, stamp)
    file = job.path("compare").with_suffix(".csv")
    store.write_text(file, compared.frame.to_csv(index=False))
    scores = scores_frame([*compared.comparisons.values(), *compared.others])
    store.write_text(file.with_name("scores.csv"), scores.to_csv(index=False))
    if len(comparison.diagnosed) > 1:
        pairs = all_pairs(comparison.diagnosed)
        store.write_text(file.with_name("pairs.csv"), pairs.to_csv(index=False))
    if of_scheme := by_scheme(job, comparison):
        name, rows = of_scheme
        store.write_text(file.with_name(f"{name}.csv"), rows.to_csv(index=False))
    if predictions := predictions_by_model(job):
        tables = {name: table(x, comparison.diagnosed[name]) for name, x in predictions.items()}
        rows = pd.concat(tables, names=["model"])
        store.write_text(file.with_name("predictions.csv"), rows.to_csv())
    return in_words(comparison, stamp)


def predictions_by_model(job: Job) -> dict[str, xr.Dataset]:
    """The predictions of each model that has them."""
    from pcv.analysis.results.predicted import predictions_of

    parts = [job._replace(model=name) for name in job.settings.models]
    each = {
        part.model: predictions_of(artifacts.opened_tree(part, "diagnose")).load() for part in parts
    }
    return {name: predicted for name, predicted in each.items() if "y_rep" in predicted}


def compared_of(job: Job) -> Comparison:
    """The comparison of an experiment's models, from their diagnostics."""
    finished = artifacts.verified(job, "compare")
    stamps = artifacts.known_to(job, finished)
    parts = [job._replace(model=name) for name in job.settings.models]
    diagnosed = {part.model: artifacts.opened(part, "diagnose").load() for part in parts}
    scheme = job.settings.folds
    compared = results.compare(
        diagnosed,
        stamps["data"].fingerprint,
        stamps["folds"].fingerprint,
        job.settings.compare.reference,
        job.experiment,
        job.settings.cv.until,
        scheme.until if isinstance(scheme, Subsampling) else None,
    )
    return Comparison(compared, diagnosed, finished)


def by_scheme(job: Job, comparison: Comparison) -> tuple[str, pd.DataFrame] | None:
    """What the scheme's folds show besides, with the name of its file: scores by steps ahead where
    folds test several, and the cumulative score where they test up to p units."""
    from pcv.analysis.results.frames import cumulative
    from pcv.analysis.results.steps import by_step

    scheme, diagnosed = job.settings.folds, comparison.diagnosed
    reference = comparison.compared.comparisons["joint"].reference
    if isinstance(scheme, LeaveFutureOut) and scheme.forecast_horizon > 1:
        return "steps", by_step(diagnosed, reference)
    if isinstance(scheme, LeavePOut) and scheme.up_to:
        num_units = artifacts.opened(job, "folds").attrs["num_units"]
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
        return f"{cumulative.show(job)}\n\n{report}"
    comparison = compared_of(job)
    stamp = artifacts.require(job, "compare", artifacts.known_to(job, comparison.finished))
    return f"{in_words(comparison, stamp)}\n\n{report}"


def in_words(comparison: Comparison, stamp: Stamp) -> str:
    """A comparison as text: tables and verdict."""
    from pcv.analysis.results.wording import deciding, scores_table, table, wrapped

    compared, diagnosed, _ = comparison
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
    decisive = deciding(compared.comparisons["joint"])
    words = [compared.dataset.attrs["verdict"], *decisive, *on_subspaces]
    words += [*results.on_predictions(diagnosed), *([until] if until else []), *marks]
    return "\n\n".join([*tables, *map(wrapped, words)])
