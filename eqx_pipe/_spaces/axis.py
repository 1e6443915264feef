"""Axes: the base class, axes that hold their values, between two ends, and random ones.

Rounding is allowed. A number outside the range of the dtype that JAX gives it raises,
and distinct numbers that become equal emit a warning, since a sweep would compute the
same point several times.

A value of a grid is read from a table. So it is bitwise identical in a sweep, in
`space.point(i)` and in a coordinate. A value computed by a formula may differ, since
XLA may fuse a multiplication and an addition in one program but not in another. Tables
are computed in float64, whatever the dtype of the axis. A long axis has two short
tables instead of one long one: its value is an entry of `coarse` joined with an entry
of `fine`.
"""

import abc
import dataclasses
import functools as ft
import operator
import warnings
from collections.abc import Callable, Iterable, Mapping, Set
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Literal,
    SupportsIndex,
    TypeAlias,
    TypeGuard,
)

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import jax.tree_util as jtu
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, ArrayLike, Float, Inexact, Int, Integer, Shaped

from .._check import check_bool, check_choice, check_int, check_is, check_unmasked
from .._errors import (
    MissingKeyError,
    asks_for_key,
    describe_value,
    message,
    type_error,
    value_error,
)
from .._keys import check_draws
from .._tree import Opaque, as_arrays, is_key_array, on_device, path_name
from .._types import Key, PyTree

MAX_LENGTH = 2**31 - 1
"""The most values of one axis: positions on an axis are `int32`."""

Position: TypeAlias = Int[Array, ""] | int
"""A position on an axis: often traced, a Python integer for Python values."""


class Axis(eqx.Module):
    """The abstract base for axes; subclass it to write your own.

    An axis is a finite sequence of values that computes each value from its position,
    so that it takes no memory. A subclass is an `equinox.Module` with

    - `dim`: the name of the dimension that the axis varies along, or `None` for a
      dimension of its own, named by the axis's path in the space. Axes with the same
      `dim` vary together.
    - `__len__`: the number of values, at least 1 and at most `2**31 - 1`.
    - `value`: the value at a position. It is traced and vectorised, so it must be
      made of JAX operations.

    An axis that draws its values sets the class attribute `needs_key = True`; a space
    without a key then raises when it is built. Every axis takes the keyword arguments
    `label` and `unit`, which plots and xarray's attributes `long_name` and `units`
    show; they change nothing else.

    A sweep is not recompiled if arrays in the fields of an axis change.

    !!! example

        >>> import eqx_pipe as ep, jax.numpy as jnp
        >>> class Powers(ep.Axis):
        ...     num: int
        ...     dim: str | None = None
        ...     def __len__(self):
        ...         return self.num
        ...     def value(self, i, key):
        ...         return 2.0**i
        >>> space = ep.Space({"size": Powers(4, label="grid size")})
        >>> [point["size"].item() for point in space]
        [1.0, 2.0, 4.0, 8.0]
    """

    dim: eqx.AbstractVar[str | None]
    # `compare=False`: stores do not depend on them.
    label: str | None = eqx.field(
        default=None, static=True, kw_only=True, compare=False
    )
    unit: str | None = eqx.field(default=None, static=True, kw_only=True, compare=False)

    # Attributes of a class, or properties where they depend on the axis.
    needs_key: ClassVar[bool] = False
    """True if the axis draws its values, so that `value` needs a key."""
    is_static: ClassVar[bool] = False
    """True if values are Python values, whose position cannot be traced."""
    is_range: ClassVar[bool] = False
    """True if every number between the ends is a value for a search."""
    is_log: ClassVar[bool] = False
    """True if plots use a logarithmic scale for the axis."""
    replicates: ClassVar[str | None] = None
    """The draws of replicates, `"common"` or `"independent"`; see `Seeds`."""

    def __check_init__(self) -> None:
        for name, text in (("label", self.label), ("unit", self.unit)):
            cure = "Give a text, such as `label='learning rate'`, or leave it out."
            check_is(type(self).__name__, name, "" if text is None else text, str, cure)
        check_dim(type(self).__name__, self.dim)

    @abc.abstractmethod
    def __len__(self) -> int:
        """Return the number of values."""

    @abc.abstractmethod
    def value(self, i: Int[Array, ""], key: Key | None) -> PyTree:
        """Return the value at position `i`.

        **Arguments:**

        - `i`: a position from 0 to `len(self) - 1`, a scalar `int32`, often traced.
        - `key`: the axis's own PRNG key, made from the space's key and the axis's
          path, the same for every `i` (fold `i` into it); `None` if the space has
          no key.

        **Returns:** an array, or a pytree of arrays.
        """

    @property
    def stored(self) -> Array | None:
        """All values as one array if the axis stores them, else `None`.

        Tracing and running `value` returns the same bits, but takes a thousand times
        as long.
        """
        return None

    @property
    def table(self) -> Any:
        """The values at all positions, if they are an array, or `None`."""
        values = self.stored
        is_plain = isinstance(values, jax.Array) and not is_key_array(values)
        return values if is_plain else None

    def at_row(self, row: Any) -> "Axis":
        """Return an axis with one value, made of a row of the `table`."""
        return NO_ROW if row is None else Row(row)

    @property
    def attrs(self) -> dict[str, str]:
        """Label and unit as xarray's attributes, those of the CF conventions."""
        attrs = {"long_name": self.label, "units": self.unit}
        return {name: text for name, text in attrs.items() if text}

    @property
    def _dim_text(self) -> str:
        """The argument `dim`, as shown in the `repr`."""
        return "" if self.dim is None else f", dim={self.dim!r}"

    @property
    def texts(self) -> dict[str, str | None]:
        """Label and unit as keyword arguments of another axis."""
        return {"label": self.label, "unit": self.unit}

    @property
    def is_replicate(self) -> bool:
        """True if the axis has replicates: `Seeds` and PRNG keys."""
        return self.replicates is not None or is_key_array(self.stored)

    def take(
        self, positions: Int[np.ndarray, " points"], dim: str | None = None
    ) -> "Axis":
        """Return an axis of the values at some positions, in their order."""
        at = on_device(positions.astype(np.int32))
        return Subset(axis=self, positions=at, dim=dim, **self.texts)

    def from_unit(
        self, u: Float[np.ndarray, " points"], dim: str | None = None
    ) -> "Axis":
        """Return an axis of the values at some coordinates in the unit interval.

        Values are categories: each gets an equal part of the interval, in order.
        """
        # The number 1 belongs to the part of the last value.
        positions = np.minimum((u * len(self)).astype(np.int64), len(self) - 1)
        return self.take(positions, dim)

    def to_unit(
        self, values: Shaped[np.ndarray, "points ..."]
    ) -> Float[np.ndarray, " points"]:
        """Return the unit-interval coordinates of some numbers, for a range.

        Numbers beyond the ends give NaN.
        """
        wrong = f"the values of {self!r} cannot be converted to the unit interval."
        cure = "Give points made by `space.from_unit`: those of a `Mapped` range "
        cure += "record the arguments of its function."
        raise type_error("Space.to_unit", wrong, cure)


