"""Reducers: their interface, `Reducer` of your functions, and statistics.

A statistic is defined by leaf, or by one scalar. A pytree of reducers is one reducer,
by which a sweep reduces. `Sum`, `Mean` and `Var` lose no digits.
`Quantile` is a sketch of constant size, exact as long as it holds all numbers.
"""

import abc
import contextlib
import functools as ft
import inspect
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, ArrayLike, Bool, Float64, Int32, Int64

from .._check import check_choice, check_distinct, check_int, check_is
from .._errors import (
    describe_value,
    nearest,
    quoted,
    structure_error,
    type_error,
    value_error,
)
from .._tree import (
    differences,
    is_key_array,
    leaf_text,
    leaves_with_names,
    path_name,
    struct_of,
    tree_text,
)
from .._types import PyTree, PyTreeDef
from . import exact

By: TypeAlias = str | Callable[[PyTree], PyTree] | None
"""The part of an output to reduce: the path of a leaf, a function, or all."""

Ok: TypeAlias = Bool[Array, " points"]
"""A mask of the points of a batch to include."""

Over: TypeAlias = str | Sequence[str] | None
"""The names of the dims to reduce; all dims if `None`."""


ResultDims: TypeAlias = tuple[dict[str, np.ndarray], str | None]
"""Dims with their coordinates, and the path of an output whose dims follow them."""


def as_over(
    over: Over, function: str = "sweep", owner: str = "a reducer's "
) -> tuple[str, ...]:
    """Return the names of dims; raise unless they are names."""
    names = (over,) if isinstance(over, str) else over
    listed = tuple(names) if isinstance(names, Sequence) else ()
    if not listed or not all(isinstance(name, str) for name in listed):
        wrong = f"{owner}`over` is {describe_value(over)}."
        cure = 'Give the name of a dim, `over="seed"`, or several, `over=("seed", '
        cure += '"x")`; leave it out for all points.'
        raise type_error(function, wrong, cure)
    return listed


def over_field() -> Any:
    """Return the field `over` of a reducer."""
    return eqx.field(
        static=True,
        default=None,
        kw_only=True,
        converter=lambda over: None if over is None else as_over(over),
    )


class AbstractReducer(eqx.Module):
    """A running reduction, as a pure value.

    A state summarises consecutive points. `begin` returns the state of no points;
    `absorb` adds a batch of points, of which only those marked `ok` count;
    `merge(first, second)` combines a state with that of the points right after it, and
    is associative. `finish(state)` returns the result, in NumPy on the host.
    """

    by: eqx.AbstractVar[By]
    over: eqx.AbstractVar[Over]
    # Methods of the reducers of this package, fields of a `Reducer`.
    merge: eqx.AbstractVar[Callable[..., PyTree]]
    finish: eqx.AbstractVar[Callable[..., PyTree]]

    @abc.abstractmethod
    def begin(self, struct: PyTree) -> PyTree:
        """Return the state of no points, for outputs of these shapes and dtypes."""

    @abc.abstractmethod
    def absorb(self, state: PyTree, values: PyTree, ok: Ok) -> PyTree:
        """Return the state after a batch of outputs, of which the `ok` ones count."""

    def dims_at(self, path: str, shape: tuple[int, ...]) -> ResultDims:
        """Return the leading dims of the result of a shape at a path."""
        return {}, None

    def finish_each(self, states: PyTree, count: int) -> PyTree:
        """Return the results of `count` states, both with a leading axis."""
        return jtu.tree_map(np.asarray, type(self).finish(self, states))


def pick(function: str, by: By, values: PyTree) -> PyTree:
    """Return the part of one output (or of its structure) that `by` selects."""
    if by is None:
        return values
    if isinstance(by, str):
        named = {name or "value": leaf for name, leaf in leaves_with_names(values)}
        if by in named:
            return named[by]
        wrong = f"`by` is {describe_value(by)}, which is not an output."
        raise value_error(function, wrong, nearest(by, named))
    if callable(by):
        return by(values)
    wrong = f"`by` is {describe_value(by)}."
    cure = "Give the path of an output, or a function of the output."
    raise type_error(function, wrong, cure)


def picked(reducer: AbstractReducer, struct: PyTree) -> PyTree:
    """Return the shapes and dtypes of the part that a reducer's `by` selects."""
    return jax.eval_shape(_picking(reducer), struct)


def pick_all(reducer: AbstractReducer, values: PyTree) -> PyTree:
    """Return the part that a reducer selects from each output of a batch."""
    return jax.vmap(_picking(reducer))(jtu.tree_map(jnp.asarray, values))


def _picking(reducer: Any) -> Callable[[PyTree], PyTree]:
    name = public_name(reducer)
    return lambda one: jtu.tree_map(jnp.asarray, pick(name, reducer.by, one))


def public_name(reducer: AbstractReducer) -> str:
    """Return the name of a reducer's class in `eqx_pipe`, for messages."""
    return f"reduce.{type(reducer).__name__}"


def numbers(reducer: AbstractReducer, struct: PyTree, *, ordered: bool) -> PyTree:
    """Return the shapes and dtypes of the selected part; raise unless it is numeric.

    If `ordered`, complex numbers raise, too.
    """
    chosen = picked(reducer, struct)
    for name, leaf in leaves_with_names(chosen):
        is_number = jnp.issubdtype(leaf.dtype, jnp.number) or leaf.dtype == jnp.bool_
        if is_number and not (
            ordered and jnp.issubdtype(leaf.dtype, jnp.complexfloating)
        ):
            continue
        what = "no order" if is_number else "no arithmetic"
        wrong = f"the output{f' at `.{name}`' if name else ''} is "
        wrong += f"{leaf_text(leaf)}, which has {what}."
        cure = "Choose what to reduce by `by=`: the path of an output, or a function "
        cure += "of it (such as `lambda out: abs(out)`)."
        raise type_error(public_name(reducer), wrong, cure)
    return chosen


class ScalarReducer(AbstractReducer):
    """A reducer of one real scalar of each output, which `by` selects."""

    def scalar(self, struct: PyTree) -> jax.ShapeDtypeStruct:
        """Return the selected scalar; raise if the selection is anything else."""
        chosen = picked(self, struct)
        leaves = jtu.tree_leaves(chosen)
        if len(leaves) == 1 and leaves[0].shape == () and not is_key_array(leaves[0]):
            return jtu.tree_leaves(numbers(self, struct, ordered=True))[0]
        shown = "the output" if self.by is None else "the value that `by` selects"
        names = [name or "value" for name, _ in leaves_with_names(struct)]
        wrong = f"{shown} is {tree_text(chosen)}, but one real scalar is required."
        cure = "Give `by=`: the path of a scalar output, or a function of the output "
        cure += f"that returns one. Known names: {quoted(names)}."
        raise value_error(public_name(self), wrong, cure)

    def scalars(self, values: PyTree) -> Array:
        """Return the selected scalar of each output of a batch."""
        return jtu.tree_leaves(pick_all(self, values))[0]


class _Form(NamedTuple):
    """The structure and the dtypes of the selected part."""

    structure: PyTreeDef
    dtypes: tuple[np.dtype, ...]


class Leaves(eqx.Module):
    """The number of points, and the state of each leaf."""

    count: exact.Pair
    states: list[PyTree]
    form: _Form = eqx.field(static=True)


