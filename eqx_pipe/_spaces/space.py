"""The space: a pytree with axes in it, as a pure function from index to point.

Also spaces of tables, of several spaces joined, at points of the unit cube, and at
designs: few points that fill a space of many dimensions evenly.

The geometry of a space is derived from the pytree once for each use and passed on as a
plain dataclass, since reading the attributes of a module is slow.

The digits of a point are its position on each dim of the whole grid, its index as a
number in mixed radix, of which the last dim varies fastest. Indices may be larger than
any integer of the device. On the host they are Python integers; on the device a point
is given by the digits of a start, which the host computes, and a small offset that is
added to them with carries.

Keys are derived from digits and not from the flat index, which changes for nearly every
point when an inner dim grows or when a part of the space is swept by itself.
"""

import copy
import dataclasses
import datetime
import functools as ft
import math
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import (
    TYPE_CHECKING,
    Any,
    Literal,
    SupportsFloat,
    SupportsIndex,
    TypeAlias,
    TypeGuard,
    TypeVar,
    overload,
)

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Bool, Float, Int, Int32, Integer, Shaped, UInt32

from .._check import check_choice, check_distinct, check_unmasked
from .._errors import (
    describe_value,
    message,
    nearest,
    optional,
    quoted,
    type_error,
    value_error,
)
from .._keys import (
    check_draws,
    check_key,
    check_mapped_key,
    check_names_draw_apart,
    fold,
    point_key,
    seed_of,
)
from .._tree import (
    as_data,
    as_hashable,
    is_key_array,
    leaves_with_names,
    on_device,
    path_name,
    static_text,
)
from .._types import Key, PyTree
from .axis import (
    MAX_LENGTH,
    NUMBERS,
    Axis,
    LoadedValues,
    Mapped,
    Static,
    Values,
    ValuesLike,
    check_dim,
    check_length,
    is_axis,
    missing_in,
    needs_space_key,
    value_of,
)

_Column = TypeVar("_Column")


def values_at(
    name: str, axis: Axis, key: Key | None, positions: Int[np.ndarray, " points"]
) -> Any:
    """Return the values of an axis at some positions, along a leading axis.

    `key` is the axis's key. Values are NumPy arrays, or JAX arrays if they are keys or
    are computed by `value`; static values are a list.
    """
    if axis.is_static:
        static: Any = axis
        return [static.value(int(k), key) for k in positions]
    stored = axis.stored
    if stored is not None:
        return (stored if is_key_array(stored) else np.asarray(stored))[positions]
    at = jnp.asarray(positions, jnp.int32)
    each = jax.vmap(lambda i: jtu.tree_map(jnp.asarray, value_of(name, axis, i, key)))
    return each(at)


def axis_structs(name: str, axis: Axis, key: Key | None) -> PyTree:
    """Return the shapes and dtypes of one value of an axis whose values are arrays."""
    stored = axis.stored
    if stored is not None:
        return jax.ShapeDtypeStruct(stored.shape[1:], stored.dtype)
    position = jax.ShapeDtypeStruct((), jnp.int32)
    return jax.eval_shape(lambda i: value_of(name, axis, i, key), position)


def static_column(values: list[Any]) -> np.ndarray:
    """Return static values as a column: all numbers, or else distinct texts."""
    if all(isinstance(v, bool | np.bool_) for v in values):
        return np.array(values, bool)
    numbers = (int, float, np.integer, np.floating)
    if all(isinstance(v, numbers) and not isinstance(v, bool) for v in values):
        column = np.array(values)
        if column.dtype.kind in "iuf":
            return column
    texts = [static_text(v) for v in values]
    owners: dict[str, set[Any]] = {}
    for text, value in zip(texts, values, strict=True):
        owners.setdefault(text, set()).add(as_hashable(value))
    shared = {text for text, who in owners.items() if len(who) > 1}
    apart = [f"{t} ({i})" if t in shared else t for i, t in enumerate(texts)]
    return np.array(apart, np.str_)


def entry_names(name: str, shape: tuple[int, ...]) -> list[str]:
    """Return the names of an array's entries: `name` for a scalar, or `name.0.1`."""
    return [".".join([name, *map(str, entry)]) for entry in np.ndindex(shape)]


def flat_columns(name: str, value: np.ndarray) -> dict[str, np.ndarray]:
    """Return one column for each entry of a value per point."""
    names = entry_names(name, value.shape[1:])
    return dict(zip(names, value.reshape(len(value), len(names)).T, strict=True))


def as_numpy(leaf: object) -> np.ndarray:
    """Return an array on the host; PRNG keys as their raw data."""
    return np.asarray(as_data(leaf))


def raw_shape(struct: Any) -> tuple[int, ...]:
    """Return the shape of a value on the host, where PRNG keys are their raw data."""
    if jnp.issubdtype(struct.dtype, jax.dtypes.prng_key):
        return jax.eval_shape(jax.random.key_data, struct).shape
    return struct.shape


def at_least_one(values: Any) -> tuple[Any, bool]:
    """Return values, or a placeholder if there are none, and whether it was needed.

    An axis has at least one value, so the axes of an empty table have one that is not
    used.
    """
    if len(values):
        return values, False
    if is_key_array(values):
        return jnp.empty((1, *values.shape[1:]), values.dtype), True
    values = np.asarray(values)
    return np.zeros((1, *values.shape[1:]), values.dtype), True


def _leaf_columns(name: str, values: object) -> list[tuple[str, Any]]:
    """Return the leaves of values of an axis, with the names of their columns."""
    leaves = leaves_with_names(values)
    return [(f"{name}.{leaf}" if leaf else name, x) for leaf, x in leaves]


def _distinct(columns: Iterable[tuple[str, _Column]]) -> dict[str, _Column]:
    """Return columns by name; raise a `ValueError` if two have the same name."""
    pairs = list(columns)
    check_distinct("Space", "columns", [name for name, _ in pairs])
    return dict(pairs)


Index: TypeAlias = SupportsIndex | Integer[Array, ""]
"""The index of a point, which may be traced."""

Digit = int | Integer[Array, ""]
"""The position of a point on one dim."""

Indices: TypeAlias = (
    Sequence[int]
    | Sequence[bool]
    | Integer[Array, " picked"]
    | Integer[np.ndarray, " picked"]
    | Bool[Array, "..."]
    | Bool[np.ndarray, "..."]
)
"""Indices of points in any order, or a mask over all of them."""

_CURE = "Give an integer, a slice, a list of indices, or a mask with a bool per point."


def digits_of(i: int, lengths: Sequence[int]) -> list[int]:
    """Return the position on each dim of point `i`, the last dim varying fastest."""
    digits = []
    for n in reversed(lengths):
        i, digit = divmod(i, n)
        digits.append(digit)
    return digits[::-1]


