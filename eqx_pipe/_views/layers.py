"""Places in layers: which layer a node is in, where in it, and how far to the side.

The three steps of Sugiyama, Tagawa and Toda, "Methods for visual understanding of
hierarchical system structures" (1981): the longest path from a source gives the layer,
the mean of the neighbours' positions the order in it, and the sides are least squares
with a least distance, solved exactly by pooling neighbours that would be too close.
"""

import dataclasses
import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import TypeAlias

Name: TypeAlias = Hashable

_BEND_REACH = 9.0
"""How far a line keeps others away that passes by a layer."""


# Twenty boxes with two lines into each then lie within two pixels of where 1,000 turns
# would put them; forty may still be 40 pixels off, which is no worse to read.
_TURNS = 60
"""How often sides are improved."""

_STRAIGHT = 12.0
"""How much straightness counts in long lines, whose bends the eye sees first."""


@dataclasses.dataclass
class Node:
    """How far a node reaches from its middle to the left and to the right."""

    left: float
    right: float


@dataclasses.dataclass(frozen=True)
class Link:
    """A line between nodes of neighbouring layers, or more than one apart at first.

    `leaves` says where on the source, counted from its middle; `enters` where on the
    target, which is left to the layout unless the place is `fixed`. `text` is written
    where it enters, and `label` is its width.
    """

    source: Name
    target: Name
    leaves: float = 0.0
    enters: float = 0.0
    label: float = 0.0
    text: str = ""
    fixed: bool = False


@dataclasses.dataclass
class Layers:
    """Nodes by layer, from left to right; the middle of each; links of one step.

    Where a link passes a layer there is a bend, a node `("bend", source, leaves, i)`.
    """

    rows: list[list[Name]]
    middle: dict[Name, float]
    links: list[Link]


def layered(
    nodes: dict[Name, Node],
    links: Sequence[Link],
    first: Iterable[Name] = (),
    last: Iterable[Name] = (),
) -> Layers:
    """Lays out a graph without cycles, whose nodes are given in the order written.

    The nodes of `first` are above all others, those of `last` below them.
    """
    layer = _layers(nodes, links, set(first), set(last))
    nodes, links = dict(nodes), list(links)
    links = _with_bends(nodes, links, layer)
    rows: list[list[Name]] = [[] for _ in range(max(layer.values(), default=-1) + 1)]
    for name in nodes:
        rows[layer[name]].append(name)
    rows = _ordered(rows, links)
    links = _apart(rows, links)
    return Layers(rows, _middles(rows, nodes, links), links)


def _layers(
    nodes: Mapping[Name, Node], links: Sequence[Link], first: set[Name], last: set[Name]
) -> dict[Name, int]:
    before = {name: [k.source for k in links if k.target == name] for name in nodes}
    after = {name: [k.target for k in links if k.source == name] for name in nodes}
    layer: dict[Name, int] = {}
    pending = list(nodes)
    while pending:  # each pass places those whose predecessors have a place
        ready = [n for n in pending if all(b in layer for b in before[n])]
        assert ready, "a cycle: please report"
        for name in ready:
            above = [layer[b] for b in before[name]]
            above += [0] if first and name not in first else [-1]
            layer[name] = 1 + max(above)
        pending = [n for n in pending if n not in layer]
    for name in nodes:  # what has no input stands right above what it goes into
        if not before[name] and after[name] and name not in first:
            layer[name] = min(layer[a] for a in after[name]) - 1
    bottom = 1 + max((n for k, n in layer.items() if k not in last), default=-1)
    return {k: bottom if k in last else n for k, n in layer.items()}


def _with_bends(
    nodes: dict[Name, Node], links: list[Link], layer: dict[Name, int]
) -> list[Link]:
    """Links of one layer each; those of one source share their way."""
    steps: dict[Link, None] = {}
    for link in links:
        source, leaves = link.source, link.leaves
        for i in range(layer[link.source] + 1, layer[link.target]):
            bend = ("bend", link.source, link.leaves, i)
            nodes.setdefault(bend, Node(_BEND_REACH, _BEND_REACH))
            layer[bend] = i
            steps[Link(source, bend, leaves)] = None
            source, leaves = bend, 0.0
        step = dataclasses.replace(link, source=source, leaves=leaves)
        steps[step] = None
    return list(steps)


