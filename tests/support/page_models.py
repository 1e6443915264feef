"""The models of docs/models.md, as they stand there."""

import ast
import doctest
import functools as ft
import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "models.md"


@ft.cache
def sources():
    """Return the source of each function and class that the page defines, by name."""
    found = {}
    for example in doctest.DocTestParser().get_examples(_text()):
        for node in ast.parse(example.source).body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                found[node.name] = example.source
    return found


@ft.cache
def definitions():
    """Make these functions and classes without running the rest of the page."""
    names = {}
    for example in doctest.DocTestParser().get_examples(_text()):
        first = ast.parse(example.source).body[0]
        if isinstance(
            first, ast.FunctionDef | ast.ClassDef | ast.Import | ast.ImportFrom
        ):
            exec(example.source, names)
    return names


def _text():
    page = PAGE.read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    return "\n".join(block for block in blocks if "orbax" not in block)
