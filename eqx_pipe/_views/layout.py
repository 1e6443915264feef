"""Where boxes, frames and lines of a diagram lie: one frame inside of another.

A frame is laid out by itself, and is then one node of the frame round it. A line that
crosses a border does so at a port, a point of the border that all lines from one box
share. So what is inside never meets what is outside, whatever a pipeline is made of.
"""

import dataclasses
from collections.abc import Iterator, Sequence

from .layers import Layers, Link, Name, Node, layered, room
from .metrics import LINE, MONO, SANS, mono_width, sans_width
from .routes import Routes, is_port
from .sketch import Arrow, Box, Frame

PAD = 14.0
TAB = 20.0
"""The height of the title of a frame."""

SMALL = 11.0
"""The size of what is written below the name of a box, and of titles."""

_STEP = 24.0
"""The height of a bend of a line that goes straight down or nearly so."""

_HEAD = 8.0
"""That of a head, about: on a bend it would stand askew."""

_ASIDE = 7.0
"""From a line to what is written beside it."""


@dataclasses.dataclass(frozen=True)
class Placed:
    """A box or frame: its left upper corner and its size."""

    item: Box | Frame
    x: float
    y: float
    width: float
    height: float


@dataclasses.dataclass(frozen=True)
class Line:
    """A line from point to point, straight, then bent, then straight again.

    With a head if it ends at a box.
    """

    points: tuple[tuple[float, float], ...]
    head: bool


@dataclasses.dataclass(frozen=True)
class Note:
    """What is written beside a line: its left upper corner, and its lines."""

    x: float
    y: float
    lines: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Picture:
    """All that is drawn, in pixels."""

    width: float
    height: float
    frames: tuple[Placed, ...]
    boxes: tuple[Placed, ...]
    lines: tuple[Line, ...]
    notes: tuple[Note, ...]


def picture(whole: Frame) -> Picture:
    """Gives everything in a diagram its place."""
    routes = Routes(whole)
    made = _Inside(whole, routes)
    things = list(made.placed(0.0, 0.0))

    def of_kind(kind: type) -> tuple:
        return tuple(t for t in things if isinstance(t, kind))

    shapes = of_kind(Placed)
    frames = tuple(t for t in shapes if isinstance(t.item, Frame))
    boxes = tuple(t for t in shapes if isinstance(t.item, Box))
    return Picture(made.width, made.height, frames, boxes, of_kind(Line), of_kind(Note))


class _Inside:
    """One frame, laid out; places in it are counted from its left upper corner."""

    def __init__(self, frame: Frame, routes: Routes):
        self.frame, self.routes = frame, routes
        links = routes.links.get(frame.name, {})
        items = [item for item in frame.items if not isinstance(item, Arrow)]
        self.boxes = {item.name: item for item in items if isinstance(item, Box)}
        self.frames = {
            item.name: _Inside(item, routes)
            for item in items
            if isinstance(item, Frame)
        }
        self.sizes = {
            name: _size(
                box, [label for (_, end, _), label in links.items() if end == name]
            )
            for name, box in self.boxes.items()
        }
        self.sizes |= {n: (f.width, f.height) for n, f in self.frames.items()}
        nodes: dict[Name, Node] = {}
        ins = list(dict.fromkeys(a for a, _, _ in links if is_port(a)))
        outs = list(dict.fromkeys(b for _, b, _ in links if is_port(b)))
        nodes |= {port: Node(PAD, PAD) for port in ins}
        for item in items:
            half = self.sizes[item.name][0] / 2
            said = _width(routes.leaving.get(item.name, ""))
            nodes[item.name] = Node(half + PAD, max(half, said) + PAD)
        nodes |= {port: Node(PAD, PAD) for port in outs}
        drawn = [
            Link(
                a,
                b,
                self._at(a, ("out", source)),
                self._at(b, ("in", source)),
                _width(label),
                label,
                b not in self.boxes,
            )
            for (a, b, source), label in links.items()
        ]
        for link in drawn:
            if link.fixed and link.label and link.target in nodes:
                node = nodes[link.target]
                node.right = max(node.right, link.enters + link.label + PAD)
        self.layers = layered(nodes, drawn, ins, outs)
        if (
            len(ins) == len(outs) == 1
        ):  # one below the other, so that lines are straight
            middle = self.layers.middle
            mean = (middle[ins[0]] + middle[outs[0]]) / 2
            middle[ins[0]] = middle[outs[0]] = mean
        self._place(nodes)

    def _at(self, item: Name, port: Name) -> float:
        """Where a line meets the border of a node, counted from its middle."""
        inner = self.frames.get(item) if isinstance(item, str) else None
        return 0.0 if inner is None else inner.port(port)

    def port(self, port: Name) -> float:
        return self.x[port] - self.width / 2

    def _place(self, nodes: dict[Name, Node]) -> None:
        layers = self.layers
        title = sans_width(self.frame.title, SMALL) + 2 * PAD if self.frame.title else 0
        middle = layers.middle
        left = min((middle[n] - nodes[n].left for n in middle if n in nodes), default=0)
        right = max(
            (middle[n] + nodes[n].right for n in middle if n in nodes), default=0
        )
        self.width = max(right - left, title, 2 * PAD)
        shift = (self.width - right - left) / 2
        self.x = {name: at + shift for name, at in middle.items()}
        self.tops, self.tall, self.zones = _rows(self, layers)
        self.height = self.tops[-1] + self.tall[-1] if self.tops else 2 * TAB
        if layers.rows and not all(map(is_port, layers.rows[-1])):
            self.height += PAD

    def height_of(self, name: Name) -> float:
        return self.sizes[name][1] if isinstance(name, str) else 0.0

    def placed(self, x: float, y: float) -> Iterator[Placed | Line | Note]:
        """All that is inside, if the left upper corner is there."""
        row_of = {n: i for i, row in enumerate(self.layers.rows) for n in row}
        top: dict[Name, float] = {}
        bottom: dict[Name, float] = {}
        for name, i in row_of.items():
            tall = self.height_of(name) if isinstance(name, str) else self.tall[i]
            top[name] = y + self.tops[i] + (self.tall[i] - tall) / 2
            bottom[name] = top[name] + tall
        for name, (width, height) in self.sizes.items():
            at = x + self.x[name] - width / 2
            inner = self.frames.get(name)
            item = self.boxes[name] if inner is None else inner.frame
            yield Placed(item, at, top[name], width, height)
            if inner is not None:
                yield from inner.placed(at, top[name])
            said = self.routes.leaving.get(name, "")
            if said and inner is None:
                lines = tuple(said.split("\n"))
                yield Note(x + self.x[name] + _ASIDE, bottom[name] + 2, lines)
        for link in self.layers.links:
            a, b, i = link.source, link.target, row_of[link.source]
            out, into = self.zones[i]
            x1, x2 = x + self.x[a] + link.leaves, x + self.x[b] + link.enters
            bend1 = y + self.tops[i] + self.tall[i] + out
            bend2 = y + self.tops[i + 1] - into
            head = b in self.boxes
            start = top[a] if isinstance(a, tuple) and a[0] == "bend" else bottom[a]
            end = top[b]
            yield Line(((x1, start), (x1, bend1), (x2, bend2), (x2, end)), head)
            if link.text:
                yield Note(x2 + _ASIDE, bend2 - 2, tuple(link.text.split("\n")))


