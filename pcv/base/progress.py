"""How far a run of chains has come: a bar on a terminal or in a notebook, plain lines elsewhere."""

import sys
import time
import warnings
from collections.abc import Callable
from typing import NamedTuple

from tqdm import TqdmWarning, tqdm

EVERY = 10.0
"""seconds between lines where there is no terminal"""


class Progress(NamedTuple):
    """Draws made so far by all chains of a job."""

    label: str
    chains: int
    done: int
    """draws per chain"""
    draws: int
    """draws per chain to make"""
    acceptance: float
    """mean acceptance rate of the last block"""
    divergences: int
    """of all chains so far"""


def say(line: str) -> None:
    """A line for the user and the log, at once."""
    print(line, file=sys.stderr, flush=True)


def now_and_then(say: Callable[[str], None]) -> Callable[[str], None]:
    """Of many lines, those that come some seconds after the last one, or after the start."""
    last = time.monotonic()

    def told(line: str) -> None:
        nonlocal last
        if time.monotonic() - last >= EVERY:
            last = time.monotonic()
            say(line)

    return told


def reporter() -> Callable[[Progress], None]:
    """A function that shows progress: by a bar, or where none can be drawn by lines."""
    if "ipykernel" in sys.modules:
        return _bar(_of_notebooks())
    return _bar(tqdm) if sys.stderr.isatty() else _lines()


def _of_notebooks() -> type[tqdm]:
    """The bar of notebooks, or that of terminals where ipywidgets is not installed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TqdmWarning)
        from tqdm.autonotebook import tqdm as bar
    found: type[tqdm] = bar
    return found


def _told(p: Progress) -> str:
    return f"acceptance {p.acceptance:.2f}, {p.divergences} divergences"


def _bar(kind: type[tqdm]) -> Callable[[Progress], None]:
    bars: dict[str, tqdm] = {}

    def show(p: Progress) -> None:
        if p.label not in bars:
            bars[p.label] = kind(desc=f"{p.label}: {p.chains} chains", total=p.draws, unit="draw")
        bar = bars[p.label]
        bar.set_postfix_str(_told(p), refresh=False)
        bar.update(p.done - bar.n)
        if p.done >= p.draws:
            bar.close()

    return show


def _lines() -> Callable[[Progress], None]:
    begun: dict[str, tuple[float, int]] = {}
    shown: dict[str, float] = {}

    def show(p: Progress) -> None:
        now = time.monotonic()
        since, before = begun.setdefault(p.label, (now, p.done))
        if p.done < p.draws and now - shown.setdefault(p.label, now) < EVERY:
            return
        shown[p.label] = now
        line = f"{p.label}: {p.chains} chains, {p.done} of {p.draws} draws, {_told(p)}"
        if before < p.done < p.draws:
            line += f", {(now - since) / (p.done - before) * (p.draws - p.done):.0f} s left"
        say(line)

    return show
