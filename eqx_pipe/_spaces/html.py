"""What a notebook shows of a space: the pieces, from which results make theirs too."""

import html
from collections.abc import Callable, Sequence
from typing import TypeVar

from .arrange import POINT
from .geometry import Geometry

_T = TypeVar("_T")


def axes_table(geometry: Geometry) -> str:
    """The axes of a space with their dims."""
    names = list(geometry.grid_dims)
    rows = [
        (name, POINT if geometry.window else names[dim], f"{len(axis):,}", repr(axis))
        for (name, axis), dim in zip(
            geometry.axes.items(), geometry.axis_dims, strict=True
        )
    ]
    return table(("axis", "dim", "values", ""), rows)


def heading(text: str) -> str:
    """One bold line."""
    return f"<div><b>{html.escape(text)}</b></div>"


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Rows of texts, shortened to a readable length."""
    cells = "".join(f"<th>{html.escape(name)}</th>" for name in head)
    lines = [f"<tr>{cells}</tr>"]
    for row in rows:
        cells = "".join(f"<td>{html.escape(_short(str(x)))}</td>" for x in row)
        lines.append(f"<tr>{cells}</tr>")
    return f"<table>{''.join(lines)}</table>"


def shown(make: Callable[[_T], str], thing: _T) -> str:
    """What `make` gives, or a plain text: a view never raises."""
    try:
        return make(thing)
    except Exception as error:
        name = type(thing).__name__
        return f"<pre>{html.escape(f'{name} (cannot be shown: {error!r})')}</pre>"


def _short(text: str, limit: int = 120) -> str:
    return text if len(text) <= limit else text[: limit - 3] + "..."
