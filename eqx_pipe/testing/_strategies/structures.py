"""Strategies for nested pipelines of every combinator, and for spaces."""

import dataclasses
import functools as ft
import operator
from collections.abc import Callable, Sequence
from typing import Any, Literal

import equinox as eqx
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import jax.random as jr
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from ... import (
    Axis,
    Geomspace,
    Linspace,
    Mapped,
    Random,
    Space,
    Stage,
    Static,
    Uniform,
    Values,
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
    sobol,
    switch,
    tied,
    weighted,
)
from ..._check import check_int
from ..._stage import identity
from ..._types import Key, PyTree, StageLike
from .values import Draw, arrays, check_strategies, check_struct


class Affine(Stage):
    """A scale and a shift for each number."""

    scale: PyTree
    shift: PyTree

    def __call__(self, x: PyTree, *, key: Key | None = None) -> PyTree:
        return jtu.tree_map(lambda a, b, v: a * v + b, self.scale, self.shift, x)


def squash(x: PyTree) -> PyTree:
    """Return the hyperbolic tangent of each leaf."""
    return jtu.tree_map(jnp.tanh, x)


def add_noise(x: PyTree, *, key: Key) -> PyTree:
    """Add normal draws to each leaf."""
    leaves, structure = jtu.tree_flatten(x)
    keys = jr.split(key, len(leaves))
    drawn = [
        v + jr.normal(k, v.shape, jnp.result_type(v))
        for k, v in zip(keys, leaves, strict=True)
    ]
    return jtu.tree_unflatten(structure, drawn)


def is_inexact(struct: PyTree) -> bool:
    """Return whether all leaves hold real or complex numbers."""
    return all(jnp.issubdtype(v.dtype, jnp.inexact) for v in jtu.tree_leaves(struct))


# Not zero, which would hide all earlier stages.
_scales = st.integers(-4, 3).map(lambda i: (i + (i >= 0)) / 4)


def leaves(struct: PyTree, random: bool) -> list[st.SearchStrategy]:
    """Return strategies of stages that keep a struct, the simplest first."""
    strategies: list[st.SearchStrategy] = [st.just(identity)]
    if is_inexact(struct):
        affine = st.builds(Affine, arrays(struct, elements=_scales), arrays(struct))
        strategies += [st.just(squash), affine, *_layers(struct)]
        if random:
            single = isinstance(struct, jax.ShapeDtypeStruct)
            strategies += [st.just(add_noise), *[st.just(eqx.nn.Dropout(0.5))] * single]
    return strategies


def _layers(struct: PyTree) -> list[st.SearchStrategy]:
    """Return layers of `equinox.nn` that take a vector."""
    if not isinstance(struct, jax.ShapeDtypeStruct) or len(struct.shape) != 1:
        return []
    (size,) = struct.shape

    def linear(seed: int) -> eqx.nn.Linear:
        return eqx.nn.Linear(size, size, key=jr.key(seed), dtype=struct.dtype)

    # LayerNorm of a single number is always zero; its parameters are float32.
    norm = struct.dtype == jnp.float32 and size > 1
    return [st.integers(0, 3).map(linear)] + [st.just(eqx.nn.LayerNorm(size))] * norm


# Unequal shares, as the mean of `x` and `-x` would hide the input.
SHARE = 0.62


class Joining(eqx.Module):
    """A stage of several inputs, made of a stage that takes a tuple."""

    stage: StageLike

    def __call__(self, *trees: PyTree, key: Key | None = None) -> PyTree:
        return chain(self.stage)(trees, key=key)


class Weigh(Stage):
    """A gate: weights that depend on the input."""

    size: int = eqx.field(static=True)

    def __call__(self, x: PyTree, *, key: Key | None = None) -> Array:
        first = jax.nn.sigmoid(_first_number(x))
        return (jnp.arange(1.0, self.size + 1) + first) / self.size


class Cell(eqx.Module):
    """A cell that carries a mean of its inputs, and returns a mean with its input."""

    stage: StageLike

    def __call__(self, carry: PyTree, x: PyTree, *, key: Key | None = None) -> PyTree:
        y = mean((carry, chain(self.stage)(x, key=key)))
        return y, y


