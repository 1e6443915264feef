"""The geometry of a space: its axes, their dims, its points by index, and their keys.

It is derived from the pytree once for each use of a space and passed on as a plain
dataclass, since reading the attributes of a module is slow.

The digits of a point are its position on each dim of the whole grid, its index as a
number in mixed radix. Indices may be larger than any integer of the device. On the host
they are Python integers; on the device a point is given by the digits of a start, which
the host computes, and a small offset that is added to them with carries.

Keys are derived from digits and not from the flat index, which changes for nearly every
point when an inner dim grows or when a part of the space is swept by itself.
"""

import dataclasses
import functools as ft
import math
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, SupportsIndex, TypeAlias, TypeGuard, TypeVar

import jax
import jax.numpy as jnp
import jax.random as jr
import jax.tree_util as jtu
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Bool, Int, Int32, Integer, UInt32

from .._check import check_distinct, check_unmasked
from .._errors import describe_value, message, type_error, value_error
from .._keys import fold
from .._tree import (
    as_data,
    as_hashable,
    is_key_array,
    leaves_with_names,
    path_name,
    static_text,
)
from .._types import Key, PyTree
from .axis import MAX_LENGTH, Axis, is_axis, value_of

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
    known = axis.known
    if known is not None:
        return (known if is_key_array(known) else np.asarray(known))[positions]
    at = jnp.asarray(positions, jnp.int32)
    return jax.vmap(lambda i: jtu.tree_map(jnp.asarray, value_of(name, axis, i, key)))(
        at
    )


def axis_structs(name: str, axis: Axis, key: Key | None) -> PyTree:
    """Return the shapes and dtypes of one value of an axis whose values are arrays."""
    known = axis.known
    if known is not None:
        return jax.ShapeDtypeStruct(known.shape[1:], known.dtype)
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
    return np.array(
        [f"{t} ({i})" if t in shared else t for i, t in enumerate(texts)], np.str_
    )


def entry_names(name: str, shape: tuple[int, ...]) -> list[str]:
    """Return the names of an array's entries: `name` for a scalar, or `name.0.1`."""
    return [".".join([name, *map(str, entry)]) for entry in np.ndindex(shape)]


def flat_columns(name: str, value: np.ndarray) -> dict[str, np.ndarray]:
    """Return one column for each entry of a value per point."""
    names = entry_names(name, value.shape[1:])
    return dict(zip(names, value.reshape(len(value), len(names)).T, strict=True))


def as_numpy(leaf: Any) -> np.ndarray:
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


def _columns(name: str, values: Any) -> list[tuple[str, Any]]:
    """Return the leaves of values of an axis, with the names of their columns."""
    return [
        (f"{name}.{leaf}" if leaf else name, value)
        for leaf, value in leaves_with_names(values)
    ]


def _distinct(columns: Iterable[tuple[str, str, _Column]]) -> dict[str, _Column]:
    """Return columns by name, given the axis of each, its name and its content."""
    owners: dict[str, str] = {}
    distinct = {}
    for owner, name, column in columns:
        if name in distinct:
            raise value_error(
                "Space",
                f"`{name}` is the name of two columns, one of `{owners[name]}` and "
                f"one of `{owner}`.",
                "Rename one of these axes, or a part of its values: an entry of an "
                "array is named by the axis and its index, `x.0`, and a leaf of a "
                "pytree by its key.",
            )
        owners[name], distinct[name] = owner, column
    return distinct


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


def _out_of_range(function: str, i: Any, size: int) -> IndexError:
    cure = f"Give indices of the {size} points, 0 to {size - 1}."
    return IndexError(message(function, f"index {i} is out of range.", cure))


def traced_digits(
    i: Array, size: int, lengths: Sequence[int], start: int
) -> list[Int[Array, ""]]:
    """Return `plain_digits` of a traced index, clamped if it is out of range."""
    if i.shape != () or not jnp.issubdtype(i.dtype, jnp.integer):
        raise type_error(
            "Space",
            f"the index is a traced {i.dtype}{list(i.shape)}.",
            "Give a scalar integer; for many points at once use `jax.vmap`.",
        )
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
            raise value_error(
                function,
                f"the mask has the shape {array.shape}, for {size} points.",
                f"Give one bool for each point, shape ({size},), or one for each point "
                f"of the grid, shape {tuple(lengths)}.",
            )
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


def point_key(key: Key | None, digits: Sequence[Digit]) -> Key | None:
    """Return the key of the point with these digits.

    All callers use this definition. There is at least one digit, since a space has at
    least one axis.
    """
    if key is None:
        return None
    # A digit has fewer than 32 bits, and `fold_in` uses 32 bits of a number.
    for digit in digits:
        key = jr.fold_in(key, digit)
    return key


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


