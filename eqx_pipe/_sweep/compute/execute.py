"""The host's side of a running sweep: kept programs, and the loop of chunks."""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import jax
import numpy as np

from ..._cache import LRUCache
from ..._jaxprs.cache_key import Program
from ..._types import Key
from ..tracing.trace import Traced
from .failure import Failures, quiet
from .kernel import Layout, build, by_device, everywhere
from .nonfinite import as_nonfinite, check_finite
from .partition import Partition
from .placed import put
from .points import Listed, Neighbours
from .progress import Progress
from .threads import compiled

Compiled: TypeAlias = jax.stages.Compiled
"""A program for devices of this process."""

_kernels = LRUCache(128)


class Runner:
    """The program of one part of a sweep with its arguments on the devices."""

    def __init__(
        self,
        traced: Traced,
        points: Neighbours | Listed,
        key: Key | None,
        layout: Layout,
    ):
        program = traced.program
        arguments = (traced.arrays, program.constants, key)
        self._arguments = put(arguments, everywhere(layout))
        self._layout = layout

        def make() -> Any:
            traced.note_compilation(layout)
            kernel = build(traced.jaxpr, traced.stored, layout)
            args = points.kernel_args(0, 1, layout)
            return compiled(kernel.lower(*args, *self._arguments), layout.unsplit)

        self._kernel = compiled_once([program], layout, make)

    def run(
        self,
        points: Neighbours | Listed,
        span: tuple[int, int],
        base: int,
        progress: Progress,
        values: list[np.ndarray],
        caught: Failures,
    ) -> None:
        """Computes the points of a span and puts their outputs in their place.

        The first row of `values` is that of the point `base` of the space.
        """
        layout, kernel = self._layout, self._kernel
        across = layout.batch_size * len(layout.devices)

        def compute(first: int, now: int) -> Exception | None:
            args = points.kernel_args(first, now, layout)
            try:
                outputs = kernel(*args, *self._arguments)
                check_finite(outputs)
                places = points.places(first, first + now)
                _collect(outputs, values, places, base, layout.partition(now))
            except jax.errors.JaxRuntimeError as error:
                # JAX would complain about it again when Python exits, unless something
                # else has run on the device since: no points at all.
                nothing, table = points.kernel_args(first, 1, layout)
                nothing[0] = 0
                kernel(nothing, table, *self._arguments)
                return error
            except Exception as error:
                return as_nonfinite(error)
            return None

        done, end = span
        with quiet():
            while done < end:
                left = -(-(end - done) // across)
                count = min(layout.capacity, progress.count(left, across))
                now = min(end - done, count * across)
                if compute(done, now) is not None:
                    caught.found(compute, points.indices, base, done, now, values)
                    progress.failed(caught.count)
                done += now
                progress.done(now)


def compiled_once(
    programs: Sequence[Program], layout: Any, make: Callable[[], Any]
) -> Any:
    """What `make` compiles from some programs, unless it is there already."""
    place = (tuple(program.cache_key for program in programs), layout)
    entry = _kernels.get(place)
    if entry is not None and all(program.still_valid() for program in entry[0]):
        return entry[1]
    made = make()
    # Kept without their arrays, which may be large and are handed in anew each time.
    kept = tuple(program.without_constants() for program in programs)
    _kernels.put(place, (kept, made))
    return made


def _collect(
    outputs: list[Any],
    values: list[np.ndarray],
    places: slice | np.ndarray,
    base: int,
    partition: Partition,
) -> None:
    """Copies what one call computed to its places, without the repeated tails."""
    for out, into in zip(outputs, values, strict=True):
        for device, shard in enumerate(by_device(out)):
            data = np.asarray(shard)
            if isinstance(places, slice):
                rows = into[places.start - base : places.stop - base]
                for place, own in partition.stretches(rows, data, device):
                    place[...] = own
            else:
                for place, own in partition.stretches(places - base, data, device):
                    into[place] = own
