"""The diagrams of the pages, drawn while the site is made, so that it needs no network.

They are Mermaid text, which GitHub draws too: what `eqx_pipe.draw` writes, and arrows
between boxes that are declared on the same line, `one["text"] --> other["text"]`.
"""

import html
import re
from collections.abc import Iterator

from eqx_pipe._views.diagram import Diagram
from eqx_pipe._views.sketch import Arrow, Box, Frame

_FENCE = re.compile(r"^```mermaid\nflowchart \w+\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_BOX = r'(\w+)(?:(\(\[|\[|\{\{|\{)"(.*?)"[\])}]+)?'
_ARROW = r'(?:-->\|"(.*?)"\||-- "(.*?)" -->|-->)'
_LINE = re.compile(rf"{_BOX}(?: {_ARROW} {_BOX})?")
_FRAME = re.compile(r'subgraph (\w+)\["(.*?)"\]')
_OUTLINES = {"([": "end", "[": "stage", "{": "decision", "{{": "join"}


def on_page_markdown(markdown: str, **_: object) -> str:
    """The text of a page with pictures in place of diagrams."""
    return _FENCE.sub(lambda found: _picture(found[1]), markdown)


def _picture(text: str) -> str:
    items = _items(iter(text.strip().splitlines()))
    return Diagram(Frame("", "", items))._repr_html_().replace("\n", "")


def _items(lines: Iterator[str]) -> tuple[Box | Arrow | Frame, ...]:
    """What is drawn up to the end of a frame."""
    items: list[Box | Arrow | Frame] = []
    for line in map(str.strip, lines):
        if line == "end":
            break
        if frame := _FRAME.fullmatch(line):
            items.append(Frame(frame[1], _plain(frame[2]), _items(lines), frame[1]))
            continue
        found = _LINE.fullmatch(line)
        if found is None:
            raise ValueError(f"A diagram has a line that is not known here: {line!r}")
        for name, bracket, said in (found.group(1, 2, 3), found.group(6, 7, 8)):
            if said is not None:
                items.append(Box(name, _plain(said), _OUTLINES[bracket], name))
        if found[6] is not None:
            label = _plain(found[4] or found[5] or "")
            items.append(Arrow(found[1], found[6], label))
    return tuple(items)


def _plain(text: str) -> str:
    text = re.sub(r"</?b>", "", text.replace("<br/>", "\n"))
    return html.unescape(re.sub(r"#(\d+);", r"&#\1;", text))
