"""From the artifacts of the experiments to the page of cross-validation on a subspace."""

import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import xarray as xr
from jaxtyping import Float
from markupsafe import Markup
from matplotlib.figure import Figure
from scipy.special import logsumexp

from paper.runs import demand, runs_of
from pcv.analysis.diagnostics.psis import psislw
from pcv.analysis.subspace import distance
from pcv.base.monitor import Monitor
from pcv.folds.base import train_mask
from pcv.pipeline.config import Config
from pcv.pipeline.job import Job
from pcv.pipeline.stages.comparison import compared_of
from pcv.pipeline.stages.page import write_figures
from pcv.pipeline.storage import store
from pcv.pipeline.storage.artifacts import opened
from pcv.pipeline.work import all_folds
from pcv.report import Cells, Table, drawn, inline, plots, template
from subspace import files

TEMPLATES = Path(__file__).parent / "templates"
MODEL = "kinetics"
PUBLISHED = {"all": (0.0, 1158.40), "psis": (1.32061, 1.01), "d5": (0.00178, 12.47)}
"""table 1 of the paper: MMD and seconds"""
NOTE = (
    "MMD: maximum mean discrepancy of the scores of all folds from those of re-running, with a "
    "Gaussian kernel whose width is the median distance between the latter; the paper does not say "
    "which it took, nor give its data and model, so that its column tells the order of magnitude "
    "alone. Distance: root mean squared difference fold by fold, without the Monte Carlo error "
    "known of it, in standard deviations of the scores over folds. Seconds: of the jobs that "
    "sample, with their start and compilation; those of warmup, in which four folds are sampled "
    "both ways, beside it. PSIS: from the full-data fit, with weights of all later observations of "
    "the subject."
)
CAPTION = (
    "Bias of elpd and seconds to sample, over the number of directions: the leading ones by their "
    "variance, and by what they add to the variance of the log likelihoods. Band: SE of the elpd "
    "of re-running."
)


class Row(NamedTuple):
    """A way to cross-validate."""

    name: str
    elpd: Float[np.ndarray, " fold"]
    mcse: Float[np.ndarray, " fold"]
    seconds: float
    warmup: float
    dimensions: int
    share: float


def page(config: Config, results: Path, monitor: Monitor, command: str) -> None:
    """Write the table, the figure and the page of those experiments that were run.

    Args:
        config: with experiments named as in ``config/subspace/subspace.yaml``.
        results: folder of the artifacts.
        monitor: of the page; takes what is missing.
        command: runs the experiments.
    """

    def read(name: str) -> tuple[Job, xr.Dataset]:
        demand(config, name)
        job = Job(config, name, results)._replace(model=MODEL)
        return job, compared_of(job).diagnosed[MODEL]

    names = [x for x in files.EXPERIMENTS if x in config.experiments or x == files.BRUTE_FORCE]
    runs, missing = runs_of(names, read, monitor, command)
    rows = [_row(*run) for run in runs.values()]
    folder = files.folder_of(results)
    for stale in ("figures", "tables"):
        shutil.rmtree(folder / stale, ignore_errors=True)
    table, pictures = None, {}
    if files.BRUTE_FORCE in runs:
        table = table_1([rows[0], _psis(runs[files.BRUTE_FORCE][0]), *rows[1:]])
        frame = pd.DataFrame(table.rows, columns=list(table.head))
        store.write_text(folder / "tables/table_1.csv", frame.to_csv(index=False))
        pictures = drawn({"bias": figure(rows)})
        write_figures(pictures, folder / "figures")
    text = template("subspace_paper.html.j2", TEMPLATES).render(
        table=table,
        figures={name: Markup(inline(x.svg, name)) for name, x in pictures.items()},
        caption=CAPTION,
        seed=config.seed,
        missing=missing,
    )
    store.write_text(folder / "index.html", text)
    monitor.log(f"{folder / 'index.html'}")


def _row(job: Job, diagnosed: xr.Dataset) -> Row:
    attrs = diagnosed.attrs
    all_ = opened(job, "fit", "checks").sizes["param"]
    return Row(
        job.experiment,
        diagnosed["joint_elpd"].values,
        diagnosed["joint_mcse"].values,
        _seconds(job, "sample"),
        _seconds(job, "warmup"),
        attrs.get("subspace_dim", all_),
        attrs.get("subspace_share", 1.0),
    )


def _seconds(job: Job, stage: str) -> float:
    """Of the workflow's jobs of a stage."""
    folder = job.results / job.experiment / "benchmarks"
    tables = [pd.read_csv(file, sep="\t") for file in sorted(folder.glob(f"{stage}-*.tsv"))]
    return float(sum(table["s"].sum() for table in tables)) if tables else np.nan


