"""Axes between two ends: grids of a fixed number of values, and ranges for searches.

A value of a grid is read from a table. So it is bitwise identical in a sweep, in
`space.point(i)` and in a coordinate. A value computed by a formula may differ, since
XLA may fuse a multiplication and an addition in one program but not in another. Tables
are computed in float64, whatever the dtype of the axis. A long axis has two short
tables instead of one long one: its value is an entry of `coarse` joined with an entry
of `fine`.
"""

from collections.abc import Callable
from typing import Any, ClassVar, SupportsIndex

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, ArrayLike, Float, Inexact, Int, Shaped

from .._errors import value_error
from .._tree import on_device
from .._types import Key
from .axis import Axis, check_length, take
from .values import Values, as_ends, check_same_sign, warn_if_alike

BLOCK = 2**16
"""Axes up to this length have one table; longer axes have a fine table of this length.

The longest axis then has two tables of at most 2**16 entries, small enough to be inputs
of a program instead of being computed in each.
"""


class Lookup(eqx.Module):
    """The values at `n` positions: `coarse[i]`, or with a `fine` part joined to it.

    The last entry of `coarse` is the value at the last position, exactly.
    """

    coarse: Inexact[Array, "coarse *shape"]
    fine: Inexact[Array, "fine *shape"] | None


def look_up(
    lookup: Lookup, i: Int[Array, ""], n: int, join: Callable[[Any, Any], Any]
) -> Inexact[Array, "..."]:
    """Return the value at position `i` of `n`."""
    coarse, fine = lookup.coarse, lookup.fine
    if fine is None:
        return take(coarse, i)
    last = i == n - 1
    block = jnp.where(last, coarse.shape[0] - 1, i // BLOCK)
    value = join(take(coarse, block), take(fine, jnp.where(last, 0, i % BLOCK)))
    # The select separates this arithmetic from the arithmetic of the user's function,
    # so that XLA cannot fuse the two with a single rounding.
    return jnp.where(last, take(coarse, block), value)


def tabulate(
    function: str,
    whole: Callable[[Any, Any], Any],
    part: Callable[[Any, Any], Any],
    first: Any,
    last: Any,
    n: int,
) -> Lookup:
    """Return the table of an axis with `n` values from `first` to `last`.

    `function` is the name of the axis class, for messages. `whole(xp, t)` returns the
    values at the fractions `t` between the ends, and `part(xp, t)` the steps (terms or
    factors) that move a value by the fractions `t`. Both use the array module `xp`:
    NumPy for plain numbers, `jax.numpy` for traced ones.
    """
    traced = isinstance(first, jax.Array)
    xp, dtype = (jnp if traced else np), first.dtype

    def entries(fn: Callable[[Any, Any], Any], positions: Any) -> Any:
        fractions = positions / max(n - 1, 1)
        fractions = fractions.reshape((-1,) + (1,) * first.ndim)
        with np.errstate(over="ignore"):
            return fn(xp, fractions.astype(dtype) if traced else fractions)

    step = 1 if n <= BLOCK else BLOCK
    coarse = entries(whole, np.arange(0, n, step, dtype=np.float64))
    if not traced:
        warn_if_alike(function, coarse, dtype)
    # Both ends are exactly the user's numbers, which the formula would round.
    middle = coarse[1:-1] if step == 1 else coarse[1:]
    ends = [first[None], middle.astype(dtype), last[None]]
    coarse = xp.concatenate(ends if n > 1 else ends[:1])
    fine = None
    if step > 1:
        fine = entries(part, np.arange(BLOCK, dtype=np.float64)).astype(dtype)
    return Lookup(on_device(coarse), None if fine is None else on_device(fine))


def _formulas(
    is_log: bool, a: Any, b: Any
) -> tuple[Callable[[Any, Any], Any], Callable[[Any, Any], Any]]:
    """Return the functions `whole` and `part` of `tabulate`, from `a` to `b`."""
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
    """The base class of axes between two ends; a search may propose any number."""

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
        self.lookup = tabulate(name, whole, part, first, last, self.num)

    @property
    def is_range(self) -> bool:
        return self.num > 1

    @property
    def known(self) -> Array | None:
        return self.lookup.coarse if self.lookup.fine is None else None

    def __len__(self) -> int:
        return self.num

    def value(self, i: Int[Array, ""], key: Key | None) -> Inexact[Array, "..."]:
        return look_up(
            self.lookup, i, self.num, jnp.multiply if self.is_log else jnp.add
        )

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


class Linspace(_Spaced):
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

    __init__ = _Spaced.__init__  # for type checkers, which would generate another


class Geomspace(_Spaced):
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

    __init__ = _Spaced.__init__
    is_log: ClassVar[bool] = True


class _Range(_Spaced):
    """The base class of axes that have no values of their own, but for searches."""

    def __init__(
        self,
        start: ArrayLike,
        stop: ArrayLike,
        *,
        dim: str | None = None,
        label: str | None = None,
        unit: str | None = None,
    ):
        # The table has two entries, the ends.
        _Spaced.__init__(self, start, stop, 2, dim=dim, label=label, unit=unit)

    @property
    def known(self) -> None:
        return None

    def __len__(self) -> int:
        return 1

    def value(self, i: Int[Array, ""], key: Key | None) -> Inexact[Array, "..."]:
        grid = "Geomspace" if self.is_log else "Linspace"
        raise value_error(
            type(self).__name__,
            "a range has no values of its own.",
            f"For a grid give `{grid}(start, stop, num)`, for random draws "
            "`Random(sampler, num)`; `explore`, `sobol` and `latin_hypercube` choose "
            "values from a range.",
        )


class Uniform(_Range):
    """All numbers from `start` to `stop`: a range for searches and designs.

    `explore`, `sobol`, `latin_hypercube`, `sensitivity_design` and `Space.from_unit`
    choose values from it. A range itself has no values, so a plain `sweep` over it
    raises a `ValueError`.

    **Arguments:**

    - `start`, `stop`: the ends: two finite numbers, or two arrays of the same shape for
      a straight line between them. Integers become floats.
    - `dim`, `label`, `unit`: as in `Linspace`. (Keyword only.)

    **Raises:** `ValueError` if an end is not finite; `TypeError` if it is not a real
    number.

    !!! example

        >>> import eqx_pipe as ep
        >>> space = ep.Space({"rate": ep.Uniform(0, 8)})
        >>> [p["rate"].item() for p in space.from_unit([[0.25], [1.0]])]
        [2.0, 8.0]
    """

    __init__ = _Range.__init__


class LogUniform(_Range):
    """All numbers from `start` to `stop`, evenly in the logarithm: see `Uniform`.

    **Arguments:**

    - `start`, `stop`: the ends: two finite numbers other than zero, of the same sign,
      or two arrays of the same shape.
    - `dim`, `label`, `unit`: as in `Linspace`. (Keyword only.)

    **Raises:** as `Geomspace`.

    !!! example

        >>> import eqx_pipe as ep
        >>> space = ep.Space({"rate": ep.LogUniform(0.01, 100)})
        >>> [p["rate"].item() for p in space.from_unit([[0.5], [1.0]])]
        [1.0, 100.0]
    """

    __init__ = _Range.__init__
    is_log: ClassVar[bool] = True
