"""The report of an experiment: figures as files, and one self-contained HTML page."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import xarray as xr
import yaml
from jinja2 import (
    ChoiceLoader,
    Environment,
    FileSystemLoader,
    PackageLoader,
    StrictUndefined,
    Template,
)
from markupsafe import Markup

from pcv.analysis.evidence import about, verdict
from pcv.analysis.results import on_predictions
from pcv.report.cumulative import cumulative_table, size_table, ways_table
from pcv.report.drawing import (
    CAPTIONS,
    NESTED_CAPTIONS,
    Picture,
    drawn,
    figures,
    inline,
    missing,
    models_of,
    ranked,
    svg,
)
from pcv.report.prediction_tables import calibration_table, worst_table
from pcv.report.score_tables import other_scores, scheme_table, score_table
from pcv.report.tables import (
    Cells,
    Table,
    batch_table,
    chain_table,
    fit_table,
    flagged_table,
    flagged_units,
    fold_table,
    subsample_table,
)

__all__ = [
    "CAPTIONS",
    "Cells",
    "Picture",
    "Table",
    "cumulative_html",
    "drawn",
    "figures",
    "html",
    "inline",
    "svg",
    "template",
]

QUESTIONS = {
    "joint": "How well is the test set of a fold predicted as a whole? Log density of all its "
    "units together, one term per fold.",
    "pointwise": "How well is each unit predicted on its own? Log density of single units, one "
    "term per unit, as in loo and ArviZ.",
}

OF_GROUPS = {
    "pointwise": "How well is each group of units within a fold's test set predicted as a whole? "
    "Log density of the group's units together, one term per fold and group.",
}
"""questions where `joint_by` asks for groups"""


def html(
    comparison: xr.Dataset,
    diagnostics: Mapping[str, xr.Dataset],
    frame: pd.DataFrame,
    provenance: Mapping[str, Any],
    pictures: Mapping[str, Picture],
    title: str,
    marks: Sequence[str],
    caveats: Mapping[str, Sequence[str]],
    scores: pd.DataFrame | None = None,
    score_notes: Sequence[str] = (),
    of_scheme: tuple[str, pd.DataFrame] | None = None,
    made_of: Mapping[str, Any] | None = None,
    predictions: Mapping[str, xr.Dataset] = {},
) -> str:
    """The report as one self-contained HTML page: no network, scripts or fonts.

    Args:
        comparison: the contents of comparison.zarr.
        diagnostics: the contents of each model's diagnostics.zarr, by model name.
        frame: the rows of comparison.csv.
        provenance: `config` (a mapping or YAML text), and any other entries: strings, numbers,
            lists or mappings of these.
        pictures: `figures`, as `drawn`.
        title: the heading.
        marks: warnings for a banner at the top, such as that a bad fit was allowed.
        caveats: by kind, notes on its numbers besides the verdicts.
        scores: the rows of scores.csv, if there are scores other than the log score.
        score_notes: notes on these.
        of_scheme: the rows of steps.csv or cumulative.csv, with its name, if folds have one.
        made_of: the recipe of the page, stored in its head.
        predictions: of the models that have them, by model name.
    """
    names, best = models_of(comparison), ranked(comparison)
    single = len(names) == 1
    folds = {name: fold_table(name, diagnostics[name]) for name in names}
    return template("report.html.j2").render(
        title=title,
        made_of=json.dumps(made_of),
        marks=marks,
        single=single,
        attrs=comparison.attrs,
        num_models=len(names),
        num_folds=comparison.sizes["fold"],
        scores={
            kind: score_table(comparison, frame, kind, caveats[kind])
            for kind in map(str, comparison["kind"].values)
        },
        questions=QUESTIONS if not comparison.attrs.get("joint_by") else QUESTIONS | OF_GROUPS,
        others=None
        if scores is None
        else other_scores(scores.query("score != 'log'"), single, score_notes),
        of_scheme=of_scheme and scheme_table(*of_scheme, single),
        figures={
            name: Markup(inline(picture.svg, name))
            for name, picture in pictures.items()
            if name not in missing(diagnostics, predictions)
        },
        captions=CAPTIONS | (NESTED_CAPTIONS if comparison.attrs["rhat_is_nested"] else {}),
        calibration=calibration_table({x: predictions[x] for x in best if x in predictions}),
        not_calibrated=on_predictions({name: diagnostics[name] for name in names}),
        worst=[
            worst_table(name, predictions[name], diagnostics[name])
            for name in best[:1]
            if name in predictions
        ],
        chains=chain_table([diagnostics[name] for name in names], names),
        subsample=subsample_table({name: diagnostics[name] for name in names}),
        batches=batch_table({name: diagnostics[name] for name in names}),
        flagged=flagged_table(diagnostics, names),
        flagged_units=flagged_units(diagnostics, names),
        folds=folds,
        fits=fit_table([diagnostics[name] for name in names], names),
        **_origin(provenance),
    )


def cumulative_html(
    paths: Mapping[str, xr.Dataset],
    reference: str,
    provenance: Mapping[str, Any],
    picture: Picture,
    title: str,
    marks: Sequence[str],
    made_of: Mapping[str, Any] | None = None,
) -> str:
    """The report of cumulative cross-validation as one self-contained HTML page.

    Args:
        paths: the contents of each model's evidence.zarr, by model name.
        reference: the model that the others are compared with.
        picture: `plots.cumulative`, as `drawn`.
        provenance, title, marks, made_of: as for `html`.
    """
    return template("cumulative.html.j2").render(
        title=title,
        made_of=json.dumps(made_of),
        marks=marks,
        about=about(paths, reference),
        verdict=verdict(paths, reference),
        scores=cumulative_table(paths, reference),
        ways=ways_table(paths),
        sizes={name: size_table(name, path) for name, path in paths.items()},
        figure=Markup(inline(picture.svg, "cumulative")),
        **_origin(provenance),
    )


def _origin(provenance: Mapping[str, Any]) -> dict[str, Any]:
    config = provenance.get("config", {})
    return {
        "origin": {
            key: {name: _words(item) for name, item in value.items()}
            if isinstance(value, Mapping)
            else _words(value)
            for key, value in provenance.items()
            if key != "config"
        },
        "config": config if isinstance(config, str) else yaml.safe_dump(config, sort_keys=False),
    }


def template(name: str, *folders: Path) -> Template:
    """A template from `templates` or other folders; undefined names are errors, text is escaped."""
    environment = Environment(
        loader=ChoiceLoader([FileSystemLoader(folders), PackageLoader("pcv.report")]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(name)


def _words(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.1f}"
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_words, value))
    return str(value)
