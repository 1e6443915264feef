"""The outputs of points: how many one call computes, and the arrays they go to."""

import math
import os
from collections.abc import Sequence
from typing import TypeAlias

import jax
import numpy as np

from ..._errors import value_error

Rows: TypeAlias = list[np.ndarray]
"""The leaves of the outputs at some points, or of the states of some blocks.

There is a row for each; PRNG keys are raw data.
"""

CHUNK_BYTES = 64 * 1024 * 1024
"""About how much output one call of the kernel holds, over all devices.

A point counts for at least a byte, so that offsets within a call are below 2^31 (one
batch on each device may be more, but is no more than 2^30 points).
"""


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
