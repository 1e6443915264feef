"""The axes: evenly spaced, evenly spaced in the logarithm, given one by one."""

import abc
from typing import Any, SupportsIndex

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, ArrayLike, Float, Inexact, Int, Shaped

from .._errors import describe_value, type_error, value_error
from .._tree import is_key_array, on_device
from .._types import Key
from .axis import Named, NamedAxis, check_dim, check_length, dim_text
from .given import ValuesLike, as_values
from .lookup import Lookup, as_ends, look_up, tabulate, take


class _Spaced(NamedAxis):
    """What `Linspace` and `Geomspace` are, but for the values between the ends."""

    lookup: Lookup
    n: int | None = eqx.field(static=True)
    dim: str | None = eqx.field(static=True)

    def __len__(self) -> int:
        if self.n is None:
            name = type(self).__name__
            raise value_error(
                name,
                f"{self!r} has no number of values.",
                f"Give it, `{name}(lo, hi, n)`; without `n` it is a range for `sobol` "
                "and `latin_hypercube` alone.",
            )
        return self.n

    @property
    def _ends(self) -> tuple[np.ndarray, np.ndarray]:
        """Both ends, in float64, each with a leading axis of one."""
        ends = self.lookup.coarse
        if isinstance(ends, Tracer):
            raise type_error(
                type(self).__name__,
                "the ends are traced, and values between them are worked out on the "
                "host.",
                "Do so outside of `jit`.",
            )
        # On the host: the rounds of a search would wait for an operation of JAX.
        both = np.asarray(ends)[[0, -1]].astype(np.float64)
        return both[:1], both[1:]

    def between(self, shares: Float[np.ndarray, " points"]) -> Array:
        """The values at some shares of the way from the first to the last one."""
        first, last = self._ends
        shares = shares.reshape((-1,) + (1,) * (first.ndim - 1))
        values = np.where(shares == 1, last, self._between(shares))
        return on_device(np.where(shares == 0, first, values).astype(self.dtype))

    def shares(
        self, values: Shaped[np.ndarray, "points ..."]
    ) -> Float[np.ndarray, " points"]:
        """Which share of the way some values are; one of arrays by its longest side."""
        first, last = map(self._linear, self._ends)
        values = self._linear(np.asarray(values, np.float64))
        way = (last - first).reshape(-1)
        longest = int(np.argmax(np.abs(way)))
        done = (values - first).reshape(len(values), -1)[:, longest]
        # A way of no length has every value at its beginning.
        found = done / (way[longest] or 1.0)
        # What rounding values to the dtype of the axis may move them beyond its ends.
        eps = 64 * float(jnp.finfo(self.dtype).eps)
        outside = ~((found >= -eps) & (found <= 1 + eps))
        if np.any(outside):
            i = int(np.argmax(outside))
            raise value_error(
                "Space.to_unit",
                f"point {i} lies at {found[i]:.6g} of the way of {self!r}.",
                "Give points from one end to the other.",
            )
        return np.clip(found, 0.0, 1.0)  # what rounding added

    @property
    def dtype(self) -> np.dtype:
        """The dtype of the values."""
        return self.lookup.coarse.dtype

    @abc.abstractmethod
    def _between(self, shares: np.ndarray) -> np.ndarray:
        """The values at some shares of the way, in float64."""

    @abc.abstractmethod
    def _linear(self, values: np.ndarray) -> np.ndarray:
        """What grows evenly along the way."""

    def __repr__(self) -> str:
        table = self.lookup.coarse
        if isinstance(table, Tracer) or table.ndim > 1:
            shown = f"{table.dtype}{list(table.shape[1:])}"
        else:
            first, last = map(float, np.asarray(table)[[0, -1]])
            shown = f"{first:.6g}, {last:.6g}"
        number = "" if self.n is None else f", {self.n}"
        return f"{type(self).__name__}({shown}{number}{dim_text(self.dim)})"


