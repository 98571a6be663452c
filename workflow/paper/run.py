"""From the artifacts of the examples to the paper's figures, tables and page on disk."""

import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd

from paper import files
from paper.figures import FIGURES, Example
from paper.numbers import as_json, captioned, summary
from paper.page import html, table_html
from paper.published import MEANS, MIXING, RUN_TIMES
from paper.runs import by_reason
from paper.tables import mixing_table, time_table
from pcv.base.errors import PcvError
from pcv.base.monitor import Monitor
from pcv.pipeline import graph
from pcv.pipeline.config import Config
from pcv.pipeline.data.registry import SOURCES, VARIABLE
from pcv.pipeline.job import Job
from pcv.pipeline.stages.comparison import compared_of
from pcv.pipeline.stages.page import write_figures
from pcv.pipeline.storage import store
from pcv.pipeline.storage.artifacts import batches, known_to, opened, require
from pcv.report import Table, drawn


def paper(
    config: Config, results: Path, monitor: Monitor, command: str = "snakemake paper"
) -> None:
    """Write the paper's figures, tables, numbers and page from those of its examples that were run.

    Args:
        config: with experiments named as in ``config/paper/paper.yaml``; others are ignored.
        results: folder of the artifacts.
        monitor: of the page; takes what is missing.
        command: runs the examples; named in warnings if they were not run.
    """
    examples, missing = {}, {}
    for name in files.EXPERIMENTS:
        try:
            if name not in config.experiments:
                raise PcvError("the config has no such experiment")
            examples[name] = read(Job(config, name, results))
        except PcvError as error:
            missing[name] = _reason(config, name, results, str(error), command)
    for names, why in by_reason(missing):
        monitor.warn(f"missing {', '.join(names)}: {why}")
    pictures = drawn(
        {
            files.figure(n): figure.draw(examples[figure.experiment], config.seed)
            for n, figure in FIGURES.items()
            if figure.experiment in examples
        }
    )
    tables = {
        n: time_table(n, examples) for n, table in RUN_TIMES.items() if table.experiment in examples
    }
    folder = files.folder_of(results)
    for stale in ("figures", "tables"):
        shutil.rmtree(folder / stale, ignore_errors=True)
    write_figures(pictures, folder / "figures")
    for n, table in tables.items():
        store.write_text(folder / "tables" / f"table_{n}.csv", _csv(table))
        store.write_text(folder / "tables" / f"table_{n}.html", table_html(table))
    devices = ", ".join(dict.fromkeys(example.device for example in examples.values()))
    about = [f"Seed {config.seed}.", f"Run on {devices}."] if examples else []
    captions = {n: captioned(examples[n], config.seed) for n in MIXING if n in examples}
    mixing = {n: mixing_table(examples[n], found) for n, found in captions.items()}
    numbers = as_json(examples, captions, config.seed)
    store.write_text(folder / "numbers.json", json.dumps(numbers, indent=1) + "\n")
    page = html(examples, missing, pictures, tables, mixing, about)
    store.write_text(folder / "index.html", page)
    monitor.log(f"{folder / 'index.html'}")


def read(job: Job) -> Example:
    """An experiment's results.

    Raises:
        PcvError: an artifact is missing or out of date, or draws were not kept.
    """
    where = f"experiments.{job.experiment}"
    if len(job.settings.models) != 2:
        raise PcvError(f"{where}.models: must be two for the paper, not {len(job.settings.models)}")
    if job.settings.cv.until is not None:
        raise PcvError(f"{where}.cv.until: the paper's chains have a fixed length; give draws")
    if job.settings.cv.warmup == "auto":
        raise PcvError(f"{where}.cv.warmup: the paper's warmup has a fixed length; give it")
    comparison = compared_of(job)
    stamp = require(job, "compare", known_to(job, comparison.finished))
    draws, means, seconds, devices, own_kernels = {}, {}, {}, [], 0
    for i, name in enumerate(job.settings.models):
        part = job._replace(model=name)
        stamps = {
            stage: [store.read_stamp(p.path(stage), stage).provenance for p in parts]
            for stage, parts in {
                "fit": [part],
                "warmup": batches(part),
                "sample": batches(part),
            }.items()
        }
        samples = [opened(one, "sample") for one in batches(part)]
        adapted = [opened(one, "warmup")["adapted"].to_numpy() for one in batches(part)]
        own_kernels += int(np.concatenate(adapted).sum())
        if "log_joint_draws" not in samples[0]:
            raise PcvError(f"{where}.cv.store: must be draws for the paper")
        draws[name] = np.concatenate([x["log_joint_draws"].to_numpy() for x in samples])
        fit = opened(part, "fit", "posterior")
        wanted = [m.variable for m in MEANS if (m.experiment, m.model) == (job.experiment, i)]
        means[name] = summary(fit, wanted)
        seconds[name] = {stage: sum(p["seconds"] for p in made) for stage, made in stamps.items()}
        devices += [p["device"] for p in stamps["sample"]]
    return Example(
        name=job.experiment,
        settings=job.settings,
        comparison=opened(job, "compare").sel(kind=["joint"]).load(),
        diagnostics=comparison.diagnosed,
        draws=draws,
        data=opened(job, "data").load(),
        test=opened(job, "folds")["test"].to_numpy(),
        means=means,
        seconds=seconds,
        own_kernels=own_kernels,
        device=", ".join(dict.fromkeys(devices)),
        marks=stamp.marks,
    )


def _csv(table: Table) -> str:
    """A table as CSV, with plain numbers and empty cells for missing ones."""
    frame = pd.DataFrame(table.rows, columns=["row", *table.head[1:]]).set_index("row")
    numbers = list(table.head[1:-1])
    frame[numbers] = frame[numbers].replace({",": "", "–": ""}, regex=True)
    return frame.to_csv()


def _reason(config: Config, name: str, results: Path, error: str, command: str) -> str:
    """Why an experiment is missing, and where its data come from."""
    if name not in config.experiments or Job(config, name, results).path("data").exists():
        return error
    run = f"`{command}` runs the missing ones."
    source = config.experiments[name].data.dataset
    if source is None or graph.dataset(results, source).exists():
        return run
    if not (downloads := SOURCES[source].downloads):
        return run
    return (
        f"{run} The data set '{source}' is missing too: it is downloaded from "
        f"{' and '.join(downloads)}; if that fails, set {VARIABLE} to a folder with "
        f"{SOURCES[source].file} or the downloads."
    )
