"""Strategies for pipelines: every combinator, nested."""

import dataclasses
import functools as ft
import operator
from collections.abc import Callable
from typing import Any

import equinox as eqx
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import jax.random as jr
import jax.tree_util as jtu
from jaxtyping import Array, Bool, Float, Int

from ..._compose.batched import batched
from ..._compose.branch import cond, switch
from ..._compose.chain import chain
from ..._compose.ensemble import ensemble
from ..._compose.feed import feed
from ..._compose.focus import at
from ..._compose.gated import gated
from ..._compose.graph import Graph, graph
from ..._compose.parallel import parallel
from ..._compose.repeat import repeat
from ..._compose.residual import residual
from ..._compose.scan import scan
from ..._compose.tapped import tapped
from ..._compose.tied import tied
from ..._compose.weighted import weighted
from ..._stage import Stage, lift
from ..._types import Key, PyTree, StageLike
from .stages import Affine, add_noise, is_inexact, squash, stages
from .validate import (
    Draw,
    check_bool,
    check_int,
    check_strategy,
    check_struct,
    composite,
)


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

    Only `frozen` and `precision` are not among them, whose dtypes do not follow those
    of the input.

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

    **Raises:** `hypothesis.errors.InvalidArgument`, a `TypeError`, if `struct` has a
    leaf without shape and dtype, `max_depth` is below 0, or `leaves` no strategy.

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
    struct = check_struct("pipelines", struct)
    check_int("pipelines", "max_depth", max_depth, 0)
    check_bool("pipelines", "random", random)
    check_bool("pipelines", "branches", branches)
    check_strategy("pipelines", "leaves", leaves)
    return _Drawing(draw, struct, max_depth, random, branches, leaves).pipeline()


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
    return _graph(draw, struct, max_nodes, lambda: draw(stages(struct, random=random)))


def _graph(
    draw: Draw, struct: PyTree, max_nodes: int, make: Callable[[], StageLike]
) -> Graph:
    join = _mean if is_inexact(struct) else _largest
    nodes, edges, ends = {}, {}, []
    for i in range(draw(st.integers(1, max_nodes))):
        known = st.sampled_from(list(nodes)) if nodes else st.nothing()
        before = draw(st.lists(known, unique=True))
        stage = make()
        nodes[f"node{i}"] = _Joining(chain(join, stage)) if len(before) > 1 else stage
        edges[f"node{i}"] = before
        ends = [end for end in ends if end not in before] + [f"node{i}"]
    if len(ends) == 1:
        return graph(nodes, edges, ends[0])
    return graph({**nodes, "end": _Joining(join)}, {**edges, "end": ends}, "end")


class _Joining(eqx.Module):
    """A stage of several inputs, made of one that takes a tuple."""

    stage: StageLike

    def __call__(self, *trees: PyTree, key: Key | None = None) -> PyTree:
        return lift(self.stage)(trees, key=key)


# Unequal, as the mean of `x` and `-x` would hide all that comes before.
_SHARE = 0.62


def _mean(parts: tuple[PyTree, ...] | dict[str, PyTree]) -> PyTree:
    trees = parts.values() if isinstance(parts, dict) else parts

    def mix(*leaves: Array) -> Array:
        shares = [v * _SHARE**i for i, v in enumerate(leaves)]
        return ft.reduce(operator.add, shares) / len(leaves)

    return jtu.tree_map(mix, *trees)


def _less(tree: PyTree) -> PyTree:
    return jtu.tree_map(lambda v: v * _SHARE, tree)


def _largest(trees: tuple[PyTree, ...]) -> PyTree:
    return jtu.tree_map(lambda *v: ft.reduce(jnp.maximum, v), *trees)


