"""The interface of reducers, the output that they select, and reducers by leaf."""

import abc
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Array, Bool

from .._errors import describe_value, nearest, type_error, value_error
from .._tree import is_key_array, leaf_text, leaves_with_names, tree_text
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


def scalar(reducer: AbstractReducer, struct: PyTree) -> jax.ShapeDtypeStruct:
    """Return the selected real scalar; raise if the selection is anything else."""
    chosen = picked(reducer, struct)
    leaves = jtu.tree_leaves(chosen)
    if len(leaves) == 1 and leaves[0].shape == () and not is_key_array(leaves[0]):
        return jtu.tree_leaves(numbers(reducer, struct, ordered=True))[0]
    shown = "the output" if reducer.by is None else "the value that `by` selects"
    names = [name or "value" for name, leaf in leaves_with_names(struct)]
    raise value_error(
        public_name(reducer),
        f"{shown} is {tree_text(chosen)}, but one real scalar is required.",
        "Give `by=`: the path of a scalar output, or a function of the output "
        f"that returns one. Known names: {', '.join(f'`{n}`' for n in names)}.",
    )


def scalar_of_each(reducer: AbstractReducer, values: PyTree) -> Array:
    """Return the selected scalar of each output of a batch."""
    return jtu.tree_leaves(pick_all(reducer, values))[0]


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
        found = [self.result(one, dtype, count)[()] for one, dtype in pairs]
        return jtu.tree_unflatten(state.form.structure, found)
