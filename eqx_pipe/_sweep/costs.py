"""The costs of points, by which they share batches: the option `order_by`."""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Float

from .._errors import describe_value, value_error
from .._run import Watch
from .request import Request
from .work.buffer import Asked, whole
from .work.point_rows import PointRows
from .work.prepare import prepare

CostsOf: TypeAlias = Callable[[int, int, int], Float[np.ndarray, " points"]]
"""The costs of the points in a half-open range, given the maximum length of ranges."""


def costs_of(request: Request) -> CostsOf | None:
    """Return the costs of points, or `None` if they have no effect.

    They are computed chunk by chunk, since finished chunks and those of other processes
    do not need them. They have no effect on reductions, which happen in order.
    """
    order_by, size = request.order_by, request.whole.size
    if not callable(order_by):
        is_list = isinstance(order_by, Sequence) and not isinstance(order_by, str)
        listed = np.asarray(order_by) if is_list else order_by
        _check_costs("is", listed, size)
        listed = np.asarray(listed).astype(np.float64)
        return lambda first, last, _: listed[first:last]
    if request.reducers is not None:
        return None
    name = "sweep: order_by"  # for messages
    points = prepare(
        order_by, request.space, None, "auto", request.devices, function=name
    )
    outputs = jtu.tree_map(
        lambda leaf: jax.ShapeDtypeStruct((size, *leaf.shape), leaf.dtype),
        points.outputs,
    )
    _check_costs("gives", outputs, size)

    def costs(first: int, last: int, most: int) -> Float[np.ndarray, " points"]:
        rows = PointRows(points.with_most(most))
        (values,), _ = whole(rows.compute(Asked(0, first, last), Watch()))
        return values.astype(np.float64)

    return costs


def _check_costs(verb: str, costs: Any, size: int) -> None:
    """Raise a `ValueError` unless there is one real number for each point."""
    text, shape = describe_value(costs), getattr(costs, "shape", None)
    if shape is not None:
        text = f"{costs.dtype}{list(shape)}"
        kinds = (np.bool_, np.integer, np.floating)
        if shape == (size,) and any(jnp.issubdtype(costs.dtype, x) for x in kinds):
            return
    raise value_error(
        "sweep",
        f"`order_by` {verb} {text} for {size} points.",
        "Give a function from a point to one real number, or a sequence with one "
        "number for each point.",
    )
