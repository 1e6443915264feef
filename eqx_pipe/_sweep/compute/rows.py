"""The outputs of points: the number per call, and the arrays that receive them."""

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

Each point or block has a row; PRNG keys are raw data.
"""

Index: TypeAlias = range | Int64[np.ndarray, " rows"]
"""The numbers of the rows to compute."""

CHUNK_BYTES = 64 * 1024 * 1024
"""The approximate size of the outputs of one call of the kernel, over all devices.

A point counts as at least one byte, so that offsets within a call are below 2^31 (one
batch on each device may be larger, but has at most 2^30 points).
"""


def stretches_of(index: Index) -> list[tuple[int, int]]:
    """Return sorted numbers as half-open ranges."""
    if isinstance(index, range):
        return [(index.start, index.stop)]
    found = np.split(index, np.flatnonzero(np.diff(index) != 1) + 1)
    return [(int(part[0]), int(part[-1]) + 1) for part in found if len(part)]


def row_bytes(row: Sequence[jax.ShapeDtypeStruct]) -> int:
    """Return the size in bytes of a row, at least 1."""
    return max(1, sum(math.prod(s.shape) * s.dtype.itemsize for s in row))


def chunk_capacity(
    size: int,
    batch_size: int,
    num_devices: int,
    outputs: Sequence[jax.ShapeDtypeStruct],
) -> int:
    """Return the maximum number of microbatches in one call on each device."""
    batch_bytes = row_bytes(outputs) * batch_size * num_devices
    needed = -(-size // (batch_size * num_devices))
    return max(1, min(needed, CHUNK_BYTES // batch_bytes))


def empty_values(
    size: int, outputs: Sequence[jax.ShapeDtypeStruct], function: str = "sweep"
) -> list[np.ndarray]:
    """Return arrays for the values of all points, leaf by leaf.

    Raises a `ValueError` if they do not fit into the memory of this machine or its
    container.
    """
    # Operating systems overcommit memory, and kill the process that uses too much. Its
    # limit is read from files, which would be a tenth of a small sweep.
    needed = size * row_bytes(outputs)
    memory = _memory() if needed > CHUNK_BYTES else math.inf
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


# The limits of a container, for both versions of Linux's control groups. A file with
# "max" sets no limit.
_LIMITS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)


def _memory() -> float:
    """Return the bytes of memory available to this process; infinity if unknown."""
    found = math.inf
    with contextlib.suppress(AttributeError, ValueError, OSError):  # Windows
        found = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    for limit in _LIMITS:
        with contextlib.suppress(OSError, ValueError):
            found = min(found, float(limit.read_text()))
    return found
