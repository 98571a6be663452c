"""Docstrings as Sphinx shows them: signatures of records without types, colons left alone."""

import inspect
from typing import Any

from sphinx.application import Sphinx

COLON = "\x00"


def signature(
    app: Sphinx, what: str, name: str, obj: Any, options: Any, args: str | None, returns: str | None
) -> tuple[str | None, str | None]:
    """Fields of records by their names alone: their types are functions, too long to be read."""
    if what != "class" or not hasattr(obj, "_fields"):
        return args, returns
    fields = inspect.signature(obj).parameters.values()
    shown = [x.name if x.default is x.empty else f"{x.name}={x.default!r}" for x in fields]
    return f"({', '.join(shown)})", None


def hide(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Napoleon takes what stands before a colon for the type of a property."""
    if what == "property" and lines:
        lines[0] = lines[0].replace(":", COLON)


def show(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    lines[:] = [line.replace(COLON, ":") for line in lines]


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("autodoc-process-signature", signature)
    app.connect("autodoc-process-docstring", hide, priority=400)
    app.connect("autodoc-process-docstring", show, priority=600)
    return {"parallel_read_safe": True}
