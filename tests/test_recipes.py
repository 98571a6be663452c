"""A new scheme, score and stage, added to a copy as CONTRIBUTING.md says."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import xarray as xr

from tests.workflow import (
    CONFIG,
    ROOT,
    Run,
    changed,
    command,
    make_project,
    planned,
    write_config,
)

MODEL_A = CONFIG["experiments"]["tiny"]["models"]["a"]
BLOCK = re.compile(
    r"```python\n# (\S+?)(?:, (in|before|at the end) ?([^\n]*))?\n(.*?)```", re.DOTALL
)


def follow(root: Path) -> list[str]:
    """Put every block where it says; the files that it names."""
    named = []
    for name, where, of, code in BLOCK.findall((ROOT / "CONTRIBUTING.md").read_text()):
        named.append(name)
        file = root / name
        if not where:
            assert not file.exists()
            file.write_text(code)
            continue
        text = file.read_text()
        if where == "at the end":
            file.write_text(f"{text}\n\n{code}")
            continue
        (found,) = re.finditer(rf"^{of}\b.*\n", text, re.MULTILINE)
        at = (
            found.start()
            if where == "before"
            else text.index("\n" + closing(found[0]), found.end())
        )
        at += where == "in"
        file.write_text(f"{text[:at]}{code}{text[at:]}")
    return named


def closing(opened: str) -> str:
    return {"{": "}", "(": ")", "[": "]"}[opened.strip()[-1]]


EVERY_STAGE = """
from pathlib import Path
from pcv.base.monitor import Monitor
from pcv.pipeline import stages
from pcv.pipeline.config import load
from pcv.pipeline.job import Job
from tests.project import run_all

job = Job(load(Path("tiny.yaml")), "tiny", Path("results"), monitor=Monitor(emit=print))
run_all(job)
stages.compare(job)
stages.report(job)
"""


@pytest.mark.slow
def test_a_new_scheme_score_and_stage(tmp_path, monkeypatch):
    root = tmp_path / "copy"
    for folder in ("pcv", "workflow", "envs"):
        shutil.copytree(ROOT / folder, root / folder, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "Snakefile", root)
    assert len(follow(root)) == 9
    monkeypatch.setenv("PYTHONPATH", str(root))
    (tmp_path / "project").mkdir()
    project = make_project(tmp_path / "project")
    (project / "data.csv").write_text("y\n" + "0\n1\n" * 6)
    config = changed(
        folds={"scheme": "every_kth", "k": 3},
        models={"a": MODEL_A},
        scores=["spherical"],
        cv__fold_batches=1,
    )
    write_config(project, config)

    def python(*arguments):
        done = subprocess.run(
            [sys.executable, *arguments], cwd=project, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def left_to_do(target):
        arguments = f"results/tiny/{target}", "--dry-run", "--configfile", "tiny.yaml"
        run = subprocess.run(
            command(*arguments, snakefile=root / "Snakefile"),
            cwd=project, capture_output=True, text=True,
        )  # fmt: skip
        return planned(Run(run.returncode, run.stdout, run.stderr))

    said = python("-c", EVERY_STAGE)
    assert "every unit in 3: 3 folds, test 4, training 8, no gap" in said
    assert left_to_do("worst.zarr") == {"worst"}
    python("-m", "pcv", "worst", "tiny.yaml")
    assert left_to_do("worst.zarr") == left_to_do("report.html") == set()
    results = project / "results/tiny"
    diagnosed = xr.open_dataset(results / "models/a/diagnostics.zarr")
    assert (diagnosed["spherical_pointwise"] < 1).all()
    lowest = diagnosed["joint_elpd"].idxmin("fold").item()
    assert xr.open_dataset(results / "worst.zarr")["worst"].values.tolist() == [lowest]
    status = python("-m", "pcv", "status", "tiny.yaml")
    assert re.search(r"^worst .* done$", status, re.MULTILINE)
