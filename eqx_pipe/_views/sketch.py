"""What is drawn of a pipeline: boxes, frames round them, arrows between boxes."""

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Literal, TypeAlias

Outline: TypeAlias = Literal["end", "stage", "decision", "join"]


@dataclasses.dataclass(frozen=True)
class Box:
    """A box: its name in the diagram, its lines of text, and what it stands for.

    `outline` says that: an end of the pipeline, a stage, a stage that decides, or where
    values are joined.
    """

    name: str
    text: str
    outline: Outline = "stage"


@dataclasses.dataclass(frozen=True)
class Arrow:
    """An arrow from one box to another, and what is written on it."""

    source: str
    target: str
    label: str = ""


@dataclasses.dataclass(frozen=True)
class Frame:
    """A frame round its `items`, boxes, arrows and frames in the order drawn."""

    name: str
    title: str
    items: "tuple[Box | Arrow | Frame, ...]" = ()


@dataclasses.dataclass(frozen=True)
class Wire:
    """The end of an arrow to be drawn: the box it leaves, and what to write on it."""

    source: str
    label: str = ""


class Sketch:
    """Takes boxes, arrows and frames one by one."""

    def __init__(self):
        self._items: list[Box | Arrow | Frame] = []
        self._count = 0

    def _fresh(self) -> str:
        self._count += 1
        return f"n{self._count}"

    def box(
        self, text: str, wires: Sequence[Wire] = (), outline: Outline = "stage"
    ) -> str:
        """A box with arrows into it; returns its name."""
        name = self._fresh()
        self._items.append(Box(name, text, outline))
        self._items += [Arrow(wire.source, name, wire.label) for wire in wires]
        return name

    @contextlib.contextmanager
    def frame(self, title: str) -> Iterator[None]:
        """A frame round what is drawn meanwhile."""
        name, outside = self._fresh(), self._items
        self._items = []
        yield
        frame = Frame(name, title, tuple(self._items))
        self._items = [*outside, frame]

    def finished(self) -> Frame:
        """All of it, in a frame without a title."""
        return Frame("", "", tuple(self._items))
