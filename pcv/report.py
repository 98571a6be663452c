"""The report of an experiment: its figures as files, and one self-contained HTML page."""

import io
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import matplotlib
import numpy as np
import pandas as pd
import xarray as xr
import yaml
from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup
from matplotlib.figure import Figure

from pcv import plots, store
from pcv.diagnostics import BENCHMARK_LEVEL, SHORT_BATCHES
from pcv.wording import units_of

DPI = 200

CAPTIONS = {
    "difference": (
        "The answer, and its two uncertainties",
        "Each line is a model's estimate from the draws so far, as a difference to the comparator "
        "(the horizontal line at 0); negative means that the comparator predicts better. The band "
        "is ± 2 Monte Carlo standard errors: it shrinks as chains run longer, and the line should "
        "have settled inside it. The bar at the right is ± 1 standard error of the final estimate, "
        "which comes from the limited number of folds: only more data make it shorter. A bar that "
        "reaches 0 leaves the order of the two models open. A single model is shown by its elpd.",
    ),
    "uncertainty": (
        "Have the chains run long enough?",
        "Solid: the standard error that the limited data leave (epistemic). Dashed: the Monte "
        "Carlo standard error that the limited number of draws adds. Once the dashed line is far "
        "below the solid one (a tenth, say), longer chains no longer change the answer. The axis "
        "is logarithmic.",
    ),
    "probability": (
        "Probability of predicting better",
        "The probability that a model predicts new data better than the comparator, given the "
        "draws so far. 50% is a toss-up. It should have settled; close to 0% or 100%, the order of "
        "the models is clear.",
    ),
    "fold_differences": (
        "Which folds make the difference?",
        "One mark per fold and model, ± 2 Monte Carlo standard errors (often hidden by the mark), "
        "in the order of the joint differences. To the left of 0 (or below it), the comparator "
        "predicts that fold better. Look for single folds that carry the total. Beyond "
        f"{plots.MAX_NAMED_FOLDS} folds, each model's folds stand in order of value and only the "
        "extremes are named. With a single model, the elpd of each fold is shown.",
    ),
    "rhat": (
        "Do the chains of each fold agree?",
        "Thin lines: R-hat of the log score of each fold, over draws. Bold: the largest of them, "
        f"R-hat max. The dashed line is the usual limit of {plots.GOOD_RHAT:g} for a single "
        "posterior; the largest of many folds often lies above it though all is well, which is "
        "what the next figure is for. The axis is linear near 1 and logarithmic far above it.",
    ),
    "benchmark": (
        "Is R-hat max too large?",
        "The histogram shows what R-hat max would be if all chains had mixed: blocks of draws are "
        "shuffled between the chains of a fold, again and again. A vertical line inside the "
        "histogram is what well-mixed chains give. A line to the right of it says that at least "
        "one chain is stuck, shifted, or still warming up.",
    ),
    "ess": (
        "How many independent draws is each score worth?",
        "Effective sample size of the joint log score, over all chains of a fold: that many "
        "independent draws would have the same Monte Carlo error. Thin lines: of each fold. Bold: "
        "of the model's elpd, where folds weigh by their error; the panel at the top: of the "
        "differences. Lines should rise steadily; one that levels off comes from a heavy tail or a "
        "chain that is stuck.",
    ),
    "khat": (
        "Can each fold's Monte Carlo error be trusted?",
        "Pareto k-hat of the predictive density over the draws of each fold. Above the dotted line "
        "a few draws dominate the fold's score and its Monte Carlo error is understated; above the "
        "dashed line at 1, that average has no finite mean to estimate. The remedy is a predictive "
        "with the left-out effects integrated out (marginal), or far more draws.",
    ),
    "full_data": (
        "Is each model's full-data fit sound?",
        "One mark per parameter of the fit to all data, which gives cross-validation its starting "
        f"points and its sampler settings. Sound parameters lie below R-hat {plots.GOOD_RHAT:g} "
        f"and to the right of an effective sample size of {plots.GOOD_ESS}. The parameters with "
        "the largest R-hat and with the smallest sample size are named.",
    ),
}