def _of_axis(name: str) -> Any:
    """Return a property of the axis inside of another."""

    def of(self: Any) -> Any:
        return getattr(self.axis, name)

    return property(of)


class Subset(Axis):
    """The values of an axis at some positions."""

    axis: Axis
    positions: Int[Array, " points"]
    dim: str | None = eqx.field(static=True)

    needs_key = _of_axis("needs_key")

    def __len__(self) -> int:
        return self.positions.shape[0]

    def value(self, i: Position, key: Key | None) -> PyTree:
        return self.axis.value(self.positions[i], key)

    def __repr__(self) -> str:
        return f"{len(self)} of {self.axis!r}"


def needs_space_key(name: str) -> MissingKeyError:
    """Return the error for an axis that draws its values in a space without a key."""
    wrong = f"the axis `{name}` draws its values and the space has no key."
    cure = "Make the space with one: `Space(tree, key=jax.random.key(0))`. (The `key` "
    cure += "of `sweep` is for the function alone.)"
    return MissingKeyError(name, message("Space", wrong, cure))


def is_axis(x: object) -> TypeGuard[Axis]:
    """Return whether `x` is an axis."""
    # Not `isinstance`, which reads `x.__class__`: modules read attributes in Python.
    return Axis in type(x).__mro__


def check_dim(function: str, dim: object) -> str | None:
    """Return `dim`; raise unless it is `None` or a non-empty string."""
    if dim is None or (isinstance(dim, str) and dim):
        return dim
    wrong = f"`dim` is {describe_value(dim)}."
    cure = "Give a non-empty name, or leave it out: the axis is then named by its path "
    cure += "in the space."
    kind = value_error if isinstance(dim, str) else type_error
    raise kind(function, wrong, cure)


def check_length(function: str, num: SupportsIndex) -> int:
    """Return `num`; raise unless it is an integer from 1 to `MAX_LENGTH`."""
    check_int(function, "num", num, 1)
    num = operator.index(num)
    if num > MAX_LENGTH:
        wrong = f"`num` is {num}; one axis has at most 2**31 - 1 = {MAX_LENGTH} values."
        cure = "Split it into two axes, a coarse one and a fine one."
        raise value_error(function, wrong, cure)
    return num


def value_of(name: str, axis: Axis, i: Position, key: Key | None) -> PyTree:
    """Return the value of the axis called `name` at position `i`, after a check."""
    # Use the class: a module's bound method is a new module at each access.
    value_at: Any = type(axis).value
    try:
        value = value_at(axis, i, key)
    except MissingKeyError:
        raise
    except Exception as error:
        if key is None and asks_for_key(error):
            raise needs_space_key(name) from error
        error.add_note(f"Raised by the axis `{name}` of the space.")
        raise
    if axis.is_static and not isinstance(value, jax.Array):
        return value
    for path, leaf in jtu.tree_flatten_with_path(value)[0]:
        if not eqx.is_array_like(leaf):
            where = f" at `.{path_name(path)}`" if path else ""
            wrong = f"the axis `{name}` returned {describe_value(leaf)}{where}."
            cure = "The values of an axis are arrays, numbers or pytrees of them. For "
            cure += "functions, texts and other Python values use `Static`, or map one."
            raise type_error("Space", wrong, cure)
        if is_key_array(leaf):
            check_draws("Space", f"the axis `{name}` gives keys", leaf)
    return value


class Mapped(Axis):
    """The values of another axis with a function applied to each.

    The function runs inside the compiled sweep, at each point, so its values are not
    stored. It may return a pytree.

    **Arguments:**

    - `fn`: a function of one value of `axis`. For an axis of arrays it consists of JAX
      operations; for a `Static` axis it takes and returns any Python values.
    - `axis`: any axis. Its length and `dim` are kept; its label and unit are not, since
      they describe other values.
    - `label`, `unit`: texts for plots and for xarray's attributes `long_name` and
      `units`. They change nothing else. (Keyword only.)

    **Raises:** `TypeError` if `fn` cannot be called or `axis` is not an axis.

    **Laws:** value `i` is `fn` of value `i` of `axis`; mapping twice equals mapping by
    the composition.

    !!! example

        >>> import eqx_pipe as ep
        >>> axis = ep.Mapped(lambda x: x**2, ep.Linspace(0, 3, 4))
        >>> [point.item() for point in ep.Space(axis)]
        [0.0, 1.0, 4.0, 9.0]
    """

    fn: Callable[[Any], PyTree]
    axis: Axis

    # For type checkers, which would otherwise expect an argument `dim`.
    def __init__(
        self,
        fn: Callable[[Any], PyTree],
        axis: Axis,
        *,
        label: str | None = None,
        unit: str | None = None,
    ):
        self.fn, self.axis = fn, axis
        self.label: str | None = label
        self.unit: str | None = unit

    def __check_init__(self) -> None:
        cure = "The function comes first: `Mapped(jnp.exp, Linspace(0, 1, 5))`."
        check_is("Mapped", "fn", self.fn, Callable, cure)
        cure = "Give a `Linspace`, `Values` or another axis."
        check_is("Mapped", "axis", self.axis, Axis, cure)

    if not TYPE_CHECKING:  # where they have the types of `Axis`
        dim = _of_axis("dim")
        needs_key = _of_axis("needs_key")
        replicates = _of_axis("replicates")
        is_static = _of_axis("is_static")
        is_range = _of_axis("is_range")

    @property
    def is_replicate(self) -> bool:
        return self.axis.is_replicate

    @property
    def table(self) -> Any:
        return self.axis.table if type(self) is Mapped else None

    def at_row(self, row: object) -> Axis:
        return Mapped(self.fn, self.axis.at_row(row))

    def __len__(self) -> int:
        return len(self.axis)

    def take(
        self, positions: Int[np.ndarray, " points"], dim: str | None = None
    ) -> "Mapped":
        return Mapped(self.fn, self.axis.take(positions, dim), **self.texts)

    def from_unit(
        self, u: Float[np.ndarray, " points"], dim: str | None = None
    ) -> "Mapped":
        return Mapped(self.fn, self.axis.from_unit(u, dim), **self.texts)

    def value(self, i: Position, key: Key | None) -> PyTree:
        value_at: Any = type(self.axis).value  # takes a position of either kind
        value = self.fn(value_at(self.axis, i, key))
        return value if self.is_static else as_arrays(value)

    def __repr__(self) -> str:
        name = getattr(self.fn, "__name__", type(self.fn).__name__)
        return f"Mapped({name}, {self.axis!r})"


