"""A compiled program and its calls, and what the plan of a sweep keeps of programs.

The range of points that a program computes is data. So a call that failed for many
points is repeated for half of them, and so on, without another compilation. Only trying
tells the memory that a batch needs: other programs use the device too, and CPUs do not
report their memory.
"""

import contextlib
import threading
from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeAlias, TypeVar

import jax
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Array

from ..._jaxprs import Fingerprint, Split
from ..._run import (
    CONTROLS,
    Pace,
    TooLarge,
    as_nonfinite,
    check_finite,
    compiled,
    is_stopped,
    noting,
    stoppable,
)
from ..trace.trace import Traced, abstract
from .in_steps import batched_in, build_split, state_of
from .layout import (
    COUNT,
    Arguments,
    ByTable,
    Layout,
    Partition,
    Place,
    Selected,
    each_its_rows,
)
from .whole import LaneOf, build

# XLA splits a step of a program over its threads if it estimates that the step is long,
# even if every core has its own device. The devices then wait for each other's threads:
# loops of short steps took up to 1.7 times as long.
_UNSPLIT: dict[str, Any] = {"xla_disable_hlo_passes": "cpu-parallel-task-assigner"}


Saved: TypeAlias = tuple[np.ndarray, np.ndarray, list[np.ndarray]]
"""The place, the sources of lanes and the state of a split program, on the host."""


_Made = TypeVar("_Made")


class Programs:
    """The programs and traces of a plan, and the batch sizes that did not fit.

    This is the only part of a plan that changes while it runs. Copies of the points
    share it, so none of them compiles a program or tries a size again.
    """

    def __init__(self) -> None:
        self.too_large: list[int] = []
        self._most: int | None = None
        self._made: dict[Hashable, Any] = {}
        # Threads of an executor share a sweep; to make a program takes traces.
        self._lock = threading.RLock()

    def fitting(self, batch_size: int) -> int:
        """Return `batch_size`, or the largest size that may fit."""
        return batch_size if self._most is None else min(batch_size, self._most)

    def note(self, too_large: int, then: int) -> None:
        """Record that a size did not fit, and the size to continue with."""
        with self._lock:
            if self.fitting(too_large) == too_large:
                self.too_large.append(too_large)
                self._most = then

    def get(self, key: Hashable, make: Callable[[], _Made]) -> _Made:
        """Return the program or trace of a key, which `make` makes the first time."""
        with self._lock:
            if key not in self._made:
                self._made[key] = make()
            return self._made[key]


