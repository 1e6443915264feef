"""How a loop is batched: it takes note of the points, and stays one loop.

Where all points take the same number of steps there is nothing to refill, and it stays
the loop of a single point, with a batch in its carry.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.interpreters import batching
from jaxtyping import Array

from .._jaxprs import as_function, axis_names, depends_on
from .._types import ClosedJaxpr
from .lanes import Tiling, entry_of
from .loop import LoopParams, loop, refill_p, run_alone


def carry_depends(
    body: ClosedJaxpr,
    consts: Sequence[bool],
    carry: Sequence[bool],
    axis_name: Any = None,
) -> list[bool]:
    """Which carries come to depend on the marked constants and initial carries."""
    marks = list(carry)
    while True:
        found = depends_on(body, [*consts, *marks], axis_name)
        joined = [m or f for m, f in zip(marks, found, strict=True)]
        if joined == marks:
            return marks
        marks = joined


def _batch(
    axis_data: Any, args: Sequence[Any], dims: Sequence[int | None], **params: Any
) -> tuple[list[Any], list[int | None]]:
    p = LoopParams(**params)
    args = [
        x if dim is None or dim == 0 else jnp.moveaxis(x, dim, 0)
        for x, dim in zip(args, dims, strict=True)
    ]
    batched = [dim is not None for dim in dims]
    if axis_data.name in axis_names(p.cond) | axis_names(p.body):
        # Points look at each other, step by step.
        return _plain(axis_data, p, args, batched)
    own, carried = p.split(batched)
    marks = own + carry_depends(p.body, own, carried, axis_data.name)
    # All points end at the same step, so no lane would ever wait.
    if not depends_on(p.cond, marks, axis_data.name)[0]:
        return _in_step(axis_data, p, args, batched, marks)
    consts, init = p.split(args)
    tiled = [
        _tiled(x, b, p.size, t, axis_data.size)
        for x, b, t in zip(consts, own, p.tilings, strict=True)
    ]
    init = [
        _flat(x if b else _repeated(x, axis_data.size), p.size)
        for x, b in zip(init, carried, strict=True)
    ]
    size = axis_data.size * (1 if p.size is None else p.size)
    whole = p._replace(size=size, tilings=tuple(t for _, t in tiled))
    out = whole.bind(*(x for x, _ in tiled), *init)
    if p.size is not None:
        out = [x.reshape(axis_data.size, p.size, *x.shape[1:]) for x in out]
    return out, [0] * len(out)


def _repeated(x: Any, size: int) -> Array:
    return jnp.broadcast_to(x, (size, *jnp.shape(x)))


def _flat(x: Array, size: int | None) -> Array:
    return x if size is None else x.reshape(x.shape[0] * size, *x.shape[2:])


def _tiled(
    x: Any, batched: bool, size: int | None, tiling: Tiling, outer: int
) -> tuple[Any, Tiling]:
    """A constant with one more batch of `outer` round the `size` points there are."""
    if not batched:
        return x, tiling
    inner = 1 if size is None else size
    if tiling is None:
        return x, (inner, outer)
    if tiling != (1, inner):
        # Two tilings do not compose into one of two numbers: here the copy is made.
        x = x[:, entry_of(jnp.arange(inner, dtype=jnp.int32), tiling)]
    return _flat(x, inner), (1, outer * inner)


def _vmap_options(axis_data: Any) -> dict[str, Any]:
    return {
        "axis_name": axis_data.name,
        "axis_size": axis_data.size,
        "spmd_axis_name": axis_data.spmd_name,
    }


def _in_step(
    axis_data: Any,
    p: LoopParams,
    args: Sequence[Any],
    batched: Sequence[bool],
    marks: Sequence[bool],
) -> tuple[list[Any], list[int | None]]:
    """The loop where what this batch holds does not tell how many steps there are."""
    num_carry = len(args) - p.num_consts
    pointed = [t is not None for t in p.tilings] + [p.size is not None] * num_carry
    given = []
    for x, b, m, own in zip(args, batched, marks, pointed, strict=True):
        x = x if b or not m else _repeated(x, axis_data.size)
        # The points' own axis, if there is one, stays in front.
        given.append(jnp.moveaxis(x, 0, 1) if m and own else x)
    dims: list[int | None] = [0 if m else None for m in marks]
    out_dims, options = p.split(dims)[1], _vmap_options(axis_data)
    test = jax.vmap(as_function(p.cond), dims, [None], **options)
    step = jax.vmap(as_function(p.body), dims, out_dims, **options)
    out = loop(test, step, *p.split(given), p.size, p.tilings)
    if p.size is not None:
        out_dims = [None if dim is None else 1 for dim in out_dims]
    return out, out_dims


def _plain(
    axis_data: Any, p: LoopParams, args: Sequence[Any], batched: Sequence[bool]
) -> tuple[list[Any], list[int | None]]:
    """The loop as `lax.while_loop` under `vmap`."""

    def one(*args: Any) -> list[Any]:
        return run_alone(p.cond, p.body, *p.split(args))

    def all_points(*args: Any) -> list[Any]:
        if p.size is None:
            return one(*args)
        point = jnp.arange(p.size, dtype=jnp.int32)
        consts, init = p.split(args)
        consts = [
            x if t is None else x[entry_of(point, t)]
            for x, t in zip(consts, p.tilings, strict=True)
        ]
        in_axes = [None if t is None else 0 for t in p.tilings] + [0] * len(init)
        return jax.vmap(one, in_axes)(*consts, *init)

    in_axes = [0 if b else None for b in batched]
    out = jax.vmap(all_points, in_axes, **_vmap_options(axis_data))(*args)
    return out, [0] * len(out)


batching.fancy_primitive_batchers[refill_p] = _batch