def advance(
    digits: Sequence[UInt32[Array, ""] | np.uint32],
    offset: UInt32[Array, ""],
    lengths: Sequence[int],
) -> list[UInt32[Array, ""]]:
    """Return the digits of a point `offset` points (at most `2**31`) further on.

    A digit is below `2**31 - 1`, and a carry at most `2**31`, so their sum fits 32
    bits. Nothing is carried out of the first digit, since the point lies in the grid.
    """
    carry, result = offset, []
    for k in reversed(range(len(lengths))):
        # Use operations of `lax`: `jnp` traces and lowers them as functions, and `//`
        # and `%` compare signs, which unsigned numbers do not have.
        total = jax.lax.add(digits[k], carry)
        if k == 0:
            result.append(total)
            break
        radix = np.uint32(lengths[k])
        carry = jax.lax.div(total, radix)
        result.append(jax.lax.rem(total, radix))
    return result[::-1]


def as_index(i: SupportsIndex, function: str = "Space", hint: str = "") -> int:
    """Return an index as a Python integer; raise a `TypeError` if it is not one."""
    try:
        if isinstance(i, bool):
            raise TypeError
        return operator.index(i)
    except TypeError:
        wrong = f"the index is {describe_value(i)}."
        raise type_error(function, wrong, f"{hint}{_CURE}") from None


def plain_digits(
    i: SupportsIndex, size: int, lengths: Sequence[int], start: int
) -> list[int]:
    """Return the digits of the point `i` of `size` points, which begin at `start`."""
    i = as_index(i)
    if not 0 <= i < size:
        raise _out_of_range("Space", i, size)
    return digits_of(start + i, lengths)


def _out_of_range(function: str, i: object, size: int) -> IndexError:
    cure = f"Give indices of the {size} points, 0 to {size - 1}."
    return IndexError(message(function, f"index {i} is out of range.", cure))


def traced_digits(
    i: Array, size: int, lengths: Sequence[int], start: int
) -> list[Int[Array, ""]]:
    """Return `plain_digits` of a traced index, clamped if it is out of range."""
    if i.shape != () or not jnp.issubdtype(i.dtype, jnp.integer):
        wrong = f"the index is a traced {i.dtype}{list(i.shape)}."
        cure = "Give a scalar integer; for many points at once use `jax.vmap`."
        raise type_error("Space", wrong, cure)
    # The dtype may hold fewer numbers than there are points.
    most = min(size - 1, 2**32 - 1, int(jnp.iinfo(i.dtype).max))
    offset = jnp.clip(i, jnp.asarray(0, i.dtype), jnp.asarray(most, i.dtype))
    # In two steps, each of at most `2**31` points.
    half = offset.astype(jnp.uint32) // 2
    digits: Sequence[Any] = [np.uint32(digit) for digit in digits_of(start, lengths)]
    for step in (half, offset.astype(jnp.uint32) - half):
        digits = advance(digits, step, lengths)
    return [digit.astype(jnp.int32) for digit in digits]


def indices(function: str, index: Any, size: int, lengths: Sequence[int]) -> np.ndarray:
    """Return the non-negative indices that a list or a mask selects.

    A mask has one entry for each of `size` points, or the `lengths` of the dims. A
    traced index raises JAX's own error.
    """
    check_unmasked(function, "index", index)
    array = np.asarray(index if len(index) else np.zeros(0, np.int64))
    if array.dtype == bool:
        if array.shape not in ((size,), tuple(lengths)):
            wrong = f"the mask has the shape {array.shape}, for {size} points."
            cure = f"Give one bool for each point, shape ({size},), or one for each "
            cure += f"point of the grid, shape {tuple(lengths)}."
            raise value_error(function, wrong, cure)
        return np.flatnonzero(array)
    # Integers that are too large for NumPy are Python integers in an array of objects.
    whole = array.dtype.kind in "iu" or all(type(i) is int for i in array.flat)
    if array.ndim != 1 or not whole:
        wrong = f"the index is {describe_value(index)}."
        raise type_error(function, wrong, _CURE)
    outside = (array < -size) | (array >= size)
    if np.any(outside):
        raise _out_of_range(function, array[outside][0], size)
    if array.dtype.kind == "u":
        array = array.astype(np.int64)
    return np.where(array < 0, array + size, array)


def is_several(index: object) -> TypeGuard[Indices]:
    """Return whether an index is a list or a mask rather than a single index."""
    return isinstance(index, list) or getattr(index, "ndim", 0) > 0


POINT = "point"
"""The dim of a zipped space, and of a part of any space."""


def written_names(tree: PyTree) -> tuple[str, ...]:
    """Return the paths of the axes in a pytree, in the order written.

    JAX sorts the keys of dicts, also in the outputs of transformations, so the order
    is recorded when a space is built. Raises a `TypeError` if the keys of a dict
    cannot be sorted.
    """
    return tuple(map(axis_name, _written(tree, ())))


def as_written(tree: PyTree, like: PyTree) -> PyTree:
    """Return a pytree with the keys of its dicts in the order of those in another.

    Both have the same structure above the axes of `like`.
    """
    if tree is like or is_axis(like):
        return tree
    (children, structure), (others, _) = (
        jtu.tree_flatten(node, is_leaf=lambda x, node=node: x is not node)
        for node in (tree, like)
    )
    if jtu.treedef_is_leaf(structure):
        return tree
    pairs = zip(children, others, strict=True)
    made = jtu.tree_unflatten(structure, [as_written(*pair) for pair in pairs])
    return {key: made[key] for key in like} if type(like) is dict else made


def axis_name(path: tuple[Any, ...]) -> str:
    """Return the path of an axis joined by dots, `x` if it is the whole space."""
    return path_name(path) or "x"


def no_axis(function: str, argument: str, tree: PyTree) -> ValueError:
    """Return the error for a `tree` without an axis, passed as `argument`."""
    cures = [
        "Put a `Linspace`, `Geomspace` or `Values` instead of a leaf: `ep.Values` "
        "makes an axis of a list, `ep.Space.from_table` a space of a table.",
        *filter(None, map(unregistered, jtu.tree_leaves(tree))),
    ]
    wrong = f"`{argument}` is {describe_value(tree)}, which has no axis."
    return value_error(function, wrong, " ".join(cures[:2]))


def unregistered(x: object) -> str:
    """Return the fix for an object that is not a pytree, and `""` for other leaves."""
    is_leaf = isinstance(x, type) or callable(x) or hasattr(x, "__array__")
    if is_leaf or not getattr(x, "__dict__", None):
        return ""
    name = type(x).__name__
    return (
        f"JAX does not look into `{name}`: make it an `equinox.Module`, or a dataclass "
        f"that is registered by `jax.tree_util.register_dataclass({name})`."
    )


