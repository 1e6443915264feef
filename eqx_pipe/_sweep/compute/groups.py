"""The states of groups of points, from the values at these points.

The points of a group are consecutive. They are computed as in any sweep, a run of one
group or of many groups at a time, and a second program reduces the values of groups in
parallel. Groups are the cells of a sweep, or blocks of points that cannot be computed
and reduced by one program.
"""

import abc
import dataclasses
import functools as ft
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Array, Bool, Int64

from ..._progress import Progress
from ..._reduce import ReducerTree
from ..._tree import as_data, as_keys
from ..._types import PyTree
from .failure import Verdict, in_order
from .points import Points
from .programs import compiled, put
from .reduce_programs import build_absorb, trace_reducers
from .rows import Index, Rows, row_bytes, stretches_of


class OfPoints(abc.ABC):
    """Rows that are reduced from points: the base class of cells and blocks."""

    points: Points
    outputs: Any
    at_once: int
    """The maximum number of rows computed at once."""

    @abc.abstractmethod
    def some(self, first: int, last: int, bar: Progress) -> tuple[Rows, Verdict]:
        """Compute at most `at_once` neighbouring rows."""

    def compute(
        self, index: Index, costs: object, bar: Progress
    ) -> tuple[Rows, Verdict]:
        """Compute some rows, and return them with their verdict."""
        found = [
            self.some(at, min(last, at + self.at_once), bar)
            for first, last in stretches_of(index)
            for at in range(first, last, self.at_once)
        ]
        none = [np.zeros((0, *s.shape), s.dtype) for s in self.row]
        parts = [none, *(rows for rows, _ in found)]
        rows = [np.concatenate(leaves) for leaves in zip(*parts, strict=True)]
        return rows, in_order([verdict for _, verdict in found])

    @property
    def row(self) -> list[jax.ShapeDtypeStruct]:
        """The shape and dtype of each leaf of a row."""
        return jtu.tree_leaves(self.outputs)

    @property
    def kinds(self) -> list[None]:
        """The kinds of PRNG keys, all `None`: rows contain keys as raw data only."""
        return [None] * len(self.row)

    @property
    def row_bytes(self) -> int:
        """The size of a row."""
        return row_bytes(self.row)


class BlockStates(eqx.Module):
    """The states of the reducers, and as bits which points of a block failed."""

    state: PyTree
    failed: PyTree


def home_of(points: Points) -> jax.sharding.SingleDeviceSharding:
    """Return the device on which values are reduced and states are merged."""
    return jax.sharding.SingleDeviceSharding(points.devices[0])


class Groups:
    """Groups of `each` points, of which `side` are reduced at once.

    A `run` of points of each group is reduced per step. All three depend on the space,
    the outputs and the batch size only, so that nothing else changes the bits of a
    state.
    """

    def __init__(
        self, points: Points, reducers: ReducerTree, each: int, side: int, run: int
    ):
        # If groups stop separately, the remaining ones are no longer adjacent.
        apart = reducers.stops and reducers.over is not None
        self.points = dataclasses.replace(points, most=side * run, ordered=apart)
        self.reducers, self.each, self.side, self.run = reducers, each, side, run
        self.reducing = trace_reducers(reducers, points.traced[0], run)
        self._home, self._absorb = home_of(points), None

    def begin(self) -> list[Array]:
        """Return the states of no points, along a leading axis."""
        init = [np.asarray(as_data(leaf)) for leaf in self.reducing.init]
        full = [np.broadcast_to(leaf, (self.side, *leaf.shape)) for leaf in init]
        return jax.device_put(full, self._home)

    def absorb(
        self,
        states: list[Array],
        first: int,
        lanes: Int64[np.ndarray, " live"],
        begin: int,
        bar: Progress,
    ) -> tuple[list[Array], Bool[np.ndarray, "groups run"], Verdict]:
        """Reduce a run of points, beginning at `begin`, of each of some groups.

        The group `first + k` has the lane k; `lanes` are the lanes to continue. Returns
        the states, the points in their lanes that did not fail, and the verdict.
        """
        start, length = first * self.each + begin, min(self.run, self.each - begin)
        if self.points.ordered:
            index = start + lanes[:, None] * self.each + np.arange(length)
            values, verdict = self.points.compute(index.ravel(), None, bar)
        else:
            # All points of adjacent groups, or consecutive points of one group; the
            # last group may have fewer.
            stop = min(start + len(lanes) * length, self.points.size)
            values, verdict = self.points.compute(range(start, stop), None, bar)
        ok = self._full(verdict.ok, lanes, length)
        full = [self._full(leaf, lanes, length) for leaf in values]
        live = np.zeros(self.side, bool)
        live[lanes] = True
        return self._after(states, full, ok, live), ok, verdict

    def without_points(self) -> list[np.ndarray]:
        """Return the state of a group without any included point."""
        states, shape = self.begin(), (self.side, self.run)
        values = [np.zeros((*shape, *s.shape), s.dtype) for s in self.points.row]
        none, live = np.zeros(shape, bool), np.ones(self.side, bool)
        for _ in range(0, self.each, self.run):
            states = self._after(states, values, none, live)
        return [np.asarray(np.asarray(leaf)[0]) for leaf in states]

    def states(self, leaves: Sequence[Any]) -> list[PyTree]:
        """Return the states of the reducers from raw data."""
        there = [np.asarray(leaf) for leaf in leaves]
        found = list(map(as_keys, there, self.reducing.init))
        return jtu.tree_unflatten(self.reducing.structure, found)

    def _full(
        self, leaf: np.ndarray, lanes: Int64[np.ndarray, " live"], length: int
    ) -> np.ndarray:
        """Return values padded with zeros to the lanes and points of the program."""
        short = np.zeros((len(lanes) * length - len(leaf), *leaf.shape[1:]), leaf.dtype)
        leaf = np.concatenate([leaf, short]) if len(short) else leaf
        leaf = leaf.reshape((len(lanes), length, *leaf.shape[1:]))
        shape = self.side, self.run
        if leaf.shape[:2] == shape:
            return leaf
        full = np.zeros((*shape, *leaf.shape[2:]), leaf.dtype)
        full[lanes, :length] = leaf
        return full

    def _after(self, *given: Any) -> list[Array]:
        """Return the states of live groups after the `ok` values."""
        absorb = self.reducing.absorb.program
        given = *given, put(absorb.constants, self._home)
        if self._absorb is None:
            points, kinds = self.points, map(str, self.points.kinds)
            build = build_absorb(self.reducing, points.kinds)
            place = "groups", self.side, self.run, *kinds, points.devices[0]
            lower = ft.partial(build.lower, *given)
            self._absorb = compiled([absorb], place, lower)
        return self._absorb(*given)
