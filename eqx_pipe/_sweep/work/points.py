"""The points of a sweep as work: traced, with a batch size, ready to be computed.

Most sweeps have one case. Sweeps with `Static` axes have a case for each combination of
static values: the function is traced once for each, and the outputs of all cases are
compared before anything is computed.
"""

import contextlib
import dataclasses
import functools as ft
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Float, Int64, UInt32

from ..._compiled import bytes_of_program
from ..._errors import MissingKeyError, SweepError, log_once, value_error
from ..._jaxprs import Literals, Split, arguments_of, literals_of, settled
from ..._run import (
    TooLarge,
    Watch,
    clock,
    differs,
    does_not_fit,
    error_text,
    failed_point,
    put,
    quiet,
    search,
)
from ..._spaces import Geometry, Space, is_axis
from ..._tree import as_keys
from ..._types import Device, Key, PyTree
from ..._vmap import (
    all_busy,
    choose_batch_size,
    largest_that_fits,
    may_not_fit,
    warn_if_it_may_hang,
)
from ..program.in_steps import batched_in, state_of
from ..program.layout import (
    CHUNK_BYTES,
    NARROW,
    Arguments,
    Layout,
    chunk_capacity,
    everywhere,
    nbytes,
)
from ..program.runner import Programs, Runner
from ..program.select import ByOffset, ByTable, Selected
from ..program.whole import point_lane
from ..trace.cases import (
    Case,
    StaticValues,
    case_numbers,
    cases_of,
    check_agree,
    naming,
    points_of_a_case,
    static_values_of,
)
from ..trace.kept import kept
from ..trace.trace import Traced, abstract, arrays_of, check_concrete, trace
from .buffer import Asked, Buffer, Rows, clear, whole
from .flight import Begun, Flight
from .order import lines, may_wait, order_of, ranks
from .work import Work

_LISTED_AT_ONCE = 2**22
"""The maximum number of points sorted into cases at once; each takes about 30 bytes."""

# Offsets within a call have 32 bits, with room for a tail of one batch more. Batches of
# some thousands are no slower than larger ones.
_AT_ONCE = 2**30


