"""Experiments, figures and tables of the paper's page, and their files."""

from collections.abc import Iterable
from pathlib import Path

EXPERIMENTS = (
    "example1",
    "example1_authors",
    "example2",
    "example2_plain",
    "example2_authors",
    "example3",
    "example3_authors",
    "example3_cleaned",
    "example4",
    "example4_blocks",
)
"""experiments that the paper's page looks for"""

FIGURES = {
    "example1": (1, 2, 3, 4, 5),
    "example2": (6, 9, 10),
    "example3": (7, 11, 12),
    "example4": (8, 13, 14, 15, 16),
}
TABLES = {"example2": 2, "example3": 3, "example4": 4}
"""numbers of the paper's tables; `FIGURES` has those of its figures"""


def folder_of(results: Path) -> Path:
    """Folder of the paper's page, figures and tables.

    >>> str(folder_of(Path("results")))
    'results/paper'
    """
    return results / "paper"


def figure(number: int) -> str:
    """File name, without suffix, of one of the paper's figures.

    >>> figure(6)
    'figure_06'
    """
    return f"figure_{number:02}"


def files(experiments: Iterable[str]) -> list[str]:
    """Figures, tables and numbers of the paper from these experiments, apart from its page.

    >>> files(["example2"])[1], len(files(["example2"]))
    ('results/paper/figures/figure_06.png', 9)
    """
    folder = folder_of(Path("results"))
    known = list(experiments)
    figures = [
        folder / "figures" / f"{figure(n)}.{suffix}"
        for name in known
        for n in FIGURES.get(name, ())
        for suffix in ("png", "svg")
    ]
    tables = [
        folder / "tables" / f"table_{TABLES[name]}.{suffix}"
        for name in known
        if name in TABLES
        for suffix in ("csv", "html")
    ]
    return [path.as_posix() for path in [folder / "numbers.json", *figures, *tables]]
