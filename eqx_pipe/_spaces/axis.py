"""The abstract base of axes, and the checks that all of them share."""

import abc
import operator
from typing import SupportsIndex, TypeAlias, TypeGuard

import equinox as eqx
from jaxtyping import Array, Int

from .._check import check_int
from .._errors import describe_value, message, value_error
from .._types import Key, PyTree

MAX_LENGTH = 2**31 - 1
"""The most values that one axis may have: positions on an axis are `int32`."""


Position: TypeAlias = Int[Array, ""] | int
"""A position on an axis: often traced, a Python integer for Python values."""


class Axis(eqx.Module):
    """The abstract base for axes; subclass it to write your own.

    An axis is a finite sequence of values that is never held in memory as points: it
    computes its value from a position. A subclass is an `equinox.Module` with

    - `dim`: the name of the dimension that the axis varies along, or `None` for a
      dimension of its own, named by the axis's path in the space. Axes with the same
      `dim` vary together.
    - `__len__`: how many values there are, at least 1 and at most $2^{31} - 1$.
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


class HasAxes(eqx.Module):
    """The base of what may hold axes where no other axis may: of spaces."""


def is_axis(x: object) -> TypeGuard[Axis]:
    """Whether `x` is an axis."""
    return isinstance(x, Axis)


def dim_text(dim: str | None) -> str:
    """The argument `dim` in the text of an axis."""
    return "" if dim is None else f", dim={dim!r}"


def check_dim(function: str, dim: object) -> None:
    """Raises unless `dim` is `None` or a non-empty string."""
    if dim is None or (isinstance(dim, str) and dim):
        return
    raise (ValueError if isinstance(dim, str) else TypeError)(
        message(
            function,
            f"`dim` is {describe_value(dim)}.",
            "Give a non-empty name, or leave it out: the axis is then named by its "
            "path in the space.",
        )
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
