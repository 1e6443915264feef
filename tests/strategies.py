"""Hypothesis strategies: pytrees, stages, and pipelines beside hand-written maths.

Shapes come from a small pool, since each new shape compiles again. Everything shrinks
towards one deterministic stage on one small vector.
"""

import dataclasses
import functools as ft
import operator
import random as random_module
import zlib
from collections.abc import Callable
from typing import Any

import equinox as eqx
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import jax.random as jr
import jax.tree_util as jtu
import numpy as np
from jaxtyping import PyTree

import eqx_pipe as ep

VECTOR = jax.ShapeDtypeStruct((4,), jnp.float32)
HALF = jax.ShapeDtypeStruct((3,), jnp.bfloat16)
RECORD = {
    "image": jax.ShapeDtypeStruct((2, 3), jnp.float32),
    "meta": (jax.ShapeDtypeStruct((4,), jnp.float32),),
}
STRUCTS = (VECTOR, HALF, RECORD)


@dataclasses.dataclass(frozen=True)
class Case:
    """A stage, and the same maths by hand: `by_hand(stage, x, key)`.

    The parameters are read from the stage that is handed in, so that both programs can
    be differentiated by them. `random` tells whether it draws, `branches` whether it
    holds a `cond`, `switch` or `gated`.
    """

    stage: Any
    by_hand: Callable[[Any, PyTree, Any], PyTree] = dataclasses.field(repr=False)
    random: bool = False
    branches: bool = False


def child_key(key, segment):
    """A child's key as the design defines it, without the library's help."""
    if key is None:
        return None
    if isinstance(segment, str):
        segment = np.uint32(zlib.crc32(segment.encode()))
    return jr.fold_in(key, segment)


def structs() -> st.SearchStrategy:
    """A pytree of shapes and dtypes."""
    return st.sampled_from(STRUCTS)


def keys() -> st.SearchStrategy:
    """A PRNG key."""
    return st.integers(0, 3).map(jr.key)


def values(struct: PyTree) -> st.SearchStrategy:
    """A pytree of arrays: zeros, ones, or normal."""
    return st.integers(0, 5).map(lambda seed: make_value(struct, seed))


def make_value(struct: PyTree, seed: int) -> PyTree:
    """The pytree of arrays that a seed stands for."""
    rng = np.random.default_rng(seed)

    def make(leaf):
        drawn = rng.normal(size=leaf.shape) if seed > 1 else np.full(leaf.shape, seed)
        return jnp.asarray(drawn, leaf.dtype)

    return jtu.tree_map(make, struct)


# Stages without stages inside; each keeps the struct of its input.


class Affine(eqx.Module):
    """Scales and shifts each leaf elementwise."""

    scale: PyTree
    shift: PyTree

    def __call__(self, x, *, key=None):
        return jtu.tree_map(lambda a, b, v: a * v + b, self.scale, self.shift, x)


def add_noise(x, *, key):
    """Adds the same normal draws to each leaf of a kind."""
    return jtu.tree_map(lambda v: v + jr.normal(key, v.shape, v.dtype), x)


def squash(x):
    """A function of the values alone."""
    return jtu.tree_map(jnp.tanh, x)


def _affine(struct, seed):
    stage = Affine(make_value(struct, seed + 2), make_value(struct, seed + 3))

    def by_hand(stage, x, key):
        return jtu.tree_map(lambda a, b, v: a * v + b, stage.scale, stage.shift, x)

    return Case(stage, by_hand)


def _linear(struct, seed):
    size = struct.shape[0]
    stage = eqx.nn.Linear(size, size, key=jr.key(seed), dtype=struct.dtype)
    return Case(stage, lambda stage, x, key: stage.weight @ x + stage.bias)


def _dropout(struct, seed):
    rate = 0.5

    def by_hand(stage, x, key):
        keep = jr.bernoulli(key, 1 - rate, x.shape)
        return jnp.where(keep, x / (1 - rate), 0)

    return Case(eqx.nn.Dropout(rate), by_hand, random=True)


