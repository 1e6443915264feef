"""How a refilled loop is batched and differentiated.

A `vmap` adds to the points of the loop. Where they all take the same number of steps
there is nothing to refill, and it stays the loop of a single point, with a batch in its
carry. A derivative in forward mode is a loop with tangents in its carry, refilled like
any other; reverse mode would have to keep every step, and their number is not known.
"""

import itertools as it
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.interpreters import ad, batching
from jax.interpreters import partial_eval as pe

from .._errors import value_error
from .._jaxprs import axis_names, depends_on, trace
from .._tree import fill
from .loop import Loop, refill_p, refilled


def _batch(
    axis_data: Any, args: Sequence[Any], dims: Sequence[int | None], **params: Any
) -> tuple[list[Any], list[int | None]]:
    loop, name = Loop(**params), axis_data.name
    args = [
        x if dim is None else jnp.moveaxis(x, dim, 0)
        for x, dim in zip(args, dims, strict=True)
    ]
    batched = [dim is not None for dim in dims]
    options = {
        "axis_name": name,
        "axis_size": axis_data.size,
        "spmd_axis_name": axis_data.spmd_name,
    }
    if name in axis_names(loop.cond_jaxpr) | axis_names(loop.body_jaxpr):
        # Points look at each other, step by step.
        every = jax.vmap(
            lambda *args: loop.each_point(loop.of_point, args, loop.axes_of(args)),
            [0 if b else None for b in batched],
            **options,
        )
        out = every(*args)
        return out, [0] * len(out)
    depends = _carry_depends(loop, args, batched, name)
    read = [*batched[: loop.cond_nconsts], *depends]
    if depends_on(loop.cond_jaxpr, read, name)[0]:
        out = _with_axis(loop, args, batched, axis_data.size)
        return out, [0] * len(out)

    # All points end at the same step, so no lane would ever wait: the batch goes into
    # the carry, behind the axes of the points that the loop has already.
    every = jax.vmap(
        loop.of_point,
        [0 if b else None for b in batched],
        [0 if d else None for d in depends],
        **options,
    )
    axes = loop.axes_of(args)
    behind = [
        jnp.moveaxis(x, 0, sum(has)) if b else x
        for x, b, has in zip(args, batched, axes, strict=True)
    ]
    out = loop.each_point(lambda *args: refilled(every, *args), behind, axes)
    return out, [len(loop.sizes) if d else None for d in depends]


def _carry_depends(
    loop: Loop, args: Sequence[Any], batched: Sequence[bool], axis_name: Any
) -> list[bool]:
    """Return which carries differ between the points of a batch in the end."""
    of_one = [
        jax.typeof(x).update(shape=jnp.shape(x)[b + sum(has) :])
        for x, b, has in zip(args, batched, loop.axes_of(args), strict=True)
    ]
    return depends_on(trace(loop.of_point, *of_one), batched, axis_name)


def _with_axis(
    loop: Loop, args: Sequence[Any], batched: Sequence[bool], size: int
) -> list[Any]:
    """Run the loop with one more batch of points."""
    of_consts, of_init = loop.split(batched)
    consts, init = loop.split(args)
    carry = [
        x if b else jnp.broadcast_to(x, (size, *jnp.shape(x)))
        for x, b in zip(init, of_init, strict=True)
    ]
    pairs = zip(of_consts, loop.axes, strict=True)
    axes = tuple((b, *has) for b, has in pairs)
    return loop._replace(axes=axes, sizes=(size, *loop.sizes)).bind(*consts, *carry)


def _jvp(
    primals: Sequence[Any], tangents: Sequence[Any], **params: Any
) -> tuple[list[Any], list[Any]]:
    loop, num = Loop(**params), len(primals)
    moving = [
        type(t) is not ad.Zero and _has_slope(x)
        for x, t in zip(primals, tangents, strict=True)
    ]
    given_slopes = map(ad.instantiate_zeros, it.compress(tangents, moving))

    def of_point(*args: Any) -> list[Any]:
        values, slopes = args[:num], list(args[num:])
        outputs, moved = jax.jvp(
            lambda *given: loop.of_point(*fill(values, moving, given)),
            list(it.compress(values, moving)),
            slopes,
        )
        pairs = zip(outputs, moved, strict=True)
        return [*outputs, *(t for y, t in pairs if _has_slope(y))]

    # The tangent of a constant has the axes of that constant.
    axes = loop.axes_of(primals)
    results = loop.each_point(
        lambda *args: refilled(of_point, *args),
        [*primals, *given_slopes],
        [*axes, *it.compress(axes, moving)],
    )
    num_outputs = num - len(loop.axes)
    outputs, slopes = results[:num_outputs], iter(results[num_outputs:])
    return outputs, [
        next(slopes) if _has_slope(y) else ad.Zero(jax.typeof(y).to_tangent_aval())
        for y in outputs
    ]


def _has_slope(x: Any) -> bool:
    return jnp.issubdtype(jax.typeof(x).dtype, jnp.inexact)


def _partial_eval(*_: Any, **__: Any) -> Any:
    raise value_error(
        "refill",
        "it was differentiated in reverse mode (`jax.grad`, `jax.vjp`) or linearized, "
        "and how many steps there are to go back over is not known.",
        "Use forward mode (`jax.jvp`, `jax.jacfwd`), or a `jax.lax.scan` with a "
        "largest number of steps.",
    )


batching.fancy_primitive_batchers[refill_p] = _batch
ad.primitive_jvps[refill_p] = _jvp
pe.custom_partial_eval_rules[refill_p] = _partial_eval
