"""`Reducer`: a reduction made of the user's functions."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Array, ArrayLike, Bool

from .._errors import describe_value, structure_error, type_error
from .._tree import differences, is_key_array, struct_of
from .._types import PyTree
from .interface import (
    AbstractReducer,
    By,
    Ok,
    Over,
    over_field,
    pick_all,
    picked,
)


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
            found = "; ".join(lines[:3]) or "something other than numbers"
            raise structure_error(
                "reduce.Reducer",
                f"the results of `finish` cannot be stacked over cells: {found}.",
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