@dataclasses.dataclass
class _Drawing:
    """Draws a pipeline of some struct and depth, and those that stand in it."""

    draw: Draw
    struct: PyTree
    depth: int
    random: bool
    branches: bool
    leaves: st.SearchStrategy[StageLike] | None
    is_first: bool = True

    def pipeline(self) -> StageLike:
        kinds = ["leaf"]
        if self.depth:
            kinds += [*_ALWAYS, *(_BRANCHES if self.branches else {})]
            if is_inexact(self.struct):
                kinds += [*_INEXACT, *(_STACKED if self.leaves is None else [])]
                kinds += _INEXACT_BRANCHES if self.branches else {}
        # One alternative at a time, and not `one_of` of all, whose text would be huge.
        kind = self.one_of(*kinds)
        if kind != "leaf":
            return _MAKERS[kind](self)
        usual = stages(self.struct, random=self.random)
        return self.draw(usual if self.leaves is None else self.leaves)

    def one_of(self, *values: Any) -> Any:
        return self.draw(st.sampled_from(values))

    def inner(self, part: PyTree = None) -> StageLike:
        """A pipeline one level deeper, for the same struct or for a part of it."""
        # Only the first child goes all the way down: else sizes grow exponentially.
        depth = self.depth - 1 if self.is_first else max(0, min(1, self.depth - 2))
        self.is_first = False
        struct = self.struct if part is None else part
        inner = dataclasses.replace(self, struct=struct, depth=depth, is_first=True)
        return inner.pipeline()

    def few(self) -> list[StageLike]:
        return [self.inner() for _ in range(self.draw(st.integers(1, 2)))]


def _at(d: _Drawing) -> StageLike:
    path = d.one_of(*(path for path, _ in jtu.tree_flatten_with_path(d.struct)[0]))
    where = tuple(getattr(p, "key", getattr(p, "idx", None)) for p in path)
    if None in where:  # fields of a module
        return at((), d.inner())
    return at(where, d.inner(ft.reduce(operator.getitem, where, d.struct)))


def _fold(d: _Drawing) -> StageLike:
    named = d.draw(st.booleans())
    first, *others = [d.inner(), d.inner()] if named else d.few()
    parts = [first, *(chain(stage, _less) for stage in others)]
    given = [dict(zip("ba", parts, strict=True))] if named else parts
    # Squashed, as sums of sums would leave the range of small dtypes.
    return chain(parallel(*given, merge=d.one_of("mean", "sum", "prod")), squash)


def _inputs(d: _Drawing) -> StageLike:
    """A chain over one of two inputs: of a graph of both, and of what one is fed to."""
    join = _Joining(_mean if is_inexact(d.struct) else _largest)
    block = graph(
        {"node": d.inner(), "join": join},
        {"node": "x", "join": d.one_of(["node", "by"], ["by", "node", "x"])},
        "join",
        inputs=("x", "by"),
    )
    return chain(_named, chain(feed(block, x="x", by="by"), block, over="x"))


def _named(x: PyTree) -> dict[str, PyTree]:
    return {"x": x, "by": x}


def _wide(d: _Drawing) -> StageLike:
    back = {"tuple": _mean, "stack": _mean_of_stack, "dict": _mean, "own": None}
    if all(v.shape for v in jtu.tree_leaves(d.struct)):
        back["concat"] = _mean_of_halves
    merge, children = d.one_of(*back), [d.inner(), d.inner()]
    if merge == "own":
        return parallel(*children, merge=_mean)
    given = [dict(zip("ba", children, strict=True))] if merge == "dict" else children
    return chain(parallel(*given, merge=merge, axis=0), back[merge])


def _mean_of_stack(tree: PyTree) -> PyTree:
    return jtu.tree_map(lambda v: (v[0] + _SHARE * v[1]) / 2, tree)


def _mean_of_halves(tree: PyTree) -> PyTree:
    def mix(leaf: Array) -> Array:
        first, second = jnp.split(leaf, 2)
        return (first + _SHARE * second) / 2

    return jtu.tree_map(mix, tree)


def _weighted(d: _Drawing) -> StageLike:
    children = d.few()
    normalize = d.one_of("softmax", "sum", "none")
    fixed = jnp.linspace(0.2, 0.8, len(children))
    weights = _Weigh(len(children)) if d.draw(st.booleans()) else fixed
    return weighted(*children, weights=weights, normalize=normalize)


class _Weigh(Stage):
    """A gate: weights that depend on the input."""

    size: int = eqx.field(static=True)

    def __call__(self, x: PyTree, *, key: Key | None = None) -> Array:
        first = jax.nn.sigmoid(_first_number(x))
        return (jnp.arange(1.0, self.size + 1) + first) / self.size


def _first_number(x: PyTree) -> Float[Array, ""]:
    first = jnp.real(jtu.tree_leaves(x)[0]).ravel()[0]
    return first.astype(jnp.float32)  # for strict promotion of dtypes


