"""The models of docs/models.md, as they stand there."""

import ast
import functools as ft
import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "models.md"


@ft.cache
def sources():
    """Return the source of each function and class that the page defines, by name."""
    return {
        node.name: source
        for node, source in _statements()
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
    }


@ft.cache
def definitions():
    """Make these functions and classes without running the rest of the page."""
    names = {}
    for node, source in _statements():
        if isinstance(
            node, ast.FunctionDef | ast.ClassDef | ast.Import | ast.ImportFrom
        ):
            exec(source, names)
    return names


def _statements():
    """Yield each statement of the page's code blocks, and its source."""
    page = PAGE.read_text()
    for block in re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE):
        if "orbax" not in block:
            for node in ast.parse(block).body:
                first = min(
                    line.lineno for line in [node, *getattr(node, "decorator_list", [])]
                )
                lines = block.splitlines()[first - 1 : node.end_lineno]
                yield node, "\n".join(lines)
