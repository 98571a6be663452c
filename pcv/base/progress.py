"""Progress of chains: a bar on a terminal or in a notebook, plain lines elsewhere."""

import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from tqdm import TqdmWarning, tqdm

EVERY = 10.0
"""seconds between lines"""


class Progress(NamedTuple):
    """Progress of all chains of a job."""

    label: str
    chains: int
    done: int
    """draws per chain so far"""
    draws: int
    """draws per chain in all"""
    acceptance: float
    """mean acceptance rate of the last block"""
    divergences: int
    """of the last block, over all chains"""


def _say(line: str) -> None:
    """Print a line to stderr, unbuffered."""
    print(line, file=sys.stderr, flush=True)


def throttled(emit: Callable[[str], None]) -> Callable[[str], None]:
    """Drop messages within `EVERY` seconds of the last one, or of the start."""
    last = time.monotonic()

    def emit_some(message: str) -> None:
        nonlocal last
        if time.monotonic() - last >= EVERY:
            last = time.monotonic()
            emit(message)

    return emit_some


def reporter() -> Callable[[Progress], None]:
    """A callback that shows progress, with all divergences so far: as a bar where one can be
    drawn, else as lines."""
    if _in_a_notebook():
        show = _bar(_notebook_bar())
    else:
        show = _bar(tqdm) if sys.stderr.isatty() else _lines()
    divergences: Counter[str] = Counter()

    def show_total(p: Progress) -> None:
        divergences[p.label] += p.divergences
        show(p._replace(divergences=divergences[p.label]))

    return show_total


def _in_a_notebook() -> bool:
    # a kernel's own process: one that launches kernels has loaded parts of ipykernel, too
    module = sys.modules.get("ipykernel.kernelapp")
    return module is not None and bool(module.IPKernelApp.initialized())


def _notebook_bar() -> type[tqdm]:
    """The notebook bar, or the terminal one if ipywidgets is not installed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TqdmWarning)
        from tqdm.autonotebook import tqdm as bar
    found: type[tqdm] = bar
    return found


def _statistics(p: Progress) -> str:
    return f"acceptance {p.acceptance:.2f}, {p.divergences} divergences"


def _bar(kind: type[tqdm]) -> Callable[[Progress], None]:
    bars: dict[str, tqdm] = {}

    def show(p: Progress) -> None:
        if p.label not in bars:
            bars[p.label] = kind(desc=f"{p.label}: {p.chains} chains", total=p.draws, unit="draw")
        bar = bars[p.label]
        bar.set_postfix_str(_statistics(p), refresh=False)
        bar.update(p.done - bar.n)
        if p.done >= p.draws:
            bar.close()

    return show


def _lines() -> Callable[[Progress], None]:
    started: dict[str, tuple[float, int]] = {}
    shown: dict[str, float] = {}

    def show(p: Progress) -> None:
        now = time.monotonic()
        since, before = started.setdefault(p.label, (now, p.done))
        if p.done < p.draws and now - shown.setdefault(p.label, now) < EVERY:
            return
        shown[p.label] = now
        line = f"{p.label}: {p.chains} chains, {p.done} of {p.draws} draws, {_statistics(p)}"
        if before < p.done < p.draws:
            line += f", {(now - since) / (p.done - before) * (p.draws - p.done):.0f} s left"
        _say(line)

    return show
