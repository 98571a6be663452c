"""The process: its cores; Ctrl-C and SIGTERM, handled between blocks of draws.

Python would handle Ctrl-C at once, and tearing down the interpreter while XLA's threads run ends in
a segmentation fault. So Ctrl-C waits for the device, and SIGTERM for draws to be saved.
"""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from numbers import Integral
from typing import Any

from pcv.base.errors import PcvError, Stopped

_pending: list[int] = []
"""pending signals; global, as signals belong to the process"""
HINT = b"\nCtrl-C: stopping after this block of draws; press again to stop at once\n"


def all_cores() -> int:
    """The cores available to this process, as allocated by a cluster where the system tells."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def cores_of(cores: Any) -> int:
    """The number of cores that a call from Python asks for."""
    if cores is None:
        return all_cores()
    if isinstance(cores, Integral) and not isinstance(cores, bool) and int(cores) > 0:
        return int(cores)
    raise PcvError(f"cores is {cores!r}; give 1 or more, or leave it out for all")


@contextmanager
def at_once() -> Iterator[None]:
    """Ctrl-C ends the process unless `deferred`. Python's KeyboardInterrupt would be lost inside a
    garbage-collector callback, and JAX has one."""
    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def deferred(signum: signal.Signals) -> Iterator[None]:
    """Defer the signal to the next `look`, or to the end of the context.

    A second Ctrl-C takes effect at once: as KeyboardInterrupt in an interactive session, else the
    system ends the process. Other handlers and threads are left alone.

    Raises:
        Stopped: the signal came after the last `look`.
    """
    before = signal.getsignal(signum)
    in_main = threading.current_thread() is threading.main_thread()
    if not in_main or before not in (signal.SIG_DFL, signal.default_int_handler):
        yield
        return
    signal.signal(signum, _note)
    try:
        yield
        look()
    finally:
        signal.signal(signum, before)
        _pending[:] = [other for other in _pending if other != signum]


def look(where: str = "", kept: str = "") -> None:
    """Stop here if a signal is pending.

    Args:
        where: stage and model, for the message.
        kept: what has been saved, for the message.

    Raises:
        Stopped: a signal is pending.
    """
    if _pending:
        raise Stopped(_pending[0], where, kept)


def _note(signum: int, frame: object) -> None:
    _pending.append(signum)
    if signum == signal.SIGINT:
        in_session = hasattr(sys, "ps1")
        signal.signal(signum, signal.default_int_handler if in_session else signal.SIG_DFL)
        with suppress(OSError):
            os.write(2, HINT)  # `print` is not reentrant
