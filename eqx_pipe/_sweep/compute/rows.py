"""The outputs of points: how many one call computes, and the arrays they go to."""

import contextlib
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

import jax
import numpy as np
from jaxtyping import Int64

from ..._errors import value_error

Rows: TypeAlias = list[np.ndarray]
"""The leaves of the outputs at some points, or of the states of some blocks.

There is a row for each; PRNG keys are raw data.
"""

Index: TypeAlias = range | Int64[np.ndarray, " rows"]
"""The numbers of the rows to compute."""

CHUNK_BYTES = 64 * 1024 * 1024
"""About how much output one call of the kernel holds, over all devices.

A point counts for at least a byte, so that offsets within a call are below 2^31 (one
batch on each device may be more, but is no more than 2^30 points).
"""


def stretches_of(index: Index) -> list[tuple[int, int]]:
    """Return the half-open ranges that some numbers in order come to."""
    if isinstance(index, range):
        return [(index.start, index.stop)]
    found = np.split(index, np.flatnonzero(np.diff(index) != 1) + 1)
    return [(int(part[0]), int(part[-1]) + 1) for part in found if len(part)]


def row_bytes(row: Sequence[jax.ShapeDtypeStruct]) -> int:
    """Return the size in bytes of a row with some leaves; at least 1."""
    return max(1, sum(math.prod(s.shape) * s.dtype.itemsize for s in row))


def chunk_capacity(
    size: int,
    batch_size: int,
    num_devices: int,
    outputs: Sequence[jax.ShapeDtypeStruct],
) -> int:
    """Return the most microbatches that one call computes on each device."""
    batch_bytes = row_bytes(outputs) * batch_size * num_devices
    needed = -(-size // (batch_size * num_devices))
    return max(1, min(needed, CHUNK_BYTES // batch_bytes))


def empty_values(
    size: int, outputs: Sequence[jax.ShapeDtypeStruct], function: str = "sweep"
) -> list[np.ndarray]:
    """Return arrays for the values of all points, leaf by leaf.

    Raises a `ValueError` if this machine, or the container, could not hold them.
    """
    # Systems promise more memory than there is, and end the process that uses it.
    needed, memory = size * row_bytes(outputs), _memory()
    try:
        if needed > memory:
            raise MemoryError
        return [np.empty((size, *leaf.shape), leaf.dtype) for leaf in outputs]
    except (MemoryError, ValueError) as error:  # more than NumPy can count
        raise value_error(
            function,
            f"the values of {size:,} points take {needed / 2**30:,.0f} GiB, and "
            f"this process may use {memory / 2**30:,.0f} GiB of memory.",
            "Keep less of them: a reduction by `reduce=`, or values on disk by "
            '`store="runs.zarr"`; or sweep over a part of the space, `space[a:b]`.',
        ) from error


# The limits of a container, of both versions of Linux's control groups. A file that
# holds "max" sets none.
_LIMITS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)


def _memory() -> float:
    """Return the bytes of memory for this process; infinity if unknown."""
    found = math.inf
    with contextlib.suppress(AttributeError, ValueError, OSError):  # Windows
        found = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    for limit in _LIMITS:
        with contextlib.suppress(OSError, ValueError):
            found = min(found, float(limit.read_text()))
    return found
