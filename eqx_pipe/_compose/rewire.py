"""The arrows of a graph when nodes are inserted, removed, renamed. No stages here."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from .._errors import quoted, value_error

Before = Sequence[str] | Mapping[Any, str]


class Wires(NamedTuple):
    """The edges of a graph, and what comes out of it, as `graph` takes them."""

    edges: Mapping[str, Before]
    sink: str | tuple[str, ...] | Mapping[Any, str]


def inserted_after(wires: Wires, name: str, new: Sequence[str]) -> Wires:
    """A line of nodes behind one, read by all that read it."""
    edges, sink = _redirected(wires, name, new[-1])
    return Wires({**edges, **_line(name, new)}, sink)


def inserted_before(wires: Wires, name: str, new: Sequence[str]) -> Wires:
    """A line of nodes between one and the only one that it reads."""
    cure = "Insert `after` one of these, or build the graph anew."
    source = _only(wires, name, "between which of them and it", cure)
    read = _swapped(wires.edges[name], source, new[-1])
    return wires._replace(edges={**wires.edges, name: read, **_line(source, new)})


def removed(wires: Wires, name: str) -> Wires:
    """Without a node: what read it reads the only one that it read."""
    cure = "Put another in its place by `replace`, or build the graph anew."
    source = _only(wires, name, "which of them is read instead", cure)
    edges, sink = _redirected(wires, name, source)
    return Wires({n: before for n, before in edges.items() if n != name}, sink)


def renamed(wires: Wires, name: str, new: str) -> Wires:
    """With another name for a node, wherever it stands."""
    edges, sink = _redirected(wires, name, new)
    return Wires({new if n == name else n: b for n, b in edges.items()}, sink)


def _line(source: str, names: Sequence[str]) -> dict[str, list[str]]:
    # Each reads the one before it; nobody in the line reads the last.
    return {n: [s] for n, s in zip(names, [source, *names], strict=False)}


def _only(wires: Wires, name: str, what: str, cure: str) -> str:
    """The only one that a node reads; raises if it reads several."""
    before = wires.edges[name]
    read = before.values() if isinstance(before, Mapping) else before
    found = list(dict.fromkeys(read))
    if len(found) > 1:
        wrong = f"`{name}` reads {quoted(found)}, and nothing says {what}."
        raise value_error("graph", wrong, cure)
    return found[0]


def _redirected(wires: Wires, old: str, new: str) -> Wires:
    """With another node read wherever that one was."""
    edges = {name: _swapped(before, old, new) for name, before in wires.edges.items()}
    sink = wires.sink
    if isinstance(sink, str):
        return Wires(edges, new if sink == old else sink)
    return Wires(edges, _swapped(sink, old, new))


def _swapped(names: Before, old: str, new: str) -> tuple[str, ...] | dict[Any, str]:
    if isinstance(names, Mapping):
        return {key: new if name == old else name for key, name in names.items()}
    return tuple(new if name == old else name for name in names)
