"""The examples on the site: each file of `examples/` run cell by cell, and shown.

They are notebooks kept as text, in the percent format that Jupyter (by jupytext), VS
Code and PyCharm open: `# %%` begins a cell of code, `# %% [markdown]` one of text.
"""

import ast
import contextlib
import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

import eqx_pipe

_EXAMPLES = Path(__file__).parents[2] / "examples"
_MARK = re.compile(r"^# %%( \[markdown\])?\n", re.MULTILINE)


class Cell(NamedTuple):
    """Text, or code."""

    is_text: bool
    source: str


def cells(text: str) -> Iterator[Cell]:
    """The cells of a file, in order."""
    _, *parts = _MARK.split(text)
    for mark, source in zip(parts[::2], parts[1::2], strict=True):
        if mark:
            source = re.sub(r"^# ?", "", source, flags=re.MULTILINE)
        yield Cell(bool(mark), source.strip())


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds a page for each example, its pictures, and itself as a notebook."""
    import matplotlib

    eqx_pipe.use_cpu_devices(8)
    matplotlib.use("agg")
    for path in sorted(_EXAMPLES.glob("*.py")):
        found = list(cells(path.read_text()))
        text, pictures = _page(path.stem, found)
        added = {f"{path.stem}.md": text, f"{path.stem}.ipynb": _notebook(found)}
        for name, content in (added | pictures).items():
            files.append(File.generated(config, f"examples/{name}", content=content))
    return files


def _page(name: str, found: list[Cell]) -> tuple[str, dict[str, bytes]]:
    """What is shown of an example, and the pictures that it made."""
    import matplotlib.pyplot as plt

    parts, pictures, variables = [], {}, {"__name__": "__main__"}
    for cell in found:
        if cell.is_text:
            parts.append(cell.source)
            continue
        parts.append(f"```python\n{cell.source}\n```")
        printed, shown = _run(cell.source, f"{name}.py", variables)
        if printed:
            parts.append(f"```{{.text .message}}\n{printed.rstrip()}\n```")
        if shown:
            parts.append(shown)
        for number in plt.get_fignums():
            file = f"{name}-{len(pictures)}.png"
            buffer = io.BytesIO()
            plt.figure(number).savefig(buffer, dpi=120, bbox_inches="tight")
            pictures[file] = buffer.getvalue()
            parts.append(f"![]({file})")
        plt.close("all")
    note = f"""---

This page is a notebook: [{name}.ipynb]({name}.ipynb), and as text `examples/{name}.py`.
In a clone `pip install '.[examples]'` brings what it needs."""
    return "\n\n".join([*parts, note]), pictures


def _run(source: str, file: str, variables: dict[str, object]) -> tuple[str, str]:
    """What a cell prints, and its last value as a notebook shows it."""
    tree = ast.parse(source)
    last = None
    if tree.body and isinstance(tree.body[-1], ast.Expr):
        last = ast.Expression(tree.body.pop().value)
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(compile(tree, file, "exec"), variables)
        value = None if last is None else eval(compile(last, file, "eval"), variables)
    return out.getvalue(), "" if value is None else _shown(value)


def _shown(value: object) -> str:
    if hasattr(value, "_repr_html_"):
        return f'<div class="output">{value._repr_html_()}</div>'
    if hasattr(value, "_repr_markdown_"):
        return value._repr_markdown_()
    return f"```text\n{value!r}\n```"


def _notebook(found: list[Cell]) -> str:
    """The cells in Jupyter's format, without outputs."""
    made = []
    for cell in found:
        kind = "markdown" if cell.is_text else "code"
        made.append({"cell_type": kind, "metadata": {}, "source": cell.source})
        if not cell.is_text:
            made[-1] |= {"outputs": [], "execution_count": None}
    return json.dumps(
        {"cells": made, "metadata": {}, "nbformat": 4, "nbformat_minor": 4}
    )
