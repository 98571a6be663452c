"""The one error that a user is meant to read."""

import signal
from pathlib import Path


class PcvError(ValueError):
    """What is wrong, where, and what to do, in one line each."""


def in_one_line(error: BaseException) -> str:
    """Another library's error: its type and the first line of what it says.

    >>> in_one_line(KeyError("weight_g"))
    "KeyError: 'weight_g'"
    """
    said = str(error).splitlines()
    return f"{type(error).__name__}{f': {said[0].rstrip(".")}' if said else ''}"


class BadFit(PcvError):
    """A full-data fit that cannot be trusted: a line for each problem, and one for what to do."""

    def __init__(self, problems: list[str], kept: Path) -> None:
        goes_on = "fit.allow_bad_fit: true (--allow-bad-fit) goes on"
        super().__init__("\n".join([*problems, f"the draws are kept in {kept}; {goes_on}"]))
        self.problems, self.kept = problems, kept


class Stopped(BaseException):
    """SIGTERM or Ctrl-C has come, and a block of draws was finished. No error: what goes on from
    errors does not go on from this."""

    def __init__(self, signum: int, where: str = "", kept: str = "") -> None:
        name = "Ctrl-C" if signum == signal.SIGINT else signal.Signals(signum).name
        super().__init__(
            f"{where}: " * bool(where) + f"stopped by {name}" + f"; {kept}" * bool(kept)
        )
        self.signum = signum

    @property
    def exit_code(self) -> int:
        """Of a process that ends by it, as shells have it."""
        return 128 + self.signum