def _psis(job: Job) -> Row:
    """From draws of the full-data posterior, reweighted by all that a fold does not train on."""
    by_unit = opened(job, "fit", "log_likelihood")[job.settings.data.outcome]
    terms = by_unit.transpose("unit", "chain", "draw").values
    begun, folds = time.perf_counter(), all_folds(job)
    flat = terms.reshape(len(terms), -1)
    held_out = ~train_mask(folds, len(terms))
    weight, khat = psislw(-(held_out.astype(float) @ flat))
    tested = np.stack([flat[units[units >= 0]].sum(0) for units in folds.test])
    elpd = logsumexp(weight + tested, axis=1)
    seconds = time.perf_counter() - begun
    return Row("psis", elpd, np.full(len(elpd), np.nan), seconds, np.nan, 0, float(khat.max()))


def discrepancy(one: Float[np.ndarray, " fold"], other: Float[np.ndarray, " fold"]) -> float:
    r"""Maximum mean discrepancy,

    .. math:: \mathrm{MMD}^2 = \overline{k(x, x')} + \overline{k(y, y')} - 2 \overline{k(x, y)},
              \qquad k(x, y) = e^{-(x - y)^2 / 2 w^2}

    with the median distance within `one` as width w.

    >>> x = np.arange(5.0)
    >>> discrepancy(x, x), round(discrepancy(x, x + 100), 2)
    (0.0, 1.18)
    """
    within = np.abs(one[:, None] - one)
    width = np.median(within[np.triu_indices(len(one), 1)])

    def mean(x: np.ndarray, y: np.ndarray) -> float:
        return float(np.exp(-((x[:, None] - y) ** 2) / (2 * width**2)).mean())

    return float(np.sqrt(max(mean(one, one) + mean(other, other) - 2 * mean(one, other), 0.0)))


def table_1(rows: Sequence[Row]) -> Table:
    """Of re-running, PSIS and subspaces."""
    first = rows[0]
    spread = float(first.elpd.std(ddof=1))
    cells: list[Cells] = []
    for row in rows:
        apart, published = row.elpd - first.elpd, PUBLISHED.get(row.name)
        mcse = np.hypot(row.mcse, first.mcse)
        known = np.isfinite(row.mcse).all()
        number = len(apart)
        far = distance(apart, mcse if known else first.mcse, spread, number, number).distance
        is_first = row is first
        cells.append(
            (
                _title(row),
                f"{row.share:.1%}" if row.name[0] in "ds" else "–",
                _number(row.elpd.sum(), 2),
                "–" if is_first else _number(apart.sum(), 2),
                "–" if is_first or not known else _number(np.sqrt((mcse**2).sum()), 2),
                "–" if is_first else _number(far, 2),
                "0" if is_first else _number(discrepancy(first.elpd, row.elpd), 3),
                f"{published[0]:g}" if published else "–",
                f"{row.seconds:.1f}".replace("nan", "–"),
                f"{published[1]:g}" if published else "–",
                f"{row.warmup:.1f}".replace("nan", "–"),
                "",
            )
        )
    head: Cells = ("method", "variance", "elpd", "bias", "MCSE", "distance", "MMD", "paper's")
    head += ("seconds", "paper's", "warmup", "")
    caption = (
        "Table 1: re-running inference, PSIS and subspaces, one observation ahead in each of "
        f"{len(first.elpd)} folds"
    )
    return Table(caption, head, cells, [False] * len(cells), [NOTE])


def _title(row: Row) -> str:
    if row.name == "psis":
        return f"PSIS (largest k-hat {row.share:.2f})"
    if row.name == files.BRUTE_FORCE:
        return f"re-running, {row.dimensions} parameters"
    by = f", {row.name[5:]}% of the predictive's variance" if row.name.startswith("share") else ""
    return f"subspace, {row.dimensions}{by}"


def figure(rows: Sequence[Row]) -> Figure:
    """Bias and seconds over the number of directions."""
    first, height = rows[0], 2.2
    made, axes = plots.stacked(2, height)
    se = float(np.sqrt(len(first.elpd)) * first.elpd.std(ddof=1))
    axes[0].axhspan(-se, se, color=plots.FAINT, lw=0)
    labels = []
    for begins, name, colour in zip("ds", ("by variance", "by predictive share"), plots.COLOURS):
        some = sorted(
            (row for row in rows if row.name.startswith(begins)), key=lambda row: row.dimensions
        )
        number = [row.dimensions for row in some]
        bias = [float((row.elpd - first.elpd).sum()) for row in some]
        for ax, values in zip(axes, (bias, [row.seconds for row in some])):
            ax.plot(number, values, "o-", color=colour, lw=1.6, ms=4)
        if some:
            labels.append(plots.Label(bias[-1], name, colour))
    plots.label_right(axes[0], labels, height)
    axes[0].axhline(0, color=plots.INK, lw=0.8)
    axes[0].set_ylabel("bias of elpd (nats)", fontsize=plots.NORMAL)
    axes[1].axhline(first.seconds, color=plots.INK, lw=0.8, ls="--")
    axes[1].set_ylim(bottom=0)
    axes[1].set_ylabel("seconds", fontsize=plots.NORMAL)
    plots.label_right(axes[1], [plots.Label(first.seconds, "re-running", plots.INK)], height)
    axes[1].set_xlabel("number of directions", fontsize=plots.NORMAL)
    return made


def _number(x: float, digits: int) -> str:
    return f"{x:.{digits}f}".replace("-", "\N{MINUS SIGN}")
