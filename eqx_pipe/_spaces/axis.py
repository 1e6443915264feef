"""The base class of axes, axes made from others, and the checks that all share."""

import abc
import operator
from collections.abc import Callable
from typing import Any, ClassVar, SupportsIndex, TypeAlias, TypeGuard

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Array, Float, Int, Shaped

from .._check import check_int, check_is
from .._errors import (
    MissingKeyError,
    asks_for_key,
    describe_value,
    message,
    type_error,
    value_error,
)
from .._keys import check_draws
from .._tree import as_arrays, is_key_array, on_device, path_name
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
    def known(self) -> Array | None:
        """All values as one array if the axis stores them, else `None`.

        Tracing and running `value` returns the same bits, but takes a thousand times
        as long.
        """
        return None

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
        raise NotImplementedError


class Subset(Axis):
    """The values of an axis at some positions."""

    axis: Axis
    positions: Int[Array, " points"]
    dim: str | None = eqx.field(static=True)

    @property
    def needs_key(self) -> bool:
        return self.axis.needs_key

    def __len__(self) -> int:
        return self.positions.shape[0]

    def value(self, i: Position, key: Key | None) -> PyTree:
        return self.axis.value(self.positions[i], key)

    def __repr__(self) -> str:
        return f"{len(self)} of {self.axis!r}"


def needs_space_key(name: str) -> MissingKeyError:
    """Return the error for an axis that draws its values in a space without a key."""
    text = message(
        "Space",
        f"the axis `{name}` draws its values and the space has no key.",
        "Make the space with one: `Space(tree, key=jax.random.key(0))`. (The `key` of "
        "`sweep` is for the function alone.)",
    )
    return MissingKeyError(name, text)


def is_axis(x: object) -> TypeGuard[Axis]:
    """Return whether `x` is an axis."""
    return isinstance(x, Axis)


def check_dim(function: str, dim: Any) -> str | None:
    """Return `dim`; raise unless it is `None` or a non-empty string."""
    if dim is None or (isinstance(dim, str) and dim):
        return dim
    raise (value_error if isinstance(dim, str) else type_error)(
        function,
        f"`dim` is {describe_value(dim)}.",
        "Give a non-empty name, or leave it out: the axis is then named by its path in "
        "the space.",
    )


def check_length(function: str, num: SupportsIndex) -> int:
    """Return `num`; raise unless it is an integer from 1 to `MAX_LENGTH`."""
    check_int(function, "num", num, 1)
    num = operator.index(num)
    if num > MAX_LENGTH:
        raise value_error(
            function,
            f"`num` is {num}; one axis has at most 2**31 - 1 = {MAX_LENGTH} values.",
            "Split it into two axes, a coarse one and a fine one.",
        )
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
            raise type_error(
                "Space",
                f"the axis `{name}` returned {describe_value(leaf)}{where}.",
                "The values of an axis are arrays, numbers or pytrees of them. For "
                "functions, texts and other Python values use `Static`, or map one.",
            )
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

    @property
    def dim(self) -> str | None:
        return self.axis.dim

    @property
    def needs_key(self) -> bool:
        return self.axis.needs_key

    @property
    def replicates(self) -> str | None:
        return self.axis.replicates

    @property
    def is_static(self) -> bool:
        return self.axis.is_static

    @property
    def is_range(self) -> bool:
        return self.axis.is_range

    def __len__(self) -> int:
        return len(self.axis)

    def from_unit(
        self, u: Float[np.ndarray, " points"], dim: str | None = None
    ) -> "Mapped":
        return Mapped(self.fn, self.axis.from_unit(u, dim), **self.texts)

    def to_unit(
        self, values: Shaped[np.ndarray, "points ..."]
    ) -> Float[np.ndarray, " points"]:
        raise type_error(
            "Space.to_unit",
            f"the function of {self!r} cannot be inverted.",
            "Give points made by `space.from_unit`, which record the arguments of the "
            "function.",
        )

    def value(self, i: Position, key: Key | None) -> PyTree:
        value_at: Any = type(self.axis).value  # takes a position of either kind
        value = self.fn(value_at(self.axis, i, key))
        return value if self.is_static else as_arrays(value)

    def __repr__(self) -> str:
        name = getattr(self.fn, "__name__", type(self.fn).__name__)
        return f"Mapped({name}, {self.axis!r})"


def take(table: Array | np.ndarray, i: Int[Array, ""]) -> Array:
    """Return `table[i]` for a position within bounds."""
    # Not `dynamic_index_in_dim`, which JAX 0.12 traces and lowers as a function.
    origin = [jnp.zeros_like(i)] * (table.ndim - 1)
    row = jax.lax.dynamic_slice(
        table, [i, *origin], (1, *table.shape[1:]), allow_negative_indices=False
    )
    return jax.lax.squeeze(row, [0])