def take(table: Array | np.ndarray, i: Integer[Array, ""]) -> Array:
    """Return `table[i]` for a position within bounds."""
    # Not `dynamic_index_in_dim`, which JAX 0.12 traces and lowers as a function.
    origin = [jnp.zeros_like(i)] * (table.ndim - 1)
    row = jax.lax.dynamic_slice(
        table, [i, *origin], (1, *table.shape[1:]), allow_negative_indices=False
    )
    return jax.lax.squeeze(row, [0])


NUMBERS = "biufcV"
"""NumPy's letters for numbers; JAX's small dtypes such as bfloat16 have `V`."""

_CURE = (
    "Use a wider dtype (64 bits need `jax.config.update('jax_enable_x64', True)` at "
    "the top of the program), or rescale the numbers."
)
_MOST = 2**16
"""Longer arrays are not compared, which would take longer than making them."""

ValuesLike: TypeAlias = ArrayLike | Iterable[object]
"""An array whose leading axis counts the values, or numbers, arrays or keys."""


def as_values(values: object) -> Array:
    """Return a sequence of numbers, arrays or keys as one array."""
    wrong = isinstance(values, str | bytes | Mapping | Set)
    if wrong or not isinstance(values, Iterable):
        raise type_error("Values", f"`values` is {describe_value(values)}.", _FORMS)
    is_column = hasattr(values, "shape") or hasattr(values, "null_count")
    numbers: Any = values if is_column else list(values)
    check_unmasked("Values", "values", numbers)
    gaps = missing_in(numbers)
    if gaps:
        wrong = f"`values` has {gaps} missing values."
        cure = "Fill them, or leave them out, in a table by `df.dropna()`; a NaN in an "
        cure += "array of floats is a value."
        raise value_error("Values", wrong, cure)
    if isinstance(numbers, list):
        numbers = _stack(numbers)
    elif not hasattr(numbers, "shape"):  # a column of Arrow
        numbers = np.asarray(numbers)
    if len(numbers.shape) == 0:
        wrong = f"`values` is {describe_value(values)}, a single value."
        raise type_error("Values", wrong, _FORMS)
    if numbers.shape[0] == 0:
        raise value_error("Values", "`values` is empty.", "Give at least one value.")
    array = _as_array(numbers)
    if is_key_array(array):
        check_draws("Values", "`values` are keys", array)
    return array


def missing_in(column: object) -> int:
    """Return the number of missing values in a list, or a column of a data frame.

    NumPy converts a column of integers with gaps to floats, which rounds large ones. A
    NaN in a list or in a column of NumPy's floats is not missing.
    """
    if isinstance(column, list):
        # By name, since pandas need not be installed.
        names = "NoneType", "NAType", "NaTType"
        return sum(type(x).__name__ in names for x in column)
    nulls: Any = getattr(column, "null_count", None)  # Polars has a method
    if nulls is not None:
        return nulls if isinstance(nulls, int) else nulls()
    is_null: Any = getattr(column, "isnull", getattr(column, "isna", None))
    # A frame has several dtypes.
    if is_null is None or isinstance(getattr(column, "dtype", np.dtype(int)), np.dtype):
        return 0
    return int(is_null().sum())


_FORMS = "Give a sequence of numbers, of arrays of one shape, or of PRNG keys."


def _stack(values: list[Any]) -> Any:
    """Return a list as one array: of NumPy if the list contains no JAX array."""
    has_jax = any(isinstance(x, jax.Array) for x in values)
    arrays = [_as_array(x) for x in values] if has_jax else values
    try:
        with np.errstate(over="ignore"):  # `check_fits` raises for infinite ones
            stacked = jnp.stack(arrays) if has_jax else np.asarray(arrays)
    except (TypeError, ValueError) as error:
        wrong = "the entries of `values` differ in shape or kind: "
        wrong += f"{describe_value(values)}."
        cure = "Give numbers, or arrays of one shape; for several shapes use `Static`, "
        cure += "which compiles a program for each value."
        raise value_error("Values", wrong, cure) from error
    for i, (value, array) in enumerate(zip(values, arrays, strict=True)):
        if has_jax and array.dtype != stacked.dtype and not isinstance(value, Tracer):
            check_fits("Values", f"values[{i}]", value, stacked.dtype)
    return stacked


