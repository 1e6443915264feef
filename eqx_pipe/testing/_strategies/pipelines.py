"""Strategies for pipelines: every combinator, nested."""

import functools as ft
import itertools
import operator
from collections.abc import Callable
from typing import Any

import equinox as eqx
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import jax.random as jr
import jax.tree_util as jtu
from jaxtyping import Array, Bool, Int

from ..._compose.batched import batched
from ..._compose.branch import cond, switch
from ..._compose.chain import chain
from ..._compose.focus import at
from ..._compose.gated import gated
from ..._compose.graph import Graph, graph
from ..._compose.parallel import parallel
from ..._compose.repeat import repeat
from ..._compose.weighted import weighted
from ..._stage import Stage
from ..._tree import leaves_with_names
from ..._types import Key, PyTree, StageLike
from .stages import Affine, add_noise, is_inexact, squash, stages
from .validate import (
    Draw,
    check_bool,
    check_int,
    check_strategy,
    check_struct,
    composite,
    structs_of,
)

_THRESHOLD = 0.0317
"""What predicates compare with: not zero, to which roundings would fall on any side."""


@composite
def pipelines(
    draw: Draw,
    struct: PyTree,
    *,
    max_depth: int = 3,
    random: bool = True,
    branches: bool = True,
    leaves: st.SearchStrategy[StageLike] | None = None,
) -> StageLike:
    """A pipeline whose output is like its input, with every combinator in it.

    **Arguments:**

    - `struct`: the shapes and dtypes of the input: a pytree of
      `jax.ShapeDtypeStruct`, or of arrays.
    - `max_depth`: how deep pipelines stand in pipelines; 0 for a single stage. One
      child of each goes all the way down, its siblings less far. (Keyword only.)
    - `random`: whether stages that need a key are among them. (Keyword only.)
    - `branches`: whether `cond`, `switch` and `gated` are. (Keyword only.)
    - `leaves`: a strategy for the single stages; they must keep `struct` and any part
      of it. By default `stages`, with your own (`register_stage`). (Keyword only.)

    **Returns:** a strategy. It shrinks to one single stage.

    !!! example

        >>> import eqx_pipe.testing as ept, hypothesis, hypothesis.strategies as st
        >>> import jax.numpy as jnp, jax.random as jr
        >>> x = jnp.arange(3.0)
        >>> few = hypothesis.settings(max_examples=3, deadline=None)
        >>> @few
        ... @hypothesis.given(ept.pipelines(x, max_depth=1), ept.keys())
        ... def test_jit(pipe, key):
        ...     ept.check_jit(pipe, x, key=key)
        >>> test_jit()
    """
    check_struct("pipelines", struct)
    check_int("pipelines", "max_depth", max_depth, 0)
    check_bool("pipelines", "random", random)
    check_bool("pipelines", "branches", branches)
    check_strategy("pipelines", "leaves", leaves)
    return _pipeline(draw, structs_of(struct), max_depth, random, branches, leaves)


@composite
def graphs(
    draw: Draw, struct: PyTree, *, max_nodes: int = 4, random: bool = True
) -> Graph:
    """A `graph` whose output is like its input.

    **Arguments:**

    - `struct`: the shapes and dtypes of the input: a pytree of
      `jax.ShapeDtypeStruct`, or of arrays.
    - `max_nodes`: the largest number of nodes; a node with several predecessors takes
      their mean. (Keyword only.)
    - `random`: whether stages that need a key are among the nodes. (Keyword only.)

    **Returns:** a strategy. It shrinks to a graph of one node.

    !!! example

        >>> import eqx_pipe.testing as ept, hypothesis, jax.numpy as jnp
        >>> few = hypothesis.settings(max_examples=3, deadline=None)
        >>> @few
        ... @hypothesis.given(ept.graphs(jnp.ones(2), random=False))
        ... def test_shape(graph):
        ...     assert graph(jnp.ones(2)).shape == (2,)
        >>> test_shape()
    """
    check_struct("graphs", struct)
    check_int("graphs", "max_nodes", max_nodes, 1)
    check_bool("graphs", "random", random)
    struct = structs_of(struct)
    several = is_inexact(struct)  # a mean of integers is none
    nodes, edges, unused = {}, {}, set()
    for i in range(draw(st.integers(1, max_nodes))):
        name = f"node{i}"
        stage = draw(stages(struct, random=random))
        known = sorted(nodes)
        before = draw(st.lists(st.sampled_from(known), unique=True)) if known else []
        before = before if several else before[:1]
        nodes[name] = _Averaging(stage) if len(before) > 1 else stage
        edges[name] = before
        unused = (unused - set(before)) | {name}
    ends = sorted(unused)
    if len(ends) == 1:
        return graph(nodes, edges, ends[0])
    if not several:
        # One end alone; the others are dead nodes, which a graph refuses.
        return _line(nodes, edges, ends[-1])
    nodes["end"], edges["end"] = _mean_of, ends
    return graph(nodes, edges, "end")


