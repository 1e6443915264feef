"""The compiled part of a sweep: on every device, a loop of vectorised microbatches.

The host asks for `points` points from some start, and each device computes those that
falls to it. Both numbers are data: with a loop of fixed length XLA removes the loop
where there is one microbatch, and the same point rounds differently. So are the axes'
values and the arrays that the function closes over. No device waits for another: there
is no communication.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jax.sharding import AbstractMesh
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Int32, UInt32

from ..._jaxprs.evaluate import evaluate
from ..._jaxprs.table import TABLE, Entry
from ..._spaces.index import advance, point_key
from ..._tree import as_data
from ..._types import Key
from .partition import POINTS, Layout, everywhere, is_narrow


def build(jaxpr: Any, outputs: Sequence[jax.ShapeDtypeStruct], layout: Layout) -> Any:
    """The function to compile, under `jax.jit`.

    `outputs` are the output leaves as they are stored: a PRNG key cannot be written
    into a buffer, its data can. The function is called as
    `kernel(control, table, arrays, constants, key)`, and gives for each output leaf an
    array in which device d's points are the d-th block. `table` holds the points
    where they are listed.
    """
    batch = layout.batch_size

    def on_device(
        device: Int32[Array, ""],
        ctl: UInt32[Array, " control"],
        table: UInt32[Array, "rows columns"] | None,
        arrays: list[Array],
        constants: list[Array],
        key: Key | None,
    ) -> list[Array]:
        points = ctl[0].astype(jnp.int32)
        partition = layout.partition(points)
        at = point_function(jaxpr, layout, ctl, arrays, constants, key)

        def lane(point_id: UInt32[Array, "..."]) -> list[Array]:
            # An output that is a constant comes out as a literal.
            return [
                jnp.asarray(as_data(out), leaf.dtype)
                for out, leaf in zip(at(point_id), outputs, strict=True)
            ]

        def microbatch(step: Int32[Array, ""], filled: list[Array]) -> list[Array]:
            first = partition.start(device, step)
            if layout.listed and partition.stride == 1:
                assert table is not None  # a tail has the last row again
                chosen = jax.lax.dynamic_slice_in_dim(table, first, batch)
            else:
                offsets = first + partition.stride * jnp.arange(batch, dtype=jnp.int32)
                # A tail repeats the last point; the host cuts it off.
                offsets = jnp.minimum(offsets, points - 1).astype(jnp.uint32)
                chosen = point_ids(layout, table, offsets)
            return [
                jax.lax.dynamic_update_slice_in_dim(into, out, step * batch, 0)
                for into, out in zip(filled, side_by_side(lane, chosen), strict=True)
            ]

        empty = [
            jnp.zeros((layout.capacity * batch, *leaf.shape), leaf.dtype)
            for leaf in outputs
        ]
        trips = partition.count(device, points)
        return jax.lax.fori_loop(jnp.int32(0), trips, microbatch, empty)

    return on_each(on_device, layout)


def on_each(on_device: Callable[..., list[Array]], layout: Layout) -> Any:
    """A function that every device runs by itself, under `jax.jit`.

    `on_device` gets the device's number before the arguments, which are the same for
    all; what the devices give is put together in their order.
    """

    def points_of_device(*args: Any) -> list[Array]:
        device = jax.lax.axis_index(POINTS).astype(jnp.int32)
        return without_mesh(on_device)(device, *args)

    # `check_vma` rejects ordinary loops of the user's whose initial carry is constant.
    # Without it a wrong `out_specs` would go unnoticed: they are ours, and tested.
    placement = everywhere(layout)
    mapped = jax.shard_map(
        points_of_device,
        mesh=placement.mesh,
        in_specs=P(),
        out_specs=P(POINTS),
        check_vma=False,
    )
    return jax.jit(mapped, in_shardings=placement)


def by_device(out: Array) -> list[Array]:
    """What each device gave of an output of `on_each`, in the order of the devices."""
    # `.addressable_shards` works out places that are known here.
    return [out.addressable_data(k) for k in range(out.sharding.num_devices)]


def point_ids(
    layout: Layout,
    table: UInt32[Array, "rows columns"] | None,
    offsets: UInt32[Array, " batch"],
) -> UInt32[Array, "batch ..."]:
    """What tells points apart in a call: their offsets, or their rows if listed."""
    if not layout.listed:
        return offsets
    assert table is not None
    return table.at[offsets].get(mode="promise_in_bounds")


def side_by_side(
    lane: Callable[[UInt32[Array, "..."]], list[Any]],
    chosen: UInt32[Array, "batch ..."],
) -> list[Any]:
    """A function at each of some points, vectorised if there are several.

    Under `jax.vmap` both branches of a `cond` run, a loop runs its body for lanes that
    have finished, and a callback of nothing that differs runs once for all of them. A
    point by itself is computed as the function is written.
    """
    if len(chosen) > 1:
        return jax.vmap(lane)(chosen)
    return [out[None] for out in lane(chosen[0])]


def point_function(
    jaxpr: Any,
    layout: Layout,
    ctl: UInt32[Array, " control"],
    arrays: list[Array],
    constants: list[Array],
    key: Key | None,
) -> Callable[[UInt32[Array, "..."]], list[Any]]:
    """The output leaves as a function of one of the `point_ids` to points."""

    def at(point_id: UInt32[Array, "..."]) -> list[Any]:
        digits = [ctl[1 + k] for k in range(len(layout.lengths))]
        if layout.listed and is_narrow(layout):
            zeros = [jnp.uint32(0)] * len(layout.lengths)
            digits = advance(zeros, point_id[0], layout.lengths)
        elif layout.listed:
            digits = [point_id[k] for k in range(len(layout.lengths))]
        else:
            digits = advance(digits, point_id, layout.lengths)
        args = [*arrays, *(digit.astype(jnp.int32) for digit in digits)]
        if key is not None:
            args.append(point_key(key, [digits[k] for k in layout.key_dims]))
        return evaluate(jaxpr, constants, args)

    return at


# Inside `shard_map` the type of every array names the mesh. Libraries that note the
# types of a function when they trace it, and compare later, then see another type:
# lineax calls a vector of the right shape one that "does not match out_structure", and
# Equinox's `filter_closure_convert` refuses its own arguments. Nothing in a sweep looks
# beyond its device, so the mesh is taken out of the types, and functions run as under
# `vmap` alone.
#
# Its meaning is the identity. There is no public function that gives an array inside a
# `shard_map` the type that it has outside (`reshard` is for axes that are not manual).
_leave_p = Primitive("eqx_pipe_leave_mesh")
TABLE[_leave_p.name] = Entry("operation")
_leave_p.def_impl(lambda x: x)
_leave_p.def_abstract_eval(
    lambda x: ShapedArray(x.shape, x.dtype, weak_type=x.weak_type)
)
mlir.register_lowering(_leave_p, lambda _, x: [x])
ad.deflinear(_leave_p, lambda cotangent: [cotangent])
batching.defvectorized(_leave_p)


def without_mesh(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` of arrays, whose types inside of it do not name the mesh."""

    def run(*args: Any) -> Any:
        with jax.sharding.use_abstract_mesh(AbstractMesh((), ())):
            return function(*jtu.tree_map(_leave_p.bind, args))

    return run