class LeafReducer(AbstractReducer):
    """A reducer that is defined by its effect on one leaf.

    If it is `ordered`, complex numbers raise.
    """

    ordered: eqx.AbstractClassVar[bool]

    @abc.abstractmethod
    def empty(self, leaf: jax.ShapeDtypeStruct) -> PyTree:
        """Return the state of no points."""

    @abc.abstractmethod
    def after(self, state: PyTree, leaf: Array, ok: Ok) -> PyTree:
        """Return the state after a batch."""

    @abc.abstractmethod
    def joined(self, first: PyTree, second: PyTree) -> PyTree:
        """Return the state of the points of both states."""

    @abc.abstractmethod
    def result(self, state: PyTree, dtype: np.dtype, count: np.ndarray) -> Any:
        """Return the result for a leaf of the given dtype, or one for each state."""

    def dims_at(self, path: str, shape: tuple[int, ...]) -> ResultDims:
        """Return no dims, and the path of the output that was reduced."""
        by = path if self.by is None else self.by
        return {}, by if isinstance(by, str) else None

    def begin(self, struct: PyTree) -> Leaves:
        """Return the state of no points, for outputs of these shapes and dtypes."""
        chosen = numbers(self, struct, ordered=self.ordered)
        leaves, structure = jtu.tree_flatten(chosen)
        form = _Form(structure, tuple(leaf.dtype for leaf in leaves))
        return Leaves(exact.zero((), jnp.uint32), list(map(self.empty, leaves)), form)

    def absorb(self, state: Leaves, values: PyTree, ok: Ok) -> Leaves:
        """Return the state after a batch of outputs, of which the `ok` ones count."""
        leaves = jtu.tree_leaves(pick_all(self, values))
        pairs = zip(state.states, leaves, strict=True)
        states = [self.after(before, leaf, ok) for before, leaf in pairs]
        count = exact.add(state.count, exact.count(ok))
        return Leaves(count, states, state.form)

    def merge(self, first: Leaves, second: Leaves) -> Leaves:
        """Return the state of the points of both states."""
        states = list(map(self.joined, first.states, second.states))
        return Leaves(exact.add(first.count, second.count), states, first.form)

    def finish(self, state: Leaves) -> PyTree:
        """Return the pytree with a result in place of each leaf."""
        count = exact.on_host(state.count, jnp.uint32)
        pairs = zip(state.states, state.form.dtypes, strict=True)
        results = [self.result(one, dtype, count)[()] for one, dtype in pairs]
        return jtu.tree_unflatten(state.form.structure, results)


