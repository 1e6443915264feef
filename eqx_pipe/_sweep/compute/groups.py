"""The states of groups of points, from the values at these points.

The points of a group follow one another. They are computed as in any sweep, a run of
one group or of many at a time, and a second program takes their values in, group beside
group. Groups are the cells of a sweep, or blocks of points that the program which
computes and reduces at once cannot do.
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
from .programs import compiled_already, compiled_for, put
from .reduce_programs import build_absorb, trace_reducers
from .rows import Index, Rows, row_bytes, stretches_of


class OfPoints(abc.ABC):
    """Rows that are reduced from points: what cells and blocks have in common."""

    points: Points
    outputs: Any
    at_once: int
    """The most rows that are computed side by side."""

    @abc.abstractmethod
    def some(self, first: int, last: int, bar: Progress) -> tuple[Rows, Verdict]:
        """Compute at most `at_once` neighbouring rows."""

    def compute(
        self, index: Index, costs: object, bar: Progress
    ) -> tuple[Rows, Verdict]:
        """Compute some rows, and what became of them."""
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
        """No leaf of a row holds PRNG keys, but at most their raw data."""
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
    """Return the place where values are taken in, and states are merged."""
    return jax.sharding.SingleDeviceSharding(points.devices[0])


class Groups:
    """Groups of `each` points, of which `side` lie side by side in a state.

    A `run` of points of each is taken in at once. All three depend on the space, the
    outputs and the batch size alone, so that nothing else changes the bits of a state.
    """

    def __init__(
        self, points: Points, reducers: ReducerTree, each: int, side: int, run: int
    ):
        # Where groups stop one by one, the others are not neighbours any more.
        apart = reducers.stops and reducers.over is not None
        self.points = dataclasses.replace(points, most=side * run, ordered=apart)
        self.reducers, self.each, self.side, self.run = reducers, each, side, run
        self.reducing = trace_reducers(reducers, points.traced[0], run)
        self._home, self._absorb = home_of(points), None

    def begin(self) -> list[Array]:
        """Return the states of no points, side by side."""
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
        """Take in a run of points, those from `begin` on of each of some groups.

        The group `first + k` has the lane k; `lanes` are those to go on with. Returns
        the states, the points in their lanes that did not fail, and the verdict.
        """
        start, length = first * self.each + begin, min(self.run, self.each - begin)
        if self.points.ordered:
            index = start + lanes[:, None] * self.each + np.arange(length)
            values, verdict = self.points.compute(index.ravel(), None, bar)
        else:
            # All points of neighbouring groups, or neighbours of one group; the last
            # group may have fewer.
            stop = min(start + len(lanes) * length, self.points.size)
            values, verdict = self.points.compute(range(start, stop), None, bar)
        ok = self._full(verdict.ok, lanes, length)
        full = [self._full(leaf, lanes, length) for leaf in values]
        live = np.zeros(self.side, bool)
        live[lanes] = True
        return self._after(states, full, ok, live), ok, verdict

    def without_points(self) -> list[np.ndarray]:
        """Return the state of a group all of whose points are left out."""
        states, shape = self.begin(), (self.side, self.run)
        values = [np.zeros((*shape, *s.shape), s.dtype) for s in self.points.row]
        none, live = np.zeros(shape, bool), np.ones(self.side, bool)
        for _ in range(0, self.each, self.run):
            states = self._after(states, values, none, live)
        return [np.asarray(np.asarray(leaf)[0]) for leaf in states]

    def states(self, leaves: Sequence[Any]) -> list[PyTree]:
        """Return the states of the reducers side by side, from raw data."""
        there = [np.asarray(leaf) for leaf in leaves]
        found = list(map(as_keys, there, self.reducing.init))
        return jtu.tree_unflatten(self.reducing.structure, found)

    def programs(self) -> list[Any]:
        """Return the programs, each as it is compiled, or `None`."""
        absorb = compiled_already([self.reducing.absorb.program], self._place)
        return [absorb, *self.points.programs()]

    def _full(
        self, leaf: np.ndarray, lanes: Int64[np.ndarray, " live"], length: int
    ) -> np.ndarray:
        """Return as many lanes and points as the program has, filled up with zeros."""
        short = np.zeros((len(lanes) * length - len(leaf), *leaf.shape[1:]), leaf.dtype)
        leaf = np.concatenate([leaf, short]) if len(short) else leaf
        leaf = leaf.reshape((len(lanes), length, *leaf.shape[1:]))
        shape = self.side, self.run
        if leaf.shape[:2] == shape:
            return leaf
        full = np.zeros((*shape, *leaf.shape[2:]), leaf.dtype)
        full[lanes, :length] = leaf
        return full

    @property
    def _place(self) -> tuple[Any, ...]:
        """The key of the program that takes points in, besides the reducers."""
        points = self.points
        kinds = map(str, points.kinds)
        return "groups", self.side, self.run, *kinds, points.devices[0]

    def _after(self, *given: Any) -> list[Array]:
        """Return the states after values, of which some are ok, in groups that live."""
        absorb = self.reducing.absorb.program
        given = *given, put(absorb.constants, self._home)
        if self._absorb is None:
            build = ft.partial(build_absorb, self.reducing, self.points.kinds)
            self._absorb = compiled_for([absorb], self._place, build, *given)
        return self._absorb(*given)
