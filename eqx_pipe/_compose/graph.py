"""Stages as the nodes of a directed graph."""

import graphlib
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias, cast

import equinox as eqx

from .._check import check_is, check_name
from .._errors import describe_value, nearest, quoted, value_error
from .._stage import Scope, as_stage
from .._types import AnyStage, MaybeState, Output, PyTree, StageLike
from .container import Container, read_names
from .entries import look_up

GraphEdges: TypeAlias = Mapping[str, str | Sequence[str] | Mapping[str, str]]
"""From each node to its predecessors: a list, a name alone, or a dict by keyword."""


GraphSink: TypeAlias = str | tuple[str, ...] | Mapping[Hashable, str]
"""The output: a node, a tuple of nodes, or a dict of them."""


INPUT = "input"
"""The name of the whole input of a graph."""


class Graph(Container):
    """Stages joined by edges; see `graph`."""

    # These fields are in the order of execution.
    stages: tuple[AnyStage, ...]
    names: tuple[str, ...] = eqx.field(static=True)
    predecessors: tuple[tuple[str, ...], ...] = eqx.field(static=True)
    # The keywords of a node's predecessors; empty where they are passed by position.
    keywords: tuple[tuple[str, ...], ...] = eqx.field(static=True)
    sink: str | tuple[str, ...] = eqx.field(static=True)
    sink_keys: tuple[Hashable, ...] | None = eqx.field(static=True)
    inputs: tuple[str, ...] | None = eqx.field(static=True)

    def settings(self) -> dict[str, Any]:
        edges, sink = self._arrows()
        inputs = {} if self.inputs is None else {"inputs": list(self.inputs)}
        return {"edges": edges, "sink": sink} | inputs

    def with_child(self, segment: str, stage: StageLike) -> "Graph":
        nodes: dict[str, StageLike] = {**self.children(), segment: stage}
        return graph(nodes, *self._arrows(), self.inputs)

    def _arrows(self) -> tuple[GraphEdges, GraphSink]:
        """Return the edges and the sink in the form that `graph` takes."""
        edges = {
            name: dict(zip(keywords, before, strict=True)) if keywords else list(before)
            for name, _, before, keywords in self.joined()
        }
        if self.sink_keys is None:
            return edges, self.sink
        return edges, dict(zip(self.sink_keys, self.sink, strict=True))

    def joined(
        self,
    ) -> Iterator[tuple[str, AnyStage, tuple[str, ...], tuple[str, ...]]]:
        """Yield each node, its stage, predecessors, and keywords for them, if any."""
        every = self.names, self.stages, self.predecessors, self.keywords
        return zip(*every, strict=True)

    def run(self, x: PyTree, state: MaybeState, scope: Scope) -> Output:
        values = {INPUT: x}
        if self.inputs is not None:
            values |= look_up("graph", self.inputs, x, scope, exact=True)
        origins: dict[str, str] = {}  # from each node that is None to the first such
        for name, stage, predecessors, keywords in self.joined():
            args = [values[p] for p in predecessors]
            named = dict(zip(keywords, args, strict=True)) if keywords else {}
            args = () if named else args
            origin = next((origins[p] for p in predecessors if p in origins), None)
            values[name], state = scope.enter(
                name, stage, *args, state=state, named=named, none_from=origin
            )
            if values[name] is None:
                origins[name] = origin or name
        if isinstance(self.sink, str):
            return values[self.sink], state
        y = tuple(values[name] for name in self.sink)
        if self.sink_keys is not None:
            return dict(zip(self.sink_keys, y, strict=True)), state
        return y, state


