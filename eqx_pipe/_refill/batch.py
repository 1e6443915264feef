"""How a loop is batched: it takes note of the points, and stays one loop.

Where all points take the same number of steps there is nothing to refill, and it stays
the loop of a single point, with a batch in its carry.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.interpreters import batching

from .._choose.dependence import depends_on
from .._jaxprs.jaxpr import as_function, axis_names
from .._types import ClosedJaxpr
from .loop import Spread, loop, refill_p, run_alone


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
    axis_data: Any,
    args: Any,
    dims: Any,
    *,
    cond: ClosedJaxpr,
    body: ClosedJaxpr,
    num_consts: int,
    size: int | None,
    spread: tuple[Spread, ...],
) -> tuple[list[Any], list[int | None]]:
    args = [
        x if dim is None or dim == 0 else jnp.moveaxis(x, dim, 0)
        for x, dim in zip(args, dims, strict=True)
    ]
    batched = [dim is not None for dim in dims]
    consts, init = args[:num_consts], args[num_consts:]
    named = axis_data.name in axis_names(cond) | axis_names(body)
    if named:  # points look at each other, step by step
        return _plain(axis_data, args, batched, cond, body, num_consts, size, spread)
    own = batched[:num_consts]
    moving = carry_depends(body, own, batched[num_consts:], axis_data.name)
    if not depends_on(cond, [*own, *moving], axis_data.name)[0]:
        marks = (*own, *moving)
        return _in_step(
            axis_data, consts, init, batched, marks, cond, body, size, spread
        )
    init = [
        _flat(x if b else _repeated(x, axis_data.size), size)
        for x, b in zip(init, batched[num_consts:], strict=True)
    ]
    placed = [
        _placed(x, b, size, s, axis_data.size)
        for x, b, s in zip(consts, batched[:num_consts], spread, strict=True)
    ]
    inner = 1 if size is None else size
    out = refill_p.bind(
        *(x for x, _ in placed),
        *init,
        cond=cond,
        body=body,
        num_consts=num_consts,
        size=axis_data.size * inner,
        spread=tuple(s for _, s in placed),
    )
    if size is not None:
        out = [x.reshape(axis_data.size, size, *x.shape[1:]) for x in out]
    return out, [0] * len(out)


def _repeated(x: Any, size: int) -> Any:
    return jnp.broadcast_to(x, (size, *jnp.shape(x)))


def _flat(x: Any, size: int | None) -> Any:
    return x if size is None else x.reshape(x.shape[0] * size, *x.shape[2:])


def _placed(
    x: Any, batched: bool, size: int | None, spread: Spread, outer: int
) -> tuple[Any, Spread]:
    """A constant with one more batch of `outer` round the `size` points there are."""
    if not batched:
        return x, spread
    inner = 1 if size is None else size
    if spread is None:
        return x, (inner, outer)
    divisor, modulus = spread
    if (divisor, modulus) != (1, inner):
        x = x[:, jnp.arange(inner) // divisor % modulus]
    return _flat(x, inner), (1, outer * inner)


def _in_step(
    axis_data: Any,
    consts: Sequence[Any],
    init: Sequence[Any],
    batched: Sequence[bool],
    moving: Sequence[bool],
    cond: ClosedJaxpr,
    body: ClosedJaxpr,
    size: int | None,
    spread: Sequence[Spread],
) -> tuple[list[Any], list[int | None]]:
    """The loop where what this batch holds does not tell how many steps there are."""
    pointed = [s is not None for s in spread] + [size is not None] * len(init)
    args = []
    for x, b, m, p in zip((*consts, *init), batched, moving, pointed, strict=True):
        x = x if b or not m else _repeated(x, axis_data.size)
        # The points' own axis, if there is one, stays in front.
        args.append(jnp.moveaxis(x, 0, 1) if m and p else x)
    dims: list[int | None] = [0 if m else None for m in moving]

    def over(jaxpr: ClosedJaxpr, out_axes: list[int | None]) -> Any:
        return jax.vmap(
            as_function(jaxpr),
            in_axes=dims,
            out_axes=out_axes,
            axis_name=axis_data.name,
            axis_size=axis_data.size,
            spmd_axis_name=axis_data.spmd_name,
        )

    num, out_dims = len(consts), dims[len(consts) :]
    functions = over(cond, [None]), over(body, out_dims)
    out = loop(*functions, args[:num], args[num:], size, spread)
    if size is not None:
        out_dims = [None if dim is None else 1 for dim in out_dims]
    return out, out_dims


def _plain(
    axis_data: Any,
    args: Sequence[Any],
    batched: Sequence[bool],
    cond: ClosedJaxpr,
    body: ClosedJaxpr,
    num_consts: int,
    size: int | None,
    spread: Sequence[Spread],
) -> tuple[list[Any], list[int | None]]:
    """The loop as `lax.while_loop` under `vmap`."""

    def one(*args: Any) -> list[Any]:
        return run_alone(cond, body, args[:num_consts], args[num_consts:])

    def all_points(*args: Any) -> list[Any]:
        if size is None:
            return one(*args)
        point = jnp.arange(size)
        consts = [
            x if s is None else x[point // s[0] % s[1]]
            for x, s in zip(args[:num_consts], spread, strict=True)
        ]
        in_axes = [None if s is None else 0 for s in spread]
        in_axes += [0] * (len(args) - num_consts)
        return jax.vmap(one, in_axes)(*consts, *args[num_consts:])

    out = jax.vmap(
        all_points,
        in_axes=[0 if b else None for b in batched],
        axis_name=axis_data.name,
        axis_size=axis_data.size,
        spmd_axis_name=axis_data.spmd_name,
    )(*args)
    return out, [0] * len(out)


batching.fancy_primitive_batchers[refill_p] = _batch
