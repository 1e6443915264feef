"""The host's side of a running sweep: kept programs, and the loop of chunks."""

import collections
import contextlib
import re
import threading
from typing import Any

import jax
import jax.random as jr
import numpy as np

from .._errors import SweepError, message
from .._spaces.index import digits_of, strides
from .._types import Key
from .kernel import Layout, build, control, everywhere
from .plan import empty_values
from .program import Program, identify
from .progress import Progress
from .trace import Traced

_KEPT = 128
_RAISED = re.compile(r"[\w.]*(Error|Exception)\w*: ")
_kernels: collections.OrderedDict[Any, Any] = collections.OrderedDict()
_lock = threading.Lock()


def execute(
    traced: Traced,
    window: tuple[int, int, int],
    key: Key | None,
    layout: Layout,
    progress: Progress,
) -> list[Any]:
    """The output leaves of all points, on the host.

    `window` has the first point's index in the grid, the step to the next, and how
    many there are.
    """
    start, step, size = window
    table = strides(step, layout.lengths) if layout.strided else None
    program = identify(traced.jaxpr)
    placement = everywhere(layout)
    arguments = jax.device_put((traced.arrays, program.constants, key), placement)
    told = control(0, 0, 0, digits_of(start, layout.lengths))
    kernel = _kernel(traced, program, layout, (told, table, *arguments))
    values: list[Any] = empty_values(size, traced.stored)
    done = 0
    across = layout.batch_size * len(layout.devices)
    while done < size:
        left = -(-(size - done) // across)
        count = min(layout.capacity, progress.count(left, across))
        points = min(size - done, count * across)
        digits = digits_of(start + step * done, layout.lengths)
        told = control(points, count, done, digits)
        try:
            outputs = kernel(told, table, *arguments)
            _collect(outputs, values, done, points, count, layout)
        except jax.errors.JaxRuntimeError as error:
            raise _failed(error, done, points) from error
        except Exception as error:
            # What JAX raises inside for `jax_debug_nans`, and `jit` would translate.
            if type(error).__name__ == "InternalFloatingPointError":
                raise FloatingPointError(
                    f"invalid value in the sweep: {error}"
                ) from None
            raise
        done += points
        progress.done(points)
    return [
        leaf if kind is None else jr.wrap_key_data(leaf, impl=kind)
        for leaf, kind in zip(values, traced.key_kinds, strict=True)
    ]


def _kernel(
    traced: Traced, program: Program, layout: Layout, arguments: tuple[Any, ...]
) -> Any:
    """The compiled kernel of a program, made unless there is one already."""
    place = (program.identity, layout)
    with _lock:
        entry = _kernels.get(place)
        if entry is not None and entry[0].still_valid():
            _kernels.move_to_end(place)
            return entry[1]
    made = build(traced.jaxpr, traced.stored, layout).lower(*arguments).compile()
    # Kept without its arrays, which may be large and are handed in anew each time.
    kept = program.without_constants()
    with _lock:
        _kernels[place] = (kept, made)
        while len(_kernels) > _KEPT:
            _kernels.popitem(last=False)
    return made


def _collect(
    outputs: list[Any],
    values: list[np.ndarray],
    done: int,
    points: int,
    count: int,
    layout: Layout,
) -> None:
    """Copies what one call computed to its place, without the repeated tail."""
    block = layout.capacity * layout.batch_size
    full = count * layout.batch_size
    for out, into in zip(outputs, values, strict=True):
        for shard in out.addressable_shards:
            device = (shard.index[0].start or 0) // block
            first, last = device * full, min((device + 1) * full, points)
            if first < last:
                into[done + first : done + last] = np.asarray(shard.data)[
                    : last - first
                ]


def _failed(error: Exception, done: int, points: int) -> SweepError:
    # Devices that failed too would otherwise say so when Python exits.
    with contextlib.suppress(Exception):
        jax.effects_barrier()
    reasons = [line for line in str(error).splitlines() if _RAISED.match(line)]
    reason = reasons[-1] if reasons else str(error).splitlines()[0]
    return SweepError(
        message(
            "sweep",
            f"`fn` failed at one of the points {done} to {done + points - 1}: {reason}",
            "Call `fn(space.point(i))` on these points to find it.",
        )
    )