def mean(parts: tuple[PyTree, ...] | dict[str, PyTree]) -> PyTree:
    """Return a mean in which later parts have smaller shares."""
    trees = parts.values() if isinstance(parts, dict) else parts

    def mix(*leaves: Array) -> Array:
        shares = [v * SHARE**i for i, v in enumerate(leaves)]
        return ft.reduce(operator.add, shares) / len(leaves)

    return jtu.tree_map(mix, *trees)


def mean_of_stack(tree: PyTree) -> PyTree:
    """Return the mean of two stacked parts."""
    return mean(tuple(jtu.tree_map(lambda v, i=i: v[i], tree) for i in range(2)))


def mean_of_outputs(both: tuple[PyTree, dict[str, PyTree]]) -> PyTree:
    """Return the mean of an output and of a recorded output inside."""
    return mean((both[0], both[1]["one"]))


def largest(trees: tuple[PyTree, ...]) -> PyTree:
    """Return the element-wise maximum."""
    return jtu.tree_map(lambda *v: ft.reduce(jnp.maximum, v), *trees)


def join_of(struct: PyTree) -> Callable[[tuple[PyTree, ...]], PyTree]:
    """Return a join that returns the dtypes of a struct."""
    return mean if is_inexact(struct) else largest


def less(tree: PyTree) -> PyTree:
    """Scale down each number."""
    return jtu.tree_map(lambda v: v * SHARE, tree)


def named(x: PyTree) -> dict[str, PyTree]:
    """Return a mapping of two inputs made of one input."""
    return {"x": x, "by": x}


def second_as_first(both: tuple[PyTree, PyTree]) -> PyTree:
    """Return the second of two pytrees, in the dtypes of the first."""
    return jtu.tree_map(lambda a, b: b.astype(a.dtype), *both)


def twice(x: PyTree) -> PyTree:
    """Return a batch of two."""
    return jtu.tree_map(lambda v: jnp.stack([v, -v]), x)


def _first_number(x: PyTree) -> Float[Array, ""]:
    # A sum, which is 0 for an array without elements.
    first = jnp.sum(jnp.real(jtu.tree_leaves(x)[0]).ravel()[:1])
    return first.astype(jnp.float32)  # for strict dtype promotion


def positive(x: PyTree) -> Bool[Array, ""]:
    """Return a predicate of the first number."""
    # Not compared with zero, where rounding could change the result.
    return _first_number(x) > 0.0317


def always(x: PyTree) -> bool:
    """Return a constant predicate."""
    return True


def selector(x: PyTree) -> Int[Array, ""]:
    """Return the index of one of two branches."""
    return positive(x).astype(jnp.int32)


def first(xs: PyTree) -> PyTree:
    """Return the first entry of a sequence."""
    return jtu.tree_map(lambda v: v[0], xs)


def scale_of_one(pipe: PyTree) -> PyTree:
    """Return a parameter of the stage `one`."""
    return pipe["one"].scale


def scale_of_two(pipe: PyTree) -> PyTree:
    """Return the parameter of the stage `two` to tie to it."""
    return pipe["two"].scale


@dataclasses.dataclass
class Drawing:
    """A struct and a depth for which pipelines are drawn."""

    draw: Draw
    struct: PyTree
    depth: int
    random: bool
    branches: bool
    stages: Sequence[st.SearchStrategy] = ()
    is_first: bool = True

    def one_of(self, *values: Any) -> Any:
        """Draw one of the values."""
        return self.draw(st.sampled_from(values))

    def pipeline(self) -> StageLike:
        """Draw a stage or a combinator."""
        kinds: dict[str, Callable[[Drawing], StageLike] | None] = {"leaf": None}
        kinds |= _makers(self) if self.depth else {}
        # One maker is built at a time: the `repr` of a `one_of` of all would be huge.
        make = kinds[self.one_of(*kinds)]
        if make is not None:
            return make(self)
        kept = leaves(self.struct, self.random)
        return self.draw(self.one_of(*kept, *self.stages))

    def inner(self, part: PyTree = None) -> StageLike:
        """Draw a pipeline one level deeper, for this struct or for another one."""
        # Only the first child has the full depth: otherwise sizes grow exponentially.
        depth = self.depth - 1 if self.is_first else max(0, min(1, self.depth - 2))
        self.is_first = False
        struct = self.struct if part is None else part
        return dataclasses.replace(
            self, struct=struct, depth=depth, is_first=True
        ).pipeline()

    def few(self) -> list[StageLike]:
        """Draw one or two pipelines one level deeper."""
        return [self.inner() for _ in range(self.draw(st.integers(1, 2)))]


