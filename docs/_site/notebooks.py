"""Run each file of `examples/` cell by cell, and show it on a page of the site.

The examples are notebooks kept as text, in the percent format that Jupyter (by
jupytext), VS Code and PyCharm open: `# %%` begins a cell of code, `# %% [markdown]` a
cell of text. A gallery shows a picture and the first sentence of each.
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
_GALLERY = "<!-- gallery -->\n"
"""The line of the README in whose place the start page shows all examples."""


class Cell(NamedTuple):
    """A cell of text or code."""

    is_text: bool
    source: str


def cells(text: str) -> Iterator[Cell]:
    """Yield the cells of a file, in order."""
    _, *parts = _MARK.split(text)
    for mark, source in zip(parts[::2], parts[1::2], strict=True):
        if mark:
            source = re.sub(r"^# ?", "", source, flags=re.MULTILINE)
        yield Cell(bool(mark), source.strip())


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a page for each example, its pictures and notebook, and the gallery."""
    import jax
    import matplotlib

    eqx_pipe.use_cpu_devices(8)
    matplotlib.use("agg")
    cards = []
    for path in (_EXAMPLES / f"{name}.py" for name in _listed()):
        # All but one compile longer than they run.
        jax.config.update("jax_disable_most_optimizations", path.stem != "digits")
        found = list(cells(path.read_text()))
        text, pictures = _page(path.stem, found)
        cards.append(_card(path.stem, found[0].source, next(iter(pictures))))
        added = {f"{path.stem}.md": text, f"{path.stem}.ipynb": _notebook(found)}
        for name, content in (added | pictures).items():
            files.append(File.generated(config, f"examples/{name}", content=content))
    gallery = File.generated(config, "examples/index.md", content=_gallery(cards))
    files.append(gallery)
    start = files.get_file_from_path("index.md")
    assert start.content_string.count(_GALLERY) == 1, "the README has no gallery"
    start.content_string = start.content_string.replace(_GALLERY, _strip(cards))
    return files


def _listed() -> list[str]:
    """Return the names of the examples in the order of `mkdocs.yml`."""
    text = (_EXAMPLES.parent / "mkdocs.yml").read_text()
    names = [n for n in re.findall(r"examples/(\w+)\.md", text) if n != "index"]
    assert sorted(names) == sorted(path.stem for path in _EXAMPLES.glob("*.py"))
    return names


def _card(name: str, text: str, picture: str) -> str:
    """Return the item of an example in the gallery."""
    title, _, body = text.partition("\n")
    title, body = title.removeprefix("# "), " ".join(body.split())
    sentence = re.match(r".*?[.?](?= |$)", body)[0]
    return f"""-   [![{title}]({picture})]({name}.md)

    **[{title}]({name}.md)**

    {sentence}
"""


def _strip(cards: list[str]) -> str:
    """Return a row of the pictures of all examples, for the start page."""
    links = "\n".join(card.partition("\n")[0].removeprefix("-   ") for card in cards)
    moved = re.sub(r"\((?=[\w-]+\.(?:md|png)\))", "(examples/", links)
    return f'<div class="strip" markdown>\n\n{moved}\n\n</div>\n'


def _gallery(cards: list[str]) -> str:
    """Return the page that shows all examples."""
    items = "\n".join(cards)
    return f"""# Examples

Each example is a whole experiment on real data. The site runs it, and each page has a
notebook to download. In a clone, `pip install '.[examples]'` installs the packages.

<div class="grid cards" markdown>

{items}
</div>
"""


def _page(name: str, found: list[Cell]) -> tuple[str, dict[str, bytes]]:
    """Return the page of an example, and its pictures by file."""
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
In a clone, `pip install '.[examples]'` installs its packages."""
    return "\n\n".join([*parts, note]), pictures


def _run(source: str, file: str, variables: dict[str, object]) -> tuple[str, str]:
    """Return the text that a cell prints, and its last value as a notebook shows it."""
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
    """Return the cells in Jupyter's format, without outputs."""
    made = []
    for cell in found:
        kind = "markdown" if cell.is_text else "code"
        made.append({"cell_type": kind, "metadata": {}, "source": cell.source})
        if not cell.is_text:
            made[-1] |= {"outputs": [], "execution_count": None}
    return json.dumps(
        {"cells": made, "metadata": {}, "nbformat": 4, "nbformat_minor": 4}
    )
