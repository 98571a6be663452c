"""`pcv init`: what it writes runs, from any front-end; what it refuses; what a wheel holds."""

import base64
import os
import re
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import jax
import numpy as np
import pandas as pd
import pytest
import yaml

from pcv.base import reference
from pcv.base.monitor import Monitor
from pcv.models.frontends import as_model
from pcv.models.frontends.stan import from_stan
from pcv.pipeline.cli import commands, project
from pcv.pipeline.config import load
from pcv.pipeline.job import Job
from pcv.pipeline.stages import inputs
from pcv.pipeline.storage.artifacts import opened
from tests.project import run_all
from tests.workflow import ROOT, kept, planned, run_module, snakemake

FILES = [
    *(".gitignore", "README.md", "Snakefile", "config.yaml", "data.csv", "models.py"),
    "profiles/default/config.yaml",
]

pytestmark = [
    pytest.mark.filterwarnings("ignore:JAX is running already"),
    pytest.mark.filterwarnings("ignore:For backward compatibility:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::pandas.errors.Pandas4Warning"),
]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def pcv(monkeypatch, capsys, *arguments):
    """Run the command; gives its exit status and what it printed and complained of."""
    monkeypatch.setattr(sys, "argv", ["pcv", *arguments])
    with pytest.raises(SystemExit) as left:
        commands.main()
    printed = capsys.readouterr()
    return left.value.code or 0, printed.out, printed.err


class TestCommand:
    def test_says_what_it_wrote_and_what_is_next(self, monkeypatch, capsys):
        monkeypatch.setenv("PATH", str(Path(sys.executable).parent))
        status, out, err = pcv(monkeypatch, capsys, "init", "my project")
        assert (status, err) == (0, "")
        *written, heading, change, run = out.splitlines()
        assert written == ["Wrote to my project:", *(f"    {name}" for name in FILES)]
        assert [heading, change, run] == [
            "Next:",
            "    cd 'my project'",
            "    snakemake --cores all",
        ]
        there = sorted(str(p.relative_to("my project")) for p in Path().rglob("*") if p.is_file())
        assert there == FILES

    def test_names_a_snakemake_that_is_not_on_the_path(self, monkeypatch):
        monkeypatch.setenv("PATH", "")
        beside = Path(sys.executable).with_name("snakemake")
        Path("new").mkdir()
        assert project.next_commands(Path("new")) == ["cd new", f"{beside} --cores all"]

    def test_takes_the_empty_folder_that_one_is_in(self, monkeypatch, capsys):
        monkeypatch.setenv("PATH", str(Path(sys.executable).parent))
        status, out, _ = pcv(monkeypatch, capsys, "init", ".")
        assert status == 0
        assert out.splitlines()[-2:] == ["Next:", "    snakemake --cores all"]

    @pytest.mark.parametrize("frontend", project.FRONTENDS)
    def test_models_are_written_in_the_front_end(self, frontend):
        project.init(Path("new"), frontend)
        if frontend == "stan":
            assert not Path("new/models.py").exists()
            assert Path("new/common.stan").is_file()
            assert Path("new/varying.stan").is_file()
            assert "models.py" not in Path("new/config.yaml").read_text()
            assert "models.py" not in Path("new/README.md").read_text()
            return
        text = Path("new/models.py").read_text()
        assert f"in {project.FRONTENDS[frontend]}." in text
        assert re.search(rf"^import {frontend}\b", text, re.MULTILINE)


class TestRefusals:
    def refused(self, monkeypatch, capsys, *arguments):
        before = {path: path.is_file() and path.read_text() for path in Path().rglob("*")}
        status, out, err = pcv(monkeypatch, capsys, "init", *arguments)
        assert (status, out, err.count("\n")) == (1, "", 1)
        assert before == {path: path.is_file() and path.read_text() for path in Path().rglob("*")}
        return err.strip()

    def test_folder_that_is_not_empty(self, monkeypatch, capsys):
        Path("mine").mkdir()
        Path("mine/config.yaml").write_text("seed: 3\n")
        assert self.refused(monkeypatch, capsys, "mine") == (
            "error: mine: not empty, and pcv overwrites nothing; choose another name"
        )

    def test_file_of_that_name(self, monkeypatch, capsys):
        Path("mine").write_text("")
        assert self.refused(monkeypatch, capsys, "mine") == (
            "error: mine: a file of this name exists; choose another name"
        )

    def test_parent_that_is_missing(self, monkeypatch, capsys):
        assert self.refused(monkeypatch, capsys, "a/b") == (
            "error: a/b: there is no folder 'a'; create that first"
        )

    def test_parent_that_is_not_writable(self, monkeypatch, capsys):
        def forbidden(*args, **kwargs):
            raise PermissionError(13, "Permission denied")

        monkeypatch.setattr(Path, "mkdir", forbidden)
        assert self.refused(monkeypatch, capsys, "new") == (
            "error: new: cannot be written (Permission denied); choose a place where you may write"
        )

    @pytest.mark.parametrize(
        ("given", "hint"),
        [("PyMC3", "did you mean 'pymc'?"), ("julia", "there are numpyro, pymc, bambi, stan, jax")],
    )
    def test_unknown_front_end(self, monkeypatch, capsys, given, hint):
        assert self.refused(monkeypatch, capsys, "new", "--frontend", given) == (
            f"error: --frontend: no front-end '{given}'; {hint}"
        )

    @pytest.mark.parametrize(("frontend", "name"), [("pymc", "PyMC"), ("bambi", "Bambi")])
    def test_front_end_that_is_not_installed(self, monkeypatch, capsys, frontend, name):
        monkeypatch.setattr(project, "find_spec", lambda package: None)
        assert self.refused(monkeypatch, capsys, "new", "-f", frontend) == (
            f"error: --frontend {frontend}: {name} is not installed here; install it: "
            f"`pip install {frontend}`"
        )


