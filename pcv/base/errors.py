"""Errors meant for the user."""

import difflib
import signal
from collections.abc import Collection
from pathlib import Path


class PcvError(ValueError):
    """An error for the user, in one line: what is wrong, where, and what to do."""


def in_one_line(error: BaseException) -> str:
    """The type and first line of another library's error.

    >>> in_one_line(KeyError("weight_g"))
    "KeyError: 'weight_g'"
    """
    said = str(error).splitlines()
    return f"{type(error).__name__}{f': {said[0].rstrip(".")}' if said else ''}"


def nearest(name: str, known: Collection[str], otherwise: str = "") -> str:
    """A hint: the closest known name, or else `otherwise`, by default all known names.

    >>> nearest("loo_ic", ["loo", "waic"]), nearest("aic", ["loo"])
    ("did you mean 'loo'?", 'known: loo')
    """
    near = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {near[0]!r}?" if near else otherwise or f"known: {', '.join(known)}"


class BadFit(PcvError):
    """A full-data fit that cannot be trusted: one line per problem, and one of advice."""

    def __init__(self, problems: list[str], kept: Path) -> None:
        advice = "to continue anyway, set fit.allow_bad_fit: true (--allow-bad-fit)"
        super().__init__("\n".join([*problems, f"the draws are saved in {kept}; {advice}"]))
        self.problems, self.kept = problems, kept


class Stopped(BaseException):
    """SIGTERM or Ctrl-C stopped the run after a block of draws. Not an `Exception`, so that error
    handlers let it pass."""

    def __init__(self, signum: int, where: str = "", kept: str = "") -> None:
        name = "Ctrl-C" if signum == signal.SIGINT else signal.Signals(signum).name
        super().__init__(
            f"{where}: " * bool(where) + f"stopped by {name}" + f"; {kept}" * bool(kept)
        )
        self.signum = signum

    @property
    def exit_code(self) -> int:
        """Exit status of the process, by the convention of shells."""
        return 128 + self.signum