def graph(
    nodes: Mapping[str, StageLike],
    edges: GraphEdges,
    sink: GraphSink,
    inputs: Sequence[str] | None = None,
) -> Graph:
    """Join stages into a directed acyclic graph.

    Each node gets the outputs of its predecessors by position, in the order listed, so
    a layer of several inputs (`equinox.nn.MultiheadAttention`, a function of two
    arguments) can be a node. `"input"` is the graph's own input. Nodes run in
    topological order, with ties broken by name; the order in which they are written
    does not matter. A node draws from `fold_in(key, crc32(name))`; the state passes
    from node to node in the order in which they run.

    With `inputs`, the graph takes a mapping of several inputs, and edges refer to them
    by name; `"input"` is the whole mapping. A node whose edges are a dict gets its
    predecessors by keyword, or, if it is a pipeline, as one mapping.

    **Arguments:**

    - `nodes`: a mapping from names to stages.
    - `edges`: a mapping from the name of each node to the list of its predecessors;
        `[]` means `["input"]`, and a string is a list of one name. A predecessor may be
        repeated. Instead of a list, a dict maps the node's argument names to
        predecessors.
    - `sink`: the output: a name, a tuple of names, or a dict from keys to names.
    - `inputs`: the names of the graph's inputs; all are required.

    **Returns:** a stage of one input, which with `inputs` is a mapping. It has the
    container methods of a `chain` except slices; the nodes come in the order in which
    they run.

    **Raises:**

    - `TypeError` if something is not a stage, a node does not take as many inputs as it
      has predecessors, or an argument has the wrong type.
    - `ValueError` if a name is unknown, a node has no edges or does not lead to the
      sink, or there is a cycle; the error shows the cycle.
    - `StructureError` (a `ValueError`), when called, if an input is missing or unknown.

    **Laws:** a graph that is a line equals the chain of the same names; writing nodes
    and edges in another order changes nothing.

    !!! example

        >>> import equinox as eqx, eqx_pipe as ep, jax.numpy as jnp, jax.random as jr
        >>> pipe = ep.graph(
        ...     nodes={"wave": jnp.sin, "slope": jnp.cos, "both": lambda a, b: a + b},
        ...     edges={"wave": [], "slope": [], "both": ["wave", "slope"]}, sink="both")
        >>> pipe(jnp.array(0.0)).item()
        1.0
        >>> attention = eqx.nn.MultiheadAttention(2, 4, key=jr.key(0))
        >>> block = ep.graph(
        ...     nodes={"attend": attention, "add": jnp.add},
        ...     edges={"attend": ["x", "x", "x", "mask"], "add": ["x", "attend"]},
        ...     sink="add", inputs=("x", "mask"))
        >>> block({"x": jnp.ones((3, 4)), "mask": jnp.tri(3, dtype=bool)}).shape
        (3, 4)
    """
    input_names = read_inputs(nodes, inputs)
    read, keywords = read_edges(tuple(nodes), edges, input_names or ())
    sink_keys, wanted = read_sink(tuple(nodes), sink, input_names or ())
    names, sinks = order(read), (wanted,) if isinstance(wanted, str) else wanted
    check_alive(read, sinks, input_names or ())
    before = tuple(read[name] for name in names)
    by = tuple(keywords.get(name, ()) for name in names)
    joined = zip(names, before, by, strict=True)
    stages = tuple(_read_stage(name, nodes[name], b, k) for name, b, k in joined)
    return Graph(stages, names, before, by, wanted, sink_keys, input_names)


def _read_stage(
    name: str, stage: object, before: tuple[str, ...], keywords: tuple[str, ...]
) -> AnyStage:
    """Return a node as a stage; raise unless it can be called with its predecessors."""
    if keywords:
        inputs = [f"`{k}={p}`" for k, p in zip(keywords, before, strict=True)]
        how, cure = "by keyword", "Change `edges`: name them as the stage does."
    else:
        inputs, how = [f"`{p}`" for p in before], "by position"
        cure = "Change `edges`, or join several values in a node before it, such as "
        cure += "`lambda a, b: (a, b)`; to a pipeline that takes a mapping give them "
        cure += f'by name: `edges={{"{name}": {{"x": ...}}}}`.'
    num, text = 0 if keywords else len(before), f"{', '.join(inputs)} {how}"
    return as_stage("graph", f'nodes["{name}"]', stage, cure, num, keywords, text)


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
        wrong = f"no edges for {quoted(missing)}."
        cure = f'List the predecessors of every node, as in `edges={{"{missing[0]}": '
        cure += "[]}`; `[]` means the graph's input."
        raise value_error("graph", wrong, cure)
    predecessors, keywords = {}, {}
    for name in names:
        before, argument = listed[name], f'edges["{name}"]'
        if isinstance(before, Mapping) and before:
            for keyword in before:
                check_name("graph", argument, keyword)
            keywords[name], before = tuple(before), tuple(before.values())
        before = (before,) if isinstance(before, str) else before
        cure = 'Give a list of names, or a dict `{"mask": name}` by keyword.'
        check_is("graph", argument, before, list | tuple, cure)
        predecessors[name] = tuple(before) or (INPUT,)
        _check_known(argument, predecessors[name], [*names, *inputs, INPUT])
    return predecessors, keywords


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


def _check_known(
    argument: str, names: Iterable[object], allowed: Collection[str]
) -> None:
    for name in names:
        if name not in allowed:
            wrong = f"`{argument}` contains {describe_value(name)}, which is not a "
            wrong += "node."
            cure = nearest(name, allowed)
            raise value_error("graph", wrong, cure)


def order(edges: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    """Return the nodes in topological order, whatever the order of `edges`.

    Ties are broken by name: the order in which nodes run, and in which they update a
    state, must not depend on how the edges were written.
    """
    inner = {name: [p for p in edges[name] if p in edges] for name in sorted(edges)}
    try:
        graphlib.TopologicalSorter(inner).prepare()
    except graphlib.CycleError as error:
        wrong = f"the edges form a cycle: {' -> '.join(error.args[1])}."
        cure = "Remove one of these arrows; for a loop use `repeat`, or `jax.lax.scan` "
        cure += "round a stage."
        raise value_error("graph", wrong, cure) from None
    done: dict[str, None] = {}
    while len(done) < len(inner):
        left = (name for name in inner if name not in done)
        done[next(n for n in left if all(p in done for p in inner[n]))] = None
    return tuple(done)


def check_alive(
    edges: Mapping[str, tuple[str, ...]], sinks: Iterable[str], inputs: Collection[str]
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
        wrong = f"{quoted(dead)} {'does' if len(dead) == 1 else 'do'} not contribute "
        wrong += "to the sink."
        cure = "Remove such nodes and inputs, connect them, or add them to `sink`. To "
        cure += 'drop entries of a larger dict, use `eqx_pipe.feed(graph, x="x")`.'
        raise value_error("graph", wrong, cure)
