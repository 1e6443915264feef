"""How many points fit into a device's memory: asked of the compiled program.

What a program needs grows in proportion to the batch, from a part that stays. Two
compilations, at small batches, tell both, and nothing is run. Devices that do not say
how much memory they have (CPUs) set no limit.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax

SPARE = 0.8
"""The part of what is free that is used: allocators need some room."""

_PROBES = 8, 64


def free_bytes(devices: Sequence[Any]) -> int | None:
    """The free memory of the fullest device, `None` if none of them says."""
    free = []
    for device in devices:
        stats = device.memory_stats() or {}
        if "bytes_limit" in stats:
            free.append(int(stats["bytes_limit"]) - int(stats.get("bytes_in_use", 0)))
    return min(free) if free else None


def fitting(batch_size: int, needs: Callable[[int], int | None], free: int) -> int:
    """The largest batch size up to `batch_size` that fits into `free` bytes.

    `needs(b)` are the bytes of the program at batch size b, or `None` if it is not
    known. At least 1: if even that does not fit, JAX says so better than we could.
    """
    low, high = _PROBES
    if batch_size <= low:
        return batch_size
    at_low, at_high = needs(low), needs(high)
    if at_low is None or at_high is None:
        return batch_size
    per_lane = max(1, -(-(at_high - at_low) // (high - low)))
    rest = max(0, at_low - low * per_lane)
    room = int(free * SPARE) - rest
    return max(1, min(batch_size, room // per_lane))


def compiled_bytes(compiled: jax.stages.Compiled) -> int | None:
    """What a compiled program holds on one device while it runs."""
    found = compiled.memory_analysis()
    if found is None:
        return None
    parts = ("argument", "output", "temp")
    return sum(int(getattr(found, f"{part}_size_in_bytes", 0)) for part in parts)