def _at(d: Drawing) -> StageLike:
    path = d.one_of(*(path for path, _ in jtu.tree_flatten_with_path(d.struct)[0]))
    where = tuple(getattr(p, "key", getattr(p, "idx", None)) for p in path)
    if None in where:  # fields of a module
        return at((), d.inner())
    return at(where, d.inner(ft.reduce(operator.getitem, where, d.struct)))


def _fold(d: Drawing) -> StageLike:
    first, *others = d.few()
    parts = [first, *(chain(stage, less) for stage in others)]
    # Squashed, as nested sums would leave the range of small dtypes.
    return chain(parallel(*parts, merge=d.one_of("mean", "sum", "prod")), squash)


def _inputs(d: Drawing) -> StageLike:
    """Draw a chain that broadcasts one of two inputs and contains a graph of both."""
    join = Joining(join_of(d.struct))
    block = graph(
        {"node": d.inner(), "join": join},
        {"node": "x", "join": d.one_of(["node", "by"], ["by", "node", "x"])},
        "join",
        inputs=("x", "by"),
    )
    return chain(named, chain(feed(block, x="x", by="by"), block, broadcast="by"))


def _wide(d: Drawing) -> StageLike:
    merge = d.one_of("tuple", "stack", "dict", "function")
    parts = [d.inner(), d.inner()]
    if merge == "function":
        return parallel(*parts, merge=mean)
    if merge == "dict":
        named = dict(zip("ba", parts, strict=True))
        return chain(parallel(named, merge="dict"), mean)
    if merge == "stack":
        return chain(parallel(*parts, merge=merge, axis=0), mean_of_stack)
    return chain(parallel(*parts, merge=merge), mean)


def _weighted(d: Drawing) -> StageLike:
    children = d.few()
    fixed = jnp.linspace(0.2, 0.8, len(children))
    weights = Weigh(len(children)) if d.draw(st.booleans()) else fixed
    normalize = d.one_of("softmax", "sum", "none")
    return weighted(*children, weights=weights, normalize=normalize)


def _maker(d: Drawing, *, noisy: bool | None = None) -> Callable[[Key], StageLike]:
    if noisy is None:
        noisy = d.random and d.draw(st.booleans())

    def make(key: Key) -> StageLike:
        scale = jtu.tree_map(lambda s: jr.normal(key, s.shape, s.dtype) / 2, d.struct)
        affine = Affine(scale, jtu.tree_map(jnp.ones_like, scale))
        return chain(affine, add_noise) if noisy else affine

    return make


def _repeat(d: Drawing) -> StageLike:
    return repeat(_maker(d), d.draw(st.integers(1, 3)), key=jr.key(0))


def _ensemble(d: Drawing) -> StageLike:
    merge = d.one_of("mean", "max")
    return ensemble(_maker(d), d.draw(st.integers(1, 3)), key=jr.key(0), merge=merge)


def _scan(d: Drawing) -> StageLike:
    returns, reverse = d.one_of("last", "sequence"), d.draw(st.booleans())
    cell = Cell(d.inner())
    whole = scan(cell, first, returns=returns, reverse=reverse)
    back = mean_of_stack if returns == "sequence" else identity
    return chain(twice, whole, back)


def _tied(d: Drawing) -> StageLike:
    one, two = (_maker(d, noisy=False)(jr.key(i)) for i in range(2))
    pipe = chain(one=one, between=d.inner(), two=two)
    return tied(pipe, scale_of_two, scale_of_one)


def _outputs(d: Drawing) -> StageLike:
    inner = outputs(chain(one=d.inner(), two=d.inner()), "one")
    return chain(inner, mean_of_outputs)


def _precision(d: Drawing) -> StageLike:
    # Not narrower: different rounding would exceed the tolerances of the laws.
    double = any(jnp.finfo(v.dtype).bits == 64 for v in jtu.tree_leaves(d.struct))
    compute = "float64" if double else "float32"
    inside = d.inner(jtu.tree_map(lambda v: _widened(v, compute), d.struct))
    within = precision(inside, compute, output=None)
    return parallel(identity, within, merge=second_as_first)