def _as_array(values: object) -> Array:
    """Return numbers as an array of JAX's dtype for them; raise if they do not fit."""
    if isinstance(values, jax.Array):
        return values
    numbers = np.asarray(values)
    if numbers.dtype == object:
        numbers = np.asarray(numbers.tolist())
    too_wide = f"an integer in `values` does not fit {jnp.result_type(int)}."
    if numbers.dtype.kind not in NUMBERS:
        if numbers.dtype == object and all(isinstance(x, int) for x in numbers.flat):
            raise value_error("Values", too_wide, _CURE)
        wrong = f"`values` is {describe_value(numbers.tolist())}, of {numbers.dtype}."
        cure = "Give numbers, PRNG keys or arrays of them; for text, functions and "
        cure += "other Python values use `eqx_pipe.Static`."
        raise type_error("Values", wrong, cure)
    try:
        # Numbers that are too large become infinite, for which `check_fits` raises.
        with np.errstate(over="ignore"):
            native = _as_native(numbers)
            # Plain Python numbers are weakly typed for JAX.
            is_array = isinstance(values, np.ndarray) or native is not numbers
            array = on_device(native) if is_array else jnp.asarray(values)
    except OverflowError as error:
        raise value_error("Values", too_wide, _CURE) from error
    except (TypeError, ValueError) as error:
        wrong = f"JAX does not support the dtype {numbers.dtype} of `values`."
        raise type_error("Values", wrong, "Convert them to another dtype.") from error
    check_fits("Values", "values", numbers, array.dtype)
    warn_if_alike("Values", numbers, array.dtype)
    return array


def _as_native(x: object) -> Any:
    """Return NumPy's numbers in a byte order and a width that JAX supports."""
    if not isinstance(x, np.ndarray | np.generic) or x.dtype.kind not in "iufc":
        return x
    widest = np.dtype(complex if x.dtype.kind == "c" else float)
    wide = x.dtype.itemsize > widest.itemsize
    with np.errstate(over="ignore"):  # `check_fits` raises for infinite ones
        return x.astype(widest if wide else x.dtype.newbyteorder("="), copy=False)


def as_ends(
    function: str, start: Any, stop: Any
) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
    """Return both ends as finite arrays of one shape and one inexact dtype.

    Return them also in float64, unless one is traced, so that the values between are
    computed from the decimals passed and not from their rounding to float32.
    """
    start, stop = map(_as_native, (start, stop))
    ends = {"start": start, "stop": stop}
    for name, x in ends.items():
        check_unmasked(function, name, x)
        if not _is_real(x):
            wrong = f"`{name}` is {describe_value(x)}."
            cure = "Give a real number or an array of them; for values of another kind "
            cure += "use `Values`."
            raise type_error(function, wrong, cure)
    typed = [x.dtype for x in (start, stop) if hasattr(x, "dtype")]
    dtype: Any = jnp.promote_types(typed[0], typed[-1]) if typed else np.dtype(int)
    if not jnp.issubdtype(dtype, jnp.inexact):
        dtype = jnp.result_type(float)
    dtype = jax.dtypes.canonicalize_dtype(dtype)
    if isinstance(start, Tracer) or isinstance(stop, Tracer):
        first, last = precise = jnp.asarray(start, dtype), jnp.asarray(stop, dtype)
    else:
        precise = np.asarray(start).astype(float), np.asarray(stop).astype(float)
        for (name, end), x in zip(ends.items(), precise, strict=True):
            if not np.all(np.isfinite(x)):
                wrong = f"`{name}` is {describe_value(end)}, not finite."
                raise value_error(function, wrong, "Give finite ends.")
            check_fits(function, name, x, dtype)
        first, last = np.asarray(start).astype(dtype), np.asarray(stop).astype(dtype)
    if first.shape != last.shape:
        wrong = f"`start` has the shape {first.shape} and `stop` {last.shape}."
        cure = "Give two numbers, or two arrays of the same shape."
        raise value_error(function, wrong, cure)
    return (first, last), precise


def _is_real(x: object) -> bool:
    if isinstance(x, float):
        return True
    if not isinstance(x, bool | int | float | np.generic | np.ndarray | jax.Array):
        return False
    dtype = jnp.result_type(x)
    return jnp.issubdtype(dtype, jnp.integer) or jnp.issubdtype(dtype, jnp.floating)


def check_same_sign(function: str, first: Any, last: Any) -> None:
    """Raise unless both ends have the same sign and neither is zero.

    Ends that are traced are not checked.
    """
    if not isinstance(first, np.ndarray):
        return
    if np.any(first * last == 0) or np.any(np.signbit(first) != np.signbit(last)):
        low, high = (describe_value(x) if x.ndim else x.item() for x in (first, last))
        wrong = f"`start` is {low} and `stop` is {high}."
        cure = "A logarithmic scale needs two ends of the same sign, neither zero: use "
        cure += "`Linspace` or `Uniform`, or `Values` with the numbers you want."
        raise value_error(function, wrong, cure)


def check_fits(function: str, name: str, numbers: Any, dtype: Any) -> None:
    """Raise if a number is too large for `dtype`, or so small that it becomes 0.

    `name` is the argument's name, for the message.
    """
    numbers = np.asarray(numbers)  # use NumPy: under `jit`, JAX arrays are traced
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        fitted = numbers.astype(dtype)
    kinds = []
    if jnp.issubdtype(dtype, jnp.integer):
        kinds = [(fitted != numbers, "does not fit")]
    if jnp.issubdtype(dtype, jnp.inexact):
        too_large = np.isfinite(numbers) & ~np.isfinite(fitted)
        becomes_0 = (numbers != 0) & (fitted == 0)
        kinds = [(too_large, "is too large for"), (becomes_0, "becomes 0 in")]
    for lost, what in kinds:
        if np.any(lost):
            entry = tuple(int(k) for k in np.argwhere(lost)[0])
            at = f"[{', '.join(map(str, entry))}]" if entry else ""
            number = numbers[entry].item()
            wrong = f"`{name}{at}` is {number!r}, which {what} {dtype}."
            raise value_error(function, wrong, _CURE)


def warn_if_alike(function: str, numbers: Any, dtype: Any) -> None:
    """Warn if more than 1% of the distinct numbers become equal."""
    narrower = np.issubdtype(numbers.dtype, np.floating) and numbers.dtype != dtype
    if not narrower or not 1 < numbers.size <= _MOST:
        return
    # Not `np.unique`, which takes much of the time of a short axis.
    numbers = numbers[~np.isnan(numbers)]
    tables = numbers, numbers.astype(dtype)
    different, left = (len({*table.ravel().tolist()}) for table in tables)
    if 100 * (different - left) > different:
        wrong = f"{left} of {different} different numbers are left in {dtype}."
        warnings.warn(message(function, wrong, _CURE), stacklevel=3)


