"""Sources on the device, and everything that is accepted as a source.

For JAX and Equinox every leaf of floating-point numbers is a parameter: `filter_grad`
differentiates it, and weight decay shrinks it even where its gradient is zero.
Floating-point records are therefore stored as integers with the same bits. These are
ordinary leaves (arguments of compiled programs, sharded, saved), and the last step of
making a batch converts them back, which XLA fuses with later operations.
"""

import abc
from collections.abc import Mapping
from typing import Any, SupportsIndex, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Integer, UInt32

from .._check import check_dense
from .._errors import describe_value, structure_error, type_error, value_error
from .._tree import as_arrays, leaves_with_names
from .._types import PyTree
from .host_source import (
    SPARSE,
    HostArrays,
    HostRecords,
    HostSource,
    Records,
    as_numpy,
    check_leading,
    index_of,
    jax_dtype,
    narrowed,
)

# JAX indexes with int32, unless `jax_enable_x64` is set.
MOST_ON_DEVICE = 2**31 - 1


class Bits(eqx.Module):
    """An array of floating-point or complex numbers, as integers of the same bits.

    The two parts of a complex number lie along an additional last axis.
    """

    bits: Array | np.ndarray
    dtype: np.dtype = eqx.field(static=True)

    def numbers(self) -> Array:
        """Return the array itself."""
        if not jnp.issubdtype(self.dtype, jnp.complexfloating):
            return jax.lax.bitcast_convert_type(self.bits, self.dtype)
        part = jnp.finfo(self.dtype).dtype
        parts = jax.lax.bitcast_convert_type(self.bits, part)
        return jax.lax.complex(parts[..., 0], parts[..., 1])


def _as_bits(leaf: Array | np.ndarray) -> Bits | Array | np.ndarray:
    """Return a floating-point or complex array as `Bits`; others unchanged."""
    # A traced array may be an argument of a gradient, and is then differentiated.
    if isinstance(leaf, Tracer) or not jnp.issubdtype(leaf.dtype, jnp.inexact):
        return leaf
    dtype = np.dtype(leaf.dtype)
    # Converted on the host before the move: the device may have no memory for a copy.
    xp = np if isinstance(leaf, np.ndarray) else jnp
    if jnp.issubdtype(dtype, jnp.complexfloating):
        leaf = xp.stack([xp.real(leaf), xp.imag(leaf)], axis=-1)
    integers = np.dtype(getattr(jnp, f"uint{jnp.finfo(dtype).bits}"))
    return Bits(leaf.view(integers), dtype)


def as_numbers(tree: PyTree) -> PyTree:
    """Convert all `Bits` of a pytree back to numbers."""
    return jtu.tree_map(
        lambda leaf: leaf.numbers() if isinstance(leaf, Bits) else leaf,
        tree,
        is_leaf=lambda leaf: isinstance(leaf, Bits),
    )


class DeviceSource(eqx.Module):
    """The abstract base of sources whose records a compiled program can read."""

    @abc.abstractmethod
    def __len__(self) -> int:
        """Return the number of records."""

    @abc.abstractmethod
    def take(self, indices: UInt32[Array, " n"]) -> PyTree:
        """Return records by index, stacked along a leading axis, as bits.

        Indices are not checked.
        """

    def slice(self, start: UInt32[Array, ""], count: int) -> PyTree:
        """Return `count` consecutive records, as bits."""
        return self.take(start + jnp.arange(count, dtype=np.uint32))

    def struct(self) -> PyTree:
        """Return the shapes and dtypes of one record."""
        index = jax.ShapeDtypeStruct((1,), np.uint32)
        one = jax.eval_shape(lambda index: as_numbers(self.take(index)), index)
        return jtu.tree_map(lambda s: jax.ShapeDtypeStruct(s.shape[1:], s.dtype), one)

    def __getitem__(self, index: SupportsIndex) -> PyTree:
        """Return one record; a negative index counts from the end."""
        one = self.take(jnp.asarray([index_of(index, len(self))], np.uint32))
        return as_numbers(jtu.tree_map(lambda leaf: leaf[0], one))


