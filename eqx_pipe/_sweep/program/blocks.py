"""Reducers as jaxprs, and the compiled part of a reduced sweep.

Tracing reducers takes longer than a small sweep. The built-in reducers are determined
by their fields and the structure, shapes and dtypes of outputs, so they are traced once
for each. Reducers with user functions are traced for every sweep, since the behaviour
of a function may have changed.

A block is a fixed run of points, a number of microbatches that depends on the number of
points and the batch size only. Each device computes whole blocks, each from the state
of no points, so the states do not depend on the device. A second program merges the
states, block after block.
"""

import dataclasses
import functools as ft
from collections.abc import Hashable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Array, Bool, Int32, UInt32

from ..._jaxprs import Fingerprint, evaluate, fingerprint_of, key_of
from ..._reduce import AbstractReducer, Reducer, ReducerTree
from ..._run import REDUCERS, SMALL_BYTES
from ..._tree import as_data, as_keys, key_kind
from ..._vmap import batch_of
from ..trace.trace import Traced, detached, settings
from .layout import (
    CHUNK_BYTES,
    DIGITS,
    Arguments,
    Lane,
    LaneOf,
    Layout,
    Row,
    consecutive,
    lanes,
    point_lane,
    read,
)


@dataclasses.dataclass(frozen=True)
class Step:
    """A jaxpr whose constants are passed in."""

    jaxpr: Any

    @ft.cached_property
    def fingerprint(self) -> Fingerprint:
        """The fingerprint of the jaxpr, with its constants."""
        return fingerprint_of(self.jaxpr)

    def __call__(self, constants: Sequence[Any], *args: Any) -> list[Array]:
        return evaluate(self.jaxpr, constants, args)


@dataclasses.dataclass(frozen=True)
class TracedReducers:
    """The reducers of a sweep as jaxprs on the leaves of a state.

    `absorb` takes a state, the leaves of a batch of outputs, and the mask of those that
    count; `merge` takes two states. `init` is the state of no points; `structure` is
    the structure of a list with the state of each reducer.
    """

    absorb: Step
    merge: Step
    init: list[Array]
    structure: Any

    @property
    def state_bytes(self) -> int:
        """The size of a state in bytes."""
        return sum(leaf.nbytes for leaf in map(as_data, self.init))


def trace_reducers(
    reducers: ReducerTree, traced: Traced, batch_size: int
) -> TracedReducers:
    """Return the jaxprs of some reducers for batches of the outputs of a function."""
    place = _place(reducers, traced, batch_size)
    reducing = None if place is None else REDUCERS.get(place)
    if reducing is None:
        reducing = _trace(reducers, traced, batch_size)
        # The initial state is kept on devices.
        if place is not None and reducing.state_bytes <= SMALL_BYTES:
            REDUCERS.put(place, reducing)
    return reducing


def _place(reducers: ReducerTree, traced: Traced, batch_size: int) -> Hashable | None:
    """Return the key of a trace; `None` if it depends on user code."""
    ours = AbstractReducer.__module__.rpartition(".")[0]
    for reducer in reducers.reducers:
        is_ours = type(reducer).__module__.startswith(ours)
        if not is_ours or isinstance(reducer, Reducer) or callable(reducer.by):
            return None
    which = key_of((reducers.reducers, traced.structure))
    return which, *traced.outputs, batch_size, *settings().items()


def _trace(reducers: ReducerTree, traced: Traced, batch_size: int) -> TracedReducers:
    struct = jtu.tree_unflatten(traced.structure, traced.outputs)
    init, structure = jtu.tree_flatten(reducers.begin(struct))
    init = [_without_weak_type(leaf) for leaf in init]

    def absorb(
        state: list[Array], values: list[Array], ok: Bool[Array, " points"]
    ) -> list[Array]:
        state = jtu.tree_unflatten(structure, state)
        outputs = jtu.tree_unflatten(traced.structure, values)
        return jtu.tree_leaves(reducers.absorb(state, outputs, ok))

    def merge(first: list[Array], second: list[Array]) -> list[Array]:
        states = (jtu.tree_unflatten(structure, x) for x in (first, second))
        return jtu.tree_leaves(reducers.merge(*states))

    states = [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in init]
    values = [
        jax.ShapeDtypeStruct((batch_size, *leaf.shape), leaf.dtype)
        for leaf in traced.outputs
    ]
    ok = jax.ShapeDtypeStruct((batch_size,), bool)
    absorbing: Any = jax.make_jaxpr(absorb)(states, values, ok)
    merging: Any = jax.make_jaxpr(merge)(states, states)
    absorbing, merging = map(detached, (absorbing, merging))
    return TracedReducers(Step(absorbing), Step(merging), init, structure)


def _without_weak_type(leaf: Any) -> Array:
    leaf = jnp.asarray(leaf)
    if not getattr(leaf, "weak_type", False):  # keys have no such thing
        return leaf
    return jax.lax.convert_element_type(leaf, leaf.dtype)


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
