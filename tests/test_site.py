"""The documentation site: what becomes of it where a page that is run fails."""

import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

DOCS = Path(__file__).parents[1] / "docs"
sys.path.append(str(DOCS / "_ext"))

nbformat = pytest.importorskip("nbformat", reason="of the extra `docs`")
pytest.importorskip("myst_nb", reason="of the extra `docs`")

import execution  # noqa: E402

PAGE = """---
file_format: mystnb
kernelspec:
  name: python3
  language: python
---

# {title}

```{{code-cell}} ipython3
from pathlib import Path

Path("runs-{title}").open("a").write("x")
print("so " + "far")
```

```{{code-cell}} ipython3
{cell}
```
"""
INDEX = "# Site\n\n```{toctree}\ngood\nbad\n```\n"


def build(source: Path) -> tuple[int, str, dict[str, str]]:
    """Exit status, what was said, and the pages; as `make docs` does."""
    command = [sys.executable, "-m", "sphinx", "--fail-on-warning", "--keep-going", "-c", str(DOCS)]
    kept = f"nb_execution_cache_path={source.parent / 'outputs'}"
    out = source.parent / "html"
    done = subprocess.run(
        [*command, "-D", kept, str(source), str(out)], capture_output=True, text=True
    )
    pages = {path.stem: path.read_text() for path in out.glob("*.html")}
    return done.returncode, done.stderr, pages


@pytest.mark.slow
def test_a_page_that_fails_is_told_and_shown_and_run_again(tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    (source / "index.md").write_text(INDEX)
    (source / "good.md").write_text(PAGE.format(title="good", cell="print('so ' + 'good')"))
    (source / "bad.md").write_text(PAGE.format(title="bad", cell="raise ValueError('so ' + 'bad')"))
    for times in ("x", "xx", "xxx"):
        if times == "xxx":  # what is kept needs no earlier site
            shutil.rmtree(tmp_path / "html")
        status, said, pages = build(source)
        assert status == 1
        assert "bad.md: WARNING: Executing notebook failed" in said
        assert "ValueError: so bad" in said
        assert "so good" in pages["good"]
        assert "so far" in pages["bad"]
        assert "so bad" in pages["bad"]
        assert (source / "runs-good").read_text() == "x"
        assert (source / "runs-bad").read_text() == times


def test_a_page_has_a_limit_as_a_whole(tmp_path):
    notebook = nbformat.v4.new_notebook(
        cells=[
            nbformat.v4.new_code_cell(f"import time; time.sleep({nap}); {i}")
            for i, nap in enumerate((0, 30, 0))
        ]
    )
    done = execution.run(notebook, str(tmp_path), timeout=10)
    assert type(done.err).__name__ == "CellTimeoutError"
    assert "longer than 10 s" in done.exc_string
    assert done.exc_string.endswith("time.sleep(30); 1")
    first, second, third = (cell.outputs for cell in notebook.cells)
    assert first[0].data == {"text/plain": "0"}
    assert "longer than 10 s" in second[-1].traceback[0]
    assert not third


def test_outputs_are_those_of_the_present_code_and_data(tmp_path, monkeypatch):
    monkeypatch.setattr(execution, "ROOT", tmp_path)
    files = [tmp_path / name for name in ("pcv/a.py", "resources/rats.csv", "requirements.lock")]
    for path in files:
        path.parent.mkdir(exist_ok=True)
        path.write_text("1")
    states = [execution.state()]
    for path in files:
        path.write_text("2")
        states.append(execution.state())
    assert len(set(states)) == 4
    outputs = tmp_path / "outputs"
    for state in (*states, "of_others"):
        (outputs / state).mkdir(parents=True)
    elsewhere = outputs / "of_others"  # -D nb_execution_cache_path
    for mode, path, left in [
        ("off", outputs / states[-1], 5),
        ("cache", elsewhere, 5),
        ("cache", outputs / states[-1], 1),
    ]:
        set_to = SimpleNamespace(nb_execution_cache_path=str(path), nb_execution_mode=mode)
        execution.of_now(None, set_to)
        assert len(list(outputs.iterdir())) == left
    assert (outputs / states[-1]).is_dir()
