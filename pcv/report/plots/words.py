"""Names as printed in figures and tables."""

import re
from collections.abc import Iterable
from itertools import takewhile

import xarray as xr


def shorten(names: Iterable[str], width: int = 18) -> list[str]:
    """Names truncated in the middle to at most `width` characters, kept distinct.

    If truncated names would coincide, their common prefix and suffix are removed first; if that
    does not help, names are numbered.

    >>> shorten(["slopes", "varying_intercepts_and_slopes"])
    ['slopes', 'varying_i…d_slopes']
    >>> shorten(["random_slopes_wide_centred", "random_slopes_narrow_centred"])
    ['…wide…', '…narrow…']
    """
    names = [str(name) for name in names]

    def cut(name: str) -> str:
        half = width // 2
        return name if len(name) <= width else f"{name[:half]}…{name[half + 1 - width :]}"

    def shared(texts: list[str]) -> int:
        return len(list(takewhile(lambda letters: len(set(letters)) == 1, zip(*texts))))

    short = [cut(name) for name in names]
    if len(set(short)) < len(names):
        head = shared(names)
        tail = shared([name[head:][::-1] for name in names])
        short = [cut(f"…{name[head : len(name) - tail]}…") for name in names]
    if len(set(short)) < len(names):
        short = [f"{i}: {cut(name)}" for i, name in enumerate(names, 1)]
    return short


def span(name: str) -> str:
    """A name of the form "first to last", without repeating words and dates both begin with.

    >>> span("day 2024-01-08 to day 2024-01-10"), span("t -1.5 to t -1.25"), span("room to let")
    ('day 2024-01-08 to 10', 't -1.5 to -1.25', 'room to let')
    """
    first, to, last = name.partition(" to ")
    same = len(list(takewhile(lambda letters: len(set(letters)) == 1, zip(first, last))))
    said = re.match(r".*(\s|\b\d{4}-(\d\d-)?)", last[:same])
    return f"{first}{to}{last[said.end() :] if said else last}"


def kind_name(comparison: xr.Dataset, kind: str, noun: str = "") -> str:
    """A kind of score in words; of groups in place of units, joint by what groups them.

    >>> comparison = xr.Dataset(attrs={"joint_by": "rat"})
    >>> kind_name(comparison, "joint"), kind_name(comparison, "pointwise", " scores")
    ('Joint', 'Joint scores by rat')
    """
    by = comparison.attrs.get("joint_by", "") if kind == "pointwise" else ""
    return f"Joint{noun} by {by}" if by else kind.capitalize() + noun