class Linspace(_Spaced):
    r"""Evenly spaced values from `lo` to `hi`, both ends included exactly.

    **Arguments:**

    - `lo`, `hi`: the ends: two finite numbers, or two arrays of one shape for a line
      through a space of arrays. `lo` may be above `hi`. Integers become floats.
    - `n`: how many values, at least 1 (a single one is `lo`). Without it this is a
      range, for `sobol` and `latin_hypercube` to choose values from.
    - `dim`: the dimension's name; axes with the same `dim` vary together. By default
      the axis's path in the space. (Keyword only.)
    - `label`, `unit`: what pictures and xarray's attributes `long_name` and `units` say
      of the values. They change nothing else. (Keyword only.)

    **Units:** those of `lo` and `hi`, which must be the same.

    **Raises:** `ValueError` if an end is not finite or `n` is not between 1 and
    `2**31 - 1`; `TypeError` for anything that is not a real number.

    !!! example

        >>> import eqx_pipe as ep
        >>> [point.item() for point in ep.Space(ep.Linspace(0, 1, 5))]
        [0.0, 0.25, 0.5, 0.75, 1.0]
    """

    def __init__(
        self,
        lo: ArrayLike,
        hi: ArrayLike,
        n: SupportsIndex | None = None,
        *,
        dim: str | None = None,
        label: str | None = None,
        unit: str | None = None,
    ):
        self.n: int | None = None if n is None else check_length("Linspace", n)
        self.dim: str | None = check_dim("Linspace", dim)
        self.named: Named = Named("Linspace", label, unit)
        (first, last), (a, b) = as_ends("Linspace", lo, hi)
        self.lookup: Lookup = tabulate(
            "Linspace",
            lambda xp, t: a + (b - a) * t,  # as `numpy.linspace`: (-1, 2, 4) hits 0
            lambda xp, t: (b - a) * t,
            first,
            last,
            2 if self.n is None else self.n,
        )

    def value(self, i: Int[Array, ""], key: Key | None) -> Inexact[Array, "..."]:
        return look_up(self.lookup, i, len(self), jnp.add)

    def _between(self, shares: np.ndarray) -> np.ndarray:
        first, last = self._ends
        return first + (last - first) * shares

    def _linear(self, values: np.ndarray) -> np.ndarray:
        return values


class Geomspace(_Spaced):
    r"""Values from `lo` to `hi` with a constant ratio, both ends included exactly.

    **Arguments:**

    - `lo`, `hi`: the ends: two finite numbers other than zero, of the same sign, or
      two arrays of one shape.
    - `n`: how many values, at least 1 (a single one is `lo`). Without it this is a
      range, for `sobol` and `latin_hypercube` to choose values from.
    - `dim`: the dimension's name; axes with the same `dim` vary together. By default
      the axis's path in the space. (Keyword only.)
    - `label`, `unit`: what pictures and xarray's attributes `long_name` and `units` say
      of the values. They change nothing else. (Keyword only.)

    **Raises:** `ValueError` if an end is zero or not finite, if the signs differ, or
    if `n` is not between 1 and `2**31 - 1`; `TypeError` for anything that is not a
    real number.

    !!! example

        >>> import eqx_pipe as ep
        >>> [round(point.item(), 6) for point in ep.Space(ep.Geomspace(1e-3, 1, 4))]
        [0.001, 0.01, 0.1, 1.0]
    """

    def __init__(
        self,
        lo: ArrayLike,
        hi: ArrayLike,
        n: SupportsIndex | None = None,
        *,
        dim: str | None = None,
        label: str | None = None,
        unit: str | None = None,
    ):
        self.n: int | None = None if n is None else check_length("Geomspace", n)
        self.dim: str | None = check_dim("Geomspace", dim)
        self.named: Named = Named("Geomspace", label, unit)
        (first, last), (a, b) = as_ends("Geomspace", lo, hi)
        if isinstance(first, np.ndarray):
            zero = np.any(first == 0) or np.any(last == 0)
            if zero or np.any(np.signbit(first) != np.signbit(last)):
                what = "an end is zero" if zero else "the ends have different signs"
                raise value_error(
                    "Geomspace",
                    f"{what}: `lo` is {describe_value(lo)}, `hi` is "
                    f"{describe_value(hi)}.",
                    "A geometric sequence needs two ends of the same sign, neither "
                    "zero; use `Linspace`, or `Values` with the numbers you want.",
                )

        def whole(xp: Any, t: Any) -> Any:
            log_a, log_b = xp.log10(xp.abs(a)), xp.log10(xp.abs(b))
            return xp.sign(a) * 10.0 ** (log_a * (1 - t) + log_b * t)

        def part(xp: Any, t: Any) -> Any:
            return 10.0 ** ((xp.log10(xp.abs(b)) - xp.log10(xp.abs(a))) * t)

        n = 2 if self.n is None else self.n
        self.lookup: Lookup = tabulate("Geomspace", whole, part, first, last, n)

    def value(self, i: Int[Array, ""], key: Key | None) -> Inexact[Array, "..."]:
        return look_up(self.lookup, i, len(self), jnp.multiply)

    def _between(self, shares: np.ndarray) -> np.ndarray:
        first, last = self._ends
        logs = self._linear(first) * (1 - shares) + self._linear(last) * shares
        return np.sign(first) * np.exp(logs)

    def _linear(self, values: np.ndarray) -> np.ndarray:
        return np.log(np.abs(values))


