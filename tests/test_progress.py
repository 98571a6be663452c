"""What a log gets of a run of chains, where there is no terminal to draw a bar on."""

import sys
from types import SimpleNamespace

import pytest

from pcv import progress
from pcv.progress import Progress


@pytest.fixture
def clock(monkeypatch):
    monkeypatch.delitem(sys.modules, "ipykernel", raising=False)
    clock = SimpleNamespace(now=0.0, monotonic=lambda: clock.now)
    monkeypatch.setattr(progress, "time", clock)
    return clock


def test_lines_of_a_log(clock, capsys):
    """At most one every ten seconds, and one at the end; the time left is by the draws since the
    first call, since a run that goes on has not made those before it."""
    show = progress.reporter()
    told = {}
    steps = ((0, 50, 0), (4, 100, 0), (12, 150, 3), (13, 160, 3), (14, 200, 4))
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
