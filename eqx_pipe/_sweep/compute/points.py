"""The points of a sweep as work: traced, with a batch size, ready to be computed.

Most sweeps have one case. Sweeps with `Static` axes have a case for each combination of
static values: the function is traced once for each, and the outputs of all cases are
compared before anything is computed.
"""

import copy
import dataclasses
import functools as ft
import threading
from collections.abc import Callable
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
from .cases import ByOffset, ByTable, Case, case_numbers, groups_of, points_of_a_case
from .failure import Failures, Fit, TooLarge, Verdict, does_not_fit
from .kernel import Given, Layout, everywhere, point_lane
from .programs import Runner, put, quiet
from .rows import Index, Rows, chunk_capacity, empty_values, row_bytes
from .trace import Traced, arrays_of, check_concrete

_LISTED_AT_ONCE = 2**22
"""The maximum number of points sorted into cases at once; each takes about 30 bytes."""


@dataclasses.dataclass
class Points:
    """Points that are ready to be computed: rows of a sweep, or the inputs of rows.

    `asked` is the explicit or automatic batch size; an automatic one (`adapts`) is
    halved if memory does not suffice. Points are `ordered` if they come with costs, or
    by arbitrary indices; a call computes at most `most` points. Failed points are
    `isolated`, or else end the sweep. `broken` has the cases for which tracing the
    function raises, with the errors: they have no program, and their points failed.
    """

    space: Space
    geometry: Geometry
    key: Key | None
    cases: list[Case]
    traced: list[Traced]
    asked: int
    devices: tuple[Device, ...]
    ordered: bool
    most: int
    isolated: bool = False
    broken: tuple[tuple[Case, str], ...] = ()
    adapts: bool = False
    function: str = "sweep"
    fit: Fit = dataclasses.field(default_factory=Fit)
    remarks: dict[str, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        self.arrays = arrays_of(self.geometry, self.space.key)
        self.groups = groups_of(self.geometry)
        self.size, first = self.geometry.size, self.traced[0]
        self.row, self.kinds = first.stored, first.key_kinds
        self.row_bytes = row_bytes(self.row)
        self.outputs = jtu.tree_unflatten(first.structure, first.outputs)
        self._runners: dict[tuple[int, int, bool], Runner] = {}
        """Programs by case, batch size and listing of points; shared by `at`."""
        self._given: dict[tuple[int, int, bool], Given] = {}
        """Their arguments for this space, on the devices: they may be large."""
        self._lock = threading.Lock()

    def at(self, space: Space, key: Key | None) -> "Points":
        """Return the points of a space of the same structure, with another key."""
        leaves = jtu.tree_leaves(space.tree, is_leaf=is_axis)
        # The constructor would take twice as long.
        points = copy.copy(self)
        points.space, points.key = space, key
        points.geometry = dataclasses.replace(self.geometry, leaves=leaves)
        points.arrays, points._given = arrays_of(points.geometry, space.key), {}
        check_concrete("sweeper", [*points.arrays, key])
        return points

    def with_batch_size(self, batch_size: int) -> "Points":
        """Return the same points in batches of another size."""
        return dataclasses.replace(self, asked=batch_size)

    def with_most(self, most: int) -> "Points":
        """Return the same points for calls of at most `most` of them."""
        return dataclasses.replace(self, most=most)

    @property
    def points(self) -> "Points":
        """The points themselves."""
        return self

    @property
    def batch_size(self) -> int:
        """The number of points that a device vectorises at once."""
        return self.fit.fitting(self.asked)

    @property
    def attrs(self) -> dict[str, str]:
        """Remarks on the choice of the batch size."""
        halved = ", ".join(map(str, self.fit.halved))
        return self.remarks | ({"out_of_memory": halved} if halved else {})

    @property
    def unit(self) -> int:
        """The number of points computed at once if every case fills its lanes."""
        one, alone = self.batch_size * len(self.devices), len(self.cases) == 1
        if alone or points_of_a_case(self.geometry) >= one:
            return one
        sizes = (min(case.size, self.batch_size) for case in self.cases)
        return sum(sizes) * len(self.devices)

    def unflatten(self, rows: Rows) -> PyTree:
        """Return the outputs as the function gives them, with keys from raw data."""
        wrapped = [
            leaf if kind is None else jr.wrap_key_data(jnp.asarray(leaf), impl=kind)
            for leaf, kind in zip(rows, self.kinds, strict=True)
        ]
        return jtu.tree_unflatten(self.traced[0].structure, wrapped)

    def span(self, first: int, last: int) -> tuple[int, int]:
        """Return the range of points of a range of rows, which is the same."""
        return first, last

    def compute(
        self, index: Index, costs: Float[np.ndarray, " rows"] | None, bar: Progress
    ) -> tuple[Rows, Verdict]:
        """Compute the output leaves at some points, and return them with the verdict.

        Pass consecutive points as a `range`, which needs no table.
        """
        values = empty_values(len(index), self.row, self.function)
        asked = self.function, self.isolated, len(index), values
        failures = Failures(*asked, self._number(index))
        if isinstance(index, range) and not self._listed:
            points = ByOffset(self.geometry.start + index.start)
            self._run(0, points, len(index), bar, failures)
        else:
            most = _LISTED_AT_ONCE if costs is None else max(1, len(index))
            for first in range(0, len(index), most):
                some = np.asarray(index[first : first + most], np.int64)
                self._run_cases(some, first, costs, bar, failures)
        verdict = failures.verdict
        at = np.asarray(index, np.int64) if verdict.errors else np.zeros(0, np.int64)
        errors = {text: at[np.sort(rows)] for text, rows in verdict.errors.items()}
        return values, dataclasses.replace(verdict, errors=errors)

    def _number(self, index: Index) -> Callable[[int], int]:
        return lambda row: self.geometry.index_as_written(int(index[row]))

    def _run_cases(
        self,
        index: Int64[np.ndarray, " points"],
        first: int,
        costs: Float[np.ndarray, " rows"] | None,
        bar: Progress,
        failures: Failures,
    ) -> None:
        """Compute points case by case; `first` is the row of the first of them."""
        numbers = case_numbers(self.geometry, self.groups, index)
        for case, error in self.broken:
            rows = np.flatnonzero(numbers == case.number)
            if len(rows):
                failures.mark(first + rows, error)
                bar.done(len(rows))
                bar.failed(failures.count)
        for k, case in enumerate(self.cases):
            rows = np.flatnonzero(numbers == case.number)
            if costs is not None:  # ties in order, NaN last
                rows = rows[np.argsort(costs[rows], kind="stable")]
            if len(rows):
                points = ByTable(self.geometry, index[rows], first + rows)
                self._run(k, points, len(rows), bar, failures)

    def _run(
        self,
        k: int,
        points: ByOffset | ByTable,
        count: int,
        bar: Progress,
        failures: Failures,
    ) -> None:
        """Compute points of a case, in batches for which there is enough memory.

        After Ctrl-C, no further batches begin.
        """
        done = 0
        with quiet():
            while done < count:
                try:
                    runner, given = self._runner(k, points)
                    bar.begin()
                    if bar.stopping():
                        return failures.skip(points.rows(done, count))
                    now = _next(runner.layout, count - done, bar)
                    compute = ft.partial(runner.compute, given, points, failures.values)
                    if compute(done, now) is not None:
                        failures.found(compute, points.rows, done, now)
                        bar.failed(failures.count)
                except TooLarge as error:
                    self.halve(error)
                    continue
                bar.done(now)
                done += now

    def halve(self, error: TooLarge, *sizes: int) -> None:
        """Continue with half the batch size, or with the largest of some `sizes`.

        Raises if there is no smaller size, or if the user has chosen the size.
        """
        if not self.adapts or error.batch_size == 1:
            chosen = not self.adapts
            raise does_not_fit(self.function, error, chosen) from error.__cause__
        self.fit.note(error.batch_size, max(sizes, default=error.batch_size // 2))

    @property
    def _listed(self) -> bool:
        return self.ordered or len(self.groups) > 0 or self.geometry.rows is not None

    def _runner(self, k: int, points: ByOffset | ByTable) -> tuple[Runner, Given]:
        """Return the program for some points of a case, and its arguments."""
        listed = isinstance(points, ByTable)
        place = k, self.batch_size, listed
        with self._lock:
            runner, traced = self._runners.get(place), self.traced[k]
            if runner is None:
                layout = self._layout(self.cases[k], traced, listed)
            else:
                layout = runner.layout
            if place not in self._given:
                self._given[place] = put(self.given(k), everywhere(layout))
            given = self._given[place]
            if runner is None:
                lane_of, programs = point_lane(traced.jaxpr, layout), [traced.program]
                made = traced, programs, lane_of, traced.stored, layout
                runner = self._runners[place] = Runner(*made, points, given)
            return runner, given

    def given(self, k: int) -> Given:
        """Return the arguments of the program of a case, besides the points."""
        return Given(self.arrays, self.traced[k].program.constants, self.key)

    def layout(self, **options: Any) -> Layout:
        """Return a layout for this grid on these devices."""
        geometry = self.geometry
        grid = geometry.lengths, geometry.key_dims
        return Layout(*grid, devices=self.devices, **options)

    def _layout(self, case: Case, traced: Traced, listed: bool) -> Layout:
        # A listed point needs memory for its row in the table.
        row = jax.ShapeDtypeStruct((len(self.geometry.lengths) + 2,), jnp.uint32)
        held = [*traced.outputs, *([row] if listed else [])]
        batch_size, num_devices = min(self.batch_size, case.size), len(self.devices)
        most = min(case.size, self.most)
        return self.layout(
            batch_size=batch_size,
            capacity=chunk_capacity(most, batch_size, num_devices, held),
            listed=listed,
            dealt=listed or traced.analysis.waits or traced.analysis.refilled,
            unsplit=all_busy(self.devices, -(-most // batch_size)),
        )


def _next(layout: Layout, left: int, bar: Progress) -> int:
    """Return how many of the remaining points the next call computes."""
    across = layout.batch_size * len(layout.devices)
    batches = bar.count(-(-left // across), across)
    return min(left, across * min(layout.capacity, batches))
