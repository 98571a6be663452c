"""Experiments, table and figure of the page of cross-validation on a subspace, and their files."""

from collections.abc import Iterable
from pathlib import Path

DIMENSIONS = (2, 5, 10, 20, 30, 40, 49)
"""the last is of all parameters"""
BRUTE_FORCE = "all"
PREDICTIVE = (0.8, 0.9, 0.99)
"""shares of the variance of the log likelihoods"""
EXPERIMENTS = (
    BRUTE_FORCE,
    *(f"d{number}" for number in DIMENSIONS),
    *(f"share{round(100 * share)}" for share in PREDICTIVE),
)


def folder_of(results: Path) -> Path:
    """Folder of the page, its figures and its tables.

    >>> str(folder_of(Path("results")))
    'results/subspace'
    """
    return results / "subspace"


def files(experiments: Iterable[str]) -> list[str]:
    """The figure and the table, apart from the page.

    >>> files(["all", "d5"])
    ['results/subspace/tables/table_1.csv', 'results/subspace/figures/bias.png', \
'results/subspace/figures/bias.svg']
    >>> files(["d5"])
    []
    """
    if BRUTE_FORCE not in experiments:
        return []
    folder = folder_of(Path("results"))
    figures = [folder / "figures" / f"bias.{suffix}" for suffix in ("png", "svg")]
    return [path.as_posix() for path in (folder / "tables/table_1.csv", *figures)]