class TestTemplates:
    def test_data_are_simulated(self):
        rng = np.random.default_rng(1)
        dose = np.arange(6) * 0.5
        level, response = rng.normal(5, 1, (20, 1)), rng.normal(0.8, 0.3, (20, 1))
        mean = level + response * dose
        table = pd.read_csv(project.TEMPLATES / "project/data.csv")
        assert list(table) == ["field", "dose", "yield_t"]
        assert table["field"].tolist() == [f"f{i:02d}" for i in range(1, 21) for _ in dose]
        np.testing.assert_array_equal(table["dose"], np.tile(dose, 20))
        np.testing.assert_allclose(
            table["yield_t"], np.ravel(mean + rng.normal(0, 0.3, mean.shape)), atol=0.00501
        )

    def test_readme_names_every_other_file(self):
        text = (project.TEMPLATES / "project/README.md").read_text()
        named = set(re.findall(r"^\| `([^`]+)` \|", text, re.MULTILINE))
        assert named == set(FILES) - {"README.md", ".gitignore"}

    def test_profile_is_that_of_the_clone(self):
        ours = ROOT / "profiles/default/config.yaml"
        profile = project.TEMPLATES / "project/profiles/default/config.yaml"
        assert profile.read_text() == ours.read_text()

    @pytest.mark.parametrize("name", ["common", "varying"])
    def test_front_ends_have_the_same_models(self, name):
        table = pd.read_csv(project.TEMPLATES / "project/data.csv")
        data = {str(column): table[column].to_numpy() for column in table}
        found = {}
        for frontend in ("numpyro", "pymc", "jax"):
            path = project.TEMPLATES / f"models/{frontend}_models.py"
            model = as_model(reference.build(f"{path}:{name}", data, {}))
            if not found:
                params = model.init(jax.random.key(1))
            logs = {f"{x}_log__": value for x, value in params.items() if x.startswith("sigma")}
            given = params | logs if frontend == "pymc" else params
            found[frontend] = model.log_prior(given) + model.log_lik(given, data).sum()
            terms = model.log_lik(given, data)
        program = project.TEMPLATES / f"models/stan/{name}.stan"
        in_stan = from_stan(program, data, "yield_t")
        np.testing.assert_allclose(in_stan.log_lik(params, data), terms, rtol=1e-8)
        np.testing.assert_allclose(found["pymc"], found["numpyro"], rtol=1e-8)
        np.testing.assert_allclose(found["jax"], found["numpyro"], rtol=1e-8)


@pytest.mark.slow
@pytest.mark.parametrize("frontend", project.FRONTENDS)
def test_a_fresh_project_is_clean(frontend, folder):
    """On other processors chance flags a fold in 2% of runs. The models of PyMC, Stan and JAX are
    NumPyro's (`TestTemplates`), so that their folds need not be sampled."""
    project.init(folder, frontend)
    said = []
    monitor = Monitor(emit=said.append)
    job = Job(load(Path("config.yaml")), "yields", Path("results"), monitor=monitor)
    inputs.check(job)
    assert said == [
        "yields: 120 units of 'yield_t'",
        "yields: leave-one-group-out over field: 20 folds, test 6, training 114, no gap",
        "yields: model 'common' is fit to run",
        "yields: model 'varying' is fit to run",
    ]
    if frontend in ("jax", "pymc", "stan"):
        return
    run_all(job)
    diagnosed = [opened(job._replace(model=name), "diagnose") for name in ("common", "varying")]
    assert sum((d["verdict"] != "ok").sum() for d in diagnosed) <= 2
    assert sum("warning" in line for line in said) <= 2


@pytest.fixture
def finished(shelf):
    """A project, with less to compute and other experiments beside its own, that ran to its end."""
    return kept(shelf("module", run_module))


