"""Pieces of HTML, of which views in notebooks are made."""

import html
from collections.abc import Callable, Sequence
from typing import TypeVar

_T = TypeVar("_T")


def heading(text: str) -> str:
    """One bold line."""
    return f"<div><b>{html.escape(text)}</b></div>"


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Rows of texts, shortened to a readable length; numbers stand to the right.

    Without any text `head` is left out.
    """
    # Notebooks have all tables in the middle, and all cells to the right.
    sides = [
        "right" if column and all(map(_is_number, column)) else "left"
        for column in ([str(row[k]) for row in rows] for k in range(len(head)))
    ]
    lines = []
    heads = [("th", head)] if any(head) else []
    for tag, row in [*heads, *(("td", row) for row in rows)]:
        texts = [x if len(x) <= 120 else f"{x[:117]}..." for x in map(str, row)]
        cells = "".join(
            f'<{tag} style="text-align:{side}">{html.escape(x)}</{tag}>'
            for x, side in zip(texts, sides, strict=True)
        )
        lines.append(f"<tr>{cells}</tr>")
    return f'<table style="margin:.3em 0 .8em">{"".join(lines)}</table>'


def _is_number(text: str) -> bool:
    try:
        float(text.replace(",", ""))
    except ValueError:
        return text == "?"
    return True


def shown(make: Callable[[_T], str], thing: _T) -> str:
    """What `make` gives, or a plain text: a view never raises."""
    try:
        return make(thing)
    except Exception as error:
        name = type(thing).__name__
        return f"<pre>{html.escape(f'{name} (cannot be shown: {error!r})')}</pre>"
