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
from jaxtyping import Array

from .._errors import value_error
from .._jaxprs import axis_names, depends_on, trace
from .._tree import fill
from .loop import Loop, Reads, refill_p, refilled


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
            lambda *args: loop.each_point(loop.of_point, args),
            [0 if b else None for b in batched],
            **options,
        )
        out = every(*args)
        return out, [0] * len(out)
    consts, entries, init = loop.split(args)
    of_consts, _, of_init = loop.split(batched)
    marks = [*of_consts, *of_init]
    depends = _carry_depends(loop, [*consts, *init], marks, name)
    if depends_on(loop.cond_jaxpr, [*of_consts[: loop.cond_nconsts], *depends], name)[
        0
    ]:
        out = _flattened(loop, args, batched, axis_data.size)
        if loop.size is not None:
            out = [x.reshape(axis_data.size, loop.size, *x.shape[1:]) for x in out]
        return out, [0] * len(out)

    # All points end at the same step, so no lane would ever wait: the batch goes into
    # the carry, behind the axis of the points that the loop has already.
    every = jax.vmap(
        loop.of_point,
        [0 if b else None for b in marks],
        [0 if d else None for d in depends],
        **options,
    )
    pointed = loop.pointed()
    behind = [
        jnp.moveaxis(x, 0, 1) if b and p else x
        for x, b, p in zip([*consts, *init], marks, pointed, strict=True)
    ]
    num = len(consts)
    out = loop.each_point(
        lambda *args: refilled(every, *args), [*behind[:num], *entries, *behind[num:]]
    )
    place = 0 if loop.size is None else 1
    return out, [place if d else None for d in depends]


def _carry_depends(
    loop: Loop, arrays: Sequence[Any], batched: Sequence[bool], axis_name: Any
) -> list[bool]:
    """Return which carries differ between the points of a batch in the end.

    `arrays` are the constants and the first carry.
    """
    of_one = [
        jax.typeof(x).update(shape=jnp.shape(x)[b + p :])
        for x, b, p in zip(arrays, batched, loop.pointed(), strict=True)
    ]
    return depends_on(trace(loop.of_point, *of_one), batched, axis_name)


def _flattened(
    loop: Loop, args: Sequence[Any], batched: Sequence[bool], outer: int
) -> list[Any]:
    """Run the loop of the points that it has, times those of one more batch."""
    consts, entries, init = loop.split(args)
    of_consts, _, of_init = loop.split(batched)
    each = zip(consts, loop.entry_of_each(entries), loop.reads, of_consts, strict=True)
    read = [_read(*one, outer, loop.size) for one in each]
    carry = [
        x if b else jnp.broadcast_to(x, (outer, *jnp.shape(x)))
        for x, b in zip(init, of_init, strict=True)
    ]
    if loop.size is not None:
        carry, outer = list(map(_joined, carry)), outer * loop.size
    whole = loop._replace(reads=tuple(how for _, _, how in read), size=outer)
    return whole.bind(
        *(x for x, _, _ in read),
        *(entry for _, entry, _ in read if entry is not None),
        *carry,
    )


def _read(
    x: Any, entry: Array | None, how: Reads, batched: bool, outer: int, size: int | None
) -> tuple[Any, Array | None, Reads]:
    """Return a constant, with the rows that the points of `outer` batches see of it."""
    if not batched and how == "shared":
        return x, None, how
    if batched and how == "own":
        return _joined(x), None, how
    if size is None:
        return x, None, "own"
    first = jnp.arange(outer, dtype=jnp.int32)[:, None]
    if how == "shared":
        return x, jnp.broadcast_to(first, (outer, size)).ravel(), "listed"
    own = jnp.arange(size, dtype=jnp.int32) if entry is None else entry
    rows = jnp.broadcast_to(own, (outer, size))
    if batched:  # the rows of each of the outer batches follow on one another
        x, rows = _joined(x), rows + first * x.shape[1]
    return x, rows.ravel(), "listed"


def _joined(x: Array) -> Array:
    return x.reshape(x.shape[0] * x.shape[1], *x.shape[2:])


def _jvp(
    primals: Sequence[Any], tangents: Sequence[Any], **params: Any
) -> tuple[list[Any], list[Any]]:
    loop = Loop(**params)
    consts, entries, init = loop.split(primals)
    moving = [
        type(t) is not ad.Zero and _has_slope(x)
        for x, t in zip(primals, tangents, strict=True)
    ]
    of_consts, _, of_init = loop.split(moving)
    const_slopes, _, init_slopes = loop.split(tangents)
    const_slopes = _instantiated(const_slopes, of_consts)
    init_slopes = _instantiated(init_slopes, of_init)
    # The tangent of a constant is read at the entries of that constant.
    rows = it.compress(loop.entry_of_each(entries), of_consts)
    more = [entry for entry in rows if entry is not None]
    wide = loop._replace(reads=(*loop.reads, *it.compress(loop.reads, of_consts)))

    def of_point(*args: Any) -> list[Any]:
        consts, carry = args[: len(wide.reads)], args[len(wide.reads) :]
        values = [*consts[: len(loop.reads)], *carry[: len(init)]]
        slopes = [*consts[len(loop.reads) :], *carry[len(init) :]]
        mask = [*of_consts, *of_init]
        outputs, moved = jax.jvp(
            lambda *given: loop.of_point(*fill(values, mask, given)),
            list(it.compress(values, mask)),
            slopes,
        )
        return [
            *outputs,
            *(t for y, t in zip(outputs, moved, strict=True) if _has_slope(y)),
        ]

    results = wide.each_point(
        lambda *args: refilled(of_point, *args),
        [*consts, *const_slopes, *entries, *more, *init, *init_slopes],
    )
    outputs, slopes = results[: len(init)], iter(results[len(init) :])
    return outputs, [
        next(slopes) if _has_slope(y) else ad.Zero(jax.typeof(y).to_tangent_aval())
        for y in outputs
    ]


def _has_slope(x: Any) -> bool:
    return jnp.issubdtype(jax.typeof(x).dtype, jnp.inexact)


def _instantiated(tangents: Sequence[Any], mask: Sequence[bool]) -> list[Any]:
    return list(map(ad.instantiate_zeros, it.compress(tangents, mask)))


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
