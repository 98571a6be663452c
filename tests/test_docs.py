"""Every block of README and documentation runs, or is what its command or config takes.

Blocks that name no file follow one another as a reader would paste them. Pages of code cells
(tutorials) are run by `make docs`; here, what they take from `pcv` is there.
"""

import ast
import importlib.util
import inspect
import re
import shlex
import sys
from pathlib import Path
from typing import NamedTuple

import pandas as pd
import pytest
import typer
import xarray as xr
import yaml
from snakemake.cli import get_argument_parser

import pcv
from pcv.pipeline import config
from pcv.pipeline.cli import commands as cli
from tests.slow import repeated

ROOT = Path(__file__).parents[1]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "GLOSSARY.md")),
    *(ROOT / name / "README.md" for name in ("config", "results", "envs", "benchmarks")),
    *sorted(path for path in (ROOT / "docs").rglob("*.md") if "_build" not in path.parts),
    *sorted((ROOT / "pcv/pipeline/cli/templates").rglob("*.md")),
]
FENCED = re.compile(r"^```(\w+|\{code-cell\})[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
DIRECTIVE = re.compile(r"^```\{.*?^```$", re.MULTILINE | re.DOTALL)
INDENTED = re.compile(r"(?<=\n\n)(?: {4}.*\n(?:\n(?= {4}))?)+")
NAMED = re.compile(r"`([\w.]+\.(csv|py|yaml))`")
TOOLS = {"source", "cd", "python3.12", "pip", "conda", "uv", "sed", "python"}
"""others' commands, which are not looked into"""

pytestmark = [
    pytest.mark.filterwarnings("ignore:JAX is running already"),
    pytest.mark.filterwarnings("ignore:fit .*:UserWarning"),
]


class Block(NamedTuple):
    page: str
    line: int
    language: str
    """of a fence; "" where it is indented"""
    text: str
    file: str
    """that the paragraph before it says it is"""


def blocks() -> list[Block]:
    found = []
    for path in PAGES:
        text = path.read_text()
        prose = FENCED.sub(lambda m: "\n" * m[0].count("\n"), text)
        prose = DIRECTIVE.sub(lambda m: "\n" * m[0].count("\n"), prose)
        for match in [*FENCED.finditer(text), *INDENTED.finditer(prose)]:
            fenced = match.re is FENCED
            source = text if fenced else prose
            before = source[: match.start()].rstrip().rpartition("\n\n")[2]
            named = [file for file, _ in NAMED.findall(before)]
            content = match[2] if fenced else re.sub("^ {4}", "", match[0], flags=re.MULTILINE)
            found.append(
                Block(
                    str(path.relative_to(ROOT)),
                    source[: match.start()].count("\n") + 1,
                    match[1] if fenced else "",
                    content,
                    named[-1] if named and before.endswith(":") else "",
                )
            )
    return found


BLOCKS = blocks()
RECIPES = "CONTRIBUTING.md"  # whose blocks tests/test_recipes.py follows
PYTHON = [
    block
    for block in BLOCKS
    if block.language == "python" and not block.file and block.page != RECIPES
]
CELLS = [block for block in BLOCKS if block.language == "{code-cell}"]
PROJECTS = sorted({block.page for block in BLOCKS if block.file})
YAML = [block for block in BLOCKS if block.language == "yaml" and not block.file]
REST = [block for block in BLOCKS if not block.language and not block.file]


def where(block: Block) -> str:
    return f"{block.page}:{block.line}"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Consolidated metadata")
def test_python_blocks_run_one_after_the_other(folder, monkeypatch, capsys):
    """With six rats, few draws and one run for all blocks; buckets in memory."""
    (folder / "resources").mkdir()
    rats = pd.read_csv(ROOT / "resources/rats.csv").query("rat <= 6")
    rats.to_csv("resources/rats.csv", index=False)
    whole, of_some = pcv.cross_validate, pcv.subsample
    fit = {"warmup": 100, "draws": 100, "allow_bad_fit": True}
    short = {"chains": 2, "warmup": 2, "draws": 4, "fit": fit, "cv": {"adapt": "never"}}
    kept = {"results": folder / "kept", "predictive": "plain", "progress": False}
    monkeypatch.setattr(
        pcv, "cross_validate", lambda *args, **given: whole(*args, **given | short | kept)
    )
    monkeypatch.setattr(
        pcv, "subsample", lambda *args, **given: of_some(*args, **given | short, progress=False)
    )
    there = xr.Dataset({"elpd": ("model", [-1.0])})
    there.to_zarr("memory://bucket/results/rats/comparison.zarr", zarr_format=3, consolidated=True)
    names: dict = {}
    for block in PYTHON:
        code = compile(block.text.replace("s3://", "memory://"), where(block), "exec")
        exec(code, names)
    said = capsys.readouterr().out
    assert "elpd " in said
    assert "SE    MCSE" in said
    assert said.count("Joint log score of weight, plain predictive") == 6
    assert "Joint log score by rat of weight, plain predictive: 6 groups in 5 folds" in said
    assert "Pointwise log score of weight" in said
    assert pcv.load("memory://bucket/rats.zarr").name == "slopes"
    score = names["heavy"]()
    assert isinstance(score, pcv.Score)


@pytest.mark.parametrize("page", sorted({block.page for block in CELLS}))
def test_cells_take_what_pcv_has(page):
    """They need minutes: `make docs` runs them, and shows what fails."""
    cells = "".join(block.text for block in CELLS if block.page == page)
    nodes = list(ast.walk(ast.parse(re.sub("^:.*$", "", cells, flags=re.MULTILINE))))
    taken = [
        node
        for node in nodes
        if isinstance(node, ast.Attribute) and getattr(node.value, "id", "") == "pcv"
    ]
    assert taken
    found = {node: getattr(pcv, node.attr) for node in taken}
    for call in nodes:
        if isinstance(call, ast.Call) and call.func in found:
            named = dict.fromkeys(x.arg for x in call.keywords if x.arg)
            inspect.signature(found[call.func]).bind_partial(*call.args, **named)


@pytest.mark.parametrize("page", repeated(PROJECTS))
def test_files_of_a_page_pass_its_check(folder, monkeypatch, page):
    files = {block.file: block.text for block in BLOCKS if block.page == page and block.file}
    assert len({Path(name).suffix for name in files}) == 3
    for name, text in files.items():
        Path(name).write_text(text)
    monkeypatch.setattr(sys, "argv", ["pcv", "check", "my_config.yaml"])
    with pytest.raises(SystemExit) as left:
        cli.main()
    assert not left.value.code


def in_a_config(section: dict) -> dict:
    """A config whose experiment has a section."""
    experiment = {
        "data": {"file": "a.csv", "outcome": "y"},
        "folds": {"scheme": "leave_one_out"},
        "models": {"a": {"model": "a.py:a"}},
    }
    return {"seed": 1, "experiments": {"a": experiment | section}}


@pytest.mark.parametrize("block", YAML, ids=where)
def test_configs_are_taken(block):
    config.parse(yaml.safe_load(block.text))


def commands(text: str) -> list[list[str]]:
    found: list[list[str]] = []
    for line in text.replace("\\\n", " ").replace("… --", "snakemake --").splitlines():
        words = shlex.split(re.sub(r"^\s*(- )?|;$", "", line), comments=True)
        both = " ".join(map(shlex.quote, words)).split(" '&&' ")
        found += [shlex.split(command) for command in both if command]
    return found


def taken(command: list[str]) -> bool:
    """Whether a command is ours, or make's or Snakemake's, and takes its arguments."""
    program, *words = command
    program = re.sub(r"^(pcv/)?\.venv/bin/", "", program)
    if program == "make":
        makefile = (ROOT / "Makefile").read_text()
        kinds = {word: r" \?=" if "=" in word else ":" for word in words}
        return all(
            re.search(f"^{word.partition('=')[0]}{kind}", makefile, re.MULTILINE)
            for word, kind in kinds.items()
        )
    if program == "snakemake":
        get_argument_parser().parse_args(words)
        return True
    if program == "pcv":
        group = typer.main.get_command(cli.app)
        context = group.make_context("pcv", words[:1], resilient_parsing=True)
        name, sub, _ = group.resolve_command(context, words)
        sub.make_context(name, words[1:], parent=context)
        return True
    return program in TOOLS


@pytest.mark.parametrize("block", REST, ids=where)
def test_indented_blocks_are_commands_or_sections(block):
    if "─▶" in block.text:  # the order of stages
        return
    if re.match(r"\w+: \{", block.text):
        config.parse(in_a_config(yaml.safe_load(block.text)))
        return
    text = block.text.partition("args:\n")[2] or block.text  # of a container
    assert all(taken(command) for command in commands(text))


def test_the_readme_is_told_where_it_is_not_what_is_printed(folder, monkeypatch):
    """CI compares it with what `make run` left."""
    spec = importlib.util.spec_from_file_location("readme", ROOT / "docs/readme.py")
    readme = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(readme)
    told = readme.BLOCK.search(readme.README.read_text())[0]
    rows = readme.rows(told)
    assert len(rows) == 4
    assert readme.wrong(told, told) == []
    *_, elpd, _, mcse = rows["Joint", "common"]
    for errors, problems in ((2, 0), (9, 1)):
        other = told.replace(f"{elpd}", f"{elpd - errors * mcse:.1f}")
        assert len(readme.wrong(told, other)) == problems
    monkeypatch.setattr(readme, "RUN", folder)
    monkeypatch.setattr(sys, "argv", ["readme.py", "--check"])
    (folder / "logs").mkdir()
    for printed, said in (
        (told, ""),
        (told.replace("'slopes' predicts", "'none' predicts"), "none"),
    ):
        Path("logs/compare.log").write_text(printed)
        with pytest.raises(SystemExit) as left:
            readme.main()
        assert said in str(left.value.code)
        assert bool(left.value.code) == bool(said)
