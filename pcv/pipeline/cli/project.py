"""New projects: what `pcv init` writes, and where they find the workflow. Loads no JAX."""

import shlex
import shutil
import sys
from importlib.metadata import distributions
from importlib.util import find_spec
from pathlib import Path

from pcv.base.errors import PcvError, nearest

TEMPLATES = Path(__file__).parent / "templates"
FRONTENDS = {
    "numpyro": "NumPyro",
    "pymc": "PyMC",
    "bambi": "Bambi",
    "stan": "Stan",
    "jax": "JAX",
}
"""languages in which models can be written, and their names in prose"""
PACKAGES = {"stan": "stanli"}
"""what runs a language, where it is no package of its name"""
IN_STAN = {
    '"models.py:common"': '"common.stan"',
    '"models.py:varying"': '"varying.stan"',
    "| `models.py` | two models of the yields; the functions that `config.yaml` names |": (
        "| `common.stan`, `varying.stan` | two models of the yields, which `config.yaml` names |"
    ),
    "write your models in `models.py`": "write your models in Stan",
}
"""what a project in Stan says in place of the others' text"""
SNAKEFILE = "workflow/Snakefile"


def workflow_path() -> Path:
    """The path of the workflow's Snakefile, to import as a ``module`` of another one.

    It is beside the package in a clone, otherwise among the data of the wheel.

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
    """Write a working project: config, models, data, Snakefile, profile, README.

    Args:
        folder: new, or empty.
        frontend: of the models, one of `FRONTENDS`.

    Returns:
        The files written.

    Raises:
        PcvError: the front-end is unknown or not installed; the folder is not empty, or not
            writable.
    """
    _check_installed(frontend)
    project = TEMPLATES / "project"
    templates = {
        folder / path.relative_to(project): path for path in project.rglob("*") if path.is_file()
    }
    if frontend == "stan":
        for path in (TEMPLATES / "models/stan").iterdir():
            templates[folder / path.name] = path
    else:
        templates[folder / "models.py"] = TEMPLATES / f"models/{frontend}_models.py"
    try:
        _check_free(folder)
        for path, template in templates.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            text = template.read_text(encoding="utf-8")
            for other, own in (IN_STAN if frontend == "stan" else {}).items():
                text = text.replace(other, own)
            with path.open("x", encoding="utf-8", newline="") as file:
                file.write(text)
    except OSError as error:
        raise PcvError(
            f"{folder}: cannot be written ({error.strerror}); choose a place where you may write"
        ) from error
    return sorted(templates)


def next_commands(folder: Path) -> list[str]:
    """The commands to type after `init`; `snakemake` with its path if it is not on PATH."""
    snakemake = Path(sys.executable).with_name("snakemake")
    found = shutil.which("snakemake")
    if not snakemake.exists() or (found and snakemake.samefile(found)):
        snakemake = Path(snakemake.name)
    change = [] if folder.samefile(Path()) else [f"cd {shlex.quote(str(folder))}"]
    return [*change, f"{shlex.quote(str(snakemake))} --cores all"]


def _check_installed(frontend: str) -> None:
    if frontend not in FRONTENDS:
        hint = nearest(frontend.lower(), FRONTENDS, f"there are {', '.join(FRONTENDS)}")
        raise PcvError(f"--frontend: no front-end '{frontend}'; {hint}")
    package = PACKAGES.get(frontend, frontend)
    if find_spec(package) is None:
        what = "pcv-bayes[stan]" if frontend == "stan" else package
        raise PcvError(
            f"--frontend {frontend}: {FRONTENDS[frontend]} is not installed here; install it: "
            f"`pip install {what}`"
        )


def _check_free(folder: Path) -> None:
    if not folder.parent.is_dir():
        raise PcvError(f"{folder}: there is no folder '{folder.parent}'; create that first")
    if folder.exists() and not folder.is_dir():
        raise PcvError(f"{folder}: a file of this name exists; choose another name")
    if folder.is_dir() and any(folder.iterdir()):
        raise PcvError(f"{folder}: not empty, and pcv overwrites nothing; choose another name")
