"""Operands for members without examples that chose a branch, under an outer `vmap`.

A branch runs over a batch for the examples that chose it; the other examples get the
operands of one of those. Under an outer `vmap` (an ensemble, each member with its own
batch) there may be members in which no example chose the branch. They get the operands
of a member in which some example did: all operands that differ between members, so that
together they belong to a choice that was made.

`masked_operand(mask, x)` is `x`. Under `vmap`, each member whose mask is all false gets
the `x` of a member whose mask is not. The tangent of a replaced operand is zero.
Operands that all members share are not copied.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_batching import custom_vmap
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jaxtyping import Array, Bool

from .._jaxprs import Entry, register
from .._tree import broadcast_mask

masked_operand_p = Primitive("eqx_pipe_masked_operand")


def masked_operand(
    mask: Bool[Array, "*batch"], x: Any, *, is_tangent: bool = False
) -> Any:
    """Return `x`, or another member's `x` where the mask is batched and all false.

    The other member's mask is not all false. A tangent becomes zero instead.
    """
    return masked_operand_p.bind(mask, x, is_tangent=is_tangent)


def _batch(args: Any, dims: Any, *, is_tangent: bool) -> Any:
    (mask, x), (mask_dim, x_dim) = args, dims
    if mask_dim is None or x_dim is None:
        return masked_operand(mask, x, is_tangent=is_tangent), x_dim
    mask, x = jnp.moveaxis(mask, mask_dim, 0), jnp.moveaxis(x, x_dim, 0)
    if mask.shape[0] == 0:
        return x, 0
    is_open = mask.any(tuple(range(1, mask.ndim)))
    other = jnp.zeros_like(x) if is_tangent else _of_one_open(is_open, x)
    x = lax.select(broadcast_mask(is_open, x), x, other)
    # Bound again, since an outer `vmap` may have members in which no mask is true.
    return masked_operand(is_open, x, is_tangent=is_tangent), 0


def _of_one_open(is_open: Any, x: Any) -> Any:
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        return x  # draws from any key are valid
    first = lax.dynamic_index_in_dim(x, jnp.argmax(is_open), keepdims=True)
    return jnp.broadcast_to(lax.stop_gradient(first), x.shape)


def _jvp(primals: Any, tangents: Any, *, is_tangent: bool) -> Any:
    (mask, x), (_, t) = primals, tangents
    zero = type(t) is ad.Zero
    y = masked_operand(mask, x, is_tangent=is_tangent)
    return y, t if zero else masked_operand(mask, t, is_tangent=True)


def _transpose(cotangent: Any, mask: Any, x: Any, *, is_tangent: bool) -> Any:
    if type(cotangent) is not ad.Zero:
        cotangent = masked_operand(mask, cotangent, is_tangent=True)
    return [None, cotangent]


def _identity(mask: Any, x: Any, *, is_tangent: bool) -> Any:
    return x


# The mask selects a lane, but the values come only from the operand.
register(masked_operand_p.name, Entry("operation", flow=lambda _, __, marks: marks[1:]))
masked_operand_p.def_impl(_identity)
masked_operand_p.def_abstract_eval(_identity)
mlir.register_lowering(
    masked_operand_p, mlir.lower_fun(_identity, multiple_results=False)
)
ad.primitive_jvps[masked_operand_p] = _jvp
ad.primitive_transposes[masked_operand_p] = _transpose
batching.primitive_batchers[masked_operand_p] = _batch


def lane_in(mask: Bool[Array, " batch"], operands: list[Any]) -> list[Any]:
    """Return the operands of one lane in the mask.

    Under `vmap`, each member gets its own lane, or that of another member if its mask
    is all false. Not differentiable.
    """
    return _lanes(_first_lane)(mask, operands)


def _first_lane(mask: Any, operands: list[Any]) -> list[Any]:
    lane = lax.argmax(mask, 0, jnp.int32)

    def pick(x: Any) -> Any:
        start = [lane, *[jnp.int32(0)] * (x.ndim - 1)]
        shape = (1, *x.shape[1:])
        # `argmax` is never negative; supporting negative indices would cost a
        # comparison and a select per operand.
        return lax.dynamic_slice(x, start, shape, allow_negative_indices=False)

    return [pick(x) for x in operands]


def _lanes(inner: Any) -> Any:
    """Return `inner` with a rule for one more level of `vmap`."""

    @custom_vmap
    def lanes(mask: Any, operands: list[Any]) -> list[Any]:
        return inner(mask, operands)

    @lanes.def_vmap
    def rule(axis_size: int, in_batched: Any, mask: Any, operands: list[Any]) -> Any:
        mask_batched, batched = in_batched
        in_axes = (0 if mask_batched else None, [0 if b else None for b in batched])

        def outer(mask: Any, operands: list[Any]) -> list[Any]:
            own = jax.vmap(inner, in_axes, axis_size=axis_size)(mask, operands)
            if not mask_batched or axis_size == 0:
                return own
            is_open = mask.reshape(axis_size, -1).any(1)
            first = jnp.argmax(is_open)
            spare = [lax.dynamic_index_in_dim(x, first) for x in own]
            return [
                lax.select(broadcast_mask(is_open, x), x, jnp.broadcast_to(s, x.shape))
                for x, s in zip(own, spare, strict=True)
            ]

        # Also with a rule for the next level: `vmap` would batch a plain `outer`
        # operation by operation.
        return _lanes(outer)(mask, operands), [True] * len(operands)

    return lanes
