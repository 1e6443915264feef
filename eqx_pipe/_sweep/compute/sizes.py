"""How many points at once: a rule of one page, which reads the function's jaxpr.

It knows four cases (no loop, a loop, a loop in which lanes wait for the slowest, a loop
whose lanes are refilled) and one cap: what a batch works on should stay in the nearest
cache. Figures are of `benchmarks/sweep_batch_size.py`, models and survey, on
two cores of a CPU with jaxlib 0.10.2 and 0.12.0: times over that of the best size. The
rule took 1.17 times as long, 2.7 times at worst (geometric mean over 34 rows, each of a
model and a version of jaxlib; those by which the numbers were chosen); with programs of
other packages among them, on a busier machine, 1.23 (0.10) and 1.30 (0.12), 3.9 at
worst. `batch_size="tune"` tries some sizes.
"""

import math
import os
from collections.abc import Sequence
from typing import Any, TypeAlias

import jax
import numpy as np

from ..._errors import value_error
from ..tracing.analysis import Analysis

MOST = 1024
"""Points at once of functions without loops, or with loops of equal length.

A scan of Runge-Kutta steps took 8.7 times as long with 8 points, 1.4 times with 128 and
with 4,096; without a loop there is little between 64 and 4,096 points.
"""

WAITING = 256
"""Points at once where a loop goes on until the slowest lane has finished.

Fewer waste fewer steps, but each step costs something for however few: jaxlib 0.10 took
1.5 times as long with 256 as with 16 if a step computes a sine, twice as long with 64
as with 512 if it is a few additions. With jaxlib 0.12 there is little between 32 and
512. If costs are alike within a batch nothing waits, and it is a loop like any other.
"""

REFILLED = 32_768
"""Points at once where a lane that has finished takes the next point of the batch.

They are in memory, not in work at the same time: 65,536 points of 1 to 1,000 steps took
31 ms, and 66 ms as batches of 32 whose lanes wait.
"""

NEAREST_CACHE = 12 * 1024
"""Bytes of the largest value in work, over all lanes: some of 32 or 48 KiB.

From 16 KiB on, sums over short axes took 2.4 times (softmax over 4) or 3 times as long
(norms of 4 in a loop), large steps up to 2.5 times (leapfrog of 8 bodies).
"""

LAST_CACHE = 8 * 1024 * 1024
"""Bytes of the largest value round a loop, over all lanes."""

ELSEWHERE = 16_384
"""Points at once on other devices than CPUs, as far as memory goes (not measured)."""

REGISTER = 16
"""Lanes of a register (numbers of four bytes in AVX-512).

A batch is a multiple of it, or loops take up to three times as long; and at least one,
since a single lane wastes most of what an instruction can do (14 to 17 times as long).
Where the rule would take 8, 16 took 0.90 times as long with jaxlib 0.12 (ten models,
0.43 to 1.5) and 0.93 with 0.10 (eight models, 0.71 to 1.3).
"""


def choose_batch_size(
    analysis: Analysis,
    size: int,
    num_devices: int,
    *,
    alike: bool = False,
    on_cpu: bool = True,
    may_hang: bool = False,
) -> int:
    """The batch size for `size` points of a function on `num_devices` devices.

    Costs are `alike` within a batch if points were put in order. Where batches of
    linear algebra `may_hang`, they are small enough that they do not.
    """
    most = _most(analysis, alike) if on_cpu else ELSEWHERE
    most = max(1, most // REGISTER) * REGISTER
    even = -(-even_out(most, size, num_devices) // REGISTER) * REGISTER
    chosen = min(even, -(-size // num_devices))
    limit = analysis.linalg_limit
    if may_hang and limit is not None and limit < chosen:
        return max(1, limit // REGISTER * REGISTER or limit)
    return chosen


def _most(analysis: Analysis, alike: bool) -> int:
    """The four cases, and the caps by what a point works on."""
    if not analysis.loops:
        return min(MOST, NEAREST_CACHE // analysis.largest)
    around = LAST_CACHE // analysis.largest
    if analysis.refilled:
        return min(REFILLED, around)
    most = WAITING if analysis.waits and not alike else MOST
    return min(most, NEAREST_CACHE // analysis.of_a_step, around)


def even_out(batch_size: int, size: int, num_devices: int) -> int:
    """At most `batch_size`, so that devices have as much to do and tails are short."""
    per_device = -(-size // num_devices)
    batches = -(-per_device // batch_size)
    return -(-per_device // batches)


Rows: TypeAlias = list[np.ndarray]
"""The leaves of the outputs at some points, or of the states of some blocks.

There is a row for each; PRNG keys are raw data.
"""

CHUNK_BYTES = 64 * 1024 * 1024
"""About how much output one call of the kernel holds, over all devices.

A point counts for at least a byte, so that offsets within a call are below 2^31 (one
batch on each device may be more, but is no more than 2^30 points).
"""

SPARE = 0.8
"""The part of what is free that is used: allocators need some room."""


def free_bytes(devices: Sequence[Any]) -> int | None:
    """The free memory of the fullest device, `None` if none of them says."""
    free = []
    for device in devices:
        stats = device.memory_stats() or {}
        if "bytes_limit" in stats:
            free.append(int(stats["bytes_limit"]) - int(stats.get("bytes_in_use", 0)))
    return min(free) if free else None


def lanes_that_fit(free: int, lane_bytes: int) -> int:
    """Return how many points fit into `free` bytes; at least 1.

    If not even one fits, JAX says so better than we could. `lane_bytes` is an upper
    bound, since XLA fuses operations. A batch that does not fit all the same is halved.
    """
    return max(1, int(free * SPARE) // max(1, lane_bytes))


def compiled_bytes(compiled: jax.stages.Compiled) -> int | None:
    """What a compiled program holds on one device while it runs."""
    found = compiled.memory_analysis()
    if found is None:
        return None
    parts = ("argument", "output", "temp")
    return sum(int(getattr(found, f"{part}_size_in_bytes", 0)) for part in parts)


def chunk_capacity(
    size: int,
    batch_size: int,
    num_devices: int,
    outputs: Sequence[jax.ShapeDtypeStruct],
) -> int:
    """The most microbatches that one call computes on each device."""
    point_bytes = sum(
        math.prod(leaf.shape) * getattr(leaf.dtype, "itemsize", 8) for leaf in outputs
    )
    batch_bytes = max(1, point_bytes) * batch_size * num_devices
    needed = -(-size // (batch_size * num_devices))
    return max(1, min(needed, CHUNK_BYTES // batch_bytes))


def empty_values(
    size: int, outputs: Sequence[jax.ShapeDtypeStruct]
) -> list[np.ndarray]:
    """Where the values of all points go, leaf by leaf.

    Raises a `ValueError` that says what to do if this machine could not hold them.
    """
    # Systems promise more memory than there is, and end the process that uses it.
    needed = size * sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in outputs)
    try:
        if needed > _memory():
            raise MemoryError
        return [np.empty((size, *leaf.shape), leaf.dtype) for leaf in outputs]
    except (MemoryError, ValueError) as error:  # more than NumPy can count
        raise value_error(
            "sweep",
            f"the values of {size:,} points take {needed / 2**30:,.0f} GiB, and "
            f"this machine has {_memory() / 2**30:,.0f} GiB of memory.",
            "Keep less of them: a reduction by `reduce=`, or values on disk by "
            '`store="runs.zarr"`; or sweep over a part of the space, `space[a:b]`.',
        ) from error


def _memory() -> float:
    """The size of this machine's memory in bytes; infinite where it is not told."""
    try:
        return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, ValueError, OSError):  # Windows
        return math.inf