def stages(struct: PyTree, *, random: bool = True) -> st.SearchStrategy:
    """A stage without stages inside, that keeps `struct`, as a `Case`."""
    seeds = st.integers(0, 3)
    found = [
        st.just(Case(squash, lambda stage, x, key: squash(x))),
        st.just(Case(ep.identity, lambda stage, x, key: x)),
        seeds.map(ft.partial(_affine, struct)),
    ]
    single = isinstance(struct, jax.ShapeDtypeStruct)
    if single and len(struct.shape) == 1:
        found.append(seeds.map(ft.partial(_linear, struct)))
    if random:
        noise = Case(add_noise, lambda stage, x, key: add_noise(x, key=key), True)
        found.append(st.just(noise))
        if single:
            found.append(seeds.map(ft.partial(_dropout, struct)))
    return st.one_of(found)


# Composites of cases, each with the loop one would write by hand.


def _join(cases, stage, by_hand, *, branches=False):
    random = any(case.random for case in cases)
    return Case(stage, by_hand, random, branches or any(c.branches for c in cases))


def in_chain(*cases: Case, names: tuple[str, ...] | None = None) -> Case:
    """Cases one after the other."""
    segments = names or range(len(cases))

    def by_hand(stage, x, key):
        for segment, child, case in zip(segments, stage, cases, strict=True):
            x = case.by_hand(child, x, child_key(key, segment))
        return x

    if names:
        named = {n: case.stage for n, case in zip(names, cases, strict=True)}
        return _join(cases, ep.chain(**named), by_hand)
    return _join(cases, ep.chain(*(case.stage for case in cases)), by_hand)


def _each(cases, children, x, key, segments=None):
    segments = segments or range(len(cases))
    return [
        case.by_hand(child, x, child_key(key, segment))
        for segment, child, case in zip(segments, children, cases, strict=True)
    ]


def _leafwise(fn):
    return lambda trees: jtu.tree_map(lambda *leaves: fn(leaves), *trees)


_FOLDS = {
    "sum": _leafwise(lambda leaves: ft.reduce(operator.add, leaves)),
    "mean": _leafwise(lambda leaves: ft.reduce(operator.add, leaves) / len(leaves)),
    "prod": _leafwise(lambda leaves: ft.reduce(operator.mul, leaves)),
    "max": _leafwise(lambda leaves: ft.reduce(jnp.maximum, leaves)),
    "min": _leafwise(lambda leaves: ft.reduce(jnp.minimum, leaves)),
}


def in_parallel(*cases: Case, merge: str, names: tuple[str, ...] = ()) -> Case:
    """Cases side by side; what a merge makes wider is folded back to the struct."""
    children = [case.stage for case in cases]
    given = [dict(zip(names, children, strict=True))] if names else children
    num_stages = len(cases)

    def apart(stage, x, key):
        return _each(cases, stage, x, key, names)

    if merge in _FOLDS:
        stage = ep.parallel(*given, merge=merge)
        return _join(cases, stage, lambda s, x, key: _FOLDS[merge](apart(s, x, key)))
    join, back = {
        "tuple": (tuple, _FOLDS["sum"]),
        "dict": (
            lambda ys: dict(zip(names, ys, strict=True)),
            lambda ys: _FOLDS["max"]([ys[name] for name in names]),
        ),
        "stack": (
            _leafwise(lambda leaves: jnp.stack(leaves)),
            lambda y: jtu.tree_map(lambda leaf: leaf.max(0), y),
        ),
        "concat": (
            _leafwise(lambda leaves: jnp.concatenate(leaves)),
            lambda y: jtu.tree_map(
                lambda leaf: leaf.reshape(num_stages, -1, *leaf.shape[1:]).max(0), y
            ),
        ),
        "own": (tuple, lambda y: y),
    }[merge]
    if merge == "own":
        given_merge, join = _FOLDS["prod"], _FOLDS["prod"]
    else:
        given_merge = merge
    stage = ep.chain(ep.parallel(*given, merge=given_merge, axis=0), back)
    return _join(
        cases, stage, lambda s, x, key: back(join(apart(s[0], x, child_key(key, 0))))
    )