class ArraySource(DeviceSource):
    """Arrays on the device as a source of records.

    Record `i` is entry `i` of the leading axis of every array. NumPy arrays are moved
    to the device once, when the source is made; JAX arrays stay on their devices, also
    when sharded (floating-point arrays are copied there).

    Records are data, not parameters: `equinox.filter_grad` does not differentiate them,
    and an optimiser does not change them. To ensure this, floating-point and complex
    numbers are stored as integers with the same bits. `tree` returns the original
    arrays, converted at each access; to change records, make another source. Only a
    source made of traced arrays, inside a transformation, is differentiated.

    **Arguments:**

    - `tree`: a pytree of arrays with a common leading axis.

    **Shapes:** leaves `(records, *a)`; a record has `(*a,)`.

    **Raises:**

    - `StructureError` (a `ValueError`) if leading axes differ, a leaf has none, or
      there are no arrays; the error names all leaves.
    - `TypeError` if a leaf is not an array of numbers that JAX supports, or belongs to
      a sparse matrix.
    - `ValueError` if an array is masked, 64-bit numbers do not fit into JAX's 32-bit
      dtypes, or there are more than 2^31 - 1 records.

    !!! example

        >>> import eqx_pipe as ep, jax.numpy as jnp
        >>> source = ep.data.ArraySource({"x": jnp.ones((5, 3)), "y": jnp.arange(5)})
        >>> len(source), source[2]["y"].item()
        (5, 2)
    """

    held: PyTree

    def __init__(self, tree: PyTree):
        check_dense("data.ArraySource", "`tree`", tree, SPARSE)
        leaves = leaves_with_names(tree)
        _check_leaves(leaves)
        size = check_leading("data.ArraySource", leaves)
        if size > MOST_ON_DEVICE:
            raise value_error(
                "data.ArraySource",
                f"{size} records, and there can be 2^31 - 1 on a device.",
                "Give the NumPy array or memory map itself as a host source.",
            )
        held = jtu.tree_map(lambda leaf: _as_bits(_fitting(leaf)), tree)
        self.held = as_arrays(held)

    @property
    def tree(self) -> PyTree:
        """The arrays with all records."""
        return as_numbers(self.held)

    def __len__(self) -> int:
        return jtu.tree_leaves(self.held)[0].shape[0]

    def take(self, indices: UInt32[Array, " n"]) -> PyTree:
        at = indices.astype(np.int32)

        # The indices come from a permutation of the records, so JAX need not check
        # them.
        def one(leaf: Array) -> Array:
            return leaf.at[at].get(mode="promise_in_bounds")

        return jtu.tree_map(one, self.held)

    def slice(self, start: UInt32[Array, ""], count: int) -> PyTree:
        first = start.astype(np.int32)

        def one(leaf: Array) -> Array:
            return jax.lax.dynamic_slice_in_dim(leaf, first, count)

        return jtu.tree_map(one, self.held)


def _fitting(leaf: Array | np.ndarray) -> Array | np.ndarray:
    """Return a NumPy array in JAX's dtype, checked: JAX itself wraps large numbers."""
    if not isinstance(leaf, np.ndarray):
        return leaf
    dtype = jax_dtype(leaf.dtype)
    assert dtype is not None
    return narrowed("data.ArraySource", leaf, dtype)


def _check_leaves(leaves: list[tuple[str, object]]) -> None:
    if not leaves:
        raise structure_error(
            "data.ArraySource",
            "`tree` holds no arrays.",
            "Give arrays whose leading axis counts the records.",
        )
    for name, leaf in leaves:
        name = name or "tree"
        if isinstance(leaf, np.ndarray):
            as_numpy("data.ArraySource", f"`{name}`", leaf)
            good = _fits_device(jax_dtype(leaf.dtype))
        else:
            good = isinstance(leaf, jax.Array)
        if not good or np.ndim(leaf) == 0:
            number = eqx.is_array_like(leaf) and np.ndim(leaf) == 0
            raise (structure_error if number else type_error)(
                "data.ArraySource",
                f"`{name}` is {describe_value(leaf)}, not an array of records.",
                "The leading axis of every array counts the records: repeat a scalar "
                "for each record, or add it in `pipe`; encode text as integers; "
                "convert long doubles by `.astype(float)`, and give the fields of a "
                "structured array as a dict.",
            )


def _fits_device(dtype: np.dtype | None) -> bool:
    """Return whether JAX has the dtype, and integers of the same bits."""
    if dtype is None or not jnp.issubdtype(dtype, jnp.inexact):
        return dtype is not None
    return hasattr(jnp, f"uint{jnp.finfo(dtype).bits}")


class CopiedToHost(HostRecords):
    """Records of a device source, to mix them with records on the host."""

    def __init__(self, source: DeviceSource):
        self.source: DeviceSource = source
        self.thread_safe: bool = False

    def __len__(self) -> int:
        return len(self.source)

    def take(self, indices: Integer[np.ndarray, " n"]) -> PyTree:
        at = jnp.asarray(indices.astype(np.uint32))
        return jax.device_get(as_numbers(self.source.take(at)))


Source: TypeAlias = DeviceSource | HostSource
"""A source as loaders hold it."""

SourceLike: TypeAlias = Source | Array | Records | Mapping[str, Any] | tuple[Any, ...]
"""Everything that is accepted as a source; a JAX array stays on the device."""


def as_source(function: str, argument: str, source: SourceLike) -> Source:
    """Return a source, after a check that it is one."""
    if isinstance(source, DeviceSource | HostSource):
        return source
    if isinstance(source, jax.Array):
        return ArraySource(source)
    if HostArrays.fits(source):
        return HostSource(HostArrays(source))
    lacks = [f"__{a}__" for a in ("getitem", "len") if not hasattr(source, f"__{a}__")]
    if not (lacks or isinstance(source, Mapping | tuple)):
        return HostSource(source)
    without = f", without `{lacks[0]}`" if lacks else ""
    raise type_error(
        function,
        f"`{argument}` is {describe_value(source)}{without}.",
        "Give `ArraySource(tree)` for a pytree of arrays, or anything with `__len__` "
        "and `__getitem__`: NumPy arrays and memory maps, a Grain `MapDataset`, a "
        "Hugging Face dataset (one, not a dictionary of them), a list of records. A "
        "stream has no positions: keep its records in a list, or read them by number.",
    )