def _widened(leaf: jax.ShapeDtypeStruct, dtype: str) -> jax.ShapeDtypeStruct:
    real = jnp.issubdtype(leaf.dtype, jnp.floating)
    return jax.ShapeDtypeStruct(leaf.shape, jnp.dtype(dtype)) if real else leaf


def _graph(d: Drawing) -> StageLike:
    """Draw a graph in which nodes with several predecessors join them."""
    join = join_of(d.struct)
    nodes, edges, ends = {}, {}, []
    for i in range(d.draw(st.integers(1, 3))):
        known = st.sampled_from(list(nodes)) if nodes else st.nothing()
        before = d.draw(st.lists(known, unique=True))
        stage = d.inner()
        several = len(before) > 1
        nodes[f"node{i}"] = Joining(chain(join, stage)) if several else stage
        edges[f"node{i}"] = before
        ends = [end for end in ends if end not in before] + [f"node{i}"]
    if len(ends) == 1:
        return graph(nodes, edges, ends[0])
    return graph({**nodes, "end": Joining(join)}, {**edges, "end": ends}, "end")


def _gated(d: Drawing) -> StageLike:
    second, gates = chain(d.inner(), less), (positive, always)
    return gated(d.inner(), second, gates=gates, merge=d.one_of("mean", "max"))


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
    "cond": lambda d: cond(positive, d.inner(), d.inner()),
    "switch": lambda d: switch(selector, d.inner(), d.inner()),
}

_INEXACT = {
    "fold": _fold,
    "wide": _wide,
    "weighted": _weighted,
    "batched": lambda d: chain(twice, batched(d.inner()), mean_of_stack),
    "residual": lambda d: chain(residual(*d.few()), squash),
    "scan": _scan,
    "outputs": _outputs,
    "repeat": _repeat,
    "ensemble": _ensemble,
    "tied": _tied,
    "precision": _precision,
}


def _makers(d: Drawing) -> dict[str, Callable[[Any], StageLike]]:
    """Return the makers of the combinators that support a struct, by name."""
    makers = {**_ANY, **(_BRANCHES if d.branches else {})}
    if is_inexact(d.struct):
        makers |= {**_INEXACT, **({"gated": _gated} if d.branches else {})}
    return makers


@st.composite
def pipelines(
    draw: Draw,
    struct: PyTree,
    *,
    stages: Sequence[st.SearchStrategy] = (),
    max_depth: int = 3,
    random: bool = True,
    branches: bool = True,
) -> StageLike:
    """Draw a pipeline of any combinators that keeps structure, shapes and dtypes.

    **Arguments:**

    - `struct`: the shapes and dtypes of the input: a pytree of
      `jax.ShapeDtypeStruct`, or of arrays.
    - `stages`: your own stages, which are drawn in addition: strategies of stages that
        keep the shapes and dtypes of any input. (Keyword only.)
    - `max_depth`: the largest depth of nested pipelines; 0 for a single stage. Only the
        first child of each has the full depth. (Keyword only.)
    - `random`: whether to draw stages that need a key. (Keyword only.)
    - `branches`: whether to draw `cond`, `switch` and `gated`. (Keyword only.)

    **Returns:** a strategy. Examples shrink to a single stage.

    **Raises:** when drawn, `hypothesis.errors.InvalidArgument`, a `TypeError`, if
    `struct` has a leaf without shape and dtype or an entry of `stages` has another
    type; `ValueError` if `max_depth` is below 0.

    !!! example

        >>> import eqx_pipe.testing as ept, hypothesis, hypothesis.strategies as st
        >>> import jax.numpy as jnp
        >>> x = jnp.arange(3.0)
        >>> few = hypothesis.settings(max_examples=3, deadline=None)
        >>> own = st.sampled_from([jnp.square, jnp.negative])
        >>> @few
        ... @hypothesis.given(ept.pipelines(x, stages=[own], max_depth=1), ept.keys())
        ... def test_jit(pipe, key):
        ...     ept.check_function(pipe, x, key=key, only=("jit",))
        >>> test_jit()
    """
    struct = check_struct("pipelines", struct)
    check_int("testing.pipelines", "max_depth", max_depth, 0)
    check_strategies("pipelines", "stages", stages)
    return Drawing(draw, struct, max_depth, random, branches, stages).pipeline()


