"""Which steps of a loop take long on single numbers."""

from typing import Any

import jax.numpy as jnp

from .._choose.dependence import equations
from .._types import ClosedJaxpr

_ONE_BY_ONE = frozenset(
    """
    acos acosh asin asinh atan atan2 atanh cbrt cos digamma erf_inv lgamma pow sin sinh
    tan
    """.split()
)


def is_costly(eqn: Any) -> bool:
    """Whether a function takes longer than all that is usually around it.

    XLA computes some functions one number at a time on CPUs, as measured in batches of
    8 to 1,024 on JAX 0.10 and 0.12; others, like `exp`, `tanh` and `log`, many at once.
    """
    name = eqn.primitive.name
    if name == "rem":
        return jnp.issubdtype(eqn.outvars[0].aval.dtype, jnp.inexact)
    return name in _ONE_BY_ONE


def has_costly(jaxpr: ClosedJaxpr) -> bool:
    """Whether such a function is in a jaxpr."""
    return any(map(is_costly, equations(jaxpr.jaxpr)))