class Runner:
    """A compiled program, which is called for rows: points of a case, or blocks.

    It is made from `programs` by `lane_of`. If not `finite`, its `outputs` may begin
    with inf.
    """

    def __init__(
        self,
        traced: Traced,
        programs: Sequence[Fingerprint],
        lane_of: LaneOf,
        outputs: Sequence[jax.ShapeDtypeStruct],
        layout: Layout,
        points: Selected,
        args: Arguments,
        finite: bool = True,
        split: Split | None = None,
        probe: bool = False,
    ):
        """Compile the program unless it is cached; `points` are examples of points.

        If it is `split`, a call may stop inside of a batch. A `probe` is not run.
        """
        self.layout, self.finite, self.name = layout, finite, traced.name
        self.split, self.pace = split, Pace()
        # A signal stops a kernel, and with it all batches of a call.
        self.may_stop = traced.has_kernels

        def lower() -> jax.stages.Lowered:
            selected = points.kernel_args(0, 1, layout)
            # Not NumPy arrays: with several processes JAX does not lower a program for
            # NumPy arrays that are split over devices, even if all devices belong to
            # this process.
            structs = jtu.tree_map(abstract, (*selected, args))
            if split is None:
                return build(lane_of, outputs, layout).lower(*structs)
            control, table, types = structs
            batched = batched_in(split, layout, types)
            kernel = build_split(split, outputs, layout, batched)
            state = state_of(split, layout, batched)
            place, sources = map(abstract, fresh_lanes(layout))
            return kernel.lower(control, table, place, sources, state, types)

        options = _UNSPLIT if layout.unsplit else None
        # What is compiled in besides the jaxprs, such as where loops are split.
        place: Any = layout
        if split is not None:
            place = layout, split.at, *(loop.unit for loop in split.loops)
        if probe and layout.devices[0].platform in ("cuda", "gpu"):
            options, place = {"xla_gpu_autotune_level": 0}, (place, "probe")
        with noting(layout.points_at_once):
            self.kernel = compiled(programs, place, lower, options)

    def calling(
        self, args: Arguments, points: Selected, values: list[np.ndarray]
    ) -> Callable[[int, int], Exception | None]:
        """Return a function that computes some points in one call, into `values`.

        It takes the first point and their number, and returns the error if one of them
        fails. It raises a `TooLarge` if there is not enough memory.
        """

        # Values are written after the whole call, so one that fails changes none, and a
        # search may compute any of its points again.
        def compute(first: int, count: int) -> Exception | None:
            def call() -> None:
                selected = selecting(points, first, count, self.layout)
                outputs = self.kernel(*selected, args)
                check_finite(outputs, infs=self.finite)
                rows = points.rows(first, first + count)
                _collect(outputs, values, rows, self.layout.partition(count))

            return self.guarded(args, points, first, call)

        return compute

    def guarded(
        self, args: Arguments, points: Selected, first: int, call: Callable[[], None]
    ) -> Exception | None:
        """Return the error of `call` if a point fails in it.

        Raises a `TooLarge` if there is not enough memory, and a `Stopped` if a signal
        stopped a kernel.
        """
        with stoppable("sweep", self.may_stop):
            try:
                with noting(self.layout.points_at_once):
                    call()
            except Exception as error:
                raised = isinstance(error, TooLarge | jax.errors.JaxRuntimeError)
                if raised or is_stopped(error):
                    self._settle(args, points, first)
                if isinstance(error, TooLarge) or is_stopped(error):
                    raise
                if isinstance(error, jax.errors.JaxRuntimeError):
                    return error
                return as_nonfinite(error)
        return None

    def _settle(self, args: Arguments, points: Selected, first: int) -> None:
        """Run the program once more after an error, for no points at all.

        JAX would report the error again when Python exits, unless another program has
        run on the device since.
        """
        if isinstance(points, ByTable):
            # If a batch is the whole table, XLA moves it out of the loop and computes
            # it even for no points: then compute another point.
            points, first = points.of(np.zeros(1, np.int64)), 0
        nothing, table = points.kernel_args(first, 1, self.layout)
        nothing[:, COUNT] = 0
        middle: tuple[Any, ...] = ()
        if self.split is not None:
            place, sources, state = self.fresh()
            middle = place, sources, self.placed(state)
        with contextlib.suppress(jax.errors.JaxRuntimeError, ValueError):
            jax.block_until_ready(self.kernel(nothing, table, *middle, args))

    @property
    def state(self) -> Sequence[jax.ShapeDtypeStruct]:
        """The shapes and dtypes of the state between two calls, of all devices."""
        if self.split is None:
            return []
        leaves = self.kernel.args_info[0][4]
        return [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in leaves]

    def fresh(self) -> Saved:
        """Return the place, the sources of lanes and the state before all batches."""
        state = [np.zeros(x.shape, x.dtype) for x in self.state]
        return *fresh_lanes(self.layout), state

    def placed(self, state: Sequence[np.ndarray]) -> list[jax.Array]:
        """Return a state on the devices."""
        return jax.device_put(list(state), each_its_rows(self.layout))


def fresh_lanes(layout: Layout) -> tuple[np.ndarray, np.ndarray]:
    """Return the place before all batches, and lanes that compute their own points."""
    devices, lanes = len(layout.devices), np.arange(layout.batch_size, dtype=np.uint32)
    return np.zeros((devices, 4), np.uint32), np.tile(lanes, devices)


def by_device(out: Array) -> list[Array]:
    """Return each device's part of an output of `over_devices`, in their order."""
    # `.addressable_shards` would compute indices that are known here.
    return [out.addressable_data(k) for k in range(out.sharding.num_devices)]


def _collect(
    outputs: list[Any], values: list[np.ndarray], rows: Place, partition: Partition
) -> None:
    """Copy the outputs of one call to their rows, without padding."""
    for out, into in zip(outputs, values, strict=True):
        for device, shard in enumerate(by_device(out)):
            data, mine = np.asarray(shard), partition.own(device)
            if isinstance(rows, slice):
                place = into[rows][mine]
                place[...] = data[: len(place)]
            else:
                place = rows[mine]
                into[place] = data[: len(place)]


def selecting(points: Selected, first: int, now: int, layout: Layout) -> Any:
    """Return control and table, which may be on the devices already.

    A call takes a fifth of the time if nothing must be copied to devices.
    """
    if isinstance(points, ByTable):
        return points.kernel_args(first, now, layout)
    place = points, first, now, layout
    args = CONTROLS.get(place)
    if args is None:
        control, table = points.kernel_args(first, now, layout)
        args = jax.device_put(control, each_its_rows(layout)), table
        CONTROLS.put(place, args)
    return args
