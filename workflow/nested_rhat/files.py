"""Files of the page of nested R-hat."""

from pathlib import Path

ILLUSTRATED = "illustrated"
"""the run behind figures 1, 3, 4 and 8; others are named by target"""
TITLES = {
    "rosenbrock": "Rosenbrock",
    "schools": "Eight schools",
    "german_credit": "German credit",
    "pharmacokinetics": "Pharmacokinetics",
    "bimodal": "Bimodal",
    "item_response": "Item response",
}
"""of the targets"""
FIGURES = (1, 3, 4, 5, 6, 7, 8, 9)
"""by the paper's numbers"""


def folder_of(results: Path) -> Path:
    """Folder of the page, its figures, its table and its runs.

    >>> folder_of(Path("results")).as_posix()
    'results/nested_rhat'
    """
    return results / "nested_rhat"


def run_of(results: Path, name: str) -> Path:
    """A run, of a target or for the illustrations."""
    return folder_of(results) / "runs" / f"{name}.zarr"


def figure(number: int) -> str:
    """Name of a figure."""
    return f"figure_{number}"


def files(varied: bool) -> list[str]:
    """The table and figures, apart from the page; figure 7 if some target varies the number of
    superchains.

    >>> files(True)[:2]
    ['results/nested_rhat/tables/table_1.csv', 'results/nested_rhat/figures/figure_1.png']
    >>> len(files(True)) - len(files(False))
    2
    """
    folder = folder_of(Path("results"))
    figures = [
        folder / "figures" / f"{figure(n)}.{suffix}"
        for n in FIGURES
        if varied or n != 7
        for suffix in ("png", "svg")
    ]
    return [path.as_posix() for path in (folder / "tables/table_1.csv", *figures)]