NESTED_CAPTIONS = {
    "rhat": (
        "Do chains from different starts agree?",
        "Thin lines: nested R-hat of the log score of each fold, over draws, which compares sets "
        "of chains that start at one point (superchains). Bold: the largest of them, nested R-hat "
        "max. It exceeds 1 by chance alone, the more so the fewer draws and chains a superchain "
        f"has, so that the dashed line at {plots.GOOD_RHAT:g} is no limit; the next figure has "
        "one. The axis is linear near 1 and logarithmic far above it.",
    ),
    "benchmark": (
        "Is nested R-hat max too large?",
        "The histogram shows what nested R-hat max would be if it did not matter where chains "
        "start: whole chains of a fold are dealt out anew to its superchains, again and again. A "
        "vertical line inside the histogram is what well-mixed chains give. A line to the right "
        "of it says that chains from at least one start differ from the others.",
    ),
}
"""where chains start together"""

MAX_ROWS = 100
"""flagged folds, or units, that the report lists"""

QUESTIONS = {
    "joint": "How well is the test set of a fold predicted as a whole? Log density of all its "
    "units together, one term per fold.",
    "pointwise": "How well is each unit predicted on its own? Log density of single units, one "
    "term per unit, as loo and ArviZ score.",
}


Cells = tuple[str, ...]


class Table(NamedTuple):
    """A table as it is printed: the first column names the row, the last one is in words."""

    caption: str
    head: Cells
    rows: Sequence[Cells]
    flagged: Sequence[bool]
    """rows that stand out"""
    notes: Sequence[str] = ()


def figures(comparison: xr.Dataset, diagnostics: Mapping[str, xr.Dataset]) -> dict[str, Figure]:
    """All figures of an experiment by name, the same names for every experiment.

    Args:
        comparison: the contents of comparison.zarr.
        diagnostics: the contents of each model's diagnostics.zarr, by model name.
    """
    ordered = {name: diagnostics[name] for name in _models(comparison)}
    runs = {"all models": comparison, **ordered} if len(ordered) > 1 else ordered
    return {
        "difference": plots.difference(comparison),
        "uncertainty": plots.uncertainty(comparison),
        "probability": plots.probability(comparison),
        "fold_differences": plots.fold_differences(comparison),
        "rhat": plots.rhat(ordered),
        "benchmark": plots.benchmark(runs),
        "ess": plots.ess(ordered, comparison),
        "khat": plots.khat(ordered),
        "full_data": plots.full_data(ordered),
    }


def write_figures(figs: Mapping[str, Figure], folder: Path) -> list[Path]:
    """Write each figure as PNG (200 dpi) and SVG into a folder, which is made if need be.

    Returns:
        the paths written.

    Raises:
        PcvError: the folder or a file cannot be written.
    """
    paths = []
    for name, figure in figs.items():
        png = io.BytesIO()
        figure.savefig(png, dpi=DPI)
        for content, suffix in [(png.getvalue(), "png"), (svg(figure, name).encode(), "svg")]:
            paths.append(folder / f"{name}.{suffix}")
            store.write_bytes(paths[-1], content)
    return paths


def svg(figure: Figure, name: str) -> str:
    """A figure as SVG with selectable text; all its ids begin with `name`.

    The same figure gives the same text, whenever and wherever it is drawn.

    >>> '<svg ' in svg(Figure(), "empty")
    True
    """
    buffer = io.StringIO()
    nothing = dict.fromkeys(["Creator", "Date", "Format", "Type"])
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        figure.savefig(buffer, format="svg", metadata=nothing)

    def prefix(tag: re.Match[str]) -> str:
        return re.sub(r'(\sid="|href="#|url\(#)', rf"\g<1>{name}-", tag[0])

    return re.sub(r"<[^>]+>", prefix, buffer.getvalue())


