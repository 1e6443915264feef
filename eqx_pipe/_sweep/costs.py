"""What the points of a sweep cost, as the user says."""

from collections.abc import Callable
from typing import Any

import jax.tree_util as jtu
import numpy as np
from jaxtyping import Float

from .._errors import MissingKeyError, SweepError, describe_value, message
from .compute.failure import reason


def named(sweep: Callable[..., Any]) -> Callable[..., Any]:
    """A sweep over `order_by`, whose errors say that it is that function."""

    def of_costs(*args: Any, **keywords: Any) -> Any:
        try:
            return sweep(*args, **keywords)
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
    if callable(order_by):
        what, found = "gives", evaluate(order_by)
    else:
        what, found = "is", order_by
    if isinstance(found, list) and len(found) == size:
        found = np.asarray(found)
    form = describe_value(found)
    leaves = jtu.tree_leaves(found)
    if len(leaves) == 1 and hasattr(found, "shape"):
        given = np.asarray(leaves[0])
        form = f"{given.dtype}{list(given.shape)}"
        number = given.dtype.kind in "biuf" or str(given.dtype) == "bfloat16"
        if number and given.shape == (size,):
            return given.astype(np.float64)
    raise ValueError(
        message(
            "sweep",
            f"`order_by` {what} {form} for {size} points.",
            "Give a function from a point to one real number, or an array with one "
            "number for each point.",
        )
    )