def _ordered(rows: list[list[Name]], links: Sequence[Link]) -> list[list[Name]]:
    """The order in each layer that was seen to cross the fewest lines."""
    down, up = _neighbours(links)
    best, fewest = rows, _crossings(rows, links)
    # Down and up by turns. The best order is kept, since a turn may also make it worse.
    for turn in range(8):
        if not fewest:
            break
        rows = [list(row) for row in rows]
        steps = range(1, len(rows)) if turn % 2 == 0 else range(len(rows) - 2, -1, -1)
        beside, step = (up, -1) if turn % 2 == 0 else (down, 1)
        for i in steps:
            place = {name: j for j, name in enumerate(rows[i + step])}
            own = {name: j for j, name in enumerate(rows[i])}

            def mean(name: Name, place=place, own=own, beside=beside) -> float:
                near = [place[n] for n, *_ in beside.get(name, ())]
                return sum(near) / len(near) if near else own[name]

            rows[i].sort(key=mean)
        if (count := _crossings(rows, links)) < fewest:
            best, fewest = rows, count
    return best


def _crossings(rows: list[list[Name]], links: Sequence[Link]) -> int:
    place = {name: (i, j) for i, row in enumerate(rows) for j, name in enumerate(row)}
    by_layer: dict[int, list[tuple[int, int]]] = {}
    for link in links:
        i, a = place[link.source]
        by_layer.setdefault(i, []).append((a, place[link.target][1]))
    count = 0
    for ends in by_layer.values():
        ends.sort()
        for k, (_, b) in enumerate(ends):
            a = ends[k][0]
            count += sum(a < c and d < b for c, d in ends[k + 1 :])
    return count


def _apart(rows: list[list[Name]], links: list[Link]) -> list[Link]:
    """Gives links that enter one node places apart, where they are labelled."""
    place = {name: j for row in rows for j, name in enumerate(row)}
    into: dict[Name, list[Link]] = {}
    for link in links:
        into.setdefault(link.target, []).append(link)
    placed = []
    for entering in into.values():
        labelled = any(link.label and not link.fixed for link in entering)
        if len(entering) == 1 or not labelled:
            placed += entering
            continue
        entering.sort(key=lambda link: place[link.source])
        reach = room(link.label for link in entering) / 2
        at = -reach
        for link in entering:
            # What is written stands to the right of the line.
            placed.append(dataclasses.replace(link, enters=at + _BEND_REACH))
            at += link.label + 2 * _BEND_REACH
    return placed


def room(labels: Iterable[float]) -> float:
    """How wide a node is at least that lines with such labels enter apart."""
    return sum(label + 2 * _BEND_REACH for label in labels)


def _neighbours(
    links: Sequence[Link],
) -> tuple[dict[Name, list[tuple]], dict[Name, list[tuple]]]:
    """What is below and above each node, and by how much that lies to the right."""
    down: dict[Name, list[tuple]] = {}
    up: dict[Name, list[tuple]] = {}
    for link in links:
        shift = link.leaves - link.enters
        weight = _STRAIGHT if _is_bend(link.source) and _is_bend(link.target) else 1.0
        down.setdefault(link.source, []).append((link.target, -shift, weight))
        up.setdefault(link.target, []).append((link.source, shift, weight))
    return down, up


def _is_bend(name: Name) -> bool:
    return isinstance(name, tuple) and name[:1] == ("bend",)


