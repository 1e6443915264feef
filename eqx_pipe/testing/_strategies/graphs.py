"""A strategy for graphs."""

from collections.abc import Callable

import hypothesis.strategies as st

from ..._compose import Graph, chain, graph
from ..._types import PyTree, StageLike
from . import joins
from .stages import is_inexact, stages
from .validate import Draw, check_bool, check_int, check_struct, composite


@composite
def graphs(
    draw: Draw, struct: PyTree, *, max_nodes: int = 4, random: bool = True
) -> Graph:
    """A `graph` whose output is like its input.

    **Arguments:**

    - `struct`: the shapes and dtypes of the input: a pytree of
      `jax.ShapeDtypeStruct`, or of arrays.
    - `max_nodes`: the largest number of nodes; a node with several predecessors takes
      a mean of them with unequal weights, or of integers the largest. (Keyword only.)
    - `random`: whether stages that need a key are among the nodes. (Keyword only.)

    **Returns:** a strategy. It shrinks to a graph of one node.

    **Raises:** `hypothesis.errors.InvalidArgument`, a `TypeError`, if `struct` has a
    leaf without shape and dtype, or `max_nodes` is below 1.

    !!! example

        >>> import eqx_pipe.testing as ept, hypothesis, jax.numpy as jnp
        >>> few = hypothesis.settings(max_examples=3, deadline=None)
        >>> @few
        ... @hypothesis.given(ept.graphs(jnp.ones(2), random=False))
        ... def test_shape(graph):
        ...     assert graph(jnp.ones(2)).shape == (2,)
        >>> test_shape()
    """
    struct = check_struct("graphs", struct)
    check_int("graphs", "max_nodes", max_nodes, 1)
    check_bool("graphs", "random", random)
    return draw_graph(
        draw, struct, max_nodes, lambda: draw(stages(struct, random=random))
    )


def draw_graph(
    draw: Draw, struct: PyTree, max_nodes: int, make: Callable[[], StageLike]
) -> Graph:
    """A graph of stages, each from `make`, that gives what is like its input."""
    join = joins.mean if is_inexact(struct) else joins.largest
    nodes, edges, ends = {}, {}, []
    for i in range(draw(st.integers(1, max_nodes))):
        known = st.sampled_from(list(nodes)) if nodes else st.nothing()
        before = draw(st.lists(known, unique=True))
        stage = make()
        several = len(before) > 1
        nodes[f"node{i}"] = joins.Joining(chain(join, stage)) if several else stage
        edges[f"node{i}"] = before
        ends = [end for end in ends if end not in before] + [f"node{i}"]
    if len(ends) == 1:
        return graph(nodes, edges, ends[0])
    return graph({**nodes, "end": joins.Joining(join)}, {**edges, "end": ends}, "end")
