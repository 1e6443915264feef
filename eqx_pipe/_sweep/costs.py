"""What the points of a sweep cost, as the user says."""

import dataclasses
import functools as ft
from collections.abc import Callable
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
from .compute.job import Job, prepare
from .compute.progress import Progress
from .request import Request

CostsBySpan: TypeAlias = Callable[[int, int], Float[np.ndarray, " points"]]
"""What points cost, from one to the one behind the last."""


def _named(call: Callable[..., Any]) -> Callable[..., Any]:
    """What calls `order_by`, with errors that say that it is that function."""

    def of_costs(*args: Any, **keywords: Any) -> Any:
        try:
            return call(*args, **keywords)
        except MissingKeyError as error:
            raise type_error(
                "sweep",
                "`order_by` needs a PRNG key.",
                "Give a function of the point alone: a cost is a guess, and draws "
                "are made in `fn`.",
            ) from error
        except SweepError as error:
            i = next(iter(error.indices), None)
            raise SweepError(
                message(
                    "sweep",
                    f"`order_by` failed at point {i}: {reason(error.__cause__)}.",
                    f"Call `order_by(space.point({i}))` to see it; a guess of the cost "
                    "is needed for every point.",
                ),
                error.indices,
            ) from error
        except Exception as error:
            error.add_note("It was called for `order_by`.")
            raise

    return of_costs


def costs_of(request: Request) -> Callable[[int], CostsBySpan] | None:
    """What points cost, as a function of how many of them are asked for at most.

    They are computed chunk by chunk, since nobody needs the costs of chunks that are
    finished or that another process computes. Where values are reduced, which happens
    in order, costs change nothing.
    """
    order_by = request.order_by
    if order_by is None:
        return None
    size = request.space.size
    if not callable(order_by):
        listed = isinstance(order_by, list) and len(order_by) == size
        found = np.asarray(order_by) if listed else order_by
        _check("is", found, size)
        return ft.partial(_some, np.asarray(found).astype(np.float64))
    if request.reducers is not None or request.by_hand:
        return None
    job = _named(prepare)(order_by, request.space, None, "auto", request.devices, False)
    outputs = [
        jax.ShapeDtypeStruct((size, *leaf.shape), leaf.dtype)
        for leaf in job.traced[0].outputs
    ]
    _check("gives", jtu.tree_unflatten(job.traced[0].structure, outputs), size)
    return ft.partial(_computed, job)


def _some(costs: Float[np.ndarray, " all"], most: int) -> CostsBySpan:
    return lambda first, last: costs[first:last]


def _computed(job: Job, most: int) -> CostsBySpan:
    compute = _named(dataclasses.replace(job, stretch=most).compute)

    def costs(first: int, last: int) -> Float[np.ndarray, " points"]:
        (found,), _ = compute(first, last, None, Progress(False, last - first))
        return found.astype(np.float64)

    return costs


def _check(what: str, found: Any, size: int) -> None:
    """Raises a `ValueError` unless there is one real number for each point."""
    form = describe_value(found)
    if jtu.treedef_is_leaf(jtu.tree_structure(found)) and hasattr(found, "shape"):
        is_form = isinstance(found, jax.ShapeDtypeStruct)
        given = found if is_form else np.asarray(found)
        form = f"{given.dtype}{list(given.shape)}"
        kinds = (np.bool_, np.integer, np.floating)
        real = any(jnp.issubdtype(given.dtype, kind) for kind in kinds)
        if real and given.shape == (size,):
            return
    raise value_error(
        "sweep",
        f"`order_by` {what} {form} for {size} points.",
        "Give a function from a point to one real number, or an array with one "
        "number for each point.",
    )