def _line(nodes: dict[str, StageLike], edges: dict[str, list[str]], end: str) -> Graph:
    """The graph of what leads to `end`."""
    needed, waiting = set(), [end]
    while waiting:
        name = waiting.pop()
        needed.add(name)
        waiting += edges[name]
    return graph(
        {k: v for k, v in nodes.items() if k in needed},
        {k: v for k, v in edges.items() if k in needed},
        end,
    )


def _mean_of(*trees: PyTree) -> PyTree:
    return jtu.tree_map(lambda *v: ft.reduce(operator.add, v) / len(v), *trees)


class _Averaging(eqx.Module):
    """A stage of several inputs: one of their mean."""

    stage: StageLike

    def __call__(self, *trees: PyTree, key: Key | None = None) -> PyTree:
        return chain(_mean_of_tuple, self.stage)(trees, key=key)


def _mean_of_tuple(trees: PyTree) -> PyTree:
    return _mean_of(*trees)


# The combinators. Each is a function of how to draw: an inner pipeline, or a choice.


class _Drawing:
    """What a combinator draws from: the struct, and pipelines one level deeper."""

    def __init__(self, draw: Draw, struct: PyTree, inner: Callable[..., StageLike]):
        self.draw, self.struct, self.inner = draw, struct, inner

    def one_of(self, *values: Any) -> Any:
        return self.draw(st.sampled_from(values))

    def few(self) -> list[StageLike]:
        return [self.inner() for _ in range(self.draw(st.integers(1, 2)))]


def _pipeline(
    draw: Draw,
    struct: PyTree,
    depth: int,
    random: bool,
    branches: bool,
    leaves: st.SearchStrategy[StageLike] | None,
) -> StageLike:
    kinds = ["leaf"]
    if depth:
        kinds += [*_ALWAYS, *(_BRANCHES if branches else {})]
        if is_inexact(struct):
            kinds += [*_INEXACT, *(["repeat"] if leaves is None else [])]
            kinds += _INEXACT_BRANCHES if branches else {}
    # One alternative at a time, and not `one_of` of all, whose text would be huge.
    kind = draw(st.sampled_from(kinds))
    if kind == "leaf":
        return draw(stages(struct, random=random) if leaves is None else leaves)
    if kind == "repeat":
        return _repeat(draw, struct, random)

    # Only the first child goes all the way down: else sizes grow exponentially.
    depths = itertools.chain([depth - 1], itertools.repeat(max(0, min(1, depth - 2))))

    def inner(part: PyTree = struct) -> StageLike:
        return _pipeline(draw, part, next(depths), random, branches, leaves)

    return _MAKERS[kind](_Drawing(draw, struct, inner))


def _at(d: _Drawing) -> StageLike:
    places = [name for name, _ in leaves_with_names(d.struct)]
    if places == [""]:
        return at((), d.inner())
    paths = [path for path, _ in jtu.tree_flatten_with_path(d.struct)[0]]
    path = d.one_of(*paths)
    where: tuple[Any, ...] = tuple(
        getattr(p, "key", getattr(p, "idx", None)) for p in path
    )
    if None in where:  # fields of a module
        return at((), d.inner())
    part: Any = d.struct
    for segment in where:
        part = part[segment]
    return at(where, d.inner(part))


def _graph(d: _Drawing) -> StageLike:
    nodes = {"first": d.inner(), "left": d.inner(), "right": d.inner()}
    edges = {"first": [], "left": ["first"], "right": ["first"]}
    join = parallel_max if not is_inexact(d.struct) else _mean_of
    return graph({**nodes, "end": join}, {**edges, "end": ["left", "right"]}, "end")


def parallel_max(a: PyTree, b: PyTree) -> PyTree:
    """The larger, element by element."""
    return jtu.tree_map(jnp.maximum, a, b)


