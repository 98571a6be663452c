"""From the runs to the page of nested R-hat."""

import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import xarray as xr
from markupsafe import Markup

from nested_rhat import figures, files
from nested_rhat.errors import LEVEL, accepted, errors, limit, share_large
from nested_rhat.settings import Settings, part
from paper.runs import Absent, runs_of
from pcv.base.monitor import Monitor
from pcv.pipeline.stages.page import write_figures
from pcv.pipeline.storage import store
from pcv.report import Cells, Table, drawn, inline, template

TEMPLATES = Path(__file__).parent / "templates"
CAPTIONS = {
    1: "Figure 1: Rosenbrock. Squared error of the mean of θ₁, over its variance, and R-hat, over "
    "draws after 100 of warmup, by the folds' program. Dashed: of 100 independent draws, and "
    "1.01.",
    3: "Figure 3: variance of the mean of one draw of one chain, of independent chains, and of a "
    "superchain, whose chains start at one point. It falls to that of independent chains once the "
    "starting point is forgotten, which in the mixture it never is.",
    4: "Figure 4: variance of nB/nW of 2,048 chains in K superchains, in warmup with one draw per "
    "chain, and stationary with several.",
    5: "Figure 5: scaled squared error E² of the mean of each parameter against nested R-hat, for "
    "all warmups. Vertical: the threshold; horizontal: median and 90% range of χ²₁.",
    6: "Figure 6: of estimates whose nested R-hat is at most √(1 + 1/M + τ), the share with E² "
    "above the 95% quantile of χ²₁, over the tolerated τ (vertical: the threshold's; dotted: "
    "5%); and the distribution of E² at the threshold (dashed: χ²₁).",
    7: "Figure 7: the same share by the number K of superchains, over targets for which it was "
    "varied.",
    8: "Figure 8: blue: nested R-hat is reliable, that is, the squared bias is at most δ' = .02 "
    "when nB/nW first is at most δ = .1, by bias and variance of starts, in standard deviations "
    "and variances of the target. Line: the bound of corollary 3.6, for the normal distribution.",
    9: "Figure 9: the largest δ for which theorem B.3 holds, over δ', by the initial bias in "
    "standard deviations. Dashed: δ = δ'.",
}
NOTES = (
    "Estimates: parameters × lengths of warmup × repeats. Accepted: nested R-hat at most "
    "√(1 + 1/M + τ), τ = 1/(5 KM). About half of the estimates of stationary chains are, since "
    "nested R-hat is noisy. Large: E² above the 95% quantile of χ²₁, which 5% of stationary "
    "estimates are; parameters of one run are not independent. Agree after: the first warmup at "
    "which half of the estimates are accepted. Seconds: of all repeats, with compilation.",
)


def page(settings: Settings, results: Path, monitor: Monitor, command: str) -> None:
    """Write the table, the figures and the page of those targets that were run.

    Args:
        settings: what to run.
        results: folder of the results.
        monitor: of the page; takes what is missing.
        command: runs them.
    """

    def read(name: str) -> xr.Dataset:
        with store.opened(files.run_of(results, name)) as run:
            if run.attrs["settings"] != part(settings, name):
                raise Absent(f"Its chains are of other settings; `{command}` makes new ones.")
            return run.load()

    names = [files.ILLUSTRATED, *settings.targets]
    runs, missing = runs_of(names, read, monitor, command)
    folder = files.folder_of(results)
    for stale in ("figures", "tables"):
        shutil.rmtree(folder / stale, ignore_errors=True)
    illustrated = runs.pop(files.ILLUSTRATED, None)
    titled = {files.TITLES[name]: run for name, run in runs.items()}
    made = {9: figures.figure_9()}
    if illustrated is not None:
        of_run = {
            1: figures.figure_1,
            3: figures.figure_3,
            4: figures.figure_4,
            8: figures.figure_8,
        }
        made |= {number: draw(illustrated) for number, draw in of_run.items()}
    table = None
    if titled:
        made |= {5: figures.figure_5(titled), 6: figures.figure_6(titled)}
        table = table_1(titled)
        frame = pd.DataFrame(table.rows, columns=list(table.head))
        store.write_text(folder / "tables/table_1.csv", frame.to_csv(index=False))
    if any(run.sizes["superchains"] > 1 for run in titled.values()):
        made[7] = figures.figure_7(titled)
    pictures = drawn({files.figure(n): made[n] for n in sorted(made)})
    write_figures(pictures, folder / "figures")
    devices = dict.fromkeys(str(run.attrs["device"]) for run in runs.values())
    text = template("nested_rhat.html.j2", TEMPLATES).render(
        table=table,
        figures={name: Markup(inline(x.svg, name)) for name, x in pictures.items()},
        captions={files.figure(n): words for n, words in CAPTIONS.items()},
        about=f"Seed {settings.seed}. " + (f"Run on {', '.join(devices)}." if devices else ""),
        missing=missing,
    )
    store.write_text(folder / "index.html", text)
    monitor.log(f"{folder / 'index.html'}")


def table_1(runs: dict[str, xr.Dataset]) -> Table:
    """Errors of the estimates that nested R-hat accepts, by target and sampler."""
    rows: list[Cells] = []
    for title, run in runs.items():
        number = int(run["superchains"][0])
        for sampler in run["sampler"].values.tolist():
            found = errors(run, sampler, number)
            share, count = share_large(found)
            which = accepted(found)
            agree = which.mean((0, 2)) >= 0.5
            before = run["length"].values[agree.argmax()] if agree.any() else "–"
            last = found.squared[:, -1]
            rows.append(
                (
                    f"{title}, {figures.SAMPLERS[sampler]}",
                    str(run.sizes["param"]),
                    f"{number}\u00a0×\u00a0{run.attrs['chains'] // number}",
                    f"{limit(run, number):.4f}",
                    f"{which.size:,}",
                    f"{count:,}",
                    f"{share:.1%}" if count else "–",
                    f"{np.mean(last):.2f}" if np.mean(last) < 100 else f"{np.mean(last):.0f}",
                    str(before),
                    f"{float(run['seconds'].sel(sampler=sampler)[0]):.0f}",
                    "",
                )
            )
    head: Cells = ("target", "d", "K × M", "threshold", "estimates", "accepted", "large")
    head += ("mean E² at the end", "agree after", "seconds", "")
    caption = f"Table 1: errors of accepted estimates; {LEVEL:.0%} of stationary ones are large"
    return Table(caption, head, rows, [False] * len(rows), list(NOTES))
