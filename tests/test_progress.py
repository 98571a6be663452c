"""A bar for a run of chains on a terminal or in a notebook, and what a log gets of it."""

import sys
from io import StringIO
from types import SimpleNamespace

import pytest
from tqdm import tqdm

from pcv.base import progress
from pcv.base.progress import Progress


class Terminal(StringIO):
    def isatty(self):
        return True


def two_blocks(show):
    for done, divergences in ((50, 1), (100, 2)):
        show(Progress("sample a", 16, done, 100, 0.806, divergences))


def test_a_bar_on_a_terminal(monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    two_blocks(progress.reporter())
    last = sys.stderr.getvalue().strip().split("\r")[-1]
    assert last.startswith("sample a: 16 chains: 100%")
    assert "| 100/100 [" in last
    assert last.endswith("acceptance 0.81, 3 divergences]")


@pytest.mark.parametrize("widgets", [True, False])
def test_a_bar_in_a_notebook(monkeypatch, widgets):
    """A widget, or where these are not installed the text of a terminal."""
    made = []

    class Bar(tqdm):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            made.append(self)

    kernel = SimpleNamespace(initialized=lambda: True)
    monkeypatch.setitem(sys.modules, "ipykernel.kernelapp", SimpleNamespace(IPKernelApp=kernel))
    monkeypatch.setattr(sys, "stderr", StringIO())
    if widgets:
        monkeypatch.setitem(sys.modules, "tqdm.autonotebook", SimpleNamespace(tqdm=Bar))
    two_blocks(progress.reporter())
    assert [bar.n for bar in made] == [100] * widgets
    assert "100/100" in sys.stderr.getvalue()


def test_no_bar_where_a_notebook_is_merely_launched(clock, capsys):
    """As nbclient and Sphinx do, whose process loads ipykernel and runs no kernel."""
    ipykernel = pytest.importorskip("ipykernel.kernelapp", reason="of the extra `docs`")
    assert not ipykernel.IPKernelApp.initialized()
    two_blocks(progress.reporter())
    assert capsys.readouterr().err.count("16 chains") == 1


@pytest.fixture
def clock(monkeypatch):
    clock = SimpleNamespace(now=0.0, monotonic=lambda: clock.now)
    monkeypatch.setattr(progress, "time", clock)
    return clock


def test_lines_of_a_log(clock, capsys):
    """At most one every ten seconds, and one at the end; the time left is by the draws since the
    first call, since a run that goes on has not made those before it."""
    show = progress.reporter()
    told = {}
    steps = ((0, 50, 0), (4, 100, 1), (12, 150, 2), (13, 160, 0), (14, 200, 1))
    for now, done, divergences in steps:
        clock.now = float(now)
        show(Progress("sample a 1-of-2", 16, done, 200, 0.806, divergences))
        told[now] = capsys.readouterr().err.splitlines()
    assert told == {
        0: [],
        4: [],
        12: [
            "sample a 1-of-2: 16 chains, 150 of 200 draws, acceptance 0.81, 3 divergences, 6 s left"
        ],
        13: [],
        14: ["sample a 1-of-2: 16 chains, 200 of 200 draws, acceptance 0.81, 4 divergences"],
    }


def test_batches_have_times_of_their_own(clock, capsys):
    show = progress.reporter()
    show(Progress("sample a 1-of-2", 16, 10, 200, 0.8, 0))
    clock.now = 20.0
    show(Progress("sample a 2-of-2", 16, 10, 200, 0.8, 0))
    show(Progress("sample a 1-of-2", 16, 20, 200, 0.8, 0))
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("sample a 1-of-2: 16 chains, 20 of 200 draws")
    assert line.endswith(", 360 s left")
