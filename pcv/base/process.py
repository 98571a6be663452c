"""The process: cores that it may use; Ctrl-C and SIGTERM, answered between blocks of draws.

Python answers Ctrl-C at once, while XLA's threads work on; an interpreter that is torn down under
them ends in a segmentation fault. So it waits for the device, and SIGTERM for draws to be kept.
"""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from pcv.base.errors import Stopped

_come: list[int] = []
"""signals that wait for an answer: a process has them, not a function"""
HINT = b"\nCtrl-C: ends after the block of draws that is being made; again: at once\n"


def all_cores() -> int:
    """Those that this process may use, where the system tells (a job's allocation on a cluster)."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@contextmanager
def at_once() -> Iterator[None]:
    """Ctrl-C ends the process where it is not `deferred`: Python's KeyboardInterrupt is lost where
    it comes in a callback of the garbage collector, and JAX has one."""
    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def deferred(signum: signal.Signals) -> Iterator[None]:
    """The signal ends nothing by itself meanwhile, but by `look`, or in the end.

    A second Ctrl-C is answered at once: in a session by KeyboardInterrupt, else by the end of the
    process, which Python has no part in. Handlers of others, and other threads, are left alone.

    Raises:
        Stopped: it has come, and nobody has looked.
    """
    before = signal.getsignal(signum)
    of_main = threading.current_thread() is threading.main_thread()
    if not of_main or before not in (signal.SIG_DFL, signal.default_int_handler):
        yield
        return
    signal.signal(signum, _note)
    try:
        yield
        look()
    finally:
        signal.signal(signum, before)
        _come[:] = [other for other in _come if other != signum]


def look(where: str = "", kept: str = "") -> None:
    """End here, if a signal has come that asks for it.

    Args:
        where: stage and model.
        kept: what of it is not lost.

    Raises:
        Stopped: one has come.
    """
    if _come:
        raise Stopped(_come[0], where, kept)


def _note(signum: int, frame: object) -> None:
    _come.append(signum)
    if signum == signal.SIGINT:
        in_session = hasattr(sys, "ps1")
        signal.signal(signum, signal.default_int_handler if in_session else signal.SIG_DFL)
        with suppress(OSError):
            os.write(2, HINT)  # `print` must not be called again inside of itself