@dataclasses.dataclass(frozen=True, eq=False)
class Points(Work):
    """Points that are ready to be computed: rows of a sweep, or the inputs of rows.

    An automatic `batch_size` (`adapts`) is halved if memory does not suffice; `wanted`
    is the size without regard to memory. If `literal`, small arrays that the function
    closes over are part of its program. Points
    are `ordered` if they come with costs, or by arbitrary indices; a call computes at
    most `most` points. On a grid they share batches in the order that suits their
    loops, if it `turns`. Failed points are `isolated`, or else end the sweep. `broken`
    has the cases for which tracing the function raises, with the errors: they have no
    program, and their points failed. Copies share `programs`, and unless their values
    differ what is `placed`: the arguments on the devices, and the order of the points.
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
    turns: bool = True
    isolated: bool = False
    broken: tuple[tuple[Case, str], ...] = ()
    adapts: bool = False
    wanted: int = 0
    literal: bool = False
    function: str = "sweep"
    reducers: ClassVar[None] = None
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

    def with_points(self, points: "Points") -> "Points":
        """Return other points."""
        return points

    @property
    def points(self) -> "Points":
        """The points themselves."""
        return self

    @property
    def size(self) -> int:
        """The number of points."""
        return self.geometry.size

    @property
    def row(self) -> list[jax.ShapeDtypeStruct]:
        """The shape and dtype of each leaf of an output; PRNG keys are raw data."""
        return self.traced[0].stored

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

    def unflatten(self, rows: Rows) -> PyTree:
        """Return the outputs as the function gives them, with keys from raw data."""
        first = self.traced[0]
        leaves = list(map(as_keys, rows, first.outputs))
        return jtu.tree_unflatten(first.structure, leaves)

    def span(self, first: int, last: int) -> tuple[int, int]:
        """Return the range of points of a range of rows, which is the same."""
        return first, last

    def _calls(self, buffer: Buffer, watch: Watch) -> Iterator[tuple[int, int]]:
        index, costs = buffer.index, buffer.asked.costs
        order = buffer.order = self._order(watch)
        if buffer.resumed is not None and buffer.resumed.entries["order"] != order:
            buffer.resumed = None
        if isinstance(index, range) and not self._listed and order is None:
            points = ByOffset(self.geometry.start + index.start)
            yield from self._in_batches((0, 0), points, len(index), buffer, watch)
            return
        most = _LISTED_AT_ONCE if costs is None else max(1, len(index))
        for first in range(0, len(index), most):
            listed = np.asarray(index[first : first + most], np.int64)
            if order is not None:
                costs = ranks(self.geometry.lengths, order, listed)
            yield from self._cases(listed, first, costs, buffer, watch)

    def _order(self, watch: Watch) -> list[int] | None:
        """Return the dims of the grid, the fastest last, or `None` as written."""
        first, grid = self.traced[0], self.geometry.lengths
        is_part = self._listed or self.geometry.is_part
        if is_part or not self.turns or self.batch_size == 1:
            return None
        if "order" not in self.placed and may_wait(first, grid):
            watch.compile()
            index, order = lines(grid), None
            changed: dict[str, Any] = {"traced": [first.counting], "placed": {}}
            changed |= {"ordered": True, "isolated": False, "programs": Programs()}
            counting = dataclasses.replace(self, **changed, most=index.size)
            asked = Asked(0, 0, index.size, index.ravel())
            with contextlib.suppress(SweepError, FloatingPointError):
                parts = counting.compute(asked, Watch(None, watch.stopping))
                values, verdict = whole(parts)
                if verdict.missing is not None:
                    return None  # it was stopped
                order = order_of(grid, values[-2].reshape(index.shape))
            self.placed["order"] = order
        return self.placed.get("order")

    def _cases(
        self,
        index: Int64[np.ndarray, " points"],
        first: int,
        costs: Float[np.ndarray, " rows"] | None,
        buffer: Buffer,
        watch: Watch,
    ) -> Iterator[tuple[int, int]]:
        """Compute points case by case; `first` is the row of the first of them."""
        numbers = case_numbers(self.geometry, self.static_values, index)
        for case, error in self.broken:
            rows = np.flatnonzero(numbers == case.number)
            if len(rows) and buffer.resumed is None:
                self._clear(buffer, first + rows, error)
                buffer.finish(first + rows)
                yield len(rows), len(rows)
        for k, case in enumerate(self.cases):
            rows = np.flatnonzero(numbers == case.number)
            if costs is not None:  # ties in order, NaN last
                rows = rows[np.argsort(costs[rows], kind="stable")]
            if len(rows):
                points = ByTable(self.geometry, index[rows], first + rows)
                yield from self._in_batches(
                    (first, k), points, len(rows), buffer, watch
                )

    def _in_batches(
        self,
        which: tuple[int, int],
        points: Selected,
        count: int,
        buffer: Buffer,
        watch: Watch,
    ) -> Iterator[tuple[int, int]]:
        """Compute points of a case, in batches for which there is enough memory.

        `which` has the slice of the rows and the case.
        """
        done, k, resumed = 0, which[1], buffer.resumed
        if resumed is not None:
            if resumed.call[:2] != which:
                return  # they were finished before
            done, buffer.resumed = resumed.call[2], None
        while done < count and not watch.stopping():
            try:
                watch.compile()
                runner, args = self._runner(k, points)
                watch.begin()
                if watch.stopping():
                    return
                layout = runner.layout
                across = layout.batch_size * len(layout.devices)
                batches = layout.capacity
                if runner.split is None and (watch.paced or runner.may_stop):
                    batches = min(batches, runner.pace.steps)
                now = min(count - done, across * batches)
                if runner.split is not None:
                    call = points, buffer.values, which, done, now
                    begun = Begun(runner, args, *call)
                    if resumed is not None:
                        begun.resume(resumed)
                    resumed = None
                    yield from self._in_steps(begun, buffer, watch)
                    done += now
                    continue
                compute = ft.partial(runner.compute, args, points, buffer.values)
                before = clock()
                with quiet():
                    error = compute(done, now)
                    failures = []
                    if error is not None:
                        failures = search(compute, done, now, not self.isolated)
                        if not (failures or self.isolated):
                            raise differs(self.function, now)
            except TooLarge as error:
                # What is finished stays; the next round makes a smaller program.
                self.halve(error)
                continue
            runner.pace.record(-(-now // across), clock() - before, watch.call_seconds)
            self._mark(failures, points, buffer)
            buffer.finish(points.rows(done, done + now))
            done += now
            if watch.whole:
                # Finished rows wait in the buffer, so a kill must find them in a flight
                # even if no point is inside of a batch.
                between = Flight((*which, done, 0), self.largest_batch)
                buffer.in_flight = lambda flight=between: flight
            yield now, len(failures)

    def _in_steps(
        self, begun: Begun, buffer: Buffer, watch: Watch
    ) -> Iterator[tuple[int, int]]:
        """Compute points by a program that may stop inside of a batch."""
        while not begun.ended and not watch.stopping():
            failures: list[tuple[int, Exception]] | None = []
            with quiet():
                if begun.advance(watch.call_seconds) is not None:
                    failures = begun.isolate(only_first=not self.isolated)
            if failures is None:
                raise differs(self.function, begun.count)
            self._mark(failures, begun.points, buffer)
            buffer.finish(begun.rows(begun.finished))
            keeps = watch.hands_over and (watch.whole or not begun.ended)
            buffer.in_flight = begun.flight if keeps else None
            watch.bar.inside(*begun.progress())
            yield len(begun.finished), len(failures)

    def _mark(
        self,
        failures: Sequence[tuple[int, Exception]],
        points: Selected,
        buffer: Buffer,
    ) -> None:
        """Record that points failed, and clear their rows.

        Unless failures are isolated, raises a `SweepError` that names the first one, or
        a `FloatingPointError` under `jax_debug_nans`.
        """
        for at, error in failures:
            rows = np.arange(len(buffer.index))[points.rows(at, at + 1)]
            if not self.isolated:
                i = self.geometry.index_as_written(int(buffer.index[int(rows[0])]))
                raise failed_point(self.function, i, error) from error
            self._clear(buffer, rows, error_text(error))

    def _clear(
        self, buffer: Buffer, rows: Int64[np.ndarray, " failed"], text: str
    ) -> None:
        clear(buffer.values, rows)
        numbers = np.asarray(buffer.index, np.int64)[rows]
        buffer.fail(rows, {text: numbers}, len(rows))

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
            layout = self._layout(k, self.largest_batch, self._listed)
            args = jtu.tree_map(abstract, self.arguments(k, layout))
            state = state_of(split, layout, batched_in(split, layout, args))
            flights.append((nbytes(state), split.steps))
        largest = max(flights, key=lambda each: each[0], default=None)
        return None if largest is None else (largest[1], largest[0])

    @property
    def _listed(self) -> bool:
        geometry = self.geometry
        return self.ordered or bool(geometry.static_dims) or geometry.rows is not None

    def _runner(self, k: int, selected: Selected) -> tuple[Runner, Arguments]:
        """Return the program for some points of a case, and its arguments."""
        listed, size = isinstance(selected, ByTable), self.largest_batch
        args = self.on_devices(
            (k, size, listed),
            lambda: self.arguments(k, self._layout(k, size, listed)),
        )
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
        if self._listed:
            selected = ByTable(self.geometry, some, some)
        layout = self._layout(k, self.largest_batch, self._listed)
        return self._made(k, selected, self.arguments(k, layout), probe).kernel

    def fitted(self, probes: int = 1) -> "Points":
        """Return the points in batches that fit, if memory limits their size.

        The compiler knows the memory of a program better than the jaxpr. It is asked on
        accelerators, and only if a batch may need much of the memory.
        """
        points = self
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
            dealt=listed or found.waits or found.refilled or found.kernels,
            unsplit=all_busy(self.devices, -(-most // batch_size)),
        )


def prepare(
    fn: Callable[..., Any],
    space: Space,
    key: Key | None,
    batch_size: Any,
    devices: tuple[Device, ...],
    *,
    ordered: bool = False,
    shares: int = 1,
    isolated: bool = False,
    counting: bool = False,
    function: str = "sweep",
    detached: bool = False,
    lasting: bool = False,
) -> Points:
    """Trace a function on a space, for each combination of static values.

    A trace of an earlier call is used if it would be the same (`kept.py`). An
    automatic batch size is chosen for one of `shares` processes. If failures are
    `isolated`, static values for which tracing the function raises are recorded. With
    `counting`, outputs are `(output, needed, executed)`, with the steps of loops. If
    traces are `detached`, they copy the NumPy arrays of the function. A `lasting` sweep
    may be continued in another process, which computes the same bits.
    """
    geometry = space.geometry
    options = function, isolated, counting, detached
    make = ft.partial(_traced, fn, space, key, geometry, *options)
    cases, traced, broken = kept(fn, space, key, options, make)
    check_concrete(function, [*arrays_of(geometry, space.key), key])
    adapts, wanted = batch_size == "auto", 0
    if adapts and any(each.has_effects for each in traced):
        batch_size = 1  # without padding that repeats a point, or lanes that wait
    elif adapts:
        choose = ft.partial(choose_batch_size, devices=devices, alike=ordered)
        pairs = [
            (each.analysis, max(1, -(-case.size // shares)))
            for each, case in zip(traced, cases, strict=True)
        ]
        reserved = CHUNK_BYTES // len(devices)
        batch_size = min(choose(each, n, reserved=reserved) for each, n in pairs)
        wanted = min(choose(each, n, reserved=None) for each, n in pairs)
    batch_size = min(int(batch_size), max(1, *(case.size for case in cases)))
    if batch_size > (most := _AT_ONCE // len(devices)):
        raise value_error(
            function,
            f"`batch_size` is {batch_size} on {len(devices)} devices.",
            f"Offsets in a batch have 32 bits: give at most {most}. Batches of some "
            "thousands are no slower.",
        )
    for each in traced:
        warn_if_it_may_hang(batch_size, each.analysis.linalg_limit, devices)
    # What a process has computed before must not change the program of a lasting sweep.
    literal = settled([each.fingerprint for each in traced]) or lasting
    points = Points(
        space=space,
        geometry=geometry,
        key=key,
        cases=cases,
        traced=traced,
        batch_size=batch_size,
        devices=devices,
        ordered=ordered,
        most=geometry.size,
        isolated=isolated,
        broken=broken,
        adapts=adapts,
        wanted=wanted,
        literal=literal,
        function=function,
    )
    return points if function == "plan" else points.fitted()


def _traced(
    fn: Callable[..., Any],
    space: Space,
    key: Key | None,
    geometry: Geometry,
    function: str,
    isolated: bool,
    counting: bool,
    detached: bool,
) -> tuple[list[Case], list[Traced], tuple[tuple[Case, str], ...]]:
    """Return the cases with their traces, and the cases that raised with their errors.

    Raises the error of the function unless it is isolated and other cases remain.
    """
    cases, traced, broken = [], [], []
    for case in cases_of(geometry):
        try:
            with naming(case):
                made = trace(function, fn, space, key, case.plain, geometry)
        except MissingKeyError:
            raise
        except Exception as error:
            broken.append((case, error, error_text(error)))
            if not isolated:
                raise
            continue
        cases.append(case)
        traced.append(made)
    if not cases:
        raise broken[0][1]
    for case, _, what in broken:
        text = "eqx_pipe.sweep: `fn` fails for `%s`, which is left out: %s."
        log_once(f"{case.name}: {what}", text, case.name, what)
    outputs = [jtu.tree_unflatten(each.structure, each.outputs) for each in traced]
    check_agree(function, cases, outputs)
    if counting:
        traced = [each.counting for each in traced]
    if detached:
        traced = [each.detached() for each in traced]
    return cases, traced, tuple((case, what) for case, _, what in broken)
