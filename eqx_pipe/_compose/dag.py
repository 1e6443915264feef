"""Names and arrows of a directed graph, checked and put in order. No stages here."""

import graphlib
import heapq
from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import TypeAlias

from .._check import check_draws_apart, check_name
from .._errors import describe_value, nearest, type_error, value_error

GraphEdges: TypeAlias = Mapping[str, str | Sequence[str]]
"""From each node to its predecessors; a name alone is a list of one."""

GraphSink: TypeAlias = str | tuple[str, ...] | Mapping[Hashable, str]
"""What comes out: a node, a tuple of nodes, or a dict of them."""

INPUT = "input"
"""The name that stands for what goes into the graph."""


def check_nodes(nodes: object) -> None:
    """Raises unless `nodes` is a mapping from good names, at least one."""
    if not isinstance(nodes, Mapping):
        raise type_error(
            "graph",
            f"`nodes` is {describe_value(nodes)}.",
            'Give a dict from name to stage: `nodes={"a": stage}`.',
        )
    if not nodes:
        raise value_error("graph", "`nodes` is empty.", "Give at least one node.")
    for name in nodes:
        check_name("graph", "nodes", name)
    check_draws_apart("graph", nodes)
    if INPUT in nodes:
        raise value_error(
            "graph",
            f"a node has the name `{INPUT}`, which stands for the graph's input.",
            "Rename it.",
        )


def read_edges(names: Collection[str], edges: object) -> dict[str, tuple[str, ...]]:
    """The predecessors of each node; raises unless they are all known."""
    if not isinstance(edges, Mapping):
        raise type_error(
            "graph",
            f"`edges` is {describe_value(edges)}.",
            'Give a dict from name to its predecessors: `edges={"b": ["a"]}`.',
        )
    for name in edges:
        if name not in names:
            raise value_error(
                "graph",
                f"`edges` has `{name}`, but there is no such node.",
                nearest(name, names),
            )
    missing = [name for name in names if name not in edges]
    if missing:
        raise value_error(
            "graph",
            f"no edges for {_listed(missing)}.",
            'List the predecessors of every node, as in `edges={"'
            + missing[0]
            + "\": []}`; `[]` means the graph's input.",
        )
    return {name: _predecessors(name, edges[name], names) for name in names}


def _predecessors(name: str, given: object, names: Collection[str]) -> tuple[str, ...]:
    if isinstance(given, str):
        given = (given,)
    if not isinstance(given, (list, tuple)):
        raise type_error(
            "graph",
            f'`edges["{name}"]` is {describe_value(given)}.',
            "Give a list of names.",
        )
    for predecessor in given:
        if predecessor != INPUT and predecessor not in names:
            raise value_error(
                "graph",
                f'`edges["{name}"]` has the unknown name '
                f"{describe_value(predecessor)}.",
                nearest(predecessor, [*names, INPUT]),
            )
    return tuple(given) or (INPUT,)


def read_sink(
    names: Collection[str], sink: object
) -> tuple[tuple[Hashable, ...] | None, str | tuple[str, ...]]:
    """The keys of a dict of sinks (else `None`), and the name or names of the sinks."""
    keys = tuple(sink) if isinstance(sink, Mapping) else None
    wanted = tuple(sink.values()) if isinstance(sink, Mapping) else sink
    if not isinstance(wanted, (str, tuple)):
        raise type_error(
            "graph",
            f"`sink` is {describe_value(sink)}.",
            "Give the name of a node, a tuple of names, or a dict `{key: name}`.",
        )
    if not wanted:
        raise value_error(
            "graph",
            f"`sink` is {describe_value(sink)}: nothing would come out.",
            nearest(None, names),
        )
    for name in (wanted,) if isinstance(wanted, str) else wanted:
        if wanted == INPUT:
            raise value_error(
                "graph",
                '`sink` is "input": the graph would return its input.',
                nearest(None, names),
            )
        if name != INPUT and name not in names:
            raise value_error(
                "graph",
                f"`sink` has the unknown name {describe_value(name)}.",
                nearest(name, names),
            )
    return keys, wanted


def order(edges: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    """The nodes, each after its predecessors, whatever order they were written in.

    Among the nodes that are ready the first by name goes first.
    """
    sorter = graphlib.TopologicalSorter(
        {name: [p for p in edges[name] if p != INPUT] for name in sorted(edges)}
    )
    try:
        sorter.prepare()
    except graphlib.CycleError as error:
        cycle = error.args[1][:-1]
        first = cycle.index(min(cycle))
        cycle = cycle[first:] + cycle[:first]
        raise value_error(
            "graph",
            f"the edges form a cycle: {' -> '.join([*cycle, cycle[0]])}.",
            "Take one of these arrows away; for a loop use `repeat`, or "
            "`jax.lax.scan` round a stage.",
        ) from None
    done = []
    ready = list(sorter.get_ready())
    heapq.heapify(ready)
    while ready:
        name = heapq.heappop(ready)
        done.append(name)
        sorter.done(name)
        for other in sorter.get_ready():
            heapq.heappush(ready, other)
    return tuple(done)


def check_alive(edges: Mapping[str, tuple[str, ...]], sinks: Collection[str]) -> None:
    """Raises if the output does not depend on some node."""
    alive, todo = {INPUT}, list(sinks)
    while todo:
        name = todo.pop()
        if name not in alive:
            alive.add(name)
            todo.extend(edges[name])
    dead = sorted(name for name in edges if name not in alive)
    if dead:
        raise value_error(
            "graph",
            f"nothing that leads to the sink uses {_listed(dead)}.",
            "Take such dead nodes away, connect them, or add them to `sink`.",
        )


def _listed(names: Collection[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)