class Row(Axis):
    """An axis whose value is given, in a trace."""

    value_: Any = None
    dim: str | None = None

    def __len__(self) -> int:
        return 1

    def value(self, i: Any, key: Key | None) -> Any:
        return self.value_


NO_ROW = Row()


class Values(Axis):
    """A sequence of values, one by one.

    **Arguments:**

    - `values`: a sequence of numbers, or of arrays of one shape, or of PRNG keys; or
      one array whose leading axis counts the values. Any dtype of JAX.
    - `dim`: the dimension's name; axes with the same `dim` vary together. By default
      the axis's path in the space. (Keyword only.)
    - `label`, `unit`: texts for plots and for xarray's attributes `long_name` and
      `units`. They change nothing else. (Keyword only.)
    - `is_log`: whether plots use a logarithmic scale for these values, as they do for
      a `Geomspace` and for designs over a `LogUniform`. (Keyword only.)

    **Shapes:** `values` is `(n, *shape)`; each value is `(*shape,)`.

    **Raises:** `ValueError` if there are no values, if their shapes differ, for masked
    arrays and missing values (a NaN in an array of floats is a value), if a number is
    too large for the dtype that JAX gives it, or for PRNG keys of the kind `rbg`,
    whose draws under `vmap` differ from those of a single point; `TypeError` for values
    that are not numbers, or are keys of several kinds.

    !!! example

        >>> import eqx_pipe as ep
        >>> space = ep.Space({"width": ep.Values([8, 32]), "flip": ep.Values([True])})
        >>> [int(point["width"]) for point in space]
        [8, 32]
    """

    values: Shaped[Array, "n ..."] = eqx.field(converter=as_values)
    dim: str | None = eqx.field(default=None, static=True, kw_only=True)
    is_log: bool = eqx.field(default=False, static=True, kw_only=True, compare=False)

    def __check_init__(self) -> None:
        check_bool("Values", "is_log", self.is_log)

    @property
    def stored(self) -> Array | None:
        # A subclass may have a `value` of its own.
        return self.values if type(self) is Values else None

    def __len__(self) -> int:
        return self.values.shape[0]

    def value(self, i: Int[Array, ""], key: Key | None) -> Shaped[Array, "..."]:
        return take(self.values, i)

    def take(
        self, positions: Int[np.ndarray, " points"], dim: str | None = None
    ) -> Axis:
        if self.stored is None:  # a subclass may have a `value` of its own
            return Axis.take(self, positions, dim)
        # On the host: an index of an array of JAX would be another program.
        values = self.values if is_key_array(self.values) else np.asarray(self.values)
        return dataclasses.replace(self, values=values[positions], dim=dim)

    def __repr__(self) -> str:
        if isinstance(self.values, Tracer) or is_key_array(self.values):
            text = str(jax.typeof(self.values))
        elif self.values.ndim > 1:
            text = f"{self.values.dtype}{list(self.values.shape)}"
        else:
            numbers = np.asarray(self.values[:6]).tolist()
            shown = [f"{x:.6g}" if isinstance(x, float) else str(x) for x in numbers]
            text = f"[{', '.join(shown + ['...'] * (len(self) > 6))}]"
        return f"Values({text}{self._dim_text})"


class LoadedValues(Values):
    """The values of an axis from a file, in NumPy, which keeps 64 bits.

    A point has them in the dtype that JAX uses. `draws` are the `replicates` of the
    axis that was saved.
    """

    values: Shaped[np.ndarray | Array, "n ..."] = eqx.field()
    draws: str | None = eqx.field(default=None, static=True, kw_only=True)

    @property
    def replicates(self) -> str | None:
        return self.draws

    @property
    def stored(self) -> Any:
        return self.values

    def value(self, i: Int[Array, ""], key: Key | None) -> Shaped[Array, "..."]:
        if isinstance(self.values, np.ndarray) and not isinstance(i, Tracer):
            dtype = jax.dtypes.canonicalize_dtype(self.values.dtype)
            check_fits("Space.point", "values", self.values[int(i)], dtype)
        return take(self.values, i)


def _as_opaque(values: Iterable[object]) -> Opaque:
    """Return the values of a `Static` axis, which JAX does not look into."""
    # The order of a set differs between processes, and a dict would give its keys.
    wrong = isinstance(values, str | bytes | Mapping | Set)
    wrong |= getattr(values, "ndim", 1) == 0
    if wrong or not isinstance(values, Iterable):
        wrong = f"`values` is {describe_value(values)}."
        cure = "Give a list of the values, also if there is only one; for a dict "
        cure += "`list(values.values())`."
        raise type_error("Static", wrong, cure)
    check_unmasked("Static", "values", values)
    opaque = Opaque(tuple(values))
    if not opaque.values:
        wrong = "`values` is empty."
        raise value_error("Static", wrong, "Give at least one value.")
    return opaque


class Static(Axis):
    """Any Python values: widths of layers, activation functions, solvers, models.

    The function gets the values themselves, not arrays. So a sweep compiles a separate
    program for every combination of static values, and `point(i)` requires an index
    that is not traced.

    **Arguments:**

    - `values`: a sequence of at least one value. JAX does not look into them.
    - `dim`: the dimension's name; axes with the same `dim` vary together. By default
      the axis's path in the space. (Keyword only.)
    - `label`, `unit`: texts for plots and for xarray's attributes `long_name` and
      `units`. They change nothing else. (Keyword only.)

    **Raises:** `ValueError` if there are no values; `TypeError` if `values` cannot be
    iterated over, or is a string, a dict or a set.

    !!! example

        >>> import eqx_pipe as ep, jax.numpy as jnp
        >>> space = {"f": ep.Static([jnp.sin, jnp.cos]), "n": ep.Static([1, 2, 3])}
        >>> result = ep.sweep(lambda p: p["f"](jnp.zeros(p["n"])).sum(), space)
        >>> result.grid().tolist()
        [[0.0, 0.0, 0.0], [1.0, 2.0, 3.0]]
    """

    is_static: ClassVar[bool] = True

    values: Opaque = eqx.field(static=True, converter=_as_opaque)
    dim: str | None = eqx.field(default=None, static=True, kw_only=True)

    def __len__(self) -> int:
        return len(self.values.values)

    def value(self, i: Position, key: Key | None) -> Any:
        if isinstance(i, Tracer):
            wrong = "the index is traced, and the space has `Static` axes."
            cure = "Their values are Python values, which a compiled program cannot "
            cure += "choose from. Use a plain integer, or `sweep`."
            raise type_error("Space", wrong, cure)
        return self.values.values[int(i)]

    def take(
        self, positions: Int[np.ndarray, " points"], dim: str | None = None
    ) -> "Static":
        values = [self.values.values[k] for k in positions]
        return Static(values, dim=dim, **self.texts)

    def __repr__(self) -> str:
        return f"Static({self.values!r}{self._dim_text})"


