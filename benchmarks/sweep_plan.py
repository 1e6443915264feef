"""Does a sweep take what its plan says?

Each model is planned with a probe, for values in memory and for a store, and then
swept: the bytes of values and on the disk, the memory of the program as it was guessed
and as it is, and the seconds. The sweep runs by the programs that the probe has
compiled. Bars: bytes of values within a tenth, no more on the disk than was said, and
time within a quarter.
"""

import math
import os
import statistics
import tempfile
from pathlib import Path

import jax
import jax.random as jr

import eqx_pipe as ep
from eqx_pipe._sweep import probe

from . import _models

DEVICES = "all"
QUICK = {"scale": 0.01, "only": ("closed_form", "walk")}


def cases(scale):
    """Name, function, space and key."""
    for model, points in _models.POINTS.items():
        side = max(2, math.isqrt(int(points * scale)))
        space = {"a": ep.Linspace(0.01, 1, side), "b": ep.Linspace(0.1, 0.9, side)}
        yield model.__name__, lambda p, key, m=model: m(p, key), space, jr.key(0)


def used(path):
    """The bytes that a folder takes on its disk."""
    return sum(os.lstat(each).st_blocks * 512 for each in [path, *path.rglob("*")])


def planned(run, fn, space, **asked):
    """The plan, its probe, the result, and the seconds of the sweep."""
    before = ep.plan(fn, space, **asked)
    coming = ep.plan(fn, space, probe=5, **asked)
    begun = run.clock()
    result = ep.sweep(fn, space, progress=False, **asked)
    jax.block_until_ready(result.values)
    return before, coming, result, run.clock() - begun


def main(run, *, scale=1.0):
    probe.clock = run.clock  # a plan knows nothing of what else the machine will do
    ratios = []
    for name, fn, space, key in cases(scale):
        for case in run.chosen([name]):
            before, coming, result, took = planned(run, fn, space, key=key)
            size = sum(leaf.nbytes for leaf in jax.tree.leaves(result.values))
            row = {"case": case, "points": coming.points, "seconds": took}
            row |= {
                "said": coming.seconds / took,
                "from": coming.low / took,
                "to": coming.high / took,
                "bytes": coming.value_bytes / size,
                "memory": before.memory_bytes / coming.memory_bytes,
            }
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "runs.zarr"
                _, kept, _, took = planned(run, fn, space, key=key, store=path)
                disk = used(path)
            row |= {"kept": took, "said kept": kept.seconds / took}
            row |= {"disk": kept.disk_bytes / disk}
            ratios.append((case, row["said"], row["said kept"], row["disk"]))
            run.row(**row)
    for k, what in ((1, "in memory"), (2, "in a store")):
        off = [max(row[k], 1 / row[k]) for row in ratios]
        good = sum(x <= 1.25 for x in off)
        middle = statistics.median(off)
        text = f"within a quarter for {good} of {len(off)}, median {middle:.2f}"
        run.note(f"time {what}: {text}")
    run.note(f"disk: never more than said: {all(row[3] >= 1 for row in ratios)}")
