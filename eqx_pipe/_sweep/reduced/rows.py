"""The states of blocks as rows of plain arrays, for stores and for workers.

A row has the leaves of a block's state and, as bits, which of its points failed.
"""

from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Bool

from ..._tree import is_key_array, leaves_with_names
from ..compute.progress import Progress
from .kernel import build_gap
from .states import Blocks, Piece


class BlockRows:
    """Blocks that are computed to rows, and pieces made from rows."""

    def __init__(self, blocks: Blocks):
        self.blocks = blocks
        self._bytes = -(-blocks.points // 8)
        self._gap: list[Any] | None = None

    @property
    def row_bytes(self) -> int:
        """The size of a row."""
        return self.blocks.reducing.state_bytes + self._bytes

    @property
    def variables(self) -> list[tuple[str, jax.ShapeDtypeStruct]]:
        """The name, shape and dtype of each leaf of a row."""
        reducing, reducers = self.blocks.reducing, self.blocks.reducers
        state = jtu.tree_unflatten(reducing.structure, reducing.init)
        state = jtu.tree_unflatten(reducers.structure, state)
        names = [
            f"state.{name}" if name else "state" for name, _ in leaves_with_names(state)
        ]
        found = [
            (name, jax.eval_shape(_raw, leaf))
            for name, leaf in zip(names, reducing.init, strict=True)
        ]
        return [*found, ("failed", jax.ShapeDtypeStruct((self._bytes,), jnp.uint8))]

    @property
    def row(self) -> list[jax.ShapeDtypeStruct]:
        """The shape and dtype of each leaf of a row."""
        return [form for _, form in self.variables]

    def compute(
        self, first: int, last: int, costs: Any, bar: Progress, isolated: bool
    ) -> tuple[list[np.ndarray], Bool[np.ndarray, " blocks"]]:
        """The rows of some blocks, and in which of them no point failed."""
        rows: list[list[np.ndarray]] = []
        failed: list[np.ndarray] = []
        while first < last:
            count = min(last - first, self.blocks.most)
            for piece in self.blocks.compute(first, count, bar, isolated):
                rows.append(
                    [
                        np.asarray(_raw(leaf))[piece.rows[: piece.count]]
                        for leaf in piece.states
                    ]
                )
                failed.append(self._bits(piece))
            first += count
        leaves = [np.concatenate(parts) for parts in zip(*rows, strict=True)]
        bits = np.concatenate(failed)
        return [*leaves, bits], np.asarray(~bits.any(axis=1))

    def count(self, first: int, last: int) -> int:
        """How many points some blocks have."""
        start, stop = self.blocks.span(first, last - first)
        return stop - start

    def failures(self, values: list[np.ndarray], ok: Any) -> int:
        """How many points have failed in some rows."""
        return int(np.unpackbits(values[-1]).sum())

    def piece(self, first: int, values: list[np.ndarray], most: int) -> Piece:
        """The states in some rows, filled up to `most` so that one program will do."""
        count = len(values[-1])
        bits = np.unpackbits(values[-1], axis=1)[:, : self.blocks.points]
        failed = first * self.blocks.points + np.flatnonzero(bits)
        states = []
        for leaf, init in zip(values[:-1], self.blocks.reducing.init, strict=True):
            struct = jax.eval_shape(_raw, init)
            full = np.zeros((most, *struct.shape), struct.dtype)
            full[:count] = leaf
            kind = jr.key_impl(init) if is_key_array(init) else None
            there = jax.device_put(full, self.blocks.home)
            states.append(there if kind is None else jr.wrap_key_data(there, impl=kind))
        return Piece(first, count, states, np.arange(most, dtype=np.int32), failed)

    def gap(self, first: int, count: int, most: int) -> Piece:
        """Blocks that are missing: as if all of their points had failed."""
        gap = self._gap
        if gap is None:
            blocks, traced = self.blocks, self.blocks.job.traced[0]
            build = build_gap(blocks.reducing, traced, blocks.job.batch_size)
            init, constants, _ = blocks.reducing.placed(blocks.home)
            self._gap = gap = build(init, np.int32(blocks.batches), constants)
        states = [jnp.stack([leaf] * most) for leaf in gap]
        rows = np.arange(most, dtype=np.int32)
        return Piece(first, count, states, rows, np.zeros(0, np.int64))

    def _bits(self, piece: Piece) -> np.ndarray:
        start, points = piece.first * self.blocks.points, self.blocks.points
        marks = np.zeros((piece.count, 8 * self._bytes), bool)
        at = piece.failed - start
        marks[at // points, at % points] = True
        return np.packbits(marks, axis=1)


def _raw(leaf: Any) -> Any:
    return jr.key_data(leaf) if is_key_array(leaf) else leaf
