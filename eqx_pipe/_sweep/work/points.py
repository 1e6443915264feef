"""The points of a sweep: traced, in batches of a size that fits, with their programs.

Most sweeps have one case. Sweeps with `Static` axes have a case for each combination of
static values, with a trace and a program of its own.
"""

import contextlib
import dataclasses
import functools as ft
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import UInt32

from ..._compiled import bytes_of_program
from ..._jaxprs import Literals, Split, arguments_of, literals_of
from ..._run import TooLarge, differs, does_not_fit, put, quiet, search
from ..._spaces import Geometry, Space, is_axis
from ..._tree import nbytes
from ..._types import Device, Key, PyTree
from ..._vmap import all_busy, largest_that_fits, may_not_fit
from ..program.in_steps import batched_in, state_of
from ..program.layout import (
    CHUNK_BYTES,
    NARROW,
    Arguments,
    ByOffset,
    ByTable,
    Layout,
    Selected,
    chunk_capacity,
    everywhere,
)
from ..program.runner import Programs, Runner
from ..program.whole import point_lane
from ..trace.cases import Case, StaticValues, points_of_a_case, static_values_of
from ..trace.trace import Traced, abstract, arrays_of, check_concrete


@dataclasses.dataclass(frozen=True, eq=False)
class Points:
    """A function at the points of a space, traced and in batches of a size.

    An automatic `batch_size` (`adapts`) is halved if memory does not suffice; `wanted`
    is the size without regard to memory. If `literal`, small arrays that the function
    closes over are part of its program. Points are `ordered` if they come with costs;
    a call computes at most `most` points. Failed points are `isolated`, or else end the
    sweep. `broken` has the cases for which tracing the function raises, with the
    errors: they have no program, and their points failed. Copies share `programs`, and
    unless their values differ the arguments that are `placed` on the devices.
    """

    space: Space
    geometry: Geometry
    key: Key | None
    cases: list[Case]
    traced: list[Traced]
    batch_size: int
    devices: tuple[Device, ...]
    ordered: bool
    most: int
    isolated: bool = False
    broken: tuple[tuple[Case, str], ...] = ()
    adapts: bool = False
    wanted: int = 0
    literal: bool = False
    function: str = "sweep"
    programs: Programs = dataclasses.field(default_factory=Programs)
    placed: dict[Any, Any] = dataclasses.field(default_factory=dict)
    key_digits: tuple[UInt32[np.ndarray, "_positions"], ...] = ()

    def at(self, space: Space, key: Key | None) -> "Points":
        """Return the points of a space of the same structure, with another key."""
        leaves = jtu.tree_leaves(space.tree, is_leaf=is_axis)
        geometry = dataclasses.replace(self.geometry, leaves=leaves, key=space.key)
        changed: dict[str, Any] = {"space": space, "key": key, "geometry": geometry}
        points = dataclasses.replace(self, **changed, placed={})
        check_concrete(self.function, [*points._arrays, key])
        return points

    def with_batch_size(self, batch_size: int) -> "Points":
        """Return the same points in batches of another size."""
        return dataclasses.replace(self, batch_size=batch_size)

    def with_most(self, most: int) -> "Points":
        """Return the same points for calls of at most `most` of them."""
        return dataclasses.replace(self, most=most)

    def with_key_digits(
        self, digits: tuple[UInt32[np.ndarray, "_positions"], ...]
    ) -> "Points":
        """Return the same points, whose keys are folded with other digits."""
        return dataclasses.replace(self, key_digits=digits, placed={})

    @property
    def size(self) -> int:
        """The number of points."""
        return self.geometry.size

    @property
    def row(self) -> list[jax.ShapeDtypeStruct]:
        """The shape and dtype of each leaf of an output; PRNG keys are raw data."""
        return self.traced[0].stored

    @property
    def row_bytes(self) -> int:
        """The size of the output at a point in bytes, at least 1."""
        return max(1, sum(map(nbytes, self.row)))

    @property
    def outputs(self) -> PyTree:
        """The shapes and dtypes of the output at a point."""
        return jtu.tree_unflatten(self.traced[0].structure, self.traced[0].outputs)

    @property
    def largest_batch(self) -> int:
        """The batch size, or the largest one that has not failed for lack of memory."""
        return self.programs.fitting(self.batch_size)

    @property
    def attrs(self) -> dict[str, str]:
        """The batch sizes that did not fit into memory, if there are any."""
        sizes = ", ".join(map(str, self.programs.too_large))
        return {"out_of_memory": sizes} if sizes else {}

    @property
    def unit(self) -> int:
        """The number of points computed at once if every case fills its lanes."""
        one, alone = self.batch_size * len(self.devices), len(self.cases) == 1
        if alone or points_of_a_case(self.geometry) >= one:
            return one
        sizes = (min(case.size, self.batch_size) for case in self.cases)
        return sum(sizes) * len(self.devices)

    def failures(
        self,
        compute: Callable[[int, int], Exception | None],
        first: int,
        count: int,
        size: int,
    ) -> list[tuple[int, Exception]]:
        """Compute rows of a program, and return those that fail, with their errors.

        Unless failures are isolated, it returns the first one, and raises a
        `SweepError` if no row fails alone; `size` is the number of points for it.
        """
        with quiet():
            if compute(first, count) is None:
                return []
            failures = search(compute, first, count, only_first=not self.isolated)
        if not (failures or self.isolated):
            raise differs(self.function, size)
        return failures

    def halve(self, error: TooLarge, *sizes: int) -> None:
        """Continue with half the batch size, or with the largest of some `sizes`.

        Raises if there is no smaller size, or if the user has chosen the size.
        """
        if not self.adapts or error.batch_size == 1:
            chosen = not self.adapts
            raise does_not_fit(self.function, error, chosen) from error.__cause__
        then = max(sizes, default=error.batch_size // 2)
        self.programs.note(error.batch_size, then)

    @property
    def is_split(self) -> bool:
        """True if a call may end inside of a batch, for one of the cases."""
        return any(split is not None for split in self._splits)

    @property
    def _splits(self) -> list[Split | None]:
        sizes = (max(1, min(self.largest_batch, case.size)) for case in self.cases)
        pairs, platform = zip(self.traced, sizes, strict=True), self.devices[0].platform
        return [traced.split(n, platform) for traced, n in pairs]

    def loops(self) -> tuple[int | None, int] | None:
        """Return the steps of a point, if they are known, and the bytes of a flight.

        They are those of the case with the largest flight; `None` if no case is split.
        """
        flights: list[tuple[int, int | None]] = []
        for k, split in enumerate(self._splits):
            if split is None:
                continue
            layout = self._layout(k, self.largest_batch, self.are_listed)
            args = jtu.tree_map(abstract, self.arguments(k, layout))
            state = state_of(split, layout, batched_in(split, layout, args))
            flights.append((sum(map(nbytes, state)), split.steps))
        # A chunk has one flight at a time, so it is the largest that needs room.
        largest = max(flights, key=lambda each: each[0], default=None)
        return None if largest is None else (largest[1], largest[0])

    @property
    def are_listed(self) -> bool:
        """True if a program is given the points in a table."""
        geometry = self.geometry
        return self.ordered or bool(geometry.static_dims) or geometry.rows is not None

    def runner(self, k: int, selected: Selected) -> tuple[Runner, Arguments]:
        """Return the program for some points of a case, and its arguments."""
        listed, size = isinstance(selected, ByTable), self.largest_batch
        args = self.on_devices(
            (k, size, listed), lambda: self.arguments(k, self._layout(k, size, listed))
        )
        # Copies of the points share `programs`: the name has what differs in them.
        name = k, size, listed, self.most, bool(self.key_digits)
        made = self.programs.get(name, lambda: self._made(k, selected, args))
        return made, args

    def _made(
        self, k: int, selected: Selected, args: Arguments, probe: bool = False
    ) -> Runner:
        traced, listed = self.traced[k], isinstance(selected, ByTable)
        layout = self._layout(k, self.largest_batch, listed)
        split = traced.split(layout.batch_size, self.devices[0].platform)
        lane_of, programs = point_lane(traced.jaxpr, layout), [traced.fingerprint]
        how = traced, programs, lane_of, traced.stored, layout
        return Runner(*how, selected, args, split=split, probe=probe)

    def program(self, k: int, probe: bool = False) -> jax.stages.Compiled:
        """Return the compiled program of a case, without placing its arguments.

        A `probe` is compiled for its memory alone, without autotuning.
        """
        some = np.zeros(1, np.int64)
        selected: Selected = ByOffset(self.geometry.start)
        if self.are_listed:
            selected = ByTable(self.geometry, some, some)
        layout = self._layout(k, self.largest_batch, self.are_listed)
        return self._made(k, selected, self.arguments(k, layout), probe).kernel

    def fitted(self, probes: int = 1) -> "Points":
        """Return the points in batches that fit, if memory limits their size.

        The compiler knows the memory of a program better than the jaxpr. It is asked on
        accelerators, and only if a batch may need much of the memory.
        """
        points = self
        # Outputs of a call stay on the devices beside the batch.
        reserved = CHUNK_BYTES // len(self.devices)
        for k, traced in enumerate(self.traced if self.wanted else []):
            free = may_not_fit(traced.analysis, self.wanted, self.devices)
            if free is not None:
                wanted = self.with_batch_size(self.wanted)
                fits = wanted.largest_in(k, free - reserved, probes)
                size = fits or self.batch_size
                points = points.with_batch_size(
                    size if points is self else min(size, points.batch_size)
                )
        return points

    def largest_in(self, k: int, free: int, probes: int = 2) -> int:
        """Return the largest batch size up to this one whose program fits, or 0."""

        def bytes_of(size: int) -> tuple[int, int] | None:
            points, probe = self.with_batch_size(size), 4 * size <= most
            with contextlib.suppress(TooLarge):
                return bytes_of_program(points.program(k, probe))

        most, alive = self.batch_size, self.traced[k].analysis.alive
        return largest_that_fits(bytes_of, most, free, alive, probes)

    def arguments(self, k: int, layout: Layout) -> Arguments:
        """Return the arguments of the program of a case, besides the points."""
        tables = [
            self.key_digits[dim] for dim in self.geometry.key_dims if self.key_digits
        ]
        constants = self.traced[k].fingerprint.constants
        if layout.literals is not None:
            constants = arguments_of(layout.literals, constants)
        columns = layout.columns([x for _, _, x in self.geometry.tabled])
        arrays = self._arrays
        return Arguments(
            arrays, constants, self.key, key_digits=tables, columns=columns
        )

    def on_devices(self, name: Any, make: Callable[[], Arguments]) -> Arguments:
        """Return the arguments of a program on the devices: they may be large."""
        if name not in self.placed:
            self.placed[name] = put(make(), everywhere(self.devices))
        return self.placed[name]

    @ft.cached_property
    def _literals(self) -> list[Literals]:
        return [literals_of(traced.fingerprint) for traced in self.traced]

    @ft.cached_property
    def _sizes(self) -> tuple[int, ...]:
        """The numbers in a value of each axis that has a table."""
        return tuple(math.prod(x.shape[1:]) for _, _, x in self.geometry.tabled)

    @ft.cached_property
    def _arrays(self) -> list[Any]:
        return arrays_of(self.geometry, self.space.key)

    @ft.cached_property
    def static_values(self) -> StaticValues:
        """The positions of equal static values on each dim."""
        return static_values_of(self.geometry)

    def layout(self, k: int = 0, **options: Any) -> Layout:
        """Return a layout for the points of a case on these devices."""
        geometry = self.geometry
        grid = geometry.lengths, geometry.key_dims
        options["key_digits"] = bool(self.key_digits)
        if self.literal:
            options["literals"] = self._literals[k]
        options["row_dims"] = tuple(dim for _, dim, _ in geometry.tabled)
        options["row_sizes"] = self._sizes
        return Layout(*grid, devices=self.devices, **options)

    def _layout(self, k: int, batch_size: int, listed: bool) -> Layout:
        case, traced = self.cases[k], self.traced[k]
        # A listed point needs memory for its row in the table.
        width = len(self.geometry.lengths) + sum(n for n in self._sizes if n <= NARROW)
        row = jax.ShapeDtypeStruct((width + 2,), jnp.uint32)
        held = [*traced.outputs, *([row] if listed else [])]
        batch_size, num_devices = min(batch_size, case.size), len(self.devices)
        most = min(case.size, self.most)
        found = traced.analysis
        return self.layout(
            k,
            batch_size=batch_size,
            capacity=chunk_capacity(most, batch_size, num_devices, held),
            listed=listed,
            # Only points that take equally long may be given out in runs.
            dealt=listed or found.waits or found.refilled or found.kernels,
            unsplit=all_busy(self.devices, -(-most // batch_size)),
        )