def html(
    comparison: xr.Dataset,
    diagnostics: Mapping[str, xr.Dataset],
    frame: pd.DataFrame,
    provenance: Mapping[str, Any],
    figures: Mapping[str, Figure],
    title: str,
    marks: Sequence[str],
    caveats: Mapping[str, Sequence[str]],
    scores: pd.DataFrame | None = None,
    score_notes: Sequence[str] = (),
) -> str:
    """The report as one HTML page that needs nothing else: no network, scripts or fonts.

    Args:
        comparison: the contents of comparison.zarr.
        diagnostics: the contents of each model's diagnostics.zarr, by model name.
        frame: the rows of comparison.csv.
        provenance: what to print of the run's origin: `config` (a mapping or YAML text), and by
            any name texts, numbers, lists or one more level of mappings.
        figures: from `figures`.
        title: the heading.
        marks: warnings to show in a banner at the top, such as that a bad fit was allowed.
        caveats: of each kind, what is to be said of its numbers besides the verdicts.
        scores: the rows of scores.csv, where there are scores besides the log score.
        score_notes: what is to be said of these.
    """
    names = _models(comparison)
    single = len(names) == 1
    folds = {name: _fold_table(name, diagnostics[name]) for name in names}
    config = provenance.get("config", {})
    return template("report.html.j2").render(
        title=title,
        marks=marks,
        single=single,
        attrs=comparison.attrs,
        num_models=len(names),
        num_folds=comparison.sizes["fold"],
        scores={
            kind: _score_table(comparison, frame, kind, caveats[kind])
            for kind in map(str, comparison["kind"].values)
        },
        questions=QUESTIONS,
        others=None
        if scores is None
        else _other_scores(scores.query("score != 'log'"), single, score_notes),
        figures={
            name: Markup(inline(figure, name))
            for name, figure in figures.items()
            if not (single and name == "probability")
        },
        captions=CAPTIONS | (NESTED_CAPTIONS if comparison.attrs["superchains"] else {}),
        chains=_chain_table([diagnostics[name] for name in names], names),
        batches=_batch_table({name: diagnostics[name] for name in names}),
        flagged=_flagged_table(folds),
        flagged_units=_flagged_units(diagnostics, names),
        folds=folds,
        fits=_fit_table([diagnostics[name] for name in names], names),
        origin={
            key: {name: _words(item) for name, item in value.items()}
            if isinstance(value, Mapping)
            else _words(value)
            for key, value in provenance.items()
            if key != "config"
        },
        config=config if isinstance(config, str) else yaml.safe_dump(config, sort_keys=False),
    )


