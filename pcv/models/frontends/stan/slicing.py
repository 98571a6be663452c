"""What a generated quantity of a Stan program depends on, statement by statement.

The order of statements does not count: whatever writes a variable that is needed is kept. Variables
of the same name in different scopes are different ones.
"""

import re
from collections.abc import Iterator, Sequence
from itertools import count
from typing import NamedTuple

from pcv.models.frontends.stan.program import NAME, Statement, declared, split

FLOW = re.compile(r"(break|continue)\s*;")
LOOP = re.compile(r"(?:for|while)\b")
VARIABLE = re.compile(rf"for\s*\(\s*({NAME})\s+in\b")

Scope = dict[str, str]
"""name → what it is called here, unlike any other"""


class Write(NamedTuple):
    """A variable that a simple statement declares or assigns."""

    statement: Statement
    name: str
    """as it is written"""
    variables: frozenset[str]
    reads: frozenset[str]
    heads: frozenset[str]
    """read by what the statement stands in"""
    loops: tuple[int, ...]
    """around it, by their ids"""


def slice_of(tree: Sequence[Statement], name: str) -> list[Statement] | None:
    """The statements that a variable depends on; None if it is not declared."""
    writes: list[Write] = []
    scope = _walk(tree, {}, frozenset(), (), count(), writes)
    if name not in scope:
        return None
    needed, before = {scope[name]}, set[str]()
    while needed != before:
        before = set(needed)
        busy = {loop for one in writes if one.variables & needed for loop in one.loops}
        for one in writes:
            if one.variables & needed or (one.name == "" and _breaks(one, busy)):
                needed |= one.reads | one.heads
    kept: dict[int, set[str]] = {}
    for one in writes:
        if one.variables & needed or _breaks(one, busy):
            kept.setdefault(id(one.statement), set()).add(one.name)
    return list(_pruned(tree, kept))


def _breaks(one: Write, busy: set[int]) -> bool:
    """Whether a statement leaves a loop that writes what is needed."""
    is_flow = FLOW.match(one.statement.text.strip()) is not None
    return is_flow and bool(one.loops) and one.loops[-1] in busy


def _walk(
    tree: Sequence[Statement],
    scope: Scope,
    heads: frozenset[str],
    loops: tuple[int, ...],
    number: Iterator[int],
    writes: list[Write],
) -> Scope:
    """Collect what statements write; returns the scope at their end."""
    scope = dict(scope)
    for one in tree:
        if one.parts is not None:
            inner = dict(scope)
            if variable := VARIABLE.match(one.text.strip()):
                inner[variable[1]] = f"{variable[1]}@{next(number)}"
            around = (*loops, id(one)) if LOOP.match(one.text.strip()) else loops
            _walk(one.parts, inner, heads | _read(one.text, inner), around, number, writes)
            continue
        parts = declared(one.text)
        if parts is None:
            names = frozenset(scope.get(name, name) for name in _assigned(one.text))
            writes.append(Write(one, "", names, _read(one.text, scope), heads, loops))
            continue
        of_type = _read(" ".join([*parts.arrays, *parts.sizes, *parts.bounds]), scope)
        for part in split(parts.rest.rstrip("; \n")):
            if name := re.match(NAME, part):
                reads = of_type | _read(part[name.end() :], scope)
                scope[name[0]] = f"{name[0]}@{next(number)}"
                own = frozenset({scope[name[0]]})
                writes.append(Write(one, name[0], own, reads, heads, loops))
    return scope


def _read(text: str, scope: Scope) -> frozenset[str]:
    return frozenset(scope.get(name, name) for name in re.findall(NAME, without_strings(text)))


def _assigned(text: str) -> set[str]:
    """The variables that a statement assigns."""
    bare = re.sub(r"\[[^]]*\]", "", without_strings(text))
    left = re.split(r"\.?[-+*/]?(?<![<>=!])=(?!=)", bare, maxsplit=1)
    return set(re.findall(NAME, left[0])) if len(left) == 2 else set()


def without_strings(text: str) -> str:
    return re.sub(r'"[^"\n]*"', "", text)


def _pruned(tree: Sequence[Statement], kept: dict[int, set[str]]) -> Iterator[Statement]:
    """The statements that are kept, of declarations only the variables that are."""
    for one in tree:
        if one.parts is not None:
            parts = [list(_pruned([part], kept)) for part in one.parts]
            if any(parts):
                filled = (part[0] if part else Statement("", ()) for part in parts)
                yield Statement(one.text, tuple(filled))
        elif id(one) in kept:
            parts_of = declared(one.text)
            if parts_of is None:
                yield one
                continue
            text, names = one.text.strip(), kept[id(one)]
            some = [
                part
                for part in split(parts_of.rest.rstrip("; \n"))
                if (name := re.match(NAME, part)) and name[0] in names
            ]
            yield Statement(f"{text[: -len(parts_of.rest)]}{', '.join(some)};")
