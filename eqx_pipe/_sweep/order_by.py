"""`order_by`: the costs of points, so that points of similar cost share a batch."""

import contextlib
import functools as ft
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Float

from .._errors import (
    MissingKeyError,
    SweepError,
    describe_value,
    message,
    type_error,
    value_error,
)
from .compute.failure import reason
from .compute.points import prepare
from .compute.rows import whole
from .compute.watch import Watch
from .request import Request

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
    with _for_order_by():
        points = prepare(order_by, request.space, None, "auto", request.devices)
    outputs = jtu.tree_map(
        lambda leaf: jax.ShapeDtypeStruct((size, *leaf.shape), leaf.dtype),
        points.outputs,
    )
    _check_costs("gives", outputs, size)
    sized = ft.cache(points.with_most)

    def costs(first: int, last: int, most: int) -> Float[np.ndarray, " points"]:
        with _for_order_by():
            (values,), _ = whole(sized(most).compute(range(first, last), None, Watch()))
        return values.astype(np.float64)

    return costs


@contextlib.contextmanager
def _for_order_by() -> Iterator[None]:
    """Make errors name `order_by` as the function that was called."""
    try:
        yield
    except MissingKeyError as error:
        raise type_error(
            "sweep",
            "`order_by` needs a PRNG key.",
            "Give a function of the point alone: a cost is a guess, and draws are made "
            "in `fn`.",
        ) from error
    except SweepError as error:
        i = next(iter(error.indices), None)
        raise SweepError(
            message(
                "sweep",
                f"`order_by` failed at point {i}: {reason(error.__cause__)}.",
                "It must return a cost for every point. Call "
                f"`order_by(space.point({i}))` to see the error.",
            ),
            error.indices,
        ) from error
    except Exception as error:
        error.add_note(
            "Here `fn` is `order_by`: a function from a point to one real number."
        )
        raise


def _check_costs(verb: str, found: Any, size: int) -> None:
    """Raise a `ValueError` unless there is one real number for each point."""
    text = describe_value(found)
    if jtu.treedef_is_leaf(jtu.tree_structure(found)) and hasattr(found, "shape"):
        text = f"{found.dtype}{list(found.shape)}"
        kinds = (np.bool_, np.integer, np.floating)
        real = any(jnp.issubdtype(found.dtype, kind) for kind in kinds)
        if real and found.shape == (size,):
            return
    raise value_error(
        "sweep",
        f"`order_by` {verb} {text} for {size} points.",
        "Give a function from a point to one real number, or a sequence with one "
        "number for each point.",
    )
