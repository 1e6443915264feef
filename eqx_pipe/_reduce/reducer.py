"""The interface of reducers, the part of an output that they see, and `Reducer`."""

import abc
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Array, ArrayLike, Bool

from .._errors import describe_value, nearest, structure_error, type_error, value_error
from .._tree import differences, is_key_array, leaf_text, leaves_with_names, tree_text
from .._types import PyTree

By: TypeAlias = str | Callable[[PyTree], PyTree] | None
"""The part of an output that is reduced: a leaf by its path, a function of it, all."""

Ok: TypeAlias = Bool[Array, " points"]
"""The points of a batch that count."""

Over: TypeAlias = str | Sequence[str] | None
"""The dims that are reduced, whose names these are; all of them if `None`."""


def as_over(over: Over) -> tuple[str, ...] | None:
    """Return the names of the dims that are reduced; raise unless they are names."""
    if over is None:
        return None
    names = (over,) if isinstance(over, str) else over
    listed = tuple(names) if isinstance(names, Sequence) else ()
    if not listed or not all(isinstance(name, str) for name in listed):
        raise type_error(
            "sweep",
            f"a reducer's `over` is {describe_value(over)}.",
            'Give the name of a dim, `over="seed"`, or several, `over=("seed", "x")`; '
            "leave it out to reduce all points to one result.",
        )
    return listed


def over_field() -> Any:
    """Return the field `over` of a reducer."""
    return eqx.field(static=True, default=None, kw_only=True, converter=as_over)


class AbstractReducer(eqx.Module):
    """A running reduction, as a pure value.

    A state stands for points that follow one another. `begin` makes that of no points;
    `absorb` takes in a batch of points, of which only those marked `ok` count;
    `merge(first, second)` joins a state with that of the points right after, and is
    associative. `finish(state)` gives the result, in NumPy on the host, and `stop`, if
    there is one, says whether the points so far are enough.
    """

    by: eqx.AbstractVar[By]
    over: eqx.AbstractVar[Over]
    # Methods of ours, fields of a `Reducer`.
    merge: eqx.AbstractVar[Callable[..., PyTree]]
    finish: eqx.AbstractVar[Callable[..., PyTree]]
    if TYPE_CHECKING:
        stop: ClassVar[Callable[..., Any] | None] = None
    else:  # not annotated: a field of a subclass would keep the place of this one
        stop = None

    @abc.abstractmethod
    def begin(self, struct: PyTree) -> PyTree:
        """Return the state of no points, for outputs of these shapes and dtypes."""

    @abc.abstractmethod
    def absorb(self, state: PyTree, values: PyTree, ok: Ok) -> PyTree:
        """Return the state after a batch: outputs with a leading axis, and which."""

    def finish_each(self, states: PyTree, count: int) -> PyTree:
        """Return the results of `count` states side by side, side by side too."""
        return jtu.tree_map(np.asarray, type(self).finish(self, states))


def pick(function: str, by: By, values: PyTree) -> PyTree:
    """Return the part of one output (or of its structure) that `by` names."""
    if by is None:
        return values
    if isinstance(by, str):
        named = {name or "value": leaf for name, leaf in leaves_with_names(values)}
        if by in named:
            return named[by]
        wrong = f"`by` is {describe_value(by)}, which is no leaf of the output."
        raise value_error(function, wrong, nearest(by, named))
    if callable(by):
        return by(values)
    raise type_error(
        function,
        f"`by` is {describe_value(by)}.",
        "Give the path of an output, or a function of the output.",
    )


def picked(reducer: Any, struct: PyTree) -> PyTree:
    """Return the shapes and dtypes that a reducer picks from an output by its `by`."""
    return jax.eval_shape(_picking(reducer), struct)


def pick_all(reducer: Any, values: PyTree) -> PyTree:
    """Return the part that a reducer picks from each of a batch of outputs."""
    return jax.vmap(_picking(reducer))(jtu.tree_map(jnp.asarray, values))


def _picking(reducer: Any) -> Callable[[PyTree], PyTree]:
    name = public_name(reducer)
    return lambda one: jtu.tree_map(jnp.asarray, pick(name, reducer.by, one))


def public_name(reducer: Any) -> str:
    """Return the name of a reducer's class in `eqx_pipe`, for messages."""
    return f"reduce.{type(reducer).__name__}"


