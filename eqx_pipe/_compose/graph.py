"""Stages as the nodes of a directed graph."""

from collections import Counter
from collections.abc import Hashable, Mapping
from typing import Any, SupportsIndex

import equinox as eqx

from .._check import check_callable
from .._errors import message, nearest, value_error
from .._stage import Scope, as_module, enter, misfit
from .._stage.hidden import check_nothing_hidden
from .._types import AnyStage, MaybeState, Output, PyTree, StageLike
from .container import Container
from .dag import (
    INPUT,
    GraphEdges,
    GraphSink,
    check_alive,
    check_nodes,
    order,
    read_edges,
    read_sink,
)


class Graph(Container):
    """Stages joined by edges; see `graph`."""

    # All in the order of execution.
    stages: tuple[AnyStage, ...]
    names: tuple[str, ...] = eqx.field(static=True)
    predecessors: tuple[tuple[str, ...], ...] = eqx.field(static=True)
    sink: str | tuple[str, ...] = eqx.field(static=True)
    sink_keys: tuple[Hashable, ...] | None = eqx.field(static=True)

    def settings(self) -> dict[str, Any]:
        sink = self.sink
        if self.sink_keys is not None:
            sink = dict(zip(self.sink_keys, self.sink, strict=True))
        edges = dict(zip(self.names, map(list, self.predecessors), strict=True))
        return {"edges": edges, "sink": sink}

    def run(self, x: PyTree, state: MaybeState, scope: Scope) -> Output:
        sinks = (self.sink,) if isinstance(self.sink, str) else self.sink
        uses = Counter(p for some in (*self.predecessors, sinks) for p in some)
        values = {INPUT: x}
        for name, stage, predecessors in zip(
            self.names, self.stages, self.predecessors, strict=True
        ):
            values[name], state = enter(
                scope, name, stage, *(values[p] for p in predecessors), state=state
            )
            for p in predecessors:  # let go of what nobody will use again
                uses[p] -= 1
                if not uses[p]:
                    del values[p]
        if isinstance(self.sink, str):
            return values[self.sink], state
        y = tuple(values[name] for name in self.sink)
        if self.sink_keys is not None:
            return dict(zip(self.sink_keys, y, strict=True)), state
        return y, state

    def __getitem__(self, item: str | SupportsIndex) -> AnyStage:
        """The node of that name."""
        if item not in self.names:  # positions have no meaning in a graph
            raise KeyError(
                message("graph", f"no node `{item}`.", nearest(item, self.names))
            )
        return self.stages[self.names.index(item)]


def graph(nodes: Mapping[str, StageLike], edges: GraphEdges, sink: GraphSink) -> Graph:
    """Joins stages to a directed graph without cycles.

    Each node is called with the outputs of its predecessors by position, in the order
    listed, so a layer of several inputs (`equinox.nn.MultiheadAttention`, a function
    of two arguments) can be a node. `"input"` stands for the graph's own input. Nodes
    run in topological order, ties by name: the order in which they are written has no
    meaning. A node draws from `fold_in(key, crc32(name))`; a state is handed from node
    to node as they run.

    **Arguments:**

    - `nodes`: from name to stage.
    - `edges`: from the name of each node to the list of its predecessors; `[]` means
        `["input"]`, and a string a list of one. A predecessor may be repeated.
    - `sink`: what comes out: a name, a tuple of names, or a dict from keys to names.

    **Returns:** a stage of one input. It has a length, and `["name"]`, `in`, `keys()`,
    `values()` and `items()` as a dict has; iteration gives the nodes as they run.

    **Raises:**

    - `TypeError` if something is not a stage, or an argument has the wrong type.
    - `ValueError` if a name is unknown, a node has no edges, does not lead to the sink,
      or does not take as many inputs as it has predecessors, or if there is a cycle,
      which is shown.

    **Laws:** a graph that is a line equals the chain of the same names; writing nodes
    and edges in another order changes nothing.

    !!! example

        >>> import eqx_pipe as ep, jax.numpy as jnp
        >>> pipe = ep.graph(
        ...     nodes={"wave": jnp.sin, "slope": jnp.cos, "both": lambda a, b: a + b},
        ...     edges={"wave": [], "slope": [], "both": ["wave", "slope"]}, sink="both")
        >>> pipe(jnp.array(0.0)).item()
        1.0
    """
    check_nodes(nodes)
    for name, stage in nodes.items():
        check_callable("graph", f'nodes["{name}"]', stage)
        check_nothing_hidden("graph", f'nodes["{name}"]', stage)
    stages = {name: as_module(stage) for name, stage in nodes.items()}
    read = read_edges(tuple(stages), edges)
    sink_keys, wanted = read_sink(tuple(stages), sink)
    names = order(read)
    check_alive(read, (wanted,) if isinstance(wanted, str) else wanted)
    for name in names:
        count, wrong = len(read[name]), misfit(stages[name], len(read[name]))
        if wrong:
            raise value_error(
                "graph",
                f"node `{name}` has {count} predecessor{'s' * (count != 1)}, "
                f"{', '.join(f'`{p}`' for p in read[name])}, passed to it by position, "
                f"but {wrong}.",
                "Change `edges`, or join several values in a node before it, such as "
                "`lambda a, b: (a, b)`.",
            )
    return Graph(
        tuple(stages[name] for name in names),
        names,
        tuple(read[name] for name in names),
        wanted,
        sink_keys,
    )
