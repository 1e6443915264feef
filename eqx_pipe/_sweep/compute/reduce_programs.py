"""The compiled part of a sweep that is reduced: states of blocks instead of values.

A block is a fixed run of points, a number of microbatches that depends on the number
of points and the batch size only. Each device computes whole blocks, each from the
state of no points, so that which device it was does not show. The states are merged
by a second program, block after block.
"""

import functools as ft
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Bool, Int32, UInt32

from ..._tree import as_data, is_key_array
from ..._types import Key
from ..._vmap import batch_of, filled
from .kernel import lanes, on_each, point_function, told, up_to
from .partition import COUNT, FIRST, LAST, SHIFT, Layout, Partition
from .rows import CHUNK_BYTES
from .trace import Traced
from .traced_reducers import TracedReducers

_BLOCKS = 256
_BLOCK_POINTS = 2**20
_CALL_POINTS = 2**30

# A quarter of `_BLOCKS`: between calls a bar moves, and Ctrl-C is heard.
# Any number near it will do.
MOST_BLOCKS = 64
"""The most blocks that a device computes in one call."""


def block_batches(size: int, batch_size: int) -> int:
    """Return the number of batches in a block: the same on any devices.

    A few hundred blocks are a fair share for every device; a block is never so long
    that a sweep could not stop soon.
    """
    batches = -(-size // batch_size)
    return max(1, min(batches // _BLOCKS, _BLOCK_POINTS // batch_size))


def call_blocks(size: int, block_points: int, num_devices: int, bytes_: int) -> int:
    """The most blocks that one call computes on each device."""
    needed = -(-size // (block_points * num_devices))
    room = CHUNK_BYTES // (max(1, bytes_) * num_devices)
    # Offsets within a call are 32-bit integers.
    fits = _CALL_POINTS // (block_points * num_devices)
    return max(1, min(needed, room, fits, MOST_BLOCKS))


def build_blocks(traced: Traced, reducing: TracedReducers, layout: Layout) -> Any:
    """The function that computes blocks, under `jax.jit`.

    It is called as `blocks(control, batches, arrays, constants, key, init,
    reducer_constants)`, where `batches` is how many make a block, and gives for each
    leaf of a state an array in which the states of device d are the d-th part.
    """
    batch, partition = layout.batch_size, blocks_to(len(layout.devices))

    def on_device(
        ctl: UInt32[Array, "1 control"],
        batches: UInt32[Array, ""],
        arrays: list[Array],
        constants: list[Array],
        key: Key | None,
        init: list[Array],
        reducer_constants: list[Array],
    ) -> list[Array]:
        at = point_function(traced.jaxpr, layout, ctl, arrays, constants, key)

        def lane(point_id: UInt32[Array, "..."]) -> list[Any]:
            # An output that is a constant comes out as a literal.
            return [
                jnp.asarray(out, None if kind is not None else leaf.dtype)
                for out, leaf, kind in zip(
                    at(point_id), traced.outputs, traced.key_kinds, strict=True
                )
            ]

        def block(turn: UInt32[Array, ""]) -> list[Array]:
            number = partition.begin(told(ctl, FIRST), told(ctl, SHIFT), turn)
            first = jax.lax.mul(number, batches)
            # The last block may have fewer microbatches.
            most = jax.lax.div(told(ctl, LAST), np.uint32(batch)) + np.uint32(1)

            def microbatch(step: UInt32[Array, ""], state: list[Array]) -> list[Array]:
                offsets = lanes(jax.lax.mul(step, np.uint32(batch)), batch)
                # A tail repeats the last point, and the reducers see which count.
                ok = jax.lax.le(offsets, jax.lax.broadcast(told(ctl, LAST), (batch,)))
                values = batch_of(lane, up_to(told(ctl, LAST), offsets))
                return reducing.absorb(reducer_constants, state, values, ok)

            end = jax.lax.min(first + batches, most)
            leaves = jax.lax.fori_loop(first, end, microbatch, init)
            return [jax.lax.expand_dims(leaf, [0]) for leaf in leaves]

        empty = [jax.lax.broadcast(leaf, (layout.capacity,)) for leaf in init]
        return filled(block, lambda: told(ctl, COUNT), empty, lambda turn: turn)

    return on_each(on_device, layout, 7)


def build_merge(reducing: TracedReducers) -> Any:
    """`merge(state, states, first, last, constants)`: the state after a stretch.

    The states of some blocks, `states[i]` for `first <= i < last`, are merged to
    `state` one after the other.
    """

    def merge(
        state: list[Array],
        states: list[Array],
        first: Int32[Array, ""],
        last: Int32[Array, ""],
        constants: list[Array],
    ) -> list[Array]:
        def one(i: Int32[Array, ""], state: list[Array]) -> list[Array]:
            later = [
                jax.lax.dynamic_index_in_dim(leaf, i, keepdims=False) for leaf in states
            ]
            return reducing.merge(constants, state, later)

        return jax.lax.fori_loop(first, last, one, state)

    return jax.jit(merge)


def build_absorb(reducing: TracedReducers, kinds: Sequence[Any]) -> Any:
    """`absorb(states, values, ok, live, constants)`: the states after a run of points.

    All have a leading axis over groups; only those that are `live` change. PRNG keys
    are raw data, of the `kinds` that the values have.
    """
    own = [jr.key_impl(leaf) if is_key_array(leaf) else None for leaf in reducing.init]

    def absorb(
        states: list[Array],
        values: list[Array],
        ok: Bool[Array, "groups run"],
        live: Bool[Array, " groups"],
        constants: list[Array],
    ) -> list[Array]:
        def one(
            state: list[Array],
            values: list[Array],
            ok: Bool[Array, " run"],
            live: Bool[Array, ""],
        ) -> list[Array]:
            before, outputs = wrapped(state, own), wrapped(values, kinds)
            after = map(as_data, reducing.absorb(constants, before, outputs, ok))
            pairs = zip(after, state, strict=True)
            return [jnp.where(live, new, old) for new, old in pairs]

        return jax.vmap(one)(states, values, ok, live)

    return jax.jit(absorb)


def wrapped(leaves: Sequence[Array], kinds: Sequence[Any]) -> list[Array]:
    """Raw data as PRNG keys where there is a kind of these."""
    return [
        leaf if kind is None else jr.wrap_key_data(leaf, impl=kind)
        for leaf, kind in zip(leaves, kinds, strict=True)
    ]


def blocks_to(num_devices: int) -> Partition:
    """Return which device gets which blocks, each as a batch of points."""
    return Partition(1, num_devices)


@ft.lru_cache(maxsize=64)
def block_rows(
    blocks: int, capacity: int, num_devices: int
) -> Int32[np.ndarray, " blocks"]:
    """Return the place of the state of each block among those of all devices."""
    turn, place = np.divmod(np.arange(blocks, dtype=np.int32), num_devices)
    rows = blocks_to(num_devices).place(place, turn) * capacity + turn
    # It is cached: a caller that wrote into it would change it for all.
    rows.flags.writeable = False
    return rows
