"""The page of the paper's examples: tables and figures in, HTML out."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from markupsafe import Markup

from paper import files
from paper.figures import FIGURES, Example
from paper.parts import PARTS
from paper.published import RUN_TIMES
from paper.runs import by_reason, coded
from paper.tables import difference_table, mean_table, refusal
from pcv.report import Picture, Table, inline, template

TEMPLATES = Path(__file__).parent / "templates"


def html(
    examples: Mapping[str, Example],
    missing: Mapping[str, str],
    pictures: Mapping[str, Picture],
    tables: Mapping[int, Table],
    mixing: Mapping[str, Table],
    about: Sequence[str],
) -> str:
    """The page: for each example the paper's numbers beside ours, figures and table.

    Args:
        examples: the experiments that were run, by name.
        missing: experiments that were not run, and why.
        pictures: figures, by name.
        tables: 2 to 4, by the paper's numbers.
        mixing: tables by example.
        about: sentences on where and how it was run.
    """
    parts = [
        {
            "part": part,
            "models": list(examples[part.experiment].draws) if part.experiment in examples else [],
            "differences": difference_table(part, examples),
            "means": mean_table(part, examples),
            "mixing": mixing.get(part.experiment),
            "refusal": refusal(examples["example4"])
            if part.experiment == "example4" and "example4" in examples
            else "",
            "runs": [name for name in part.variants if name in examples],
            "missing": [
                (names, coded(why))
                for names, why in by_reason({n: missing[n] for n in part.variants if n in missing})
            ],
            "numbers": [n for n, drawn in FIGURES.items() if drawn.experiment == part.experiment],
            "table": next(
                (
                    tables[n]
                    for n, table in RUN_TIMES.items()
                    if table.experiment == part.experiment and n in tables
                ),
                None,
            ),
        }
        for part in PARTS
    ]
    marks = {name: list(example.marks) for name, example in examples.items() if example.marks}
    return template("page.html.j2", TEMPLATES).render(
        parts=parts,
        figures={
            n: Markup(inline(pictures[name].svg, name))
            for n in FIGURES
            if (name := files.figure(n)) in pictures
        },
        drawn=FIGURES,
        about=about,
        marks=marks,
    )


def table_html(table: Table) -> str:
    """A table as a page of its own."""
    return template("table_page.html.j2", TEMPLATES).render(table=table)
