"""What a notebook shows of a space."""

import html
from collections.abc import Callable, Sequence
from typing import Any

from .space import Space


def space_html(space: Space) -> str:
    """A heading and a table of the axes."""
    how = "zip" if space.mode == "zip" else "product"
    cut = "" if space.window is None else f", sliced from {space.grid_size:,}"
    return heading(f"Space: {space.size:,} points ({how}{cut})") + axes_table(space)


def axes_table(space: Space) -> str:
    """The axes with their dims."""
    names = list(space.grid_dims)
    dims = ["point" if space.window else names[at] for at in space.axis_dims()]
    rows = [
        (name, dim, f"{len(axis):,}", repr(axis))
        for (name, axis), dim in zip(space.axes().items(), dims, strict=True)
    ]
    return table(("axis", "dim", "values", ""), rows)


def heading(text: str) -> str:
    """One bold line."""
    return f"<div><b>{html.escape(text)}</b></div>"


def table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Rows of texts, cut to a readable length."""
    cells = "".join(f"<th>{html.escape(name)}</th>" for name in head)
    lines = [f"<tr>{cells}</tr>"]
    for row in rows:
        cells = "".join(f"<td>{html.escape(_short(str(x)))}</td>" for x in row)
        lines.append(f"<tr>{cells}</tr>")
    return f"<table>{''.join(lines)}</table>"


def shown(make: Callable[[Any], str], thing: Any) -> str:
    """What `make` gives, or a plain text: a view never raises."""
    try:
        return make(thing)
    except Exception as error:
        name = type(thing).__name__
        return f"<pre>{html.escape(f'{name} (cannot be shown: {error!r})')}</pre>"


def _short(text: str, limit: int = 120) -> str:
    return text if len(text) <= limit else text[: limit - 3] + "..."
