"""A sweep, traced and ready to be computed: all at once, or one stretch at a time.

Most sweeps have one part. Those with `Static` axes have one for each combination of
their values.
"""

import copy
import dataclasses
import math
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

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
from .failure import Failures, Verdict, clear, in_order
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

Some: TypeAlias = Int64[np.ndarray, " some"] | None
"""Which rows of a stretch are asked for, at least one, in order; or all of them."""


@dataclasses.dataclass
class Job:
    """A sweep that is ready to be computed.

    `costs` says that points will come with costs, `stretch` how many points will be
    asked for at once at most. Points that fail are `isolated`, or end the sweep.
    `broken` are the parts that have no program, since the function raises when it is
    traced for them, with what it raises: their points have failed.

    Where the job `adapts`, a batch size for which there is not enough memory is halved.
    `halved` notes these sizes, and is shared with the copies that `at` makes: none of
    them tries a size again.
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
        self.tried = ""
        """How the batch size was found, if it was looked for."""
        self.head: tuple[Rows, Verdict] | None = None
        """Room for all values, with the first ones, and what became of these."""

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

    @property
    def made(self) -> tuple[tuple[str, str], ...]:
        """How the batch size came about, if there is something to say."""
        halved = ", ".join(map(str, self.halved))
        found = {"tuned": self.tried, "out_of_memory": halved}
        return tuple((name, text) for name, text in found.items() if text)

    @property
    def across(self) -> int:
        """How many points are computed at once, if every part is to fill its lanes."""
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

    @property
    def most(self) -> int:
        """How many points one call of a program computes at most."""
        layouts = (layout for _, layout in self.needed)
        return max(layout.capacity * layout.batch_size for layout in layouts) * len(
            self.devices
        )

    @property
    def unit(self) -> int:
        """How many points fill all lanes."""
        return self.across

    def programs(self, most: int) -> list[Any]:
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
        first: int,
        last: int,
        costs: Float[np.ndarray, " points"] | None,
        bar: Progress,
        some: Some = None,
    ) -> tuple[Rows, Verdict]:
        """The output leaves at the points of a stretch, and what became of these.

        `costs` are those of these points. With `some` it is those rows of the stretch
        alone.
        """
        if some is not None and some[-1] - some[0] == len(some) - 1:
            # Neighbours are a stretch again.
            costs = None if costs is None else costs[some]
            first, last = first + int(some[0]), first + int(some[-1]) + 1
        elif some is not None:
            values = empty_values(last - first, self.traced[0].stored)
            verdict = self.fill(values, first, last, costs, bar, some)
            rows = [leaf[some] for leaf in values]
            return rows, dataclasses.replace(verdict, ok=verdict.ok[some])
        if self.head is None:
            values = empty_values(last - first, self.traced[0].stored)
            return values, self.fill(values, first, last, costs, bar)
        values, verdict = self.head
        count = len(verdict.ok)
        bar.done(count)
        rest = [leaf[count:] for leaf in values]
        behind = None if costs is None else costs[count:]
        if count < last:
            more = self.fill(rest, count, last, behind, bar)
            verdict = in_order([verdict, more])
        return values, verdict

    def fill(
        self,
        values: Rows,
        first: int,
        last: int,
        costs: Float[np.ndarray, " points"] | None,
        bar: Progress,
        some: Some = None,
    ) -> Verdict:
        """Computes the points of a stretch, and says what became of them."""
        number = self.geometry.index_as_written
        failures = Failures(self.function, self.isolated, last - first, first, number)
        if first == last:
            return failures.verdict
        within = self._within(first, last, some)
        for part, error in self.broken:
            part = within(part)
            index = part.indices(0, part.size)
            failures.mark(index, error)
            clear(values, index - first)
            bar.done(part.size)
            bar.failed(failures.count)
        for k, points, span in self._points(first, last, costs, within, some):
            self._run(k, points, span, bar, values, failures)
        return failures.verdict

    def compute_listed(
        self, index: Int64[np.ndarray, " points"], bar: Progress
    ) -> tuple[Rows, Verdict]:
        """The output leaves at some points, and what became of these, by their rows.

        For a job whose points are listed: one that has `costs`.
        """

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
            some = dataclasses.replace(part, listed=index[rows])
            chosen = Chosen(Listed(self.geometry, some), rows)
            self._run(k, chosen, (0, len(rows)), bar, values, failures)
        return values, failures.verdict

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

    def unflatten(self, leaves: Sequence[np.ndarray]) -> PyTree:
        """The output as the function gives it, with keys from their raw data."""
        wrapped = [
            leaf if kind is None else jr.wrap_key_data(jnp.asarray(leaf), impl=kind)
            for leaf, kind in zip(leaves, self.traced[0].key_kinds, strict=True)
        ]
        return jtu.tree_unflatten(self.traced[0].structure, wrapped)

    def _within(self, first: int, last: int, some: Some) -> Callable[[Part], Part]:
        """What gives the points of a part that are in a stretch."""
        whole = last - first == self.geometry.size or not self._listed
        if some is None and whole:
            return lambda part: part
        index = np.arange(first, last, dtype=np.int64)
        index = index if some is None else index[some]
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
        some: Some,
    ) -> Any:
        """For each part its points in a stretch, and which of them."""
        if some is None and not self._listed:
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
