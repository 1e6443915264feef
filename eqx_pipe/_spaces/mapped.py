"""A function applied to the values of an axis, point by point."""

from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import Float, Shaped

from .._check import check_is
from .._errors import type_error
from .._tree import as_arrays
from .._types import Key, PyTree
from .axis import Axis, Position


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
