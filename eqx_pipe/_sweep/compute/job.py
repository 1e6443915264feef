"""A sweep, traced and ready to be computed: all at once, or one stretch at a time.

Most sweeps have one part. Those with `Static` axes have one for each combination of
their values.
"""

import copy
import dataclasses
import math
import threading
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Float, Int64

from ..._progress import Progress
from ..._spaces import Geometry, Space, is_axis
from ..._types import Device, Key, PyTree
from ..._vmap import all_busy
from ..tracing.trace import Traced, arrays_of, check_concrete
from .execute import Runner, compiled_already
from .failure import Failures, Verdict, clear
from .memory import TooLarge, does_not_fit
from .partition import Layout
from .points import (
    Chosen,
    Listed,
    Neighbours,
    Part,
    groups_of,
    part_numbers,
)
from .sizes import Rows, chunk_capacity, empty_values


@dataclasses.dataclass
class Job:
    """A sweep that is ready to be computed.

    `costs` says that points will come with costs, `stretch` how many points will be
    asked for at once at most. Points that fail are `isolated`, or end the sweep.
    `broken` are the parts that have no program, since the function raises when it is
    traced for them, with what it raises: their points have failed.

    Where the job `adapts`, a batch size for which there is not enough memory is halved.
    `halved` notes these sizes, and is shared with the copies that `at` makes: none of
    them tries a size again. `remarks` are for the attributes of results.
    """

    space: Space
    geometry: Geometry
    key: Key | None
    parts: list[Part]
    traced: list[Traced]
    batch_size: int
    devices: tuple[Device, ...]
    costs: bool
    stretch: int
    isolated: bool = False
    broken: tuple[tuple[Part, str], ...] = ()
    adapts: bool = False
    halved: list[int] = dataclasses.field(default_factory=list)
    function: str = "sweep"
    remarks: dict[str, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        self.arrays = arrays_of(self.geometry, self.space.key)
        self._groups = groups_of(self.geometry)
        self._runners: dict[tuple[int, int, bool], Runner] = {}
        self._made: dict[tuple[int, int, bool], Runner] = {}
        """By part, batch size and whether points are listed; of this sweep, or of one
        of the same form.
        """
        self._lock = threading.Lock()
        self.alone: dict[str, str] = {}
        """What a store says of the function, once it was asked for."""

    def at(self, space: Space, key: Key | None) -> "Job":
        """The same of a space of the same form, with another key."""
        leaves = jtu.tree_leaves(space.tree, is_leaf=is_axis)
        # By the constructor it would take twice as long.
        job = copy.copy(self)
        job.space, job.key = space, key
        if self.halved:
            job.batch_size = min(job.batch_size, self.halved[-1] // 2)
        job.geometry = dataclasses.replace(self.geometry, leaves=leaves)
        job.arrays, job._runners = arrays_of(job.geometry, space.key), {}
        check_concrete("sweeper", [*job.arrays, key])
        return job

    def with_batch_size(self, batch_size: int) -> "Job":
        """Return the same points in batches of another size."""
        return dataclasses.replace(self, batch_size=batch_size)

    def with_most(self, most: int) -> "Job":
        """Return the same points for calls of at most `most` of them."""
        return dataclasses.replace(self, stretch=most)

    @property
    def points(self) -> "Job":
        """The points themselves."""
        return self

    @property
    def size(self) -> int:
        """The number of points."""
        return self.geometry.size

    @property
    def most(self) -> int:
        """The most points that one call of `compute` is asked for."""
        return self.stretch

    @property
    def attrs(self) -> dict[str, str]:
        """Remarks on how the batch size came about."""
        halved = ", ".join(map(str, self.halved))
        return self.remarks | ({"out_of_memory": halved} if halved else {})

    @property
    def unit(self) -> int:
        """The number of points computed at once if every part fills its lanes."""
        one = self.batch_size * len(self.devices)
        geometry = self.geometry
        lengths = list(geometry.dims.values())
        statics = () if geometry.is_part else geometry.static_dims
        # Behind the last dim with static values all points share a program: a chunk of
        # these alone fills the lanes.
        behind = math.prod(lengths[max(statics, default=-1) + 1 :])
        if len(self.parts) == 1 or (statics and behind >= one):
            return one
        sizes = (min(part.size, self.batch_size) for part in self.parts)
        return sum(sizes) * len(self.devices)

    @property
    def outputs(self) -> PyTree:
        """The shapes and dtypes of the output at one point."""
        return jtu.tree_unflatten(self.traced[0].structure, self.traced[0].outputs)

    @property
    def kinds(self) -> list[Any]:
        """For each leaf of a row the kind of its PRNG keys, or `None`."""
        return self.traced[0].key_kinds

    @property
    def row(self) -> list[jax.ShapeDtypeStruct]:
        """The shape and dtype of each leaf of what `compute` gives, at one point."""
        return self.traced[0].stored

    @property
    def row_bytes(self) -> int:
        """The size of the output at one point."""
        return max(1, sum(math.prod(s.shape) * s.dtype.itemsize for s in self.row))

    def programs(self) -> list[Any]:
        """The programs of all parts, each as it is compiled, or `None`."""
        needed = {(t.program.key(), layout): t for t, layout in self.needed}
        pairs = needed.items()
        return [compiled_already([t.program], layout) for (_, layout), t in pairs]

    @property
    def needed(self) -> list[tuple[Traced, Layout]]:
        """What is compiled for each part."""
        pairs = zip(self.parts, self.traced, strict=True)
        return [
            (traced, self._layout(part, traced, self._listed)) for part, traced in pairs
        ]

    def span(self, first: int, last: int) -> tuple[int, int]:
        """The points of some rows, which are the points themselves."""
        return first, last

    def compute(
        self,
        index: range | Int64[np.ndarray, " rows"],
        costs: Float[np.ndarray, " rows"] | None,
        bar: Progress,
    ) -> tuple[Rows, Verdict]:
        """The output leaves at some points, and what became of these.

        `costs` are those of these points.
        """
        if not isinstance(index, range) and not _is_range(index):
            return self._compute_listed(index, costs, bar)
        ((first, last),) = stretches_of(index)
        values = empty_values(last - first, self.row)
        return values, self._fill(values, first, last, costs, bar)

    def _fill(
        self,
        values: Rows,
        first: int,
        last: int,
        costs: Float[np.ndarray, " points"] | None,
        bar: Progress,
    ) -> Verdict:
        """Computes the points of a stretch, and says what became of them."""
        number = self.geometry.index_as_written
        failures = Failures(self.function, self.isolated, last - first, first, number)
        if first == last:
            return failures.verdict
        within = self._within(first, last)
        for part, error in self.broken:
            part = within(part)
            index = part.indices(0, part.size)
            failures.mark(index, error)
            clear(values, index - first)
            bar.done(part.size)
            bar.failed(failures.count)
        for k, points, span in self._points(first, last, costs, within):
            self._run(k, points, span, bar, values, failures)
        return failures.verdict

    def _compute_listed(
        self,
        index: Int64[np.ndarray, " points"],
        costs: Float[np.ndarray, " points"] | None,
        bar: Progress,
    ) -> tuple[Rows, Verdict]:
        """The same of points that do not follow one another."""

        def number(row: int) -> int:
            return self.geometry.index_as_written(int(index[row]))

        values = empty_values(len(index), self.row)
        failures = Failures(self.function, self.isolated, len(index), 0, number)
        numbers = part_numbers(self.geometry, self._groups, index)
        for part, error in self.broken:
            rows = np.flatnonzero(numbers == part.number)
            failures.mark(rows, error)
            clear(values, rows)
            bar.done(len(rows))
        for k, part in enumerate(self.parts):
            rows = np.flatnonzero(numbers == part.number)
            if costs is not None:
                rows = rows[np.argsort(costs[rows], kind="stable")]
            some = dataclasses.replace(part, listed=index[rows])
            chosen = Chosen(Listed(self.geometry, some), rows)
            self._run(k, chosen, (0, len(rows)), bar, values, failures)
        verdict = failures.verdict
        errors = {text: index[np.sort(rows)] for text, rows in verdict.errors.items()}
        return values, dataclasses.replace(verdict, errors=errors)

    def _run(
        self,
        k: int,
        points: Neighbours | Listed | Chosen,
        span: tuple[int, int],
        bar: Progress,
        values: Rows,
        failures: Failures,
    ) -> None:
        """Computes points of a part, in batches for which there is enough memory."""
        while True:
            try:
                runner = self._runner(k, points)
                return runner.run(points, span, bar, values, failures)
            except TooLarge as error:
                self.halve(error)
                span = max(span[0], error.done), span[1]

    def halve(self, error: TooLarge, *sizes: int) -> None:
        """Goes on with half the batch size, or with the largest of some `sizes`.

        Raises an error if there is no smaller one, or if the user has chosen it.
        """
        if not self.adapts or error.batch_size == 1:
            chosen = not self.adapts
            raise does_not_fit(self.function, error, chosen) from error.__cause__
        with self._lock:  # threads that share the job may come here together
            if self.batch_size >= error.batch_size:
                if error.batch_size not in self.halved:
                    self.halved.append(error.batch_size)
                self.batch_size = max(sizes, default=error.batch_size // 2)

    def unflatten(self, rows: Sequence[np.ndarray]) -> PyTree:
        """The output as the function gives it, with keys from their raw data."""
        wrapped = [
            leaf if kind is None else jr.wrap_key_data(jnp.asarray(leaf), impl=kind)
            for leaf, kind in zip(rows, self.traced[0].key_kinds, strict=True)
        ]
        return jtu.tree_unflatten(self.traced[0].structure, wrapped)

    def _within(self, first: int, last: int) -> Callable[[Part], Part]:
        """What gives the points of a part that are in a stretch."""
        if last - first == self.geometry.size or not self._listed:
            return lambda part: part
        index = np.arange(first, last, dtype=np.int64)
        number = part_numbers(self.geometry, self._groups, index)

        def within(part: Part) -> Part:
            return dataclasses.replace(part, listed=index[number == part.number])

        return within

    def _points(
        self,
        first: int,
        last: int,
        costs: Any,
        within: Callable[[Part], Part],
    ) -> Any:
        """For each part its points in a stretch, and which of them."""
        if not self._listed:
            yield 0, Neighbours(self.geometry.start), (first, last)
            return
        for k, part in enumerate(map(within, self.parts)):
            if costs is not None:
                part = part.sorted_by(costs, first)
            if part.size:
                yield k, Listed(self.geometry, part), (0, part.size)

    @property
    def _listed(self) -> bool:
        return self.costs or len(self._groups) > 0 or self.geometry.rows is not None

    def _runner(self, k: int, points: Neighbours | Listed | Chosen) -> Runner:
        with self._lock:
            listed = not isinstance(points, Neighbours)
            place = k, self.batch_size, listed
            if place in self._runners:
                return self._runners[place]
            made = self._made.get(place)
            if made is None:
                layout = self._layout(self.parts[k], self.traced[k], listed)
                given = self.traced[k], self.arrays, points, self.key
                runner = self._made[place] = Runner(*given, layout)
            else:
                runner = made.at(self.arrays, self.key)
            self._runners[place] = runner
            return runner

    def _layout(self, part: Part, traced: Traced, listed: bool) -> Layout:
        geometry = self.geometry
        lengths = geometry.lengths
        # A listed point takes memory itself.
        row = jax.ShapeDtypeStruct((len(lengths) + 2,), jnp.uint32)
        held = [*traced.outputs, *([row] if listed else [])]
        batch_size, num_devices = min(self.batch_size, part.size), len(self.devices)
        most = min(part.size, self.stretch)
        uneven = traced.analysis.waits or listed
        split = "batches" if uneven else "runs"
        if traced.analysis.refilled:
            split = "points"
        return Layout(
            lengths=lengths,
            key_dims=geometry.key_dims,
            batch_size=batch_size,
            capacity=chunk_capacity(most, batch_size, num_devices, held),
            devices=self.devices,
            listed=listed,
            split=split,
            unsplit=all_busy(self.devices, -(-most // batch_size)),
        )


def _is_range(index: Int64[np.ndarray, " points"]) -> bool:
    """Return whether some points follow one another."""
    return bool(np.all(np.diff(index) == 1))


def stretches_of(index: range | Int64[np.ndarray, " rows"]) -> list[tuple[int, int]]:
    """Return the half-open ranges that some numbers in order come to; at least one."""
    if isinstance(index, range):
        return [(index.start, index.stop)]
    if not len(index):
        return [(0, 0)]
    found = np.split(index, np.flatnonzero(np.diff(index) != 1) + 1)
    return [(int(part[0]), int(part[-1]) + 1) for part in found]
