"""Axes that hold their values: numbers in one array, or any Python values."""

from collections.abc import Iterable, Mapping, Set
from typing import Any, ClassVar

import equinox as eqx
import jax
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Int, Shaped

from .._check import check_bool, check_unmasked
from .._errors import describe_value, type_error, value_error
from .._tree import Opaque, is_key_array, on_device
from .._types import Key
from .axis import Axis, Position, take
from .numbers import as_values, check_fits


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
            shown = [_number_text(x) for x in np.asarray(self.values[:6]).tolist()]
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


def _number_text(x: object) -> str:
    return f"{x:.6g}" if isinstance(x, float) else str(x)


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
