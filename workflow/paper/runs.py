"""The runs that a page shows, and what it says of those that are not there."""

import re
from collections.abc import Callable, Iterable, Mapping

from markupsafe import Markup, escape

from pcv.base.errors import PcvError
from pcv.base.monitor import Monitor
from pcv.pipeline.config import Config

Missing = list[tuple[list[str], Markup]]
"""names, and why"""


class Absent(Exception):
    """Why a run cannot be shown, where running it again is not all that there is to say."""


def runs_of[T](
    names: Iterable[str], read: Callable[[str], T], monitor: Monitor, command: str
) -> tuple[dict[str, T], Missing]:
    """Those that were run, and those that were not, which are also reported.

    Args:
        names: of what the page shows.
        read: the results of a name; raises `Absent`, or a `PcvError` where it was not run.
        monitor: of the page; takes what is missing.
        command: runs what is missing.
    """
    runs: dict[str, T] = {}
    missing = {}
    for name in names:
        try:
            runs[name] = read(name)
        except Absent as why:
            missing[name] = str(why)
        except (PcvError, FileNotFoundError):
            missing[name] = f"`{command}` runs it."
    together = by_reason(missing)
    for some, reason in together:
        monitor.warn(f"missing {', '.join(some)}: {reason}")
    return runs, [(some, coded(reason)) for some, reason in together]


def demand(config: Config, name: str) -> None:
    """Raises `Absent` where the config has no such experiment."""
    if name not in config.experiments:
        raise Absent("the config has no such experiment")


def by_reason(missing: Mapping[str, str]) -> list[tuple[list[str], str]]:
    """Experiments that were not run, grouped by reason.

    >>> by_reason({"a": "no data", "b": "no such experiment", "c": "no data"})
    [(['a', 'c'], 'no data'), (['b'], 'no such experiment')]
    """
    names: dict[str, list[str]] = {}
    for name, why in missing.items():
        names.setdefault(why, []).append(name)
    return [(together, why) for why, together in names.items()]


def coded(words: str) -> Markup:
    """Text with its commands as code.

    >>> coded("give `pcv data <config>` first")
    Markup('give <code>pcv data &lt;config&gt;</code> first')
    """
    return Markup(re.sub(r"`(.+?)`", r"<code>\1</code>", escape(words)))
