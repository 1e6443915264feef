"""How many floating-point operations a jaxpr asks for."""

import math
from typing import Any

import jax.numpy as jnp

from .jaxpr import open_jaxpr, sub_jaxprs

# They move numbers, and compute none.
_MOVES = frozenset(
    "broadcast_in_dim concatenate convert_element_type copy copy_p device_put "
    "dynamic_slice dynamic_update_slice expand_dims gather iota pad reshape rev "
    "select_n slice split squeeze stop_gradient transpose".split()
)


def num_flops(jaxpr: Any) -> int:
    """The floating-point operations of one run.

    A product of matrices or a convolution takes two for each multiplication and
    addition, any other function one for each number it gives, a reduction one for each
    it takes. A scan counts as often as it runs, of branches the most expensive, and a
    `while_loop`, which does not tell, once.
    """
    return sum(map(_of_equation, open_jaxpr(jaxpr)[0].eqns))


def _of_equation(eqn: Any) -> int:
    name, inner = eqn.primitive.name, [num_flops(j) for j in sub_jaxprs(eqn)]
    if inner:
        if "branches" in eqn.params:
            return max(inner)
        return sum(inner) * (eqn.params["length"] if name == "scan" else 1)
    out: Any = eqn.outvars[0].aval if eqn.outvars else None
    if name in _MOVES or not _is_inexact(out):
        return 0
    if name == "dot_general":
        (axes, _), _ = eqn.params["dimension_numbers"]
        shape = eqn.invars[0].aval.shape
        return 2 * math.prod(out.shape) * math.prod(shape[axis] for axis in axes)
    if name == "conv_general_dilated":
        kernel = eqn.invars[1].aval.shape
        outputs = kernel[eqn.params["dimension_numbers"].rhs_spec[0]]
        return 2 * math.prod(out.shape) * math.prod(kernel) // outputs
    if name.startswith("reduce_"):
        return math.prod(eqn.invars[0].aval.shape)
    return math.prod(out.shape)


def _is_inexact(aval: Any) -> bool:
    return hasattr(aval, "dtype") and jnp.issubdtype(aval.dtype, jnp.inexact)