class Reducer(AbstractReducer):
    """A running reduction made of your own functions.

    Points are reduced in blocks: `update` is called for each point of a block in the
    order of their indices (vectorised over several stretches of the block), and the
    states of adjacent stretches are merged in order.

    **Arguments:**

    - `init`: `init(struct) -> state`, the state of no points; `struct` is the pytree of
      one output's shapes and dtypes.
    - `update`: `update(state, value) -> state`, the state after one more point. The
      shapes and dtypes of the state must not change.
    - `merge`: `merge(first, second) -> state`, for two adjacent ranges of points. It
      must be associative, with `init`'s state as its identity.
    - `finish`: `finish(state) -> result`, on the host.
    - `by`: the part of an output that `init` and `update` get: the path of one leaf, or
      a function of the output. By default the whole output. (Keyword only.)
    - `over`: the dims to reduce, as in `Mean`. `finish` must then return the same
      shapes and dtypes for every cell. (Keyword only.)

    **Raises:** `TypeError` if one of the functions cannot be called; when the sweep is
    called, `StructureError` (a `ValueError`) if `update` or `merge` changes the
    structure, a shape or a dtype of the state.

    !!! example

        >>> import eqx_pipe as ep, jax.numpy as jnp
        >>> last = ep.reduce.Reducer(
        ...     init=lambda s: (jnp.array(False), jnp.zeros(s.shape, s.dtype)),
        ...     update=lambda state, value: (jnp.array(True), value),
        ...     merge=lambda a, b: (a[0] | b[0], jnp.where(b[0], b[1], a[1])),
        ...     finish=lambda state: state[1])
        >>> ep.sweep(lambda x: x, ep.Linspace(0, 2, 5), reduce=last).values.item()
        2.0
    """

    init: Callable[[PyTree], PyTree]
    update: Callable[[PyTree, PyTree], PyTree]
    merge: Callable[[PyTree, PyTree], PyTree]
    finish: Callable[[PyTree], PyTree]
    by: By = eqx.field(default=None, kw_only=True)
    over: Over = over_field()

    def __check_init__(self) -> None:
        cure = "Give functions: `Reducer(init, update, merge, finish)`."
        for name in ("init", "update", "merge", "finish"):
            check_is("reduce.Reducer", name, getattr(self, name), Callable, cure)

    def absorb(self, state: PyTree, values: PyTree, ok: Ok) -> PyTree:
        """Return the state after a batch: parallel stretches, merged in order."""
        values = pick_all(self, values)
        n = ok.shape[0]
        # About as many stretches as points in each, so that both loops are short.
        lanes = 2 ** (max(n.bit_length() - 1, 0) // 2)
        steps = -(-n // lanes)

        def as_lanes(leaf: Array) -> Array:
            left_over = lanes * steps - n
            # Pad with a real value: `update` may raise or not terminate for zeros.
            padding = jnp.repeat(leaf[-1:], left_over, axis=0)
            whole = jnp.concatenate([leaf, padding])
            return whole.reshape((lanes, steps, *leaf.shape[1:])).swapaxes(0, 1)

        counts = jnp.concatenate([ok, jnp.zeros(lanes * steps - n, bool)])
        counts = counts.reshape(lanes, steps).T
        start = self._start(jtu.tree_map(lambda leaf: struct_of(leaf[0]), values))
        starts = jtu.tree_map(lambda x: jnp.stack([x] * lanes), start)

        def one(state: PyTree, value: PyTree, ok: Bool[Array, ""]) -> PyTree:
            new = _like(self.update(state, value), state)
            return jtu.tree_map(lambda a, b: jnp.where(ok, a, b), new, state)

        def step(states: PyTree, x: Any) -> Any:
            return jax.vmap(one)(states, *x), None

        states, _ = jax.lax.scan(step, starts, (jtu.tree_map(as_lanes, values), counts))

        def join(state: PyTree, later: PyTree) -> Any:
            return _like(self.merge(state, later), state), None

        return jax.lax.scan(join, state, states)[0]

    def begin(self, struct: PyTree) -> PyTree:
        """Return the state of no points."""
        return self._start(picked(self, struct))

    def finish_each(self, states: PyTree, count: int) -> PyTree:
        """Return the results of `count` states, both with a leading axis."""
        each = [jtu.tree_map(lambda x, i=i: x[i], states) for i in range(count)]
        results = [jtu.tree_map(np.asarray, self.finish(state)) for state in each]
        first, *others = results
        lines = [line for other in others for line in differences(first, other)]
        kinds = {leaf.dtype.kind for leaf in jtu.tree_leaves(first)}
        if lines or not kinds <= set("biufcV"):
            wrong = "; ".join(lines[:3]) or "something other than numbers"
            wrong = f"the results of `finish` cannot be stacked over cells: {wrong}."
            cure = "With `over=` return arrays of numbers with the same structure, "
            cure += "shapes and dtypes for every cell, also for a cell without points."
            raise structure_error("reduce.Reducer", wrong, cure)
        return jtu.tree_map(lambda *leaves: np.stack(leaves), *results)

    def _start(self, struct: PyTree) -> PyTree:
        """Return `init`'s state as arrays, after a check of the other functions."""

        def arrays(fn: Callable[..., PyTree], *args: PyTree) -> PyTree:
            return jax.eval_shape(lambda *a: jtu.tree_map(jnp.asarray, fn(*a)), *args)

        first = jtu.tree_map(jnp.asarray, self.init(struct))
        values = jtu.tree_map(lambda s: jax.ShapeDtypeStruct(s.shape, s.dtype), struct)
        _check("update", first, arrays(self.update, first, values))
        _check("merge", first, arrays(self.merge, first, first))
        return first


def _like(new: PyTree, state: PyTree) -> PyTree:
    def one(a: Any, b: Any) -> Any:
        return a if is_key_array(a) else jnp.asarray(a, b.dtype)

    return jtu.tree_map(one, new, state)


def _check(name: str, state: PyTree, new: PyTree) -> None:
    lines = differences(state, new)
    if lines:
        wrong = f"the states of `init` and `{name}` differ: {'; '.join(lines)}."
        cure = "A state keeps its structure, shapes and dtypes. Change `init`, or "
        cure += f"cast in `{name}`."
        raise structure_error("reduce.Reducer", wrong, cure)


ReduceLike: TypeAlias = PyTree[AbstractReducer]
"""The type of `reduce`: a reducer or a pytree of them."""


class ReducerTree(eqx.Module):
    """Reducers that all get the whole output; a state is a list of their states."""

    reducers: list[AbstractReducer]
    structure: Any = eqx.field(static=True)

    def begin(self, struct: PyTree) -> list[PyTree]:
        """Return the state of no points, for outputs of these shapes and dtypes."""
        return [r.begin(struct) for r in self.reducers]

    def absorb(self, state: list[PyTree], values: PyTree, ok: Ok) -> list[PyTree]:
        """Return the state after a batch of outputs, of which the `ok` ones count."""
        both = zip(self.reducers, state, strict=True)
        return [r.absorb(s, values, ok) for r, s in both]

    def merge(self, first: list[PyTree], second: list[PyTree]) -> list[PyTree]:
        """Return the state of the points of both states."""
        three = zip(self.reducers, first, second, strict=True)
        return [r.merge(a, b) for r, a, b in three]

    def finish(self, state: list[PyTree]) -> PyTree:
        """Return the pytree with a result in place of each reducer."""
        both = zip(self.reducers, state, strict=True)
        results = [jtu.tree_map(_on_host, r.finish(s)) for r, s in both]
        return jtu.tree_unflatten(self.structure, results)

    def finish_each(self, states: list[PyTree], count: int) -> PyTree:
        """Return the results of `count` states, both with a leading axis."""
        both = zip(self.reducers, states, strict=True)
        results = [r.finish_each(s, count) for r, s in both]
        return jtu.tree_unflatten(self.structure, results)

    def parts(self, results: PyTree) -> list[tuple[str, AbstractReducer, PyTree]]:
        """Return the path of each reducer, the reducer, and its part of the results."""
        numbers = jtu.tree_unflatten(self.structure, range(len(self.reducers)))
        paths = [name for name, _ in leaves_with_names(numbers)]
        parts = self.structure.flatten_up_to(results)
        return list(zip(paths, self.reducers, parts, strict=True))

    @property
    def over(self) -> tuple[str, ...] | None:
        """The dims that all reducers reduce; `None` for all points."""
        over: Any = self.reducers[0].over
        return over


def as_reducers(function: str, reduce: ReduceLike) -> ReducerTree:
    """Return a reducer or a pytree of reducers as one; raise for anything else."""
    leaves, structure = jtu.tree_flatten_with_path(reduce, is_leaf=is_reducer)
    for path, leaf in leaves:
        if is_reducer(leaf):
            continue
        name = path_name(path)
        where = f"`reduce` has at `.{name}`" if name else "`reduce` is"
        cure = "Give a reducer such as `Mean()`, `ArgMin(by='loss')`, your own "
        cure += "`Reducer(init, update, merge, finish)`, or a pytree of reducers."
        if inspect.isclass(leaf) and issubclass(leaf, AbstractReducer):
            cure = f"Make an instance of it: `{leaf.__name__}(...)`."
        wrong = f"{where} {describe_value(leaf)}, not a reducer."
        raise type_error(function, wrong, cure)
    if not leaves:
        wrong = f"`reduce` is {describe_value(reduce)}, which contains no reducer."
        cure = "Give one such as `Mean()`, or None to keep all values."
        raise type_error(function, wrong, cure)
    check_distinct(function, "reducers", [path_name(path) for path, _ in leaves])
    reducers = [leaf for _, leaf in leaves]
    _check_over(function, reducers)
    return ReducerTree(reducers, structure)


def _check_over(function: str, reducers: Sequence[AbstractReducer]) -> None:
    """Raise a `ValueError` unless all reduce the same dims."""
    kinds = {r.over if r.over is None else frozenset(r.over): r for r in reducers}
    if len(kinds) > 1:
        shown = ", ".join(
            f"{type(r).__name__} over {'all points' if r.over is None else r.over}"
            for r in kinds.values()
        )
        wrong = f"the reducers differ in the dims that they reduce: {shown}."
        cure = "Give all of them the same `over=`, or sweep once for each."
        raise value_error(function, wrong, cure)


def is_reducer(x: object) -> bool:
    """Return whether `x` is a reducer."""
    return isinstance(x, AbstractReducer)


def _on_host(leaf: object) -> Any:
    """Return an array in NumPy, unless it contains keys; anything else unchanged."""
    is_array = eqx.is_array(leaf) and not isinstance(leaf, np.ndarray)
    if not is_array or not isinstance(getattr(leaf, "dtype", None), np.dtype):
        return leaf
    return np.asarray(leaf)[()]


class _Summed(LeafReducer):
    """The base class of `Sum` and `Mean`, whose states are sums."""

    ordered: ClassVar[bool] = False
    by: By = None
    over: Over = over_field()

    def empty(self, leaf: jax.ShapeDtypeStruct) -> exact.Pair:
        return exact.zero(leaf.shape, leaf.dtype)

    def after(self, state: exact.Pair, leaf: Array, ok: Ok) -> exact.Pair:
        return exact.add(state, exact.total(leaf, ok))

    def joined(self, first: exact.Pair, second: exact.Pair) -> exact.Pair:
        return exact.add(first, second)


class Sum(_Summed):
    """The sum of each output leaf.

    Sums of floats are compensated for rounding; sums of integers and bools are exact
    and have 64 bits.

    **Arguments:**

    - `by`: the output to reduce: its path or a function of the output. By default all.
    - `over`: the dims to reduce, a name or several; the result then has the other dims.
      By default all points are reduced to one result. (Keyword only.)

    **Raises:** when the sweep is called, `ValueError` if `by` is not a leaf of the
    output; `TypeError` if the output is not numeric, such as keys.

    !!! example

        >>> import eqx_pipe as ep
        >>> ep.sweep(lambda x: x, ep.Values([1, 2, 3]),
        ...     reduce=ep.reduce.Sum()).values.item()
        6
    """

    def result(
        self, state: exact.AnyPair, dtype: np.dtype, count: np.ndarray
    ) -> np.ndarray:
        value = exact.on_host(state, dtype)
        return value if exact.is_exact(dtype) else value.astype(dtype)


class Mean(_Summed):
    """The mean of each output leaf; integers and bools become floats.

    Without any point it is NaN.

    **Arguments:**

    - `by`: the output to reduce: its path or a function of the output. By default all.
    - `over`: the dims to reduce, a name or several; the result then has the other dims.
      By default all points are reduced to one result. (Keyword only.)

    **Raises:** when the sweep is called, `ValueError` if `by` is not a leaf of the
    output; `TypeError` if the output is not numeric, such as keys.

    !!! example

        >>> import eqx_pipe as ep
        >>> ep.sweep(lambda x: x, ep.Linspace(0, 3, 4),
        ...     reduce=ep.reduce.Mean()).values.item()
        1.5
    """

    def result(
        self, state: exact.AnyPair, dtype: np.dtype, count: np.ndarray
    ) -> np.ndarray:
        total = exact.on_host(state, dtype)
        n = exact.before(count, total)
        # Without any point the mean is NaN, as documented, without a warning.
        with np.errstate(divide="ignore", invalid="ignore"):
            mean = total / np.where(n == 0, np.nan, n)
        return np.asarray(mean).astype(_float(dtype))


class Moments(NamedTuple):
    """The mean of some numbers, and the sum of squared deviations from it."""

    points: exact.Pair
    mean: exact.Pair
    squares: exact.Pair


class Var(LeafReducer):
    r"""The variance of each output leaf; integers and bools become floats.

    It is NaN if the number of points is at most `ddof`.

    **Arguments:**

    - `by`: the output to reduce: its path or a function of the output. By default all.
    - `ddof`: the sum of squares is divided by `n - ddof`, as in NumPy.
    - `over`: the dims to reduce, a name or several; the result then has the other dims.
      By default all points are reduced to one result. (Keyword only.)

    **Raises:** when the sweep is called, `ValueError` if `by` is not a leaf of the
    output; `TypeError` if the output is not numeric, such as keys.

    !!! example

        >>> import eqx_pipe as ep
        >>> ep.sweep(lambda x: x, ep.Linspace(0, 3, 4),
        ...     reduce=ep.reduce.Var()).values.item()
        1.25

    ??? cite "Source"

        Batches are combined by the formula of T. F. Chan, G. H. Golub and R. J. LeVeque
        (1979); means and sums of squares are compensated sums.
    """

    ordered: ClassVar[bool] = False
    by: By = None
    ddof: int = eqx.field(static=True, default=0)
    over: Over = over_field()

    def empty(self, leaf: jax.ShapeDtypeStruct) -> Moments:
        zero, dtype = exact.zero((), jnp.uint32), exact.wide_float(leaf.dtype)
        # The squared deviations of complex numbers are real.
        squares = exact.zero(leaf.shape, jnp.finfo(dtype).dtype)
        return Moments(zero, exact.zero(leaf.shape, dtype), squares)

    def after(self, state: Moments, leaf: Array, ok: Ok) -> Moments:
        return self.joined(state, _moments(leaf, ok))

    def joined(self, first: Moments, second: Moments) -> Moments:
        (m, a, p), (n, b, q) = first, second
        left, share = (exact.as_float(count, a[0].dtype) for count in (m, n))
        share = share / jnp.maximum(left + share, 1)
        step = (b[0] - a[0]) + (b[1] - a[1])
        # An empty state has no step, whose square could be infinite.
        step = jnp.where((left == 0) | (share == 0), jnp.zeros_like(step), step)
        moved = exact.add(a, exact.lift(step * share.astype(a[0].dtype)))
        # If the first state is empty, the mean is that of the second.
        high, low = (jnp.where(left == 0, y, x) for x, y in zip(moved, b, strict=True))
        between = exact.lift(_square(step) * left * share)
        squares = exact.add(exact.add(p, q), between)
        return Moments(exact.add(m, n), (high, low), squares)

    def result(self, state: Moments, dtype: np.dtype, count: np.ndarray) -> np.ndarray:
        total = exact.on_host(state.squares, jnp.float32)
        n = exact.before(count.astype(np.int64) - self.ddof, total)
        value = total / np.where(n > 0, n, np.nan)
        return np.asarray(value).astype(jnp.finfo(_float(dtype)).dtype)


def _moments(leaf: Array, ok: Ok) -> Moments:
    """Return the mean of a batch and its sum of squared deviations."""
    # Compute deviations from a number near the mean, since the difference of two large
    # sums of squares loses all digits.
    count, (leaf, low) = exact.count(ok), _halves(leaf)
    whole = leaf if low is None else leaf + low
    n = jnp.maximum(exact.as_float(count, leaf.dtype), 1).astype(leaf.dtype)
    kept = ok.reshape(ok.shape + (1,) * (leaf.ndim - 1))
    zeros = jnp.zeros_like(leaf)
    # Any number near the mean is good enough; its error is corrected below.
    near = jnp.sum(jnp.where(kept, whole, zeros), axis=0) / n
    away = leaf - near[None]
    away = jnp.where(kept, away if low is None else away + low, zeros)
    missed = jnp.add(*exact.total(away, ok)) / n
    square = exact.total(_square(away), ok)
    nearer = exact.add(square, exact.lift(-_square(missed) * n.real))
    # Do not correct an infinite sum of squares, which would become NaN.
    finite = jnp.isfinite(square[0])
    first, second = map(ft.partial(jnp.where, finite), nearer, square)
    return Moments(count, (near, missed), (first, second))


def _halves(leaf: Array) -> tuple[Array, Array | None]:
    """Return floats whose sum is the leaf: high and low bits for long integers."""
    dtype = exact.wide_float(leaf.dtype)
    if leaf.dtype.itemsize < 4 or not exact.is_exact(leaf.dtype):
        return leaf.astype(dtype), None
    # A float32 has 24 bits of precision and a float64 53, fewer than the integer.
    low = leaf & jnp.asarray(2 ** (4 * leaf.dtype.itemsize - 4) - 1, leaf.dtype)
    return (leaf - low).astype(dtype), low.astype(dtype)


def _square(x: Array) -> Array:
    return jnp.square(x.real) + jnp.square(x.imag) if jnp.iscomplexobj(x) else x * x


def _float(dtype: DTypeLike) -> np.dtype:
    """Return the dtype of a mean of numbers of some dtype, as in `jnp.mean`."""
    return jnp.result_type(float) if exact.is_exact(dtype) else jnp.dtype(dtype)


class _Bound(LeafReducer):
    """The base class of `Min` and `Max`, which differ only in the order."""

    ordered: ClassVar[bool] = True
    minimal: eqx.AbstractClassVar[bool]
    by: By = None
    over: Over = over_field()

    def empty(self, leaf: jax.ShapeDtypeStruct) -> Array:
        return jnp.full(leaf.shape, worst_of(leaf.dtype, self.minimal))

    def after(self, state: Array, leaf: Array, ok: Ok) -> Array:
        kept = ok.reshape(ok.shape + (1,) * (leaf.ndim - 1))
        kept = jnp.where(kept, leaf, worst_of(leaf.dtype, self.minimal))
        best = (jnp.min if self.minimal else jnp.max)(kept, axis=0)
        return self.joined(state, best)

    def joined(self, first: Array, second: Array) -> Array:
        return (jnp.minimum if self.minimal else jnp.maximum)(first, second)

    def result(self, state: Any, dtype: np.dtype, count: np.ndarray) -> Any:
        return result_or_nan(state, count > 0)


class Min(_Bound):
    """The smallest value of each output leaf, entry by entry.

    NaNs propagate, as in NumPy. Without any point, floats are NaN and integers 0.

    **Arguments:**

    - `by`: the output to reduce: its path or a function of the output. By default all.
    - `over`: the dims to reduce, a name or several; the result then has the other dims.
      By default all points are reduced to one result. (Keyword only.)

    **Raises:** when the sweep is called, `ValueError` if `by` is not a leaf of the
    output; `TypeError` if the output has no order, such as complex numbers or keys.

    !!! example

        >>> import eqx_pipe as ep
        >>> ep.sweep(lambda x: x, ep.Linspace(2, 3, 4),
        ...     reduce=ep.reduce.Min()).values.item()
        2.0
    """

    minimal: ClassVar[bool] = True


class Max(_Bound):
    """The largest value of each output leaf, entry by entry.

    NaNs propagate, as in NumPy. Without any point, floats are NaN and integers 0.

    **Arguments:**

    - `by`: the output to reduce: its path or a function of the output. By default all.
    - `over`: the dims to reduce, a name or several; the result then has the other dims.
      By default all points are reduced to one result. (Keyword only.)

    **Raises:** when the sweep is called, `ValueError` if `by` is not a leaf of the
    output; `TypeError` if the output has no order, such as complex numbers or keys.

    !!! example

        >>> import eqx_pipe as ep
        >>> ep.sweep(lambda x: x, ep.Linspace(2, 3, 4),
        ...     reduce=ep.reduce.Max()).values.item()
        3.0
    """

    minimal: ClassVar[bool] = False


def worst_of(dtype: DTypeLike, minimal: bool) -> np.ndarray:
    """Return the identity: the largest number for a minimum, the smallest else."""
    if dtype == jnp.bool_:
        return np.asarray(minimal)
    if jnp.issubdtype(dtype, jnp.integer):
        limits = jnp.iinfo(dtype)
        return np.asarray(limits.max if minimal else limits.min, dtype)
    return np.asarray(np.inf if minimal else -np.inf, dtype)


def result_or_nan(leaf: object, has_value: object) -> np.ndarray | np.generic:
    """Return a value on the host; without points NaN, or 0 if the dtype has no NaN."""
    value = np.asarray(leaf)
    floating = jnp.issubdtype(value.dtype, jnp.floating)
    nothing = np.full_like(value, np.nan if floating else 0)
    return np.where(exact.before(np.asarray(has_value), value), value, nothing)[()]


class Extreme(eqx.Module):
    """The result of `ArgMin`, `ArgMax` and `TopK`.

    `index` is the flat index of the point, `None` if no point has a number;
    `value` is the scalar there. With `TopK` both are arrays, the best first.
    """

    index: int | np.ndarray | None
    value: np.ndarray | np.generic


class Leaders(eqx.Module):
    """The number of points so far, the best of them, and its index.

    `TopK` has `k` entries, which are valid where `found` is true.
    """

    seen: exact.Pair
    found: Bool[Array, "*k"]
    index: exact.Pair
    value: Array


def no_leaders(shape: tuple[int, ...], dtype: DTypeLike) -> Leaders:
    """Return the leaders of no points."""
    zero, index = (exact.zero(x, jnp.uint32) for x in ((), shape))
    return Leaders(zero, jnp.zeros(shape, bool), index, jnp.zeros(shape, dtype))


class _ArgBound(ScalarReducer):
    """The base of `ArgMin` and `ArgMax`, which differ in the end that wins."""

    minimal: eqx.AbstractClassVar[bool]
    by: By = None
    over: Over = over_field()

    def begin(self, struct: PyTree) -> Leaders:
        return no_leaders((), self.scalar(struct).dtype)

    def absorb(self, state: Leaders, values: PyTree, ok: Ok) -> Leaders:
        scores = self.scalars(values)
        candidate = ok & is_not_nan(scores)
        kept = jnp.where(candidate, scores, worst_of(scores.dtype, self.minimal))
        best = jnp.min(kept) if self.minimal else jnp.max(kept)
        # Two vectorised passes are faster than `argmin`.
        positions = jnp.arange(ok.size, dtype=jnp.uint32)
        wins = candidate & (kept == best)
        index = jnp.min(jnp.where(wins, positions, np.uint32(ok.size - 1)))
        value = scores.at[index].get(mode="promise_in_bounds")
        zero = jnp.zeros((), jnp.uint32)
        seen = (jnp.full((), ok.size, jnp.uint32), zero)
        batch = Leaders(seen, jnp.any(candidate), (index, zero), value)
        return self.merge(state, batch)

    def merge(self, first: Leaders, second: Leaders) -> Leaders:
        a, b = first.value, second.value
        # Not `<=`: if values are equal, the earlier point stays.
        better = b < a if self.minimal else b > a
        later = second.found & (better | ~first.found)
        moved = exact.add(second.index, first.seen)
        pairs = zip(first.index, moved, strict=True)
        low, high = (jnp.where(later, y, x) for x, y in pairs)
        seen, found = exact.add(first.seen, second.seen), first.found | second.found
        return Leaders(seen, found, (low, high), jnp.where(later, b, a))

    def finish(self, state: Leaders) -> Extreme:
        if state.found.ndim:
            return side_by_side(state)
        index = int(exact.on_host(state.index, jnp.int32)) if state.found else None
        return Extreme(index, result_or_nan(state.value, state.found))


class ArgMin(_ArgBound):
    """The point with the smallest scalar, and that scalar.

    Ties go to the lowest index; a NaN is never selected.

    **Arguments:**

    - `by`: the scalar to compare: the path of an output, or a function of the output
      that returns a real scalar. Not needed if the output is one scalar.
    - `over`: the dims to reduce, a name or several; the result then has the other dims.
      By default all points are reduced to one result. (Keyword only.)

    **Returns:** (as the sweep's `.values`) an object with `.index`, a Python integer,
    and `.value`. With `over`, both are arrays; an index counts along the reduced dims,
    and is -1 if no point has a number.

    **Raises:** when the sweep is called, `ValueError` if the compared output is not a
    real scalar, or `by` is not a leaf of the output; `TypeError` if `by` is neither a
    path nor a function.

    !!! example

        >>> import eqx_pipe as ep
        >>> space = ep.Linspace(0, 4, 9)
        >>> best = ep.sweep(lambda x: (x - 2) ** 2, space,
        ...     reduce=ep.reduce.ArgMin()).values
        >>> best.index, best.value.item()
        (4, 0.0)
    """

    minimal: ClassVar[bool] = True


class ArgMax(_ArgBound):
    """The point with the largest scalar, and that scalar.

    Ties go to the lowest index; a NaN is never selected.

    **Arguments:**

    - `by`: the scalar to compare: the path of an output, or a function of the output
      that returns a real scalar. Not needed if the output is one scalar.
    - `over`: the dims to reduce, a name or several; the result then has the other dims.
      By default all points are reduced to one result. (Keyword only.)

    **Returns:** (as the sweep's `.values`) an object with `.index`, a Python integer,
    and `.value`. With `over`, both are arrays; an index counts along the reduced dims,
    and is -1 if no point has a number.

    **Raises:** when the sweep is called, `ValueError` if the compared output is not a
    real scalar, or `by` is not a leaf of the output; `TypeError` if `by` is neither a
    path nor a function.

    !!! example

        >>> import eqx_pipe as ep
        >>> space = ep.Linspace(0, 4, 9)
        >>> ep.sweep(lambda x: 2 * x, space, reduce=ep.reduce.ArgMax()).values.index
        8
    """

    minimal: ClassVar[bool] = False


class TopK(ScalarReducer):
    """The points with the largest (or smallest) scalars, and these scalars.

    Ties go to the lowest index; a NaN is never selected.

    **Arguments:**

    - `k`: the number of points to keep, at least 1.
    - `by`: the scalar to compare: the path of an output, or a function of the output
      that returns a real scalar. Not needed if the output is one scalar.
    - `mode`: `"max"` or `"min"`.
    - `over`: the dims to reduce, a name or several; the result then has the other dims.
      By default all points are reduced to one result. (Keyword only.)

    **Returns:** (as the sweep's `.values`) an object with `.index` and `.value`, arrays
    with the best first, shorter than `k` if fewer points have a number. With `over`,
    they have `k` columns, and an index counts along the reduced dims; it is -1 after
    the last point.

    **Raises:**

    - `TypeError` if `k` is not an integer; `ValueError` if `k` is below 1, or for any
      other `mode`.
    - When the sweep is called, `ValueError` if the compared output is not a real
      scalar.

    !!! example

        >>> import eqx_pipe as ep
        >>> space = ep.Values([3.0, 1.0, 4.0, 1.0])
        >>> top = ep.sweep(lambda x: x, space, reduce=ep.reduce.TopK(3)).values
        >>> top.index.tolist(), top.value.tolist()
        ([2, 0, 1], [4.0, 3.0, 1.0])
    """

    k: int = eqx.field(static=True)
    by: By = None
    mode: Literal["max", "min"] = eqx.field(static=True, default="max")
    over: Over = over_field()

    def __check_init__(self) -> None:
        check_int("reduce.TopK", "k", self.k, 1)
        check_choice("reduce.TopK", "mode", self.mode, ("max", "min"))

    def dims_at(self, path: str, shape: tuple[int, ...]) -> ResultDims:
        return {"rank": np.arange(*shape)}, None

    def begin(self, struct: PyTree) -> Leaders:
        return no_leaders((self.k,), self.scalar(struct).dtype)

    def absorb(self, state: Leaders, values: PyTree, ok: Ok) -> Leaders:
        score = self.scalars(values)
        candidate = ok & is_not_nan(score)
        # Positions in the batch; `merge` adds the points before it, in 64 bits.
        positions = jnp.arange(ok.size, dtype=jnp.uint32)
        seen = (jnp.full((), ok.size, jnp.uint32), jnp.zeros((), jnp.uint32))
        batch = Leaders(seen, candidate, (positions, jnp.zeros_like(positions)), score)
        # Sorting is expensive, and after a while few batches contain a better value.
        last = state.value[-1]
        better = score > last if self.mode == "max" else score < last
        worth = jnp.any(candidate & better) | ~state.found[-1]
        skipped = eqx.tree_at(lambda s: s.seen, state, exact.add(state.seen, seen))
        return jax.lax.cond(worth, lambda: self.merge(state, batch), lambda: skipped)

    def merge(self, first: Leaders, second: Leaders) -> Leaders:
        # Later points come second, so that a stable sort keeps ties in order.
        value = jnp.concatenate([first.value, second.value])
        found = jnp.concatenate([first.found, second.found])
        moved = exact.add(second.index, first.seen)
        low, high = map(jnp.concatenate, zip(first.index, moved, strict=True))
        columns = ~found, self._rank(value), found, low, high, value
        _, _, found, low, high, value = jax.lax.sort(columns, num_keys=2)
        seen, best = exact.add(first.seen, second.seen), slice(self.k)
        return Leaders(seen, found[best], (low[best], high[best]), value[best])

    def _rank(self, value: Array) -> Array:
        """Return numbers by which the best are sorted first."""
        value = value.astype(jnp.int32) if value.dtype == jnp.bool_ else value
        if self.mode == "min":
            return value
        # The complement reverses the order of integers without overflow.
        return ~value if jnp.issubdtype(value.dtype, jnp.integer) else -value

    def finish(self, state: Leaders) -> Extreme:
        found = np.asarray(state.found)
        if found.ndim > 1:
            return side_by_side(state)
        index = exact.on_host(state.index, jnp.int32)
        return Extreme(index[found], np.asarray(state.value)[found])


def side_by_side(state: Leaders) -> Extreme:
    """Return the leaders of states side by side: index -1 where there is none."""
    index = exact.on_host(state.index, jnp.int32)
    index = np.where(np.asarray(state.found), index, -1)
    return Extreme(index, result_or_nan(state.value, state.found))


def is_not_nan(values: Array) -> Bool[Array, " points"]:
    """Return where there is no NaN."""
    floating = jnp.issubdtype(values.dtype, jnp.floating)
    return ~jnp.isnan(values) if floating else jnp.ones(values.shape, bool)


def as_edges(edges: ArrayLike | Sequence[ArrayLike]) -> tuple[float, ...]:
    """Return the edges of bins; raise unless they are increasing finite numbers."""
    numbers = np.zeros(1)
    with contextlib.suppress(TypeError, ValueError):
        numbers = np.asarray(edges, np.float64)
    increasing = numbers.ndim == 1 and numbers.size > 1 and np.all(np.diff(numbers) > 0)
    if not increasing or not np.all(np.isfinite(numbers)):
        wrong = f"`edges` is {describe_value(edges)}, which is not a sequence of at "
        wrong += "least two increasing finite edges."
        cure = "Give the edges, such as `numpy.linspace(0, 1, 11)` for ten bins: a "
        cure += "running reduction does not know the range of the values in advance."
        raise value_error("reduce.Histogram", wrong, cure)
    return tuple(numbers.tolist())


_COMPARED = 100
"""The number of bins from which on a CPU searches for the bin of a point."""


class Counts(eqx.Module):
    """The result of `Histogram`: counts for each bin, and the edges of the bins.

    `below` and `above` count the points outside the bins. NaNs are not counted. With
    `over`, all counts have a leading axis.
    """

    counts: Int64[np.ndarray, "*cells bins"]
    edges: Float64[np.ndarray, "*cells edges"]
    below: int | Int64[np.ndarray, " cells"]
    above: int | Int64[np.ndarray, " cells"]


class Histogram(ScalarReducer):
    """The counts of the points whose scalar lies between the edges of bins.

    A bin includes its left edge but not its right one, except the last bin, which
    includes both, as in `numpy.histogram`. NaNs are not counted.

    **Arguments:**

    - `edges`: the edges of the bins, increasing, such as `numpy.linspace(0, 1, 11)`.
    - `by`: the scalar to count: the path of an output, or a function of the output
      that returns a real scalar. Not needed if the output is one scalar.
    - `over`: the dims to reduce, a name or several; the result then has the other dims.
      By default all points are reduced to one result. (Keyword only.)

    **Returns:** (as the sweep's `.values`) an object with `.counts`, `.edges`, and the
    numbers of points `.below` and `.above` all bins.

    **Raises:**

    - `ValueError` unless `edges` are increasing and finite.
    - When the sweep is called, `ValueError` if the counted output is not a real scalar.

    !!! example

        >>> import eqx_pipe as ep
        >>> space = ep.Linspace(0, 3, 4)
        >>> ep.sweep(lambda x: x, space, reduce=ep.reduce.Histogram([0, 2,
        ...     3])).values.counts
        array([2, 2])
    """

    edges: tuple[float, ...] = eqx.field(static=True, converter=as_edges)
    by: By = None
    over: Over = over_field()

    def dims_at(self, path: str, shape: tuple[int, ...]) -> ResultDims:
        edges = np.array(self.edges)
        dims = {"counts": {"bin": edges[:-1]}, "edges": {"edge": edges}}
        return dims.get(path, {}), None

    def begin(self, struct: PyTree) -> exact.Pair:
        self.scalar(struct)
        return exact.zero((len(self.edges) + 2,), jnp.uint32)

    def absorb(self, state: exact.Pair, values: PyTree, ok: Ok) -> exact.Pair:
        score = self.scalars(values)
        score = score.astype(jnp.int32) if score.dtype == jnp.bool_ else score
        lefts, last = _exact_edges(np.array(self.edges), score.dtype)
        bins = len(self.edges) - 1
        counted = ok & (score == score)

        # Both return counts below, of the bins, above, and of NaNs and failed points.
        def by_search() -> Any:
            # Without a barrier XLA computes `fn` again at each step of the search.
            x = jax.lax.optimization_barrier(score)
            at = jnp.searchsorted(lefts, x, side="right", method="scan_unrolled")
            at = jnp.where((at == bins + 1) & (score <= last), bins, at)
            at = jnp.where(counted, at, bins + 2)
            return jnp.zeros(bins + 3, jnp.uint32).at[at].add(jnp.uint32(1))

        def by_comparison() -> Any:
            def count(mask: Any) -> Any:
                return jnp.sum(mask, axis=0, dtype=jnp.uint32)

            # No number reaches an edge that is left out.
            reach = count(counted[:, None] & (score[:, None] >= lefts[None, :]))
            reach = jnp.pad(reach, (0, bins + 1 - len(lefts)))
            over = count(counted & ~(score <= last))
            some = count(counted)
            ends = jnp.concatenate([some[None], reach[:bins], over[None]])
            rest = jnp.stack([over, jnp.uint32(len(ok)) - some])
            return jnp.concatenate([ends[:-1] - ends[1:], rest])

        # A TPU has no fast gather or scatter; on a CPU a search among many edges is
        # faster than as many comparisons.
        if bins < _COMPARED:
            low = by_comparison()
        else:
            low = jax.lax.platform_dependent(cpu=by_search, default=by_comparison)
        return exact.add(state, (low, jnp.zeros_like(low)))

    def merge(self, first: exact.Pair, second: exact.Pair) -> exact.Pair:
        return exact.add(first, second)

    def finish(self, state: exact.AnyPair) -> Counts:
        counts = exact.on_host(state, jnp.int32)
        edges = np.array(self.edges)
        if counts.ndim > 1:
            each = np.broadcast_to(edges, (len(counts), len(edges)))
            return Counts(counts[:, 1:-2], each, counts[:, 0], counts[:, -2])
        return Counts(counts[1:-2], edges, int(counts[0]), int(counts[-2]))


def _exact_edges(edges: np.ndarray, dtype: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return left edges and the last right one, in the dtype of the values.

    Left edges are rounded up and the last edge down, so that a number of this dtype
    falls into the same bin as in a comparison with the edges in float64.
    """
    if jnp.issubdtype(dtype, jnp.integer):
        limits = jnp.iinfo(dtype)
        # Use Python integers: floats do not represent the limits of 64 bits.
        lefts = [int(e) for e in np.ceil(edges)]
        last = min(max(int(np.floor(edges[-1])), limits.min), limits.max)
        # No number reaches an edge beyond the limit, so such edges are left out.
        lefts = [max(e, int(limits.min)) for e in lefts if e <= limits.max]
        return np.array(lefts, dtype), np.array(last, dtype)
    with np.errstate(over="ignore"):
        rounded = edges.astype(dtype)
    up, down = (np.array(x, dtype) for x in (np.inf, -np.inf))
    wide = rounded.astype(np.float64)
    lefts = np.where(wide < edges, np.nextafter(rounded, up), rounded)
    last = np.where(wide > edges, np.nextafter(rounded, down), rounded)[-1]
    return lefts, np.asarray(last)


_LEVELS = 32
"""The number of buffers: enough for `size * 2**31` points."""


def as_shares(q: ArrayLike | Sequence[ArrayLike]) -> float | tuple[float, ...]:
    """Return one fraction or several; raise unless they are between 0 and 1."""
    try:
        shares = np.asarray(q, np.float64)
    except (TypeError, ValueError):
        shares = np.full((), np.nan)
    if shares.ndim > 1 or not shares.size or not np.all((shares >= 0) & (shares <= 1)):
        wrong = f"`q` is {describe_value(q)}."
        cure = "Give a number from 0 to 1, `Quantile(0.5)`, or several of them, "
        cure += "`Quantile([0.05, 0.95])`."
        raise value_error("reduce.Quantile", wrong, cure)
    return float(shares) if shares.ndim == 0 else tuple(shares.tolist())


class Sketch(eqx.Module):
    """A sample of all numbers so far, in buffers of one size.

    A number in the buffer of level h represents `2**h` numbers; a buffer is full, or
    empty and not `used`. The last numbers, which do not fill a buffer, are the first
    `filled` of `rest`. `nan` is true for entries that had a NaN.
    """

    used: Bool[Array, " levels"]
    filled: Int32[Array, ""]
    levels: Array
    rest: Array
    nan: Bool[Array, "..."]


class Quantile(LeafReducer):
    """Quantiles of each output leaf, entry by entry; integers and bools become floats.

    With at most `size` points the result equals that of `numpy.quantile`, interpolated.
    With n points, more than that, the rank of the result is wrong by at most
    `n * log2(n / size) / (2 * size)`: by 1.1 % of n for a million points with the
    default size, by 2.1 % for 10^9; mostly by much less. Memory does not grow with n.
    NaNs propagate, as in NumPy; without any point the result is NaN.

    **Arguments:**

    - `q`: a fraction from 0 to 1, or several, along a leading axis of the result.
    - `by`: the output to reduce: its path or a function of the output. By default all.
    - `size`: the number of entries of a buffer; each entry of an output has 33 buffers.
      (Keyword only.)
    - `over`: the dims to reduce, a name or several; the result then has the other dims.
      By default all points are reduced to one result. (Keyword only.)

    **Returns:** (as the sweep's `.values`) for each leaf an array of its shape, with a
    leading axis if there are several `q`.

    **Raises:** `ValueError` if `q` is not between 0 and 1, if `size` is below 2, or,
    when the sweep ends, for more than `size * 2**31` points.

    !!! example

        >>> import eqx_pipe as ep
        >>> space, q = ep.Linspace(0, 100, 101), [0.05, 0.5]
        >>> ep.sweep(lambda x: x, space, reduce=ep.reduce.Quantile(q)).values.tolist()
        [5.0, 50.0]

    ??? cite "Source"

        Two full buffers of one level are sorted together, and every other number moves
        one level up (J. I. Munro and M. S. Paterson, 1980). Each such step adds to the
        error of a rank at most the weight of one number (G. S. Manku, S. Rajagopalan
        and B. G. Lindsay, 1998), for any order of merging (P. K. Agarwal and others,
        "Mergeable summaries", 2012).
    """

    ordered: ClassVar[bool] = True
    q: float | tuple[float, ...] = eqx.field(static=True, converter=as_shares)
    by: By = None
    size: int = eqx.field(static=True, default=512, kw_only=True)
    over: Over = over_field()

    def __check_init__(self) -> None:
        check_int("reduce.Quantile", "size", self.size, 2)

    def dims_at(self, path: str, shape: tuple[int, ...]) -> ResultDims:
        several = isinstance(self.q, tuple)
        levels = {"quantile": np.array(self.q)} if several else {}
        return levels, super().dims_at(path, shape)[1]

    def empty(self, leaf: jax.ShapeDtypeStruct) -> Sketch:
        dtype = jnp.int8 if leaf.dtype == jnp.bool_ else leaf.dtype
        shape, used = (self.size, *leaf.shape), jnp.zeros(_LEVELS, bool)
        filled, levels = jnp.zeros((), jnp.int32), jnp.zeros((_LEVELS, *shape), dtype)
        rest, nan = jnp.zeros(shape, dtype), jnp.zeros(leaf.shape, bool)
        return Sketch(used, filled, levels, rest, nan)

    def after(self, state: Sketch, leaf: Array, ok: Ok) -> Sketch:
        nan = state.nan
        if jnp.issubdtype(leaf.dtype, jnp.inexact):
            kept = ok.reshape(ok.shape + (1,) * (leaf.ndim - 1))
            nan = nan | jnp.any(jnp.isnan(leaf) & kept, axis=0)
        # Move the points that count to the front, in their order.
        leaf = jnp.take(leaf, jnp.argsort(~ok, stable=True), axis=0)
        short = [(0, -len(ok) % self.size)] + [(0, 0)] * (leaf.ndim - 1)
        full = jnp.pad(leaf.astype(state.rest.dtype), short)
        stretches = full.reshape(-1, self.size, *leaf.shape[1:])
        total = jnp.sum(ok.astype(jnp.int32), dtype=jnp.int32)
        first = jnp.arange(len(stretches), dtype=jnp.int32) * self.size
        filled = jnp.clip(total - first, 0, self.size)

        def step(state: Sketch, stretch: Any) -> Any:
            return self._put(state, *stretch), None

        state = jax.lax.scan(step, state, (stretches, filled))[0]
        return eqx.tree_at(lambda s: s.nan, state, nan)

    def joined(self, first: Sketch, second: Sketch) -> Sketch:
        def level(h: Int32[Array, ""], state: Sketch) -> Sketch:
            buffer = jnp.take(second.levels, h, axis=0)
            return _carried(state, buffer, second.used[h], h)

        # From the lowest level on, as in an addition of two numbers with carries.
        state = jax.lax.fori_loop(0, _LEVELS, level, first)
        state = self._put(state, second.rest, second.filled)
        return eqx.tree_at(lambda s: s.nan, state, first.nan | second.nan)

    def _put(self, state: Sketch, new: Array, filled: Int32[Array, ""]) -> Sketch:
        """Return the state with the first `filled` numbers of a stretch."""
        # `rest` and a stretch have less than two buffers, so one is full at most. Both
        # outcomes have the same shapes, so no branch is needed.
        size, total = self.size, state.filled + filled
        both = jnp.concatenate([state.rest, jnp.zeros_like(state.rest)])
        both = jax.lax.dynamic_update_slice_in_dim(both, new, state.filled, 0)
        rest = jnp.where(total < size, both[:size], both[size:])
        left = jnp.where(total < size, total, total - size)
        state = eqx.tree_at(lambda s: (s.rest, s.filled), state, (rest, left))
        return _carried(state, both[:size], total >= size, jnp.int32(0))

    def result(self, state: Sketch, dtype: np.dtype, count: np.ndarray) -> np.ndarray:
        state = jtu.tree_map(np.asarray, state)
        if count.ndim:
            each = [jtu.tree_map(lambda x, i=i: x[i], state) for i in range(len(count))]
            pairs = zip(each, count, strict=True)
            results = [self.result(one, dtype, np.asarray(n)) for one, n in pairs]
            return np.stack(results)
        size = self.size
        if count > size << (_LEVELS - 1):
            wrong = f"there are {count} points, too many for buffers of {size} numbers."
            cure = f"Give a larger `size`, such as {2 * size}."
            raise value_error("reduce.Quantile", wrong, cure)
        used, filled = np.flatnonzero(state.used), int(state.filled)
        weights = np.repeat(np.int64(1) << used.astype(np.int64), size)
        weights = np.concatenate([weights, np.ones(filled, np.int64)])
        kept = state.levels[used].reshape(-1, *state.rest.shape[1:])
        values = np.concatenate([kept, state.rest[:filled]])
        quantiles = _quantiles(values.astype(np.float64), weights, self.q)
        quantiles = np.asarray(np.where(state.nan, np.nan, quantiles))
        wanted = jnp.result_type(float) if exact.is_exact(dtype) else dtype
        return quantiles.astype(wanted)


def _carried(
    state: Sketch, buffer: Array, full: Bool[ArrayLike, ""], level: Int32[Array, ""]
) -> Sketch:
    """Return the state with one more buffer of a level, if it is `full`.

    Levels carry over like the bits of a number to which 1 is added.
    """

    def step(carry: Any) -> Any:
        used, levels, buffer, _, h = carry
        current, taken = jnp.take(levels, h, axis=0), used[h]
        put = levels.at[h].set(jnp.where(taken, current, buffer))
        # Alternate between odd and even numbers, so that errors do not add up.
        joined = _halved(current, buffer, h % 2 == 1)
        return used.at[h].set(~taken), put, joined, taken, h + 1

    level = jnp.asarray(level, jnp.int32)
    begin = (state.used, state.levels, buffer, jnp.asarray(full), level)
    used, levels, *_ = jax.lax.while_loop(lambda carry: carry[3], step, begin)
    return eqx.tree_at(lambda s: (s.used, s.levels), state, (used, levels))


def _halved(a: Array, b: Array, odd: Bool[Array, ""]) -> Array:
    """Return every other number of two buffers, sorted together."""
    both = jnp.sort(jnp.concatenate([a, b]), axis=0)
    return jnp.where(odd, both[1::2], both[::2])


def _quantiles(
    values: np.ndarray, weights: np.ndarray, q: float | tuple[float, ...]
) -> np.ndarray:
    """Return quantiles along the leading axis of numbers with weights."""
    shape, n = values.shape[1:], int(weights.sum())
    shares = np.atleast_1d(np.asarray(q, np.float64))
    quantiles = np.full((len(shares), *shape), np.nan)
    rank = shares * max(n - 1, 0)
    low = np.floor(rank).astype(np.int64)
    part = rank - low
    for entry in np.ndindex(*shape) if n else ():
        column = values[(slice(None), *entry)]
        order = np.argsort(column, kind="stable")
        ends = np.cumsum(weights[order])
        at, behind = (
            column[order[np.searchsorted(ends, whole, side="right")]]
            for whole in (low, np.minimum(low + 1, n - 1))
        )
        quantiles[(slice(None), *entry)] = _between(at, behind, part)
    return quantiles if isinstance(q, tuple) else np.asarray(quantiles[0])


def _between(low: np.ndarray, high: np.ndarray, part: np.ndarray) -> np.ndarray:
    """Interpolate between two numbers, without multiplying infinity by 0."""
    with np.errstate(invalid="ignore", over="ignore"):
        between = low + (high - low) * part
    return np.where((part == 0) | (low == high), low, between)
