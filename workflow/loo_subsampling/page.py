"""From the artifacts of the experiments to the page of the LOO-SS paper, its tables and figure."""

import re
import shutil
from itertools import chain
from pathlib import Path

import numpy as np
import pandas as pd
from markupsafe import Markup

from loo_subsampling import files
from loo_subsampling.estimates import Run, Terms
from loo_subsampling.figure import CAPTION, figure_1
from loo_subsampling.tables import tables
from paper.page import table_html
from paper.runs import demand, runs_of
from pcv.base.monitor import Monitor
from pcv.pipeline.config import Config
from pcv.pipeline.job import Job
from pcv.pipeline.stages.page import write_figures
from pcv.pipeline.storage import store
from pcv.pipeline.storage.artifacts import opened, verified
from pcv.report import Table, drawn, inline, template

TEMPLATES = Path(__file__).parent / "templates"


def page(config: Config, results: Path, monitor: Monitor, command: str) -> None:
    """Write the tables, the figure and the page of those experiments that were run.

    Args:
        config: with experiments named as in ``config/loo_subsampling/loo_subsampling.yaml``;
            others are ignored.
        results: folder of the artifacts.
        monitor: of the page; takes what is missing.
        command: runs the experiments.
    """

    def read(name: str) -> Run:
        demand(config, name)
        return of_experiment(Job(config, name, results))

    runs, missing = runs_of(files.EXPERIMENTS, read, monitor, command)
    folder = files.folder_of(results)
    for stale in ("figures", "tables"):
        shutil.rmtree(folder / stale, ignore_errors=True)
    pictures = {}
    if files.FIGURE in runs:
        model = runs[files.FIGURE].models["both"]
        pictures = drawn({"figure_1": figure_1(model, config.seed)})
        write_figures(pictures, folder / "figures")
    found = tables(runs, config.seed)
    for n, table in found.items():
        store.write_text(folder / "tables" / f"table_{n}.csv", _csv(table))
        store.write_text(folder / "tables" / f"table_{n}.html", table_html(table))
    text = template("loo_subsampling.html.j2", TEMPLATES).render(
        tables=found,
        figure={n: Markup(inline(x.svg, n)) for n, x in pictures.items()}.get("figure_1"),
        caption=CAPTION,
        runs=runs,
        seed=config.seed,
        missing=missing,
        marks={name: run.marks for name, run in runs.items() if run.marks},
    )
    store.write_text(folder / "index.html", text)
    monitor.log(f"{folder / 'index.html'}")


def of_experiment(job: Job) -> Run:
    """An experiment's results.

    Raises:
        PcvError: an artifact is missing or out of date.
    """
    finished = verified(job, "subsample")
    marks = [x.stamp.marks for x in finished if x.stage == "surrogates"]
    layout = opened(job, "folds").load()
    in_order = np.argsort(layout["place"].values)
    models, draws = {}, set()
    for name in job.settings.models:
        part = job._replace(model=name)
        found = opened(part, "surrogates", "folds").load()
        every = opened(part, "surrogates", "terms").load()
        models[name] = Terms(
            layout["chosen"].values[in_order],
            found["joint_elpd"].values[in_order],
            found["khat"].values[in_order],
            {str(key): x.values for key, x in every.items()},
        )
        draws.add(int(found.attrs["num_chains"] * found["n_draws"].values[0]))
    return Run(models, max(draws), float(found.attrs["good_k"]), list(dict.fromkeys(chain(*marks))))


def _csv(table: Table) -> str:
    """A table as CSV, ours and the paper's in columns of their own."""
    columns: dict[str, list[str]] = {"row": [row[0] for row in table.rows]}
    for place, name in enumerate(table.head[1:], 1):
        cells = [re.fullmatch(r"(.*?)(?: \((.*)\))?", row[place]) for row in table.rows]
        ours, paper = zip(*(cell.groups() if cell else ("", "") for cell in cells))
        columns[name] = [_plain(x) for x in ours]
        if any(paper):
            columns[f"{name}, paper"] = [_plain(x) for x in paper]
    return pd.DataFrame(columns).set_index("row").to_csv()


def _plain(text: str | None) -> str:
    """A number as a computer reads it; nothing for a missing one."""
    return (text or "").replace("\N{MINUS SIGN}", "-").replace(",", "").replace("\N{EN DASH}", "")