def _twice(x: PyTree) -> PyTree:
    return jtu.tree_map(lambda v: jnp.stack([v, -v]), x)


def _positive(x: PyTree) -> Bool[Array, ""]:
    # Not compared with zero: roundings would fall on either side of it.
    return _first_number(x) > 0.0317


def _always(x: PyTree) -> bool:
    return True


def _selector(x: PyTree) -> Int[Array, ""]:
    return _positive(x).astype(jnp.int32)


def _maker(d: _Drawing, *, noisy: bool | None = None) -> Callable[[Key], StageLike]:
    if noisy is None:
        noisy = d.random and d.draw(st.booleans())

    def make(key: Key) -> StageLike:
        scale = jtu.tree_map(lambda s: jr.normal(key, s.shape, s.dtype) / 2, d.struct)
        affine = Affine(scale, jtu.tree_map(jnp.ones_like, scale))
        return chain(affine, add_noise) if noisy else affine

    return make


def _repeat(d: _Drawing) -> StageLike:
    return repeat(_maker(d), d.draw(st.integers(1, 3)), key=jr.key(0))


def _ensemble(d: _Drawing) -> StageLike:
    merge = d.one_of("mean", "max")
    return ensemble(_maker(d), d.draw(st.integers(1, 3)), key=jr.key(0), merge=merge)


def _residual(d: _Drawing) -> StageLike:
    rate = 0.5 if d.random and d.draw(st.booleans()) else 0.0
    return chain(residual(*d.few(), drop_rate=rate), squash)


def _scan(d: _Drawing) -> StageLike:
    cell = _Cell(lift(d.inner()))
    returns, back = d.one_of(("last", None), ("sequence", _mean_of_stack))
    whole = scan(cell, _first, returns=returns, reverse=d.draw(st.booleans()))
    return chain(_twice, whole, *([] if back is None else [back]))


class _Cell(eqx.Module):
    """A cell that carries the mean of what it saw, and gives that and its input."""

    stage: StageLike

    def __call__(self, carry: PyTree, x: PyTree, *, key: Key | None = None) -> PyTree:
        y = _mean((carry, lift(self.stage)(x, key=key)))
        return y, y


def _first(xs: PyTree) -> PyTree:
    return jtu.tree_map(lambda v: v[0], xs)


def _tied(d: _Drawing) -> StageLike:
    one, two = (_maker(d, noisy=False)(jr.key(i)) for i in range(2))
    pipe = chain(one=one, between=d.inner(), two=two)
    return tied(pipe, _scale_of_two, _scale_of_one)


def _scale_of_one(pipe: PyTree) -> PyTree:
    return pipe["one"].scale


def _scale_of_two(pipe: PyTree) -> PyTree:
    return pipe["two"].scale


def _tapped(d: _Drawing) -> StageLike:
    return chain(tapped(chain(one=d.inner(), two=d.inner()), "one"), _mean_of_tapped)


def _mean_of_tapped(both: tuple[PyTree, dict[str, PyTree]]) -> PyTree:
    y, values = both
    return _mean((y, values["one"]))


_ALWAYS = {
    "chain": lambda d: chain(*d.few()),
    "named chain": lambda d: chain(one=d.inner(), two=d.inner()),
    "extremum": lambda d: parallel(*d.few(), merge=d.one_of("max", "min")),
    "at": _at,
    "graph": lambda d: _graph(d.draw, d.struct, 3, d.inner),
    "inputs": _inputs,
}
_INEXACT = {
    "fold": _fold,
    "wide": _wide,
    "weighted": _weighted,
    "batched": lambda d: chain(_twice, batched(d.inner()), _mean_of_stack),
    "residual": _residual,
    "scan": _scan,
    "tapped": _tapped,
}
_BRANCHES = {
    "cond": lambda d: cond(_positive, d.inner(), d.inner()),
    "switch": lambda d: switch(_selector, d.inner(), d.inner()),
}
_INEXACT_BRANCHES = {
    "gated": lambda d: gated(
        d.inner(),
        chain(d.inner(), _less),
        gates=(_positive, _always),
        merge=d.one_of("mean", "max"),
    )
}
_STACKED = {"repeat": _repeat, "ensemble": _ensemble, "tied": _tied}
_MAKERS = {**_ALWAYS, **_INEXACT, **_BRANCHES, **_INEXACT_BRANCHES, **_STACKED}
