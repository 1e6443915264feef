"""How much memory does a sweep take, beside a grid that is held, and tvboptim?

A formula of two axes, one float32 for each point. Each side and number of points runs
in a process of its own: ours, `shard_map` by hand on a grid that is held, and tvboptim.
Times include imports and compilation; every side ends with the values as a NumPy array.
"""

import time

import eqx_pipe as ep

from ._timing import in_own_process

DEVICES = "all"
QUICK = {"points": (10_000,)}


def one(side, size):
    """Return the time of one side, alone in its process."""
    start = time.perf_counter()
    from ._sides import SIDES
    from ._sweep_cases import cheap

    ep.use_cpu_devices()
    slow = 10 ** (len(str(size)) // 2)
    axes = {"a": (0.01, 1.0, slow), "b": (0.1, 0.9, size // slow)}
    setting = "auto" if side == "sweep" else 16_384
    SIDES[side].make(cheap()._replace(axes=axes), setting)()
    return time.perf_counter() - start


def main(run, *, points=(10**6, 10**7, 10**8)):
    for size in points:
        for side in run.chosen(("sweep", "shard_map", "tvboptim")):
            if side != "tvboptim" or run.has("tvboptim"):
                took, peak = in_own_process(one, side, size)
                case = f"{size:,} points"
                run.row(case=case, side=side, time=took, peak_MiB=round(peak))
