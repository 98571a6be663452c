"""Experiments, tables and the figure of the LOO-SS paper's page, and their files."""

from collections.abc import Iterable
from pathlib import Path

TABLES = {
    3: ("radon", "linear_r90", "linear_r50", "linear_r10"),
    4: ("radon",),
    5: ("sparse_1e5", "sparse_1e6"),
    6: ("radon",),
    7: ("wells",),
    8: ("linear_r10",),
}
"""the paper's tables, by its numbers, and the experiments that they show"""
FIGURE = "radon"
"""the experiment of figure 1"""
EXPERIMENTS = tuple(dict.fromkeys(name for names in TABLES.values() for name in names))
"""experiments that the page looks for"""


def folder_of(results: Path) -> Path:
    """Folder of the page, its figure and its tables.

    >>> str(folder_of(Path("results")))
    'results/loo_subsampling'
    """
    return results / "loo_subsampling"


def files(experiments: Iterable[str]) -> list[str]:
    """The figure and tables of these experiments, apart from the page.

    >>> files(["wells"])
    ['results/loo_subsampling/tables/table_7.csv', 'results/loo_subsampling/tables/table_7.html']
    """
    folder, known = folder_of(Path("results")), set(experiments)
    tables = [
        folder / "tables" / f"table_{n}.{suffix}"
        for n, names in TABLES.items()
        if known & set(names)
        for suffix in ("csv", "html")
    ]
    figures = [folder / "figures" / f"figure_1.{suffix}" for suffix in ("png", "svg")]
    return [path.as_posix() for path in [*tables, *figures * (FIGURE in known)]]