def in_weighted(*cases: Case, normalize: str, gate: bool) -> Case:
    """A weighted sum of cases, by a trainable leaf or by a gate."""
    num_stages = len(cases)
    finish = {
        "none": lambda w: w,
        "sum": lambda w: w / w.sum(),
        "softmax": jax.nn.softmax,
    }[normalize]

    def weigh(x):
        first = jtu.tree_leaves(x)[0].ravel()[0]
        return jnp.arange(1.0, num_stages + 1) + jax.nn.sigmoid(first).astype(float)

    def by_hand(stage, x, key):
        w = finish(weigh(x) if gate else stage.weights)
        total = None
        for i, y in enumerate(_each(cases, stage, x, key)):
            term = jtu.tree_map(lambda v, wi=w[i]: wi.astype(v.dtype) * v, y)
            total = term if total is None else jtu.tree_map(operator.add, total, term)
        return total

    weights = weigh if gate else jnp.linspace(0.2, 1.0, num_stages)
    children = (case.stage for case in cases)
    stage = ep.weighted(*children, weights=weights, normalize=normalize)
    return _join(cases, stage, by_hand)


def focused(case: Case, where: Any, get: Callable, put: Callable) -> Case:
    """A case on one part; `get(x)` and `put(x, part)` are the lens by hand."""

    def by_hand(stage, x, key):
        return put(x, case.by_hand(stage.stage, get(x), child_key(key, "stage")))

    return _join([case], ep.at(where, case.stage), by_hand)


def repeated(struct: PyTree, size: int, random: bool) -> Case:
    """A `repeat` of affine stages, with or without noise, beside a scan."""

    def make(key):
        scale = jtu.tree_map(lambda s: jr.normal(key, s.shape, s.dtype) / 2, struct)
        affine = Affine(scale, jtu.tree_map(jnp.ones_like, scale))
        return ep.chain(affine, add_noise) if random else affine

    def by_hand(stage, x, key):
        def body(carry, slices):
            affine, i = slices
            y = jtu.tree_map(
                lambda a, b, v: a * v + b, affine.scale, affine.shift, carry
            )
            if random:
                y = add_noise(y, key=child_key(child_key(key, i), 1))
            return y, None

        affines = stage.stages[0] if random else stage.stages
        return jax.lax.scan(body, x, (affines, jnp.arange(size)))[0]

    return Case(ep.repeat(make, size, key=jr.key(0)), by_hand, random)


def over_batch(case: Case) -> Case:
    """A case on two examples, the input and its double, which are then added."""

    def spread(x):
        return jtu.tree_map(lambda v: jnp.stack([v, v + v]), x)

    def gather(y):
        return jtu.tree_map(lambda v: v[0] + v[1], y)

    def by_hand(stage, x, key):
        child, inner = stage[1].stage, child_key(key, 1)
        if key is None:
            y = jax.vmap(lambda v: case.by_hand(child, v, None))(spread(x))
        else:
            each = jax.vmap(lambda v, i: case.by_hand(child, v, child_key(inner, i)))
            y = each(spread(x), jnp.arange(2))
        return gather(y)

    return _join([case], ep.chain(spread, ep.batched(case.stage), gather), by_hand)


def in_diamond(first: Case, left: Case, right: Case) -> Case:
    """A graph: `first`, then `left` and `right` of it, then their sum."""
    nodes = {"first": first, "left": left, "right": right}
    edges = {"first": [], "left": ["first"], "right": ["first"]}

    def add(a, b):
        return jtu.tree_map(operator.add, a, b)

    def by_hand(stage, x, key):
        x = first.by_hand(stage["first"], x, child_key(key, "first"))
        ys = [
            case.by_hand(stage[name], x, child_key(key, name))
            for name, case in (("left", left), ("right", right))
        ]
        return add(*ys)

    stage = ep.graph(
        {**{name: case.stage for name, case in nodes.items()}, "add": add},
        {**edges, "add": ["left", "right"]},
        "add",
    )
    return _join(list(nodes.values()), stage, by_hand)


def positive(x):
    """A predicate: whether the first number of the input is positive."""
    return jtu.tree_leaves(x)[0].ravel()[0] > 0


def in_cond(then: Case, otherwise: Case) -> Case:
    """One of two cases, by `positive`."""

    def by_hand(stage, x, key):
        return jax.lax.cond(
            positive(x),
            lambda x: then.by_hand(stage.then, x, child_key(key, "then")),
            lambda x: otherwise.by_hand(
                stage.otherwise, x, child_key(key, "otherwise")
            ),
            x,
        )

    stage = ep.cond(positive, then.stage, otherwise.stage)
    return _join([then, otherwise], stage, by_hand, branches=True)