def template(name: str) -> Template:
    """A page of `pcv/templates`, in which every name must be given and all text is escaped."""
    environment = Environment(
        loader=PackageLoader("pcv"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(name)


def _models(comparison: xr.Dataset) -> list[str]:
    return [str(name) for name in comparison["model"].to_numpy()]


def inline(figure: Figure, name: str) -> str:
    """The svg element alone, sized by the page, and named for who cannot see it."""
    text = svg(figure, name)
    head, body = text[text.index("<svg") :].split(">", 1)
    head = re.sub(r'\s(width|height)="[^"]*"', "", head)
    return f'{head} role="img" aria-labelledby="caption-{name}">{body}'


def _score_table(
    comparison: xr.Dataset, frame: pd.DataFrame, kind: str, caveats: Sequence[str]
) -> Table:
    rows = frame[frame["kind"] == kind].sort_values("rank")
    comparator = str(comparison.attrs[f"reference_{kind}"])
    single = len(rows) == 1
    predictives = " and ".join(dict.fromkeys(rows["predictive"]))
    count = f"{rows['n_folds'].max()} folds"
    if kind == "pointwise":
        count = f"{units_of(comparison['unit'].values.tolist())} in {count}"
    caption = f"{kind.capitalize()} scores: {count}, {predictives} predictive"
    errors = comparison[["dse", "dse_folds"]].sel(kind=kind).to_dataframe()
    over = [
        f"{model} {_error(over_folds)}"
        for model, over_units, over_folds in zip(
            errors.index, errors["dse"], errors["dse_folds"], strict=True
        )
        if np.isfinite(over_folds) and not np.isclose(over_units, over_folds)
    ]
    notes = (
        [f"SE of the difference over folds instead of units: {', '.join(over)}."] if over else []
    )
    elpd = [
        (plots.number(row["elpd"], row["se"]), _error(row["se"]), _error(row["mcse"]))
        for _, row in rows.iterrows()
    ]
    if single:
        head: Cells = ("model", "elpd", "SE", "MCSE", "verdict")
        differences: list[Cells] = [()]
    else:
        head = ("model", "difference", "SE", "MCSE", f"Pr(beats {comparator})")
        head += ("elpd", "SE of elpd", "MCSE of elpd", "verdict")
        differences = [
            ("0", "–", "–", "–")
            if row["model"] == comparator
            else (
                plots.number(row["elpd_diff"], row["dse"]),
                _error(row["dse"]),
                _error(row["mcse_diff"]),
                plots.percent(row["p_better"]),
            )
            for _, row in rows.iterrows()
        ]
    flagged = [verdict != "ok" for verdict in rows["verdict"]]
    notes += caveats
    notes += [f"{model}: {v}" for model, v in zip(rows["model"], rows["verdict"]) if v != "ok"]
    cells = [
        (model, *difference, *own, "see below" if flag else "ok")
        for model, difference, own, flag in zip(
            rows["model"], differences, elpd, flagged, strict=True
        )
    ]
    return Table(caption, head, cells, flagged, notes)


def _other_scores(rows: pd.DataFrame, single: bool, notes: Sequence[str]) -> Table:
    differences: Cells = () if single else ("difference", "SE", "MCSE", "Pr")
    head: Cells = ("score", "model", *differences, "score of model", "its SE", "its MCSE", "kind")
    cells = [
        (
            row["score"],
            row["model"],
            *(
                ()
                if single
                else ("0", "–", "–", "–")
                if row["score_diff"] == 0 and row["dse"] == 0
                else (
                    plots.number(row["score_diff"], row["dse"]),
                    _error(row["dse"]),
                    _error(row["mcse_diff"]),
                    plots.percent(row["p_better"]),
                )
            ),
            plots.number(row["estimate"], row["se"]),
            _error(row["se"]),
            _error(row["mcse"]),
            row["kind"],
        )
        for _, row in rows.iterrows()
    ]
    caption = "Higher is better: errors and distances are negative"
    if not single:
        comparators = set(rows["model"][(rows["score_diff"] == 0) & (rows["dse"] == 0)])
        named = comparators.pop() if len(comparators) == 1 else "the model whose own is 0"
        caption += f"; differences from {named}"
    return Table(caption, head, cells, [False] * len(cells), notes)


def _chain_table(models: Sequence[xr.Dataset], names: Sequence[str]) -> Table:
    rhat = plots.rhat_name(models[0])
    head: Cells = ("model", "chains × draws", f"{rhat} max", "benchmark share", "min ESS")
    head += ("total ESS", "max k-hat", "divergences", "folds flagged")
    rows = [
        (
            name,
            f"{folds.attrs['num_chains']} × {_range(folds['n_draws'])}",
            _at(folds["rhat"], "max", ".3f"),
            plots.percent(float(folds["benchmark_share"])),
            _at(folds["joint_ess"], "min", ",.0f"),
            f"{float(folds['joint_ess_total']):,.0f}".replace("nan", "–"),
            _at(folds["khat"], "max", ".2f"),
            f"{int(folds['divergences'].sum()):,}",
            f"{int((folds['verdict'] != 'ok').sum())} of {folds.sizes['fold']}",
        )
        for name, folds in zip(names, models, strict=True)
    ]
    flagged = [
        bool((folds["verdict"] != "ok").any() or not folds["benchmark_share"] > BENCHMARK_LEVEL)
        for folds in models
    ]
    note = (
        f"Benchmark share: how many of the shuffled replicates of {rhat} max are at or above the "
        f"observed one; {BENCHMARK_LEVEL:.0%} or less says that the chains have not mixed."
    )
    return Table("Chains of all folds", head, rows, flagged, [note])


def _batch_table(diagnostics: Mapping[str, xr.Dataset]) -> Table | None:
    """Are batches long enough? None where there were too few full-data draws to tell."""
    checked = {name: d for name, d in diagnostics.items() if "batch_check" in d}
    if not checked:
        return None
    sizes = next(iter(checked.values()))["size"].to_numpy()
    rows, flagged = [], []
    for name, folds in checked.items():
        used = int(folds.attrs["batch_size"])
        share = float(folds["batch_check"].sel(size=used))
        short = share < SHORT_BATCHES
        ratios = [f"{x:.2f}".replace("nan", "–") for x in folds["batch_check"].values]
        flagged.append(short)
        rows.append(
            (name, *ratios, f"batches of {used} are " + ("too short" if short else "long enough"))
        )
    note = (
        "MCSE by batches of so many draws, over that by a windowed ESS, at full-data draws: the "
        "median over some folds of the score that is reported. Near 1 batches are long enough; "
        f"below {SHORT_BATCHES:g}, draws stay correlated for longer: set cv.batch_size."
    )
    return Table("Length of batches", ("model", *map(str, sizes), "verdict"), rows, flagged, [note])


def _fit_table(models: Sequence[xr.Dataset], names: Sequence[str]) -> Table:
    head: Cells = ("model", "parameters", "max R-hat", "min ESS", "divergences")
    head += ("min E-FMI", "verdict")
    rows = [
        (
            name,
            str(fit.sizes["param"]),
            _at(fit["fit_rhat"], "max", ".3f"),
            _at(fit["fit_ess"], "min", ",.0f"),
            str(fit.attrs["fit_divergences"]),
            f"{np.min(fit.attrs['fit_efmi']):.2f}",
            str(fit.attrs["fit_verdict"]),
        )
        for name, fit in zip(names, models, strict=True)
    ]
    return Table("Fits to all data", head, rows, [bool(fit.attrs["bad_fit"]) for fit in models])


def _fold_table(name: str, folds: xr.Dataset) -> Table:
    differ = len(np.unique(folds["n_draws"])) > 1
    head: Cells = ("fold", *("draws",) * differ, "joint elpd", "MCSE", "ESS")
    head += (plots.rhat_name(folds), "k-hat", "divergences", "acceptance")
    head += ("pointwise elpd, summed", "its MCSE", "verdict")
    summed = folds["pointwise_elpd"].sum("slot", min_count=1).to_numpy()
    columns = folds[
        ["joint_elpd", "joint_mcse", "joint_ess", "rhat", "khat", "divergences", "acceptance"]
        + ["n_draws", "pointwise_mcse", "verdict"]
    ].to_dataframe()
    rows = [
        (
            str(fold),
            *(f"{row['n_draws']:,}",) * differ,
            plots.number(row["joint_elpd"], row["joint_mcse"]),
            _error(row["joint_mcse"]),
            f"{row['joint_ess']:,.0f}",
            f"{row['rhat']:.3f}",
            f"{row['khat']:.2f}",
            f"{row['divergences']:,.0f}",
            f"{row['acceptance']:.2f}",
            plots.number(pointwise, row["pointwise_mcse"]),
            _error(row["pointwise_mcse"]),
            str(row["verdict"]),
        )
        for (fold, row), pointwise in zip(columns.iterrows(), summed, strict=True)
    ]
    return Table(f"Folds of {name}", head, rows, [row[-1] != "ok" for row in rows])


def _flagged_table(folds: Mapping[str, Table]) -> Table:
    rows = [
        (row[0], f"{name}: {row[-1]}")
        for name, table in folds.items()
        for row, flag in zip(table.rows, table.flagged, strict=True)
        if flag
    ]
    return _to_look_at("fold", rows, "the table of all folds")


def _flagged_units(diagnostics: Mapping[str, xr.Dataset], names: Sequence[str]) -> Table:
    """Units whose chains disagree, where folds hold several."""
    rows = [
        (str(unit), f"{name}: {words}")
        for name in names
        if diagnostics[name].sizes["slot"] > 1
        for unit, words in zip(
            diagnostics[name]["unit_name"].to_numpy().ravel(),
            diagnostics[name]["pointwise_verdict"].to_numpy().ravel(),
            strict=True,
        )
        if words not in ("", "ok")
    ]
    return _to_look_at("unit", rows, "pointwise_verdict in diagnostics.zarr")


def _to_look_at(what: str, rows: Sequence[Cells], elsewhere: str) -> Table:
    notes = [f"And {len(rows) - MAX_ROWS} more: {elsewhere}."] if len(rows) > MAX_ROWS else []
    rows = rows[:MAX_ROWS]
    return Table(
        f"{what.capitalize()}s to look at", (what, "verdict"), rows, [True] * len(rows), notes
    )


def _error(error: float) -> str:
    return plots.number(error, error)


def _range(values: xr.DataArray) -> str:
    low, high = int(values.min()), int(values.max())
    return f"{low}" if low == high else f"{low} to {high}"


def _at(values: xr.DataArray, which: Literal["max", "min"], form: str) -> str:
    """The largest or smallest value and its name; an infinite one counts, a missing one not."""
    known = values.to_series().dropna()
    if known.empty:
        return "–"
    row = int(known.argmax() if which == "max" else known.argmin())
    return f"{known.iloc[row]:{form}} ({known.index[row]})"


def _words(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.1f}"
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_words, value))
    return str(value)
