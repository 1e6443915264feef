"""The host's side of a running sweep: kept programs, and the loop of chunks."""

import collections
import contextlib
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from .._errors import SweepError, message
from .._types import Key
from .failure import Failures, quiet
from .kernel import Layout, build, everywhere
from .points import Listed, Neighbours
from .program import Program, identify
from .progress import Progress
from .trace import Traced

_KEPT = 128
_RAISED = re.compile(r"[\w.]*(Error|Exception)\w*: ")
_kernels: collections.OrderedDict[Any, Any] = collections.OrderedDict()
_lock = threading.Lock()


def execute(
    traced: Traced,
    points: Neighbours | Listed,
    key: Key | None,
    layout: Layout,
    progress: Progress,
    values: list[np.ndarray],
    caught: Failures,
) -> None:
    """Computes the output leaves of some points and puts them in their place."""
    program = identify(traced.jaxpr)
    placement = everywhere(layout)
    arguments = jax.device_put((traced.arrays, program.constants, key), placement)
    told = points.told(0, 1, 1, layout)

    def make() -> Any:
        kernel = build(traced.jaxpr, traced.stored, layout)
        return kernel.lower(*told, *arguments).compile()

    kernel = compiled_once([program], layout, make)
    across = layout.batch_size * len(layout.devices)

    def compute(first: int, now: int) -> Exception | None:
        count = -(-now // across)
        try:
            outputs = kernel(*points.told(first, now, count, layout), *arguments)
            _collect(outputs, values, points, first, now, count, layout)
        except jax.errors.JaxRuntimeError as error:
            # JAX would complain about it again when Python exits, unless something
            # else has run on the device since: no points at all.
            nothing, table = points.told(first, 1, 1, layout)
            nothing[0] = 0
            kernel(nothing, table, *arguments)
            return error
        except Exception as error:
            # What JAX raises inside for `jax_debug_nans`, and `jit` would translate.
            if type(error).__name__ != "InternalFloatingPointError":
                raise
            if caught.isolated:
                return error
            raise FloatingPointError(f"invalid value in the sweep: {error}") from None
        return None

    done = 0
    with quiet():
        while done < points.size:
            left = -(-(points.size - done) // across)
            count = min(layout.capacity, progress.count(left, across))
            now = min(points.size - done, count * across)
            if compute(done, now) is not None:
                caught.found(compute, points.indices, done, now, values)
            done += now
            progress.done(now)


@contextlib.contextmanager
def failures(done: int, points: int) -> Iterator[None]:
    """Says at which points a call of a kernel failed."""
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        raise _failed(error, done, points) from error
    except Exception as error:
        # What JAX raises inside for `jax_debug_nans`, and `jit` would translate.
        if type(error).__name__ == "InternalFloatingPointError":
            raise FloatingPointError(f"invalid value in the sweep: {error}") from None
        raise


def compiled_once(
    programs: Sequence[Program], layout: Any, make: Callable[[], Any]
) -> Any:
    """What `make` compiles from some programs, unless it is there already."""
    place = (tuple(program.identity for program in programs), layout)
    with _lock:
        entry = _kernels.get(place)
        if entry is not None and all(program.still_valid() for program in entry[0]):
            _kernels.move_to_end(place)
            return entry[1]
    made = make()
    # Kept without their arrays, which may be large and are handed in anew each time.
    kept = tuple(program.without_constants() for program in programs)
    with _lock:
        _kernels[place] = (kept, made)
        while len(_kernels) > _KEPT:
            _kernels.popitem(last=False)
    return made


def _collect(
    outputs: list[Any],
    values: list[np.ndarray],
    points: Neighbours | Listed,
    first: int,
    now: int,
    count: int,
    layout: Layout,
) -> None:
    """Copies what one call computed to its place, without the repeated tail."""
    block = layout.capacity * layout.batch_size
    places = [
        points.places(first, now, count, layout, device)
        for device in range(len(layout.devices))
    ]
    for out, into in zip(outputs, values, strict=True):
        for shard in out.addressable_shards:
            place = places[(shard.index[0].start or 0) // block]
            rows = place.stop - place.start if isinstance(place, slice) else len(place)
            into[place] = np.asarray(shard.data)[:rows]


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
