"""How much memory does a sweep take, and what is done with its result?

A formula of two axes, one float32 for each point. Each side and number of points in a
process of its own: ours, by hand on a grid that is held (`shard_map`), and tvboptim;
times are with imports and compiling, and all end with the values as a NumPy array.
Then what is done with a result of `--result` points, on a product of axes and on as
many pairs (`zip`): time, and what it took more at its peak.
"""

import os
import tempfile
import threading
import time

import eqx_pipe as ep

from ._timing import in_own_process

DEVICES = "all"
QUICK = {"points": (10_000,), "result": 10_000}


def one(side, size):
    """The time of one side, to whose process's memory nothing else adds."""
    start = time.perf_counter()
    from ._sides import SIDES
    from ._sweep_cases import cheap

    ep.use_cpu_devices()
    slow = 10 ** (len(str(size)) // 2)
    axes = {"a": (0.01, 1.0, slow), "b": (0.1, 0.9, size // slow)}
    setting = "auto" if side == "sweep" else 16_384
    SIDES[side].make(cheap()._replace(axes=axes), setting)()
    return time.perf_counter() - start


class Resident:
    """The most that this process's memory grows while a block runs, and its time."""

    def __enter__(self):
        self._end = threading.Event()
        self._before = self._peak = self._now()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        self._start = time.perf_counter()
        return self

    def __exit__(self, *_):
        self.seconds = time.perf_counter() - self._start
        self._end.set()
        self._thread.join()
        self.growth = self._peak - self._before

    def _watch(self):
        while not self._end.wait(0.01):
            self._peak = max(self._peak, self._now())

    def _now(self):
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def handled(run, name, space, folder):
    """What is done with a result, after the sweep."""

    def fn(p):
        return p["a"] * p["b"]

    result = ep.sweep(fn, space)
    file, store = f"{folder}/{name}.zarr", f"{folder}/{name}-store.zarr"
    work = {
        "repr": lambda: repr(result),
        "grid": result.grid,
        "best": result.best,
        "to_xarray": result.to_xarray,
        "to_pandas": result.to_pandas,
        "space.to_pandas": result.space.to_pandas,
        "save": lambda: result.save(file),
        "load": lambda: ep.SweepResult.load(file).values,
        "sweep into a store": lambda: ep.sweep(fn, space, store=store),
        "the same again: nothing left": lambda: ep.sweep(fn, space, store=store),
        "best of the store": lambda: ep.SweepResult.load(store).best(),
    }
    for side in run.chosen(work):
        with Resident() as used:
            kept = work[side]()
        run.row(case=name, side=side, time=used.seconds, peak_MiB=round(used.growth))
        del kept


def main(run, *, points=(10**6, 10**7, 10**8), result=10**7):
    for size in points:
        for side in run.chosen(("sweep", "shard_map", "tvboptim")):
            if side != "tvboptim" or run.has("tvboptim"):
                took, peak = in_own_process(one, side, size)
                case = f"{size:,} points"
                run.row(case=case, side=side, time=took, peak_MiB=round(peak))
    long, short = ep.Linspace(0.01, 1, 1000), ep.Linspace(0.1, 0.9, result // 1000)
    pairs = {"a": ep.Linspace(0, 1, result), "b": ep.Geomspace(1, 9, result)}
    with tempfile.TemporaryDirectory() as folder:
        product = ep.Space({"a": long, "b": short})
        handled(run, "handled: product", product, folder)
        handled(run, "handled: zip", ep.Space(pairs, mode="zip"), folder)
