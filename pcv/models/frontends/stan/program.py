"""Stan programs as text: their blocks, and the program whose density folds need.

A program with ``vector[N] log_lik`` in generated quantities gets one weight for each term, as
further parameters:

.. math:: \\log p(\\theta, y) + \\sum_n (w_n - 1) \\log p(y_n \\mid \\theta)

With w the mask of the training units this is a fold's density, and its derivative in a weight is
the unit's log likelihood: one compiled program serves all folds.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from pcv.base.errors import PcvError
from pcv.base.reference import INCLUDE

BLOCKS = (
    "functions",
    "data",
    "transformed data",
    "parameters",
    "transformed parameters",
    "model",
    "generated quantities",
)
TERMS, WEIGHTS = "log_lik", "pcv_weight"
"""the terms of the log likelihood, and the parameters that weight them"""
MASKS = {"train": True, "holdout": False}
"""data variable that says which units a program trains on → its value for these"""
NAME = r"[A-Za-z]\w*"
TYPE = re.compile(
    r"(?:array\s*\[|(?:int|real|complex|vector|row_vector|matrix|simplex|unit_vector|ordered|"
    r"positive_ordered|sum_to_zero_vector|sum_to_zero_matrix|corr_matrix|cov_matrix|"
    r"cholesky_factor_corr|cholesky_factor_cov|column_stochastic_matrix|row_stochastic_matrix|"
    r"complex_vector|complex_row_vector|complex_matrix|tuple)\b)"
)
UNCONSTRAINED = {
    "simplex": "vector",
    "unit_vector": "vector",
    "ordered": "vector",
    "positive_ordered": "vector",
    "sum_to_zero_vector": "vector",
    "sum_to_zero_matrix": "matrix",
    "corr_matrix": "matrix",
    "cov_matrix": "matrix",
    "cholesky_factor_corr": "matrix",
    "cholesky_factor_cov": "matrix",
    "column_stochastic_matrix": "matrix",
    "row_stochastic_matrix": "matrix",
}
"""types that local variables cannot have → theirs"""
SNIPPET = (
    "generated quantities { vector[N] log_lik; for (n in 1:N) "
    "log_lik[n] = normal_lpdf(y[n] | mu[n], sigma); }"
)


class Statement(NamedTuple):
    """A statement of Stan: simple ones have no parts."""

    text: str
    """or what precedes the parts, such as ``for (n in 1:N)``"""
    parts: "tuple[Statement, ...] | None" = None


def read(path: Path) -> str:
    """The text of a program, its included files and no comments."""
    return _included(path, path.parent, ())


def _included(path: Path, folder: Path, outer: tuple[Path, ...]) -> str:
    """The text of a file; those that it includes lie in the program's folder, or beside it."""
    try:
        text = uncommented(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        of = f" (included by {outer[-1]})" if outer else ""
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise PcvError(f"{path}{of}: cannot be read: {reason}") from error
    if path in outer:
        raise PcvError(f"{path}: includes itself")

    def included(line: re.Match[str]) -> str:
        name = next(filter(None, line.groups())).lstrip("/")
        near = path.parent / name
        file = near if near.is_file() else folder / name
        return _included(file, folder, (*outer, path))

    return INCLUDE.sub(included, text)


def uncommented(text: str) -> str:
    """The text without comments; strings may hold their marks."""
    token = re.compile(r'"[^"\n]*"|//[^\n]*|/\*.*?\*/', re.DOTALL)
    return token.sub(
        lambda x: x[0] if x[0].startswith('"') else " " + "\n" * x[0].count("\n"), text
    )


def blocks(text: str, where: str) -> dict[str, str]:
    """The content of each top-level block.

    >>> blocks("parameters { real x; } model { }", "m.stan")["parameters"].strip()
    'real x;'

    Raises:
        PcvError: what stands there is no block, or is not closed.
    """
    known: dict[str, str] = {}
    place = 0
    while rest := text[place:].strip():
        head = re.compile(r"\s*([a-z]+(?:\s+[a-z]+)?)\s*\{").match(text, place)
        name = " ".join(head[1].split()) if head else ""
        if head is None or name not in BLOCKS:
            raise PcvError(f"{where}: expects a block of Stan, such as 'data {{', at {rest[:30]!r}")
        end = _closing(text, head.end() - 1, where)
        known[name] = text[head.end() : end]
        place = end + 1
    if "parameters" not in known or "model" not in known:
        raise PcvError(f"{where}: it has no parameters, or no model block: nothing to sample")
    return known


def _closing(text: str, opening: int, where: str) -> int:
    """The place of the bracket that closes the one at `opening`."""
    depth = 0
    for token in re.compile(r'"[^"\n]*"|[][(){}]').finditer(text, opening):
        if token[0] in "([{":
            depth += 1
        elif token[0] in ")]}":
            depth -= 1
            if not depth:
                return token.start()
    raise PcvError(f"{where}: {text[opening : opening + 30]!r} is not closed")


def statements(text: str, where: str) -> list[Statement]:
    """The statements of a block."""
    found, place = [], 0
    while text[place:].strip():
        one, place = _statement(text, place, where)
        found.append(one)
    return found


def _statement(text: str, place: int, where: str) -> tuple[Statement, int]:
    """The statement that begins at `place` or after it, and where it ends."""
    place += len(text[place:]) - len(text[place:].lstrip())
    if text.startswith("{", place):
        end = _closing(text, place, where)
        return Statement("", tuple(statements(text[place + 1 : end], where))), end + 1
    head = re.compile(r"(for|while|if|profile)\s*(?=\()|else\b").match(text, place)
    if head is None:
        end = place
        while end < len(text) and text[end] != ";":
            end = _closing(text, end, where) + 1 if text[end] in "([{" else end + 1
        if end == len(text):
            raise PcvError(f"{where}: {text[place:].strip()[:40]!r} has no ';' at its end")
        return Statement(text[place : end + 1]), end + 1
    begin = _closing(text, head.end(), where) + 1 if head[1] else head.end()
    body, end = _statement(text, begin, where)
    parts: tuple[Statement, ...] = (body,)
    if head[1] == "if" and re.compile(r"\s*else\b").match(text, end):
        other, end = _statement(text, end, where)
        parts = (body, other)
    return Statement(text[place:begin], parts), end


class Declared(NamedTuple):
    """The parts of a declaration."""

    arrays: tuple[str, ...]
    """sizes of the array"""
    type: str
    """without sizes and bounds, such as "vector" """
    sizes: tuple[str, ...]
    """of an element"""
    bounds: tuple[str, ...]
    rest: str
    """names, and values"""


def declared(text: str) -> Declared | None:
    """The parts of a simple statement, if it is a declaration.

    >>> declared("array[N] int<lower=1, upper=J> rat;")
    Declared(arrays=('N',), type='int', sizes=(), bounds=('lower=1', 'upper=J'), rest='rat;')
    """
    text = text.strip()
    arrays: list[str] = []
    bounds: list[str] = []
    sizes: list[str] = []
    if not TYPE.match(text):
        return None
    if array := re.match(r"array\s*(?=\[)", text):
        arrays, text = _in_brackets(text[array.end() :])
    head = re.match(NAME, text)
    if head is None:
        return None
    text = text[head.end() :].strip()
    if head[0] == "tuple":
        _, text = _in_brackets(text)
    if text.startswith("<"):
        end = _bounds_end(text)
        bounds, text = split(text[1:end]), text[end + 1 :].strip()
    if text.startswith("["):
        sizes, text = _in_brackets(text)
    return Declared(tuple(arrays), head[0], tuple(sizes), tuple(bounds), text)


def names_in(one: Declared) -> list[str]:
    """The variables that a statement declares."""
    names = [re.match(NAME, part) for part in split(one.rest.rstrip("; \n"))]
    return [name[0] for name in names if name]


def _in_brackets(text: str) -> tuple[list[str], str]:
    """The parts between the brackets that the text begins with, and what follows them."""
    end = _closing(text, 0, text)
    return split(text[1:end]), text[end + 1 :].strip()


def _bounds_end(text: str) -> int:
    """The place of the ">" that closes bounds; those inside brackets compare."""
    place = 0
    while text[place] != ">":
        place = _closing(text, place, text) if text[place] in "([{" else place
        place += 1
    return place


def split(text: str) -> list[str]:
    """Parts between commas that stand in no bracket."""
    parts, place, begin = [], 0, 0
    while place < len(text):
        if text[place] in "([{":
            place = _closing(text, place, text)
        elif text[place] == ",":
            parts.append(text[begin:place].strip())
            begin = place + 1
        place += 1
    return [*parts, text[begin:].strip()]


def data_of(known: Mapping[str, str], where: str) -> dict[str, Declared]:
    """The variables of the data block."""
    simple = (declared(one.text) for one in statements(known.get("data", ""), where))
    return {name: one for one in simple if one for name in names_in(one)}


def mask_of(data: Mapping[str, Declared]) -> str | None:
    """The data variable that says which units the program trains on."""
    flat = [name for name, x in data.items() if len(x.arrays) + len(x.sizes) == 1]
    return next((name for name in MASKS if name in flat), None)