def numbers(reducer: AbstractReducer, struct: PyTree, *, ordered: bool) -> PyTree:
    """Return the shapes and dtypes of the part picked; raise unless it is numbers.

    `ordered` says that complex numbers will not do.
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
    """Return the one real scalar that is picked; raise if it is anything else."""
    chosen = picked(reducer, struct)
    leaves = jtu.tree_leaves(chosen)
    if len(leaves) == 1 and leaves[0].shape == () and not is_key_array(leaves[0]):
        return jtu.tree_leaves(numbers(reducer, struct, ordered=True))[0]
    shown = "the output" if reducer.by is None else "what `by` picks"
    names = [name or "value" for name, leaf in leaves_with_names(struct)]
    raise value_error(
        public_name(reducer),
        f"{shown} is {tree_text(chosen)}, and one real scalar is needed.",
        "Give `by=`: the path of a scalar output, or a function of the output "
        f"that gives one. Known names: {', '.join(f'`{n}`' for n in names)}.",
    )


def scalar_of_each(reducer: AbstractReducer, values: PyTree) -> Array:
    """Return the scalar that is picked from each of a batch of outputs."""
    return jtu.tree_leaves(pick_all(reducer, values))[0]


class Reducer(AbstractReducer):
    """A running reduction made of your own functions.

    Points are taken in by blocks: `update` is called for each point of a block in the
    order of their indices (vectorised over several stretches of it), and the states of
    neighbours are merged in order.

    **Arguments:**

    - `init`: `init(struct) -> state`, the state of no points; `struct` is the pytree of
      one output's shapes and dtypes.
    - `update`: `update(state, value) -> state`, the state after one more point. The
      shapes and dtypes of a state stay as they are.
    - `merge`: `merge(first, second) -> state`, for points that follow one another. It
      is associative, and `init`'s state is its identity.
    - `finish`: `finish(state) -> result`, on the host.
    - `stop`: `stop(state) -> bool`, asked on the host after each block with the state
      of all points so far; true ends the sweep, and the result's `.points` says after
      how many points.
    - `by`: what `init` and `update` see of an output: the path of one leaf, or a
      function of it. By default everything. (Keyword only.)
    - `over`: the dims that are reduced, as for `Mean`. `stop` is then asked of each
      cell by itself, and ends that cell: its later points are not computed. What
      `finish` gives has the same shapes and dtypes for every cell. (Keyword only.)

    **Raises:** `StructureError` if `update` or `merge` changes the form of the state.

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
        """Return the state after a batch: stretches side by side, merged in order."""
        values = pick_all(self, values)
        n = ok.shape[0]
        # About as many stretches as each has points, so that both loops are short.
        lanes = 2 ** (max(n.bit_length() - 1, 0) // 2)
        steps = -(-n // lanes)

        def as_lanes(leaf: Array) -> Array:
            left_over = lanes * steps - n
            # A real value and no zeros: `update` may raise, or loop for ever, on a
            # made-up one.
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
        """Return the results of `count` states side by side, side by side too."""
        each = [jtu.tree_map(lambda x, i=i: x[i], states) for i in range(count)]
        results = [jtu.tree_map(np.asarray, self.finish(state)) for state in each]
        first, *others = results
        lines = [line for other in others for line in differences(first, other)]
        kinds = {leaf.dtype.kind for leaf in jtu.tree_leaves(first)}
        if lines or not kinds <= set("biufcV"):
            found = "; ".join(lines[:3]) or "something other than numbers"
            raise structure_error(
                "reduce.Reducer",
                f"`finish` gives results that cannot be kept side by side: {found}.",
                "With `over=` give arrays of numbers with the same structure, shapes "
                "and dtypes for every cell, also for one without any point.",
            )
        return jtu.tree_map(lambda *leaves: np.stack(leaves), *results)

    def _start(self, struct: PyTree) -> PyTree:
        """Return `init`'s state as arrays of the dtypes that `update` gives."""

        def arrays(fn: Callable[..., PyTree], *args: PyTree) -> PyTree:
            return jax.eval_shape(lambda *a: jtu.tree_map(jnp.asarray, fn(*a)), *args)

        first = jtu.tree_map(jnp.asarray, self.init(struct))
        values = jtu.tree_map(lambda s: jax.ShapeDtypeStruct(s.shape, s.dtype), struct)
        new: Any = None
        # Twice: with its new dtypes the first state may lead to other ones.
        for _ in range(2):
            new = arrays(self.update, first, values)
            if jtu.tree_structure(new) == jtu.tree_structure(first):
                first = jtu.tree_map(_strong, first, new)
        _check("update", first, new)
        _check("merge", first, arrays(self.merge, first, first))
        return first


def struct_of(leaf: Array) -> jax.ShapeDtypeStruct:
    """Return the shape and dtype of an array."""
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)


def _strong(leaf: Array, new: Any) -> Array:
    """Give a Python number the dtype of the array that it turns into."""
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
            f"`init` gives one form of state and `{name}` another: {'; '.join(lines)}.",
            "A state keeps its structure, shapes and dtypes. Change `init`, or "
            f"cast in `{name}`.",
        )
