"""A new scheme, score and stage, added to a copy as CONTRIBUTING.md says."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import xarray as xr

from tests.workflow import CONFIG, ROOT, changed, make_project, snakemake, write_config

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
    said = ""
    for made in ("report.html", "worst.zarr"):
        arguments = f"results/tiny/{made}", "--configfile", "tiny.yaml"
        run = snakemake(project, *arguments, snakefile=root / "Snakefile")
        assert run.status == 0, run.err + run.out
        said += run.out + run.err
    assert "every unit in 3: 3 folds, test 4, training 8, no gap" in said
    results = project / "results/tiny"
    diagnosed = xr.open_dataset(results / "models/a/diagnostics.zarr")
    assert (diagnosed["spherical_pointwise"] < 1).all()
    lowest = diagnosed["joint_elpd"].idxmin("fold").item()
    assert xr.open_dataset(results / "worst.zarr")["worst"].values.tolist() == [lowest]
    status = subprocess.run(
        [sys.executable, "-m", "pcv", "status", "tiny.yaml"],
        cwd=project,
        capture_output=True,
        text=True,
    ).stdout
    assert re.search(r"^worst .* done$", status, re.MULTILINE)