def _rows(
    inside: _Inside, layers: Layers
) -> tuple[list[float], list[float], list[tuple[float, float]]]:
    """Of each layer its top and height, and how much of the gap below is for notes."""
    # Text stands in a zone of its own beside lines that are straight there, so that
    # no bend crosses it.
    tall = [max(map(inside.height_of, row), default=0.0) for row in layers.rows]
    tops: list[float] = []
    zones: list[tuple[float, float]] = []
    titled = TAB if inside.frame.title else 0.0
    at = 0.0 if layers.rows and all(map(is_port, layers.rows[0])) else titled + PAD
    for i, row in enumerate(layers.rows):
        tops.append(at)
        below = [link for link in layers.links if link.source in row]
        out = max(
            (
                _tall(inside.routes.leaving.get(n, ""))
                for n in row
                if isinstance(n, str) and n in inside.boxes
            ),
            default=0.0,
        )
        into = max((_tall(link.text) for link in below), default=0.0)
        if at == 0.0 and tall[i] == 0.0:
            out = max(out, titled)
        sideways = max((abs(_across(inside, link)) for link in below), default=0.0)
        ends = any(link.target in inside.boxes for link in below)
        into += _HEAD if ends else 0.0
        zones.append((out, into))
        # The farther a line goes aside the lower it would lie, up to three steps.
        bend = min(_STEP + 0.1 * sideways, 3 * _STEP) if sideways > 1 else _STEP / 2
        at += tall[i] + out + into + bend
    return tops, tall, zones


def _across(inside: _Inside, link: Link) -> float:
    a, b = inside.x[link.source] + link.leaves, inside.x[link.target] + link.enters
    return a - b


def _size(box: Box, labels: Sequence[str]) -> tuple[float, float]:
    first, *more = box.text.split("\n")
    width = max([sans_width(first), *(sans_width(line, SMALL) for line in more)])
    # So that text stays clear of sides that `svg` slants by 14, or rounds.
    slant = 18.0 if box.outline == "decision" else 6.0
    width += 2 * slant + 8
    labels = [label for label in labels if label]
    if labels:
        width = max(width, room(map(_width, labels)))
    # A box round one letter would look like a joint of its lines. `svg` puts the text
    # 6 below the upper side, and 5 more are for what reaches below its baseline.
    return max(width, 56.0), 12.0 + (SANS + 5) + len(more) * (SMALL + 4)


def _width(label: str) -> float:
    lines = label.split("\n")
    return _ASIDE + max(mono_width(line, MONO) for line in lines) if label else 0.0


def _tall(label: str) -> float:
    return LINE * (1 + label.count("\n")) + 2 if label else 0.0