def unregistered(x: Any) -> str:
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
    try:
        children = jtu.tree_flatten_with_path(node, is_leaf=lambda x: x is not node)[0]
    except ValueError as error:
        if not isinstance(node, dict):
            raise
        of_each_type = {type(key): key for key in node}.values()
        keys = " and ".join(map(describe_value, of_each_type))
        raise type_error(
            "Space",
            f"the dict at `{path_name(path) or '.'}` has keys such as {keys}.",
            "JAX sorts the keys of a dict: give keys of one type that can be "
            "sorted, such as strings.",
        ) from error
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
            raise value_error(
                "Space",
                f"the axis `{name}` has {len(axis)} values.",
                "Give it at least one and at most 2**31 - 1.",
            )
        if POINT in (name, axis.dim):
            raise value_error(
                "Space",
                f"the axis `{name}` has the path or the dim `point`, which is reserved "
                "for zipped and sliced spaces.",
                "Rename it.",
            )
        dim = POINT if mode == "zip" else name if axis.dim is None else axis.dim
        other = axes.get(dim)
        if other is not None and dim != name and other.dim != dim:
            raise value_error(
                "Space",
                f"the dim `{dim}` of the axis `{name}` is also the path of another "
                "axis, which does not share it.",
                f"Give the axis `{dim}` `dim={dim!r}` too if they are to vary "
                "together, or rename the dim.",
            )
        members.setdefault(dim, []).append(name)
    for dim, names in members.items():
        if len({len(axes[name]) for name in names}) > 1:
            listed = ", ".join(f"`{name}` has {len(axes[name])}" for name in names)
            raise value_error(
                "Space",
                f"axes of the dim `{dim}` vary together and differ in length: "
                f"{listed}.",
                "Give them the same length, or another `dim` to one of them.",
            )
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

    def grid_indices(self, index: np.ndarray) -> np.ndarray:
        """Return the indices in the whole grid of points of the space."""
        # Use Python integers if a grid may have more points than `int64` can count. The
        # limit is half of that, since a start may be added.
        wide = self.grid_size >= 2**62
        if self.rows is None:
            return self.start + (index.astype(object) if wide else index)
        flat = np.zeros(len(index), object if wide else np.int64)
        for digit, n in zip(np.asarray(self.rows)[index].T, self.lengths, strict=True):
            flat = flat * n + digit
        return flat

    def digits(self, index: np.ndarray) -> np.ndarray:
        """Return the positions of some points on each dim of the grid.

        The array has the shape `(points, dims)`.
        """
        if self.rows is not None:
            return np.asarray(self.rows)[index]
        flat = self.grid_indices(index)
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

        def shapes() -> Iterator[tuple[str, str, tuple[int, ...]]]:
            for name, axis in self.axes.items():
                if axis.is_static:
                    yield name, name, ()
                    continue
                structs = axis_structs(name, axis, self.axis_key(name))
                for column, struct in _columns(name, structs):
                    yield name, column, raw_shape(struct)

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
        return [(column, as_numpy(leaf)) for column, leaf in _columns(name, values)]

    def columns(self) -> dict[str, np.ndarray]:
        """Return the value of each axis at every point, along a leading axis.

        Raises a `ValueError` if two columns have the same name.
        """
        digits = self.digits(np.arange(self.size))

        def values() -> Iterator[tuple[str, str, np.ndarray]]:
            for name, dim in zip(self.names, self.axis_dims, strict=True):
                # Compute each value once: on a grid most positions occur many times.
                few, back = np.unique(digits[:, dim], return_inverse=True)
                for column, value in self.axis_values(name, few):
                    yield name, column, value[back]

        return _distinct(values())

    def entry_columns(
        self, convert: Callable[[np.ndarray], np.ndarray] = np.asarray
    ) -> dict[str, np.ndarray]:
        """Return one column for each entry of the converted value of each axis.

        Raises a `ValueError` if two columns have the same name.
        """
        return _distinct(
            (name, entry, column)
            for name, value in self.columns().items()
            for entry, column in flat_columns(name, convert(value)).items()
        )


def geometry_of(
    tree: PyTree,
    names: Sequence[str],
    mode: str,
    key: Key | None = None,
    span: tuple[int, int] | None = None,
    rows: Rows | None = None,
) -> Geometry:
    """Return the geometry of a space; `names` are the axes' names in the order written.

    Raises a `ValueError` if the axes do not form a space.
    """
    check_distinct("Space", "axes", names)
    pairs, structure = jtu.tree_flatten_with_path(tree, is_leaf=is_axis)
    index_of = {axis_name(path): k for k, (path, x) in enumerate(pairs) if is_axis(x)}
    indices = tuple(index_of[name] for name in names)
    leaves = [leaf for _, leaf in pairs]
    axes = {name: leaves[index] for name, index in zip(names, indices, strict=True)}
    grid_dims, axis_dims = arranged(axes, mode)
    return Geometry(
        key, structure, leaves, tuple(names), indices, grid_dims, axis_dims, span, rows
    )