def _written(node: PyTree, path: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    """Yield the paths of the axes at `node` and below, in the order written."""
    if is_axis(node):
        yield path
        return
    children = jtu.tree_flatten_with_path(node, is_leaf=lambda x: x is not node)[0]
    if isinstance(node, dict) and all(
        len(p) == 1 and isinstance(p[0], jtu.DictKey) for p, _ in children
    ):
        written = {key: i for i, key in enumerate(node)}
        children = sorted(children, key=lambda child: written[child[0][0].key])
    for step, child in children:
        if step:  # a leaf flattens to itself, with an empty path
            yield from _written(child, (*path, *step))


def arranged(
    axes: Mapping[str, Axis], mode: str
) -> tuple[dict[str, int], tuple[int, ...]]:
    """Return the length of each dim in order, and the index of each axis's dim."""
    members: dict[str, list[str]] = {}
    for name, axis in axes.items():
        if not 1 <= len(axis) <= MAX_LENGTH:
            wrong = f"the axis `{name}` has {len(axis)} values."
            cure = "Give it at least one and at most 2**31 - 1."
            raise value_error("Space", wrong, cure)
        if POINT in (name, axis.dim):
            wrong = f"the axis `{name}` has the path or the dim `point`, which is "
            wrong += "reserved for zipped and sliced spaces."
            cure = "Rename it."
            raise value_error("Space", wrong, cure)
        dim = POINT if mode == "zip" else name if axis.dim is None else axis.dim
        other = axes.get(dim)
        if other is not None and dim != name and other.dim != dim:
            wrong = f"the dim `{dim}` of the axis `{name}` is also the path of another "
            wrong += "axis, which does not share it."
            cure = f"Give the axis `{dim}` `dim={dim!r}` too if they are to vary "
            cure += "together, or rename the dim."
            raise value_error("Space", wrong, cure)
        members.setdefault(dim, []).append(name)
    for dim, names in members.items():
        if len({len(axes[name]) for name in names}) > 1:
            listed = ", ".join(f"`{name}` has {len(axes[name])}" for name in names)
            wrong = f"axes of the dim `{dim}` vary together and differ in length: "
            wrong += f"{listed}."
            cure = "Give them the same length, or another `dim` to one of them."
            raise value_error("Space", wrong, cure)
    position = {name: k for k, names in enumerate(members.values()) for name in names}
    dims = {dim: len(axes[names[0]]) for dim, names in members.items()}
    return dims, tuple(position[name] for name in axes)


Rows = Int32[Array, "points dims"]
"""Points of a grid in any order: the position of each on each dim."""


@dataclasses.dataclass(frozen=True)
class Geometry:
    """The axes of a space and the grid that they form.

    `key` is the key of the space. `leaves` are the leaves of the pytree, each axis
    being one, and `structure` is its structure. `names` are the names of the axes in
    the order written, and `leaf_indices` their indices among the leaves. `grid_dims`
    are the dims of the whole grid, and `axis_dims` has the index of each axis's dim. A
    part of the grid is a contiguous stretch, with `span` as `(start, count)`, or has
    the points in `rows`. If the dims are reordered, `written` has the index of each in
    the order written.
    """

    key: Key | None
    structure: Any
    leaves: list[Any]
    names: tuple[str, ...]
    leaf_indices: tuple[int, ...]
    grid_dims: dict[str, int]
    axis_dims: tuple[int, ...]
    span: tuple[int, int] | None
    rows: Rows | None
    written: tuple[int, ...] | None = None

    @ft.cached_property
    def axes(self) -> dict[str, Axis]:
        """The axes by name, in the order in which they were written."""
        axes = (self.leaves[index] for index in self.leaf_indices)
        return dict(zip(self.names, axes, strict=True))

    def axis_key(self, name: str) -> Key | None:
        """Return the key of an axis, which does not depend on the other axes."""
        return fold(self.key, name)

    @ft.cached_property
    def lengths(self) -> tuple[int, ...]:
        """The lengths of the grid's dims."""
        return tuple(self.grid_dims.values())

    @ft.cached_property
    def grid_size(self) -> int:
        """The number of points of the whole grid."""
        return math.prod(self.lengths)

    @property
    def start(self) -> int:
        """The index in the grid of the first point of a stretch."""
        return 0 if self.span is None else self.span[0]

    @property
    def size(self) -> int:
        """The number of points, a Python integer of any size."""
        if self.rows is not None:
            return self.rows.shape[0]
        return self.grid_size if self.span is None else self.span[1]

    @property
    def is_part(self) -> bool:
        """True if the space is a part of the grid, or its points in another order."""
        return self.span is not None or self.rows is not None

    @property
    def dims(self) -> dict[str, int]:
        """The length of each dim by its name; a part has one."""
        return {POINT: self.size} if self.is_part else self.grid_dims

    @ft.cached_property
    def static_dims(self) -> tuple[int, ...]:
        """The indices in `grid_dims` of the dims that have `Static` axes."""
        pairs = zip(self.axes.values(), self.axis_dims, strict=True)
        return tuple(sorted({dim for axis, dim in pairs if axis.is_static}))

    @ft.cached_property
    def tabled(self) -> list[tuple[int, int, Any]]:
        """The leaf, the dim and the table of each axis whose values are known."""
        pairs = zip(self.leaf_indices, self.axis_dims, strict=True)
        axes = [(index, dim, self.leaves[index]) for index, dim in pairs]
        tables = [(k, dim, x.table) for k, dim, x in axes if not x.is_static]
        return [each for each in tables if each[2] is not None]

    @ft.cached_property
    def key_dims(self) -> tuple[int, ...]:
        """The indices in `grid_dims` of the dims folded into the keys of points."""
        pairs = zip(self.axes.values(), self.axis_dims, strict=True)
        draws = [(axis.replicates, dim) for axis, dim in pairs if axis.replicates]
        dims = set(range(len(self.lengths)))
        if any(kind == "common" for kind, _ in draws):
            dims = {dim for _, dim in draws}
        # Keep the order written, so that reordering the dims changes no draw.
        written = self.written or range(len(self.lengths))
        return tuple(sorted(dims, key=written.__getitem__))

    def key_digits(self, digits: Sequence[Digit]) -> list[Digit]:
        """Return the digits of a point that are folded into its key."""
        return [digits[dim] for dim in self.key_dims]

    def turned(self, last: Sequence[str]) -> "Geometry":
        """Return the same points with some dims last, so that they vary fastest."""
        names = list(self.grid_dims)
        order = sorted(range(len(names)), key=lambda k: names[k] in last)
        return dataclasses.replace(
            self,
            grid_dims={names[k]: self.grid_dims[names[k]] for k in order},
            axis_dims=tuple(order.index(dim) for dim in self.axis_dims),
            written=tuple(order),
        )

    def index_as_written(self, i: int) -> int:
        """Return the index of a point in the space as it was written."""
        if self.written is None:
            return i
        digits = digits_of(i, self.lengths)
        index = 0
        for dim in np.argsort(self.written):
            index = index * self.lengths[dim] + digits[dim]
        return index

    def digits(self, index: np.ndarray) -> np.ndarray:
        """Return the positions of some points on each dim of the grid.

        The array has the shape `(points, dims)`.
        """
        if self.rows is not None:
            return np.asarray(self.rows)[index]
        # Use Python integers if a grid may have more points than `int64` can count. The
        # limit is half of that, since a start is added.
        wide = self.grid_size >= 2**62
        flat = self.start + (index.astype(object) if wide else index)
        digits = np.empty((len(index), len(self.lengths)), np.int32)
        for k in reversed(range(len(self.lengths))):
            flat, digits[:, k] = flat // self.lengths[k], flat % self.lengths[k]
        return digits

    def digits_at(self, i: Index) -> Sequence[Digit]:
        """Return the position of the point `i` on each dim of the grid.

        Raises as `plain_digits` and `traced_digits`.
        """
        digits_from: Any = traced_digits if isinstance(i, Tracer) else plain_digits
        if self.rows is None:
            return digits_from(i, self.size, self.lengths, self.start)
        (at,) = digits_from(i, self.size, (self.size,), 0)
        row = self.rows[at]
        return list(row) if isinstance(row, Tracer) else np.asarray(row).tolist()

    def point(
        self,
        leaves: Sequence[Any],
        key: Key | None,
        digits: Sequence[Int[Array, ""]],
        plain: Sequence[Digit],
    ) -> PyTree:
        """Return the point at a position on each dim of the grid.

        `leaves` are the leaves of the space, whose arrays may be traced, and `key` is
        its key. `plain` are the positions as Python integers, for `Static` axes.
        """
        values = list(leaves)
        for name, index, dim in zip(
            self.names, self.leaf_indices, self.axis_dims, strict=True
        ):
            axis = leaves[index]
            position: Any = (plain if axis.is_static else digits)[dim]
            values[index] = value_of(name, axis, position, fold(key, name))
        return jtu.tree_unflatten(self.structure, values)

    def column_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of one value in each column, without computing any.

        Raises a `ValueError` if two columns have the same name.
        """

        def shapes() -> Iterator[tuple[str, tuple[int, ...]]]:
            for name, axis in self.axes.items():
                if axis.is_static:
                    yield name, ()
                    continue
                structs = axis_structs(name, axis, self.axis_key(name))
                for column, struct in _leaf_columns(name, structs):
                    yield column, raw_shape(struct)

        return _distinct(shapes())

    def axis_values(
        self, name: str, positions: np.ndarray
    ) -> list[tuple[str, np.ndarray]]:
        """Return the columns of an axis at some positions; keys as their raw data.

        There is one column for each leaf of a value. Python values become numbers or
        texts.
        """
        axis, key = self.axes[name], self.axis_key(name)
        if axis.is_static:
            values = values_at(name, axis, key, np.arange(len(axis)))
            return [(name, static_column(values)[positions])]
        values = values_at(name, axis, key, positions)
        columns = _leaf_columns(name, values)
        return [(column, as_numpy(leaf)) for column, leaf in columns]

    def columns(self) -> dict[str, np.ndarray]:
        """Return the value of each axis at every point, along a leading axis.

        Raises a `ValueError` if two columns have the same name.
        """
        digits = self.digits(np.arange(self.size))

        def values() -> Iterator[tuple[str, np.ndarray]]:
            for name, dim in zip(self.names, self.axis_dims, strict=True):
                # Compute each value once: on a grid most positions occur many times.
                few, back = np.unique(digits[:, dim], return_inverse=True)
                for column, value in self.axis_values(name, few):
                    yield column, value[back]

        return _distinct(values())

    def entry_columns(
        self, convert: Callable[[np.ndarray], np.ndarray] = np.asarray
    ) -> dict[str, np.ndarray]:
        """Return one column for each entry of the converted value of each axis.

        Raises a `ValueError` if two columns have the same name.
        """
        return _distinct(
            pair
            for name, value in self.columns().items()
            for pair in flat_columns(name, convert(value)).items()
        )


Cube: TypeAlias = (
    Shaped[Array, "points axes"]
    | Shaped[np.ndarray, "points axes"]
    | Sequence[Sequence[SupportsFloat]]
)
"""Points of the unit cube."""

if TYPE_CHECKING:
    import pandas

TableLike: TypeAlias = Mapping[str, ValuesLike] | Any
"""Columns by name, or a data frame."""

Point: TypeAlias = PyTree
"""A space's pytree with a value in place of each axis."""


class Space(eqx.Module):
    """A pytree some of whose leaves are axes, as a sequence of points.

    A point is the same pytree with a value in place of each axis; other leaves are
    constants. In mode `"product"` every dim is combined with every other, the first
    varying slowest; in mode `"zip"` all axes vary together. Axes with the same `dim`
    form one dim. Each point is computed from its index on access, so memory does not
    grow with the number of points.

    **Arguments:**

    - `tree`: any pytree with at least one axis in it: a dict, a bare axis, an
      Equinox module in which `equinox.tree_at` put an axis.
    - `mode`: `"product"` or `"zip"`.
    - `key`: a PRNG key, for axes that draw their values (`Random`).

    **Returns:** a space, a sequence of points with `len`, iteration and `space[i]`. A
    slice `space[a:b]`, a list of indices `space[[3, 7]]` and a mask `space[mask]`, with
    a bool for each point, flat or in the shape of the dims, return a space with one dim
    named `point`: the same points, with the same draws as in the whole space. It may be
    empty.

    **Raises:** `ValueError` if there is no axis, if axes of one dim differ in length,
    if two dims have the same name, if two axes would draw from the same key (their
    paths have the same CRC-32), for a mask of another shape, or for keys of the kind
    `rbg`, whose draws under `vmap` differ from those of a single point;
    `MissingKeyError` (a `ValueError`) if an axis draws its values and there is no
    `key`; `TypeError` if the keys of a dict cannot be sorted. A slice with a step
    raises a `ValueError` if it has `2**31` points or more.

    Spaces are compared by their content but hashed by identity, so equal spaces are
    different keys of a dict.

    **Laws:** `sweep(fn, space[part], key=key)` has the values of
    `sweep(fn, space, key=key)` at `part`, to rounding.

    !!! example

        >>> import eqx_pipe as ep
        >>> space = ep.Space({"rate": ep.Geomspace(1e-3, 1e-1, 3), "on": True,
        ...                   "width": ep.Values([8, 32])})
        >>> space.dims, space.size
        ({'rate': 3, 'width': 2}, 6)
        >>> int(space[1]["width"]), space[1]["on"]
        (32, True)
        >>> [int(point["width"]) for point in space[[5, 0]]]
        [32, 8]
    """

    tree: PyTree
    key: Key | None
    mode: str = eqx.field(static=True)
    names: tuple[str, ...] = eqx.field(static=True)
    span: tuple[int, int] | None = eqx.field(static=True)
    rows: Rows | None
    last: tuple[str, ...] = eqx.field(static=True)

    def __init__(
        self,
        tree: PyTree,
        mode: Literal["product", "zip"] = "product",
        key: Key | None = None,
    ):
        check_choice("Space", "mode", mode, ("product", "zip"))
        check_mapped_key("Space", key)
        if isinstance(tree, Space):
            wrong = "`tree` is a space already."
            cure = "Use it as it is, or give its `.tree`."
            raise type_error("Space", wrong, cure)
        self.tree, self.mode, self.key = tree, mode, key
        self.names = written_names(tree)
        self.span, self.rows, self.last = None, None, ()
        if not self.names:
            raise no_axis("Space", "tree", tree)
        if key is not None:
            check_names_draw_apart("Space", self.names)
        for name, axis in self.geometry.axes.items():
            if key is None and axis.needs_key:
                raise needs_space_key(name)
            for leaf in filter(is_key_array, jtu.tree_leaves(axis)):
                check_draws("Space", f"the axis `{name}` holds keys", leaf)

    @staticmethod
    def from_table(columns: TableLike, *, dim: str | None = None) -> "Space":
        """Return a space with one point for each row of a table.

        A point is a dict with the row's value of each column. Columns of numbers,
        arrays and PRNG keys are `Values`, columns of texts and other Python values
        `Static`.

        **Arguments:**

        - `columns`: a dict from names to columns of one length; a data frame of pandas
          or Polars, whose index is not a column (`df.reset_index()` makes it one); a
          table of Arrow. For an array, such as a design of SALib, give
          `dict(zip(names, array.T))`.
        - `dim`: a name for the dim of the points, so that its axes (`.tree`) can be
          combined with other axes in a space. (Keyword only.)

        **Returns:** a `Space` with one dim, by default `point`; empty if there are no
        rows.

        **Raises:** `ValueError` if columns differ in length, if a number is missing (a
        NaN in a column of floats is a number), or for masked arrays; `TypeError` if
        `columns` is not a table, for dates, or for an empty column of Python values,
        since no value is left to trace a function with; and as `Values` for numbers
        that JAX cannot represent.

        **Laws:** `Space.from_table(space.to_pandas())` has the points of `space`, if
        its axes hold numbers and texts. `from_table(table)[part]` is `from_table` of
        the selected rows.

        !!! example

            >>> import eqx_pipe as ep
            >>> runs = ep.Space.from_table({"rate": [0.5, 1.5, 2.5], "act": ["relu",
            ...     "tanh", "relu"]})
            >>> runs.dims, runs[2]["act"]
            ({'point': 3}, 'relu')
            >>> ep.sweep(lambda p: 2 * p["rate"], runs[[2, 0]]).values.tolist()
            [5.0, 1.0]
        """
        check_dim("Space.from_table", dim)
        table = _columns(columns)
        tree = {name: _axis(name, column, dim) for name, column in table.items()}
        # Axes that share a dim vary together in a product, too.
        space = Space(tree, "product" if dim else "zip")
        return space if len(next(iter(table.values()))) else space[:0]

    @property
    def geometry(self) -> Geometry:
        """The axes, the dims and the number of points, computed at each access."""
        names = self.names  # in the order written
        check_distinct("Space", "axes", names)
        pairs, structure = jtu.tree_flatten_with_path(self.tree, is_leaf=is_axis)
        axes = [(axis_name(path), k) for k, (path, x) in enumerate(pairs) if is_axis(x)]
        index_of, leaves = dict(axes), [leaf for _, leaf in pairs]
        indices = tuple(index_of[name] for name in names)
        by_name = {name: leaves[index_of[name]] for name in names}
        fields = self.key, structure, leaves, names, indices
        dims = arranged(by_name, self.mode)
        geometry = Geometry(*fields, *dims, self.span, self.rows)
        return geometry.turned(self.last) if self.last else geometry

    def axes(self) -> dict[str, Axis]:
        """Return the axes by name, in the order in which they were written."""
        return dict(self.geometry.axes)

    @property
    def dims(self) -> dict[str, int]:
        """The length of each dim by its name; the first varies slowest."""
        return self.geometry.dims

    @property
    def size(self) -> int:
        """The number of points, a Python integer of any size."""
        return self.geometry.size

    def __len__(self) -> int:
        return self.size  # Python raises an `OverflowError` beyond `sys.maxsize`

    def __bool__(self) -> bool:
        return True  # also if `len` overflows

    def point(self, i: Index) -> Point:
        """Return the point with the index `i`.

        **Arguments:**

        - `i`: an integer from 0 to `size - 1`, which may be traced if there are no
          `Static` axes. A traced index that is out of range, or above `2**32 - 1`, is
          clamped, as by JAX's own indexing.

        **Returns:** the space's pytree with values in place of the axes.

        **Raises:** `IndexError` if `i` is out of range; `TypeError` if it is not an
        integer.
        """
        geometry = self.geometry
        digits: Any = geometry.digits_at(i)
        if isinstance(i, Tracer):
            return geometry.point(geometry.leaves, self.key, digits, digits)
        on_device = [jnp.int32(digit) for digit in digits]
        return geometry.point(geometry.leaves, self.key, on_device, digits)

    @overload
    def point_key(self, i: Index, *, key: Key) -> Key: ...
    @overload
    def point_key(self, i: Index, *, key: None) -> None: ...
    def point_key(self, i: Index, *, key: Key | None) -> Key | None:
        """Return the key from which a point draws in a sweep with `key`.

        `key` is folded with the point's position on one dim after the other: with one
        dim it is `fold_in(key, i)`. (In a space with `Seeds` whose draws are common it
        is folded with the positions on their dims alone.) So longer axes change no
        draw, and a point of a part has the same key as in the whole space.

        **Arguments:**

        - `i`: as for `point`.
        - `key`: the PRNG key of the sweep, or `None`. (Keyword only.)

        **Returns:** a PRNG key, or `None`.

        **Raises:** as `point`, and as `sweep` for an invalid `key`.

        !!! example

            >>> import eqx_pipe as ep, jax
            >>> key = jax.random.key(0)
            >>> space = ep.Space([ep.Linspace(0, 1, 3), ep.Linspace(0, 1, 4)])
            >>> by_hand = jax.random.fold_in(jax.random.fold_in(key, 1), 2)
            >>> assert space.point_key(6, key=key) == by_hand
            >>> assert space[5:].point_key(1, key=key) == by_hand
        """
        check_mapped_key("Space.point_key", key)
        geometry = self.geometry
        return point_key(key, geometry.key_digits(geometry.digits_at(i)))

    def axis_key(self, name: str) -> Key | None:
        """Return the key of an axis, which does not depend on the other axes."""
        return fold(self.key, name)

    @overload
    def __getitem__(self, i: slice | Indices) -> "Space": ...
    @overload
    def __getitem__(self, i: Index) -> Point: ...
    def __getitem__(self, i: slice | Indices | Index) -> "Space | Point":
        if isinstance(i, slice):
            return self._slice(i)
        if is_several(i):
            geometry = self.geometry
            lengths = tuple(geometry.dims.values())
            return self._rows(indices("Space", i, geometry.size, lengths))
        one: Any = i
        if not isinstance(one, Tracer) and as_index(one) < 0:
            one, size = as_index(one), self.size
            one = one + size if -size <= one else one
        return self.point(one)

    def _slice(self, part: slice) -> "Space":
        size = self.size
        chosen = range(size)[part]
        # Not by `len`, which raises above `sys.maxsize`.
        count = max(0, -((chosen.start - chosen.stop) // chosen.step))
        if self.rows is None and chosen.step == 1:
            first = 0 if self.span is None else self.span[0]
            return self._with(span=(first + chosen.start, count))
        if count >= 2**31:
            wrong = f"the slice {part} with a step has {count} points."
            cure = "Take a slice without a step, or fewer points than 2**31."
            raise value_error("Space", wrong, cure)
        index = np.arange(count).astype(np.int64 if size < 2**62 else object)
        return self._rows(chosen.start + chosen.step * index)

    def _rows(self, index: np.ndarray) -> "Space":
        """Return the points with some indices."""
        return self._with(span=None, rows=on_device(self.geometry.digits(index)))

    def _with(self, **fields: Any) -> "Space":
        """Return a copy with other values of some fields."""
        other = copy.copy(self)  # not by flattening, which sorts the keys of dicts
        # Modules are frozen, but this copy is not in use yet.
        for name, value in fields.items():
            object.__setattr__(other, name, value)
        return other

    def __iter__(self) -> Iterator[Point]:
        return (self.point(i) for i in range(self.size))

    def __hash__(self) -> int:
        # By identity, unlike `==`, so that `jax.jit(space.point)` works: the module's
        # own hash needs hashable leaves, and a space often holds a dict.
        return id(self)

    def from_unit(self, u: Cube, *, dim: str | None = None) -> "Space":
        """Return the space at some points of the unit cube.

        So a design or an optimiser that proposes numbers can choose points of any
        space.

        **Arguments:**

        - `u`: numbers from 0 to 1, of shape `(points, axes)`, a column for each axis in
          the order in which they were written. For a `Uniform` or `Linspace` axis the
          number is the fraction of the way from `start` to `stop`, for a `LogUniform`
          or `Geomspace` axis the fraction in the logarithm; an axis of one value always
          has that value. The values of any other axis (`Values`, `Static`, `Random`)
          are categories: numbers from k/n to (k+1)/n select value k of n, counted from
          0. `Mapped` applies its function to the value of its axis.
        - `dim`: a name for the dim of the points, so that its axes (`.tree`) can be
          combined with other axes in a space. (Keyword only.)

        **Returns:** a `Space` of the same structure with one dim, by default `point`.
        For a part of a space, the cube is that of the whole grid.

        **Raises:** `ValueError` if `u` has another shape, for a number that is not
        between 0 and 1, and if two axes vary together.

        **Laws:** `space.to_unit(space.from_unit(u))` is `u` to rounding; for categories
        it is the middle of the value's part, for equal values that of the first.

        !!! example

            >>> import eqx_pipe as ep
            >>> space = ep.Space({"rate": ep.LogUniform(1, 16),
            ...                   "act": ep.Static(["relu", "tanh"])})
            >>> [(p["rate"].item(), p["act"]) for p in space.from_unit([[0.25, 0.9]])]
            [(2.0, 'tanh')]
        """
        check_dim("Space.from_unit", dim)
        geometry = self.geometry
        _check_untied(geometry, "Space.from_unit")
        check_unmasked("Space.from_unit", "u", u)
        array: Any = np.zeros(0)
        try:
            array = np.asarray(u, np.float64)
        # Raised below, as for arrays of other shapes; also JAX's error for tracers.
        except (TypeError, ValueError):
            pass
        width = len(geometry.names)
        if array.ndim != 2 or array.shape[1] != width:
            wrong = f"`u` is {describe_value(u)}."
            cure = f"Give numbers of the shape (points, {width}), a column for each of "
            cure += f"{quoted(geometry.names)}, outside of `jit`."
            raise value_error("Space.from_unit", wrong, cure)
        outside = ~((array >= 0) & (array <= 1))
        if np.any(outside):
            row, column = (int(k) for k in np.argwhere(outside)[0])
            wrong = f"`u[{row}, {column}]` is {array[row, column]}."
            cure = "Give numbers from 0 to 1."
            raise value_error("Space.from_unit", wrong, cure)
        # An axis has at least one value: this point is removed again.
        array = array if len(array) else np.zeros((1, width))
        pairs = zip(geometry.axes.values(), array.T, strict=True)
        axes = [axis.from_unit(column, dim) for axis, column in pairs]
        space = self.with_axes(axes, "product" if dim else "zip")
        return space if len(u) else space[:0]

    def to_unit(
        self, points: "Space | None" = None
    ) -> Float[np.ndarray, "points axes"]:
        """Return the coordinates of some points in the unit cube; see `from_unit`.

        **Arguments:**

        - `points`: a space with the same axes, such as that of a result; by default
          this one. Values beyond the ends of a range raise.

        **Returns:** numbers from 0 to 1, of shape `(points, axes)`, in float64.

        **Raises:** `ValueError` if `points` has other axes, or a value that the axis of
        this space does not have, or if two axes vary together. `TypeError` for values
        of a `Mapped` range, unless `points` is from `from_unit`.

        !!! example

            >>> import eqx_pipe as ep
            >>> space = ep.Space({"rate": ep.Geomspace(1, 16, 3)})
            >>> space.to_unit().ravel().tolist()
            [0.0, 0.5, 1.0]
        """
        geometry = self.geometry
        made = (self if points is None else points).geometry
        _check_untied(geometry, "Space.to_unit")
        if made.names != geometry.names:
            wrong = f"`points` has the axes {quoted(made.names)}, but the space has "
            wrong += f"{quoted(geometry.names)}."
            cure = "Give a space with the same axes, in the same order."
            raise value_error("Space.to_unit", wrong, cure)
        digits = made.digits(np.arange(made.size))
        columns = []
        for (name, axis), dim in zip(
            geometry.axes.items(), made.axis_dims, strict=True
        ):
            other = made.axes[name]
            while isinstance(axis, Mapped) and isinstance(other, Mapped):
                axis, other = axis.axis, other.axis
            # Convert each value once: on a grid most positions occur many times.
            few, back = np.unique(digits[:, dim], return_inverse=True)
            values = values_at(name, other, made.axis_key(name), few)
            if axis.is_range:
                u = axis.to_unit(np.asarray(values))
            else:
                hashable = _hashable(other.is_static, values)
                u = _middles(name, axis, geometry.axis_key(name), hashable)
            columns.append(u[back.reshape(-1)])
            if np.isnan(u).any():
                i = int(np.argmax(np.isnan(columns[-1])))
                _, shown = made.axis_values(name, digits[i : i + 1, dim])[0]
                wrong = f"point {i} has {shown[0]} for `{name}`, outside of {axis!r}."
                cure = "Give points with values from one end of a range to the other, "
                cure += "or with one of the values of any other axis."
                raise value_error("Space.to_unit", wrong, cure)
        return np.stack(columns, axis=1)

    def with_axes(
        self, axes: Sequence[PyTree], mode: Literal["product", "zip"] = "zip"
    ) -> "Space":
        """Return the space with its axes replaced, in the order written.

        A pytree of axes, or a constant, may replace an axis.
        """
        geometry = self.geometry
        leaves = list(geometry.leaves)
        for index, axis in zip(geometry.leaf_indices, axes, strict=True):
            leaves[index] = axis
        tree = jtu.tree_unflatten(geometry.structure, leaves)
        return Space(as_written(tree, self.tree), mode, self.key)

    def to_pandas(self) -> "pandas.DataFrame":
        """Return all points as a `pandas.DataFrame`, one row for each.

        Columns are named by the axes' paths; an axis of arrays has a column for each
        entry (`w.0`, `w.1`).

        **Raises:** `ValueError` if two columns have the same name (an axis `x` of
        arrays beside an axis `x.0`).

        Needs `pip install 'eqx_pipe[sweep]'`.
        """
        if self.size >= 2**31:
            wrong = f"the space has {self.size} points, and each is a row."
            cure = "At most 2**31 - 1 rows are made: take a slice, `space[a:b]`."
            raise value_error("Space.to_pandas", wrong, cure)
        pandas = optional("Space.to_pandas", "pandas")
        return pandas.DataFrame(self.geometry.entry_columns())

    def __repr__(self) -> str:
        geometry = self.geometry
        part = f", a part of {geometry.grid_dims}" if geometry.is_part else ""
        dims = ", ".join(f"{name}: {n:,}" for name, n in geometry.dims.items())
        lines = [f"Space({self.mode}, {geometry.size:,} points; {dims}{part})"]
        axes = geometry.axes
        width = max(len(name) for name in axes)
        lines += [f"  {name:<{width}}  {axis!r}" for name, axis in axes.items()]
        return "\n".join(lines)


SpaceLike: TypeAlias = Space | Axis | PyTree
"""A space, a bare axis, or a pytree with axes."""


def as_space(function: str, space: SpaceLike) -> Space:
    """Return `space` itself, or the product space of a pytree with axes."""
    if isinstance(space, Space):
        return space
    if not any(map(is_axis, jtu.tree_leaves(space, is_leaf=is_axis))):
        raise no_axis(function, "space", space)
    return Space(space)


def by_cell(space: Space, over: Sequence[str]) -> Space:
    """Return the same points, ordered cell by cell."""
    return space._with(last=tuple(over))


def cells_of(function: str, space: Space, over: Sequence[str]) -> Space:
    """Return the space of the other dims, with `None` for each axis that is reduced.

    Raises a `ValueError` unless `over` names dims, and leaves one.
    """
    geometry = space.geometry
    dims = list(geometry.dims)
    for name in over:
        if name not in dims:
            wrong = f"`over` names {name!r}, which is not a dim of the space."
            cure = nearest(name, dims)
            if dims == [POINT]:
                cure = "A part of a space has the dim `point` alone. Sweep over the "
                cure += "whole grid, and pick points from the result."
            elif name in geometry.names:
                dim = dims[geometry.axis_dims[geometry.names.index(name)]]
                cure = f"The axis `{name}` is on the dim `{dim}`: give `over={dim!r}`."
            raise value_error(function, wrong, cure)
    if len(set(over)) < len(over):
        wrong = f"`over` names a dim twice: {over}."
        raise value_error(function, wrong, "Name each dim once.")
    if len(over) == len(dims):
        wrong = f"`over` names all dims of the space: {', '.join(over)}."
        cure = "Name those of replicates, not of settings. Leave `over` out to reduce "
        cure += "all points to one result."
        raise value_error(function, wrong, cure)
    pairs = zip(geometry.axes.values(), geometry.axis_dims, strict=True)
    axes = [None if dims[dim] in over else axis for axis, dim in pairs]
    return space.with_axes(axes, "product")


def settings_of(function: str, space: Space) -> tuple[Space, tuple[str, ...]]:
    """Return a space at its first replicate, and the dims of the replicates.

    Of a part of a grid, they are those of the whole grid. Raises a `ValueError` if
    there are replicates and no settings.
    """
    geometry = space.geometry
    pairs = zip(geometry.axes.values(), geometry.axis_dims, strict=True)
    repeated = {dim for axis, dim in pairs if axis.is_replicate}
    over = tuple(dim for k, dim in enumerate(geometry.grid_dims) if k in repeated)
    if len(over) == len(geometry.grid_dims):
        wrong = f"all axes of `space` are on dims of replicates: {quoted(over)}."
        cure = "Add an axis to choose from, such as `LogUniform(1e-3, 1)`."
        raise value_error(function, wrong, cure)
    axes: list[Any] = list(geometry.axes.values())
    for k, (name, axis) in enumerate(geometry.axes.items()):
        if geometry.axis_dims[k] in repeated:
            axes[k] = value_of(name, axis, jnp.int32(0), geometry.axis_key(name))
    return space.with_axes(axes, "product") if over else space, over


def with_replicates(function: str, space: Space, settings: Space) -> Space:
    """Return some settings of a space, each with all replicates.

    Raises a `ValueError` if `settings` has other axes.
    """
    geometry, axes, dim = settings.geometry, space.axes(), "setting"
    names = settings_of(function, space)[0].names
    if set(geometry.names) != set(names):
        wrong = f"the method proposed the axes {quoted(geometry.names)}."
        cure = f"Those of the space that `init` got are {quoted(names)}."
        raise value_error(function, wrong, cure)
    while dim in {*axes, *space.geometry.grid_dims}:
        dim = f"search.{dim}"
    digits = geometry.digits(np.arange(geometry.size))
    pairs = zip(geometry.axes.items(), geometry.axis_dims, strict=True)
    axes |= {name: axis.take(digits[:, k], dim) for (name, axis), k in pairs}
    return space.with_axes(list(axes.values()), "product")


def _middles(
    name: str, axis: Axis, key: Key | None, values: list[Any]
) -> Float[np.ndarray, " points"]:
    """Return the middle of the part of each value in the unit interval, or NaN."""
    choices = values_at(name, axis, key, np.arange(len(axis)))
    positions_of: dict[Any, int] = {}
    for k, value in enumerate(_hashable(axis.is_static, choices)):
        positions_of.setdefault(value, k)
    positions = np.array([positions_of.get(value, np.nan) for value in values], float)
    # The middle, since rounding could move an end into the next part.
    return (positions + 0.5) / len(axis)


def _hashable(is_static: bool, values: Any) -> list[Any]:
    """Return values of an axis as keys of a dict."""
    if is_static:
        return [as_hashable(value) for value in values]
    columns = [as_numpy(leaf) for leaf in jtu.tree_leaves(values)]
    # Compare bits: arrays are not hashable, and NaN does not equal itself.
    return [tuple(x.tobytes() for x in row) for row in zip(*columns, strict=True)]


def _check_untied(geometry: Geometry, function: str) -> None:
    """Raise unless no two axes of a space share a dim."""
    for dim in set(geometry.axis_dims):
        pairs = zip(geometry.names, geometry.axis_dims, strict=True)
        names = [name for name, other in pairs if other == dim]
        if len(names) > 1:
            wrong = f"the axes {quoted(names)} vary together, but each axis of the "
            wrong += "unit cube varies by itself."
            cure = "Give each its own dim; compute a function of another axis in `fn`, "
            cure += "or in one `Mapped` axis that returns both."
            raise value_error(function, wrong, cure)


_DATES = (datetime.date, datetime.time, datetime.timedelta)
_DATES += (np.datetime64, np.timedelta64)


def _columns(table: Any) -> dict[Any, Any]:
    """Return the columns by name, in order."""
    # A dict has its columns as keys, a data frame as an attribute; that of a table of
    # Arrow has another name.
    names = getattr(table, "column_names", getattr(table, "columns", ()))
    names = table if isinstance(table, Mapping) else names
    if not len(names):
        wrong = f"`columns` is {describe_value(table)}, which has no columns."
        cure = "Give a dict of columns or a data frame; for an array "
        cure += "`dict(zip(names, array.T))`, for rows `pandas.DataFrame(rows)`."
        raise type_error("Space.from_table", wrong, cure)
    columns = {name: table[name] for name in names}
    for name, column in columns.items():
        check_unmasked("Space.from_table", f"columns[{name!r}]", column)
        listed = isinstance(column, list | tuple)
        single = isinstance(column, str | bytes | Mapping | Axis)
        if single or not (listed or np.ndim(column)):
            wrong = f"the column `{name}` is {describe_value(column)}."
            cure = "A column is a list or an array of one value for each row; a "
            cure += "constant stands beside the columns: `ep.Space({**ep.Space."
            cure += "from_table(columns, dim='row').tree, 'rate': 0.1})`."
            raise type_error("Space.from_table", wrong, cure)
    return columns


def _axis(name: str, column: object, dim: str | None) -> Axis:
    """Return a column as an axis; if it has no rows, one of a single value."""
    listed = isinstance(column, list | tuple)
    if not isinstance(column, jax.Array):
        array = np.zeros(0, object) if listed else np.asarray(column)
        if listed or array.dtype.kind not in NUMBERS:
            # Entries of Arrow's and xarray's columns are not Python values.
            as_list: Any = getattr(column, "to_pylist", None)
            items = as_list() if as_list else list(column if listed else array)
            if not (items or listed):
                wrong = f"the column `{name}` has no rows, and its dtype is "
                wrong += f"{array.dtype}."
                cure = "Give it a dtype of numbers, or make the table of all rows and "
                cure += "take a part of it, `ep.Space.from_table(df)[mask]`."
                raise type_error("Space.from_table", wrong, cure)
            dates = [x for x in items if isinstance(x, _DATES)]
            if dates:
                wrong = f"the column `{name}` has dates or times "
                wrong += f"({type(dates[0]).__name__}), which JAX does not support."
                cure = "Give numbers, such as seconds, or texts, "
                cure += "`df[name].astype(str)`, with a program for each."
                raise type_error("Space.from_table", wrong, cure)
            numbers = sum(map(_is_number, items))
            if items and not 0 < numbers == len(items) - missing_in(items):
                return Static(items, dim=dim)
            # A missing value may be a NaN among the items.
            column = column if missing_in(column) else items
    try:
        return Values(at_least_one(column)[0], dim=dim)
    except (TypeError, ValueError) as error:
        error.add_note(f"In the column `{name}` of a table.")
        raise


def _is_number(x: object) -> bool:
    if isinstance(x, bool | int | float | complex | jax.Array):
        return True
    return isinstance(x, np.generic | np.ndarray) and x.dtype.kind in NUMBERS


def joined(spaces: Sequence[Space], over: Sequence[str] = ()) -> Space:
    """Return the points of spaces with the same axes in order, as a table.

    With `over`, all spaces have these dims of replicates and one other dim, along which
    they are joined.
    """
    geometries = [space.geometry for space in spaces]  # each access computes it
    dims = list(geometries[0].grid_dims)
    dim = next(dim for dim in dims if dim not in over) if over else None

    def column(name: str) -> PyTree[Axis]:
        """Return an axis with the values of one axis at the points of all spaces."""
        values, axes = [], [geometry.axes[name] for geometry in geometries]
        at = [geometry.axis_dims[geometry.names.index(name)] for geometry in geometries]
        if dims[at[0]] in over:
            return axes[0]
        for axis, geometry, k in zip(axes, geometries, at, strict=True):
            points = np.arange(len(axis) if over else geometry.size)
            here = points if over else geometry.digits(points)[:, k]
            values.append(values_at(name, axis, geometry.axis_key(name), here))
        texts = {"dim": dim, **axes[0].texts}
        if axes[0].is_static:
            return Static([x for part in values for x in part], **texts)
        is_log = all(axis.is_log for axis in axes)
        # Values from files keep 64 bits.
        is_loaded = any(isinstance(axis, LoadedValues) for axis in axes)
        kind = LoadedValues if is_loaded else Values
        return jtu.tree_map(
            lambda *parts: kind(_joined(parts), is_log=is_log, **texts), *values
        )

    axes = list(map(column, geometries[0].names))
    return spaces[0].with_axes(axes, "product" if over else "zip")


def _joined(parts: tuple[Any, ...]) -> Any:
    """Join arrays; `jnp` would compile a program for each number of them."""
    if any(map(is_key_array, parts)):
        return jnp.concatenate(parts)
    return np.concatenate([np.asarray(part) for part in parts])


def sobol(
    space: SpaceLike,
    num: SupportsIndex,
    *,
    key: Key | None = None,
    dim: str | None = None,
) -> Space:
    """Return the first `num` points of a scrambled Sobol sequence in a space.

    A longer sequence begins with the points of a shorter one. Points are spread most
    evenly if `num` is a power of 2.

    **Arguments:**

    - `space`: a space, or a pytree with axes. Values are chosen as by
      `Space.from_unit`: any number of a `Uniform`, evenly in the logarithm for a
      `LogUniform`, and one of the values of a `Values` or `Static` axis.
    - `num`: the number of points, at least 1 and at most `2**30`.
    - `key`: a PRNG key for the scrambling; without one it is always the same. (Keyword
      only.)
    - `dim`: a name for the dim of the points, so that its axes (`.tree`) can be
      combined with other axes in a space. (Keyword only.)

    **Returns:** a `Space` with one dim, by default `point`. For whole numbers, round
    the values of a range: `Mapped(jnp.round, Uniform(2, 8))`.

    **Raises:** `ValueError` if `num` is out of range, if there is no axis, or if two
    axes vary together; `TypeError` if `num` is not an integer or `key` not a PRNG key.

    !!! example

        >>> import eqx_pipe as ep
        >>> box = {"rate": ep.LogUniform(1e-4, 1e-1), "depth": ep.Values([2, 4, 8])}
        >>> ep.sobol(box, 16).dims
        {'point': 16}
        >>> tree = ep.sobol(box, 16, dim="design").tree
        >>> ep.Space({**tree, "seed": ep.Seeds(2)}).dims
        {'design': 16, 'seed': 2}

    ??? cite "Source"

        Sobol (1967), scrambled after Matousek (1998), as in `scipy.stats.qmc.Sobol`.
    """
    space, n = as_space("sobol", space), check_length("sobol", num)
    check_dim("sobol", dim)
    check_key("sobol", key)
    # Draw a power of 2 and drop the rest, since SciPy warns about other numbers.
    qmc = optional("sobol", "scipy.stats.qmc")  # takes half a second, so only here
    sampler = qmc.Sobol(len(space.names), seed=seed_of(key))
    return space.from_unit(sampler.random_base2((n - 1).bit_length())[:n], dim=dim)
