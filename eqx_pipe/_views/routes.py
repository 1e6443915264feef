"""Which way each line of a diagram goes through the borders of frames."""

import itertools
from collections.abc import Iterator

from .layers import Name
from .sketch import Arrow, Frame


class Routes:
    """For each frame the lines in it: from what, to what, and of which box."""

    def __init__(self, whole: Frame):
        self.inside: dict[str, tuple[str, ...]] = {}
        arrows: dict[tuple[str, str], str] = {}
        for arrow in self._arrows(whole, ()):
            ends = (arrow.source, arrow.target)
            before = arrows.get(ends)
            arrows[ends] = arrow.label if before is None else f"{before}\n{arrow.label}"
        labels: dict[str, set[str]] = {}
        for (source, _), label in arrows.items():
            labels.setdefault(source, set()).add(label)
        # What all arrows of a box say is said once, where they leave.
        self.leaving = {s: next(iter(of)) for s, of in labels.items() if len(of) == 1}
        self.links: dict[str, dict[tuple[Name, Name, str], str]] = {}
        paths = {ends: self._path(*ends) for ends in arrows}
        said: dict[tuple[str, str, str], set[str]] = {}
        for (source, target), label in arrows.items():
            frame, _, (into, *_) = paths[source, target]
            said.setdefault((source, frame, into), set()).add(label)
        for (source, target), label in arrows.items():
            frame, upward, downward = paths[source, target]
            label = "" if source in self.leaving else label
            # What all arrows into a frame say is said once, above it.
            above = len(said[source, frame, downward[0]]) == 1
            for item, outer in itertools.pairwise(upward):
                self._link(outer, item, ("out", source), source)
            first = label if above or len(downward) == 1 else ""
            self._link(frame, upward[-1], downward[0], source, first)
            for k, (inner, item) in enumerate(itertools.pairwise(downward)):
                last = label if not above and k == len(downward) - 2 else ""
                self._link(inner, ("in", source), item, source, last)

    def _path(self, source: str, target: str) -> tuple[str, list[str], list[str]]:
        """The innermost frame round both; what leads up to it, and down from it."""
        out, into = self.inside[source], self.inside[target]
        same = 0
        while same < min(len(out), len(into)) and out[same] == into[same]:
            same += 1
        upward = [source, *reversed(out[same:])]
        return out[same - 1], upward, [*into[same:], target]

    def _arrows(self, frame: Frame, above: tuple[str, ...]) -> Iterator[Arrow]:
        path = (*above, frame.name)
        for item in frame.items:
            if isinstance(item, Frame):
                yield from self._arrows(item, path)
            elif isinstance(item, Arrow):
                yield item
            else:
                self.inside[item.name] = path

    def _link(
        self, frame: str, start: Name, end: Name, source: str, label: str = ""
    ) -> None:
        links = self.links.setdefault(frame, {})
        links[start, end, source] = label or links.get((start, end, source), "")


def is_port(name: Name) -> bool:
    """Whether a node is a point of the border round it, and not a box or frame."""
    return isinstance(name, tuple) and name[0] in ("in", "out")
