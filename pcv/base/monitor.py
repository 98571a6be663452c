"""What a computation reports while it runs, and whether it shall stop.

Messages go to the logger "pcv"; `show_messages` prints them where nothing else handles them.
"""

import logging
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

from pcv.base import process
from pcv.base.names import WHOLE
from pcv.base.progress import Progress, throttled

LOGGER = logging.getLogger("pcv")
WARNING = "warning: "
"""first word of messages at the level of warnings"""


def emit(message: str) -> None:
    """Log a message."""
    LOGGER.log(logging.WARNING if message.startswith(WARNING) else logging.INFO, message)


def ignore(message: Any) -> None:
    pass


class Monitor(NamedTuple):
    """Messages and progress of one task."""

    emit: Callable[[str], None] = emit
    """takes a message"""
    show: Callable[[Progress], None] = ignore
    """takes the progress of chains, as `pcv.base.progress.reporter` returns it"""
    task: str = ""
    """stage and model, which precede messages"""
    batch: str = ""
    """of folds, which progress is told apart by; empty where there is one"""

    def of(self, task: str, batch: str = "") -> "Monitor":
        """The monitor of another task."""
        return self._replace(task=task, batch=batch if batch != WHOLE else "")

    def log(self, message: str) -> None:
        self.emit(f"{self.task}: {message}" if self.task else message)

    def warn(self, message: str) -> None:
        self.emit(f"{WARNING}{self.task}: {message}" if self.task else f"{WARNING}{message}")

    def progress(
        self,
        chains: int,
        done: int,
        draws: int,
        acceptance: float,
        divergences: int,
        part: str = "",
    ) -> None:
        """Show how far chains are, after a block of draws; stop here if a signal is pending.

        Args:
            chains: number of chains.
            done: draws per chain so far.
            draws: draws per chain in all.
            acceptance: mean acceptance rate of the block.
            divergences: of the block.
            part: of the task, in words.

        Raises:
            Stopped: a signal is pending.
        """
        label = f"{self.task} {self.batch}".rstrip() + f", {part}" * bool(part)
        self.show(Progress(label, chains, done, draws, acceptance, divergences))
        self.raise_if_stopped()

    def raise_if_stopped(self, kept: str = "") -> None:
        """Stop here if a signal is pending.

        Args:
            kept: what has been saved, for the message.

        Raises:
            Stopped: a signal is pending.
        """
        process.look(self.task, kept)

    def only_warnings(self) -> "Monitor":
        """The monitor without other messages."""

        def emit(message: str) -> None:
            if message.startswith(WARNING):
                self.emit(message)

        return self._replace(emit=emit)

    def throttled(self) -> "Monitor":
        """The monitor without messages within ten seconds of the last one, or of now."""
        return self._replace(emit=throttled(self.emit))


TO_LOG = Monitor()
"""messages go to the logger"""
SILENT = Monitor(emit=ignore)
"""reports nothing"""


class _ToStderr(logging.Handler):
    """Print messages to what is stderr then: tests and notebooks replace it."""

    def emit(self, record: logging.LogRecord) -> None:
        print(self.format(record), file=sys.stderr, flush=True)


def show_messages() -> None:
    """Print messages to stderr, unless the program has set up logging itself."""
    if LOGGER.level == logging.NOTSET:
        LOGGER.setLevel(logging.INFO)
    if not LOGGER.handlers and not logging.root.handlers:
        LOGGER.addHandler(_ToStderr())
