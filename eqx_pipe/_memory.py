"""The size of the memory of this machine, or of its container."""

import contextlib
import math
import os
from pathlib import Path

# The limits of a container, for both versions of Linux's control groups. A file with
# "max" sets no limit.
_LIMITS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)


def memory_bytes() -> float:
    """Return the bytes of memory available to this process; infinity if unknown."""
    available = math.inf
    with contextlib.suppress(AttributeError, ValueError, OSError):  # Windows
        available = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    for limit in _LIMITS:
        with contextlib.suppress(OSError, ValueError):
            available = min(available, float(limit.read_text()))
    return available
