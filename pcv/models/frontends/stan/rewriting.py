"""The programs that folds need, written from the user's."""

import re
from collections.abc import Callable, Mapping, Sequence

from pcv.models.frontends.stan.program import (
    BLOCKS,
    NAME,
    TERMS,
    UNCONSTRAINED,
    WEIGHTS,
    Statement,
    declared,
    names_in,
    statements,
)
from pcv.models.frontends.stan.slicing import slice_of, without_strings

GENERATED, TRANSFORMED = "generated quantities", "transformed parameters"


def generating(known: Mapping[str, str], name: str, where: str) -> str | None:
    """The program whose generated quantities are what one of them depends on; None: there is no
    such quantity, nor a transformed parameter of its name."""
    if is_transformed(known, name, where):
        return _joined({**known, GENERATED: ""})
    kept = slice_of(statements(known.get(GENERATED, ""), where), name)
    return None if kept is None else _joined({**known, GENERATED: _written(kept)})


def is_transformed(known: Mapping[str, str], name: str, where: str) -> bool:
    """Whether a variable is a transformed parameter."""
    simple = (declared(one.text) for one in statements(known.get(TRANSFORMED, ""), where))
    return any(name in names_in(one) for one in simple if one)


def random_in(known: Mapping[str, str], name: str, where: str) -> str:
    """The random numbers that a generated quantity depends on, or nothing."""
    kept = slice_of(statements(known.get(GENERATED, ""), where), name) or ()
    random = re.search(rf"{NAME}_rng(?=\s*\()", without_strings(_written(kept)))
    return random[0] if random else ""


def weighted(known: Mapping[str, str], size: int, where: str) -> str:
    """The program with a weight for each of `size` terms as further parameters."""
    terms = ""
    if not is_transformed(known, TERMS, where):
        kept = slice_of(statements(known.get(GENERATED, ""), where), TERMS) or ()
        terms = _written(kept, _local)
    parts = {name: known.get(name, "") for name in BLOCKS[:-1]}
    parts["parameters"] += f"\nvector[{size}] {WEIGHTS};"
    parts["model"] = (
        f"{{ {parts['model']} }}\n"
        f"{{ {terms}\ntarget += dot_product({WEIGHTS}, to_vector({TERMS})); }}"
    )
    return _joined(parts)


def _local(text: str) -> str:
    """A statement as it may stand in a model block, where declarations have no bounds."""
    one = declared(text)
    if one is None or one.type == "tuple":
        return text
    plain, sizes = UNCONSTRAINED.get(one.type, one.type), one.sizes
    if plain == "matrix" and len(sizes) == 1:
        sizes = sizes * 2
    array = f"array[{', '.join(one.arrays)}] " * bool(one.arrays)
    return f"{array}{plain}{f'[{", ".join(sizes)}]' * bool(sizes)} {one.rest}"


def _written(tree: Sequence[Statement], write: Callable[[str], str] = str) -> str:
    """The text of statements; simple ones are written by `write`."""
    return "\n".join(_text(one, write) for one in tree)


def _text(one: Statement, write: Callable[[str], str]) -> str:
    if one.parts is None:
        return write(one.text)
    parts = one.parts
    if one.text.strip().startswith("if"):
        body, *other = parts
        rest = " ".join(_text(part, write) for part in other)
        return f"{one.text} {{ {_text(body, write)} }} {rest}"
    return f"{one.text} {{ {' '.join(_text(part, write) for part in parts)} }}"


def _joined(parts: Mapping[str, str]) -> str:
    """The text of a program with these blocks."""
    return "\n".join(f"{name} {{ {parts[name]} }}" for name in BLOCKS if parts.get(name))
