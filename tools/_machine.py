"""Everything that optimised programs and their costs depend on, besides our code."""

import hashlib
import os
import platform
from importlib.metadata import version
from pathlib import Path


def described():
    """Return versions, the processor and the number of cores."""
    return {
        **{name: version(name) for name in ("jax", "jaxlib", "equinox", "numpy")},
        "python": platform.python_version(),
        "processor": f"{platform.machine()} {_features()}",
        "cores": str(len(os.sched_getaffinity(0))),
    }


def _features():
    """Return a digest of the processor's instructions, where Linux lists them."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    flags = [line for line in lines if line.startswith(("flags", "Features"))]
    words = sorted(flags[0].partition(":")[2].split()) if flags else []
    return hashlib.sha256(" ".join(words).encode()).hexdigest()[:12]