BLOCK = 2**16
"""Axes up to this length have one table; longer axes have a fine table of this length.

The longest axis then has two tables of at most 2**16 entries, small enough to be inputs
of a program instead of being computed in each.
"""


LONGEST = 2**22
"""The maximum length of a table of values that is made on the host, in numbers."""


class Lookup(eqx.Module):
    """The values at `n` positions: `coarse[i]`, or with a `fine` part joined to it.

    The last entry of `coarse` is the value at the last position, exactly.
    """

    coarse: Inexact[Array, "coarse *shape"]
    fine: Inexact[Array, "fine *shape"] | None


def _formulas(
    is_log: bool, a: Any, b: Any
) -> tuple[Callable[[Any, Any], Any], Callable[[Any, Any], Any]]:
    """Return functions of the array module `xp` and a fraction `t`, from `a` to `b`.

    `whole(xp, t)` returns the values at the fractions `t` between the ends, and
    `part(xp, t)` the steps (terms or factors) that move a value by the fractions `t`.
    """
    if not is_log:
        # The formula of `numpy.linspace`: (-1, 2, 4) contains 0 exactly.
        return lambda xp, t: a + (b - a) * t, lambda xp, t: (b - a) * t

    def whole(xp: Any, t: Any) -> Any:
        log_a, log_b = xp.log10(xp.abs(a)), xp.log10(xp.abs(b))
        return xp.sign(a) * 10.0 ** (log_a * (1 - t) + log_b * t)

    def part(xp: Any, t: Any) -> Any:
        return 10.0 ** ((xp.log10(xp.abs(b)) - xp.log10(xp.abs(a))) * t)

    return whole, part


