"""From the artifacts of the experiments to the page of cumulative cross-validation."""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import xarray as xr
from jaxtyping import Float
from markupsafe import Markup
from matplotlib.figure import Figure
from scipy.stats import gaussian_kde

from cumulative import files, published
from cumulative.models import design, prior_sd
from paper.runs import demand, runs_of
from pcv.analysis import evidence
from pcv.base.monitor import Monitor
from pcv.folds import columns
from pcv.pipeline.config import Config
from pcv.pipeline.job import Job
from pcv.pipeline.stages.cumulative import curves_of
from pcv.pipeline.stages.page import write_figures
from pcv.pipeline.storage import store
from pcv.pipeline.storage.artifacts import opened
from pcv.report import Cells, Table, drawn, inline, plots, template

TEMPLATES = Path(__file__).parent / "templates"
Paths = Mapping[str, xr.Dataset]
NOTES = {
    "table_1": (
        "Ours are from data simulated like the paper's, which are not known, with a seed chosen so "
        "that the evidence of a slope is about that in print: compare differences between models. "
        "The SE is over orders; those of differences are far smaller, as models share the orders "
        "(comparison.csv). Exact: in closed form, of the same orders."
    ),
    "table_a71": (
        "log p(y) along the path, by bridge sampling, and by the paper's importance sampling. The "
        "paper's scores are from importance sampling as well, with weights of rare draws."
    ),
}
CAPTIONS = {
    "figure_a61": "Figure A.6.1: S_CV(p) and S_CCV(P) × n/P of the polynomials, s² = 1, over the "
    "number of units that train.",
    "figure_a71": "Figure A.7.1: marginal posterior of the effect of ped, for both priors: they "
    "differ little, and so does the cumulative score, unlike the Bayes factor.",
}


def page(config: Config, results: Path, monitor: Monitor, command: str) -> None:
    """Write the tables, the figures and the page of those experiments that were run.

    Args:
        config: with experiments named as in ``config/cumulative/cumulative.yaml``.
        results: folder of the artifacts.
        monitor: of the page; takes what is missing.
        command: runs the experiments.
    """

    def read(name: str) -> tuple[Job, Paths]:
        demand(config, name)
        job = Job(config, name, results)
        return job, curves_of(job)[0]

    there, missing = runs_of(files.EXPERIMENTS, read, monitor, command)
    runs = {name: job for name, (job, _) in there.items()}
    paths = {name: of_models for name, (_, of_models) in there.items()}
    folder = files.folder_of(results)
    for stale in ("figures", "tables"):
        shutil.rmtree(folder / stale, ignore_errors=True)
    found = tables(runs, paths)
    for name, table in found.items():
        frame = pd.DataFrame(table.rows, columns=list(table.head))
        store.write_text(folder / "tables" / f"{name}.csv", frame.to_csv(index=False))
    pictures = drawn(figures(runs, paths))
    write_figures(pictures, folder / "figures")
    text = template("cumulative_paper.html.j2", TEMPLATES).render(
        tables=found,
        figures={name: Markup(inline(x.svg, name)) for name, x in pictures.items()},
        captions=CAPTIONS,
        orders={name: next(iter(x.values())).sizes["order"] for name, x in paths.items()},
        seed=config.seed,
        missing=missing,
    )
    store.write_text(folder / "index.html", text)
    monitor.log(f"{folder / 'index.html'}")


def tables(runs: Mapping[str, Job], paths: Mapping[str, Paths]) -> dict[str, Table]:
    """Those whose experiments were run."""
    made = {"table_1": _table_1, "table_a71": _table_a71}
    there = {name: [x for x in of if x in runs] for name, of in files.TABLES.items()}
    return {name: make(there[name], runs, paths) for name, make in made.items() if there[name]}


def _table_1(names: Sequence[str], runs: Mapping[str, Job], paths: Mapping[str, Paths]) -> Table:
    head = ["s²", "model", "log p(y)", "MCSE", "exact", "paper"]
    for share in published.LEFT_OUT:
        head += [f"S_CCV n/P, P = {share:g} n", "SE", "MCSE", "exact", "paper"]
    rows: list[Cells] = []
    for name in names:
        for model, path in paths[name].items():
            own, *scores = published.POLYNOMIALS[name, model]
            exact = _exact_evidence(runs[name], int(model[1:]))
            whole = evidence.of_path(path)
            row = [published.VARIANCES[name], model]
            cells = [*whole, exact[:, -1].mean(), own]
            for share, paper in zip(published.LEFT_OUT, scores):
                left_out, found = _at(path, share)
                n = exact.shape[1] - 1
                closed = (exact[:, -1] - exact[:, n - left_out]).mean() * n / left_out
                cells += [*found, closed, paper]
            rows.append((*row, *map(_number, cells), ""))
    caption = "Table 1: log evidence and cumulative score of polynomials"
    return Table(caption, (*head, ""), rows, [False] * len(rows), [NOTES["table_1"]])