_NAMES = ("a", "b", "c")

_KINDS: dict[str, Callable[[list[float], str | None], Axis]] = {
    "values": lambda v, dim: Values(np.asarray(v, np.float32), dim=dim),
    "linspace": lambda v, dim: Linspace(v[0], v[-1], len(v), dim=dim),
    "geomspace": lambda v, dim: Geomspace(1, 2.0 ** np.sign(v[0]), len(v), dim=dim),
    "arrays": lambda v, dim: Values(np.stack([v, v], -1).astype(np.int32), dim=dim),
    "mapped": lambda v, dim: Mapped(_square, Linspace(v[0], v[-1], len(v), dim=dim)),
    "random": lambda v, dim: Random(jr.normal, len(v), dim=dim),
    "static": lambda v, dim: Static([f"choice {i}" for i in range(len(v))], dim=dim),
}


def _axis(draw: Draw, size: int, static: bool, dim: str | None) -> Axis:
    """Draw an axis of any kind."""
    numbers = st.integers(-8, 8).map(lambda i: i / 4)
    kind = draw(st.sampled_from([k for k in _KINDS if static or k != "static"]))
    # Every kind uses the same draws, so all shrink to the first kind.
    return _KINDS[kind](draw(st.lists(numbers, min_size=size, max_size=size)), dim)


def _square(value: Array) -> Array:
    return value * value


@st.composite
def spaces(
    draw: Draw,
    *,
    axes: Sequence[st.SearchStrategy[Axis]] = (),
    max_axes: int = 3,
    max_size: int = 3,
    static: bool = False,
) -> Space:
    """Draw a `Space`: a product or zip, with shared dims, joint designs and slices.

    **Arguments:**

    - `axes`: strategies of your own axes; every product without shared dims contains
        one. (Keyword only.)
    - `max_axes`: the largest number of axes. (Keyword only.)
    - `max_size`: the largest number of values of an axis. (Keyword only.)
    - `static`: whether to draw `Static` axes. (Keyword only.)

    **Returns:** a strategy. Examples shrink to one axis with one value.

    **Raises:** when drawn, `hypothesis.errors.InvalidArgument`, a `TypeError`, if
    `axes` is not a list of strategies; `ValueError` if `max_axes` or `max_size` is
    below 1.

    !!! example

        >>> import eqx_pipe.testing as ept, hypothesis
        >>> @hypothesis.given(ept.spaces(max_axes=2))
        ... def test_size(space):
        ...     assert 1 <= space.size <= 9
        >>> test_size()
    """
    check_strategies("spaces", "axes", axes)
    check_int("testing.spaces", "max_axes", max_axes, 1)
    check_int("testing.spaces", "max_size", max_size, 1)
    count = draw(st.integers(1, min(max_axes, len(_NAMES))))
    modes: list[Literal["product", "zip"]] = ["product", "zip"]
    mode = draw(st.sampled_from(modes))
    size = draw(st.integers(1, max_size))
    # Both modes use the same draws, so both shrink to the first mode.
    shared = draw(st.booleans()) and mode == "product" and count > 1
    has_design = draw(st.booleans()) and mode == "product" and count < max_axes
    tree: dict[str, PyTree] = {}
    for i, name in enumerate(_NAMES[:count]):
        dim = "both" if shared and i < 2 else None
        length = draw(st.integers(1, max_size))
        length = size if mode == "zip" or dim else length
        tree[name] = _axis(draw, length, static, dim)
    if axes and mode == "product" and not shared:
        tree["own"] = draw(draw(st.sampled_from(list(axes))))
    if draw(st.booleans()):
        tree["fixed"] = "text"
    if has_design:
        box = {"u": Uniform(0.0, 1.0), "v": Uniform(-1.0, 1.0)}
        tree["design"] = sobol(box, max_size, dim="design").tree
    space = Space(tree, mode=mode, key=jr.key(draw(st.integers(0, 3))))
    if space.size > 1 and draw(st.booleans()):
        return space[draw(st.integers(0, space.size - 1)) :]
    return space
