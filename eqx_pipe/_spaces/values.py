"""Axes that hold their values, and numbers as arrays of the dtypes that JAX has.

Rounding is allowed. A number outside the range of the dtype that JAX gives it raises,
and distinct numbers that become equal emit a warning, since a sweep would compute the
same point several times.
"""

import warnings
from collections.abc import Iterable, Mapping, Set
from typing import Any, ClassVar, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, ArrayLike, Int, Shaped

from .._check import check_bool, check_unmasked
from .._errors import describe_value, message, type_error, value_error
from .._keys import check_draws
from .._tree import Opaque, is_key_array, on_device
from .._types import Key
from .axis import Axis, Position, take

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


def as_values(values: Any) -> Array:
    """Return a sequence of numbers, arrays or keys as one array."""
    wrong = isinstance(values, str | bytes | Mapping | Set)
    if wrong or not isinstance(values, Iterable):
        raise type_error("Values", f"`values` is {describe_value(values)}.", _FORMS)
    is_column = hasattr(values, "shape") or hasattr(values, "null_count")
    numbers: Any = values if is_column else list(values)
    check_unmasked("Values", "values", numbers)
    gaps = missing_in(numbers)
    if gaps:
        raise value_error(
            "Values",
            f"`values` has {gaps} missing values.",
            "Fill them, or leave them out, `values.dropna()`; a NaN in an array of "
            "floats is a value.",
        )
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


def missing_in(column: Any) -> int:
    """Return the number of missing values in a column of pandas, Polars or Arrow.

    NumPy converts a column of integers with gaps to floats, which rounds large ones. A
    NaN in a column of NumPy's floats is not missing.
    """
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
    if not any(isinstance(x, jax.Array) for x in values):
        try:
            return np.asarray(values)
        except ValueError as error:
            raise _unlike(values) from error
    if len({np.shape(x) for x in values}) > 1:
        raise _unlike(values)
    arrays = [_as_array(x) for x in values]
    try:
        dtype = arrays[0].dtype
        if any(array.dtype != dtype for array in arrays):
            dtype = jnp.result_type(*arrays)
    except (TypeError, ValueError) as error:
        dtypes = ", ".join(sorted({str(array.dtype) for array in arrays}))
        wrong, cure = f"`values` mixes the dtypes {dtypes}.", "Give values of one kind."
        raise type_error("Values", wrong, cure) from error
    for i, (value, array) in enumerate(zip(values, arrays, strict=True)):
        if array.dtype != dtype and not isinstance(value, Tracer):
            check_fits("Values", f"values[{i}]", value, dtype)
    return jnp.stack(arrays)


def _unlike(values: list[Any]) -> ValueError:
    return value_error(
        "Values",
        f"the entries of `values` differ in shape: {describe_value(values)}.",
        "Give numbers, or arrays of one shape; for several shapes use `Static`, which "
        "compiles a program for each value.",
    )


def _as_array(values: Any) -> Array:
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
        raise type_error(
            "Values",
            f"`values` is {describe_value(numbers.tolist())}, of {numbers.dtype}.",
            "Give numbers, PRNG keys or arrays of them; for text, functions and other "
            "Python values use `eqx_pipe.Static`.",
        )
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


def _as_native(x: Any) -> Any:
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
            raise type_error(
                function,
                f"`{name}` is {describe_value(x)}.",
                "Give a real number or an array of them; for values of another kind "
                "use `Values`.",
            )
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
        raise value_error(
            function,
            f"`start` has the shape {first.shape} and `stop` {last.shape}.",
            "Give two numbers, or two arrays of the same shape.",
        )
    return (first, last), precise


def _is_real(x: Any) -> bool:
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
        raise value_error(
            function,
            f"`start` is {low} and `stop` is {high}.",
            "A logarithmic scale needs two ends of the same sign, neither zero: use "
            "`Linspace` or `Uniform`, or `Values` with the numbers you want.",
        )


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
    different, left = len(np.unique(numbers)), len(np.unique(numbers.astype(dtype)))
    if 100 * (different - left) > different:
        wrong = f"{left} of {different} different numbers are left in {dtype}."
        warnings.warn(message(function, wrong, _CURE), stacklevel=3)


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
    def known(self) -> Array | None:
        # A subclass may have a `value` of its own.
        return self.values if type(self) is Values else None

    def __len__(self) -> int:
        return self.values.shape[0]

    def value(self, i: Int[Array, ""], key: Key | None) -> Shaped[Array, "..."]:
        return take(self.values, i)

    def take(
        self, positions: Int[np.ndarray, " points"], dim: str | None = None
    ) -> "Values":
        if is_key_array(self.values):
            chosen = self.values[on_device(positions.astype(np.int32))]
        else:
            chosen = on_device(np.asarray(self.values)[positions])
        return Values(chosen, dim=dim, is_log=self.is_log, **self.texts)

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
    def known(self) -> Any:
        return self.values

    def value(self, i: Int[Array, ""], key: Key | None) -> Shaped[Array, "..."]:
        if isinstance(self.values, np.ndarray) and not isinstance(i, Tracer):
            dtype = jax.dtypes.canonicalize_dtype(self.values.dtype)
            check_fits("Space.point", "values", self.values[int(i)], dtype)
        return take(self.values, i)

    def take(
        self, positions: Int[np.ndarray, " points"], dim: str | None = None
    ) -> "LoadedValues":
        chosen = self.values[on_device(positions.astype(np.int32))]
        more = {"is_log": self.is_log, "draws": self.draws, **self.texts}
        return LoadedValues(chosen, dim=dim, **more)


def _as_opaque(values: Iterable[object]) -> Opaque:
    """Return the values of a `Static` axis, which JAX does not look into."""
    # The order of a set differs between processes, and a dict would give its keys.
    wrong = isinstance(values, str | bytes | Mapping | Set)
    wrong |= getattr(values, "ndim", 1) == 0
    if wrong or not isinstance(values, Iterable):
        raise type_error(
            "Static",
            f"`values` is {describe_value(values)}.",
            "Give a list of the values, also if there is only one; for a dict "
            "`list(values.values())`.",
        )
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
            raise type_error(
                "Space",
                "the index is traced, and the space has `Static` axes.",
                "Their values are Python values, which a compiled program cannot "
                "choose from. Use a plain integer, or `sweep` and `vmap_space`.",
            )
        return self.values.values[int(i)]

    def take(
        self, positions: Int[np.ndarray, " points"], dim: str | None = None
    ) -> "Static":
        values = [self.values.values[k] for k in positions]
        return Static(values, dim=dim, **self.texts)

    def __repr__(self) -> str:
        return f"Static({self.values!r}{self._dim_text})"