def _fold(d: _Drawing) -> StageLike:
    merge = d.one_of("mean", "sum", "prod")
    # Squashed, as sums of sums would leave the range of small dtypes.
    named = d.draw(st.booleans())
    given = [{"b": d.inner(), "a": d.inner()}] if named else d.few()
    return chain(parallel(*given, merge=merge), squash)


def _wide(d: _Drawing) -> StageLike:
    merge = d.one_of("tuple", "stack", "dict", "concat", "own")
    children = [d.inner() for _ in range(2)]
    given = [dict(zip("ba", children, strict=True))] if merge == "dict" else children
    if merge == "own":
        return parallel(*given, merge=_mean_of_tuple)
    if merge == "concat":
        if any(not v.shape for v in jtu.tree_leaves(d.struct)):
            return chain(parallel(*given, merge="stack", axis=0), _mean_of_stack)
        return chain(parallel(*given, merge="concat", axis=0), _mean_of_halves)
    back = {"tuple": _mean_of_tuple, "dict": _mean_of_dict, "stack": _mean_of_stack}
    return chain(parallel(*given, merge=merge, axis=0), back[merge])


def _mean_of_dict(trees: PyTree) -> PyTree:
    return _mean_of(*trees.values())


def _mean_of_stack(tree: PyTree) -> PyTree:
    return jtu.tree_map(lambda v: (v[0] + v[1]) / 2, tree)


def _mean_of_halves(tree: PyTree) -> PyTree:
    return jtu.tree_map(lambda v: sum(jnp.split(v, 2)) / 2, tree)


def _weighted(d: _Drawing) -> StageLike:
    children = d.few()
    normalize = d.one_of("softmax", "sum", "none")
    weights = jnp.linspace(0.2, 0.8, len(children))
    if d.draw(st.booleans()):
        return weighted(*children, weights=_Weigh(len(children)), normalize=normalize)
    return weighted(*children, weights=weights, normalize=normalize)


class _Weigh(Stage):
    """A gate: weights that depend on the input."""

    size: int = eqx.field(static=True)

    def __call__(self, x: PyTree, *, key: Key | None = None) -> Array:
        first = jnp.real(jtu.tree_leaves(x)[0]).ravel()[0].astype(jnp.float32)
        first = jax.nn.sigmoid(first)
        return (jnp.arange(1.0, self.size + 1) + first) / self.size


def _twice(x: PyTree) -> PyTree:
    return jtu.tree_map(lambda v: jnp.stack([v, -v]), x)


def positive(x: PyTree) -> Bool[Array, ""]:
    """A predicate: whether the first number of the input is above a threshold."""
    first = jnp.real(jtu.tree_leaves(x)[0]).ravel()[0]
    if not jnp.issubdtype(first.dtype, jnp.inexact):
        first = first.astype(jnp.float32)  # for strict promotion of dtypes
    return first > _THRESHOLD


def always(x: PyTree) -> bool:
    """A predicate that is always true."""
    return True


def _selector(x: PyTree) -> Int[Array, ""]:
    return positive(x).astype(jnp.int32)


def _repeat(draw: Draw, struct: PyTree, random: bool) -> StageLike:
    noisy = random and draw(st.booleans())

    def make(key: Key) -> StageLike:
        scale = jtu.tree_map(lambda s: jr.normal(key, s.shape, s.dtype) / 2, struct)
        affine = Affine(scale, jtu.tree_map(jnp.ones_like, scale))
        return chain(affine, add_noise) if noisy else affine

    return repeat(make, draw(st.integers(1, 3)), key=jr.key(0))


_ALWAYS = {
    "chain": lambda d: chain(*d.few()),
    "named chain": lambda d: chain(one=d.inner(), two=d.inner()),
    "extremum": lambda d: parallel(*d.few(), merge=d.one_of("max", "min")),
    "at": _at,
    "graph": _graph,
}
_INEXACT = {
    "fold": _fold,
    "wide": _wide,
    "weighted": _weighted,
    "batched": lambda d: chain(_twice, batched(d.inner()), _mean_of_stack),
}
_BRANCHES = {
    "cond": lambda d: cond(positive, d.inner(), d.inner()),
    "switch": lambda d: switch(_selector, d.inner(), d.inner()),
}
_INEXACT_BRANCHES = {
    "gated": lambda d: gated(
        d.inner(), d.inner(), gates=(positive, always), merge=d.one_of("mean", "max")
    )
}
_MAKERS = {**_ALWAYS, **_INEXACT, **_BRANCHES, **_INEXACT_BRANCHES}
