"""What an axis is, what all of ours share, and how a space asks one for a value."""

import abc
import operator
from typing import Any, SupportsIndex, TypeAlias, TypeGuard

import equinox as eqx
import jax
import jax.tree_util as jtu
from jaxtyping import Array, Int

from .._check import check_int
from .._errors import (
    MissingKeyError,
    asks_for_key,
    describe_value,
    message,
    type_error,
    value_error,
)
from .._keys import check_draws
from .._tree import is_key_array, path_name
from .._types import Key, PyTree

MAX_LENGTH = 2**31 - 1
"""The most values that one axis may have: positions on an axis are `int32`."""


NEEDS_NUMBERS = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
)
"""What JAX raises where Python asks for the value of something traced."""

Position: TypeAlias = Int[Array, ""] | int
"""A position on an axis: often traced, a Python integer for Python values."""


class Axis(eqx.Module):
    """The abstract base for axes; subclass it to write your own.

    An axis is a finite sequence of values that is never held in memory as points: it
    computes its value from a position. A subclass is an `equinox.Module` with

    - `dim`: the name of the dimension that the axis varies along, or `None` for a
      dimension of its own, named by the axis's path in the space. Axes with the same
      `dim` vary together.
    - `__len__`: how many values there are, at least 1 and at most `2**31 - 1`.
    - `value`: the value at a position. It is traced and vectorised, so it must be
      made of JAX operations.

    An axis that cannot do without the key says so by a property `needs_key` that is
    `True`; a space without one is then refused when it is built. A label and a unit of
    its values are given by a property `attrs`.

    Arrays in its fields may change without compiling a sweep again.

    !!! example

        >>> import eqx_pipe as ep, jax.numpy as jnp
        >>> class Powers(ep.Axis):
        ...     n: int
        ...     dim: str | None = None
        ...     def __len__(self):
        ...         return self.n
        ...     def value(self, i, key):
        ...         return 2.0**i
        >>> [point["size"].item() for point in ep.Space({"size": Powers(4)})]
        [1.0, 2.0, 4.0, 8.0]
    """

    dim: eqx.AbstractVar[str | None]

    @property
    def needs_key(self) -> bool:
        """Whether `value` needs a key: whether the axis draws its values."""
        return False

    @property
    def design(self) -> tuple[str, str] | None:
        """The joint design that the axis is a part of, and which part."""
        return None

    @property
    def replicates(self) -> str | None:
        """If its values are replicates, whether their draws are `"common"` or
        `"independent"`.

        See `Seeds`.
        """
        return None

    @property
    def attrs(self) -> dict[str, str]:
        """What people are told of the values, as xarray's attributes of a coordinate.

        `long_name` is a label and `units` the unit, as in the CF conventions.
        """
        return {}

    @property
    def is_static(self) -> bool:
        """Whether values are Python values, and `value` takes no traced position."""
        return False

    @abc.abstractmethod
    def __len__(self) -> int:
        """The number of values."""

    @abc.abstractmethod
    def value(self, i: Int[Array, ""], key: Key | None) -> PyTree:
        """The value at position `i`.

        **Arguments:**

        - `i`: a position from 0 to `len(self) - 1`, a scalar `int32`, often traced.
        - `key`: the axis's own PRNG key, made from the space's key and the axis's
          path, the same for every `i` (fold `i` into it); `None` if the space has
          none.

        **Returns:** an array, or a pytree of arrays.
        """


class Named:
    """A label and a unit of an axis's values, equal to any other.

    So spaces that differ in them alone are equal as pytrees, and share programs and
    stores.
    """

    def __init__(
        self, function: str, label: str | None = None, unit: str | None = None
    ):
        for argument, text in (("label", label), ("unit", unit)):
            if text is not None and not isinstance(text, str):
                raise type_error(
                    function,
                    f"`{argument}` is {describe_value(text)}.",
                    "Give a text, such as `label='learning rate', unit='1/s'`, or "
                    "leave it out.",
                )
        given = {"long_name": label, "units": unit}
        self.attrs: dict[str, str] = {
            name: text for name, text in given.items() if text
        }

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Named)

    def __hash__(self) -> int:
        return 0

    def __repr__(self) -> str:
        return "Named"


class NamedAxis(Axis):
    """The abstract base of the axes that take a label and a unit."""

    # `compare=False` keeps it out of the fingerprint of a store too.
    named: Named = eqx.field(static=True, compare=False)

    @property
    def attrs(self) -> dict[str, str]:
        return dict(self.named.attrs)


class HasAxes(eqx.Module):
    """The base of what may hold axes where no other axis may: of spaces."""


class MissingAxisKey(MissingKeyError):
    """The error for an axis that draws its values in a space without a key."""

    def __str__(self) -> str:
        return message(
            "Space",
            f"the axis `{self.path}` draws its values and the space has no key.",
            "Make the space with one: `Space(tree, key=jax.random.key(0))`. (The `key` "
            "of `sweep` is for the function alone.)",
        )


def is_axis(x: object) -> TypeGuard[Axis]:
    """Whether `x` is an axis."""
    return isinstance(x, Axis)


def dim_text(dim: str | None) -> str:
    """The argument `dim` in the text of an axis."""
    return "" if dim is None else f", dim={dim!r}"


def check_dim(function: str, dim: Any) -> str | None:
    """`dim` itself; raises unless it is `None` or a non-empty string."""
    if dim is None or (isinstance(dim, str) and dim):
        return dim
    raise (value_error if isinstance(dim, str) else type_error)(
        function,
        f"`dim` is {describe_value(dim)}.",
        "Give a non-empty name, or leave it out: the axis is then named by its path in "
        "the space.",
    )


def check_length(function: str, n: SupportsIndex) -> int:
    """The length of an axis; raises unless `n` is an integer that may be one."""
    check_int(function, "n", n, 1)
    n = operator.index(n)
    if n > MAX_LENGTH:
        raise value_error(
            function,
            f"`n` is {n}; one axis has at most 2**31 - 1 = {MAX_LENGTH} values.",
            "Split it into two axes, a coarse one and a fine one.",
        )
    return n


def value_of(name: str, axis: Axis, i: Position, key: Key | None) -> PyTree:
    """The value of the axis called `name` at position `i`, checked."""
    # By the class: a method of a module is a module itself, made each time it is asked.
    value_at: Any = type(axis).value
    try:
        value = value_at(axis, i, key)
    except MissingKeyError:
        raise
    except Exception as error:
        if key is None and asks_for_key(error):
            raise MissingAxisKey(name) from error
        error.add_note(f"Raised by the axis `{name}` of the space.")
        if isinstance(error, NEEDS_NUMBERS):
            error.add_note(
                "An axis's values are computed while JAX traces, so `i` in its "
                "`value(i, key)` is no Python integer: use JAX operations, and "
                "`jnp.asarray(values)[i]` instead of indexing a list."
            )
        raise
    if axis.is_static and not isinstance(value, jax.Array):
        return value
    for path, leaf in jtu.tree_flatten_with_path(value)[0]:
        if not eqx.is_array_like(leaf):
            place = f" at `.{path_name(path)}`" if path else ""
            raise type_error(
                "Space",
                f"the axis `{name}` gives {describe_value(leaf)}{place}.",
                "The values of an axis are arrays, numbers or pytrees of them. For "
                "functions, texts and other Python values use `Static`, or map one.",
            )
        if is_key_array(leaf):
            check_draws("Space", f"the axis `{name}` gives keys", leaf)
    return value
