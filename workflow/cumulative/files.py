"""Experiments, tables and figures of the page of cumulative cross-validation, and their files."""

from collections.abc import Iterable
from pathlib import Path

TABLES = {"table_1": ("poly_01", "poly_1", "poly_1e4"), "table_a71": ("pima_n", "pima_10n")}
FIGURES = {"figure_a61": ("poly_1",), "figure_a71": ("pima_n", "pima_10n")}
"""the experiments that they show"""
EXPERIMENTS = tuple(name for names in TABLES.values() for name in names)


def folder_of(results: Path) -> Path:
    """Folder of the page, its figures and its tables.

    >>> str(folder_of(Path("results")))
    'results/cumulative'
    """
    return results / "cumulative"


def files(experiments: Iterable[str]) -> list[str]:
    """The figures and tables of these experiments, apart from the page.

    >>> files(["pima_n"])[:2]
    ['results/cumulative/tables/table_a71.csv', 'results/cumulative/figures/figure_a71.png']
    """
    folder, known = folder_of(Path("results")), set(experiments)
    tables = [folder / "tables" / f"{n}.csv" for n, of in TABLES.items() if known & set(of)]
    figures = [
        folder / "figures" / f"{n}.{suffix}"
        for n, of in FIGURES.items()
        if known & set(of)
        for suffix in ("png", "svg")
    ]
    return [path.as_posix() for path in [*tables, *figures]]
