"""Sources that live on the device."""

import abc
from typing import Any, SupportsIndex

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Array, UInt32

from .._errors import (
    StructureError,
    describe_value,
    message,
    structure_error,
    value_error,
)
from .._tree import as_arrays, leaf_text, leaves_with_names
from .._types import PyTree
from .bits import as_bits, as_numbers
from .records import check_leading, index_of, narrowed

# JAX indexes with int32, unless 64 bits are switched on.
MOST_ON_DEVICE = 2**31 - 1


class DeviceSource(eqx.Module):
    """The abstract base of sources whose records a compiled program can read."""

    @abc.abstractmethod
    def __len__(self) -> int:
        """The number of records."""

    @abc.abstractmethod
    def take(self, indices: UInt32[Array, " n"]) -> PyTree:
        """The records of some indices, stacked along a leading axis, as bits.

        Indices are not checked.
        """

    def slice(self, start: UInt32[Array, ""], count: int) -> PyTree:
        """`count` records one after the other, as bits."""
        return self.take(start + jnp.arange(count, dtype=np.uint32))

    def struct(self) -> PyTree:
        """The shapes and dtypes of one record."""
        index = jax.ShapeDtypeStruct((1,), np.uint32)
        one = jax.eval_shape(lambda index: as_numbers(self.take(index)), index)
        return jtu.tree_map(lambda s: jax.ShapeDtypeStruct(s.shape[1:], s.dtype), one)

    def __getitem__(self, index: SupportsIndex) -> PyTree:
        """One record; a negative index counts from the end."""
        one = self.take(jnp.asarray([index_of(index, len(self))], np.uint32))
        return as_numbers(jtu.tree_map(lambda leaf: leaf[0], one))


class ArraySource(DeviceSource):
    """Arrays on the device as a source of records.

    Record `i` is what stands at index `i` of the leading axis of every array. NumPy
    arrays are moved to the device once, when the source is made; arrays that are
    there already, also sharded ones, stay where they are (those of floating-point
    numbers are copied there).

    Records are data, not parameters: `equinox.filter_grad` gives no derivative for
    them, and an optimiser leaves them as they are, bit for bit. To that end numbers
    that could be differentiated are held as integers of the same bits. `tree` gives the
    arrays themselves, made anew each time; to change them, make another source.

    **Arguments:**

    - `tree`: a pytree of arrays with a common leading axis.

    **Shapes:** leaves `(records, *a)`; a record has `(*a,)`.

    **Raises:**

    - `StructureError` (a `ValueError`) if leading axes differ, or a leaf has none;
      names all leaves.
    - `TypeError` if a leaf is no array.
    - `ValueError` if 64-bit numbers do not fit into the 32 bits that JAX gives them,
      or a derivative with respect to `tree` is taken.

    !!! example

        >>> import eqx_pipe as ep, jax.numpy as jnp
        >>> source = ep.data.ArraySource({"x": jnp.ones((5, 3)), "y": jnp.arange(5)})
        >>> len(source), source[2]["y"].item()
        (5, 2)
    """

    held: PyTree

    def __init__(self, tree: PyTree):
        leaves = leaves_with_names(tree)
        _check_leaves(leaves)
        size = check_leading("data.ArraySource", leaves)
        if size > MOST_ON_DEVICE:
            raise value_error(
                "data.ArraySource",
                f"{size} records, and there can be 2^31 - 1 on a device.",
                "Give the NumPy array or memory map itself as a host source.",
            )
        self.held = as_arrays(as_bits(jtu.tree_map(_fitting, tree)))

    @property
    def tree(self) -> PyTree:
        """The arrays with all records."""
        return as_numbers(self.held)

    def __len__(self) -> int:
        return jtu.tree_leaves(self.held)[0].shape[0]

    def take(self, indices: UInt32[Array, " n"]) -> PyTree:
        at = indices.astype(np.int32)

        # They come from a permutation of the records: to check them again, as JAX does
        # for other indices, would only cost.
        def one(leaf: Array) -> Array:
            return leaf.at[at].get(mode="promise_in_bounds")

        return jtu.tree_map(one, self.held)

    def slice(self, start: UInt32[Array, ""], count: int) -> PyTree:
        first = start.astype(np.int32)

        def one(leaf: Array) -> Array:
            return jax.lax.dynamic_slice_in_dim(leaf, first, count)

        return jtu.tree_map(one, self.held)


def _fitting(leaf: object) -> object:
    """A NumPy array in JAX's dtype; JAX itself would wrap large numbers."""
    if not isinstance(leaf, np.ndarray):
        return leaf
    dtype = jax.dtypes.canonicalize_dtype(leaf.dtype)
    return narrowed("data.ArraySource", leaf, dtype)


def _check_leaves(leaves: list[tuple[str, Any]]) -> None:
    if not leaves:
        raise structure_error(
            "data.ArraySource",
            "`tree` holds no arrays.",
            "Give arrays whose leading axis counts the records.",
        )
    for name, leaf in leaves:
        place = f"`{name}`" if name else "`tree`"
        # Objects, bytes, texts, times and durations: NumPy has such arrays, JAX none.
        text = isinstance(leaf, np.ndarray | np.generic) and leaf.dtype.kind in "OSUMm"
        if not eqx.is_array(leaf) or text:
            if eqx.is_array_like(leaf):
                what = StructureError
                cure = "Repeat it for each record, or add it to records in `pipe`."
            else:
                what = TypeError
                cure = "Give arrays only; text can be encoded as integers beforehand."
            wrong = f"{place} is {describe_value(leaf)}, no array with records."
            raise what(message("data.ArraySource", wrong, cure))
        if leaf.ndim == 0:
            raise structure_error(
                "data.ArraySource",
                f"{place} is {leaf_text(leaf)}, a scalar without a leading axis.",
                "Repeat it for each record, or add it to records in `pipe`.",
            )