def in_switch(*cases: Case) -> Case:
    """One of several cases, the second if the input is positive, else the first."""

    def select(x):
        return positive(x).astype(jnp.int32)

    def by_hand(stage, x, key):
        ys = _each(cases, stage, x, key)
        return jtu.tree_map(lambda *v: jax.lax.select_n(positive(x), *v), *ys[:2])

    stage = ep.switch(select, *(case.stage for case in cases))
    return _join(cases, stage, by_hand, branches=True)


def in_gated(first: Case, second: Case) -> Case:
    """The sum of the first case if the input is positive, and of the second always."""

    def always(x):
        return True

    def by_hand(stage, x, key):
        a, b = _each([first, second], stage.stages, x, key)
        return jtu.tree_map(lambda a, b: jnp.where(positive(x), a + b, b), a, b)

    stage = ep.gated(first.stage, second.stage, gates=(positive, always))
    return _join([first, second], stage, by_hand, branches=True)


def _lenses(struct):
    """Ways to a part: `(where, struct of the part, get, put)`."""
    if struct is RECORD:
        return [
            ("image", struct["image"], lambda x: x["image"], _put_image),
            (("meta", 0), struct["meta"][0], lambda x: x["meta"][0], _put_meta),
            (lambda x: x["meta"][-1], struct["meta"][0], _get_meta, _put_meta),
        ]
    return [((), struct, lambda x: x, lambda x, y: y)]


def _put_image(x, y):
    return {**x, "image": y}


def _get_meta(x):
    return x["meta"][0]


def _put_meta(x, y):
    return {**x, "meta": (y,)}


@st.composite
def pipelines(
    draw, struct: PyTree, *, max_depth: int = 2, random=True, branches=False
) -> Case:
    """A pipeline that keeps `struct`, as a `Case`, with nesting up to `max_depth`.

    `random` and `branches` say whether draws, and `cond`, `switch` and `gated`, occur.
    """
    # Building runs beartype's checks, which sample containers by Python's own `random`;
    # hypothesis refuses a strategy that leaves a trace there.
    trace = random_module.getstate()
    try:
        return _draw_pipeline(draw, struct, max_depth, random, branches)
    finally:
        random_module.setstate(trace)


def _draw_pipeline(draw, struct, max_depth, random, branches):
    # One alternative at a time, and not `one_of` of all, whose text would be huge.
    kind = draw(st.sampled_from(["leaf", *_KINDS])) if max_depth else "leaf"
    if kind == "leaf":
        return draw(stages(struct, random=random))
    if kind in _BRANCHES and not branches:
        kind = "chain"

    def inner(part=struct):
        deeper = {"max_depth": max_depth - 1, "random": random, "branches": branches}
        return draw(pipelines(part, **deeper))

    def few():
        return [inner() for _ in range(draw(st.integers(1, 3)))]

    if kind == "at":
        where, part, get, put = draw(st.sampled_from(_lenses(struct)))
        return focused(inner(part), where, get, put)
    if kind == "repeat":
        return repeated(struct, draw(st.integers(1, 3)), random)
    return _KINDS[kind](draw, inner, few)


_BRANCHES = ("cond", "switch", "gated")
_KINDS = {
    "chain": lambda draw, inner, few: in_chain(*few()),
    "named chain": lambda draw, inner, few: in_chain(
        inner(), inner(), names=("one", "two")
    ),
    "parallel": lambda draw, inner, few: in_parallel(
        *few(),
        merge=draw(st.sampled_from([*_FOLDS, "tuple", "stack", "concat", "own"])),
    ),
    "named parallel": lambda draw, inner, few: in_parallel(
        inner(),
        inner(),
        merge=draw(st.sampled_from([*_FOLDS, "dict", "concat", "tuple"])),
        names=("b", "a"),
    ),
    "weighted": lambda draw, inner, few: in_weighted(
        *few(),
        normalize=draw(st.sampled_from(["none", "sum", "softmax"])),
        gate=draw(st.booleans()),
    ),
    "at": None,
    "repeat": None,
    "batched": lambda draw, inner, few: over_batch(inner()),
    "graph": lambda draw, inner, few: in_diamond(inner(), inner(), inner()),
    "cond": lambda draw, inner, few: in_cond(inner(), inner()),
    "switch": lambda draw, inner, few: in_switch(inner(), inner()),
    "gated": lambda draw, inner, few: in_gated(inner(), inner()),
}
