"""A function applied to the values of an axis, point by point."""

from collections.abc import Callable
from typing import Any

from .._errors import describe_value, type_error
from .._tree import as_arrays
from .._types import Key, PyTree
from .axis import Axis, Named, NamedAxis, Position, is_axis


class Mapped(NamedAxis):
    """The values of another axis with a function applied to each.

    The function runs inside the compiled sweep, one value at a time: nothing is kept
    in memory. It may return a pytree.

    **Arguments:**

    - `fn`: a function of one value of `axis`. For an axis of arrays it is made of JAX
      operations; for `Static` it takes and gives any Python values.
    - `axis`: any axis, whose length and `dim` are kept; its label and unit are not,
      since the values are others.
    - `label`, `unit`: what pictures and xarray's attributes `long_name` and `units` say
      of the values. They change nothing else. (Keyword only.)

    **Raises:** `TypeError` if `fn` cannot be called or `axis` is no axis.

    **Laws:** value `i` is `fn` of value `i` of `axis`; mapping twice is mapping by the
    composite.

    !!! example

        >>> import eqx_pipe as ep
        >>> axis = ep.Mapped(lambda x: x**2, ep.Linspace(0, 3, 4))
        >>> [point.item() for point in ep.Space(axis)]
        [0.0, 1.0, 4.0, 9.0]
    """

    fn: Callable[[Any], PyTree]
    axis: Axis

    def __init__(
        self,
        fn: Callable[[Any], PyTree],
        axis: Axis,
        *,
        label: str | None = None,
        unit: str | None = None,
    ):
        if isinstance(fn, Axis) or not callable(fn):
            raise type_error(
                "Mapped",
                f"`fn` is {describe_value(fn)}, which cannot be called.",
                "The function comes first: `Mapped(jnp.exp, Linspace(0, 1, 5))`.",
            )
        if not is_axis(axis):
            raise type_error(
                "Mapped",
                f"`axis` is {describe_value(axis)}, which is no axis.",
                "Give a `Linspace`, `Values` or another axis.",
            )
        self.fn = fn
        self.axis = axis
        self.named: Named = Named("Mapped", label, unit)

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

    def __len__(self) -> int:
        return len(self.axis)

    def value(self, i: Position, key: Key | None) -> PyTree:
        try:
            value_at: Any = type(self.axis).value  # takes a position of either kind
            value = self.fn(value_at(self.axis, i, key))
            return value if self.is_static else as_arrays(value)
        except Exception as error:
            error.add_note("Raised by a `Mapped` axis.")
            raise

    def __repr__(self) -> str:
        name = getattr(self.fn, "__name__", type(self.fn).__name__)
        return f"Mapped({name}, {self.axis!r})"