class Listed(NamedAxis):
    """What `Values` and the columns of a joint design are: an array, entry by entry."""

    values: Shaped[Array, "n ..."]
    dim: str | None = eqx.field(static=True)

    def __len__(self) -> int:
        return self.values.shape[0]

    def value(self, i: Int[Array, ""], key: Key | None) -> Shaped[Array, "..."]:
        return take(self.values, i)


class Column(Listed):
    """One axis of a joint design, its `part`: the design and the path in it."""

    part: tuple[str, str] = eqx.field(static=True)

    @property
    def design(self) -> tuple[str, str]:
        return self.part

    def __repr__(self) -> str:
        return f"{self.part[0].split('(')[0]}({len(self)}, dim={self.dim!r})"


class Values(Listed):
    """The given values, one by one.

    **Arguments:**

    - `values`: a sequence of numbers, or of arrays of one shape, or of PRNG keys; or
      one array whose leading axis counts the values. Every dtype that JAX has.
    - `dim`: the dimension's name; axes with the same `dim` vary together. By default
      the axis's path in the space. (Keyword only.)
    - `label`, `unit`: what pictures and xarray's attributes `long_name` and `units` say
      of the values. They change nothing else. (Keyword only.)

    **Shapes:** `values` is `(n, *shape)`; each value is `(*shape,)`.

    **Raises:** `ValueError` if there are no values, if their shapes differ, if a number
    is too large for the dtype that JAX gives it, or for PRNG keys of the kind `rbg`,
    whose draws under `vmap` differ from those of a single point; `TypeError` for values
    that are not numbers, or are keys of several kinds.

    !!! example

        >>> import eqx_pipe as ep
        >>> space = ep.Space({"width": ep.Values([8, 32]), "flip": ep.Values([True])})
        >>> [int(point["width"]) for point in space]
        [8, 32]
    """

    def __init__(
        self,
        values: ValuesLike,
        *,
        dim: str | None = None,
        label: str | None = None,
        unit: str | None = None,
    ):
        self.dim: str | None = check_dim("Values", dim)
        self.named: Named = Named("Values", label, unit)
        self.values: Shaped[Array, "n ..."] = as_values(values)
        check_length("Values", self.values.shape[0])

    def __repr__(self) -> str:
        if isinstance(self.values, Tracer) or is_key_array(self.values):
            text = str(jax.typeof(self.values))
        elif self.values.ndim > 1:
            text = f"{self.values.dtype}{list(self.values.shape)}"
        else:
            shown = [_number_text(x) for x in np.asarray(self.values[:6]).tolist()]
            text = f"[{', '.join(shown + ['...'] * (len(self) > 6))}]"
        return f"Values({text}{dim_text(self.dim)})"


def _number_text(x: object) -> str:
    return f"{x:.6g}" if isinstance(x, float) else str(x)
