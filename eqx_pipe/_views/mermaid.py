"""Mermaid text: boxes, arrows, frames."""

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from .._tree import leaf_text, leaves_with_names
from .._types import PyTree


@dataclasses.dataclass(frozen=True)
class Diagram:
    """A diagram as Mermaid text, which `str()` gives; notebooks show the picture."""

    source: str

    def __str__(self) -> str:
        return self.source

    def _repr_markdown_(self) -> str:
        return f"```mermaid\n{self.source}\n```"

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict:
        return {
            "text/vnd.mermaid": self.source,
            "text/markdown": self._repr_markdown_(),
            "text/plain": self.source,
        }


@dataclasses.dataclass(frozen=True)
class Wire:
    """The end of an arrow to be drawn: the box it leaves, and what to write on it."""

    source: str
    label: str = ""


class Sketch:
    """Lines of Mermaid text; `values` are the shapes known by path."""

    def __init__(self, values: dict[str, PyTree]):
        self.values = values
        self.lines = ["flowchart TD"]
        self.depth = 1
        self.count = 0

    def write(self, line: str) -> None:
        self.lines.append("    " * self.depth + line)

    def fresh(self) -> str:
        self.count += 1
        return f"n{self.count}"

    def box(self, text: str, wires: Sequence[Wire], brackets: str = "[]") -> str:
        """A box with arrows into it; `brackets` decide its outline."""
        name = self.fresh()
        half = len(brackets) // 2
        self.write(f"{name}{brackets[:half]}{_quoted(text)}{brackets[half:]}")
        for wire in wires:
            label = f"|{_quoted(wire.label)}|" if wire.label else ""
            self.write(f"{wire.source} -->{label} {name}")
        return name

    @contextlib.contextmanager
    def frame(self, title: str) -> Iterator[None]:
        """A frame round what is drawn meanwhile."""
        self.write(f"subgraph {self.fresh()}[{_quoted(title)}]")
        self.depth += 1
        yield
        self.depth -= 1
        self.write("end")

    def out(self, source: str, path: str) -> Wire:
        """The wire that leaves what lies at `path`, with its shape if known."""
        return Wire(
            source, shapes_text(self.values[path]) if path in self.values else ""
        )


def _quoted(text: str) -> str:
    """A label in quotes; what Mermaid or HTML would read as markup is escaped."""
    text = text.replace("#", "#35;")
    for character in '"<>`&':
        text = text.replace(character, f"#{ord(character)};")
    return '"' + text.replace("\n", "<br/>") + '"'


def shapes_text(tree: PyTree, limit: int = 4) -> str:
    lines = [
        f"{n}: {leaf_text(v)}" if n else leaf_text(v)
        for n, v in leaves_with_names(tree)
    ]
    more = [f"... {len(lines) - limit} more"] if len(lines) > limit else []
    return "\n".join(lines[:limit] + more)
