"""What is decided before anything runs: devices, batch size, chunks."""

import math
import os
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from ..._check import check_int
from ..._errors import describe_value, message, nearest

CHUNK_BYTES = 64 * 1024 * 1024
"""About how much output one call of the kernel holds, over all devices.

A point counts for at least a byte, so that offsets within a call are below 2^31 (one
batch on each device may be more, but is no more than 2^30 points).
"""


def mesh_devices(function: str, mesh: Any) -> tuple[Any, ...]:
    """The devices that points are split over: those of `mesh`, or all local ones."""
    if mesh is None:
        return tuple(jax.local_devices())
    if not isinstance(mesh, Mesh):
        raise TypeError(
            message(
                function,
                f"`mesh` is {describe_value(mesh)}.",
                "Give a `jax.sharding.Mesh`, made by `jax.make_mesh`, or None for all "
                "local devices.",
            )
        )
    devices = tuple(mesh.devices.flat)
    foreign = [d for d in devices if d.process_index != jax.process_index()]
    if foreign or not devices:
        raise ValueError(
            message(
                function,
                f"`mesh` has {len(devices)} devices, {len(foreign)} of them of other "
                "processes.",
                "Give a mesh of this process's own devices: "
                "`jax.make_mesh((n,), ('x',), devices=jax.local_devices()[:n])`.",
            )
        )
    return devices


def check_batch_size(function: str, batch_size: Any, word: str | None) -> None:
    """Raises unless `batch_size` is a positive integer or `word` (`None` too)."""
    if batch_size is None and word is None:
        return
    if isinstance(batch_size, str):
        if batch_size == word:
            return
        raise ValueError(
            message(
                function,
                f"`batch_size` is {describe_value(batch_size)}.",
                nearest(batch_size, [word or "None", "a positive integer"]),
            )
        )
    check_int(function, "batch_size", batch_size, 1)


def chunk_capacity(
    size: int, batch_size: int, num_devices: int, outputs: Sequence[Any]
) -> int:
    """The most microbatches that one call computes on each device."""
    point_bytes = sum(
        math.prod(leaf.shape) * getattr(leaf.dtype, "itemsize", 8) for leaf in outputs
    )
    batch_bytes = max(1, point_bytes) * batch_size * num_devices
    needed = -(-size // (batch_size * num_devices))
    return max(1, min(needed, CHUNK_BYTES // batch_bytes))


def empty_values(size: int, outputs: Sequence[Any]) -> list[np.ndarray]:
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
        raise ValueError(
            message(
                "sweep",
                f"the values of {size:,} points take {needed / 2**30:,.0f} GiB, and "
                f"this machine has {_memory() / 2**30:,.0f} GiB of memory.",
                "Keep less of them: a reduction by `reduce=`, or values on disk by "
                '`store="runs.zarr"`; or sweep over a part of the space, `space[a:b]`.',
            )
        ) from error


def _memory() -> float:
    """The size of this machine's memory in bytes; infinite where it is not told."""
    try:
        return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, ValueError, OSError):  # Windows
        return math.inf
