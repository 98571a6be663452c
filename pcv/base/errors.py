"""Errors meant for the user, in the words of a config or of a call from Python."""

import difflib
import signal
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple, NoReturn


class Language(NamedTuple):
    """How settings are named in messages."""

    python: bool = False
    """as arguments of a call from Python, else as lines of a config"""
    flat: bool = False
    """whether the keys of `folds` are arguments themselves, as those of `pcv.loo` are"""


OF_CONFIGS = Language()
_language: ContextVar[Language] = ContextVar("language", default=OF_CONFIGS)
RENAMED = {"group": "group_by"}
"""keys of `folds` that have another name as arguments"""


@contextmanager
def in_python(flat: bool = False) -> Iterator[None]:
    """Context in which messages name settings as arguments of a call from Python."""
    token = _language.set(Language(True, flat))
    try:
        yield
    finally:
        _language.reset(token)


def is_python() -> bool:
    """Whether messages are for a call from Python."""
    return _language.get().python


def setting(*keys: str, value: str | bool) -> str:
    """A setting with its value.

    >>> setting("cv", "fold_batches", value="auto"), setting("predictive", value="plain")
    ('cv.fold_batches: auto', 'predictive: plain')
    >>> with in_python():
    ...     setting("cv", "fold_batches", value="auto"), setting("predictive", value="plain")
    ("cv={'fold_batches': 'auto'}", "predictive='plain'")
    """
    if not is_python():
        return f"{'.'.join(keys)}: {str(value).lower() if isinstance(value, bool) else value}"
    if len(keys) == 1:
        return f"{keys[0]}={value!r}"
    section, key = keys
    return f"{section}={{{key!r}: {value!r}}}"


def key_path(keys: Sequence[str | int]) -> str:
    """Where a setting is: its section and key, or its argument.

    >>> key_path(("experiments", "rats", "models", 0)), key_path(("folds", "group"))
    ('experiments.rats.models[0]', 'folds.group')
    >>> with in_python(flat=True):
    ...     key_path(("folds", "group"))
    'group_by'
    """
    if _language.get().flat and len(keys) > 1 and keys[0] == "folds":
        keys = (RENAMED.get(str(keys[1]), keys[1]), *keys[2:])
    parts = (f"[{key}]" if isinstance(key, int) else f".{key}" for key in keys)
    return "".join(parts).removeprefix(".")


class PcvError(ValueError):
    """An error for the user, in one line: where, what is wrong, and what to do.

    Attributes:
        what: what is wrong.
        where: keys of the setting that is wrong.
        remedy: what to do.
        code: kind of the error.
    """

    def __init__(
        self, what: str, where: Sequence[str | int] = (), remedy: str = "", code: str = ""
    ) -> None:
        self.what, self.where, self.remedy, self.code = what, tuple(where), remedy, code
        place = f"{key_path(where)}: " if where else ""
        super().__init__(f"{place}{what}{f'; {remedy}' if remedy else ''}")


def in_one_line(error: BaseException) -> str:
    """The type and first line of another library's error.

    >>> in_one_line(KeyError("weight_g"))
    "KeyError: 'weight_g'"
    """
    said = str(error).splitlines()
    return f"{type(error).__name__}{f': {said[0].rstrip(".")}' if said else ''}"


def kind_of(x: Any) -> str:
    """A short description of an argument.

    >>> kind_of("rats.csv"), kind_of(len), kind_of(3.0)
    ("'rats.csv', text", 'a function, len', 'of type float')
    """
    if isinstance(x, str):
        return f"{x!r}, text"
    if callable(x) and hasattr(x, "__name__"):
        return f"a function, {x.__name__}"
    return f"of type {type(x).__name__}"


def nearest(name: str, known: Collection[str], otherwise: str = "") -> str:
    """A hint: the closest known name, or else `otherwise`, by default all known names.

    >>> nearest("loo_ic", ["loo", "waic"]), nearest("aic", ["loo"])
    ("did you mean 'loo'?", 'known: loo')
    """
    near = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {near[0]!r}?" if near else otherwise or f"known: {', '.join(known)}"


class BadFit(PcvError):
    """A full-data fit that cannot be trusted: one line per problem, and one of advice.

    Attributes:
        problems: what is wrong, one line each.
        fit: its draws, in ArviZ's groups.
    """

    def __init__(self, problems: list[str], fit: Any, advice: str = "") -> None:
        advice = advice or allow_bad_fit()
        super().__init__("\n".join([*problems, advice]), code="bad-fit")
        self.problems, self.fit = problems, fit


def no_model(name: str, data: object) -> NoReturn:
    """Stand for the function that makes a model of data, where there are log likelihoods alone.

    Raises:
        PcvError: whatever calls it needs a model.
    """
    raise PcvError(
        f"model '{name}': its log likelihoods are all that is known; predictions, other scores, "
        "evidence and more draws need the model itself"
    )


def allow_bad_fit() -> str:
    """How to continue with a bad fit."""
    in_fit = " (allow_bad_fit=True in pcv.fit)" * is_python()
    return f"{setting('fit', 'allow_bad_fit', value=True)} continues anyway{in_fit}"


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
