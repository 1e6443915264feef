"""Names and arrows of a directed graph, checked and put in order. No stages here."""

import graphlib
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from .._errors import describe_value, nearest, quoted, type_error, value_error
from .container import check_names

GraphEdges: TypeAlias = Mapping[str, str | Sequence[str] | Mapping[str, str]]
"""From each node to its predecessors: a list, a name alone, or a dict by keyword."""

GraphSink: TypeAlias = str | tuple[str, ...] | Mapping[Hashable, str]
"""The output: a node, a tuple of nodes, or a dict of them."""

INPUT = "input"
"""The name that stands for what goes into the graph."""


def check_nodes(nodes: object) -> None:
    """Raise unless `nodes` is a mapping from good names, at least one."""
    nodes = _mapping("nodes", nodes, 'name to stage: `nodes={"a": stage}`')
    if not nodes:
        raise value_error("graph", "`nodes` is empty.", "Give at least one node.")
    check_names("graph", "nodes", nodes)
    if INPUT in nodes:
        raise value_error(
            "graph",
            f"a node has the name `{INPUT}`, which stands for the graph's input.",
            "Rename it.",
        )


def read_inputs(names: Collection[str], inputs: object) -> tuple[str, ...] | None:
    """The names of the inputs; raises unless each can be told from the nodes."""
    if inputs is None:
        return None
    if not isinstance(inputs, (list, tuple)):
        wrong = f"`inputs` is {describe_value(inputs)}."
        raise type_error(
            "graph", wrong, 'Give a tuple of names: `inputs=("x", "mask")`.'
        )
    if not inputs:
        cure = (
            "Give at least one name, or leave `inputs` out for one input of any kind."
        )
        raise value_error("graph", "`inputs` is empty.", cure)
    check_names("graph", "inputs", inputs)
    taken = [name for name in inputs if name in names or name == INPUT]
    twice = sorted({name for name in inputs if list(inputs).count(name) > 1})
    if taken or twice:
        what = "more than once" if twice else f"and is a node's, or `{INPUT}`"
        wrong = f"{quoted(twice or taken)} stands in `inputs` {what}."
        raise value_error("graph", wrong, "Rename it.")
    return tuple(inputs)


def read_edges(
    names: Collection[str], edges: object, inputs: Collection[str] = ()
) -> tuple[dict[str, tuple[str, ...]], dict[str, tuple[str, ...]]]:
    """The predecessors of each node; raises unless they are all known.

    Then, of the nodes that are given them by name, the names, in the same order.
    """
    edges = _mapping("edges", edges, 'name to its predecessors: `edges={"b": ["a"]}`')
    _check_known("edges", edges, names)
    missing = [name for name in names if name not in edges]
    if missing:
        raise value_error(
            "graph",
            f"no edges for {quoted(missing)}.",
            'List the predecessors of every node, as in `edges={"'
            + missing[0]
            + "\": []}`; `[]` means the graph's input.",
        )
    found, keywords = {}, {}
    for name in names:
        given, place = edges[name], f'edges["{name}"]'
        if isinstance(given, Mapping) and given:
            keywords[name] = check_names("graph", place, given)
            given = tuple(given.values())
        given = (given,) if isinstance(given, str) else given
        if not isinstance(given, (list, tuple)):
            wrong = f"`{place}` is {describe_value(given)}."
            cure = 'Give a list of names, or a dict `{"mask": name}` by keyword.'
            raise type_error("graph", wrong, cure)
        _check_known(place, given, [*names, *inputs, INPUT])
        found[name] = tuple(given) or (INPUT,)
    return found, keywords


def read_sink(
    names: Collection[str], sink: object, inputs: Collection[str] = ()
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
    if not wanted or wanted == INPUT or isinstance(wanted, str) and wanted in inputs:
        what = (
            "the graph would return its input" if wanted else "nothing would come out"
        )
        wrong = f"`sink` is {describe_value(sink)}: {what}."
        raise value_error("graph", wrong, nearest(None, names))
    known = names if isinstance(wanted, str) else [*names, *inputs, INPUT]
    _check_known("sink", (wanted,) if isinstance(wanted, str) else wanted, known)
    return keys, wanted


def _mapping(argument: str, given: object, what: str) -> Mapping[Any, Any]:
    if not isinstance(given, Mapping):
        wrong = f"`{argument}` is {describe_value(given)}."
        raise type_error("graph", wrong, f"Give a dict from {what}.")
    return given


def _check_known(place: str, given: Iterable[object], known: Collection[str]) -> None:
    for name in given:
        if name not in known:
            raise value_error(
                "graph",
                f"`{place}` names {describe_value(name)}, but there is no such node.",
                nearest(name, known),
            )


def order(edges: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    """The nodes, each after its predecessors, whatever order they were written in.

    Among the nodes that are ready the first by name goes first.
    """
    sorter = graphlib.TopologicalSorter(
        {name: [p for p in edges[name] if p in edges] for name in sorted(edges)}
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
            "Remove one of these arrows; for a loop use `repeat`, or "
            "`jax.lax.scan` round a stage.",
        ) from None
    done, ready = [], sorted(sorter.get_ready())
    while ready:
        # One at a time: the order in which nodes run, and so a state's way, must not
        # depend on how the edges were written.
        done.append(ready.pop(0))
        sorter.done(done[-1])
        ready = sorted([*ready, *sorter.get_ready()])
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
    dead = sorted(name for name in edges if name not in alive)
    unused = [] if INPUT in alive else [name for name in inputs if name not in alive]
    if dead:
        raise value_error(
            "graph",
            f"nothing that leads to the sink uses {quoted(dead)}.",
            "Remove such dead nodes, connect them, or add them to `sink`.",
        )
    if unused:
        raise value_error(
            "graph",
            f"nothing uses {quoted(unused)} of `inputs`.",
            "Name it in `edges`, or remove it; where a graph is handed more than it "
            'takes, `eqx_pipe.feed(graph, x="x")` picks.',
        )