class TestRun:
    def test_ends_with_the_table_and_the_report(self, finished):
        folder, run = finished
        assert run.out.count("Joint log score of yield_t") == 1
        assert "\nReport: results/yields/report.html" in run.out
        assert run.out.strip().splitlines()[-1] == "Report: results/subsample/report.html"
        assert (folder / "results/yields/report.html").stat().st_size > 10_000

    def test_leaves_the_terminal_to_what_the_stages_say(self, finished):
        _, run = finished
        assert re.search(r"(\d+) of \1 steps \(100%\) done", run.err)
        assert "jobid" not in run.err
        assert "JAX is running already" not in run.out + run.err

    def test_then_there_is_nothing_to_do(self, finished):
        folder, _ = finished
        assert planned(snakemake(folder, "--dry-run", snakefile=folder / "Snakefile")) == set()

    def test_what_a_killed_run_was_making_is_made_again(self, finished, folder):
        new = Path(shutil.copytree(finished[0], folder / "new"))
        marker = base64.b64encode(b"results/yields/models/common/diagnostics.zarr").decode()
        (new / ".snakemake/incomplete").mkdir(exist_ok=True)
        (new / ".snakemake/incomplete" / marker).touch()
        again = planned(snakemake(new, "--dry-run", snakefile=new / "Snakefile"))
        assert again == {"cv_diagnose common", "cv_compare", "cv_report", "all"}

    def test_another_config_replaces_the_projects(self, finished, folder):
        new = Path(shutil.copytree(finished[0], folder / "new"))
        config = yaml.safe_load((new / "config.yaml").read_text())
        models = config["experiments"]["yields"]["models"]
        models["renamed"] = models.pop("common")
        (new / "other.yaml").write_text(yaml.safe_dump(config))
        arguments = "--dry-run", "--configfile", "other.yaml"
        again = planned(snakemake(new, *arguments, snakefile=new / "Snakefile"))
        assert "cv_fit renamed" in again
        assert not any(job.endswith(" common") for job in again)


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """An environment of its own that a wheel was installed to, and what the wheel holds."""
    clone, prefix = (tmp_path_factory.mktemp(name) for name in ("clone", "installed"))
    skip = shutil.ignore_patterns("__pycache__")
    for name in ("pcv", "workflow", "envs"):
        shutil.copytree(ROOT / name, clone / name, ignore=skip)
    for name in ("pyproject.toml", "requirements.lock", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, clone)
    build = "from setuptools.build_meta import build_wheel; print(build_wheel('dist'))"
    run = {"cwd": clone, "check": True, "capture_output": True}
    subprocess.run([sys.executable, "-c", build], **run)
    (wheel,) = (clone / "dist").glob("*.whl")
    venv.create(prefix)
    pip = [sys.executable, "-m", "pip", "--python", str(prefix / "bin/python")]
    install = ["install", "--no-deps", "--no-index", "--no-compile", str(wheel)]
    subprocess.run([*pip, *install], **run)
    return prefix, set(zipfile.ZipFile(wheel).namelist())


def packages_in(prefix):
    (package,) = prefix.glob("lib/python*/site-packages/pcv")
    return package.parent


class TestWheel:
    def python(self, packages, *arguments):
        done = subprocess.run(
            [sys.executable, *map(str, arguments)],
            env=os.environ | {"PYTHONPATH": str(packages)},
            capture_output=True,
            text=True,
        )
        return done.returncode, done.stdout.strip(), done.stderr.strip()

    def test_holds_templates_and_workflow(self, installed):
        _, names = installed
        data = {name.split("/share/pcv/")[1] for name in names if "/share/pcv/" in name}
        for folder in ("workflow", "envs", "pcv/pipeline/cli/templates", "pcv/report/templates"):
            files = {p.relative_to(ROOT) for p in (ROOT / folder).rglob("*") if p.is_file()}
            left_out = {
                "__pycache__",
                "paper",
                "loo_subsampling",
                "cumulative",
                "subspace",
                "nested_rhat",
            }  # pages made from a clone
            wanted = {str(path) for path in files if not left_out & {*path.parts}}
            assert wanted <= (names if folder.startswith("pcv/") else data)

    @pytest.mark.slow
    def test_its_project_runs(self, installed):
        prefix, _ = installed
        packages = packages_in(prefix)
        assert self.python(packages, "-m", "pcv", "init", "new")[0] == 0
        find = "import pcv; print(pcv.workflow_path())"
        place = str(prefix / "share/pcv/workflow/Snakefile")
        assert self.python(packages, "-c", find) == (0, place, "")
        status, out, err = self.python(
            packages, "-m", "snakemake", "--directory", "new", "--snakefile", "new/Snakefile",
            "--cores", "1", "--dry-run",
        )  # fmt: skip
        assert status == 0, out + err
        assert re.search(r"^total +13$", out + err, re.MULTILINE)

    def test_without_the_workflow_says_what_to_do(self, installed, folder):
        alone = folder / "alone"
        shutil.copytree(packages_in(installed[0]) / "pcv", alone / "pcv")
        status, _, err = self.python(alone, "-m", "pcv", "init", "new")
        assert (status, err) == (0, "")
        status, out, err = self.python(
            alone, "-m", "snakemake", "--directory", "new", "--snakefile", "new/Snakefile",
            "--cores", "1", "--dry-run",
        )  # fmt: skip
        assert status == 1
        assert f"pcv was installed without its workflow: no workflow/Snakefile beside {alone}" in (
            out + err
        )
