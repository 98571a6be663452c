"""Formulas as MathML, made at build time: pages need no script, and nothing from elsewhere."""

import re
from typing import Any

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.application import Sphinx

OPERATOR = re.compile(r"(<mi>(?:log|exp|diag|var)</mi>)(?=<m(?!o))")
"""an operator before its argument, between which browsers leave no room"""
COLUMN = re.compile(r'columnalign="(\w+)"')
"""the side that a column keeps to: an attribute that browsers know as a style alone"""


def rendered(latex: str, display: str) -> str:
    found = OPERATOR.sub(r'\1<mspace width="0.17em"/>', convert(latex, display=display))
    return COLUMN.sub(r'style="text-align: \1; padding-inline: 0"', found)


def inline(self: Any, node: nodes.math) -> None:
    self.body.append(rendered(node.astext(), "inline"))
    raise nodes.SkipNode


def block(self: Any, node: nodes.math_block) -> None:
    text = node.astext().strip()
    if "\\\\" in text and "\\begin" not in text:
        text = rf"\begin{{align*}}{text}\end{{align*}}"
    self.body.append(f'<div class="formula">{rendered(text, "block")}</div>')
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_html_math_renderer("mathml", (inline, None), (block, None))
    app.config.html_math_renderer = "mathml"  # type: ignore[attr-defined]
    return {"parallel_read_safe": True, "parallel_write_safe": True}
