"""The program of a reduced sweep, whose rows are blocks of points.

A block is a fixed run of points, a number of microbatches that depends on the number of
points and the batch size only. Each device computes whole blocks, each from the state
of no points, so the states do not depend on the device. A second program merges the
states, block after block.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int32, UInt32

from ..._tree import as_data, as_keys, key_kind
from ..._vmap import batch_of
from ..trace.reducers import TracedReducers
from ..trace.trace import Traced
from .layout import CHUNK_BYTES, DIGITS, Arguments, Layout
from .whole import Lane, LaneOf, Row, consecutive, lanes, point_lane, read

_BLOCKS = 256
_BLOCK_POINTS = 2**20
_CALL_POINTS = 2**30

# A quarter of `_BLOCKS`: between calls the bar is updated and Ctrl-C is checked. The
# exact number does not matter.
MOST_BLOCKS = 64
"""The maximum number of blocks that a device computes in one call."""


def block_batches(size: int, batch_size: int) -> int:
    """Return the number of batches in a block, which is the same for any devices.

    A few hundred blocks can be divided evenly over devices, and a block is short enough
    for a sweep to stop soon.
    """
    batches = -(-size // batch_size)
    return max(1, min(batches // _BLOCKS, _BLOCK_POINTS // batch_size))


def call_blocks(size: int, block_points: int, num_devices: int, bytes_: int) -> int:
    """Return the maximum number of blocks that one call computes on each device."""
    needed = -(-size // (block_points * num_devices))
    room = CHUNK_BYTES // (max(1, bytes_) * num_devices)
    # Offsets within a call are 32-bit integers.
    fits = _CALL_POINTS // (block_points * num_devices)
    return max(1, min(needed, room, fits, MOST_BLOCKS))


def block_lane(traced: Traced, reducing: TracedReducers, layout: Layout) -> LaneOf:
    """Return the function that makes the lane of a block, which returns its state."""
    batch, lane_of = layout.points_at_once, point_lane(traced.jaxpr, layout)
    last_column = DIGITS + len(layout.lengths)

    def block_of(control: UInt32[Array, "1 control"], args: Arguments) -> Lane:
        at = lane_of(control, args)

        def lane(row: Row) -> list[Any]:
            # A constant output is a literal.
            return [
                out if key_kind(leaf) else jnp.asarray(out, leaf.dtype)
                for out, leaf in zip(at(row), traced.outputs, strict=True)
            ]

        def block(row: Row) -> list[Array]:
            number, _ = row
            last, batches = read(control, last_column), read(control, last_column + 1)
            first = jax.lax.mul(number, batches)
            # The last block may have fewer microbatches.
            most = jax.lax.div(last, np.uint32(batch)) + np.uint32(1)

            def microbatch(step: UInt32[Array, ""], state: list[Array]) -> list[Array]:
                last = read(control, last_column)
                begin = jax.lax.mul(step, np.uint32(batch))
                offsets = lanes(begin, batch)
                # Padding repeats the last point, and `ok` excludes it.
                ok = jax.lax.le(offsets, jax.lax.broadcast(last, (batch,)))
                rows = consecutive(layout, control, begin, last, offsets, args)
                values = batch_of(lane, rows)
                return reducing.absorb(args.reducer_constants, *state, *values, ok)

            end = jax.lax.min(first + batches, most)
            return jax.lax.fori_loop(first, end, microbatch, list(args.init))

        return block

    return block_of


def build_merge(reducing: TracedReducers) -> Any:
    """Return `merge(state, states, count, constants)`: the state after some blocks.

    The states of the first `count` blocks are merged into `state` in order.
    """

    def merge(
        state: list[Array],
        states: list[Array],
        count: Int32[Array, ""],
        constants: list[Array],
    ) -> list[Array]:
        def one(i: Int32[Array, ""], state: list[Array]) -> list[Array]:
            later = [
                jax.lax.dynamic_index_in_dim(leaf, i, keepdims=False) for leaf in states
            ]
            return reducing.merge(constants, *state, *later)

        return jax.lax.fori_loop(0, count, one, state)

    return jax.jit(merge)


def filled_up(
    rows: Sequence[np.ndarray], init: Sequence[Array], most: int
) -> list[np.ndarray]:
    """Return rows of states, padded to `most` rows, in the dtypes of `init`."""
    full = []
    for leaf, like in zip(rows, init, strict=True):
        # A store may have a wider dtype, since files do not support bfloat16.
        dtype = leaf.dtype if key_kind(like) else like.dtype
        full.append(np.zeros((most, *leaf.shape[1:]), dtype))
        full[-1][: len(leaf)] = leaf
    return full


def build_absorb(reducing: TracedReducers) -> Any:
    """Return `absorb(states, values, ok, live, constants)`: the states after points.

    All have a leading axis over groups; only `live` groups change. PRNG keys are raw
    data.
    """
    *likes, _ = reducing.absorb.jaxpr.in_avals

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
            leaves = map(as_keys, [*state, *values], likes)
            after = map(as_data, reducing.absorb(constants, *leaves, ok))
            pairs = zip(after, state, strict=True)
            return [jnp.where(live, new, old) for new, old in pairs]

        return jax.vmap(one)(states, values, ok, live)

    return jax.jit(absorb)
