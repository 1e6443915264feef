"""An axis of Python values, which a compiled program cannot hold as data."""

from collections.abc import Iterable
from typing import Any

import equinox as eqx
import jax.tree_util as jtu
import numpy as np
from jax.core import Tracer

from .._errors import describe_value, type_error, value_error
from .._tree import Opaque, as_hashable, static_text
from .._types import Key
from .axis import (
    HasAxes,
    Named,
    NamedAxis,
    Position,
    check_dim,
    check_length,
    dim_text,
    is_axis,
)


class Static(NamedAxis):
    """Any Python values: widths of layers, activation functions, solvers, models.

    The function sees the very values given, not arrays. So a sweep compiles a program
    for every combination of static values by itself, and `point(i)` needs an index
    that is not traced.

    **Arguments:**

    - `values`: a sequence of at least one value. JAX does not look into them.
    - `dim`: the dimension's name; axes with the same `dim` vary together. By default
      the axis's path in the space. (Keyword only.)
    - `label`, `unit`: what pictures and xarray's attributes `long_name` and `units` say
      of the values. They change nothing else. (Keyword only.)

    **Raises:** `ValueError` if there are no values; `TypeError` if `values` cannot be
    iterated over, or is a string, or if there is an axis among them.

    !!! example

        >>> import eqx_pipe as ep, jax.numpy as jnp
        >>> space = {"f": ep.Static([jnp.sin, jnp.cos]), "n": ep.Static([1, 2, 3])}
        >>> result = ep.sweep(lambda p: p["f"](jnp.zeros(p["n"])).sum(), space)
        >>> result.grid().tolist()
        [[0.0, 0.0, 0.0], [1.0, 2.0, 3.0]]
    """

    choices: Opaque = eqx.field(static=True)
    dim: str | None = eqx.field(static=True)

    def __init__(
        self,
        values: Iterable[object],
        *,
        dim: str | None = None,
        label: str | None = None,
        unit: str | None = None,
    ):
        self.dim = check_dim("Static", dim)
        self.named: Named = Named("Static", label, unit)
        if isinstance(values, str | bytes) or not isinstance(values, Iterable):
            raise type_error(
                "Static",
                f"`values` is {describe_value(values)}.",
                "Give a list of the values, also if there is only one.",
            )
        values = tuple(values)
        if not values:
            wrong = "`values` is empty."
            raise value_error("Static", wrong, "Give at least one value.")
        check_length("Static", len(values))
        for i, value in enumerate(values):
            _check_no_axis(i, value)
        self.choices = Opaque(values)

    @property
    def is_static(self) -> bool:
        return True

    def __len__(self) -> int:
        return len(self.choices.values)

    def value(self, i: Position, key: Key | None) -> Any:
        if isinstance(i, Tracer):
            raise type_error(
                "Space",
                "the index is traced, and the space has `Static` axes.",
                "Their values are Python values, which a compiled program cannot "
                "choose from. Use a plain integer, or `sweep` and `vmap_space`.",
            )
        return self.choices.values[int(i)]

    def __repr__(self) -> str:
        return f"Static({self.choices!r}{dim_text(self.dim)})"


def _check_no_axis(i: int, value: object) -> None:
    if isinstance(value, HasAxes):  # for a function that sweeps over it by itself
        return
    try:
        leaves = jtu.tree_leaves(value, is_leaf=is_axis)
    except (TypeError, ValueError):  # a dict whose keys cannot be sorted
        return
    axes = [leaf for leaf in leaves if is_axis(leaf)]
    if axes:
        where = "is" if value is axes[0] else "holds"
        raise type_error(
            "Static",
            f"`values[{i}]` {where} an axis, {axes[0]!r}, and the function would "
            "get that axis instead of its values.",
            "Put the axis in the space itself, beside the `Static` one; where only "
            "some of the static values go with it, sweep over these by themselves.",
        )


def static_column(values: list[Any]) -> np.ndarray:
    """Static values as a column: numbers if all are, otherwise different texts."""
    if all(isinstance(v, bool | np.bool_) for v in values):
        return np.array(values, bool)
    numbers = (int, float, np.integer, np.floating)
    if all(isinstance(v, numbers) and not isinstance(v, bool) for v in values):
        column = np.array(values)
        if column.dtype.kind in "iuf":
            return column
    texts = [static_text(v) for v in values]
    owners: dict[str, set[Any]] = {}
    for text, value in zip(texts, values, strict=True):
        owners.setdefault(text, set()).add(as_hashable(value))
    shared = {text for text, who in owners.items() if len(who) > 1}
    return np.array(
        [f"{t} ({i})" if t in shared else t for i, t in enumerate(texts)], np.str_
    )
