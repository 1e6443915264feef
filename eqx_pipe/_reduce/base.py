"""What a reducer is, and how it picks its part of an output."""

import abc
from collections.abc import Callable
from typing import Any, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import Array, Bool

from .._errors import describe_value, nearest, type_error, value_error
from .._tree import is_key_array, leaf_text, leaves_with_names, tree_text
from .._types import PyTree

By: TypeAlias = str | Callable[[PyTree], PyTree] | None
"""What of an output is reduced: the leaf with this path, what a function gives, all."""


class Reduction(eqx.Module):
    """A running reduction, as a pure value.

    A state stands for points that follow one another. `init` makes that of no points,
    `merge` joins a state with that of the points right behind, and is associative;
    `absorb` takes in a batch of points, of which only those marked `ok` count.
    """

    by: eqx.AbstractVar[By]

    @abc.abstractmethod
    def init(self, struct: PyTree) -> PyTree:
        """The state of no points, for outputs of the given shapes and dtypes."""

    @abc.abstractmethod
    def absorb(
        self, state: PyTree, values: PyTree, ok: Bool[Array, " points"]
    ) -> PyTree:
        """The state after a batch: outputs with a leading axis, and which of them."""

    def update(self, state: PyTree, value: PyTree) -> PyTree:
        """The state after one more point."""
        batch = jtu.tree_map(lambda leaf: jnp.asarray(leaf)[None], value)
        return self.absorb(state, batch, jnp.ones(1, bool))

    @abc.abstractmethod
    def merge(self, first: PyTree, second: PyTree) -> PyTree:
        """The state of the points of both, `second` right behind `first`."""

    @abc.abstractmethod
    def finish(self, state: PyTree) -> PyTree:
        """The result, in NumPy on the host."""


def pick(function: str, by: By, values: PyTree) -> PyTree:
    """The part of one output (or of its structure) that `by` names."""
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
    """The shapes and dtypes of what a reducer picks from an output by its `by`."""
    return jax.eval_shape(_picking(reducer), struct)


def pick_all(reducer: Any, values: PyTree) -> PyTree:
    """What a reducer picks from each of a batch of outputs."""
    return jax.vmap(_picking(reducer))(jtu.tree_map(jnp.asarray, values))


def _picking(reducer: Any) -> Callable[[PyTree], PyTree]:
    name = type(reducer).__name__
    return lambda one: jtu.tree_map(jnp.asarray, pick(name, reducer.by, one))


def numbers(reducer: Reduction, struct: PyTree, *, ordered: bool) -> PyTree:
    """The shapes and dtypes of what is picked, after a check that it is of numbers.

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
            type(reducer).__name__,
            f"the output{f' at `.{name}`' if name else ''} is "
            f"{leaf_text(leaf)}, which has {what}.",
            "Choose what to reduce by `by=`: the path of an output, or a function "
            "of it (such as `lambda out: abs(out)`).",
        )
    return chosen


def scalar(reducer: Reduction, struct: PyTree) -> jax.ShapeDtypeStruct:
    """The one real scalar that is picked, or an error."""
    chosen = picked(reducer, struct)
    leaves = jtu.tree_leaves(chosen)
    if len(leaves) == 1 and leaves[0].shape == () and not is_key_array(leaves[0]):
        return jtu.tree_leaves(numbers(reducer, struct, ordered=True))[0]
    shown = "the output" if reducer.by is None else "what `by` picks"
    names = [name or "value" for name, leaf in leaves_with_names(struct)]
    raise value_error(
        type(reducer).__name__,
        f"{shown} is {tree_text(chosen)}, and one real scalar is needed.",
        "Give `by=`: the path of a scalar output, or a function of the output "
        f"that gives one. Known names: {', '.join(f'`{n}`' for n in names)}.",
    )


def scalar_of_each(reducer: Reduction, values: PyTree) -> Array:
    """The scalar that is picked from each of a batch of outputs."""
    return jtu.tree_leaves(pick_all(reducer, values))[0]