def _middles(
    rows: list[list[Name]], nodes: Mapping[Name, Node], links: Sequence[Link]
) -> dict[Name, float]:
    middle: dict[Name, float] = {}
    gaps: list[list[float]] = []
    for row in rows:
        gaps.append(
            [nodes[a].right + nodes[b].left for a, b in zip(row, row[1:], strict=False)]
        )
        at = 0.0
        for name, gap in zip(row, [0.0, *gaps[-1]], strict=True):
            at += gap
            middle[name] = at
    down, up = _neighbours(links)
    order = range(len(rows))
    for turn in range(_TURNS):
        for i in order if turn % 2 == 0 else reversed(order):
            wanted, weights = [], []
            for name in rows[i]:
                near = up.get(name, []) if turn % 2 == 0 else down.get(name, [])
                near = near or [*up.get(name, []), *down.get(name, [])]
                if turn > _TURNS // 2:
                    near = [*up.get(name, []), *down.get(name, [])]
                weight = sum(w for *_, w in near)
                mean = sum((middle[n] + s) * w for n, s, w in near)
                wanted.append(mean / weight if near else middle[name])
                # Whatever has no neighbours gives way to all others.
                weights.append(weight or 0.01)
            middle.update(zip(rows[i], spaced(wanted, weights, gaps[i]), strict=True))
    _upright(middle, rows, nodes)
    _straighten(middle, rows, gaps)
    return middle


def _upright(
    middle: dict[Name, float], rows: list[list[Name]], nodes: Mapping[Name, Node]
) -> None:
    """Takes out a drift to one side that makes the whole wider than its widest row.

    Where long lines pass every node on the same side, each row evens out by moving a
    little to the other one, and in many rows that adds up.
    """
    count = len(rows)
    if count < 2:
        return
    ends = [
        (middle[row[0]] - nodes[row[0]].left, middle[row[-1]] + nodes[row[-1]].right)
        for row in rows
    ]
    centre = (count - 1) / 2
    tilt = sum((i - centre) * (a + b) / 2 for i, (a, b) in enumerate(ends))
    slope = tilt * 12 / (count * (count**2 - 1))  # by least squares
    if abs(slope) * (count - 1) > max(b - a for a, b in ends):
        for i, row in enumerate(rows):
            middle.update({name: middle[name] - slope * i for name in row})


def _straighten(
    middle: dict[Name, float], rows: list[list[Name]], gaps: list[list[float]]
) -> None:
    """Puts the bends of a long line below each other, where there is room for it."""
    lines: dict[Name, list[tuple[int, int, Name]]] = {}
    for i, row in enumerate(rows):
        for j, name in enumerate(row):
            if isinstance(name, tuple) and _is_bend(name):
                lines.setdefault(name[1:3], []).append((i, j, name))
    for bends in lines.values():
        low, high = -math.inf, math.inf
        for i, j, _ in bends:
            if j > 0:
                low = max(low, middle[rows[i][j - 1]] + gaps[i][j - 1])
            if j + 1 < len(rows[i]):
                high = min(high, middle[rows[i][j + 1]] - gaps[i][j])
        if low <= high:
            mean = sum(middle[name] for *_, name in bends) / len(bends)
            middle.update({name: min(max(mean, low), high) for *_, name in bends})


def spaced(
    wanted: Sequence[float], weights: Sequence[float], gaps: Sequence[float]
) -> list[float]:
    """The places nearest to the wanted ones, by squares, of which two keep the gap.

    `gaps[i]` is the least distance between places `i` and `i + 1`.
    """
    shifts = [0.0]
    for gap in gaps:
        shifts.append(shifts[-1] + gap)
    pools: list[tuple[float, float, int]] = []  # mean, weight, how many
    for want, weight, shift in zip(wanted, weights, shifts, strict=True):
        pool = (want - shift, weight, 1)
        while pools and pools[-1][0] >= pool[0]:
            mean, other, count = pools.pop()
            total = other + pool[1]
            mean = (mean * other + pool[0] * pool[1]) / total
            pool = (mean, total, count + pool[2])
        pools.append(pool)
    flat = [mean for mean, _, count in pools for _ in range(count)]
    return [mean + shift for mean, shift in zip(flat, shifts, strict=True)]
