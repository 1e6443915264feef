"""Check and sort the names and edges of a directed graph, without its stages."""

import graphlib
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias, cast

from .._check import check_is, check_name
from .._errors import describe_value, nearest, quoted, value_error
from .container import read_names

GraphEdges: TypeAlias = Mapping[str, str | Sequence[str] | Mapping[str, str]]
"""From each node to its predecessors: a list, a name alone, or a dict by keyword."""

GraphSink: TypeAlias = str | tuple[str, ...] | Mapping[Hashable, str]
"""The output: a node, a tuple of nodes, or a dict of them."""

INPUT = "input"
"""The name of the whole input of a graph."""


def read_inputs(nodes: object, inputs: object) -> tuple[str, ...] | None:
    """Return the names of the inputs; raise unless all names are good and differ."""
    cure = 'Give a dict from name to stage: `nodes={"a": stage}`.'
    check_is("graph", "nodes", nodes, Mapping, cure)
    cure = 'Give a tuple of names: `inputs=("x", "mask")`.'
    check_is("graph", "inputs", inputs, list | tuple | None, cure)
    names = read_names("graph", "nodes", cast(Mapping[str, object], nodes))
    listed = tuple(cast(Sequence[str], inputs or ()))
    for name in listed:
        check_name("graph", "inputs", name)
    for name in names:
        if name in (INPUT, *listed):
            wrong = f"the name `{name}` is reserved for an input of the graph."
            raise value_error("graph", wrong, "Rename the stage.")
    return None if inputs is None else listed


def read_edges(
    names: Collection[str], edges: object, inputs: Collection[str] = ()
) -> tuple[dict[str, tuple[str, ...]], dict[str, tuple[str, ...]]]:
    """Return the predecessors of each node, and keywords; raise if a name is unknown.

    The keywords are those of nodes that get their predecessors by keyword, in the same
    order.
    """
    cure = 'Give a dict from name to its predecessors: `edges={"b": ["a"]}`.'
    check_is("graph", "edges", edges, Mapping, cure)
    listed = cast(Mapping[str, Any], edges)
    _check_known("edges", listed, names)
    missing = [name for name in names if name not in listed]
    if missing:
        raise value_error(
            "graph",
            f"no edges for {quoted(missing)}.",
            f'List the predecessors of every node, as in `edges={{"{missing[0]}": '
            "[]}`; `[]` means the graph's input.",
        )
    found, keywords = {}, {}
    for name in names:
        given, place = listed[name], f'edges["{name}"]'
        if isinstance(given, Mapping) and given:
            for keyword in given:
                check_name("graph", place, keyword)
            keywords[name], given = tuple(given), tuple(given.values())
        given = (given,) if isinstance(given, str) else given
        cure = 'Give a list of names, or a dict `{"mask": name}` by keyword.'
        check_is("graph", place, given, list | tuple, cure)
        found[name] = tuple(given) or (INPUT,)
        _check_known(place, found[name], [*names, *inputs, INPUT])
    return found, keywords


def read_sink(
    names: Collection[str], sink: object, inputs: Collection[str] = ()
) -> tuple[tuple[Hashable, ...] | None, str | tuple[str, ...]]:
    """Return the keys of a dict of sinks (else `None`), and the names of the sinks."""
    keys = tuple(sink) if isinstance(sink, Mapping) else None
    wanted: Any = tuple(sink.values()) if isinstance(sink, Mapping) else sink
    cure = "Give the name of a node, a tuple of names, or a dict `{key: name}`."
    check_is("graph", "sink", wanted, str | tuple, cure)
    if isinstance(wanted, str):  # an input alone is no output
        _check_known("sink", (wanted,), names)
    else:
        _check_known("sink", wanted, [*names, *inputs, INPUT])
    return keys, wanted


def _check_known(place: str, given: Iterable[object], known: Collection[str]) -> None:
    for name in given:
        if name not in known:
            raise value_error(
                "graph",
                f"`{place}` contains {describe_value(name)}, which is not a node.",
                nearest(name, known),
            )


def order(edges: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    """Return the nodes in topological order, whatever the order of `edges`.

    Ties are broken by name: the order in which nodes run, and in which they update a
    state, must not depend on how the edges were written.
    """
    inner = {name: [p for p in edges[name] if p in edges] for name in sorted(edges)}
    try:
        graphlib.TopologicalSorter(inner).prepare()
    except graphlib.CycleError as error:
        cycle = error.args[1][:-1]
        first = cycle.index(min(cycle))
        cycle = cycle[first:] + cycle[:first]
        raise value_error(
            "graph",
            f"the edges form a cycle: {' -> '.join([*cycle, cycle[0]])}.",
            "Remove one of these arrows; for a loop use `repeat`, or "
            "`jax.lax.scan` round a stage.",
        ) from None
    done: dict[str, None] = {}
    while len(done) < len(inner):
        left = (name for name in inner if name not in done)
        done[next(n for n in left if all(p in done for p in inner[n]))] = None
    return tuple(done)


def check_alive(
    edges: Mapping[str, tuple[str, ...]],
    sinks: Collection[str],
    inputs: Collection[str] = (),
) -> None:
    """Raise if the output does not depend on some node, or some named input."""
    alive, todo = set[str](), list(sinks)
    while todo:
        name = todo.pop()
        if name not in alive:
            alive.add(name)
            todo.extend(edges.get(name, ()))
    named = () if INPUT in alive else inputs
    dead = sorted(name for name in [*edges, *named] if name not in alive)
    if dead:
        raise value_error(
            "graph",
            f"{quoted(dead)} {'does' if len(dead) == 1 else 'do'} not contribute to "
            "the sink.",
            "Remove such nodes and inputs, connect them, or add them to `sink`. To "
            'drop entries of a larger dict, use `eqx_pipe.feed(graph, x="x")`.',
        )
