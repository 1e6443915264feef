"""What the points of a sweep cost, as the user says."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Float

from .._errors import MissingKeyError, SweepError, describe_value, message
from .._spaces.space import Space
from .compute.failure import reason
from .compute.parts import prepare
from .compute.progress import Progress


def named(call: Callable[..., Any]) -> Callable[..., Any]:
    """What calls `order_by`, with errors that say that it is that function."""

    def of_costs(*args: Any, **keywords: Any) -> Any:
        try:
            return call(*args, **keywords)
        except MissingKeyError as error:
            raise TypeError(
                message(
                    "sweep",
                    "`order_by` needs a PRNG key.",
                    "Give a function of the point alone: a cost is a guess, and draws "
                    "are made in `fn`.",
                )
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


def costs_of(
    order_by: Any, size: int, evaluate: Callable[[Any], Any]
) -> Float[np.ndarray, " points"]:
    """The cost of each point; `evaluate` gives the values of a function of a point."""
    found = evaluate(order_by) if callable(order_by) else order_by
    if isinstance(found, list) and len(found) == size:
        found = np.asarray(found)
    _check("gives" if callable(order_by) else "is", found, size)
    return np.asarray(found).astype(np.float64)


def costs_by_chunk(
    order_by: Any, space: Space, devices: tuple[Any, ...]
) -> Callable[[int], Callable[[int, int], Float[np.ndarray, " points"]]]:
    """What the points of one chunk cost, computed when it is that chunk's turn.

    Points are sorted within a chunk, so that nobody needs the costs of chunks that are
    finished or that another process computes. Given how many points a chunk has at
    most, this is a function of its first point and of the one behind its last.
    """
    if not callable(order_by):
        costs = costs_of(order_by, space.size, lambda cost: cost)
        return lambda most: lambda first, last: costs[first:last]
    job = named(prepare)(order_by, space, None, "auto", devices, False)
    outputs = [
        jax.ShapeDtypeStruct((space.size, *leaf.shape), leaf.dtype)
        for leaf in job.traced[0].outputs
    ]
    _check("gives", jtu.tree_unflatten(job.traced[0].structure, outputs), space.size)

    def within(most: int) -> Callable[[int, int], Float[np.ndarray, " points"]]:
        compute = named(dataclasses.replace(job, stretch=most).compute)

        def costs(first: int, last: int) -> Float[np.ndarray, " points"]:
            quiet = Progress(False, last - first)
            (found,), _ = compute(first, last, None, quiet, False)
            return found.astype(np.float64)

        return costs

    return within


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
    raise ValueError(
        message(
            "sweep",
            f"`order_by` {what} {form} for {size} points.",
            "Give a function from a point to one real number, or an array with one "
            "number for each point.",
        )
    )
