"""Reducers: their interface, reducers by leaf, and `Reducer` of your functions."""

import abc
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Array, ArrayLike, Bool

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
        raise type_error(
            function,
            f"{owner}`over` is {describe_value(over)}.",
            'Give the name of a dim, `over="seed"`, or several, `over=("seed", "x")`; '
            "leave it out for all points.",
        )
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
    is associative. `finish(state)` returns the result, in NumPy on the host, and the
    optional `stop` returns whether the points so far are enough.
    """

    by: eqx.AbstractVar[By]
    over: eqx.AbstractVar[Over]
    # Methods of the reducers of this package, fields of a `Reducer`.
    merge: eqx.AbstractVar[Callable[..., PyTree]]
    finish: eqx.AbstractVar[Callable[..., PyTree]]
    if TYPE_CHECKING:
        stop: ClassVar[Callable[..., Any] | None] = None
    else:  # an annotation here would fix the position of a subclass's field
        stop = None

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
    raise type_error(
        function,
        f"`by` is {describe_value(by)}.",
        "Give the path of an output, or a function of the output.",
    )


def picked(reducer: Any, struct: PyTree) -> PyTree:
    """Return the shapes and dtypes of the part that a reducer's `by` selects."""
    return jax.eval_shape(_picking(reducer), struct)


def pick_all(reducer: Any, values: PyTree) -> PyTree:
    """Return the part that a reducer selects from each output of a batch."""
    return jax.vmap(_picking(reducer))(jtu.tree_map(jnp.asarray, values))


def _picking(reducer: Any) -> Callable[[PyTree], PyTree]:
    name = public_name(reducer)
    return lambda one: jtu.tree_map(jnp.asarray, pick(name, reducer.by, one))


def public_name(reducer: Any) -> str:
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
        raise type_error(
            public_name(reducer),
            f"the output{f' at `.{name}`' if name else ''} is "
            f"{leaf_text(leaf)}, which has {what}.",
            "Choose what to reduce by `by=`: the path of an output, or a function "
            "of it (such as `lambda out: abs(out)`).",
        )
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
        raise value_error(
            public_name(self),
            f"{shown} is {tree_text(chosen)}, but one real scalar is required.",
            "Give `by=`: the path of a scalar output, or a function of the output "
            f"that returns one. Known names: {quoted(names)}.",
        )

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
    - `stop`: `stop(state) -> bool`, called on the host after each block with the state
      of all points so far; true ends the sweep, and the result's `.points` is the
      number of points until then.
    - `by`: the part of an output that `init` and `update` get: the path of one leaf, or
      a function of the output. By default the whole output. (Keyword only.)
    - `over`: the dims to reduce, as in `Mean`. `stop` is then called for each cell, and
      ends that cell: its later points are not computed. `finish` must return the same
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
    stop: Callable[[PyTree], bool | Bool[ArrayLike, ""]] | None = None
    by: By = eqx.field(default=None, kw_only=True)
    over: Over = over_field()

    def __check_init__(self) -> None:
        for name in ("init", "update", "merge", "finish", "stop"):
            value = getattr(self, name)
            if not callable(value) and not (name == "stop" and value is None):
                raise type_error(
                    "reduce.Reducer",
                    f"`{name}` is {describe_value(value)}, which cannot be called.",
                    "Give functions: `Reducer(init, update, merge, finish)`.",
                )

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
            raise structure_error(
                "reduce.Reducer",
                f"the results of `finish` cannot be stacked over cells: {wrong}.",
                "With `over=` return arrays of numbers with the same structure, shapes "
                "and dtypes for every cell, also for a cell without points.",
            )
        return jtu.tree_map(lambda *leaves: np.stack(leaves), *results)

    def _start(self, struct: PyTree) -> PyTree:
        """Return `init`'s state as arrays of the dtypes that `update` returns."""

        def arrays(fn: Callable[..., PyTree], *args: PyTree) -> PyTree:
            return jax.eval_shape(lambda *a: jtu.tree_map(jnp.asarray, fn(*a)), *args)

        first = jtu.tree_map(jnp.asarray, self.init(struct))
        values = jtu.tree_map(lambda s: jax.ShapeDtypeStruct(s.shape, s.dtype), struct)
        new: Any = None
        # Repeat once, since the new dtypes of the first state may lead to others.
        for _ in range(2):
            new = arrays(self.update, first, values)
            if jtu.tree_structure(new) == jtu.tree_structure(first):
                first = jtu.tree_map(_strong, first, new)
        _check("update", first, new)
        _check("merge", first, arrays(self.merge, first, first))
        return first


def _strong(leaf: Array, new: Any) -> Array:
    """Return a Python number as an array of the dtype that `update` returns."""
    if getattr(leaf, "weak_type", False) and leaf.shape == new.shape:
        return jax.lax.convert_element_type(leaf, new.dtype)
    return leaf


def _like(new: PyTree, state: PyTree) -> PyTree:
    def one(a: Any, b: Any) -> Any:
        return a if is_key_array(a) else jnp.asarray(a, b.dtype)

    return jtu.tree_map(one, new, state)


def _check(name: str, state: PyTree, new: PyTree) -> None:
    lines = differences(state, new)
    if lines:
        raise structure_error(
            "reduce.Reducer",
            f"the states of `init` and `{name}` differ: {'; '.join(lines)}.",
            "A state keeps its structure, shapes and dtypes. Change `init`, or "
            f"cast in `{name}`.",
        )
