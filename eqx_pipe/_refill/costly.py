"""Which steps of a loop take long on single numbers."""

from .._choose.dependence import primitive_names
from .._types import ClosedJaxpr

COSTLY = frozenset(
    """
    acos acosh asin asinh atan atan2 atanh cbrt cos cosh digamma erf erf_inv erfc exp
    exp2 expm1 lgamma log log1p logistic pow sin sinh tan tanh
    """.split()
)
"""Functions that take longer than all that is usually around them."""


def is_costly(jaxpr: ClosedJaxpr) -> bool:
    """Whether one of them is in a jaxpr."""
    return any(name in COSTLY for name in primitive_names(jaxpr.jaxpr))
