"""What a reducer is, and how it picks its part of an output."""

import abc
from collections.abc import Callable
from typing import TypeAlias

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


def picked(function: str, by: By, struct: PyTree) -> PyTree:
    """The shapes and dtypes of what `by` picks from an output."""
    if not callable(by):
        return pick(function, by, struct)
    return jax.eval_shape(lambda one: jtu.tree_map(jnp.asarray, by(one)), struct)


def pick_all(function: str, by: By, values: PyTree) -> PyTree:
    """What `by` picks from each of a batch of outputs."""
    values = jtu.tree_map(jnp.asarray, values)
    if not callable(by):
        return pick(function, by, values)
    return jax.vmap(lambda one: jtu.tree_map(jnp.asarray, by(one)))(values)


def numbers(
    function: str, by: By, struct: PyTree, *, ordered: bool
) -> list[jax.ShapeDtypeStruct]:
    """The leaves that `by` picks, after a check that they are numbers.

    `ordered` says that complex numbers will not do.
    """
    leaves = leaves_with_names(picked(function, by, struct))
    for name, leaf in leaves:
        is_number = jnp.issubdtype(leaf.dtype, jnp.number) or leaf.dtype == jnp.bool_
        complex_ = jnp.issubdtype(leaf.dtype, jnp.complexfloating)
        if is_number and not (ordered and complex_):
            continue
        what = "no order" if is_number else "no arithmetic"
        raise type_error(
            function,
            f"the output{f' at `.{name}`' if name else ''} is "
            f"{leaf_text(leaf)}, which has {what}.",
            "Choose what to reduce by `by=`: the path of an output, or a function "
            "of it (such as `lambda out: abs(out)`).",
        )
    return [leaf for _, leaf in leaves]


def scalar(function: str, by: By, struct: PyTree) -> jax.ShapeDtypeStruct:
    """The one real scalar that `by` picks, or an error."""
    chosen = picked(function, by, struct)
    leaves = jtu.tree_leaves(chosen)
    if len(leaves) == 1 and leaves[0].shape == () and not is_key_array(leaves[0]):
        return numbers(function, by, struct, ordered=True)[0]
    shown = "the output" if by is None else "what `by` picks"
    names = [name or "value" for name, leaf in leaves_with_names(struct)]
    raise value_error(
        function,
        f"{shown} is {tree_text(chosen)}, and one real scalar is needed.",
        "Give `by=`: the path of a scalar output, or a function of the output "
        f"that gives one. Known names: {', '.join(f'`{n}`' for n in names)}.",
    )


def scalar_of_each(function: str, by: By, values: PyTree) -> Array:
    """The scalar that `by` picks, for each of a batch of outputs."""
    return jtu.tree_leaves(pick_all(function, by, values))[0]
