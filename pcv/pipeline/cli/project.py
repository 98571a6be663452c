"""A project of one's own: what `pcv init` writes, and where it finds the workflow. Loads no JAX."""

import difflib
import shlex
import shutil
import sys
from importlib.metadata import distributions
from importlib.util import find_spec
from pathlib import Path

from pcv.base.errors import PcvError

TEMPLATES = Path(__file__).parent / "templates"
FRONTENDS = {"numpyro": "NumPyro", "pymc": "PyMC", "bambi": "Bambi", "jax": "JAX"}
"""what models can be written in: packages, and their names in prose"""
SNAKEFILE = "workflow/Snakefile"


def workflow_path() -> Path:
    """The workflow's Snakefile, for a ``module`` of another one.

    It lies beside the package in a clone, and where a wheel puts its data otherwise.

    >>> workflow_path().name
    'Snakefile'

    Raises:
        PcvError: the package was installed without its workflow.
    """
    package = Path(__file__).parents[2]
    installed = [
        Path(str(file.locate()))
        for distribution in distributions(name="pcv-bayes")
        for file in distribution.files or []
        if file.match(f"share/pcv/{SNAKEFILE}")
    ]
    for path in (package.parent / SNAKEFILE, *installed):
        if path.is_file():
            return path.resolve()
    raise PcvError(
        f"pcv was installed without its workflow: no {SNAKEFILE} beside {package}, nor in "
        "share/pcv; install it from a clone: `pip install --editable <clone>`"
    )


def init(folder: Path, frontend: str) -> list[Path]:
    """Write a project that runs: config, models, data, Snakefile, profile, README.

    Args:
        folder: new, or empty.
        frontend: what the models are written in, one of `FRONTENDS`.

    Returns:
        The files.

    Raises:
        PcvError: no such front-end, or it is not installed; the folder is not empty, or cannot be
            written.
    """
    _check_installed(frontend)
    project = TEMPLATES / "project"
    templates = {
        folder / path.relative_to(project): path for path in project.rglob("*") if path.is_file()
    }
    templates[folder / "models.py"] = TEMPLATES / f"models/{frontend}_models.py"
    try:
        _check_free(folder)
        for path, template in templates.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("xb") as file:
                file.write(template.read_bytes())
    except OSError as error:
        raise PcvError(
            f"{folder}: cannot be written ({error.strerror}); choose a place where you may write"
        ) from error
    return sorted(templates)


def next_commands(folder: Path) -> list[str]:
    """What to type after `init`; `snakemake` with its folder where it would not be found."""
    snakemake = Path(sys.executable).with_name("snakemake")
    found = shutil.which("snakemake")
    if not snakemake.exists() or (found and snakemake.samefile(found)):
        snakemake = Path(snakemake.name)
    change = [] if folder.samefile(Path()) else [f"cd {shlex.quote(str(folder))}"]
    return [*change, f"{shlex.quote(str(snakemake))} --cores all"]


def _check_installed(frontend: str) -> None:
    if frontend not in FRONTENDS:
        near = difflib.get_close_matches(frontend.lower(), FRONTENDS, 1)
        hint = f"did you mean '{near[0]}'?" if near else f"there are {', '.join(FRONTENDS)}"
        raise PcvError(f"--frontend: no front-end '{frontend}'; {hint}")
    if find_spec(frontend) is None:
        raise PcvError(
            f"--frontend {frontend}: {FRONTENDS[frontend]} is not in this environment; add it: "
            f"`pip install {frontend}`"
        )


def _check_free(folder: Path) -> None:
    """Is there a place for the folder, and nothing in it?"""
    if not folder.parent.is_dir():
        raise PcvError(f"{folder}: no folder '{folder.parent}' to make it in; make that first")
    if folder.exists() and not folder.is_dir():
        raise PcvError(f"{folder}: a file of this name is there; choose another name")
    if folder.is_dir() and any(folder.iterdir()):
        raise PcvError(f"{folder}: not empty, and nothing is overwritten; choose another name")
