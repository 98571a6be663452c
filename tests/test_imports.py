"""Which room uses which, and what is loaded when: `--help` never waits for JAX."""

import ast
import importlib
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import pcv

LIGHT = (
    "pcv",
    "pcv.pipeline.config",
    "pcv.pipeline.graph",
    "pcv.base.reference",
    "pcv.analysis.diagnostics",
    "pcv.analysis.comparison",
    "pcv.analysis.results",
    "pcv.folds.columns",
    "pcv.folds.schemes",
    "pcv.pipeline.storage.store",
    "pcv.report.plots",
    "pcv.report",
    "pcv.pipeline.stages",
    "pcv.pipeline.cli.project",
    "pcv.pipeline.cli.commands",
)
LOADED = "import sys; print('jaxlib' in sys.modules)"
ROOT = Path(__file__).parents[1]


ROOMS = [
    "base",
    "compile",
    "folds",
    "models",
    "analysis",
    "sampling",
    "core",
    "report",
    "pipeline",
    "api",
]


def used(file: Path) -> set[str]:
    """Rooms that a file imports from, wherever in it."""
    names = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module == "pcv":
            names |= {f"pcv.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module or "")
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    return {name.split(".")[1] for name in names if name.startswith("pcv.")}


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_uses_what_stands_before_it(room):
    above = ROOMS[ROOMS.index(room) + 1 :]
    files = [f for f in (ROOT / "pcv" / room).rglob("*.py") if "templates" not in f.parts]
    assert {str(f): used(f) & {*above} for f in files} == {str(f): set() for f in files}


def test_rooms_are_all():
    there = {path.name for path in (ROOT / "pcv").iterdir() if path.name != "__pycache__"}
    assert there == {*ROOMS, "__init__.py", "__main__.py"}


def python(code: str) -> list[str]:
    command = [sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()


def test_light_modules_load_no_jax():
    lines = ["import importlib, sys"]
    for module in LIGHT:
        lines += [f"importlib.import_module('{module}')"]
        lines += [f"print('{module}', 'jaxlib' in sys.modules)"]
    said = python("\n".join(lines))
    assert dict(zip(said[::2], said[1::2])) == dict.fromkeys(LIGHT, "False")


def test_what_a_snakefile_asks_of_a_config_loads_no_pandas(tmp_path):
    """Each run of Snakemake waits for it."""
    lines = [
        "import sys",
        "from pathlib import Path",
        "from pcv.pipeline import config",
        "from pcv.pipeline.storage import recipes",
    ]
    lines += [f"read = config.load(Path({str(ROOT / 'config/config.yaml')!r}))"]
    lines += [f"recipes.recipe_files(Path({str(tmp_path)!r}), read, renew=True)"]
    lines += ["print(*({'xarray', 'pandas', 'numpy'} & {*sys.modules}))"]
    assert python("\n".join(lines)) == []


def test_sampling_loads_jax():
    assert python(f"import pcv.sampling.tiles; {LOADED}") == ["True"]


@pytest.mark.parametrize("command", [["--help"], ["sample", "--help"], ["diagnose", "--help"]])
def test_help_loads_no_jax(command):
    code = "import sys\nfrom pcv.pipeline.cli.commands import main\n"
    code += f"sys.argv[1:] = {command}\ntry: main()\n"
    code += "except SystemExit: pass\n" + LOADED
    *page, loaded = python(code)
    assert "Usage:" in page
    assert loaded == "False"


def test_public_names():
    assert len(set(pcv.__all__)) == len(pcv.__all__)
    for name in pcv.__all__:
        assert getattr(pcv, name) is getattr(importlib.import_module(pcv._PUBLIC[name]), name)
    assert set(dir(pcv)) == set(pcv.__all__)
    with pytest.raises(AttributeError, match="no attribute 'Modle'"):
        pcv.Modle  # noqa: B018


def test_bare_import_loads_nothing_else():
    said = python("import sys, pcv; print(*sorted(m for m in sys.modules if m[:4] == 'pcv.'))")
    assert said == []


@pytest.mark.parametrize("name", ["Model", "Outcome", "Target", "Score"])
def test_help_says_what_each_field_is(name):
    given = getattr(pcv, name)
    assert all(f"\n        {field}: " in given.__doc__ for field in given._fields)


def test_an_editable_install_is_found_beside_a_clone_of_the_same_name(tmp_path):
    """A folder `pcv` beside the script is a namespace package, which hides what an import hook
    finds, and not what a path does."""
    clone, site = tmp_path / "pcv", tmp_path / "site"
    (clone / "pcv").mkdir(parents=True)
    for name in ("pyproject.toml", "README.md", "LICENSE", "pcv/__init__.py"):
        shutil.copy(ROOT / name, clone / name)
    build = "from setuptools.build_meta import build_editable; build_editable('dist')"
    subprocess.run([sys.executable, "-c", build], cwd=clone, check=True, capture_output=True)
    (wheel,) = (clone / "dist").glob("*.whl")
    zipfile.ZipFile(wheel).extractall(site)
    script = tmp_path / "script.py"
    begin = f"import site; site.addsitedir({str(site)!r}); "
    script.write_text(begin + "import pcv; print(pcv.__file__)")
    alone = [sys.executable, "-E", "-S", script]  # without what is installed here
    done = subprocess.run(alone, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(clone / "pcv/__init__.py")