def _table_a71(names: Sequence[str], runs: Mapping[str, Job], paths: Mapping[str, Paths]) -> Table:
    head: Cells = ("g", "covariates", "log p(y)", "MCSE", "bridge", "paper")
    head += ("S_CCV n/P, P = 299", "SE", "MCSE", "paper", "")
    rows: list[Cells] = []
    for name in names:
        for model, path in paths[name].items():
            own, score = published.PROBITS[name, model]
            (bridge, _) = evidence.every_way(path)[evidence.BRIDGE]
            _, found = _at(path, published.LEFT_OUT[0])
            cells = *evidence.of_path(path), bridge.value, own, *found, score
            title = published.G[name], published.COVARIATES[model]
            rows.append((*title, *map(_number, cells), ""))
    caption = "Table A.7.1: log evidence and cumulative score of probit regressions"
    return Table(caption, head, rows, [False] * len(rows), [NOTES["table_a71"]])


def _at(path: xr.Dataset, share: float) -> tuple[int, list[float]]:
    """P, a share of n, and S_CCV(P) n/P with its SE and MCSE."""
    n, _ = evidence.extent(path)
    left_out = n - round((1 - share) * n)
    found = evidence.at(path, left_out)[["s_ccv", "s_ccv_se", "s_ccv_mcse"]]
    return left_out, (found * n / left_out).tolist()


def _exact_evidence(job: Job, degree: int) -> Float[np.ndarray, "order size"]:
    """log p(y) of the first 0, 1, …, n units of each order, in closed form."""
    arrays, orders = columns.model_data(opened(job, "data")), opened(job, "folds")["order"].values
    variance = job.settings.models[f"r{degree}"].args["variance"]
    x, y = design(arrays["x"], degree), arrays["y"]
    sd = prior_sd(degree, variance)
    covariance = (x * sd**2) @ x.T + np.eye(len(y))
    found = []
    for order in orders:
        root = np.linalg.cholesky(covariance[np.ix_(order, order)])
        z = np.linalg.solve(root, y[order])
        each = -0.5 * z**2 - np.log(np.diag(root)) - 0.5 * np.log(2 * np.pi)
        found.append(np.concatenate([[0.0], np.cumsum(each)]))
    return np.array(found)


def figures(runs: Mapping[str, Job], paths: Mapping[str, Paths]) -> dict[str, Figure]:
    """Those whose experiments were run."""
    found = {}
    (polynomials,) = files.FIGURES["figure_a61"]
    if polynomials in paths:
        found["figure_a61"] = plots.cumulative(paths[polynomials], latest=1.0)
    if pima := [name for name in files.FIGURES["figure_a71"] if name in runs]:
        draws = {f"g = {published.G[name]}": _effect_of_ped(runs[name]) for name in pima}
        found["figure_a71"] = _densities(draws)
    return found


def _effect_of_ped(job: Job) -> Float[np.ndarray, " draw"]:
    theta = opened(job._replace(model="all"), "fit", "posterior")["theta"]
    return theta.sel(covariate="ped").values.ravel()


def _densities(draws: Mapping[str, Float[np.ndarray, " draw"]]) -> Figure:
    height = 2.6
    figure, (ax,) = plots.stacked(1, height)
    low, high = (f(np.concatenate(list(draws.values()))) for f in (np.min, np.max))
    at = np.linspace(low, high, 200)
    labels = []
    for (name, x), colour, dash in zip(draws.items(), plots.COLOURS, ("-", "--")):
        density = gaussian_kde(x)(at)
        ax.plot(at, density, color=colour, ls=dash, lw=1.6)
        labels.append(plots.Label(density[int(0.8 * at.size)], name, colour))
    plots.label_right(ax, labels, height)
    ax.set_xlabel("effect of ped", fontsize=plots.NORMAL)
    ax.set_ylabel("density", fontsize=plots.NORMAL)
    return figure


def _number(x: float) -> str:
    return (f"{x:.2g}" if abs(x) < 0.1 else f"{x:.2f}").replace("-", "\N{MINUS SIGN}")