class _Spaced(Axis):
    """The base class of axes between two ends; a search may propose any number.

    Subclasses are declared with `init=False`, which type checkers read: they have the
    `__init__` of this class, and not one made of the fields.
    """

    def __init_subclass__(cls, init: bool = True) -> None:
        super().__init_subclass__()

    lookup: Lookup
    num: int = eqx.field(static=True)
    dim: str | None = eqx.field(static=True)

    def __init__(
        self,
        start: ArrayLike,
        stop: ArrayLike,
        num: SupportsIndex,
        *,
        dim: str | None = None,
        label: str | None = None,
        unit: str | None = None,
    ):
        name = type(self).__name__
        self.num = check_length(name, num)
        self.dim = dim
        self.label: str | None = label
        self.unit: str | None = unit
        (first, last), precise = as_ends(name, start, stop)
        if self.is_log:
            check_same_sign(name, first, last)
        whole, part = _formulas(self.is_log, *precise)
        n, dtype = self.num, first.dtype
        traced = isinstance(first, jax.Array)
        xp = jnp if traced else np

        def entries(fn: Callable[[Any, Any], Any], positions: Any) -> Any:
            fractions = positions / max(n - 1, 1)
            fractions = fractions.reshape((-1,) + (1,) * first.ndim)
            with np.errstate(over="ignore"):
                return fn(xp, fractions.astype(dtype) if traced else fractions)

        step = 1 if n <= BLOCK else BLOCK
        coarse = entries(whole, np.arange(0, n, step, dtype=np.float64))
        if not traced:
            warn_if_alike(name, coarse, dtype)
        # Both ends are exactly the user's numbers, which the formula would round.
        middle = coarse[1:-1] if step == 1 else coarse[1:]
        ends = [first[None], middle.astype(dtype), last[None]]
        coarse = xp.concatenate(ends if n > 1 else ends[:1])
        fine = None
        if step > 1:
            fine = entries(part, np.arange(BLOCK, dtype=np.float64)).astype(dtype)
            fine = on_device(fine)
        self.lookup = Lookup(on_device(coarse), fine)

    @property
    def is_range(self) -> bool:
        return self.num > 1

    @property
    def stored(self) -> Array | None:
        return self.lookup.coarse if self.lookup.fine is None else None

    @property
    def table(self) -> Any:
        if type(self).value is not _Spaced.value:
            return None
        coarse, fine = self.lookup.coarse, self.lookup.fine
        if fine is None or self.num > LONGEST or isinstance(coarse, Tracer):
            return coarse if fine is None else None
        # One operation of two numbers rounds alike everywhere.
        join, coarse = np.multiply if self.is_log else np.add, np.asarray(coarse)
        values = join(coarse[:-1, None], np.asarray(fine)[None])
        values = values.reshape(-1, *values.shape[2:])[: self.num]
        values[-1] = coarse[-1]
        return values

    def __len__(self) -> int:
        return self.num

    def value(self, i: Int[Array, ""], key: Key | None) -> Inexact[Array, "..."]:
        coarse, fine = self.lookup.coarse, self.lookup.fine
        if fine is None:
            return take(coarse, i)
        last = i == self.num - 1
        block = jnp.where(last, coarse.shape[0] - 1, i // BLOCK)
        join = jnp.multiply if self.is_log else jnp.add
        value = join(take(coarse, block), take(fine, jnp.where(last, 0, i % BLOCK)))
        # The select separates this arithmetic from the arithmetic of the user's
        # function, so that XLA cannot fuse the two with a single rounding.
        return jnp.where(last, take(coarse, block), value)

    def _both(self) -> tuple[np.ndarray, np.ndarray]:
        """Return both ends in float64, each with a leading axis of length 1."""
        # On the host: an operation of JAX would slow down each round of a search.
        both = np.asarray(self.lookup.coarse)[[0, -1]].astype(np.float64)
        return both[:1], both[1:]

    def _scaled(self, values: np.ndarray) -> np.ndarray:
        """Return numbers, or their logarithms if `is_log`: NaN for the wrong sign."""
        if not self.is_log:
            return values
        sign = np.sign(self._both()[0])
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.log(sign * values)

    def from_unit(
        self, u: Float[np.ndarray, " points"], dim: str | None = None
    ) -> Values:
        first, last = self._both()
        u = u.reshape((-1,) + (1,) * (first.ndim - 1))
        between = _formulas(self.is_log, first, last)[0](np, u)
        # The ends are exact, which the formula is not.
        values = np.where(u == 0, first, np.where(u == 1, last, between))
        values = on_device(values.astype(self.lookup.coarse.dtype))
        return Values(values, dim=dim, is_log=self.is_log, **self.texts)

    def to_unit(
        self, values: Shaped[np.ndarray, "points ..."]
    ) -> Float[np.ndarray, " points"]:
        first, last = map(self._scaled, self._both())
        way = (last - first).reshape(-1)
        # In arrays, use the entry that changes most: it is the most precise.
        longest = int(np.argmax(np.abs(way)))
        done = self._scaled(np.asarray(values, np.float64)) - first
        # If both ends are equal, every value is at 0.
        u = done.reshape(len(values), way.size)[:, longest] / (way[longest] or 1.0)
        # Rounding to the dtype of the axis may move values beyond its ends.
        eps = 64 * float(jnp.finfo(self.lookup.coarse.dtype).eps)
        inside = (u >= -eps) & (u <= 1 + eps)
        return np.where(inside, np.clip(u, 0.0, 1.0), np.nan)

    def __repr__(self) -> str:
        table = self.lookup.coarse
        if isinstance(table, Tracer) or table.ndim > 1:
            shown = f"{table.dtype}{list(table.shape[1:])}"
        else:
            first, last = map(float, np.asarray(table)[[0, -1]])
            shown = f"{first:.6g}, {last:.6g}"
        num = "" if isinstance(self, _Range) else f", {len(self)}"
        return f"{type(self).__name__}({shown}{num}{self._dim_text})"


class Linspace(_Spaced, init=False):
    r"""Evenly spaced values from `start` to `stop`, both ends included exactly.

    **Arguments:**

    - `start`, `stop`: the ends: two finite numbers, or two arrays of the same shape for
      a straight line between them. `start` may be above `stop`. Integers become floats.
    - `num`: the number of values, at least 1 (a single one is `start`).
    - `dim`: the dimension's name; axes with the same `dim` vary together. By default
      the axis's path in the space. (Keyword only.)
    - `label`, `unit`: texts for plots and for xarray's attributes `long_name` and
      `units`. They change nothing else. (Keyword only.)

    **Units:** those of `start` and `stop`, which must be the same.

    **Raises:** `ValueError` if an end is not finite or `num` is not between 1 and
    `2**31 - 1`; `TypeError` if an end is not a real number or `num` not an integer.

    !!! example

        >>> import eqx_pipe as ep
        >>> [point.item() for point in ep.Space(ep.Linspace(0, 1, 5))]
        [0.0, 0.25, 0.5, 0.75, 1.0]
    """


class Geomspace(_Spaced, init=False):
    r"""Values from `start` to `stop` with a constant ratio, ends included exactly.

    **Arguments:**

    - `start`, `stop`: the ends: two finite numbers other than zero, of the same sign,
      or two arrays of the same shape.
    - `num`: the number of values, at least 1 (a single one is `start`).
    - `dim`, `label`, `unit`: as in `Linspace`. (Keyword only.)

    **Raises:** `ValueError` if an end is zero or not finite, if the signs differ, or
    if `num` is not between 1 and `2**31 - 1`; `TypeError` if an end is not a real
    number or `num` not an integer.

    !!! example

        >>> import eqx_pipe as ep
        >>> [round(point.item(), 6) for point in ep.Space(ep.Geomspace(1e-3, 1, 4))]
        [0.001, 0.01, 0.1, 1.0]
    """

    is_log: ClassVar[bool] = True


class _Range(_Spaced, init=False):
    """The base class of axes that have no values of their own, but for searches."""

    def __init__(
        self,
        start: ArrayLike,
        stop: ArrayLike,
        num: object = None,
        *,
        dim: str | None = None,
        label: str | None = None,
        unit: str | None = None,
    ):
        if num is not None:
            wrong = f"`num` is {describe_value(num)}, but a range has no values."
            raise type_error(type(self).__name__, wrong, self._cure)
        # The table has two entries, the ends.
        _Spaced.__init__(self, start, stop, 2, dim=dim, label=label, unit=unit)

    @property
    def stored(self) -> None:
        return None

    def __len__(self) -> int:
        return 1

    def value(self, i: Int[Array, ""], key: Key | None) -> Inexact[Array, "..."]:
        wrong = "a range has no values of its own."
        raise value_error(type(self).__name__, wrong, self._cure)

    @property
    def _cure(self) -> str:
        grid = "Geomspace" if self.is_log else "Linspace"
        return (
            f"For a grid give `{grid}(start, stop, num)`, for random draws "
            "`Random(sampler, num)`; `explore` and `sobol` choose values from a "
            "range."
        )


class Uniform(_Range, init=False):
    """All numbers from `start` to `stop`: a range for searches and designs.

    `explore`, `sobol` and `Space.from_unit` choose values from it. A range itself has
    no values, so a plain `sweep` over it raises a `ValueError`.

    **Arguments:**

    - `start`, `stop`: the ends: two finite numbers, or two arrays of the same shape for
      a straight line between them. Integers become floats.
    - `num`: raises, since a range has no values of its own; `Linspace` has.
    - `dim`, `label`, `unit`: as in `Linspace`. (Keyword only.)

    **Raises:** `ValueError` if an end is not finite; `TypeError` if it is not a real
    number, or for a `num`.

    !!! example

        >>> import eqx_pipe as ep
        >>> space = ep.Space({"rate": ep.Uniform(0, 8)})
        >>> [p["rate"].item() for p in space.from_unit([[0.25], [1.0]])]
        [2.0, 8.0]
    """


class LogUniform(_Range, init=False):
    """All numbers from `start` to `stop`, evenly in the logarithm: see `Uniform`.

    **Arguments:**

    - `start`, `stop`: the ends: two finite numbers other than zero, of the same sign,
      or two arrays of the same shape.
    - `num`: raises, as in `Uniform`.
    - `dim`, `label`, `unit`: as in `Linspace`. (Keyword only.)

    **Raises:** as `Geomspace`, and for a `num`.

    !!! example

        >>> import eqx_pipe as ep
        >>> space = ep.Space({"rate": ep.LogUniform(0.01, 100)})
        >>> [p["rate"].item() for p in space.from_unit([[0.5], [1.0]])]
        [1.0, 100.0]
    """

    is_log: ClassVar[bool] = True


Sampler: TypeAlias = Callable[[Key, tuple[int, ...]], PyTree] | Any
"""A function of a key and a shape, or an object with a method `sample` of both."""


class Random(Axis):
    r"""Independent random values.

    Value `i` is `sampler(fold_in(axis_key, i), ())`, where `axis_key` is made from the
    key of the space and the path of the axis. So more values or more axes never change
    the other draws, and a value has the same key, and is equal to rounding, wherever it
    is computed.

    **Arguments:**

    - `sampler`: a function `(key, shape) -> Array` such as `jax.random.normal`, or an
      object with a method `sample(key, sample_shape)` such as a NumPyro distribution.
      It is called with the shape `()`. A sweep is not recompiled if arrays in it
      change.
    - `num`: the number of values, at least 1.
    - `dim`: the dimension's name; axes with the same `dim` vary together. By default
      the axis's path in the space. (Keyword only.)
    - `label`, `unit`: texts for plots and for xarray's attributes `long_name` and
      `units`. They change nothing else. (Keyword only.)

    **Raises:** `TypeError` if `sampler` is neither kind of object; `ValueError`
    if `num` is not between 1 and `2**31 - 1`; a `MissingKeyError` (a `ValueError`) from
    `Space` if the space has no key.

    **Laws:** a longer axis begins with the values of a shorter one.

    !!! example

        >>> import eqx_pipe as ep, jax
        >>> tree = {"noise": ep.Random(jax.random.normal, 3)}
        >>> space = ep.Space(tree, key=jax.random.key(0))
        >>> [round(point["noise"].item(), 2) for point in space]
        [0.17, -1.89, 1.18]
    """

    needs_key: ClassVar[bool] = True

    sampler: Sampler
    num: int = eqx.field(static=True, converter=ft.partial(check_length, "Random"))
    dim: str | None = eqx.field(default=None, static=True, kw_only=True)

    def __check_init__(self) -> None:
        sampler = self.sampler
        if isinstance(sampler, type) or not (
            callable(sampler) or hasattr(sampler, "sample")
        ):
            wrong = f"`sampler` is {describe_value(sampler)}."
            cure = "Give a function of `(key, shape)` such as `jax.random.normal`, "
            cure += "or an object with `.sample(key, sample_shape)`."
            raise type_error("Random", wrong, cure)

    def __len__(self) -> int:
        return self.num

    def value(self, i: Int[Array, ""], key: Key | None) -> PyTree:
        if key is None:
            # The name of an axis that is the whole space.
            raise needs_space_key("x")
        # A distribution may also be callable, with another meaning.
        sample: Any = getattr(self.sampler, "sample", self.sampler)
        return sample(jr.fold_in(key, i), ())

    def __repr__(self) -> str:
        name = getattr(self.sampler, "__name__", type(self.sampler).__name__)
        return f"Random({name}, {self.num}{self._dim_text})"


Draws = Literal["common", "independent"]
"""The draws of a replicate: the same at each point of the grid, or independent."""


class Seeds(Axis):
    r"""Replicates: repeats each point of the other axes `num` times, with new draws.

    The value is the number of the replicate, from 0 to `num - 1`; draws come from the
    `key` of the sweep. With common draws, the key of a point depends on its replicate
    alone, so points are compared under the same noise (common random numbers), and
    differences between them show with far fewer replicates.

    **Arguments:**

    - `num`: the number of replicates, at least 1.
    - `draws`: `"common"` (the default), the same draws at each point of the other
      axes, or `"independent"`, different draws at each. If a space has several axes of
      replicates, draws are common if they are common for one of them. (Keyword only.)
    - `dim`: the dimension's name; axes with the same `dim` vary together. By default
      the axis's path in the space. (Keyword only.)
    - `label`, `unit`: texts for plots and for xarray's attributes `long_name` and
      `units`. They change nothing else. (Keyword only.)

    **Raises:** `ValueError` if `num` is not between 1 and `2**31 - 1`, or for any other
    value of `draws`; `TypeError` if `num` is not an integer.

    **Laws:** with common draws `space.point_key(i, key=key)` is `key` folded with the
    positions on the dims of replicates alone; with independent draws, and without
    replicates, with those on all dims. More replicates change no draw.

    !!! example

        >>> import eqx_pipe as ep, jax
        >>> space = {"mean": ep.Values([0.0, 5.0]), "seed": ep.Seeds(3)}
        >>> def draw(p, key):
        ...     return p["mean"] + jax.random.normal(key)
        >>> low, high = ep.sweep(draw, space, key=jax.random.key(0)).grid()
        >>> (high - low).round(3).tolist()
        [5.0, 5.0, 5.0]
    """

    num: int = eqx.field(static=True, converter=ft.partial(check_length, "Seeds"))
    draws: Draws = eqx.field(default="common", static=True, kw_only=True)
    dim: str | None = eqx.field(default=None, static=True, kw_only=True)

    def __check_init__(self) -> None:
        check_choice("Seeds", "draws", self.draws, ("common", "independent"))

    @property
    def replicates(self) -> Draws:
        return self.draws

    def __len__(self) -> int:
        return self.num

    def value(self, i: Int[Array, ""], key: Key | None) -> Int[Array, ""]:
        return i

    def __repr__(self) -> str:
        draws = "" if self.draws == "common" else ", draws='independent'"
        return f"Seeds({self.num}{draws}{self._dim_text})"
