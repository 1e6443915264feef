"""`equinox.error_if` in a kernel: the number of the first error of each lane.

JAX raises by calling Python in a branch. A kernel cannot call Python: a lane that fails
notes the number of its error and ends its `while` loops. After the kernel, the error of
one of the lanes is raised in the usual way.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .._jaxprs import Equation, open_jaxpr

SITES = 1024
"""One more than the number of calls that may raise: an error has two numbers in one."""

Raisers = dict[Callable[..., Any], int]
"""The functions by which a function raises its errors, with their numbers from 1."""


def raiser_of(eqn: Equation) -> tuple[int, Equation] | None:
    """Return the branch of `equinox.error_if` that raises, and its call of Python."""
    if eqn.primitive.name != "cond" or len(eqn.params["branches"]) != 2:
        return None
    for which, branch in enumerate(eqn.params["branches"]):
        for call in open_jaxpr(branch)[0].eqns[:1]:
            is_call = call.primitive.name == "pure_callback"
            if is_call and function_of(call).__qualname__ == _RAISES:
                return which, call
    return None


_RAISES = "_error.<locals>.raises"
"""The name of the function by which Equinox raises."""


def function_of(call: Equation) -> Any:
    """Return the function of a call of Python."""
    return getattr(call.params["callback"], "callback_func", function_of)


def checked(raisers: Raisers, outputs: list[Any]) -> list[Any]:
    """Return the outputs of many lanes, or raise the error of one of them.

    If a lane can fail, its number is the last output.
    """
    if not raisers:
        return outputs
    *outputs, numbers = outputs
    structs = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in outputs]

    def raised(number: Any) -> None:
        index, site = divmod(int(number), SITES)
        [*raisers][site - 1](np.asarray(index))

    def failed(*_: Any) -> list[Any]:
        return jax.pure_callback(raised, structs, jnp.max(numbers))

    return lax.cond(jnp.any(numbers != 0), failed, lambda *x: list(x), *outputs)
