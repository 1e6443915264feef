"""The axes: evenly spaced, evenly spaced in the logarithm, given one by one."""

from typing import Any, SupportsIndex

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, ArrayLike, Inexact, Int, Shaped

from .._check import keywords
from .._errors import describe_value, value_error
from .._tree import is_key_array
from .._types import Key
from .axis import Named, NamedAxis, check_dim, check_length, dim_text
from .given import ValuesLike, as_values
from .lookup import Lookup, as_ends, look_up, tabulate, take
from .mistakes import GEOMSPACE, LINSPACE, VALUES


class _Spaced(NamedAxis):
    """What `Linspace` and `Geomspace` are, but for the values between the ends."""

    lookup: Lookup
    n: int = eqx.field(static=True)
    dim: str | None = eqx.field(static=True)

    def __len__(self) -> int:
        return self.n

    def __repr__(self) -> str:
        table = self.lookup.coarse
        if isinstance(table, Tracer) or table.ndim > 1:
            shown = f"{table.dtype}{list(table.shape[1:])}"
        else:
            first, last = map(float, np.asarray(table)[[0, -1]])
            shown = f"{first:.6g}, {last:.6g}"
        return f"{type(self).__name__}({shown}, {self.n}{dim_text(self.dim)})"


class Linspace(_Spaced):
    r"""Evenly spaced values from `lo` to `hi`, both ends included exactly.

    **Arguments:**

    - `lo`, `hi`: the ends: two finite numbers, or two arrays of one shape for a line
      through a space of arrays. `lo` may be above `hi`. Integers become floats.
    - `n`: how many values, at least 1 (a single one is `lo`).
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

    @keywords("Linspace", **LINSPACE)
    def __init__(
        self,
        lo: ArrayLike,
        hi: ArrayLike,
        n: SupportsIndex,
        *,
        dim: str | None = None,
        label: str | None = None,
        unit: str | None = None,
    ):
        self.n: int = check_length("Linspace", n)
        self.dim: str | None = check_dim("Linspace", dim)
        self.named: Named = Named("Linspace", label, unit)
        (first, last), (a, b) = as_ends("Linspace", lo, hi)
        self.lookup: Lookup = tabulate(
            "Linspace",
            lambda xp, t: a + (b - a) * t,  # as `numpy.linspace`: (-1, 2, 4) hits 0
            lambda xp, t: (b - a) * t,
            first,
            last,
            self.n,
        )

    def value(self, i: Int[Array, ""], key: Key | None) -> Inexact[Array, "..."]:
        return look_up(self.lookup, i, self.n, jnp.add)


class Geomspace(_Spaced):
    r"""Values from `lo` to `hi` with a constant ratio, both ends included exactly.

    **Arguments:**

    - `lo`, `hi`: the ends: two finite numbers other than zero, of the same sign, or
      two arrays of one shape.
    - `n`: how many values, at least 1 (a single one is `lo`).
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

    @keywords("Geomspace", **GEOMSPACE)
    def __init__(
        self,
        lo: ArrayLike,
        hi: ArrayLike,
        n: SupportsIndex,
        *,
        dim: str | None = None,
        label: str | None = None,
        unit: str | None = None,
    ):
        self.n: int = check_length("Geomspace", n)
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

        self.lookup: Lookup = tabulate("Geomspace", whole, part, first, last, self.n)

    def value(self, i: Int[Array, ""], key: Key | None) -> Inexact[Array, "..."]:
        return look_up(self.lookup, i, self.n, jnp.multiply)


class Listed(NamedAxis):
    """What `Values` and the columns of a joint design are: an array, entry by entry."""

    values: Shaped[Array, "n ..."]
    dim: str | None = eqx.field(static=True)

    def __len__(self) -> int:
        return self.values.shape[0]

    def value(self, i: Int[Array, ""], key: Key | None) -> Shaped[Array, "..."]:
        return take(self.values, i)


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

    @keywords("Values", **VALUES)
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
