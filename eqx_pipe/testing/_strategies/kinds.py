"""A maker for each combinator, with drawn pipelines one level deeper."""

import functools as ft
import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import jax.random as jr
import jax.tree_util as jtu

from ... import (
    at,
    batched,
    chain,
    cond,
    ensemble,
    feed,
    frozen,
    gated,
    graph,
    outputs,
    parallel,
    precision,
    repeat,
    residual,
    scan,
    switch,
    tied,
    weighted,
)
from ..._stage import identity
from ..._types import Key, StageLike
from . import joins
from .leaves import Affine, add_noise, is_inexact, squash

if TYPE_CHECKING:
    from .pipelines import Drawing


def _at(d: "Drawing") -> StageLike:
    path = d.one_of(*(path for path, _ in jtu.tree_flatten_with_path(d.struct)[0]))
    where = tuple(getattr(p, "key", getattr(p, "idx", None)) for p in path)
    if None in where:  # fields of a module
        return at((), d.inner())
    return at(where, d.inner(ft.reduce(operator.getitem, where, d.struct)))


def _fold(d: "Drawing") -> StageLike:
    first, *others = d.few()
    parts = [first, *(chain(stage, joins.less) for stage in others)]
    # Squashed, as nested sums would leave the range of small dtypes.
    return chain(parallel(*parts, merge=d.one_of("mean", "sum", "prod")), squash)


def _inputs(d: "Drawing") -> StageLike:
    """Draw a chain over one of two inputs that contains a graph of both."""
    join = joins.Joining(joins.join_of(d.struct))
    block = graph(
        {"node": d.inner(), "join": join},
        {"node": "x", "join": d.one_of(["node", "by"], ["by", "node", "x"])},
        "join",
        inputs=("x", "by"),
    )
    return chain(joins.named, chain(feed(block, x="x", by="by"), block, over="x"))


def _wide(d: "Drawing") -> StageLike:
    merge = d.one_of("tuple", "stack", "dict", "own")
    parts = [d.inner(), d.inner()]
    if merge == "own":
        return parallel(*parts, merge=joins.mean)
    if merge == "dict":
        return chain(parallel(dict(zip("ba", parts, strict=True))), joins.mean)
    back = joins.mean_of_stack if merge == "stack" else joins.mean
    return chain(parallel(*parts, merge=merge), back)


def _weighted(d: "Drawing") -> StageLike:
    children = d.few()
    fixed = jnp.linspace(0.2, 0.8, len(children))
    weights = joins.Weigh(len(children)) if d.draw(st.booleans()) else fixed
    normalize = d.one_of("softmax", "sum", "none")
    return weighted(*children, weights=weights, normalize=normalize)


def _maker(d: "Drawing", *, noisy: bool | None = None) -> Callable[[Key], StageLike]:
    if noisy is None:
        noisy = d.random and d.draw(st.booleans())

    def make(key: Key) -> StageLike:
        scale = jtu.tree_map(lambda s: jr.normal(key, s.shape, s.dtype) / 2, d.struct)
        affine = Affine(scale, jtu.tree_map(jnp.ones_like, scale))
        return chain(affine, add_noise) if noisy else affine

    return make


def _repeat(d: "Drawing") -> StageLike:
    return repeat(_maker(d), d.draw(st.integers(1, 3)), key=jr.key(0))


def _ensemble(d: "Drawing") -> StageLike:
    merge = d.one_of("mean", "max")
    return ensemble(_maker(d), d.draw(st.integers(1, 3)), key=jr.key(0), merge=merge)


def _scan(d: "Drawing") -> StageLike:
    returns, reverse = d.one_of("last", "sequence"), d.draw(st.booleans())
    cell = joins.Cell(d.inner())
    whole = scan(cell, joins.first, returns=returns, reverse=reverse)
    back = joins.mean_of_stack if returns == "sequence" else identity
    return chain(joins.twice, whole, back)


def _tied(d: "Drawing") -> StageLike:
    one, two = (_maker(d, noisy=False)(jr.key(i)) for i in range(2))
    pipe = chain(one=one, between=d.inner(), two=two)
    return tied(pipe, joins.scale_of_two, joins.scale_of_one)


def _outputs(d: "Drawing") -> StageLike:
    inner = outputs(chain(one=d.inner(), two=d.inner()), "one")
    return chain(inner, joins.mean_of_outputs)


def _precision(d: "Drawing") -> StageLike:
    # Not narrower: different rounding would exceed the tolerances of the laws.
    double = any(jnp.finfo(v.dtype).bits == 64 for v in jtu.tree_leaves(d.struct))
    compute = "float64" if double else "float32"
    inside = d.inner(jtu.tree_map(lambda v: _widened(v, compute), d.struct))
    within = precision(inside, compute, output=None)
    return parallel(identity, within, merge=joins.second_as_first)


def _widened(leaf: jax.ShapeDtypeStruct, dtype: str) -> jax.ShapeDtypeStruct:
    real = jnp.issubdtype(leaf.dtype, jnp.floating)
    return jax.ShapeDtypeStruct(leaf.shape, jnp.dtype(dtype)) if real else leaf


def _graph(d: "Drawing") -> StageLike:
    """Draw a graph in which nodes with several predecessors join them."""
    join = joins.join_of(d.struct)
    nodes, edges, ends = {}, {}, []
    for i in range(d.draw(st.integers(1, 3))):
        known = st.sampled_from(list(nodes)) if nodes else st.nothing()
        before = d.draw(st.lists(known, unique=True))
        stage = d.inner()
        several = len(before) > 1
        nodes[f"node{i}"] = joins.Joining(chain(join, stage)) if several else stage
        edges[f"node{i}"] = before
        ends = [end for end in ends if end not in before] + [f"node{i}"]
    if len(ends) == 1:
        return graph(nodes, edges, ends[0])
    return graph({**nodes, "end": joins.Joining(join)}, {**edges, "end": ends}, "end")


def _gated(d: "Drawing") -> StageLike:
    less, gates = chain(d.inner(), joins.less), (joins.positive, joins.always)
    return gated(d.inner(), less, gates=gates, merge=d.one_of("mean", "max"))


_ANY = {
    "chain": lambda d: chain(*d.few()),
    "named chain": lambda d: chain(one=d.inner(), two=d.inner()),
    "extremum": lambda d: parallel(*d.few(), merge=d.one_of("max", "min")),
    "at": _at,
    "graph": _graph,
    "inputs": _inputs,
    "frozen": lambda d: frozen(d.inner()),
}
_BRANCHES = {
    "cond": lambda d: cond(joins.positive, d.inner(), d.inner()),
    "switch": lambda d: switch(joins.selector, d.inner(), d.inner()),
}
_INEXACT = {
    "fold": _fold,
    "wide": _wide,
    "weighted": _weighted,
    "batched": lambda d: chain(joins.twice, batched(d.inner()), joins.mean_of_stack),
    "residual": lambda d: chain(residual(*d.few()), squash),
    "scan": _scan,
    "outputs": _outputs,
    "repeat": _repeat,
    "ensemble": _ensemble,
    "tied": _tied,
    "precision": _precision,
}


def makers(d: "Drawing") -> dict[str, Callable[[Any], StageLike]]:
    """Return the makers of the combinators that support a struct, by name."""
    found = {**_ANY, **(_BRANCHES if d.branches else {})}
    if is_inexact(d.struct):
        found |= {**_INEXACT, **({"gated": _gated} if d.branches else {})}
    return found
